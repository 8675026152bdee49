"""Grids of settings over seeds: what is run, and which combination is best on the development set."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bert_recipes.errors import InputError


@dataclass(frozen=True)
class Combination:
    """One choice of settings.

    Attributes:
        name: Folder name, made of the settings that vary.
        settings: Field -> value as text, those that do not vary too.
    """

    name: str
    settings: Mapping[str, str]

    def flags(self) -> list[str]:
        """`--field value` for each setting."""
        return [part for name, value in self.settings.items() for part in (f"--{name}", value)]


@dataclass(frozen=True)
class Run:
    """One finished run.

    Attributes:
        seed: Its seed.
        folder: Its output_dir.
        value: The figure by which the best is chosen, larger is better; NaN where training diverged.
        results: all_results.json.
    """

    seed: int
    folder: Path
    value: float
    results: Mapping[str, object] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Summary:
    """A combination over its seeds; a run that is NaN counts as worse than every number.

    Attributes:
        combination: The settings.
        runs: One for each seed.
    """

    combination: Combination
    runs: tuple[Run, ...]

    @property
    def values(self) -> list[float]:
        """The runs' figures, NaN as minus infinity."""
        return [-math.inf if math.isnan(run.value) else run.value for run in self.runs]

    @property
    def median(self) -> float:
        """Median over the seeds; the mean of the middle two for an even number."""
        return statistics.median(self.values)

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation over the seeds (n - 1); None for one seed or where a run is NaN."""
        values = self.values
        return statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None

    @property
    def best_run(self) -> Run:
        """The run with the greatest figure; of equal ones the one with the earliest seed in the list."""
        return max(zip(self.values, self.runs, strict=True), key=lambda pair: pair[0])[1]


def choose_best(summaries: Sequence[Summary]) -> Summary:
    """The combination with the greatest median; of equal ones the first, so that the grid's order decides.

    With one seed this is the paper's rule: the setting that is best on the development set (Devlin et al. 2019,
    section 4.1). The median over seeds is ours: it is not moved by a run that failed to train, of which the paper says
    that they happen on small data sets.
    """
    return max(summaries, key=lambda summary: summary.median)


def expand_grid(grid: Mapping[str, Sequence[str]]) -> list[Combination]:
    """Every combination, the last field varying fastest.

    Args:
        grid: Field -> its values as text.

    Example:
        >>> [c.name for c in expand_grid({"num_train_epochs": ["3"], "learning_rate": ["5e-5", "3e-5"]})]
        ['learning_rate-5e-5', 'learning_rate-3e-5']
    """
    varying = {name for name, values in grid.items() if len(values) > 1}
    return [
        make_combination(dict(zip(grid, values, strict=True)), varying) for values in itertools.product(*grid.values())
    ]


def make_combination(settings: Mapping[str, str], varying: Iterable[str]) -> Combination:
    """Name a choice of settings by those that vary; different choices have different names."""
    parts = [f"{name}-{_folder_name(settings[name])}" for name in settings if name in set(varying)]
    return Combination("_".join(parts) or "settings", dict(settings))


def _folder_name(value: str) -> str:
    """A value as part of a folder's name; one that cannot stay as it is gets a few digits of its hash, so that it is unique."""
    name = re.sub(r"[^A-Za-z0-9.+-]", "-", value)
    return name if name == value else f"{name}-{hashlib.sha256(value.encode()).hexdigest()[:6]}"


def first_flags(grid: Mapping[str, Sequence[str]]) -> list[str]:
    """`--field value` for the first value of each field."""
    return [part for name, values in grid.items() for part in (f"--{name}", values[0])]


def choose_seeds(num_seeds: int, seeds: Sequence[int] | None) -> list[int]:
    """The seeds 1..num_seeds, or those of a list.

    Raises:
        InputError: None, or one twice.
    """
    chosen = list(range(1, num_seeds + 1)) if seeds is None else list(seeds)
    if not chosen:
        raise InputError(f"num_seeds is {num_seeds}; allowed: 1 or more")
    if len(set(chosen)) < len(chosen):
        raise InputError(f"seeds: {' '.join(map(str, chosen))} holds one twice; each counts once")
    return chosen
