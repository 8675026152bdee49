"""Rows of words and their labels (token_classification)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.tasks.columns import check_characters, column_value, example_id
from bert_recipes.tasks.conll_file import DOCUMENT
from bert_recipes.tasks.examples import TaggedExample
from bert_recipes.tasks.files import Rows
from bert_recipes.tasks.labels import ClassLabels, is_bio, stray_inside
from bert_recipes.tasks.task import Task


logger = logging.getLogger(__name__)


def tagged_examples(task: Task, rows: Rows, is_test: bool) -> Iterator[tuple[int, TaggedExample]]:
    """Words with their labels, row by row; a `reading.RowReader`.

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
        for place in stray_inside([task.labels[label] for label in numbers or ()]) if is_checked else ():
            assert numbers is not None
            first_stray = first_stray or f"{words(place)}: {task.labels[numbers[place]]}"
            num_stray += 1
            begin = f"B-{task.labels[numbers[place]][2:]}"
            if begin in task.labels:
                numbers = (*numbers[:place], task.labels.index(begin), *numbers[place + 1 :])
        yield (
            number,
            TaggedExample(
                idx=example_id(task, row, index, where),
                tokens=tokens,
                labels=numbers,
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
