"""JSON files as rows: one object a line, or an array that is read element by element."""

import codecs
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from bert_recipes.data.text_lines import UNPACK_ERRORS, CorpusCounts, EncodingErrors, open_bytes, read_lines
from bert_recipes.errors import InputError


_SEPARATORS = re.compile(r"[\s,]*")
_CHUNK_BYTES = 2**20


def iter_json_rows(
    path: Path, *, encoding_errors: EncodingErrors, max_line_bytes: int, counts: CorpusCounts
) -> Iterator[tuple[str, Any]]:
    """Yield (where it stands, value) of every row of a ``.jsonl`` or ``.json`` file (array or lines; each also ``.gz``).

    Raises:
        InputError: With file and line: broken JSON, something behind an array, not UTF-8, a row of more than
            ``max_line_bytes``.
    """
    if path.name.lower().endswith((".json", ".json.gz")) and _starts_with_bracket(path):
        return _json_array(path, encoding_errors, max_line_bytes, counts)
    lines = read_lines(path, encoding_errors=encoding_errors, max_line_bytes=max_line_bytes, counts=counts)
    return _json_lines(path, lines)


class RowWithRepeats(dict[str, Any]):
    """A JSON object with keys that stand there more than once: Python keeps the last value and tells nobody."""

    repeated: set[str]


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict, and remember which keys came again."""
    row = dict(pairs)
    if len(row) == len(pairs):
        return row
    marked = RowWithRepeats(row)
    marked.repeated = {key for key, number in Counter(key for key, _ in pairs).items() if number > 1}
    return marked


_PARSER = json.JSONDecoder(object_pairs_hook=_read_object)


def _json_lines(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[str, Any]]:
    for number, line in lines:
        if not line.strip():
            continue
        try:
            yield f"{path}:{number}", _PARSER.decode(line)
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
    before, decoder = counts.source_bytes, _ChunkDecoder(encoding_errors, counts)
    buffer, place, line, at_end, is_open = "", 0, 1, False, False
    with open_bytes(path) as (stream, tell):
        while True:
            start = _SEPARATORS.match(buffer, place).end()  # type: ignore[union-attr]
            line += buffer.count("\n", place, start)
            place = start
            if buffer.startswith("]", place):
                break
            if not is_open and buffer.startswith("[", place):
                place, is_open = place + 1, True
                continue
            try:
                element, end = _PARSER.raw_decode(buffer, place)
            except (ValueError, RecursionError) as error:
                if at_end or len(buffer) - place > max_element_bytes:
                    raise InputError(f"{path}:{line}: broken JSON ({error}) or an endless element") from error
                chunk, at_end = _read_chunk(stream, path, line, decoder)
                buffer, place = buffer[place:] + chunk, 0
                continue
            yield f"{path}:{line}", element
            line += buffer.count("\n", place, end)
            place, counts.source_bytes = end, before + tell()
        rest = buffer[place + 1 :]
        while not rest.strip() and not at_end:
            line += rest.count("\n")
            rest, at_end = _read_chunk(stream, path, line, decoder)
        if rest.strip():
            line += rest.count("\n", 0, len(rest) - len(rest.lstrip()))
            raise InputError(f"{path}:{line}: something follows the end of the JSON array; one array a file expected")


class _ChunkDecoder:
    """UTF-8 that comes in pieces, to text; counts bytes and repairs as `read_lines` does."""

    def __init__(self, encoding_errors: EncodingErrors, counts: CorpusCounts) -> None:
        self._errors, self._counts = encoding_errors, counts
        self._rest, self._is_first = b"", True

    def decode(self, raw: bytes) -> str:
        """Decode one more piece; an empty one says that there are no more.

        Raises:
            UnicodeDecodeError: If strict and the bytes are not UTF-8.
        """
        data, counts = self._rest + raw, self._counts
        counts.text_bytes += len(raw)
        if self._is_first and data.startswith(codecs.BOM_UTF8):
            data = data.removeprefix(codecs.BOM_UTF8)
            counts.repaired["byte_order_marks_removed"] += 1
        text, used = codecs.utf_8_decode(data, self._errors, not raw)
        # What ends inside a character waits for the next piece.
        self._rest, self._is_first = data[used:], False
        replaced = text.count("\ufffd") - data[:used].count(b"\xef\xbf\xbd")
        if replaced:
            counts.repaired["characters_replaced"] += replaced
        return text


def _read_chunk(stream: BinaryIO, path: Path, line: int, decoder: _ChunkDecoder) -> tuple[str, bool]:
    """Return more text and whether it was the last."""
    try:
        raw = stream.read(_CHUNK_BYTES)
        return decoder.decode(raw), not raw
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not valid UTF-8 after line {line}; convert it to UTF-8") from error
    except UNPACK_ERRORS as error:
        raise InputError(f"{path}: cannot be unpacked after line {line} ({error}); is it a whole .gz?") from error
