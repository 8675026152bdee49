"""The pairs of one epoch as a table of sentence numbers, made from the sentence lengths alone.

Each (seed, epoch, document) has a random generator of its own, so the table does not depend on how the documents are
split into blocks or on how many processes walk them. 24 bytes a pair; a memory-mapped ``.npy`` file.
"""

import hashlib
import multiprocessing
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from tqdm import tqdm

from bert_recipes.data.pairs import NUM_SPECIAL_TOKENS, build_sentence_pairs


# Part of the cache's file names: raise it whenever the table or the draws change.
FORMAT_VERSION = 1

PAIR_DTYPE = np.dtype(
    [
        ("a_begin", "<i8"),  # first sentence of A, counted over the whole split
        ("b_begin", "<i8"),  # first sentence of B, counted over the whole split
        ("a_count", "<u2"),  # sentences in A
        ("b_count", "<u2"),  # sentences in B
        ("length", "<u2"),  # tokens of the input after truncation, special tokens included
        ("is_random", "<u2"),  # 1 = B was drawn at random; two bytes keep the rows aligned
    ]
)

# Sentences a block: large enough to make processes worth their messages, small enough for a few MB of memory each.
BLOCK_SENTENCES = 2**16
# Some ten seconds of work: with less, one process is done before others have started (they import the main script anew).
MIN_SENTENCES_PER_PROCESS = 2**23
# Sentence lengths of another document fetched at a time: a random B rarely needs more.
FETCH = 16


class SentenceLengths(Protocol):
    """What the index asks of a split of a store; must be picklable for more than one process."""

    num_documents: int
    num_sentences: int

    def sentence_offsets(self, begin_document: int, end_document: int) -> np.ndarray:
        """Int64 (end - begin + 1,): the first sentence of each document, and the end of the last one."""

    def sentence_lengths(self, begin_sentence: int, end_sentence: int) -> np.ndarray:
        """Int64 (end - begin,): tokens in each sentence, all > 0."""


@dataclass(frozen=True, kw_only=True)
class PairSettings:
    """What the pairs depend on besides the store and the epoch.

    Attributes:
        max_seq_length: Most tokens of an input, special tokens included.
        short_seq_prob: Share of documents whose pairs aim at a shorter length.
        seed: Seed of all draws.
    """

    max_seq_length: int
    short_seq_prob: float
    seed: int


def keyed_rng(purpose: str, seed: int, epoch: int, number: int) -> random.Random:
    """Return a generator that is a pure function of its arguments, on every machine and Python version."""
    key = hashlib.blake2b(f"{purpose}:{seed}:{epoch}:{number}".encode("ascii"), digest_size=8).digest()
    return random.Random(int.from_bytes(key, "little"))


def write_epoch_index(
    path: Path, lengths: SentenceLengths, settings: PairSettings, epoch: int, num_processes: int = 1
) -> int:
    """Write the pairs of an epoch, document by document, as a ``.npy`` file of ``PAIR_DTYPE`` rows; return their number.

    Args:
        path: File to write; the same bytes for any number of processes.
        lengths: The split's sentence lengths.
        settings: Lengths, probability and seed.
        epoch: Number of the epoch, from 0.
        num_processes: Processes to walk blocks of documents; small splits use one in any case.
    """
    blocks = list(_blocks(lengths))
    num_processes = min(num_processes, max(1, lengths.num_sentences // MIN_SENTENCES_PER_PROCESS), len(blocks))
    if multiprocessing.current_process().daemon:
        # A data-loading worker may not have children; this happens only if the launching process did not ask first.
        num_processes = 1
    with open(path, "wb") as file:
        _write_header(file, 0)
        start = file.tell()
        num_pairs = 0
        for rows in _progress(_index_blocks(blocks, lengths, settings, epoch, num_processes), len(blocks), epoch):
            file.write(rows.tobytes())
            num_pairs += len(rows)
        file.seek(0)
        _write_header(file, num_pairs)
        if file.tell() != start:
            raise RuntimeError("the .npy header changed its length; this numpy release is not supported")
    return num_pairs


def _write_header(file: BinaryIO, num_pairs: int) -> None:
    """Write the .npy header; numpy leaves room in it for a larger number of rows."""
    description = np.lib.format.dtype_to_descr(PAIR_DTYPE)
    header = {"descr": description, "fortran_order": False, "shape": (num_pairs,)}
    np.lib.format.write_array_header_1_0(file, header)


def _progress(blocks: Iterator[np.ndarray], num_blocks: int, epoch: int) -> Iterator[np.ndarray]:
    """Show a progress bar when it takes longer than two seconds."""
    return tqdm(blocks, total=num_blocks, desc=f"pairs of epoch {epoch}", unit="block", delay=2)


def _blocks(lengths: SentenceLengths) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of consecutive documents with about ``BLOCK_SENTENCES`` sentences together, at least one."""
    begin, num_documents = 0, lengths.num_documents
    while begin < num_documents:
        offsets = lengths.sentence_offsets(begin, min(begin + BLOCK_SENTENCES, num_documents))
        count = int(np.searchsorted(offsets, offsets[0] + BLOCK_SENTENCES, side="right")) - 1
        end = begin + max(1, count)
        yield begin, end
        begin = end


_in_worker: tuple[SentenceLengths, PairSettings, int]


def _start_worker(lengths: SentenceLengths, settings: PairSettings, epoch: int) -> None:
    """Keep what all blocks share: opening a large store's maps for each block would take longer than the walk."""
    global _in_worker
    _in_worker = (lengths, settings, epoch)


def _index_block_in_worker(block: tuple[int, int]) -> np.ndarray:
    lengths, settings, epoch = _in_worker
    return index_documents(*block, lengths, settings, epoch)


def _index_blocks(
    blocks: list[tuple[int, int]], lengths: SentenceLengths, settings: PairSettings, epoch: int, num_processes: int
) -> Iterator[np.ndarray]:
    """Yield the rows of each block in order."""
    if num_processes == 1:
        for block in blocks:
            yield index_documents(*block, lengths, settings, epoch)
        return
    # spawn: forking a process that runs threads (torch, CUDA) can hang.
    context = multiprocessing.get_context("spawn")
    shared = (lengths, settings, epoch)
    with ProcessPoolExecutor(num_processes, mp_context=context, initializer=_start_worker, initargs=shared) as pool:
        yield from pool.map(_index_block_in_worker, blocks)


class _LazyLengths(Sequence[int]):
    """Sentence lengths of one document, fetched a few at a time: a document may be a whole book."""

    def __init__(self, lengths: SentenceLengths, begin: int, end: int) -> None:
        self._lengths, self._begin, self._end = lengths, begin, end
        self._first = 0
        self._fetched: list[int] = []

    def __len__(self) -> int:
        return self._end - self._begin

    def __getitem__(self, index: Any) -> Any:
        place = index - self._first
        if not 0 <= place < len(self._fetched):
            begin = self._begin + index
            self._fetched = self._lengths.sentence_lengths(begin, min(begin + FETCH, self._end)).tolist()
            self._first, place = index, 0
        return self._fetched[place]


class _LengthsOf:
    """Sentence lengths by document, for the walk over one document; knows where the document asked for last begins."""

    def __init__(self, lengths: SentenceLengths, document: int, begin: int, own_lengths: list[int]) -> None:
        self._lengths, self._document = lengths, document
        self._begin, self._own_lengths = begin, own_lengths
        self.last_begin = begin

    def __call__(self, document: int) -> Sequence[int]:
        if document == self._document:
            self.last_begin = self._begin
            return self._own_lengths
        self.last_begin, end = self._lengths.sentence_offsets(document, document + 1).tolist()
        return _LazyLengths(self._lengths, self.last_begin, end)


def index_documents(begin: int, end: int, lengths: SentenceLengths, settings: PairSettings, epoch: int) -> np.ndarray:
    """Return the pairs of documents ``begin`` to ``end`` (excluded) as ``PAIR_DTYPE`` rows, in order."""
    offsets = lengths.sentence_offsets(begin, end).tolist()
    of_block = lengths.sentence_lengths(offsets[0], offsets[-1]).tolist()
    longest = settings.max_seq_length
    rows: list[tuple[int, ...]] = []
    for document, here, there in zip(range(begin, end), offsets[:-1], offsets[1:], strict=True):
        lengths_of = _LengthsOf(lengths, document, here, of_block[here - offsets[0] : there - offsets[0]])
        for pair in build_sentence_pairs(
            document,
            lengths_of,
            lengths.num_documents,
            max_seq_length=longest,
            short_seq_prob=settings.short_seq_prob,
            rng=keyed_rng("pairs", settings.seed, epoch, document),
        ):
            a_begin, a_end, _, b_begin, b_end, is_random, length_a, length_b = pair
            b_offset = lengths_of.last_begin if is_random else here
            length = min(length_a + length_b + NUM_SPECIAL_TOKENS, longest)
            rows.append((here + a_begin, b_offset + b_begin, a_end - a_begin, b_end - b_begin, length, is_random))
    return np.array(rows, dtype=PAIR_DTYPE)
