"""Label Studio's JSON export as rows, which its JSON_MIN and CSV exports are already."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from bert_recipes.rows import NumberedRows, Row, Rows
from bert_recipes.tasks.task import LABEL_COLUMNS, Task


logger = logging.getLogger(__name__)

KINDS = ("sequence_classification", "token_classification")


def flatten_label_studio(task: Task, rows: Rows) -> Rows:
    """Return rows as they are; a text that was exported with all its annotations has one of them.

    That is the one marked as ground truth, or else the first; a warning counts texts with several.
    """
    if task.kind not in KINDS:
        return rows
    return replace(rows, rows=_flat_rows(task, rows))


def _flat_rows(task: Task, rows: Rows) -> NumberedRows:
    label_column = task.label_column or LABEL_COLUMNS[0]
    num_several = 0
    for number, row in rows.rows:
        data = row.get("data")
        annotations = row.get("annotations", [])
        has_text = task.text_columns[0] in row
        if has_text or not isinstance(data, dict) or not isinstance(annotations, list):
            yield number, row
            continue

        submitted = _submitted(annotations)
        num_several += len(submitted) > 1
        flat = {"id": row.get("id"), **data}
        if label_column in flat:
            flat[label_column] = None  # it was imported with the text
        if submitted:
            flat.update(_labels_of(task, label_column, submitted[0].get("result", [])))
        yield number, flat

    if num_several:
        logger.warning(
            "%s: %d texts have several annotations: the first is taken, or the ground truth",
            rows.source,
            num_several,
        )


def _submitted(annotations: Iterable[Any]) -> list[Mapping[str, Any]]:
    """Return the annotations that nobody cancelled, the ground truth first."""
    submitted = []
    for annotation in annotations:
        if isinstance(annotation, dict) and not annotation.get("was_cancelled"):
            submitted.append(annotation)
    return sorted(submitted, key=lambda annotation: not annotation.get("ground_truth"))


def _labels_of(task: Task, label_column: str, results: list[Mapping[str, Any]]) -> Row:
    """Return the columns that an annotation adds: its spans, or what was chosen or rated."""
    if task.kind == "token_classification":
        return {label_column: results}
    if not results and task.problem_type == "multi_label_classification":
        return {label_column: []}  # no class fits
    return _columns_of(results)


def _columns_of(results: Iterable[Mapping[str, Any]]) -> Row:
    """Return what was chosen or rated, under the names that the labeling interface gives."""
    columns = {}
    for result in results:
        kind = result.get("type")
        value = result.get("value")  # a relation has none
        if isinstance(value, dict) and kind in value:
            columns[result["from_name"]] = value[kind]
    return columns
