"""Packing: the real tokens of a padded batch as rows, and back.

Legend: B sequences, S positions, T packed rows.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import NotRequired, TypedDict

import torch
from torch.nn import functional as F

from bert_recipes.errors import InputError


# The label of a position where nothing is predicted.
IGNORE_INDEX = -100
# A group has sequences of at least this share of its longest one: attention computes at most
# (4/3)^2 times the scores that it needs.
MIN_LENGTH_FRACTION = 0.75
# Another group takes as long as this number of attention scores (about half a millisecond a layer,
# forward and backward).
GROUP_COST = 250_000
# Rows of a batch with pads, and positions of a group, are rounded up to a multiple of these:
# libraries prepare matrix products for every new shape, which takes longer than a small product
# itself, and remember earlier shapes.
ROW_STEP = 64
LENGTH_STEP = 16
# The longest sequence for attention over offsets is rounded up to a multiple of this: layers are
# compiled again for another length.
FLASH_LENGTH_STEP = 128
LABEL_OF_PAD = "a label stands where attention_mask is 0; labels of pads are -100"


class Packing(TypedDict):
    """Hold where the real tokens of a batch are, and the predicted ones (`make_packing`)."""

    places: torch.Tensor  # int64 (T,), the flat position in (B * S) of each real token
    offsets: torch.Tensor  # int32 (B + 1,), the first row of each sequence, and T
    predicted: NotRequired[torch.Tensor]  # int64 (M,), the rows whose token is predicted
    targets: NotRequired[torch.Tensor]  # int64 (M,), what these tokens are


@dataclass(frozen=True)
class LengthGroup:
    """Hold G sequences of similar length with successive rows, `start` to `end` (excluded)."""

    start: int
    end: int
    offsets: torch.Tensor  # int64 (G + 1,), the first row of each sequence counted from `start`
    num_keys: torch.Tensor  # int64 (G,), the number of first rows each sequence attends to
    length: int  # positions of the longest sequence, rounded up to a multiple of `LENGTH_STEP`


@dataclass(frozen=True)
class RowOffsets:
    """Hold the first packed row of each sequence, for attention over offsets.

    They are what flash kernels call `cu_seqlens`. See `packed_attention.attend`.
    """

    query_offsets: torch.Tensor  # int32 (B + 1,), the first row of each sequence, and T
    # int64 (K,), the rows that are attended to; None: all. Only question answering has pads among
    # its rows.
    key_rows: torch.Tensor | None
    key_offsets: torch.Tensor  # int32 (B + 1,), the same among the rows that are attended to
    max_length: int  # rows of a sequence, at most


@dataclass(frozen=True)
class PackedLayout:
    """Hold the packed row of each real token of a padded batch (B, S)."""

    shape: tuple[int, int]  # (B, S)
    # int64 (T,), the flat position in (B * S) of each row; None where there are no pads and nothing
    # moves. Rows after the real tokens, up to a multiple of `ROW_STEP`, repeat the first: their
    # results are not read.
    places: torch.Tensor | None
    num_tokens: int  # real tokens, the first of the T rows
    first_rows: torch.Tensor  # int64 (B,), the row of each sequence's first token
    groups: tuple[LengthGroup, ...] = ()  # all real tokens; empty with `offsets`
    offsets: RowOffsets | None = None

    @property
    def keeps_batch_order(self) -> bool:
        """Return whether the rows are the real tokens in the order of the padded batch."""
        return self.offsets is not None and self.places is not None

    def pack(self, padded: torch.Tensor) -> torch.Tensor:
        """Return the rows of a padded batch, (B, S, ...) -> (T, ...)."""
        flat = padded.flatten(0, 1)
        return flat if self.places is None else flat[self.places]

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        """Return the padded batch of rows with zeros at the pads, (T, ...) -> (B, S, ...)."""
        batch, size = self.shape
        features = packed.shape[1:]
        if self.places is None:
            return packed.view(batch, size, *features)
        pads = packed.new_zeros((batch * size, *features))
        token_places = self.places[: self.num_tokens]
        flat = pads.index_copy(0, token_places, packed[: self.num_tokens])
        return flat.view(batch, size, *features)

    def places_of(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the flat positions in (B * S) of rows of real tokens, int64."""
        return rows if self.places is None else self.places[rows]

    def rows_of(self, places: torch.Tensor) -> torch.Tensor:
        """Return the rows of flat positions in (B * S) of real tokens, int64."""
        if self.places is None:
            return places
        batch, size = self.shape
        row_of_place = places.new_full((batch * size,), -1)
        token_places = self.places[: self.num_tokens]
        row_of_place[token_places] = torch.arange(self.num_tokens, device=places.device)
        rows = row_of_place[places]
        if bool((rows < 0).any()):
            raise InputError(LABEL_OF_PAD)
        return rows


def round_up(number: int, step: int) -> int:
    """Return the smallest multiple of `step` that is at least `number`."""
    return math.ceil(number / step) * step


def padded_layout(
    shape: tuple[int, int], device: torch.device, groups: tuple[LengthGroup, ...] = ()
) -> PackedLayout:
    """Return the layout of a batch in which every position is a row.

    Args:
        shape: (B, S).
        device: The device of the batch.
        groups: For attention in groups.
    """
    batch, size = shape
    return PackedLayout(
        shape=shape,
        places=None,
        num_tokens=batch * size,
        first_rows=torch.arange(batch, device=device) * size,
        groups=groups,
    )


def grouped_layout(
    attention_mask: torch.Tensor, *, heads: int = 1, computes_pads: bool = False
) -> PackedLayout:
    """Return the layout of a batch for attention in groups of similar length.

    Args:
        attention_mask: (B, S) of any type, 0 = pad. Every sequence has a token.
        heads: The number of attention heads.
        computes_pads: Pads are rows too, to which no row attends; they follow the tokens of their
            sequence.
    """
    batch, size = attention_mask.shape
    device = attention_mask.device
    is_token = attention_mask != 0
    lengths = is_token.sum(dim=1)
    if computes_pads or int(lengths.min()) == size:
        group = LengthGroup(
            start=0,
            end=batch * size,
            offsets=torch.arange(batch + 1, device=device) * size,
            num_keys=lengths,
            length=size,
        )
        return padded_layout((batch, size), device, (group,))

    lengths, order = lengths.sort(descending=True, stable=True)
    sorted_places = is_token[order].flatten().nonzero()[:, 0]
    sequences = order[sorted_places // size]
    positions = sorted_places % size
    places = sequences * size + positions
    num_tokens = len(places)
    num_filling = round_up(num_tokens, ROW_STEP) - num_tokens
    filling = places[:1].expand(num_filling)

    first_rows = torch.empty_like(lengths)
    first_rows[order] = lengths.cumsum(0) - lengths
    return PackedLayout(
        shape=(batch, size),
        places=torch.cat([places, filling]),
        num_tokens=num_tokens,
        first_rows=first_rows,
        groups=_length_groups(lengths, heads),
    )


def _length_groups(lengths: torch.Tensor, heads: int) -> tuple[LengthGroup, ...]:
    """Return the groups of sequences with descending lengths, int64 (B,)."""
    groups = []
    row = 0
    for first, end in _cut_by_length(lengths.tolist(), heads):
        num_keys = lengths[first:end]
        end_row = row + int(num_keys.sum())
        group = LengthGroup(
            start=row,
            end=end_row,
            offsets=F.pad(num_keys.cumsum(0), (1, 0)),
            num_keys=num_keys,
            length=round_up(int(num_keys[0]), LENGTH_STEP),
        )
        groups.append(group)
        row = end_row
    return tuple(groups)


def _cut_by_length(lengths: list[int], heads: int) -> list[tuple[int, int]]:
    """Cut descending lengths into groups (start, end), longest first, where that costs less time.

    A group begins where a length is no longer like that of the group's longest sequence. From the
    shortest on, a group joins the one of longer sequences where their padding costs less than a
    group does.
    """
    starts = [0]
    for number, length in enumerate(lengths):
        if length < MIN_LENGTH_FRACTION * lengths[starts[-1]]:
            starts.append(number)

    groups = []
    end = len(lengths)
    for start, longer_start in itertools.pairwise(reversed(starts)):
        longest = lengths[longer_start]
        num_wasted = sum(longest**2 - length**2 for length in lengths[start:end])
        if heads * num_wasted > GROUP_COST:
            groups.append((start, end))
            end = start
    groups.append((0, end))
    return groups[::-1]


def make_packing(attention_mask: torch.Tensor, labels: torch.Tensor | None = None) -> Packing:
    """Return the packing of a batch for attention over offsets, with labels also what is predicted.

    Finding the tokens makes a GPU wait, so the process that collates a batch does it, on the CPU.

    Args:
        attention_mask: (B, S) of any type, 0 = pad.
        labels: int64 (B, S), -100 where nothing is predicted.
    """
    is_token = attention_mask.flatten() != 0
    lengths = is_token.view(attention_mask.shape).sum(dim=1)
    packing: Packing = {
        "places": is_token.nonzero()[:, 0],
        "offsets": F.pad(lengths.cumsum(0), (1, 0)).int(),
    }
    if labels is not None:
        flat_labels = labels.flatten()
        predicted_places = (flat_labels != IGNORE_INDEX).nonzero()[:, 0]
        if not bool(is_token[predicted_places].all()):
            raise InputError(LABEL_OF_PAD)
        row_of_place = is_token.cumsum(0) - 1
        packing["predicted"] = row_of_place[predicted_places]
        packing["targets"] = flat_labels[predicted_places]
    return packing


def offset_layout(
    packing: Packing, shape: tuple[int, int], *, computes_pads: bool = False
) -> PackedLayout:
    """Return the layout of a batch by its packing; nothing waits for the device.

    Args:
        packing: The packing of the batch, on the model's device.
        shape: (B, S).
        computes_pads: Pads are rows too, to which no row attends.
    """
    batch, size = shape
    places = packing["places"]
    offsets = packing["offsets"]
    max_length = round_up(size, FLASH_LENGTH_STEP)
    if computes_pads:
        first_rows = torch.arange(batch + 1, device=offsets.device) * size
        return PackedLayout(
            shape=shape,
            places=None,
            num_tokens=batch * size,
            first_rows=first_rows[:-1],
            offsets=RowOffsets(
                query_offsets=first_rows.int(),
                key_rows=places,
                key_offsets=offsets,
                max_length=max_length,
            ),
        )
    return PackedLayout(
        shape=shape,
        places=places,
        num_tokens=len(places),
        first_rows=offsets[:-1].long(),
        offsets=RowOffsets(
            query_offsets=offsets,
            key_rows=None,
            key_offsets=offsets,
            max_length=max_length,
        ),
    )
