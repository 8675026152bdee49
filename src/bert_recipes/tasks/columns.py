"""Single values of a row, checked: texts and ids."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.tasks.conll_file import DOCUMENT
from bert_recipes.tasks.task import Task


_SURROGATES = re.compile("[\ud800-\udfff]")


def column_value(row: Mapping[str, Any], column: str, where: str) -> Any:
    """The value of a column, whatever it is; InputError where the row has none."""
    try:
        return row[column]
    except KeyError:
        present = ", ".join(name for name in row if name != DOCUMENT) or "none"
        raise InputError(f"{where}: no column '{column}'; columns present: {present}") from None


def column_text(row: Mapping[str, Any], column: str, where: str) -> str:
    """The text of a column; InputError where the row has none."""
    text = column_value(row, column, where)
    if not isinstance(text, str):
        raise InputError(f"{where}: column '{column}' holds {text!r:.60}; text is expected")
    check_characters(text, column, where)
    return text


def check_characters(text: str, column: str, where: str) -> None:
    """Refuse what no tokenizer can read."""
    # A JSON escape can spell half of a surrogate pair: no tokenizer accepts it.
    if not text.isascii() and _SURROGATES.search(text):
        raise InputError(
            f"{where}: column '{column}' holds half of a surrogate pair (\\ud800 to \\udfff); mend the text"
        )


def example_id(task: Task, row: Mapping[str, Any], index: int, where: str) -> int | str:
    """The id of a row, or its number where the data has no ids."""
    # A row of a benchmark names the column that its published files have; copies of them may lack it.
    if task.id_column is None or (task.id_column not in row and not task.files):
        return index
    idx = column_value(row, task.id_column, where)
    if not isinstance(idx, (int, str)) or isinstance(idx, bool):
        raise InputError(f"{where}: the id in column '{task.id_column}' is {idx!r}; a number or a text is expected")
    return idx
