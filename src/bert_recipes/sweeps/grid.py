"""Grids of settings over seeds: what is run, and which combination is best on the development set."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bert_recipes import field_types
from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError


# What a sweep decides itself, or what would make its runs incomparable -> what to do instead.
RESERVED = {
    "seed": "give --num_seeds or --seeds to the sweep",
    "output_dir": "every run has its own folder under the sweep's --output_dir",
    "task": "one sweep measures one task",
    "task_file": "one sweep measures one task",
    "config": "one configuration serves every run",
    "resume_from_checkpoint": "a sweep goes on by itself when the same command is given again",
    "overwrite_run": "a sweep goes on by itself; for a new one give another --output_dir",
}
# The words that make a list of three a range for the search.
SCALES = ("log", "linear", "int")


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
    """Name a choice of settings by those that vary."""
    parts = [f"{name}-{re.sub(r'[^A-Za-z0-9.+-]', '-', settings[name])}" for name in settings if name in set(varying)]
    return Combination("_".join(parts) or "settings", dict(settings))


def read_grid(path: Path, fields: Mapping[str, object], *, with_ranges: bool = False) -> dict[str, list[str]]:
    """Read a sweep: a flat YAML file of `field: value` or `field: [value, value]`.

    Args:
        path: The file.
        fields: Field -> annotation, all those of a fine-tuning run.
        with_ranges: Whether `[least, greatest, log]` (or `linear`, or `int`) is a range; the word stays the last value.

    Returns:
        Field -> its values as they stand in the file, checked against the field's type.

    Raises:
        InputError: An unknown field, one that a sweep may not vary, a value of the wrong type, or one given twice.
    """
    names = [(name, list[str] | None, field(default=None)) for name in fields if name not in RESERVED]
    grid_type = dataclasses.make_dataclass("Grid", names)
    for name in _top_level_names(path):
        if name in RESERVED:
            raise InputError(f"{path}: {name} cannot stand in a sweep: {RESERVED[name]}")
    (read,) = parse_arguments(grid_type, argv=["--config", str(path)])
    grid = {name: getattr(read, name) for name, _, _ in names if getattr(read, name) is not None}
    # In the order of the file, which is the order of the runs.
    order = _top_level_names(path)
    for name in (grid := {name: grid[name] for name in sorted(grid, key=order.index)}):
        if is_range(grid[name]) and not with_ranges:
            raise InputError(f"{path}: {name}: {grid[name]} is a range; ranges are searched with --num_trials N")
        _check_values(path, name, grid[name], fields[name])
    return grid


def is_range(values: Sequence[str]) -> bool:
    """Whether a list is `least, greatest, scale`."""
    return len(values) == 3 and values[2] in SCALES


def split_flags(argv: Sequence[str], names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Part a command line into the flags of the given fields and all others, each with its values.

    Example:
        >>> split_flags(["--task", "rte", "--num_seeds", "3", "--fp16"], ["num_seeds"])
        (['--num_seeds', '3'], ['--task', 'rte', '--fp16'])
    """
    own, others = {*names, "help"}, ([], [])  # type: tuple[set[str], tuple[list[str], list[str]]]
    target = others[1]
    for argument in argv:
        if is_flag(argument) or argument == "-h":
            is_own = argument == "-h" or flag_name(argument) in own
            target = others[0] if is_own else others[1]
        target.append(argument)
    return others


def is_flag(argument: str) -> bool:
    """Whether a part of a command line is a flag: `--rte "--fp16 true"` has one, and its value."""
    return re.match(r"--[A-Za-z][\w-]*(=|$)", argument) is not None


def flag_name(argument: str) -> str:
    """`--learning-rate=3e-5` -> `learning_rate`."""
    return argument.removeprefix("--").split("=")[0].replace("-", "_")


def given_flags(argv: Iterable[str]) -> set[str]:
    """Names of the flags on a command line."""
    return {flag_name(argument) for argument in argv if is_flag(argument)}


def check_flags(argv: Sequence[str], grid: Iterable[str] = ()) -> None:
    """Refuse flags for the runs that the sweep decides itself.

    Raises:
        InputError: A reserved flag, or one that the grid varies too.
    """
    given = given_flags(argv)
    for name in sorted(given & (RESERVED.keys() - {"config", "task", "task_file"})):
        raise InputError(f"--{name} cannot be given here: {RESERVED[name]}")
    for name in grid:
        if name in given:
            raise InputError(f"{name} is in the sweep and on the command line; take it out of one of them")


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


def _check_values(path: Path, name: str, values: Sequence[str], hint: object) -> None:
    numbers = values[:2] if is_range(values) else values
    try:
        read = [field_types.read_text(hint, text) for text in numbers]
    except ValueError as error:
        raise InputError(f"{path}: {name}: {error}") from error
    if not values:
        raise InputError(f"{path}: {name} has no value; give one or a list")
    twice = [text for text, value in zip(numbers, read, strict=True) if read.count(value) > 1]
    if twice:
        raise InputError(f"{path}: {name}: {' and '.join(twice)} are the same value; give each once")
    if is_range(values) and not (
        isinstance(read[0], int | float) and read[0] < read[1] and (read[0] > 0 or values[2] != "log")
    ):
        raise InputError(
            f"{path}: {name}: {values[0]} to {values[1]} is no range; give the lesser number first, over 0 for log"
        )


def _top_level_names(path: Path) -> list[str]:
    """Keys of a flat YAML file in its order; only those that look like one, the rest is the parser's to refuse."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [match[1] for line in lines if (match := re.match(r"([A-Za-z_]\w*)\s*:", line))]
