"""The order in which a fine-tuning run sees its examples: one fixed sequence for the whole run."""

from __future__ import annotations

import numpy as np

from bert_recipes.errors import InputError


# HF's names for `train_sampling_strategy` that a fixed order can serve.
STRATEGIES = ("group_by_length", "random", "sequential")
# As stock `LengthGroupedSampler`: long enough that batches of like length are found, short enough to stay random.
GROUPED_BATCHES = 50


def num_training_steps(num_features: int, global_batch: int, num_epochs: float) -> int:
    """Optimiser steps of a run; a batch may hold the end of one epoch and the start of the next.

    Source: google-research/bert run_classifier.py: int(len(train_examples) / train_batch_size * num_train_epochs).
    """
    return max(1, int(num_features / global_batch * num_epochs))


def training_order(
    lengths: np.ndarray, *, num_steps: int, global_batch: int, seed: int, strategy: str = "group_by_length"
) -> np.ndarray:
    """Feature numbers in the order of training; step s takes [s * global_batch, (s + 1) * global_batch).

    Depends on nothing but its arguments: not on processes, workers or the split of the batch. Every epoch is a new
    permutation; the batch that holds the end of one and the start of the next takes no feature twice. With
    "group_by_length" up to 50 batches of an epoch at a time are sorted by length and cut into batches, whose order is
    then shuffled: like lengths waste little padding.

    Args:
        lengths: int (N,), positions of each feature.
        num_steps: Optimiser steps of the run.
        global_batch: Examples of a step.
        seed: Of the permutations.
        strategy: One of `STRATEGIES`.

    Returns:
        int64 (num_steps * global_batch,), numbers from 0 to N - 1; a longer run starts with the order of a shorter one.
    """
    if strategy not in STRATEGIES:
        raise InputError(f"train_sampling_strategy is '{strategy}'; allowed: {', '.join(STRATEGIES)}")
    size, total = len(lengths), num_steps * global_batch
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
    """Move what is in `taken` out of the first `count` numbers, by swapping it with the first later ones that are not."""
    is_taken = np.isin(order, taken)
    wrong = np.flatnonzero(is_taken[:count])
    free = count + np.flatnonzero(~is_taken[count:])[: len(wrong)]
    order[wrong], order[free] = order[free], order[wrong]


def _group(part: np.ndarray, lengths: np.ndarray, global_batch: int, seed: list[int]) -> np.ndarray:
    """Whole batches of one epoch: of like length within chunks of up to `GROUPED_BATCHES`, in random order."""
    rng = np.random.default_rng([*seed, 1])
    batches = part.reshape(-1, global_batch)
    grouped = []
    for chunk in np.array_split(batches, -(-len(batches) // GROUPED_BATCHES)):
        numbers = chunk.ravel()
        ordered = numbers[np.argsort(-lengths[numbers], kind="stable")].reshape(-1, global_batch)
        grouped.append(rng.permutation(ordered).ravel())
    return np.concatenate(grouped)


class FixedOrder:
    """Serves a `training_order`.

    Args:
        order: int64 (samples,).
    """

    def __init__(self, order: np.ndarray) -> None:
        self.order = order

    def __len__(self) -> int:
        return len(self.order)

    def keys(self, begin: int, end: int) -> list[int]:
        """The numbers from position `begin` to `end` (excluded)."""
        return self.order[begin:end].tolist()
