"""Packing a padded batch, and back."""

import itertools

import pytest
import torch
from packed_models import LENGTHS, make_batch

from bert_recipes.errors import InputError
from bert_recipes.models.padding_free import (
    GROUP_COST,
    LENGTH_STEP,
    MIN_LENGTH_FRACTION,
    ROW_STEP,
    grouped_layout,
    make_packing,
)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_packing_and_unpacking(lengths):
    batch = make_batch(lengths)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    layout = grouped_layout(mask)
    packed = layout.pack(ids)
    assert layout.num_tokens == sum(lengths)
    assert len(packed) == sum(lengths) or len(packed) % ROW_STEP == 0
    fillers = packed[layout.num_tokens :]
    assert torch.equal(fillers, packed[:1].expand(len(fillers)))
    assert torch.equal(layout.unpack(packed), ids)
    assert torch.equal(packed[layout.first_rows], ids[:, 0])
    places = mask.flatten().nonzero()[:, 0]
    assert torch.equal(packed[layout.rows_of(places)], ids.flatten()[places])

    for group, next_group in itertools.pairwise(layout.groups):
        assert next_group.start == group.end
    for group in layout.groups:
        assert int(group.offsets[-1]) == group.end - group.start
        longest = int(group.offsets.diff().max())
        assert longest <= group.length < longest + LENGTH_STEP


def test_a_label_of_a_pad_is_refused():
    batch = make_batch([3, 2])
    batch["labels"][1, 2] = 5
    with pytest.raises(InputError, match="labels of pads are -100"):
        make_packing(batch["attention_mask"], batch["labels"])


@pytest.mark.parametrize(
    ("heads", "group_sizes"), [(1, [2, 3]), (12, [2, 1, 2]), (1000, [2, 1, 1, 1])]
)
def test_like_lengths_are_computed_together_where_that_pays(heads, group_sizes):
    lengths = torch.tensor([300, 512, 3, 100, 500])
    mask = (torch.arange(512) < lengths[:, None]).long()
    sequences = [group.offsets.diff() for group in grouped_layout(mask, heads=heads).groups]
    assert [len(sizes) for sizes in sequences] == group_sizes
    for longer, shorter in itertools.pairwise(sequences):
        savings = (longer[0] ** 2 - shorter**2).sum() * heads
        assert savings > GROUP_COST
    if heads == 1000:
        assert all(sizes.min() >= MIN_LENGTH_FRACTION * sizes.max() for sizes in sequences)
