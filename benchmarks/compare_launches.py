"""Train the same run under several launches, and interrupted in several ways, and compare losses and weights.

    make compare-launches STORE=my_store

Runs on CPUs, two processes at most; DeepSpeed's rows need pip install 'bert-recipes[deepspeed]'. Dropout is 0 where the split
of the batch differs, as each process drops elements of its own; the last table has it, beside the spread of seeds.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from bert_recipes.checkpointing import STATE_FILE
from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError, run_cli
from bert_recipes.files import write_json
from bert_recipes.training.speed import describe_machine


@dataclass(frozen=True)
class Launch:
    """How a run is started.

    Attributes:
        name: What it is called in the table.
        config: A configuration of accelerate_configs/, by name; None: one process without a launcher.
        processes: Of the run.
        flags: More flags of recipes/pretrain.py.
    """

    name: str
    config: str | None = None
    processes: int = 1
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class ResumeCase:
    """A run that is stopped half way.

    Attributes:
        name: What it is called in the table.
        first, second: The launches before and after.
        flags: Of both parts and of the run that is not interrupted.
    """

    name: str
    first: Launch
    second: Launch
    flags: tuple[str, ...] = ()


ONE, WORKERS = Launch("1 process"), Launch("1 process, 2 data workers", flags=("--dataloader_num_workers", "2"))
TWO = Launch("2 processes (DDP)", "ddp_cpu", 2)
ZERO = tuple(Launch(f"2 processes, ZeRO {stage}", f"deepspeed_zero{stage}", 2) for stage in (1, 2, 3))
SPLIT = Launch("1 process, 4 micro-batches", flags=("--per_device_train_batch_size", "4"))
LAUNCHES = (ONE, SPLIT, TWO, *ZERO)
_SPLIT, _BF16 = ("--per_device_train_batch_size", "4"), ("--precision", "bf16")
_DROPOUT, _PHASES = ("--dropout", "0.1"), ("--phase2_max_seq_length", "64", "--phase2_steps")
RESUME_CASES = (
    ResumeCase("1 process", ONE, ONE),
    ResumeCase("with dropout 0.1", ONE, ONE, _DROPOUT),
    ResumeCase("with 2 data workers", WORKERS, WORKERS, _DROPOUT),
    ResumeCase("with 4 micro-batches a step", ONE, ONE, (*_SPLIT, *_DROPOUT)),
    ResumeCase("in bfloat16", ONE, ONE, (*_BF16, *_DROPOUT)),
    ResumeCase("in phase two", ONE, ONE, (*_PHASES, "{most}", *_DROPOUT)),
    ResumeCase("before phase two", ONE, ONE, (*_PHASES, "{few}", *_DROPOUT)),
    ResumeCase("2 processes (DDP)", TWO, TWO, _DROPOUT),
    *(ResumeCase(launch.name, launch, launch) for launch in ZERO),
    ResumeCase("2 processes, then 1", TWO, ONE),
    ResumeCase("1 process, then 2", ONE, TWO),
)
# With dropout each process drops elements of its own: a changed number of processes is one more draw.
DROPOUT_CASES = (
    ResumeCase("1 process", ONE, ONE, _DROPOUT),
    ResumeCase("2 processes (DDP)", TWO, TWO, _DROPOUT),
    ResumeCase("2 processes, then 1", TWO, ONE, _DROPOUT),
    ResumeCase("1 process, then 2", ONE, TWO, _DROPOUT),
)
SEEDS = (1, 2, 3, 4, 5)


@dataclass
class Comparison:
    """Runs and compares.

    Attributes:
        script: recipes/pretrain.py.
        work_dir: Folder of the runs.
        steps: Of each run.
        flags: Of all runs: --store and the like.
    """

    script: Path
    work_dir: Path
    steps: int = 50
    flags: Sequence[str] = field(default_factory=tuple)

    def compare_launches(self, launches: Sequence[Launch] = LAUNCHES) -> list[dict[str, Any]]:
        """Loss at the end and largest difference of a weight, of each launch beside the first."""
        if self.work_dir.is_dir() and any(self.work_dir.iterdir()):
            raise InputError(f"output_dir {self.work_dir} is not empty; delete it or give another --output_dir")
        rows: list[dict[str, Any]] = []
        for launch in launches:
            folder = self.run(launch, f"launch-{len(rows)}")
            loss = last_loss(folder)
            first = self.work_dir / "launch-0"
            rows.append(
                {
                    "launch": launch.name,
                    "loss": loss,
                    "loss_difference": abs(loss - last_loss(first)),
                    "largest_weight_difference": largest_difference(folder, first),
                }
            )
        return rows

    def compare_resumes(self, cases: Sequence[ResumeCase] = RESUME_CASES) -> list[dict[str, Any]]:
        """Whether runs that are stopped half way end as those that are not."""
        rows = []
        for number, case in enumerate(cases):
            half = self.steps // 2
            flags = [flag.format(most=self.steps - half // 2, few=half // 2) for flag in case.flags]
            straight = self.run(case.first, f"resume-{number}-straight", *flags)
            resumed = self.run_in_two_parts(case, f"resume-{number}", *flags)
            rows.append(
                {
                    "case": case.name,
                    "equal": (straight / "model.safetensors").read_bytes()
                    == (resumed / "model.safetensors").read_bytes(),
                    "history_equal": history_of(straight / STATE_FILE) == history_of(resumed / STATE_FILE),
                    "largest_weight_difference": largest_difference(resumed, straight),
                    "resumed_at_step": json.loads((resumed / "all_results.json").read_text())["resumed_at_step"],
                }
            )
        return rows

    def compare_with_seeds(
        self, cases: Sequence[ResumeCase] = DROPOUT_CASES, seeds: Sequence[int] = SEEDS
    ) -> dict[str, Any]:
        """With dropout: is a run whose number of processes changes half way further off than one of another seed?

        Args:
            cases: Stopped half way and resumed; with the first seed.
            seeds: Of uninterrupted runs of one process.

        Returns:
            The held-out masked-LM loss, nats a token, of each seed and of each case.
        """
        straight = [self.run(ONE, f"seed-{seed}", *_DROPOUT, "--seed", str(seed)) for seed in seeds]
        losses = [held_out_loss(folder) for folder in straight]
        rows = []
        for number, case in enumerate(cases):
            folder = self.run_in_two_parts(case, f"dropout-{number}", *case.flags, "--seed", str(seeds[0]))
            loss = held_out_loss(folder)
            rows.append({"case": case.name, "loss": loss, "difference": abs(loss - losses[0])})
        return {
            "losses_of_seeds": dict(zip(map(str, seeds), losses, strict=True)),
            "standard_deviation": statistics.stdev(losses),
            "cases": rows,
        }

    def run_in_two_parts(self, case: ResumeCase, name: str, *flags: str) -> Path:
        """Train half of the steps under the case's first launch, and the rest under its second."""
        half = self.steps // 2
        flags = (*flags, "--save_strategy", "steps", "--save_steps", str(half))
        # What is left of a run that was killed right after the checkpoint in its middle.
        stopped = self.run(case.first, name, *flags)
        for file in ("all_results.json", "model.safetensors"):
            (stopped / file).unlink()
        for later in stopped.glob("checkpoint-*"):
            if int(later.name.rpartition("-")[2]) > half:
                shutil.rmtree(later)
        return self.run(case.second, name, *flags)

    def run(self, launch: Launch, name: str, *flags: str) -> Path:
        """Train in a folder of its own."""
        folder = self.work_dir / name
        command = [sys.executable]
        if launch.config is not None:
            configs = self.script.parent.parent / "accelerate_configs"
            command += ["-m", "accelerate.commands.launch", "--quiet", "--main_process_port", "0"]
            command += [
                "--config_file",
                str(configs / f"{launch.config}.yaml"),
                "--num_processes",
                str(launch.processes),
            ]
        command += [str(self.script), *self.flags, "--max_steps", str(self.steps), "--logging_steps", "1"]
        command += ["--output_dir", str(folder), "--use_cpu", "true", "--disable_tqdm", "true", *launch.flags, *flags]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu"}
        done = subprocess.run(command, cwd=self.script.parent.parent, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            said = [line for line in done.stderr.splitlines() if line.strip()] or ["nothing"]
            raise InputError(f"{launch.name}: exit code {done.returncode}: {said[-1]}")
        return folder


def last_loss(folder: Path) -> float:
    """The training loss of the last step."""
    return [line["loss"] for line in history_of(folder / STATE_FILE) if "loss" in line][-1]


def held_out_loss(folder: Path) -> float:
    """The masked-LM loss of a finished run over the store's held-out part, nats a token."""
    return float(json.loads((folder / "all_results.json").read_text(encoding="utf-8"))["eval_mlm_loss"])


# Figures of the clock, which no two runs share.
_TIMES = ("tokens_per_second", "data_wait_share", "mfu", "hours_left", "runtime", "per_second", "eval_seconds")


def history_of(state_file: Path) -> list[dict[str, Any]]:
    """The logged history of a trainer_state.json, without what the clock says."""
    return without_times(json.loads(state_file.read_text(encoding="utf-8"))["log_history"])


def without_times(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A logged history without what the clock says."""
    return [
        {name: value for name, value in line.items() if not name.endswith(_TIMES)}
        for line in history
        if "train_runtime" not in line
    ]


def largest_difference(first: Path, second: Path) -> float:
    """The largest absolute difference of a weight of two models."""
    ours, others = (load_file(folder / "model.safetensors") for folder in (first, second))
    names = ours.keys() & others.keys()
    return max(float((ours[name].float() - others[name].float()).abs().max()) for name in names)


def format_tables(results: Mapping[str, Any]) -> str:
    """Three Markdown tables."""
    lines = [
        "| launch | loss at the end | its difference | largest difference of a weight |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| {row['launch']} | {row['loss']:.6f} | {row['loss_difference']:.1e} | {row['largest_weight_difference']:.1e} |"
        for row in results["launches"]
    ]
    lines += [
        "",
        "| stopped half way and resumed | weights equal | log equal | largest difference |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| {row['case']} | {'bit for bit' if row['equal'] else 'to rounding'} | {'yes' if row['history_equal'] else 'to rounding'} "
        f"| {row['largest_weight_difference']:.1e} |"
        for row in results["resumes"]
    ]
    seeds = results["seeds"]
    losses = seeds["losses_of_seeds"].values()
    lines += [
        "",
        f"With dropout 0.1: {len(losses)} seeds, one process, uninterrupted: held-out masked-LM loss {min(losses):.4f} to "
        f"{max(losses):.4f}, standard deviation {seeds['standard_deviation']:.4f}. The same run stopped half way and resumed:",
        "",
        "| with dropout 0.1, the first seed | held-out loss | from the uninterrupted run | in standard deviations of the seeds |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| {row['case']} | {row['loss']:.4f} | {row['difference']:.1e} "
        f"| {row['difference'] / seeds['standard_deviation']:.2f} |"
        for row in seeds["cases"]
    ]
    return "\n".join(lines) + "\n"


ROOT = Path(__file__).resolve().parents[1]


@dataclass
class ComparisonArguments:
    """What is compared.

    Attributes:
        store: Token-id store of recipes/prepare_corpus.py.
        output_dir: Folder of the runs, and of the results.
        steps: Steps of each run.
        results_file: Where the figures go as JSON; a Markdown table beside it.
        without: Leave out launches and cases whose name holds this word, for example ZeRO.
    """

    store: str = field(metadata={"help": "token-id store"})
    output_dir: str = field(default="runs/launches", metadata={"help": "folder of the runs"})
    steps: int = field(default=50, metadata={"help": "steps of each run"})
    results_file: str = field(default="runs/launches/launches.json", metadata={"help": "JSON; a .md table beside it"})
    without: str = field(default="", metadata={"help": "leave out rows whose name holds this word"})


def main() -> None:
    """Run, compare, write."""
    (args,) = parse_arguments(ComparisonArguments)
    flags = ["--config", str(ROOT / "recipes" / "configs" / "pretrain" / "bert_tiny.yaml"), "--store", args.store]
    flags += ["--phase2_steps", "0", "--max_seq_length", "48", "--global_train_batch_size", "16"]
    flags += ["--per_device_train_batch_size", "8", "--phase2_per_device_train_batch_size", "8", "--warmup_steps", "5"]
    flags += ["--learning_rate", "1e-3", "--precision", "fp32", "--dropout", "0", "--save_strategy", "no"]
    flags += ["--eval_strategy", "no", "--dataloader_num_workers", "0"]
    comparison = Comparison(ROOT / "recipes" / "pretrain.py", Path(args.output_dir).absolute(), args.steps, flags)
    launches = [each for each in LAUNCHES if not args.without or args.without not in each.name]
    cases = [each for each in RESUME_CASES if not args.without or args.without not in each.name]
    results = {
        "steps": args.steps,
        "date": time.strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "launches": comparison.compare_launches(launches),
        "resumes": comparison.compare_resumes(cases),
        "seeds": comparison.compare_with_seeds(),
    }
    file = Path(args.results_file)
    write_json(file, results)
    table = format_tables(results)
    file.with_suffix(".md").write_text(table, encoding="utf-8")
    print(table)


if __name__ == "__main__":
    run_cli(main)
