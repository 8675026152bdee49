"""The operations of the C++ files in cpu/ in torch, which the kernels are tested against.

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


def _xor_shift(bits: torch.Tensor, count: int) -> torch.Tensor:
    """Return int32 xor itself shifted to the right, filled up with zeros."""
    mask = (1 << (32 - count)) - 1
    return bits ^ ((bits >> count) & mask)


def _signed(value: int) -> int:
    """Return the int32 with the lowest 32 bits of `value`."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def _mix(key: int) -> int:
    """Return SplitMix64's finalizer: keys that differ in one bit then differ in half of them."""
    all_bits = 2**64 - 1
    key &= all_bits
    key ^= key >> 30
    key = key * 0xBF58476D1CE4E5B9 & all_bits
    key ^= key >> 27
    key = key * 0x94D049BB133111EB & all_bits
    return key ^ (key >> 31)


def dropout_factors(
    shape: tuple[int, ...], seed: int, stream: int, p: float, device: torch.device | None = None
) -> torch.Tensor:
    """Return 0 with probability p, else 1 / (1 - p), float32 (shape).

    The factors are a function of (seed, stream, position) alone: 31 bits of a hash of the position
    under a mixed key. The steps are those of Wellons' "lowbias32".

    Args:
        shape: At most 2**31 elements.
        seed: 64 bits.
        stream: Which of the independent masks of a seed.
        p: 0 to 1, 1 not included.
        device: The device of the result.
    """
    key = _mix(seed + (stream + 1) * 0x9E3779B97F4A7C15)
    count = torch.Size(shape).numel()
    positions = torch.arange(count, dtype=torch.int32, device=device)
    bits = positions ^ _signed(key)
    bits = _xor_shift(bits, 16)
    bits = bits * 0x7FEB352D
    bits = _xor_shift(bits, 15)
    bits = bits ^ _signed(key >> 32)
    bits = bits * _signed(0x846CA68B)
    bits = _xor_shift(bits, 16)
    stays = (bits & 0x7FFFFFFF) >= int(p * 2**31)
    factors = stays.to(torch.float32) * (1.0 / (1.0 - p))
    return factors.view(shape)


def _drop(values: torch.Tensor, seed: int, stream: int, p: float) -> torch.Tensor:
    """Drop out of float32 values; they themselves are returned where p is 0."""
    if p == 0:
        return values
    return values * dropout_factors(tuple(values.shape), seed, stream, p, values.device)


def dropout(values: torch.Tensor, seed: int, stream: int, p: float) -> torch.Tensor:
    """Return values after dropout; they themselves are returned where p is 0."""
    if p == 0:
        return values
    return _drop(values.float(), seed, stream, p).to(values.dtype)


def _token_positions(offsets: torch.Tensor, length: int) -> torch.Tensor:
    """Return which positions hold a token, bool (B, S)."""
    return torch.arange(length, device=offsets.device) < offsets.diff()[:, None]


def split_heads(
    packed: torch.Tensor,
    bias: torch.Tensor | None,
    offsets: torch.Tensor,
    heads: int,
    length: int,
    parts: int,
) -> torch.Tensor:
    """Split rows into heads, (T, parts * h * d) -> (parts, B, h, S, d), zeros where no token is."""
    rows = packed if bias is None else (packed.float() + bias).to(packed.dtype)
    is_token = _token_positions(offsets, length)
    padded = packed.new_zeros((*is_token.shape, packed.shape[1]))
    padded[is_token] = rows
    return padded.view(*is_token.shape, parts, heads, -1).permute(2, 0, 3, 1, 4).contiguous()


def merge_heads_(rows: torch.Tensor, split: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Write heads (parts, B, h, S, d) into `rows` (T, parts * h * d), undoing `split_heads`."""
    is_token = _token_positions(offsets, split.shape[3])
    return rows.copy_(split.permute(1, 3, 0, 2, 4)[is_token].flatten(1))


def softmax_dropout_(
    scores: torch.Tensor,
    offsets: torch.Tensor,
    keys: torch.Tensor,
    scaling: float,
    seed: int,
    stream: int,
    p: float,
) -> torch.Tensor:
    """Turn scores (B, h, S, S) into probabilities over the sequence's own keys, in place.

    Other rows and columns are 0.

    Returns:
        The probabilities after dropout; `scores` itself where p is 0.
    """
    is_token = _token_positions(offsets, scores.shape[-1])
    is_key = torch.arange(scores.shape[-1], device=keys.device) < keys[:, None]
    wide = (scores.float() * scaling).masked_fill(~is_key[:, None, None, :], float("-inf"))
    scores.copy_(torch.softmax(wide, dim=-1) * is_token[:, None, :, None])
    return dropout(scores, seed, stream, p)


def softmax_dropout_backward_(  # noqa: PLR0913  # the kernel's signature
    grad: torch.Tensor,
    probabilities: torch.Tensor,
    offsets: torch.Tensor,
    keys: torch.Tensor,
    scaling: float,
    seed: int,
    stream: int,
    p: float,
) -> torch.Tensor:
    """Turn the gradient of dropped probabilities (B, h, S, S) into that of the scores, in place.

    The arguments are those of `softmax_dropout_` and what it made of the scores.
    """
    gradient = _drop(grad.float(), seed, stream, p)
    wide = probabilities.float()
    mean = (gradient * wide).sum(dim=-1, keepdim=True)
    return grad.copy_((gradient - mean) * wide * scaling)


def dropout_add_norm(  # noqa: PLR0913  # the kernel's signature
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
    """Return LayerNorm(residual + dropout(values + bias)) of rows (T, N).

    Returns:
        The result, the normalized rows before weight and shift (T, N), 1 / deviation float32 (T,).
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
    """Return the gradients of `dropout_add_norm`.

    Returns:
        The gradients of residual and values (T, N), of weight, shift and bias float32 (N,).
    """
    gradient = grad.float()
    wide = normal.float()
    normal_grad = gradient * weight
    mean = normal_grad.mean(dim=-1, keepdim=True)
    slope = (normal_grad * wide).mean(dim=-1, keepdim=True)
    residual_grad = (normal_grad - mean - wide * slope) * inverse[:, None]
    values_grad = _drop(residual_grad, seed, stream, p)
    weight_grad = (gradient * wide).sum(dim=0)
    shift_grad = gradient.sum(dim=0)
    bias_grad = values_grad.sum(dim=0)
    dtype = grad.dtype
    return residual_grad.to(dtype), values_grad.to(dtype), weight_grad, shift_grad, bias_grad


def bias_gelu(values: torch.Tensor, bias: torch.Tensor, exact: bool) -> torch.Tensor:
    """Return GELU(values + bias) of rows (T, N).

    With `exact` the GELU uses the error function, otherwise the tanh formula of the original.
    """
    wide = values.float() + bias
    return F.gelu(wide, approximate="none" if exact else "tanh").to(values.dtype)


def bias_gelu_backward_(
    grad: torch.Tensor, values: torch.Tensor, bias: torch.Tensor, exact: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn the gradient of the output of `bias_gelu` into that of its input, in place.

    Returns:
        The output once more (T, N), and the gradient of the bias float32 (N,).
    """
    approximate = "none" if exact else "tanh"
    wide = values.float() + bias
    gradient = torch.ops.aten.gelu_backward(grad.float(), wide, approximate=approximate)
    grad.copy_(gradient)
    return F.gelu(wide, approximate=approximate).to(values.dtype), gradient.sum(dim=0)


def column_sum(values: torch.Tensor) -> torch.Tensor:
    """Return the sums over the rows of (T, N), float32 (N,)."""
    return values.sum(dim=0, dtype=torch.float32)


def cross_entropy_(
    logits: torch.Tensor,
    bias: torch.Tensor,
    targets: torch.Tensor,
    scale: float,
    needs_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cross-entropy in nats of logits (T, N) + bias (V,) with targets int64 (T,).

    V <= N; the columns after V are filling. With `needs_gradient` the logits become the gradient of
    `scale` times the summed losses. A row whose target is negative has loss and gradient 0.

    Returns:
        The losses float32 (T,), and the gradient of the bias float32 (V,), 0 without
        `needs_gradient`.
    """
    vocab_size = len(bias)
    counts = targets >= 0
    classes = targets.clamp(min=0)
    log_probs = torch.log_softmax(logits[:, :vocab_size].float() + bias, dim=-1)
    losses = -log_probs.gather(1, classes[:, None])[:, 0] * counts
    bias_grad = torch.zeros_like(bias)
    if needs_gradient:
        rows = torch.arange(len(targets), device=targets.device)
        gradient = log_probs.exp_().mul_(scale)
        gradient[rows, classes] -= scale
        gradient *= counts[:, None]
        bias_grad = gradient.sum(dim=0)
        logits.zero_()[:, :vocab_size].copy_(gradient)
    return losses, bias_grad
