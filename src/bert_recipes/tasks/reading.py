"""From the rows of a table to examples: columns, labels, words, answers and choices, with one line for whatever does not fit."""

import difflib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
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

_HIDDEN = "-1"


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
        if key in (_HIDDEN, ""):
            return None
        nearest = difflib.get_close_matches(key, self._known, n=1)
        hint = f"did you mean {nearest[0]!r}? " if nearest else ""
        known = ", ".join(self._known[:20]) + (f", ... ({len(self._known)})" if len(self._known) > 20 else "")
        by_number = f", or 0 to {len(self.names) - 1}" if "0" in self._numbers and "0" not in self._known else ""
        raise InputError(f"{where}: label {value!r:.60} is not one of the task's; {hint}allowed: {known}{by_number}")

    def numbers(self, value: Any, separator: str | None, where: str) -> tuple[int, ...] | None:
        """Return the class numbers of a multi-label row, ascending; None for hidden labels (-1 or null).

        Args:
            value: A list, or a text whose parts stand between separators; an empty one means that no label fits.
            separator: None where the column holds a list.
            where: Its place, for messages.
        """
        if value is None or _as_text(value) == _HIDDEN:
            return None
        if isinstance(value, str) and separator is not None:
            value = [part.strip() for part in value.split(separator)] if value.strip() else []
        if not isinstance(value, list):
            raise InputError(
                f"{where}: a list of labels is expected, {value!r:.60} found; where the labels of a row are one text, the "
                "task file says what stands between them: label_separator"
            )
        found = [self.number(part, where) for part in value]
        numbers = {number for number in found if number is not None}
        if len(numbers) < len(found):
            raise InputError(f"{where}: a label is empty, or stands twice, in {value!r:.60}; name each that fits once")
        return tuple(sorted(numbers))


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
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


# One reader a kind: (task, rows, is_test) -> number and example of every row. In a test split a row may lack the label
# column, then its label is hidden.


def text_examples(task: Task, rows: Rows, is_test: bool) -> Iterator[tuple[int, TextExample]]:
    """Read texts with their label, row by row."""
    labels = ClassLabels(task)
    read_label: Callable[[Any, str], Any] = labels.number
    if task.problem_type == "regression":
        read_label = lambda value, where: _number_label(task, value, where)  # noqa: E731
    elif task.problem_type == "multi_label_classification":
        read_label = lambda value, where: labels.numbers(value, task.label_separator, where)  # noqa: E731
    empty = 0
    for index, (number, row) in enumerate(rows.rows):
        where = rows.where(number)
        texts = [column_text(row, column, where) for column in task.text_columns]
        empty += sum(not text or text.isspace() for text in texts)
        label = None
        if task.label_column in row or not is_test:
            label = read_label(column_value(row, task.label_column, where), where)
        idx, pair = example_id(task, row, index, where), texts[1] if len(texts) > 1 else None
        yield number, TextExample(idx=idx, text=texts[0], text_pair=pair, label=label)
    if empty:
        logger.info("%s: %d texts are empty; they are kept, as every row counts", rows.source, empty)


def choice_examples(task: Task, rows: Rows, is_test: bool) -> Iterator[tuple[int, ChoiceExample]]:
    """Read contexts with their endings, row by row."""
    labels: ClassLabels | None = None
    for index, (number, row) in enumerate(rows.rows):
        where = rows.where(number)
        context, *start = (column_text(row, column, where) for column in task.text_columns)
        endings = _endings(task, row, where)
        if labels is None:
            labels = ClassLabels(task, task.labels or map(str, range(len(endings))))
        if len(endings) != len(labels.names):
            raise InputError(
                f"{where}: {len(endings)} choices, but {len(labels.names)} are expected, as many in every row"
            )
        label = None
        if task.label_column in row or not is_test:
            label = labels.number(column_value(row, task.label_column, where), where)
        choices = tuple(f"{start[0]} {ending}" if start and start[0] else ending for ending in endings)
        idx = example_id(task, row, index, where)
        yield number, ChoiceExample(idx=idx, context=context, choices=choices, label=label)


def _endings(task: Task, row: Mapping[str, Any], where: str) -> list[str]:
    """The choices: one column each, or one column with a list."""
    if len(task.choice_columns) > 1:
        return [column_text(row, column, where) for column in task.choice_columns]
    column = task.choice_columns[0]
    given = column_value(row, column, where)
    if not isinstance(given, list) or len(given) < 2 or not all(isinstance(item, str) for item in given):
        raise InputError(f"{where}: column '{column}' does not hold a list of two or more texts")
    for item in given:
        check_characters(item, column, where)
    return given


def question_examples(task: Task, rows: Rows, is_test: bool) -> Iterator[tuple[int, QuestionExample]]:
    """Read questions with paragraph and answers, row by row."""
    may_lack_answer = "squad_v2" in task.metrics
    seen: dict[str, int] = {}
    for index, (number, row) in enumerate(rows.rows):
        idx = str(example_id(task, row, index, rows.where(number)))
        where = f"{rows.where(number)} (id {idx})"
        if idx in seen:
            raise InputError(f"{where}: {rows.unit} {seen[idx]} has the same id; ids tell the answers apart")
        seen[idx] = number
        question, context = (column_text(row, column, where) for column in task.text_columns)
        given = None if is_test and task.label_column not in row else column_value(row, task.label_column, where)
        answers = None if given is None else _answers(given, context, where)
        if answers == () and not may_lack_answer:
            raise InputError(
                f"{where}: no answer, but every question of task {task.name} has one; questions without answer are "
                "measured by the metric squad_v2 (--task squad_v2)"
            )
        title = row.get("title")
        yield (
            number,
            QuestionExample(
                idx=idx,
                question=question,
                context=context,
                answers=answers,
                title=title if isinstance(title, str) else "",
            ),
        )


def _answers(given: Any, context: str, where: str) -> tuple[Answer, ...]:
    """Read {"text": [...], "answer_start": [...]} (the Hub) or [{"text": ..., "answer_start": ...}] (official)."""
    form = '{"text": [...], "answer_start": [...]}'
    if isinstance(given, dict):
        texts, starts = given.get("text"), given.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise InputError(f"{where}: the answers are not {form} with two lists of one length")
        pairs = list(zip(texts, starts, strict=True))
    elif isinstance(given, list) and all(isinstance(item, dict) for item in given):
        pairs = [(item.get("text"), item.get("answer_start")) for item in given]
    else:
        raise InputError(f"{where}: answers are {type(given).__name__}; {form} or a list of such is expected")
    return tuple(_answer(text, start, context, where) for text, start in pairs)


def _answer(text: Any, start: Any, context: str, where: str) -> Answer:
    if not isinstance(text, str) or not text or not isinstance(start, int) or isinstance(start, bool):
        raise InputError(f"{where}: an answer needs a text and a whole answer_start, got {text!r} and {start!r}")
    if start < 0 or context[start : start + len(text)] != text:
        there = context[start : start + len(text)] if start >= 0 else ""
        place = context.find(text)
        hint = f"; the context has it at {place}" if place >= 0 else "; the context does not have it at all"
        raise InputError(
            f"{where}: the answer {text!r} is not at its answer_start {start}, where {there!r} stands{hint}"
        )
    return Answer(text=text, answer_start=start)


def tagged_examples(task: Task, rows: Rows, is_test: bool) -> Iterator[tuple[int, TaggedExample]]:
    """Read words with their labels, row by row.

    Where the labels are O, B-X and I-X, an I-X that continues nothing begins an entity, as in conlleval, and is read as
    B-X: so are slips in public files (I-creative-work after I-person in WNUT17) and all of IOB1. A warning counts them.
    """
    labels = ClassLabels(task)
    is_checked = is_bio(task.labels)
    num_stray, first_stray = 0, ""
    for index, (number, row) in enumerate(rows.rows):
        where = rows.where(number)
        words = _word_place(rows, row, number)
        tokens = _words(row, task.text_columns[0], where)
        # What the Hub's data sets call them, whatever the row says.
        names = (task.label_column, "ner_tags", "labels")
        column = next((name for name in names if name in row), task.label_column)
        given = None if is_test and column not in row else column_value(row, column, where)
        numbers = None if given is None else _word_labels(labels, given, len(tokens), where, words)
        before = "O"
        for word, label in enumerate(tuple(numbers or ())) if is_checked else ():
            name = task.labels[label]
            if name[:2] == "I-" and before[2:] != name[2:]:
                first_stray = first_stray or f"{words(word)}: {name}"
                num_stray += 1
                if numbers and f"B-{name[2:]}" in task.labels:
                    numbers[word] = task.labels.index(f"B-{name[2:]}")
            before = name
        yield (
            number,
            TaggedExample(
                idx=example_id(task, row, index, where),
                tokens=tokens,
                labels=None if numbers is None else tuple(numbers),
                document=row.get(DOCUMENT, index),
            ),
        )
    if num_stray:
        logger.warning(
            "%s: %d tags I-X continue no entity; each begins one, as in conlleval (the first: %s)",
            rows.source,
            num_stray,
            first_stray,
        )


def _word_place(rows: Rows, row: Mapping[str, Any], number: int) -> Callable[[int], str]:
    """How a word is found: by its line in a CoNLL file, by its number (from 1) elsewhere."""
    if DOCUMENT in row:
        return lambda word: rows.where(number + word)
    return lambda word: f"{rows.where(number)}, word {word + 1}"


def _words(row: Mapping[str, Any], column: str, where: str) -> tuple[str, ...]:
    tokens = column_value(row, column, where)
    if not isinstance(tokens, list) or not tokens:
        found = "an empty list" if tokens == [] else type(tokens).__name__
        raise InputError(
            f"{where}: column '{column}' holds {found}; a list of words is expected (.jsonl, .parquet or CoNLL)"
        )
    for position, token in enumerate(tokens, start=1):
        if not isinstance(token, str) or not token.strip():
            raise InputError(f"{where}: word {position} is {token!r}; every word is a text that is not empty")
        check_characters(token, column, where)
    return tuple(tokens)


def _word_labels(
    labels: ClassLabels, given: Any, num_words: int, where: str, words: Callable[[int], str]
) -> list[int]:
    if not isinstance(given, list) or len(given) != num_words:
        found = f"{len(given)} labels" if isinstance(given, list) else type(given).__name__
        raise InputError(f"{where}: {num_words} words, but {found}; a list with one label a word is expected")
    numbers = []
    for position, value in enumerate(given):
        number = labels.number(value, words(position))
        if number is None:
            raise InputError(
                f"{words(position)}: a word without a label ({value!r}) in a labelled sentence; allowed: "
                f"{', '.join(labels.names)}"
            )
        numbers.append(number)
    return numbers


_Reader = Callable[[Task, Rows, bool], Iterator[tuple[int, Example]]]
_READERS: dict[str, _Reader] = {
    "sequence_classification": text_examples,
    "token_classification": tagged_examples,
    "question_answering": question_examples,
    "multiple_choice": choice_examples,
}


def read_examples(task: Task, split: str, rows: Rows, *, need_labels: bool = False) -> list[Example]:
    """Read all rows of a split, with or without labels, all alike.

    Args:
        task: What the columns are.
        split: Those of the task's test_splits may lack the label column.
        rows: The table.
        need_labels: Refuse hidden labels.
    """
    reader = _READERS[task.kind](task, rows, split in task.test_splits)
    examples: list[Example] = []
    first_hidden: int | None = None
    first_labelled: int | None = None
    for number, example in reader:
        if label_of(example) is None:
            first_hidden = number if first_hidden is None else first_hidden
        else:
            first_labelled = number if first_labelled is None else first_labelled
        examples.append(example)
    if not examples:
        raise InputError(f"{rows.source}: the split '{split}' of task {task.name} has no rows")
    if first_hidden is not None and first_labelled is not None:
        raise InputError(
            f"{rows.where(first_hidden)}: the label is hidden (-1 or empty), but {rows.unit} {first_labelled} has one; "
            "a split is labelled as a whole or not at all"
        )
    if need_labels and first_hidden is not None:
        raise InputError(
            f"{rows.where(first_hidden)}: the label is hidden (-1 or empty): a test set with labels -1 can be predicted, "
            "but neither trained on nor measured; choose a labelled split"
        )
    return examples


def label_of(example: Example) -> Any:
    """Whatever is the label of an example; None where it is hidden."""
    if isinstance(example, TaggedExample):
        return example.labels
    return example.answers if isinstance(example, QuestionExample) else example.label
