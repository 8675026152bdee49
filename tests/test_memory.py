"""The allocator's settings, where they are refused."""

import ctypes

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
