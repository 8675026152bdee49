"""The results file of a machine, and the statistics of its records.

It has one line a record. Records are added; none is ever changed or removed.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sample import BUDGET, OURS, STEPS, STOCK_DEFAULTS, Result

from bert_recipes.errors import InputError, saving
from bert_recipes.files import atomic_write, replace_nonfinite
from bert_recipes.training.speed import describe_machine


FORMAT, FORMAT_VERSION = "bert-recipes benchmark", 1
# What must be equal for samples to belong together.
MACHINE_KEYS = (
    "processor",
    "processor_model",
    "gpu",
    "cores",
    "threads",
    "torch",
    "transformers",
)
# Suite -> the rate by which its sides are compared.
RATES = {
    "pretraining": "tokens_per_second",
    "finetuning": "examples_per_second",
    "inference": "examples_per_second",
}

Record = Mapping[str, Any]
Records = Sequence[Record]


def read_results(path: Path) -> list[Result]:
    """Return the records of a results file, which need not exist."""
    if not path.exists():
        return []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(
            f"{path}: damaged ({error}); mend it or move it away, it is never overwritten"
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{path}: no results file of this project; give another --output_dir")
    return content["records"]


def add_result(path: Path, record: Record) -> None:
    """Add a record; written aside and renamed, one process at a time."""
    with saving(path), _locked(path.parent):
        records = [*read_results(path), replace_nonfinite(record)]
        lines = [json.dumps(item, allow_nan=False) for item in records]
        head = f'"format": {json.dumps(FORMAT)}, "format_version": {FORMAT_VERSION}, "records": [\n'
        with atomic_write(path) as aside:
            aside.write_text("{" + head + ",\n".join(lines) + "\n]}\n", encoding="utf-8")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def machine_name(machine: Record) -> str:
    """Return a file name for a machine: its GPU, or its processor with model and cores."""
    name = machine.get("gpu")
    if not name:
        model = machine.get("processor_model", "")
        name = f"{machine['processor']} {model} {machine['cores']} cores"
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def same_machine(first: Record, second: Record) -> bool:
    """Return whether two samples are of one machine with the same versions and threads."""
    return all(first.get(name) == second.get(name) for name in MACHINE_KEYS)


def this_machine() -> Result:
    """Return what must be equal for samples to belong together, of this machine."""
    here = describe_machine()
    return {name: here.get(name) for name in MACHINE_KEYS}


# Statistics


def samples_of(records: Iterable[Record]) -> list[Record]:
    """Return the records of samples that did not fail."""
    return [record for record in records if record["role"] == "sample" and "result" in record]


def last_runs(records: Iterable[Record]) -> dict[tuple[str, str], list[Record]]:
    """Return (suite, case) -> the records of its last run."""
    cases: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        cases.setdefault((record["suite"], record["case"]), []).append(record)
    runs = {}
    for key, case in cases.items():
        names = [record["run"] for record in case if record["role"] == "sample"]
        if names:
            runs[key] = [record for record in case if record["run"] == names[-1]]
    return runs


def is_stock(side: str) -> bool:
    """Return whether a side is a configuration of stock, be it one of an older command."""
    return bool(side) and side not in STEPS and side != BUDGET


def fastest_stock(records: Iterable[Record]) -> str | None:
    """Return the side of the fastest configuration of stock in a run, by the medians.

    None where there is none besides the defaults.
    """
    rates: dict[str, list[float]] = {}
    for record in samples_of(records):
        if is_stock(record["side"]) and record["suite"] in RATES:
            rate = record["result"][RATES[record["suite"]]]
            rates.setdefault(record["side"], []).append(rate)
    if not rates.keys() - {STOCK_DEFAULTS}:
        return None
    return max(rates, key=lambda side: statistics.median(rates[side]))


def ratio_of(
    records: Records, side: str | None, rate: str, *, of: str = OURS
) -> tuple[float, float, float, int] | None:
    """Return a side, ours if no other is named, over another in the rounds that have both.

    Returns:
        Median, least, most, and how many rounds; None where there is none.
    """
    rates: dict[str, dict[int, float]] = {}
    for record in samples_of(records):
        rates.setdefault(record["side"], {})[record["round"]] = record["result"][rate]
    if side is None:
        return None
    numerators, denominators = rates.get(of, {}), rates.get(side, {})
    common = numerators.keys() & denominators.keys()
    ratios = [numerators[number] / denominators[number] for number in common]
    if not ratios:
        return None
    return (
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        len(
            ratios,
        ),
    )
