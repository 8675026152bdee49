"""The order in which a fine-tuning run sees its features."""

import math

import numpy as np

from bert_recipes.errors import InputError


# HF's names for `train_sampling_strategy` that a fixed order can serve.
STRATEGIES = ("group_by_length", "random", "sequential")
# As stock `LengthGroupedSampler`: long enough that batches of like length are found, short enough
# to stay random.
GROUPED_BATCHES = 50


def num_training_steps(num_features: int, global_batch: int, num_epochs: float) -> int:
    """Return the optimizer steps of a run.

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
    size = len(lengths)
    if size == 0:
        raise InputError("no training example is left; the log says what was dropped, and why")

    num_samples = num_steps * global_batch
    num_epochs = math.ceil(num_samples / size)
    if strategy == "sequential":
        return np.tile(np.arange(size), num_epochs)[:num_samples]

    orders: list[np.ndarray] = []
    for epoch in range(num_epochs):
        order = np.random.default_rng([seed, epoch]).permutation(size)
        # The first samples complete the batch that the epoch before has begun; the last ones begin
        # one for the epoch behind. Between them are whole batches.
        num_samples_before = epoch * size
        begin = -num_samples_before % global_batch
        num_left_over = (num_samples_before + size) % global_batch
        end = size - num_left_over
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
    num_chunks = math.ceil(len(batches) / GROUPED_BATCHES)
    grouped = []
    for chunk in np.array_split(batches, num_chunks):
        features = chunk.ravel()
        by_length = np.argsort(-lengths[features], kind="stable")
        sorted_batches = features[by_length].reshape(-1, global_batch)
        grouped.append(rng.permutation(sorted_batches).ravel())

    return np.concatenate(grouped)
