"""Rows with a text column: JSON Lines, JSON arrays, Parquet files and data sets of the Hugging Face Hub."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bert_recipes.data.json_rows import RowWithRepeats, iter_json_rows
from bert_recipes.data.text_lines import CorpusCounts, EncodingErrors, remove_nul
from bert_recipes.errors import InputError


_SURROGATES = re.compile("[\ud800-\udfff]")
_BUFFER_BYTES = 2**20
# Of the columns that a row has, so many are named in a message, and so much of each.
_COLUMNS_NAMED, _CHARACTERS_NAMED = 20, 60


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
    else:
        rows = iter_json_rows(path, encoding_errors=encoding_errors, max_line_bytes=max_line_bytes, counts=counts)
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
        InputError: If the row is no object, lacks the column, has it twice, or holds something else than text in it.
    """
    if not isinstance(row, dict):
        raise InputError(
            f"{where}: an object like {{{json.dumps(text_column)}: ...}} expected, got {type(row).__name__}"
        )
    if text_column not in row:
        raise InputError(
            f"{where}: no column {text_column!r}; columns present: {_listed(row)}; set text_column to one of them"
        )
    if isinstance(row, RowWithRepeats) and text_column in row.repeated:
        raise InputError(f"{where}: column {text_column!r} stands there more than once; keep one")
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


def _listed(names: Iterable[object]) -> str:
    """Name columns in one line that stays readable, whatever they are called and however many there are."""
    words = [word if word.isprintable() else ascii(word) for word in map(str, names)]
    short = [word if len(word) <= _CHARACTERS_NAMED else f"{word[:_CHARACTERS_NAMED]}..." for word in words]
    more = f" and {len(short) - _COLUMNS_NAMED} more" if len(short) > _COLUMNS_NAMED else ""
    return (", ".join(short[:_COLUMNS_NAMED]) or "none") + more


def _parquet_rows(path: Path, text_column: str, counts: CorpusCounts) -> Iterator[tuple[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    before, size, number = counts.source_bytes, path.stat().st_size, 0
    try:
        # Without pre-buffering a row group is read piece by piece: memory does not follow the size of the groups.
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER_BYTES) as file:
            _check_schema(file.schema_arrow, text_column, path, counts)
            for batch in file.iter_batches(batch_size=256, columns=[text_column]):
                for text in batch.column(0).to_pylist():
                    number += 1
                    counts.text_bytes += len(text.encode("utf-8")) if isinstance(text, str) else 0
                    yield f"{path}, row {number}", {text_column: text}
                counts.source_bytes = before + size * number // max(1, file.metadata.num_rows)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        detail = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{path}: damaged or not a Parquet file (after row {number}: {detail})") from error


def _check_schema(schema: Any, text_column: str, path: Path, counts: CorpusCounts) -> None:
    """Refuse a Parquet file that has no column of text under this name, or more than one.

    Args:
        schema: As `pyarrow.Schema`.
        text_column: The name.
        path: For the message.
        counts: For `check_row`.
    """
    import pyarrow.types as kinds

    if text_column not in schema.names:
        check_row(dict.fromkeys(schema.names), text_column, str(path), "strict", counts)
    if schema.names.count(text_column) > 1:
        raise InputError(f"{path}: column {text_column!r} stands there more than once; keep one")
    kind = schema.field(text_column).type
    values = getattr(kind, "storage_type", kind)
    values = values.value_type if kinds.is_dictionary(values) else values
    is_text = kinds.is_string(values) or kinds.is_large_string(values) or kinds.is_string_view(values)
    # Values of some other types cannot even be turned into Python's; a column of nulls has no type of its own.
    if not is_text and not kinds.is_null(values):
        raise InputError(f"{path}: column {text_column!r} holds {_listed([kind])}, text expected")


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
