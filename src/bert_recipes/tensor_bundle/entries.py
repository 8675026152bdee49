"""The messages in a checkpoint's index: the header, an entry a variable, and the keys of a partitioned variable's slices.

Source: tensorflow/core/protobuf/tensor_bundle.proto, framework/{types,tensor_shape,tensor_slice,versions}.proto,
util/saved_tensor_slice_util.cc (`EncodeTensorNameSlice`), lib/strings/ordered_code.cc.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from bert_recipes.protobuf_wire import (
    FIXED32,
    LENGTH_DELIMITED,
    VARINT,
    encode_bytes,
    encode_fixed32,
    encode_int,
    iter_fields,
    read_int64,
)


HEADER_KEY = b""
# Begins the keys of slices; a name of a variable begins with a letter, a digit or "." "_" ">".
SLICE_PREFIX = b"\0"
# The version of the format that TensorFlow has written since 2016.
_VERSION = 1
# What is beyond that is no weight of a network.
_MOST_DIMENSIONS = 8
_MOST_ENTRY_BYTES = 1 << 20

BFLOAT16 = "bfloat16"
# DataType -> its name, which is numpy's but for bfloat16, and the bytes of an element. Others are named but not read.
_DTYPES = {
    1: ("float32", 4),
    2: ("float64", 8),
    3: ("int32", 4),
    9: ("int64", 8),
    14: (BFLOAT16, 2),
    19: ("float16", 2),
}
_NUMBERS = {name: number for number, (name, _) in _DTYPES.items()}
_STRING = 7

# One dimension of a slice: where it starts, and how long it is; -1: all of it.
Extent = tuple[int, int]


@dataclass(frozen=True)
class Header:
    """What holds for all of a checkpoint.

    Attributes:
        num_shards: Files with data.
        is_big_endian: Byte order of the data.
    """

    num_shards: int
    is_big_endian: bool = False


@dataclass(frozen=True)
class Entry:
    """Where a variable, or a slice of one, lies.

    Attributes:
        dtype: Name of its type; "type 7 (text)" or the like for one that is not read.
        shape: Its dimensions.
        shard, offset, size: Its bytes: `size` of them from `offset` on in that shard.
        crc: Their masked CRC-32C.
        slices: Extents by dimension of each slice; not empty for a partitioned variable, whose own place means nothing.
    """

    dtype: str
    shape: tuple[int, ...]
    shard: int = 0
    offset: int = 0
    size: int = 0
    crc: int = 0
    slices: tuple[tuple[Extent, ...], ...] = ()

    @property
    def num_bytes(self) -> int | None:
        """Bytes that the shape takes; None for a type that is not read."""
        number = _NUMBERS.get(self.dtype)
        return None if number is None else math.prod(self.shape) * _DTYPES[number][1]


def parse_header(data: bytes) -> Header:
    """Read the header.

    Raises:
        ValueError: No header, or of a later version of the format.
    """
    num_shards = endianness = min_consumer = 0
    for number, wire_type, value in iter_fields(data):
        if number == 1:
            num_shards = _int(value, wire_type)
        elif number == 2:
            endianness = _int(value, wire_type)
        elif number == 3:
            for inner, inner_type, version in iter_fields(_message(value, wire_type)):
                min_consumer = _int(version, inner_type) if inner == 2 else min_consumer
    if min_consumer > _VERSION:
        raise ValueError(f"it asks for version {min_consumer} of the format; {_VERSION} is read")
    if not 1 <= num_shards <= 99_999 or endianness not in (0, 1):
        raise ValueError(f"its header names {num_shards} files of data and byte order {endianness}")
    return Header(num_shards, is_big_endian=endianness == 1)


def serialize_header(header: Header) -> bytes:
    """Write the header."""
    version = encode_int(1, _VERSION)
    return encode_int(1, header.num_shards) + encode_int(2, int(header.is_big_endian)) + encode_bytes(3, version)


def parse_entry(data: bytes) -> Entry:
    """Read an entry.

    Raises:
        ValueError: No entry, or with a negative place or size.
    """
    if len(data) > _MOST_ENTRY_BYTES:
        raise ValueError(f"{len(data):,} bytes to say where a variable lies")
    values = dict.fromkeys((1, 3, 4, 5), 0)
    shape: tuple[int, ...] = ()
    crc = 0
    slices = []
    for number, wire_type, value in iter_fields(data):
        if number in values:
            values[number] = _int(value, wire_type)
        elif number == 2:
            shape = _parse_shape(_message(value, wire_type))
        elif number == 6:
            if wire_type != FIXED32:
                raise ValueError("a checksum of another type")
            crc = int.from_bytes(value, "little")
        elif number == 7:
            slices.append(tuple(_parse_extents(_message(value, wire_type))))
    if min(values.values()) < 0:
        raise ValueError("a negative place or size")
    return Entry(_dtype_name(values[1]), shape, values[3], values[4], values[5], crc, tuple(slices))


def serialize_entry(entry: Entry) -> bytes:
    """Write an entry without slices, byte for byte as TensorFlow does.

    Raises:
        ValueError: Slices, or a type that is not written.
    """
    if entry.slices or entry.dtype not in _NUMBERS:
        raise ValueError(f"cannot write slices or {entry.dtype}")
    dimensions = b"".join(encode_bytes(2, encode_int(1, size)) for size in entry.shape)
    return b"".join(
        [
            encode_int(1, _NUMBERS[entry.dtype]),
            encode_bytes(2, dimensions),
            encode_int(3, entry.shard),
            encode_int(4, entry.offset),
            encode_int(5, entry.size),
            encode_fixed32(6, entry.crc),
        ]
    )


def slice_key(name: bytes, extents: tuple[Extent, ...]) -> bytes:
    """The key under which the entry of a slice stands.

    Args:
        name: Of the variable.
        extents: One for each dimension.
    """
    escapes = {0: b"\0\xff", 255: b"\xff\0"}
    escaped = b"".join(escapes.get(octet, bytes([octet])) for octet in name)
    parts = [_ordered(0), escaped, b"\0\1", _ordered(len(extents))]
    parts += [_ordered_signed(number) for extent in extents for number in extent]
    return b"".join(parts)


def shown(name: bytes | str) -> str:
    """A name for a message: on one line, whatever it holds, and not too long."""
    text = name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _ordered(value: int) -> bytes:
    """A number, 0 or above, whose bytes sort as it does: how many bytes, then those."""
    size = (value.bit_length() + 7) // 8
    return bytes([size]) + value.to_bytes(size, "big")


def _ordered_signed(value: int) -> bytes:
    """A number of either sign: as many leading bits of its sign as it has bytes, then its bits, seven a byte."""
    bits = (~value if value < 0 else value).bit_length()
    size = bits // 7 + 1
    if size > 10:
        raise ValueError(f"{value} is no number of 64 bits")
    header = ((1 << size) - 1) << (7 * size)  # of 8 * size bits
    whole = (1 << (8 * size)) - 1
    return ((value & whole) ^ header).to_bytes(size, "big")


def _parse_shape(data: bytes) -> tuple[int, ...]:
    shape: list[int] = []
    for number, wire_type, value in iter_fields(data):
        if number == 3 and _int(value, wire_type):
            raise ValueError("a variable without a shape")
        if number == 2:
            sizes = [_int(size, kind) for inner, kind, size in iter_fields(_message(value, wire_type)) if inner == 1]
            shape.append(sizes[-1] if sizes else 0)
        if len(shape) > _MOST_DIMENSIONS or min(shape, default=0) < 0:
            raise ValueError("a shape with negative or too many dimensions")
    return tuple(shape)


def _parse_extents(data: bytes) -> Iterator[Extent]:
    for count, (number, wire_type, value) in enumerate(iter_fields(data)):
        if number != 1 or count >= _MOST_DIMENSIONS:
            raise ValueError("a slice with too many dimensions")
        start, length = 0, -1
        for inner, kind, size in iter_fields(_message(value, wire_type)):
            if inner == 1:
                start = _int(size, kind)
            elif inner == 2:
                length = _int(size, kind)
        yield start, length


def _dtype_name(number: int) -> str:
    if number in _DTYPES:
        return _DTYPES[number][0]
    return f"type {number}{' (text)' if number == _STRING else ''}"


def _int(value: bytes, wire_type: int) -> int:
    if wire_type != VARINT:
        raise ValueError("a number of another type")
    return read_int64(value)


def _message(value: bytes, wire_type: int) -> bytes:
    if wire_type != LENGTH_DELIMITED:
        raise ValueError("a part of another type")
    return value
