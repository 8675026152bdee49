r"""Fine-tune with this project and with stock transformers, and compare.

    python benchmarks/compare_with_stock.py --task all --model_name_or_path M --data_dir DATA \
        --output_dir runs/comparison

Both start from the same weights with the same settings. For each task: figures of both sides over
the seeds of `PLAN`, the time of training, and the single losses of 50 steps on the same batches
without dropout. Every flag that is not listed here goes to both sides. The same command resumes
after an interruption. OUTPUT/<task>.json holds the figures, OUTPUT/table.md the table. Exit code 1
where single losses differ by more than rounding.
"""

from __future__ import annotations

import json
import logging
import math
import os
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finetune_stock import check_stock_has

from bert_recipes.config import field_types, parse_arguments
from bert_recipes.errors import InputError, run_cli
from bert_recipes.files import write_json
from bert_recipes.settings import SEEDS, option, required
from bert_recipes.sweeps.processes import end_with_children
from bert_recipes.sweeps.sweep import (
    RunLauncher,
    check_flag_names,
    choose_seeds,
    claim_folder,
    figure_of,
    finetuning_command,
    given_flags,
    hashes_of_files,
    split_flags,
)
from bert_recipes.tasks.catalogue import get_task


ROOT = Path(__file__).resolve().parents[1]
SIDES = ("ours", "stock")
ALL, PLAN_FILE, TABLE_FILE = "all", "comparison_plan.json", "table.md"
# Single losses: no dropout, full precision, the validation split only touched. Differences up to
# the tolerance, in nats, are rounding.
LOSS_STEPS, LOSS_TOLERANCE = 50, 1e-4
LOSS_FLAGS = {
    "dropout": "0",
    "precision": "fp32",
    "max_steps": str(LOSS_STEPS),
    "logging_steps": "1",
    "max_eval_examples": "8",
    "seed": "1",
}
Result = dict[str, Any]
Record = Mapping[str, Any]
Runs = Mapping[str, Sequence[Record]]  # side -> all_results.json of each seed
logger = logging.getLogger("compare_with_stock")


@dataclass(frozen=True, kw_only=True)
class ComparedTask:
    """Settings of one task of the comparison."""

    config: str = "glue"  # stem of its file in recipes/configs/finetune
    figures: tuple[str, ...] = ("accuracy",)  # validation figures of the table
    seeds: tuple[int, ...] = (1,)
    flags: Mapping[str, str] = field(default_factory=dict)  # on top of the configuration
    loss_batch: int = 8  # examples of a step where the single losses are compared


# Small data sets and short runs scatter most: three seeds.
_THREE = (1, 2, 3)
# The largest rate that Devlin et al. 2019, section 4.1, tries: a run of the plan has fewer than 300
# steps.
_RATE = "5e-5"
_GLUE = {"max_train_examples": "2000", "learning_rate": _RATE}
# Their validation files are long, and partial where this was run.
_LONG_VALIDATION = {**_GLUE, "max_eval_examples": "2000"}
# Ours: few questions leave few steps; half the batch and twice the rate make more of them.
_SQUAD = {
    "max_train_examples": "1200",
    "max_eval_examples": "1000",
    "global_train_batch_size": "16",
    "per_device_train_batch_size": "16",
    "num_train_epochs": "2",
    "learning_rate": "1e-4",
}
_SWAG = {"max_train_examples": "1000", "learning_rate": _RATE}
_MATCHED = ("matched_accuracy", "mismatched_accuracy")

# Sized for two cores of a CPU and a model of 22 M parameters: 10 minutes a run at most. In the
# order in which they are run; ax has no labels to compare by.
PLAN: Mapping[str, ComparedTask] = {
    "wnli": ComparedTask(seeds=_THREE, flags=_GLUE),
    "cola": ComparedTask(figures=("matthews_correlation",), seeds=_THREE, flags=_GLUE),
    "mrpc": ComparedTask(figures=("f1", "accuracy"), seeds=_THREE, flags=_GLUE),
    "stsb": ComparedTask(figures=("spearmanr", "pearson"), seeds=_THREE, flags=_GLUE),
    "rte": ComparedTask(seeds=_THREE, flags=_GLUE),
    "sst2": ComparedTask(flags=_GLUE),
    "qqp": ComparedTask(figures=("f1", "accuracy"), flags=_LONG_VALIDATION),
    "mnli": ComparedTask(figures=_MATCHED, flags=_LONG_VALIDATION),
    "qnli": ComparedTask(seeds=_THREE, flags=_GLUE),
    "conll2003": ComparedTask(
        config="ner",
        figures=("f1",),
        seeds=_THREE,
        flags={"max_train_examples": "3000"},
        loss_batch=4,
    ),
    "swag": ComparedTask(config="swag", flags=_SWAG, loss_batch=4),
    "squad": ComparedTask(
        config="squad", figures=("f1", "exact_match"), flags=_SQUAD, loss_batch=4
    ),
    "squad_v2": ComparedTask(
        config="squad_v2", figures=("f1", "exact"), flags=_SQUAD, loss_batch=4
    ),
}

_RESERVED = {
    "seed": "give --seeds",
    "config": "the plan names it for each task; give single fields",
    "task_file": "tasks of the plan are compared",
    "decoder": "stock reads answers off the offsets, as its example does, and ours by the "
    "original's rules",
    "resume_from_checkpoint": "the same command goes on by itself",
    "push_to_hub": "both sides would be pushed; push a run afterwards: make push RUN=... REPO=...",
    "overwrite_run": "for new runs give another --output_dir",
}


@dataclass
class CompareArguments:
    """Settings of the comparison."""

    output_dir: str = required("folder of the runs, the figures and the table")
    task: str = option(ALL, f"{ALL}, or one of {', '.join(PLAN)}")
    seeds: list[int] | None = option(
        None,
        "seeds of both sides; default: the plan's",
        **SEEDS,
    )
    table_only: bool = option(False, "run nothing; print the table of what lies there")

    def __post_init__(self) -> None:
        if self.task not in (ALL, *PLAN):
            raise InputError(f"task is '{self.task}'; allowed: {ALL}, {', '.join(PLAN)}")


def check_flags(argv: Sequence[str]) -> None:
    """Refuse flags for both sides that are unknown, decided here, or nothing that stock has."""
    check_flag_names(argv, field_types(CompareArguments))
    for name, reason in _RESERVED.items():
        if name in given_flags(argv):
            raise InputError(f"--{name} cannot be given here: {reason}")
    check_stock_has(
        optimizer=_last_value(argv, "optimizer", "adamw"),
        schedule=_last_value(argv, "schedule", "trainer"),
    )


def _last_value(argv: Sequence[str], name: str, default: str) -> str:
    """Return the value of a flag, as `--name value` or `--name=value`."""
    words, _ = split_flags(argv, [name])
    return words[-1].split("=", 1)[-1] if words else default


def flags_of(values: Mapping[str, str], argv: Sequence[str]) -> list[str]:
    """Return `--field value` for each, then the user's flags, which replace those fields."""
    flags = []
    for name, value in values.items():
        if name not in given_flags(argv):
            flags += [f"--{name}", value]
    return [*flags, *argv]


# Runs


def compare_task(
    name: str, folder: Path, argv: Sequence[str], seeds: Sequence[int] | None = None
) -> Result:
    """Run what is not finished of a task, and write FOLDER/<task>.json.

    Each run is a process of its own.
    """
    plan, runs_folder = PLAN[name], folder / name
    config = ROOT / "recipes" / "configs" / "finetune" / f"{plan.config}.yaml"
    base = [
        "--config",
        os.path.relpath(config),
        "--task",
        name,
        "--disable_tqdm",
        "true",
    ]
    flags = base + flags_of(plan.flags, argv)
    fixed = {
        "global_train_batch_size": str(plan.loss_batch),
        "per_device_train_batch_size": str(plan.loss_batch),
        **LOSS_FLAGS,
    }
    _, users = split_flags(argv, fixed)
    loss_flags = flags_of({**plan.flags, **fixed}, users)
    settings = {
        "flags": flags,
        "files": hashes_of_files(base),
        "loss_flags": loss_flags,
    }
    claim_folder(runs_folder, PLAN_FILE, settings)

    seeds = plan.seeds if seeds is None else seeds
    runs: dict[str, list[Result]] = {side: [] for side in SIDES}
    # Side by side, seed by seed: what else the machine does meets both.
    for seed in seeds:
        for side in SIDES:
            run_folder = runs_folder / f"{side}-seed-{seed}"
            runs[side].append(run_side(side, name, run_folder, [*flags, "--seed", str(seed)]))
    losses = {}
    for side in SIDES:
        run_folder = runs_folder / f"{side}-losses"
        same_batches = ["--same_batches", "true"] if side == "stock" else []
        run_side(
            side,
            name,
            run_folder,
            [*base, *loss_flags, *same_batches],
        )
        losses[side] = _losses_of(run_folder)

    record = {
        **make_record(name, seeds, runs, losses),
        "flags": flags,
        "loss_flags": loss_flags,
        "machine": runs["ours"][0]["machine"],
        "date": time.strftime("%Y-%m-%d"),
    }
    write_json(folder / f"{name}.json", record)
    return record


def run_side(side: str, task: str, folder: Path, flags: Sequence[str]) -> Result:
    """Run one side, or read what a finished run left; its weights are removed."""
    script = ROOT / ("recipes/finetune.py" if side == "ours" else "benchmarks/finetune_stock.py")
    side_flags = ["--save_strategy", "no"]  # as the other side
    if side == "stock" and get_task(task).kind == "question_answering":
        side_flags += ["--decoder", "offsets"]
    launcher = RunLauncher(finetuning_command(script, None), tuple(flags))
    results = launcher.run(folder, side_flags)
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    return results


def _losses_of(folder: Path) -> list[float]:
    """Return the training loss of each step of a run."""
    state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
    return [line["loss"] for line in state["log_history"] if "loss" in line]


# Statistics


def make_record(
    name: str,
    seeds: Sequence[int],
    runs: Runs,
    losses: Mapping[str, Sequence[float]],
) -> Result:
    """Put the runs of both sides together.

    Figures are in percent, seconds are of training or of evaluating alone.

    Args:
        name: The task.
        seeds: Of the runs.
        runs: Side -> all_results.json of each seed.
        losses: Side -> training loss of each step of the check.
    """
    first = runs["ours"][0]
    scale = 1.0 if get_task(name).kind == "question_answering" else 100.0
    figures = {}
    for figure in PLAN[name].figures:
        figures[figure] = _spreads(runs, f"eval_{figure}", scale)
    return {
        "task": name,
        "model": str(first["model"]).rstrip("/").rpartition("/")[2],
        "seeds": list(seeds),
        "splits": first["splits"],
        "figures": figures,
        "train_seconds": _spreads(runs, "train_seconds"),
        "eval_seconds": _spreads(runs, "eval_seconds"),
        "train_steps": {side: int(runs[side][0]["train_steps"]) for side in SIDES},
        "losses": compare_losses(losses),
    }


def _spreads(runs: Runs, key: str, scale: float = 1.0) -> Result:
    """Return the values of a figure of each side, with their median, least and greatest."""
    spreads = {}
    for side in SIDES:
        values = []
        for number, run in enumerate(runs[side], start=1):
            value = figure_of(run, key)
            if value is None or not math.isfinite(value):
                raise InputError(
                    f"{key} is missing or not finite in run {number} of {len(runs[side])}; remove "
                    "it and run again"
                )
            values.append(value * scale)
        rounded = [round(value, 4) for value in values]
        spreads[side] = {
            "values": rounded,
            "median": round(statistics.median(values), 4),
            "min": min(rounded),
            "max": max(rounded),
        }

    return spreads


def compare_losses(losses: Mapping[str, Sequence[float]]) -> Result:
    """Return the largest difference of the single losses, and the losses."""
    counts = {side: len(losses[side]) for side in SIDES}
    if set(counts.values()) != {LOSS_STEPS}:
        raise InputError(
            f"losses of {counts} steps; allowed: {LOSS_STEPS} on both sides; remove the runs "
            "named losses"
        )
    pairs = zip(losses["ours"], losses["stock"], strict=True)
    largest = max(abs(ours - stock) for ours, stock in pairs)
    return {
        "steps": LOSS_STEPS,
        "largest_difference": largest,
        "agree": largest <= LOSS_TOLERANCE,
        "ours": list(losses["ours"]),
        "stock": list(losses["stock"]),
    }


def within_spread(figure: str, ours: Record, stock: Record, num_rows: int) -> bool:
    """Return whether two sides differ by no more than chance.

    With several seeds: the ranges from least to greatest overlap. Otherwise the medians lie within
    two standard errors of their difference. A correlation r has the variance (1 - r^2)^2 / n (that
    of large samples from a normal distribution); everything else, F1 too, is taken for a share of
    the rows.

    Args:
        figure: Its name.
        ours: Its spread, in percent.
        stock: The other side's.
        num_rows: What it is measured on.
    """
    overlap_begin = max(ours["min"], stock["min"])
    overlap_end = min(ours["max"], stock["max"])
    if len(ours["values"]) > 1 and overlap_begin <= overlap_end:
        return True
    first, second = ours["median"] / 100, stock["median"] / 100
    if figure in ("matthews_correlation", "pearson", "spearmanr"):
        variance = ((1 - first**2) ** 2 + (1 - second**2) ** 2) / num_rows
    else:
        share = min(max((first + second) / 2, 0.0), 1.0)
        variance = 2 * share * (1 - share) / num_rows
    return abs(first - second) <= 2 * math.sqrt(variance)


# Table

_NAMES = {
    "f1": "F1",
    "matthews_correlation": "Matthews",
    "spearmanr": "Spearman",
    "pearson": "Pearson",
    "exact_match": "exact match",
    "exact": "exact match",
    "matched_accuracy": "accuracy, matched",
    "mismatched_accuracy": "accuracy, mismatched",
}
_HEAD = (
    "| task | figure | ours | stock | seeds | training, s: ours | stock | losses differ by | "
    "train | dev |"
)
_MEASURED = (
    "Figures in percent: the median and, of several seeds, the least and the greatest. Both sides "
    "are alike where these ranges overlap, or where the medians differ by less than two standard "
    "errors of samples of so many rows; F1 is taken for a share of the rows, that of entities of "
    "the sentences. Seconds of training alone, the median. Losses: the largest difference between "
    "both sides in the first {steps} steps, without dropout, in fp32, on the same batches."
)
_ON_CPU = " On a CPU ours has the fast layers, unless fast_layers is off; stock calls sdpa."
_PARTIAL = "\\* not the published development set, so not to be put beside published figures: "


def write_table(folder: Path) -> tuple[str, list[str]]:
    """Write FOLDER/table.md; return it and the tasks whose losses differ."""
    records = []
    for name in PLAN:
        file = folder / f"{name}.json"
        if file.is_file():
            records.append(json.loads(file.read_text(encoding="utf-8")))
    if not records:
        raise InputError(
            f"{folder} holds no comparison (<task>.json); run benchmarks/compare_with_stock.py "
            "first"
        )
    text = format_table(records)
    (folder / TABLE_FILE).write_text(text, encoding="utf-8")
    return text, _differing(records)


def _differing(records: Iterable[Record]) -> list[str]:
    return [record["task"] for record in records if not record["losses"]["agree"]]


def format_table(records: Sequence[Record]) -> str:
    """Return one line for each figure; what is partial is said under the table."""
    lines = [_HEAD, "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    far: list[str] = []
    partial: list[str] = []
    machines = []
    for record in records:
        lines += _task_rows(record)
        far += _far_figures(record)
        partial += _partial_splits(record)
        machines.append(_measured_on(record))

    measured = _MEASURED.format(steps=records[0]["losses"]["steps"])
    if any(record["machine"]["gpu"] is None for record in records):
        measured += _ON_CPU
    lines += ["", measured]
    if far:
        lines += ["", f"† further apart than seeds and sample explain: {', '.join(far)}."]
    differing = ", ".join(_differing(records))
    if differing:
        reason = f"losses differ by more than {LOSS_TOLERANCE:.0e}, which is no rounding"
        lines += ["", f"‡ {reason}: {differing}."]
    if partial:
        lines += ["", f"{_PARTIAL}{'; '.join(partial)}."]
    lines += ["", "; ".join(dict.fromkeys(machines)) + "."]
    return "\n".join(lines) + "\n"


def _task_rows(record: Record) -> list[str]:
    """Return the rows of a task; what is of all its figures stands in the first."""
    task, splits, losses = get_task(record["task"]), record["splits"], record["losses"]
    difference = f"{losses['largest_difference']:.0e}" if losses["largest_difference"] else "0"
    training = [
        f"{record['train_seconds']['ours']['median']:.0f}",
        f"{record['train_seconds']['stock']['median']:.0f}",
        difference if losses["agree"] else f"{difference} ‡",
        f"{splits[task.train_split]['examples']:,}",
    ]
    name, rows = task.name, []
    far = _far_figures(record)
    for figure, sides in record["figures"].items():
        split = splits[_split_of(figure, task.validation_splits)]
        cells = [
            name,
            _NAMES.get(figure, figure) + ("\\*" if split["partial"] else ""),
            _figure(sides["ours"]) + (" †" if f"{task.name} {figure}" in far else ""),
            _figure(sides["stock"]),
            str(len(record["seeds"])),
            *training,
            f"{split['examples']:,}",
        ]
        rows.append(f"| {' | '.join(cells)} |")
        name, training = "", [""] * len(training)

    return rows


def _split_of(figure: str, validation_splits: Sequence[str]) -> str:
    """Return the validation split that a figure is of."""
    for split in validation_splits:
        if figure.startswith(f"{split.removeprefix('validation_')}_"):
            return split
    return validation_splits[0]


def _far_figures(record: Record) -> list[str]:
    """Return the figures of a task that differ by more than chance."""
    task, names = get_task(record["task"]), []
    for figure, sides in record["figures"].items():
        split = record["splits"][_split_of(figure, task.validation_splits)]
        if not within_spread(figure, sides["ours"], sides["stock"], split["examples"]):
            names.append(f"{task.name} {figure}")
    return names


def _partial_splits(record: Record) -> list[str]:
    """Return the validation splits of a task that lack published rows."""
    task, names = get_task(record["task"]), []
    for name in task.validation_splits:
        split = record["splits"][name]
        if split["partial"]:
            counts = f"{split['examples']:,} rows, published {split['published']:,}"
            names.append(f"{task.name} {name} ({counts})")
    return names


def _measured_on(record: Record) -> str:
    """Return model, machine, versions and date of a task."""
    machine = record["machine"]
    place = f"{machine['cores']} cores of {machine['processor']}"
    if machine["gpu"]:
        place = f"GPU {machine['gpu']}"
    versions = f"torch {machine['torch']}, transformers {machine['transformers']}"
    return f"{record['model']} on {place}, {versions}, {record['date']}"


def _figure(spread: Record) -> str:
    if len(spread["values"]) == 1:
        return f"{spread['median']:.1f}"
    return f"{spread['median']:.1f} ({spread['min']:.1f} to {spread['max']:.1f})"


def main() -> None:
    """Run what is not finished, task by task, then print the table."""
    own_flags, flags = split_flags(sys.argv[1:], field_types(CompareArguments))
    (args,) = parse_arguments(CompareArguments, argv=own_flags)
    logging.basicConfig(
        format="%(asctime)s %(message)s",
        datefmt="%H:%M:%S",
        level=logging.INFO,
    )
    folder = Path(args.output_dir)
    seeds = None if args.seeds is None else choose_seeds(1, args.seeds)
    check_flags(flags)
    if not args.table_only:
        end_with_children()
        for name in PLAN if args.task == ALL else [args.task]:
            record = compare_task(name, folder, flags, seeds)
            logger.info("%s: losses differ by %.1e", name, record["losses"]["largest_difference"])
    text, differing = write_table(folder)
    print(text)
    if differing:
        raise InputError(
            f"losses of {', '.join(differing)} differ by more than {LOSS_TOLERANCE:.0e} on the "
            "same batches; allowed: less: the two sides do not train alike; the single losses are "
            "in <task>.json"
        )


if __name__ == "__main__":
    run_cli(main)
