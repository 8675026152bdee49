"""Compare settings that were run with several seeds: means, and differences paired by seed."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_recipes.metrics.seeds import seed_and_row_certainty
from bert_recipes.reports.facts import RunFiles
from bert_recipes.reports.page import format_number, words_of
from bert_recipes.rows import is_missing


PAIRED_HEADS = [
    "metric",
    "settings",
    "seeds",
    "difference",
    "95% over seeds",
    "95% over seeds and rows",
]
# Where a run lies and what it was called say nothing about it.
_PLACES = (
    "output_dir",
    "run_name",
    "logging_dir",
    "hub_model_id",
    "project",
    "trackio_space_id",
)
_SEEDS = ("seed", "data_seed")

# Name of some settings -> the runs with them.
Columns = Mapping[str, Sequence[RunFiles]]


def settings_of(run: RunFiles) -> dict[str, Any]:
    """Return the settings of a run without its places."""
    return {name: value for name, value in run.settings.items() if name not in _PLACES}


def group_by_settings(runs: Mapping[str, RunFiles]) -> dict[str, list[RunFiles]]:
    """Return the runs by their settings: those that differ in nothing but the seed are together.

    Settings that have two runs with one seed (on two machines, say) keep each run apart.
    """
    names_by_settings: dict[str, list[str]] = {}
    for name, run in runs.items():
        settings = settings_of(run)
        for seed in _SEEDS:
            settings.pop(seed, None)
        names_by_settings.setdefault(repr(sorted(settings.items())), []).append(name)

    columns: dict[str, list[RunFiles]] = {}
    for names in names_by_settings.values():
        group = [runs[name] for name in names]
        if len(names) > 1 and len(_by_seed(group)) == len(names):
            name = _without_seed(names[0])
            columns[names[0] if name in columns else name] = group
        else:
            columns.update({name: [runs[name]] for name in names})
    return columns


def _without_seed(name: str) -> str:
    """Return the name of a run without its seed: sst2_seed1 -> sst2."""
    return re.sub(r"[\W_]+(seed)?[\W_]*\d+$", "", name) or name


def _by_seed(runs: Sequence[RunFiles]) -> dict[tuple[Any, ...], RunFiles]:
    return {tuple(run.settings.get(name) for name in _SEEDS): run for run in runs}


def describe_mean(metric: str, runs: Sequence[RunFiles]) -> str:
    """Return the mean of a metric over the seeds with half its 95 % interval.

    "" where no run has it; "n/a" where it is no finite number in a run.
    """
    values: list[Any] = [run.results.get(metric) for run in runs]
    if not any(metric in run.results for run in runs):
        return ""
    if len(values) == 1:
        return format_number(values[0])
    if any(map(is_missing, values)):
        return "n/a"

    certainty = seed_and_row_certainty(values)
    low, high = certainty.intervals["of_seeds"]
    mean = (low + high) / 2
    half = (high - low) / 2
    return f"{format_number(mean)} ± {format_number(half)}"


def paired_differences(columns: Columns, metrics: Sequence[str]) -> list[list[str]]:
    """Return a row (`PAIRED_HEADS`) for each metric and settings beside the first ones.

    Only seeds that both have count; there is no row for fewer than two.
    """
    first_name, *other_names = columns
    first_runs = _by_seed(columns[first_name])
    rows = []
    for metric in metrics:
        for other_name in other_names:
            other_runs = _by_seed(columns[other_name])
            pairs = []
            for seed in first_runs.keys() & other_runs.keys():
                pair = (first_runs[seed], other_runs[seed])
                if not any(is_missing(run.results.get(metric)) for run in pair):
                    pairs.append(pair)
            if len(pairs) > 1:
                cells = _describe_pairs(metric, pairs)
                rows.append([words_of(metric), f"{other_name} - {first_name}", *cells])
    return rows


def _describe_pairs(metric: str, pairs: Sequence[tuple[RunFiles, RunFiles]]) -> list[str]:
    """Return the number of seeds, the mean difference and its intervals."""
    differences = []
    for first, other in pairs:
        differences.append(other.results[metric] - first.results[metric])
    mean = np.mean(differences)
    replicates = _replicates_of_differences(metric, pairs)
    certainty = seed_and_row_certainty(differences, replicates)

    cells = [str(len(pairs)), f"{mean:+.4f}"]
    for kind in ("of_seeds", "of_both"):
        if kind in certainty.intervals:
            low, high = certainty.intervals[kind]
            cells.append(f"{low:+.4f} to {high:+.4f}")
        else:
            cells.append("not known")
    return cells


def _replicates_of_differences(
    metric: str, pairs: Sequence[tuple[RunFiles, RunFiles]]
) -> np.ndarray | None:
    """Return float (seeds, groups of rows): differences without each group of the validation rows.

    None where a run has no replicates.
    """
    name = metric.removeprefix("eval_")
    differences = []
    for first, other in pairs:
        first_replicates = (first.results.get("jackknife") or {}).get(name)
        other_replicates = (other.results.get("jackknife") or {}).get(name)
        if not first_replicates or not other_replicates:
            return None
        differences.append(np.subtract(other_replicates, first_replicates))
    replicates = np.array(differences)
    return replicates if np.isfinite(replicates).all() else None
