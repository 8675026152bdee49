"""TFRecord framing and tf.train.Example messages against the formats' definitions."""

import numpy as np
import pytest

from bert_recipes.tensorflow_files import (
    check_record,
    decode_example,
    encode_example,
    encode_float_feature,
    encode_int64_feature,
    read_length,
)


def test_values_of_all_sizes_come_back():
    integers = [0, 1, 127, 128, 16383, 16384, 30521, 2**31, 2**63 - 1]
    floats = [0.0, 1.0, 0.5]
    data = encode_example([encode_int64_feature("a", integers), encode_float_feature("b", floats)])
    decoded = decode_example(data)
    assert decoded["a"].tolist() == integers
    assert decoded["a"].dtype == np.int64
    assert decoded["b"].tolist() == floats


def test_long_features_come_back():
    values = list(range(5000))
    assert decode_example(encode_example([encode_int64_feature("a", values)]))["a"].tolist() == values


def test_messages_of_other_writers_are_read():
    # Negative number (10 bytes), not packed; fields of other types and lists of bytes are passed over.
    minus_two = b"\x08\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    feature = (
        b"\x0a\x01x\x12"
        + bytes([len(minus_two) + 4])
        + b"\x1a"
        + bytes([len(minus_two) + 2])
        + minus_two
        + b"\x08\x05"
    )
    bytes_feature = b"\x0a\x01y\x12\x05\x0a\x03\x0a\x01z"
    body = b"".join(b"\x0a" + bytes([len(entry)]) + entry for entry in (feature, bytes_feature))
    message = b"\x0a" + bytes([len(body)]) + body + b"\x10\x07" + b"\x1d\x00\x00\x00\x00"
    assert {name: values.tolist() for name, values in decode_example(message).items()} == {"x": [-2, 5]}


def test_cut_messages_are_errors():
    data = encode_example([encode_int64_feature("a", [1, 2, 300])])
    for end in range(1, len(data)):
        with pytest.raises(ValueError, match="cut short"):
            decode_example(data[:end])


def test_wrong_headers_and_checksums_are_errors():
    with pytest.raises(ValueError, match="cut short"):
        read_length(b"1234")
    with pytest.raises(ValueError, match="wrong checksum of the length"):
        read_length(b"123456789012")
    with pytest.raises(ValueError, match="wrong checksum"):
        check_record(b"abc", b"1234")
    with pytest.raises(ValueError, match="cut short"):
        check_record(b"abc", b"12")
