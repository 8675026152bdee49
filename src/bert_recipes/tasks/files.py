"""Rows of a table: JSON Lines, JSON, CSV, TSV and Parquet files, each row with its place for messages."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_recipes.errors import InputError


TABLE_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")


@dataclass(frozen=True)
class Rows:
    """A table that is read row by row.

    Attributes:
        source: File or Hub data set, for messages.
        unit: What the numbers count: "line" (of the file, from 1) or "row" (of data, from 1).
        rows: Number of the row and its columns.
    """

    source: str
    unit: str
    rows: Iterable[tuple[int, Mapping[str, Any]]]

    def where(self, number: int) -> str:
        """The place of a row, for messages."""
        return f"{self.source}, {self.unit} {number}"


def read_table(path: Path) -> Rows:
    """Open a table by the ending of its file.

    `.csv` is read with quotes; `.tsv` without any, as the files of GLUE are written: a tab always starts a new column.

    Args:
        path: A file with one of `TABLE_SUFFIXES`; text is UTF-8, with or without a byte-order mark.

    Raises:
        InputError: Another ending; while the rows are read: not UTF-8, broken JSON or CSV, a row with another number of
            columns than the header.
    """
    suffix = path.suffix.lower()
    if suffix == ".jsonl":
        return Rows(str(path), "line", _json_lines(path))
    if suffix == ".json":
        return Rows(str(path), "row", _json_rows(path))
    if suffix == ".csv":
        return Rows(str(path), "line", _csv_rows(path))
    if suffix == ".tsv":
        return Rows(str(path), "line", _tsv_rows(path))
    if suffix == ".parquet":
        return Rows(str(path), "row", _parquet_rows(path))
    raise InputError(f"{path}: unknown ending '{path.suffix}'; allowed: {', '.join(TABLE_SUFFIXES)}")


def read_text_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file with their line ends; only a line feed ends a line.

    Raises:
        InputError: A line that is not UTF-8.
    """
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{path}, line {number}: not UTF-8 (byte 0x{raw[error.start]:02x}); convert the file to UTF-8"
                ) from error


def read_json(path: Path) -> Any:
    """Return what a JSON file holds.

    Raises:
        InputError: Not UTF-8, or broken JSON.
    """
    text = "".join(read_text_lines(path))
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}: broken JSON ({error.msg}, column {error.colno})") from error
    except RecursionError as error:
        raise InputError(f"{path}: broken JSON (nested too deeply)") from error


def split_tabs(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and cells of a file of tab-separated columns without quoting; blank lines are passed over."""
    # What csv.reader does with QUOTE_NONE, but for a lone carriage return, which it takes for the end of a row.
    for number, line in enumerate(read_text_lines(path), start=1):
        line = line.rstrip("\r\n")
        if line:
            yield number, line.split("\t")


def _json_lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(read_text_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: broken JSON ({error}); one object a line is expected") from error
        if not isinstance(row, dict):
            raise InputError(
                f'{path}, line {number}: {type(row).__name__} found; one object a line is expected, like {{"text": ...}}'
            )
        yield number, row


def _json_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows of a JSON array of objects, which may stand under "data"."""
    content = read_json(path)
    rows = content.get("data") if isinstance(content, dict) else content
    if not isinstance(rows, list):
        raise InputError(f'{path}: a list of objects is expected, or one under "data"; one object a line is .jsonl')
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise InputError(f"{path}, row {number}: {type(row).__name__} found; an object is expected")
        yield number, row


def _csv_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    # The limit is there for damaged files and would refuse long documents; strict quoting finds the damage itself.
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader(read_text_lines(path), strict=True)
    header: list[str] | None = None
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise InputError(f"{path}, line {line}: broken CSV ({error}); check the quotes") from error
        if cells is None:
            return
        if not cells:
            continue
        if header is None:
            header = _check_header(path, line, cells)
        else:
            yield line, _named(path, line, header, cells)


def _tsv_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    header: list[str] | None = None
    for line, cells in split_tabs(path):
        if header is None:
            header = _check_header(path, line, cells)
        else:
            yield line, _named(path, line, header, cells)


def _check_header(path: Path, line: int, cells: list[str]) -> list[str]:
    twice = sorted({name for name in cells if name and cells.count(name) > 1})
    if twice:
        raise InputError(f"{path}, line {line}: the header names {', '.join(twice)} twice; rename one")
    return cells


def _named(path: Path, line: int, header: list[str], cells: list[str]) -> Mapping[str, Any]:
    if len(cells) != len(header):
        raise InputError(
            f"{path}, line {line}: {len(cells)} columns, but the header has {len(header)} ({', '.join(header)})"
        )
    return dict(zip(header, cells, strict=True))


def _parquet_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1000):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        detail = str(error).splitlines()[0]
        raise InputError(f"{path}: damaged or not a Parquet file (after row {number}: {detail})") from error
