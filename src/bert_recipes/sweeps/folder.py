"""A sweep's folder: its runs, which weights stay, and the best of them."""

from __future__ import annotations

import logging
import math
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from bert_recipes.config import read_task_file
from bert_recipes.errors import InputError
from bert_recipes.sweeps.grid import Combination, Run, Summary, choose_best
from bert_recipes.sweeps.subruns import TASK_FILE, FineTuning, figure_of, read_results


logger = logging.getLogger(__name__)

PLAN_FILE = "sweep_plan.json"
BEST_FOLDER = "best"
# What takes the space of a run: the model and whatever its checkpoints hold.
WEIGHT_FILES = ("model*.safetensors", "model.safetensors.index.json", "pytorch_model*.bin", "checkpoint-*")
NO_WEIGHTS_FILE = "weights_removed.txt"
# Figures of which more is not better, or that say nothing about a model.
_NOT_TO_MAXIMISE = re.compile(r"(^|_)(loss|seconds?|runtime|thresh|number|total|missing)$")


class Sweep:
    """Combinations of settings over seeds, each run in `FOLDER/<combination>/seed-<seed>`.

    Only weights that can still be the best run's are kept: those of the best run of the best combination so far, and of the
    best run of the combination in progress. Results and predictions of all runs stay.

    Args:
        folder: The sweep's folder.
        finetuning: How a run is started.
        seeds: Seeds of every combination.
        metric: Figure of all_results.json, without `eval_`; None: what the task's row names.

    Raises:
        InputError: A metric of which more is not better.
    """

    def __init__(self, folder: Path, finetuning: FineTuning, seeds: Sequence[int], metric: str | None = None) -> None:
        if metric is not None and _NOT_TO_MAXIMISE.search(metric):
            raise InputError(f"metric is '{metric}'; allowed: figures of which more is better, as accuracy or f1")
        self.folder, self.finetuning, self.seeds, self.metric = folder, finetuning, list(seeds), metric
        self.summaries: list[Summary] = []

    def measure(self, combination: Combination) -> Summary:
        """Run a combination with every seed; finished runs are kept."""
        known = next((summary for summary in self.summaries if summary.combination.name == combination.name), None)
        if known is not None:
            return known
        runs: list[Run] = []
        for seed in self.seeds:
            runs.append(self._run(combination, seed))
            value = runs[-1].value
            logger.info("%s, seed %d: %s %s", combination.name, seed, self.metric, format_figure(value))
            self._drop_weights(Summary(combination, tuple(runs)).best_run, [run.folder for run in runs])
        summary = Summary(combination, tuple(runs))
        self.summaries.append(summary)
        self._drop_weights(choose_best(self.summaries).best_run, [s.best_run.folder for s in self.summaries])
        return summary

    def finish(self) -> Summary:
        """Point FOLDER/best to the best run of the best combination.

        A best run whose weights were removed, which can be so after seeds were added to a finished sweep, is run again.

        Returns:
            The best combination.
        """
        best = choose_best(self.summaries)
        run = best.best_run
        if math.isnan(run.value):
            raise InputError(
                f"no run of {self.folder} has a figure {self.metric}: all are NaN; lower the learning rate"
            )
        if (run.folder / NO_WEIGHTS_FILE).is_file():
            logger.info("%s is the best run now and its weights were removed: it is run again", run.folder)
            shutil.rmtree(run.folder)
            self._run(best.combination, run.seed)
        link_folder(run.folder, self.folder / BEST_FOLDER)
        return best

    def _run(self, combination: Combination, seed: int) -> Run:
        folder = self.folder / combination.name / f"seed-{seed}"
        results = self.finetuning.run(folder, [*combination.flags(), "--seed", str(seed)])
        if self.metric is None:
            self.metric = read_task_file(folder / TASK_FILE).best_metric
        value = figure_of(results, f"eval_{self.metric}")
        if value is None:
            names = sorted(name.removeprefix("eval_") for name in results if name.startswith("eval_"))
            there = ", ".join(name for name in names if not _NOT_TO_MAXIMISE.search(name))
            raise InputError(f"{folder}: its results have no figure '{self.metric}'; give --metric one of: {there}")
        return Run(seed, folder, value, results)

    def _drop_weights(self, kept: Run, folders: Sequence[Path]) -> None:
        for folder in folders:
            if folder != kept.folder:
                remove_weights(folder)


def remove_weights(folder: Path) -> None:
    """Remove the weights of a finished run and say so in a file beside its results."""
    paths = [path for pattern in WEIGHT_FILES for path in folder.glob(pattern)]
    if not paths or read_results(folder) is None:
        return
    (folder / NO_WEIGHTS_FILE).write_text(
        "The weights of this run were removed: a sweep keeps those of its best run only, in ../../best.\n",
        encoding="utf-8",
    )
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def link_folder(target: Path, link: Path) -> None:
    """Make `link` a relative link to a folder, or a copy of it where the file system has no links."""
    if link.is_symlink():
        link.unlink()
    elif link.exists():
        shutil.rmtree(link)
    try:
        link.symlink_to(os.path.relpath(target, link.parent), target_is_directory=True)
    except OSError as error:
        logger.info("%s: no links here (%s), copied instead", link, error.strerror)
        shutil.copytree(target, link)


def format_figure(value: float) -> str:
    """Four digits; NaN in words."""
    return "NaN" if math.isnan(value) else f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}"
