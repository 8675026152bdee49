"""The comparisons of all tasks as one Markdown table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.tasks.rows import get_task
from stock.plan import PLAN
from stock.record import LOSS_TOLERANCE, SIDES, within_spread


TABLE_FILE = "table.md"
_FIGURES = {"f1": "F1", "matthews_correlation": "Matthews", "spearmanr": "Spearman", "pearson": "Pearson"}
_FIGURES |= {"exact_match": "exact match", "exact": "exact match", "matched_accuracy": "accuracy, matched"}
_FIGURES |= {"mismatched_accuracy": "accuracy, mismatched"}


def read_records(folder: Path) -> list[dict[str, Any]]:
    """The comparisons in a folder, in the order of the plan.

    Raises:
        InputError: There are none, or a file is cut short.
    """
    records = []
    for name in PLAN:
        path = folder / f"{name}.json"
        if path.is_file():
            try:
                records.append(json.loads(path.read_text(encoding="utf-8")))
            except json.JSONDecodeError as error:
                raise InputError(f"{path}: not valid JSON ({error}); remove it and compare again") from error
    if not records:
        raise InputError(f"{folder} holds no comparison (<task>.json); run benchmarks/compare_with_stock.py first")
    return records


def format_table(records: Sequence[Mapping[str, Any]]) -> str:
    """One line for each figure; what is partial is said under the table.

    Args:
        records: Of `read_records`.
    """
    lines = ["| task | figure | ours | stock | seeds | training, s: ours | stock | losses differ by | train | dev |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    notes: list[str] = []
    for record in records:
        for number, figure in enumerate(record["figures"]):
            lines.append(_line(record, figure, is_first=number == 0))
        notes += _notes(record)
    lines += ["", _how_measured(records)]
    far = _far(records)
    if far:
        lines += ["", f"† further apart than seeds and sample explain: {', '.join(far)}."]
    broken = [record["task"] for record in records if not record["losses"]["agree"]]
    if broken:
        lines += ["", f"‡ losses differ by more than {LOSS_TOLERANCE:.0e}, which is no rounding: {', '.join(broken)}."]
    if notes:
        lines += ["", "\\* not the published development set, so not to be put beside published figures: "]
        lines[-1] += "; ".join(notes) + "."
    lines += ["", _machine(records)]
    return "\n".join(lines) + "\n"


def write_table(folder: Path, records: Sequence[Mapping[str, Any]]) -> str:
    """Write FOLDER/table.md; return it."""
    text = format_table(records)
    (folder / TABLE_FILE).write_text(text, encoding="utf-8")
    return text


def _how_measured(records: Sequence[Mapping[str, Any]]) -> str:
    parts = [
        "Figures in percent: the median and, of several seeds, the least and the greatest.",
        "Both sides are alike where these ranges overlap, or where the medians differ by less than two standard errors of",
        "samples of so many rows; F1 is taken for a share of the rows, that of entities of the sentences.",
        "Seconds of training alone, the median. Losses: the largest difference between both sides in the first",
        f"{records[0]['losses']['steps']} steps, without dropout, in fp32, on the same batches.",
    ]
    if any(record["machine"]["gpu"] is None for record in records):
        parts.append("On a CPU ours has the fast layers, unless fast_layers is off; stock calls sdpa.")
    return " ".join(parts)


def _line(record: Mapping[str, Any], figure: str, *, is_first: bool) -> str:
    split = _split_of(record, figure)
    rows = record["splits"][split]
    mark = "\\*" if rows["partial"] else ""
    sides = record["figures"][figure]
    far = "" if within_spread(figure, sides["ours"], sides["stock"], rows["examples"]) else " †"
    cells = [record["task"] if is_first else "", _FIGURES.get(figure, figure) + mark]
    cells += [_figure(sides["ours"]) + far, _figure(sides["stock"]), str(len(record["seeds"]))]
    if is_first:
        cells += [f"{record['train_seconds'][side]['median']:.0f}" for side in SIDES]
        cells += [
            _small(record["losses"]["largest_difference"]) + ("" if record["losses"]["agree"] else " ‡"),
            _count(record, get_task(record["task"]).train_split),
        ]
    else:
        cells += [""] * 4
    return f"| {' | '.join([*cells, _count(record, split)])} |"


def _split_of(record: Mapping[str, Any], figure: str) -> str:
    """The validation split that a figure was measured on."""
    names = get_task(record["task"]).validation_splits
    return next((name for name in names if figure.startswith(f"{name.removeprefix('validation_')}_")), names[0])


def _figure(values: Mapping[str, Any]) -> str:
    if len(values["values"]) == 1:
        return f"{values['median']:.1f}"
    return f"{values['median']:.1f} ({values['min']:.1f} to {values['max']:.1f})"


def _small(value: float) -> str:
    return f"{value:.0e}" if value else "0"


def _count(record: Mapping[str, Any], split: str) -> str:
    return f"{record['splits'][split]['examples']:,}"


def _notes(record: Mapping[str, Any]) -> list[str]:
    names = [name for name in get_task(record["task"]).validation_splits if record["splits"][name]["partial"]]
    return [
        f"{record['task']} {name} ({_count(record, name)} rows, published {record['splits'][name]['published']:,})"
        for name in names
    ]


def _far(records: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        f"{record['task']} {figure}"
        for record in records
        for figure, sides in record["figures"].items()
        if not within_spread(
            figure, sides["ours"], sides["stock"], record["splits"][_split_of(record, figure)]["examples"]
        )
    ]


def _machine(records: Sequence[Mapping[str, Any]]) -> str:
    """Where and when; several lines of a machine only where they differ."""
    found = []
    for record in records:
        machine = record["machine"]
        place = f"GPU {machine['gpu']}" if machine["gpu"] else f"{machine['cores']} cores of {machine['processor']}"
        found.append(
            f"{record['model']} on {place}, torch {machine['torch']}, transformers {machine['transformers']}, "
            f"{record['date']}"
        )
    return "; ".join(dict.fromkeys(found)) + "."
