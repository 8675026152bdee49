"""The pre-training data set: which sentences make the inputs of an epoch, and the inputs
themselves.

The pairs of an epoch are a table of sentence numbers, made from the sentence lengths alone: 24
bytes per pair, in a memory-mapped file. Each (seed, epoch, document) has a random generator of its
own, so the table does not depend on how the documents are split into blocks or on how many
processes walk them.
"""

import hashlib
import json
import multiprocessing
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch.utils.data import Dataset

from bert_recipes.data.pairs import (
    NUM_SPECIAL_TOKENS,
    build_segments,
    build_sentence_pairs,
    build_single_sentence_pairs,
    pack_items,
    split_segments,
    truncate_pair,
)
from bert_recipes.data.store import Split, Store
from bert_recipes.errors import InputError
from bert_recipes.files import atomic_write, build_once, hash_of, remove_cached, usable_cache_dir
from bert_recipes.progress import Progress


# Part of the cache's file names: raise it whenever the table or the draws change.
FORMAT_VERSION = 1

PAIR_DTYPE = np.dtype(
    [
        ("a_begin", "<i8"),  # first sentence of A, counted over the whole split
        ("b_begin", "<i8"),  # first sentence of B, counted over the whole split
        ("a_count", "<u2"),  # sentences in A
        ("b_count", "<u2"),  # sentences in B
        ("length", "<u2"),  # tokens of the input after truncation, special tokens included
        # 0 = B follows A, 1 = B was drawn at random, or comes before A where the order is asked
        # for, 2 = no label; two bytes keep the rows aligned
        ("label", "<u2"),
    ]
)
NO_LABEL = 2
BLOCK_DTYPE = np.dtype(
    [
        ("sentence", "<i8"),  # the first one, counted over the whole split
        ("document", "<i8"),  # of that sentence
        ("offset", "<u4"),  # tokens of that sentence in the block before
        ("count", "<u2"),  # sentences, the cut ones too
        ("length", "<u2"),  # tokens of the input, special tokens included
    ]
)

# How text becomes an input; sources: `build_sentence_pairs`, `build_single_sentence_pairs`, Liu et
# al. 2019, section 4.1 (blocks of whole sentences across documents or within), `split_segments`.
INPUT_FORMATS = ("segment_pair", "sentence_pair", "full_sentences", "doc_sentences", "electra")
BLOCKS = ("full_sentences", "doc_sentences")
# What the label of a pair says.
PAIR_LABELS = ("next", "order", "none")

# Sentences per block: large enough to make processes worth their messages, small enough for a few
# MB of memory each.
BLOCK_SENTENCES = 2**16
# Some ten seconds of work: with less, one process is done before others have started (they import
# the main script again).
MIN_SENTENCES_PER_PROCESS = 2**23
# Sentence lengths of another document fetched at a time: a random B rarely needs more.
FETCH = 16
# A position and a row's length are kept in two bytes; BERT has 512 positions.
MAX_SEQ_LENGTH_RANGE = (8, 65_535)


def keyed_rng(purpose: str, seed: int, epoch: int, number: int) -> random.Random:
    """Return a generator that is a pure function of its arguments, on every machine and Python
    version.
    """
    key = hashlib.blake2b(
        f"{purpose}:{seed}:{epoch}:{number}".encode("ascii"), digest_size=8
    ).digest()
    return random.Random(int.from_bytes(key, "little"))


class _LazyLengths(Sequence[int]):
    """Sentence lengths of one document, fetched a few at a time: a document may be a complete
    book.
    """

    def __init__(self, store: Split, document: int) -> None:
        self._store = store
        self.begin, self._end = store.sentence_offsets(document, document + 1).tolist()
        self._first = 0
        self._fetched: list[int] = []

    def __len__(self) -> int:
        return self._end - self.begin

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index - self._first < len(self._fetched):
            begin = self.begin + index
            self._fetched = self._store.sentence_lengths(
                begin, min(begin + FETCH, self._end)
            ).tolist()
            self._first = index
        return self._fetched[index - self._first]


def index_documents(
    block: tuple[int, int],
    *,
    store: Split,
    max_seq_length: int,
    short_seq_prob: float,
    seed: int,
    epoch: int,
    input_format: str = "segment_pair",
    pair_label: str = "next",
) -> np.ndarray:
    """Return the inputs of documents ``block[0]`` to ``block[1]`` (excluded) as ``PAIR_DTYPE``
    rows, in order.
    """
    offsets = store.sentence_offsets(*block).tolist()
    of_block = store.sentence_lengths(offsets[0], offsets[-1]).tolist()
    lazily = lru_cache(maxsize=16)(partial(_LazyLengths, store))
    rows: list[tuple[int, ...]] = []
    for document, here, there in zip(range(*block), offsets[:-1], offsets[1:], strict=True):
        own = of_block[here - offsets[0] : there - offsets[0]]
        if input_format == "electra":
            rows += _index_electra(here, own, max_seq_length, seed, epoch)
            continue

        def lengths_of(other: int, document: int = document, own: list[int] = own) -> Sequence[int]:
            return own if other == document else lazily(other)

        rng = keyed_rng("pairs", seed, epoch, document)
        if input_format == "sentence_pair":
            pairs = build_single_sentence_pairs(document, lengths_of, store.num_documents, rng)
        else:
            pairs = build_sentence_pairs(
                document,
                lengths_of,
                store.num_documents,
                max_seq_length=max_seq_length,
                short_seq_prob=short_seq_prob,
                rng=rng,
                is_ordered=pair_label == "order",
            )
        for (
            a_begin,
            a_end,
            b_document,
            b_begin,
            b_end,
            is_random,
            length_a,
            length_b,
            is_swapped,
        ) in pairs:
            b_offset = here if b_document == document else lazily(b_document).begin
            length = min(length_a + length_b + NUM_SPECIAL_TOKENS, max_seq_length)
            # Google's ALBERT calls the random B of a lone sentence swapped, which is no question of
            # order.
            label = is_random if pair_label != "order" else NO_LABEL if is_random else is_swapped
            rows.append(
                (
                    here + a_begin,
                    b_offset + b_begin,
                    a_end - a_begin,
                    b_end - b_begin,
                    length,
                    label,
                )
            )
    return np.array(rows, dtype=PAIR_DTYPE)


def _index_electra(
    offset: int, lengths: list[int], max_seq_length: int, seed: int, epoch: int
) -> Iterator[tuple[int, ...]]:
    """Rows whose sentences are split when they are read: `a_begin` and `a_count` say which,
    `b_count` the length that was aimed at.
    """
    for begin, end, is_first, target, _ in build_segments(
        lengths,
        max_seq_length,
        max_seq_length,
        lambda begin: keyed_rng("electra", seed, epoch, offset + begin),
    ):
        size_a, size_b = _electra_sizes(lengths[begin:end], is_first, max_seq_length)
        size = size_a + size_b + (NUM_SPECIAL_TOKENS if size_b else NUM_SPECIAL_TOKENS - 1)
        yield offset + begin, 0, end - begin, target, size, NO_LABEL


def _electra_sizes(
    lengths: Sequence[int], chosen: Sequence[bool], max_seq_length: int
) -> tuple[int, int]:
    """Tokens of both segments that fit into the length. Source: as `build_segments`."""
    first = sum(length for length, is_first in zip(lengths, chosen, strict=True) if is_first)
    size_a = min(first, max_seq_length - 2)
    return size_a, min(sum(lengths) - first, max(0, max_seq_length - size_a - NUM_SPECIAL_TOKENS))


_ITEM_DTYPE = np.dtype(
    [("sentence", "<i8"), ("document", "<i8"), ("offset", "<i8"), ("size", "<i8")]
)


def index_blocks(
    store: Split, max_seq_length: int, *, within_documents: bool
) -> Iterator[np.ndarray]:
    """Yield blocks of whole sentences as ``BLOCK_DTYPE`` rows: [CLS], then sentences that each end
    with [SEP].

    Between two documents stands one more [SEP], unless blocks end with their document. A sentence
    that is too long for a block is cut: fairseq's blocks would be longer than the model reads.
    """
    room = max_seq_length - 1
    left = np.empty(0, dtype=_ITEM_DTYPE)
    for begin, end in _blocks(store):
        items = _items(store, begin, end, room, has_separators=not within_documents)
        if within_documents:
            cuts = [0, *(np.flatnonzero(np.diff(items["document"])) + 1).tolist(), len(items)]
            parts = [
                (first, pack_items(items["size"][first:last], room))
                for first, last in pairwise(cuts)
            ]
            bounds = [first + start for first, starts in parts for start in starts[:-1]] + [
                len(items)
            ]
        else:
            items = np.concatenate([left, items])
            bounds = pack_items(items["size"], room)
            if end < store.num_documents:  # the last block goes on in the next documents
                left = items[bounds[-2] :]
                bounds = bounds[:-1]
        rows = np.empty(len(bounds) - 1, dtype=BLOCK_DTYPE)
        firsts, lasts = items[bounds[:-1]], items[np.array(bounds[1:]) - 1]
        for name in ("sentence", "document", "offset"):
            rows[name] = firsts[name]
        rows["count"] = lasts["sentence"] - firsts["sentence"] + 1
        ends = np.concatenate([[0], np.cumsum(items["size"])])
        rows["length"] = 1 + np.diff(ends[bounds])
        yield rows


def _items(store: Split, begin: int, end: int, room: int, *, has_separators: bool) -> np.ndarray:
    """Sentences with their [SEP], cut where they are too long; and after a document its separator,
    a part of its last sentence.
    """
    offsets = store.sentence_offsets(begin, end)
    sizes = store.sentence_lengths(int(offsets[0]), int(offsets[-1])) + 1
    pieces = -(-sizes // room)
    items = np.empty(int(pieces.sum()), dtype=_ITEM_DTYPE)
    number = np.repeat(np.arange(len(sizes)), pieces)
    starts = np.cumsum(pieces) - pieces
    items["sentence"] = offsets[0] + number
    items["document"] = np.repeat(np.arange(begin, end), np.diff(offsets))[number]
    items["offset"] = (np.arange(len(items)) - starts[number]) * room
    items["size"] = np.minimum(room, sizes[number] - items["offset"])
    if not has_separators:
        return items
    lasts = (np.cumsum(pieces)[offsets[1:] - offsets[0] - 1])[
        : len(offsets) - 1 - (end == store.num_documents)
    ]
    separators = items[lasts - 1]
    separators["offset"] += separators["size"]
    separators["size"] = 1
    return np.insert(items, lasts, separators)


def write_pairs(path: Path, store: Split, num_processes: int = 1, **settings: Any) -> int:
    """Write the inputs of an epoch, document by document, as ``PAIR_DTYPE`` or ``BLOCK_DTYPE``
    rows; return their number.

    Args:
        path: File to write; the same bytes for any number of processes.
        store: Gives the sentence lengths.
        num_processes: Processes to walk blocks of documents; small splits use one in any case.
        **settings: Of `index_documents`.
    """
    input_format = settings.get("input_format", "segment_pair")
    if input_format in BLOCKS:
        with open(path, "wb") as file:
            for part in index_blocks(
                store, settings["max_seq_length"], within_documents=input_format == "doc_sentences"
            ):
                file.write(part.tobytes())
            return file.tell() // BLOCK_DTYPE.itemsize
    blocks = list(_blocks(store))
    num_processes = min(
        num_processes, max(1, store.num_sentences // MIN_SENTENCES_PER_PROCESS), len(blocks)
    )
    if multiprocessing.current_process().daemon:
        # A data-loading worker may not have children; this happens only if the launching process
        # did not ask first.
        num_processes = 1
    index_block = partial(index_documents, store=store, **settings)
    with open(path, "wb") as file, ExitStack() as stack:
        rows: Iterable[np.ndarray] = map(index_block, blocks)
        if num_processes > 1:
            # spawn: forking a process that runs threads (torch, CUDA) can hang.
            context = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(
                num_processes, context, initializer=_start_worker, initargs=(index_block,)
            )
            rows = stack.enter_context(pool).map(_index_in_worker, blocks)
        for part in Progress(
            rows,
            total=len(blocks),
            desc=f"pairs of epoch {settings['epoch']}",
            unit="block",
            delay=2,
        ):
            file.write(part.tobytes())
        return file.tell() // PAIR_DTYPE.itemsize


def _blocks(store: Split) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of consecutive documents with about ``BLOCK_SENTENCES`` sentences
    together, at least one.
    """
    begin, num_documents = 0, store.num_documents
    while begin < num_documents:
        offsets = store.sentence_offsets(begin, min(begin + BLOCK_SENTENCES, num_documents))
        count = int(np.searchsorted(offsets, offsets[0] + BLOCK_SENTENCES, side="right")) - 1
        end = begin + max(1, count)
        yield begin, end
        begin = end


# What all blocks share stays in the worker: opening a large store's maps for each block would take
# longer than the walk.
_index_block: Callable[[tuple[int, int]], np.ndarray]


def _start_worker(index_block: Callable[[tuple[int, int]], np.ndarray]) -> None:
    global _index_block
    _index_block = index_block


def _index_in_worker(block: tuple[int, int]) -> np.ndarray:
    return _index_block(block)


class PreTrainingDataset(Dataset[dict[str, Any]]):
    """Inputs for masked-LM training, with a label for the pair where there is one; new ones every
    epoch.

    Input k of epoch e is a pure function of (store, settings, seed, e, k): data-loading workers,
    processes, the order of access and interruptions do not matter. Masks are the collator's. An
    epoch's table of inputs is built when the epoch is first asked for and then kept in
    ``cache_dir``; it can always be made again. Epoch e keeps the table of e - 1 (its last batches
    may still be on their way) and deletes older ones; their numbers of pairs stay. Blocks of whole
    sentences are the same in every epoch.

    Args:
        store: A split of a store, e.g. ``open_store(path).train``.
        store_fingerprint: The store's ``fingerprint``; with the split's counts it names the cached
            files.
        max_seq_length: Most tokens of an input, special tokens included; 8 to 65,535.
        short_seq_prob: Fraction of documents whose pairs aim at a length drawn between 2 and the
            maximum; 0 to 1.
        dupe_factor: Inputs are drawn so many times and come again in later epochs, with their
            masks; None = anew every epoch.
        pair_label: "next" (does B follow A), "order" (are they swapped) or "none"; formats without
            pairs have none.
        cache_dir: Where the tables are kept; None = ``.cache`` in the store's folder, or a
            temporary folder if that cannot be written to.
        num_workers: Processes that build a table; the table does not depend on it.

    Example:
        >>> dataset = PreTrainingDataset.from_store(open_store("my_store"))  # doctest: +SKIP
        >>> dataset[(3, 17)]["next_sentence_label"]  # pair 17 of epoch 3  # doctest: +SKIP

    Source: BERT (Devlin et al. 2019), A.2; google-research/bert create_pretraining_data.py. The
    original writes ``dupe_factor`` copies with other draws; here every epoch is such a copy and
    none is written.
    """

    @classmethod
    def from_store(cls, store: Store, split: str = "train", **settings: Any) -> Self:
        """Make the inputs of a split of an opened store, "train" or "validation"."""
        documents = store.train if split == "train" else store.validation
        if documents is None:
            raise InputError(
                f"{store.path}: has no held-out part; prepare it with --validation_fraction"
            )
        ids = store.metadata["special_ids"]
        return cls(
            documents,
            cls_id=ids["cls"],
            sep_id=ids["sep"],
            store_fingerprint=store.fingerprint,
            **settings,
        )

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
        input_format: str = "segment_pair",
        pair_label: str = "next",
        dupe_factor: int | None = None,
        cache_dir: str | Path | None = None,
        num_workers: int = 1,
    ) -> None:
        low, high = MAX_SEQ_LENGTH_RANGE
        if not low <= max_seq_length <= high:
            raise InputError(f"max_seq_length: {max_seq_length} given, allowed are {low} to {high}")
        if not 0.0 <= short_seq_prob <= 1.0:
            raise InputError(
                f"short_seq_prob: {short_seq_prob} given, allowed is a probability, 0 to 1"
            )
        if num_workers < 1:
            raise InputError(
                f"num_workers: {num_workers} given, at least 1 process is needed to build the pairs"
            )
        if input_format not in INPUT_FORMATS or pair_label not in PAIR_LABELS:
            raise InputError(
                f"input_format {input_format!r}, pair_label {pair_label!r}; allowed: "
                f"{', '.join(INPUT_FORMATS)}, and {', '.join(PAIR_LABELS)}"
            )
        if input_format != "segment_pair" and pair_label == "order":
            raise InputError(
                f"input_format {input_format} has no order to learn; the label order needs "
                "segment_pair"
            )
        if input_format.endswith("_pair") and store.num_documents < 2:
            raise InputError(
                f"{store.path}: {store.num_documents} document(s); next-sentence pairs need at "
                "least 2, to draw "
                "random sentences from another one: separate documents by blank lines, or give "
                "more text"
            )
        self.store, self.cls_id, self.sep_id = store, cls_id, sep_id
        self.max_seq_length, self.seed, self.input_format = max_seq_length, seed, input_format
        self.dupe_factor = dupe_factor
        self.pairs_task = "sop" if pair_label == "order" else "nsp"
        self.has_label = pair_label != "none" and input_format.endswith("_pair")
        self._num_workers = num_workers
        self._settings: dict[str, Any] = {
            "max_seq_length": max_seq_length,
            "short_seq_prob": short_seq_prob,
            "seed": seed,
        }
        if input_format != "segment_pair" or pair_label == "order":
            self._settings |= {"input_format": input_format, "pair_label": pair_label}
        identity = {
            "version": FORMAT_VERSION,
            **self._settings,
            "store": store_fingerprint,
            "split": store.path.name,
            "counts": [int(store.num_documents), int(store.num_sentences), int(store.num_tokens)],
        }
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        #: Tells the pairs of this store, split, seed and length from all others.
        self.index_name = f"pairs-{digest[:24]}"
        self._folder = (
            usable_cache_dir(store.path.parent / ".cache") if cache_dir is None else Path(cache_dir)
        )
        self._open: dict[int, np.ndarray] = {}
        self._counts: dict[int, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Memory maps do not travel."""
        return {**self.__dict__, "_open": {}}

    def __len__(self) -> int:
        """Number of pairs of epoch 0; other epochs have a few more or fewer, see
        :meth:`num_pairs`.
        """
        return self.num_pairs(0)

    def num_pairs(self, epoch: int) -> int:
        """Return the number of pairs of an epoch; builds its table unless it was ever built here,
        or is remembered.
        """
        epoch = self._table_of(epoch)
        if epoch not in self._counts:
            try:
                self._counts[epoch], _ = self._read_facts(epoch)
            except (FileNotFoundError, ValueError):
                self._counts[epoch] = len(self.table(epoch))
        return self._counts[epoch]

    def remember_num_pairs(self, counts: Sequence[int]) -> None:
        """Take the numbers of pairs of the first epochs from a checkpoint: their tables need not be
        built to be counted.
        """
        self._counts |= dict(enumerate(counts))

    def lengths(self, epoch: int) -> np.ndarray:
        """Return int32 (num_pairs(epoch),): tokens of each input, special tokens included."""
        return self.table(epoch)["length"].astype(np.int32)

    def table(self, epoch: int) -> np.ndarray:
        """Return the inputs of an epoch: a read-only memory map of ``PAIR_DTYPE`` rows, or
        ``BLOCK_DTYPE`` ones.
        """
        epoch = self._table_of(epoch)
        if epoch not in self._open:
            # Not more than two: a run is in one epoch, or between two.
            while len(self._open) >= 2:
                self._open.pop(min(self._open))
            path = self._file(epoch, "pairs")
            build_once(path, lambda partial: self._build(partial, epoch))
            try:
                self._open[epoch] = self._map(path, epoch)
            except (FileNotFoundError, ValueError):
                # Deleted by another run over the same store in this very moment, or damaged: make
                # it again.
                path.unlink(missing_ok=True)
                build_once(path, lambda partial: self._build(partial, epoch))
                self._open[epoch] = self._map(path, epoch)
        return self._open[epoch]

    def _drawn(self, epoch: int) -> int:
        """The epoch whose draws an epoch has."""
        return epoch if self.dupe_factor is None else epoch % self.dupe_factor

    def _table_of(self, epoch: int) -> int:
        return 0 if self.input_format in BLOCKS else self._drawn(epoch)

    def _file(self, epoch: int | str, suffix: str) -> Path:
        return self._folder / f"{self.index_name}-epoch-{epoch}.{suffix}"

    def _read_facts(self, epoch: int) -> tuple[int, str]:
        """Return what was written of a table: the number of its rows, and the hash of its file."""
        count, digest = self._file(epoch, "count").read_text(encoding="ascii").split()
        return int(count), digest

    def _map(self, path: Path, epoch: int) -> np.ndarray:
        _, digest = self._read_facts(epoch)
        if hash_of(path) != digest:
            raise ValueError(f"{path}: not what was written")
        return np.memmap(
            path, dtype=BLOCK_DTYPE if self.input_format in BLOCKS else PAIR_DTYPE, mode="r"
        )

    def _build(self, partial: Path, epoch: int) -> None:
        num_pairs = write_pairs(
            partial, self.store, self._num_workers, epoch=epoch, **self._settings
        )
        with atomic_write(self._file(epoch, "count")) as aside:
            aside.write_text(f"{num_pairs} {hash_of(partial)}\n", encoding="ascii")
        # With a dupe_factor they all come again.
        for old in (
            self._folder.glob(self._file("*", "pairs").name) if self.dupe_factor is None else ()
        ):
            if int(old.stem.rpartition("-")[2]) < epoch - 1:
                remove_cached(old)

    def __getitem__(self, key: int | tuple[int, int]) -> dict[str, Any]:
        """Return one input: [CLS] A [SEP] B [SEP], or a block of sentences.

        Args:
            key: (epoch, index), or an index in epoch 0.

        Returns:
            ``input_ids`` int64 (L,); ``token_type_ids`` int64 (L,), 0 up to and with the first
            [SEP], then 1, in blocks 0; ``next_sentence_label`` int where pairs have a label, 0 = B
            follows A, 1 = B was drawn at random, or comes before A where the order is asked for,
            -100 = no label; ``key`` (epoch, index).
        """
        epoch, index = key if isinstance(key, tuple) else (0, key)
        epoch, index = self._drawn(int(epoch)), int(index)
        table = self.table(epoch)
        if not 0 <= index < len(table):
            raise IndexError(f"pair {index} of epoch {epoch}: it has {len(table)}")
        row = table[index].item()
        if self.input_format in BLOCKS:
            input_ids = self._read_block(*row)
            return {
                "input_ids": input_ids,
                "token_type_ids": np.zeros_like(input_ids),
                "key": (epoch, index),
            }
        segments = (
            self._read_electra(row, epoch)
            if self.input_format == "electra"
            else self._read_pair(row, epoch, index)
        )
        tokens_a, tokens_b = segments
        boundary = len(tokens_a) + 2
        input_ids = np.full(
            boundary + len(tokens_b) + (len(tokens_b) > 0), self.sep_id, dtype=np.int64
        )
        input_ids[0] = self.cls_id
        input_ids[1 : boundary - 1] = tokens_a
        input_ids[boundary : boundary + len(tokens_b)] = tokens_b
        token_type_ids = np.zeros(len(input_ids), dtype=np.int64)
        token_type_ids[boundary:] = 1
        item: dict[str, Any] = {"input_ids": input_ids, "token_type_ids": token_type_ids}
        if self.has_label:
            item["next_sentence_label"] = -100 if row[-1] == NO_LABEL else row[-1]
        return item | {"key": (epoch, index)}

    def _read_pair(
        self, row: tuple[int, ...], epoch: int, index: int
    ) -> tuple[np.ndarray, np.ndarray]:
        a_begin, b_begin, a_count, b_count, _, _ = row
        tokens_a = self.store.tokens(a_begin, a_begin + a_count)
        tokens_b = self.store.tokens(b_begin, b_begin + b_count)
        max_num_tokens = self.max_seq_length - NUM_SPECIAL_TOKENS
        if len(tokens_a) + len(tokens_b) > max_num_tokens:
            rng = keyed_rng("truncation", self.seed, epoch, index)
            keep_a, keep_b = truncate_pair(len(tokens_a), len(tokens_b), max_num_tokens, rng)
            tokens_a, tokens_b = tokens_a[keep_a], tokens_b[keep_b]
        return tokens_a, tokens_b

    def _read_electra(self, row: tuple[int, ...], epoch: int) -> tuple[np.ndarray, np.ndarray]:
        begin, _, count, target, _, _ = row
        lengths = self.store.sentence_lengths(begin, begin + count).tolist()
        chosen = split_segments(lengths, target, keyed_rng("electra", self.seed, epoch, begin))
        size_a, size_b = _electra_sizes(lengths, chosen, self.max_seq_length)
        tokens, is_first = self.store.tokens(begin, begin + count), np.repeat(chosen, lengths)
        return tokens[is_first][:size_a], tokens[~is_first][:size_b]

    def _read_block(
        self, sentence: int, document: int, offset: int, count: int, length: int
    ) -> np.ndarray:
        lengths = self.store.sentence_lengths(sentence, sentence + count)
        sizes = lengths + 1
        if (
            self.input_format == "full_sentences"
        ):  # one separator more after documents, but not after the last of all
            last = min(document + count, self.store.num_documents - 1)
            ends = self.store.sentence_offsets(document, last)[1:] - 1 - sentence
            sizes[ends[ends < count]] += 1
        place = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        stream = np.full(len(place), self.sep_id, dtype=np.int64)
        stream[place < np.repeat(lengths, sizes)] = self.store.tokens(sentence, sentence + count)
        return np.concatenate([[self.cls_id], stream[offset : offset + length - 1]])
