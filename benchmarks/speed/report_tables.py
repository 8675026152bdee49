"""The Markdown of a results file."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from speed.report import Ratio, Row, revisions_of
from speed.spec import OURS, STEPS, STOCK_BEST, STOCK_DEFAULTS


Runs = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]


def format_machine(name: str, records: Sequence[Mapping[str, Any]], rows: Sequence[Row], runs: Runs) -> list[str]:
    """Everything that one results file says, as lines."""
    machine: Mapping[str, Any] = next((record["machine"] for record in reversed(records) if record.get("machine")), {})
    model = f" ({machine['processor_model']})" if machine.get("processor_model") else ""
    shown = machine.get("gpu") or f"{machine.get('processor')}{model}, {machine.get('threads')} threads"
    lines = [f"## {shown}", ""]
    lines += [f"{_versions(runs)}; every sample: `{name}.json`.", ""]
    for suite in dict.fromkeys(row.suite for row in rows):
        lines += [f"### {suite}", "", *_compared([row for row in rows if row.suite == suite]), ""]
    return lines + _steps(runs) + _data(runs) + _quality(runs) + _failures(runs)


def _versions(runs: Runs) -> str:
    """The versions of all samples, or of which cases they are where there are several."""
    cases: dict[str, list[str]] = {}
    for (suite, case), records in runs.items():
        for record in records:
            machine = record.get("machine")
            if record["role"] == "sample" and machine:
                shown = f"torch {machine.get('torch')}, transformers {machine.get('transformers')}"
                cases.setdefault(shown, []).append(f"{suite} {case}")
    if len(cases) < 2:
        return next(iter(cases), "versions not recorded")
    return "; ".join(f"{shown} ({', '.join(dict.fromkeys(names))})" for shown, names in cases.items())


def _failures(runs: Runs) -> list[str]:
    """Every sample that failed, with its round."""
    lines = [
        f"- {suite} {case}, {record['side']}, round {(record['round'] or 0) + 1}: {record['error']}"
        for (suite, case), records in runs.items()
        for record in records
        if record["role"] == "sample" and "error" in record
    ]
    return ["### samples that failed", "", *lines, ""] if lines else []


def _compared(rows: Sequence[Row]) -> list[str]:
    unit = "tokens/s" if rows[0].suite == "pretraining" else "examples/s"
    has_peak = any(row.of_peak for row in rows)
    head = ["case", f"stock defaults, {unit}", "stock at its best", "ours", "ours / defaults", "ours / best"]
    head += ["memory: defaults, best, ours (MB)", "MFU: defaults, best, ours", "pads of defaults"]
    head += ["ours, inputs/s", "ours waits for data", "rounds", "revision"]
    head += ["of the vendor's peak: ours"] if has_peak else []
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for row in rows:
        cells = [row.case, *(_rate(row, side) for side in (STOCK_DEFAULTS, STOCK_BEST, OURS))]
        cells += [_ratio(row.speedups.get(side)) for side in (STOCK_DEFAULTS, STOCK_BEST)]
        cells.append(", ".join(f"{row.memory[s]:,.0f}" if s in row.memory else "-" for s in _ALL))
        cells.append(", ".join(f"{row.mfu[s]:.0%}" if s in row.mfu else "-" for s in _ALL) if row.mfu else "-")
        cells.append("-" if row.pads is None else f"{row.pads:.1%}")
        cells += [
            "-" if row.sequences is None else f"{row.sequences:,.1f}",
            "-" if row.wait is None else f"{row.wait:.1%}",
            _rounds(row),
            _revisions(row.revisions),
        ]
        cells += [f"{row.of_peak[OURS]:.0%}" if OURS in row.of_peak else "-"] if has_peak else []
        lines.append(f"| {' | '.join(cells)} |")
    notes = [f"- stock at its best, {row.case}: {_best(row)}" for row in rows if row.switches is not None]
    return [*lines, "", *notes] if notes else lines


_ALL = (STOCK_DEFAULTS, STOCK_BEST, OURS)


def _rate(row: Row, side: str) -> str:
    if side in row.rates:
        return f"{row.rates[side]:,.0f}" if row.rates[side] >= 100 else f"{row.rates[side]:.1f}"
    return "failed" if side in row.failed else "-"


def _rounds(row: Row) -> str:
    """How many samples a figure is the median of; of each side where they differ."""
    counts = [row.rounds.get(side, 0) for side in _ALL if side in row.rounds or side in row.failed]
    return str(counts[0]) if len(set(counts)) == 1 else ", ".join(map(str, counts))


def _revisions(found: Sequence[str]) -> str:
    return ", ".join(found) or "not recorded"


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    spread = f" ({ratio.low:.2f} .. {ratio.high:.2f})" if ratio.rounds > 1 else ""
    return f"{ratio.median:.2f}x{spread}"


def _best(row: Row) -> str:
    """The switches, and what the search left out."""
    found = ", ".join(f"{name} {value}" for name, value in (row.switches or {}).items())
    return "; ".join([found or "the defaults", *row.left])


def _steps(runs: Runs) -> list[str]:
    """One line a step from stock's defaults to ours."""
    names = {STOCK_DEFAULTS: "stock, defaults"} | {side: name for side, (name, _) in STEPS.items()}
    lines = []
    for (suite, case), records in runs.items():
        rates: dict[str, list[float]] = {side: [] for side in names}
        for record in records:
            if suite == "steps" and record["role"] == "sample" and "result" in record:
                rates[record["side"]].append(record["result"]["tokens_per_second"])
        before = None
        for side, found in rates.items():
            if found:
                rate = statistics.median(found)
                gain = "" if before is None else f"{rate / before:.2f}x"
                lines.append(
                    f"| {case} | {names[side]} | {rate:,.0f} | {gain} | {_revisions(revisions_of(records))} |"
                )
                before = rate
    head = ["### steps", "", "| case | and then | tokens/s | over the line above | revision |", "|" + " --- |" * 5]
    return [*head, *lines, ""] if lines else []


def _data(runs: Runs) -> list[str]:
    """One line a measure of the data suite."""
    lines = []
    for (suite, _), records in runs.items():
        results = [record["result"] for record in records if record["role"] == "sample" and "result" in record]
        if suite == "data" and results:
            rates = [result["per_second"] for result in results]
            spread = f"{min(rates):,.2f} .. {max(rates):,.2f}" if len(rates) > 1 else "one sample"
            cells = [results[0]["about"], f"{statistics.median(rates):,.2f} {results[0]['unit']}/s", spread]
            lines.append(f"| {' | '.join([*cells, _revisions(revisions_of(records))])} |")
    head = ["### data", "", "| what | median | least .. most | revision |", "|" + " --- |" * 4]
    return [*head, *lines, ""] if lines else []


def _quality(runs: Runs) -> list[str]:
    """Held-out figures of both sides by the minute."""
    lines = []
    for (suite, case), records in runs.items():
        sides = {r["side"]: r["result"] for r in records if r["role"] == "sample" and "result" in r}
        if suite != "time_to_quality" or not sides:
            continue
        lines += [f"### time_to_quality, {case}", ""]
        lines += ["| minutes from raw text | side | steps | held-out MLM loss | NSP accuracy |", "|" + " --- |" * 5]
        for side, result in sides.items():
            for point in result["points"]:
                figures = f"{point['steps']:,} | {point['mlm_loss']:.3f} | {point['nsp_accuracy']:.1%}"
                lines.append(f"| {point['seconds'] / 60:.1f} | {side} | {figures} |")
        lines.append("")
    return lines
