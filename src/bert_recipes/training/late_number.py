"""Numbers that a training step leaves on the device and that the host reads one step later."""

from __future__ import annotations

import torch


class LateNumber:
    """A tensor () on its way to the host.

    `tensor.item()` waits for all work that has been given to a GPU, that of the coming step too.
    This waits only for what was given to it before the number was made: nearly nothing, one step
    later.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._value = tensor
        self._event = None
        if tensor.is_cuda:
            self._value = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._value.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def read(self) -> float:
        """Return the number."""
        if self._event is not None:
            self._event.synchronize()
        return self._value.item()


class PreviousNumber:
    """A number of each step that the host reads in the next step, when it is there."""

    def __init__(self) -> None:
        self._number: LateNumber | None = None

    def swap(self, tensor: torch.Tensor) -> float:
        """Store the number of this step; return that of the step before, or the very first one."""
        number = LateNumber(tensor)
        before = number if self._number is None else self._number
        self._number = number
        return before.read()
