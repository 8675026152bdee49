"""Drawings by matplotlib: as SVG that lives inside a page and takes its colours, and as PNG.

No text of a user is drawn but by `tick_labels`, which keeps matplotlib from reading formulas in it.
"""

from __future__ import annotations

import io
import itertools
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bert_recipes.reports.palette import COLORS


# Inches; a column of a page on a desk, the whole width of a telephone.
PANEL = (4.3, 2.7)
# More points than a plot has pixels only make a page large.
MOST_POINTS = 600
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": COLORS["line"].light,
    "axes.labelcolor": COLORS["muted"].light,
    "axes.titlecolor": COLORS["ink"].light,
    "axes.titlesize": 11,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.use_mathtext": False,
    "axes.formatter.limits": (-4, 6),
    "grid.color": COLORS["line"].light,
    "grid.linewidth": 0.7,
    "text.color": COLORS["ink"].light,
    "text.usetex": False,
    "xtick.color": COLORS["muted"].light,
    "ytick.color": COLORS["muted"].light,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.fonttype": "none",
    "path.simplify_threshold": 0.3,
}


@dataclass(frozen=True)
class Line:
    """A curve.

    Attributes:
        name: For the legend.
        steps, values: Its points; those that are not finite are left out.
        color: One of `COLORS`.
        has_points: Whether the points are marked: those of an evaluation.
    """

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    color: str = "blue"
    has_points: bool = False


@dataclass(frozen=True)
class Panel:
    """A plot of curves.

    Attributes:
        title, unit: What is drawn, and in what.
        lines: The curves.
        yardsticks: (name, value) of dashed lines.
        limits: Of the vertical axis; None, in whole or as its upper end: what the curves need.
        x_label: Of the horizontal axis.
    """

    title: str
    unit: str
    lines: tuple[Line, ...]
    yardsticks: tuple[tuple[str, float], ...] = ()
    limits: tuple[float, float | None] | None = None
    x_label: str = "optimiser steps"


def thin(steps: Sequence[float], values: Sequence[float], most: int = MOST_POINTS) -> tuple[list[float], list[float]]:
    """The points that are finite; of more than `most` the means of so many neighbours that no more are left."""
    points = [
        (step, value)
        for step, value in zip(steps, values, strict=True)
        if isinstance(value, int | float) and math.isfinite(value)
    ]
    width = -(-len(points) // most) or 1
    groups = [points[start : start + width] for start in range(0, len(points), width)]
    return (
        [sum(step for step, _ in group) / len(group) for group in groups],
        [sum(value for _, value in group) / len(group) for group in groups],
    )


def draw_panel(panel: Panel) -> str:
    """A plot of curves as SVG; its legend is the page's."""
    return _svg(panel.title, lambda axis: _draw_lines(axis, panel))


def draw_panels_png(panels: Sequence[Panel]) -> bytes:
    """Plots of curves beside each other, with titles and legends, as PNG."""

    def draw(figure: Any) -> None:
        if not panels:
            figure.text(0.5, 0.5, "nothing was logged twice", ha="center")
            return
        for axis, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _draw_lines(axis, panel)
            axis.set_title(panel.title)
            if axis.get_legend_handles_labels()[0]:
                for text in axis.legend().get_texts():
                    text.set_parse_math(False)

    return _png((4.8 * max(len(panels), 1), 3.9), draw)


def _draw_lines(axis: Any, panel: Panel) -> None:
    for line in panel.lines:
        steps, values = thin(line.steps, line.values)
        marks = {"marker": "o", "ms": 3.5} if line.has_points or len(steps) == 1 else {}
        # matplotlib leaves a name that begins so out of the legend.
        label = line.name.lstrip("_") or "run"
        axis.plot(steps, values, color=COLORS[line.color].light, label=label, **marks)
    for name, value in panel.yardsticks:
        if math.isfinite(value):
            axis.axhline(value, color=COLORS["grey"].light, ls=(0, (4, 3)), lw=1.2, label=name)
    axis.set(xlabel=panel.x_label, ylabel=panel.unit)
    if panel.limits is not None:
        axis.set_ylim(*panel.limits)
    _plain_thousands(axis.xaxis)
    if axis.get_ylim()[1] >= 1000:
        _plain_thousands(axis.yaxis)


def draw_histogram(edges: Sequence[float], counts: Sequence[int], *, x_label: str, y_label: str) -> str:
    """Bars between edges, one more edge than counts, as SVG."""

    def draw(axis: Any) -> None:
        widths = [0.92 * (high - low) for low, high in itertools.pairwise(edges)]
        middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
        axis.bar(middles, counts, width=widths, color=COLORS["blue"].light)
        axis.set(xlabel=x_label, ylabel=y_label)
        axis.grid(visible=False, axis="x")

    return _svg(x_label, draw)


def draw_reliability(confidences: Sequence[float], accuracies: Sequence[float], counts: Sequence[int]) -> str:
    """Accuracy over confidence, a bar for each bin that holds anything; the diagonal is what would be right."""

    def draw(axis: Any) -> None:
        number = len(counts)
        places = [(place + 0.5) / number for place in range(number) if counts[place]]
        kept = [place for place in range(number) if counts[place]]
        axis.plot([0, 1], [0, 1], color=COLORS["grey"].light, ls=(0, (4, 3)), lw=1.2)
        axis.bar(places, [accuracies[place] for place in kept], width=0.9 / number, color=COLORS["sky"].light)
        axis.plot(
            [confidences[place] for place in kept],
            [accuracies[place] for place in kept],
            "o",
            ms=4,
            color=COLORS["blue"].light,
        )
        axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="probability that the model gave", ylabel="share right")
        axis.set_yticks([0.2, 0.4, 0.6, 0.8, 1.0])  # the horizontal axis has the 0 of both

    return _svg("reliability", draw)


def draw_scatter(truths: Sequence[float], predictions: Sequence[float]) -> str:
    """Predicted over right numbers, with the diagonal."""

    def draw(axis: Any) -> None:
        both = [*truths, *predictions]
        low, high = min(both), max(both)
        axis.plot([low, high], [low, high], color=COLORS["grey"].light, ls=(0, (4, 3)), lw=1.2)
        axis.plot(truths, predictions, "o", ms=2.5, color=COLORS["blue"].light)
        axis.set(xlabel="right", ylabel="predicted")

    return _svg("predicted over right", draw)


@dataclass(frozen=True)
class Dots:
    """A row of a sweep's plot: the runs of a combination, their median, and whether it is the best."""

    name: str
    values: tuple[float, ...]
    median: float
    is_best: bool


def draw_dots(rows: Sequence[Dots], x_label: str) -> str:
    """Every run as a point, every median as a bar, a row for each combination; as SVG."""
    return _svg(x_label, lambda axis: _draw_dots(axis, rows, x_label), size=(7.4, 0.9 + 0.27 * len(rows)))


def draw_dots_png(rows: Sequence[Dots], x_label: str, title: str) -> bytes:
    """`draw_dots` as PNG."""

    def draw(figure: Any) -> None:
        axis = figure.subplots()
        _draw_dots(axis, rows, x_label)
        axis.set_title(title, loc="left", fontsize="medium", parse_math=False)

    return _png((8, 1.4 + 0.32 * len(rows)), draw)


def _draw_dots(axis: Any, rows: Sequence[Dots], x_label: str) -> None:
    for place, row in enumerate(rows):
        finite = [value for value in row.values if math.isfinite(value)]
        color = COLORS["orange" if row.is_best else "blue"].light
        axis.plot(finite, [place] * len(finite), "o", color=color, ms=5)
        if math.isfinite(row.median):
            axis.plot([row.median], [place], "|", color=color, ms=16, mew=2.5)
    tick_labels(axis.yaxis, [row.name for row in rows])
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_xlabel(x_label, parse_math=False)
    axis.grid(visible=False, axis="y")


def tick_labels(axis: Any, names: Sequence[str]) -> None:
    """Texts at 0, 1, 2, ... of an axis, as they are: a dollar begins no formula."""
    axis.set_ticks(range(len(names)), names)
    for label in axis.get_ticklabels():
        label.set_parse_math(False)


def _plain_thousands(axis: Any) -> None:
    """1,000 instead of 1000."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


# From a drawing to a file


@contextmanager
def _figure(size: tuple[float, float], name: str) -> Iterator[Any]:
    """A figure in the style of the reports, without a window system and without matplotlib's list of open figures."""
    import matplotlib as mpl  # heavy, and only a report needs it
    from matplotlib.figure import Figure

    with mpl.rc_context({**_STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
        # A script that the font has not: a page has the system's fonts, a picture has boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield Figure(figsize=size, layout="constrained")


def _png(size: tuple[float, float], draw: Callable[[Any], None]) -> bytes:
    file = io.BytesIO()
    with _figure(size, "") as figure:
        draw(figure)
        figure.savefig(file, format="png", dpi=110, facecolor="white", metadata={"Software": None})
    return file.getvalue()


def _svg(name: str, draw: Callable[[Any], None], size: tuple[float, float] = PANEL) -> str:
    file = io.StringIO()
    with _figure(size, name) as figure:
        draw(figure.subplots())
        no_date = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=no_date)
    return for_page(file.getvalue())


_NAMES = {color.light: name for name, color in COLORS.items()}
_PAINT = re.compile(r"(fill|stroke): (#[0-9a-f]{6})")
_FONT = re.compile(r"font: [^;\"]*?([\d.]+)px [^;\"]*|font-family: [^;\"]*;? ?")
_UNUSED = re.compile(
    r"^.*?(?=<svg)|<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->| xmlns(?::\w+)?=\"[^\"]*\"", re.DOTALL
)
_SIZE = re.compile(r' (?:width|height)="[^"]*"')


def for_page(svg: str) -> str:
    """Make matplotlib's SVG part of a page: as wide as there is room, colours by variables, the page's own font.

    Args:
        svg: As matplotlib writes it.
    """
    svg = _UNUSED.sub("", svg).strip()
    head, rest = svg.split(">", 1)
    svg = f"{_SIZE.sub('', head)}>{rest}"
    svg = _PAINT.sub(lambda m: f"{m[1]}: var(--{_NAMES[m[2]]})" if m[2] in _NAMES else m[0], svg)
    return _FONT.sub(lambda m: f"font-size: {m[1]}px" if m[1] else "", svg)
