import pytest

from bert_recipes.data.order import PreTrainingOrder, epoch_order
from bert_recipes.errors import InputError


class Growing:
    """Epoch e has 10 + e pairs."""

    def num_pairs(self, epoch):
        return 10 + epoch


def test_every_pair_of_every_epoch_comes_once_and_shuffled():
    order = PreTrainingOrder(Growing(), 33, seed=1)
    keys = order.keys(0, len(order))
    assert len(keys) == 33
    for epoch, size in ((0, 10), (1, 11), (2, 12)):
        indices = [index for number, index in keys if number == epoch]
        assert sorted(indices) == list(range(size))
        assert indices != list(range(size))


def test_any_part_can_be_asked_for_in_any_order():
    whole = PreTrainingOrder(Growing(), 1000, seed=7).keys(0, 60)
    order = PreTrainingOrder(Growing(), 1000, seed=7)
    for begin, end in ((40, 60), (0, 5), (9, 12), (20, 34), (33, 33), (0, 60)):
        assert order.keys(begin, end) == whole[begin:end]


def test_only_the_epoch_that_is_read_is_shuffled(monkeypatch):
    """A run that goes on late does not go through the epochs before."""
    shuffled = []

    def counted(seed, epoch, num_pairs):
        shuffled.append(epoch)
        return epoch_order(seed, epoch, num_pairs)

    monkeypatch.setattr("bert_recipes.data.order.epoch_order", counted)
    order = PreTrainingOrder(Growing(), 10**6, seed=1)
    (key,) = order.keys(5000, 5001)
    assert shuffled == [key[0]]
    assert order.epoch == key[0] > 80


def test_order_depends_on_seed_and_epoch():
    assert epoch_order(1, 0, 50).tolist() == epoch_order(1, 0, 50).tolist()
    assert epoch_order(1, 0, 50).tolist() != epoch_order(1, 1, 50).tolist()
    assert epoch_order(1, 0, 50).tolist() != epoch_order(2, 0, 50).tolist()


def test_no_pairs_is_an_error_not_an_endless_loop():
    class Empty:
        def num_pairs(self, epoch):
            return 0

    with pytest.raises(InputError, match="no pairs"):
        PreTrainingOrder(Empty(), 5, seed=0).keys(0, 1)
