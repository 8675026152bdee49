"""Lines of UTF-8 text from plain or gzip files: strict or repairing, in bounded memory, errors with file and line."""

import codecs
import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal, cast

from bert_recipes.errors import InputError


EncodingErrors = Literal["strict", "replace"]
MAX_LINE_BYTES = 2**24
# A terabyte: no machine holds such a line, and larger numbers do not fit what the system counts bytes in.
MOST_LINE_BYTES = 2**40
UNPACK_ERRORS = (gzip.BadGzipFile, EOFError, zlib.error)


@dataclass(kw_only=True)
class CorpusCounts:
    """What was read; filled while the documents are drawn.

    Attributes:
        files: Files that were opened.
        source_bytes: Bytes of the files passed so far, as they lie on the disk (compressed ones: compressed).
        text_bytes: Bytes of text, unpacked.
        documents: Documents handed out.
        repaired: What was changed in the text, by kind: ``byte_order_marks_removed``, ``characters_replaced``,
            ``nul_characters_removed``.
        dropped: What was left out, by reason: ``rows_without_text``, ``files_without_text``.
    """

    files: int = 0
    source_bytes: int = 0
    text_bytes: int = 0
    documents: int = 0
    repaired: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, int | dict[str, int]]:
        """Return all counts as JSON values."""
        numbers = {name: getattr(self, name) for name in ("files", "source_bytes", "text_bytes", "documents")}
        return {**numbers, "repaired": dict(self.repaired), "dropped": dict(self.dropped)}


@contextmanager
def open_bytes(path: Path) -> Iterator[tuple[BinaryIO, Callable[[], int]]]:
    """Open a plain or ``.gz`` file; yields the unpacked stream and a function that tells the place in the file itself."""
    with open(path, "rb") as raw:
        if not path.name.lower().endswith(".gz"):
            yield raw, raw.tell
            return
        with gzip.GzipFile(fileobj=raw) as unpacked:
            yield cast(BinaryIO, unpacked), raw.tell


def read_lines(
    path: Path, *, encoding_errors: EncodingErrors, max_line_bytes: int, counts: CorpusCounts
) -> Iterator[tuple[int, str]]:
    r"""Yield (line number from 1, text without its end ``\n`` or ``\r\n``); only these end a line.

    Raises:
        InputError: With file and line: not UTF-8 or a NUL character (both only if strict), a line longer than
            ``max_line_bytes``, a ``.gz`` file that cannot be unpacked.
    """
    before, number = counts.source_bytes, 0
    with open_bytes(path) as (stream, tell):
        while True:
            try:
                raw = stream.readline(max_line_bytes + 1)
            except UNPACK_ERRORS as error:
                raise InputError(
                    f"{path}: cannot be unpacked after line {number} ({error}); is it a whole .gz?"
                ) from error
            if not raw:
                break
            number += 1
            if len(raw) > max_line_bytes:
                raise InputError(
                    f"{path}:{number}: this line is longer than {max_line_bytes:,} bytes; is it text with line ends "
                    "(\\n or \\r\\n)? If so, raise max_line_bytes"
                )
            counts.text_bytes += len(raw)
            counts.source_bytes = before + tell()
            if number == 1 and raw.startswith(codecs.BOM_UTF8):
                raw = raw.removeprefix(codecs.BOM_UTF8)
                counts.repaired["byte_order_marks_removed"] += 1
            yield number, decode_line(raw, f"{path}:{number}", encoding_errors, counts).rstrip("\r\n")
        counts.source_bytes = before + tell()


def decode_line(raw: bytes, where: str, encoding_errors: EncodingErrors, counts: CorpusCounts) -> str:
    """Decode UTF-8; ``replace`` puts U+FFFD for broken bytes, removes NUL characters and counts both.

    Raises:
        InputError: If strict and the bytes are not UTF-8 or hold a NUL character.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if encoding_errors == "strict":
            kind = (
                "UTF-16"
                if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
                else "another encoding or binary"
            )
            raise InputError(
                f"{where}: not valid UTF-8 (byte 0x{raw[error.start]:02x} at byte {error.start + 1} of the line; perhaps "
                f"{kind}); convert the file to UTF-8, or set encoding_errors to 'replace'"
            ) from error
        text = raw.decode("utf-8", errors="replace")
        counts.repaired["characters_replaced"] += text.count("\ufffd") - raw.count(b"\xef\xbf\xbd")
    return remove_nul(text, where, encoding_errors, counts)


def remove_nul(text: str, where: str, encoding_errors: EncodingErrors, counts: CorpusCounts) -> str:
    """Remove and count NUL characters.

    Raises:
        InputError: If strict and there is one.
    """
    if "\0" not in text:
        return text
    if encoding_errors == "strict":
        raise InputError(
            f"{where}: NUL character at character {text.index(chr(0)) + 1}; is it a binary file or UTF-16? Convert it to "
            "UTF-8 text, or set encoding_errors to 'replace' to drop the NULs"
        )
    counts.repaired["nul_characters_removed"] += text.count("\0")
    return text.replace("\0", "")
