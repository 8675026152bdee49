"""The order in which a fine-tuning run sees its examples: one fixed sequence for the whole run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

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
    permutation. With "group_by_length" 50 batches at a time are sorted by length and cut into batches, whose order is
    then shuffled: like lengths waste little padding.

    Args:
        lengths: int (N,), positions of each feature.
        num_steps: Optimiser steps of the run.
        global_batch: Examples of a step.
        seed: Of the permutations.
        strategy: One of `STRATEGIES`.

    Returns:
        int64 (num_steps * global_batch,), numbers from 0 to N - 1.

    Raises:
        InputError: Unknown strategy.
    """
    if strategy not in STRATEGIES:
        raise InputError(f"train_sampling_strategy is '{strategy}'; allowed: {', '.join(STRATEGIES)}")
    total = num_steps * global_batch
    epochs = -(-total // len(lengths))
    if strategy == "sequential":
        return np.tile(np.arange(len(lengths)), epochs)[:total]
    order = np.concatenate([np.random.default_rng([seed, epoch]).permutation(len(lengths)) for epoch in range(epochs)])
    order = order[:total]
    if strategy == "group_by_length":
        chunk = GROUPED_BATCHES * global_batch
        parts = [order[start : start + chunk] for start in range(0, total, chunk)]
        order = np.concatenate([_group(part, lengths, global_batch, [seed, n]) for n, part in enumerate(parts)])
    return order


def _group(part: np.ndarray, lengths: np.ndarray, global_batch: int, seed: list[int]) -> np.ndarray:
    """One chunk cut into batches of like length, in random order."""
    batches = part[np.argsort(-lengths[part], kind="stable")].reshape(-1, global_batch)
    return np.random.default_rng([*seed, 1]).permutation(batches).ravel()


class FixedOrder(Sampler[int]):
    """Serves a `training_order`.

    Args:
        order: int64 (samples,).
    """

    def __init__(self, order: np.ndarray) -> None:
        """Keep the order."""
        self.order = order

    def __len__(self) -> int:
        """Samples of the whole run."""
        return len(self.order)

    def __iter__(self) -> Iterator[int]:
        """The numbers in order."""
        yield from self.order.tolist()
