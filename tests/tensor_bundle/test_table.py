"""LevelDB tables: written and read, compressed, and damaged in every way."""

import struct

import pyarrow as pa
import pytest

from bert_recipes.errors import InputError
from bert_recipes.tensorflow_files import encode_varint, masked_crc32c, read_table, write_table


PAIRS = {f"bert/encoder/layer_{number}/kernel".encode(): bytes([number]) * number for number in range(100)}
PAIRS = {b"": b"header", **dict(sorted(PAIRS.items()))}


def block_of(*entries: tuple[int, bytes, bytes], num_restarts: int = 1) -> bytes:
    """A block of (bytes shared with the key before, rest of the key, value)."""
    parts = [
        encode_varint(shared) + encode_varint(len(own)) + encode_varint(len(value)) + own + value
        for shared, own, value in entries
    ]
    return b"".join(parts) + struct.pack("<II", 0, num_restarts)


def table_of(*blocks: bytes, compression: int = 0, handles: list[tuple[int, int]] | None = None) -> bytes:
    """A table of these blocks, as they are, or compressed; `handles` replaces the places that its index names."""
    data, places = b"", []
    for block in blocks:
        stored = pa.compress(block, codec="snappy", asbytes=True) if compression == 1 else block
        places.append((len(data), len(stored)))
        data += with_trailer(stored, compression)
    entries = [
        (0, bytes([number + 1]), encode_varint(offset) + encode_varint(size))
        for number, (offset, size) in enumerate(handles or places)
    ]
    index = block_of(*entries)
    index_place = encode_varint(len(data)) + encode_varint(len(index))
    return data + with_trailer(index, 0) + (b"\0\0" + index_place).ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")


def with_trailer(stored: bytes, compression: int) -> bytes:
    typed = stored + bytes([compression])
    return typed + struct.pack("<I", masked_crc32c(typed))


def refusal(path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        read_table(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def shown_id(value):
    return "" if isinstance(value, bytes) else None


@pytest.mark.parametrize("block_bytes", [1, 50, 700, 262_144])
def test_pairs_come_back_in_blocks_of_any_size(tmp_path, block_bytes):
    write_table(tmp_path / "t.index", PAIRS.items(), block_bytes=block_bytes)
    assert list(read_table(tmp_path / "t.index").items()) == list(PAIRS.items())


def test_a_table_may_be_empty(tmp_path):
    write_table(tmp_path / "t.index", [])
    assert read_table(tmp_path / "t.index") == {}


def test_snappy_blocks_are_read(tmp_path):
    value = b"layer" * 50
    block = block_of((0, b"", value), (0, b"a", value), (1, b"b", value))
    data = table_of(block, compression=1)
    assert len(data) < len(block)
    (tmp_path / "t.index").write_bytes(data)
    assert read_table(tmp_path / "t.index") == {b"": value, b"a": value, b"ab": value}


def test_a_changed_byte_is_seen_wherever_it_counts(tmp_path):
    write_table(tmp_path / "t.index", PAIRS.items(), block_bytes=500)
    data = (tmp_path / "t.index").read_bytes()
    seen = 0
    for place in range(0, len(data), 29):
        (tmp_path / "t.index").write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        try:
            assert read_table(tmp_path / "t.index") == PAIRS
        except InputError:
            seen += 1
    # Only the empty block for metadata and the padding of the footer say nothing.
    assert seen >= (len(data) - 60) // 29


def test_a_table_cut_short_is_refused(tmp_path):
    write_table(tmp_path / "t.index", PAIRS.items())
    data = (tmp_path / "t.index").read_bytes()
    for length in (0, 5, 47, 48, len(data) // 2, len(data) - 1):
        assert "cut short" in refusal(tmp_path / "t.index", data[:length])


def snappy_table(stored: bytes) -> bytes:
    whole = with_trailer(stored, 1)
    index = block_of((0, b"a", encode_varint(0) + encode_varint(len(stored))))
    footer = b"\0\0" + encode_varint(len(whole)) + encode_varint(len(index))
    return whole + with_trailer(index, 0) + footer.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")


@pytest.mark.parametrize(
    "data",
    [
        table_of(block_of((0, b"a", b"")), handles=[(0, 1 << 60)]),
        table_of(block_of((0, b"b", b""), (0, b"a", b""))),
        table_of(block_of((9, b"a", b""))),
        table_of(encode_varint(0) + encode_varint(1 << 40) + b"\0" + struct.pack("<II", 0, 1)),
        table_of(block_of((0, b"a", b""), num_restarts=1 << 30)),
        table_of(b"ab"),
        table_of(block_of((0, b"a", b"")), compression=7),
        snappy_table(encode_varint(1 << 40) + b"\0a"),  # would be a terabyte
        snappy_table(encode_varint(60) + b"\0a"),  # says more than it holds
        snappy_table(b""),
    ],
    ids=shown_id,
)
def test_what_cannot_be_is_refused(tmp_path, data):
    assert "damaged" in refusal(tmp_path / "t.index", data)


def test_a_file_too_large_for_an_index_is_not_read(tmp_path):
    path = tmp_path / "t.index"
    with open(path, "wb") as file:
        file.truncate(1 << 40)  # a hole: it takes no room
    with pytest.raises(InputError, match="no index of a checkpoint is that large"):
        read_table(path)


def test_the_mask_is_that_of_the_format():
    # RFC 3720's checksum of these bytes, 0xE3069283, rotated and shifted.
    rotated = (masked_crc32c(b"123456789") - 0xA282EAD8) & 0xFFFFFFFF
    assert ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF == 0xE3069283
