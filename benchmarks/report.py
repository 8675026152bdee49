"""The Markdown table and the plots of the results files of a folder."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from side_by_side import (
    BUDGET,
    FORMAT,
    OURS,
    RATES,
    STEPS,
    STOCK_DEFAULTS,
    fastest_stock,
    is_stock,
    last_runs,
    ratio_of,
    read_results,
    samples_of,
)

from bert_recipes.errors import InputError
from bert_recipes.files import atomic_write


TABLE_FILE = "benchmarks.md"
# The side of stock at its best in results of an older command, which searched for its settings.
SEARCHED = "stock_best"
LABELS = ("stock, defaults", "stock at its best", "bert-recipes", "bert-recipes, with Muon")
COLORS = ("#b8b8b8", "#6f8fb0", "#d1642f", "#7a2e0e")

Runs = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
logger = logging.getLogger(__name__)


def write_report(folder: Path) -> str:
    """Write the table and, where matplotlib is installed, the plots of every results file of a
    folder; return the table.
    """
    files = [
        path
        for path in sorted(folder.glob("*.json"))
        if f'"format": "{FORMAT}"' in path.read_text("utf-8")[:200]
    ]
    if not files:
        raise InputError(f"{folder}: no results file there; measure first, without --report_only")
    lines = ["# Benchmarks", ""]
    for path in files:
        records = read_results(path)
        runs = last_runs(records)
        compared = {key: found for key, found in runs.items() if key[0] in RATES}
        machine: Mapping[str, Any] = next(
            (record["machine"] for record in reversed(records) if record.get("machine")), {}
        )
        model = f" ({machine['processor_model']})" if machine.get("processor_model") else ""
        shown = (
            machine.get("gpu")
            or f"{machine.get('processor')}{model}, {machine.get('threads')} threads"
        )
        lines += [f"## {shown}", "", f"{_versions(runs)}; every sample: `{path.name}`.", ""]
        for suite in dict.fromkeys(suite for suite, _ in compared):
            own = {case: found for (name, case), found in compared.items() if name == suite}
            lines += [f"### {suite}", "", *_compared(suite, own), ""]
        lines += [*_steps(runs), *_data(runs), *_quality(runs), *_failures(runs)]
        if compared and plot_rows(compared, path.with_suffix(".png")):
            lines += [f"![speed and memory beside stock]({path.stem}.png)", ""]
        for (suite, case), found in runs.items():
            file = folder / f"{path.stem}_{case}.png"
            if suite == "time_to_quality" and plot_quality(found, file):
                lines += [f"![held-out figures over time]({file.name})", ""]
    text = "\n".join(lines)
    with atomic_write(folder / TABLE_FILE) as aside:
        aside.write_text(text, encoding="utf-8")
    return text


def _versions(runs: Runs) -> str:
    """Name the versions of all samples, and where there are several, of which cases they are."""
    cases: dict[str, list[str]] = {}
    for (suite, case), records in runs.items():
        for machine in (
            r["machine"] for r in records if r["role"] == "sample" and r.get("machine")
        ):
            shown = f"torch {machine.get('torch')}, transformers {machine.get('transformers')}"
            cases.setdefault(shown, []).append(f"{suite} {case}")
    if len(cases) < 2:
        return next(iter(cases), "versions not recorded")
    return "; ".join(
        f"{shown} ({', '.join(dict.fromkeys(names))})" for shown, names in cases.items()
    )


def median_of(records: Iterable[Mapping[str, Any]], side: str | None, name: str) -> float | None:
    """Return the median of a figure over the samples of a side; None where no sample has it."""
    found = [r["result"].get(name) for r in samples_of(records) if r["side"] == side]
    known = [value for value in found if value is not None]
    return statistics.median(known) if known else None


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows]]


def _compared(suite: str, runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    unit, rate = ("tokens/s" if suite == "pretraining" else "examples/s"), RATES[suite]
    head = [
        "case",
        f"stock defaults, {unit}",
        "stock at its best",
        "ours",
        "ours / defaults",
        "ours / best",
    ]
    head += ["memory: defaults, best, ours (MB)", "MFU: defaults, best, ours", "pads of defaults"]
    head += ["ours, inputs/s", "ours waits for data", "rounds", "revision"]
    rows, notes = [], []
    for case, records in runs.items():
        best = fastest_stock(records)
        sides = (STOCK_DEFAULTS, best, OURS)
        failed = {r["side"] for r in records if r["role"] == "sample" and "error" in r}
        counts = {side: sum(r["side"] == side for r in samples_of(records)) for side in sides}
        counts = {side: count for side, count in counts.items() if count or side in failed}
        rounds = list(counts.values())
        first: Mapping[str, Any] = next(
            (r["result"] for r in samples_of(records) if r["side"] == STOCK_DEFAULTS), {}
        )
        pads = first["pads"] / first["positions"] if first.get("positions") else None
        shares = [mfu_of(records, side) for side in sides]
        row = [case, *(_rate(median_of(records, side, rate), side in failed) for side in sides)]
        row += [_ratio(ratio_of(records, side, rate)) for side in (STOCK_DEFAULTS, best)]
        row.append(
            ", ".join(
                _or_dash(median_of(records, side, "peak_memory_mb"), ",.0f") for side in sides
            )
        )
        row.append(", ".join(_or_dash(share, ".0%") for share in shares) if any(shares) else "-")
        row += [
            _or_dash(pads, ".1%"),
            _or_dash(median_of(records, OURS, "examples_per_second"), ",.1f"),
        ]
        row.append(_or_dash(median_of(records, OURS, "data_wait_share"), ".1%"))
        row.append(str(rounds[0]) if len(set(rounds)) == 1 else ", ".join(map(str, rounds)))
        rows.append([*row, _revisions(records)])
        if best is not None:
            notes.append(f"- stock at its best, {case}: {_best(records, best, rate)}")
    return [*_table(head, rows), *([""] if notes else []), *notes]


def mfu_of(records: Sequence[Mapping[str, Any]], side: str | None) -> float | None:
    """Return model FLOPs a second over the machine's own rate of matrix products in the side's
    precision, 0 to 1.
    """
    matmul = next((r["result"] for r in records if r["role"] == "matmul" and "result" in r), None)
    gflops = median_of(records, side, "gflops_per_second")
    if matmul is None or gflops is None:
        return None
    precision = next(r["result"]["precision"] for r in samples_of(records) if r["side"] == side)
    best = matmul["best_gflops"].get(precision)
    return gflops / best if best else None


def _best(records: Sequence[Mapping[str, Any]], best: str, rate: str) -> str:
    """Say which settings were the fastest, and what the other configurations gave."""
    spec = [r["spec"] for r in samples_of(records) if r["side"] == best][-1]
    settings = (
        ", ".join(f"{name} {value}" for name, value in spec.get("switches", {}).items())
        or "the defaults"
    )
    if best == SEARCHED:
        return f"{settings}; found by the search of an older command"
    names = dict.fromkeys(r["side"] for r in samples_of(records) if is_stock(r["side"]))
    others = [
        f"{name} {_rate(median_of(records, name, rate))}"
        for name in names
        if name not in (STOCK_DEFAULTS, best)
    ]
    return "; ".join([f"{best} ({settings})", *others])


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _rate(value: float | None, has_failed: bool = False) -> str:
    if value is None:
        return "failed" if has_failed else "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _ratio(ratio: tuple[float, float, float, int] | None) -> str:
    if ratio is None:
        return "-"
    median, low, high, rounds = ratio
    return f"{median:.2f}x" + (f" ({low:.2f} .. {high:.2f})" if rounds > 1 else "")


def _revisions(records: Iterable[Mapping[str, Any]]) -> str:
    found = [
        (record.get("machine") or {}).get("revision")
        for record in records
        if record["role"] == "sample"
    ]
    return ", ".join(dict.fromkeys(filter(None, found))) or "not recorded"


def _steps(runs: Runs) -> list[str]:
    """One line a step from stock's defaults to ours."""
    names = {STOCK_DEFAULTS: "stock, defaults"} | {side: name for side, (name, _) in STEPS.items()}
    rows = []
    for case, records in (
        (case, found) for (suite, case), found in runs.items() if suite == "steps"
    ):
        before = None
        for side, name in names.items():
            rate = median_of(records, side, "tokens_per_second")
            if rate is not None:
                gain = "" if before is None else f"{rate / before:.2f}x"
                rows.append([case, name, f"{rate:,.0f}", gain, _revisions(records)])
                before = rate
    head = ["case", "and then", "tokens/s", "over the line above", "revision"]
    return ["### steps", "", *_table(head, rows), ""] if rows else []


def _data(runs: Runs) -> list[str]:
    """One line a measure of the data suite."""
    rows = []
    for records in (found for (suite, _), found in runs.items() if suite == "data"):
        results = [record["result"] for record in samples_of(records)]
        if results:
            rates = [result["per_second"] for result in results]
            spread = f"{min(rates):,.2f} .. {max(rates):,.2f}" if len(rates) > 1 else "one sample"
            median = f"{statistics.median(rates):,.2f} {results[0]['unit']}/s"
            rows.append([results[0]["about"], median, spread, _revisions(records)])
    return (
        ["### data", "", *_table(["what", "median", "least .. most", "revision"], rows), ""]
        if rows
        else []
    )


def _quality(runs: Runs) -> list[str]:
    """Held-out figures of both sides by the minute."""
    lines: list[str] = []
    head = ["minutes from raw text", "side", "steps", "held-out MLM loss", "NSP accuracy"]
    for (suite, case), records in runs.items():
        points = [
            (r["side"], point)
            for r in samples_of(records)
            for point in r["result"].get("points", [])
        ]
        if suite == "time_to_quality" and points:
            rows = [
                [
                    f"{p['seconds'] / 60:.1f}",
                    side,
                    f"{p['steps']:,}",
                    f"{p['mlm_loss']:.3f}",
                    f"{p['nsp_accuracy']:.1%}",
                ]
                for side, p in points
            ]
            lines += [f"### time_to_quality, {case}", "", *_table(head, rows), ""]
    return lines


def _failures(runs: Runs) -> list[str]:
    """Every sample that failed, with its round."""
    lines = [
        f"- {suite} {case}, {record['side']}, round {(record['round'] or 0) + 1}: {record['error']}"
        for (suite, case), records in runs.items()
        for record in records
        if record["role"] == "sample" and "error" in record
    ]
    return ["### samples that failed", "", *lines, ""] if lines else []


# Plots


def _pyplot() -> Any | None:
    """Return matplotlib.pyplot without a window system, or None where it is not installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        logger.info("no plot: matplotlib is not installed")
        return None
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    return plt


def multiples(
    records: Sequence[Mapping[str, Any]], suite: str
) -> list[tuple[float | None, float | None]]:
    """Return speed and memory over those of stock's defaults: of the defaults, stock at its best,
    ours.
    """
    zero, found = median_of(records, STOCK_DEFAULTS, "peak_memory_mb"), []
    for side in (STOCK_DEFAULTS, fastest_stock(records), OURS):
        ratio = None if side is None else ratio_of(records, STOCK_DEFAULTS, RATES[suite], of=side)
        memory = median_of(records, side, "peak_memory_mb")
        found.append((ratio and ratio[0], memory / zero if zero and memory is not None else None))
    return found


def plot_rows(runs: Runs, file: Path) -> bool:
    """Draw bars of speed and memory, each as a multiple of stock's defaults; return whether there
    is a plot.
    """
    shown = {
        f"{suite} {case}": multiples(found, suite)
        for (suite, case), found in runs.items()
        if median_of(found, STOCK_DEFAULTS, RATES[suite]) is not None
    }
    plt = _pyplot()
    if plt is None or not shown:
        return False
    size = (12, 1.2 + 0.55 * len(shown))
    figure, axes = plt.subplots(1, 2, figsize=size, layout="constrained", sharey=True)
    for panel, (axis, title) in enumerate(
        zip(axes, ("Speed", "Peak memory of a step"), strict=True)
    ):
        for number, (label, color) in enumerate(zip(LABELS[:3], COLORS[:3], strict=True)):
            values = {place: row[number][panel] for place, row in enumerate(shown.values())}
            known = {
                place + (number - 1) * 0.27: value
                for place, value in values.items()
                if value is not None
            }
            bars = axis.barh(
                list(known), list(known.values()), height=0.25, label=label, color=color
            )
            for text in axis.bar_label(bars, fmt="%.2f", padding=2, fontsize=8):
                # On white, as the line at 1 goes through some.
                text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.6})
        axis.set(title=title, xlabel="multiple of stock's defaults")
        axis.axvline(1.0, color="black", lw=0.6)
        axis.margins(x=0.12)
        axis.grid(axis="x", alpha=0.3)
    axes[0].set_yticks(range(len(shown)), list(shown))
    axes[0].invert_yaxis()
    figure.legend(
        *axes[1].get_legend_handles_labels(),
        frameon=False,
        fontsize=8,
        loc="outside lower center",
        ncols=3,
    )
    figure.savefig(file, dpi=110)
    plt.close(figure)
    return True


def plot_quality(records: Sequence[Mapping[str, Any]], file: Path) -> bool:
    """Draw held-out MLM loss and NSP accuracy of all sides over the minutes since the raw text."""
    sides = {record["side"]: record["result"]["points"] for record in samples_of(records)}
    plt = _pyplot()
    if plt is None or not any(sides.values()):
        return False
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    panels = (
        ("mlm_loss", "Held-out masked-LM loss", "nats a token"),
        ("nsp_accuracy", "Held-out NSP", "share right"),
    )
    for axis, (name, title, unit) in zip(axes, panels, strict=True):
        for side, points in sides.items():
            place = {STOCK_DEFAULTS: 0, OURS: 2, BUDGET: 3}.get(side, 1)
            minutes = [point["seconds"] / 60 for point in points]
            values = [point[name] for point in points]
            axis.plot(minutes, values, marker="o", ms=3, label=LABELS[place], color=COLORS[place])
        axis.set(title=title, xlabel="minutes from raw text", ylabel=unit)
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    figure.savefig(file, dpi=110)
    plt.close(figure)
    return True
