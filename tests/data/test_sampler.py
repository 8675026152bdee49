from itertools import islice

import pytest

from bert_recipes.data.sampler import PreTrainingSampler, epoch_order
from bert_recipes.errors import InputError


class Growing:
    """Epoch e has 10 + e pairs."""

    def num_pairs(self, epoch):
        return 10 + epoch


def test_every_pair_of_every_epoch_comes_once_and_shuffled():
    keys = list(PreTrainingSampler(Growing(), 33, seed=1))
    assert len(keys) == 33
    for epoch, size in ((0, 10), (1, 11), (2, 12)):
        indices = [index for number, index in keys if number == epoch]
        assert sorted(indices) == list(range(size))
        assert indices != list(range(size))


def test_the_run_may_end_anywhere():
    whole = list(islice(PreTrainingSampler(Growing(), 1000, seed=7), 25))
    assert list(PreTrainingSampler(Growing(), 25, seed=7)) == whole


def test_order_depends_on_seed_and_epoch():
    assert epoch_order(1, 0, 50).tolist() == epoch_order(1, 0, 50).tolist()
    assert epoch_order(1, 0, 50).tolist() != epoch_order(1, 1, 50).tolist()
    assert epoch_order(1, 0, 50).tolist() != epoch_order(2, 0, 50).tolist()


def test_no_pairs_is_an_error_not_an_endless_loop():
    class Empty:
        def num_pairs(self, epoch):
            return 0

    with pytest.raises(InputError, match="no pairs"):
        next(iter(PreTrainingSampler(Empty(), 5, seed=0)))
