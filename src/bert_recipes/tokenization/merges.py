"""WordPiece merges chosen by likelihood, which no library trains.

The pair with the highest f(ab) / (f(a) f(b)) is joined: Schuster and Nakajima 2012 as the Hugging
Face course (chapter 6.6) reads them. It ignores how often a pair occurs, so rare pieces that always
stand together come first. Google never published its trainer; this is not claimed to be it.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from bert_recipes.progress import Progress
from bert_recipes.tokenization.wordpiece import CONTINUATION


class Merge(NamedTuple):
    """Two pieces that become one."""

    left: str
    right: str
    joined: str
    frequency: int  # of the pair, when it was joined


# Scores this close are compared as fractions.
_CLOSE = 1e-12


class _Pairs:
    """Words as pieces, and how often each piece and each pair of neighbours occurs."""

    def __init__(self, words: Mapping[str, int], num_pieces: int) -> None:
        self.names: list[str] = []
        self.numbers: dict[str, int] = {}
        self.counts = list(words.values())
        self.splits = [
            [
                self.number(CONTINUATION * (place > 0) + character)
                for place, character in enumerate(word)
            ]
            for word in words
        ]
        self.pieces = np.zeros(len(self.names) + num_pieces, dtype=np.int64)
        self.rows: dict[tuple[int, int], int] = {}
        self.table = np.zeros((1 << 12, 3), dtype=np.int64)  # left, right, frequency
        self.words: list[set[int]] = []  # of each row, those that hold the pair
        for word in range(len(self.splits)):
            self._count(word, 1)

    def number(self, name: str) -> int:
        if name not in self.numbers:
            self.numbers[name] = len(self.names)
            self.names.append(name)
        return self.numbers[name]

    def _count(self, word: int, sign: int) -> None:
        split, times = self.splits[word], sign * self.counts[word]
        for piece in split:
            self.pieces[piece] += times
        for pair in pairwise(split):
            row = self.rows.setdefault(pair, len(self.words))
            if row == len(self.words):
                self.words.append(set())
                if row == len(self.table):
                    self.table = np.concatenate([self.table, np.zeros_like(self.table)])
                self.table[row, :2] = pair
            self.table[row, 2] += times
            (self.words[row].add if sign > 0 else self.words[row].discard)(word)

    def join(self, row: int) -> Merge:
        left, right, frequency = self.table[row].tolist()
        joined = self.number(self.names[left] + self.names[right].removeprefix(CONTINUATION))
        for word in list(self.words[row]):
            self._count(word, -1)
            old, new, place = self.splits[word], [], 0
            while place < len(old):
                is_pair = old[place : place + 2] == [left, right]
                new.append(joined if is_pair else old[place])
                place += 1 + is_pair
            self.splits[word] = new
            self._count(word, 1)
        return Merge(self.names[left], self.names[right], self.names[joined], frequency)

    def first_place(self, row: int) -> tuple[int, int]:
        """Return where a pair occurs first: its word, and where in it."""
        word = min(self.words[row])
        return word, list(pairwise(self.splits[word])).index(tuple(self.table[row, :2].tolist()))

    def likelihood(self, row: int) -> Fraction:
        """Return the exact likelihood of a pair."""
        left, right, frequency = self.table[row].tolist()
        return Fraction(frequency, int(self.pieces[left]) * int(self.pieces[right]))

    def best(self, min_frequency: int) -> int | None:
        """Return the row of the pair to join, the first to occur among equals.

        None where no pair is frequent enough.
        """
        live = np.flatnonzero(self.table[: len(self.words), 2] >= min_frequency)
        if not len(live):
            return None
        left, right, frequency = self.table[live].T
        scores = frequency / (self.pieces[left].astype(np.float64) * self.pieces[right])
        close = live[scores >= scores.max() * (1 - _CLOSE)].tolist()
        likelihoods = {row: self.likelihood(row) for row in close}
        highest = max(likelihoods.values())
        ties = [row for row in close if likelihoods[row] == highest]
        return min(ties, key=self.first_place)


def merge_pieces(
    words: Mapping[str, int],
    num_pieces: int,
    min_frequency: int,
    *,
    show_progress: bool = False,
) -> Iterator[Merge]:
    """Yield merges, in order, until they have made `num_pieces` new pieces or no pair occurs
    `min_frequency` times.

    Two merges may make the same piece, which is new once. Ties go to the pair that occurs first in
    the words as they are split then, so the order of `words` counts.

    Args:
        words: Word -> how often it occurs, at least once.
    """
    pairs = _Pairs(words, num_pieces)
    most = len(pairs.names) + num_pieces
    with Progress(
        total=num_pieces, desc="Joining pieces", unit=" pieces", disable=not show_progress
    ) as bar:
        while len(pairs.names) < most and (row := pairs.best(min_frequency)) is not None:
            known = len(pairs.names)
            yield pairs.join(row)
            bar.update(len(pairs.names) - known)
