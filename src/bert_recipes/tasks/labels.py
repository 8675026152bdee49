"""The labels of a column: names, numbers or truth values, one a row or several.

They mean the same in every format. A column says the same thing in the same way: its labels are
names, or they are numbers. So a stray number among names is a slip, and is refused; it is no class
number.
"""

import ast
import json
import math
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from bert_recipes.errors import InputError, did_you_mean, shorten
from bert_recipes.rows import Row, column_value, is_missing
from bert_recipes.tags import OUTSIDE, complete_tags
from bert_recipes.tasks.task import Task


# Classes whose names are taken from the training file; with more than these the column is most
# likely another one.
MAX_FOUND_LABELS = 1000
# Classes that a message names.
_MAX_SHOWN_LABELS = 20
_DECIMAL_COMMA = re.compile(r"([+-]?\d+),(\d+)")
_WHOLE_FLOAT = re.compile(r"([+-]?\d+)\.0*")
_TRUTH_VALUES = {"true": "1", "false": "0"}
# NumPy's lists of texts have no commas, for which Python would join their items: ['rain' 'wind'].
_NUMPY_TEXT = r"""(?:'[^'\\]*'|"[^"\\]*")"""
_NUMPY_TEXTS = re.compile(rf"\[\s*{_NUMPY_TEXT}(?:\s+{_NUMPY_TEXT})+\s*\]")
_NUMPY_ARRAY = re.compile(r"\barray\((\[.*?\])(?:,\s*dtype=[^()\s]+)?\)", re.DOTALL)


# One label


def label_text(value: Any) -> str:
    """Return a label as one text for every format.

    It is "" where there is none, "1" for 1.0 and "true" for True: pandas writes 1.0 where a column
    of whole numbers has gaps, and True where JSON has true.
    """
    if is_missing(value):
        return ""
    text = str(value).strip()
    if text.lower() in _TRUTH_VALUES:
        return text.lower()
    match = _WHOLE_FLOAT.fullmatch(text)
    return match[1] if match else text


def only_label(value: Any) -> Any:
    """Return the item of a list of one, as doccano and Prodigy write a label; else the value.

    A list of none is None, no label yet. A text that is a list of several becomes that list, which
    is no label.
    """
    labels = parse_cell(value)
    if labels == []:
        return None
    if not isinstance(labels, list) or len(labels) != 1:
        return labels
    return labels if isinstance(labels[0], list | dict) else labels[0]


def is_hidden(value: Any) -> bool:
    """Return whether a cell of a label column holds -1, or nothing at all."""
    return label_text(value) in ("", "-1")


def are_words(names: Collection[str]) -> bool:
    """Return whether names have letters: beside such a "-" is no class, but SNLI's "no label"."""
    return all(any(map(str.isalpha, name)) for name in names)


def is_number(text: str) -> bool:
    """Return whether a text is a number, NaN and infinity among them."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_truth(value: Any, where: str) -> bool:
    """Return a truth value: 0 or 1, false or true, in any format.

    A text is never true by not being empty.
    """
    text = label_text(value)
    digit = _TRUTH_VALUES.get(text, text)
    if digit not in ("0", "1"):
        raise InputError(f"{where}: {value!r:.60}; allowed: 0 or 1, true or false")
    return digit == "1"


def have_order(names: Collection[str]) -> bool:
    """Return whether names say which number each has: they are numbers, or true and false."""
    has_number = any(is_number(label_text(name)) for name in names)
    return has_number or set(names) == _TRUTH_VALUES.keys()


class ClassLabels:
    """The classes of a task, as files write them: by name, by `column_labels`, or by number.

    Numbers, from 0, and truth values where there are two classes, stand for the classes only if
    neither names nor `column_labels` look like such. -1 and nothing at all mean that the label is
    hidden, unless the task itself calls a class "-1".
    """

    def __init__(self, task: Task, names: Sequence[str] | None = None) -> None:
        self.names = tuple(task.labels if names is None else names)
        self._labels_source = task.labels_source
        plain = {name: number for number, name in enumerate(self.names)}
        # As the task's files write the classes.
        self._written = plain
        if task.column_labels:
            self._written = {}
            for value, name in task.column_labels.items():
                if name in plain:  # a row's own choices may be fewer than the task's
                    self._written[value] = plain[name]

        self._by_name: dict[str, int] = {}
        spellings = list(self._written.items()) + list(plain.items())
        for name, number in spellings:
            self._by_name.setdefault(name, number)
        # 1 and 1.0 may be two classes of one task: then each is only itself.
        for name, number in spellings:
            self._by_name.setdefault(label_text(name), number)

        self._by_number: dict[str, int] = {}
        have_numbers = any(is_number(label_text(name)) for name in self.names)
        names_are_found = all(value == name for value, name in task.column_labels.items())
        self.order_is_unknown = bool(task.column_labels) and names_are_found and not have_numbers
        if not task.column_labels and not have_numbers:
            self._by_number = {str(number): number for number in plain.values()}
            if _follow_truth(self.names):
                self._by_number.update(false=0, true=1)
        # The first label by name and the first by number: what it is, and where.
        self._first: dict[str, tuple[Any, str]] = {}

    def class_of(self, value: Any, where: str) -> int | None:
        """Return the class number of a label, None for a hidden one.

        A list of one label is that label, unless a class has the name of the list.
        """
        if label_text(value) not in self._by_name:
            value = only_label(value)
        text = label_text(value)
        name = value if isinstance(value, str) and value in self._by_name else text
        if name in self._by_name:
            self._keep_to_one_way("name", value, where)
            return self._by_name[name]
        if is_hidden(value) or (text == "-" and are_words(self.names)):
            return None
        if text not in self._by_number:
            raise InputError(
                f"{where}: label {value!r:.60} is not one of the task's; {self._hint(text)}"
            )
        self._keep_to_one_way("number", value, where)
        return self._by_number[text]

    def _keep_to_one_way(self, way: str, value: Any, where: str) -> None:
        if way in self._first:
            return
        self._first[way] = value, where
        if len(self._first) == 2:
            number, where_number = self._first["number"]
            name, where_name = self._first["name"]
            raise InputError(
                f"{where_number}: label {number!r} is a number, but the column has names "
                f"({name!r} at {where_name}); "
                "write the name, or map the values with `labels: {value: name}`"
            )

    def order_hint(self) -> str:
        """Return how to say which number is which name."""
        return (
            f"the names were found in {self._labels_source}, and nothing says which number is "
            "which: write labels: {0: NAME, 1: NAME, ...}"
        )

    def _hint(self, text: str) -> str:
        written = list(self._written)
        hint = did_you_mean(text, written, cutoff=0.6, shown=repr)
        hint += f"allowed: {shorten(written, _MAX_SHOWN_LABELS)}"
        if len(written) > _MAX_SHOWN_LABELS:
            hint += f" ({len(written)}, all of them in {self._labels_source or 'the task file'})"
        if self.order_is_unknown and (text.isdecimal() or text in _TRUTH_VALUES):
            hint += f"; {self.order_hint()}"
        if self._by_number:
            hint += f", or 0 to {len(self.names) - 1}"
        if self._by_number and text == str(len(self.names)) and len(self.names) > 1:
            hint += (
                "; numbers count from 0: where the file counts from 1, write "
                f"labels: {{1: {self.names[0]}, 2: {self.names[1]}, ...}}"
            )
        return hint


def _follow_truth(names: Sequence[str]) -> bool:
    """Return whether false and true are the first and second of these classes, as 0 and 1 are.

    Not where the names themselves say true or false, nor of [yes, no], where false would be yes.
    """
    plain = [name.lower() for name in names]
    if len(plain) != 2 or "true" in plain or "false" in plain:
        return False
    return plain[0] != "yes" and plain[1] != "no"


def number_label(task: Task, value: Any, where: str) -> float | None:
    """Return the label of a regression; None for a hidden one.

    That is nothing at all, or -1 where the range has no -1.
    """
    value = only_label(value)
    if is_missing(value) or not str(value).strip():
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan

    least, greatest = task.label_range or (-math.inf, math.inf)
    is_in_range = math.isfinite(number) and least <= number <= greatest
    if number == -1.0 and not is_in_range:
        return None
    if not is_in_range or isinstance(value, bool):
        limits = f" from {least:g} to {greatest:g}" if task.label_range else ""
        has_comma = _DECIMAL_COMMA.fullmatch(str(value).strip()) is not None
        advice = ", written with a point" if has_comma else ""
        raise InputError(f"{where}: label {value!r:.60}; allowed: a number{limits}{advice}")
    return number


# Several labels a row


def label_sets(task: Task, cells: Sequence[tuple[str, Any]]) -> list[tuple[int, ...] | None]:
    """Return the class numbers of every row of a multi-label column, ascending; None if hidden.

    A row is a list of labels, such a list as text, or a text with `label_separator` between its
    labels. Where some rows are lists, a text is one label: Label Studio writes so. Where every row
    has a 0 or 1 for each class they are multi-hot vectors.

    Args:
        task: A multi-label task.
        cells: Where each row stands, and its value in the label column.
    """
    has_lists = _have_lists(value for _, value in cells)
    rows = [(where, _split_labels(task, value, where, has_lists)) for where, value in cells]
    are_flags = _are_multi_hot(rows, len(task.labels))
    classes = ClassLabels(task)
    if are_flags and classes.order_is_unknown:
        raise InputError(f"{rows[0][0]}: a 0 or 1 for each class, but {classes.order_hint()}")
    sets: list[tuple[int, ...] | None] = []
    for where, labels in rows:
        if labels is None:
            sets.append(None)
        elif are_flags:
            sets.append(_classes_of_flags(labels, where))
        else:
            sets.append(_classes_of_labels(classes, labels, where))
    return sets


def labels_of_columns(task: Task, row: Row, where: str) -> tuple[int, ...] | None:
    """Return the class numbers of a row with a column of 0 and 1 for each label.

    None where all of them are hidden.
    """
    flags = [column_value(row, column, where) for column in task.label_columns]
    return None if all(map(is_hidden, flags)) else _classes_of_flags(flags, where)


def _are_multi_hot(rows: Sequence[tuple[str, list[Any] | None]], num_classes: int) -> bool:
    """Return whether all rows that have labels are vectors of 0 and 1, one for each class."""
    vectors: list[list[Any]] = []
    places_of_others: list[str] = []
    for where, labels in rows:
        if labels and _is_multi_hot(labels, num_classes):
            vectors.append(labels)
        elif labels:
            places_of_others.append(where)
    if not places_of_others:
        return bool(vectors)

    # Of two classes, [0, 1] may be the numbers of both; [1, 0], [0, 0] and [1, 1] are vectors.
    if num_classes == 2 and any(
        label_text(first) >= label_text(second) for first, second in vectors
    ):
        raise InputError(
            f"{places_of_others[0]}: other rows have a 0 or 1 for each of the 2 classes; write so "
            "in every row, or names"
        )
    return False


def _is_multi_hot(labels: Sequence[Any], num_classes: int) -> bool:
    flags = ("0", "1", "true", "false")
    return len(labels) == num_classes and all(label_text(label) in flags for label in labels)


def _have_lists(values: Iterable[Any]) -> bool:
    """Return whether a cell is a list of labels, or Label Studio's."""
    return any(isinstance(parse_cell(value, (list, dict)), list | dict) for value in values)


def _split_labels(task: Task, value: Any, where: str, has_lists: bool) -> list[Any] | None:
    """Return the labels of one row as a list, None where they are hidden.

    Args:
        has_lists: Other rows are lists.
    """
    if is_missing(value) or label_text(value) == "-1":
        return None
    labels = parse_cell(value, (list, dict))
    if isinstance(labels, dict):  # of Label Studio
        labels = labels.get("choices")
    if isinstance(labels, str):
        labels = _split_text(task, labels)
    if isinstance(labels, str) and has_lists and not re.search("[,;|]", labels):
        labels = [labels.strip()]
    if not isinstance(labels, list):
        raise InputError(
            f"{where}: a list of labels is expected, {value!r:.60} found; what parts the labels "
            "of a text is label_separator"
        )
    return labels


def _split_text(task: Task, text: str) -> Any:
    if not text.strip():
        return []
    if task.label_separator is not None:
        labels = [label.strip() for label in text.split(task.label_separator)]
        if len(labels) > 1 and not labels[-1]:  # forms write one behind the last label, too
            labels.pop()
        return labels
    flags = re.split(r"[\s,;]+", text.strip())
    return flags if _is_multi_hot(flags, len(task.labels)) else text


def _classes_of_flags(flags: Iterable[Any], where: str) -> tuple[int, ...]:
    return tuple(number for number, flag in enumerate(flags) if read_truth(flag, where))


def _classes_of_labels(classes: ClassLabels, labels: list[Any], where: str) -> tuple[int, ...]:
    numbers: set[int] = set()
    for label in labels:
        number = classes.class_of(label, where)
        if number is not None:
            numbers.add(number)
    if len(numbers) < len(labels):
        raise InputError(
            f"{where}: a label is empty, or stands twice, in {labels!r:.60}; name each that fits "
            "once, or write a 0 or 1 for each class in every row"
        )
    return tuple(sorted(numbers))


# Cells that hold a list


def parse_cell(value: Any, types: tuple[type, ...] = (list,)) -> Any:
    """Return the list (or another of the types) that a text is; any other value as it is.

    JSON, Python and NumPy write such texts, and pandas writes them into cells.
    """
    if not isinstance(value, str):
        return value
    text = _NUMPY_ARRAY.sub(r"\1", value.strip())
    ends = text[:1] + text[-1:]
    if ends not in ("[]", "{}"):
        return value
    if _NUMPY_TEXTS.fullmatch(text):
        return [item[1:-1] for item in re.findall(_NUMPY_TEXT, text)]
    parsed = _parse_literal(text)
    if isinstance(parsed, types):
        return parsed
    numbers = text[1:-1].split()
    return numbers if ends == "[]" and all(map(is_number, numbers)) else value


def _parse_literal(text: str) -> Any:
    """Return the value that a text is in JSON or Python; None where it is none.

    An array of NumPy in it is a list.
    """
    text = _NUMPY_ARRAY.sub(r"\1", text)
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
    return None


def is_broken_list(text: str) -> bool:
    """Return whether a text that `parse_cell` has left as it is was meant as a list of texts.

    pandas writes ['a', nan], where a word was "NA" or "null".
    """
    text = text.strip()
    return text.startswith(("['", '["')) and text.endswith("]") and "," in text


# Labels that the task file does not name


def find_labels(task: Task, cells: Iterable[tuple[str, Any]]) -> list[str]:
    """Return the distinct labels of a column: numbers in their order, names in the alphabet's.

    A cell comes with its place in the file. Of tags with O, every type has all letters of their
    scheme, as a type may have no long entity here and one elsewhere.
    """
    names: set[str] = set()
    is_multi_label = task.problem_type == "multi_label_classification"
    cells = list(cells)
    has_lists = is_multi_label and _have_lists([value for _, value in cells])
    for where, value in cells:
        only = only_label(value)
        labels = only if isinstance(only, list) else [only]
        if is_multi_label:
            labels = _split_labels(task, value, where, has_lists) or []
        elif isinstance(parse_cell(only, (dict,)), dict):
            raise InputError(
                f"{where}: {value!r:.60} is no label; of rows with several labels the task is "
                "problem_type: multi_label_classification"
            )
        names.update(map(label_text, labels))
    names -= {"", "-1"}
    others = names - {"-"}
    if task.kind == "sequence_classification" and len(others) > 1 and are_words(others):
        names = others  # the annotators did not agree
    if OUTSIDE in names:
        return complete_tags(names)
    return sorted(names, key=float if all(map(is_number, names)) else None)


def are_fractions(labels: Iterable[str]) -> bool:
    """Return whether labels are numbers, and not all of them whole: those of a regression.

    Excel writes 3,5 where its user's language does.
    """
    numbers = [_DECIMAL_COMMA.sub(r"\1.\2", label) for label in labels]
    if not all(map(is_number, numbers)):
        return False
    return not all(float(number).is_integer() for number in numbers)
