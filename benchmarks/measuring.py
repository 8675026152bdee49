"""Measure a sample in its process: time a training, count its batches, read its memory."""

from __future__ import annotations

import itertools
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import accelerate
import data_suite
import quality
import sides
import torch
from sample import MAX_WARMUP_STEPS, Result, Sample
from transformers import TrainerCallback

from bert_recipes.data.masking import IGNORE_INDEX
from bert_recipes.training.batch_buffer import BatchBuffer
from bert_recipes.training.speed import (
    BatchStats,
    describe_machine,
    measure_rates,
    model_shapes,
    peak_memory_mb,
    single_thread,
    training_flops,
)


HERE = Path(__file__).resolve().parent
# What of the environment changes speed.
SPEED_VARIABLES = (
    "OMP_NUM_THREADS",
    "GOMP_SPINCOUNT",
    "KMP_BLOCKTIME",
    "LD_PRELOAD",
    "MALLOC_ARENA_MAX",
    "PYTORCH_CUDA_ALLOC_CONF",
    "CUDA_VISIBLE_DEVICES",
)


class StepTimer(TrainerCallback):
    """Ends the training when the time is over.

    A step's time is that from the end of the step before it to its own end. So fetching data,
    logging and the callbacks are in it. On a GPU the ends are events on the device's own clock: the
    host may run ahead as it does in any training, and the sum of the times is still exact, because
    the device is synchronized before the first and after the last one.
    """

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self.steps = self.warmup_steps = 0
        self._marks: list[Any] = []
        self._begin = 0.0
        self._warmup_end = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock of the warm-up."""
        self._begin = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Mark the end of a step."""
        self.steps += 1
        if not self._marks:
            if self._is_warming_up():
                return
            self.warmup_steps = self.steps
            self._synchronize()
            self._warmup_end = time.perf_counter()
        self._marks.append(self._mark())
        if self._is_over():
            control.should_training_stop = True

    def _is_warming_up(self) -> bool:
        # A large model's memory takes some steps to find its places: a matter of steps, and of time
        # where they are long.
        if self.steps < self.sample.warmup_steps:
            return True
        seconds = time.perf_counter() - self._begin
        return self.steps < MAX_WARMUP_STEPS and seconds < self.sample.warmup_seconds

    def _is_over(self) -> bool:
        sample, num_measured = self.sample, self.steps - self.warmup_steps
        if num_measured >= sample.max_steps:
            return True
        if sample.whole_pass or num_measured < sample.min_steps:
            return False
        return time.perf_counter() - self._warmup_end >= sample.budget_seconds

    def _mark(self) -> Any:
        if self.sample.on_cpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _synchronize(self) -> None:
        if not self.sample.on_cpu:
            torch.cuda.synchronize()

    def read(self) -> tuple[float, list[float]]:
        """Return the seconds of the warm-up, and of each measured step."""
        self._synchronize()
        seconds = []
        for before, after in itertools.pairwise(self._marks):
            if self.sample.on_cpu:
                seconds.append(after - before)
            else:
                seconds.append(before.elapsed_time(after) / 1000)
        return self._warmup_end - self._begin, seconds


class BatchCounter:
    """Counts what a Trainer's batches hold, where they are, and keeps its losses.

    Nothing is read from the device before the end.
    """

    def __init__(self, trainer: Any, *, masked_lm: bool) -> None:
        self._masked_lm = masked_lm
        self._counts: list[list[torch.Tensor]] = []  # by step: of each micro-batch
        self._positions: list[int] = []
        self._losses: list[list[torch.Tensor]] = []
        fetch, train = trainer.get_batch_samples, trainer.training_step

        def get_batch_samples(iterator: Any, num_batches: int, device: Any) -> Any:
            # Ours are on the CPU, stock's on the device.
            batches: list[Any] = []

            def keep() -> Iterator[Any]:
                for batch in iterator:
                    batches.append(batch)
                    yield batch

            # The Trainer reads them: it measures for how long it waits.
            samples = fetch(keep(), num_batches, device)
            if batches:
                with single_thread():
                    self._count(batches)
            return samples

        def training_step(*args: Any, **kwargs: Any) -> torch.Tensor:
            loss = train(*args, **kwargs)
            self._losses[-1].append(loss.detach())
            return loss

        trainer.get_batch_samples, trainer.training_step = get_batch_samples, training_step

    def _count(self, batches: list[Any]) -> None:
        counts, positions = [], 0
        for batch in batches:
            tensors = batch.tensors() if isinstance(batch, BatchBuffer) else batch
            lengths = tensors["attention_mask"].sum(dim=-1)
            num_masked = lengths.new_zeros(())
            if self._masked_lm:
                num_masked = (tensors["labels"] != IGNORE_INDEX).sum()
            squares = (lengths**2).sum()
            num_rows = lengths.new_full((), len(lengths))  # no copy, for which the host would wait
            counts.append(torch.stack([lengths.sum(), squares, num_rows, num_masked]))
            positions += tensors["input_ids"].numel()

        self._counts.append(counts)
        self._positions.append(positions)
        self._losses.append([])

    def read(self, first: int, count: int) -> tuple[list[BatchStats], list[int], list[float]]:
        """Return work, positions (tokens and pads) and loss of `count` steps from step `first`."""
        steps = slice(first, first + count)
        works = []
        for counts in self._counts[steps]:
            works.append(BatchStats(*torch.stack(counts).sum(dim=0).tolist()))
        losses = [float(torch.stack(micro_losses).sum()) for micro_losses in self._losses[steps]]
        return works, self._positions[steps], losses


def resident_mb() -> float:
    """Return the largest resident memory of this process so far in MB (2^20).

    On Linux from /proc: the system's account of resources begins with the memory of the process
    which started this one.
    """
    file = Path("/proc/self/status")
    if not file.is_file():
        return peak_memory_mb(torch.device("cpu"))
    for line in file.read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 2**10
    return 0.0


def peak_memory(imports_mb: float, *, on_cpu: bool) -> dict[str, float]:
    """Return the peak resident memory less what the imports took; on a GPU what was allocated.

    In MB.
    """
    if not on_cpu:
        return {"peak_memory_mb": round(torch.cuda.max_memory_allocated() / 2**20, 1)}
    # The kernel gathers pages of threads late, so that a second reading can lie a few below the
    # first.
    peak_mb = max(0.0, resident_mb() - imports_mb)
    return {"peak_memory_mb": round(peak_mb, 1), "imports_mb": round(imports_mb, 1)}


def measure_training(sample: Sample) -> Result:
    """Run a Trainer until the time is over; times, counts, memory, losses, model FLOPs."""
    imports_mb, start = resident_mb(), time.perf_counter()
    is_pretraining = sample.kind == "pretraining"
    trainer = sides.make_side(sample)
    timer, counter = StepTimer(sample), BatchCounter(trainer, masked_lm=is_pretraining)
    trainer.add_callback(timer)
    setup = time.perf_counter() - start
    trainer.train()

    warmup, step_seconds = timer.read()
    works, positions, losses = counter.read(timer.warmup_steps, len(step_seconds))
    work, seconds = _sum_up(works), sum(step_seconds)
    flops = training_flops(trainer.model.config, work, nsp=is_pretraining)
    # What it was computed with, whatever the arguments say.
    precision = trainer.accelerator.mixed_precision
    result = {
        "setup_seconds": round(setup, 3),
        "warmup_steps": timer.warmup_steps,
        "warmup_seconds": round(warmup, 3),
        "step_seconds": [round(value, 6) for value in step_seconds],
        "step_tokens": [work.tokens for work in works],
        "step_sequences": [work.sequences for work in works],
        "seconds": round(seconds, 6),
        "tokens": work.tokens,
        "positions": sum(positions),
        "pads": sum(positions) - work.tokens,
        "sequences": work.sequences,
        "masked": work.masked,
        "tokens_per_second": round(work.tokens / seconds, 2),
        "examples_per_second": round(work.sequences / seconds, 3),
        "precision": "fp32" if precision == "no" else precision,
        "flops": flops,
        "gflops_per_second": round(flops / seconds / 1e9, 2),
        "losses": [round(loss, 4) for loss in losses],
        **peak_memory(imports_mb, on_cpu=sample.on_cpu),
    }

    wait_share = _data_wait_share(trainer)
    if wait_share is not None:
        result["data_wait_share"] = round(wait_share, 5)
    return result


def _sum_up(works: list[BatchStats]) -> BatchStats:
    """Return the work of all steps together."""
    totals = []
    for item in fields(BatchStats):
        totals.append(sum(getattr(work, item.name) for work in works))
    return BatchStats(*totals)


def _data_wait_share(trainer: Any) -> float | None:
    """Return the share of the time that a Trainer of ours waited for data: as logged, or so far."""
    for line in reversed(trainer.state.log_history):
        if "data_wait_share" in line:
            return line["data_wait_share"]
    if hasattr(trainer, "meter"):
        return trainer.meter.read(trainer.accelerator).get("data_wait_share")
    return None


def measure_matmul(sample: Sample) -> Result:
    """Measure the machine's matrix products at the shapes of the case."""
    config = sides.stock_config(sample.size, sample.vocab_size)
    num_masked = round(0.15 * sample.tokens_per_step) if sample.variant == "pretraining" else 0
    shapes = {}
    if sample.variant != "small":  # for tests: no large product
        shapes["square"] = (4096, 4096, 4096)
    shapes.update(model_shapes(sample.tokens_per_step, config))
    if num_masked:
        shapes["vocabulary"] = (num_masked, config.hidden_size, config.vocab_size)
    device = torch.device("cpu" if sample.on_cpu else "cuda")
    rates: dict[str, Any] = {}
    best_gflops: dict[str, float] = {}
    for precision in sample.precisions:
        rates[precision] = measure_rates(shapes, precision, device)
        best_gflops[precision] = max(rate["gflops"] for rate in rates[precision].values())
    return {
        "rates": rates,
        "best_gflops": best_gflops,
    }


MEASURES = {
    "inference": sides.measure_predictions,
    "data": data_suite.measure,
    "quality": quality.measure,
}


def measure(sample: Sample) -> Result:
    """Measure what the sample asks for."""
    if sample.kind in ("pretraining", "finetuning"):
        return measure_training(sample)
    if sample.kind == "matmul":
        return measure_matmul(sample)
    imports_mb = resident_mb()
    result = MEASURES[sample.kind](sample)
    return {**result, **peak_memory(imports_mb, on_cpu=sample.on_cpu)}


def describe_here(*, on_cpu: bool) -> Result:
    """Return machine, versions, revision and what of the environment changes speed."""
    device = torch.device("cpu") if on_cpu else None
    environment = {name: os.environ[name] for name in SPEED_VARIABLES if name in os.environ}
    return {
        **describe_machine(device),
        "accelerate": accelerate.__version__,
        "revision": _revision(),
        "system": f"{platform.system()} {platform.release()}",
        "environment": environment,
    }


def _revision() -> str | None:
    """Return the revision of this checkout, with "+" where files were changed."""
    command = [
        "git",
        "-C",
        str(HERE),
        "describe",
        "--always",
        "--abbrev=12",
        "--dirty=+",
    ]
    command += ["--exclude=*"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def answer() -> None:
    """Read a sample, measure it, and write the result: what a sample's process does."""
    sample_file, result_file = map(Path, sys.argv[1:3])
    values = json.loads(sample_file.read_text(encoding="utf-8"))
    for name in ("lengths", "files"):
        values[name] = tuple(values[name])
    sample = Sample(**values)
    result = measure(sample)
    result["machine"] = describe_here(on_cpu=sample.on_cpu)
    result_file.write_text(json.dumps(result), encoding="utf-8")
