"""From what stands in a label column to class numbers, with one line for whatever does not belong there."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.tasks.task import Task


_HIDDEN = "-1"


class ClassLabels:
    """The classes of a task and the ways in which files write them: by name, by number, or as `column_labels` says.

    A value is looked up in `column_labels`, then among the names. Where neither names nor `column_labels` look like
    numbers, 0 to C-1 stand for the classes in their order. -1 and nothing at all mean that the label is hidden, unless
    the task itself calls a class "-1".

    Args:
        names: The classes in the order of their numbers.
        column_labels: Value in files -> name.
    """

    def __init__(self, task: Task, names: Iterable[str] | None = None) -> None:
        self.names = tuple(task.labels if names is None else names)
        numbers = {name: number for number, name in enumerate(self.names)}
        self._numbers = numbers | {value: numbers[name] for value, name in task.column_labels.items()}
        if not task.column_labels and not any(_is_number(name) for name in self.names):
            self._numbers |= {str(number): number for number in range(len(self.names))}
        self._known = list(task.column_labels) or list(self.names)

    def number(self, value: Any, where: str) -> int | None:
        """Return the class number, or None for a hidden label.

        Args:
            value: From the file.
            where: Its place, for the message.
        """
        try:
            return self._numbers[value]  # the quick way: most values are texts
        except (KeyError, TypeError):
            pass
        key = _as_text(value)
        if key in self._numbers:
            return self._numbers[key]
        if key in (_HIDDEN, ""):
            return None
        raise InputError(f"{where}: label {_shown(value)} is not one of the task's; {self._allowed(key)}")

    def _allowed(self, key: str) -> str:
        shown = self._known if len(self._known) <= 20 else [*self._known[:20], f"... ({len(self._known)})"]
        nearest = difflib.get_close_matches(key, self._known, n=1)
        hint = f"did you mean {nearest[0]!r}? " if nearest else ""
        by_number = f", or 0 to {len(self.names) - 1}" if "0" in self._numbers and "0" not in self._known else ""
        return f"{hint}allowed: {', '.join(shown)}{by_number}"


class NumberLabels:
    """The label of a regression: a finite number, in the task's range where it has one.

    -1 means hidden where the range has no -1.
    """

    def __init__(self, task: Task) -> None:
        self.range = task.label_range

    def value(self, value: Any, where: str) -> float | None:
        """Return the number, or None for a hidden label."""
        if value is None or value == "":
            return None
        allowed = "a number" if self.range is None else f"a number from {self.range[0]:g} to {self.range[1]:g}"
        try:
            if isinstance(value, bool) or not isinstance(value, (int, float, str)):
                raise ValueError
            number = float(value)
        except ValueError:
            raise InputError(f"{where}: label {_shown(value)}; allowed: {allowed}") from None
        if self.range is not None and number == -1.0 and not self.range[0] <= -1.0 <= self.range[1]:
            return None
        if not math.isfinite(number) or (self.range is not None and not self.range[0] <= number <= self.range[1]):
            raise InputError(f"{where}: label {_shown(value)}; allowed: {allowed}")
        return number


def label_set(labels: ClassLabels, value: Any, separator: str | None, where: str) -> tuple[int, ...] | None:
    """Read the labels of a multi-label row.

    Args:
        labels: The classes.
        value: A list, or a text whose parts stand between separators; an empty one means that no label fits.
        separator: What stands between the labels of a text; None where the column holds a list.
        where: Its place, for messages.

    Returns:
        Class numbers, ascending; None for hidden labels (-1 or null).
    """
    if value is None or _as_text(value) == _HIDDEN:
        return None
    if isinstance(value, str):
        if separator is None:
            raise InputError(
                f"{where}: a list of labels is expected, text found ({_shown(value)}); where the labels of a row are one "
                "text, the task file says what stands between them: label_separator"
            )
        value = [part.strip() for part in value.split(separator)] if value.strip() else []
    if not isinstance(value, list):
        raise InputError(f"{where}: a list of labels is expected, {type(value).__name__} found")
    numbers = []
    for part in value:
        number = labels.number(part, where)
        if number is None:
            raise InputError(
                f"{where}: label {_shown(part)} within a list; name the labels that fit, or leave it empty"
            )
        numbers.append(number)
    if len(set(numbers)) < len(numbers):
        raise InputError(f"{where}: a label stands twice in {_shown(value)}; name each once")
    return tuple(sorted(numbers))


def is_bio(names: Iterable[str]) -> bool:
    """Tell whether labels are O, B-X and I-X and nothing else."""
    names = tuple(names)
    return "O" in names and len(names) > 1 and all(name == "O" or name[:2] in ("B-", "I-") for name in names)


def stray_inside(names: Sequence[str]) -> list[int]:
    """Positions of each I-X that continues nothing: it stands first, or after O or another type.

    Args:
        names: The labels of a sentence, of a set that `is_bio`.
    """
    pairs = enumerate(zip(("O", *names), names, strict=False))
    return [place for place, (before, name) in pairs if name[:2] == "I-" and before[2:] != name[2:]]


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True
