"""A run's samples: the order, and a step's samples however they are split and however late a run
resumes.
"""

import numpy as np
import pytest
from torch.utils.data import DataLoader, Dataset

from bert_recipes.data.order import EpochShuffle, ResumableBatchSampler, epoch_order
from bert_recipes.errors import InputError


class Growing:
    """Epoch e has 10 + e pairs."""

    def num_pairs(self, epoch):
        return 10 + epoch


def test_every_pair_of_every_epoch_comes_once_and_shuffled():
    order = EpochShuffle(Growing(), 33, seed=1)
    keys = order.keys(0, order.num_samples)

    assert len(keys) == 33

    for epoch, size in ((0, 10), (1, 11), (2, 12)):
        indices = [index for number, index in keys if number == epoch]
        assert sorted(indices) == list(range(size))
        assert indices != list(range(size))


def test_any_samples_can_be_read_in_any_order():
    keys = EpochShuffle(Growing(), 1000, seed=7).keys(0, 60)
    order = EpochShuffle(Growing(), 1000, seed=7)
    for begin, end in ((40, 60), (0, 5), (9, 12), (20, 34), (33, 33), (0, 60)):
        assert order.keys(begin, end) == keys[begin:end]


def test_only_the_epoch_that_is_read_is_shuffled(monkeypatch):
    """A run that goes on late does not go through the epochs before."""
    shuffled = []

    def counted(seed, epoch, num_pairs):
        shuffled.append(epoch)
        return epoch_order(seed, epoch, num_pairs)

    monkeypatch.setattr("bert_recipes.data.order.epoch_order", counted)
    order = EpochShuffle(Growing(), 10**6, seed=1)
    (key,) = order.keys(5000, 5001)

    assert shuffled == [key[0]]
    assert order.epoch == key[0] > 80


def test_the_next_epoch_is_built_ahead_once_and_none_after_the_last():
    built = []
    order = EpochShuffle(Growing(), 33, seed=1, build_ahead=built.append)

    order.keys(0, 4)
    assert built == [1]

    order.keys(4, 10)
    order.keys(10, 12)
    assert built == [1, 2]

    order.keys(12, 33)
    assert built == [1, 2]


def test_order_depends_on_seed_and_epoch():
    orders = [epoch_order(*key, 50).tolist() for key in ((1, 0), (1, 1), (2, 0), (1, 0))]
    assert orders[0] == orders[3]
    assert orders[0] not in orders[1:3]


def test_no_pairs_is_an_error_not_an_endless_loop():
    class Empty:
        def num_pairs(self, epoch):
            return 0

    with pytest.raises(InputError, match="no pairs"):
        EpochShuffle(Empty(), 5, seed=0).keys(0, 1)


GLOBAL_BATCH, STEPS = 12, 5


def micro_batches(first_samples=None, **settings):
    """Sample k is k; `first_samples` gets the first of each call."""

    def keys(begin, end):
        if first_samples is not None:
            first_samples.append(begin)
        return list(range(begin, end))

    return ResumableBatchSampler(keys, GLOBAL_BATCH * STEPS, **settings)


@pytest.mark.parametrize(("processes", "batch"), [(1, 12), (1, 3), (2, 2), (3, 4), (4, 1)])
def test_a_step_has_its_samples_whatever_the_split(processes, batch):
    accumulation = GLOBAL_BATCH // (processes * batch)
    samples = []
    for rank in range(processes):
        batches = micro_batches(batch_size=batch, num_processes=processes, process_index=rank)
        samples.append(np.reshape(list(batches), (STEPS, accumulation * batch)))
    by_step = np.sort(np.concatenate(samples, axis=1), axis=1)

    assert np.array_equal(by_step, np.arange(STEPS * GLOBAL_BATCH).reshape(STEPS, -1))


@pytest.mark.parametrize("rank", [0, 1])
def test_batches_that_are_done_are_stepped_over_and_not_read(rank):
    settings = {"batch_size": 3, "num_processes": 2, "process_index": rank}
    first_samples = []
    resumed = list(micro_batches(first_samples, **settings, skipped=4))

    assert resumed == [[]] * 4 + list(micro_batches(**settings))[4:]
    assert min(first_samples) >= 4 * 6


def test_the_trainers_way_of_stepping_over_reads_no_sample():
    from accelerate import skip_first_batches

    class Squares(Dataset):
        def __getitem__(self, key):
            assert key >= 24
            return key * key

    sampler = micro_batches(batch_size=12, skipped=2)
    loader = DataLoader(Squares(), batch_sampler=sampler, collate_fn=list)
    batches = list(skip_first_batches(loader, 2))

    assert np.array_equal(batches, np.arange(24, 60).reshape(3, 12) ** 2)
