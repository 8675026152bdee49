"""Rows with a text column: JSON Lines, JSON arrays, Parquet files and data sets of the Hugging Face Hub."""

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bert_recipes.data.text_lines import (
    UNPACK_ERRORS,
    CorpusCounts,
    EncodingErrors,
    open_bytes,
    read_lines,
    remove_nul,
)
from bert_recipes.errors import InputError


_SEPARATORS = re.compile(r"[\s,]*")
_SURROGATES = re.compile("[\ud800-\udfff]")
_CHUNK_BYTES = 2**20


def iter_file_texts(
    path: Path, *, text_column: str, encoding_errors: EncodingErrors, max_line_bytes: int, counts: CorpusCounts
) -> Iterator[str]:
    """Yield the text of every row of a ``.jsonl``, ``.json`` (array or lines; each also ``.gz``) or ``.parquet`` file.

    Rows whose text is null are dropped and counted.

    Raises:
        InputError: With file and line or row: broken JSON, a row without the column, a value that is not text.
    """
    before = counts.source_bytes
    rows: Iterable[tuple[str, Any]]
    if path.suffix.lower() == ".parquet":
        rows = _parquet_rows(path, text_column, counts)
    elif ".json" in path.suffixes[-2:] and _starts_with_bracket(path):
        rows = _json_array(path, encoding_errors, max_line_bytes, counts)
    else:
        lines = read_lines(path, encoding_errors=encoding_errors, max_line_bytes=max_line_bytes, counts=counts)
        rows = _json_lines(path, lines)
    for where, row in rows:
        text = check_row(row, text_column, where, encoding_errors, counts)
        if text is not None:
            yield text
    counts.source_bytes = before + path.stat().st_size


def check_row(
    row: Any, text_column: str, where: str, encoding_errors: EncodingErrors, counts: CorpusCounts
) -> str | None:
    """Return the text of a row, or None (counted) where it is null.

    Raises:
        InputError: If the row is no object, lacks the column, or holds something else than text in it.
    """
    if not isinstance(row, dict):
        raise InputError(
            f"{where}: an object like {{{json.dumps(text_column)}: ...}} expected, got {type(row).__name__}"
        )
    if text_column not in row:
        present = ", ".join(map(str, row)) or "none"
        raise InputError(
            f"{where}: no column {text_column!r}; columns present: {present}; set text_column to one of them"
        )
    text = row[text_column]
    if text is None:
        counts.dropped["rows_without_text"] += 1
        return None
    if not isinstance(text, str):
        raise InputError(f"{where}: column {text_column!r} holds {type(text).__name__}, text expected")
    # A JSON escape can spell half of a surrogate pair: no encoder accepts it further on.
    if not text.isascii() and _SURROGATES.search(text):
        if encoding_errors == "strict":
            raise InputError(
                f"{where}: lone surrogate in {text_column!r}; mend it, or set encoding_errors to 'replace'"
            )
        text, replaced = _SURROGATES.subn("\ufffd", text)
        counts.repaired["characters_replaced"] += replaced
    return remove_nul(text, where, encoding_errors, counts)


def _json_lines(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[str, Any]]:
    for number, line in lines:
        if not line.strip():
            continue
        try:
            yield f"{path}:{number}", json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}:{number}: broken JSON ({error}); one object a line expected") from error


def _starts_with_bracket(path: Path) -> bool:
    """Tell whether a file is one JSON array (and not one object a line)."""
    with open_bytes(path) as (stream, _):
        try:
            return stream.read(4096).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")
        except UNPACK_ERRORS as error:
            raise InputError(f"{path}: cannot be unpacked ({error}); is it a whole .gz?") from error


def _json_array(
    path: Path, encoding_errors: EncodingErrors, max_element_bytes: int, counts: CorpusCounts
) -> Iterator[tuple[str, Any]]:
    """Yield the elements of a JSON array one by one, holding little more than one of them."""
    before, parser = counts.source_bytes, json.JSONDecoder()
    decoder = codecs.getincrementaldecoder("utf-8-sig")(encoding_errors)
    buffer, place, line, at_end = "", 0, 1, False
    with open_bytes(path) as (stream, tell):
        while True:
            start = _SEPARATORS.match(buffer, place).end()  # type: ignore[union-attr]
            line += buffer.count("\n", place, start)
            place = start
            if buffer.startswith("]", place):
                return
            if buffer.startswith("[", place) and counts.source_bytes == before:
                place += 1
                counts.source_bytes = before + tell()
                continue
            try:
                element, end = parser.raw_decode(buffer, place)
            except (ValueError, RecursionError) as error:
                if at_end or len(buffer) - place > max_element_bytes:
                    raise InputError(f"{path}:{line}: broken JSON ({error}) or an endless element") from error
                chunk, at_end = _read_chunk(stream, path, line, decoder)
                counts.text_bytes += len(chunk.encode("utf-8"))
                buffer, place = buffer[place:] + chunk, 0
                continue
            yield f"{path}:{line}", element
            line += buffer.count("\n", place, end)
            place, counts.source_bytes = end, before + tell()


def _read_chunk(stream: Any, path: Path, line: int, decoder: codecs.IncrementalDecoder) -> tuple[str, bool]:
    """Return more text and whether it was the last."""
    try:
        raw = stream.read(_CHUNK_BYTES)
        return decoder.decode(raw, final=not raw), not raw
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not valid UTF-8 after line {line}; convert it to UTF-8") from error
    except UNPACK_ERRORS as error:
        raise InputError(f"{path}: cannot be unpacked after line {line} ({error}); is it a whole .gz?") from error


def _parquet_rows(path: Path, text_column: str, counts: CorpusCounts) -> Iterator[tuple[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    before, size, number = counts.source_bytes, path.stat().st_size, 0
    try:
        # Without pre-buffering a row group is read piece by piece: memory does not follow the size of the groups.
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=_CHUNK_BYTES) as file:
            if text_column not in file.schema_arrow.names:
                check_row(dict.fromkeys(file.schema_arrow.names), text_column, str(path), "strict", counts)
            for batch in file.iter_batches(batch_size=256, columns=[text_column]):
                for text in batch.column(0).to_pylist():
                    number += 1
                    counts.text_bytes += len(text.encode("utf-8")) if isinstance(text, str) else 0
                    yield f"{path}, row {number}", {text_column: text}
                counts.source_bytes = before + size * number // max(1, file.metadata.num_rows)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        detail = str(error).splitlines()[0]
        raise InputError(f"{path}: damaged or not a Parquet file (after row {number}: {detail})") from error


def iter_hub_texts(
    name: str,
    config_name: str | None,
    split: str,
    *,
    text_column: str,
    encoding_errors: EncodingErrors,
    counts: CorpusCounts,
) -> Iterator[str]:
    """Yield the text of every row of a data set on the Hugging Face Hub, streamed in the order of its files.

    Raises:
        InputError: If the Hub cannot be reached (at once: no retries), or has no such data set, configuration, split
            or column.
    """
    # The HTTP client below the Hub's differs by version (httpx, httpx2): its errors are known by their common base class.
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    network_errors: tuple[type[Exception], ...] = (OSError, *HfHubHTTPError.__bases__)
    open_errors: tuple[type[Exception], ...] = (*network_errors, ValueError, RuntimeError)
    try:
        # One request with a short limit, so that a machine without network learns it at once: `datasets` tries for minutes.
        HfApi().dataset_info(name, timeout=10)
        from datasets import load_dataset

        rows = iter(load_dataset(name, config_name, split=split, streaming=True))
    except open_errors as error:
        detail = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(
            f"Hub data set {name!r}: cannot be opened ({detail}); check name and network, or give local text with --files"
        ) from error
    number = 0
    while True:
        try:
            row = next(rows, None)
        except network_errors as error:
            raise InputError(f"Hub data set {name!r}: the connection broke after row {number} ({error})") from error
        if row is None:
            return
        number += 1
        where = f"Hub data set {name!r}, row {number}"
        text = check_row(row, text_column, where, encoding_errors, counts)
        if text is not None:
            size = len(text.encode("utf-8"))
            counts.text_bytes += size
            counts.source_bytes += size
            yield text
