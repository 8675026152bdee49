"""Sentences of words -> windows of their document, so that each word is seen once with as much context as fits.

Source: BERT, Devlin et al. 2019, section 5.3: "we ... include the maximal document context provided by the data". The
paper says no more and its code was not published; the rule by which words of long documents choose their window is that
of google-research/bert run_squad.py `_check_is_max_context`.

Legend: W words of a document.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby

import numpy as np

from bert_recipes.tasks.examples import TaggedExample
from bert_recipes.tokenization import OriginalBertTokenizer


logger = logging.getLogger(__name__)

NUM_SPECIAL_TOKENS = 2  # [CLS] and [SEP]


@dataclass(frozen=True, slots=True)
class DocumentWindow:
    """One model input and the words that are predicted in it.

    Attributes:
        input_ids: [CLS], the pieces of consecutive words of one document, [SEP]; nothing stands between sentences.
        sentences: int64 (words,), for each word that is predicted here its sentence's place in the list of examples.
        words: int64 (words,), its place in that sentence.
        positions: int64 (words,), the position of its first piece in input_ids.
        num_pieces: int64 (words,), how many pieces it has here.
    """

    input_ids: list[int]
    sentences: np.ndarray
    words: np.ndarray
    positions: np.ndarray
    num_pieces: np.ndarray


def lay_out_documents(
    examples: Sequence[TaggedExample],
    tokenizer: OriginalBertTokenizer,
    max_seq_length: int,
    *,
    context: str = "document",
) -> list[DocumentWindow]:
    """Cut every document into windows in which each word is predicted exactly once.

    A document that fits is one window. A longer one is read in windows of whole words that start half a window apart,
    the last of them reaching back as far as it can; a word belongs to the window that shows most on both sides of it.
    Sentences keep their order, and one that is longer than a window is treated like any other stretch of words.

    Args:
        examples: Sentences; consecutive ones with one `document` are one text.
        tokenizer: Cuts each word by itself. A word without pieces becomes [UNK], so that every word is counted.
        max_seq_length: Positions of a window with [CLS] and [SEP], at least 3. A word with more pieces than a window
            keeps the first ones; such words are counted in a warning.
        context: "document", or "sentence": every sentence is read as a document of its own.

    Returns:
        The windows in the order of the documents.
    """
    max_pieces = max_seq_length - NUM_SPECIAL_TOKENS
    pieces_of = _WordPieces(tokenizer, max_pieces)
    windows: list[DocumentWindow] = []
    texts = [number if context == "sentence" else example.document for number, example in enumerate(examples)]
    for _, document in groupby(enumerate(examples), key=lambda numbered: texts[numbered[0]]):
        sentences = list(document)
        pieces = [pieces_of[word] for _, example in sentences for word in example.tokens]
        sentence_of = np.repeat([number for number, _ in sentences], [len(each.tokens) for _, each in sentences])
        word_of = np.concatenate([np.arange(len(each.tokens)) for _, each in sentences])
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        spans = cut_document(lengths, max_pieces)
        owners = window_owners(spans, lengths)
        for number, (start, end) in enumerate(spans):
            own = start + np.flatnonzero(owners[start:end] == number)
            if not own.size:
                continue  # others show more around each of its words
            windows.append(
                DocumentWindow(
                    input_ids=[
                        tokenizer.cls_token_id,
                        *chain.from_iterable(pieces[start:end]),
                        tokenizer.sep_token_id,
                    ],
                    sentences=sentence_of[own],
                    words=word_of[own],
                    positions=1 + offsets[own] - offsets[start],
                    num_pieces=lengths[own],
                )
            )
    pieces_of.report()
    return windows


def cut_document(lengths: np.ndarray, max_pieces: int) -> list[tuple[int, int]]:
    """Cover a document with windows of whole words.

    Args:
        lengths: int64 (W,), pieces of each word, 1 to max_pieces.
        max_pieces: Pieces that a window holds at most.

    Returns:
        (first word, word behind the last) of each window, in order; none for a document without words.
    """
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    num_words, spans, start = len(lengths), [], 0
    while start < num_words:
        end = int(np.searchsorted(offsets, offsets[start] + max_pieces, side="right")) - 1
        if end == num_words:
            # Context is free here: the last window reaches back as far as it can.
            start = int(np.searchsorted(offsets, offsets[end] - max_pieces, side="left"))
            spans.append((start, end))
            break
        spans.append((start, end))
        half = int(np.searchsorted(offsets, offsets[start] + max(1, max_pieces // 2), side="left"))
        # Far enough that the next word fits, however many pieces it has.
        next_fits = int(np.searchsorted(offsets, offsets[end + 1] - max_pieces, side="left"))
        start = min(max(half, next_fits), end)
    return spans


def window_owners(spans: Sequence[tuple[int, int]], lengths: np.ndarray) -> np.ndarray:
    """Say for each word which window shows most of the document around it.

    A window's score for a word is the smaller of the pieces to its left and to its right, + 0.01 * the window's pieces;
    of equal scores the first window has it.

    Args:
        spans: Of `cut_document`.
        lengths: int64 (W,), pieces of each word.

    Returns:
        int64 (W,), number of the window.

    Source: google-research/bert run_squad.py `_check_is_max_context`, on words instead of pieces.
    """
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    owners = np.zeros(len(lengths), np.int64)
    best = np.full(len(lengths), -1.0)
    for number, (start, end) in enumerate(spans):
        left = offsets[start:end] - offsets[start]
        right = offsets[end] - offsets[start + 1 : end + 1]
        score = np.minimum(left, right) + 0.01 * (offsets[end] - offsets[start])
        better = start + np.flatnonzero(score > best[start:end])
        owners[better] = number
        best[better] = score[better - start]
    return owners


class _WordPieces(dict[str, list[int]]):
    """Word -> ids of its pieces, cut once for each distinct word; counts what had to be changed."""

    def __init__(self, tokenizer: OriginalBertTokenizer, max_pieces: int) -> None:
        super().__init__()
        self.tokenizer, self.max_pieces = tokenizer, max_pieces
        self.num_empty = self.num_cut = 0

    def __missing__(self, word: str) -> list[int]:
        ids = self.tokenizer.encode_ids(word)
        if not ids:
            self.num_empty += 1
            ids = [self.tokenizer.unk_token_id]
        if len(ids) > self.max_pieces:
            self.num_cut += 1
            ids = ids[: self.max_pieces]
        self[word] = ids
        return ids

    def report(self) -> None:
        """Log what was changed, in distinct words."""
        if self.num_empty:
            logger.info("%d distinct words have no pieces (control characters only): read as [UNK]", self.num_empty)
        if self.num_cut:
            logger.warning(
                "%d distinct words have more than %d pieces: only their first ones are read; raise max_seq_length",
                self.num_cut,
                self.max_pieces,
            )
