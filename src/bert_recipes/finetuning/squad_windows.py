"""Paragraphs -> pieces -> windows, by the rules of google-research/bert run_squad.py.

Legend: T pieces of a paragraph.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np


# Words are separated by these five characters and by nothing else. Source: run_squad.py `is_whitespace`.
_WORD = re.compile("[^ \t\r\n\u202f]+")

Encoder = Callable[[str], list[int]]
Window = tuple[int, int]


def split_words(text: str) -> list[str]:
    """Split at spaces, tabs, carriage returns, line feeds and U+202F; other Unicode spaces stay inside words."""
    return _WORD.findall(text)


@dataclass(frozen=True, slots=True)
class EncodedContext:
    """A paragraph, tokenised once for all its questions.

    Attributes:
        piece_ids: int32 (T,).
        word_of_piece: int32 (T,), number of the word of `split_words` that a piece belongs to.
        first_piece: int32 (words + 1,), number of the first piece of each word; T at the end.
        word_starts: int32 (words,), the character at which each word starts.
    """

    piece_ids: np.ndarray
    word_of_piece: np.ndarray
    first_piece: np.ndarray
    word_starts: np.ndarray


def encode_context(text: str, encode_word: Encoder) -> EncodedContext:
    """Cut every word of a paragraph into pieces.

    Args:
        text: The paragraph.
        encode_word: Word -> ids of its pieces; there may be none (a word of control characters).
    """
    words = list(_WORD.finditer(text))
    pieces = [encode_word(word.group()) for word in words]
    counts = np.fromiter(map(len, pieces), np.int32, len(pieces))
    first_piece = np.zeros(len(pieces) + 1, np.int32)
    np.cumsum(counts, out=first_piece[1:])
    return EncodedContext(
        piece_ids=np.fromiter(chain.from_iterable(pieces), np.int32, int(first_piece[-1])),
        word_of_piece=np.repeat(np.arange(len(pieces), dtype=np.int32), counts),
        first_piece=first_piece,
        word_starts=np.fromiter((word.start() for word in words), np.int32, len(words)),
    )


def cut_windows(num_pieces: int, max_pieces: int, doc_stride: int) -> list[Window]:
    """Cover a paragraph with windows.

    Args:
        num_pieces: Pieces of the paragraph.
        max_pieces: Pieces that a window holds at most, 1 or more.
        doc_stride: Pieces from the start of one window to that of the next, at most.

    Returns:
        (first piece, number of pieces) of each window; none for an empty paragraph.

    Example:
        >>> cut_windows(10, 6, 3)
        [(0, 6), (3, 6), (6, 4)]

    Source: run_squad.py `convert_examples_to_features`.
    """
    windows = []
    start = 0
    while start < num_pieces:
        length = min(num_pieces - start, max_pieces)
        windows.append((start, length))
        if start + length == num_pieces:
            break
        start += min(length, doc_stride)
    return windows


def window_owners(windows: Sequence[Window], num_pieces: int) -> np.ndarray:
    """Say which window sees most around each piece: answers may start there only.

    A window's score for a piece is min(pieces to its left, pieces to its right) + 0.01 * length of the window; of equal
    scores the first window has it.

    Returns:
        int32 (T,), index into windows.

    Source: run_squad.py `_check_is_max_context`.
    """
    owners = np.zeros(num_pieces, np.int32)
    best = np.full(num_pieces, -1.0)
    for index, (start, length) in enumerate(windows):
        left = np.arange(length)
        score = np.minimum(left, left[::-1]) + 0.01 * length
        inside = slice(start, start + length)
        better = score > best[inside]
        best[inside][better] = score[better]
        owners[inside][better] = index
    return owners
