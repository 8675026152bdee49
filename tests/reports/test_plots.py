"""Drawings that no text and no length of a log can break."""

import itertools
import math
import re

import numpy as np
import pytest

from bert_recipes.reports.plots import (
    COLORS,
    SERIES,
    Line,
    Panel,
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
    assert "<svg" in reliability([{"confidence": 0.5, "accuracy": 0.0, "count": 0}], 0.0)["svg"]
    svg = panel_plot(Panel("t", "u", (Line("a", [6, 6.4], [0.1, 0.2]),)))["svg"]
    head = svg[: svg.index(">")]
    assert "viewBox" in head
    assert not re.search(r'\b(width|height)="', head)
    assert "DejaVu" not in svg
    assert "http" not in svg
    # Letters, not outlines; a tick of whole steps is there once.
    ticks = re.findall(r"<text[^>]*>([\d,]+)</text>", svg)
    assert len(ticks) == len(set(ticks)) >= 1


def test_losses_of_other_names_are_drawn_too():
    panel = pretraining_panels([{"step": step, "loss": 9.0 - step} for step in (1, 2, 3)])[0]
    assert (panel.title, panel.lines[0].values) == ("Loss", [8.0, 7.0, 6.0])


def test_every_phase_has_its_own_baseline():
    history = []
    for step, value in ((1, 6.5), (2, 6.5), (3, 6.75), (4, math.nan)):
        history.append({"step": step, "eval_mlm_loss": 5.0, "eval_unigram_loss": value})
    (panel,) = pretraining_panels(history)
    (baseline,) = panel.baselines
    assert (baseline.steps, baseline.values) == ([1, 2, 3], [6.5, 6.5, 6.75])
    assert "word frequencies: 6.5, then 6.75" in panel_plot(panel)["svg"]
    (panel,) = pretraining_panels(history[:2])
    assert "word frequencies: 6.5<" in panel_plot(panel)["svg"]


# Severity 1.0. Source: Machado, Oliveira and Fernandes 2009, "A Physiologically-based Model for
# Simulation of Color Vision Deficiency".
SIGHT = {
    "all cones": np.eye(3),
    "no red cones": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no green cones": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "no blue cones": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def lab(linear):
    """CIE 1976 L*a*b* under D65 of linear sRGB."""
    xyz = (
        np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
        @ linear
    )
    x, y, z = np.cbrt(np.clip(xyz / [0.95047, 1.0, 1.08883], 1e-9, None))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_everybody_tells_two_curves_apart(mode, sight):
    """A difference of 2.3 is just noticeable beside each other; thin lines apart from each other
    want several times that.
    """
    seen = {}
    for name in SERIES:
        value = (
            np.array([int(COLORS[name][mode][start : start + 2], 16) for start in (1, 3, 5)]) / 255
        )
        linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
        seen[name] = lab(np.clip(np.array(SIGHT[sight]) @ linear, 0, 1))
    pairs = {
        (one, other): np.linalg.norm(seen[one] - seen[other])
        for one, other in itertools.combinations(seen, 2)
    }
    assert min(pairs.values()) > 15, min(pairs, key=pairs.get)
