"""Where the tables of pairs live: one file an epoch, built when first asked for, shared by all processes of a machine."""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bert_recipes.data.cached_file import build_once, remove_cached, usable_cache_dir
from bert_recipes.data.epoch_index import (
    FORMAT_VERSION,
    PAIR_DTYPE,
    PairSettings,
    SentenceLengths,
    write_epoch_index,
)


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

    Attributes:
        name: Of the tables; that of other pairs is another one.
    """

    def __init__(
        self,
        lengths: SentenceLengths,
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
        """Return the pairs of an epoch: a read-only memory map of ``PAIR_DTYPE`` rows.

        Raises:
            OSError: If the cache folder cannot be written to or is full.
        """
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
