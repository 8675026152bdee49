"""`[least, greatest, scale]` in the file of a search: a range of numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bert_recipes import field_types


# The words that make a list of three a range, where the field takes numbers only.
SCALES = ("log", "linear", "int")


@dataclass(frozen=True)
class Range:
    """Numbers from `least` to `greatest`, both included.

    Attributes:
        least: First number.
        greatest: Last number.
        is_log: Whether the logarithms are drawn evenly.
        is_whole: Whether only whole numbers are drawn.
    """

    least: float
    greatest: float
    is_log: bool
    is_whole: bool

    def suggest(self, trial: Any, name: str) -> float:
        """Let an Optuna trial choose."""
        if self.is_whole:
            return int(trial.suggest_int(name, int(self.least), int(self.greatest), log=self.is_log))
        return float(trial.suggest_float(name, self.least, self.greatest, log=self.is_log))


def read_range(values: Sequence[str], hint: Any) -> Range | None:
    """The range that a list of a sweep's file stands for; None where it holds choices.

    Args:
        values: As they stand in the file.
        hint: Annotation of the field.

    Raises:
        ValueError: Its ends are no numbers of the field's type, not in order, or do not suit the scale.
    """
    kinds = set(field_types.members(hint))
    if len(values) != 3 or values[2] not in SCALES or not kinds & {int, float} or kinds & {bool, str}:
        return None
    least, greatest = (field_types.read_text(hint, text) for text in values[:2])
    written, scale = f"{values[0]} to {values[1]}", values[2]
    if None in (least, greatest) or not (math.isfinite(least) and math.isfinite(greatest) and least < greatest):
        raise ValueError(f"{written} is no range; give two numbers, the lesser one first")
    if scale == "log" and least <= 0:
        raise ValueError(f"{written} is no range for log; give numbers over 0, or linear")
    if scale == "int" and not (float(least).is_integer() and float(greatest).is_integer()):
        raise ValueError(f"{written} is no range for int; give whole numbers, or linear")
    return Range(least, greatest, is_log=scale == "log", is_whole=scale == "int" or float not in kinds)


def read_space(grid: Mapping[str, Sequence[str]], fields: Mapping[str, Any]) -> dict[str, Range | list[str]]:
    """Field -> its range or its choices.

    Args:
        grid: Of `read_grid`.
        fields: Field -> annotation.
    """
    return {name: read_range(values, fields[name]) or list(values) for name, values in grid.items()}
