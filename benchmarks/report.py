"""The Markdown table and the plots of the results files of a folder."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from results import (
    FORMAT,
    RATES,
    Record,
    Records,
    fastest_stock,
    is_stock,
    last_runs,
    ratio_of,
    read_results,
    samples_of,
)
from sample import BUDGET, OURS, STEPS, STOCK_DEFAULTS

from bert_recipes.errors import InputError
from bert_recipes.files import atomic_write


TABLE_FILE = "benchmarks.md"
# The side of stock at its best in results of an older command, which searched for its settings.
SEARCHED = "stock_best"
LABELS = ("stock, defaults", "stock at its best", "bert-recipes", "bert-recipes, with Muon")
COLORS = ("#b8b8b8", "#6f8fb0", "#d1642f", "#7a2e0e")
COMPARED_COLUMNS = (
    "stock at its best",
    "ours",
    "ours / defaults",
    "ours / best",
    "memory: defaults, best, ours (MB)",
    "MFU: defaults, best, ours",
    "pads of defaults",
    "ours, inputs/s",
    "ours waits for data",
    "rounds",
    "revision",
)

Runs = Mapping[tuple[str, str], Records]


def write_report(folder: Path) -> str:
    """Write the table and the plots of a folder's results files.

    Returns:
        The table.
    """
    files = [path for path in sorted(folder.glob("*.json")) if _is_results_file(path)]
    if not files:
        raise InputError(f"{folder}: no results file there; measure first, without --report_only")
    lines = ["# Benchmarks", ""]
    for path in files:
        lines += _machine_section(path)
    text = "\n".join(lines)
    with atomic_write(folder / TABLE_FILE) as aside:
        aside.write_text(text, encoding="utf-8")
    return text


def _is_results_file(path: Path) -> bool:
    return f'"format": "{FORMAT}"' in path.read_text("utf-8")[:200]


def _machine_section(path: Path) -> list[str]:
    """Return the lines of a results file, and draw its plots."""
    records = read_results(path)
    runs = last_runs(records)
    lines = [
        f"## {_machine_title(records)}",
        "",
        f"{_versions(runs)}; every sample: `{path.name}`.",
        "",
    ]
    for suite in dict.fromkeys(suite for suite, _ in runs if suite in RATES):
        lines += [
            f"### {suite}",
            "",
            *_compared(suite, _cases(runs, suite)),
            "",
        ]

    lines += [
        *_steps(runs),
        *_data(runs),
        *_quality(runs),
        *_failures(runs),
    ]
    compared = {key: run for key, run in runs.items() if key[0] in RATES}
    if plot_rows(compared, path.with_suffix(".png")):
        lines += [f"![speed and memory beside stock]({path.stem}.png)", ""]
    for case, run in _cases(runs, "time_to_quality").items():
        file = path.with_name(f"{path.stem}_{case}.png")
        if plot_quality(run, file):
            lines += [f"![held-out figures over time]({file.name})", ""]
    return lines


def _cases(runs: Runs, suite: str) -> dict[str, Records]:
    """Return case -> its records, of a suite."""
    return {case: run for (name, case), run in runs.items() if name == suite}


def _machine_title(records: Records) -> str:
    """Return what the last sample was measured on."""
    machine: Record = {}
    for record in records:
        machine = record.get("machine") or machine
    if machine.get("gpu"):
        return machine["gpu"]
    model = f" ({machine['processor_model']})" if machine.get("processor_model") else ""
    return f"{machine.get('processor')}{model}, {machine.get('threads')} threads"


def _versions(runs: Runs) -> str:
    """Name the versions of all samples, and where there are several, of which cases they are."""
    cases: dict[str, list[str]] = {}
    for (suite, case), records in runs.items():
        for record in records:
            machine = record.get("machine")
            if record["role"] == "sample" and machine:
                versions = (
                    f"torch {machine.get('torch')}, transformers {machine.get('transformers')}"
                )
                cases.setdefault(versions, []).append(f"{suite} {case}")

    if len(cases) < 2:
        return next(iter(cases), "versions not recorded")
    groups = []
    for versions, names in cases.items():
        groups.append(f"{versions} ({', '.join(dict.fromkeys(names))})")
    return "; ".join(groups)


def median_of(records: Iterable[Record], side: str | None, name: str) -> float | None:
    """Return the median of a figure over the samples of a side; None where no sample has it."""
    values = []
    for record in samples_of(records):
        value = record["result"].get(name)
        if record["side"] == side and value is not None:
            values.append(value)
    return statistics.median(values) if values else None


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [
        head,
        ["---"] * len(head),
        *rows,
    ]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _compared(suite: str, cases: Mapping[str, Records]) -> list[str]:
    """Return the table of a suite whose sides are compared, and notes on stock at its best."""
    unit = "tokens/s" if suite == "pretraining" else "examples/s"
    head = (
        "case",
        f"stock defaults, {unit}",
        *COMPARED_COLUMNS,
    )
    rows, notes = [], []
    for case, records in cases.items():
        rows.append([case, *_compared_cells(records, RATES[suite])])
        best = fastest_stock(records)
        if best is not None:
            settings = _describe_best(records, best, RATES[suite])
            notes.append(f"- stock at its best, {case}: {settings}")

    lines = _table(head, rows)
    if notes:
        lines += ["", *notes]
    return lines


def _compared_cells(records: Records, rate: str) -> list[str]:
    """Return the cells of a case."""
    best = fastest_stock(records)
    sides = (STOCK_DEFAULTS, best, OURS)
    memory = [_or_dash(median_of(records, side, "peak_memory_mb"), ",.0f") for side in sides]
    shares = [mfu_of(records, side) for side in sides]
    mfu = ", ".join(_or_dash(share, ".0%") for share in shares) if any(shares) else "-"
    failed = {record["side"] for record in records if "error" in record}
    return [
        *(_rate(median_of(records, side, rate), side in failed) for side in sides),
        _ratio(ratio_of(records, STOCK_DEFAULTS, rate)),
        _ratio(ratio_of(records, best, rate)),
        ", ".join(memory),
        mfu,
        _or_dash(_pads_share(records), ".1%"),
        _or_dash(median_of(records, OURS, "examples_per_second"), ",.1f"),
        _or_dash(median_of(records, OURS, "data_wait_share"), ".1%"),
        _rounds(records, sides),
        _revisions(records),
    ]


def _pads_share(records: Records) -> float | None:
    """Return the share of pads in what stock's defaults computed."""
    for record in samples_of(records):
        if record["side"] == STOCK_DEFAULTS:
            result = record["result"]
            return result["pads"] / result["positions"] if result.get("positions") else None
    return None


def _rounds(records: Records, sides: Sequence[str | None]) -> str:
    """Return how many rounds the sides have; one number where it is the same."""
    failed = {record["side"] for record in records if "error" in record}
    finished = [record["side"] for record in samples_of(records)]
    counts = []
    for side in sides:
        if side in finished or side in failed:
            counts.append(str(finished.count(side)))
    return counts[0] if len(set(counts)) == 1 else ", ".join(counts)


def mfu_of(records: Records, side: str | None) -> float | None:
    """Return model FLOPs a second over the machine's rate of matrix products, 0 to 1.

    In the precision of the side.
    """
    gflops = median_of(records, side, "gflops_per_second")
    if gflops is None:
        return None
    precisions = [r["result"]["precision"] for r in samples_of(records) if r["side"] == side]
    for record in records:
        if record["role"] == "matmul" and "result" in record:
            best = record["result"]["best_gflops"].get(precisions[0])
            return gflops / best if best else None
    return None


def _describe_best(records: Records, best: str, rate: str) -> str:
    """Say which settings were the fastest, and what the other configurations gave."""
    samples = samples_of(records)
    spec = [record["spec"] for record in samples if record["side"] == best][-1]
    switches = [f"{name} {value}" for name, value in spec.get("switches", {}).items()]
    settings = ", ".join(switches) or "the defaults"
    if best == SEARCHED:
        return f"{settings}; found by the search of an older command"
    notes = [f"{best} ({settings})"]
    for side in dict.fromkeys(record["side"] for record in samples):
        if is_stock(side) and side not in (STOCK_DEFAULTS, best):
            notes.append(f"{side} {_rate(median_of(records, side, rate))}")
    return "; ".join(notes)


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _rate(value: float | None, has_failed: bool = False) -> str:
    if value is None:
        return "failed" if has_failed else "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _ratio(ratio: tuple[float, float, float, int] | None) -> str:
    if ratio is None:
        return "-"
    median, low, high, num_rounds = ratio
    spread = f" ({low:.2f} .. {high:.2f})" if num_rounds > 1 else ""
    return f"{median:.2f}x{spread}"


def _revisions(records: Iterable[Record]) -> str:
    revisions = []
    for record in records:
        revision = (record.get("machine") or {}).get("revision")
        if record["role"] == "sample" and revision:
            revisions.append(revision)
    return ", ".join(dict.fromkeys(revisions)) or "not recorded"


def _steps(runs: Runs) -> list[str]:
    """Return one line a step from stock's defaults to ours."""
    names = {STOCK_DEFAULTS: "stock, defaults"}
    for side, (name, _) in STEPS.items():
        names[side] = name
    rows = []
    for case, records in _cases(runs, "steps").items():
        rate_before = None
        for side, name in names.items():
            rate = median_of(records, side, "tokens_per_second")
            if rate is None:
                continue
            gain = "" if rate_before is None else f"{rate / rate_before:.2f}x"
            rows.append([case, name, f"{rate:,.0f}", gain, _revisions(records)])
            rate_before = rate

    if not rows:
        return []
    head = ["case", "and then", "tokens/s", "over the line above", "revision"]
    return [
        "### steps",
        "",
        *_table(head, rows),
        "",
    ]


def _data(runs: Runs) -> list[str]:
    """Return one line a measure of the data suite."""
    rows = []
    for records in _cases(runs, "data").values():
        results = [record["result"] for record in samples_of(records)]
        if not results:
            continue
        rates = [result["per_second"] for result in results]
        spread = f"{min(rates):,.2f} .. {max(rates):,.2f}" if len(rates) > 1 else "one sample"
        median = f"{statistics.median(rates):,.2f} {results[0]['unit']}/s"
        rows.append([results[0]["about"], median, spread, _revisions(records)])

    if not rows:
        return []
    head = ["what", "median", "least .. most", "revision"]
    return [
        "### data",
        "",
        *_table(head, rows),
        "",
    ]


def _quality(runs: Runs) -> list[str]:
    """Return held-out figures of all sides by the minute."""
    lines: list[str] = []
    head = ["minutes from raw text", "side", "steps", "held-out MLM loss", "NSP accuracy"]
    for case, records in _cases(runs, "time_to_quality").items():
        rows = []
        for record in samples_of(records):
            for point in record["result"].get("points", []):
                cells = [
                    f"{point['seconds'] / 60:.1f}",
                    record["side"],
                    f"{point['steps']:,}",
                ]
                cells += [f"{point['mlm_loss']:.3f}", f"{point['nsp_accuracy']:.1%}"]
                rows.append(cells)
        if rows:
            lines += [
                f"### time_to_quality, {case}",
                "",
                *_table(head, rows),
                "",
            ]

    return lines


def _failures(runs: Runs) -> list[str]:
    """Return every sample that failed, with its round."""
    lines = []
    for (suite, case), records in runs.items():
        for record in records:
            if "error" in record:
                name = f"{suite} {case}, matrix products"
                if record["role"] != "matmul":
                    name = f"{suite} {case}, {record['side']}, round {record['round'] + 1}"
                lines.append(f"- {name}: {record['error']}")
    return ["### samples that failed", "", *lines, ""] if lines else []


# Plots


def _pyplot() -> Any:
    """Return matplotlib.pyplot without a window system."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    return plt


def multiples(records: Records, suite: str) -> list[tuple[float | None, float | None]]:
    """Return speed and memory over those of stock's defaults, of each bar of a case.

    The defaults, stock at its best, ours.
    """
    defaults_mb = median_of(records, STOCK_DEFAULTS, "peak_memory_mb")
    bars = []
    for side in (STOCK_DEFAULTS, fastest_stock(records), OURS):
        speed: float | None = None
        memory: float | None = None
        if side is not None:
            ratio = ratio_of(records, STOCK_DEFAULTS, RATES[suite], of=side)
            speed = ratio[0] if ratio else None
        memory_mb = median_of(records, side, "peak_memory_mb")
        if defaults_mb and memory_mb is not None:
            memory = memory_mb / defaults_mb
        bars.append((speed, memory))

    return bars


def plot_rows(runs: Runs, file: Path) -> bool:
    """Draw bars of speed and memory as multiples of stock's defaults; return whether it did."""
    cases = {}
    for (suite, case), records in runs.items():
        if median_of(records, STOCK_DEFAULTS, RATES[suite]) is not None:
            cases[f"{suite} {case}"] = multiples(records, suite)
    if not cases:
        return False
    plt = _pyplot()
    size = (12, 1.2 + 0.55 * len(cases))
    figure, axes = plt.subplots(
        1,
        2,
        figsize=size,
        layout="constrained",
        sharey=True,
    )
    for panel, title in enumerate(("Speed", "Peak memory of a step")):
        axis = axes[panel]
        for number in range(3):
            _draw_bars(
                axis,
                number,
                [bars[number][panel] for bars in cases.values()],
            )
        axis.set(title=title, xlabel="multiple of stock's defaults")
        axis.axvline(1.0, color="black", lw=0.6)
        axis.margins(x=0.12)
        axis.grid(axis="x", alpha=0.3)

    axes[0].set_yticks(range(len(cases)), list(cases))
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


def _draw_bars(axis: Any, number: int, values: Sequence[float | None]) -> None:
    """Draw one bar of every case: its first, second or third."""
    places, widths = [], []
    for place, value in enumerate(values):
        if value is not None:
            places.append(place + (number - 1) * 0.27)
            widths.append(value)
    bars = axis.barh(
        places,
        widths,
        height=0.25,
        label=LABELS[number],
        color=COLORS[number],
    )
    for text in axis.bar_label(bars, fmt="%.2f", padding=2, fontsize=8):
        # On white, as the line at 1 goes through some.
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.6})


def plot_quality(records: Records, file: Path) -> bool:
    """Draw held-out MLM loss and NSP accuracy of all sides over the minutes since the raw text."""
    sides = {record["side"]: record["result"]["points"] for record in samples_of(records)}
    if not any(sides.values()):
        return False
    plt = _pyplot()
    figure, axes = plt.subplots(
        1,
        2,
        figsize=(11, 4),
        layout="constrained",
    )
    panels = (
        ("mlm_loss", "Held-out masked-LM loss", "nats a token"),
        ("nsp_accuracy", "Held-out NSP", "share right"),
    )
    for axis, (name, title, unit) in zip(axes, panels, strict=True):
        for side, points in sides.items():
            number = {STOCK_DEFAULTS: 0, OURS: 2, BUDGET: 3}.get(side, 1)
            minutes = [point["seconds"] / 60 for point in points]
            values = [point[name] for point in points]
            axis.plot(
                minutes,
                values,
                marker="o",
                ms=3,
                label=LABELS[number],
                color=COLORS[number],
            )
        axis.set(
            title=title,
            xlabel="minutes from raw text",
            ylabel=unit,
        )
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)

    figure.savefig(file, dpi=110)
    plt.close(figure)
    return True
