"""Train the same run under several launches, and interrupted in several ways, and compare losses
and weights.

    make compare-launches STORE=my_store

Runs on CPUs, two processes at most; DeepSpeed's rows need pip install 'bert-recipes[deepspeed]'.
Dropout is 0 where the split of the batch differs, as each process drops elements of its own; the
last table has it, beside the spread of seeds.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load_file

from bert_recipes.checkpointing import STATE_FILE
from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError, run_cli
from bert_recipes.files import write_json
from bert_recipes.settings import option, required
from bert_recipes.sweeps.sweep import replace_flags
from bert_recipes.training.speed import describe_machine


ROOT = Path(__file__).resolve().parents[1]


class Launch(NamedTuple):
    """How a run is started: without a launcher, or by a configuration of accelerate_configs/ with
    two processes.
    """

    name: str
    config: str | None = None
    flags: str = ""


class ResumeCase(NamedTuple):
    """A run that is stopped half way: the launches before and after, and flags of both and of the
    run that is not interrupted.
    """

    name: str
    first: Launch
    second: Launch
    flags: str = ""


SPLIT, DROPOUT = "--per_device_train_batch_size 4", "--dropout 0.1"
PHASES = f"{DROPOUT} --phase2_max_seq_length 64 --phase2_steps"
ONE, TWO = Launch("1 process"), Launch("2 processes (DDP)", "ddp_cpu")
WORKERS = Launch("1 process, 2 data workers", flags="--dataloader_num_workers 2")
ZERO = tuple(Launch(f"2 processes, ZeRO {stage}", f"deepspeed_zero{stage}") for stage in (1, 2, 3))
LAUNCHES = (ONE, Launch("1 process, 4 micro-batches", flags=SPLIT), TWO, *ZERO)
RESUME_CASES = (
    ResumeCase("1 process", ONE, ONE),
    ResumeCase("with dropout 0.1", ONE, ONE, DROPOUT),
    ResumeCase("with 2 data workers", WORKERS, WORKERS, DROPOUT),
    ResumeCase("with 4 micro-batches a step", ONE, ONE, f"{SPLIT} {DROPOUT}"),
    ResumeCase("in bfloat16", ONE, ONE, f"--precision bf16 {DROPOUT}"),
    ResumeCase("in phase two", ONE, ONE, PHASES + " {most}"),
    ResumeCase("before phase two", ONE, ONE, PHASES + " {few}"),
    ResumeCase("2 processes (DDP)", TWO, TWO, DROPOUT),
    *(ResumeCase(launch.name, launch, launch) for launch in ZERO),
    ResumeCase("2 processes, then 1", TWO, ONE),
    ResumeCase("1 process, then 2", ONE, TWO),
)
# With dropout each process drops elements of its own: a changed number of processes is one more
# draw.
DROPOUT_CASES = tuple(
    case._replace(flags=DROPOUT)
    for case in RESUME_CASES
    if case.name in ("1 process", "2 processes (DDP)", "2 processes, then 1", "1 process, then 2")
)
SEEDS = (1, 2, 3, 4, 5)
# Settings of all runs, beside --store.
SETTINGS = (
    "--phase2_steps 0 --max_seq_length 48 --global_train_batch_size 16 "
    "--per_device_train_batch_size 8 "
    "--phase2_per_device_train_batch_size 8 --warmup_steps 5 --learning_rate 1e-3 --precision "
    "fp32 --dropout 0 "
    "--save_strategy no --eval_strategy no --dataloader_num_workers 0 --logging_steps 1 --use_cpu "
    "true --disable_tqdm true"
)
# Figures of the clock, which no two runs share.
_TIMES = (
    "tokens_per_second",
    "data_wait_share",
    "mfu",
    "hours_left",
    "runtime",
    "per_second",
    "_seconds",
)


@dataclass
class ComparisonArguments:
    """What is compared."""

    store: str = required("token-id store")
    output_dir: str = option("runs/launches", "folder of the runs")
    steps: int = option(50, "steps of each run")
    results_file: str = option("runs/launches/launches.json", "JSON; a .md table beside it")
    without: str = option("", "leave out rows whose name holds this word, for example ZeRO")


class Comparison:
    """Runs in folders of their own, and what they have in common."""

    def __init__(self, args: ComparisonArguments) -> None:
        self.steps, self.store, self.work_dir = (
            args.steps,
            args.store,
            Path(args.output_dir).absolute(),
        )
        if self.work_dir.is_dir() and any(self.work_dir.iterdir()):
            raise InputError(
                f"output_dir {self.work_dir} is not empty; delete it or give another --output_dir"
            )

    def compare_launches(self, launches: Iterable[Launch]) -> list[dict[str, Any]]:
        """Return the loss at the end and the largest difference of a weight, of each launch beside
        the first.
        """
        rows: list[dict[str, Any]] = []
        for number, launch in enumerate(launches):
            folder, first = self.run(launch, f"launch-{number}"), self.work_dir / "launch-0"
            loss = last_loss(folder)
            row = {
                "launch": launch.name,
                "loss": loss,
                "loss_difference": abs(loss - last_loss(first)),
            }
            rows.append(row | {"largest_weight_difference": largest_difference(folder, first)})
        return rows

    def compare_resumes(self, cases: Iterable[ResumeCase]) -> list[dict[str, Any]]:
        """Return whether runs that are stopped half way end as those that are not."""
        rows, half = [], self.steps // 2
        for number, case in enumerate(cases):
            flags = case.flags.format(most=self.steps - half // 2, few=half // 2)
            straight = self.run(case.first, f"resume-{number}-straight", flags)
            resumed = self.run_in_two_parts(case, f"resume-{number}", flags)
            weights = [
                (folder / "model.safetensors").read_bytes() for folder in (straight, resumed)
            ]
            rows.append(
                {
                    "case": case.name,
                    "equal": weights[0] == weights[1],
                    "history_equal": history_of(straight / STATE_FILE)
                    == history_of(resumed / STATE_FILE),
                    "largest_weight_difference": largest_difference(resumed, straight),
                    "resumed_at_step": json.loads((resumed / "all_results.json").read_text())[
                        "resumed_at_step"
                    ],
                }
            )
        return rows

    def compare_with_seeds(self) -> dict[str, Any]:
        """With dropout: is a run whose number of processes changes half way further off than one of
        another seed?

        Returns:
            The held-out masked-LM loss, nats a token, of each seed and of each case.
        """
        losses = {
            n: held_out_loss(self.run(ONE, f"seed-{n}", f"{DROPOUT} --seed {n}")) for n in SEEDS
        }
        rows = []
        for number, case in enumerate(DROPOUT_CASES):
            folder = self.run_in_two_parts(
                case, f"dropout-{number}", f"{case.flags} --seed {SEEDS[0]}"
            )
            loss = held_out_loss(folder)
            rows.append(
                {"case": case.name, "loss": loss, "difference": abs(loss - losses[SEEDS[0]])}
            )
        return {
            "losses_of_seeds": {str(seed): loss for seed, loss in losses.items()},
            "standard_deviation": statistics.stdev(losses.values()),
            "cases": rows,
        }

    def run_in_two_parts(self, case: ResumeCase, name: str, flags: str) -> Path:
        """Train half of the steps under the case's first launch, and the rest under its second."""
        half = self.steps // 2
        flags = f"{flags} --save_strategy steps --save_steps {half}"
        # What is left of a run that was killed right after the checkpoint in its middle.
        stopped = self.run(case.first, name, flags)
        for file in ("all_results.json", "model.safetensors"):
            (stopped / file).unlink()
        for later in stopped.glob("checkpoint-*"):
            if int(later.name.rpartition("-")[2]) > half:
                shutil.rmtree(later)
        return self.run(case.second, name, flags)

    def run(self, launch: Launch, name: str, flags: str = "") -> Path:
        """Train in a folder of its own."""
        folder, command = self.work_dir / name, [sys.executable]
        if launch.config is not None:
            config = ROOT / "accelerate_configs" / f"{launch.config}.yaml"
            command += ["-m", "accelerate.commands.launch", "--quiet", "--main_process_port", "0"]
            command += ["--config_file", str(config), "--num_processes", "2"]
        command += [str(ROOT / "recipes" / "pretrain.py"), "--config"]
        command += [
            str(ROOT / "recipes" / "configs" / "pretrain" / "bert_tiny.yaml"),
            "--store",
            self.store,
        ]
        own = [*launch.flags.split(), *flags.split()]
        command += replace_flags(SETTINGS.split(), own)
        command += ["--max_steps", str(self.steps), "--output_dir", str(folder)]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "DS_ACCELERATOR": "cpu",
        }
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            said = [line for line in done.stderr.splitlines() if line.strip()] or ["nothing"]
            raise InputError(f"{launch.name}: exit code {done.returncode}: {said[-1]}")
        return folder


def last_loss(folder: Path) -> float:
    """Return the training loss of the last step."""
    return [line["loss"] for line in history_of(folder / STATE_FILE) if "loss" in line][-1]


def held_out_loss(folder: Path) -> float:
    """Return the masked-LM loss of a finished run over the store's held-out part, nats a token."""
    return float(
        json.loads((folder / "all_results.json").read_text(encoding="utf-8"))["eval_mlm_loss"]
    )


def history_of(state_file: Path) -> list[dict[str, Any]]:
    """Return the logged history of a trainer_state.json, without what the clock says."""
    return without_times(json.loads(state_file.read_text(encoding="utf-8"))["log_history"])


def without_times(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a logged history without what the clock says."""
    lines = (line for line in history if "train_runtime" not in line)
    return [
        {name: value for name, value in line.items() if not name.endswith(_TIMES)} for line in lines
    ]


def largest_difference(first: Path, second: Path) -> float:
    """Return the largest absolute difference of a weight of two models."""
    ours, others = (load_file(folder / "model.safetensors") for folder in (first, second))
    return max(
        float((ours[name].float() - others[name].float()).abs().max())
        for name in ours.keys() & others.keys()
    )


def _table(*rows: Sequence[str]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (rows[0], ["---"] * len(rows[0]), *rows[1:])]


def format_tables(results: Mapping[str, Any]) -> str:
    """Return three Markdown tables."""
    seeds = results["seeds"]
    losses, deviation = seeds["losses_of_seeds"].values(), seeds["standard_deviation"]
    launches = [
        (
            row["launch"],
            f"{row['loss']:.6f}",
            f"{row['loss_difference']:.1e}",
            f"{row['largest_weight_difference']:.1e}",
        )
        for row in results["launches"]
    ]
    resumes = [
        (
            row["case"],
            "bit for bit" if row["equal"] else "to rounding",
            "yes" if row["history_equal"] else "to rounding",
            f"{row['largest_weight_difference']:.1e}",
        )
        for row in results["resumes"]
    ]
    cases = [
        (
            row["case"],
            f"{row['loss']:.4f}",
            f"{row['difference']:.1e}",
            f"{row['difference'] / deviation:.2f}",
        )
        for row in seeds["cases"]
    ]
    lines = [
        *_table(
            ("launch", "loss at the end", "its difference", "largest difference of a weight"),
            *launches,
        ),
        "",
        *_table(
            ("stopped half way and resumed", "weights equal", "log equal", "largest difference"),
            *resumes,
        ),
        "",
        f"With dropout 0.1: {len(losses)} seeds, one process, uninterrupted: held-out masked-LM "
        f"loss {min(losses):.4f} to "
        f"{max(losses):.4f}, standard deviation {deviation:.4f}. The same run stopped half way "
        "and resumed:",
        "",
        *_table(
            (
                "with dropout 0.1, the first seed",
                "held-out loss",
                "from the uninterrupted run",
                "in standard deviations of the seeds",
            ),
            *cases,
        ),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run, compare, write."""
    (args,) = parse_arguments(ComparisonArguments)
    comparison = Comparison(args)
    results = {
        "steps": args.steps,
        "date": time.strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "launches": comparison.compare_launches(
            each for each in LAUNCHES if not args.without or args.without not in each.name
        ),
        "resumes": comparison.compare_resumes(
            each for each in RESUME_CASES if not args.without or args.without not in each.name
        ),
        "seeds": comparison.compare_with_seeds(),
    }
    file, table = Path(args.results_file), format_tables(results)
    write_json(file, results)
    file.with_suffix(".md").write_text(table, encoding="utf-8")
    print(table)


if __name__ == "__main__":
    run_cli(main)
