"""A sweep from its file to its report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bert_recipes.errors import InputError
from bert_recipes.sweeps.flags import check_flags, check_run, run_fields
from bert_recipes.sweeps.folder import PLAN_FILE, Sweep
from bert_recipes.sweeps.grid import expand_grid, first_flags
from bert_recipes.sweeps.grid_file import read_grid
from bert_recipes.sweeps.ranges import read_space
from bert_recipes.sweeps.report import write_report
from bert_recipes.sweeps.search import search
from bert_recipes.sweeps.subruns import FineTuning, claimed_folder, hashes_of_files


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
    grid = read_grid(path, run_fields(), with_ranges=num_trials is not None)
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
        InputError: The flags cannot work, a run failed, or the folder holds something else.
    """
    sweep = Sweep(folder, finetuning, seeds, metric)
    check_run([*finetuning.flags, *first_flags(grid)])
    # Not the metric: another one chooses another run of the same.
    settings = {
        "sweep": grid,
        "flags": list(finetuning.flags),
        "files": hashes_of_files(finetuning.flags),
        "is_search": num_trials is not None,
    }
    with claimed_folder(folder, PLAN_FILE, settings):
        if num_trials is not None:
            search(folder, read_space(grid, run_fields()), num_trials, sweep.measure, name=f"search for {metric}")
        else:
            for combination in expand_grid(grid):
                sweep.measure(combination)
        sweep.finish()
        return write_report(folder, sweep.summaries, metric=str(sweep.metric), settings=settings)
