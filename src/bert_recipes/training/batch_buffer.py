"""Batches for a GPU: planned by the process that collates them, in one buffer.

One copy brings a batch to the GPU, and nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bert_recipes.models.padding_free import Packing, plan_rows, round_up


# Tensors begin at multiples of this number of bytes, which is enough for every type.
ALIGNMENT = 16
# Key of the batch's row plan (`padding_free.plan_rows`).
PACKING = "packing"


@dataclass(frozen=True)
class TensorPlace:
    """The place of a tensor in a buffer of bytes."""

    path: tuple[str, ...]  # its key in the batch, or the key of a mapping and its key there
    offset: int
    dtype: torch.dtype
    shape: torch.Size


@dataclass(frozen=True)
class BatchBuffer:
    """The tensors of a batch, one after the other in one buffer; `DataLoader` pins the buffer."""

    buffer: torch.Tensor  # uint8
    places: Sequence[TensorPlace]

    @classmethod
    def from_batch(cls, batch: Mapping[str, Any]) -> BatchBuffer:
        """Copy the tensors of a batch, and of a mapping in it, into one buffer."""
        tensors = dict(_tensors_of(batch))
        places = []
        size = 0
        for path, tensor in tensors.items():
            places.append(TensorPlace(path, size, tensor.dtype, tensor.shape))
            size += round_up(tensor.nbytes, ALIGNMENT)
        batch_buffer = cls(torch.empty(size, dtype=torch.uint8), places)
        for place in places:
            batch_buffer._view(place).copy_(tensors[place.path])
        return batch_buffer

    def pin_memory(self) -> BatchBuffer:
        """Return the batch in page-locked memory."""
        return BatchBuffer(self.buffer.pin_memory(), self.places)

    def to(self, device: torch.device) -> BatchBuffer:
        """Return the batch on a device. The host does not wait for the copy."""
        return BatchBuffer(self.buffer.to(device, non_blocking=True), self.places)

    def tensors(self) -> dict[str, Any]:
        """Return the batch with its tensors, which are views of the buffer."""
        batch: dict[str, Any] = {}
        for place in self.places:
            *parents, name = place.path
            target = batch
            for parent in parents:
                target = target.setdefault(parent, {})
            target[name] = self._view(place)
        return batch

    def _view(self, place: TensorPlace) -> torch.Tensor:
        end = place.offset + place.shape.numel() * place.dtype.itemsize
        return self.buffer[place.offset : end].view(place.dtype).view(place.shape)


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
        plans_rows: Add the row plan `packing`, for an encoder that reads plans.
        plans_labels: Add the rows of the predicted tokens to the plan, by `labels`.
        joins: Return one `BatchBuffer`, for a GPU.
    """

    collator: Callable[[list[Any]], Any]
    plans_rows: bool
    plans_labels: bool
    joins: bool

    def __call__(self, features: list[Any]) -> Any:
        """Collate features."""
        batch = self.collator(features)
        plan = None
        if self.plans_rows and "input_ids" in batch:
            plan = self._plan(batch)
        if plan is not None:
            batch = {**batch, PACKING: plan}
        has_tensors_alone = all(isinstance(value, torch.Tensor) for _, value in _tensors_of(batch))
        if self.joins and has_tensors_alone:
            return BatchBuffer.from_batch(batch)
        return batch

    def _plan(self, batch: Mapping[str, torch.Tensor]) -> Packing | None:
        """Return the plan of rows that are tokens and then pads.

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
        return plan_rows(mask.flatten(0, -2), batch["labels"] if self.plans_labels else None)
