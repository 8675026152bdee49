"""The order of training: an endless run of epochs, each shuffled by (seed, epoch)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from torch.utils.data import Sampler

from bert_recipes.errors import InputError


class EpochedDataset(Protocol):
    """A dataset whose items are numbered within epochs."""

    def num_pairs(self, epoch: int) -> int:
        """Pairs of an epoch; may differ from epoch to epoch."""


def epoch_order(seed: int, epoch: int, num_pairs: int) -> np.ndarray:
    """The shuffled order of an epoch: int64 (num_pairs,), a pure function of its arguments."""
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(num_pairs)


class PreTrainingSampler(Sampler[tuple[int, int]]):
    """Yields the keys (epoch, index) of a whole training run, one after the other.

    The run is one sequence of samples that does not know about batches: step s trains on samples [s * G, (s + 1) * G)
    for a global batch of G, however G is split over micro-batches and processes.

    Args:
        dataset: Says how many pairs each epoch has.
        num_samples: Samples of the run (steps x global batch).
        seed: Seed of the shuffling.

    Raises:
        InputError: The dataset has no pairs.
    """

    def __init__(self, dataset: EpochedDataset, num_samples: int, seed: int) -> None:
        self.dataset = dataset
        self.num_samples = num_samples
        self.seed = seed

    def __len__(self) -> int:
        """Samples that will be yielded."""
        return self.num_samples

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield (epoch, index) as Python integers."""
        remaining, epoch = self.num_samples, 0
        while remaining > 0:
            num_pairs = self.dataset.num_pairs(epoch)
            if num_pairs == 0:
                raise InputError("the training data holds no pairs")
            order = epoch_order(self.seed, epoch, num_pairs)[:remaining]
            remaining -= len(order)
            for index in order:
                yield epoch, int(index)
            epoch += 1
