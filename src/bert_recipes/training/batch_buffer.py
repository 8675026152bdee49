"""Batches for a GPU: packed by the process that collates them, in one buffer.

One copy brings a batch to the GPU, and nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bert_recipes.models.padding_free import Packing, make_packing, round_up


# Tensors begin at multiples of this number of bytes, which is enough for every type.
ALIGNMENT = 16
# Key of the batch's packing (`padding_free.make_packing`).
PACKING = "packing"


@dataclass(frozen=True)
class TensorSlot:
    """The place of a tensor in a buffer of bytes."""

    path: tuple[str, ...]  # its key in the batch, or the key of a mapping and its key there
    offset: int
    dtype: torch.dtype
    shape: torch.Size


@dataclass(frozen=True)
class BatchBuffer:
    """The tensors of a batch, one after the other in one buffer; `DataLoader` pins the buffer."""

    buffer: torch.Tensor  # uint8
    slots: Sequence[TensorSlot]

    @classmethod
    def from_batch(cls, batch: Mapping[str, Any]) -> BatchBuffer:
        """Copy the tensors of a batch, and of a mapping in it, into one buffer."""
        tensors = dict(_tensors_of(batch))
        slots = []
        size = 0
        for path, tensor in tensors.items():
            slots.append(TensorSlot(path, size, tensor.dtype, tensor.shape))
            size += round_up(tensor.nbytes, ALIGNMENT)
        batch_buffer = cls(torch.empty(size, dtype=torch.uint8), slots)
        for slot in slots:
            batch_buffer._view(slot).copy_(tensors[slot.path])
        return batch_buffer

    def pin_memory(self) -> BatchBuffer:
        """Return the batch in page-locked memory."""
        return BatchBuffer(self.buffer.pin_memory(), self.slots)

    def to(self, device: torch.device) -> BatchBuffer:
        """Return the batch on a device. The host does not wait for the copy."""
        return BatchBuffer(self.buffer.to(device, non_blocking=True), self.slots)

    def tensors(self) -> dict[str, Any]:
        """Return the batch with its tensors, which are views of the buffer."""
        batch: dict[str, Any] = {}
        for slot in self.slots:
            *parents, name = slot.path
            target = batch
            for parent in parents:
                target = target.setdefault(parent, {})
            target[name] = self._view(slot)
        return batch

    def _view(self, slot: TensorSlot) -> torch.Tensor:
        end = slot.offset + slot.shape.numel() * slot.dtype.itemsize
        return self.buffer[slot.offset : end].view(slot.dtype).view(slot.shape)


def _tensors_of(
    batch: Mapping[str, Any], *parents: str
) -> Iterator[tuple[tuple[str, ...], torch.Tensor]]:
    for name, value in batch.items():
        if isinstance(value, Mapping):
            yield from _tensors_of(value, *parents, name)
        else:
            yield (*parents, name), value


@dataclass(frozen=True)
class DeviceCollator:
    """Collates batches for a device.

    Args:
        collator: Yields tensors, or mappings of tensors.
        adds_packing: Add `packing`, for an encoder that reads it.
        packs_labels: Add the rows of the predicted tokens to it, by `labels`.
        joins: Return one `BatchBuffer`, for a GPU.
    """

    collator: Callable[[list[Any]], Any]
    adds_packing: bool
    packs_labels: bool
    joins: bool

    def __call__(self, features: list[Any]) -> Any:
        """Collate features."""
        batch = self.collator(features)
        packing = None
        if self.adds_packing and "input_ids" in batch:
            packing = self._pack(batch)
        if packing is not None:
            batch = {**batch, PACKING: packing}
        has_tensors_alone = all(isinstance(value, torch.Tensor) for _, value in _tensors_of(batch))
        if self.joins and has_tensors_alone:
            return BatchBuffer.from_batch(batch)
        return batch

    def _pack(self, batch: Mapping[str, torch.Tensor]) -> Packing | None:
        """Return the packing of rows that are tokens and then pads.

        Others have none: `why_not_call` looks at them.
        """
        mask = batch.get("attention_mask")
        if mask is None:
            mask = torch.ones_like(batch["input_ids"])
        if mask.shape != batch["input_ids"].shape:
            return None
        is_token = mask != 0
        has_pads_between = (is_token[..., 1:] > is_token[..., :-1]).any()
        if has_pads_between or not is_token[..., 0].all():
            return None
        # In multiple choice each choice is a row.
        return make_packing(mask.flatten(0, -2), batch["labels"] if self.packs_labels else None)
