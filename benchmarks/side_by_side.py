"""What is measured side by side: samples, each a process of its own, their times, and the results
file of a machine.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from bert_recipes.errors import InputError, saving
from bert_recipes.files import atomic_write, strict
from bert_recipes.training.batch_buffer import BatchBuffer
from bert_recipes.training.speed import (
    DENSE_PEAK_TFLOPS,
    BatchStats,
    describe_machine,
    measure_rates,
    model_shapes,
    peak_memory_mb,
    training_flops,
)


HERE = Path(__file__).resolve().parent
OURS, STOCK_DEFAULTS = "ours", "stock_defaults"
# Ours, one step after the other: side -> what it is, and the settings with which it is ours without
# the steps to come.
STEPS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "ours_fp32": (
        "vocabulary for masked tokens alone, fused Adam and GELU, kept memory",
        {"precision": "fp32", "fast_layers": "off"},
    ),
    "ours_bf16": ("bfloat16 products", {"precision": "bf16", "fast_layers": "off"}),
    OURS: ("layers on packed rows with fused kernels, logits never held", {}),
    "muon": ("Muon for the matrices of linear layers", {"optimizer": "muon"}),
}
# Of time_to_quality: the settings that learn most in few minutes.
BUDGET = "budget"
RATES = {
    "pretraining": "tokens_per_second",
    "finetuning": "examples_per_second",
    "inference": "examples_per_second",
}
MAX_WARMUP_STEPS = 12
# A sample that takes longer hangs.
MAX_SAMPLE_SECONDS = 3600.0
IGNORE_INDEX = -100


@dataclass(frozen=True)
class Sample:
    """What a sample process is told."""

    kind: str  # pretraining, finetuning, inference, matmul, data or quality
    side: str = ""
    work_dir: str = ""  # shared by the samples of a run: vocabulary, tables of pairs, prepared text
    config: str = ""  # YAML file of ours
    size: str = "tiny"
    length: int = 128
    tokens_per_step: int = 4096  # positions
    batch_size: int = 32
    vocab_size: int = 30_522
    documents: str = "long"
    store: str | None = None  # instead of generated ids
    task: str = ""
    lengths: tuple[int, ...] = ()  # of that task: number of features of 0, 1, ... tokens
    what: str = ""  # of the data suite, or which step's matrix products
    megabytes: float = 4.0
    files: tuple[str, ...] = ()  # instead of generated text
    switches: Mapping[str, Any] = field(
        default_factory=dict
    )  # on top of stock's defaults, or of our configuration
    precision: str = "fp32"  # of predictions
    use_cpu: bool = False
    # Not counted: at least so many steps, and until so much time has gone by or MAX_WARMUP_STEPS
    # are done.
    warmup_steps: int = 2
    warmup_seconds: float = 0.0
    min_steps: int = 3
    max_steps: int = 200
    budget_seconds: float = 10.0
    whole_pass: bool = (
        False  # max_steps whatever the time: batches of like length are only together like all
    )
    minutes: float = 20.0
    seed: int = 12345

    @property
    def is_ours(self) -> bool:
        """Whether the side is ours, or a step on the way to it."""
        return self.side in (*STEPS, BUDGET)

    @property
    def pairs_per_step(self) -> int:
        """Sentence pairs of a pre-training step."""
        return max(1, self.tokens_per_step // self.length)

    @property
    def total_steps(self) -> int:
        """Steps of the schedule; the same whether or not the time is over before."""
        return (
            max(self.warmup_steps, MAX_WARMUP_STEPS if self.warmup_seconds else 0) + self.max_steps
        )

    def describe(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, for the results file; no folders, no
        histogram.
        """
        left_out = {"work_dir", "config", "lengths"} | (set() if self.switches else {"switches"})
        defaults = {item.name: item.default for item in fields(self) if item.name not in left_out}
        values = {
            name: getattr(self, name) for name in defaults if getattr(self, name) != defaults[name]
        }
        return json.loads(json.dumps(values))


# In the sample's process


class StepTimer(TrainerCallback):
    """Ends the training when the time is over; a step's time is that from the end of the step
    before it to its own end.

    So fetching data, logging and the callbacks are in it. On a GPU the ends are events on the
    device's own clock: the host may run ahead as it does in any training, and the sum of the times
    is still exact, because the device is synchronised before the first and after the last one.
    """

    def __init__(self, sample: Sample, *, on_gpu: bool) -> None:
        self.sample, self.on_gpu = sample, on_gpu
        self.steps = self.warmup_steps = 0
        self._marks: list[Any] = []
        self._begin = self._warm = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock of the warm-up."""
        self._begin = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Mark the end of a step."""
        self.steps += 1
        sample, now = self.sample, time.perf_counter()
        if not self._marks:
            # A large model's memory takes some steps to find its places: a matter of steps, and of
            # time where they are long.
            is_early = self.steps < MAX_WARMUP_STEPS and now - self._begin < sample.warmup_seconds
            if self.steps < sample.warmup_steps or is_early:
                return
            self.warmup_steps = self.steps
            self._synchronise()
            self._warm = now = time.perf_counter()
        self._marks.append(self._mark())
        measured = self.steps - self.warmup_steps
        is_over = (
            not sample.whole_pass and time.perf_counter() - self._warm >= sample.budget_seconds
        )
        if measured >= sample.max_steps or (measured >= sample.min_steps and is_over):
            control.should_training_stop = True

    def _mark(self) -> Any:
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _synchronise(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def read(self) -> tuple[float, list[float]]:
        """Return the seconds of the warm-up, and of each measured step."""
        self._synchronise()
        pairs = zip(self._marks, self._marks[1:], strict=False)
        times = [a.elapsed_time(b) / 1000 if self.on_gpu else b - a for a, b in pairs]
        return self._warm - self._begin, times


class BatchCounter:
    """Counts what a Trainer's batches hold, on the host, and keeps its losses; nothing is read from
    the device before the end.
    """

    def __init__(self, trainer: Any, *, masked_lm: bool) -> None:
        self._masked_lm = masked_lm
        self._steps: list[list[torch.Tensor]] = []
        self._positions: list[int] = []
        self._losses: list[list[torch.Tensor]] = []
        fetch, train = trainer.get_batch_samples, trainer.training_step

        def get_batch_samples(iterator: Any, num_batches: int, device: Any) -> Any:
            # Before they go to the device.
            batches = list(itertools.islice(iterator, num_batches))
            if batches:
                self._count(
                    [
                        batch.tensors() if isinstance(batch, BatchBuffer) else batch
                        for batch in batches
                    ]
                )
            return fetch(iter(batches), num_batches, device)

        def training_step(*args: Any, **kwargs: Any) -> torch.Tensor:
            loss = train(*args, **kwargs)
            self._losses[-1].append(loss.detach())
            return loss

        trainer.get_batch_samples, trainer.training_step = get_batch_samples, training_step

    def _count(self, batches: list[dict[str, torch.Tensor]]) -> None:
        totals = []
        for batch in batches:
            lengths = batch["attention_mask"].sum(dim=-1)
            masked = (
                (batch["labels"] != IGNORE_INDEX).sum()
                if self._masked_lm
                else lengths.new_zeros(())
            )
            totals.append(
                torch.stack(
                    [lengths.sum(), (lengths**2).sum(), lengths.new_tensor(len(lengths)), masked]
                )
            )
        self._steps.append(totals)
        self._positions.append(sum(batch["input_ids"].numel() for batch in batches))
        self._losses.append([])

    def read(self, first: int, count: int) -> tuple[list[BatchStats], list[int], list[float]]:
        """Return work, positions (tokens and pads) and loss of `count` steps from step `first`
        on.
        """
        chosen = slice(first, first + count)
        works = [
            BatchStats(*torch.stack(parts).sum(dim=0).tolist()) for parts in self._steps[chosen]
        ]
        losses = [float(torch.stack(parts).sum()) for parts in self._losses[chosen]]
        return works, self._positions[chosen], losses


def resident_mb(pid: int | str = "self") -> float:
    """Return the largest resident memory of a process so far in MB (2^20); 0 where the system does
    not tell.

    On Linux from /proc: the system's account of resources begins with the memory of the process
    which started this one.
    """
    if pid == "self" and not Path("/proc/self/status").is_file():
        return peak_memory_mb()
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:  # it has just ended
        return 0.0
    return next(
        (int(line.split()[1]) / 2**10 for line in status.splitlines() if line.startswith("VmHWM:")),
        0.0,
    )


def peak_of_group(pid: int) -> float:
    """Return the largest resident memory in MB (10^6) of a process and its children, each for
    itself.
    """
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return 0.0
    return max([resident_mb(pid) * 2**20 / 1e6, *(peak_of_group(int(child)) for child in children)])


def measure_training(sample: Sample) -> dict[str, Any]:
    """Run a Trainer until the time is over; times, counts, memory, losses, model FLOPs."""
    from sides import make_side, on_cpu

    on_gpu = not on_cpu(sample)
    imports, start = resident_mb(), time.perf_counter()
    trainer = make_side(sample)
    timer, counter = (
        StepTimer(sample, on_gpu=on_gpu),
        BatchCounter(trainer, masked_lm=sample.kind == "pretraining"),
    )
    trainer.add_callback(timer)
    setup = time.perf_counter() - start
    trainer.train()
    warmup, seconds = timer.read()
    works, positions, losses = counter.read(timer.warmup_steps, len(seconds))
    work = BatchStats(
        *(sum(getattr(each, item.name) for each in works) for item in fields(BatchStats))
    )
    total, flops = (
        sum(seconds),
        training_flops(trainer.model.config, work, nsp=sample.kind == "pretraining"),
    )
    used = trainer.accelerator.mixed_precision
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
        "precision": "fp32"
        if used == "no"
        else used,  # what it was computed with, whatever the arguments say
        "flops": flops,
        "gflops_per_second": round(flops / total / 1e9, 2),
        "losses": [round(loss, 4) for loss in losses],
        **peak_memory(imports, on_gpu=on_gpu),
    }
    waits = [
        line["data_wait_share"] for line in trainer.state.log_history if "data_wait_share" in line
    ]
    if hasattr(trainer, "meter") and not waits:
        waits = [trainer.meter.read(trainer.accelerator).get("data_wait_share")]
    return result | (
        {"data_wait_share": round(waits[-1], 5)} if waits and waits[-1] is not None else {}
    )


def peak_memory(imports: float, *, on_gpu: bool) -> dict[str, float]:
    """Return the peak resident memory less what the imports took; on a GPU what was allocated at
    most. MB.
    """
    if on_gpu:
        return {"peak_memory_mb": round(torch.cuda.max_memory_allocated() / 2**20, 1)}
    # The kernel gathers pages of threads late, so that a second reading can lie a few below the
    # first.
    return {
        "peak_memory_mb": round(max(0.0, resident_mb() - imports), 1),
        "imports_mb": round(imports, 1),
    }


def measure_matmul(sample: Sample) -> dict[str, Any]:
    """Measure the machine's matrix products in full precision and bfloat16, at the shapes of the
    case.
    """
    from sides import on_cpu, stock_config

    config = stock_config(sample.size, sample.vocab_size)
    shapes = model_shapes(
        sample.tokens_per_step,
        round(0.15 * sample.tokens_per_step) if sample.what == "pretraining" else 0,
        config,
    )
    if sample.what == "small":  # for tests: no large product
        del shapes["square"]
    device = torch.device("cpu" if on_cpu(sample) else "cuda")
    rates = {precision: measure_rates(shapes, precision, device) for precision in ("bf16", "fp32")}
    best = {
        precision: max(rate["gflops"] for rate in found.values())
        for precision, found in rates.items()
    }
    name = torch.cuda.get_device_name(0) if device.type == "cuda" else ""
    return {
        "rates": rates,
        "best_gflops": best,
        "vendor_peak_bf16_tflops": DENSE_PEAK_TFLOPS.get(name),
    }


def measure(sample: Sample) -> dict[str, Any]:
    """Measure what the sample asks for."""
    if sample.kind in ("pretraining", "finetuning"):
        return measure_training(sample)
    if sample.kind == "matmul":
        return measure_matmul(sample)
    module, function = {
        "inference": ("sides", "measure_predictions"),
        "data": ("data_suite", "measure"),
        "quality": ("quality", "measure"),
    }[sample.kind]
    measure_it = getattr(import_module(module), function)
    imports = resident_mb()
    return {
        **measure_it(sample),
        **peak_memory(imports, on_gpu=torch.cuda.is_available() and not sample.use_cpu),
    }


_ENVIRONMENT = (
    *("OMP_NUM_THREADS", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "LD_PRELOAD", "MALLOC_ARENA_MAX"),
    *("PYTORCH_CUDA_ALLOC_CONF", "CUDA_VISIBLE_DEVICES"),
)


def describe_here() -> dict[str, Any]:
    """Return machine, versions, revision and what of the environment changes speed."""
    from accelerate import __version__ as accelerate_version

    ask = [
        "git",
        "-C",
        str(HERE),
        "describe",
        "--always",
        "--abbrev=12",
        "--dirty=+",
        "--exclude=*",
    ]
    try:
        revision = (
            subprocess.run(ask, capture_output=True, text=True, timeout=10).stdout.strip() or None
        )
    except (OSError, subprocess.TimeoutExpired):
        revision = None
    return {
        **describe_machine(),
        "accelerate": accelerate_version,
        "revision": revision,  # with "+" where files were changed
        "system": f"{platform.system()} {platform.release()}",
        "environment": {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
    }


def answer() -> None:
    """Read a sample, measure, write the result: what a sample's process does."""
    told, result = map(Path, sys.argv[1:3])
    values = json.loads(told.read_text(encoding="utf-8"))
    sample = Sample(**values | {name: tuple(values[name]) for name in ("lengths", "files")})
    result.write_text(json.dumps({**measure(sample), "machine": describe_here()}), encoding="utf-8")


# In the process that starts them


def run_sample(
    sample: Sample, threads: int | None = None, timeout: float = MAX_SAMPLE_SECONDS
) -> tuple[dict[str, Any], str | None]:
    """Run a sample in a process of its own; return what it found, and what went wrong."""
    path = os.pathsep.join(
        filter(None, [str(HERE), str(HERE.parent / "src"), os.environ.get("PYTHONPATH")])
    )
    environment = {
        "TOKENIZERS_PARALLELISM": "false",
        **os.environ,
        "PYTHONPATH": path,
        "HF_HUB_OFFLINE": "1",
    }
    environment |= {"TRANSFORMERS_VERBOSITY": "error"} | (
        {"OMP_NUM_THREADS": str(threads)} if threads else {}
    )
    with tempfile.TemporaryDirectory(prefix="bert-recipes-sample-") as folder:
        told, result = Path(folder) / "sample.json", Path(folder) / "result.json"
        told.write_text(json.dumps(asdict(sample)), encoding="utf-8")
        # No script: processes that a sample starts would import it anew.
        command = [
            sys.executable,
            "-c",
            "from side_by_side import answer; answer()",
            str(told),
            str(result),
        ]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                env=environment,
            )
        except subprocess.TimeoutExpired:
            return {}, f"still running after {timeout:.0f} s"
        if result.is_file():
            return json.loads(result.read_text(encoding="utf-8")), None
        return {}, describe_failure(done.returncode, done.stderr)


def describe_failure(code: int, stderr: str) -> str:
    """Return one line of what a process said last."""
    if code < 0:
        return f"ended by signal {-code}" + (" (killed: out of memory?)" if code == -9 else "")
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if "rror" in line), lines[-1] if lines else "")
    return f"exit code {code}: {said[:400]}"


# The results file: one line a record; records are added, none is ever changed or removed

FORMAT, FORMAT_VERSION = "bert-recipes benchmark", 1
# What must be equal for samples to belong together.
MACHINE_KEYS = ("processor", "processor_model", "gpu", "cores", "threads", "torch", "transformers")


def read_results(path: Path) -> list[dict[str, Any]]:
    """Return the records of a results file, which need not exist."""
    if not path.exists():
        return []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(
            f"{path}: damaged ({error}); mend it or move it away, it is never overwritten"
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{path}: no results file of this project; give another --output_dir")
    return content["records"]


def add_result(path: Path, record: Mapping[str, Any]) -> None:
    """Add a record; written aside and renamed, one process at a time."""
    with saving(path), _locked(path.parent):
        lines = [
            json.dumps(item, allow_nan=False) for item in (*read_results(path), strict(record))
        ]
        head = (
            f'{{"format": {json.dumps(FORMAT)}, "format_version": {FORMAT_VERSION}, "records": [\n'
        )
        with atomic_write(path) as aside:
            aside.write_text(head + ",\n".join(lines) + "\n]}\n", encoding="utf-8")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def machine_name(machine: Mapping[str, Any]) -> str:
    """Return a file name for a machine: its GPU, or its processor with its model where it is known,
    and cores.
    """
    processor = (
        f"{machine['processor']} {machine.get('processor_model', '')} {machine['cores']} cores"
    )
    return re.sub(r"[^a-z0-9]+", "_", (machine.get("gpu") or processor).lower()).strip("_")


def same_machine(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two samples were taken on one machine with the same versions and threads."""
    return all(first.get(name) == second.get(name) for name in MACHINE_KEYS)


# Statistics


def samples_of(records: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the records of samples that did not fail."""
    return [record for record in records if record["role"] == "sample" and "result" in record]


def last_runs(
    records: Iterable[Mapping[str, Any]],
) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """Return (suite, case) -> the records of its last run."""
    by_case: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for record in records:
        by_case.setdefault((record["suite"], record["case"]), []).append(record)
    runs = {
        key: [r["run"] for r in found if r["role"] == "sample"] for key, found in by_case.items()
    }
    return {
        key: [r for r in by_case[key] if r["run"] == names[-1]]
        for key, names in runs.items()
        if names
    }


def is_stock(side: str) -> bool:
    """Whether a side is a configuration of stock: any of stock.yaml, or of results of an older
    command.
    """
    return bool(side) and side not in (*STEPS, BUDGET)


def fastest_stock(records: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the side of the fastest configuration of stock in a run, by the medians; None where
    there is none besides the defaults.
    """
    rates: dict[str, list[float]] = {}
    for record in samples_of(records):
        if is_stock(record["side"]) and record["suite"] in RATES:
            rates.setdefault(record["side"], []).append(record["result"][RATES[record["suite"]]])
    return (
        max(rates, key=lambda side: statistics.median(rates[side]))
        if rates.keys() - {STOCK_DEFAULTS}
        else None
    )


def ratio_of(
    records: Sequence[Mapping[str, Any]], side: str | None, rate: str, *, of: str = OURS
) -> tuple[float, float, float, int] | None:
    """Return a side, ours if no other is named, over another in the rounds that have both: median,
    least, most, how many rounds.
    """
    rates = {
        (record["side"], record["round"]): record["result"][rate] for record in samples_of(records)
    }
    ratios = [
        rates[of, n] / value
        for (name, n), value in rates.items()
        if name == side and (of, n) in rates
    ]
    return (statistics.median(ratios), min(ratios), max(ratios), len(ratios)) if ratios else None
