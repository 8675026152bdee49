"""Drawings that no text and no length of a log can break."""

import math
import re

import pytest

from bert_recipes.reports.plots import (
    Line,
    Panel,
    finetuning_panels,
    panel_plot,
    panels_png,
    pretraining_panels,
    reliability,
    thin,
)


def test_a_long_log_is_thinned_to_means_of_neighbours():
    steps, values = thin(range(1, 3001), [float(step) for step in range(1, 3001)])
    assert len(steps) == 600
    assert (steps[0], values[0], values[-1]) == (3.0, 3.0, 2998.0)
    assert thin([1, 2], [0.5, math.nan]).tolist() == [[1.0], [0.5]]


@pytest.mark.parametrize(
    "name", ["$x_{$", "_hidden", "a $5 bill and $6", "\\frac", "<b>", "日本語", "$$"]
)
def test_names_are_drawn_as_they_are(name):
    panel = Panel("t", "", (Line(name, [1, 2], [1.0, 2.0]),))
    assert panels_png([panel]).startswith(b"\x89PNG")
    assert "<svg" in panel_plot(panel)["svg"]


def test_a_plot_of_the_page_needs_no_font_or_size_and_may_be_empty():
    panel = Panel("t", "u", (Line("a", [1, 2], [math.nan, math.inf]),))
    assert "<svg" in panel_plot(panel)["svg"]
    assert "<svg" in reliability([], 0.0)["svg"]
    svg = panel_plot(Panel("t", "u", (Line("a", [6, 6.4], [0.1, 0.2]),)))["svg"]
    head = svg[: svg.index(">")]
    assert "viewBox" in head
    assert not re.search(r'\b(width|height)="', head)
    assert "DejaVu" not in svg
    assert "http" not in svg
    # Letters, not outlines; a tick of whole steps is there once.
    ticks = re.findall(r"<text[^>]*>([\d,]+)</text>", svg)
    assert len(ticks) == len(set(ticks)) >= 1


def test_passes_and_words_may_all_be_below_one():
    line = Line("a", [0.1, 0.2, 0.5, 0.9], [0.5, 0.6, 0.6, 0.7])
    svg = panel_plot(Panel("t", "", (line,), limits=(2, 3), x_label="million words seen"))["svg"]
    ticks = [text for text in re.findall(r"<text[^>]*>([\d.]+)</text>", svg) if float(text) < 1]
    assert len(ticks) == len(set(ticks)) >= 4


def test_losses_of_other_names_are_drawn_too():
    panel = pretraining_panels([{"step": step, "loss": 9.0 - step} for step in (1, 2, 3)])[0]
    assert (panel.title, panel.lines[0].values) == ("Loss", [8.0, 7.0, 6.0])


def test_the_losses_of_two_validation_splits_have_their_names():
    values = {"loss": 1.0, "eval_loss": 0.5, "eval_hard_loss": 0.6}
    history = [{"step": step, **values} for step in (1, 2)]
    (panel,) = finetuning_panels(history, ["loss", "hard_loss"])
    assert [line.name for line in panel.lines] == ["training", "validation", "hard"]


def test_counts_and_thresholds_are_no_scores():
    values = {"eval_f1": 80.0, "eval_total": 11873, "eval_best_f1_thresh": -2.0}
    history = [{"step": step, **values} for step in (1, 2)]
    (panel,) = finetuning_panels(history, ["total", "best_f1_thresh", "f1"])
    assert [line.name for line in panel.lines] == ["f1"]


def test_every_phase_has_its_own_baseline():
    history = []
    for step, value in ((1, 6.5), (2, 6.5), (3, 6.75), (4, math.nan)):
        history.append(
            {
                "step": step,
                "eval_mlm_loss": 5.0,
                "eval_unigram_loss": value,
            }
        )
    (panel,) = pretraining_panels(history)
    (baseline,) = panel.baselines
    assert (baseline.steps, baseline.values) == ([1, 2, 3], [6.5, 6.5, 6.75])
    assert "word frequencies: 6.5, then 6.75" in panel_plot(panel)["svg"]
    (panel,) = pretraining_panels(history[:2])
    assert "word frequencies: 6.5<" in panel_plot(panel)["svg"]
