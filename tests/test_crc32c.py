"""CRC-32C in numpy against the definition, bit by bit."""

import random

import numpy as np
import pytest

from bert_recipes.crc32c import crc32c, masked_crc32c


def plain_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (bytes(32), 0x8A9136AA),
        (bytes([255]) * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"123456789", 0xE3069283),
    ],
)
def test_checksums_of_rfc_3720(data, expected):
    assert crc32c(data) == expected


def test_checksums_of_all_lengths_equal_the_bitwise_definition():
    rng = random.Random(0)
    for length in [*range(12), 100, 1020, 1023, 1024, 1025, 1027, 1028, 2048, 2051, 3000]:
        data = rng.randbytes(length)
        assert crc32c(data) == plain_crc32c(data), length


@pytest.mark.parametrize("length", [65_535, 65_536, 65_537, 70_000, 131_072 + 1023])
def test_many_lanes_equal_the_bitwise_definition(length):
    data = random.Random(length).randbytes(length)
    assert crc32c(data) == plain_crc32c(data)


def test_more_than_one_window_of_lanes_is_the_same_as_small_parts():
    data = np.random.default_rng(0).integers(0, 256, 8192 * 1024 * 2 + 66_000, dtype=np.uint8)
    crc = 0
    for begin in range(0, len(data), 60_000):  # too short for lanes
        crc = crc32c(data[begin : begin + 60_000], crc)
    assert crc32c(data) == crc


def test_arrays_of_any_type_are_their_bytes():
    values = np.arange(6, dtype="<f4").reshape(2, 3)
    assert crc32c(values) == crc32c(values.tobytes()) == crc32c(memoryview(values.tobytes()))
    assert crc32c(np.empty((0, 3), np.float32)) == 0


def test_the_mask_is_that_of_the_format():
    rotated = (masked_crc32c(b"123456789") - 0xA282EAD8) & 0xFFFFFFFF
    assert ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF == 0xE3069283
