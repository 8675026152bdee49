"""Every kernel on several threads beside plain.py; started as a process of its own, as tests have
one thread.

python tests/models/many_threads.py
"""

import torch
from test_kernels import SEED, both, randn

from bert_recipes.models.kernels.loading import load_kernels


THREADS = 4
ROWS, WIDTH, HEADS, LENGTH, P = 4096, 128, 4, 128, 0.1


def check(compiled, dtype):
    values, residual, grad = (randn(ROWS, WIDTH, dtype=dtype, seed=seed) for seed in range(3))
    bias, weight, shift = (randn(WIDTH, seed=seed) for seed in range(3, 6))
    _, normal, inverse = both(
        compiled, "dropout_add_norm", values, bias, residual, weight, shift, 1e-12, SEED, 1, P
    )
    both(compiled, "dropout_add_norm_backward", grad, normal, inverse, weight, SEED, 1, P)
    for exact in (True, False):
        both(compiled, "bias_gelu", values, bias, exact)
        both(compiled, "bias_gelu_backward_", grad, values, bias, exact)
    both(compiled, "column_sum", values)
    both(compiled, "dropout", values, SEED, 3, P)
    targets = torch.arange(ROWS) % WIDTH
    targets[::7] = -100
    both(compiled, "cross_entropy_", values, bias, targets, 0.25, True)

    lengths = torch.arange(64) * 37 % LENGTH + 1
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    packed = randn(int(offsets[-1]), 3 * WIDTH, dtype=dtype)
    split = both(
        compiled, "split_heads", packed, randn(3 * WIDTH, seed=1), offsets, HEADS, LENGTH, 3
    )
    both(compiled, "merge_heads_", torch.zeros_like(packed), split, offsets)
    scores = randn(len(lengths), HEADS, LENGTH, LENGTH, dtype=dtype)
    attention = (offsets, lengths, 0.25, SEED, 2, P)
    both(compiled, "softmax_dropout_", scores, *attention)
    compiled.softmax_dropout_(scores, *attention)
    both(
        compiled,
        "softmax_dropout_backward_",
        randn(*scores.shape, dtype=dtype, seed=1),
        scores,
        *attention,
    )


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    assert torch.get_num_threads() == THREADS
    kernels = load_kernels("auto", torch.device("cpu"))
    for number_type in (torch.float32, torch.bfloat16):
        check(kernels, number_type)
