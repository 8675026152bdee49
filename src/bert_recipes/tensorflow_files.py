"""Two of TensorFlow's file formats without TensorFlow: TFRecord files of `tf.train.Example`, read
and written, and checkpoints of version 2 ("TensorBundle"), read.

A checkpoint PREFIX is PREFIX.index, a LevelDB table from names of variables to messages that say
where each lies, and the shards PREFIX.data-00000-of-00001, which hold nothing but the variables'
bytes. A file comes from anywhere: every checksum is compared, and whatever does not fit together is
one `InputError`, of the index when it is opened and of the data when a variable is read.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bert_recipes.errors import InputError


_CHUNK = 1 << 24


def masked_crc32c(data: Any) -> int:
    """CRC-32C of bytes or of an array's bytes, rotated and shifted as TensorFlow keeps it beside
    data that may hold checksums itself.
    """
    import google_crc32c

    view, crc = memoryview(data).cast("B") if len(data) else b"", 0
    for start in range(0, len(view), _CHUNK):
        crc = google_crc32c.extend(crc, bytes(view[start : start + _CHUNK]))
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


# Protocol buffers

VARINT, LENGTH_DELIMITED, FIXED32 = 0, 2, 5
_FIXED_BYTES = {FIXED32: 4, 1: 8}


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a position, and the position of the next byte."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number is cut short")
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
        shift += 7


def encode_varint(value: int) -> bytes:
    """A number, 0 or above, as a base-128 varint."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def iter_fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield (number, wire type, bytes) of a message's fields; ValueError: cut short, or no
    message.
    """
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        wire_type = tag & 7
        if wire_type == LENGTH_DELIMITED:
            size, at = read_varint(data, at)
            end = at + size
        elif wire_type == VARINT:
            end = read_varint(data, at)[1]
        elif wire_type in _FIXED_BYTES:
            end = at + _FIXED_BYTES[wire_type]
        else:
            raise ValueError(f"field of unknown type {wire_type}")
        if end > len(data):
            raise ValueError("a field is cut short")
        yield tag >> 3, wire_type, data[at:end]
        at = end


def _values(data: bytes, number: int, wire_type: int) -> list[bytes]:
    """The bytes of all fields of one number, which must be of this type."""
    found = [(kind, value) for own, kind, value in iter_fields(data) if own == number]
    if any(kind != wire_type for kind, _ in found):
        raise ValueError("a field of another type")
    return [value for _, value in found]


def _messages(data: bytes, number: int) -> list[bytes]:
    return _values(data, number, LENGTH_DELIMITED)


def _int(data: bytes, number: int, default: int = 0) -> int:
    values = _values(data, number, VARINT)
    if not values:
        return default
    value = read_varint(values[-1], 0)[0] & 0xFFFFFFFFFFFFFFFF
    return value - (1 << 64) if value >> 63 else value


def encode_bytes(number: int, value: bytes) -> bytes:
    """A length-delimited field."""
    return encode_varint(number << 3 | LENGTH_DELIMITED) + encode_varint(len(value)) + value


# TFRecord

HEADER_BYTES, FOOTER_BYTES = 12, 4
# Fields of a Feature.
_FLOAT_LIST, _INT64_LIST = 2, 3


@cache
def _length_header(length: int) -> bytes:
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", masked_crc32c(packed))


def write_record(file: BinaryIO, data: bytes) -> None:
    """Append one record to a TFRecord file."""
    file.write(b"".join((_length_header(len(data)), data, struct.pack("<I", masked_crc32c(data)))))


def read_length(header: bytes) -> int:
    """The length of the record that its first 12 bytes announce; ValueError: cut short, or the
    checksum is wrong.
    """
    if len(header) < HEADER_BYTES:
        raise ValueError("cut short")
    length, crc = struct.unpack("<QI", header)
    if crc != masked_crc32c(header[:8]):
        raise ValueError("wrong checksum of the length")
    return int(length)


def check_record(data: bytes, footer: bytes) -> None:
    """Compare a record's bytes with its checksum; ValueError: cut short, or the checksum is
    wrong.
    """
    if len(footer) < FOOTER_BYTES:
        raise ValueError("cut short")
    if struct.unpack("<I", footer)[0] != masked_crc32c(data):
        raise ValueError("wrong checksum")


# Token ids and positions repeat: each number is encoded once.
_varint = cache(encode_varint)


@cache
def _feature_header(name: str, kind: int, size: int) -> bytes:
    """All of a feature's entry but its packed values, which come last and are `size` bytes."""
    header = b""
    # From the inside: packed values, Int64List or FloatList, Feature, map entry.
    for number in (1, kind, 2):
        header = (
            bytes([number << 3 | LENGTH_DELIMITED]) + encode_varint(size + len(header)) + header
        )
    header = encode_bytes(1, name.encode("ascii")) + header
    return bytes([1 << 3 | LENGTH_DELIMITED]) + encode_varint(size + len(header)) + header


def encode_int64_feature(name: str, values: Iterable[int]) -> bytes:
    """One entry of an Example: a list of integers, 0 and above."""
    packed = b"".join(map(_varint, values))
    return _feature_header(name, _INT64_LIST, len(packed)) + packed


def encode_float_feature(name: str, values: Iterable[float]) -> bytes:
    """One entry of an Example: a list of 32-bit floats."""
    packed = np.fromiter(values, dtype="<f4").tobytes()
    return _feature_header(name, _FLOAT_LIST, len(packed)) + packed


def encode_example(entries: Iterable[bytes]) -> bytes:
    """A serialized `tf.train.Example` with these features. TensorFlow writes them in an order that
    changes from record to record.
    """
    return encode_bytes(1, b"".join(entries))


def decode_example(data: bytes) -> dict[str, np.ndarray]:
    """The features of a serialized `tf.train.Example`: int64 or float32 arrays; lists of bytes are
    left out. ValueError: no such message.
    """
    features: dict[str, np.ndarray] = {}
    for entry in (entry for body in _messages(data, 1) for entry in _messages(body, 1)):
        parts = {number: value for number, _, value in iter_fields(entry)}
        if 1 not in parts or 2 not in parts:
            raise ValueError("a feature without name or value")
        for kind, _, values in iter_fields(parts[2]):
            if kind in (_FLOAT_LIST, _INT64_LIST):
                # Packed or one by one: the bytes are the same.
                raw = b"".join(value for number, _, value in iter_fields(values) if number == 1)
                decoded = (
                    np.frombuffer(raw, dtype="<f4") if kind == _FLOAT_LIST else _decode_varints(raw)
                )
                features[parts[1].decode("utf-8")] = decoded
    return features


def _decode_varints(data: bytes) -> np.ndarray:
    """int64 values of concatenated varints, by numpy: instance files hold thousands a record."""
    octets = np.frombuffer(data, dtype=np.uint8)
    if len(octets) == 0:
        return np.empty(0, dtype=np.int64)
    ends = np.flatnonzero(octets < 0x80)
    if len(ends) == 0 or ends[-1] != len(octets) - 1:
        raise ValueError("a number is cut short")
    if len(ends) == len(octets):
        return octets.astype(np.int64)
    starts = np.concatenate(([0], ends[:-1] + 1))
    sizes = ends - starts + 1
    if sizes.max() > 10:
        raise ValueError("a number of more than 10 bytes")
    shifts = 7 * (np.arange(len(octets)) - np.repeat(starts, sizes))
    parts = (octets & 0x7F).astype(np.uint64) << shifts.astype(np.uint64)
    return np.bitwise_or.reduceat(parts, starts).astype(np.int64)


# LevelDB tables: blocks of sorted (key, value), an index block of (key after a block's last, place
# of the block), a footer.

_MAGIC = 0xDB4775248B80FB57
_TABLE_FOOTER, _TRAILER = 48, 5
_UNCOMPRESSED, _SNAPPY = 0, 1
# The index of BERT large with the optimiser's moments has some 1,200 entries in less than 100 KB.
_MOST_BYTES = 1 << 24
# What reading messages of no sense may raise.
_DAMAGE = (ValueError, IndexError, struct.error, OSError)


def _damaged(path: Path) -> InputError:
    """Return the refusal of a file that is not what TensorFlow wrote."""
    return InputError(f"{path}: damaged or incomplete; fetch the checkpoint again")


def read_table(path: Path) -> dict[bytes, bytes]:
    """Read a table of at most 16 MB: key -> value, in the order of the keys."""
    if path.stat().st_size > _MOST_BYTES:
        raise _damaged(path)
    data = path.read_bytes()
    if len(data) < _TABLE_FOOTER or int.from_bytes(data[-8:], "little") != _MAGIC:
        raise _damaged(path)
    table: dict[bytes, bytes] = {}
    num_bytes = 0
    try:
        footer = data[-_TABLE_FOOTER:]
        at = read_varint(footer, read_varint(footer, 0)[1])[
            1
        ]  # behind the place of the block for metadata, which holds none
        for _, place in _block_entries(_read_block(data, footer[at:])):
            for key, value in _block_entries(_read_block(data, place)):
                # Keys share their beginnings, so a few bytes can stand for many.
                num_bytes += len(key) + len(value) + 64
                if num_bytes > _MOST_BYTES or (table and key <= next(reversed(table))):
                    raise ValueError("keys out of order, or too many")
                table[key] = value
    except _DAMAGE as error:
        raise _damaged(path) from error
    return table


def _read_block(data: bytes, place: bytes) -> bytes:
    """The block at a place, which is two varints: offset and size."""
    offset, at = read_varint(place, 0)
    end = offset + read_varint(place, at)[0]
    if end + _TRAILER > len(data) - _TABLE_FOOTER:
        raise ValueError(f"the block at {offset:,} goes beyond its end")
    stored, kind = data[offset:end], data[end]
    if int.from_bytes(data[end + 1 : end + _TRAILER], "little") != masked_crc32c(
        data[offset : end + 1]
    ):
        raise ValueError(f"wrong checksum of the block at {offset:,}")
    if kind == _UNCOMPRESSED:
        return stored
    length, _ = read_varint(stored, 0)
    if kind != _SNAPPY or length > _MOST_BYTES:
        raise ValueError(f"the block at {offset:,} is compressed in an unknown way")
    import pyarrow as pa  # training alone needs neither it nor google_crc32c

    return bytes(pa.decompress(stored, decompressed_size=length, codec="snappy", asbytes=True))


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    (num_restarts,) = struct.unpack("<I", block[-4:])
    end = len(block) - 4 * (num_restarts + 1)
    if end < 0:
        raise ValueError("a block of which the end is missing")
    at, key = 0, b""
    while at < end:
        shared, at = read_varint(block, at)
        own, at = read_varint(block, at)
        size, at = read_varint(block, at)
        if shared > len(key) or at + own + size > end:
            raise ValueError("an entry goes beyond its block")
        key = key[:shared] + block[at : at + own]
        yield key, block[at + own : at + own + size]
        at += own + size


# Checkpoints

INDEX_SUFFIX = ".index"
HEADER_KEY = b""
# Begins the keys of slices; a name of a variable begins with a letter, a digit or "." "_" ">".
_SLICE_PREFIX = b"\0"
# The version of the format that TensorFlow has written since 2016.
_VERSION = 1
BFLOAT16 = "bfloat16"
# DataType -> its name, which is numpy's but for bfloat16. Others are named but not read.
_DTYPES = {1: "float32", 2: "float64", 3: "int32", 9: "int64", 14: BFLOAT16, 19: "float16"}
# One dimension of a slice: where it starts, and how long it is; -1: all of it.
Extent = tuple[int, int]


@dataclass(frozen=True)
class Entry:
    """Where a variable, or a slice of one, lies: `size` bytes from `offset` on in a shard, and
    their masked CRC-32C.

    A partitioned variable has `slices`, the extents of each by dimension, and its own place means
    nothing.
    """

    dtype: str  # "type N" for one that is not read
    shape: tuple[int, ...]
    shard: int = 0
    offset: int = 0
    size: int = 0
    crc: int = 0
    slices: tuple[tuple[Extent, ...], ...] = ()


def parse_header(data: bytes) -> tuple[int, bool]:
    """Number of shards, and whether their numbers are big-endian; ValueError: no header, or of a
    later version of the format.
    """
    is_later = any(_int(version, 2) > _VERSION for version in _messages(data, 3))
    num_shards, byte_order = _int(data, 1), _int(data, 2)
    if is_later or not 1 <= num_shards <= 99_999 or byte_order not in (0, 1):
        raise ValueError("no header of a checkpoint")
    return num_shards, byte_order == 1


def parse_entry(data: bytes) -> Entry:
    """Read an entry; ValueError: no entry, or with negative numbers."""
    shape = tuple(_int(size, 1) for part in _messages(data, 2) for size in _messages(part, 2))
    shard, offset, size = (_int(data, number) for number in (3, 4, 5))
    crc = int.from_bytes((_values(data, 6, FIXED32) or [b""])[-1], "little")
    slices = tuple(
        tuple((_int(e, 1), _int(e, 2, -1)) for e in _messages(part, 1))
        for part in _messages(data, 7)
    )
    if min(shard, offset, size, *shape) < 0 or len(shape) > 8:
        raise ValueError("a negative place, size or dimension, or too many dimensions")
    number = _int(data, 1)
    return Entry(_DTYPES.get(number, f"type {number}"), shape, shard, offset, size, crc, slices)


def slice_key(name: bytes, extents: tuple[Extent, ...]) -> bytes:
    """The key under which the entry of a slice stands. Source:
    tensorflow/core/lib/strings/ordered_code.cc.
    """
    escaped = b"".join({0: b"\0\xff", 255: b"\xff\0"}.get(octet, bytes([octet])) for octet in name)
    parts = [_SLICE_PREFIX, escaped, b"\0\1", _ordered(len(extents))]
    return b"".join([*parts, *(_ordered_signed(number) for extent in extents for number in extent)])


def _ordered(value: int) -> bytes:
    """A number, 0 or above, whose bytes sort as it does: how many bytes, then those."""
    size = (value.bit_length() + 7) // 8
    return bytes([size]) + value.to_bytes(size, "big")


def _ordered_signed(value: int) -> bytes:
    """A number of either sign: as many leading bits of its sign as it has bytes, then its bits,
    seven a byte.
    """
    size = (~value if value < 0 else value).bit_length() // 7 + 1
    header = ((1 << size) - 1) << (7 * size)  # of 8 * size bits
    return ((value & ((1 << (8 * size)) - 1)) ^ header).to_bytes(size, "big")


def shown(name: str) -> str:
    """A name for a message: on one line, whatever it holds, and not too long."""
    text = name if name.isprintable() else ascii(name)
    return text if len(text) <= 100 else f"{text[:100]}..."


class BundleReader:
    """A checkpoint of TensorFlow, open for reading: `variables` by name, in the order of the names;
    a partitioned one is one.

    Example:
        >>> reader = BundleReader(Path("uncased_L-12_H-768_A-12/bert_model.ckpt"))  # doctest: +SKIP
        >>> reader.read("bert/embeddings/word_embeddings").shape  # doctest: +SKIP
        (30522, 768)
    """

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self._index_file = prefix.with_name(prefix.name + INDEX_SUFFIX)
        table = read_table(self._index_file)
        try:
            self._num_shards, self._is_big_endian = parse_header(table.pop(HEADER_KEY, b""))
            self._entries = {key: parse_entry(value) for key, value in table.items()}
            self.variables = {
                key.decode("utf-8"): entry
                for key, entry in self._entries.items()
                if not key.startswith(_SLICE_PREFIX)
            }
        except ValueError as error:
            raise _damaged(self._index_file) from error

    def read(self, name: str) -> np.ndarray:
        """Read a variable's values in this machine's byte order; those of bfloat16, which numpy
        does not have, as float32.
        """
        entry = self.variables[name]
        if entry.dtype not in _DTYPES.values() or not math.prod(entry.shape):
            raise InputError(
                f"{self._index_file}: {shown(name)} is {entry.dtype} {list(entry.shape)}, which "
                "is no weight of a network"
            )
        if not entry.slices:
            return self._read_entry(entry)
        parts = self._find_slices(name, entry)
        dtype = np.float32 if entry.dtype == BFLOAT16 else entry.dtype
        values, seen = np.empty(entry.shape, dtype), np.zeros(entry.shape, dtype=bool)
        for place, part in parts:
            values[place], seen[place] = self._read_entry(part), True
        if not seen.all():
            raise _damaged(self._index_file)
        return values

    def _find_slices(self, name: str, entry: Entry) -> list[tuple[tuple[slice, ...], Entry]]:
        """Where the slices of a variable go: inside it, and as many values as it has, before there
        is memory for them.
        """
        found = []
        for extents in entry.slices:
            part = self._entries.get(slice_key(name.encode("utf-8"), extents))
            sizes = tuple(
                whole if n == -1 else n for (_, n), whole in zip(extents, entry.shape, strict=False)
            )
            place = tuple(
                slice(start, start + size) for (start, _), size in zip(extents, sizes, strict=False)
            )
            is_inside = all(
                s.start >= 0 and s.stop <= whole
                for s, whole in zip(place, entry.shape, strict=False)
            )
            if part is None or part.dtype != entry.dtype or part.shape != sizes or not is_inside:
                break
            found.append((place, part))
        num_values = sum(
            math.prod(part.shape) for _, part in found if len(part.shape) == len(entry.shape)
        )
        if len(found) < len(entry.slices) or num_values != math.prod(entry.shape):
            raise _damaged(self._index_file)
        return found

    def _read_entry(self, entry: Entry) -> np.ndarray:
        kind = np.dtype(np.uint16 if entry.dtype == BFLOAT16 else entry.dtype)
        if math.prod(entry.shape) * kind.itemsize != entry.size or entry.shard >= self._num_shards:
            raise _damaged(self._index_file)
        path = shard_file(self.prefix, entry.shard, self._num_shards)
        # Before there is memory for what the index speaks of.
        if not path.is_file() or entry.offset + entry.size > path.stat().st_size:
            raise _damaged(path)
        octets = np.fromfile(path, dtype=np.uint8, count=entry.size, offset=entry.offset)
        if masked_crc32c(octets) != entry.crc:
            raise _damaged(path)
        values = octets.view(kind.newbyteorder(">" if self._is_big_endian else "<")).astype(
            kind, copy=False
        )
        if entry.dtype == BFLOAT16:
            # Its bits are the upper half of a float32's.
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return values.reshape(entry.shape)


def shard_file(prefix: Path, shard: int, num_shards: int) -> Path:
    """Where a checkpoint's data lies."""
    return prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{num_shards:05d}")
