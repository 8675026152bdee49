"""What a sweep leaves: sweep.json, sweep.md, and its report with the plot."""

from __future__ import annotations

import math
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_recipes.reports.run_files import SWEEP_FILE, strict
from bert_recipes.reports.sweep import PLOT_FILE
from bert_recipes.reports.writing import report_sweep
from bert_recipes.sweeps.folder import NO_WEIGHTS_FILE, format_figure
from bert_recipes.sweeps.grid import Summary, choose_best
from bert_recipes.whole_files import write_json


TABLE_FILE = "sweep.md"


def write_report(folder: Path, summaries: Sequence[Summary], *, metric: str, settings: Mapping[str, Any]) -> str:
    """Write sweep.md and sweep.json, and from these sweep.png, report.md and report.html.

    Args:
        folder: The sweep's folder.
        summaries: Its combinations, one or more.
        metric: The figure by which the best is chosen.
        settings: What all runs have in common.

    Returns:
        The table.
    """
    best = choose_best(summaries)
    lines = [f"# Sweep: {metric} on the development set", ""]
    lines += [*_table(summaries, best), "", _how_chosen(best, metric), "", f"![runs]({PLOT_FILE})", ""]
    lines += ["Flags of every run: " + (shlex.join(settings["flags"]) or "none"), ""]
    # Several only where a default changed while the sweep ran.
    models = sorted({str(run.results["model"]) for item in summaries for run in item.runs if "model" in run.results})
    lines += [f"Model: {', '.join(models)}", ""] if models else []
    text = "\n".join(lines)
    (folder / TABLE_FILE).write_text(text, encoding="utf-8")
    write_json(
        folder / SWEEP_FILE,
        {
            "metric": metric,
            "settings": dict(settings),
            "best": best.combination.name,
            "best_run": os.path.relpath(best.best_run.folder, folder),
            "combinations": [_as_json(summary, folder) for summary in summaries],
            "machine": best.best_run.results.get("machine"),
            "date": time.strftime("%Y-%m-%d"),
        },
    )
    report_sweep(folder)
    return text


def _table(summaries: Sequence[Summary], best: Summary) -> list[str]:
    varying = _varying(summaries)
    heads = [name.replace("_", " ") for name in varying] or ["settings"]
    lines = [
        f"| {' | '.join(heads)} | median | min | max | std | runs | seconds a run |",
        f"| {' | '.join('---' for _ in heads)} | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for summary in summaries:
        cells = [summary.combination.settings[name] for name in varying] or [summary.combination.name]
        numbers = [_number(summary.median), _number(min(summary.values)), _number(max(summary.values))]
        numbers += ["" if summary.deviation is None else _number(summary.deviation), str(len(summary.runs))]
        seconds = [run.results.get("train_seconds") for run in summary.runs]
        times = [value for value in seconds if isinstance(value, int | float)]
        numbers.append(f"{sum(times) / len(times):.0f}" if times else "")
        if summary is best:
            cells, numbers = [f"**{cell}**" for cell in cells], [f"**{numbers[0]}**", *numbers[1:]]
        lines.append(f"| {' | '.join([*cells, *numbers])} |")
    return lines


def _how_chosen(best: Summary, metric: str) -> str:
    diverged = sum(math.isnan(run.value) for run in best.runs)
    rule = f"the greatest median of {len(best.runs)} seeds" if len(best.runs) > 1 else f"the greatest {metric}"
    return (
        f"Best: {best.combination.name}, by {rule} on the development set (of equal ones the first). `best` is its run with "
        f"seed {best.best_run.seed}, {metric} {format_figure(best.best_run.value)}; other runs keep their results and "
        "predictions, not their weights." + (f" Runs of it that diverged: {diverged}." if diverged else "")
    )


def _varying(summaries: Sequence[Summary]) -> list[str]:
    settings = [summary.combination.settings for summary in summaries]
    return [name for name in settings[0] if len({chosen[name] for chosen in settings}) > 1]


def _number(value: float) -> str:
    return "diverged" if math.isinf(value) else format_figure(value)


def _as_json(summary: Summary, folder: Path) -> dict[str, Any]:
    """A combination as strict JSON: what is not finite is null."""
    figures = {"median": summary.median, "min": min(summary.values), "max": max(summary.values)}
    return {
        "name": summary.combination.name,
        "settings": dict(summary.combination.settings),
        **{name: value if math.isfinite(value) else None for name, value in figures.items()},
        "std": summary.deviation,
        "runs": [
            {
                "seed": run.seed,
                "folder": os.path.relpath(run.folder, folder),
                "value": None if math.isnan(run.value) else run.value,
                "has_weights": not (run.folder / NO_WEIGHTS_FILE).is_file(),
                "results": strict(run.results),
            }
            for run in summary.runs
        ],
    }
