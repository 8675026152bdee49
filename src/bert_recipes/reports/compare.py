"""Compare several runs of one kind: what was set differently, their curves, their metrics."""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.metrics.certainty import half_interval
from bert_recipes.reports import plots
from bert_recipes.reports.card import is_number
from bert_recipes.reports.facts import RunFiles, read_run
from bert_recipes.reports.page import (
    format_number,
    metric_keys,
    report_files,
    words_of,
)
from bert_recipes.reports.paired import BOOTSTRAP_HEADS, RESAMPLES, paired_bootstrap
from bert_recipes.reports.paired_seeds import (
    PLACES,
    SEED_HEADS,
    SEEDS,
    SeedRuns,
    describe_mean,
    group_by_configuration,
    seed_differences,
    trained_on,
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
# What is expected to differ between the seeds of a column; the count follows from their draws.
_OF_SEEDS = (*SEEDS, "pairs_in_epoch_0")
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

    Runs that differ only in the seed share a column. Without such runs, those of fine-tuning
    are compared on each row of their validation data, by default where they had it.
    """
    groups = group_by_configuration(runs)
    if len(groups) > MOST_COLUMNS:
        raise InputError(
            f"runs: {len(groups)} different configurations given; allowed: {MOST_COLUMNS}, each "
            "with any number of seeds"
        )
    have_seeds = len(groups) < len(runs)
    have_same_data = _have_same_data(runs)
    metrics = _metric_names(runs)

    content: dict[str, Any] = {
        "title": "Comparison of runs",
        "name": ", ".join(groups),
        "about": _describe_training(next(iter(runs.values()))),
        "have_same_data": have_same_data,
        "have_seeds": have_seeds,
        "columns": _column_heads(groups),
        "metrics": _metric_table(groups, metrics),
        "best": [],
        "differences": _differences(groups),
        "resamples": RESAMPLES,
        "bootstrap_heads": BOOTSTRAP_HEADS,
        "seed_heads": SEED_HEADS,
    }
    if have_same_data and have_seeds:
        content["seed_differences"] = seed_differences(groups, _ranked(runs, metrics))
        content["num_columns"] = len(groups)
    elif have_same_data:
        content["best"] = _best_cells(runs, metrics)
        if all(run.task is not None for run in runs.values()):
            try:
                content["bootstrap"] = paired_bootstrap(runs, data_dir)
            except InputError as error:
                content["no_bootstrap"] = str(error)
    return report_files("comparison.j2", _panels(groups), PLOT_FILE, **content)


def _column_heads(groups: SeedRuns) -> list[str]:
    """Return the name of each run, or of a configuration with the number of its seeds."""
    heads = []
    for name, runs in groups.items():
        heads.append(name if len(runs) == 1 else f"{name} ({len(runs)} seeds)")
    return heads


def _metric_table(groups: SeedRuns, metrics: Sequence[str]) -> list[list[str]]:
    """Return a row for each metric, with its mean over the seeds of each column."""
    rows = []
    for metric in metrics:
        cells = [describe_mean(metric, runs) for runs in groups.values()]
        rows.append([words_of(metric), *cells])
    return rows


def _best_cells(runs: Runs, metrics: Sequence[str]) -> list[tuple[int, int]]:
    """Return row and column of the best values in the table of metrics."""
    results = [run.results for run in runs.values()]
    ranked = _ranked(runs, metrics)
    cells = []
    for row, metric in enumerate(metrics):
        if metric not in ranked:
            continue
        for column in _best_columns(metric, results):
            cells.append((row, column + 1))
    return cells


def _have_same_data(runs: Runs) -> bool:
    """Tell whether the hashes show that the metrics were measured on the same inputs."""
    first, *others = [_hashes_of_data(run) for run in runs.values()]
    return None not in first and all(hashes == first for hashes in others)


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


# Tables and curves


def _differences(groups: SeedRuns) -> list[list[str]]:
    """Return a row for each setting, machine part and version that is not the same in all runs.

    A cell lists all values where the seeds of a column differ.
    """
    names: dict[str, None] = {}
    columns = []
    for runs in groups.values():
        facts_of_runs = [_settings_and_machine(run) for run in runs]
        columns.append(facts_of_runs)
        for facts in facts_of_runs:
            names.update(dict.fromkeys(facts))

    rows = []
    for name in names:
        values_of_columns = [_values_of(name, facts_of_runs) for facts_of_runs in columns]
        if name in _OF_SEEDS:
            first = values_of_columns[0]
            is_same = all(values == first for values in values_of_columns)
        else:
            is_same = len(set(itertools.chain(*values_of_columns))) == 1
        if not is_same and name not in PLACES:
            rows.append([name, *map(", ".join, values_of_columns)])
    return rows


def _values_of(name: str, facts_of_runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the different values of a setting in the runs of a column, sorted."""
    return sorted({_format_setting(facts.get(name)) for facts in facts_of_runs})


def _settings_and_machine(run: RunFiles) -> dict[str, Any]:
    facts = {**run.facts.get("run", {}), **run.settings, **trained_on(run)}
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
        names.update(dict.fromkeys(metric_keys(run.results)))
    for name in _COSTS:
        if any(name in run.results for run in runs.values()):
            names[name] = None
    return list(names)


def _ranked(runs: Runs, metrics: Sequence[str]) -> list[str]:
    """Return the metrics by which runs with the same held-out inputs can be ranked.

    ELECTRA's discriminator reads what the run's own generator has replaced, and TinyBERT's losses
    are against the run's own teacher. Which older text a run was measured on is not known.
    """
    objectives = {run.settings.get("objective") for run in runs.values()}
    left_out = ["eval_old_"]
    if "electra" in objectives:
        left_out += ["eval_loss", "eval_disc_", "eval_replaced_"]
    if "tinybert" in objectives:
        left_out.append("eval_")
    ranked = []
    for metric in metrics:
        if _is_ranked(metric) and not metric.startswith(tuple(left_out)):
            ranked.append(metric)
    return ranked


def _is_ranked(name: str) -> bool:
    """Tell whether more or less of a metric is better."""
    if name.endswith(_BASELINES):
        return False
    return name.endswith((*_LESS_IS_BETTER, *_MORE_IS_BETTER))


def _best_columns(name: str, results: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the columns of the best values; none where the next value is within the intervals."""
    sign = -1 if name.endswith(_LESS_IS_BETTER) else 1

    values = {}
    for column, result in enumerate(results):
        value = result.get(name)
        if is_number(value):
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


def _panels(groups: SeedRuns) -> list[plots.Panel]:
    """Return a plot of each logged metric, with a curve of each run in the colour of its column."""
    logged: dict[str, None] = {}
    for run in itertools.chain(*groups.values()):
        for line in run.history:
            logged.update(dict.fromkeys(line))

    metrics = [name for name in logged if _is_drawn(name)]
    metrics.sort(key=lambda metric: not metric.startswith("eval_"))

    panels = []
    for metric in metrics:
        curves = []
        for (name, runs), color in zip(groups.items(), plots.SERIES, strict=False):
            curves.extend(_curves_of_seeds(name, runs, metric, color))
        title = words_of(metric)
        if metric.startswith("eval_"):
            title += ", held out"
        panels.append(plots.Panel(title, "", curves))
    return plots.with_curves(panels)


def _curves_of_seeds(
    name: str, runs: Sequence[RunFiles], metric: str, color: str
) -> list[plots.Line]:
    """Return a metric's curve of each seed; the first one stands in the legend for all."""
    curves: list[plots.Line] = []
    for run in runs:
        steps, values = plots.series(run.history, metric)
        if steps:
            curves.append(plots.Line(name, steps, values, color, in_legend=not curves))
    return curves


def _is_drawn(name: str) -> bool:
    if name in ("learning_rate", "tokens_per_second"):
        return True
    return name.endswith(("loss", *_MORE_IS_BETTER)) and not name.endswith(_BASELINES)
