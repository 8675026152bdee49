"""Label Studio's JSON export as rows, which its JSON_MIN and CSV exports are already."""

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.rows import NumberedRow, NumberedRows, Row, Rows
from bert_recipes.tasks.task import CLASSIFICATION_KINDS, LABEL_COLUMNS, Task


logger = logging.getLogger(__name__)

# Of a text that was not annotated yet.
IMPORTED_KEYS = {"id", "data", "meta", "predictions"}


def flatten_label_studio(task: Task, rows: Rows) -> Rows:
    """Return rows as they are; a text that was exported with all its annotations has one of them.

    That is the one marked as ground truth, or else the first; a warning counts texts with several.
    """
    if task.kind not in CLASSIFICATION_KINDS:
        return rows
    numbered = iter(rows.rows)
    start = list(itertools.islice(numbered, 1))
    numbered = itertools.chain(start, numbered)
    if start and _is_exported_text(task, start[0][1]):
        return replace(rows, rows=_flat_rows(task, list(numbered), rows))
    return replace(rows, rows=numbered)


def _is_exported_text(task: Task, row: Row) -> bool:
    """Return whether a row is a text as Label Studio exports it, or as it imports one."""
    if task.text_columns[0] in row or not isinstance(row.get("data"), dict):
        return False
    return isinstance(row.get("annotations"), list) or row.keys() <= IMPORTED_KEYS


def _flat_rows(task: Task, table: Sequence[NumberedRow], rows: Rows) -> NumberedRows:
    """Yield the data of each row with its labels, which are None where nobody gave them."""
    labels_of_rows = _read_labels(task, table, rows)
    names: dict[str, None] = {}
    for labels in labels_of_rows:
        names.update(dict.fromkeys(labels or ()))
    for (number, row), labels in zip(table, labels_of_rows, strict=True):
        if _is_exported_text(task, row):
            yield number, _flat_row(task, row, labels, names)
        else:
            yield number, row


def _read_labels(task: Task, table: Sequence[NumberedRow], rows: Rows) -> list[Row | None]:
    """Return the columns of labels that each row gets, None where nobody annotated it."""
    labels: list[Row | None] = []
    num_several = 0
    for number, row in table:
        annotations = _submitted(row) if _is_exported_text(task, row) else []
        num_several += len(annotations) > 1
        if annotations:
            labels.append(_labels_of(task, annotations[0], rows.where(number)))
        else:
            labels.append(None)
    if num_several:
        _warn_of_several(rows.source, num_several)
    return labels


def _flat_row(task: Task, row: Row, labels: Row | None, names: Iterable[str]) -> Row:
    """Return the data of a row with its labels; `names` are the columns that any row has."""
    flat = {"id": row.get("id"), **row["data"]}
    if "annotations" in row:
        flat.update(dict.fromkeys(_imported_labels(task, flat)))
    # In a set of labels, what its annotator left out says that no class fits.
    is_set = labels is not None and task.problem_type == "multi_label_classification"
    flat.update(dict.fromkeys(names, [] if is_set else None))
    flat.update(labels or {})
    return flat


def _imported_labels(task: Task, row: Row) -> set[str]:
    """Return the columns of labels that were imported with a text: nobody gave them to it."""
    names = {task.label_column} if task.label_column else set(LABEL_COLUMNS)
    return (names & row.keys()) - {*task.text_columns, task.id_column}


@cache
def _warn_of_several(source: str, num_texts: int) -> None:
    """Warn once of a file, which is read several times."""
    logger.warning(
        "%s: %d texts have several annotations: the first is taken, or the ground truth",
        source,
        num_texts,
    )


def _submitted(row: Row) -> list[Mapping[str, Any]]:
    """Return the annotations of a row that nobody cancelled, the ground truth first."""
    submitted = []
    for annotation in row.get("annotations") or []:
        if isinstance(annotation, dict) and not annotation.get("was_cancelled"):
            submitted.append(annotation)
    return sorted(submitted, key=lambda annotation: not annotation.get("ground_truth"))


def _labels_of(task: Task, annotation: Mapping[str, Any], where: str) -> Row:
    """Return the columns that an annotation adds: its spans, or what was chosen or rated."""
    results = annotation.get("result") or []
    if not isinstance(results, list):
        raise InputError(f"{where}: the result of an annotation is no list: {results!r:.60}")
    if task.kind == "token_classification":
        return {task.label_column or LABEL_COLUMNS[0]: results}
    return _columns_of(results, where)


def _columns_of(results: Iterable[Any], where: str) -> Row:
    """Return what was chosen or rated, under the names that the labeling interface gives."""
    columns = {}
    for result in results:
        if not isinstance(result, dict):
            raise InputError(f"{where}: a result of an annotation is no object: {result!r:.60}")
        kind = result.get("type")
        value = result.get("value")  # a relation has none
        if isinstance(kind, str) and isinstance(value, dict) and kind in value:
            columns[str(result.get("from_name"))] = value[kind]
    return columns
