"""Attention over packed rows for a GPU: one more entry of transformers' attention interface, with torch's own flash kernel.

Stock layers run on one row (1, T) of the real tokens of a batch. Legend: T rows, h heads, d their size, N sequences.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask


PACKED_SDPA = "bert_recipes_packed_sdpa"
# Of the flash kernel of torch.
MIN_CAPABILITY = (8, 0)


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """(1, h, T, d) each -> (1, T, h, d); a row attends to its sequence alone.

    Args:
        cu_seq_lens_q: int32 (N + 1,), the first row of each sequence, and T; None: a padded batch, which stock's sdpa computes.
        max_length_q: Rows of the longest sequence, at most.
    """
    if cu_seq_lens_q is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    if not query.is_cuda:  # the same for a CPU, where torch has no such kernel
        rows = torch.arange(query.shape[2], dtype=torch.int32, device=query.device)
        number = torch.searchsorted(cu_seq_lens_q, rows, right=True)
        mask = number[:, None] == number
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling)
        return out.transpose(1, 2), None
    # As torch.nested calls it: torch.nn.attention.varlen has no dropout.
    packed = (each[0].transpose(0, 1) for each in (query, key, value))
    lengths = (cu_seq_lens_q, cu_seq_lens_q, max_length_q, max_length_q)
    out = torch.ops.aten._flash_attention_forward(*packed, *lengths, dropout, False, False, scale=scaling)[0]
    return out[None], None


AttentionInterface.register(PACKED_SDPA, attend)
AttentionMaskInterface.register(PACKED_SDPA, sdpa_mask)
