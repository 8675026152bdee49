"""The labels of a column: names, numbers or truth values, one a row or several; the same in every
format.

A column says the same thing in the same way: its labels are names, or they are numbers. So a stray
number among names is a slip, and is refused; it is no class number.
"""

import ast
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bert_recipes.errors import InputError, did_you_mean, shorten
from bert_recipes.rows import column_value, is_missing
from bert_recipes.tags import OUTSIDE, complete_tags
from bert_recipes.tasks.task import Task


# Classes whose names are taken from the training file; with more than these the column is most
# likely another one.
MAX_FOUND_LABELS = 1000
_WHOLE_FLOAT = re.compile(r"([+-]?\d+)\.0*")
_TRUTH_VALUES = {"true": "1", "false": "0"}
# NumPy's lists of texts have no commas, for which Python would join their items: ['rain' 'wind'].
_NUMPY_TEXT = r"""(?:'[^'\\]*'|"[^"\\]*")"""
_NUMPY_TEXTS = re.compile(rf"\[\s*{_NUMPY_TEXT}(?:\s+{_NUMPY_TEXT})+\s*\]")
_NUMPY_ARRAY = re.compile(r"\barray\((\[.*?\])(?:,\s*dtype=[^()\s]+)?\)", re.DOTALL)


def label_text(value: Any) -> str:
    """Return a label as one text for every format: "" where there is none, "1" for 1.0, "true" for
    True.

    pandas writes 1.0 where a column of whole numbers has gaps, and True where JSON has true.
    """
    if is_missing(value):
        return ""
    text = str(value).strip()
    if text.lower() in _TRUTH_VALUES:
        return text.lower()
    whole = _WHOLE_FLOAT.fullmatch(text)
    return whole[1] if whole else text


def is_number(text: str) -> bool:
    """Tell whether a text is a number, NaN and infinity among them."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _follow_truth(names: Sequence[str]) -> bool:
    """Tell whether false and true are the first and the second of these classes, as 0 and 1 are:
    not of [yes, no].
    """
    plain = [name.lower() for name in names]
    if len(plain) != 2 or _TRUTH_VALUES.keys() & set(plain):
        return False
    return plain[0] != "yes" and plain[1] != "no"


class ClassLabels:
    """The classes of a task, as files write them: by name, as `column_labels` says, or by number
    from 0.

    Numbers, and truth values where there are two classes, stand for the classes only if neither
    names nor `column_labels` look like such. -1 and nothing at all mean that the label is hidden,
    unless the task itself calls a class "-1".
    """

    def __init__(self, task: Task, names: Sequence[str] | None = None) -> None:
        self.names = tuple(task.labels if names is None else names)
        self._labels_source = task.labels_source
        number_of_name = {name: number for number, name in enumerate(self.names)}
        # As the task's files write the classes.
        self._written = number_of_name
        if task.column_labels:
            self._written = {
                value: number_of_name[name] for value, name in task.column_labels.items()
            }
        self._by_name = dict(self._written)
        for name, number in number_of_name.items():
            self._by_name.setdefault(name, number)
        for text, number in list(self._by_name.items()):
            # 1 and 1.0 may be two classes of one task: then each is only itself.
            self._by_name.setdefault(label_text(text), number)
        self._by_number: dict[str, int] = {}
        have_numbers = any(is_number(label_text(name)) for name in self.names)
        if not task.column_labels and not have_numbers:
            self._by_number = {str(number): number for number in range(len(self.names))}
            if _follow_truth(self.names):
                self._by_number |= {word: int(number) for word, number in _TRUTH_VALUES.items()}
        # The first label by name and the first by number: what it is, and where.
        self._first: dict[str, tuple[Any, str]] = {}

    def class_of(self, value: Any, where: str) -> int | None:
        """Return the class number of a label, None for a hidden one."""
        number = self._by_name.get(value) if isinstance(value, str) else None
        if number is None:
            number = self._by_name.get(label_text(value))
        if number is not None:
            self._keep_to_one_way("name", value, where)
            return number
        text = label_text(value)
        if text in ("", "-1"):
            return None
        if text not in self._by_number:
            raise InputError(
                f"{where}: label {value!r:.60} is not one of the task's; {self._hint(text)}"
            )
        self._keep_to_one_way("number", value, where)
        return self._by_number[text]

    def _keep_to_one_way(self, way: str, value: Any, where: str) -> None:
        first = self._first
        if way in first:
            return
        first[way] = value, where
        if len(first) == 2:
            number, where_number = first["number"]
            name, where_name = first["name"]
            raise InputError(
                f"{where_number}: label {number!r} is a number, but the column has names "
                f"({name!r} at {where_name}); "
                "write the name, or map the values with `labels: {value: name}`"
            )

    def _hint(self, text: str) -> str:
        written = list(self._written)
        hint = did_you_mean(text, written, cutoff=0.6, shown=repr)
        hint += f"allowed: {shorten(written, 20)}"
        if len(written) > 20:
            hint += f" ({len(written)}, all of them in {self._labels_source or 'the task file'})"
        if self._by_number:
            hint += f", or 0 to {len(self.names) - 1}"
        if self._by_number and text == str(len(self.names)):
            first, second = [*self.names, "..."][:2]
            hint += (
                f"; numbers count from 0: where the file counts from 1, write labels: {{1: "
                f"{first}, 2: {second}, ...}}"
            )
        return hint


def number_label(task: Task, value: Any, where: str) -> float | None:
    """Return the label of a regression, None for a hidden one: nothing at all, or -1 where the
    range has no -1.
    """
    least, greatest = task.label_range or (-math.inf, math.inf)
    if value is None:
        return None
    if isinstance(value, str) and not value.strip():
        return None
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if number == -1.0 and not least <= -1.0 <= greatest:
        return None
    if not math.isfinite(number) or not least <= number <= greatest:
        within = f" from {least:g} to {greatest:g}" if task.label_range else ""
        raise InputError(f"{where}: label {value!r:.60}; allowed: a number{within}")
    return number


# Several labels a row


def label_sets(task: Task, values: Sequence[tuple[str, Any]]) -> list[tuple[int, ...] | None]:
    """Return the class numbers of every row of a multi-label column, ascending; None where they are
    hidden.

    A row is a list of labels, such a list as text, or a text with `label_separator` between its
    labels. Where every row has a 0 or 1 for each class they are multi-hot vectors.

    Args:
        values: Where each row stands, and its value in the label column.
    """
    classes = ClassLabels(task)
    rows = [(where, _split_labels(task, value, where)) for where, value in values]
    if _are_multi_hot([(where, labels) for where, labels in rows if labels], len(classes.names)):
        return [
            None if labels is None else _classes_of_flags(labels, where) for where, labels in rows
        ]
    return [
        None if labels is None else _classes_of_labels(classes, labels, where)
        for where, labels in rows
    ]


def _are_multi_hot(rows: Sequence[tuple[str, list[Any]]], num_classes: int) -> bool:
    """Tell whether the rows that have labels are vectors; of two classes, `[0, 1]` may also be the
    numbers of both.
    """
    others = [where for where, labels in rows if not _is_multi_hot(labels, num_classes)]
    if others and num_classes == 2:
        vectors = [labels for _, labels in rows if _is_multi_hot(labels, num_classes)]
        if any(label_text(first) >= label_text(second) for first, second in vectors):
            raise InputError(
                f"{others[0]}: other rows have a 0 or 1 for each of the 2 classes; write so in "
                "every row, or names"
            )
    return bool(rows) and not others


def _split_labels(task: Task, value: Any, where: str) -> list[Any] | None:
    """Return the labels of one row as a list, None where they are hidden."""
    if is_missing(value) or label_text(value) == "-1":
        return None
    if isinstance(value, str):
        as_list = read_list(value)
        value = _split_text(task, value) if as_list is None else as_list
    if not isinstance(value, list):
        raise InputError(
            f"{where}: a list of labels is expected, {value!r:.60} found; what parts the labels "
            "of a text is label_separator"
        )
    return value


def _split_text(task: Task, text: str) -> Any:
    if not text.strip():
        return []
    if task.label_separator is not None:
        return [label.strip() for label in text.split(task.label_separator)]
    flags = re.split(r"[\s,;]+", text.strip())
    return flags if _is_multi_hot(flags, len(task.labels)) else text


def read_list(text: str) -> list[Any] | None:
    """Return the list that a text is, as JSON, Python and NumPy write it; None where it is none."""
    text = text.strip()
    if not (text.startswith("[") and text.endswith("]")):
        return None
    if _NUMPY_TEXTS.fullmatch(text):
        return [item[1:-1] for item in re.findall(_NUMPY_TEXT, text)]
    parsed = parse_literal(text)
    if isinstance(parsed, list):
        return parsed
    numbers = text[1:-1].split()
    return numbers if all(map(is_number, numbers)) else None


def parse_literal(text: str) -> Any:
    """Return the value that a text is in JSON or Python, which pandas writes into cells; None where
    it is none.

    An array of NumPy in it is a list.
    """
    text = _NUMPY_ARRAY.sub(r"\1", text)
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text.strip())
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
    return None


def _is_multi_hot(labels: list[Any], num_classes: int) -> bool:
    return len(labels) == num_classes and all(
        label_text(label) in ("0", "1", "true", "false") for label in labels
    )


def _classes_of_flags(flags: Iterable[Any], where: str) -> tuple[int, ...]:
    return tuple(number for number, flag in enumerate(flags) if read_truth(flag, where))


def _classes_of_labels(classes: ClassLabels, labels: list[Any], where: str) -> tuple[int, ...]:
    numbers = {classes.class_of(label, where) for label in labels} - {None}
    if len(numbers) < len(labels):
        raise InputError(
            f"{where}: a label is empty, or stands twice, in {labels!r:.60}; name each that fits "
            "once, or write a 0 or 1 for "
            "each class in every row"
        )
    return tuple(sorted(number for number in numbers if number is not None))


def read_truth(value: Any, where: str) -> bool:
    """Return a truth value: 0 or 1, false or true, in any format; a text is never true by not being
    empty.
    """
    text = label_text(value)
    if _TRUTH_VALUES.get(text, text) not in ("0", "1"):
        raise InputError(f"{where}: {value!r:.60}; allowed: 0 or 1, true or false")
    return _TRUTH_VALUES.get(text, text) == "1"


def labels_of_columns(task: Task, row: Mapping[str, Any], where: str) -> tuple[int, ...] | None:
    """Return the class numbers of a row whose table has a column of 0 and 1 for each label; None
    where all are hidden.
    """
    values = [column_value(row, column, where) for column in task.label_columns]
    if all(label_text(value) in ("", "-1") for value in values):
        return None
    return _classes_of_flags(values, where)


# Labels that the task file does not name


@dataclass(frozen=True)
class FoundLabels:
    """The labels in a column: their names in the order of their numbers, and whether they look like
    a regression's.
    """

    names: list[str]
    are_fractions: bool


def find_labels(task: Task, values: Iterable[Any]) -> FoundLabels:
    """Return the distinct labels of a column: numbers in their order, names in that of the
    alphabet.

    Of tags with O, every type has all letters of their scheme, as a type may have no long entity
    here and one elsewhere.
    """
    names: set[str] = set()
    for number, value in enumerate(values, start=1):
        labels = [value]
        if task.problem_type == "multi_label_classification":
            labels = _split_labels(task, value, f"{task.labels_source}, row {number}") or []
        elif isinstance(value, list):
            labels = value
        names |= {label_text(label) for label in labels}
    names -= {"", "-1"}
    are_numbers = all(map(is_number, names))
    are_fractions = are_numbers and any(not float(name).is_integer() for name in names)
    if OUTSIDE in names:
        return FoundLabels(complete_tags(names), are_fractions)
    return FoundLabels(sorted(names, key=float if are_numbers else None), are_fractions)
