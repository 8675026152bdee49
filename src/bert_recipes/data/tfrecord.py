"""TFRecord files and ``tf.train.Example`` messages without TensorFlow.

A record is: length (uint64), masked CRC-32C of the length, the bytes, masked CRC-32C of the bytes; all little-endian.
Source: tensorflow/core/lib/io/record_writer.h and tensorflow/core/example/{example,feature}.proto.
"""

import struct
from collections.abc import Iterable, Mapping
from functools import cache
from typing import BinaryIO

import numpy as np


_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected
_MASK_DELTA = 0xA282EAD8
# Bytes summed in one step; the table takes 1 KB a byte.
_CHUNK = 1024
HEADER_BYTES = 12
FOOTER_BYTES = 4

# Wire types of protocol buffers.
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
# Fields of a Feature.
_FLOAT_LIST, _INT64_LIST = 2, 3


@cache
def _crc_table() -> np.ndarray:
    """Return uint32 (_CHUNK, 256): what a byte adds to the checksum when that many more bytes follow it."""
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, (first >> 1) ^ np.uint32(_POLYNOMIAL), first >> 1)
    table = np.empty((_CHUNK, 256), dtype=np.uint32)
    table[0] = first
    for row in range(1, _CHUNK):
        table[row] = (table[row - 1] >> 8) ^ first[table[row - 1] & 0xFF]
    return table


def masked_crc32c(data: bytes) -> int:
    """Return the CRC-32C of ``data``, rotated and shifted as TFRecord files keep it.

    A checksum is linear in its input: that of a chunk is the XOR of one table entry a byte, so there is no loop over
    bytes. What went before is XORed into the chunk's first four bytes.
    """
    table = _crc_table()
    state = 0xFFFFFFFF
    for begin in range(0, len(data), _CHUNK):
        chunk = np.frombuffer(data, dtype=np.uint8, count=min(_CHUNK, len(data) - begin), offset=begin).copy()
        head = min(4, len(chunk))
        chunk[:head] ^= np.frombuffer(struct.pack("<I", state), dtype=np.uint8)[:head]
        entries = table[np.arange(len(chunk) - 1, -1, -1), chunk]
        # With fewer than four bytes, the rest of the state moves down and stays.
        state = (state >> (8 * head) if head < 4 else 0) ^ int(np.bitwise_xor.reduce(entries))
    crc = state ^ 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


@cache
def _length_header(length: int) -> bytes:
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", masked_crc32c(packed))


def write_record(file: BinaryIO, data: bytes) -> None:
    """Append one record to a TFRecord file."""
    file.write(b"".join((_length_header(len(data)), data, struct.pack("<I", masked_crc32c(data)))))


def read_length(header: bytes) -> int:
    """Return the length of the record that the 12 bytes announce.

    Raises:
        ValueError: Cut short, or the checksum is wrong: not a TFRecord file, or damaged here.
    """
    if len(header) < HEADER_BYTES:
        raise ValueError("cut short")
    length, crc = struct.unpack("<QI", header)
    if crc != masked_crc32c(header[:8]):
        raise ValueError("wrong checksum of the length")
    return length


def check_record(data: bytes, footer: bytes) -> None:
    """Compare a record's bytes with its checksum.

    Raises:
        ValueError: Cut short, or the checksum is wrong.
    """
    if len(footer) < FOOTER_BYTES:
        raise ValueError("cut short")
    if struct.unpack("<I", footer)[0] != masked_crc32c(data):
        raise ValueError("wrong checksum")


class _Varints(dict[int, bytes]):
    """Integers 0 and above as base-128 varints, each made once."""

    def __missing__(self, value: int) -> bytes:
        rest, parts = value, bytearray()
        while rest > 0x7F:
            parts.append(rest & 0x7F | 0x80)
            rest >>= 7
        parts.append(rest)
        self[value] = bytes(parts)
        return self[value]


_varints = _Varints()


def _tag(number: int, size: int) -> bytes:
    """Return what stands before a length-delimited field of that size; numbers below 16 only."""
    return bytes((number << 3 | _LENGTH_DELIMITED,)) + _varints[size]


@cache
def _feature_header(name: str, kind: int, size: int) -> bytes:
    """Return all of a feature's entry but its packed values, which come last and are ``size`` bytes."""
    header = b""
    # From the inside: packed values, Int64List or FloatList, Feature, map entry.
    for number in (1, kind, 2):
        header = _tag(number, size + len(header)) + header
    header = _tag(1, len(name)) + name.encode("ascii") + header
    return _tag(1, size + len(header)) + header


def encode_int64_feature(name: str, values: Iterable[int]) -> bytes:
    """Return one entry of an Example: a list of integers, 0 and above."""
    packed = b"".join(map(_varints.__getitem__, values))
    return _feature_header(name, _INT64_LIST, len(packed)) + packed


def encode_float_feature(name: str, values: Iterable[float]) -> bytes:
    """Return one entry of an Example: a list of 32-bit floats."""
    packed = np.fromiter(values, dtype="<f4").tobytes()
    return _feature_header(name, _FLOAT_LIST, len(packed)) + packed


def encode_example(entries: Iterable[bytes]) -> bytes:
    """Return a serialized ``tf.train.Example`` with these features.

    TensorFlow writes them in an order that changes from record to record; readers must not and do not care.
    """
    body = b"".join(entries)
    return _tag(1, len(body)) + body


def decode_example(data: bytes) -> dict[str, np.ndarray]:
    """Return the features of a serialized ``tf.train.Example``: int64 or float32 arrays; lists of bytes are left out.

    Raises:
        ValueError: Not such a message.
    """
    features: dict[str, np.ndarray] = {}
    for _, _, body in _fields(data, 1):
        for _, _, entry in _fields(body, 1):
            parts: Mapping[int, bytes] = {number: value for number, _, value in _fields(entry)}
            if 1 not in parts or 2 not in parts:
                raise ValueError("a feature without name or value")
            for kind, _, values in _fields(parts[2]):
                if kind in (_FLOAT_LIST, _INT64_LIST):
                    features[parts[1].decode("utf-8")] = _decode_list(values, is_float=kind == _FLOAT_LIST)
    return features


def _decode_list(data: bytes, *, is_float: bool) -> np.ndarray:
    """Return the values of a FloatList or an Int64List, packed or not."""
    raw = b"".join(value for _, _, value in _fields(data, 1))
    if is_float:
        return np.frombuffer(raw, dtype="<f4")
    return _decode_varints(raw)


def _decode_varints(data: bytes) -> np.ndarray:
    """Return int64 values of concatenated varints."""
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


def _fields(data: bytes, only: int | None = None) -> list[tuple[int, int, bytes]]:
    """Return (number, wire type, bytes) of a message's fields, in order.

    Args:
        data: The message.
        only: Leave out fields with another number.

    Raises:
        ValueError: Not a message, or cut short.
    """
    fields, place = [], 0
    while place < len(data):
        tag, place = _read_varint(data, place)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _LENGTH_DELIMITED:
            size, place = _read_varint(data, place)
            end = place + size
        elif wire_type == _VARINT:
            end = _read_varint(data, place)[1]
        elif wire_type in (_FIXED32, _FIXED64):
            end = place + (4 if wire_type == _FIXED32 else 8)
        else:
            raise ValueError(f"field of unknown type {wire_type}")
        if end > len(data):
            raise ValueError("a field is cut short")
        if only is None or number == only:
            fields.append((number, wire_type, data[place:end]))
        place = end
    return fields


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    """Return the number at ``place`` and where the next byte is."""
    value = shift = 0
    while True:
        if place >= len(data) or shift > 63:
            raise ValueError("a number is cut short")
        octet = data[place]
        place += 1
        value |= (octet & 0x7F) << shift
        if octet < 0x80:
            return value, place
        shift += 7
