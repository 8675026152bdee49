"""Compare configurations that were run with several seeds: means, and differences seed by seed."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_recipes.metrics.seeds import seed_and_row_certainty, subtract_replicates
from bert_recipes.reports.facts import RunFiles
from bert_recipes.reports.page import format_interval, format_number, words_of
from bert_recipes.rows import is_missing


SEED_HEADS = [
    "metric",
    "runs",
    "seeds",
    "difference",
    "95% over seeds",
    "95% over seeds and rows",
]
# What does not tell a configuration from another one: the seeds, and where a run lies and how it
# was called.
SEEDS = ("seed", "data_seed")
PLACES = (
    "output_dir",
    "run_name",
    "logging_dir",
    "hub_model_id",
    "hub_revision",
    "hub_tags",
    "project",
    "trackio_space_id",
)

# No spread at all says that a metric has few values, not that it is certain.
_NO_SPREAD = 1e-9

# Name of a configuration -> its runs, one for each seed.
SeedRuns = Mapping[str, Sequence[RunFiles]]


def trained_on(run: RunFiles) -> dict[str, Any]:
    """Return what identifies the training data and the checkpoint that a run began with."""
    splits = run.results.get("splits") or {}
    data = run.results.get("data") or splits.get("train") or {}
    base = run.results.get("base_model") or {}
    return {
        "training data": data.get("fingerprint") or data.get("sha256"),
        "base model": base.get("revision") or base.get("sha256") or base.get("name"),
    }


def group_by_configuration(runs: Mapping[str, RunFiles]) -> dict[str, list[RunFiles]]:
    """Group the runs that differ only in their seed.

    A second run of a configuration with the same seed (on another machine, say) stays apart.
    """
    groups_by_configuration: dict[str, dict[str, RunFiles]] = {}
    for name, run in runs.items():
        settings = {**run.settings, **trained_on(run)}
        for ignored in (*SEEDS, *PLACES):
            settings.pop(ignored, None)
        configuration = repr(sorted(settings.items()))
        group = groups_by_configuration.setdefault(configuration, {})
        if _seeds_of(run) in map(_seeds_of, group.values()):
            groups_by_configuration[f"{configuration} {name}"] = {name: run}
        else:
            group[name] = run

    groups: dict[str, list[RunFiles]] = {}
    for group in groups_by_configuration.values():
        first = next(iter(group))
        name = _without_seed(first, group[first])
        if len(group) == 1 or name in groups or name in runs:
            name = first
        groups[name] = list(group.values())
    return groups


def _without_seed(name: str, run: RunFiles) -> str:
    """Return the name of a run without its seed: sst2_seed1 -> sst2, sst2_1 -> sst2."""
    seed = run.settings.get("seed")
    for pattern in (rf"[\W_]*seed[\W_]*{seed}(?!\d)", rf"[\W_]+{seed}$"):
        rest = re.sub(pattern, "", name).strip("_-. ")
        if rest not in ("", name):
            return rest
    return name


def _seeds_of(run: RunFiles) -> tuple[Any, ...]:
    return tuple(run.settings.get(name) for name in SEEDS)


def describe_mean(metric: str, runs: Sequence[RunFiles]) -> str:
    """Return a metric's mean over the seeds and half its 95 % interval, or the value of one run.

    "" where no run has it; "n/a" where it is no finite number in a run.
    """
    if not any(metric in run.results for run in runs):
        return ""
    values: list[Any] = [run.results.get(metric) for run in runs]
    if len(values) == 1:
        return format_number(values[0])
    if any(map(is_missing, values)):
        return "n/a"

    mean = float(np.mean(values))
    certainty = seed_and_row_certainty(values)
    _, high = certainty.intervals["of_seeds"]
    if high - mean < _NO_SPREAD:
        return format_number(mean)
    return f"{format_number(mean)} ± {format_number(high - mean)}"


def seed_differences(groups: SeedRuns, metrics: Sequence[str]) -> list[list[str]]:
    """Return a row (`SEED_HEADS`) for each metric and each configuration beside the first one.

    Seeds that both have are compared; there is no row for fewer than two.
    """
    first_name, *other_names = groups
    first_runs = {_seeds_of(run): run for run in groups[first_name]}
    rows = []
    for metric in metrics:
        for other_name in other_names:
            pairs = []
            for run in groups[other_name]:
                if _seeds_of(run) in first_runs:
                    pairs.append((run, first_runs[_seeds_of(run)]))
            if len(pairs) > 1:
                cells = _describe_differences(metric, pairs)
                rows.append([words_of(metric), f"{other_name} - {first_name}", *cells])
    return rows


def _describe_differences(metric: str, pairs: Sequence[tuple[RunFiles, RunFiles]]) -> list[str]:
    """Return the number of seeds, the mean difference and its intervals.

    "n/a" where the metric is no finite number in a run: a seed that diverged is not left out.

    Args:
        metric: Of all_results.json.
        pairs: Two runs of one seed, for two seeds or more; the second run is subtracted.
    """
    num_seeds = str(len(pairs))
    differences = []
    replicates = []
    for run, other in pairs:
        value: Any = run.results.get(metric)
        other_value: Any = other.results.get(metric)
        if is_missing(value) or is_missing(other_value):
            return [num_seeds, "n/a", "n/a", "n/a"]
        differences.append(value - other_value)
        replicates.append(_replicates_of_pair(metric, run, other))

    mean = np.mean(differences)
    certainty = seed_and_row_certainty(differences, subtract_replicates(replicates))
    cells = [num_seeds, f"{mean:+.4f}"]
    for kind in ("of_seeds", "of_both"):
        cells.append(_format_known(certainty.intervals.get(kind)))
    return cells


def _format_known(interval: tuple[float, float] | None) -> str:
    """Format an interval; "not known" where there is none, or the values did not differ."""
    if interval is None:
        return "not known"
    low, high = interval
    return format_interval(interval) if high - low > _NO_SPREAD else "not known"


def _replicates_of_pair(
    metric: str, run: RunFiles, other: RunFiles
) -> tuple[Sequence[float | None], Sequence[float | None]]:
    """Return a metric of two runs without each group of the validation rows.

    [] where that is not known. Pre-training groups its inputs by batches (`BertTrainer`), so two
    runs have the same groups only where the batches are the same.
    """
    if run.stage == "pretraining" and _evaluation_batches(run) != _evaluation_batches(other):
        return [], []
    return _replicates(run, metric), _replicates(other, metric)


def _replicates(run: RunFiles, metric: str) -> Sequence[float | None]:
    jackknife = run.results.get("jackknife") or {}
    name = metric.removeprefix("eval_")
    return jackknife.get(name) or []


def _evaluation_batches(run: RunFiles) -> tuple[Any, Any]:
    return run.settings.get("per_device_eval_batch_size"), run.results.get("processes")
