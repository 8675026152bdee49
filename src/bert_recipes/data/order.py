"""The order in which a run sees its samples: one fixed sequence, cut into the micro-batches of each
process.
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
        """Pairs of an epoch; may differ from epoch to epoch."""


def epoch_order(seed: int, epoch: int, num_pairs: int) -> np.ndarray:
    """The shuffled order of an epoch: int64 (num_pairs,), a pure function of its arguments."""
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(num_pairs)


class EpochShuffle:
    """The keys (epoch, index) of a complete pre-training run, one after the other.

    The run is one sequence of samples that does not know about batches: step s trains on samples [s
    * G, (s + 1) * G) for a global batch of G, however G is split over micro-batches and processes.
    """

    def __init__(self, dataset: EpochedDataset, num_samples: int, seed: int) -> None:
        self.dataset = dataset
        self.num_samples = num_samples
        self.seed = seed
        self.epoch = 0  # that was read last
        self._start = 0  # the position of its first sample
        self._order: np.ndarray | None = None

    def keys(self, begin: int, end: int) -> list[tuple[int, int]]:
        """(epoch, index), Python integers, of the samples from position `begin` to `end`
        (excluded).

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
        if position < self._start:
            self.epoch, self._start, self._order = 0, 0, None
        while position >= self._start + (num_pairs := self.dataset.num_pairs(self.epoch)):
            if num_pairs == 0:
                raise InputError("the training data holds no pairs")
            self.epoch, self._start, self._order = self.epoch + 1, self._start + num_pairs, None
        if self._order is None:
            self._order = epoch_order(self.seed, self.epoch, num_pairs)
        return self._order


class ResumableBatchSampler(Sampler[list[Any]]):
    """The micro-batches of one process: step s of a run takes the samples [s * G, (s + 1) * G) of
    its order.

    They do not depend on how the global batch G is split over processes and micro-batches, and any
    of them is found at once: a run that resumes at step 500,000 starts as fast as one that resumes
    at step 5.

    Args:
        keys: What `dataset[key]` takes, for the samples from one number to another one (excluded).
        num_samples: Of the whole run, a multiple of the global batch.
        batch_size: Samples per micro-batch and process.
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
        self.keys, self.num_samples = keys, num_samples
        self.batch_size = batch_size
        self.num_processes = num_processes
        self.process_index = process_index
        self.first = first
        self.skipped = max(first, skipped)

    def __len__(self) -> int:
        return self.first + self.num_samples // (self.batch_size * self.num_processes)

    def __iter__(self) -> Iterator[list[Any]]:
        yield from itertools.repeat([], self.skipped)
        for number in range(self.skipped, len(self)):
            begin = (
                (number - self.first) * self.num_processes + self.process_index
            ) * self.batch_size
            yield self.keys(begin, begin + self.batch_size)


# HF's names for `train_sampling_strategy` that a fixed order can serve.
STRATEGIES = ("group_by_length", "random", "sequential")
# As stock `LengthGroupedSampler`: long enough that batches of like length are found, short enough
# to stay random.
GROUPED_BATCHES = 50


def num_training_steps(num_features: int, global_batch: int, num_epochs: float) -> int:
    """Optimiser steps of a run; a batch may hold the end of one epoch and the start of the next.

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
    """Feature numbers in the order of training; step s takes [s * global_batch, (s + 1) *
    global_batch).

    Depends on nothing but its arguments: not on processes, workers or the split of the batch. Every
    epoch is a new permutation; the batch that holds the end of one and the start of the next takes
    no feature twice. With "group_by_length" up to 50 batches of an epoch at a time are sorted by
    length and cut into batches, whose order is
    then shuffled: like lengths waste little padding.

    Args:
        lengths: int (N,), positions of each feature.

    Returns:
        int64 (num_steps * global_batch,), numbers from 0 to N - 1; a longer run starts with the
        order of a shorter one.
    """
    if strategy not in STRATEGIES:
        raise InputError(
            f"train_sampling_strategy is '{strategy}'; allowed: {', '.join(STRATEGIES)}"
        )
    size, total = len(lengths), num_steps * global_batch
    if not size:
        raise InputError("no training example is left; the log says what was dropped, and why")
    epochs = -(-total // size)
    if strategy == "sequential":
        return np.tile(np.arange(size), epochs)[:total]
    parts: list[np.ndarray] = []
    for epoch in range(epochs):
        order = np.random.default_rng([seed, epoch]).permutation(size)
        # The first batch that lies in this epoch alone, and the end of the last one.
        first, end = -(epoch * size) % global_batch, size - (epoch + 1) * size % global_batch
        if epoch > 0 and first > 0 and global_batch <= size:
            _keep_out(order, parts[-1][first - global_batch :], first)
        if strategy == "group_by_length" and first < end:
            order[first:end] = _group(order[first:end], lengths, global_batch, [seed, epoch])
        parts.append(order)
    return np.concatenate(parts)[:total]


def _keep_out(order: np.ndarray, taken: np.ndarray, count: int) -> None:
    """Move what is in `taken` out of the first `count` numbers, by swapping it with the first later
    ones that are not.
    """
    is_taken = np.isin(order, taken)
    wrong = np.flatnonzero(is_taken[:count])
    free = count + np.flatnonzero(~is_taken[count:])[: len(wrong)]
    order[wrong], order[free] = order[free], order[wrong]


def _group(part: np.ndarray, lengths: np.ndarray, global_batch: int, seed: list[int]) -> np.ndarray:
    """Whole batches of one epoch: of like length within chunks of up to `GROUPED_BATCHES`, in
    random order.
    """
    rng = np.random.default_rng([*seed, 1])
    batches = part.reshape(-1, global_batch)
    grouped = []
    for chunk in np.array_split(batches, -(-len(batches) // GROUPED_BATCHES)):
        numbers = chunk.ravel()
        ordered = numbers[np.argsort(-lengths[numbers], kind="stable")].reshape(-1, global_batch)
        grouped.append(rng.permutation(ordered).ravel())
    return np.concatenate(grouped)
