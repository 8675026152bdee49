"""The pre-training data set: the inputs of every epoch, by a table in a memory-mapped file."""

import hashlib
import json
import logging
import multiprocessing
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch.utils.data import Dataset

from bert_recipes.data import formats, pairs
from bert_recipes.data.formats import INPUT_FORMATS, NO_LABEL, PAIR_LABELS, InputFormat
from bert_recipes.data.processes import follow_parent
from bert_recipes.data.store import Split, Store
from bert_recipes.errors import InputError, exit_on_sigterm
from bert_recipes.files import atomic_write, build_once, hash_of, remove_cached, usable_cache_dir


logger = logging.getLogger(__name__)

# What draws the inputs and writes them: with another text of these modules, tables of before are
# not found.
DRAWING_MODULES = (formats, pairs)
# A position and a row's length are kept in two bytes; BERT has 512 positions.
MAX_SEQ_LENGTH_RANGE = (8, 65_535)
# Tables in memory: a run is in one epoch, or between two.
MAX_OPEN_TABLES = 2


@dataclass(eq=False, repr=False)
class PreTrainingDataset(Dataset[dict[str, Any]]):
    """Inputs for masked-LM training, with a label for the pair where there is one.

    Input k of epoch e is a pure function of (store, settings, seed, e, k): data-loading workers,
    processes, the order of access and interruptions do not matter. Masks are the collator's. An
    epoch's table of inputs is built when the epoch is first read and then kept in `cache_dir`; it
    can always be made again. Epoch e keeps the tables of e - 1 (its last batches may still be on
    their way) and e - 2 (e may be built ahead) and deletes older ones if it is not the first that
    is read; their numbers of pairs stay. Every epoch has new inputs; blocks of whole sentences are
    the same in all.

    Args:
        split: A split of a store, e.g. `open_store(path).train`.
        cls_id: Id of [CLS].
        sep_id: Id of [SEP].
        store_fingerprint: The store's `fingerprint`; with the split's counts it names the cached
            files.
        max_seq_length: Most tokens of an input, special tokens included; 8 to 65,535.
        short_seq_prob: Fraction of documents whose pairs aim at a length drawn between 2 and the
            maximum; 0 to 1.
        seed: The seed of all draws.
        input_format: One of `INPUT_FORMATS`.
        dupe_factor: Inputs are drawn this many times and come again in later epochs, with their
            masks; None = anew every epoch.
        pair_label: "next" (does B follow A), "order" (are they swapped) or "none"; formats without
            pairs have none.
        cache_dir: Where the tables are kept; None = `.cache` in the store's folder, or a temporary
            folder if that cannot be written to.
        num_workers: Processes that build a table; the table does not depend on it.

    Example:
        >>> dataset = PreTrainingDataset.from_store(open_store("my_store"))  # doctest: +SKIP
        >>> dataset[(3, 17)]["next_sentence_label"]  # pair 17 of epoch 3  # doctest: +SKIP

    Source: BERT (Devlin et al. 2019), A.2; google-research/bert create_pretraining_data.py. The
    original writes `dupe_factor` copies with other draws; here every epoch is such a copy and none
    is written.
    """

    split: Split
    _: KW_ONLY
    cls_id: int
    sep_id: int
    store_fingerprint: str
    max_seq_length: int = 128
    short_seq_prob: float = 0.1
    seed: int = 12345
    input_format: str = "segment_pair"
    pair_label: str = "next"
    dupe_factor: int | None = None
    cache_dir: str | Path | None = None
    num_workers: int = 1

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

    def __post_init__(self) -> None:
        _check_range("max_seq_length", self.max_seq_length, *MAX_SEQ_LENGTH_RANGE)
        _check_range("short_seq_prob", self.short_seq_prob, 0, 1)
        if self.num_workers < 1:
            raise InputError(f"num_workers: {self.num_workers} given, allowed is 1 or more")

        _check_format(self.split, self.input_format, self.pair_label)
        self.format: InputFormat = INPUT_FORMATS[self.input_format](
            self.split,
            self.cls_id,
            self.sep_id,
            self.max_seq_length,
            self.short_seq_prob,
            self.seed,
            self.pair_label,
        )
        self.pairs_task = "sop" if self.pair_label == "order" else "nsp"
        self.has_label = self.format.is_pair and self.pair_label != "none"
        #: Tells the pairs of this store, split, seed and length from all others.
        self.index_name = f"pairs-{self._digest()[:24]}"
        if self.cache_dir is None:
            self._folder = usable_cache_dir(self.split.store_path / ".cache")
        else:
            self._folder = Path(self.cache_dir)
        self._open_tables: dict[int, np.ndarray] = {}
        self._epochs_read: set[int] = set()
        self._num_pairs: dict[int, int] = {}

    def _digest(self) -> str:
        split = self.split
        identity = {
            "max_seq_length": self.max_seq_length,
            "short_seq_prob": self.short_seq_prob,
            "seed": self.seed,
            "store": self.store_fingerprint,
            "split": split.name,
            "counts": [int(split.num_documents), int(split.num_sentences), int(split.num_tokens)],
            "rules": [hash_of(Path(str(module.__file__))) for module in DRAWING_MODULES],
        }
        # "next" and "none" have the same segment pairs and share a table.
        if self.input_format != "segment_pair" or self.pair_label == "order":
            identity["input_format"] = self.input_format
            identity["pair_label"] = self.pair_label
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without memory maps, which do not travel."""
        return {**self.__dict__, "_open_tables": {}}

    def __len__(self) -> int:
        """Return the number of pairs of epoch 0.

        Other epochs have a few more or fewer, see `num_pairs`.
        """
        return self.num_pairs(0)

    def num_pairs(self, epoch: int) -> int:
        """Return the number of pairs of an epoch.

        Builds its table unless it was ever built here, or is remembered.
        """
        epoch = self._epoch_of_table(epoch)
        if epoch not in self._num_pairs:
            try:
                self._num_pairs[epoch], _ = self._read_count_and_hash(epoch)
            except (FileNotFoundError, ValueError):
                self._num_pairs[epoch] = len(self.table(epoch))
        return self._num_pairs[epoch]

    def remember_num_pairs(self, counts: Sequence[int]) -> None:
        """Take the numbers of pairs of the first epochs from a checkpoint.

        Their tables need not be built to be counted.
        """
        self._num_pairs.update(enumerate(counts))

    def lengths(self, epoch: int) -> np.ndarray:
        """Return int32 (num_pairs(epoch),): tokens of each input, special tokens included."""
        return self.table(epoch)["length"].astype(np.int32)

    def table(self, epoch: int) -> np.ndarray:
        """Return the inputs of an epoch: a read-only memory map, rows of the format's `dtype`."""
        epoch = self._epoch_of_table(epoch)
        if epoch not in self._open_tables:
            while len(self._open_tables) >= MAX_OPEN_TABLES:
                self._open_tables.pop(min(self._open_tables))
            try:
                self._open_tables[epoch] = self._build_and_map(epoch)
            except InputError:  # which is a ValueError
                raise
            except (FileNotFoundError, ValueError):
                # Deleted by another run over the same store in this very moment, or damaged.
                self._file(epoch, "pairs").unlink(missing_ok=True)
                self._open_tables[epoch] = self._build_and_map(epoch)
            self._epochs_read.add(epoch)
        return self._open_tables[epoch]

    def build_ahead(self, epoch: int) -> None:
        """Start a process that builds the table of the next epoch, unless it is there.

        `build_once` has a lock: a reader waits until the table is complete, and builds it where
        that process was stopped.
        """
        if self._file(self._epoch_of_table(epoch), "pairs").exists():
            return
        # Where data workers read the tables, this process reads none. The builder, which deletes
        # the older ones, must know that the run is in an epoch.
        self._epochs_read.add(epoch - 1)
        # Started as DataLoader starts its workers (a fork, on Linux): a user's script needs no
        # guard for it. It runs Python and numpy alone, which no thread of torch can block.
        arguments = (self, epoch)
        builder = multiprocessing.Process(target=_build_in_background, args=arguments, daemon=True)
        try:
            builder.start()
        except OSError as error:
            logger.warning("the pairs of epoch %d are made when it begins: %s", epoch, error)

    def _epoch_of_draws(self, epoch: int) -> int:
        """Return the epoch whose draws an epoch has."""
        return epoch if self.dupe_factor is None else epoch % self.dupe_factor

    def _epoch_of_table(self, epoch: int) -> int:
        return self._epoch_of_draws(epoch) if self.format.is_new_every_epoch else 0

    def _file(self, epoch: int | str, suffix: str) -> Path:
        return self._folder / f"{self.index_name}-epoch-{epoch}.{suffix}"

    def _read_count_and_hash(self, epoch: int) -> tuple[int, str]:
        """Return the number of rows of a table as it was written, and the hash of its file."""
        count, digest = self._file(epoch, "count").read_text(encoding="ascii").split()
        return int(count), digest

    def _build_and_map(self, epoch: int) -> np.ndarray:
        """Open the table of an epoch, built if it is not there; ValueError where it is damaged."""
        path = self._file(epoch, "pairs")
        build_once(path, lambda staged: self._build(staged, epoch))
        _, digest = self._read_count_and_hash(epoch)
        if hash_of(path) != digest:
            raise ValueError(f"{path}: not what was written")
        return np.memmap(path, dtype=self.format.dtype, mode="r")

    def _build(self, path: Path, epoch: int) -> None:
        """Write the table of an epoch, the same bytes for any number of processes."""
        num_pairs = 0
        with path.open("wb") as file:
            for rows in self.format.build_table(epoch, self.num_workers):
                file.write(rows.tobytes())
                num_pairs += len(rows)
        with atomic_write(self._file(epoch, "count")) as aside:
            aside.write_text(f"{num_pairs} {hash_of(path)}\n", encoding="ascii")
        # Reading a single epoch must not delete the tables of another run over this store; with
        # `dupe_factor` older epochs come again.
        has_read_earlier = any(earlier < epoch for earlier in self._epochs_read)
        if self.dupe_factor is None and has_read_earlier:
            for table in self._folder.glob(self._file("*", "pairs").name):
                epoch_of_table = int(table.stem.rpartition("-")[2])
                if epoch_of_table < epoch - 2:
                    remove_cached(table)

    def __getitem__(self, key: int | tuple[int, int]) -> dict[str, Any]:
        """Return one input: [CLS] A [SEP] B [SEP], or a block of sentences.

        Args:
            key: (epoch, index), or an index in epoch 0.

        Returns:
            `input_ids` int64 (L,); `token_type_ids` int64 (L,), 0 up to and with the first [SEP],
            then 1, in blocks 0; `next_sentence_label` int where pairs have a label, 0 = B follows
            A, 1 = B was drawn at random, or comes before A where the order is the label, -100 = no
            label; `key` (epoch, index).
        """
        if not isinstance(key, tuple):
            key = (0, key)
        epoch, index = map(int, key)
        drawn_epoch = self._epoch_of_draws(epoch)
        table = self.table(drawn_epoch)
        if not 0 <= index < len(table):
            raise IndexError(f"pair {index} of epoch {drawn_epoch}: it has {len(table)}")

        row = table[index]
        input_ids, token_type_ids = self.format.read(row.item(), drawn_epoch, index)
        item: dict[str, Any] = {"input_ids": input_ids, "token_type_ids": token_type_ids}
        if self.has_label:
            label = int(row["label"])
            item["next_sentence_label"] = -100 if label == NO_LABEL else label
        # The collator's masks follow from the key: with `dupe_factor` they repeat as well.
        item["key"] = (drawn_epoch, index)
        return item


def _build_in_background(dataset: PreTrainingDataset, epoch: int) -> None:
    """Build the table of an epoch, unless the process that trains ends before."""
    # That process ends its children with SIGTERM; a forked one has its handler. What is half
    # written is deleted.
    exit_on_sigterm()
    follow_parent()
    dataset.table(epoch)


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InputError(f"{name}: {value} given, allowed are {low} to {high}")


def _check_format(split: Split, input_format: str, pair_label: str) -> None:
    """Refuse a format that is unknown, or that the store or the label cannot serve."""
    if input_format not in INPUT_FORMATS or pair_label not in PAIR_LABELS:
        raise InputError(
            f"input_format {input_format!r}, pair_label {pair_label!r}; allowed: "
            f"{', '.join(INPUT_FORMATS)}, and {', '.join(PAIR_LABELS)}"
        )
    if input_format != "segment_pair" and pair_label == "order":
        raise InputError(
            f"input_format {input_format} has no order to learn; the label order needs segment_pair"
        )
    if INPUT_FORMATS[input_format].is_pair and split.num_documents < 2:
        raise InputError(
            f"{split.store_path}: {split.num_documents} document(s) in {split.name}; pairs need 2, "
            "to draw a random sentence from another one: separate documents by blank lines, or "
            "give more text"
        )
