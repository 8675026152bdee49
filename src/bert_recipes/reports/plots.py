"""Plots of a report, drawn by matplotlib: SVG for the page, PNG beside the Markdown.

They are drawn in the light colours, and on a page each colour is a variable of the style sheet, so
that one plot is readable in light and in dark.
"""

import html
import io
import itertools
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

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
# Inches; a column of a page on a desk, the full width of a phone.
PANEL = (4.3, 2.7)
# More points than a plot has pixels only make a page large.
MOST_POINTS = 600
# Fraction of the time that the model waited for its data.
WORTH_SEEING = 0.05
_LIGHT = {name: light for name, (light, _) in COLORS.items()}
_DASHED: dict[str, Any] = {"color": _LIGHT["grey"], "ls": (0, (4, 3)), "lw": 1.2}
_STYLE: dict[Any, Any] = {
    **{
        "font.size": 10,
        "axes.titlesize": 11,
        "legend.fontsize": 8.5,
        "lines.linewidth": 1.6,
        "grid.linewidth": 0.7,
    },
    **{
        "axes.facecolor": "none",
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.formatter.limits": (-4, 6),
    },
    **{
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "svg.fonttype": "none",
        "path.simplify_threshold": 0.3,
    },
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("axes.formatter.use_mathtext", "text.usetex"), False),
    **dict.fromkeys(("axes.titlecolor", "text.color"), _LIGHT["ink"]),
    **dict.fromkeys(("axes.labelcolor", "xtick.color", "ytick.color"), _LIGHT["muted"]),
    **dict.fromkeys(("axes.edgecolor", "grid.color"), _LIGHT["line"]),
}
History = Sequence[Mapping[str, Any]]


# Curves


@dataclass(frozen=True)
class Line:
    """A curve; `has_points` marks its points, as those of an evaluation."""

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    color: str = "blue"
    has_points: bool = False


@dataclass(frozen=True)
class Panel:
    """A plot of curves, with dashed baselines and the limits of the vertical axis where they are
    set.
    """

    title: str
    unit: str
    lines: Sequence[Line]
    baselines: Sequence[Line] = ()
    limits: tuple[float, float | None] | None = None


def series(history: History, name: str) -> tuple[list[float], list[float]]:
    """Steps and values of one logged metric."""
    lines = [line for line in history if "step" in line and isinstance(line.get(name), int | float)]
    return [line["step"] for line in lines], [line[name] for line in lines]


def thin(
    steps: Sequence[float], values: Sequence[float], most: int = MOST_POINTS
) -> tuple[list[float], list[float]]:
    """Take the points that are finite; of more than `most` the means of so many neighbours that no
    more are left.
    """
    points = [point for point in zip(steps, values, strict=True) if math.isfinite(point[1])]
    width = -(-len(points) // most) or 1
    groups = [points[start : start + width] for start in range(0, len(points), width)]
    steps, values = (
        [sum(point[axis] for point in group) / len(group) for group in groups] for axis in (0, 1)
    )
    return steps, values


def with_curves(panels: Sequence[Panel]) -> list[Panel]:
    """The panels in which something has two points: one alone is no curve, and the tables have its
    value.
    """
    return [
        panel
        for panel in panels
        if any(len(set(thin(line.steps, line.values)[0])) > 1 for line in panel.lines)
    ]


def _panel(
    history: History,
    title: str,
    unit: str,
    *metrics: tuple[str, str, str],
    baseline: tuple[str, str] = ("", ""),
    limits: tuple[float, float | None] | None = None,
) -> Panel:
    """A plot of (logged metric, name in the legend, colour), with (logged metric, name) of a
    baseline.
    """
    lines = []
    for metric, name, color in metrics:
        steps, values = series(history, metric)
        lines.append(
            Line(
                name,
                steps,
                values,
                color,
                has_points=metric.startswith("eval_") and len(steps) <= 60,
            )
        )
    known = Line(baseline[1], *thin(*series(history, baseline[0])))
    return Panel(
        title, unit, [line for line in lines if line.steps], [known] if known.values else [], limits
    )


def pretraining_panels(history: History) -> list[Panel]:
    """Losses and accuracies with their baselines, learning rate and speed, as far as they were
    logged twice.
    """
    names = {"sop": "sentence order", "disc": "replaced tokens", "nsp": "next sentence"}
    task = next((task for task in names if any(f"{task}_loss" in line for line in history)), "nsp")
    name, unit = names[task], "nats per token" if task == "disc" else "nats per pair"
    masked, pairs = ("mlm_loss", "training", "sky"), (f"{task}_loss", "training", "sky")
    held_out, held_out_pairs = (
        ("eval_mlm_loss", "held out", "blue"),
        (f"eval_{task}_loss", "held out", "blue"),
    )
    words = ("eval_unigram_loss", "word frequencies alone")
    base_rate = ("eval_base_rate_loss", "base rate alone")
    majority = (
        "eval_original_accuracy" if task == "disc" else "eval_majority_accuracy",
        f"{name}: larger class",
    )
    rights = (
        ("eval_mlm_accuracy", "masked tokens", "blue"),
        (f"eval_{task}_accuracy", name, "orange"),
    )
    first = _panel(history, "Masked-LM loss", "nats per token", masked, held_out, baseline=words)
    if not first.lines:  # TinyBERT, whose losses are other ones
        first = _panel(
            history, "Loss", "", ("loss", "training", "sky"), ("eval_loss", "held out", "blue")
        )
    panels = [
        first,
        _panel(
            history,
            f"{name.capitalize().replace(' ', '-')} loss",
            unit,
            pairs,
            held_out_pairs,
            baseline=base_rate,
        ),
        _panel(
            history,
            "Held-out accuracy",
            "fraction right",
            *rights,
            baseline=majority,
            limits=(0, 1),
        ),
    ]
    return with_curves(panels + _speed_panels(history))


def finetuning_panels(history: History, metrics: Sequence[str]) -> list[Panel]:
    """Losses, the task's metrics (with `eval_`) as far as they were logged twice, learning rate and
    speed.
    """
    losses = [name for name in metrics if name.endswith("loss")]
    others = [
        name for name in metrics if not name.endswith(("loss", "_thresh", "_total", "_number"))
    ]
    measured = [name for name in others if len(series(history, name)[0]) > 1][:4]

    def colored(names: Sequence[str]) -> Iterator[tuple[str, str, str]]:
        for name, color in zip(names, itertools.cycle(SERIES[:4]), strict=False):
            words = name.removeprefix("eval_").replace("_", " ")
            yield name, "validation" if words == "loss" else words, color

    panels = [
        _panel(history, "Loss", "", ("loss", "training", "sky"), *colored(losses)),
        _panel(history, "Metrics on the validation data", "", *colored(measured)),
    ]
    return with_curves(panels + _speed_panels(history))


def _speed_panels(history: History) -> list[Panel]:
    speed, mfu = ("tokens_per_second", "all processes", "blue"), ("mfu", "MFU", "blue")
    panels = [
        _panel(history, "Learning rate", "", ("learning_rate", "learning rate", "blue")),
        _panel(history, "Throughput", "tokens per second, no pads", speed, limits=(0, None)),
        _panel(
            history,
            "Model FLOPs utilisation",
            "fraction of the machine's own rate",
            mfu,
            limits=(0, None),
        ),
    ]
    if max(series(history, "data_wait_share")[1], default=0.0) > WORTH_SEEING:
        waiting = ("data_wait_share", "waiting", "orange")
        panels.append(
            _panel(history, "Waiting for data", "fraction of the time", waiting, limits=(0, 1))
        )
    return panels


def _draw_lines(axis: Any, panel: Panel) -> None:
    for line in panel.lines:
        steps, values = thin(line.steps, line.values)
        marks = {"marker": "o", "ms": 3.5} if line.has_points or len(steps) == 1 else {}
        # matplotlib leaves a name that begins with "_" out of the legend.
        axis.plot(
            steps, values, color=_LIGHT[line.color], label=line.name.lstrip("_") or "run", **marks
        )
    for line in panel.baselines:
        if len(set(line.values)) == 1:
            axis.axhline(line.values[0], label=line.name, **_DASHED)
        else:  # each phase is measured in its own way
            axis.plot(line.steps, line.values, drawstyle="steps-pre", label=line.name, **_DASHED)
    axis.set(xlabel="optimiser steps", ylabel=panel.unit)
    if panel.limits is not None:
        axis.set_ylim(*panel.limits)
    _plain_thousands(axis.xaxis)
    if axis.get_ylim()[1] >= 1000:
        _plain_thousands(axis.yaxis)


def _plain_thousands(axis: Any) -> None:
    """1,000 instead of 1000."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    axis.set_major_formatter("{x:,.0f}")


# Plots of a page: dicts that the template shows


def _plot(
    title: str,
    draw: Callable[[Any], None],
    *keys: tuple[str, str, str],
    note: str = "",
    size: Any = PANEL,
) -> dict[str, Any]:
    """A drawing with its title, its legend of (name, colour, "line", "dash" or "dots"), and a line
    below it.
    """
    svg = _svg(title, draw, size).replace(
        "<svg", f'<svg role="img" aria-label="{html.escape(title)}"', 1
    )
    return {"title": title, "svg": Markup(svg), "keys": keys, "note": note}


def panel_plot(panel: Panel) -> dict[str, Any]:
    """A plot of curves, its legend beside it."""
    keys = [(line.name, line.color, "line") for line in panel.lines]
    for line in panel.baselines:
        values = ", then ".join(dict.fromkeys(f"{value:.3g}" for value in line.values))
        keys.append((f"{line.name}: {values}", "grey", "dash"))
    width = -(-max((len(line.steps) for line in panel.lines), default=0) // MOST_POINTS)
    note = (
        f"of more than {MOST_POINTS} logged lines, means of {width} are drawn" if width > 1 else ""
    )
    return _plot(panel.title, lambda axis: _draw_lines(axis, panel), *keys, note=note)


def histogram(
    title: str, edges: Sequence[float], counts: Sequence[int], *, x_label: str, y_label: str
) -> dict[str, Any]:
    """Bars between edges, one more edge than counts."""

    def draw(axis: Any) -> None:
        widths = [0.92 * (high - low) for low, high in itertools.pairwise(edges)]
        axis.bar(
            [(low + high) / 2 for low, high in itertools.pairwise(edges)],
            counts,
            widths,
            color=_LIGHT["blue"],
        )
        axis.set(xlabel=x_label, ylabel=y_label)
        axis.grid(visible=False, axis="x")

    return _plot(title, draw, (y_label, "blue", "line"))


def reliability(bins: Sequence[Mapping[str, Any]], error: float) -> dict[str, Any]:
    """Accuracy over confidence, a bar for each bin that holds anything; the diagonal is what would
    be right.
    """
    kept = [(number, each) for number, each in enumerate(bins) if each["count"]]

    def draw(axis: Any) -> None:
        accuracies = [each["accuracy"] for _, each in kept]
        axis.plot([0, 1], [0, 1], **_DASHED)
        middles = [(number + 0.5) / len(bins) for number, _ in kept]
        axis.bar(middles, accuracies, width=0.9 / len(bins), color=_LIGHT["sky"])
        axis.plot(
            [each["confidence"] for _, each in kept], accuracies, "o", ms=4, color=_LIGHT["blue"]
        )
        axis.set(
            xlim=(0, 1),
            ylim=(0, 1),
            xlabel="probability that the model gave",
            ylabel="fraction right",
        )
        axis.set_yticks([0.2, 0.4, 0.6, 0.8, 1.0])  # the horizontal axis has the 0 of both

    total = sum(each["count"] for each in bins)
    keys = [("right as often as that", "blue", "dots"), ("what would be right", "grey", "dash")]
    note = f"dot: mean probability of the bin, fraction right; {total:,} predictions"
    return _plot(f"Reliability: expected calibration error {error:.3f}", draw, *keys, note=note)


def scatter(truths: Sequence[float], predictions: Sequence[float]) -> dict[str, Any]:
    """Predicted over right numbers, with the diagonal."""

    def draw(axis: Any) -> None:
        ends = [min(*truths, *predictions), max(*truths, *predictions)]
        axis.plot(ends, ends, **_DASHED)
        axis.plot(truths, predictions, "o", ms=2.5, color=_LIGHT["blue"])
        axis.set(xlabel="right", ylabel="predicted")

    note = f"{len(truths):,} examples; on the dashed line right and predicted are equal"
    return _plot("Predicted over right", draw, ("example", "blue", "dots"), note=note)


def sweep_plots(
    names: Sequence[str],
    combinations: Sequence[Mapping[str, Any]],
    best: int,
    metric: str,
    varied: str,
) -> tuple[dict[str, Any], bytes]:
    """Every run of a sweep as a point, every median as a bar, a row for each combination: for the
    page, and as PNG.

    A run that diverged has the value None and no point.
    """

    def draw(axis: Any) -> None:
        for row, each in enumerate(combinations):
            color = _LIGHT["orange" if row == best else "blue"]
            values = [run["value"] for run in each["runs"] if run["value"] is not None]
            axis.plot(values, [row] * len(values), "o", color=color, ms=5)
            if each["median"] is not None:
                axis.plot([each["median"]], [row], "|", color=color, ms=16, mew=2.5)
        for tick in axis.set_yticks(range(len(names)), names):
            tick.label1.set_parse_math(False)  # a dollar begins no formula
        axis.set_ylim(len(names) - 0.5, -0.5)
        label = f"{metric}, development set (points: runs, bars: medians, orange: the greatest)"
        axis.set_xlabel(label, parse_math=False)
        axis.grid(visible=False, axis="y")

    plot = _plot(f"{metric} by {varied}", draw, size=(7.4, 0.9 + 0.27 * len(names)))
    return plot, _png((8, 0.9 + 0.32 * len(names)), lambda figure: draw(figure.subplots()))


def table_png(described: Mapping[str, Any]) -> bytes:
    """A table of a paper: a panel a column, a row a model; points are seeds, bars their means. The
    paper's figures would lie far outside.
    """
    columns, rows = described["columns"], described["rows"]

    def draw(figure: Any) -> None:
        axes = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
        for axis, column in zip(axes, columns, strict=True):
            scale = 100 if column["unit"] == "percent" else 1
            for number, row in enumerate(rows):
                values = [
                    scale * value
                    for value in row["figures"][column["name"]].values()
                    if math.isfinite(value)
                ]
                axis.plot(values, [number] * len(values), "o", color=_LIGHT["blue"], ms=4)
                if values:
                    axis.plot(
                        [sum(values) / len(values)],
                        [number],
                        "|",
                        color=_LIGHT["blue"],
                        ms=14,
                        mew=2.5,
                    )
            axis.set_title(column["name"], fontsize=9, parse_math=False)
            axis.set_xlabel({"percent": "%"}.get(column["unit"], column["unit"]), fontsize=8)
        for tick in axes[0].set_yticks(range(len(rows)), [row["name"] for row in rows]):
            tick.label1.set_parse_math(False)
        axes[0].set_ylim(len(rows) - 0.5, -0.5)

    return _png((2 + 1.9 * len(columns), 1.1 + 0.32 * len(rows)), draw)


# From a drawing to a file


def panels_png(panels: Sequence[Panel]) -> bytes:
    """Plots of curves beside each other, with titles and legends."""

    def draw(figure: Any) -> None:
        if not panels:
            figure.text(0.5, 0.5, "nothing was logged twice", ha="center")
            return
        for axis, panel in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            _draw_lines(axis, panel)
            axis.set_title(panel.title)
            for text in axis.legend().get_texts():
                text.set_parse_math(False)

    return _png((4.8 * max(len(panels), 1), 3.9), draw)


@contextmanager
def _figure(size: tuple[float, float], name: str) -> Iterator[Any]:
    """A figure in the style of the reports, without a window system and without matplotlib's list
    of open figures.
    """
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


_NAMES = {light: name for name, light in _LIGHT.items()}
_PAINT = re.compile(r"(fill|stroke): (#[0-9a-f]{6})")
_FONT = re.compile(r"font: [^;\"]*?([\d.]+)px [^;\"]*|font-family: [^;\"]*;? ?")
_UNUSED = re.compile(
    r"^.*?(?=<svg)|<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->| "
    r"xmlns(?::\w+)?=\"[^\"]*\"",
    re.DOTALL,
)
_SIZE = re.compile(r' (?:width|height)="[^"]*"')


def _svg(name: str, draw: Callable[[Any], None], size: tuple[float, float]) -> str:
    """Draw as part of a page: as wide as there is room, colours by variables, the page's own
    font.
    """
    file = io.StringIO()
    with _figure(size, name) as figure:
        draw(figure.subplots())
        no_date = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=no_date)
    head, rest = _UNUSED.sub("", file.getvalue()).strip().split(">", 1)
    svg = f"{_SIZE.sub('', head)}>{rest}"
    svg = _PAINT.sub(lambda m: f"{m[1]}: var(--{_NAMES[m[2]]})" if m[2] in _NAMES else m[0], svg)
    return _FONT.sub(lambda m: f"font-size: {m[1]}px" if m[1] else "", svg)
