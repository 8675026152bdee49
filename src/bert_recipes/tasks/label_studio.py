"""Label Studio's JSON export as rows, which its JSON_MIN and CSV exports are already."""

from collections.abc import Iterable, Mapping
from typing import Any

from bert_recipes.rows import NumberedRow, NumberedRows, Row
from bert_recipes.tasks.task import LABEL_COLUMNS, Task


def rows_of_label_studio(task: Task, rows: Iterable[NumberedRow]) -> NumberedRows:
    """Yield rows as they are; a text that was exported with all its annotations has its first."""
    for number, row in rows:
        data = row.get("data")
        annotations = row.get("annotations")
        if isinstance(data, dict) and isinstance(annotations, list):
            row = {"id": row.get("id"), **data, **_labels_of(task, annotations)}
        yield number, row


def _labels_of(task: Task, annotations: Iterable[Any]) -> Row:
    """Return the columns that the first annotation adds; a label of None where there is none."""
    is_tagging = task.kind == "token_classification"
    label_column = task.label_column or LABEL_COLUMNS[0]
    for annotation in annotations:
        if not isinstance(annotation, dict) or annotation.get("was_cancelled"):
            continue
        results = annotation.get("result", [])
        return {label_column: results} if is_tagging else _columns_of(results)
    return {label_column: None}


def _columns_of(results: Iterable[Mapping[str, Any]]) -> Row:
    """Return what was chosen or rated, under the names that the labeling interface gives."""
    columns = {}
    for result in results:
        kind = result.get("type")
        value = result.get("value")  # a relation has none
        if isinstance(value, dict) and kind in value:
            columns[result["from_name"]] = value[kind]
    return columns
