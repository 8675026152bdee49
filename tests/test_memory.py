"""The allocator's settings, where they are taken and where they are refused."""

import ctypes
import platform
import subprocess
import sys

import pytest

from bert_recipes import memory


class Libc:
    """A mallopt that refuses thresholds above a limit."""

    def __init__(self, limit):
        self.limit, self.set = limit, []

    def mallopt(self, name, value):
        if name == memory._M_MMAP_THRESHOLD and value > self.limit:
            return 0
        self.set.append((name, value))
        return 1


@pytest.mark.parametrize(("limit", "threshold"), [(1 << 31, 1 << 30), (1 << 25, 1 << 25)])
def test_the_largest_threshold_that_is_accepted_is_taken(monkeypatch, limit, threshold):
    libc = Libc(limit)
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("glibc", "2"))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: libc)
    assert memory.keep_freed_memory()
    assert libc.set[0] == (memory._M_MMAP_THRESHOLD, threshold)
    assert len(libc.set) == 3
    assert (memory._M_TRIM_THRESHOLD, -1) in libc.set


KEEPING = """
import ctypes
from bert_recipes.memory import keep_freed_memory

assert keep_freed_memory()
libc = ctypes.CDLL(None)
libc.sbrk.restype = libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes, libc.free.argtypes, libc.sbrk.argtypes = [ctypes.c_size_t], [ctypes.c_void_p], [ctypes.c_ssize_t]
blocks = [libc.malloc(500 << 20) for _ in range(6)]
assert all(blocks)
top = libc.sbrk(0)
for block in reversed(blocks):
    libc.free(block)
print(libc.sbrk(0) == top)
"""


def test_more_than_two_gigabytes_are_kept_too():
    """A stock step of a small model frees three. The blocks are never written to, so that they take no memory."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("no glibc")
    done = subprocess.run([sys.executable, "-c", KEEPING], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "True", done.stderr[-2000:]


def test_nothing_is_set_where_the_threshold_is_refused(monkeypatch):
    """The other two alone would freeze it at its low start."""
    libc = Libc(0)
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("glibc", "2"))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: libc)
    assert not memory.keep_freed_memory()
    assert libc.set == []


def test_other_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("musl", "1"))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: pytest.fail("asked"))
    assert not memory.keep_freed_memory()
