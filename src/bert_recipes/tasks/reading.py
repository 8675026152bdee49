"""From the rows of a table to examples: columns, labels, words, answers and choices, with one line for whatever does not fit."""

import difflib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.tasks.rows import Answer, ChoiceExample, Example, QuestionExample, TaggedExample, TextExample
from bert_recipes.tasks.task import (
    DOCUMENT,
    Rows,
    Task,
    check_characters,
    column_text,
    column_value,
    example_id,
    is_bio,
)


logger = logging.getLogger(__name__)


class ClassLabels:
    """The classes of a task and the ways in which files write them: by name, by number, or as `column_labels` says.

    Where neither names nor `column_labels` look like numbers, 0 to C-1 stand for the classes in their order. -1 and
    nothing at all mean that the label is hidden, unless the task itself calls a class "-1".
    """

    def __init__(self, task: Task, names: Iterable[str] | None = None) -> None:
        self.names = tuple(task.labels if names is None else names)
        numbers = {name: number for number, name in enumerate(self.names)}
        self._numbers = numbers | {value: numbers[name] for value, name in task.column_labels.items()}
        if not task.column_labels and not any(_is_number(name) for name in self.names):
            self._numbers |= {str(number): number for number in range(len(self.names))}
        self._known = list(task.column_labels) or list(self.names)

    def number(self, value: Any, where: str) -> int | None:
        """Return the class number, or None for a hidden label."""
        try:
            return self._numbers[value]  # the quick way: most values are texts
        except (KeyError, TypeError):
            key = _as_text(value)
        if key in self._numbers:
            return self._numbers[key]
        if key in ("-1", ""):
            return None
        nearest = difflib.get_close_matches(key, self._known, n=1)
        hint = f"did you mean {nearest[0]!r}? " if nearest else ""
        known = ", ".join(self._known[:20]) + (f", ... ({len(self._known)})" if len(self._known) > 20 else "")
        by_number = f", or 0 to {len(self.names) - 1}" if "0" in self._numbers and "0" not in self._known else ""
        raise InputError(f"{where}: label {value!r:.60} is not one of the task's; {hint}allowed: {known}{by_number}")

    def numbers(self, separator: str | None, value: Any, where: str) -> tuple[int, ...] | None:
        """Return the class numbers of a multi-label row, ascending; none where it is empty, None for hidden labels (-1 or null)."""
        if value is None or _as_text(value) == "-1":
            return None
        if isinstance(value, str) and separator is not None:
            value = [part.strip() for part in value.split(separator)] if value.strip() else []
        if not isinstance(value, list):
            raise InputError(
                f"{where}: a list of labels is expected, {value!r:.60} found; what parts the labels of a text is label_separator"
            )
        numbers = {self.number(part, where) for part in value} - {None}
        if len(numbers) < len(value):
            raise InputError(f"{where}: a label is empty, or stands twice, in {value!r:.60}; name each that fits once")
        return tuple(sorted(number for number in numbers if number is not None))


def _number_label(task: Task, value: Any, where: str) -> float | None:
    """The label of a regression; -1 means hidden where the range has no -1."""
    if value is None or value == "":
        return None
    least, greatest = task.label_range or (-math.inf, math.inf)
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


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


# One reader a kind: (task, rows, is_test) -> number and example of every row.


def _label(read: Callable[[Any, str], Any], task: Task, row: Mapping[str, Any], is_test: bool, where: str) -> Any:
    """Read the label column; a row of a test split may lack it, then its label is hidden."""
    if is_test and task.label_column not in row:
        return None
    return read(column_value(row, task.label_column, where), where)


def text_examples(task: Task, rows: Rows, is_test: bool) -> Iterator[tuple[int, TextExample]]:
    """Read texts with their label, row by row."""
    labels = ClassLabels(task)
    read: Callable[[Any, str], Any] = labels.number
    if task.problem_type == "regression":
        read = partial(_number_label, task)
    elif task.problem_type == "multi_label_classification":
        read = partial(labels.numbers, task.label_separator)
    empty = 0
    for index, (number, row) in enumerate(rows.rows):
        where = rows.where(number)
        text, *pair = (column_text(row, column, where) for column in task.text_columns)
        empty += sum(not text or text.isspace() for text in (text, *pair))
        label, idx = _label(read, task, row, is_test, where), example_id(task, row, index, where)
        yield number, TextExample(idx=idx, text=text, text_pair=pair[0] if pair else None, label=label)
    if empty:
        logger.info("%s: %d texts are empty; they are kept, as every row counts", rows.source, empty)


def choice_examples(task: Task, rows: Rows, is_test: bool) -> Iterator[tuple[int, ChoiceExample]]:
    """Read contexts with their endings, row by row."""
    labels: ClassLabels | None = None
    for index, (number, row) in enumerate(rows.rows):
        where = rows.where(number)
        context, *start = (column_text(row, column, where) for column in task.text_columns)
        if len(task.choice_columns) > 1:
            endings = [column_text(row, column, where) for column in task.choice_columns]
        else:
            endings = _texts(row, task.choice_columns[0], where)
        labels = labels or ClassLabels(task, task.labels or map(str, range(len(endings))))
        if not 1 < len(endings) == len(labels.names):
            wanted = max(2, len(labels.names))
            raise InputError(f"{where}: {len(endings)} choices, but {wanted} are expected, as many in every row")
        label = _label(labels.number, task, row, is_test, where)
        choices = tuple(f"{start[0]} {ending}" if start and start[0] else ending for ending in endings)
        idx = example_id(task, row, index, where)
        yield number, ChoiceExample(idx=idx, context=context, choices=choices, label=label)


def _texts(row: Mapping[str, Any], column: str, where: str) -> list[str]:
    texts = column_value(row, column, where)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InputError(f"{where}: column '{column}' holds {texts!r:.60}; a list of texts is expected")
    check_characters("".join(texts), column, where)
    return texts


def question_examples(task: Task, rows: Rows, is_test: bool) -> Iterator[tuple[int, QuestionExample]]:
    """Read questions with paragraph and answers, row by row."""
    seen: dict[str, int] = {}
    for index, (number, row) in enumerate(rows.rows):
        idx = str(example_id(task, row, index, rows.where(number)))
        where = f"{rows.where(number)} (id {idx})"
        if idx in seen:
            raise InputError(f"{where}: {rows.unit} {seen[idx]} has the same id; ids tell the answers apart")
        seen[idx] = number
        question, context = (column_text(row, column, where) for column in task.text_columns)
        answers = _label(partial(_answers, context), task, row, is_test, where)
        if answers == () and "squad_v2" not in task.metrics:
            raise InputError(
                f"{where}: no answer, but every question of task {task.name} has one; questions without answer are for squad_v2"
            )
        title = str(row.get("title") or "")
        yield number, QuestionExample(idx=idx, question=question, context=context, answers=answers, title=title)


def _answers(context: str, given: Any, where: str) -> tuple[Answer, ...] | None:
    """Read {"text": [...], "answer_start": [...]} (the Hub) or [{"text": ..., "answer_start": ...}] (official)."""
    if given is None:
        return None
    try:
        if isinstance(given, dict):
            pairs = list(zip(given["text"], given["answer_start"], strict=True))
        else:
            pairs = [(item["text"], item["answer_start"]) for item in given]
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f'{where}: answers {given!r:.60}; expected are {{"text": [...], "answer_start": [...]}}, or a list of such pairs'
        ) from None
    for text, start in pairs:
        if not isinstance(text, str) or not text or type(start) is not int:
            raise InputError(f"{where}: an answer needs a text and a whole answer_start, got {text!r} and {start!r}")
        if start < 0 or not context.startswith(text, start):
            place = context.find(text)
            hint = f"the context has it at {place}" if place >= 0 else "the context does not have it at all"
            raise InputError(f"{where}: the answer {text!r} is not at its answer_start {start}; {hint}")
    return tuple(Answer(text=text, answer_start=start) for text, start in pairs)


def tagged_examples(task: Task, rows: Rows, is_test: bool) -> Iterator[tuple[int, TaggedExample]]:
    """Read words with their labels, row by row.

    Where the labels are O, B-X and I-X, an I-X that continues nothing begins an entity, as in conlleval, and is read as
    B-X: so are slips in public files (I-creative-work after I-person in WNUT17) and all of IOB1. A warning counts them.
    """
    labels = ClassLabels(task)
    is_checked = is_bio(task.labels)
    stray: list[str] = []
    for index, (number, row) in enumerate(rows.rows):
        where = rows.where(number)
        tokens = _texts(row, task.text_columns[0], where)
        if not tokens or not all(map(str.strip, tokens)):
            raise InputError(f"{where}: column '{task.text_columns[0]}' has no word, or an empty one: {tokens!r:.60}")
        # By its line in a CoNLL file, by its number (from 1) elsewhere.
        places = [rows.where(number + n) if DOCUMENT in row else f"{where}, word {n + 1}" for n in range(len(tokens))]
        # What the Hub's data sets call them, whatever the row says.
        names = (task.label_column, "ner_tags", "labels")
        column = next((name for name in names if name in row), task.label_column)
        given = None if is_test and column not in row else column_value(row, column, where)
        numbers = None if given is None else _word_labels(labels, given, places, where)
        before = "O"
        for word, label in enumerate(tuple(numbers or ())) if is_checked else ():
            name = task.labels[label]
            if name[:2] == "I-" and before[2:] != name[2:]:
                stray.append(f"{places[word]}: {name}")
                if numbers and f"B-{name[2:]}" in task.labels:
                    numbers[word] = task.labels.index(f"B-{name[2:]}")
            before = name
        tags, document = None if numbers is None else tuple(numbers), row.get(DOCUMENT, index)
        idx = example_id(task, row, index, where)
        yield number, TaggedExample(idx=idx, tokens=tuple(tokens), labels=tags, document=document)
    if stray:
        message = "%s: %d tags I-X continue no entity; each begins one, as in conlleval (the first: %s)"
        logger.warning(message, rows.source, len(stray), stray[0])


def _word_labels(labels: ClassLabels, given: Any, places: list[str], where: str) -> list[int]:
    if not isinstance(given, list) or len(given) != len(places):
        found = f"{len(given)} labels" if isinstance(given, list) else f"the label {given!r:.60}"
        raise InputError(f"{where}: {len(places)} words, but {found}; a list with one label a word is expected")
    numbers = []
    for value, place in zip(given, places, strict=True):
        number = labels.number(value, place)
        if number is None:
            raise InputError(f"{place}: a word without a label ({value!r}); allowed: {', '.join(labels.names)}")
        numbers.append(number)
    return numbers


_READERS: dict[str, Callable[[Task, Rows, bool], Iterator[tuple[int, Example]]]] = {
    "sequence_classification": text_examples,
    "token_classification": tagged_examples,
    "question_answering": question_examples,
    "multiple_choice": choice_examples,
}


def read_examples(task: Task, split: str, rows: Rows, *, need_labels: bool = False) -> list[Example]:
    """Read all rows of a split, with or without labels, all alike; those of test_splits may lack the label column.

    `need_labels` refuses hidden ones.
    """
    examples: list[Example] = []
    first: dict[bool, int] = {}  # is it hidden -> number of the first such row
    for number, example in _READERS[task.kind](task, rows, split in task.test_splits):
        first.setdefault(label_of(example) is None, number)
        examples.append(example)
    if not examples:
        raise InputError(f"{rows.source}: the split '{split}' of task {task.name} has no rows")
    if len(first) == 2:
        raise InputError(
            f"{rows.where(first[True])}: the label is hidden (-1 or empty), but {rows.unit} {first[False]} has one: label all or none"
        )
    if need_labels and True in first:
        raise InputError(
            f"{rows.where(first[True])}: the label is hidden (-1 or empty): a test set with labels -1 can be predicted, not measured"
        )
    return examples


def label_of(example: Example) -> Any:
    """Whatever is the label of an example; None where it is hidden."""
    if isinstance(example, TaggedExample):
        return example.labels
    return example.answers if isinstance(example, QuestionExample) else example.label
