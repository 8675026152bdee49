"""Cross-entropy and divergence over the vocabulary without its logits: product, softmax and
gradients in one go.

Legend: M predicted tokens, H hidden size, V vocabulary, W its next multiple of `COLUMN_STEP`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from bert_recipes.models.kernels.plain import Kernels


class SharedGradient:
    """The output layer's gradient of a shared weight, on its way to the embedding of the same pass.

    The embedding adds its rows to it and hands over the sum: nothing more of the size (V, H) is
    filled with zeros and added up.
    """

    def __init__(self) -> None:
        self._value: torch.Tensor | None = None
        self._pass = -1

    def leave(self, gradient: torch.Tensor) -> None:
        """Leave the output layer's part, float (V, H); it will be changed in place."""
        self._value, self._pass = gradient, torch._C._current_graph_task_id()

    def take(self) -> torch.Tensor | None:
        """What was left in this backward pass, once. A pass that ended before it came to the
        embedding has no say in the next.
        """
        value, self._value = self._value, None
        return value if self._pass == torch._C._current_graph_task_id() else None


def look_up(
    weight: torch.Tensor, ids: torch.Tensor, padding_idx: int | None, shared: SharedGradient
) -> torch.Tensor:
    """As `torch.nn.functional.embedding`: (V, H), int64 (T,) -> (T, H); its gradient adds the one
    that an output layer left in `shared`.
    """
    return _LookUp.apply(weight, ids, padding_idx, shared)


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        weight: torch.Tensor,
        ids: torch.Tensor,
        padding_idx: int | None,
        shared: SharedGradient,
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


# Predicted tokens whose logits are held at the same time. On a CPU 63 MB of bfloat16 for a
# vocabulary of 30,522; a GPU needs more to be busy: 250 MB.
ROWS_AT_ONCE, ROWS_AT_ONCE_ON_GPU = 1024, 4096
# Products over 30,522 columns are slower than over 30,528, by up to a half: the logits get a few
# columns more. 64 suits GPUs, too.
COLUMN_STEP = 64


def vocabulary_loss(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    targets: torch.Tensor,
    count: float | torch.Tensor,
    kernels: Kernels,
    shared: SharedGradient | None = None,
) -> torch.Tensor:
    """Return the summed cross-entropy of `hidden @ weight.T + bias` divided by `count`.

    The gradients are computed in the forward pass, while the logits of `ROWS_AT_ONCE` tokens are at
    hand.

    Args:
        hidden: (M, H), float32, bfloat16 or float16; the products are computed in its type.
        targets: int64 (M,); a row with a negative target counts for nothing.
        count: A number, or a tensor () on any device.
        shared: Takes the gradient of `weight`, for the embedding of the same weight that `hidden`
            comes from.

    Returns:
        float32 (); 0 where M = 0.
    """
    if shared is not None:
        weight = weight.detach()
    if _is_on_gpu(hidden):  # a number would have to be read off the device
        return _VocabularyLoss.apply(hidden, weight, bias, targets, 1.0, kernels, shared) / count
    return _VocabularyLoss.apply(hidden, weight, bias, targets, float(count), kernels, shared)


class _VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        targets: torch.Tensor,
        count: float,
        kernels: Kernels,
        shared: SharedGradient | None,
    ) -> torch.Tensor:
        needs_gradient = any(ctx.needs_input_grad[:3])
        float_bias, padded_weight = bias.float(), _rounded_up(weight, hidden.dtype)
        gradients = _Gradients(hidden, weight, bias)
        total = torch.zeros((), device=hidden.device)
        for rows in _parts(hidden):
            logits = hidden[rows] @ padded_weight.t()
            losses, bias_part = kernels.cross_entropy_(
                logits, float_bias, targets[rows], 1.0 / count, needs_gradient
            )
            total += losses.sum()
            if needs_gradient:
                # The kernel has left the gradient of the logits in their place.
                gradients.add(rows, logits, hidden[rows], padded_weight, bias_part)
        ctx.gradients, ctx.shared = gradients, shared
        return total / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_gradient, weight_gradient, bias_gradient = _hand_over(ctx, grad)
        nothing = (None,) * 4
        if ctx.shared is None:
            return hidden_gradient, weight_gradient, bias_gradient, *nothing
        ctx.shared.leave(weight_gradient)
        return hidden_gradient, None, bias_gradient, *nothing


def _parts(hidden: torch.Tensor) -> Iterator[slice]:
    """Yield the rows whose logits are held at the same time."""
    step = ROWS_AT_ONCE_ON_GPU if _is_on_gpu(hidden) else ROWS_AT_ONCE
    for start in range(0, len(hidden), step):
        yield slice(start, start + step)


class _Gradients:
    """The gradients of hidden states (M, H), weight (V, H) and bias (V,), summed over parts of the
    rows; the last two in float32.
    """

    def __init__(self, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> None:
        self._parameters = weight, bias
        self._of_hidden = torch.empty_like(hidden)
        self._of_weight: torch.Tensor | None = None
        self._of_bias: torch.Tensor | None = None

    def add(
        self,
        rows: slice,
        of_logits: torch.Tensor,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        of_bias: torch.Tensor,
    ) -> None:
        """Add a part: the gradient of its logits (m, W), with the hidden states (m, H) and the
        weight (W, H), whose rows beyond V count for nothing, that gave them.
        """
        torch.mm(of_logits, weight, out=self._of_hidden[rows])
        of_weight = (of_logits.t() @ hidden)[: len(self._parameters[0])].float()
        if self._of_weight is None or self._of_bias is None:
            self._of_weight, self._of_bias = of_weight, of_bias
        else:
            self._of_weight.add_(of_weight)
            self._of_bias.add_(of_bias)

    def scaled(self, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the three in the types of their tensors, times `grad` ()."""
        weight, bias = self._parameters
        of_hidden, of_weight, of_bias = self._of_hidden, self._of_weight, self._of_bias
        if of_weight is None or of_bias is None:  # there was no row
            return of_hidden, torch.zeros_like(weight), torch.zeros_like(bias)
        # On a CPU nearly always 1: then nothing of the size of the vocabulary is touched again. A
        # GPU would wait for the number.
        if _is_on_gpu(grad) or grad.item() != 1.0:
            of_hidden = (of_hidden.float() * grad).to(of_hidden.dtype)
            of_weight, of_bias = of_weight * grad, of_bias * grad
        return of_hidden, of_weight.to(weight.dtype), of_bias.to(bias.dtype)


def _hand_over(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients that the forward pass left in `ctx.gradients`, times `grad`, and forget
    them.

    They are no saved tensors: what is handed over once can become a parameter's gradient without a
    copy.
    """
    if ctx.gradients is None:
        raise RuntimeError(
            "this loss gives its gradients away: it can be differentiated once; compute it again"
        )
    gradients, ctx.gradients = ctx.gradients, None
    return gradients.scaled(grad)


def vocabulary_divergence(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    teacher_logits: Callable[[slice], torch.Tensor],
    temperature: float,
) -> torch.Tensor:
    """Return the Kullback-Leibler divergence of a student's probabilities from its teacher's,
    summed over the tokens, float32 ().

    As in `vocabulary_loss`, the gradients are computed in the forward pass.

    Args:
        hidden: (M, H); the student's logits are `hidden @ weight.T + bias`.
        teacher_logits: Gives the teacher's, (m, V), for some of the M rows.
        temperature: Both are divided by it.
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
        gradients = _Gradients(hidden, weight, bias)
        total = torch.zeros((), device=hidden.device)
        for rows in _parts(hidden):
            # In float32: bfloat16 would lose the unlikely pieces.
            teacher = (teacher_logits(rows).float() / temperature).log_softmax(-1)
            logits = (hidden[rows] @ cast_weight.t()).float().add_(bias.float())
            student = logits.div_(temperature).log_softmax(-1)
            teacher_probabilities = teacher.exp()
            total += teacher.sub_(student).mul_(teacher_probabilities).sum()
            if needs_gradient:
                of_logits = student.exp_().sub_(teacher_probabilities).div_(temperature)
                gradients.add(
                    rows, of_logits.to(hidden.dtype), hidden[rows], cast_weight, of_logits.sum(0)
                )
        ctx.gradients = gradients
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return *_hand_over(ctx, grad), None, None


def _is_on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda


def _rounded_up(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """(V, H) -> (W, H) in another type, zeros in the new rows."""
    vocabulary, size = weight.shape
    result = weight.new_empty((vocabulary + -vocabulary % COLUMN_STEP, size), dtype=dtype)
    result[:vocabulary].copy_(weight)
    result[vocabulary:].zero_()
    return result
