"""TensorFlow's file formats: TFRecord files, LevelDB tables and checkpoints, read and damaged."""

import dataclasses
import os

import numpy as np
import pytest
from bundle_writer import (
    block_of,
    encode_int,
    serialize_entry,
    serialize_header,
    table_of,
    write_bundle,
    write_table,
)

from bert_recipes.errors import InputError
from bert_recipes.tensorflow_files import (
    HEADER_KEY,
    BundleReader,
    Entry,
    check_record,
    decode_example,
    encode_bytes,
    encode_example,
    encode_float_feature,
    encode_int64_feature,
    encode_varint,
    masked_crc32c,
    parse_entry,
    parse_header,
    read_length,
    read_table,
    shard_file,
    slice_key,
)


pytest.importorskip("google_crc32c", reason="google-crc32c is not installed")

DAMAGED = "damaged or incomplete; fetch the checkpoint again"


def shown_id(value):
    return "" if isinstance(value, bytes) else None


# TFRecord


def test_values_of_all_sizes_come_back():
    integers = [0, 1, 127, 128, 16383, 16384, 30521, 2**31, 2**63 - 1, *range(5000)]
    floats = [0.0, 1.0, 0.5]
    data = encode_example([encode_int64_feature("a", integers), encode_float_feature("b", floats)])
    decoded = decode_example(data)
    assert decoded["a"].tolist() == integers
    assert decoded["a"].dtype == np.int64
    assert decoded["b"].tolist() == floats


def test_messages_of_other_writers_are_read():
    # Negative number (10 bytes), not packed; fields of other types and lists of bytes are passed
    # over.
    minus_two = b"\x08\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    numbers = encode_bytes(3, minus_two + b"\x08\x05")
    entries = [
        encode_bytes(1, b"x") + encode_bytes(2, numbers),
        encode_bytes(1, b"y") + encode_bytes(2, encode_bytes(1, encode_bytes(1, b"z"))),
    ]
    features = b"".join(encode_bytes(1, entry) for entry in entries)
    message = encode_bytes(1, features) + b"\x10\x07" + b"\x1d\x00\x00\x00\x00"
    (values,) = decode_example(message).values()
    assert values.tolist() == [-2, 5]


def test_cut_messages_are_errors():
    data = encode_example([encode_int64_feature("a", [1, 2, 300])])
    for end in range(1, len(data)):
        with pytest.raises(ValueError, match="cut short"):
            decode_example(data[:end])


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (read_length, [b"1234"], "cut short"),
        (read_length, [b"123456789012"], "wrong checksum of the length"),
        (check_record, [b"abc", b"1234"], "wrong checksum"),
        (check_record, [b"abc", b"12"], "cut short"),
    ],
)
def test_wrong_headers_and_checksums_are_errors(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments)


# Tables


PAIRS = {
    f"bert/encoder/layer_{number}/kernel".encode(): bytes([number]) * number
    for number in range(100)
}
PAIRS = {b"": b"header", **dict(sorted(PAIRS.items()))}


@pytest.mark.parametrize("rows_a_block", [1, 7, 1000])
def test_pairs_come_back_in_blocks_of_any_size(tmp_path, rows_a_block):
    for table in (PAIRS, {}):
        write_table(tmp_path / "t.index", table, rows_a_block)
        assert list(read_table(tmp_path / "t.index").items()) == list(table.items())


def test_snappy_blocks_are_read(tmp_path):
    value = b"layer" * 50
    block = block_of((0, b"", value), (0, b"a", value), (1, b"b", value))
    data = table_of(block, compression=1)
    assert len(data) < len(block)
    (tmp_path / "t.index").write_bytes(data)
    assert read_table(tmp_path / "t.index") == {b"": value, b"a": value, b"ab": value}


def test_a_changed_byte_is_seen_wherever_it_counts(tmp_path):
    write_table(tmp_path / "t.index", PAIRS, 7)
    data = (tmp_path / "t.index").read_bytes()
    num_seen = 0
    for place in range(0, len(data), 29):
        damaged = data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]
        (tmp_path / "t.index").write_bytes(damaged)
        try:
            assert read_table(tmp_path / "t.index") == PAIRS
        except InputError:
            num_seen += 1
    # Only the empty block for metadata and the padding of the footer say nothing.
    assert num_seen >= (len(data) - 60) // 29


@pytest.mark.parametrize(
    "data",
    [
        b"",
        table_of(block_of())[-47:],
        table_of(block_of())[:-1],
        table_of(block_of((0, b"a", b"")), handles=[(0, 1 << 60)]),
        table_of(block_of((0, b"b", b""), (0, b"a", b""))),
        table_of(block_of((9, b"a", b""))),
        table_of(block_of((0, b"a", b""), num_restarts=1 << 30)),
        table_of(b"ab"),
        table_of(block_of((0, b"a", b"")), compression=7),
        table_of(b"", compression=1, stored=encode_varint(1 << 40) + b"\0a"),  # would be a terabyte
        table_of(b"", compression=1, stored=encode_varint(60) + b"\0a"),  # says more than it holds
    ],
    ids=shown_id,
)
def test_what_cannot_be_is_refused(tmp_path, data):
    (tmp_path / "t.index").write_bytes(data)
    with pytest.raises(InputError, match=rf"t\.index: {DAMAGED}"):
        read_table(tmp_path / "t.index")


def test_a_file_too_large_for_an_index_is_not_read(tmp_path):
    path = tmp_path / "t.index"
    path.touch()
    os.truncate(path, 1 << 40)  # a hole: it takes no room
    with pytest.raises(InputError, match=DAMAGED):
        read_table(path)


def test_the_mask_is_that_of_the_format():
    # RFC 3720's checksum of these bytes, 0xE3069283, rotated and shifted.
    rotated = (masked_crc32c(b"123456789") - 0xA282EAD8) & 0xFFFFFFFF
    assert ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF == 0xE3069283


# Checkpoints


VALUES = {
    "bert/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "double": np.asarray([0.1, -2.5]),
    "half": np.asarray([[1.5, -0.25]], dtype=np.float16),
    "global_step": np.asarray(7, dtype=np.int64),
    "ints": np.asarray([-1, 2**31 - 1], dtype=np.int32),
}


def rewrite(prefix, entries: dict[bytes, bytes]) -> None:
    """Replace entries of the index."""
    path = prefix.with_name(f"{prefix.name}.index")
    write_table(path, {**read_table(path), **entries})


def entry_of(prefix, name: str) -> Entry:
    return parse_entry(read_table(prefix.with_name(f"{prefix.name}.index"))[name.encode()])


def read_all(prefix) -> None:
    reader = BundleReader(prefix)
    for name in reader.variables:
        reader.read(name)


def test_values_of_all_types_come_back(tmp_path):
    reader = BundleReader(write_bundle(tmp_path / "model.ckpt", VALUES))
    assert list(reader.variables) == sorted(VALUES)
    for name, array in VALUES.items():
        assert reader.variables[name].shape == array.shape
        assert reader.variables[name].dtype == array.dtype.name
        values = reader.read(name)
        assert values.dtype == array.dtype
        np.testing.assert_array_equal(values, array)


def test_bfloat16_becomes_the_same_numbers_in_float32(tmp_path):
    prefix = write_bundle(
        tmp_path / "m", {"a": np.asarray([1.0, -3.140625, 1e30, 0.0], dtype=np.float32)}
    )
    exact = BundleReader(prefix).read("a").view(np.uint32) >> 16
    data = exact.astype("<u2").tobytes()
    (tmp_path / "m.data-00000-of-00001").write_bytes(data)
    entry = Entry("bfloat16", (4,), size=8, crc=masked_crc32c(data))
    rewrite(prefix, {b"a": serialize_entry(entry)})
    values = BundleReader(prefix).read("a")
    assert values.dtype == np.float32
    assert values[:2].tolist() == [1.0, -3.140625]
    np.testing.assert_array_equal(values.view(np.uint32), exact << 16)


def test_data_of_a_big_endian_machine_is_read(tmp_path):
    data = np.asarray([1.5, -2.0], dtype=">f4").tobytes()
    prefix = write_bundle(tmp_path / "m", {"a": np.asarray([1.5, -2.0], dtype=np.float32)})
    (tmp_path / "m.data-00000-of-00001").write_bytes(data)
    entry = dataclasses.replace(entry_of(prefix, "a"), crc=masked_crc32c(data))
    header = serialize_header(1, is_big_endian=True)
    rewrite(prefix, {b"a": serialize_entry(entry), HEADER_KEY: header})
    assert BundleReader(prefix).read("a").tolist() == [1.5, -2.0]


def test_headers_and_entries_are_read_as_tensorflow_serialises_them():
    assert parse_header(bytes.fromhex("08011a020801")) == (1, False)
    assert parse_header(serialize_header(3, is_big_endian=True)) == (3, True)
    entry = Entry("float32", (2, 300), shard=0, offset=5, size=2400, crc=1)
    data = bytes.fromhex("0801120912020802120308ac02200528e0123501000000")
    assert parse_entry(data) == entry


@pytest.mark.parametrize(
    ("name", "extents", "key"),
    [
        # tensorflow/core/lib/strings/ordered_code.cc: the numbers of its comments and of its tests.
        (b"a", ((0, -1),), "006100010101807f"),
        (b"a/b", ((64, 8192), (-64, 0x424242)), "00612f6200010102c040e0200040f0424242"),
        (b"\0\xff", (), "0000ffff00000100"),
        (b"a", ((-0x800, 2**63 - 1),), "0061000101013800ffc07fffffffffffffff"),
    ],
)
def test_keys_of_slices(name, extents, key):
    assert slice_key(name, extents) == bytes.fromhex(key)


# Partitioned variables


def partition(prefix, cuts: list[tuple[int, int]], *, shape=(4, 3), lost: int | None = None):
    """Write "table", float32 of a shape, as slices of rows; slice number `lost` has no entry."""
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    write_bundle(
        prefix, {f"{start} {length}": values[start : start + length] for start, length in cuts}
    )
    table = read_table(prefix.with_name(f"{prefix.name}.index"))
    slices = b""
    for number, (start, length) in enumerate(cuts):
        rows = encode_bytes(1, encode_int(1, start) + encode_int(2, length))
        slices += encode_bytes(7, rows + encode_bytes(1, b""))
        entry = table.pop(f"{start} {length}".encode())
        if number != lost:
            table[slice_key(b"table", ((start, length), (0, -1)))] = entry
    dimensions = b"".join(encode_bytes(2, encode_int(1, size)) for size in shape)
    table[b"table"] = encode_int(1, 1) + encode_bytes(2, dimensions) + slices
    write_table(prefix.with_name(f"{prefix.name}.index"), table)
    return values


def test_a_partitioned_variable_is_read_as_one(tmp_path):
    values = partition(tmp_path / "m", [(0, 1), (1, 2), (3, 1)])
    reader = BundleReader(tmp_path / "m")
    assert list(reader.variables) == ["table"]
    np.testing.assert_array_equal(reader.read("table"), values)


@pytest.mark.parametrize(
    ("cuts", "settings"),
    [
        ([(0, 1), (1, 2)], {}),
        ([(0, 2), (1, 2)], {}),
        ([(0, 2), (2, 2)], {"lost": 1}),
        ([(0, 4)], {"shape": (2, 3)}),
        ([(0, 4)], {"shape": (4, 3, 1)}),
    ],
)
def test_slices_that_are_not_their_variable_are_refused(tmp_path, cuts, settings):
    partition(tmp_path / "m", cuts, **settings)
    with pytest.raises(InputError, match=DAMAGED):
        BundleReader(tmp_path / "m").read("table")


# Damage


@pytest.mark.parametrize(
    "damage", [lambda data: b"\1" + data[1:], lambda data: data[:-1], lambda data: b""]
)
def test_data_that_is_changed_cut_short_or_missing_is_named_when_it_is_read(tmp_path, damage):
    path = shard_file(write_bundle(tmp_path / "m", VALUES), 0, 1)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=f"{path}: {DAMAGED}"):
        read_all(tmp_path / "m")


def changed(**values) -> bytes:
    """An entry of a float32 of (2, 3) with other values."""
    return serialize_entry(dataclasses.replace(Entry("float32", (2, 3), size=24), **values))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"bert/kernel", changed(size=1 << 60)),
        (b"bert/kernel", changed(size=1 << 60, shape=(1 << 58,))),
        (b"bert/kernel", changed(shard=1)),
        (b"bert/kernel", changed(shape=(1,) * 9)),
        (b"bert/kernel", bytes([3 << 3]) + b"\xff" * 9 + b"\x01"),  # a negative shard
        (b"bert/kernel", encode_int(2, 5)),
        (b"bert/kernel", b"\x08"),
        (b"bert/kernel", b"\x0f\x01"),
        (b"bert/\xff", changed()),
        (HEADER_KEY, b""),
        (HEADER_KEY, encode_int(1, 1) + encode_int(2, 7)),
        (HEADER_KEY, encode_int(1, 1) + encode_bytes(3, encode_int(2, 99))),
    ],
    ids=shown_id,
)
def test_an_index_that_cannot_be_is_refused_before_there_is_memory_for_it(tmp_path, key, value):
    prefix = write_bundle(tmp_path / "m", VALUES)
    rewrite(prefix, {key: value})
    with pytest.raises(InputError, match=DAMAGED):
        read_all(prefix)


def test_types_that_are_no_numbers_are_listed_but_not_read(tmp_path):
    prefix = write_bundle(tmp_path / "m", VALUES)
    text = serialize_entry(entry_of(prefix, "double")).replace(b"\x08\x02", b"\x08\x07", 1)
    empty = dataclasses.replace(entry_of(prefix, "half"), shape=(0, 5), size=0)
    rewrite(prefix, {b"text": text, b"empty": serialize_entry(empty)})
    reader = BundleReader(prefix)
    assert reader.variables["text"].dtype == "type 7"
    with pytest.raises(InputError, match="which is no weight of a network"):
        reader.read("text")
    with pytest.raises(InputError, match="which is no weight of a network"):
        reader.read("empty")
