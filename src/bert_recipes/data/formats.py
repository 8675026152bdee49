"""The input formats: which sentences make the inputs of an epoch, and the tokens of an input.

The inputs of an epoch are a table, one row an input, made from the sentence lengths alone. Each
(seed, epoch, document) has a random generator of its own, so the table does not depend on how the
documents are split into blocks or on how many processes read them.
"""

import hashlib
import multiprocessing
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import compress
from typing import Any, ClassVar

import numpy as np

from bert_recipes.data.pairs import (
    NUM_SPECIAL_TOKENS,
    SentencePair,
    build_segments,
    build_sentence_pairs,
    build_single_sentence_pairs,
    pack_items,
    split_segments,
    truncate_pair,
)
from bert_recipes.data.processes import run_in_order
from bert_recipes.data.store import Split
from bert_recipes.progress import Progress


# A row of a table as numbers.
TableRow = tuple[int, ...]
# The documents from one number to another (excluded).
DocumentSpan = tuple[int, int]
# input_ids and token_type_ids of an input, or the tokens of its segments.
ArrayPair = tuple[np.ndarray, np.ndarray]

# 24 bytes a row.
PAIR_DTYPE = np.dtype(
    [
        ("a_begin", "<i8"),  # first sentence of A, counted over the whole split
        ("b_begin", "<i8"),  # first sentence of B, counted over the whole split
        ("a_count", "<u2"),  # sentences in A
        ("b_count", "<u2"),  # sentences in B
        ("length", "<u2"),  # tokens of the input after truncation, special tokens included
        ("label", "<u2"),  # a label of a pair; two bytes keep the rows aligned
    ]
)
# Labels of a pair: 0 = B follows A; 1 = B was drawn at random, or comes before A where the order is
# asked for.
NO_LABEL = 2  # there is nothing to learn
# An input of ELECTRA is sentences in a row: 24 bytes too.
ELECTRA_DTYPE = np.dtype(
    [
        ("begin", "<i8"),  # first sentence, counted over the whole split
        ("unused", "<i8"),  # 0
        ("count", "<u2"),  # sentences
        ("target", "<u2"),  # tokens that the input aims at
        ("length", "<u2"),  # tokens of the input, special tokens included
        ("label", "<u2"),  # NO_LABEL
    ]
)
BLOCK_DTYPE = np.dtype(
    [
        ("sentence", "<i8"),  # the first one, counted over the whole split
        ("document", "<i8"),  # of that sentence
        ("offset", "<u4"),  # tokens of that sentence in the block before
        ("count", "<u2"),  # sentences, the cut ones too
        ("length", "<u2"),  # tokens of the input, special tokens included
    ]
)
_ITEM_DTYPE = np.dtype(
    [("sentence", "<i8"), ("document", "<i8"), ("offset", "<i8"), ("size", "<i8")]
)

# Sentences per block of documents: large enough to make processes worth their messages, small
# enough for a few MB of memory each.
BLOCK_SENTENCES = 2**16
# Some ten seconds of work: with less, one process is done before others have started (they import
# the main script again).
MIN_SENTENCES_PER_PROCESS = 2**23
# Sentence lengths of another document fetched at a time: a random B rarely needs more.
NUM_FETCHED_LENGTHS = 16


def keyed_rng(purpose: str, seed: int, epoch: int, number: int) -> random.Random:
    """Return a generator that is a pure function of its arguments.

    It is the same on every machine and Python version.

    Args:
        purpose: What is drawn, so that different draws are independent.
        seed: The seed of the data.
        epoch: The epoch of the draws.
        number: The number of a document, or of an input.
    """
    key = f"{purpose}:{seed}:{epoch}:{number}"
    digest = hashlib.blake2b(key.encode("ascii"), digest_size=8).digest()
    state = int.from_bytes(digest, "little")
    return random.Random(state)


@dataclass(frozen=True)
class InputFormat(ABC):
    """Make the inputs of an epoch out of the sentences of a store.

    Attributes:
        split: A split of a store.
        cls_id: Id of [CLS].
        sep_id: Id of [SEP].
        max_seq_length: Most tokens of an input, special tokens included.
        short_seq_prob: Fraction of documents whose pairs aim at a shorter length.
        seed: The seed of all draws.
        pair_label: What the label of a pair says: "next", "order" or "none".
    """

    split: Split
    cls_id: int
    sep_id: int
    max_seq_length: int
    short_seq_prob: float
    seed: int
    pair_label: str

    dtype: ClassVar[np.dtype]
    is_pair: ClassVar[bool] = False
    is_new_every_epoch: ClassVar[bool] = True

    @abstractmethod
    def build_table(self, epoch: int, num_processes: int = 1) -> Iterator[np.ndarray]:
        """Yield the table of an epoch in parts: rows of `dtype`, document by document.

        Args:
            epoch: The epoch of the draws.
            num_processes: The most processes that share the work; the rows do not depend on it.
        """

    @abstractmethod
    def read(self, row: TableRow, epoch: int, number: int) -> ArrayPair:
        """Return input_ids and token_type_ids of an input, int64 (L,).

        Args:
            row: A row of the table.
            epoch: The epoch of the row.
            number: The row's place in the table.
        """


class DocumentFormat(InputFormat):
    """A format of one or two segments of a document; only B may be drawn from another one."""

    dtype = PAIR_DTYPE

    @abstractmethod
    def build_rows(self, documents: DocumentSpan, epoch: int) -> np.ndarray:
        """Return the rows of some documents, of `dtype`.

        Args:
            documents: The numbers of the documents.
            epoch: The epoch of the draws.
        """

    @abstractmethod
    def read_segments(self, row: TableRow, epoch: int, number: int) -> ArrayPair:
        """Return the tokens of both segments of an input, without special tokens.

        The arguments are those of `read`.
        """

    def read(self, row: TableRow, epoch: int, number: int) -> ArrayPair:
        """Return input_ids and token_type_ids of [CLS] A [SEP] B [SEP]."""
        return self.join(*self.read_segments(row, epoch, number))

    def join(self, tokens_a: np.ndarray, tokens_b: np.ndarray) -> ArrayPair:
        """Join segments to [CLS] A [SEP] B [SEP], or [CLS] A [SEP] where B is empty.

        Args:
            tokens_a: The tokens of A, without special tokens.
            tokens_b: The tokens of B, without special tokens.

        Returns:
            input_ids and token_type_ids, int64 (L,).
        """
        end_a = 1 + len(tokens_a)
        begin_b = end_a + 1
        end_b = begin_b + len(tokens_b)
        length = end_b
        if len(tokens_b):
            length += 1

        input_ids = np.full(length, self.sep_id, dtype=np.int64)
        input_ids[0] = self.cls_id
        input_ids[1:end_a] = tokens_a
        input_ids[begin_b:end_b] = tokens_b
        token_type_ids = np.zeros(length, dtype=np.int64)
        token_type_ids[begin_b:] = 1
        return input_ids, token_type_ids

    def build_table(self, epoch: int, num_processes: int = 1) -> Iterator[np.ndarray]:
        """Yield rows block by block; small splits use one process in any case."""
        blocks = list(split_into_blocks(self.split))
        num_useful = self.split.num_sentences // MIN_SENTENCES_PER_PROCESS
        num_processes = min(num_processes, num_useful, len(blocks))
        # A daemonic process cannot start processes: what builds a table ahead, or a DataLoader
        # worker whose table was deleted. The console belongs to the process that trains.
        is_daemonic = multiprocessing.current_process().daemon
        if is_daemonic:
            num_processes = 1
        build_rows_of_block = partial(self.build_rows, epoch=epoch)
        tables: Iterable[np.ndarray] = run_in_order(build_rows_of_block, blocks, num_processes)
        if not is_daemonic:
            description = f"pairs of epoch {epoch}"
            tables = Progress(tables, total=len(blocks), desc=description, unit="block", delay=2)
        yield from tables


class SegmentPairs(DocumentFormat):
    """Pairs of segments of several sentences, as BERT has them.

    Source: `build_sentence_pairs`.
    """

    is_pair = True

    def build(
        self, document: int, lengths_of: Callable[[int], Sequence[int]], rng: random.Random
    ) -> Iterator[SentencePair]:
        """Yield the pairs of a document.

        Args:
            document: The number of the document.
            lengths_of: Returns the tokens of each sentence of any document.
            rng: The source of all draws.
        """
        return build_sentence_pairs(
            document,
            lengths_of,
            self.split.num_documents,
            max_seq_length=self.max_seq_length,
            short_seq_prob=self.short_seq_prob,
            rng=rng,
            is_ordered=self.pair_label == "order",
        )

    def build_rows(self, documents: DocumentSpan, epoch: int) -> np.ndarray:
        """Return one row for each pair."""
        document_lengths = DocumentLengths(self.split, documents)
        rows = []
        for document in range(*documents):
            # `build` slices the lengths of this document, so they are a list, not a `LazyLengths`.
            document_lengths.load(document)
            rng = keyed_rng("pairs", self.seed, epoch, document)
            for pair in self.build(document, document_lengths, rng):
                first_of_a = document_lengths.first_sentence(document)
                first_of_b = document_lengths.first_sentence(pair.b_document)
                rows.append(self._row_of(pair, first_of_a, first_of_b))

        return np.array(rows, dtype=PAIR_DTYPE)

    def _row_of(self, pair: SentencePair, first_of_a: int, first_of_b: int) -> TableRow:
        """Return the row of a pair.

        Args:
            pair: Its sentences, counted inside their documents.
            first_of_a: The first sentence of A's document in the split.
            first_of_b: The first sentence of B's document in the split.
        """
        a_begin = first_of_a + pair.a_begin
        b_begin = first_of_b + pair.b_begin
        a_count = pair.a_end - pair.a_begin
        b_count = pair.b_end - pair.b_begin
        num_tokens = pair.length_a + pair.length_b + NUM_SPECIAL_TOKENS
        length = min(num_tokens, self.max_seq_length)
        return a_begin, b_begin, a_count, b_count, length, self.label_of(pair)

    def label_of(self, pair: SentencePair) -> int:
        """Return the label of a pair."""
        if self.pair_label != "order":
            return int(pair.is_random)
        # Google's ALBERT calls the random B of a lone sentence swapped, which is not a question
        # of order.
        return NO_LABEL if pair.is_random else int(pair.is_swapped)

    def read_segments(self, row: TableRow, epoch: int, number: int) -> ArrayPair:
        """Return A and B, truncated as the original does."""
        a_begin, b_begin, a_count, b_count, _, _ = row
        a_end = a_begin + a_count
        b_end = b_begin + b_count
        tokens_a = self.split.tokens(a_begin, a_end)
        tokens_b = self.split.tokens(b_begin, b_end)
        max_num_tokens = self.max_seq_length - NUM_SPECIAL_TOKENS
        if len(tokens_a) + len(tokens_b) <= max_num_tokens:
            return tokens_a, tokens_b

        rng = keyed_rng("truncation", self.seed, epoch, number)
        keep_a, keep_b = truncate_pair(len(tokens_a), len(tokens_b), max_num_tokens, rng)
        return tokens_a[keep_a], tokens_b[keep_b]


class SentencePairs(SegmentPairs):
    """Pairs of one sentence each.

    Source: `build_single_sentence_pairs`.
    """

    def build(
        self, document: int, lengths_of: Callable[[int], Sequence[int]], rng: random.Random
    ) -> Iterator[SentencePair]:
        """Yield the pairs of a document."""
        return build_single_sentence_pairs(document, lengths_of, self.split.num_documents, rng)


class ElectraSegments(DocumentFormat):
    """Inputs of one or two segments of the same document, as ELECTRA has them.

    The sentences of a row are split into segments when they are read. Source: `build_segments`.
    """

    dtype = ELECTRA_DTYPE

    def build_rows(self, documents: DocumentSpan, epoch: int) -> np.ndarray:
        """Return one row for each input."""
        document_lengths = DocumentLengths(self.split, documents)
        rows = []
        for document in range(*documents):
            offset = document_lengths.first_sentence(document)
            lengths = document_lengths.load(document)
            rng_of = partial(self._rng_of, epoch, offset)
            segments = build_segments(lengths, self.max_seq_length, self.max_seq_length, rng_of)
            for begin, end, is_first, target, _ in segments:
                size_a, size_b = self._segment_sizes(lengths[begin:end], is_first)
                num_special_tokens = NUM_SPECIAL_TOKENS
                if not size_b:
                    num_special_tokens -= 1
                length = size_a + size_b + num_special_tokens
                rows.append((offset + begin, 0, end - begin, target, length, NO_LABEL))

        return np.array(rows, dtype=ELECTRA_DTYPE)

    def read_segments(self, row: TableRow, epoch: int, number: int) -> ArrayPair:
        """Return both segments; the second may be empty."""
        begin, _, count, target, _, _ = row
        end = begin + count
        lengths = self.split.sentence_lengths(begin, end).tolist()
        rng = self._rng_of(epoch, 0, begin)
        is_first = split_segments(lengths, target, rng)
        size_a, size_b = self._segment_sizes(lengths, is_first)

        tokens = self.split.tokens(begin, end)
        is_token_of_a = np.repeat(is_first, lengths)
        tokens_a = tokens[is_token_of_a]
        tokens_b = tokens[~is_token_of_a]
        return tokens_a[:size_a], tokens_b[:size_b]

    def _rng_of(self, epoch: int, offset: int, begin: int) -> random.Random:
        """Return the generator of the input whose first sentence is `offset + begin`."""
        return keyed_rng("electra", self.seed, epoch, offset + begin)

    def _segment_sizes(self, lengths: Sequence[int], is_first: Sequence[bool]) -> tuple[int, int]:
        """Return the tokens of both segments that fit into an input.

        Args:
            lengths: The tokens of each sentence.
            is_first: Whether each sentence is of segment A.
        """
        length_a = sum(compress(lengths, is_first))
        length_b = sum(lengths) - length_a
        room_a = self.max_seq_length - 2  # [CLS] A [SEP]
        size_a = min(length_a, room_a)
        room_b = self.max_seq_length - NUM_SPECIAL_TOKENS - size_a
        room_b = max(0, room_b)
        size_b = min(length_b, room_b)
        return size_a, size_b


class FullSentences(InputFormat):
    """Blocks of whole sentences across documents, as RoBERTa has them; the same in every epoch.

    A block is [CLS], then sentences that each end with [SEP]; between two documents stands one more
    [SEP]. A sentence that is too long for a block is cut: fairseq's blocks would be longer than the
    model reads. Source: Liu et al. 2019, section 4.1.
    """

    dtype = BLOCK_DTYPE
    is_new_every_epoch = False

    def build_table(self, epoch: int, num_processes: int = 1) -> Iterator[np.ndarray]:
        """Yield one row for each block."""
        waiting = np.empty(0, dtype=_ITEM_DTYPE)  # items of a block that is not full
        for documents in split_into_blocks(self.split):
            items = np.concatenate([waiting, self._separated_items(documents)])
            bounds = pack_items(items["size"], self.max_seq_length - 1)
            _, end_document = documents
            if end_document < self.split.num_documents:
                # The last block may not be full: its items wait for the next documents.
                begin_of_last_block = bounds[-2]
                waiting = items[begin_of_last_block:]
                bounds = bounds[:-1]
            yield block_rows(items, bounds)

    def _separated_items(self, documents: DocumentSpan) -> np.ndarray:
        """Return the sentences, and after each document but the last of all its separator.

        A separator counts as a token of the document's last sentence.
        """
        items = sentence_items(self.split, documents, self.max_seq_length - 1)
        ends = document_ends(items)
        _, end_document = documents
        if end_document == self.split.num_documents:
            ends = ends[:-1]
        separators = items[ends - 1]
        separators["offset"] += separators["size"]
        separators["size"] = 1
        return np.insert(items, ends, separators)

    def read(self, row: TableRow, epoch: int, number: int) -> ArrayPair:
        """Return input_ids and token_type_ids of a block; all types are 0."""
        sentence, document, offset, count, length = row
        end_sentence = sentence + count
        tokens = self.split.tokens(sentence, end_sentence).astype(np.int64)
        lengths = self.split.sentence_lengths(sentence, end_sentence)
        num_separators = self._num_separators(sentence, document, count)
        places = np.repeat(np.cumsum(lengths), num_separators)
        stream = np.insert(tokens, places, self.sep_id)

        input_ids = np.empty(length, dtype=np.int64)
        input_ids[0] = self.cls_id
        end_offset = offset + length - 1
        input_ids[1:] = stream[offset:end_offset]
        token_type_ids = np.zeros_like(input_ids)
        return input_ids, token_type_ids

    def _num_separators(self, sentence: int, document: int, count: int) -> np.ndarray:
        """Return int64 (count,), how many [SEP] follow each sentence of a block.

        The last sentence of a document has two, but for the last document of all.

        Args:
            sentence: The first sentence of the block, counted over the whole split.
            document: The document of that sentence.
            count: The sentences of the block.
        """
        num_separators = np.ones(count, dtype=np.int64)
        last_document = self.split.num_documents - 1
        end_document = min(document + count, last_document)
        offsets = self.split.sentence_offsets(document, end_document)
        last_sentences = offsets[1:] - 1 - sentence
        is_in_block = last_sentences < count
        num_separators[last_sentences[is_in_block]] = 2
        return num_separators


class DocSentences(FullSentences):
    """Blocks of whole sentences that end with their document."""

    def build_table(self, epoch: int, num_processes: int = 1) -> Iterator[np.ndarray]:
        """Yield one row for each block."""
        for documents in split_into_blocks(self.split):
            room = self.max_seq_length - 1
            items = sentence_items(self.split, documents, room)
            bounds = [0]
            begin = 0
            for end in document_ends(items).tolist():
                sizes = items["size"][begin:end]
                bounds_in_document = pack_items(sizes, room)
                bounds += [begin + bound for bound in bounds_in_document[1:]]
                begin = end
            yield block_rows(items, bounds)

    def _num_separators(self, sentence: int, document: int, count: int) -> np.ndarray:
        return np.ones(count, dtype=np.int64)


INPUT_FORMATS: dict[str, type[InputFormat]] = {
    "segment_pair": SegmentPairs,
    "sentence_pair": SentencePairs,
    "full_sentences": FullSentences,
    "doc_sentences": DocSentences,
    "electra": ElectraSegments,
}
# What the label of a pair says.
PAIR_LABELS = ("next", "order", "none")


# Sentences of a split


def split_into_blocks(split: Split) -> Iterator[DocumentSpan]:
    """Yield (begin, end) of consecutive documents, at least one.

    Together they have about `BLOCK_SENTENCES` sentences.
    """
    begin = 0
    while begin < split.num_documents:
        # A document has a sentence at least, so a block has no more documents than these.
        most_end = min(begin + BLOCK_SENTENCES, split.num_documents)
        offsets = split.sentence_offsets(begin, most_end)
        limit = offsets[0] + BLOCK_SENTENCES
        num_fitting = int(np.searchsorted(offsets, limit, side="right")) - 1
        end = begin + max(1, num_fitting)
        yield begin, end
        begin = end


class DocumentLengths:
    """Sentence lengths of the loaded document of a block, and of any document, a few at a time.

    Args:
        split: A split of a store.
        documents: The numbers of the documents of the block.
    """

    def __init__(self, split: Split, documents: DocumentSpan) -> None:
        self.first_document, self.end_document = documents
        self.offsets = split.sentence_offsets(*documents).tolist()
        self.lengths = split.sentence_lengths(self.offsets[0], self.offsets[-1]).tolist()
        # A random B is drawn from few documents at a time.
        self.lazy_lengths_of = lru_cache(maxsize=16)(partial(LazyLengths, split))
        self.loaded_document = -1
        self.loaded_lengths: list[int] = []

    def load(self, document: int) -> list[int]:
        """Load the lengths of a document of the block.

        Returns:
            The tokens of each of its sentences.
        """
        number = document - self.first_document
        begin = self.offsets[number] - self.offsets[0]
        end = self.offsets[number + 1] - self.offsets[0]
        self.loaded_document = document
        self.loaded_lengths = self.lengths[begin:end]
        return self.loaded_lengths

    def __call__(self, document: int) -> Sequence[int]:
        """Return the tokens of each sentence of any document."""
        if document == self.loaded_document:
            return self.loaded_lengths
        return self.lazy_lengths_of(document)

    def first_sentence(self, document: int) -> int:
        """Return the number of a document's first sentence in the split."""
        if self.first_document <= document < self.end_document:
            return int(self.offsets[document - self.first_document])
        return self.lazy_lengths_of(document).begin


class LazyLengths(Sequence[int]):
    """Sentence lengths of one document, which may be a book, fetched a few at a time."""

    def __init__(self, split: Split, document: int) -> None:
        self._split = split
        self.begin, self._end = split.sentence_offsets(document, document + 1).tolist()
        self._first = 0
        self._fetched: list[int] = []

    def __len__(self) -> int:
        return self._end - self.begin

    def __getitem__(self, index: Any) -> Any:
        position = index - self._first
        if not 0 <= position < len(self._fetched):
            begin = self.begin + index
            end = min(begin + NUM_FETCHED_LENGTHS, self._end)
            self._fetched = self._split.sentence_lengths(begin, end).tolist()
            self._first = index
            position = 0
        return self._fetched[position]


def sentence_items(split: Split, documents: DocumentSpan, max_size: int) -> np.ndarray:
    """Return the sentences of documents with their [SEP] as `_ITEM_DTYPE` rows.

    Sentences that are too long are cut into several.

    Args:
        split: A split of a store.
        documents: The numbers of the documents.
        max_size: The most tokens of an item.
    """
    begin_document, end_document = documents
    offsets = split.sentence_offsets(begin_document, end_document)
    first_sentence = int(offsets[0])
    end_sentence = int(offsets[-1])
    sizes = split.sentence_lengths(first_sentence, end_sentence) + 1
    num_items = np.ceil(sizes / max_size).astype(np.int64)  # of each sentence

    # From here on one value an item.
    sentences = np.repeat(np.arange(len(sizes)), num_items)
    end_items = np.cumsum(num_items)
    first_items = end_items - num_items
    numbers_in_sentence = np.arange(len(sentences)) - first_items[sentences]
    item_offsets = numbers_in_sentence * max_size
    sizes_left = sizes[sentences] - item_offsets

    document_numbers = np.arange(begin_document, end_document)
    document_of_sentence = np.repeat(document_numbers, np.diff(offsets))
    items = np.empty(len(sentences), dtype=_ITEM_DTYPE)
    items["sentence"] = first_sentence + sentences
    items["document"] = document_of_sentence[sentences]
    items["offset"] = item_offsets
    items["size"] = np.minimum(sizes_left, max_size)
    return items


def document_ends(items: np.ndarray) -> np.ndarray:
    """Return one past the last item of each document."""
    return np.flatnonzero(np.diff(items["document"], append=-1)) + 1


def block_rows(items: np.ndarray, bounds: Sequence[int]) -> np.ndarray:
    """Return a `BLOCK_DTYPE` row for the items between each bound and the next.

    Args:
        items: Rows of `_ITEM_DTYPE`, in their order.
        bounds: The number of the first item of each block, and the end of the last one.
    """
    # Without rows, where all items wait for the next documents, an index array must be of integers.
    begins = np.array(bounds[:-1], dtype=np.int64)
    ends = np.array(bounds[1:], dtype=np.int64)
    first_items = items[begins]
    last_items = items[ends - 1]
    ends_of_items = np.cumsum(items["size"])
    num_tokens = np.diff(ends_of_items[ends - 1], prepend=0)

    rows = np.empty(len(begins), dtype=BLOCK_DTYPE)
    for name in ("sentence", "document", "offset"):
        rows[name] = first_items[name]
    rows["count"] = last_items["sentence"] - first_items["sentence"] + 1
    rows["length"] = num_tokens + 1  # with [CLS]
    return rows
