"""What a sample process measures: a Trainer's loop, the machine's matrix products, or what a suite's own module says."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from bert_recipes.training.speed import (
    DENSE_PEAK_TFLOPS,
    describe_machine,
    measure_rates,
    model_shapes,
    training_flops,
)
from speed.spec import SampleSpec
from speed.timing import BatchCounter, StepTimer, add_up


# kind -> module that makes its Trainer. The modules are imported before the memory's zero is read.
TRAINED = {
    "pretraining": "speed.pretraining_sides",
    "finetuning": "speed.finetuning_sides",
}
# kind -> module with a function `measure(spec)`.
MEASURED = {
    "inference": "speed.inference_sides",
    "data": "speed.data_suite",
    "quality": "speed.quality",
}


def resident_mb() -> float:
    """Largest resident memory of this process so far, MB."""
    status = Path("/proc/self/status")
    if status.is_file():
        # Linux hands ru_maxrss on from the process that started this one; this figure begins anew.
        peak = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM"))
        return int(peak.split()[1]) / 2**10
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return usage / 2**20 if sys.platform == "darwin" else usage / 2**10


def uses_gpu(spec: SampleSpec) -> bool:
    """Whether the sample runs on a CUDA device."""
    return torch.cuda.is_available() and not spec.use_cpu


class MemoryPeak:
    """Peak memory from now on: resident memory less what the imports took, on a GPU what was allocated at most."""

    def __init__(self, *, on_gpu: bool) -> None:
        self.on_gpu = on_gpu
        self._zero = resident_mb()

    def read(self) -> dict[str, float]:
        """`peak_memory_mb`, and `imports_mb` that were taken off (CPU)."""
        if self.on_gpu:
            return {"peak_memory_mb": round(torch.cuda.max_memory_allocated() / 2**20, 1)}
        # The kernel counts pages by thread and gathers them late, so a second reading can lie a few below the first.
        grown = max(0.0, resident_mb() - self._zero)
        return {"peak_memory_mb": round(grown, 1), "imports_mb": round(self._zero, 1)}


def measure_training(spec: SampleSpec) -> dict[str, Any]:
    """Run a Trainer until the time is over; times, counts, memory, losses, model FLOPs."""
    sides = import_module(TRAINED[spec.kind])
    on_gpu = uses_gpu(spec)
    memory = MemoryPeak(on_gpu=on_gpu)
    start = time.perf_counter()
    trainer = sides.make_side(spec)
    timer, counter = StepTimer(spec, on_gpu=on_gpu), BatchCounter(trainer, masked_lm=spec.kind == "pretraining")
    trainer.add_callback(timer)
    setup = time.perf_counter() - start
    trainer.train()
    warmup, seconds = timer.read()
    peak = memory.read()
    works, positions, losses = counter.read(timer.warmup_steps, len(seconds))
    work, config = add_up(works), trainer.model.config
    total = sum(seconds)
    flops = training_flops(config, work, nsp=spec.kind == "pretraining")
    result: dict[str, Any] = {
        "setup_seconds": round(setup, 3),
        "warmup_steps": timer.warmup_steps,
        "warmup_seconds": round(warmup, 3),
        "step_seconds": [round(value, 6) for value in seconds],
        "step_tokens": [each.tokens for each in works],
        "step_sequences": [each.sequences for each in works],
        "seconds": round(total, 6),
        "tokens": work.tokens,
        "positions": sum(positions),
        "pads": sum(positions) - work.tokens,
        "sequences": work.sequences,
        "masked": work.masked,
        "tokens_per_second": round(work.tokens / total, 2),
        "examples_per_second": round(work.sequences / total, 3),
        # What it was computed with, whatever the arguments say.
        "precision": "fp32" if (used := trainer.accelerator.mixed_precision) == "no" else used,
        "flops": flops,
        "gflops_per_second": round(flops / total / 1e9, 2),
        "losses": [round(loss, 4) for loss in losses],
        **peak,
    }
    waits = [line["data_wait_share"] for line in trainer.state.log_history if "data_wait_share" in line]
    if hasattr(trainer, "meter") and not waits:
        waits = [trainer.meter.read(trainer.accelerator).get("data_wait_share")]
    if waits and waits[-1] is not None:
        result["data_wait_share"] = round(waits[-1], 5)
    return result


def measure_matmul(spec: SampleSpec) -> dict[str, Any]:
    """Rates of the machine in full precision and bfloat16, at the shapes of the case."""
    from speed.pretraining_sides import stock_config

    config = stock_config(spec.size, spec.vocab_size)
    masked = round(0.15 * spec.tokens_per_step) if spec.what == "pretraining" else 0
    shapes = model_shapes(spec.tokens_per_step, masked, config)
    if spec.what == "small":  # for tests: no large product
        del shapes["square"]
    device = torch.device("cuda" if uses_gpu(spec) else "cpu")
    rates = {precision: measure_rates(shapes, precision, device) for precision in ("bf16", "fp32")}
    best = {precision: max(rate["gflops"] for rate in found.values()) for precision, found in rates.items()}
    name = torch.cuda.get_device_name(0) if uses_gpu(spec) else ""
    return {"rates": rates, "best_gflops": best, "vendor_peak_bf16_tflops": DENSE_PEAK_TFLOPS.get(name)}


def measure(spec: SampleSpec) -> dict[str, Any]:
    """The measurement that the sample asks for."""
    if spec.kind in TRAINED:
        return measure_training(spec)
    if spec.kind == "matmul":
        return measure_matmul(spec)
    module = import_module(MEASURED[spec.kind])
    memory = MemoryPeak(on_gpu=uses_gpu(spec))
    return {**module.measure(spec), **memory.read()}


_ENVIRONMENT = (
    *("OMP_NUM_THREADS", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "LD_PRELOAD", "MALLOC_ARENA_MAX"),
    *("PYTORCH_CUDA_ALLOC_CONF", "CUDA_VISIBLE_DEVICES"),
)


def describe_here() -> dict[str, Any]:
    """Machine, versions and what of the environment changes speed."""
    from accelerate import __version__ as accelerate_version

    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    system = f"{platform.system()} {platform.release()}"
    return {
        **describe_machine(),
        "accelerate": accelerate_version,
        "revision": source_revision(),
        "system": system,
        "environment": environment,
    }


def source_revision() -> str | None:
    """The commit of a checkout, with "+" where files of it were changed; None where there is none."""
    folder = Path(__file__).resolve().parent
    ask = ["git", "-C", str(folder), "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
