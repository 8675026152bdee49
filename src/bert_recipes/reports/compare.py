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
    NUM_PICTURED,
    format_number,
    metric_rows,
    report_files,
    words_of,
)
from bert_recipes.reports.paired import HEADS, RESAMPLES, paired_bootstrap
from bert_recipes.reports.seeds import (
    PAIRED_HEADS,
    Columns,
    describe_mean,
    group_by_settings,
    paired_differences,
    settings_of,
)
from bert_recipes.run_folder import MARKDOWN_FILE, PAGE_FILE


PLOT_FILE = "curves.png"
MOST_COLUMNS = len(plots.SERIES)
_COSTS = ("train_steps", "train_seconds", "tokens_per_second", "data_wait_share", "peak_memory_mb")
_LESS_IS_BETTER = ("loss", "perplexity", "bits_per_character")
_MORE_IS_BETTER = (
    "accuracy",
    "f1",
    "f1_macro",
    "f1_micro",
    "precision",
    "recall",
    "exact",
    "exact_match",
    "correlation",
    "pearson",
    "spearmanr",
)
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
    if len(folders) < 2:
        raise InputError(f"runs: {len(folders)} given; give 2 folders of finished runs or more")

    paths = [folder.resolve() for folder in folders]
    names = [path.name for path in paths]

    runs: dict[str, RunFiles] = {}
    for folder, path in zip(folders, paths, strict=True):
        if paths.count(path) > 1:
            raise InputError(
                f"runs: {folder} is given twice (or under two names); give different runs"
            )
        name = path.name if names.count(path.name) == 1 else str(folder)
        runs[name] = read_run(folder)

    first = next(iter(runs))
    first_training = _describe_training(runs[first])
    for name, run in runs.items():
        training = _describe_training(run)
        if training != first_training:
            raise InputError(
                f"runs: {first} is {first_training}, {name} is {training}; their metrics cannot "
                "be compared"
            )
    return runs


def _describe_training(run: RunFiles) -> str:
    """Say what a run has trained."""
    if run.stage == "pretraining":
        return "a pre-training run"
    task = run.results.get("task") or (run.task.name if run.task else None)
    return f"a fine-tuning run on {task}"


def check_report_folder(folder: Path) -> None:
    """Refuse a folder that holds more than an older comparison: a report would replace a run's."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"output_dir: {folder} is a file; give a folder")
    if not folder.is_dir():
        return
    names = {path.name for path in folder.iterdir()}
    foreign = sorted(names - {MARKDOWN_FILE, PAGE_FILE, PLOT_FILE})
    if foreign:
        raise InputError(
            f"output_dir: {folder} holds other files ({', '.join(foreign[:3])}); give a new folder"
        )


def compare_runs(runs: Runs, data_dir: str | None = None) -> dict[str, bytes]:
    """Return the files of the report.

    Runs that differ in nothing but the seed share a column. Without such runs, those of fine-tuning
    are compared on each row of their validation data, by default where they had it.
    """
    columns = group_by_settings(runs)
    if len(columns) > MOST_COLUMNS:
        raise InputError(
            f"runs: {len(columns)} settings given; allowed: {MOST_COLUMNS}, each with any number "
            "of seeds"
        )
    have_seeds = len(columns) < len(runs)
    have_same_data = _have_same_data(runs)
    panels = _panels(columns)
    metrics = _metric_names(runs)

    content: dict[str, Any] = {
        "title": "Comparison of runs",
        "name": ", ".join(columns),
        "about": _describe_training(next(iter(runs.values()))),
        "have_same_data": have_same_data,
        "have_seeds": have_seeds,
        "columns": _describe_columns(columns),
        "metrics": _metric_table(columns, metrics),
        "best": [],
        "differences": _differences(columns),
        "resamples": RESAMPLES,
        "paired_heads": HEADS,
        "paired_by_seed_heads": PAIRED_HEADS,
        "curves": [plots.panel_plot(panel) for panel in panels],
        "picture": PLOT_FILE,
    }
    if have_same_data and have_seeds:
        ranked = [metric for metric in metrics if _is_ranked(metric)]
        content["paired_by_seed"] = paired_differences(columns, ranked)
    elif have_same_data:
        content["best"] = _best_cells(runs, metrics)
        if all(run.task is not None for run in runs.values()):
            try:
                content["paired"] = paired_bootstrap(runs, data_dir)
            except InputError as error:
                content["unpaired"] = str(error)
    pictures = {PLOT_FILE: plots.panels_png(panels[:NUM_PICTURED])} if panels else {}
    return report_files("comparison.j2", pictures, **content)


def _describe_columns(columns: Columns) -> list[str]:
    """Return the heads of the columns: the name of a run, or of settings with their seeds."""
    heads = []
    for name, runs in columns.items():
        heads.append(name if len(runs) == 1 else f"{name} ({len(runs)} seeds)")
    return heads


def _metric_table(columns: Columns, metrics: Sequence[str]) -> list[list[str]]:
    """Return a row for each metric, with its mean over the seeds of each column."""
    rows = []
    for metric in metrics:
        cells = [describe_mean(metric, runs) for runs in columns.values()]
        rows.append([words_of(metric), *cells])
    return rows


def _best_cells(runs: Runs, metrics: Sequence[str]) -> list[tuple[int, int]]:
    """Return row and column of the best values in the table of metrics."""
    results = [run.results for run in runs.values()]
    cells = []
    for row, metric in enumerate(metrics):
        for column in _best(metric, results):
            cells.append((row, column + 1))
    return cells


def _have_same_data(runs: Runs) -> bool:
    """Tell whether the hashes show that the metrics were measured on the same inputs."""
    hashes = [_hashes_of_data(run) for run in runs.values()]
    return None not in hashes[0] and not _differ(hashes)


def _hashes_of_data(run: RunFiles) -> list[str | None]:
    """Return the hash of the held-out inputs, or those of the validation splits."""
    if run.stage == "pretraining":
        return [run.facts.get("measured_on")]
    splits = run.results.get("splits") or {}
    names = run.task.validation_splits if run.task else ("validation",)
    hashes = []
    for name in names:
        facts = splits.get(name, {})
        hashes.append(facts.get("sha256"))
    return hashes


def _differ(values: Iterable[Any]) -> bool:
    return len({repr(value) for value in values}) > 1


# Tables and curves


def _differences(columns: Columns) -> list[list[str]]:
    """Return a row for each setting, machine part and version that is not the same in all columns.

    Where it differs between the seeds of a column, the cell has all values.
    """
    names: dict[str, None] = {}
    columns_of_facts = []
    for runs in columns.values():
        facts_of_runs = [_settings_and_machine(run) for run in runs]
        names.update(dict.fromkeys(itertools.chain(*facts_of_runs)))
        columns_of_facts.append(facts_of_runs)

    rows = []
    for name in names:
        cells = []
        for facts_of_runs in columns_of_facts:
            values = {_format_setting(facts.get(name)) for facts in facts_of_runs}
            cells.append(", ".join(sorted(values)))
        if len(set(cells)) > 1:
            rows.append([name, *cells])
    return rows


def _settings_and_machine(run: RunFiles) -> dict[str, Any]:
    facts = {**run.facts.get("run", {}), **settings_of(run)}
    for name, value in (run.results.get("machine") or {}).items():
        facts[f"machine: {name}"] = value
    return facts


def _format_setting(value: Any) -> str:
    """Format a value so that different ones differ: fractions with all their digits."""
    if value is None:
        return "not set"
    return str(value) if isinstance(value, float) else format_number(value)


def _metric_names(runs: Runs) -> list[str]:
    """Return the metrics that a run has, and its costs, by their keys in all_results.json."""
    names: dict[str, None] = {}
    for run in runs.values():
        names.update(dict.fromkeys(f"eval_{name}" for name, *_ in metric_rows(run.results)))
    for name in _COSTS:
        if any(name in run.results for run in runs.values()):
            names[name] = None
    return list(names)


def _is_ranked(name: str) -> bool:
    """Tell whether more or less of a metric is better."""
    if name.endswith(_BASELINES):
        return False
    return name.endswith((*_LESS_IS_BETTER, *_MORE_IS_BETTER))


def _best(name: str, results: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the columns of the best values.

    There are none where more is neither better nor worse, or the next value is within the
    intervals.
    """
    if not _is_ranked(name):
        return []
    sign = -1 if name.endswith(_LESS_IS_BETTER) else 1

    values = {}
    for column, result in enumerate(results):
        value = result.get(name)
        if isinstance(value, int | float) and math.isfinite(value):
            values[column] = sign * value
    if len(set(values.values())) < 2:
        return []

    greatest = max(values.values())
    best = [column for column, value in values.items() if value == greatest]
    figure = name.removeprefix("eval_")
    half_of_best = half_interval(figure, results[best[0]])

    for column, value in values.items():
        half = half_interval(figure, results[column])
        if value < greatest and greatest - value <= math.hypot(half, half_of_best):
            return []
    return best


def _panels(columns: Columns) -> list[plots.Panel]:
    """Return a plot of each logged metric, with a curve of each run in the colour of its column."""
    logged: dict[str, None] = {}
    for run in itertools.chain(*columns.values()):
        for line in run.history:
            logged.update(dict.fromkeys(line))

    metrics = [name for name in logged if _is_drawn(name)]
    metrics.sort(key=lambda metric: not metric.startswith("eval_"))

    panels = []
    for metric in metrics:
        lines = []
        for name, runs, color in zip(columns, columns.values(), plots.SERIES, strict=False):
            legend = name
            for run in runs:
                steps, values = plots.series(run.history, metric)
                if steps:
                    lines.append(plots.Line(legend, steps, values, color))
                    legend = ""  # once for all seeds
        title = words_of(metric)
        if metric.startswith("eval_"):
            title += ", held out"
        panels.append(plots.Panel(title, "", lines))
    return plots.with_curves(panels)


def _is_drawn(name: str) -> bool:
    if name in ("learning_rate", "tokens_per_second"):
        return True
    return name.endswith(("loss", *_MORE_IS_BETTER)) and not name.endswith(_BASELINES)
