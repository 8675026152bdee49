"""The machine's own rate of matrix products, against which a step's model FLOPs are held."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from bert_recipes.flops import DENSE_PEAK_TFLOPS


REPETITIONS = 20
# One product that takes longer than this is repeated less often.
SLOW_SECONDS, SLOW_REPETITIONS = 0.5, 5
SQUARE = 4096


def model_shapes(tokens: int, masked: int, config: Any) -> dict[str, tuple[int, int, int]]:
    """Name -> (a, b, c) of the products (a, b) x (b, c) of a step.

    Args:
        tokens: Tokens of a step.
        masked: Predicted tokens of a step; 0 without a masked-LM head.
        config: A `BertConfig`.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes = {
        "square": (SQUARE, SQUARE, SQUARE),
        "projection": (tokens, hidden, hidden),
        "feed_forward_in": (tokens, hidden, inner),
        "feed_forward_out": (tokens, inner, hidden),
    }
    if masked:
        shapes["vocabulary"] = (masked, hidden, config.vocab_size)
    return shapes


def measure_rates(
    shapes: dict[str, tuple[int, int, int]], precision: str, device: torch.device
) -> dict[str, dict[str, Any]]:
    """Name -> {"shape", "gflops" (median, GFLOP/s), "repetitions"}.

    Args:
        shapes: Of `model_shapes`.
        precision: "fp32", "bf16" or "fp16".
        device: Where.
    """
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    rates = {}
    generator = torch.Generator(device).manual_seed(0)  # a run's own numbers stay as they are
    for name, (rows, inner, columns) in shapes.items():
        left = torch.randn(rows, inner, device=device, generator=generator).to(dtype)
        right = torch.randn(inner, columns, device=device, generator=generator).to(dtype)
        _time(left, right)  # the first one allocates and chooses
        times = [_time(left, right)]
        repetitions = SLOW_REPETITIONS if times[0] > SLOW_SECONDS else REPETITIONS
        times += [_time(left, right) for _ in range(repetitions - 1)]
        gflops = 2 * rows * inner * columns / statistics.median(times) / 1e9
        shape = [rows, inner, columns]
        rates[name] = {"shape": shape, "gflops": round(gflops, 2), "repetitions": repetitions}
    return rates


def best_rate(config: Any, tokens: int, precision: str, device: torch.device) -> float:
    """FLOP/s that the machine can reach: by its data sheet where that is known, otherwise the best of the model's own products.

    Args:
        config: A `BertConfig`.
        tokens: Of a micro-batch.
        precision: "fp32", "bf16" or "fp16".
        device: Where.
    """
    known = DENSE_PEAK_TFLOPS.get(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    if known is not None and precision != "fp32":
        return known * 1e12
    shapes = model_shapes(tokens, 0, config)
    del shapes["square"]  # takes seconds on a CPU
    rates = measure_rates(shapes, precision, device)
    return max(rate["gflops"] for rate in rates.values()) * 1e9


def _time(left: torch.Tensor, right: torch.Tensor) -> float:
    if left.is_cuda:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        left @ right
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1000
    start = time.perf_counter()
    left @ right
    return time.perf_counter() - start
