"""Attention over packed rows: torch's flash kernel on a GPU, a mask elsewhere.

Legend: T query rows, K key rows, h heads, d their size.
"""

from __future__ import annotations

import importlib.util

import torch
from torch.nn import attention
from torch.nn import functional as F

from bert_recipes.models.padding_free import RowOffsets


# Requirements of torch's flash kernel: compute capability, and the size of a head. Gradients of
# larger heads need one of the larger GPUs (FlashAttention-2, mha_bwd).
MIN_CAPABILITY = (8, 0)
HEAD_SIZE_STEP = 8
MAX_HEAD_SIZE = 192
# FlashAttention-3 is for Hopper (compute capability 9) alone, and its package has this name.
FLASH_3_CAPABILITY = 9
FLASH_3_MODULE = "flash_attn_interface"

_any_dropout = False  # of a model of this process


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets: RowOffsets,
    dropout: float,
    is_causal: bool,
) -> torch.Tensor:
    """Let each row attend to the rows of its own sequence.

    Args:
        query: (T, h, d), bfloat16 or float16 on a GPU; key and value too.
        key: The key of every row, though only those of `offsets.key_rows` are attended to.
        value: The same.
        offsets: Where the sequences begin.
        dropout: The dropout of the attention probabilities, 0 in evaluation.
        is_causal: A row attends to itself and to the rows before it; all rows are then keys.

    Returns:
        (T, h, d)
    """
    if offsets.key_rows is not None:
        key = key[offsets.key_rows]
        value = value[offsets.key_rows]
    if query.is_cuda:
        # As torch.nested calls it. torch.nn.attention.varlen is the same kernel without dropout.
        outputs = torch.ops.aten._flash_attention_forward(
            query,
            key,
            value,
            offsets.query_offsets,
            offsets.key_offsets,
            offsets.max_length,
            offsets.max_length,
            dropout,
            is_causal,
            False,
        )
        return outputs[0]
    sequences = _sequence_numbers(offsets.query_offsets, len(query))
    key_sequences = _sequence_numbers(offsets.key_offsets, len(key))
    mask = sequences[:, None] == key_sequences
    if is_causal:
        mask = mask.tril()
    output = F.scaled_dot_product_attention(
        query.transpose(0, 1),
        key.transpose(0, 1),
        value.transpose(0, 1),
        attn_mask=mask,
        dropout_p=dropout,
    )
    return output.transpose(0, 1)


def _sequence_numbers(offsets: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Return the number of each row's sequence, int64 (num_rows,)."""
    rows = torch.arange(num_rows, dtype=offsets.dtype, device=offsets.device)
    return torch.searchsorted(offsets, rows, right=True)


def choose_flash_kernel(*, has_dropout: bool, capability: tuple[int, int]) -> str:
    """Let torch's flash operation use the fastest kernel that fits, and return its name.

    FlashAttention-3 has no dropout. The choice holds for all models of the process: a teacher
    without dropout must not make it for its student.
    """
    global _any_dropout
    _any_dropout = _any_dropout or has_dropout
    is_installed = importlib.util.find_spec(FLASH_3_MODULE) is not None
    is_active = attention.current_flash_attention_impl() == "FA3"
    if is_installed and not _any_dropout and capability[0] == FLASH_3_CAPABILITY:
        if not is_active:
            attention.activate_flash_attention_impl("FA3")
        return "FlashAttention-3"
    if is_active:
        attention.restore_flash_attention_impl()
    return "FlashAttention-2"
