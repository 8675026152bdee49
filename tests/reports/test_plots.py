"""Drawings that no text and no length of a log can break."""

import math
import re

import pytest

from bert_recipes.reports.plots import (
    Line,
    Panel,
    panel_plot,
    panels_png,
    pretraining_panels,
    reliability,
    sweep_plots,
    thin,
)


def test_a_long_log_is_thinned_to_means_of_neighbours():
    steps, values = thin(range(1, 3001), [float(step) for step in range(1, 3001)], most=600)
    assert len(steps) == 600
    assert (steps[0], values[0], values[-1]) == (3.0, 3.0, 2998.0)
    assert thin([1, 2], [0.5, math.nan]) == ([1.0], [0.5])
    assert thin([], []) == ([], [])


@pytest.mark.parametrize("name", ["$x_{$", "_hidden", "a $5 bill and $6", "\\frac", "<b>", "日本語", "$$"])
def test_names_are_drawn_as_they_are(name):
    lines = (Line(name, [1, 2], [1.0, 2.0]),)
    assert panels_png([Panel("t", "u", lines)]).startswith(b"\x89PNG")
    values = {"median": None, "runs": [{"value": 0.5}, {"value": None}]}, {"median": 0.6, "runs": [{"value": 0.6}]}
    plot, png = sweep_plots([name, "b"], values, 0, name, name)
    assert "<svg" in plot["svg"]
    assert png.startswith(b"\x89PNG")


def test_a_plot_of_the_page_needs_no_font_or_size_and_may_be_empty():
    panel = Panel(
        "t",
        "u",
        (Line("a", [1, 2], [math.nan, math.inf]),),
    )
    assert "<svg" in panel_plot(panel)["svg"]
    assert "<svg" in reliability([{"confidence": 0.5, "accuracy": 0.0, "count": 0}], 0.0)["svg"]
    svg = panel_plot(Panel("t", "u", (Line("a", [6, 6.4], [0.1, 0.2]),)))["svg"]
    head = svg[: svg.index(">")]
    assert "viewBox" in head
    assert not re.search(r'\b(width|height)="', head)
    assert "DejaVu" not in svg
    assert "http" not in svg
    whole = [
        mark for mark in re.findall(r"<text[^>]*>([\d,.]+)</text>", svg) if "." not in mark
    ]  # letters, not outlines
    assert len(whole) == len(set(whole)) >= 1


def test_every_phase_has_its_own_baseline():
    values = [(1, 6.5), (2, 6.5), (3, 6.75), (4, math.nan)]
    history = [{"step": step, "eval_mlm_loss": 5.0, "eval_unigram_loss": value} for step, value in values]
    (panel,) = pretraining_panels(history)
    (baseline,) = panel.baselines
    assert (baseline.steps, baseline.values) == ([1, 2, 3], [6.5, 6.5, 6.75])
    assert panel_plot(panel)["keys"][-1] == ("word frequencies alone: 6.5, then 6.75", "grey", "dash")
    assert panel_plot(pretraining_panels(history[:2])[0])["keys"][-1][0] == "word frequencies alone: 6.5"
