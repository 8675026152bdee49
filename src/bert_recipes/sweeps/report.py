"""What a sweep leaves: sweep.json, and its report with the plot."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_recipes.reports.comparison import half_interval
from bert_recipes.reports.run_files import SWEEP_FILE, strict
from bert_recipes.reports.writing import report_sweep
from bert_recipes.sweeps.folder import NO_WEIGHTS_FILE, format_figure
from bert_recipes.sweeps.grid import Summary, choose_best
from bert_recipes.whole_files import write_json


def write_report(folder: Path, summaries: Sequence[Summary], *, metric: str, settings: Mapping[str, Any]) -> str:
    """Write sweep.json, and from it sweep.png, report.md and report.html.

    Args:
        folder: The sweep's folder.
        summaries: Its combinations, one or more.
        metric: The figure by which the best is chosen.
        settings: What all runs have in common.

    Returns:
        report.md; "" where it could not be made, which is a warning.
    """
    best = choose_best(summaries)
    content = {
        "metric": metric,
        "settings": dict(settings),
        "best": best.combination.name,
        "best_run": os.path.relpath(best.best_run.folder, folder),
        "how_chosen": _how_chosen(best, metric),
        "lead": describe_lead(summaries, best, metric),
        "combinations": [_as_json(summary, folder) for summary in summaries],
        "machine": best.best_run.results.get("machine"),
        "date": time.strftime("%Y-%m-%d"),
    }
    write_json(folder / SWEEP_FILE, content)
    files = report_sweep(folder)
    return files[0].read_text(encoding="utf-8") if files else ""


def _how_chosen(best: Summary, metric: str) -> str:
    diverged = sum(math.isnan(run.value) for run in best.runs)
    rule = f"the greatest median of {len(best.runs)} seeds" if len(best.runs) > 1 else f"the greatest {metric}"
    return (
        f"{best.combination.name} has {rule} on the development set (of equal ones the first); `best` is its run with seed "
        f"{best.best_run.seed}, {metric} {format_figure(best.best_run.value)}. It was chosen on the examples that it is measured "
        "on: on others expect less. Other runs keep their results and predictions, not their weights."
        + (f" Runs of it that diverged: {diverged}." if diverged else "")
    )


def describe_lead(summaries: Sequence[Summary], best: Summary, metric: str) -> str:
    """How far the next combination is, beside the seeds and the rows that were measured; "" without a next one."""
    others = [each for each in summaries if each is not best and math.isfinite(each.median)]
    if not others:
        return ""
    second = max(others, key=lambda each: each.median)
    lead, half = best.median - second.median, [half_interval(metric, each.best_run.results) for each in (best, second)]
    splits: Any = best.best_run.results.get("splits") or {}
    rows = [entry["examples"] for name, entry in splits.items() if name.startswith("validation")]
    examples = f" ({lead * rows[0]:.0f} of {rows[0]:,} examples)" if metric == "accuracy" and len(rows) == 1 else ""
    said = f"{best.combination.name} and {second.combination.name} are {format_figure(lead)} apart{examples}"
    if len(best.runs) > 1 and min(best.values) <= max(second.values):
        return f"Not resolved: {said}, and their seeds overlap."
    if lead <= math.hypot(*half):
        return f"Not resolved: {said}, no more than the 95% intervals of the measured rows."
    return f"{said}" + (", more than the 95% intervals of the measured rows." if all(half) else ".")


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
