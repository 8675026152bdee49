"""Packing a padded batch, and back."""

import itertools

import pytest
import torch
from packed_models import LENGTHS, make_batch

from bert_recipes.models.padding_free import (
    GROUP_COST,
    LENGTH_STEP,
    LIKE_LENGTH,
    ROW_STEP,
    make_layout,
)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_packing_and_unpacking(lengths):
    batch = make_batch(lengths)
    mask = batch["attention_mask"]
    layout = make_layout(mask)
    packed = layout.pack(batch["input_ids"])
    assert layout.num_tokens == sum(lengths)
    assert len(packed) == sum(lengths) or len(packed) % ROW_STEP == 0
    assert torch.equal(
        packed[layout.num_tokens :], packed[:1].expand(len(packed) - layout.num_tokens)
    )
    assert torch.equal(layout.unpack(packed), batch["input_ids"])
    assert torch.equal(packed[layout.first_rows], batch["input_ids"][:, 0])
    places = mask.flatten().nonzero()[:, 0]
    assert torch.equal(packed[layout.rows_of(places)], batch["input_ids"].flatten()[places])
    assert [group.start for group in layout.groups[1:]] == [
        group.end for group in layout.groups[:-1]
    ]
    for group in layout.groups:
        sizes = group.offsets.diff()
        assert int(group.offsets[-1]) == group.end - group.start
        longest = int(sizes.max())
        assert longest <= group.length < longest + LENGTH_STEP


@pytest.mark.parametrize(
    ("heads", "expected"), [(1, [2, 3]), (12, [2, 1, 2]), (1000, [2, 1, 1, 1])]
)
def test_like_lengths_are_computed_together_where_that_pays(heads, expected):
    lengths = torch.tensor([300, 512, 3, 100, 500])
    mask = (torch.arange(512) < lengths[:, None]).long()
    groups = make_layout(mask, heads=heads).groups
    assert [len(group.offsets) - 1 for group in groups] == expected
    for longer, group in itertools.pairwise(groups):
        spared = ((longer.offsets.diff()[0]) ** 2 - group.offsets.diff() ** 2).sum() * heads
        assert spared > GROUP_COST
    for group in make_layout(mask, heads=1000).groups:
        sizes = group.offsets.diff()
        assert int(sizes.min()) >= LIKE_LENGTH * int(sizes.max())
