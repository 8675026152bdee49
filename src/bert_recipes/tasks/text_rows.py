"""Rows of one or two texts and a label (sequence_classification)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from bert_recipes.tasks.columns import column_text, column_value, example_id
from bert_recipes.tasks.examples import TextExample
from bert_recipes.tasks.files import Rows
from bert_recipes.tasks.labels import ClassLabels, NumberLabels, label_set
from bert_recipes.tasks.task import Task


logger = logging.getLogger(__name__)


def text_examples(task: Task, rows: Rows, is_test: bool) -> Iterator[tuple[int, TextExample]]:
    """Texts with their label, row by row; a `reading.RowReader`."""
    read_label = _label_reader(task)
    columns, label_column = task.text_columns, task.label_column
    empty = 0
    for index, (number, row) in enumerate(rows.rows):
        where = rows.where(number)
        texts = [column_text(row, column, where) for column in columns]
        empty += sum(not text or text.isspace() for text in texts)
        label = None
        if label_column in row or not is_test:
            label = read_label(column_value(row, label_column, where), where)
        yield (
            number,
            TextExample(
                idx=example_id(task, row, index, where),
                text=texts[0],
                text_pair=texts[1] if len(texts) > 1 else None,
                label=label,
            ),
        )
    if empty:
        logger.info("%s: %d texts are empty; they are kept, as every row counts", rows.source, empty)


def _label_reader(task: Task) -> Callable[[Any, str], int | float | tuple[int, ...] | None]:
    if task.problem_type == "regression":
        return NumberLabels(task).value
    labels = ClassLabels(task)
    if task.problem_type == "multi_label_classification":
        return lambda value, where: label_set(labels, value, task.label_separator, where)
    return labels.number
