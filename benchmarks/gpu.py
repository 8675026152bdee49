r"""The GPU path in prepared steps: is it right, how fast is it, where does the time go.

    python benchmarks/gpu.py --step 1 --output_dir runs/gpu
    python benchmarks/gpu.py --step 2 --part base --output_dir runs/gpu
    python benchmarks/gpu.py --step 2 --part base --use_cpu true --tokens_per_step 256 \
        --budget_seconds 1     # without a GPU

Steps, of at most ten minutes each: 1 tests on the GPU; 2 pre-training of base at 128 and 512 tokens
(--part base) or large at 512 (--part large), with a profile; 3 the same after a change; 4
fine-tuning of base on SST-2 and SQuAD (--part finetuning), pre-training of tiny and mini (--part
small); 5 a run of --minutes on --store, and BLiMP with --blimp_dir. Each prints one table and
writes one JSON file with machine, versions and date. docs/speed.md has the results.
"""

from __future__ import annotations

import gc
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate.state import AcceleratorState
from lengths import TASK_LIMITS, read_lengths
from measuring import describe_here, measure_matmul, measure_training
from sample import Result, Sample, check_gpu
from sides import command_line, make_side, stock_configurations
from transformers import TrainerCallback

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError, run_cli
from bert_recipes.models.kernels.loading import load_kernels
from bert_recipes.settings import check_limits, option


# What torch begins with. Stock's torch_compile sets TF32 for the process.
FP32_PRECISION = torch.backends.fp32_precision  # type: ignore[attr-defined]
REPOSITORY = Path(__file__).resolve().parents[1]
CONFIGS = REPOSITORY / "recipes" / "configs"
PARTS = {
    2: ("base", "large"),
    3: ("base", "large"),
    4: ("finetuning", "small"),
}
# Sizes and lengths of the parts that pre-train.
PRETRAINING_CASES = {
    "base": (("base", 128), ("base", 512)),
    "large": (("large", 512),),
    "small": (("tiny", 128), ("mini", 128)),
}
# Positions of a step: what fills a GPU, stock's too (75 GB of memory for base).
TOKENS_PER_STEP = {
    "tiny": 131_072,
    "mini": 131_072,
    "small": 131_072,
    "medium": 131_072,
    "base": 131_072,
    "large": 65_536,
}
# Kernels and operations of the host that a profile lists, and the steps that it takes.
TOP_KERNELS, TOP_HOST, PROFILED_STEPS, STEPS_BEFORE_PROFILE = 25, 15, 3, 10
SIDES = ("stock, defaults", "stock, best", "ours, eager", "ours")
LAUNCH_CALLS = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")
WAIT_CALLS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
logger = logging.getLogger("gpu")


@dataclass
class GpuArguments:
    """Settings of a step."""

    step: int = option(
        2,
        "which step",
        least=1,
        most=5,
    )
    part: str | None = option(
        None, "of steps 2 and 3: base or large; of step 4: finetuning or small; default: both"
    )
    output_dir: str = option("runs/gpu", "folder of the results")
    budget_seconds: float = option(8.0, "measured seconds of a side", above=0)
    sides: list[str] | None = option(None, "which sides; default: all", choices=SIDES)
    tokens_per_step: int | None = option(
        None,
        "positions of a step; default: by size, for 80 GB of GPU memory and more",
        least=1,
    )
    size: str | None = option(
        None, "instead of the part's sizes, to try a step", choices=TOKENS_PER_STEP
    )
    profile: bool = option(True, "profile a step of ours, which takes 20 seconds a case")
    store: str | None = option(None, "token-id store of step 5")
    recipe: str = option("bert_budget", "configuration of step 5, of recipes/configs/pretrain")
    minutes: float = option(8.0, "training of step 5", above=0)
    blimp_dir: str | None = option(None, "folder data/ of BLiMP, for step 5")
    use_cpu: bool = option(False, "use the CPU even where there is a GPU")

    def __post_init__(self) -> None:
        check_limits(self)
        allowed = PARTS.get(self.step, ())
        if self.part is not None and self.part not in allowed:
            raise InputError(
                f"part is '{self.part}'; allowed with --step {self.step}: "
                f"{', '.join(allowed) or 'none'}"
            )
        if self.step == 5 and self.store is None:
            raise InputError("step 5 needs --store, a folder of recipes/prepare_corpus.py")


def main() -> None:
    """Run one step."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logger.setLevel(logging.INFO)
    (args,) = parse_arguments(GpuArguments)
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    if args.step == 1:
        sys.exit(run_tests(args))
    if args.step == 5:
        train_for_minutes(args)
        return
    check_gpu(use_cpu=args.use_cpu)
    for name in [args.part] if args.part else PARTS[args.step]:
        with tempfile.TemporaryDirectory(prefix="bert-recipes-gpu-") as folder:
            measure_part(args, name, Path(folder))


def run_tests(args: GpuArguments) -> int:
    """Run the tests that need a GPU; return pytest's exit code."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-m",
        "gpu",
        "-n",
        "4",
        *files_of_gpu_tests(),
    ]
    command += ["--durations", "10", "--tb", "short", "--show-capture", "no"]
    command += ["--junitxml", str(Path(args.output_dir).resolve() / "gpu_tests.xml")]
    start = time.monotonic()
    code = subprocess.run(command, cwd=REPOSITORY).returncode
    write_result(
        args,
        "tests",
        {"exit_code": code, "seconds": round(time.monotonic() - start, 1)},
    )
    return code


def files_of_gpu_tests() -> list[str]:
    """Return the files of the tests that need a GPU: to import all others takes half a minute."""
    files = []
    for file in sorted((REPOSITORY / "tests").rglob("test_*.py")):
        if "pytest.mark.gpu" in file.read_text(encoding="utf-8"):
            files.append(str(file))
    return files


def samples_of_part(args: GpuArguments, part: str, work_dir: Path) -> dict[str, Sample]:
    """Return case -> what is measured, without a side."""
    base = Sample(
        kind="pretraining",
        work_dir=str(work_dir),
        use_cpu=args.use_cpu,
        budget_seconds=args.budget_seconds,
        warmup_steps=2 if args.use_cpu else 10,
        max_steps=4 if args.use_cpu else 200,
    )
    samples = {}
    if part == "finetuning":
        size = args.size or "base"
        for task in ("sst2", "squad"):
            limit = TASK_LIMITS[task]
            samples[f"{task}-{size}"] = replace(
                base,
                kind="finetuning",
                config=str(CONFIGS / "finetune" / f"{limit.config}.yaml"),
                size=size,
                length=limit.max_length,
                warmup_steps=2 if args.use_cpu else 30,  # batches of every length are compiled
                task=task,
                tokens_per_step=base.batch_size * limit.max_length,
                lengths=read_lengths()[task],
            )
        return samples
    for default_size, length in PRETRAINING_CASES[part]:
        size = args.size or default_size
        samples[f"{size}-{length}"] = replace(
            base,
            config=str(CONFIGS / "pretrain" / f"bert_{size}.yaml"),
            size=size,
            length=length,
            tokens_per_step=args.tokens_per_step or TOKENS_PER_STEP[size],
        )

    return samples


def sides_of(sample: Sample) -> dict[str, Sample]:
    """Return side -> the sample with its settings."""
    stock = stock_configurations("gpu")
    best = stock["stock_compiled" if sample.kind == "pretraining" else "stock_like_lengths"]
    return {
        "stock, defaults": replace(sample, side="stock_defaults", switches=stock["stock_defaults"]),
        "stock, best": replace(sample, side="stock_best", switches=best),
        "ours, eager": replace(sample, side="ours", switches={"fast_layers": "eager"}),
        "ours": replace(sample, side="ours", switches={"fast_layers": "compiled"}),
    }


def measure_part(args: GpuArguments, part: str, work_dir: Path) -> None:
    """Measure the sides of each case, profile ours, print the table and write the results."""
    cases: dict[str, Any] = {}
    for case, sample in samples_of_part(args, part, work_dir).items():
        matmul = measure_matmul(replace(sample, variant="small" if args.use_cpu else sample.kind))
        sides: dict[str, Any] = {}
        cases[case] = {"matmul": matmul, "sides": sides}
        for side, sample_of_side in sides_of(sample).items():
            if side in (args.sides or SIDES):
                sides[side] = attempt(measure_side, sample_of_side)
                write_result(args, part, cases)  # what is measured is saved, whatever comes
        logger.info("%s", table_of(case, cases[case]))
        ours = sides.get("ours")
        if args.profile and ours is not None and "error" not in ours:
            profile = attempt(profile_ours, sides_of(sample)["ours"])
            cases[case]["profile"] = profile
            write_result(args, part, cases)
            logger.info("%s", profile_table(profile))


def attempt(measurement: Callable[[Sample], Result], sample: Sample) -> Result:
    """Return a measurement, or the error with which it fails: the other ones go on."""
    free_memory()
    try:
        return measurement(sample)
    except Exception as error:  # of a compiler, of stock, of memory
        logger.exception("%s of %s failed", measurement.__name__, sample.side)
        return {"error": f"{type(error).__name__}: {str(error)[:300]}"}


def measure_side(sample: Sample) -> Result:
    """Measure one side."""
    start = time.monotonic()
    result = measure_training(sample)
    if sample.switches.get("fast_layers") == "compiled":
        device = torch.device("cpu" if sample.on_cpu else "cuda")
        kernels: Any = load_kernels("compiled", device)
        result["is_compiled"] = kernels.is_compiled
    return {**result, "seconds_in_all": round(time.monotonic() - start, 1)}


def free_memory() -> None:
    """Forget the side before.

    Its model, its memory, its compiled functions, and the precisions that Accelerate and torch keep
    for a process.
    """
    gc.collect()
    torch.backends.fp32_precision = FP32_PRECISION  # type: ignore[attr-defined]
    AcceleratorState._reset_state(reset_partial_state=True)
    # Torch would compile for rows of any length where the side before had another one.
    torch._dynamo.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


class ProfiledSteps(TrainerCallback):
    """Profiles some steps of a Trainer, and ends it."""

    def __init__(self, profiler: Any) -> None:
        self.profiler = profiler
        self.seconds = 0.0
        self._start = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start after the first steps; stop after some more."""
        if state.global_step == STEPS_BEFORE_PROFILE:
            self.profiler.start()
            synchronize()
            self._start = time.perf_counter()
        if state.global_step == STEPS_BEFORE_PROFILE + PROFILED_STEPS:
            synchronize()
            self.seconds = time.perf_counter() - self._start
            self.profiler.stop()
            control.should_training_stop = True


def synchronize() -> None:
    """Wait for a GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class ProfiledOperation(NamedTuple):
    """A kernel or an operation of the host, per step."""

    name: str
    calls: float
    milliseconds: float


def profile_ours(sample: Sample) -> Result:
    """Profile some steps: kernels, launches, waits, and the share that the GPU is busy."""
    trainer = make_side(replace(sample, max_steps=2 * STEPS_BEFORE_PROFILE))
    activities = [torch.profiler.ProfilerActivity.CPU]
    if not sample.on_cpu:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    steps = ProfiledSteps(torch.profiler.profile(activities=activities))
    trainer.add_callback(steps)
    trainer.train()

    events = steps.profiler.key_averages()
    kernels = operations_of(events, of_host=sample.on_cpu)
    host = operations_of(events, of_host=True)
    counts = {event.key: event.count / PROFILED_STEPS for event in events}
    milliseconds = 1000 * steps.seconds / PROFILED_STEPS
    busy = sum(kernel.milliseconds for kernel in kernels)
    return {
        "milliseconds_per_step": round(milliseconds, 3),
        "busy_share": round(busy / milliseconds, 4),
        "kernels_per_step": sum(kernel.calls for kernel in kernels),
        "launches_per_step": sum(counts.get(name, 0) for name in LAUNCH_CALLS),
        "waits_per_step": {name: counts[name] for name in WAIT_CALLS if name in counts},
        "top": [describe_operation(kernel) for kernel in kernels[:TOP_KERNELS]],
        "host": [describe_operation(operation) for operation in host[:TOP_HOST]],
    }


def operations_of(events: Iterable[Any], *, of_host: bool) -> list[ProfiledOperation]:
    """Return the kernels of a profile, or the host's operations; the longest come first."""
    operations = []
    for event in events:
        microseconds = event.self_cpu_time_total if of_host else event.self_device_time_total
        # A range that somebody named spans kernels, which are counted by themselves.
        is_kernel = event.device_type.name == "CUDA" and not event.is_user_annotation
        if (of_host or is_kernel) and microseconds > 0:
            calls = event.count / PROFILED_STEPS
            milliseconds = microseconds / 1000 / PROFILED_STEPS
            operations.append(ProfiledOperation(event.key, calls, milliseconds))
    return sorted(operations, key=lambda operation: -operation.milliseconds)


def describe_operation(operation: ProfiledOperation) -> Result:
    """Return an operation as the results file has it."""
    return {
        "kernel": operation.name,
        "calls": round(operation.calls, 1),
        "milliseconds": round(operation.milliseconds, 4),
    }


def table_of(case: str, measured: Mapping[str, Any]) -> str:
    """Return a Markdown table of the sides of a case."""
    best = measured["matmul"]["best_gflops"]
    rates = [f"{best[name] / 1000:,.1f} in {name}" for name in best]
    lines = [
        f"\n{case}: this machine's products, TFLOP/s: {', '.join(rates)}",
        "| side | tokens/s | first half, second half | MFU | memory, GB | waits for data | "
        "warm-up, s | examples/s |",
        "| --- | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for side, result in measured["sides"].items():
        if "error" in result:
            lines.append(f"| {side} | {result['error']} |")
            continue
        # A CPU without bfloat16 in hardware has no rate of it.
        peak = best.get("fp32" if result["precision"] == "fp32" else "bf16", best["fp32"])
        waits = result.get("data_wait_share")
        cells = (
            side,
            f"{result['tokens_per_second']:,.0f}",
            ", ".join(f"{rate:,.0f}" for rate in halves_of(result)),
            f"{result['gflops_per_second'] / peak:.1%}",
            f"{result['peak_memory_mb'] / 1024:.1f}",
            "" if waits is None else f"{waits:.1%}",
            f"{result['warmup_seconds']:.0f}",
            f"{result['examples_per_second']:,.0f}",
        )
        lines.append(f"| {' | '.join(cells)} |")

    return "\n".join(lines)


def halves_of(result: Mapping[str, Any]) -> list[float]:
    """Return tokens per second of the first and the second half of the measured steps."""
    seconds, tokens = result["step_seconds"], result["step_tokens"]
    middle = max(len(seconds) // 2, 1)
    rates = [sum(tokens[:middle]) / sum(seconds[:middle])]
    if len(seconds) > middle:
        rates.append(sum(tokens[middle:]) / sum(seconds[middle:]))
    return rates


def profile_table(profile: Mapping[str, Any]) -> str:
    """Return the kernels and the operations of the host that take most of a step."""
    if "error" in profile:
        return f"\nno profile of ours: {profile['error']}"
    lines = [
        f"\nprofile of ours: {profile['milliseconds_per_step']:.1f} ms a step, busy "
        f"{profile['busy_share']:.0%}, "
        f"{profile['launches_per_step']:.0f} launches, waits {profile['waits_per_step']}",
    ]
    for title, rows in (("kernel", profile["top"]), ("operation of the host", profile["host"])):
        lines += [f"\n| ms a step | calls | {title} |", "| --: | --: | --- |"]
        for row in rows:
            name = row["kernel"][:110]
            lines.append(f"| {row['milliseconds']:.3f} | {row['calls']:g} | {name} |")
    return "\n".join(lines)


def train_for_minutes(args: GpuArguments) -> None:
    """Train on the store for some minutes, and score BLiMP."""
    run = Path(args.output_dir) / "run"
    config = CONFIGS / "pretrain" / f"{args.recipe}.yaml"
    flags = {
        "store": args.store,
        # A table of pairs that is beside the store would hide what making it costs.
        "data_cache_dir": Path(args.output_dir) / "pairs",
        "max_minutes": args.minutes,
        "output_dir": run,
        "size": args.size,
        "use_cpu": str(args.use_cpu).lower(),
    }
    run_script("pretrain.py", str(config), flags)
    results = json.loads((run / "all_results.json").read_text(encoding="utf-8"))
    if args.blimp_dir:
        output = Path(args.output_dir) / "blimp"
        flags = {
            "model_name_or_path": run,
            "blimp_dir": args.blimp_dir,
            "output_dir": output,
            "max_pairs": 100,
            "use_cpu": str(args.use_cpu).lower(),
        }
        run_script("score_sentences.py", "", flags)
        scores = json.loads((output / "all_results.json").read_text(encoding="utf-8"))
        results["blimp"] = scores["overall"]
    write_result(args, "run", results)
    for name, value in results.items():
        if isinstance(value, int | float) or name == "blimp":
            logger.info("%-32s %s", name, value)


def run_script(name: str, config: str, flags: Mapping[str, Any]) -> None:
    """Run one of the recipes, with a configuration or with none ("")."""
    command = [
        sys.executable,
        str(REPOSITORY / "recipes" / name),
        *command_line(config, flags),
    ]
    subprocess.run(command, cwd=REPOSITORY, check=True)


def write_result(args: GpuArguments, part: str, result: Any) -> None:
    """Write one JSON file with machine, versions and date."""
    file = Path(args.output_dir) / f"gpu_step{args.step}_{part}.json"
    record = {
        "step": args.step,
        "part": part,
        "date": time.strftime("%Y-%m-%d"),
        "machine": describe_here(on_cpu=args.use_cpu),
        "result": result,
    }
    file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    logger.info("%s", file)


if __name__ == "__main__":
    run_cli(main)
