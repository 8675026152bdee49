"""What a comparison found, as one JSON file a task."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.sweeps.sweep import figure_of
from bert_recipes.tasks.rows import get_task
from stock.plan import LOSS_STEPS, ComparedTask


SIDES = ("ours", "stock")
# Largest difference of single losses that still counts as rounding, in nats (fp32).
LOSS_TOLERANCE = 1e-4
# Figures from -1 to 1; all others are taken for shares of the rows.
_CORRELATIONS = ("matthews_correlation", "pearson", "spearmanr")


def make_record(
    name: str,
    plan: ComparedTask,
    seeds: Sequence[int],
    found: Mapping[str, Sequence[Mapping[str, Any]]],
    losses: Mapping[str, Sequence[float]],
    flags: Sequence[str],
    loss_flags: Sequence[str],
) -> dict[str, Any]:
    """Put the runs of both sides together.

    Args:
        name: The task.
        plan: Gives the figures.
        seeds: Seeds, in the order of the runs.
        found: Side -> all_results.json of each seed.
        losses: Side -> training loss of each step of the check.
        flags: Flags of every run.
        loss_flags: Those of the check of the losses.

    Returns:
        JSON object. Figures are in percent; seconds are of training alone (train) and of evaluating (eval).

    Raises:
        InputError: A figure is missing or not finite, or the sides have different numbers of losses.
    """
    first = found[SIDES[0]][0]
    scale = 1.0 if get_task(name).kind == "question_answering" else 100.0
    return {
        "task": name,
        "model": str(first["model"]).rstrip("/").rpartition("/")[2],
        "seeds": list(seeds),
        "splits": first["splits"],
        "figures": {
            figure: {side: _spread(_values(found[side], f"eval_{figure}", scale)) for side in SIDES}
            for figure in plan.figures
        },
        "train_seconds": {side: _spread(_values(found[side], "train_seconds")) for side in SIDES},
        "eval_seconds": {side: _spread(_values(found[side], "eval_seconds")) for side in SIDES},
        "train_steps": {side: int(found[side][0]["train_steps"]) for side in SIDES},
        "losses": compare_losses(losses),
        "flags": list(flags),
        "loss_flags": list(loss_flags),
        "machine": first["machine"],
    }


def compare_losses(losses: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Largest difference of the single losses, and the losses.

    Raises:
        InputError: Not one loss for each step on both sides.
    """
    counts = {side: len(losses[side]) for side in SIDES}
    if set(counts.values()) != {LOSS_STEPS}:
        raise InputError(
            f"losses of {counts} steps; allowed: {LOSS_STEPS} on both sides; remove the runs named losses"
        )
    largest = max(abs(a - b) for a, b in zip(losses["ours"], losses["stock"], strict=True))
    return {
        "steps": LOSS_STEPS,
        "largest_difference": largest,
        "agree": largest <= LOSS_TOLERANCE,
        **{side: list(losses[side]) for side in SIDES},
    }


def check_losses(records: Sequence[Mapping[str, Any]]) -> None:
    """See that both sides have the same losses.

    Raises:
        InputError: They have not.
    """
    broken = [record["task"] for record in records if not record["losses"]["agree"]]
    if broken:
        raise InputError(
            f"losses of {', '.join(broken)} differ by more than {LOSS_TOLERANCE:.0e} on the same batches; allowed: less: "
            "the two sides do not train alike; the single losses are in <task>.json"
        )


def within_spread(figure: str, ours: Mapping[str, Any], stock: Mapping[str, Any], num_rows: int) -> bool:
    """Whether two sides differ by no more than chance.

    With several seeds: the ranges from least to greatest overlap, or the medians are as near as the samples' errors allow.
    With one: within two standard errors of a difference of two figures that are each measured on num_rows rows.

    Args:
        figure: Its name.
        ours: Of `make_record`, a figure in percent.
        stock: The same of the other side.
        num_rows: Validation examples.
    """
    if len(ours["values"]) > 1 and max(ours["min"], stock["min"]) <= min(ours["max"], stock["max"]):
        return True
    return abs(ours["median"] - stock["median"]) <= sampling_error(figure, ours["median"], stock["median"], num_rows)


def sampling_error(figure: str, first: float, second: float, num_rows: int) -> float:
    """Two standard errors of the difference of two figures in percent, each of num_rows rows; in percent.

    A correlation r has the variance (1 - r^2)^2 / n (that of large samples from a normal distribution). Everything else,
    F1 too, is taken for a share of the rows.
    """
    if figure in _CORRELATIONS:
        return 100 * 2 * math.sqrt(sum((1 - (value / 100) ** 2) ** 2 for value in (first, second)) / num_rows)
    share = min(max((first + second) / 200, 0.0), 1.0)
    return 100 * 2 * math.sqrt(2 * share * (1 - share) / num_rows)


def _values(runs: Sequence[Mapping[str, Any]], key: str, scale: float = 1.0) -> list[float]:
    values = [figure_of(run, key) for run in runs]
    missing = [number for number, value in enumerate(values) if value is None or not math.isfinite(value)]
    if missing:
        raise InputError(
            f"{key} is missing or not finite in run {missing[0] + 1} of {len(runs)}; remove it and run again"
        )
    return [value * scale for value in values if value is not None]


def _spread(values: Sequence[float]) -> dict[str, Any]:
    rounded = [round(value, 4) for value in values]
    return {
        "values": rounded,
        "median": round(statistics.median(values), 4),
        "min": min(rounded),
        "max": max(rounded),
    }
