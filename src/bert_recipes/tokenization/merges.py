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
    """Hold words as numbers of pieces, and how often pieces and pairs of neighbours occur.

    Words, pieces and pairs are numbered from 0; the number of a pair is its row in `pair_table`.

    Attributes:
        piece_names: The text of each piece.
        piece_numbers: The number of the piece of a text.
        word_counts: How often each word occurs.
        word_pieces: The pieces that each word is made of now.
        piece_counts: How often each piece occurs, int64.
        pair_rows: The row of a pair of pieces.
        pair_table: The two pieces of each pair, and how often it occurs, int64 (rows, 3).
        words_of_pair: The words that hold each pair.
    """

    def __init__(self, words: Mapping[str, int], num_pieces: int) -> None:
        self.piece_names: list[str] = []
        self.piece_numbers: dict[str, int] = {}

        self.word_counts = list(words.values())
        self.word_pieces = [self._spell(word) for word in words]

        most_pieces = len(self.piece_names) + num_pieces
        self.piece_counts = np.zeros(most_pieces, dtype=np.int64)

        self.pair_rows: dict[tuple[int, int], int] = {}
        self.pair_table = np.zeros((1 << 12, 3), dtype=np.int64)
        self.words_of_pair: list[set[int]] = []
        for word in range(len(self.word_pieces)):
            self._count(word, 1)

    def _spell(self, word: str) -> list[int]:
        """Return the numbers of the pieces of a word, a character each."""
        pieces = [self._piece_number(word[0])]
        for character in word[1:]:
            number = self._piece_number(CONTINUATION + character)
            pieces.append(number)
        return pieces

    def _piece_number(self, name: str) -> int:
        """Return the number of a piece, which is new if its name is."""
        number = self.piece_numbers.get(name)
        if number is None:
            number = len(self.piece_names)
            self.piece_numbers[name] = number
            self.piece_names.append(name)
        return number

    def _pair_row(self, pair: tuple[int, int]) -> int:
        """Return the row of a pair, which is added to the table if the pair is new."""
        row = self.pair_rows.get(pair)
        if row is not None:
            return row

        row = len(self.words_of_pair)
        self.pair_rows[pair] = row
        self.words_of_pair.append(set())
        # The table doubles when it is full.
        if row == len(self.pair_table):
            free_rows = np.zeros_like(self.pair_table)
            self.pair_table = np.concatenate([self.pair_table, free_rows])
        self.pair_table[row, :2] = pair
        return row

    def _count(self, word: int, sign: int) -> None:
        """Add the pieces and pairs of a word to the counts, or take them away.

        Args:
            word: The number of the word.
            sign: 1 to add them, -1 to take them away.
        """
        pieces = self.word_pieces[word]
        times = sign * self.word_counts[word]
        for piece in pieces:
            self.piece_counts[piece] += times

        for pair in pairwise(pieces):
            row = self._pair_row(pair)
            self.pair_table[row, 2] += times
            if sign > 0:
                self.words_of_pair[row].add(word)
            else:
                self.words_of_pair[row].discard(word)

    def join(self, row: int) -> Merge:
        """Join a pair in all words that hold it.

        Args:
            row: The row of the pair.

        Returns:
            The pieces, and how often the pair occurred.
        """
        first, second, frequency = self.pair_table[row].tolist()
        first_name = self.piece_names[first]
        second_name = self.piece_names[second]
        joined_name = first_name + second_name.removeprefix(CONTINUATION)
        joined = self._piece_number(joined_name)

        # A copy: the pair leaves each word.
        for word in list(self.words_of_pair[row]):
            self._count(word, -1)
            pieces: list[int] = []
            for piece in self.word_pieces[word]:
                if pieces and pieces[-1] == first and piece == second:
                    pieces[-1] = joined
                else:
                    pieces.append(piece)
            self.word_pieces[word] = pieces
            self._count(word, 1)

        return Merge(first_name, second_name, joined_name, frequency)

    def first_place(self, row: int) -> tuple[int, int]:
        """Return where a pair occurs first: its word, and where in it."""
        first, second, _ = self.pair_table[row].tolist()
        word = min(self.words_of_pair[row])
        pairs = list(pairwise(self.word_pieces[word]))
        return word, pairs.index((first, second))

    def likelihood(self, row: int) -> Fraction:
        """Return the exact likelihood of a pair."""
        first, second, frequency = self.pair_table[row].tolist()
        first_count = int(self.piece_counts[first])
        second_count = int(self.piece_counts[second])
        return Fraction(frequency, first_count * second_count)

    def best(self, min_frequency: int) -> int | None:
        """Return the row of the pair to join, the first to occur among equals.

        Args:
            min_frequency: How often the pair must occur.

        Returns:
            Its row; None where no pair is frequent enough.
        """
        num_pairs = len(self.words_of_pair)
        frequencies = self.pair_table[:num_pairs, 2]
        rows = np.flatnonzero(frequencies >= min_frequency)
        if not len(rows):
            return None

        # Floats choose the few pairs whose exact likelihoods are compared.
        first, second, frequency = self.pair_table[rows].T
        first_counts = self.piece_counts[first].astype(np.float64)
        scores = frequency / (first_counts * self.piece_counts[second])
        is_close = scores >= scores.max() * (1 - _CLOSE)
        likelihoods = {row: self.likelihood(row) for row in rows[is_close].tolist()}

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
        num_pieces: The number of new pieces.
        min_frequency: How often a pair must occur to be joined.
        show_progress: Whether to show a bar.
    """
    pairs = _Pairs(words, num_pieces)
    num_characters = len(pairs.piece_names)
    with Progress(
        total=num_pieces, desc="Joining pieces", unit=" pieces", disable=not show_progress
    ) as bar:
        num_new = 0
        while num_new < num_pieces:
            row = pairs.best(min_frequency)
            if row is None:
                return
            yield pairs.join(row)
            num_new = len(pairs.piece_names) - num_characters
            bar.update(num_new - bar.n)
