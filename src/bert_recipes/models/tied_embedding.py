"""One gradient for a weight that looks tokens up and predicts them, too.

Legend: T rows, H hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable


class SharedGradient:
    """The output layer's gradient of a shared weight, on its way to the embedding of the same pass.

    The embedding adds its rows to it and hands over the sum: nothing more of the size (V, H) is filled with zeros and added up.
    """

    def __init__(self) -> None:
        self._value: torch.Tensor | None = None
        self._pass = -1

    def leave(self, gradient: torch.Tensor) -> None:
        """Leave the output layer's part, float (V, H); it will be changed in place."""
        self._value, self._pass = gradient, torch._C._current_graph_task_id()

    def take(self) -> torch.Tensor | None:
        """What was left in this backward pass, once. A pass that ended before it came to the embedding has no say in the next."""
        value, self._value = self._value, None
        return value if self._pass == torch._C._current_graph_task_id() else None


def look_up(weight: torch.Tensor, ids: torch.Tensor, padding_idx: int | None, shared: SharedGradient) -> torch.Tensor:
    """As `torch.nn.functional.embedding`; the gradient is that of the output layer too, if it left one.

    Args:
        weight: (V, H).
        ids: int64 (T,).
        padding_idx: Rows of this id give no gradient.
        shared: Where an output layer with this weight leaves its part.

    Returns:
        (T, H).
    """
    return _LookUp.apply(weight, ids, padding_idx, shared)


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weight: torch.Tensor, ids: torch.Tensor, padding_idx: int | None, shared: SharedGradient
    ) -> torch.Tensor:
        ctx.save_for_backward(ids)
        ctx.like, ctx.padding_idx, ctx.shared = weight, padding_idx, shared
        return weight.index_select(0, ids)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (ids,) = ctx.saved_tensors
        total = ctx.shared.take()
        if total is None:
            total = torch.zeros_like(ctx.like)
        padding = None if ctx.padding_idx is None else total[ctx.padding_idx].clone()
        total.index_add_(0, ids, grad)
        if padding is not None:
            total[ctx.padding_idx] = padding
        return total, None, None, None
