"""The wire format of protocol buffers, as far as TensorFlow's records and checkpoints need it, without their library.

Source: the encoding page of the protocol buffers documentation.
"""

from __future__ import annotations

from collections.abc import Iterator


# Wire types.
VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5


def iter_fields(data: bytes, only: int | None = None) -> Iterator[tuple[int, int, bytes]]:
    """Yield (number, wire type, bytes) of a message's fields, in order; nothing is held, however many there are.

    Args:
        data: The message.
        only: Leave out fields with another number.

    Raises:
        ValueError: Not a message, or cut short.
    """
    place = 0
    while place < len(data):
        tag, place = read_varint(data, place)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == LENGTH_DELIMITED:
            size, place = read_varint(data, place)
            end = place + size
        elif wire_type == VARINT:
            end = read_varint(data, place)[1]
        elif wire_type in (FIXED32, FIXED64):
            end = place + (4 if wire_type == FIXED32 else 8)
        else:
            raise ValueError(f"field of unknown type {wire_type}")
        if end > len(data):
            raise ValueError("a field is cut short")
        if only is None or number == only:
            yield number, wire_type, data[place:end]
        place = end


def read_varint(data: bytes, place: int) -> tuple[int, int]:
    """Return the number at ``place`` and where the next byte is.

    Raises:
        ValueError: Cut short, or of more than ten bytes.
    """
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


def read_int64(data: bytes) -> int:
    """Return the value of a varint field of type int64 or int32: -2**63 to 2**63 - 1.

    Raises:
        ValueError: Not a varint.
    """
    value = read_varint(data, 0)[0] & 0xFFFFFFFFFFFFFFFF
    return value - (1 << 64) if value >> 63 else value


def encode_varint(value: int) -> bytes:
    """Return a number, 0 or above, as a base-128 varint."""
    rest, parts = value, bytearray()
    while rest > 0x7F:
        parts.append(rest & 0x7F | 0x80)
        rest >>= 7
    parts.append(rest)
    return bytes(parts)


def encode_int(number: int, value: int) -> bytes:
    """Return a varint field; nothing for 0, which is what a missing field means."""
    return encode_varint(number << 3 | VARINT) + encode_varint(value) if value else b""


def encode_bytes(number: int, value: bytes) -> bytes:
    """Return a length-delimited field."""
    return encode_varint(number << 3 | LENGTH_DELIMITED) + encode_varint(len(value)) + value


def encode_fixed32(number: int, value: int) -> bytes:
    """Return a fixed32 field; nothing for 0, which is what a missing field means."""
    return encode_varint(number << 3 | FIXED32) + value.to_bytes(4, "little") if value else b""
