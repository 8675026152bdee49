"""The order in which a run sees its samples.

It is one fixed sequence, cut into the micro-batches of each process.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
from torch.utils.data import Dataset, Sampler

from bert_recipes.errors import InputError


class EpochedDataset(Protocol):
    """A dataset whose items are numbered within epochs."""

    def num_pairs(self, epoch: int) -> int:
        """Return the pairs of an epoch, which may differ from epoch to epoch."""


def epoch_order(seed: int, epoch: int, num_pairs: int) -> np.ndarray:
    """Return the shuffled order of an epoch: int64 (num_pairs,), a function of its arguments."""
    return np.random.default_rng([seed, epoch]).permutation(num_pairs)


class EpochShuffle:
    """The keys (epoch, index) of a complete pre-training run, one after the other.

    The run is one sequence of samples that does not know about batches: step s trains on samples [s
    * G, (s + 1) * G) for a global batch of G, however G is split over micro-batches and processes.

    Args:
        dataset: What the keys are of.
        num_samples: The number of samples of the complete run.
        seed: The seed of the order.
        build_ahead: Is called with the number of the next epoch when an epoch begins.
    """

    def __init__(
        self,
        dataset: EpochedDataset,
        num_samples: int,
        seed: int,
        build_ahead: Callable[[int], None] | None = None,
    ) -> None:
        self.dataset = dataset
        self.num_samples = num_samples
        self.seed = seed
        self.build_ahead = build_ahead
        self._open_epoch(0, start=0)

    def _open_epoch(self, epoch: int, start: int) -> None:
        self.epoch = epoch  # the epoch that is open
        self._start = start  # the position of its first sample
        self._order: np.ndarray | None = None

    def keys(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return (epoch, index) of the samples from position `begin` to `end` (excluded).

        Both are Python integers. Any position can be asked for; those that follow each other are
        quick.
        """
        keys: list[tuple[int, int]] = []
        while begin < end:
            order = self._order_at(begin)
            indices = order[begin - self._start : end - self._start].tolist()
            keys += [(self.epoch, index) for index in indices]
            begin += len(indices)
        return keys

    def _order_at(self, position: int) -> np.ndarray:
        """Return the order of the epoch of a position."""
        if position < self._start:
            self._open_epoch(0, start=0)
        num_pairs = self.dataset.num_pairs(self.epoch)
        while position >= self._start + num_pairs:
            if num_pairs == 0:
                raise InputError("the training data holds no pairs")
            self._open_epoch(self.epoch + 1, self._start + num_pairs)
            num_pairs = self.dataset.num_pairs(self.epoch)

        if self._order is None:
            self._order = epoch_order(self.seed, self.epoch, num_pairs)
            is_last = self._start + num_pairs >= self.num_samples
            if self.build_ahead is not None and not is_last:
                self.build_ahead(self.epoch + 1)
        return self._order


class ProgressDataset(Dataset):
    """A data set whose items say at which fraction of the run they are read: `progress`.

    Its keys are a key of the data set and that fraction.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: tuple[Any, float]) -> dict[str, Any]:
        key_of_item, progress = key
        return {**self.dataset[key_of_item], "progress": progress}


class ResumableBatchSampler(Sampler[list[Any]]):
    """The micro-batches of one process.

    Step s of a run takes the samples [s * G, (s + 1) * G) of its order for a global batch G. They
    do not depend on how G is split over processes and micro-batches, and any of them is found at
    once: a run that resumes at step 500,000 starts as fast as one that resumes at step 5.

    Args:
        keys: Gives the keys of `dataset[key]` from one sample to another one (excluded).
        num_samples: The number of samples of the complete run, a multiple of the global batch.
        batch_size: Samples per micro-batch and process.
        num_processes: The number of processes that share a global batch.
        process_index: The index of this process.
        first: Micro-batch of the run with which the order begins.
        skipped: Micro-batches of this process that are done. They are yielded as empty lists, for
            the Trainer, which steps over as many, to throw away.
    """

    def __init__(
        self,
        keys: Callable[[int, int], list[Any]],
        num_samples: int,
        *,
        batch_size: int,
        num_processes: int = 1,
        process_index: int = 0,
        first: int = 0,
        skipped: int = 0,
    ) -> None:
        self.keys = keys
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.num_processes = num_processes
        self.process_index = process_index
        self.first = first
        self.skipped = max(first, skipped)

    def __len__(self) -> int:
        return self.first + self.num_samples // (self.batch_size * self.num_processes)

    def __iter__(self) -> Iterator[list[Any]]:
        yield from itertools.repeat([], self.skipped)
        samples_per_micro_step = self.batch_size * self.num_processes
        offset_in_micro_step = self.batch_size * self.process_index
        for number in range(self.skipped, len(self)):
            number_in_phase = number - self.first
            begin = number_in_phase * samples_per_micro_step + offset_in_micro_step
            end = begin + self.batch_size
            yield self.keys(begin, end)
