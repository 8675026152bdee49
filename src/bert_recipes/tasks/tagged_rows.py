"""Rows of words and their labels (token_classification)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.tasks.columns import check_characters, column_value, example_id
from bert_recipes.tasks.conll_file import DOCUMENT
from bert_recipes.tasks.examples import TaggedExample
from bert_recipes.tasks.files import Rows
from bert_recipes.tasks.labels import ClassLabels, broken_bio, is_bio
from bert_recipes.tasks.task import Task


def tagged_examples(task: Task, rows: Rows, is_test: bool) -> Iterator[tuple[int, TaggedExample]]:
    """Words with their labels, row by row; a `reading.RowReader`."""
    labels = ClassLabels(task)
    is_checked = is_bio(task.labels)
    for index, (number, row) in enumerate(rows.rows):
        where = rows.where(number)
        words = _word_place(rows, row, number)
        tokens = _words(row, task.text_columns[0], where)
        # What the Hub's data sets call them, whatever the row says.
        names = (task.label_column, "ner_tags", "labels")
        column = next((name for name in names if name in row), task.label_column)
        given = None if is_test and column not in row else column_value(row, column, where)
        numbers = None if given is None else _word_labels(labels, given, len(tokens), where, words)
        if numbers is not None and is_checked:
            _check_bio([labels.names[label] for label in numbers], words)
        yield (
            number,
            TaggedExample(
                idx=example_id(task, row, index, where),
                tokens=tokens,
                labels=numbers,
                document=row.get(DOCUMENT, index),
            ),
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
) -> tuple[int, ...]:
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
    return tuple(numbers)


def _check_bio(names: list[str], words: Callable[[int], str]) -> None:
    broken = broken_bio(names)
    if broken is not None:
        position, name, before = broken
        raise InputError(
            f"{words(position)}: {name} after {before}: in IOB2 an entity starts with B-{name[2:]}; mend the tag, or "
            "convert the file from IOB1"
        )
