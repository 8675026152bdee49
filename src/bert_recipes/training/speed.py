"""Measure the speed of training: tokens per second, model FLOPs, the machine's peak rate, memory.

Model FLOPs are the useful work of a step, the same for every side whatever it computes besides.

Legend: H hidden size, I feed-forward size, L layers, V vocabulary, T real tokens (no pads), l
length of a sequence, M predicted tokens, B sequences.
"""

import ctypes
import functools
import logging
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
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
    **dict.fromkeys(("NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe"), 312.0),
}


@dataclass(frozen=True)
class BatchStats:
    """Hold the work of some steps."""

    tokens: int  # T, real ones
    squares: int  # the sum of l^2 over the sequences
    sequences: int  # B
    masked: int = 0  # M


NUM_WORK_COUNTS = len(fields(BatchStats))


def inner_size(config: Any) -> int:
    """Return the size of the feed-forward layers, which DistilBERT calls hidden_dim."""
    return getattr(config, "intermediate_size", None) or config.hidden_dim


def forward_flops(config: Any, work: BatchStats, *, nsp: bool = True, pooler: bool = True) -> int:
    """Return the FLOPs of the matrix products of a forward pass; (a, b) x (b, c) has 2abc.

    Each layer has, for a token, the projections to query, key, value and output, 4 x 2 H^2, and two
    feed-forward products, 2 x 2 H I. A sequence of l tokens adds Q K^T and P V over all heads, 2 x
    2 l^2 H. The masked-LM head is counted for the M predicted tokens alone: the transform 2 H^2 and
    the vocabulary 2 H V. The pooler has 2 H^2 a sequence (models of tokens have none), the
    next-sentence head 4 H. Embeddings of another size E add 2 E H a token, and the head is
    2 H E + 2 E V then. A task's head is less than a thousandth of the total and is not counted.
    """
    hidden = config.hidden_size
    inner = inner_size(config)
    embedding = getattr(config, "embedding_size", hidden)
    projects = embedding != hidden or config.model_type == "albert"

    attention_projections = 8 * hidden**2
    feed_forward = 4 * hidden * inner
    layer = work.tokens * (attention_projections + feed_forward)
    layer += work.squares * 4 * hidden
    transform = 2 * hidden * embedding
    vocabulary = 2 * embedding * config.vocab_size

    flops = config.num_hidden_layers * layer
    flops += work.masked * (transform + vocabulary)
    if projects:
        flops += work.tokens * 2 * embedding * hidden
    if pooler:
        flops += work.sequences * 2 * hidden**2
    if pooler and nsp:
        flops += work.sequences * 4 * hidden
    return flops


def training_flops(config: Any, work: BatchStats, *, nsp: bool = True, pooler: bool = True) -> int:
    """Return three times the FLOPs of the forward pass.

    Each product has two more in the backward pass, for its input and its weight.
    """
    return 3 * forward_flops(config, work, nsp=nsp, pooler=pooler)


logger = logging.getLogger(__name__)

# Instructions that decide how fast matrix products are, by their names in /proc/cpuinfo (x86, then
# ARM).
_INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16", "i8mm")

# Line of /proc/cpuinfo -> its name in a results file.
_NUMBERS = {
    "cpu family": "family",
    "model": "model",
    "CPU implementer": "implementer",
    "CPU part": "part",
}


def describe_machine(device: torch.device | None = None) -> dict[str, Any]:
    """Return machine and versions, for results files; a GPU only where it is the device.

    `processor` is the name the system gives; virtual machines often hide all but the maker, so
    `processor_model` (family and model, or part, as the processor numbers itself) and
    `instructions` tell those of one name apart, where the system says them.

    Args:
        device: What computes; None: a GPU where there is one.
    """
    cpu_facts = read_cpu_facts()
    flags = (cpu_facts.get("flags") or cpu_facts.get("Features") or "").split()
    numbers = [f"{name} {cpu_facts[key]}" for key, name in _NUMBERS.items() if key in cpu_facts]
    instructions = [name for name in _INSTRUCTIONS if name in flags]
    machine: dict[str, Any] = {
        "processor": cpu_facts.get("model name") or platform.processor() or platform.machine(),
    }
    if numbers:
        machine["processor_model"] = ", ".join(numbers)
    if instructions:
        machine["instructions"] = instructions
    has_gpu = torch.cuda.is_available() and (device is None or device.type == "cuda")
    return {
        **machine,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(device) if has_gpu else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


@functools.cache
def read_cpu_facts(file: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Return the lines of the first processor; none where the system has no such file."""
    if not file.is_file():
        return {}
    facts = {}
    first_processor = file.read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    for line in first_processor.splitlines():
        key, _, value = line.partition(":")
        facts[key.strip()] = value.strip()
    return facts


REPETITIONS = 20
# A product that takes longer is repeated less often.
SLOW_SECONDS = 0.5
SLOW_REPETITIONS = 5


def model_shapes(tokens: int, config: Any) -> dict[str, tuple[int, int, int]]:
    """Return the (a, b, c) of the products (a, b) x (b, c) of a layer, for so many tokens."""
    hidden = config.hidden_size
    inner = inner_size(config)
    return {
        "projection": (tokens, hidden, hidden),
        "feed_forward_in": (tokens, hidden, inner),
        "feed_forward_out": (tokens, inner, hidden),
    }


def measure_rates(
    shapes: dict[str, tuple[int, int, int]], precision: str, device: torch.device
) -> dict[str, dict[str, Any]]:
    """Return the rate of each product of `model_shapes`, in "fp32", "bf16" or "fp16".

    Returns:
        {name: {"shape", "gflops" (median, GFLOP/s), "repetitions"}}.
    """
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    generator = torch.Generator(device).manual_seed(0)  # the run's numbers stay as they are
    rates = {}
    for name, (rows, inner, columns) in shapes.items():
        a = torch.randn(rows, inner, device=device, generator=generator).to(dtype)
        b = torch.randn(inner, columns, device=device, generator=generator).to(dtype)
        _time_product(a, b)  # the first one allocates and chooses
        times = [_time_product(a, b)]
        repetitions = SLOW_REPETITIONS if times[0] > SLOW_SECONDS else REPETITIONS
        while len(times) < repetitions:
            times.append(_time_product(a, b))
        gflops = 2 * rows * inner * columns / statistics.median(times) / 1e9
        rates[name] = {
            "shape": [rows, inner, columns],
            "gflops": round(gflops, 2),
            "repetitions": len(times),
        }
    return rates


def best_rate(config: Any, tokens: int, precision: str, device: torch.device) -> float:
    """Return the FLOP/s that the machine can reach.

    The rate is that of its data sheet, or else the best of the products of a micro-batch.
    """
    if device.type == "cuda" and precision != "fp32":
        tflops = DENSE_PEAK_TFLOPS.get(torch.cuda.get_device_name(device))
        if tflops is not None:
            return tflops * 1e12
    shapes = model_shapes(tokens, config)
    rates = measure_rates(shapes, precision, device)
    return max(rate["gflops"] for rate in rates.values()) * 1e9


def _time_product(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the seconds of a @ b."""
    if a.is_cuda:
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        a @ b
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1000
    start_time = time.perf_counter()
    a @ b
    return time.perf_counter() - start_time


# <malloc.h> of glibc
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def keep_freed_memory() -> bool:
    """Let glibc keep the blocks that a training step frees, for the next step.

    By default every block above 32 MB goes back to the kernel when it is freed and comes back as
    empty pages, one page fault each. The logits of one batch of 32 x 128 alone are 75 MB. The
    process never gives memory back then. Elsewhere than on Linux with glibc nothing is changed
    (False).
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # An older glibc takes no more than 32 MB. If it refuses both, nothing is changed: setting the
    # other options alone would freeze the threshold at its low start.
    if not (mallopt(_M_MMAP_THRESHOLD, 1 << 30) or mallopt(_M_MMAP_THRESHOLD, 1 << 25)):
        logger.info("glibc does not keep freed memory; steps will be slower")
        return False
    # -1: the heap is never trimmed. Any number of bytes would be too small for some step.
    if not (mallopt(_M_TRIM_THRESHOLD, -1) and mallopt(_M_TOP_PAD, 64 << 20)):
        return False
    logger.info(
        "freed memory is reused, not returned to the system (--keep_freed_memory false returns it)"
    )
    return True


@contextmanager
def single_thread() -> Iterator[None]:
    """Let torch compute with one thread inside of the block, which has little to compute.

    Waking the others takes longer than such work does (docs/speed.md, "On a GPU").
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def peak_memory_mb(device: torch.device) -> float:
    """Return the peak memory of this process in MB: resident memory, or what a GPU allocated."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return usage / 2**20 if sys.platform == "darwin" else usage / 2**10


class ThroughputMeter:
    """Sum losses, tokens and times between two lines of the training log.

    The sums stay on the devices of their summands, so that no step waits.

    Args:
        device: The device of the losses.
        work_device: The device of the counts.
    """

    def __init__(self, device: torch.device, work_device: torch.device) -> None:
        self._losses = torch.zeros(2, dtype=torch.float64, device=device)
        self._has_loss = [False, False]
        # The fields of `BatchStats`.
        self._work = torch.zeros(NUM_WORK_COUNTS, dtype=torch.float64, device=work_device)
        self._steps = 0
        self._timed_steps = 0
        self._waited = 0.0
        self._since: Any = None  # a time; None before measuring begins
        # Work, seconds and number of the steps between the last two readings; None where nothing
        # was timed.
        self.interval: tuple[BatchStats, float, int] | None = None

    def count_step(self, work: torch.Tensor, waited: float) -> None:
        """Count an optimizer step.

        Args:
            work: float64 (NUM_WORK_COUNTS,), the fields of `BatchStats` over all processes.
            waited: Seconds for which the step waited for data.
        """
        self._steps += 1
        self._timed_steps += 1
        self._work += work
        self._waited += waited

    def add_losses(self, losses: Sequence[torch.Tensor | None], scale: int) -> None:
        """Add the two losses of a micro-batch, None if there is none."""
        for position, loss in enumerate(losses):
            if loss is not None:
                self._losses[position] += loss.detach() * scale
                self._has_loss[position] = True

    def sums(self) -> list[float]:
        """Return the sums of this process since the last reading, for a checkpoint.

        The list has both losses, the number of steps, and for each loss whether there is one.
        """
        return [*self._losses.tolist(), float(self._steps), *map(float, self._has_loss)]

    def take_sums(self, sums: list[float]) -> None:
        """Take the sums of a checkpoint; the clock starts again."""
        self._losses.copy_(torch.tensor(sums[:2], dtype=torch.float64))
        self._steps = round(sums[2])
        self._has_loss = [bool(flag) for flag in sums[3:]]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time inside of the block from the measurement.

        Measuring begins with the first pause: after the first step, which is slow everywhere.
        """
        start = time.perf_counter()
        if self._since is None:
            self._start_interval(start)
        yield
        # A reading inside of the block has started the next interval already.
        self._since += time.perf_counter() - max(start, self._since)

    def read(
        self, accelerator: Accelerator, loss_names: Sequence[str] = ("mlm_loss", "nsp_loss")
    ) -> dict[str, float]:
        """Return the means since the last reading; the sums start again.

        The losses, in nats, are named in the order of `add_losses`. `data_wait_share` is the
        fraction of the time (0 to 1) for which the model waited for its data.
        """
        sums = accelerator.reduce(self._losses.clone(), reduction="mean")
        mean_losses = (sums / max(self._steps, 1)).tolist()
        means = {}
        for name, loss, has_loss in zip(loss_names, mean_losses, self._has_loss, strict=True):
            if has_loss:
                means[name] = loss
        now = time.perf_counter()
        work = BatchStats(*map(round, self._work.tolist()))
        self.interval = None
        if work.tokens and self._since is not None:
            seconds = now - self._since
            self.interval = work, seconds, self._timed_steps
            means["tokens_per_second"] = work.tokens / seconds
            means["data_wait_share"] = self._waited / seconds
        self._losses.zero_()
        self._steps = 0
        self._start_interval(now)
        return means

    def _start_interval(self, now: float) -> None:
        self._since = now
        self._waited = 0.0
        self._timed_steps = 0
        self._work.zero_()
