"""CRC-32C, the checksum of TensorFlow's files, in numpy: quick for a record of a kilobyte and for a tensor of 100 MB.

A checksum is linear in its input over the field of two elements: what a byte adds depends on the byte and on how many bytes
follow, and a state moves over n bytes of zeros by a matrix. So nothing is done byte by byte: a short input is one table look-up a
byte, a long one is cut into thousands of lanes that move forward together.

Source: RFC 3720, appendix B.4 (the polynomial and test vectors); tensorflow/core/lib/hash/crc32c.h (`Mask`).
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

import numpy as np


_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected
_MASK_DELTA = 0xA282EAD8
_ALL = 0xFFFFFFFF
# Bytes of a lane, and of a step of the short way; the table takes 1 KB a byte.
_LANE = 1024
# Lanes that move together: enough to hide what a call of numpy costs, few enough to stay in a core's cache.
_MAX_LANES = 8192
_MIN_LANES = 64


def crc32c(data: Any, crc: int = 0) -> int:
    """Return the CRC-32C of bytes, or of bytes that follow others.

    Args:
        data: Bytes, a memoryview, or a contiguous array of any type.
        crc: The checksum of what went before.

    Returns:
        0 to 2**32 - 1.
    """
    octets = np.frombuffer(data, dtype=np.uint8)
    state, place = crc ^ _ALL, 0
    while len(octets) - place >= _MIN_LANES * _LANE:
        lanes = min(_MAX_LANES, (len(octets) - place) // _LANE)
        state = _over_lanes(octets[place : place + lanes * _LANE], state)
        place += lanes * _LANE
    return _over_chunks(octets[place:], state) ^ _ALL


def mask_crc(crc: int) -> int:
    """Return a checksum rotated and shifted, as TensorFlow keeps it beside data that may hold checksums itself."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & _ALL


def masked_crc32c(data: Any) -> int:
    """Return the masked CRC-32C of bytes."""
    return mask_crc(crc32c(data))


def _over_chunks(octets: np.ndarray, state: int) -> int:
    """Move the state over uint8 (N,), a kilobyte at a time.

    The checksum of a chunk is the XOR of one table entry a byte. What went before is XORed into the chunk's first four bytes.
    """
    table = _byte_table()
    for begin in range(0, len(octets), _LANE):
        chunk = octets[begin : begin + _LANE].copy()
        head = min(4, len(chunk))
        chunk[:head] ^= np.frombuffer(struct.pack("<I", state), dtype=np.uint8)[:head]
        entries = table[np.arange(len(chunk) - 1, -1, -1), chunk]
        # With fewer than four bytes, the rest of the state moves down and stays.
        state = (state >> (8 * head) if head < 4 else 0) ^ int(np.bitwise_xor.reduce(entries))
    return state


def _over_lanes(octets: np.ndarray, state: int) -> int:
    """Move the state over uint8 (L * _LANE,): all lanes side by side, four bytes a step, then the lanes' states into one."""
    low, high = _word_tables()
    # uint32 (_LANE / 4, L): row k holds word k of every lane.
    steps = np.ascontiguousarray(octets.view("<u4").reshape(-1, _LANE // 4).T)
    states = np.zeros(steps.shape[1], dtype="<u4")
    states[0] = state
    for words in steps:
        states ^= words
        halves = states.view("<u2")
        states = low.take(halves[0::2])
        states ^= high.take(halves[1::2])
    # Zeros at the front change nothing, so that the lanes can be joined by twos.
    filled = np.zeros(1 << (len(states) - 1).bit_length(), dtype="<u4")
    filled[len(filled) - len(states) :] = states
    level = 0
    while len(filled) > 1:
        filled = _moved(filled[0::2], _zeros_table(level)) ^ filled[1::2]
        level += 1
    return int(filled[0])


@cache
def _byte_table() -> np.ndarray:
    """Return uint32 (_LANE, 256): what a byte adds to the checksum when that many more bytes follow it."""
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, (first >> 1) ^ np.uint32(_POLYNOMIAL), first >> 1)
    table = np.empty((_LANE, 256), dtype=np.uint32)
    table[0] = first
    for row in range(1, _LANE):
        table[row] = (table[row - 1] >> 8) ^ first[table[row - 1] & 0xFF]
    return table


@cache
def _word_tables() -> tuple[np.ndarray, np.ndarray]:
    """Return uint32 (65536,) twice: where the lower and the upper half of a state go over four bytes."""
    table = _byte_table()
    values = np.arange(65536)
    low, high = values & 0xFF, values >> 8
    return table[3][low] ^ table[2][high], table[1][low] ^ table[0][high]


@cache
def _zeros_table(level: int) -> np.ndarray:
    """Return uint32 (4, 256): where each byte of a state goes over _LANE * 2**level bytes of zeros."""
    if level == 0:
        return _byte_table()[[_LANE - 1, _LANE - 2, _LANE - 3, _LANE - 4]]
    half = _zeros_table(level - 1)
    return _moved(half.ravel(), half).reshape(4, 256)


def _moved(states: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Apply such a table to uint32 (N,)."""
    octets = np.ascontiguousarray(states, dtype="<u4").view(np.uint8).reshape(-1, 4)
    return table[0][octets[:, 0]] ^ table[1][octets[:, 1]] ^ table[2][octets[:, 2]] ^ table[3][octets[:, 3]]
