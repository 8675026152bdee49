"""LevelDB's table of sorted keys and values, as TensorFlow keeps the index of a checkpoint.

A table is blocks, each followed by five bytes (its compression and the masked CRC-32C of both), and 48 bytes at the end that say
where the index of the blocks lies. A block is entries whose keys leave out what they share with the key before, and after them the
places where a whole key stands.

Source: tensorflow/core/lib/io/{format.h,format.cc,block_builder.cc,table_builder.cc,table_options.h}.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from bert_recipes.crc32c import masked_crc32c
from bert_recipes.errors import InputError
from bert_recipes.protobuf_wire import encode_varint, read_varint


_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
_TRAILER_BYTES = 5
_UNCOMPRESSED, _SNAPPY = 0, 1
# TensorFlow's, so that our tables are its tables byte for byte.
BLOCK_BYTES = 262_144
_RESTART_INTERVAL = 16

# The index of BERT large with the optimiser's moments has some 1,200 entries in less than 100 KB.
_MOST_BYTES = 1 << 24
_MOST_ENTRIES = 100_000
# Three bytes of snappy come to 64 at most (a copy with an offset of two bytes): a longer result cannot be.
_MOST_SNAPPY_RATIO = 22
# Keys share their beginnings, so a few bytes can stand for a long key. Real names are about as long as their entries.
_MOST_KEY_BYTES = 4096
_MOST_KEY_RATIO = 16


def read_table(path: Path) -> dict[bytes, bytes]:
    """Read a table.

    Args:
        path: The file, of at most 16 MB and 100,000 entries.

    Returns:
        Key -> value, in the order of the keys. Together they take at most a small multiple of the file's size.

    Raises:
        InputError: Not a table, or damaged.
        OSError: The file cannot be read.
    """
    with open(path, "rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise InputError(f"{path}: more than {_MOST_BYTES:,} bytes; no index of a checkpoint is that large")
    if len(data) < _FOOTER_BYTES or int.from_bytes(data[-8:], "little") != _MAGIC:
        raise InputError(
            f"{path}: no index of a TensorFlow checkpoint, or cut short (its last eight bytes are not those of such a file); "
            "copy it again"
        )
    try:
        return dict(_read_pairs(data))
    except ValueError as error:
        raise InputError(f"{path}: damaged ({error}); copy it again") from error


def _read_pairs(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the pairs of all blocks, one block held at a time."""
    end = len(data) - _FOOTER_BYTES
    footer = data[end:]
    _, _, place = _read_handle(footer, 0)  # of the block for metadata, which holds none
    offset, size, _ = _read_handle(footer, place)
    last_end, last_key = 0, None
    num_entries = key_bytes = block_bytes = 0
    for _, handle in _block_entries(_read_block(data, offset, size, end)):
        offset, size, place = _read_handle(handle, 0)
        if place != len(handle):
            raise ValueError("more than a place in the index of the blocks")
        # Blocks stand one after the other. One that is named twice would be read twice.
        if offset < last_end:
            raise ValueError("blocks overlap")
        last_end = offset + size + _TRAILER_BYTES
        block = _read_block(data, offset, size, end)
        block_bytes += len(block)
        if block_bytes > _MOST_BYTES:
            raise ValueError(f"it comes to more than {_MOST_BYTES:,} bytes")
        for key, value in _block_entries(block):
            if last_key is not None and key <= last_key:
                raise ValueError("its keys are not in order")
            num_entries, key_bytes = num_entries + 1, key_bytes + len(key)
            if num_entries > _MOST_ENTRIES or key_bytes > _MOST_KEY_RATIO * len(data):
                raise ValueError(f"more entries ({num_entries:,}), or longer names, than a checkpoint has")
            last_key = key
            yield key, value


def _read_handle(data: bytes, place: int) -> tuple[int, int, int]:
    """Return offset and size of a block, and where the next byte is."""
    offset, place = read_varint(data, place)
    size, place = read_varint(data, place)
    return offset, size, place


def _read_block(data: bytes, offset: int, size: int, end: int) -> bytes:
    """Return a block's contents, after its checksum."""
    if offset + size + _TRAILER_BYTES > end:
        raise ValueError(f"a block of {size:,} bytes at {offset:,} goes beyond its end")
    stored, trailer = data[offset : offset + size], data[offset + size : offset + size + _TRAILER_BYTES]
    if struct.unpack("<I", trailer[1:])[0] != masked_crc32c(data[offset : offset + size + 1]):
        raise ValueError(f"wrong checksum of the block at {offset:,}")
    if trailer[0] == _UNCOMPRESSED:
        return stored
    if trailer[0] != _SNAPPY:
        raise ValueError(f"compression {trailer[0]} of the block at {offset:,} is neither 0 (none) nor 1 (snappy)")
    length, _ = read_varint(stored, 0)
    if length > min(_MOST_SNAPPY_RATIO * size, _MOST_BYTES):
        raise ValueError(f"{size:,} bytes of snappy that say they hold {length:,}")
    try:
        return bytes(pa.decompress(stored, decompressed_size=length, codec="snappy", asbytes=True))
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"no snappy in the block at {offset:,}") from error


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block."""
    if len(block) < 4:
        raise ValueError("a block is cut short")
    (num_restarts,) = struct.unpack("<I", block[-4:])
    end = len(block) - 4 * (num_restarts + 1)
    if end < 0:
        raise ValueError("a block of which the end is missing")
    place, key = 0, b""
    while place < end:
        shared, place = read_varint(block, place)
        own, place = read_varint(block, place)
        size, place = read_varint(block, place)
        if shared > len(key) or place + own + size > end:
            raise ValueError("an entry goes beyond its block")
        if shared + own > _MOST_KEY_BYTES:
            raise ValueError(f"a key of {shared + own:,} bytes")
        key = key[:shared] + block[place : place + own]
        yield key, block[place + own : place + own + size]
        place += own + size


# Writing


def write_table(path: Path, items: Iterable[tuple[bytes, bytes]], *, block_bytes: int = BLOCK_BYTES) -> None:
    """Write a table without compression, as TensorFlow does.

    Args:
        path: The file.
        items: Key and value, in the order of the keys.
        block_bytes: A block that has reached this size is closed.

    Raises:
        ValueError: The keys are not in order.
        OSError: The file cannot be written.
    """
    blocks, index = _Block(), _Block(restart_interval=1)
    last: tuple[bytes, bytes] | None = None  # the last key of the block before, and where the block lies
    last_key: bytes | None = None
    with open(path, "wb") as file:
        for key, value in items:
            if last_key is not None and key <= last_key:
                raise ValueError(f"keys are not in order: {key!r} after {last_key!r}")
            if len(key) + len(value) >= 2 * block_bytes and not blocks.is_empty:
                last = (last_key or b"", _write_block(file, blocks.finish()))
                blocks = _Block()
            if last is not None:
                index.add(_separator(last[0], key), last[1])
                last = None
            blocks.add(key, value)
            last_key = key
            if blocks.num_bytes >= block_bytes:
                last = (key, _write_block(file, blocks.finish()))
                blocks = _Block()
        if not blocks.is_empty:
            last = (last_key or b"", _write_block(file, blocks.finish()))
        metadata = _write_block(file, _Block().finish())
        if last is not None:
            index.add(_successor(last[0]), last[1])
        footer = metadata + _write_block(file, index.finish())
        file.write(footer.ljust(_FOOTER_BYTES - 8, b"\0") + _MAGIC.to_bytes(8, "little"))


class _Block:
    """A block that is being filled."""

    def __init__(self, restart_interval: int = _RESTART_INTERVAL) -> None:
        self._interval = restart_interval
        self._buffer = bytearray()
        self._restarts = [0]
        self._since_restart = 0
        self._last_key = b""

    @property
    def is_empty(self) -> bool:
        return not self._buffer

    @property
    def num_bytes(self) -> int:
        return len(self._buffer) + 4 * (len(self._restarts) + 1)

    def add(self, key: bytes, value: bytes) -> None:
        shared = 0
        if self._since_restart < self._interval:
            shared = _num_shared(self._last_key, key)
        else:
            self._restarts.append(len(self._buffer))
            self._since_restart = 0
        for number in (shared, len(key) - shared, len(value)):
            self._buffer += encode_varint(number)
        self._buffer += key[shared:] + value
        self._last_key = key
        self._since_restart += 1

    def finish(self) -> bytes:
        return bytes(self._buffer) + struct.pack(f"<{len(self._restarts) + 1}I", *self._restarts, len(self._restarts))


def _write_block(file: BinaryIO, block: bytes) -> bytes:
    """Append a block with its trailer; return where it lies."""
    handle = encode_varint(file.tell()) + encode_varint(len(block))
    typed = block + bytes([_UNCOMPRESSED])
    file.write(typed + struct.pack("<I", masked_crc32c(typed)))
    return handle


def _num_shared(first: bytes, second: bytes) -> int:
    most = min(len(first), len(second))
    return next((place for place in range(most) if first[place] != second[place]), most)


def _separator(last: bytes, following: bytes) -> bytes:
    """A short key that is no smaller than `last` and smaller than `following`."""
    place = _num_shared(last, following)
    if place < min(len(last), len(following)) and last[place] + 1 < following[place]:
        return last[:place] + bytes([last[place] + 1])
    return last


def _successor(last: bytes) -> bytes:
    """A short key that is no smaller than `last`."""
    place = next((place for place, octet in enumerate(last) if octet != 0xFF), None)
    return last if place is None else last[:place] + bytes([last[place] + 1])
