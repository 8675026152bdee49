"""The official GLUE download: tab-separated columns at fixed places, no quoting."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.tasks.files import Rows, split_tabs
from bert_recipes.tasks.labels import ClassLabels
from bert_recipes.tasks.task import Task, TsvLayout


logger = logging.getLogger(__name__)

# Microsoft's own file of MRPC, and GLUE's list of the pairs in it that are the development set.
MSR_FILE = "msr_paraphrase_train.txt"
MSR_DEV_IDS = "dev_ids.tsv"


def read_glue_tsv(path: Path, task: Task, split: str) -> Rows:
    """Read one file of the download.

    Rows get the task's column names; test files have an id and no label.

    Args:
        path: The file; for MRPC's MSR_FILE its neighbour MSR_DEV_IDS says which rows are the development set.
        task: A row with a `tsv` layout.
        split: Name of the split.

    Raises:
        InputError: While the rows are read: a line with too few columns, or not as many as the header, a missing
            header.

    Source: huggingface/datasets glue.py; CoLA's labelled files have no header.
    """
    assert task.tsv is not None
    rows = _msr_rows(path, task, split) if path.name == MSR_FILE else _rows(path, task, split)
    return Rows(str(path), "line", rows)


def _rows(path: Path, task: Task, split: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    layout = task.tsv
    assert layout is not None
    is_test = split in task.test_splits
    columns = layout.test_text_columns if is_test else layout.text_columns
    places = dict(zip(task.text_columns, columns, strict=True))
    places |= {task.id_column or "idx": layout.id_column} if is_test else {task.label_column: layout.label_column}
    # A last column is counted from the end: MNLI's files differ in their number of labels.
    num_columns = max(*places.values(), max(columns) + 1 if layout.label_column < 0 and not is_test else 0) + 1
    most: float = math.inf
    broken: dict[int, str] = {}
    for index, (number, cells) in enumerate(split_tabs(path)):
        if index == 0 and (is_test or layout.has_header):
            _check_header(path, number, cells, task, layout, is_test)
            most = len(cells)
            num_columns = max(num_columns, len(cells))
            continue
        if not num_columns <= len(cells) <= most:
            if not layout.drops_short_rows:
                allowed = (
                    f"at least {num_columns} are" if len(cells) < num_columns else f"{most}, as in the header, are"
                )
                raise InputError(
                    f"{path}, line {number}: {len(cells)} columns, {allowed} expected in the official "
                    f"{layout.folder} file of the split '{split}', separated by tabs"
                )
            broken[number] = "few" if len(cells) < num_columns else "many"
            continue
        row: dict[str, Any] = {name: cells[place] for name, place in places.items()}
        if is_test and row[task.id_column or "idx"].isdecimal():
            row[task.id_column or "idx"] = int(row[task.id_column or "idx"])
        yield number, row
    if broken:
        shown = ", ".join(map(str, list(broken)[:10])) + (", ..." if len(broken) > 10 else "")
        what = " or too ".join(sorted(set(broken.values())))
        logger.warning("%s: %d broken lines (too %s columns) were left out: %s", path, len(broken), what, shown)


def _check_header(path: Path, number: int, cells: list[str], task: Task, layout: TsvLayout, is_test: bool) -> None:
    """Make sure that the first line is one of names: otherwise it would be lost."""
    place = layout.id_column if is_test else layout.label_column
    cell = cells[place] if -len(cells) <= place < len(cells) else ""
    looks_like_data = cell.replace(".", "", 1).isdecimal() or (not is_test and cell in ClassLabels(task).names)
    if looks_like_data:
        raise InputError(
            f"{path}, line {number}: the first line is data ('{cell}'), but the official file starts with a line of "
            "column names; put it back"
        )


def _msr_rows(path: Path, task: Task, split: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """GLUE's own rule: the pairs named in dev_ids.tsv are the development set, all others the training set.

    Source: GLUE-baselines download_glue_data.py `format_mrpc`.
    """
    ids_file = path.with_name(MSR_DEV_IDS)
    dev_ids = {tuple(cells[:2]) for _, cells in split_tabs(ids_file)}
    wants_dev = split != task.train_split
    for index, (number, cells) in enumerate(split_tabs(path)):
        if len(cells) != 5:
            raise InputError(f"{path}, line {number}: {len(cells)} columns; 5 are expected, separated by tabs")
        if index > 0 and ((cells[1], cells[2]) in dev_ids) == wants_dev:
            first, second = task.text_columns
            yield number, {task.label_column: cells[0], first: cells[3], second: cells[4]}
