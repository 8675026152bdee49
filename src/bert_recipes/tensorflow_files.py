"""Two of TensorFlow's file formats without TensorFlow.

TFRecord files of `tf.train.Example` are read and written, checkpoints of version 2 ("TensorBundle")
are read.

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
    """Return the CRC-32C of bytes or of an array's bytes, rotated and shifted.

    TensorFlow keeps it so beside data that may hold checksums itself.
    """
    import google_crc32c

    octets = memoryview(data).cast("B") if len(data) else b""
    crc = 0
    for start in range(0, len(octets), _CHUNK):
        chunk = bytes(octets[start : start + _CHUNK])
        crc = google_crc32c.extend(crc, chunk)
    rotated = (crc >> 15) | (crc << 17)
    return (rotated + 0xA282EAD8) & 0xFFFFFFFF


# Protocol buffers.
#
# A message is a row of fields. A field is a tag, number << 3 | wire type, and a value: a varint, 4
# or 8 bytes, or a length and so many bytes. A varint has seven bits a byte, the lowest ones first,
# and the eighth bit says that another byte follows. Fields that have their default may be missing.

VARINT = 0
FIXED64 = 1
LENGTH_DELIMITED = 2
FIXED32 = 5
_FIXED_BYTES = {FIXED32: 4, FIXED64: 8}


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a position, and the position of the next byte."""
    value = 0
    # Ten bytes of seven bits hold any number of 64.
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        octet = data[at]
        at += 1
        value |= (octet & 0x7F) << shift
        if octet < 0x80:
            return value, at
    raise ValueError("a number is cut short")


def encode_varint(value: int) -> bytes:
    """Write a number, 0 or above, as a base-128 varint."""
    octets = bytearray()
    while value > 0x7F:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)


def iter_fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield (number, wire type, bytes) of a message's fields.

    ValueError: cut short, or no message.
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
    """Return the bytes of all fields of one number, which must be of this type."""
    values = []
    for field_number, field_type, value in iter_fields(data):
        if field_number != number:
            continue
        if field_type != wire_type:
            raise ValueError("a field of another type")
        values.append(value)
    return values


def _messages(data: bytes, number: int) -> list[bytes]:
    return _values(data, number, LENGTH_DELIMITED)


def _int(data: bytes, number: int, default: int = 0) -> int:
    values = _values(data, number, VARINT)
    if not values:
        return default
    value = read_varint(values[-1], 0)[0] & 0xFFFFFFFFFFFFFFFF
    return value - (1 << 64) if value >> 63 else value


def encode_bytes(number: int, value: bytes) -> bytes:
    """Write a length-delimited field."""
    return encode_varint(number << 3 | LENGTH_DELIMITED) + encode_varint(len(value)) + value


# TFRecord.
#
# A record is its length in 8 bytes, their masked CRC-32C, its bytes, and their masked CRC-32C. The
# numbers are little-endian. The bytes are a `tf.train.Example`:
#
#   Example   1: Features
#   Features  1: an entry a feature, whose 1 is the name, and 2 the Feature
#   Feature   1: BytesList, 2: FloatList or 3: Int64List, whose 1 are the values

HEADER_BYTES = 12
FOOTER_BYTES = 4
# Fields of a Feature.
_FLOAT_LIST = 2
_INT64_LIST = 3


@cache
def _length_header(length: int) -> bytes:
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", masked_crc32c(packed))


def write_record(file: BinaryIO, data: bytes) -> None:
    """Append one record to a TFRecord file."""
    footer = struct.pack("<I", masked_crc32c(data))
    file.write(_length_header(len(data)) + data + footer)


def read_length(header: bytes) -> int:
    """Return the length of the record that its first 12 bytes announce.

    ValueError: cut short, or the checksum is wrong.
    """
    if len(header) < HEADER_BYTES:
        raise ValueError("cut short")
    length, crc = struct.unpack("<QI", header)
    if crc != masked_crc32c(header[:8]):
        raise ValueError("wrong checksum of the length")
    return int(length)


def check_record(data: bytes, footer: bytes) -> None:
    """Compare a record's bytes with its checksum.

    ValueError: cut short, or the checksum is wrong.
    """
    if len(footer) < FOOTER_BYTES:
        raise ValueError("cut short")
    if struct.unpack("<I", footer)[0] != masked_crc32c(data):
        raise ValueError("wrong checksum")


# Token ids and positions repeat: each number is encoded once.
_varint = cache(encode_varint)


@cache
def _feature_header(name: str, kind: int, size: int) -> bytes:
    """Write all of a feature's entry but its packed values, the last `size` bytes."""
    header = b""
    # From the inside: packed values, Int64List or FloatList, Feature.
    for number in (1, kind, 2):
        header = _start_of_field(number, size + len(header)) + header
    header = encode_bytes(1, name.encode("ascii")) + header
    return _start_of_field(1, size + len(header)) + header


def _start_of_field(number: int, size: int) -> bytes:
    return encode_varint(number << 3 | LENGTH_DELIMITED) + encode_varint(size)


def encode_int64_feature(name: str, values: Iterable[int]) -> bytes:
    """Write an entry of an Example: a list of integers, 0 and above."""
    packed = b"".join(map(_varint, values))
    return _feature_header(name, _INT64_LIST, len(packed)) + packed


def encode_float_feature(name: str, values: Iterable[float]) -> bytes:
    """Write an entry of an Example: a list of 32-bit floats."""
    packed = np.fromiter(values, dtype="<f4").tobytes()
    return _feature_header(name, _FLOAT_LIST, len(packed)) + packed


def encode_example(entries: Iterable[bytes]) -> bytes:
    """Serialize a `tf.train.Example` with these features.

    TensorFlow writes them in an order that changes from record to record.
    """
    return encode_bytes(1, b"".join(entries))


def decode_example(data: bytes) -> dict[str, np.ndarray]:
    """Return the features of a serialized `tf.train.Example`: int64 or float32 arrays.

    Lists of bytes are left out. ValueError: no such message.
    """
    features: dict[str, np.ndarray] = {}
    for body in _messages(data, 1):
        for entry in _messages(body, 1):
            fields = {number: value for number, _, value in iter_fields(entry)}
            if 1 not in fields or 2 not in fields:
                raise ValueError("a feature without name or value")
            values = _decode_feature(fields[2])
            if values is not None:
                features[fields[1].decode("utf-8")] = values
    return features


def _decode_feature(data: bytes) -> np.ndarray | None:
    values = None
    for kind, _, field_list in iter_fields(data):
        # Packed or one by one: the bytes are the same.
        packed = b"".join(value for number, _, value in iter_fields(field_list) if number == 1)
        if kind == _FLOAT_LIST:
            values = np.frombuffer(packed, dtype="<f4")
        elif kind == _INT64_LIST:
            values = _decode_varints(packed)
    return values


def _decode_varints(data: bytes) -> np.ndarray:
    """Return the int64 values of varints, by numpy: instance files hold thousands a record."""
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

    # Each byte holds seven bits of its number, the lowest ones first.
    places = np.arange(len(octets)) - np.repeat(starts, sizes)
    shifts = (7 * places).astype(np.uint64)
    bits = (octets & 0x7F).astype(np.uint64) << shifts
    return np.bitwise_or.reduceat(bits, starts).astype(np.int64)


# LevelDB tables.
#
# A table is blocks of (key, value), sorted by key, an index block of (key after a block's last,
# place of the block), and a footer of 48 bytes: the places of a block for metadata and of the index
# block, zeros, and a magic number of 8 bytes.
#
# Behind each block is a trailer of 5 bytes: the kind of compression, and the masked CRC-32C of
# block and kind. A block is its entries, the offsets of some of them ("restarts"), which nobody
# needs who reads from the beginning, and their number; offsets and number have 4 bytes each. An
# entry is three varints, the number of bytes that its key shares with the key before it, of the
# key's other bytes, and of the value, and then those bytes.

_MAGIC = 0xDB4775248B80FB57
_TABLE_FOOTER = 48
_TRAILER = 5
_UNCOMPRESSED = 0
_SNAPPY = 1
# The index of BERT large with the optimizer's moments has some 1,200 entries in less than 100 KB.
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
        # Behind the place, two numbers, of the block for metadata, which holds none.
        _, at = read_varint(footer, 0)
        _, at = read_varint(footer, at)
        last_key = None
        for _, place in _block_entries(_read_block(data, footer[at:])):
            for key, value in _block_entries(_read_block(data, place)):
                # Keys share their beginnings, so a few bytes can stand for many.
                num_bytes += len(key) + len(value) + 64
                if num_bytes > _MOST_BYTES or (last_key is not None and key <= last_key):
                    raise ValueError("keys out of order, or too many")
                table[key] = value
                last_key = key
    except _DAMAGE as error:
        raise _damaged(path) from error
    return table


def _read_block(data: bytes, place: bytes) -> bytes:
    """Return the block at a place, which is two varints: offset and size."""
    offset, at = read_varint(place, 0)
    size, _ = read_varint(place, at)
    end = offset + size
    if end + _TRAILER > len(data) - _TABLE_FOOTER:
        raise ValueError(f"the block at {offset:,} goes beyond its end")
    checksum = int.from_bytes(data[end + 1 : end + _TRAILER], "little")
    if checksum != masked_crc32c(data[offset : end + 1]):
        raise ValueError(f"wrong checksum of the block at {offset:,}")
    stored = data[offset:end]
    kind = data[end]
    if kind == _UNCOMPRESSED:
        return stored
    length, _ = read_varint(stored, 0)
    if kind != _SNAPPY or length > _MOST_BYTES:
        raise ValueError(f"the block at {offset:,} is compressed in an unknown way")
    import pyarrow as pa  # training alone needs neither it nor google_crc32c

    return bytes(pa.decompress(stored, decompressed_size=length, codec="snappy", asbytes=True))


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block; a key has its first bytes from the one before it."""
    (num_restarts,) = struct.unpack("<I", block[-4:])
    end = len(block) - 4 * (num_restarts + 1)
    if end < 0:
        raise ValueError("a block of which the end is missing")
    at = 0
    key = b""
    while at < end:
        num_shared, at = read_varint(block, at)
        num_new, at = read_varint(block, at)
        value_size, at = read_varint(block, at)
        end_of_key = at + num_new
        end_of_value = end_of_key + value_size
        if num_shared > len(key) or end_of_value > end:
            raise ValueError("an entry goes beyond its block")
        key = key[:num_shared] + block[at:end_of_key]
        yield key, block[end_of_key:end_of_value]
        at = end_of_value


# Checkpoints.
#
# tensorflow/core/protobuf/tensor_bundle.proto:
#
#   BundleHeaderProto  1: number of shards, 2: byte order, 3: version, whose 2 is the oldest reader
#   BundleEntryProto   1: type, 2: shape, 3: shard, 4: offset, 5: size, 6: checksum, 7: slices

INDEX_SUFFIX = ".index"
HEADER_KEY = b""
# Begins the keys of slices; a name of a variable begins with a letter, a digit or "." "_" ">".
_SLICE_PREFIX = b"\0"
# What a name's bytes become in the key of a slice.
_ESCAPES = {0: b"\0\xff", 255: b"\xff\0"}
# The version of the format that TensorFlow has written since 2016.
_VERSION = 1
BFLOAT16 = "bfloat16"
# DataType -> its name, which is numpy's but for bfloat16. Others are named but not read.
_DTYPES = {1: "float32", 2: "float64", 3: "int32", 9: "int64", 14: BFLOAT16, 19: "float16"}
# One dimension of a slice: where it starts, and how long it is; -1: all of it.
Extent = tuple[int, int]


@dataclass(frozen=True)
class Entry:
    """Hold where a variable, or a slice of one, lies, and its masked CRC-32C.

    It is `size` bytes of a shard, from `offset` on. A partitioned variable has `slices`, the
    extents of each by dimension, and its own place means nothing.
    """

    # "type N" for one that is not read.
    dtype: str
    shape: tuple[int, ...]

    # The place of the values, in bytes.
    shard: int = 0
    offset: int = 0
    size: int = 0
    crc: int = 0

    slices: tuple[tuple[Extent, ...], ...] = ()


def parse_header(data: bytes) -> tuple[int, bool]:
    """Return the number of shards, and whether their numbers are big-endian.

    ValueError: no header, or of a later version of the format.
    """
    num_shards = _int(data, 1)
    byte_order = _int(data, 2)
    if not 1 <= num_shards <= 99_999 or byte_order not in (0, 1):
        raise ValueError("no header of a checkpoint")
    for version in _messages(data, 3):
        if _int(version, 2) > _VERSION:
            raise ValueError("a later version of the format")
    return num_shards, byte_order == 1


def parse_entry(data: bytes) -> Entry:
    """Read an entry; ValueError: no entry, or with negative numbers."""
    shape: list[int] = []
    for message in _messages(data, 2):
        shape += [_int(dimension, 1) for dimension in _messages(message, 2)]
    slices = []
    for message in _messages(data, 7):
        extents = [(_int(extent, 1), _int(extent, 2, -1)) for extent in _messages(message, 1)]
        slices.append(tuple(extents))
    number = _int(data, 1)
    checksums = _values(data, 6, FIXED32)
    entry = Entry(
        dtype=_DTYPES.get(number, f"type {number}"),
        shape=tuple(shape),
        shard=_int(data, 3),
        offset=_int(data, 4),
        size=_int(data, 5),
        crc=int.from_bytes(checksums[-1], "little") if checksums else 0,
        slices=tuple(slices),
    )
    if min(entry.shard, entry.offset, entry.size, *shape) < 0 or len(shape) > 8:
        raise ValueError("a negative place, size or dimension, or too many dimensions")
    return entry


def slice_key(name: bytes, extents: tuple[Extent, ...]) -> bytes:
    """Return the key under which the entry of a slice stands.

    Source: tensorflow/core/lib/strings/ordered_code.cc.
    """
    key = bytearray(_SLICE_PREFIX)
    for octet in name:
        key += _ESCAPES.get(octet, bytes([octet]))
    key += b"\0\1" + _ordered(len(extents))
    for start, length in extents:
        key += _ordered_signed(start) + _ordered_signed(length)
    return bytes(key)


def _ordered(value: int) -> bytes:
    """Write a number, 0 or above, so that bytes sort as it does: their number, then they."""
    size = (value.bit_length() + 7) // 8
    return bytes([size]) + value.to_bytes(size, "big")


def _ordered_signed(value: int) -> bytes:
    """Write a number of either sign, seven bits a byte.

    Before them are as many bits of its sign as it has bytes.
    """
    magnitude = ~value if value < 0 else value
    size = magnitude.bit_length() // 7 + 1
    # Of 8 * size bits.
    header = ((1 << size) - 1) << (7 * size)
    mask = (1 << (8 * size)) - 1
    bits = (value & mask) ^ header
    return bits.to_bytes(size, "big")


def shown(name: str) -> str:
    """Return a name for a message: on one line, whatever it holds, and not too long."""
    text = name if name.isprintable() else ascii(name)
    return text if len(text) <= 100 else f"{text[:100]}..."


class BundleReader:
    """A checkpoint of TensorFlow, open for reading.

    `variables` are by name, in the order of the names; a partitioned one is one.

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
            self.variables: dict[str, Entry] = {}
            for key, entry in self._entries.items():
                if not key.startswith(_SLICE_PREFIX):
                    self.variables[key.decode("utf-8")] = entry
        except ValueError as error:
            raise _damaged(self._index_file) from error

    def read(self, name: str) -> np.ndarray:
        """Read a variable's values in this machine's byte order.

        Those of bfloat16, which numpy does not have, become float32.
        """
        entry = self.variables[name]
        if entry.dtype not in _DTYPES.values() or not math.prod(entry.shape):
            raise InputError(
                f"{self._index_file}: {shown(name)} is {entry.dtype} {list(entry.shape)}, which "
                "is no weight of a network"
            )
        if not entry.slices:
            return self._read_entry(entry)
        slices = self._find_slices(name, entry)
        values = np.empty(entry.shape, np.float32 if entry.dtype == BFLOAT16 else entry.dtype)
        is_read = np.zeros(entry.shape, dtype=bool)
        for place, slice_entry in slices:
            values[place] = self._read_entry(slice_entry)
            is_read[place] = True
        if not is_read.all():
            raise _damaged(self._index_file)
        return values

    def _find_slices(self, name: str, entry: Entry) -> list[tuple[tuple[slice, ...], Entry]]:
        """Return where the slices of a variable go, and their entries.

        They must be inside it, and have as many values as it has, before there is memory for them.
        """
        slices = []
        num_values = 0
        for extents in entry.slices:
            slice_entry = self._entries.get(slice_key(name.encode("utf-8"), extents))
            if slice_entry is None or len(extents) != len(entry.shape):
                raise _damaged(self._index_file)
            place = []
            for (start, length), size in zip(extents, entry.shape, strict=True):
                end = start + (size if length == -1 else length)
                if not 0 <= start <= end <= size:
                    raise _damaged(self._index_file)
                place.append(slice(start, end))
            shape = tuple(extent.stop - extent.start for extent in place)
            if slice_entry.dtype != entry.dtype or slice_entry.shape != shape:
                raise _damaged(self._index_file)
            slices.append((tuple(place), slice_entry))
            num_values += math.prod(shape)
        if num_values != math.prod(entry.shape):
            raise _damaged(self._index_file)
        return slices

    def _read_entry(self, entry: Entry) -> np.ndarray:
        is_bfloat16 = entry.dtype == BFLOAT16
        kind = np.dtype(np.uint16 if is_bfloat16 else entry.dtype)
        num_bytes = math.prod(entry.shape) * kind.itemsize
        if num_bytes != entry.size or entry.shard >= self._num_shards:
            raise _damaged(self._index_file)

        path = shard_file(self.prefix, entry.shard, self._num_shards)
        # Before there is memory for what the index speaks of.
        if not path.is_file() or entry.offset + entry.size > path.stat().st_size:
            raise _damaged(path)
        octets = np.fromfile(path, dtype=np.uint8, count=entry.size, offset=entry.offset)
        if masked_crc32c(octets) != entry.crc:
            raise _damaged(path)

        stored = kind.newbyteorder(">" if self._is_big_endian else "<")
        values = octets.view(stored).astype(kind, copy=False)
        if is_bfloat16:
            # Its bits are the upper half of a float32's.
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return values.reshape(entry.shape)


def shard_file(prefix: Path, shard: int, num_shards: int) -> Path:
    """Return the file of a shard's data."""
    return prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{num_shards:05d}")
