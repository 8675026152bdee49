"""The order of training: an endless run of epochs, each shuffled by (seed, epoch)."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from bert_recipes.errors import InputError


class EpochedDataset(Protocol):
    """A dataset whose items are numbered within epochs."""

    def num_pairs(self, epoch: int) -> int:
        """Pairs of an epoch; may differ from epoch to epoch."""


def epoch_order(seed: int, epoch: int, num_pairs: int) -> np.ndarray:
    """The shuffled order of an epoch: int64 (num_pairs,), a pure function of its arguments."""
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(num_pairs)


class PreTrainingOrder:
    """The keys (epoch, index) of a whole training run, one after the other.

    The run is one sequence of samples that does not know about batches: step s trains on samples [s * G, (s + 1) * G)
    for a global batch of G, however G is split over micro-batches and processes.

    Args:
        dataset: Says how many pairs each epoch has.
        num_samples: Samples of the run (steps x global batch).
        seed: Seed of the shuffling.
    """

    def __init__(self, dataset: EpochedDataset, num_samples: int, seed: int) -> None:
        self.dataset = dataset
        self.num_samples = num_samples
        self.seed = seed
        #: The epoch that was read last.
        self.epoch = 0
        # The position of its first sample, and its order.
        self._start = 0
        self._order: np.ndarray | None = None

    def __len__(self) -> int:
        return self.num_samples

    def keys(self, begin: int, end: int) -> list[tuple[int, int]]:
        """(epoch, index), Python integers, of the samples from position `begin` to `end` (excluded).

        Any position can be asked for; those that follow each other are quick.
        """
        found: list[tuple[int, int]] = []
        while begin < end:
            order = self._epoch_of(begin)
            part = order[begin - self._start : end - self._start].tolist()
            found += [(self.epoch, index) for index in part]
            begin += len(part)
        return found

    def _epoch_of(self, position: int) -> np.ndarray:
        """The order of the epoch in which a sample lies."""
        if position < self._start:
            self.epoch, self._start, self._order = 0, 0, None
        while position >= self._start + (num_pairs := self.dataset.num_pairs(self.epoch)):
            if num_pairs == 0:
                raise InputError("the training data holds no pairs")
            self.epoch, self._start, self._order = self.epoch + 1, self._start + num_pairs, None
        if self._order is None:
            self._order = epoch_order(self.seed, self.epoch, num_pairs)
        return self._order
