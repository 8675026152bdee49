"""A search for settings with Optuna instead of a grid: the tree-structured Parzen estimator, resumable."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.sweeps.grid import Combination, Summary, make_combination
from bert_recipes.sweeps.ranges import Range


logger = logging.getLogger(__name__)

STORAGE_FILE = "optuna.journal"
# Field -> its range or its choices.
Space = Mapping[str, Range | list[str]]


def search(
    folder: Path,
    space: Space,
    num_trials: int,
    measure: Callable[[Combination], Summary],
    *,
    name: str = "sweep",
    seed: int = 0,
) -> None:
    """Try settings until num_trials are measured, those of earlier calls counted.

    A trial that was interrupted is tried again, with the same settings. Diverged trials count as the worst.

    Args:
        folder: Where the trials are written down.
        space: Field -> its range or its choices.
        num_trials: Trials in all.
        measure: Runs a combination; its median is what is maximised.
        name: Under which the trials are written down: only those of the same name and space are counted.
        seed: Seed of the sampler.

    Raises:
        InputError: Optuna is not installed, or num_trials is not positive.
    """
    if num_trials < 1:
        raise InputError(f"num_trials is {num_trials}; allowed: 1 or more")
    if find_spec("optuna") is None:
        raise InputError("--num_trials needs Optuna; pip install 'bert-recipes[search]'")
    from optuna.trial import TrialState as states

    study = _open_study(folder, f"{name} {dict(space)}", seed)
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


def _open_study(folder: Path, name: str, seed: int) -> Any:
    """The trials in a folder, and what proposes new ones."""
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalStorage

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        study_name=name,
        direction="maximize",
        storage=JournalStorage(JournalFileBackend(str(folder / STORAGE_FILE))),
        load_if_exists=True,
    )
    # A sampler that begins anew with the same seed would propose what was tried before.
    study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials))
    return study


def _suggest(trial: Any, name: str, choice: Range | list[str]) -> Any:
    return choice.suggest(trial, name) if isinstance(choice, Range) else trial.suggest_categorical(name, choice)


def _combination(space: Space, params: Mapping[str, Any]) -> Combination:
    settings = {name: _as_text(params[name]) for name in space}
    varying = [name for name, choice in space.items() if isinstance(choice, Range) or len(choice) > 1]
    return make_combination(settings, varying)


def _as_text(value: Any) -> str:
    """Three digits of a number are enough to name it and to run it; whole ones are written out."""
    if not isinstance(value, float):
        return str(value)
    rounded = float(f"{value:.3g}")
    return str(int(rounded)) if rounded.is_integer() else f"{rounded:.3g}"
