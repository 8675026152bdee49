"""Drawings that no text and no length of a log can break."""

import math
import re

import pytest

from bert_recipes.reports.plots import Line, Panel, panel_plot, panels_png, reliability, sweep_plots, thin


def test_a_long_log_is_thinned_to_means_of_neighbours():
    steps, values = thin(range(1, 3001), [float(step) for step in range(1, 3001)], most=600)
    assert len(steps) == 600
    assert (steps[0], values[0], values[-1]) == (3.0, 3.0, 2998.0)
    assert thin([1, 2], [0.5, math.nan]) == ([1.0], [0.5])
    assert thin([], []) == ([], [])


def test_a_plot_of_a_million_lines_stays_small():
    steps = range(1_000_000)
    panel = Panel("loss", "nats", (Line("training", steps, [5 + math.sin(step) for step in steps]),))
    assert len(panel_plot(panel)["svg"]) < 60_000


@pytest.mark.parametrize("name", ["$x_{$", "_hidden", "a $5 bill and $6", "\\frac", "<b>", "日本語", "$$"])
def test_names_are_drawn_as_they_are(name):
    lines = (Line(name, [1, 2], [1.0, 2.0]),)
    assert panels_png([Panel("t", "u", lines)]).startswith(b"\x89PNG")
    values = {"median": None, "runs": [{"value": 0.5}, {"value": None}]}, {"median": 0.6, "runs": [{"value": 0.6}]}
    plot, png = sweep_plots([name, "b"], values, 0, name, name)
    assert "<svg" in plot["svg"]
    assert png.startswith(b"\x89PNG")


def test_nothing_finite_is_an_empty_plot():
    panel = Panel("t", "u", (Line("a", [1, 2], [math.nan, math.inf]),), (("baseline", math.nan),))
    assert "<svg" in panel_plot(panel)["svg"]
    assert "<svg" in reliability([{"confidence": 0.5, "accuracy": 0.0, "count": 0}], 0.0)["svg"]


def test_no_two_marks_of_an_axis_are_alike():
    for steps in ([6, 6.4], [1, 2], [3, 4_000]):
        svg = panel_plot(Panel("t", "u", (Line("a", steps, [0.1, 0.2]),)))["svg"]
        marks = re.findall(r"<text[^>]*>([\d,.]+)</text>", svg)
        whole = [mark for mark in marks if "." not in mark]
        assert len(whole) == len(set(whole)) >= 1, steps
    svg = reliability([{"confidence": c, "accuracy": a, "count": 3} for c, a in ((0.1, 0.2), (0.9, 0.8))], 0.1)["svg"]
    assert re.findall(r"<text[^>]*>(0\.0)</text>", svg) == ["0.0"]


def test_the_page_gives_fonts_and_size():
    svg = panel_plot(Panel("t", "u", (Line("a", [1, 2], [1.0, 2.0]),)))["svg"]
    head = svg[: svg.index(">")]
    assert "viewBox" in head
    assert not re.search(r'\b(width|height)="', head)
    assert "DejaVu" not in svg
    assert "http" not in svg
    assert "<text" in svg  # letters, not outlines
