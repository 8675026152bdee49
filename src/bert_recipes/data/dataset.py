"""The pairs of one epoch as a table of sentence numbers, made from the sentence lengths alone.

Each (seed, epoch, document) has a random generator of its own, so the table does not depend on how the documents are
split into blocks or on how many processes walk them. 24 bytes a pair; a memory-mapped ``.npy`` file.
"""

import hashlib
import json
import multiprocessing
import os
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from torch.utils.data import Dataset
from tqdm import tqdm

from bert_recipes.data.pairs import NUM_SPECIAL_TOKENS, build_sentence_pairs, truncate_pair
from bert_recipes.data.store import Split
from bert_recipes.errors import InputError
from bert_recipes.files import build_once, remove_cached, usable_cache_dir


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


def write_epoch_index(path: Path, lengths: Split, settings: PairSettings, epoch: int, num_processes: int = 1) -> int:
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


def _blocks(lengths: Split) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of consecutive documents with about ``BLOCK_SENTENCES`` sentences together, at least one."""
    begin, num_documents = 0, lengths.num_documents
    while begin < num_documents:
        offsets = lengths.sentence_offsets(begin, min(begin + BLOCK_SENTENCES, num_documents))
        count = int(np.searchsorted(offsets, offsets[0] + BLOCK_SENTENCES, side="right")) - 1
        end = begin + max(1, count)
        yield begin, end
        begin = end


_in_worker: tuple[Split, PairSettings, int]


def _start_worker(lengths: Split, settings: PairSettings, epoch: int) -> None:
    """Keep what all blocks share: opening a large store's maps for each block would take longer than the walk."""
    global _in_worker
    _in_worker = (lengths, settings, epoch)


def _index_block_in_worker(block: tuple[int, int]) -> np.ndarray:
    lengths, settings, epoch = _in_worker
    return index_documents(*block, lengths, settings, epoch)


def _index_blocks(
    blocks: list[tuple[int, int]], lengths: Split, settings: PairSettings, epoch: int, num_processes: int
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

    def __init__(self, lengths: Split, begin: int, end: int) -> None:
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

    def __init__(self, lengths: Split, document: int, begin: int, own_lengths: list[int]) -> None:
        self._lengths, self._document = lengths, document
        self._begin, self._own_lengths = begin, own_lengths
        self.last_begin = begin

    def __call__(self, document: int) -> Sequence[int]:
        if document == self._document:
            self.last_begin = self._begin
            return self._own_lengths
        self.last_begin, end = self._lengths.sentence_offsets(document, document + 1).tolist()
        return _LazyLengths(self._lengths, self.last_begin, end)


def index_documents(begin: int, end: int, lengths: Split, settings: PairSettings, epoch: int) -> np.ndarray:
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


class EpochIndexCache:
    """Opens the table of pairs of any epoch as a memory map. Picklable: maps are opened again where it arrives.

    Epoch e keeps the table of e - 1 (its last batches may still be on their way) and deletes older ones; their numbers
    of pairs are remembered, so that a resumed run can count its way to where it was.

    Args:
        lengths: The split's sentence lengths.
        settings: Lengths, probability and seed.
        identity: What tells this split of this store from every other (JSON values).
        cache_dir: Folder of the files; None = ``.cache`` in the store's folder, or a temporary one.
        num_processes: Processes to build with.
    """

    def __init__(
        self,
        lengths: Split,
        settings: PairSettings,
        identity: Mapping[str, Any],
        cache_dir: Path | None,
        num_processes: int,
    ) -> None:
        self._lengths, self._settings, self._num_processes = lengths, settings, num_processes
        key = json.dumps({"version": FORMAT_VERSION, **asdict(settings), **identity}, sort_keys=True)
        self.name = f"pairs-{hashlib.sha256(key.encode()).hexdigest()[:24]}"
        if cache_dir is None:
            store_path = getattr(lengths, "path", None)
            cache_dir = usable_cache_dir(None if store_path is None else Path(store_path).parent / ".cache")
        self._folder = Path(cache_dir)
        self._open: dict[int, np.ndarray] = {}
        self._counts: dict[int, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Memory maps do not travel."""
        return {**self.__dict__, "_open": {}}

    def path(self, epoch: int) -> Path:
        """Return the file of an epoch's table, whether or not it is there."""
        return self._folder / f"{self.name}-epoch-{epoch}.npy"

    def num_pairs(self, epoch: int) -> int:
        """Return the number of pairs of an epoch; builds its table unless it was ever built here, or is remembered."""
        if epoch not in self._counts:
            self._counts[epoch] = self._read_count(epoch)
        return self._counts[epoch]

    def remember_num_pairs(self, counts: Sequence[int]) -> None:
        """Take the numbers of pairs of the first epochs from a checkpoint: their tables need not be built to be counted."""
        self._counts |= dict(enumerate(counts))

    def _read_count(self, epoch: int) -> int:
        if epoch not in self._open:
            try:
                return int(self._count_path(epoch).read_text(encoding="ascii"))
            except FileNotFoundError:
                pass
        return len(self.table(epoch))

    def table(self, epoch: int) -> np.ndarray:
        """Return the pairs of an epoch: a read-only memory map of ``PAIR_DTYPE`` rows."""
        if epoch not in self._open:
            # Not more than two: a run is in one epoch, or between two.
            while len(self._open) >= 2:
                self._open.pop(min(self._open))
            self._open[epoch] = self._open_or_build(epoch)
        return self._open[epoch]

    def _open_or_build(self, epoch: int) -> np.ndarray:
        path = self.path(epoch)
        build_once(path, lambda partial: self._build(partial, epoch))
        try:
            return _open_table(path)
        except (FileNotFoundError, EOFError, ValueError):
            # Deleted by another run over the same store in this very moment, or damaged: make it again.
            build_once(path, lambda partial: self._build(partial, epoch), rebuild=True)
            return _open_table(path)

    def _build(self, partial: Path, epoch: int) -> None:
        num_pairs = write_epoch_index(partial, self._lengths, self._settings, epoch, self._num_processes)
        descriptor, name = tempfile.mkstemp(prefix=f".{self.name}-", dir=self._folder)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(str(num_pairs))
        Path(name).chmod(0o644)  # as the tables: a store may be shared
        os.replace(name, self._count_path(epoch))
        for old in self._folder.glob(f"{self.name}-epoch-*.npy"):
            if int(old.stem.rpartition("-")[2]) < epoch - 1:
                remove_cached(old)

    def _count_path(self, epoch: int) -> Path:
        return self._folder / f"{self.name}-epoch-{epoch}.count"


def _open_table(path: Path) -> np.ndarray:
    table = np.load(path, mmap_mode="r", allow_pickle=False)
    if table.dtype != PAIR_DTYPE or table.ndim != 1:
        raise ValueError(f"{path}: not a table of pairs")
    return table


# A position and a row's length are kept in two bytes (epoch_index.py); BERT has 512 positions.
MAX_SEQ_LENGTH_RANGE = (8, 65_535)


class PreTrainingDataset(Dataset[dict[str, Any]]):
    """Sentence pairs for masked-LM and next-sentence training; new pairs every epoch.

    Pair k of epoch e is a pure function of (store, settings, seed, e, k): data-loading workers, processes, the order of
    access and interruptions do not matter. Masks are the collator's. An epoch's table of pairs is built when the epoch
    is first asked for and then kept in ``cache_dir``; it can always be made again.

    Args:
        store: A split of a store, e.g. ``open_store(path).train``.
        cls_id: Id of [CLS].
        sep_id: Id of [SEP].
        store_fingerprint: The store's ``fingerprint``; with the split's counts it names the cached files.
        max_seq_length: Most tokens of an input, special tokens included; 8 to 65,535.
        short_seq_prob: Share of documents whose pairs aim at a length drawn between 2 and the maximum; 0 to 1.
        seed: Seed of all draws.
        cache_dir: Where the tables of pairs are kept (24 bytes a pair); None = ``.cache`` in the store's folder, or a
            temporary folder if that cannot be written to.
        num_workers: Processes that build a table; the table does not depend on it.

    Example:
        >>> dataset = PreTrainingDataset(store.train, cls_id=2, sep_id=3, store_fingerprint=store.fingerprint)
        >>> dataset[(3, 17)]["next_sentence_label"]  # pair 17 of epoch 3  # doctest: +SKIP

    Source: BERT (Devlin et al. 2019), A.2; google-research/bert create_pretraining_data.py. The original writes
    ``dupe_factor`` copies with other draws; here every epoch is such a copy and none is written.
    """

    def __init__(
        self,
        store: Split,
        *,
        cls_id: int,
        sep_id: int,
        store_fingerprint: str,
        max_seq_length: int = 128,
        short_seq_prob: float = 0.1,
        seed: int = 12345,
        cache_dir: str | Path | None = None,
        num_workers: int = 1,
    ) -> None:
        """Check the settings; an epoch's pairs are built when they are first asked for."""
        low, high = MAX_SEQ_LENGTH_RANGE
        if not low <= max_seq_length <= high:
            raise InputError(f"max_seq_length: {max_seq_length} given, allowed are {low} to {high}")
        if not 0.0 <= short_seq_prob <= 1.0:
            raise InputError(f"short_seq_prob: {short_seq_prob} given, allowed is a probability, 0 to 1")
        if num_workers < 1:
            raise InputError(f"num_workers: {num_workers} given, at least 1 process is needed to build the pairs")
        path = getattr(store, "path", None)
        if store.num_documents < 2:
            raise InputError(
                f"{path or 'store'}: {store.num_documents} document(s); next-sentence pairs need at least 2, to draw "
                "random sentences from another one: separate documents by blank lines, or give more text"
            )
        self.store = store
        self.cls_id = cls_id
        self.sep_id = sep_id
        self.max_seq_length = max_seq_length
        self.seed = seed
        settings = PairSettings(max_seq_length=max_seq_length, short_seq_prob=short_seq_prob, seed=seed)
        identity = {
            "store": store_fingerprint,
            "split": None if path is None else Path(path).name,
            "counts": [int(store.num_documents), int(store.num_sentences), int(store.num_tokens)],
        }
        folder = None if cache_dir is None else Path(cache_dir)
        self._indexes = EpochIndexCache(store, settings, identity, folder, num_workers)

    def __len__(self) -> int:
        """Number of pairs of epoch 0; other epochs have a few more or fewer, see :meth:`num_pairs`."""
        return self.num_pairs(0)

    def num_pairs(self, epoch: int) -> int:
        """Return the number of pairs of an epoch."""
        return self._indexes.num_pairs(epoch)

    @property
    def index_name(self) -> str:
        """Tells the pairs of this store, split, seed and length from all others."""
        return self._indexes.name

    def remember_num_pairs(self, counts: Sequence[int]) -> None:
        """Take the numbers of pairs of the epochs 0, 1, ... from where they were counted before."""
        self._indexes.remember_num_pairs(counts)

    def lengths(self, epoch: int) -> np.ndarray:
        """Return int32 (num_pairs(epoch),): tokens of each input, special tokens included."""
        return self._indexes.table(epoch)["length"].astype(np.int32)

    def __getitem__(self, key: int | tuple[int, int]) -> dict[str, Any]:
        """Return one pair: [CLS] A [SEP] B [SEP].

        Args:
            key: (epoch, index), or an index in epoch 0.

        Returns:
            ``input_ids`` int64 (L,); ``token_type_ids`` int64 (L,), 0 up to and with the first [SEP], then 1;
            ``next_sentence_label`` int, 0 = B follows A, 1 = B was drawn at random; ``key`` (epoch, index).
        """
        epoch, index = key if isinstance(key, tuple) else (0, key)
        epoch, index = int(epoch), int(index)
        table = self._indexes.table(epoch)
        if not 0 <= index < len(table):
            raise IndexError(f"pair {index} of epoch {epoch}: it has {len(table)}")
        a_begin, b_begin, a_count, b_count, _, is_random = table[index].item()
        tokens_a = self.store.tokens(a_begin, a_begin + a_count)
        tokens_b = self.store.tokens(b_begin, b_begin + b_count)
        max_num_tokens = self.max_seq_length - NUM_SPECIAL_TOKENS
        if len(tokens_a) + len(tokens_b) > max_num_tokens:
            rng = keyed_rng("truncation", self.seed, epoch, index)
            keep_a, keep_b = truncate_pair(len(tokens_a), len(tokens_b), max_num_tokens, rng)
            tokens_a, tokens_b = tokens_a[keep_a], tokens_b[keep_b]
        return {**self._join(tokens_a, tokens_b), "next_sentence_label": is_random, "key": (epoch, index)}

    def _join(self, tokens_a: np.ndarray, tokens_b: np.ndarray) -> dict[str, np.ndarray]:
        """Add the special tokens and the types."""
        boundary = len(tokens_a) + 2
        input_ids = np.empty(boundary + len(tokens_b) + 1, dtype=np.int64)
        input_ids[0] = self.cls_id
        input_ids[1 : boundary - 1] = tokens_a
        input_ids[boundary - 1] = self.sep_id
        input_ids[boundary:-1] = tokens_b
        input_ids[-1] = self.sep_id
        token_type_ids = np.zeros(len(input_ids), dtype=np.int64)
        token_type_ids[boundary:] = 1
        return {"input_ids": input_ids, "token_type_ids": token_type_ids}
