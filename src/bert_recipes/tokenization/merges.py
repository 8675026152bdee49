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

    first: str
    second: str
    joined: str
    frequency: int  # of the pair, when it was joined


# Scores this close are compared as fractions.
_CLOSE = 1e-12


class _Pairs:
    """Hold words as numbers of pieces, and how often pieces and pairs of neighbours occur."""

    def __init__(self, words: Mapping[str, int], num_pieces: int) -> None:
        # Pieces by number, and the other way around.
        self.names: list[str] = []
        self.numbers: dict[str, int] = {}

        # Words by number: how often each occurs, and the pieces that it is made of.
        self.counts = list(words.values())
        self.splits = [self._spell(word) for word in words]

        # How often each piece occurs.
        self.pieces = np.zeros(len(self.names) + num_pieces, dtype=np.int64)

        # Pairs by row: their two pieces and how often they occur, and the words that hold them.
        self.rows: dict[tuple[int, int], int] = {}
        self.table = np.zeros((1 << 12, 3), dtype=np.int64)
        self.words: list[set[int]] = []
        for word in range(len(self.splits)):
            self._count(word, 1)

    def _spell(self, word: str) -> list[int]:
        inner = [CONTINUATION + character for character in word[1:]]
        return [self._number(piece) for piece in [word[0], *inner]]

    def _number(self, name: str) -> int:
        if name not in self.numbers:
            self.numbers[name] = len(self.names)
            self.names.append(name)
        return self.numbers[name]

    def _row(self, pair: tuple[int, int]) -> int:
        """Return the row of a pair, which is added to the table where it is new."""
        row = self.rows.get(pair)
        if row is not None:
            return row

        row = len(self.words)
        self.rows[pair] = row
        self.words.append(set())
        # The table doubles when it is full.
        if row == len(self.table):
            self.table = np.concatenate([self.table, np.zeros_like(self.table)])
        self.table[row, :2] = pair
        return row

    def _count(self, word: int, sign: int) -> None:
        """Add a word's pieces and pairs (sign 1), or take them away (-1)."""
        split = self.splits[word]
        times = sign * self.counts[word]
        for piece in split:
            self.pieces[piece] += times
        for pair in pairwise(split):
            row = self._row(pair)
            self.table[row, 2] += times
            if sign > 0:
                self.words[row].add(word)
            else:
                self.words[row].discard(word)

    def join(self, row: int) -> Merge:
        """Join a pair in all words that hold it."""
        first, second, frequency = self.table[row].tolist()
        name = self.names[first] + self.names[second].removeprefix(CONTINUATION)
        joined = self._number(name)

        # A copy: the pair leaves each word.
        for word in list(self.words[row]):
            self._count(word, -1)
            split: list[int] = []
            for piece in self.splits[word]:
                if split and split[-1] == first and piece == second:
                    split[-1] = joined
                else:
                    split.append(piece)
            self.splits[word] = split
            self._count(word, 1)

        return Merge(self.names[first], self.names[second], name, frequency)

    def first_place(self, row: int) -> tuple[int, int]:
        """Return where a pair occurs first: its word, and where in it."""
        pair = tuple(self.table[row, :2].tolist())
        word = min(self.words[row])
        return word, list(pairwise(self.splits[word])).index(pair)

    def likelihood(self, row: int) -> Fraction:
        """Return the exact likelihood of a pair."""
        first, second, frequency = self.table[row].tolist()
        return Fraction(frequency, int(self.pieces[first]) * int(self.pieces[second]))

    def best(self, min_frequency: int) -> int | None:
        """Return the row of the pair to join, the first to occur among equals.

        None where no pair is frequent enough.
        """
        frequencies = self.table[: len(self.words), 2]
        rows = np.flatnonzero(frequencies >= min_frequency)
        if not len(rows):
            return None

        first, second, frequency = self.table[rows].T
        # Floats choose the few pairs whose exact likelihoods are compared.
        expected = self.pieces[first].astype(np.float64) * self.pieces[second]
        scores = frequency / expected
        threshold = scores.max() * (1 - _CLOSE)
        close_rows = rows[scores >= threshold].tolist()
        likelihoods = {row: self.likelihood(row) for row in close_rows}

        highest = max(likelihoods.values())
        ties = [row for row, likelihood in likelihoods.items() if likelihood == highest]
        return min(ties, key=self.first_place)


def merge_pieces(
    words: Mapping[str, int],
    num_pieces: int,
    min_frequency: int,
    *,
    show_progress: bool = False,
) -> Iterator[Merge]:
    """Yield merges, in order, until they have made `num_pieces` new pieces.

    They end before where no pair occurs `min_frequency` times. Two merges may make the same piece,
    which is new once. Ties go to the pair that occurs first in the words as they are split then, so
    the order of `words` counts.

    Args:
        words: Word -> how often it occurs, at least once.
    """
    pairs = _Pairs(words, num_pieces)
    num_first = len(pairs.names)
    with Progress(
        total=num_pieces, desc="Joining pieces", unit=" pieces", disable=not show_progress
    ) as bar:
        while len(pairs.names) - num_first < num_pieces:
            row = pairs.best(min_frequency)
            if row is None:
                return
            size = len(pairs.names)
            yield pairs.join(row)
            bar.update(len(pairs.names) - size)
