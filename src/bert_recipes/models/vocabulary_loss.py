"""Cross-entropy and divergence over the vocabulary without its logits as a whole.

Product, softmax and gradients are computed in one go, for some rows at a time.

Legend: M predicted tokens, m of them at a time, H hidden size, V vocabulary, W its next multiple of
`COLUMN_STEP`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from bert_recipes.models.kernels.plain import Kernels
from bert_recipes.models.padding_free import round_up


# Predicted tokens whose logits are held at the same time. With a vocabulary of 30,522 these are
# 63 MB of bfloat16 on a CPU, and 250 MB on a GPU, which needs more rows to be busy.
ROWS_AT_ONCE = 1024
ROWS_AT_ONCE_ON_GPU = 4096
# Products over 30,522 columns are slower than over 30,528, by up to a half: the logits get
# additional columns. A multiple of 64 suits GPUs, too.
COLUMN_STEP = 64


class TiedGradient:
    """Carry the output layer's gradient of a tied weight to the embedding of the same pass.

    The embedding adds its rows to that gradient and returns the sum: no second tensor of the size
    (V, H) is filled with zeros and added.
    """

    def __init__(self) -> None:
        self._gradient: torch.Tensor | None = None
        # Gradients of some rows of the weight, (K, H), and the numbers of the rows, int64 (K,).
        self._parts: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._backward_pass = -1

    def store(self, gradient: torch.Tensor) -> None:
        """Store the output layer's gradient, float (V, H); it will be changed in place."""
        self._forget_other_passes()
        self._gradient = gradient

    def store_rows(self, gradient: torch.Tensor, rows: torch.Tensor) -> None:
        """Store the gradient of some rows of the weight: float (K, H), int64 (K,)."""
        self._forget_other_passes()
        self._parts.append((gradient, rows))

    def pop(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the gradient of `weight` that was stored in this backward pass, once, or zeros."""
        self._forget_other_passes()
        total = self._gradient
        if total is None:
            total = torch.zeros_like(weight)
        for gradient, rows in self._parts:
            total.index_add_(0, rows, gradient)
        self._gradient = None
        self._parts = []
        return total

    def _forget_other_passes(self) -> None:
        """Forget what a backward pass that stopped early has left here."""
        backward_pass = torch._C._current_graph_task_id()
        if self._backward_pass != backward_pass:
            self._gradient = None
            self._parts = []
        self._backward_pass = backward_pass


@dataclass(frozen=True)
class TiedRows:
    """Store the gradient of some rows in a `TiedGradient`, for a loss over those rows alone."""

    tied_gradient: TiedGradient
    rows: torch.Tensor  # int64 (K,)

    def store(self, gradient: torch.Tensor) -> None:
        """Store the gradient of the rows, float (K, H)."""
        self.tied_gradient.store_rows(gradient, self.rows)


def tied_embedding(
    weight: torch.Tensor, ids: torch.Tensor, padding_idx: int | None, tied_gradient: TiedGradient
) -> torch.Tensor:
    """Look ids up as `torch.nn.functional.embedding` does, (V, H) and int64 (T,) -> (T, H).

    The gradient of the weight includes the one that an output layer stored in `tied_gradient`.
    """
    return _LookUp.apply(weight, ids, padding_idx, tied_gradient)


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        weight: torch.Tensor,
        ids: torch.Tensor,
        padding_idx: int | None,
        tied_gradient: TiedGradient,
    ) -> torch.Tensor:
        ctx.save_for_backward(ids)
        ctx.weight = weight
        ctx.padding_idx = padding_idx
        ctx.tied_gradient = tied_gradient
        return weight.index_select(0, ids)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (ids,) = ctx.saved_tensors
        total = ctx.tied_gradient.pop(ctx.weight)
        if ctx.padding_idx is None:
            total.index_add_(0, ids, grad)
        else:
            # The row of the padding gets no gradient from the look-up.
            padding_row = total[ctx.padding_idx].clone()
            total.index_add_(0, ids, grad)
            total[ctx.padding_idx] = padding_row
        return total, None, None, None


def vocabulary_loss(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    targets: torch.Tensor,
    count: float | torch.Tensor,
    kernels: Kernels,
    tied_gradient: TiedGradient | TiedRows | None = None,
) -> torch.Tensor:
    """Return the summed cross-entropy of `hidden @ weight.T + bias` divided by `count`.

    The gradients are computed in the forward pass, while the logits of `ROWS_AT_ONCE` tokens are at
    hand.

    Args:
        hidden: (M, H), float32, bfloat16 or float16; the products are computed in its type.
        weight: float (V, H).
        bias: float (V,).
        targets: int64 (M,); a row with a negative target is ignored.
        count: A number, or a tensor () on any device.
        kernels: The result of `load_kernels`.
        tied_gradient: Takes the gradient of `weight` to the embedding with the same weight, from
            which `hidden` was computed.

    Returns:
        float32 (); 0 where M = 0.
    """
    if tied_gradient is not None:
        weight = weight.detach()  # its gradient goes through `tied_gradient`
    if _is_on_gpu(hidden):  # a number would have to be read off the device
        loss = _VocabularyLoss.apply(hidden, weight, bias, targets, 1.0, kernels, tied_gradient)
        return loss / count
    return _VocabularyLoss.apply(
        hidden, weight, bias, targets, float(count), kernels, tied_gradient
    )


class _VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0913  # autograd's signature: an argument for each of its inputs
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        targets: torch.Tensor,
        count: float,
        kernels: Kernels,
        tied_gradient: TiedGradient | TiedRows | None,
    ) -> torch.Tensor:
        needs_gradient = any(ctx.needs_input_grad[:3])
        float_bias = bias.float()
        padded_weight = _pad_vocabulary(weight, hidden.dtype)
        gradients = _Gradients(hidden, weight, bias)
        total = torch.zeros((), device=hidden.device)
        for rows in _row_slices(hidden):
            logits = hidden[rows] @ padded_weight.t()
            losses, bias_gradient = kernels.cross_entropy_(
                logits, float_bias, targets[rows], 1.0 / count, needs_gradient
            )
            total += losses.sum()
            if needs_gradient:
                # The kernel has left the gradient of the logits in their place.
                gradients.add(rows, logits, hidden[rows], padded_weight, bias_gradient)
        ctx.gradients = gradients
        ctx.tied_gradient = tied_gradient
        return total / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_gradient, weight_gradient, bias_gradient = _pop_gradients(ctx, grad)
        settings_gradients = (None, None, None, None)
        if ctx.tied_gradient is None:
            return hidden_gradient, weight_gradient, bias_gradient, *settings_gradients
        ctx.tied_gradient.store(weight_gradient)
        return hidden_gradient, None, bias_gradient, *settings_gradients


def vocabulary_divergence(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    teacher_logits: Callable[[slice], torch.Tensor],
    temperature: float,
) -> torch.Tensor:
    """Return the summed Kullback-Leibler divergence of a student from its teacher, float32 ().

    As in `vocabulary_loss`, the gradients are computed in the forward pass.

    Args:
        hidden: (M, H); the student's logits are `hidden @ weight.T + bias`.
        weight: float (V, H).
        bias: float (V,).
        teacher_logits: Returns the teacher's logits, (m, V), for a slice of the M rows.
        temperature: The logits of teacher and student are divided by it.
    """
    return _VocabularyDivergence.apply(hidden, weight, bias, teacher_logits, temperature)


class _VocabularyDivergence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        teacher_logits: Callable[[slice], torch.Tensor],
        temperature: float,
    ) -> torch.Tensor:
        needs_gradient = any(ctx.needs_input_grad[:3])
        cast_weight = weight.to(hidden.dtype)
        float_bias = bias.float()
        gradients = _Gradients(hidden, weight, bias)
        total = torch.zeros((), device=hidden.device)
        for rows in _row_slices(hidden):
            # In float32: bfloat16 would lose the unlikely pieces.
            teacher = (teacher_logits(rows).float() / temperature).log_softmax(-1)
            teacher_probabilities = teacher.exp()
            logits = (hidden[rows] @ cast_weight.t()).float().add_(float_bias)
            student = logits.div_(temperature).log_softmax(-1)
            total += teacher.sub_(student).mul_(teacher_probabilities).sum()
            if needs_gradient:
                logits_gradient = student.exp_().sub_(teacher_probabilities).div_(temperature)
                bias_gradient = logits_gradient.sum(0)
                logits_gradient = logits_gradient.to(hidden.dtype)
                gradients.add(rows, logits_gradient, hidden[rows], cast_weight, bias_gradient)
        ctx.gradients = gradients
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_gradient, weight_gradient, bias_gradient = _pop_gradients(ctx, grad)
        return hidden_gradient, weight_gradient, bias_gradient, None, None


class _Gradients:
    """Sum the gradients of hidden states (M, H), weight (V, H) and bias (V,) over slices of rows.

    The gradients of weight and bias are summed in float32.
    """

    def __init__(self, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> None:
        self._weight = weight
        self._bias = bias
        self._hidden_gradient = torch.empty_like(hidden)
        self._weight_gradient: torch.Tensor | None = None
        self._bias_gradient: torch.Tensor | None = None

    def add(
        self,
        rows: slice,
        logits_gradient: torch.Tensor,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias_gradient: torch.Tensor,
    ) -> None:
        """Add the gradients of a slice of rows.

        Args:
            rows: The slice, of m rows.
            logits_gradient: The gradient of their logits, (m, W).
            hidden: Their hidden states, (m, H).
            weight: The weight of the product, (W, H); rows beyond V are ignored.
            bias_gradient: float32 (V,).
        """
        torch.mm(logits_gradient, weight, out=self._hidden_gradient[rows])
        weight_gradient = (logits_gradient.t() @ hidden)[: len(self._weight)].float()
        if self._weight_gradient is None or self._bias_gradient is None:
            self._weight_gradient = weight_gradient
            self._bias_gradient = bias_gradient
        else:
            self._weight_gradient.add_(weight_gradient)
            self._bias_gradient.add_(bias_gradient)

    def scaled(self, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the three gradients in the types of their tensors, times `grad` ()."""
        hidden_gradient = self._hidden_gradient
        weight_gradient = self._weight_gradient
        bias_gradient = self._bias_gradient
        if weight_gradient is None or bias_gradient is None:  # there was no row
            return hidden_gradient, torch.zeros_like(self._weight), torch.zeros_like(self._bias)
        # On a CPU `grad` is nearly always 1: then no tensor of the size of the vocabulary is read
        # again. A GPU would wait for the number.
        if _is_on_gpu(grad) or grad.item() != 1.0:
            hidden_gradient = (hidden_gradient.float() * grad).to(hidden_gradient.dtype)
            weight_gradient = weight_gradient * grad
            bias_gradient = bias_gradient * grad
        weight_gradient = weight_gradient.to(self._weight.dtype)
        return hidden_gradient, weight_gradient, bias_gradient.to(self._bias.dtype)


def _pop_gradients(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients that the forward pass left in `ctx`, times `grad`, and forget them.

    They are not saved tensors of autograd: a gradient that is returned once can become a
    parameter's gradient without a copy.
    """
    gradients = ctx.gradients
    if gradients is None:
        raise RuntimeError(
            "this loss gives its gradients away: it can be differentiated once; compute it again"
        )
    ctx.gradients = None
    return gradients.scaled(grad)


def _row_slices(hidden: torch.Tensor) -> Iterator[slice]:
    """Yield slices of the rows whose logits are held at the same time."""
    step = ROWS_AT_ONCE_ON_GPU if _is_on_gpu(hidden) else ROWS_AT_ONCE
    for start in range(0, len(hidden), step):
        yield slice(start, start + step)


def _is_on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda


def _pad_vocabulary(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a weight in another type with rows of zeros at its end, (V, H) -> (W, H)."""
    num_rows, size = weight.shape
    padded = weight.new_empty((round_up(num_rows, COLUMN_STEP), size), dtype=dtype)
    padded[:num_rows].copy_(weight)
    padded[num_rows:].zero_()
    return padded
