"""Rows of a context and its possible endings (multiple_choice)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.tasks.columns import check_characters, column_text, column_value, example_id
from bert_recipes.tasks.examples import ChoiceExample
from bert_recipes.tasks.files import Rows
from bert_recipes.tasks.labels import ClassLabels
from bert_recipes.tasks.task import Task


def choice_examples(task: Task, rows: Rows, is_test: bool) -> Iterator[tuple[int, ChoiceExample]]:
    """Contexts with their endings, row by row; a `reading.RowReader`."""
    labels: ClassLabels | None = None
    for index, (number, row) in enumerate(rows.rows):
        where = rows.where(number)
        context = column_text(row, task.text_columns[0], where)
        start = column_text(row, task.text_columns[1], where) if len(task.text_columns) > 1 else ""
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
        yield (
            number,
            ChoiceExample(
                idx=example_id(task, row, index, where),
                context=context,
                choices=tuple(f"{start} {ending}" if start else ending for ending in endings),
                label=label,
            ),
        )


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
