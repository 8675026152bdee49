"""The logged history of a run as curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bert_recipes.reports.blocks import Key, Plot, Plots
from bert_recipes.reports.plots import MOST_POINTS, Line, Panel, draw_panel, thin


# Share of the time that the model waited for its data.
WORTH_SEEING = 0.05
History = Sequence[Mapping[str, Any]]


def series(history: History, name: str) -> tuple[list[float], list[float]]:
    """Steps and values of one logged figure."""
    points = [
        (line["step"], line[name]) for line in history if "step" in line and isinstance(line.get(name), int | float)
    ]
    return [step for step, _ in points], [value for _, value in points]


def line_of(history: History, name: str, label: str, color: str) -> Line | None:
    """The curve of a logged figure; None where it was never logged."""
    steps, values = series(history, name)
    is_measured = name.startswith("eval_")
    return Line(label, steps, values, color, has_points=is_measured and len(steps) <= 60) if steps else None


def last_value(history: History, name: str) -> float | None:
    """The last value of a figure that was logged."""
    values = series(history, name)[1]
    return values[-1] if values else None


def panel_of(
    history: History,
    title: str,
    unit: str,
    names: Sequence[tuple[str, str, str]],
    *,
    yardstick: tuple[str, str] | None = None,
    limits: tuple[float, float | None] | None = None,
) -> Panel | None:
    """A plot of several logged figures; None where none of them was logged.

    Args:
        history: The log.
        title: Of the plot.
        unit: Of the vertical axis.
        names: (logged figure, name in the legend, colour).
        yardstick: (logged figure, name) of a dashed line at its last value.
        limits: Of the vertical axis.
    """
    lines = tuple(line for entry in names if (line := line_of(history, *entry)) is not None)
    if not lines:
        return None
    value = None if yardstick is None else last_value(history, yardstick[0])
    yardsticks = () if yardstick is None or value is None else ((yardstick[1], value),)
    return Panel(title, unit, lines, yardsticks, limits)


def with_curves(panels: Sequence[Panel]) -> list[Panel]:
    """The panels in which something has two points: one alone is no curve, and the tables have its figure."""
    return [panel for panel in panels if any(len(set(thin(line.steps, line.values)[0])) > 1 for line in panel.lines)]


def pretraining_panels(history: History) -> list[Panel]:
    """Losses and accuracies with their yardsticks, learning rate, and speed, as far as they were logged twice."""
    loss = [("mlm_loss", "training", "sky"), ("eval_mlm_loss", "held out", "blue")]
    nsp = [("nsp_loss", "training", "sky"), ("eval_nsp_loss", "held out", "blue")]
    accuracy = [
        ("eval_mlm_accuracy", "masked tokens", "blue"),
        ("eval_nsp_accuracy", "next sentence", "orange"),
    ]
    panels = [
        panel_of(
            history, "Masked-LM loss", "nats a token", loss, yardstick=("eval_unigram_loss", "word frequencies alone")
        ),
        panel_of(history, "Next-sentence loss", "nats a pair", nsp),
        panel_of(
            history,
            "Held-out accuracy",
            "share right",
            accuracy,
            yardstick=("eval_majority_accuracy", "next sentence: larger class"),
            limits=(0, 1),
        ),
        *course_panels(history),
    ]
    return with_curves([panel for panel in panels if panel is not None])


def course_panels(history: History) -> list[Panel | None]:
    """Learning rate and speed, of any run; the wait for data where there was any to speak of."""
    waits = [("data_wait_share", "waiting", "orange")]
    waiting = panel_of(history, "Waiting for data", "share of the time", waits, limits=(0, 1))
    return [
        panel_of(history, "Learning rate", "", [("learning_rate", "learning rate", "blue")]),
        panel_of(
            history,
            "Throughput",
            "tokens a second, no pads",
            [("tokens_per_second", "all processes", "blue")],
            limits=(0, None),
        ),
        panel_of(
            history,
            "Model FLOPs utilisation",
            "share of the machine's own rate",
            [("mfu", "MFU", "blue")],
            limits=(0, None),
        ),
        waiting if max(series(history, "data_wait_share")[1], default=0.0) > WORTH_SEEING else None,
    ]


def finetuning_panels(history: History, figures: Sequence[str]) -> list[Panel]:
    """Losses, the task's figures where they were measured during training, learning rate, and speed.

    Args:
        history: The log; what it has once is left out.
        figures: Names of the task's figures in the log, with `eval_`.
    """
    losses = [("loss", "training", "sky"), *_named(history, [name for name in figures if name.endswith("loss")])]
    others = [name for name in figures if not name.endswith(("loss", "_thresh", "_total", "_number", "_seconds"))]
    measured = [name for name in others if len(series(history, name)[0]) > 1][:4]
    panels = [
        panel_of(history, "Loss", "", losses),
        panel_of(history, "Figures on the validation data", "", _named(history, measured)),
        *course_panels(history),
    ]
    return with_curves([panel for panel in panels if panel is not None])


def _named(history: History, names: Sequence[str]) -> list[tuple[str, str, str]]:
    colors = ("blue", "orange", "green", "violet")
    words = [name.removeprefix("eval_").replace("_", " ") for name in names]
    words = ["validation" if word == "loss" else word for word in words]
    return [(name, word, colors[place % 4]) for place, (name, word) in enumerate(zip(names, words, strict=True))]


def plots_of(panels: Sequence[Panel], picture: str | None = None) -> Plots:
    """The panels as plots of a page.

    Args:
        panels: What is drawn.
        picture: PNG beside the report that shows them in Markdown.
    """
    return Plots(tuple(map(plot_of, panels)), picture)


def plot_of(panel: Panel) -> Plot:
    """A panel with its legend, and a word on what was averaged."""
    keys = [Key(line.name, line.color) for line in panel.lines]
    keys += [Key(f"{name}: {value:.3g}", "grey", "dash") for name, value in panel.yardsticks]
    longest = max((len(line.steps) for line in panel.lines), default=0)
    width = -(-longest // MOST_POINTS)
    note = f"of more than {MOST_POINTS} logged lines, means of {width} are drawn" if width > 1 else ""
    return Plot(panel.title, draw_panel(panel), tuple(keys), note)
