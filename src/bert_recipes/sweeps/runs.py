"""A sweep from its file to its report."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path

from bert_recipes.errors import InputError
from bert_recipes.field_types import field_types
from bert_recipes.finetuning.arguments import FineTuningArguments, TaskArguments
from bert_recipes.sweeps.folder import PLAN_FILE, Sweep
from bert_recipes.sweeps.grid import check_flags, expand_grid, given_flags, read_grid
from bert_recipes.sweeps.report import write_report
from bert_recipes.sweeps.search import search
from bert_recipes.sweeps.subruns import FineTuning, claimed_folder, hashes_of_files


def check_flag_names(flags: Sequence[str], own: Iterable[str]) -> None:
    """Refuse a misspelt flag before anything runs.

    Args:
        flags: What every run is given.
        own: Fields of the script itself, which are near misses too.

    Raises:
        InputError: A flag that recipes/finetune.py does not have; the nearest name is given.
    """
    fields = {*field_types(TaskArguments), *field_types(FineTuningArguments), "config"}
    for name in sorted(given_flags(flags) - fields):
        near = difflib.get_close_matches(name, [*fields, *own], n=1, cutoff=0.5)
        hint = f"did you mean --{near[0]}?" if near else "recipes/finetune.py --help lists those of the runs"
        raise InputError(f"unknown option --{name}; {hint}")


def read_sweep(name: str, configs: Path, flags: Sequence[str], num_trials: int | None = None) -> dict[str, list[str]]:
    """Read the sweep that a name or a file stands for.

    Args:
        name: Stem of a file in configs, or a YAML file.
        configs: Folder of the sweeps of this project.
        flags: What every run is given; it may not hold what the sweep decides.
        num_trials: Given for a search, which takes ranges too.

    Returns:
        Field -> values.

    Raises:
        InputError: There is no such file, it is no sweep, or a flag contradicts it.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else configs / f"{name}.yaml"
    if not path.is_file():
        there = ", ".join(sorted(file.stem for file in configs.glob("*.yaml")))
        raise InputError(f"sweep: no file {path}; there are: {there}, or give a YAML file of your own")
    fields = field_types(TaskArguments) | field_types(FineTuningArguments)
    grid = read_grid(path, fields, with_ranges=num_trials is not None)
    check_flags(flags, grid)
    return grid


def run_sweep(
    folder: Path,
    finetuning: FineTuning,
    grid: dict[str, list[str]],
    seeds: Sequence[int],
    *,
    metric: str | None = None,
    num_trials: int | None = None,
) -> str:
    """Run what is not finished, point FOLDER/best to the best run and write the report.

    Args:
        folder: The sweep's folder; one that holds a sweep with the same settings is gone on with, seeds and trials may be
            added.
        finetuning: How a run is started, with the flags of all runs.
        grid: Field -> values (`read_sweep`).
        seeds: Seeds of every combination.
        metric: Figure that decides; None: the one that the task's row names.
        num_trials: Search with Optuna until so many are measured; None: every combination.

    Returns:
        The table.

    Raises:
        InputError: A run failed, or the folder holds something else.
    """
    settings = {
        "sweep": grid,
        "metric": metric,
        "flags": list(finetuning.flags),
        "files": hashes_of_files(finetuning.flags),
        "is_search": num_trials is not None,
    }
    with claimed_folder(folder, PLAN_FILE, settings):
        sweep = Sweep(folder, finetuning, seeds, metric)
        if num_trials is not None:
            search(folder, grid, num_trials, sweep.measure)
        else:
            for combination in expand_grid(grid):
                sweep.measure(combination)
        sweep.finish()
        return write_report(folder, sweep.summaries, metric=str(sweep.metric), settings=settings)
