"""One packed row of real tokens for a padded batch, and back.

Legend: B sequences, S positions, T real tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from bert_recipes.errors import InputError


# The label of a position where nothing is predicted.
IGNORE_INDEX = -100
# Sequences of at least this share of a group's longest one are computed with it: at most (4/3)^2 of
# the attention is wasted.
LIKE_LENGTH = 0.75
# A group more takes as long as this number of attention scores (about half a millisecond a layer,
# forward and backward).
GROUP_COST = 250_000
# Rows of a batch with pads, and positions of a group, are rounded up to a multiple of these:
# products are prepared anew for every new shape, which takes longer than a small product itself,
# and are remembered for shapes seen before.
ROW_STEP, LENGTH_STEP = 64, 16
# Of the longest sequence for attention over offsets: layers are compiled anew for another one.
MAX_LENGTH_STEP = 128


@dataclass(frozen=True)
class LengthGroup:
    """Sequences of like length, whose rows `start` to `end` (excluded) follow each other."""

    start: int
    end: int
    offsets: (
        torch.Tensor
    )  # int64 (G + 1,), the rows of each of the G sequences, counted from `start`
    keys: torch.Tensor  # int64 (G,), how many of its rows each sequence attends to, its first ones
    length: int  # positions of the longest sequence, rounded up to a multiple of `LENGTH_STEP`


@dataclass(frozen=True)
class RowOffsets:
    """Where the sequences of a packed batch begin, for attention over offsets
    (`packed_attention.attend`).
    """

    rows: torch.Tensor  # int32 (B + 1,), the first row of each sequence, and T
    # int64 (K,), the rows that are attended to; None: all. Only question answering has pads among
    # its rows.
    key_rows: torch.Tensor | None
    keys: torch.Tensor  # int32 (B + 1,), as `rows`, counted over the rows that are attended to
    max_length: int  # rows of a sequence, at most


@dataclass(frozen=True)
class PackedLayout:
    """Where each real token of a padded batch (B, S) lies among the packed rows."""

    shape: tuple[int, int]  # (B, S)
    # int64 (T,), the flat position in (B * S) of each row; None where there are no pads and nothing
    # moves. Rows after the real tokens, up to a multiple of `ROW_STEP`, repeat the first: nothing
    # reads what comes of them.
    places: torch.Tensor | None
    num_tokens: int  # real tokens, the first of the T rows
    first_rows: torch.Tensor  # int64 (B,), the row of each sequence's first token
    groups: tuple[
        LengthGroup, ...
    ]  # together all real tokens; empty where attention goes by `offsets`
    offsets: RowOffsets | None = None

    def pack(self, padded: torch.Tensor) -> torch.Tensor:
        """(B, S, ...) -> (T, ...)."""
        flat = padded.flatten(0, 1)
        return flat if self.places is None else flat[self.places]

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        """(T, ...) -> (B, S, ...), zeros at the pads."""
        if self.places is None:
            return packed.view(*self.shape, *packed.shape[1:])
        flat = packed.new_zeros((self.shape[0] * self.shape[1], *packed.shape[1:]))
        real = self.places[: self.num_tokens]
        return flat.index_copy(0, real, packed[: self.num_tokens]).view(
            *self.shape, *packed.shape[1:]
        )

    def places_of(self, rows: torch.Tensor) -> torch.Tensor:
        """int64: the flat positions in the padded batch of rows of real tokens."""
        return rows if self.places is None else self.places[rows]

    def rows_of(self, places: torch.Tensor) -> torch.Tensor:
        """int64: the rows of flat positions of real tokens."""
        if self.places is None:
            return places
        rows = torch.full(
            (self.shape[0] * self.shape[1],), -1, dtype=torch.int64, device=places.device
        )
        rows[self.places[: self.num_tokens]] = torch.arange(self.num_tokens, device=places.device)
        found = rows[places]
        if bool((found < 0).any()):
            raise InputError("a label stands where attention_mask is 0; labels of pads are -100")
        return found


def make_layout(
    attention_mask: torch.Tensor | None,
    shape: tuple[int, int],
    device: torch.device,
    *,
    heads: int = 1,
    computes_pads: bool = False,
) -> PackedLayout:
    """Plan the packing of one batch.

    Args:
        attention_mask: (B, S) of any type, 0 = pad; None = no pads. Every sequence has a token.
        shape: (B, S).
        heads: Attention scores are computed so many times.
        computes_pads: Pads are rows too, which nobody attends to; they follow the tokens of their
            sequence.
    """
    batch, size = shape
    is_token = None if attention_mask is None else attention_mask != 0
    lengths = None if is_token is None else is_token.sum(dim=1)
    if lengths is None or computes_pads or int(lengths.min()) == size:
        offsets = torch.arange(batch + 1, device=device) * size
        keys = torch.full((batch,), size, device=device) if lengths is None else lengths
        group = LengthGroup(0, batch * size, offsets, keys, size)
        return PackedLayout(shape, None, batch * size, offsets[:-1], (group,))
    assert is_token is not None
    lengths, order = lengths.sort(descending=True, stable=True)
    places = is_token[order].flatten().nonzero()[:, 0]
    places = order[places // size] * size + places % size
    num_tokens = len(places)
    places = torch.cat([places, places[:1].expand(-num_tokens % ROW_STEP)])
    starts = lengths.cumsum(0) - lengths
    first_rows = torch.empty_like(starts)
    first_rows[order] = starts
    groups, row = [], 0
    for begin, end in _like_lengths(sizes := lengths.tolist(), heads):
        keys = lengths[begin:end]
        offsets = torch.cat([keys.new_zeros(1), keys.cumsum(0)])
        total = sum(sizes[begin:end])
        groups.append(
            LengthGroup(row, row + total, offsets, keys, sizes[begin] + -sizes[begin] % LENGTH_STEP)
        )
        row += total
    return PackedLayout(shape, places, num_tokens, first_rows, tuple(groups))


def plan_rows(
    attention_mask: torch.Tensor, labels: torch.Tensor | None = None
) -> dict[str, torch.Tensor]:
    """Plan the packing of one batch for attention over offsets.

    Finding the tokens makes a GPU wait, so batches are planned on the CPU, by the process that
    collates them.

    Args:
        attention_mask: (B, S) of any type, 0 = pad.
        labels: int64 (B, S), -100 where nothing is predicted.

    Returns:
        "places" int64 (T,), the flat position in (B * S) of each real token; "offsets" int32 (B +
        1,), the first row of each sequence, and T; with labels "predicted" int64 (M,), rows, and
        "targets" int64 (M,)
    """
    is_token = attention_mask.flatten() != 0
    lengths = is_token.view(attention_mask.shape).sum(dim=1)
    plan = {"places": is_token.nonzero()[:, 0], "offsets": F.pad(lengths.cumsum(0), (1, 0)).int()}
    if labels is not None:
        predicted_places = (labels.flatten() != IGNORE_INDEX).nonzero()[:, 0]
        row_of_place = is_token.cumsum(0) - 1
        plan["predicted"] = row_of_place[predicted_places]
        plan["targets"] = labels.flatten()[predicted_places]
    return plan


def planned_layout(
    plan: Mapping[str, torch.Tensor], shape: tuple[int, int], *, computes_pads: bool = False
) -> PackedLayout:
    """Return the layout of a batch that `plan_rows` has planned; nothing waits for the device.

    Args:
        plan: Of `plan_rows`, on the model's device.
        shape: (B, S).
        computes_pads: Pads are rows too, which nobody attends to.
    """
    batch, size = shape
    places, offsets = plan["places"], plan["offsets"]
    max_length = size + -size % MAX_LENGTH_STEP
    if computes_pads:
        first_rows = torch.arange(batch + 1, device=offsets.device) * size
        row_offsets = RowOffsets(first_rows.int(), places, offsets, max_length)
        return PackedLayout(shape, None, batch * size, first_rows[:-1], (), row_offsets)
    row_offsets = RowOffsets(offsets, None, offsets, max_length)
    return PackedLayout(shape, places, len(places), offsets[:-1].long(), (), row_offsets)


def _like_lengths(sizes: list[int], heads: int) -> list[tuple[int, int]]:
    """Cut descending lengths into groups (begin, end), as few as pay: like lengths together, small
    rests with longer ones.
    """
    starts, end, groups = [0], len(sizes), []
    for number, size in enumerate(sizes):
        if size < LIKE_LENGTH * sizes[starts[-1]]:
            starts.append(number)
    while len(starts) > 1:
        start, longer = starts.pop(), sizes[starts[-1]]
        if heads * sum(longer**2 - size**2 for size in sizes[start:end]) > GROUP_COST:
            groups.append((start, end))
            end = start
    return [(0, end), *reversed(groups)]
