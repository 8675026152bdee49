"""Model FLOPs of a BERT training step: the useful work, the same for every side whatever it computes besides.

Legend: H hidden size, I feed-forward size, L layers, V vocabulary, T real tokens (no pads), l length of a sequence,
M predicted tokens, B sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


# Dense bfloat16 TFLOP/s without sparsity. Source: NVIDIA data sheets, which print the figure with sparsity: "H100 Tensor
# Core GPU" (SXM: 1,979), "H200 Tensor Core GPU" (SXM: 1,979), "A100 Tensor Core GPU" (312 dense). Other GPUs are left out.
DENSE_PEAK_TFLOPS = {
    "NVIDIA H100 80GB HBM3": 989.4,
    "NVIDIA H200": 989.4,
    "NVIDIA A100-SXM4-40GB": 312.0,
    "NVIDIA A100-SXM4-80GB": 312.0,
}


@dataclass(frozen=True)
class Work:
    """What a number of steps has computed.

    Attributes:
        tokens: T, real tokens.
        squares: Sum of l^2 over the sequences.
        sequences: B.
        masked: M; 0 without a masked-LM head.
    """

    tokens: int
    squares: int
    sequences: int
    masked: int = 0


def forward_flops(config: Any, work: Work, *, nsp: bool = True, pooler: bool = True) -> int:
    """FLOPs of the matrix products of a forward pass; a product (a, b) x (b, c) has 2abc.

    Each layer has, for a token, the projections to query, key, value and output, 4 x 2 H^2, and two feed-forward
    products, 2 x 2 H I: together 8 H^2 + 4 H I. A sequence of l tokens adds Q K^T and P V over all heads, 2 x 2 l^2 H.
    The masked-LM head is counted for the M predicted tokens alone: the transform 2 H^2 and the vocabulary 2 H V. The
    pooler has 2 H^2 a sequence, the next-sentence head 4 H. Embeddings, LayerNorm, GELU, softmax, dropout, the loss and
    the optimiser are no matrix products and are not counted.

    Args:
        config: A `BertConfig`.
        work: What was computed.
        nsp: Count the next-sentence head.
        pooler: Count the pooler, and what stands on it; models of tokens have none. A task's own head, 2 H a label and token or
            sequence, is less than a thousandth of the whole and is not counted.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    layer = work.tokens * (8 * hidden**2 + 4 * hidden * inner) + 4 * hidden * work.squares
    head = work.masked * (2 * hidden**2 + 2 * hidden * config.vocab_size)
    pooled = work.sequences * (2 * hidden**2 + (4 * hidden if nsp else 0)) if pooler else 0
    return config.num_hidden_layers * layer + head + pooled


def training_flops(config: Any, work: Work, *, nsp: bool = True, pooler: bool = True) -> int:
    """Three times the forward pass: each product has two more in the backward pass, for its input and its weight."""
    return 3 * forward_flops(config, work, nsp=nsp, pooler=pooler)
