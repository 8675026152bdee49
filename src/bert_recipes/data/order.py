"""The order in which a run sees its samples.

It is one fixed sequence, cut into the micro-batches of each process.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
from torch.utils.data import Sampler

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
    """

    def __init__(self, dataset: EpochedDataset, num_samples: int, seed: int) -> None:
        self.dataset = dataset
        self.num_samples = num_samples
        self.seed = seed
        self._open_epoch(0, start=0)

    def _open_epoch(self, epoch: int, start: int) -> None:
        self.epoch = epoch  # that was read last
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
        return self._order


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
        samples_of_all = self.batch_size * self.num_processes
        samples_before = self.batch_size * self.process_index
        for number in range(self.skipped, len(self)):
            number_in_phase = number - self.first
            begin = number_in_phase * samples_of_all + samples_before
            end = begin + self.batch_size
            yield self.keys(begin, end)


# HF's names for `train_sampling_strategy` that a fixed order can serve.
STRATEGIES = ("group_by_length", "random", "sequential")
# As stock `LengthGroupedSampler`: long enough that batches of like length are found, short enough
# to stay random.
GROUPED_BATCHES = 50


def num_training_steps(num_features: int, global_batch: int, num_epochs: float) -> int:
    """Return the optimiser steps of a run.

    A batch may hold the end of one epoch and the start of the next.

    Source: google-research/bert run_classifier.py: int(len(train_examples) / train_batch_size *
    num_train_epochs).
    """
    return max(1, int(num_features / global_batch * num_epochs))


def training_order(
    lengths: np.ndarray,
    *,
    num_steps: int,
    global_batch: int,
    seed: int,
    strategy: str = "group_by_length",
) -> np.ndarray:
    """Return the numbers of features in the order of training.

    Step s takes [s * global_batch, (s + 1) * global_batch). The order depends on nothing but the
    arguments: not on processes, workers or the split of the batch. Every epoch is a new
    permutation; the batch that holds the end of one and the start of the next takes no feature
    twice. With "group_by_length" up to 50 batches of an epoch at a time are sorted by length and
    cut into batches, whose order is then shuffled: like lengths waste little padding.

    Args:
        lengths: int64 (N,), positions of each feature.
        num_steps: The number of steps of the run.
        global_batch: Features of a step.
        seed: The seed of the permutations.
        strategy: One of `STRATEGIES`.

    Returns:
        int64 (num_steps * global_batch,), numbers from 0 to N - 1; a longer run starts with the
        order of a shorter one.
    """
    if strategy not in STRATEGIES:
        raise InputError(
            f"train_sampling_strategy is '{strategy}'; allowed: {', '.join(STRATEGIES)}"
        )

    size = len(lengths)
    if size == 0:
        raise InputError("no training example is left; the log says what was dropped, and why")

    num_samples = num_steps * global_batch
    num_epochs = -(-num_samples // size)
    if strategy == "sequential":
        return np.tile(np.arange(size), num_epochs)[:num_samples]

    orders: list[np.ndarray] = []
    for epoch in range(num_epochs):
        order = np.random.default_rng([seed, epoch]).permutation(size)
        # The first batch that lies in this epoch alone, and the end of the last one.
        begin = -(epoch * size) % global_batch
        end = size - (epoch + 1) * size % global_batch
        if epoch > 0 and begin > 0 and global_batch <= size:
            batch_so_far = orders[-1][begin - global_batch :]
            _keep_out(order, batch_so_far, begin)
        if strategy == "group_by_length" and begin < end:
            order[begin:end] = _group(order[begin:end], lengths, global_batch, [seed, epoch])
        orders.append(order)

    return np.concatenate(orders)[:num_samples]


def _keep_out(order: np.ndarray, features: np.ndarray, count: int) -> None:
    """Move features out of the first `count` numbers of an order.

    Each is swapped with the first later number that is none of them.
    """
    is_feature = np.isin(order, features)
    wrong = np.flatnonzero(is_feature[:count])
    free = count + np.flatnonzero(~is_feature[count:])[: len(wrong)]
    order[wrong], order[free] = order[free], order[wrong]


def _group(
    order: np.ndarray, lengths: np.ndarray, global_batch: int, seed: list[int]
) -> np.ndarray:
    """Return batches of like length within chunks of up to `GROUPED_BATCHES`, in random order."""
    rng = np.random.default_rng([*seed, 1])
    batches = order.reshape(-1, global_batch)
    num_chunks = -(-len(batches) // GROUPED_BATCHES)
    grouped = []
    for chunk in np.array_split(batches, num_chunks):
        features = chunk.ravel()
        by_length = np.argsort(-lengths[features], kind="stable")
        sorted_batches = features[by_length].reshape(-1, global_batch)
        grouped.append(rng.permutation(sorted_batches).ravel())

    return np.concatenate(grouped)
