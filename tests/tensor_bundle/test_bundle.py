"""Checkpoints in TensorFlow's format: written, read, partitioned, and damaged."""

import dataclasses

import numpy as np
import pytest

from bert_recipes.errors import InputError
from bert_recipes.tensorflow_files import (
    HEADER_KEY,
    BundleReader,
    BundleWriter,
    Entry,
    encode_bytes,
    encode_int,
    masked_crc32c,
    parse_entry,
    parse_header,
    read_table,
    serialize_entry,
    serialize_header,
    slice_key,
    write_table,
)


VALUES = {
    "bert/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "double": np.asarray([0.1, -2.5]),
    "half": np.asarray([[1.5, -0.25]], dtype=np.float16),
    "global_step": np.asarray(7, dtype=np.int64),
    "ints": np.asarray([-1, 2**31 - 1], dtype=np.int32),
}


def shown_id(value):
    return "" if isinstance(value, bytes) else None


def write(prefix, values=VALUES):
    with BundleWriter(prefix) as writer:
        for name, array in values.items():
            writer.add(name, array)
    return prefix


def rewrite(prefix, entries: dict[bytes, Entry | bytes], header: bytes | None = None) -> None:
    """Replace entries of the index, or its header."""
    table = read_table(prefix.with_name(f"{prefix.name}.index"))
    table |= {key: entry if isinstance(entry, bytes) else serialize_entry(entry) for key, entry in entries.items()}
    if header is not None:
        table[HEADER_KEY] = header
    write_table(prefix.with_name(f"{prefix.name}.index"), sorted(table.items()))


def entry_of(prefix, name: str) -> Entry:
    return parse_entry(read_table(prefix.with_name(f"{prefix.name}.index"))[name.encode()])


def test_values_of_all_types_come_back(tmp_path):
    reader = BundleReader(write(tmp_path / "model.ckpt"))
    assert list(reader.variables) == sorted(VALUES)
    for name, array in VALUES.items():
        assert reader.variables[name].shape == array.shape
        assert reader.variables[name].dtype == array.dtype.name
        values = reader.read(name)
        assert values.dtype == array.dtype
        np.testing.assert_array_equal(values, array)
    assert {path.name for path in tmp_path.iterdir()} == {"model.ckpt.index", "model.ckpt.data-00000-of-00001"}


def test_a_large_tensor_and_one_that_is_not_contiguous(tmp_path):
    values = np.random.default_rng(0).normal(size=(1000, 700)).astype(np.float32)
    reader = BundleReader(write(tmp_path / "m", {"a": values.T, "b": values[::2, 1::3]}))
    np.testing.assert_array_equal(reader.read("a"), values.T)
    np.testing.assert_array_equal(reader.read("b"), values[::2, 1::3])


def test_a_block_that_fails_leaves_no_index(tmp_path):
    def write_twice():
        with BundleWriter(tmp_path / "m") as writer:
            writer.add("a", np.zeros(1))
            writer.add("a", np.zeros(1))

    with pytest.raises(ValueError, match="is no new name"):
        write_twice()
    assert not (tmp_path / "m.index").exists()
    with pytest.raises(ValueError, match="uint8 is not written"):
        write(tmp_path / "m", {"a": np.zeros(1, np.uint8)})
    assert not (tmp_path / "m.index").exists()


def test_bfloat16_becomes_the_same_numbers_in_float32(tmp_path):
    prefix = write(tmp_path / "m", {"a": np.asarray([1.0, -3.140625, 1e30, 0.0], dtype=np.float32)})
    exact = BundleReader(prefix).read("a").view(np.uint32) >> 16
    data = exact.astype("<u2").tobytes()
    (tmp_path / "m.data-00000-of-00001").write_bytes(data)
    rewrite(
        prefix, {b"a": dataclasses.replace(entry_of(prefix, "a"), dtype="bfloat16", size=8, crc=masked_crc32c(data))}
    )
    values = BundleReader(prefix).read("a")
    assert values.dtype == np.float32
    assert values[:2].tolist() == [1.0, -3.140625]
    np.testing.assert_array_equal(values.view(np.uint32), exact << 16)


def test_data_of_a_big_endian_machine_is_read(tmp_path):
    data = np.asarray([1.5, -2.0], dtype=">f4").tobytes()
    prefix = write(tmp_path / "m", {"a": np.asarray([1.5, -2.0], dtype=np.float32)})
    (tmp_path / "m.data-00000-of-00001").write_bytes(data)
    entry = dataclasses.replace(entry_of(prefix, "a"), crc=masked_crc32c(data))
    rewrite(prefix, {b"a": entry}, serialize_header(1, is_big_endian=True))
    assert BundleReader(prefix).read("a").tolist() == [1.5, -2.0]


def test_headers_and_entries_are_the_bytes_of_protocol_buffers():
    # Message by message as TensorFlow serialises it: fields in order, zeros left out.
    assert serialize_header(1) == bytes.fromhex("08011a020801")
    entry = Entry("float32", (2, 300), shard=0, offset=5, size=2400, crc=1)
    assert serialize_entry(entry) == bytes.fromhex("0801120912020802120308ac02200528e0123501000000")
    assert parse_entry(serialize_entry(entry)) == entry
    assert parse_header(serialize_header(3, is_big_endian=True)) == (3, True)


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


def partition(prefix, cuts: list[tuple[int, int]], *, whole=(4, 3), lose: int | None = None):
    """Write "table", float32 `whole`, as slices of rows; slice number `lose` has an entry of the whole only."""
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    with BundleWriter(prefix) as writer:
        for start, length in cuts:
            writer.add(f"part {start} {length}", values[start : start + length])
    table = read_table(prefix.with_name(f"{prefix.name}.index"))
    slices = b""
    for number, (start, length) in enumerate(cuts):
        extents = encode_bytes(1, encode_int(1, start) + encode_int(2, length)) + encode_bytes(1, b"")
        slices += encode_bytes(7, extents)
        part = table.pop(f"part {start} {length}".encode())
        if number != lose:
            table[slice_key(b"table", ((start, length), (0, -1)))] = part
    dimensions = b"".join(encode_bytes(2, encode_int(1, size)) for size in whole)
    table[b"table"] = encode_int(1, 1) + encode_bytes(2, dimensions) + slices
    write_table(prefix.with_name(f"{prefix.name}.index"), sorted(table.items()))
    return values


def test_a_partitioned_variable_is_read_as_one(tmp_path):
    values = partition(tmp_path / "m", [(0, 1), (1, 2), (3, 1)])
    reader = BundleReader(tmp_path / "m")
    assert {name: variable.shape for name, variable in reader.variables.items()} == {"table": (4, 3)}
    np.testing.assert_array_equal(reader.read("table"), values)


@pytest.mark.parametrize(
    ("cuts", "settings", "message"),
    [
        ([(0, 1), (1, 2)], {}, "damaged"),
        ([(0, 2), (1, 2)], {}, "do not cover it"),
        ([(0, 2), (2, 2)], {"lose": 1}, "damaged"),
        ([(0, 4)], {"whole": (2, 3)}, "damaged"),
        ([(0, 4)], {"whole": (1 << 20, 3)}, "damaged"),
        ([(0, 4)], {"whole": (4, 3, 1)}, "damaged"),
    ],
)
def test_slices_that_are_not_their_variable_are_refused(tmp_path, cuts, settings, message):
    partition(tmp_path / "m", cuts, **settings)
    with pytest.raises(InputError, match=message):
        BundleReader(tmp_path / "m").read("table")


# Damage


def test_a_changed_byte_of_data_is_seen_when_it_is_read(tmp_path):
    prefix = write(tmp_path / "m")
    path = tmp_path / "m.data-00000-of-00001"
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)
    reader = BundleReader(prefix)
    with pytest.raises(InputError, match="wrong checksum of bert/kernel"):
        reader.read("bert/kernel")
    reader.read("double")


def test_a_file_that_is_cut_short_or_missing_is_seen_at_once(tmp_path):
    prefix = write(tmp_path / "m")
    path = tmp_path / "m.data-00000-of-00001"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="cut short, or belongs to another"):
        BundleReader(prefix)
    path.unlink()
    with pytest.raises(InputError, match=r"data-00000-of-00001: missing; it belongs to m\.index"):
        BundleReader(prefix)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 1 << 60}, "has .* bytes in file 0"),
        ({"size": 1 << 60, "shape": (1 << 58,)}, "cut short, or belongs"),
        ({"offset": 1 << 62}, "cut short, or belongs"),
        ({"shape": (2, 3, 1 << 40)}, "has .* bytes in file 0"),
        ({"shape": (1,) * 9}, "too many dimensions"),
        ({"shard": 1}, "bytes in file 1"),
        ({"dtype": "int64"}, "has .* bytes in file 0"),
    ],
)
def test_an_entry_that_cannot_be_is_refused_before_anything_is_read(tmp_path, changes, message):
    prefix = write(tmp_path / "m")
    rewrite(prefix, {b"bert/kernel": dataclasses.replace(entry_of(prefix, "bert/kernel"), **changes)})
    with pytest.raises(InputError, match=message):
        BundleReader(prefix)


def negative(number: int) -> bytes:
    return bytes([number << 3]) + b"\xff" * 9 + b"\x01"


@pytest.mark.parametrize(
    "entry",
    [
        *(negative(number) for number in (3, 4, 5)),
        encode_bytes(2, encode_bytes(2, negative(1))),
        encode_int(2, 5),
        encode_bytes(4, b"x"),
        encode_bytes(7, encode_int(1, 5)),
        b"\x08",
        b"\x0f\x01",
    ],
    ids=shown_id,
)
def test_messages_that_are_none_are_refused(tmp_path, entry):
    prefix = write(tmp_path / "m")
    rewrite(prefix, {b"bert/kernel": entry})
    with pytest.raises(InputError, match="damaged"):
        BundleReader(prefix).read("bert/kernel")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"", "names 0 files"),
        (encode_int(1, 1 << 40), "files of data"),
        (encode_int(1, 1) + encode_int(2, 7), "byte order 7"),
        (encode_int(1, 1) + encode_bytes(3, encode_int(2, 99)), "a later version"),
    ],
    ids=shown_id,
)
def test_headers_that_are_none_are_refused(tmp_path, header, message):
    rewrite(write(tmp_path / "m"), {}, header)
    with pytest.raises(InputError, match=message):
        BundleReader(tmp_path / "m")


def test_a_name_that_is_no_text_is_refused(tmp_path):
    prefix = write(tmp_path / "m")
    rewrite(prefix, {b"bert/\xff": entry_of(prefix, "half")})
    with pytest.raises(InputError, match="damaged"):
        BundleReader(prefix)


def test_types_that_are_no_numbers_are_listed_but_not_read(tmp_path):
    prefix = write(tmp_path / "m")
    text = serialize_entry(entry_of(prefix, "double")).replace(b"\x08\x02", b"\x08\x07", 1)
    empty = dataclasses.replace(entry_of(prefix, "half"), shape=(0, 5), size=0)
    rewrite(prefix, {b"text": text, b"empty": empty})
    reader = BundleReader(prefix)
    assert reader.variables["text"].dtype == "type 7"
    with pytest.raises(InputError, match="which is no weight of a network"):
        reader.read("text")
    with pytest.raises(InputError, match="which is no weight of a network"):
        reader.read("empty")
