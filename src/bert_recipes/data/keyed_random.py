"""Random numbers that are functions of a key, so that masks do not depend on workers, processes or resumes.

A generator with a state gives other numbers when one more batch is fetched before a checkpoint; a counter-based one
gives number i of key k without any history. The mixing function is SplitMix64's finaliser (Steele, Lea and Flood 2014,
"Fast splittable pseudorandom number generators"), the constants are David Stafford's variant 13.
"""

from __future__ import annotations

import numpy as np


_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_TO_UNIT = 2.0**-53


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser on a uint64 array (wraps modulo 2**64)."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


def hash_keys(seed: int, *parts: np.ndarray) -> np.ndarray:
    """One 64-bit key a row from a seed and any number of integer columns.

    Args:
        seed: Any integer; taken modulo 2**64.
        parts: Integer arrays (B,), for instance epochs and indices.

    Returns:
        uint64 (B,).
    """
    rows = len(parts[0])
    key = _mix(np.full(rows, seed % 2**64, dtype=np.uint64) + _GOLDEN_GAMMA)
    for part in parts:
        key = _mix((key ^ np.asarray(part).astype(np.uint64)) + _GOLDEN_GAMMA)
    return key


def keyed_uniforms(keys: np.ndarray, stream: int, count: int) -> np.ndarray:
    """`count` uniform numbers for each key.

    Args:
        keys: uint64 (B,).
        stream: Which of the independent streams of a key to read, 0 or more.
        count: Numbers a key.

    Returns:
        float64 (B, count) in [0, 1); number i of a key does not depend on `count` or on the other keys.
    """
    return keyed_uniforms_at(keys[:, None], stream, np.arange(count)[None, :])


def keyed_uniforms_at(keys: np.ndarray, stream: int, places: np.ndarray) -> np.ndarray:
    """Single numbers of `keyed_uniforms`.

    Args:
        keys: uint64, of any shape.
        stream: As there.
        places: int, which number of its key, from 0; of a shape that goes with that of the keys.

    Returns:
        float64, in [0, 1), of the shape of both together.
    """
    base = _mix(keys ^ _mix(np.array([stream + 1], dtype=np.uint64) * _GOLDEN_GAMMA))
    counters = (places.astype(np.uint64) + np.uint64(1)) * _GOLDEN_GAMMA
    return (_mix(base + counters) >> np.uint64(11)).astype(np.float64) * _TO_UNIT
