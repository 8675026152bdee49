"""Attention over packed rows: torch's flash kernel with the offsets of the sequences on a GPU, a
mask elsewhere.

Legend: T query rows, K key rows, h heads, d their size, N sequences.
"""

from __future__ import annotations

import importlib.util

import torch
from torch.nn import attention
from torch.nn import functional as F


# Of torch's flash kernel: compute capability, and the size of a head.
MIN_CAPABILITY = (8, 0)
HEAD_SIZE_STEP, MAX_HEAD_SIZE = 8, 256
# FlashAttention-3 is for Hopper (compute capability 9) alone, and its package has this name.
FLASH_3_CAPABILITY, FLASH_3_MODULE = 9, "flash_attn_interface"


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_offsets: torch.Tensor,
    key_offsets: torch.Tensor,
    max_length: int,
    dropout: float,
    is_causal: bool,
) -> torch.Tensor:
    """Let each query row attend to the key rows of its own sequence.

    Args:
        query: (T, h, d), bfloat16 or float16 on a GPU.
        key: (K, h, d); value too.
        query_offsets: int32 (N + 1,), the first query row of each sequence, and T.
        key_offsets: int32 (N + 1,), the first key row of each sequence, and K.
        max_length: Rows of the longest sequence, at most.
        dropout: Of the attention probabilities, 0 in evaluation.
        is_causal: A row attends to itself and to the rows before it; both offsets are then the
            same.

    Returns:
        (T, h, d)
    """
    if query.is_cuda:
        # As torch.nested calls it. torch.nn.attention.varlen is the same kernel without dropout.
        return torch.ops.aten._flash_attention_forward(
            query,
            key,
            value,
            query_offsets,
            key_offsets,
            max_length,
            max_length,
            dropout,
            is_causal,
            False,
        )[0]
    mask = _sequence_numbers(query_offsets, len(query))[:, None] == _sequence_numbers(
        key_offsets, len(key)
    )
    if is_causal:
        mask = mask.tril()
    query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout
    ).transpose(0, 1)


def _sequence_numbers(offsets: torch.Tensor, num_rows: int) -> torch.Tensor:
    """int64 (num_rows,): the number of each row's sequence."""
    rows = torch.arange(num_rows, dtype=offsets.dtype, device=offsets.device)
    return torch.searchsorted(offsets, rows, right=True)


def choose_flash_kernel(*, has_dropout: bool, capability: tuple[int, int]) -> str:
    """Let torch's flash operation use the fastest kernel that is installed and fits; return the
    kernel's name.

    FlashAttention-3 has no dropout. The choice holds for all models of the process.
    """
    is_installed = importlib.util.find_spec(FLASH_3_MODULE) is not None
    is_active = attention.current_flash_attention_impl() == "FA3"
    if is_installed and not has_dropout and capability[0] == FLASH_3_CAPABILITY:
        if not is_active:
            attention.activate_flash_attention_impl("FA3")
        return "FlashAttention-3"
    if is_active:
        attention.restore_flash_attention_impl()
    return "FlashAttention-2"
