"""Texts, files and settings of every kind of badness, and good ones among them, as Hypothesis
strategies.
"""

import gzip
import io
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from small_corpora import WORDS


class File(NamedTuple):
    """A file that is yet to be written."""

    name: str
    data: bytes


def mostly(good: Any, bad: Any, parts: int = 4) -> st.SearchStrategy:
    """Draw from `bad` one time in `parts`."""
    # Hypothesis likes the ends of a range, and small numbers best.
    return st.integers(0, 4 * parts - 1).flatmap(
        lambda number: bad if number % parts == parts // 2 else good
    )


# Texts

ODD_WORDS = [
    "Mr.",
    "U.S.",
    "...",
    "[SEP]",
    "e\u0301\u0327" * 3,
    "x" * 250,
    "\x07",
    "\x1c",
    "\ufeff",
]
ODD_WORDS += ["\U0001f469\u200d\U0001f680"]  # an emoji of three characters
ODD_WORDS += ["\ufffd", "\u65e5\u672c\u3002\u8a9e", "\u0939\u093f\u0964", "\u0645\u061f"]
ODD_WORDS += ["\ue000", "\U0010ffff", ".)" * 40, "!" * 200]
LINE_ENDS = ["\n", "\n", "\n\n", "\r\n", "\r\n\r\n", "\r", "\u2028", "\x85", "\x0c", "\n \t\n"]

words = mostly(st.sampled_from(WORDS), st.sampled_from(ODD_WORDS))
lines = st.one_of(
    st.lists(words, min_size=1, max_size=12).map(" ".join),
    st.lists(words, min_size=2, max_size=12).map(
        lambda drawn: f"{' '.join(drawn)}. The red apple falls!"
    ),
    st.text(max_size=30).map(lambda text: text.encode("utf-8", "replace").decode("utf-8")),
    st.sampled_from(["", " ", "\t", "a" * 5000]),
)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Lines with ends of one kind, or of several."""
    ends = draw(st.lists(st.sampled_from(LINE_ENDS), min_size=1, max_size=3))
    drawn = draw(st.lists(lines, max_size=12))
    return "".join(line + ends[number % len(ends)] for number, line in enumerate(drawn))


def damaged(data: bytes) -> st.SearchStrategy[bytes]:
    """A few bytes lost, changed or added."""
    places = st.integers(0, len(data))
    odd_pieces = [b"\0", b"\xef\xbb\xbf", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\n", b"\r"]
    odd_pieces += [b"\x1f\x8b", b"]", b"{"]
    pieces = st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from(odd_pieces))
    return st.one_of(
        places.map(lambda place: data[:place]),
        st.tuples(places, pieces).map(lambda drawn: data[: drawn[0]] + drawn[1] + data[drawn[0] :]),
        st.tuples(places, pieces).map(
            lambda drawn: data[: drawn[0]] + drawn[1] + data[drawn[0] + len(drawn[1]) :]
        ),
        st.tuples(places, st.integers(1, 255)).map(lambda drawn: flipped(data, *drawn)),
    )


def flipped(data: bytes, place: int, bits: int) -> bytes:
    """One byte changed."""
    if not data:
        return data
    place %= len(data)
    return data[:place] + bytes([data[place] ^ bits]) + data[place + 1 :]


CODECS = ["utf-8-sig", "utf-16", "utf-16-be", "utf-32", "latin-1", "cp1252", "shift_jis"]


@st.composite
def text_bytes(draw: st.DrawFn) -> bytes:
    """A text file: UTF-8, another encoding, two in one, or no text at all."""
    data = draw(texts()).encode("utf-8")
    damages = ["codec", "mixed", "damaged", "damaged", "binary"]
    kind = draw(st.sampled_from(["whole"] * 12 + damages))
    if kind == "whole":
        return data
    if kind == "damaged":
        return draw(damaged(data))
    if kind == "binary":
        return draw(st.binary(max_size=200))
    foreign = draw(texts()).encode(draw(st.sampled_from(CODECS)), errors="replace")
    return foreign if kind == "codec" else data + foreign


# Rows

ODD_VALUES = [None, 1.5, True, [], ["a"], {"text": "a"}, "", " \n", "a\0b", "\ud800", 10**30]
ODD_VALUES += ["a\u2028b\n\nc"]
ODD_ROWS = [
    '{"text": "red", "text": "green"}',
    '{"body": "red", "a\\nb": 1}',
    "{}",
    '"text"',
    "null",
]
ODD_ROWS += ['{"text": ' + "9" * 5000 + "}", '{"text": 1e999, "body": NaN}', '{"text": "red"']
ODD_ROWS += ['{"text": "red"} {"text": "green"}', "{'text': 'red'}", '{"text": "a\tb"}']
ODD_ROWS += ['{"text": "\\ud83d\\ude00 \\ud83d"}', '{"text": "\\u0000"}', '\ufeff{"text": "red"}']
ODD_ROWS += ['{"text": ' + "[" * 3000, "[" * 100_000]
ODD_ROWS.append(json.dumps({f"column {number}": 1 for number in range(3000)}))


@st.composite
def row_texts(draw: st.DrawFn) -> list[str]:
    """Rows as JSON texts, most of them good."""
    values = mostly(texts(), st.sampled_from(ODD_VALUES), 12)
    row = st.fixed_dictionaries({"text": values}, optional={"body": values})
    rows = draw(st.lists(row, max_size=6))
    written = [json.dumps(row, ensure_ascii=draw(st.booleans())) for row in rows]
    if draw(mostly(st.just(False), st.just(True), 8)):
        written.insert(draw(st.integers(0, len(written))), draw(st.sampled_from(ODD_ROWS)))
    return written


@st.composite
def json_bytes(draw: st.DrawFn) -> bytes:
    """JSON Lines, complete or not."""
    line_end = draw(st.sampled_from(["\n", "\r\n", "\n\n"]))
    text = draw(st.sampled_from(["", "", "\ufeff", "\n"])) + line_end.join(draw(row_texts()))
    data = text.encode("utf-8", "surrogatepass")
    return draw(mostly(st.just(data), damaged(data), 6))


ODD_COLUMNS = [
    pa.array([1, 2, None]),
    pa.array([b"red", b"\xff", None]),
    pa.array([None, None, None]),
    pa.array([10**18, -(10**18), None], pa.timestamp("ns", "Europe/Berlin")),
    pa.array([2**31 - 1, 5, None], pa.date32()),
    pa.array([["red"], [], None]),
    pa.array([{"text": "red"}, {"text": None}, None]),
    pa.array(["red", "green", "red"]).dictionary_encode(),
    pa.array(["red", "green", None], pa.large_string()),
    pa.Array.from_buffers(pa.string(), 3, pa.array([b"red", b"\xff\xfe", b"blue"]).buffers()),
]


@st.composite
def parquet_bytes(draw: st.DrawFn) -> bytes:
    """A Parquet file with a column of text, or of something else, or two of one name."""
    rows = st.lists(st.none() | texts(), max_size=5)
    texts_or_none = rows.map(lambda values: pa.array(values, pa.string()))
    column = draw(mostly(texts_or_none, st.sampled_from(ODD_COLUMNS), 8))
    right_names = st.sampled_from([["text"], ["text", "body"]])
    odd_names = st.sampled_from([["body"], ["text", "text"], ["te\nxt"]])
    names = draw(mostly(right_names, odd_names, 8))
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([column] * len(names), names), sink, row_group_size=2)
    data = sink.getvalue()
    return draw(mostly(st.just(data), damaged(data), 8))


# Files

TEXT_SUFFIXES = [".txt", ".txt", ".txt.gz"]
ROW_SUFFIXES = [".jsonl", ".json", ".parquet", ".jsonl.gz", ".json.gz"]
SUFFIXES = [*TEXT_SUFFIXES, *ROW_SUFFIXES]
ODD_SUFFIXES = [".TXT", ".Jsonl.GZ", ".PARQUET", ".json.jsonl", ".csv", ".txt.zst", ".zip", ""]


@st.composite
def contents(draw: st.DrawFn, suffix: str) -> bytes:
    """What belongs under a suffix; packed where it says so, and then not always whole."""
    unpacked = suffix.lower().removesuffix(".gz")
    if unpacked.endswith(".parquet"):
        data = draw(parquet_bytes())
    elif unpacked.endswith((".json", ".jsonl")):
        data = draw(json_bytes())
    else:
        data = draw(text_bytes())
    if not suffix.lower().endswith(".gz"):
        return data
    packed = gzip.compress(data, mtime=0)
    several = st.sampled_from([packed + packed, packed + b"\0" * 9, packed + b"tail", b"", data])
    return draw(mostly(st.just(packed), st.one_of(damaged(packed), several), 8))


@st.composite
def corpora(draw: st.DrawFn, suffixes: Sequence[str] = SUFFIXES) -> list[File]:
    """Some files; now and then one under another one's suffix."""
    files = []
    for number in range(draw(st.integers(1, 4))):
        suffix = draw(mostly(st.sampled_from(suffixes), st.sampled_from(ODD_SUFFIXES), 15))
        kind = draw(mostly(st.just(suffix), st.sampled_from(SUFFIXES), 20))
        files.append(File(f"{number}{suffix}", draw(contents(kind))))
    return files
