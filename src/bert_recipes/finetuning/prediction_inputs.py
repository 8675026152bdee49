"""Inputs of a model as they stand in a user's file, read in pieces so that the file may be of any size."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.tasks.columns import example_id
from bert_recipes.tasks.conll_file import DOCUMENT, read_conll
from bert_recipes.tasks.examples import Split
from bert_recipes.tasks.files import TABLE_SUFFIXES, Rows, read_table, read_text_lines
from bert_recipes.tasks.reading import read_examples
from bert_recipes.tasks.squad_file import read_squad
from bert_recipes.tasks.task import Task


# Name of the only split that an input file has.
INPUT = "input"
CHUNK_SIZE = 10_000


@dataclass(frozen=True)
class InputChunk:
    """Some consecutive rows of an input file.

    Attributes:
        split: Their examples, without labels.
        ids: What each is called in the output.
    """

    split: Split
    ids: list[int | str]


def read_chunks(
    path: Path, task: Task, chunk_size: int = CHUNK_SIZE, *, id_column: str | None = None
) -> Iterator[InputChunk]:
    """Read an input file.

    Columns are found by their names; a `.txt` file has none: a line is one text, or as many as the task has, with tabs
    between. The words of a tagging task are a list, or a text that is split at its spaces. Labels are not looked at. An
    id is the column `task.id_column`, else `idx` or `id`, else the number of the row, from 0.

    Args:
        path: .txt, .jsonl, .json, .csv, .tsv, .parquet; .conll for tagging, SQuAD's .json for question answering.
        task: Kind and columns.
        id_column: A column that every row must have.
        chunk_size: Rows of a chunk; more only where a document of a CoNLL file does not end there.
    """
    plain = _without_labels(task)
    rows = _open(path, task)
    chunk: list[tuple[int, Mapping[str, Any]]] = []
    ids: list[int | str] = []
    num_rows = 0
    for number, row in rows.rows:
        if id_column is not None and id_column not in row:
            raise InputError(f"{rows.where(number)}: no column '{id_column}' (--id_column); columns: {', '.join(row)}")
        if len(chunk) >= chunk_size and (DOCUMENT not in row or row[DOCUMENT] != chunk[-1][1][DOCUMENT]):
            yield _chunk(plain, rows, chunk, ids)
            chunk, ids = [], []
        chunk.append((number, _needed_columns(task, row, rows.where(number))))
        ids.append(_output_id(task, row, num_rows, rows.where(number)))
        num_rows += 1
    if not num_rows:
        raise InputError(f"{path}: no input in it")
    yield _chunk(plain, rows, chunk, ids)


def chunk_of_rows(task: Task, rows: Sequence[Mapping[str, Any]], source: str) -> InputChunk:
    """Take inputs that are in memory already, with the rules of `read_chunks`.

    Args:
        task: Kind and columns.
        rows: One or more.
        source: What they are from, for messages.
    """
    table = Rows(source, "row", list(enumerate(rows, start=1)))
    kept = [(number, _needed_columns(task, row, table.where(number))) for number, row in table.rows]
    ids = [_output_id(task, row, number - 1, table.where(number)) for number, row in table.rows]
    return _chunk(_without_labels(task), table, kept, ids)


def _without_labels(task: Task) -> Task:
    # What reads a task's test split reads this; ids are kept apart, as here they need not differ.
    return dataclasses.replace(task, test_splits=(INPUT,), id_column=None, files={}, label_column="")


def _chunk(task: Task, rows: Rows, chunk: list[tuple[int, Mapping[str, Any]]], ids: list[int | str]) -> InputChunk:
    examples = read_examples(task, INPUT, Rows(rows.source, rows.unit, chunk))
    split = Split(name=INPUT, examples=examples, source=rows.source, num_rows=len(examples), is_labelled=False)
    return InputChunk(split, ids)


def _open(path: Path, task: Task) -> Rows:
    if not path.is_file():
        raise InputError(f"--input_file {path}: no such file")
    suffix = path.suffix.lower()
    if suffix == ".txt":
        return Rows(str(path), "line", _text_rows(path, (*task.text_columns, *task.choice_columns)))
    if suffix == ".conll" and task.kind == "token_classification":
        return read_conll(path, task.text_columns[0], task.label_column)
    if suffix == ".json" and task.kind == "question_answering":
        return read_squad(path, task)
    if suffix not in TABLE_SUFFIXES:
        others = ", .conll" if task.kind == "token_classification" else ""
        raise InputError(
            f"--input_file {path}: unknown ending '{path.suffix}'; allowed: .txt, {', '.join(TABLE_SUFFIXES)}{others}"
        )
    return read_table(path)


def _text_rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(read_text_lines(path), start=1):
        line = line.rstrip("\r\n")
        if not line.strip():
            raise InputError(f"{path}, line {number}: empty; every line is an input")
        texts = [line] if len(columns) == 1 else line.split("\t")
        if len(texts) != len(columns):
            raise InputError(
                f"{path}, line {number}: {len(texts) - 1} tabs; the model takes {len(columns)} texts with a tab between "
                f"two: {', '.join(columns)}"
            )
        yield number, dict(zip(columns, texts, strict=True))


def _needed_columns(task: Task, row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The columns that the model reads, none of them empty; of a pair of texts one may be."""
    kept = {}
    for flag, columns in (("text_columns", task.text_columns), ("choice_columns", task.choice_columns)):
        for column in columns:
            if column not in row:
                present = ", ".join(name for name in row if name != DOCUMENT) or "none"
                raise InputError(
                    f"{where}: no column '{column}'; columns present: {present}; say with --{flag} which to read"
                )
            kept[column] = row[column]
    if task.kind == "token_classification" and isinstance(kept[task.text_columns[0]], str):
        kept[task.text_columns[0]] = kept[task.text_columns[0]].split()
    empty = [column for column, value in kept.items() if value == [] or (isinstance(value, str) and not value.strip())]
    if empty and (task.kind != "sequence_classification" or len(empty) == len(kept)):
        raise InputError(f"{where}: column '{empty[0]}' is empty; there is nothing to predict from")
    if DOCUMENT in row:
        kept[DOCUMENT] = row[DOCUMENT]
    return kept


def _output_id(task: Task, row: Mapping[str, Any], index: int, where: str) -> int | str:
    names = (task.id_column, "idx", "id")
    column = next((name for name in names if name is not None and name in row), None)
    idx = index if column is None else example_id(dataclasses.replace(task, id_column=column), row, index, where)
    return str(idx) if task.kind == "question_answering" else idx
