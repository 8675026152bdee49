r"""Fine-tune with this project and with stock transformers, from the same weights with the same
settings, and compare.

    python benchmarks/compare_with_stock.py --task all --model_name_or_path M --data_dir DATA \
        --output_dir runs/comparison

For each task: figures of both sides over the seeds of `PLAN`, the time of training, and the single
losses of 50 steps on the same batches without dropout. Every flag that is not listed here goes to
both sides. The same command resumes after an interruption. OUTPUT/<task>.json holds the figures,
OUTPUT/table.md the table. Exit code 1 where single losses differ by more than rounding.
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
from bert_recipes.sweeps.sweep import (
    RunLauncher,
    check_flag_names,
    choose_seeds,
    claim_folder,
    end_with_children,
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
}
LOSS_FLAGS |= {"max_eval_examples": "8", "seed": "1"}
logger = logging.getLogger("compare_with_stock")


@dataclass(frozen=True, kw_only=True)
class ComparedTask:
    """How one task is compared."""

    config: str = "glue"  # stem of its file in recipes/configs/finetune
    figures: tuple[str, ...] = ("accuracy",)  # validation figures of the table
    seeds: tuple[int, ...] = (1,)
    flags: Mapping[str, str] = field(default_factory=dict)  # on top of the configuration
    loss_batch: int = 8  # examples of a step where the single losses are compared


# Small data sets and short runs scatter most: three seeds.
_THREE = (1, 2, 3)
# The largest rate that Devlin et al. 2019, section 4.1, tries: a run of the plan has fewer than 300
# steps.
_RATE = {"learning_rate": "5e-5"}
_GLUE = {"max_train_examples": "2000"} | _RATE
# Their validation files are long, and partial where this was run.
_LONG_VALIDATION = _GLUE | {"max_eval_examples": "2000"}
# Ours: few questions leave few steps; half the batch and twice the rate make more of them.
_SQUAD = {
    "max_train_examples": "1200",
    "max_eval_examples": "1000",
    "global_train_batch_size": "16",
}
_SQUAD |= {"per_device_train_batch_size": "16", "num_train_epochs": "2", "learning_rate": "1e-4"}
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
    "swag": ComparedTask(config="swag", flags={"max_train_examples": "1000"} | _RATE, loss_batch=4),
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
    """Which tasks, how often, and where to."""

    output_dir: str = required("folder of the runs, the figures and the table")
    task: str = option(ALL, f"{ALL}, or one of {', '.join(PLAN)}")
    seeds: list[int] | None = option(None, "seeds of both sides; default: the plan's", **SEEDS)
    table_only: bool = option(False, "run nothing; print the table of what lies there")

    def __post_init__(self) -> None:
        if self.task not in (ALL, *PLAN):
            raise InputError(f"task is '{self.task}'; allowed: {ALL}, {', '.join(PLAN)}")


def check_flags(argv: Sequence[str]) -> None:
    """Refuse flags for both sides that the comparison decides itself, that there are not, or that
    stock cannot follow.
    """
    check_flag_names(argv, field_types(CompareArguments))
    for name, reason in _RESERVED.items():
        if name in given_flags(argv):
            raise InputError(f"--{name} cannot be given here: {reason}")
    defaults = {"optimizer": "adamw", "schedule": "trainer"}
    given = [
        (split_flags(argv, [name])[0] or [default])[-1].split("=", 1)[-1]
        for name, default in defaults.items()
    ]
    check_stock_has(*given)


def flags_of(values: Mapping[str, str], given: Sequence[str]) -> list[str]:
    """Return `--field value` for each, then what the user gave, which stands instead of the same
    fields here.
    """
    users = given_flags(given)
    return [
        part for name, value in values.items() if name not in users for part in (f"--{name}", value)
    ] + [*given]


# Runs


def compare_task(
    name: str, folder: Path, given: Sequence[str], seeds: Sequence[int] | None = None
) -> dict[str, Any]:
    """Run what is not finished of a task, each run in a process of its own, and write
    FOLDER/<task>.json.
    """
    plan = PLAN[name]
    config = ROOT / "recipes" / "configs" / "finetune" / f"{plan.config}.yaml"
    base = ["--config", os.path.relpath(config), "--task", name, "--disable_tqdm", "true"]
    flags = base + flags_of(plan.flags, given)
    batch = str(plan.loss_batch)
    fixed = {"global_train_batch_size": batch, "per_device_train_batch_size": batch} | LOSS_FLAGS
    loss_flags = flags_of({**plan.flags, **fixed}, split_flags(given, fixed)[1])
    settings = {"flags": flags, "files": hashes_of_files(base), "loss_flags": loss_flags}
    chosen, runs = tuple(plan.seeds if seeds is None else seeds), folder / name
    claim_folder(runs, PLAN_FILE, settings)
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    # Side by side, seed by seed: what else the machine does meets both.
    for seed in chosen:
        for side in SIDES:
            run = runs / f"{side}-seed-{seed}"
            found[side].append(run_side(side, name, run, [*flags, "--seed", str(seed)]))
    losses = {}
    for side in SIDES:
        extra = ["--same_batches", "true"] if side == "stock" else []
        run_side(side, name, runs / f"{side}-losses", [*base, *loss_flags, *extra])
        state = (runs / f"{side}-losses" / "trainer_state.json").read_text(encoding="utf-8")
        losses[side] = [line["loss"] for line in json.loads(state)["log_history"] if "loss" in line]
    record = make_record(name, chosen, found, losses)
    record |= {"flags": flags, "loss_flags": loss_flags, "machine": found["ours"][0]["machine"]}
    record["date"] = time.strftime("%Y-%m-%d")
    write_json(folder / f"{name}.json", record)
    return record


def run_side(side: str, task: str, folder: Path, flags: Sequence[str]) -> dict[str, Any]:
    """Run one side, or read what a finished run left; its weights are not kept."""
    script = ROOT / ("recipes/finetune.py" if side == "ours" else "benchmarks/finetune_stock.py")
    own = ["--save_strategy", "no"]  # as the other side
    own += (
        ["--decoder", "offsets"]
        if side == "stock" and get_task(task).kind == "question_answering"
        else []
    )
    results = RunLauncher(finetuning_command(script, None), tuple(flags)).run(folder, own)
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    return results


# Statistics


def make_record(
    name: str,
    seeds: Sequence[int],
    found: Mapping[str, Sequence[Mapping[str, Any]]],
    losses: Mapping[str, Sequence[float]],
) -> dict[str, Any]:
    """Put the runs of both sides together; figures are in percent, seconds are of training or of
    evaluating alone.

    Args:
        found: Side -> all_results.json of each seed.
        losses: Side -> training loss of each step of the check.
    """
    first, scale = found[SIDES[0]][0], 1.0 if get_task(name).kind == "question_answering" else 100.0

    def spreads(key: str, scale: float = 1.0) -> dict[str, Any]:
        return {side: _spread(found[side], key, scale) for side in SIDES}

    return {
        "task": name,
        "model": str(first["model"]).rstrip("/").rpartition("/")[2],
        "seeds": list(seeds),
        "splits": first["splits"],
        "figures": {figure: spreads(f"eval_{figure}", scale) for figure in PLAN[name].figures},
        "train_seconds": spreads("train_seconds"),
        "eval_seconds": spreads("eval_seconds"),
        "train_steps": {side: int(found[side][0]["train_steps"]) for side in SIDES},
        "losses": compare_losses(losses),
    }


def _spread(runs: Sequence[Mapping[str, Any]], key: str, scale: float) -> dict[str, Any]:
    values = []
    for number, run in enumerate(runs, start=1):
        value = figure_of(run, key)
        if value is None or not math.isfinite(value):
            raise InputError(
                f"{key} is missing or not finite in run {number} of {len(runs)}; remove it and "
                "run again"
            )
        values.append(value * scale)
    rounded = [round(value, 4) for value in values]
    return {
        "values": rounded,
        "median": round(statistics.median(values), 4),
        "min": min(rounded),
        "max": max(rounded),
    }


def compare_losses(losses: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return the largest difference of the single losses, and the losses."""
    counts = {side: len(losses[side]) for side in SIDES}
    if set(counts.values()) != {LOSS_STEPS}:
        raise InputError(
            f"losses of {counts} steps; allowed: {LOSS_STEPS} on both sides; remove the runs "
            "named losses"
        )
    largest = max(abs(a - b) for a, b in zip(losses["ours"], losses["stock"], strict=True))
    found = {"steps": LOSS_STEPS, "largest_difference": largest, "agree": largest <= LOSS_TOLERANCE}
    return found | {side: list(losses[side]) for side in SIDES}


def within_spread(
    figure: str, ours: Mapping[str, Any], stock: Mapping[str, Any], num_rows: int
) -> bool:
    """Whether two sides differ by no more than chance; figures in percent, measured on num_rows
    rows.

    With several seeds: the ranges from least to greatest overlap. Otherwise the medians lie within
    two standard errors of their difference. A correlation r has the variance (1 - r^2)^2 / n (that
    of large samples from a normal distribution); everything else, F1 too, is taken for a share of
    the rows.
    """
    if len(ours["values"]) > 1 and max(ours["min"], stock["min"]) <= min(ours["max"], stock["max"]):
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
}
_NAMES |= {
    "exact_match": "exact match",
    "exact": "exact match",
    "matched_accuracy": "accuracy, matched",
}
_NAMES |= {"mismatched_accuracy": "accuracy, mismatched"}


def write_table(folder: Path) -> tuple[str, list[str]]:
    """Write FOLDER/table.md; return it and the tasks whose losses differ."""
    files = [path for path in (folder / f"{name}.json" for name in PLAN) if path.is_file()]
    if not files:
        raise InputError(
            f"{folder} holds no comparison (<task>.json); run benchmarks/compare_with_stock.py "
            "first"
        )
    records = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    text = format_table(records)
    (folder / TABLE_FILE).write_text(text, encoding="utf-8")
    return text, _differing(records)


def _differing(records: Iterable[Mapping[str, Any]]) -> list[str]:
    return [record["task"] for record in records if not record["losses"]["agree"]]


def format_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return one line for each figure; what is partial is said under the table."""
    lines = [
        "| task | figure | ours | stock | seeds | training, s: ours | stock | losses differ by | "
        "train | dev |"
    ]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    far, partial, machines = [], [], []
    for record in records:
        task, splits, losses = get_task(record["task"]), record["splits"], record["losses"]
        train = [f"{record['train_seconds'][side]['median']:.0f}" for side in SIDES]
        train.append(f"{losses['largest_difference']:.0e}" if losses["largest_difference"] else "0")
        train[-1] += "" if losses["agree"] else " ‡"
        train.append(f"{splits[task.train_split]['examples']:,}")
        names = task.validation_splits
        for number, (figure, sides) in enumerate(record["figures"].items()):
            split = next(
                (n for n in names if figure.startswith(f"{n.removeprefix('validation_')}_")),
                names[0],
            )
            rows = splits[split]["examples"]
            is_near = within_spread(figure, sides["ours"], sides["stock"], rows)
            far += [] if is_near else [f"{task.name} {figure}"]
            shown = _NAMES.get(figure, figure) + ("\\*" if splits[split]["partial"] else "")
            cells = [
                "" if number else task.name,
                shown,
                _figure(sides["ours"]) + ("" if is_near else " †"),
            ]
            cells += [
                _figure(sides["stock"]),
                str(len(record["seeds"])),
                *([""] * 4 if number else train),
                f"{rows:,}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
        partial += [
            f"{task.name} {name} ({splits[name]['examples']:,} rows, published "
            f"{splits[name]['published']:,})"
            for name in names
            if splits[name]["partial"]
        ]
        machine = record["machine"]
        place = (
            f"GPU {machine['gpu']}"
            if machine["gpu"]
            else f"{machine['cores']} cores of {machine['processor']}"
        )
        versions = (
            f"torch {machine['torch']}, transformers {machine['transformers']}, {record['date']}"
        )
        machines.append(f"{record['model']} on {place}, {versions}")
    measured = (
        "Figures in percent: the median and, of several seeds, the least and the greatest. "
        "Both sides are alike where these ranges overlap, or where the medians differ by less "
        "than two standard errors of "
        "samples of so many rows; F1 is taken for a share of the rows, that of entities of the "
        "sentences. "
        "Seconds of training alone, the median. Losses: the largest difference between both sides "
        "in the first "
        f"{records[0]['losses']['steps']} steps, without dropout, in fp32, on the same batches."
    )
    if any(record["machine"]["gpu"] is None for record in records):
        measured += (
            " On a CPU ours has the fast layers, unless fast_layers is off; stock calls sdpa."
        )
    lines += ["", measured]
    if far:
        lines += ["", f"† further apart than seeds and sample explain: {', '.join(far)}."]
    if broken := _differing(records):
        lines += [
            "",
            f"‡ losses differ by more than {LOSS_TOLERANCE:.0e}, which is no rounding: "
            f"{', '.join(broken)}.",
        ]
    if partial:
        note = "\\* not the published development set, so not to be put beside published figures: "
        lines += ["", f"{note}{'; '.join(partial)}."]
    return "\n".join([*lines, "", "; ".join(dict.fromkeys(machines)) + "."]) + "\n"


def _figure(values: Mapping[str, Any]) -> str:
    spread = f" ({values['min']:.1f} to {values['max']:.1f})" if len(values["values"]) > 1 else ""
    return f"{values['median']:.1f}{spread}"


def main() -> None:
    """Run what is not finished, task by task, then print the table."""
    own, flags = split_flags(sys.argv[1:], field_types(CompareArguments))
    (args,) = parse_arguments(CompareArguments, argv=own)
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    folder, seeds = (
        Path(args.output_dir),
        None if args.seeds is None else choose_seeds(1, args.seeds),
    )
    check_flags(flags)
    if not args.table_only:
        end_with_children()
        for name in PLAN if args.task == ALL else (args.task,):
            record = compare_task(name, folder, flags, seeds)
            logger.info("%s: losses differ by %.1e", name, record["losses"]["largest_difference"])
    text, differing = write_table(folder)
    print(text)
    if differing:
        raise InputError(
            f"losses of {', '.join(differing)} differ by more than {LOSS_TOLERANCE:.0e} on the "
            "same batches; allowed: less: "
            "the two sides do not train alike; the single losses are in <task>.json"
        )


if __name__ == "__main__":
    run_cli(main)
