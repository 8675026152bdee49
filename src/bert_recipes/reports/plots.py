"""Draw the plots of a report with matplotlib: SVG for the page, PNG beside the Markdown.

They are drawn in the light colours. On a page each colour becomes a variable of the style sheet, so
that one plot is readable in light and in dark.
"""

import html
import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup


# Name -> (on a light ground, on a dark one).
COLORS = {
    "ground": ("#f4f5f7", "#0e1116"),
    "card": ("#ffffff", "#161b22"),
    "ink": ("#18212b", "#e7ebf0"),
    "muted": ("#5c6978", "#97a3b1"),
    "line": ("#e1e5ea", "#2a323c"),
    "blue": ("#2563c9", "#79aefc"),
    "sky": ("#8fb4e8", "#47699c"),
    "orange": ("#c65a1e", "#f29a5c"),
    "green": ("#16835f", "#53cfa4"),
    "violet": ("#4416ee", "#bb50fe"),
    "pink": ("#92307e", "#ce4d7c"),
    "ochre": ("#50370f", "#ac761d"),
    "teal": ("#144540", "#20fafa"),
    "red": ("#c03038", "#ff8087"),
    "grey": ("#7b8794", "#8b97a5"),
}
# The colours of curves that lie over each other, in their order.
SERIES = ("blue", "orange", "green", "violet", "pink", "ochre", "teal", "grey")
STYLE_FILE = Path(__file__).parent / "templates" / "plots.mplstyle"
# Inches; a column of a page on a desk, the full width of a phone.
PANEL = (4.3, 2.9)
# More points than a plot has pixels only make a page large.
MOST_POINTS = 600
MOST_METRICS = 4
STEPS = "optimizer steps"
_LIGHT = {name: light for name, (light, _) in COLORS.items()}
_DASHED: dict[str, Any] = {
    "color": _LIGHT["grey"],
    "ls": (0, (4, 3)),
    "lw": 1.2,
}
History = Sequence[Mapping[str, Any]]


# Curves


@dataclass(frozen=True)
class Line:
    """A curve."""

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    color: str = "blue"
    in_legend: bool = True


@dataclass(frozen=True)
class Panel:
    """A plot of curves, with dashed baselines and maybe the limits of the vertical axis."""

    title: str
    unit: str
    lines: Sequence[Line]
    baselines: Sequence[Line] = ()
    limits: tuple[float, float | None] | None = None
    x_label: str = STEPS


@dataclass(frozen=True)
class Curves:
    """A panel to be drawn: logged metric -> name in the legend, of curves and of baselines."""

    title: str
    unit: str
    metrics: Mapping[str, str]
    baselines: Mapping[str, str] = field(default_factory=dict)
    limits: tuple[float, float | None] | None = None


SPEED_CURVES = (
    Curves("Learning rate", "learning rate", {"learning_rate": "learning rate"}),
    Curves(
        "Throughput",
        "tokens per second, no padding",
        {"tokens_per_second": "all processes"},
        limits=(0, None),
    ),
    Curves("Model FLOPs utilization", "fraction of the peak", {"mfu": "MFU"}, limits=(0, None)),
)
PRETRAINING_CURVES = (
    Curves(
        "Masked-LM loss",
        "nats per token",
        {"mlm_loss": "training", "eval_mlm_loss": "held out"},
        {"eval_unigram_loss": "word frequencies"},
    ),
    Curves(
        "Next-sentence loss",
        "nats per pair",
        {"nsp_loss": "training", "eval_nsp_loss": "held out"},
    ),
    Curves(
        "Sentence-order loss",
        "nats per pair",
        {"sop_loss": "training", "eval_sop_loss": "held out"},
    ),
    Curves(
        "Replaced-token loss",
        "nats per token",
        {"disc_loss": "training", "eval_disc_loss": "held out"},
        {"eval_base_rate_loss": "base rate"},
    ),
    Curves(
        "Held-out accuracy",
        "fraction right",
        {
            "eval_mlm_accuracy": "masked tokens",
            "eval_nsp_accuracy": "next sentence",
            "eval_sop_accuracy": "sentence order",
            "eval_disc_accuracy": "replaced tokens",
        },
        {
            "eval_majority_accuracy": "majority class",
            "eval_original_accuracy": "all original",
        },
        limits=(0, 1),
    ),
)
# Of TinyBERT, whose losses are other ones.
TOTAL_LOSS = Curves("Loss", "loss", {"loss": "training", "eval_loss": "held out"})


def pretraining_panels(history: History) -> list[Panel]:
    """Return the losses, accuracies, learning rate and speed that have two log points."""
    losses = _draw_all(history, PRETRAINING_CURVES)
    if not losses:
        losses = _draw_all(history, [TOTAL_LOSS])
    return losses + _draw_all(history, SPEED_CURVES)


# Endings of what an evaluation returns beside its scores: counts and thresholds.
NO_SCORES = ("_thresh", "total", "_number", "missing")


def finetuning_panels(history: History, names: Sequence[str]) -> list[Panel]:
    """Return the losses, metrics (named without `eval_`), learning rate and speed of a run."""
    losses = {"loss": "training"}
    metrics: dict[str, str] = {}
    for name in names:
        metric = f"eval_{name}"
        if name.endswith("loss"):
            losses[metric] = "validation" if name == "loss" else name.removesuffix("_loss")
        elif name.endswith(NO_SCORES) or len(metrics) == MOST_METRICS:
            continue
        elif len(series(history, metric)[0]) > 1:
            metrics[metric] = name.replace("_", " ")

    curves = (Curves("Loss", "loss", losses), Curves("Validation metrics", "", metrics))
    return _draw_all(history, curves + SPEED_CURVES)


def _draw_all(history: History, curves: Sequence[Curves]) -> list[Panel]:
    return with_curves([make_panel(history, panel) for panel in curves])


def make_panel(history: History, curves: Curves) -> Panel:
    """Return the panel of a run's log."""
    lines = []
    for (metric, name), color in zip(curves.metrics.items(), SERIES, strict=False):
        steps, values = series(history, metric)
        if steps:
            lines.append(Line(name, steps, values, "sky" if name == "training" else color))

    baselines = []
    for metric, name in curves.baselines.items():
        steps, values = thin(*series(history, metric)).tolist()
        if steps:
            baselines.append(Line(name, steps, values))

    return Panel(
        curves.title,
        curves.unit,
        lines,
        baselines,
        curves.limits,
    )


def series(history: History, name: str) -> tuple[list[float], list[float]]:
    """Return steps and values of one logged metric."""
    steps = []
    values = []
    for line in history:
        value = line.get(name)
        if "step" in line and isinstance(value, int | float):
            steps.append(line["step"])
            values.append(value)
    return steps, values


def thin(steps: Sequence[float], values: Sequence[float]) -> np.ndarray:
    """Return the finite points (2, N); of more than `MOST_POINTS` the means of neighbours."""
    points = np.array([steps, values], dtype=float)
    is_finite = np.isfinite(points[1])
    points = points[:, is_finite]
    num_points = points.shape[1]
    if num_points <= MOST_POINTS:
        return points
    groups = np.array_split(points, MOST_POINTS, axis=1)
    means = [group.mean(axis=1) for group in groups]
    return np.array(means).T


def with_curves(panels: Sequence[Panel]) -> list[Panel]:
    """Return the panels in which a line has two points: one alone is no curve."""
    return [panel for panel in panels if any(map(_is_curve, panel.lines))]


def _is_curve(line: Line) -> bool:
    steps, _ = thin(line.steps, line.values)
    return len(set(steps)) > 1


def _draw_lines(axis: Any, panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator

    for line in panel.lines:
        points = thin(line.steps, line.values)
        marker = {"marker": "o", "ms": 3.5} if points.shape[1] <= 30 else {}
        # matplotlib leaves a name that begins with "_" out of the legend.
        label = line.name.lstrip("_") or "run"
        if not line.in_legend:
            label = "_nolegend_"
        axis.plot(
            *points,
            color=_LIGHT[line.color],
            label=label,
            **marker,
        )

    for line in panel.baselines:
        # Each phase is measured in its own way.
        values = ", then ".join(dict.fromkeys(f"{value:.3g}" for value in line.values))
        label = f"{line.name}: {values}"
        axis.plot(
            line.steps,
            line.values,
            drawstyle="steps-pre",
            label=label,
            **_DASHED,
        )

    axis.set(xlabel=panel.x_label, ylabel=panel.unit)
    if panel.limits is not None:
        axis.set_ylim(*panel.limits)
    # Steps are whole; passes and words may all be below 1.
    is_whole = panel.x_label == STEPS
    locator = MaxNLocator(nbins=6, integer=is_whole, min_n_ticks=1)
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter("{x:,.0f}" if is_whole else "{x:,g}")
    # A single line is named by the unit of its axis.
    num_lines = len(panel.lines) + len(panel.baselines)
    if num_lines > 1 or not panel.unit:
        for text in axis.legend().get_texts():
            text.set_parse_math(False)  # a dollar begins no formula


# Plots of a page


def panel_plot(panel: Panel) -> dict[str, Any]:
    """Return a plot of curves for the page."""
    return _plot(panel.title, lambda axis: _draw_lines(axis, panel))


def reliability(bins: Sequence[Mapping[str, Any]], error: float) -> dict[str, Any]:
    """Return accuracy over confidence; a calibrated model is on the diagonal."""
    confidences = [row["confidence"] for row in bins]
    accuracies = [row["accuracy"] for row in bins]

    def draw(axis: Any) -> None:
        axis.plot([0, 1], [0, 1], **_DASHED)
        axis.bar(confidences, accuracies, width=0.05, color=_LIGHT["sky"])
        axis.plot(
            confidences,
            accuracies,
            "o",
            ms=4,
            color=_LIGHT["blue"],
        )
        axis.set(xlim=(0, 1), ylim=(0, 1))
        axis.set(xlabel="predicted probability", ylabel="fraction right")

    return _plot(f"Reliability: expected calibration error {error:.3f}", draw)


def scatter(truths: Sequence[float], predictions: Sequence[float]) -> dict[str, Any]:
    """Return predicted over true numbers, with the diagonal."""
    ends = [min(*truths, *predictions), max(*truths, *predictions)]

    def draw(axis: Any) -> None:
        axis.plot(ends, ends, **_DASHED)
        axis.plot(
            truths,
            predictions,
            "o",
            ms=2.5,
            color=_LIGHT["blue"],
        )
        axis.set(xlabel="true value", ylabel="prediction")

    return _plot("Predictions over true values", draw)


def _plot(title: str, draw: Callable[[Any], None]) -> dict[str, Any]:
    """Return a drawing with its title."""
    label = html.escape(title)
    svg = _svg(title, draw).replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    return {"title": title, "svg": Markup(svg)}


# Pictures


def panels_png(panels: Sequence[Panel]) -> bytes:
    """Return plots of curves beside each other."""

    def draw(figure: Any) -> None:
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, panel in zip(axes, panels, strict=True):
            _draw_lines(axis, panel)
            axis.set_title(panel.title)

    return draw_png((4.8 * len(panels), 3.9), draw)


# From a drawing to a file


@contextmanager
def _figure(size: tuple[float, float], name: str) -> Iterator[Any]:
    """Yield a figure in the style of the reports, without matplotlib's list of open figures."""
    import matplotlib as mpl  # heavy, and only a report needs it
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": name}, fname=STYLE_FILE), warnings.catch_warnings():
        # A script that the font has not: a page has the system's fonts, a picture has boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield Figure(figsize=size, layout="constrained")


def draw_png(size: tuple[float, float], draw: Callable[[Any], None]) -> bytes:
    """Return a picture of a size in inches; `draw` is given the figure."""
    file = io.BytesIO()
    with _figure(size, "") as figure:
        draw(figure)
        figure.savefig(
            file,
            format="png",
            dpi=110,
            facecolor="white",
            metadata={"Software": None},
        )
    return file.getvalue()


_VARIABLES = {light: f"var(--{name})" for name, light in _LIGHT.items()}
_COLOR = re.compile(r"(?<=fill: )#[0-9a-f]{6}|(?<=stroke: )#[0-9a-f]{6}")
_FONT = re.compile(r"font: [^;\"]*?([\d.]+px) [^;\"]*")
_FAMILY = re.compile(r"font-family: [^;\"]*;? ?")
_UNUSED = re.compile(
    r"^.*?(?=<svg)|<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->"
    r"| xmlns(?::\w+)?=\"[^\"]*\"| id=\"[\w.]+_\d+\"",
    re.DOTALL,
)
_SIZE = re.compile(r' (?:width|height)="[^"]*"')


def _svg(name: str, draw: Callable[[Any], None]) -> str:
    """Draw a plot of a page: as wide as there is room, with the page's colours and font."""
    file = io.StringIO()
    with _figure(PANEL, name) as figure:
        draw(figure.subplots())
        no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(
            file,
            format="svg",
            transparent=True,
            metadata=no_metadata,
        )

    tag, content = _UNUSED.sub("", file.getvalue()).strip().split(">", 1)
    svg = f"{_SIZE.sub('', tag)}>{content}"
    svg = _COLOR.sub(lambda match: _VARIABLES.get(match[0], match[0]), svg)
    return _FAMILY.sub("", _FONT.sub(r"font-size: \1", svg))
