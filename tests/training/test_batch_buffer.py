"""Batches on their way to a GPU."""

import pytest
import torch

from bert_recipes.training.batch_buffer import PACKING, DeviceCollator


IDS = torch.randint(5, 60, (2, 6))
TOKENS_THEN_PADS = [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("mask", "has_packing"),
    [
        (None, True),
        (TOKENS_THEN_PADS, True),
        ([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]], False),  # pads on the left
        ([[1, 1, 0, 1, 1, 0], [1, 1, 1, 1, 1, 1]], False),  # pads between tokens
        ([[0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]], False),  # no token at all
        ([TOKENS_THEN_PADS], False),  # for each position a mask of its own
    ],
)
def test_batches_of_rows_that_begin_with_their_tokens_are_packed(mask, has_packing):
    """The encoder looks at the others when it is called, and gives them to stock's layers."""
    batch = {"input_ids": IDS}
    if mask is not None:
        batch["attention_mask"] = torch.tensor(mask)
    collate = DeviceCollator(lambda features: batch, True, False, False)
    assert (PACKING in collate([])) is has_packing
