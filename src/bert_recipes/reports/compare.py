"""Compare several runs of one kind: what was set differently, their curves, their metrics."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.metrics.certainty import half_interval
from bert_recipes.reports import plots
from bert_recipes.reports.facts import RunFiles, read_run
from bert_recipes.reports.page import (
    MARKDOWN_FILE,
    NUM_PICTURED,
    PAGE_FILE,
    format_number,
    metric_rows,
    report_files,
    words_of,
)
from bert_recipes.reports.paired import HEADS, RESAMPLES, paired_bootstrap


PLOT_FILE = "curves.png"
MOST_RUNS = len(plots.SERIES)
# Where a run lies and what it was called say nothing about it.
_NAMES = frozenset(
    {"output_dir", "run_name", "logging_dir", "hub_model_id", "project", "trackio_space_id"}
)
_COSTS = ("train_steps", "train_seconds", "tokens_per_second", "data_wait_share", "peak_memory_mb")
_LESS_IS_BETTER = ("loss", "perplexity")
_MORE_IS_BETTER: tuple[str, ...] = ("accuracy", "f1", "f1_macro", "f1_micro", "precision", "recall")
_MORE_IS_BETTER += ("exact", "exact_match", "correlation", "pearson", "spearmanr")
# Baselines: no run is better by them.
_BASELINES = (
    "unigram_loss",
    "unigram_accuracy",
    "majority_accuracy",
    "base_rate_loss",
    "original_accuracy",
)
Runs = Mapping[str, RunFiles]


def read_runs(folders: Sequence[Path]) -> dict[str, RunFiles]:
    """Read the runs that are to be compared, by names that tell them apart."""
    if not 2 <= len(folders) <= MOST_RUNS:
        raise InputError(
            f"runs: {len(folders)} given; give 2 to {MOST_RUNS} folders of finished runs"
        )
    paths = [folder.resolve() for folder in folders]
    names = [path.name for path in paths]
    runs: dict[str, RunFiles] = {}
    for folder, path in zip(folders, paths, strict=True):
        if paths.count(path) > 1:
            raise InputError(
                f"runs: {folder} is given twice (or under two names); give different runs"
            )
        runs[path.name if names.count(path.name) == 1 else str(folder)] = read_run(folder)
    first, *others = runs
    for name in others:
        if _kind(runs[name]) != _kind(runs[first]):
            raise InputError(
                f"runs: {first} is {_kind(runs[first])}, {name} is {_kind(runs[name])}; their "
                "metrics cannot be compared"
            )
    return runs


def _kind(run: RunFiles) -> str:
    if run.kind == "pretraining":
        return "a pre-training run"
    task = run.results.get("task") or (run.task.name if run.task else None)
    return f"a fine-tuning run on {task}"


def check_report_folder(folder: Path) -> None:
    """Refuse a folder that holds more than an older comparison: a report would replace a run's."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"output_dir: {folder} is a file; give a folder")
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    others = sorted(names - {MARKDOWN_FILE, PAGE_FILE, PLOT_FILE})
    if others:
        raise InputError(
            f"output_dir: {folder} holds other files ({', '.join(others[:3])}); give a new folder"
        )


def compare_runs(runs: Runs, data_dir: str | None = None) -> dict[str, bytes]:
    """Return the files of the report.

    Runs of fine-tuning are compared on each row of their validation data, by default where they had
    it.
    """
    have_same_data = _have_same_data(runs)
    panels = _panels(runs)
    metrics, best = _metrics(runs)
    content: dict[str, Any] = {
        "title": "Comparison of runs",
        "name": ", ".join(runs),
        "about": _kind(next(iter(runs.values()))),
        "have_same_data": have_same_data,
        "runs": list(runs),
        "metrics": metrics,
        "best": best if have_same_data else [],
        "differences": _differences(runs),
        "resamples": RESAMPLES,
        "paired_heads": HEADS,
        "curves": [plots.panel_plot(panel) for panel in panels],
        "picture": PLOT_FILE,
    }
    if have_same_data and all(run.task is not None for run in runs.values()):
        try:
            content["paired"] = paired_bootstrap(runs, data_dir)
        except InputError as error:
            content["unpaired"] = str(error)
    pictures = {PLOT_FILE: plots.panels_png(panels[:NUM_PICTURED])} if panels else {}
    return report_files("comparison.j2", pictures, **content)


def _have_same_data(runs: Runs) -> bool:
    """Tell whether the hashes show that the metrics were measured on the same inputs."""
    hashes = []
    for run in runs.values():
        if run.kind == "pretraining":
            hashes.append([run.facts.get("measured_on")])
            continue
        splits = run.results.get("splits") or {}
        names = run.task.validation_splits if run.task else ("validation",)
        hashes.append([splits.get(name, {}).get("sha256") for name in names])
    return None not in hashes[0] and not _differ(hashes)


def _differ(values: Iterable[Any]) -> bool:
    return len({repr(value) for value in values}) > 1


# Tables and curves


def _differences(runs: Runs) -> list[list[str]]:
    """Return a row for each setting, machine part and version that is not the same in all runs."""
    columns = []
    for run in runs.values():
        machine = run.results.get("machine") or {}
        named = {f"machine: {name}": value for name, value in machine.items()}
        columns.append({**run.facts.get("run", {}), **run.settings, **named})
    rows = []
    for name in dict.fromkeys(itertools.chain(*columns)):
        values = [column.get(name) for column in columns]
        if name not in _NAMES and _differ(values):
            cells = ["not set" if value is None else format_number(value) for value in values]
            rows.append([name, *cells])
    return rows


def _metrics(runs: Runs) -> tuple[list[list[str]], list[tuple[int, int]]]:
    """Return a row for each metric, and the cells (row, column) that are better than the others."""
    results = [run.results for run in runs.values()]
    names: dict[str, None] = {}
    for result in results:
        names.update(dict.fromkeys(f"eval_{name}" for name, *_ in metric_rows(result)))
    for name in _COSTS:
        if any(name in result for result in results):
            names[name] = None
    rows, best = [], []
    for number, name in enumerate(names):
        cells = [format_number(result[name]) if name in result else "" for result in results]
        rows.append([words_of(name), *cells])
        best += [(number, column + 1) for column in _best(name, results)]
    return rows, best


def _best(name: str, results: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the columns of the best values.

    There are none where more is neither better nor worse, or the next value is within the
    intervals.
    """
    sign = -1 if name.endswith(_LESS_IS_BETTER) else 1 if name.endswith(_MORE_IS_BETTER) else 0
    values = {}
    for column, result in enumerate(results):
        value = result.get(name)
        if isinstance(value, int | float) and math.isfinite(value):
            values[column] = sign * value
    if len(set(values.values())) < 2 or name.endswith(_BASELINES):
        return []
    greatest = max(values.values())
    best = [column for column, value in values.items() if value == greatest]
    half = [half_interval(name.removeprefix("eval_"), result) for result in results]
    for column, value in values.items():
        if value < greatest and greatest - value <= math.hypot(half[column], half[best[0]]):
            return []
    return best


def _panels(runs: Runs) -> list[plots.Panel]:
    """Return a plot of each logged metric, with a curve of each run."""
    histories = [run.history for run in runs.values()]
    logged = dict.fromkeys(itertools.chain(*itertools.chain(*histories)))
    metrics = [name for name in logged if _is_drawn(name)]
    panels = []
    for metric in sorted(metrics, key=lambda metric: not metric.startswith("eval_")):
        lines = []
        for name, color, history in zip(runs, plots.SERIES, histories, strict=False):
            steps, values = plots.series(history, metric)
            if steps:
                lines.append(plots.Line(name, steps, values, color))
        title = words_of(metric)
        if metric.startswith("eval_"):
            title += ", held out"
        panels.append(plots.Panel(title, "", lines))
    return plots.with_curves(panels)


def _is_drawn(name: str) -> bool:
    if name in ("learning_rate", "tokens_per_second"):
        return True
    return name.endswith(("loss", *_MORE_IS_BETTER)) and not name.endswith(_BASELINES)
