"""From results files to a table: medians, and ratios of samples that were taken in the same round."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_recipes.files import written_aside
from speed.results import read_folder, same_machine
from speed.search import what_is_left
from speed.spec import OURS, SIDES, STOCK_BEST, STOCK_DEFAULTS


TABLE_FILE, PLOT_FILE = "benchmarks.md", "benchmarks.png"
RATES = {"pretraining": "tokens_per_second", "finetuning": "examples_per_second", "inference": "examples_per_second"}


@dataclass(frozen=True)
class Ratio:
    """One side over another, round by round.

    Attributes:
        median, low, high: Over the rounds in which both sides have a sample.
        rounds: How many these are.
    """

    median: float
    low: float
    high: float
    rounds: int


@dataclass(frozen=True)
class Row:
    """One case.

    Attributes:
        suite, case: Its names.
        rates: Side -> median rate.
        speedups: Side -> rate of ours over that side's.
        over_defaults: Side -> its rate over that of stock's defaults.
        memory: Side -> median peak memory, MB.
        mfu: Side -> share (0 to 1) of the machine's own matmul rate in the side's precision.
        of_peak: Side -> share of the vendor's dense bf16 peak; only on known GPUs.
        pads: Share of the positions that stock's defaults pad.
        wait: Share of its time for which ours waits for data.
        sequences: Inputs a second of ours.
        failed: Sides with a sample that failed.
        rounds: Side -> samples that did not fail.
        switches: Of stock at its best, where they differ from its defaults; None where there is no such side.
        left: What its search did not try or not repeat.
        revisions: Of the project, of the row's samples; a "+" behind one: with changes.
    """

    suite: str
    case: str
    rates: dict[str, float]
    speedups: dict[str, Ratio]
    memory: dict[str, float]
    over_defaults: dict[str, Ratio] = field(default_factory=dict)
    mfu: dict[str, float] = field(default_factory=dict)
    of_peak: dict[str, float] = field(default_factory=dict)
    pads: float | None = None
    wait: float | None = None
    sequences: float | None = None
    failed: frozenset[str] = frozenset()
    rounds: dict[str, int] = field(default_factory=dict)
    switches: dict[str, Any] | None = None
    left: list[str] = field(default_factory=list)
    revisions: list[str] = field(default_factory=list)


def last_runs(records: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """(suite, case) -> the records of its last run."""
    by_case: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for record in records:
        by_case.setdefault((record["suite"], record["case"]), []).append(record)
    chosen = {}
    for key, found in by_case.items():
        runs = [record["run"] for record in found if record["role"] == "sample"]
        if runs:
            chosen[key] = [record for record in found if record["run"] == runs[-1]]
    return chosen


def last_search(records: Sequence[Mapping[str, Any]], run: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The search that stands before a run's last sample of stock at its best, on the same machine.

    Args:
        records: Of the whole file.
        run: Of one run of a case.
    """
    samples = [record for record in run if (record["role"], record["side"]) == ("sample", STOCK_BEST)]
    if not samples or not samples[-1].get("machine"):
        return None
    last, found = samples[-1], None
    for record in records:
        if record is last:
            break
        if (record["suite"], record["case"], record["role"]) == (last["suite"], last["case"], "search"):
            found = record if same_machine(record.get("machine") or {}, last["machine"]) else found
    return None if found is None else found["search"]


def summarise(
    suite: str, case: str, records: Sequence[Mapping[str, Any]], search: Mapping[str, Any] | None = None
) -> Row:
    """The row of a case from the records of one run.

    Args:
        suite: Its suite.
        case: Its name.
        records: Of the run.
        search: Of stock at its best.
    """
    rate = RATES[suite]
    rounds: dict[int, dict[str, Mapping[str, Any]]] = {}
    for record in records:
        if record["role"] == "sample" and "result" in record:
            rounds.setdefault(record["round"], {})[record["side"]] = record["result"]
    by_side = {side: [found[side] for found in rounds.values() if side in found] for side in SIDES}
    by_side = {side: found for side, found in by_side.items() if found}
    mfu, of_peak = _utilisation(by_side, records)
    first = by_side.get(STOCK_DEFAULTS, [{}])[0]
    return Row(
        suite=suite,
        case=case,
        rates={side: statistics.median(result[rate] for result in found) for side, found in by_side.items()},
        speedups={
            side: ratio
            for side in (STOCK_DEFAULTS, STOCK_BEST)
            if (ratio := ratio_of(rounds.values(), side, rate)) is not None
        },
        over_defaults={
            side: ratio
            for side in SIDES
            if (ratio := ratio_of(rounds.values(), STOCK_DEFAULTS, rate, of=side)) is not None
        },
        memory={side: statistics.median(r["peak_memory_mb"] for r in found) for side, found in by_side.items()},
        mfu=mfu,
        of_peak=of_peak,
        pads=first["pads"] / first["positions"] if first.get("positions") else None,
        wait=_median(by_side.get(OURS, []), "data_wait_share"),
        sequences=_median(by_side.get(OURS, []), "examples_per_second"),
        failed=frozenset(r["side"] for r in records if r["role"] == "sample" and "error" in r),
        rounds={side: len(found) for side, found in by_side.items()},
        switches=_changed_switches(records),
        left=what_is_left(search) if search else [],
        revisions=revisions_of(records),
    )


def _median(results: Sequence[Mapping[str, Any]], name: str) -> float | None:
    found = [result[name] for result in results if result.get(name) is not None]
    return statistics.median(found) if found else None


def ratio_of(
    rounds: Iterable[Mapping[str, Mapping[str, Any]]], side: str, rate: str, *, of: str = OURS
) -> Ratio | None:
    """A side, ours if no other is named, over another in the rounds that have both; None where there is none."""
    ratios = [found[of][rate] / found[side][rate] for found in rounds if of in found and side in found]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios), len(ratios)) if ratios else None


def _utilisation(
    by_side: Mapping[str, Sequence[Mapping[str, Any]]], records: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, float], dict[str, float]]:
    """Model FLOPs a second over the machine's own rate, and over the vendor's peak, by side."""
    matmul = next((record["result"] for record in records if record["role"] == "matmul" and "result" in record), None)
    if matmul is None:
        return {}, {}
    mfu, of_peak = {}, {}
    for side, found in by_side.items():
        gflops = statistics.median(result["gflops_per_second"] for result in found)
        best = matmul["best_gflops"].get(found[0]["precision"])
        if best:
            mfu[side] = gflops / best
        if matmul["vendor_peak_bf16_tflops"]:
            of_peak[side] = gflops / 1000 / matmul["vendor_peak_bf16_tflops"]
    return mfu, of_peak


def revisions_of(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Revisions of the project with which the samples were taken, in their order; those that are not known are left out."""
    machines = [record.get("machine") or {} for record in records if record["role"] == "sample"]
    return list(dict.fromkeys(machine["revision"] for machine in machines if machine.get("revision")))


def _changed_switches(records: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    samples = [r for r in records if r["role"] == "sample" and r["side"] == STOCK_BEST]
    return dict(samples[-1]["spec"].get("switches", {})) if samples else None


def make_rows(records: Iterable[Mapping[str, Any]]) -> list[Row]:
    """One row a compared case, in the order of its first record."""
    records = list(records)
    return [
        summarise(suite, case, found, last_search(records, found))
        for (suite, case), found in last_runs(records).items()
        if suite in RATES
    ]


def write_report(folder: Path) -> str:
    """Write the table and, where matplotlib is installed, the plots of every results file of a folder.

    Returns:
        The table.

    Raises:
        InputError: There is no results file.
    """
    from speed.report_plot import plot_quality, plot_rows
    from speed.report_tables import format_machine

    parts = ["# Benchmarks", ""]
    for name, records in read_folder(folder).items():
        rows, runs = make_rows(records), last_runs(records)
        parts += format_machine(name, records, rows, runs)
        if rows and plot_rows(rows, folder / f"{name}.png"):
            parts += [f"![speed and memory beside stock]({name}.png)", ""]
        quality = {key: found for key, found in runs.items() if key[0] == "time_to_quality"}
        for (_, case), found in quality.items():
            file = folder / f"{name}_{case}.png"
            if plot_quality(found, file):
                parts += [f"![held-out figures over time]({file.name})", ""]
    text = "\n".join(parts)
    with written_aside(folder / TABLE_FILE) as aside:
        aside.write_text(text, encoding="utf-8")
    return text
