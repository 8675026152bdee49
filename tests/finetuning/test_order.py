"""The order of a fine-tuning run: every example once an epoch, like lengths together."""

import numpy as np
import pytest

from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import FineTuningArguments
from bert_recipes.finetuning.order import num_training_steps, training_order


LENGTHS = np.random.default_rng(0).integers(5, 120, 1000)


@pytest.mark.parametrize("strategy", ["group_by_length", "random", "sequential"])
@pytest.mark.parametrize("num_features", [635, 33, 17, 16, 5])
def test_an_epoch_sees_every_example_once_and_no_batch_one_twice(strategy, num_features):
    lengths = LENGTHS[:num_features]
    order = training_order(lengths, num_steps=400, global_batch=16, seed=1, strategy=strategy)

    assert len(order) == 6400

    for start in range(0, 6400 - num_features, num_features):
        assert sorted(order[start : start + num_features]) == list(range(num_features))
    if num_features >= 16 and strategy != "sequential":
        assert all(len(set(batch)) == 16 for batch in order.reshape(-1, 16).tolist())


def test_batches_of_like_length_waste_little_padding():
    def padding(strategy):
        order = training_order(LENGTHS, num_steps=125, global_batch=8, seed=1, strategy=strategy)
        batches = LENGTHS[order.reshape(-1, 8)]
        return 1 - batches.sum() / (batches.max(axis=1) * 8).sum()

    assert padding("group_by_length") < 0.05 < 0.3 < padding("random")


def test_lengths_do_not_come_in_order():
    order = training_order(LENGTHS, num_steps=125, global_batch=8, seed=1)
    longest = LENGTHS[order.reshape(-1, 8)].max(axis=1)
    assert abs(np.corrcoef(np.arange(125), longest)[0, 1]) < 0.3


@pytest.mark.parametrize("steps", [1, 119, 126])
@pytest.mark.parametrize("strategy", ["group_by_length", "random"])
def test_the_order_depends_on_the_seed_and_a_longer_run_starts_alike(steps, strategy):
    def order(steps, seed=1):
        settings = {"global_batch": 8, "seed": seed, "strategy": strategy}
        return training_order(LENGTHS, num_steps=steps, **settings)

    assert not np.array_equal(order(steps), order(steps, seed=2))
    assert np.array_equal(order(steps), order(400)[: steps * 8])


def test_steps_are_those_of_the_original():
    """google-research/bert run_classifier.py: int(len(train_examples) / train_batch_size *
    num_train_epochs).
    """
    assert num_training_steps(3668, 32, 3.0) == 343
    assert num_training_steps(5, 32, 1.0) == 1


def test_a_strategy_that_a_fixed_order_cannot_serve_is_refused(tmp_path):
    with pytest.raises(InputError, match="allowed: group_by_length, random, sequential"):
        FineTuningArguments(output_dir=str(tmp_path), train_sampling_strategy="batch_rebalance")

    with pytest.raises(InputError, match="no training example is left"):
        training_order(LENGTHS[:0], num_steps=1, global_batch=8, seed=1)
