"""The plots of a results file; without matplotlib there are none, and the table says everything."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from speed.report import Row
from speed.spec import SIDES


logger = logging.getLogger(__name__)

LABELS = {"stock_defaults": "stock, defaults", "stock_best": "stock at its best", "ours": "bert-recipes"}
COLORS = {"stock_defaults": "#b8b8b8", "stock_best": "#6f8fb0", "ours": "#d1642f"}


def _pyplot() -> Any | None:
    """matplotlib.pyplot without a window system, or None where it is not installed."""
    try:
        import matplotlib as mpl  # heavy, and not installed everywhere
    except ImportError:
        logger.info("no plot: matplotlib is not installed")
        return None
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    return plt


def speed_multiple(row: Row, side: str) -> float | None:
    """A side's speed over that of stock's defaults, as the table has it; None without a round that has both."""
    return row.over_defaults[side].median if side in row.over_defaults else None


def memory_multiple(row: Row, side: str) -> float | None:
    """A side's peak memory over that of stock's defaults; None where one of them is not known."""
    return row.memory[side] / row.memory[SIDES[0]] if side in row.memory and row.memory.get(SIDES[0]) else None


def plot_rows(rows: Sequence[Row], file: Path) -> bool:
    """Bars of speed and memory, each as a multiple of stock's defaults.

    Args:
        rows: Cases; those without stock's defaults are left out.
        file: PNG to write.

    Returns:
        Whether there is a plot.
    """
    shown = [row for row in rows if SIDES[0] in row.rates]
    plt = _pyplot()
    if plt is None or not shown:
        return False
    height = 1.2 + 0.55 * len(shown)
    figure, axes = plt.subplots(1, 2, figsize=(12, height), layout="constrained", sharey=True)
    panels = ((axes[0], speed_multiple, "Speed"), (axes[1], memory_multiple, "Peak memory of a step"))
    for axis, multiple, title in panels:
        for number, side in enumerate(SIDES):
            places, values = [], []
            for place, row in enumerate(shown):
                value = multiple(row, side)
                if value is not None:
                    places.append(place + (number - 1) * 0.27)
                    values.append(value)
            bars = axis.barh(places, values, height=0.25, label=LABELS[side], color=COLORS[side])
            for label in axis.bar_label(bars, fmt="%.2f", padding=2, fontsize=8):
                # On white, as the line at 1 goes through some.
                label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.6})
        axis.set(title=title, xlabel="multiple of stock's defaults")
        axis.axvline(1.0, color="black", lw=0.6)
        axis.margins(x=0.12)
        axis.grid(axis="x", alpha=0.3)
    axes[0].set_yticks(range(len(shown)), [f"{row.suite} {row.case}" for row in shown])
    axes[0].invert_yaxis()
    figure.legend(*axes[1].get_legend_handles_labels(), frameon=False, fontsize=8, loc="outside lower center", ncols=3)
    figure.savefig(file, dpi=110)
    plt.close(figure)
    return True


def plot_quality(records: Sequence[Mapping[str, Any]], file: Path) -> bool:
    """Held-out MLM loss and NSP accuracy of both sides over the minutes since the raw text.

    Returns:
        Whether there is a plot.
    """
    sides = {r["side"]: r["result"]["points"] for r in records if r["role"] == "sample" and "result" in r}
    plt = _pyplot()
    if plt is None or not any(sides.values()):
        return False
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    panels = (("mlm_loss", "Held-out masked-LM loss", "nats a token"), ("nsp_accuracy", "Held-out NSP", "share right"))
    for axis, (name, title, unit) in zip(axes, panels, strict=True):
        for side, points in sides.items():
            minutes = [point["seconds"] / 60 for point in points]
            values = [point[name] for point in points]
            axis.plot(minutes, values, marker="o", ms=3, label=LABELS[side], color=COLORS[side])
        axis.set(title=title, xlabel="minutes from raw text", ylabel=unit)
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    figure.savefig(file, dpi=110)
    plt.close(figure)
    return True
