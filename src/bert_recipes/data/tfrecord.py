"""TFRecord files and ``tf.train.Example`` messages without TensorFlow.

A record is: length (uint64), masked CRC-32C of the length, the bytes, masked CRC-32C of the bytes; all little-endian.
Source: tensorflow/core/lib/io/record_writer.h and tensorflow/core/example/{example,feature}.proto.
"""

import struct
from collections.abc import Iterable, Mapping
from functools import cache
from typing import BinaryIO

import numpy as np

from bert_recipes.crc32c import masked_crc32c
from bert_recipes.protobuf_wire import LENGTH_DELIMITED, encode_varint, iter_fields


HEADER_BYTES = 12
FOOTER_BYTES = 4

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
        self[value] = encode_varint(value)
        return self[value]


_varints = _Varints()


def _tag(number: int, size: int) -> bytes:
    """Return what stands before a length-delimited field of that size; numbers below 16 only."""
    return bytes((number << 3 | LENGTH_DELIMITED,)) + _varints[size]


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
    for _, _, body in iter_fields(data, 1):
        for _, _, entry in iter_fields(body, 1):
            parts: Mapping[int, bytes] = {number: value for number, _, value in iter_fields(entry)}
            if 1 not in parts or 2 not in parts:
                raise ValueError("a feature without name or value")
            for kind, _, values in iter_fields(parts[2]):
                if kind in (_FLOAT_LIST, _INT64_LIST):
                    features[parts[1].decode("utf-8")] = _decode_list(values, is_float=kind == _FLOAT_LIST)
    return features


def _decode_list(data: bytes, *, is_float: bool) -> np.ndarray:
    """Return the values of a FloatList or an Int64List, packed or not."""
    raw = b"".join(value for _, _, value in iter_fields(data, 1))
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
