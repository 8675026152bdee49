"""What the C++ files in cpu/ compute, with torch operations: what the kernels are tested against.

Legend: T packed rows (real tokens), B sequences, S positions that the longest of them has, h heads,
d their size, N columns. `offsets` int64 (B + 1): the rows of sequence b are offsets[b] .. offsets[b
+ 1] - 1; `keys` int64 (B): how many of them, from the first on, it attends to.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F


# A module with these functions.
Kernels = Any


def _shift(bits: torch.Tensor, count: int) -> torch.Tensor:
    """Logical shift of int32 to the right."""
    return (bits >> count) & ((1 << (32 - count)) - 1)


def _signed(value: int) -> int:
    """The int32 with the lowest 32 bits of `value`."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def _mix(key: int) -> int:
    """SplitMix64's finaliser: keys that differ in one bit become keys that differ in half of
    them.
    """
    key &= 2**64 - 1
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
    key = (key ^ (key >> 27)) * 0x94D049BB133111EB & (2**64 - 1)
    return key ^ (key >> 31)


def dropout_factors(
    shape: tuple[int, ...], seed: int, stream: int, p: float, device: torch.device | None = None
) -> torch.Tensor:
    """float32 (shape): 0 with probability p, else 1 / (1 - p), a function of (seed, stream,
    position) alone.

    31 bits of a hash of the position under a mixed key; the steps are those of Wellons'
    "lowbias32".

    Args:
        shape: At most 2**31 elements.
        seed: 64 bits.
        stream: Which of the independent masks of a seed.
        p: 0 to 1, 1 not included.
    """
    key = _mix(seed + (stream + 1) * 0x9E3779B97F4A7C15)
    count = torch.Size(shape).numel()
    bits = torch.arange(count, dtype=torch.int32, device=device) ^ _signed(key)
    bits = bits ^ _shift(bits, 16)
    bits = bits * 0x7FEB352D
    bits = bits ^ _shift(bits, 15)
    bits = bits ^ _signed(key >> 32)
    bits = bits * _signed(0x846CA68B)
    bits = bits ^ _shift(bits, 16)
    kept = (bits & 0x7FFFFFFF) >= int(p * 2**31)
    return (kept.to(torch.float32) * (1.0 / (1.0 - p))).view(shape)


def _drop(values: torch.Tensor, seed: int, stream: int, p: float) -> torch.Tensor:
    return (
        values * dropout_factors(tuple(values.shape), seed, stream, p, values.device)
        if p > 0
        else values
    )


def dropout(values: torch.Tensor, seed: int, stream: int, p: float) -> torch.Tensor:
    """Dropout, out of place; the tensor itself where p is 0."""
    return _drop(values.float(), seed, stream, p).to(values.dtype) if p > 0 else values


def _places(offsets: torch.Tensor, length: int) -> torch.Tensor:
    """Bool (B, S): which positions hold a token."""
    return torch.arange(length, device=offsets.device) < offsets.diff()[:, None]


def split_heads(
    packed: torch.Tensor,
    bias: torch.Tensor | None,
    offsets: torch.Tensor,
    heads: int,
    length: int,
    parts: int,
) -> torch.Tensor:
    """(T, parts * h * d) [+ bias] -> (parts, B, h, S, d), zeros where there is no token."""
    rows = packed if bias is None else (packed.float() + bias).to(packed.dtype)
    places = _places(offsets, length)
    padded = packed.new_zeros((*places.shape, packed.shape[1]))
    padded[places] = rows
    return padded.view(*places.shape, parts, heads, -1).permute(2, 0, 3, 1, 4).contiguous()


def merge_heads_(rows: torch.Tensor, split: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """(parts, B, h, S, d) -> rows (T, parts * h * d), written: what `split_heads` undoes."""
    places = _places(offsets, split.shape[3])
    return rows.copy_(split.permute(1, 3, 0, 2, 4)[places].flatten(1))


def softmax_dropout_(
    scores: torch.Tensor,
    offsets: torch.Tensor,
    keys: torch.Tensor,
    scaling: float,
    seed: int,
    stream: int,
    p: float,
) -> torch.Tensor:
    """Scores (B, h, S, S) -> probabilities over the sequence's own keys, in place; other rows and
    columns are 0.

    Returns:
        The probabilities after dropout; `scores` itself where p is 0.
    """
    places = _places(offsets, scores.shape[-1])
    is_key = torch.arange(scores.shape[-1], device=keys.device) < keys[:, None]
    wide = (scores.float() * scaling).masked_fill(~is_key[:, None, None, :], float("-inf"))
    scores.copy_(torch.softmax(wide, dim=-1) * places[:, None, :, None])
    return dropout(scores, seed, stream, p)


def softmax_dropout_backward_(
    grad: torch.Tensor,
    probabilities: torch.Tensor,
    offsets: torch.Tensor,
    keys: torch.Tensor,
    scaling: float,
    seed: int,
    stream: int,
    p: float,
) -> torch.Tensor:
    """Gradient of the dropped probabilities (B, h, S, S) -> gradient of the scores, in place."""
    own = _drop(grad.float(), seed, stream, p)
    wide = probabilities.float()
    mean = (own * wide).sum(dim=-1, keepdim=True)
    return grad.copy_((own - mean) * wide * scaling)


def dropout_add_norm(
    values: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    shift: torch.Tensor,
    epsilon: float,
    seed: int,
    stream: int,
    p: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """LayerNorm(residual + dropout(values + bias)) of rows (T, N).

    Returns:
        The result, the normalised rows before weight and shift (T, N), 1 / deviation float32 (T,).
    """
    total = residual.float() + _drop(values.float() + bias, seed, stream, p)
    centred = total - total.mean(dim=-1, keepdim=True)
    inverse = torch.rsqrt(centred.square().mean(dim=-1) + epsilon)
    normal = centred * inverse[:, None]
    return (normal * weight + shift).to(values.dtype), normal.to(values.dtype), inverse


def dropout_add_norm_backward(
    grad: torch.Tensor,
    normal: torch.Tensor,
    inverse: torch.Tensor,
    weight: torch.Tensor,
    seed: int,
    stream: int,
    p: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of `dropout_add_norm`: of residual and values (T, N), of weight, shift and bias
    float32 (N,).
    """
    gradient, wide = grad.float(), normal.float()
    weighted = gradient * weight
    mean = weighted.mean(dim=-1, keepdim=True)
    slope = (weighted * wide).mean(dim=-1, keepdim=True)
    of_residual = (weighted - mean - wide * slope) * inverse[:, None]
    of_values = _drop(of_residual, seed, stream, p)
    sums = (gradient * wide).sum(dim=0), gradient.sum(dim=0), of_values.sum(dim=0)
    return of_residual.to(grad.dtype), of_values.to(grad.dtype), *sums


def bias_gelu(values: torch.Tensor, bias: torch.Tensor, exact: bool) -> torch.Tensor:
    """GELU(values + bias) of rows (T, N); by the error function, or by the tanh formula of the
    original.
    """
    return F.gelu(values.float() + bias, approximate="none" if exact else "tanh").to(values.dtype)


def bias_gelu_backward_(
    grad: torch.Tensor, values: torch.Tensor, bias: torch.Tensor, exact: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradient of the input in place of that of the output.

    Returns:
        The output once more (T, N), and the gradient of the bias float32 (N,).
    """
    approximate = "none" if exact else "tanh"
    wide = values.float() + bias
    own = torch.ops.aten.gelu_backward(grad.float(), wide, approximate=approximate)
    grad.copy_(own)
    return F.gelu(wide, approximate=approximate).to(values.dtype), own.sum(dim=0)


def column_sum(values: torch.Tensor) -> torch.Tensor:
    """float32 (N,): sums over the rows of (T, N)."""
    return values.sum(dim=0, dtype=torch.float32)


def cross_entropy_(
    logits: torch.Tensor,
    bias: torch.Tensor,
    targets: torch.Tensor,
    scale: float,
    needs_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy in nats of logits (T, N) + bias (V,) with targets int64 (T,); V <= N, the
    columns after V are filling.

    With `needs_gradient` the logits become the gradient of `scale` times the summed losses. A row
    whose target is negative has loss and gradient 0.

    Returns:
        The losses float32 (T,), and the gradient of the bias float32 (V,), 0 without
        `needs_gradient`.
    """
    width, is_real = len(bias), targets >= 0
    log_probs = torch.log_softmax(logits[:, :width].float() + bias, dim=-1)
    own = targets.clamp(min=0)
    losses = -log_probs.gather(1, own[:, None])[:, 0] * is_real
    of_bias = torch.zeros_like(bias)
    if needs_gradient:
        gradient = log_probs.exp_().mul_(scale)
        gradient[torch.arange(len(targets), device=targets.device), own] -= scale
        gradient *= is_real[:, None]
        of_bias = gradient.sum(dim=0)
        logits.zero_()[:, :width].copy_(gradient)
    return losses, of_bias
