"""Measure the speed of training: tokens per second, model FLOPs, the machine's peak rate, memory.

Model FLOPs are the useful work of a step, the same for every side whatever it computes besides.

Legend: H hidden size, I feed-forward size, L layers, V vocabulary, T real tokens (no pads), l
length of a sequence, M predicted tokens, B sequences.
"""

import ctypes
import itertools
import logging
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import Accelerator


# Dense bfloat16 TFLOP/s without sparsity. Source: NVIDIA data sheets, which print the figure with
# sparsity: "H100 Tensor Core GPU" (SXM: 1,979), "H200 Tensor Core GPU" (SXM: 1,979), "A100 Tensor
# Core GPU" (312 dense). Other GPUs are left out.
DENSE_PEAK_TFLOPS = {
    **dict.fromkeys(("NVIDIA H100 80GB HBM3", "NVIDIA H200"), 989.4),
    **dict.fromkeys(("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"), 312.0),
}


@dataclass(frozen=True)
class BatchStats:
    """The work of some steps: T real tokens, the sum of l^2 over the sequences, B sequences, M
    predicted tokens.
    """

    tokens: int
    squares: int
    sequences: int
    masked: int = 0


def inner_size(config: Any) -> int:
    """Size of the feed-forward part, which DistilBERT calls hidden_dim."""
    return getattr(config, "intermediate_size", None) or config.hidden_dim


def forward_flops(config: Any, work: BatchStats, *, nsp: bool = True, pooler: bool = True) -> int:
    """FLOPs of the matrix products of a forward pass; a product (a, b) x (b, c) has 2abc.

    Each layer has, for a token, the projections to query, key, value and output, 4 x 2 H^2, and two
    feed-forward products, 2 x 2 H I. A sequence of l tokens adds Q K^T and P V over all heads, 2 x
    2 l^2 H. The masked-LM head is counted for the
    M predicted tokens alone: the transform 2 H^2 and the vocabulary 2 H V. The pooler has 2 H^2 a
    sequence (models of tokens have none), the next-sentence head 4 H. Embeddings of another size E
    add 2 E H a token, and the head is 2 H E + 2 E V then. A task's own head is less than a
    thousandth of the total and is not counted.
    """
    hidden, inner = config.hidden_size, inner_size(config)
    size = getattr(config, "embedding_size", hidden)
    layer = work.tokens * (8 * hidden**2 + 4 * hidden * inner) + 4 * hidden * work.squares
    head = work.masked * (2 * hidden * size + 2 * size * config.vocab_size)
    mapped = (
        2 * size * hidden * work.tokens if size != hidden or config.model_type == "albert" else 0
    )
    pooled = work.sequences * (2 * hidden**2 + (4 * hidden if nsp else 0)) if pooler else 0
    return config.num_hidden_layers * layer + head + mapped + pooled


def training_flops(config: Any, work: BatchStats, *, nsp: bool = True, pooler: bool = True) -> int:
    """Three times the forward pass: each product has two more in the backward pass, for its input
    and its weight.
    """
    return 3 * forward_flops(config, work, nsp=nsp, pooler=pooler)


logger = logging.getLogger(__name__)

# Instructions that decide how fast matrix products are, by their names in /proc/cpuinfo (x86, then
# ARM).
_INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16", "i8mm")

# Line of /proc/cpuinfo -> what it is called in a results file.
_NUMBERS = {
    "cpu family": "family",
    "model": "model",
    "CPU implementer": "implementer",
    "CPU part": "part",
}


def describe_machine() -> dict[str, Any]:
    """Machine and versions, for results files.

    `processor` is the name the system gives; virtual machines often hide all but the maker, so
    `processor_model` (family and model, or part, as the processor numbers itself) and
    `instructions` tell those of one name apart, where the system says them.
    """
    facts = _cpu_facts()
    flags = (facts.get("flags") or facts.get("Features") or "").split()
    known = {
        "processor": facts.get("model name") or platform.processor() or platform.machine(),
        "processor_model": ", ".join(
            f"{name} {facts[key]}" for key, name in _NUMBERS.items() if key in facts
        ),
        "instructions": [name for name in _INSTRUCTIONS if name in flags],
    }
    return {
        **{key: value for key, value in known.items() if value},
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _cpu_facts(path: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """The lines of the first processor; empty where the system has no such file."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    lines = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}


# One product that takes longer than this is repeated less often.
REPETITIONS, SLOW_SECONDS, SLOW_REPETITIONS = 20, 0.5, 5


def model_shapes(tokens: int, masked: int, config: Any) -> dict[str, tuple[int, int, int]]:
    """Name -> (a, b, c) of the products (a, b) x (b, c) of a step with that many tokens, `masked`
    of them predicted.
    """
    hidden, inner = config.hidden_size, inner_size(config)
    shapes = {"square": (4096, 4096, 4096), "projection": (tokens, hidden, hidden)}
    shapes |= {
        "feed_forward_in": (tokens, hidden, inner),
        "feed_forward_out": (tokens, inner, hidden),
    }
    return shapes | ({"vocabulary": (masked, hidden, config.vocab_size)} if masked else {})


def measure_rates(
    shapes: dict[str, tuple[int, int, int]], precision: str, device: torch.device
) -> dict[str, dict[str, Any]]:
    """Name of `model_shapes` -> {"shape", "gflops" (median, GFLOP/s), "repetitions"}, in "fp32",
    "bf16" or "fp16".
    """
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    generator = torch.Generator(device).manual_seed(0)  # a run's own numbers stay as they are
    rates = {}
    for name, (rows, inner, columns) in shapes.items():
        left = torch.randn(rows, inner, device=device, generator=generator).to(dtype)
        right = torch.randn(inner, columns, device=device, generator=generator).to(dtype)
        _time(left, right)  # the first one allocates and chooses
        times = [_time(left, right)]
        times += [
            _time(left, right)
            for _ in range((SLOW_REPETITIONS if times[0] > SLOW_SECONDS else REPETITIONS) - 1)
        ]
        gflops = 2 * rows * inner * columns / statistics.median(times) / 1e9
        rates[name] = {
            "shape": [rows, inner, columns],
            "gflops": round(gflops, 2),
            "repetitions": len(times),
        }
    return rates


def best_rate(config: Any, tokens: int, precision: str, device: torch.device) -> float:
    """FLOP/s that the machine can reach: by its data sheet where that is known, else the best of
    the products of a micro-batch.
    """
    known = (
        DENSE_PEAK_TFLOPS.get(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    )
    if known is not None and precision != "fp32":
        return known * 1e12
    shapes = {
        name: shape for name, shape in model_shapes(tokens, 0, config).items() if name != "square"
    }  # slow on a CPU
    return max(rate["gflops"] for rate in measure_rates(shapes, precision, device).values()) * 1e9


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


# <malloc.h> of glibc
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def keep_freed_memory() -> bool:
    """Let glibc keep the blocks that a training step frees, for the next step; the process never
    gives memory back.

    By default every block above 32 MB goes back to the kernel when it is freed and comes back as
    empty pages, one page fault each. The logits of one batch of 32 x 128 alone are 75 MB. Elsewhere
    than on Linux with glibc nothing is changed (False).
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # An older glibc takes no more than 32 MB. If it takes neither, nothing is changed: setting the
    # others alone would freeze the threshold at its low start.
    if not any(mallopt(_M_MMAP_THRESHOLD, size) == 1 for size in (1 << 30, 1 << 25)):
        logger.info("glibc does not keep freed memory; steps will be slower")
        return False
    # -1: the heap is never trimmed. Any number of bytes would be too small for somebody's step.
    is_done = all(
        mallopt(name, value) == 1
        for name, value in ((_M_TRIM_THRESHOLD, -1), (_M_TOP_PAD, 64 << 20))
    )
    if is_done:
        logger.info(
            "freed memory is reused, not returned to the system (--keep_freed_memory false "
            "returns it)"
        )
    return is_done


def peak_memory_mb() -> float:
    """Peak memory of this process in MB: resident memory, or allocated GPU memory where there is a
    GPU.
    """
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return usage / 2**20 if sys.platform == "darwin" else usage / 2**10


class ThroughputMeter:
    """Sums between two lines of the training log, kept where their parts are so that no step waits
    for the device.

    Args:
        device: Of the losses.
        work_device: Of the counts.
    """

    def __init__(self, device: torch.device, work_device: torch.device) -> None:
        self._losses = torch.zeros(2, dtype=torch.float64, device=device)
        self._work = torch.zeros(
            4, dtype=torch.float64, device=work_device
        )  # the fields of `BatchStats`
        self._has_loss = [False, False]
        self._steps = self._timed_steps = 0
        self._waited = 0.0
        self._since: Any = None  # a time; None before measuring begins
        # What the steps since the reading before have computed, their seconds and number; None
        # where nothing was timed.
        self.interval: tuple[BatchStats, float, int] | None = None

    def count_step(self, work: torch.Tensor, waited: float) -> None:
        """Count an optimiser step: float64 (4,), the fields of `BatchStats` over all processes;
        seconds for which it waited for data.
        """
        self._steps += 1
        self._timed_steps += 1
        self._work += work
        self._waited += waited

    def add_losses(
        self, mlm_loss: torch.Tensor | None, nsp_loss: torch.Tensor | None, scale: int
    ) -> None:
        """Add this micro-batch's parts of the step's losses."""
        for position, loss in enumerate((mlm_loss, nsp_loss)):
            if loss is not None:
                self._losses[position] += loss.detach() * scale
                self._has_loss[position] = True

    def sums(self) -> list[float]:
        """The sums of this process since the last reading, for a checkpoint: both losses, steps,
        which losses are known.
        """
        return [*self._losses.tolist(), float(self._steps), *map(float, self._has_loss)]

    def take_sums(self, sums: list[float]) -> None:
        """Take the sums of a checkpoint; the clock starts again."""
        self._losses.copy_(torch.tensor(sums[:2], dtype=torch.float64))
        self._steps = round(sums[2])
        self._has_loss = [bool(known) for known in sums[3:]]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude from the measurement what is done inside. Measuring begins with the first pause:
        after the first step, which is slow everywhere.
        """
        start = time.perf_counter()
        if self._since is None:
            self._start_interval(start)
        yield
        # A reading in between has started the next interval already.
        self._since += time.perf_counter() - max(start, self._since)

    def read(self, accelerator: Accelerator) -> dict[str, float]:
        """Means since the last reading; the sums start again.

        Losses in nats; `data_wait_share` is the fraction of the time (0 to 1) for which the model
        waited for its data.
        """
        losses = (
            accelerator.reduce(self._losses.clone(), reduction="mean") / max(self._steps, 1)
        ).tolist()
        result = dict(
            itertools.compress(zip(("mlm_loss", "nsp_loss"), losses, strict=True), self._has_loss)
        )
        now, work = time.perf_counter(), BatchStats(*map(round, self._work.tolist()))
        self.interval = None
        if work.tokens and self._since is not None:
            seconds = now - self._since
            self.interval = work, seconds, self._timed_steps
            result |= {
                "tokens_per_second": work.tokens / seconds,
                "data_wait_share": self._waited / seconds,
            }
        self._losses.zero_()
        self._steps = 0
        self._start_interval(now)
        return result

    def _start_interval(self, now: float) -> None:
        self._since, self._waited, self._timed_steps = now, 0.0, 0
        self._work.zero_()
