"""A search for settings with Optuna instead of a grid: the tree-structured Parzen estimator, resumable."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.sweeps.grid import Combination, Summary, is_range, make_combination


logger = logging.getLogger(__name__)

STORAGE_FILE = "optuna.journal"


def search(
    folder: Path,
    space: Mapping[str, Sequence[str]],
    num_trials: int,
    measure: Callable[[Combination], Summary],
    *,
    seed: int = 0,
) -> None:
    """Try settings until num_trials are measured, those of earlier calls counted.

    A trial that was interrupted is tried again, with the same settings. Diverged trials count as the worst.

    Args:
        folder: Where the trials are written down.
        space: Field -> `[least, greatest, scale]`, or choices.
        num_trials: Trials in all.
        measure: Runs a combination; its median is what is maximised.
        seed: Seed of the sampler.

    Raises:
        InputError: Optuna is not installed, or num_trials is not positive.
    """
    if num_trials < 1:
        raise InputError(f"num_trials is {num_trials}; allowed: 1 or more")
    if find_spec("optuna") is None:
        raise InputError("--num_trials needs Optuna; pip install 'bert-recipes[search]'")
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalStorage

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    states = optuna.trial.TrialState
    study = optuna.create_study(
        study_name="sweep",
        direction="maximize",
        storage=JournalStorage(JournalFileBackend(str(folder / STORAGE_FILE))),
        load_if_exists=True,
    )
    # A sampler that begins anew with the same seed would propose what was tried before.
    study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials))
    for before in study.get_trials(deepcopy=False, states=(states.RUNNING,)):
        if len(before.params) == len(space):
            study.enqueue_trial(before.params)
        study.tell(before.number, state=states.FAIL)
    # What was measured before is read again, so that the report holds every trial.
    for before in study.get_trials(deepcopy=False, states=(states.COMPLETE,)):
        measure(_combination(space, before.params))
    while (done := len(study.get_trials(deepcopy=False, states=(states.COMPLETE,)))) < num_trials:
        trial = study.ask()
        combination = _combination(space, {name: _suggest(trial, name, space[name]) for name in space})
        logger.info("trial %d of %d: %s", done + 1, num_trials, combination.name)
        median = measure(combination).median
        # TPE ranks by finite numbers; figures of this project are never below -1.
        study.tell(trial, median if math.isfinite(median) else -1.0)


def _suggest(trial: Any, name: str, values: Sequence[str]) -> Any:
    if not is_range(values):
        return trial.suggest_categorical(name, list(values))
    if values[2] == "int":
        return trial.suggest_int(name, int(values[0]), int(values[1]))
    return trial.suggest_float(name, float(values[0]), float(values[1]), log=values[2] == "log")


def _combination(space: Mapping[str, Sequence[str]], params: Mapping[str, Any]) -> Combination:
    """Three digits of a number are enough to name it and to run it."""
    settings = {
        name: f"{params[name]:.3g}" if isinstance(params[name], float) else str(params[name]) for name in space
    }
    return make_combination(settings, [name for name, values in space.items() if len(values) > 1])
