"""Read the files that people bring: text line by line, tables row by row.

A row means the same in every format.

========================  ==========================================================================
``.txt``, anything else   lines
``.jsonl``, ``.json``     one object a line, or one document: a list of objects, which may stand
                          under "data"
``.csv``                  columns separated by commas, semicolons or tabs (as the header is),
                          with quotes
``.tsv``                  columns separated by tabs; quotes are text, unless the file was
                          clearly written with them
``.parquet``              rows
========================  ==========================================================================

``.gz``, ``.bz2``, ``.xz`` and ``.zst`` may follow each ending but the last. Text is UTF-8, with or
without a byte-order mark.
"""

import bz2
import codecs
import csv
import gzip
import hashlib
import io
import itertools
import json
import logging
import lzma
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Literal

from bert_recipes.errors import InputError, first_line


logger = logging.getLogger(__name__)

EncodingErrors = Literal["strict", "replace"]
# Column -> value.
Row = Mapping[str, Any]
# `Rows.unit` says what is numbered.
NumberedRow = tuple[int, Row]
NumberedRows = Iterator[NumberedRow]

TABLE_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
COMPRESSION_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
# A line, a cell of a .csv file, a row of a Parquet file: longer ones come from files that are not
# text, or from a quote that nobody closed, or a small file was made to be a large one when it is
# unpacked.
DEFAULT_MAX_LINE_BYTES = 2**24
# A terabyte: no machine holds such a line, and larger numbers do not fit what the system counts
# bytes in.
MAX_LINE_BYTES_LIMIT = 2**40
# A document is parsed at once, which takes about ten times its size in memory.
MAX_DOCUMENT_BYTES = 2**30
_BUFFER_BYTES = 2**20
# Rows of a Parquet file that are unpacked together, and the most memory that they may take.
_BATCH_ROWS, _BATCH_BYTES = 256, 2**30


@dataclass(frozen=True)
class Rows:
    """A table that is read row by row."""

    source: str  # file or Hub data set, for messages
    unit: str  # what the numbers count: "line" (of the file) or "row" (of data), from 1
    rows: Iterable[NumberedRow]
    are_texts: bool = False  # lines of a text file: one that looks like a list is a text

    def where(self, number: int) -> str:
        """Name the place of a row, for messages."""
        return f"{self.source}, {self.unit} {number}"


@dataclass(kw_only=True)
class ReadCounts:
    """Counts of what was read; filled while it is read.

    ``source_bytes`` are those of the files as stored, ``text_bytes`` are unpacked.
    ``repaired``: ``byte_order_marks_removed``, ``characters_replaced``, ``nul_characters_removed``.
    """

    source_bytes: int = 0
    text_bytes: int = 0
    repaired: Counter[str] = field(default_factory=Counter)


def format_suffix(path: Path) -> str:
    """Return the ending that names a file's format, in lower case, without its compression's."""
    name = path.name.lower()
    for suffix in COMPRESSION_SUFFIXES:
        name = name.removesuffix(suffix)
    return Path(name).suffix


# Unpacking


def _open_zstandard(file: BinaryIO) -> Any:
    import pyarrow

    return pyarrow.CompressedInputStream(file, "zstd")


_OPENERS: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": _open_zstandard,
}


# What a clone without Git LFS has in the place of a large file.
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def check_no_lfs_pointer(path: Path) -> None:
    """Refuse what Git LFS leaves in the place of a file that was not fetched.

    These are a few lines about it, which are text too.
    """
    if not path.is_file():  # of a pipe nothing may be read before its reader
        return
    with open(path, "rb") as file:
        if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise InputError(
                f"{path}: a pointer of Git LFS, not the file itself; fetch it with `git lfs pull`"
            )


@contextmanager
def _unpacking(path: Path) -> Iterator[tuple[BinaryIO, io.BufferedReader]]:
    """Open a file: its bytes as stored, and unpacked."""
    check_no_lfs_pointer(path)
    with open(path, "rb") as file:
        opener = _OPENERS.get(path.suffix.lower())
        yield file, io.BufferedReader(file if opener is None else opener(file), _BUFFER_BYTES)


_UNPACKING_ERRORS = (EOFError, OSError, zlib.error, lzma.LZMAError)


def _unpacking_error(path: Path, error: Exception, after: str = "") -> Exception:
    """Return the error to raise instead of one in unpacking.

    Errors of the disk, which have a number, stay as they are.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error
    return InputError(
        f"{path}: cannot be unpacked{after} ({error}); is it a whole {path.suffix} file?"
    )


def _line_reader(path: Path, stream: io.BufferedReader) -> Callable[[int], bytes]:
    r"""Return a function that reads a line of at most the given number of bytes.

    ``\r`` ends it in a file without line feeds.
    """
    start = stream.peek(_BUFFER_BYTES)
    if b"\n" in start or b"\r" not in start:
        return stream.readline
    # As on the Macs before 2001.
    logger.info("%s: its lines end with carriage returns alone", path)
    # Latin-1 keeps every byte as it is; TextIOWrapper knows all three line ends.
    text = io.TextIOWrapper(stream, encoding="latin-1", newline=None)
    return lambda size: text.readline(size).encode("latin-1")


# JSON


class _Repeated:
    """A stand-in for the value of a key that an object has twice: Python keeps the last alone."""

    def __repr__(self) -> str:
        return "<appears twice>"


_REPEATED = _Repeated()


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key, value in pairs:
        row[key] = _REPEATED if key in row else value
    return row


_PARSER = json.JSONDecoder(object_pairs_hook=_read_object)


def _is_pair_of_spacy(value: Any) -> bool:
    """Return whether a value is spaCy's `[text, {"entities": [...]}]`."""
    return isinstance(value, list) and [type(item) for item in value] == [str, dict]


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _objects(source: str, unit: str, values: Iterable[tuple[int, Any]]) -> NumberedRows:
    for number, value in values:
        if _is_pair_of_spacy(value):
            yield number, {"text": value[0], **value[1]}
        elif isinstance(value, dict):
            yield number, value
        else:
            name = type(value).__name__
            raise InputError(
                f'{source}, {unit} {number}: an object like {{"text": ...}} expected, {name} found'
            )


# Tables of text

_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_QUOTED_CELL = re.compile(r'"(?:[^"]|"")*"')


@cache
def _warn_of_cleared_rows(path: Path, number: int) -> None:
    """Warn once of a file that is read several times."""
    logger.warning(
        "%s: %d rows whose cells are all empty are skipped, and not counted among the rows",
        path,
        number,
    )


# Excel's own first line.
_SEPARATOR_LINE = re.compile(r"sep=(.)")


def _choose_separator(header: str) -> str:
    """Return the separator of a .csv file.

    It is the comma, unless the header has none and another one separates its columns.
    """
    widths = {}
    for separator in _SEPARATORS:
        cells = next(csv.reader([header], delimiter=separator), [])
        widths[separator] = len(cells)
    if widths[","] > 1:
        return ","
    return max(widths, key=lambda separator: widths[separator])


def _is_quoted(lines: Iterable[str]) -> bool:
    """Return whether the cells of a .tsv file are quoted as in a .csv file, as pandas writes it.

    Quotes in the files of GLUE are text. In a quoted file every row has the columns of the header,
    and somewhere quotes are needed: for a quote, a tab or a line break in a cell, or the header
    itself is quoted. Where a quote joins lines under an unquoted header, and each line alone has
    all columns, the lines are rows and the quotes are text.
    """
    lines_of_row: list[str] = []
    width = 0
    has_quoted_header = False
    needs_quotes = False
    reader = csv.reader(_record_lines(lines, lines_of_row), delimiter="\t", strict=True)
    try:
        for cells in reader:
            # `csv.reader` takes as many lines as a row has; these are its raw text.
            raw_cells = "\n".join(lines_of_row).split("\t")
            if not has_quoted_header and _are_rows(lines_of_row, width):
                return False
            lines_of_row.clear()
            if not width:
                width = len(cells)
                has_quoted_header = all(_QUOTED_CELL.fullmatch(cell) for cell in raw_cells)
                needs_quotes = has_quoted_header
            if cells and len(cells) != width:
                return False
            needs_quotes = needs_quotes or any(
                cell not in raw_cells and re.search('["\t\n]', cell) for cell in cells
            )
    except csv.Error:
        return False
    return needs_quotes


def _are_rows(lines: Sequence[str], width: int) -> bool:
    """Return whether lines that quotes join to one row would be several rows without them."""
    if width < 2 or len(lines) < 2:
        return False
    return all(line.count("\t") == width - 1 for line in lines)


def _record_lines(lines: Iterable[str], lines_of_row: list[str]) -> Iterator[str]:
    """Pass lines on with their ends, and append each to `lines_of_row`."""
    for line in lines:
        lines_of_row.append(line)
        yield f"{line}\n"


def _rows_of_cells(
    path: Path, lines: Iterator[tuple[int, list[str]]], *, are_inputs: bool
) -> NumberedRows:
    """Give the cells of each line the names in the first one; empty rows are skipped or refused.

    Excel writes rows that were cleared as separators alone.
    """
    number, header = _read_header(lines)
    names = [name.strip() for name in header]
    counts = Counter(filter(None, names))
    repeated = sorted(name for name, count in counts.items() if count > 1)
    if repeated:
        raise InputError(
            f"{path}, line {number}: the header names {', '.join(repeated)} twice; rename one"
        )
    first_empty = 0
    num_cleared = 0
    for number, cells in lines:
        # A table of one column may have empty values.
        is_cleared = len(names) > 1 and not _has_text(cells)
        if not cells or is_cleared:
            if not first_empty:
                first_empty = number
            if len(cells) > 1:
                num_cleared += 1
            continue
        if first_empty and are_inputs:
            raise InputError(
                f"{path}, line {first_empty}: an empty row; every row is an input, so that row k "
                "of the output is that of row k: fill it, or delete it"
            )
        if len(cells) != len(names):
            advice = ""
            if len(names) == 1:
                advice = (
                    "; a table of one column has no separator: quote the cell, or name the file "
                    ".txt, with a text in each line"
                )
            raise InputError(
                f"{path}, line {number}: {len(cells)} columns, but the header has {len(names)} "
                f"({', '.join(names)}){advice}"
            )
        yield number, dict(zip(names, cells, strict=True))
    if num_cleared:
        _warn_of_cleared_rows(path, num_cleared)


def _read_header(lines: Iterator[tuple[int, list[str]]]) -> tuple[int, list[str]]:
    """Return the number and cells of the first line that is not empty; (0, []) where none is."""
    for number, cells in lines:
        if _has_text(cells):
            return number, cells
    return 0, []


def _has_text(cells: Iterable[str]) -> bool:
    return any(map(str.strip, cells))


# Of Windows-1252, which stand in texts of Western Europe beside letters.
_TYPOGRAPHIC_MARKS = "\u2018\u2019\u201c\u201d\u201e\u2013\u2014\u2026\u20ac«»°§"


def _guess_encoding(raw: bytes, place: int) -> tuple[str, str]:
    """Return what the encoding of a line seems to be, and how to convert it.

    Windows-1252 is guessed where there is no UTF-8 before the first broken byte, and a few letters
    and marks of it stand among ASCII: whole words of them are of another alphabet.
    """
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "perhaps UTF-16", "convert the file to UTF-8: iconv -f utf-16 -t utf-8 OLD > NEW"
    text = raw.decode("cp1252", errors="replace")
    special = [character for character in text if not character.isascii()]
    are_letters = all(char.isalpha() or char in _TYPOGRAPHIC_MARKS for char in special)
    is_western = raw[:place].isascii() and are_letters and 4 * len(special) < len(text)
    if not is_western or "\0" in text:
        return "perhaps another encoding or binary", "convert the file to UTF-8"
    return (
        f"'{special[0]}' in Windows-1252, as Excel writes",
        "convert the file to UTF-8, and see whether it reads right: "
        "iconv -f cp1252 -t utf-8 OLD > NEW",
    )


@dataclass(kw_only=True)
class Reader:
    """Read files in one way, and count what was read.

    Attributes:
        encoding_errors: ``strict`` stops at broken UTF-8 or a NUL character; ``replace`` puts
            U+FFFD for broken bytes, removes NUL characters and counts both.
        max_line_bytes: Refuse a longer line, cell of a .csv file, row of a Parquet file or text in
            a JSON document.
        counts: Filled while files are read.
        advice: What helps besides repairing the file against broken UTF-8, for messages.
        line_advice: What helps against a line that is too long, for messages.
        are_inputs: Rows of tables have an output each, in their order: no row is skipped.
    """

    encoding_errors: EncodingErrors = "strict"
    max_line_bytes: int = DEFAULT_MAX_LINE_BYTES
    counts: ReadCounts = field(default_factory=ReadCounts)
    advice: str = ""
    line_advice: str = ""
    are_inputs: bool = False

    def lines(self, path: Path) -> Iterator[tuple[int, str]]:
        r"""Yield the number and text of each line, without its end ``\n`` or ``\r\n``.

        Only these end a line; ``\r`` does so in a file that has no other line ends.
        """
        for number, line in self._lines_with_ends(path):
            yield number, line.rstrip("\r\n")

    def _lines_with_ends(self, path: Path) -> Iterator[tuple[int, str]]:
        counts = self.counts
        bytes_before = counts.source_bytes
        with _unpacking(path) as (file, stream):
            for number, raw in enumerate(self._raw_lines(path, stream), start=1):
                counts.source_bytes = bytes_before + file.tell()
                counts.text_bytes += len(raw)
                if number == 1 and raw.startswith(codecs.BOM_UTF8):
                    raw = raw.removeprefix(codecs.BOM_UTF8)
                    counts.repaired["byte_order_marks_removed"] += 1
                where = f"{path}, line {number}"
                yield number, self._decode(raw, where)
        counts.source_bytes = bytes_before + path.stat().st_size

    def _raw_lines(self, path: Path, stream: io.BufferedReader) -> Iterator[bytes]:
        number = 0
        try:
            read_line = _line_reader(path, stream)
            while raw := read_line(self.max_line_bytes + 1):
                number += 1
                if len(raw) > self.max_line_bytes:
                    raise InputError(
                        f"{path}, line {number}: this line is longer than {self.max_line_bytes:,} "
                        "bytes; is it text with line "
                        f"ends (\\n or \\r\\n)?{self.line_advice}"
                    )
                yield raw
        except _UNPACKING_ERRORS as error:
            raise _unpacking_error(path, error, f" after line {number}") from error

    def _too_long(self, where: str) -> InputError:
        return InputError(
            f"{where}: this row is longer than {self.max_line_bytes:,} bytes; is it one "
            f"text?{self.line_advice}"
        )

    def _decode(self, raw: bytes, where: str) -> str:
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            if self.encoding_errors == "strict":
                place = error.start
                guess, remedy = _guess_encoding(raw, place)
                raise InputError(
                    f"{where}: not valid UTF-8 (byte 0x{raw[place]:02x} at byte {place + 1} of the "
                    f"line; {guess}); {remedy}{'' if 'iconv' in remedy else self.advice}"
                ) from error
            text = raw.decode("utf-8", errors="replace")
            self.counts.repaired["characters_replaced"] += text.count("\ufffd") - raw.count(
                b"\xef\xbf\xbd"
            )
        return self.without_nul(text, where)

    def without_nul(self, text: str, where: str) -> str:
        """Return a text without NUL characters."""
        if "\0" not in text:
            return text
        if self.encoding_errors == "strict":
            raise InputError(
                f"{where}: NUL character at character {text.index(chr(0)) + 1}; is it a binary "
                "file or UTF-16? Convert it to "
                f"UTF-8 text{self.advice}"
            )
        self.counts.repaired["nul_characters_removed"] += text.count("\0")
        return text.replace("\0", "")

    def table(self, path: Path, columns: list[str] | None = None) -> Rows:
        """Open a table by the ending of its file, one of `TABLE_SUFFIXES`.

        `columns` are those to read of a .parquet file; None for all of them.
        """
        match format_suffix(path):
            case ".jsonl" | ".json":
                return self._json_rows(path)
            case ".csv":
                lines = self._split_csv(path, self._csv_separator(path))
                rows = _rows_of_cells(path, lines, are_inputs=self.are_inputs)
                return Rows(str(path), "line", rows)
            case ".tsv":
                lines = self._split_tsv(path)
                rows = _rows_of_cells(path, lines, are_inputs=self.are_inputs)
                return Rows(str(path), "line", rows)
            case ".parquet":
                return Rows(str(path), "row", self._parquet_rows(path, columns))
        raise InputError(
            f"{path}: unknown ending '{path.suffix}'; allowed: {', '.join(TABLE_SUFFIXES)}"
        )

    def _uncounted(self) -> "Reader":
        """Return a reader for a first look into a file, which is read once more."""
        return replace(self, counts=ReadCounts())

    # JSON

    def _json_rows(self, path: Path) -> Rows:
        if self._has_object_a_line(path):
            return Rows(str(path), "line", _objects(str(path), "line", self._json_lines(path)))
        rows = self._json_document(path)
        if isinstance(rows, dict):
            rows = rows.get("data")
        if not isinstance(rows, list):
            raise InputError(
                f'{path}: a list of objects is expected, or one under "data", or one object a line'
            )
        objects = _objects(str(path), "row", enumerate(rows, start=1))
        return Rows(str(path), "row", self._check_texts(objects, path))

    def _check_texts(self, rows: NumberedRows, path: Path) -> NumberedRows:
        """Pass the rows of a document on, of which a text may be as long as a line."""
        for number, row in rows:
            for value in row.values():
                if isinstance(value, str) and len(value) > self.max_line_bytes:
                    raise self._too_long(f"{path}, row {number}")
            yield number, row

    def _has_object_a_line(self, path: Path) -> bool:
        """Return whether each line of a JSON file is a row; else it is one document."""
        first_line, second_line = self._first_lines(path)
        if not first_line:
            return True
        is_json_lines = format_suffix(path) == ".jsonl"
        try:
            first = json.loads(first_line)
        except (ValueError, RecursionError):
            # Broken, too long, or the beginning of a document that goes on in the next line.
            is_list = first_line.lstrip(codecs.BOM_UTF8 + b" ").startswith(b"[")
            return is_json_lines and not is_list
        if isinstance(first, list):
            return _is_pair_of_spacy(first)
        if not isinstance(first, dict):
            return True  # refused when it is read
        # A row may have a column "data" too.
        is_row = bool(second_line) or (is_json_lines and "text" in first)
        return is_row or not _is_list_of_objects(first.get("data"))

    def _first_lines(self, path: Path) -> tuple[bytes, bytes]:
        """Return the first two of `_next_line`."""
        with _unpacking(path) as (_, stream):
            try:
                return self._next_line(stream), self._next_line(stream)
            except _UNPACKING_ERRORS as error:
                raise _unpacking_error(path, error) from error

    def _next_line(self, stream: io.BufferedReader) -> bytes:
        """Return the next line that is not blank, cut at the longest allowed length.

        It is b"" at the end.
        """
        while True:
            line = stream.readline(self.max_line_bytes + 1)
            if not line or line.strip(codecs.BOM_UTF8 + b" \t\r\n"):
                return line

    def _json_lines(self, path: Path) -> Iterator[tuple[int, Any]]:
        for number, line in self.lines(path):
            if line.strip():
                yield number, _parse_json(line, f"{path}, line {number}")

    def _json_document(self, path: Path) -> Any:
        with _unpacking(path) as (_, stream):
            try:
                raw = stream.read(MAX_DOCUMENT_BYTES + 1)
            except _UNPACKING_ERRORS as error:
                raise _unpacking_error(path, error) from error
        if len(raw) > MAX_DOCUMENT_BYTES:
            raise InputError(
                f"{path}: one JSON document of more than {MAX_DOCUMENT_BYTES:,} bytes; write one "
                "object a line: jq -c '.[]'"
            )
        self.counts.source_bytes += path.stat().st_size
        self.counts.text_bytes += len(raw)
        return _parse_json(self._decode(raw.removeprefix(codecs.BOM_UTF8), str(path)), str(path))

    # CSV and TSV

    def _allow_long_cells(self) -> None:
        """Raise Python's own limit, which would refuse long documents."""
        csv.field_size_limit(self.max_line_bytes)

    def _csv_separator(self, path: Path) -> str:
        lines = self._uncounted().lines(path)
        header = next((line for _, line in lines if line.strip()), "")
        match = _SEPARATOR_LINE.fullmatch(header)
        separator = match[1] if match else _choose_separator(header)
        if separator != ",":
            name = _SEPARATORS.get(separator, separator)
            logger.info("%s: its columns are separated by %s", path, name)
        return separator

    def _split_csv(self, path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
        """Yield the line on which each row starts, and its cells."""
        # Strict quoting finds quotes that are not closed.
        self._allow_long_cells()
        # With their ends: places in a text that has some are counted with them.
        lines: Iterator[str] = (line for _, line in self._lines_with_ends(path))
        first = next(lines, "")
        has_separator_line = _SEPARATOR_LINE.fullmatch(first.strip()) is not None
        # Where blanks follow all separators of the header they are not part of the cells.
        num_blanks = first.count(f"{separator} ")
        has_blanks = num_blanks > 0 and num_blanks == first.count(separator)
        lines = itertools.chain([first], lines)
        reader = csv.reader(lines, delimiter=separator, strict=True, skipinitialspace=has_blanks)
        start = 1
        try:
            for cells in reader:
                if start > 1 or not has_separator_line:
                    yield start, cells
                start = reader.line_num + 1
        except csv.Error as error:
            raise InputError(
                f"{path}, line {start}: broken CSV ({error}); check the quotes"
            ) from error

    def _split_tsv(self, path: Path) -> Iterator[tuple[int, list[str]]]:
        self._allow_long_cells()
        if _is_quoted(line for _, line in self._uncounted().lines(path)):
            logger.info("%s: its cells are quoted as in a .csv file", path)
            return self._split_csv(path, "\t")
        return self._split_all_at_tabs(path)

    def _split_all_at_tabs(self, path: Path) -> Iterator[tuple[int, list[str]]]:
        for number, line in self.lines(path):
            yield number, line.split("\t") if line else []

    def split_at_tabs(self, path: Path) -> Iterator[tuple[int, list[str]]]:
        """Yield the number and cells of each line that is not empty; quotes are text."""
        for number, cells in self._split_all_at_tabs(path):
            if cells:
                yield number, cells

    # Parquet

    def _parquet_rows(self, path: Path, columns: list[str] | None) -> NumberedRows:
        import pyarrow
        from pyarrow import parquet

        counts = self.counts
        bytes_before = counts.source_bytes
        file_bytes = path.stat().st_size
        number = 0
        try:
            # Without pre-buffering a row group is read piece by piece: memory does not follow the
            # size of the groups.
            check_no_lfs_pointer(path)
            with parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER_BYTES) as file:
                num_rows = max(1, file.metadata.num_rows)
                batch_rows = self._rows_at_once(path, file.metadata)
                for batch in file.iter_batches(batch_size=batch_rows, columns=columns):
                    for row in self._rows_of_batch(batch, path, number):
                        number += 1
                        yield number, row
                    counts.source_bytes = bytes_before + file_bytes * number // num_rows
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"{path}: damaged or not a Parquet file (after row {number}: {first_line(error)})"
            ) from error

    def _rows_of_batch(self, batch: Any, path: Path, num_before: int) -> Iterable[Row]:
        """Return the rows of a batch, of which the file has `num_before` before it."""
        if batch.nbytes <= min(_BUFFER_BYTES, self.max_line_bytes):
            return list(batch.to_pylist())
        return self._rows_one_by_one(batch, path, num_before)

    def _rows_one_by_one(self, batch: Any, path: Path, num_before: int) -> Iterator[Row]:
        """Yield the rows of a large batch; InputError where one is too long."""
        for index in range(batch.num_rows):
            row = batch.slice(index, 1)
            if _unpacked_bytes(row) > self.max_line_bytes:
                raise self._too_long(f"{path}, row {num_before + index + 1}")
            yield from row.to_pylist()

    def _rows_at_once(self, path: Path, metadata: Any) -> int:
        """Return how many rows are unpacked together."""
        # A dictionary-encoded value is stored once but may fill every row.
        largest = 1
        for group_index in range(metadata.num_row_groups):
            group = metadata.row_group(group_index)
            for column_index in range(group.num_columns):
                column = group.column(column_index)
                largest = max(largest, column.total_uncompressed_size)
                # Lists: all numbers in them are counted.
                if column.num_values > group.num_rows * self.max_line_bytes:
                    raise self._too_long(f"{path}, column '{column.path_in_schema}'")
        return max(1, min(_BATCH_ROWS, _BATCH_BYTES // largest))


def _unpacked_bytes(rows: Any) -> int:
    """Return the bytes of rows of a Parquet file.

    Values of their dictionaries that none of the rows has are left out.
    """
    total = 0
    for column in rows.columns:
        unpacked = column.dictionary_decode() if hasattr(column, "dictionary_decode") else column
        total += unpacked.nbytes
    return total


def _parse_json(text: str, where: str) -> Any:
    try:
        return _PARSER.decode(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: broken JSON ({error})") from error


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file without their ends; InputError where it is not UTF-8."""
    for _, line in Reader().lines(path):
        yield line


def read_table(path: Path, *, are_inputs: bool = False) -> Rows:
    """Open a table by the ending of its file, one of `TABLE_SUFFIXES`.

    One of `COMPRESSION_SUFFIXES` may follow it. Rows that are inputs have an output each: one whose
    cells are all empty is refused and not skipped, except at the end of the file.
    """
    return Reader(are_inputs=are_inputs).table(path)


def class_names(path: Path) -> dict[str, list[str]]:
    """Return the columns of a Parquet file, each with the names of its class numbers.

    `datasets` writes them into the file; a column without names has none.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        metadata = parquet.read_schema(path).metadata or {}
        features = dict(json.loads(metadata[b"huggingface"])["info"]["features"])
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, TypeError):
        return {}  # a damaged file is refused when its rows are read
    names = {}
    for column, feature in features.items():
        if isinstance(feature, dict):
            feature = feature.get("feature", feature)  # of a list, that of its elements
        is_class = isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        names[column] = list(feature["names"]) if is_class else []
    return names


# Columns


def column_value(row: Row, column: str, where: str) -> Any:
    """Return the value of a column, whatever it is; InputError where the row has none, or two."""
    if column not in row:
        raise InputError(f"{where}: no column '{column}'; columns present: {list_columns(row)}")
    value = row[column]
    if value is _REPEATED:
        raise InputError(f"{where}: column '{column}' appears more than once; keep one")
    return value


def list_columns(names: Iterable[object]) -> str:
    """Name up to 20 columns in one line that stays readable, whatever they are called."""
    words = []
    for name in map(str, names):
        word = name if name.isprintable() else ascii(name)
        if len(word) > 60:
            word = f"{word[:60]}..."
        words.append(word)

    if not words:
        return "none"
    text = ", ".join(words[:20])
    num_left_out = len(words) - 20
    return f"{text} and {num_left_out} more" if num_left_out > 0 else text


def is_missing(value: Any) -> bool:
    """Return whether a cell holds nothing: null, or the NaN that pandas puts in its place."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def column_text(row: Row, column: str, where: str) -> str:
    """Return the text of a column, as a .csv file has it.

    It is "" where the cell is empty, and a number as it is written.
    """
    value = column_value(row, column, where)
    if is_missing(value):
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise InputError(f"{where}: column '{column}' holds {value!r:.60}; text is expected")
    check_characters(value, column, where)
    return value


# Halves of surrogate pairs, which broken JSON can hold.
SURROGATES = re.compile("[\ud800-\udfff]")


def check_characters(text: str, column: str, where: str) -> None:
    """Refuse half of a surrogate pair: a JSON escape can spell it, and no tokenizer accepts it."""
    if not text.isascii() and SURROGATES.search(text):
        raise InputError(
            f"{where}: column '{column}' holds half of a surrogate pair (\\ud800 to \\udfff)"
        )


def draw_from(text: str) -> float:
    """Return a number from 0 to 1 that follows from a text alone; 1 itself only by rounding."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64
