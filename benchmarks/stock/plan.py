"""What is compared: for each task its seeds, its limits, and the settings that differ from its configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bert_recipes.errors import InputError
from bert_recipes.sweeps.sweep import check_flag_names, flag_value, given_flags, split_flags


@dataclass(frozen=True, kw_only=True)
class ComparedTask:
    """How one task is compared.

    Attributes:
        config: Stem of its file in recipes/configs/finetune.
        figures: The validation figures of the table, the first one first.
        seeds: Seeds of both sides.
        flags: Field -> value on top of the configuration.
        loss_batch: Examples of a step where the single losses are compared.
    """

    config: str
    figures: tuple[str, ...]
    seeds: tuple[int, ...] = (1,)
    flags: Mapping[str, str] = field(default_factory=dict)
    loss_batch: int = 8


# Small data sets and short runs scatter most: three seeds.
_THREE = (1, 2, 3)
# The largest rate that Devlin et al. 2019, section 4.1, tries: a run of the plan has fewer than 300 steps.
_RATE = {"learning_rate": "5e-5"}
_GLUE = {"max_train_examples": "2000"} | _RATE
# Their validation files are long, and partial where this was run.
_LONG_VALIDATION = _GLUE | {"max_eval_examples": "2000"}
# Ours: few questions leave few steps; half the batch and twice the rate make more of them.
_SQUAD = {"max_train_examples": "1200", "max_eval_examples": "1000", "global_train_batch_size": "16"}
_SQUAD |= {"per_device_train_batch_size": "16", "num_train_epochs": "2", "learning_rate": "1e-4"}

# Sized for two cores of a CPU and a model of 22 M parameters: 10 minutes a run at most. In the order in which they are run.
PLAN: Mapping[str, ComparedTask] = {
    "wnli": ComparedTask(config="glue", figures=("accuracy",), seeds=_THREE, flags=_GLUE),
    "cola": ComparedTask(config="glue", figures=("matthews_correlation",), seeds=_THREE, flags=_GLUE),
    "mrpc": ComparedTask(config="glue", figures=("f1", "accuracy"), seeds=_THREE, flags=_GLUE),
    "stsb": ComparedTask(config="glue", figures=("spearmanr", "pearson"), seeds=_THREE, flags=_GLUE),
    "rte": ComparedTask(config="glue", figures=("accuracy",), seeds=_THREE, flags=_GLUE),
    "sst2": ComparedTask(config="glue", figures=("accuracy",), flags=_GLUE),
    "qqp": ComparedTask(config="glue", figures=("f1", "accuracy"), flags=_LONG_VALIDATION),
    "mnli": ComparedTask(config="glue", figures=("matched_accuracy", "mismatched_accuracy"), flags=_LONG_VALIDATION),
    "qnli": ComparedTask(config="glue", figures=("accuracy",), seeds=_THREE, flags=_GLUE),
    "conll2003": ComparedTask(
        config="ner", figures=("f1",), seeds=_THREE, flags={"max_train_examples": "3000"}, loss_batch=4
    ),
    "swag": ComparedTask(
        config="swag", figures=("accuracy",), flags={"max_train_examples": "1000"} | _RATE, loss_batch=4
    ),
    "squad": ComparedTask(config="squad", figures=("f1", "exact_match"), flags=_SQUAD, loss_batch=4),
    "squad_v2": ComparedTask(config="squad_v2", figures=("f1", "exact"), flags=_SQUAD, loss_batch=4),
}
# ax has no labels to compare by.
ALL = "all"

# Single losses: no dropout, full precision, the validation split only touched.
LOSS_STEPS = 50
LOSS_FLAGS: Mapping[str, str] = {
    "dropout": "0",
    "precision": "fp32",
    "max_steps": str(LOSS_STEPS),
    "logging_steps": "1",
    "max_eval_examples": "8",
    "seed": "1",
}

_RESERVED = {
    "seed": "give --seeds",
    "config": "the plan names it for each task; give single fields",
    "task_file": "tasks of the plan are compared",
    "decoder": "stock reads answers off the offsets, as its example does, and ours by the original's rules",
    "resume_from_checkpoint": "the same command goes on by itself",
    "push_to_hub": "both sides would be pushed; push a run afterwards: make push RUN=... REPO=...",
    "overwrite_run": "for new runs give another --output_dir",
}


def choose_tasks(name: str) -> tuple[str, ...]:
    """The tasks that a name stands for: one of the plan, or all."""
    if name != ALL and name not in PLAN:
        raise InputError(f"task is '{name}'; allowed: {ALL}, {', '.join(PLAN)}")
    return tuple(PLAN) if name == ALL else (name,)


def check_flags(argv: Sequence[str], own: Iterable[str] = ()) -> None:
    """Refuse flags that the comparison decides itself, that there are not, or that stock cannot follow.

    Args:
        argv: What both sides are given.
        own: Fields of the script itself, which are near misses too.
    """
    check_flag_names(argv, own)
    reasons = {name: reason for name, reason in _RESERVED.items() if name in given_flags(argv)}
    for name, reason in reasons.items():
        raise InputError(f"--{name} cannot be given here: {reason}")
    check_stock_has(flag_value(argv, "optimizer") or "adamw", flag_value(argv, "schedule") or "trainer")


def check_stock_has(optimizer: str, schedule: str) -> None:
    """Refuse an optimiser or a schedule that the stock Trainer does not have."""
    if optimizer not in ("adamw", "trainer") or schedule != "trainer":
        raise InputError(
            f"optimizer is {optimizer}, schedule {schedule}; stock has --optimizer adamw --schedule trainer"
        )


def remove_flags(argv: Sequence[str], names: Iterable[str]) -> list[str]:
    """A command line without the given fields."""
    return split_flags(argv, names)[1]


def flags_of(values: Mapping[str, str], given: Sequence[str] = ()) -> list[str]:
    """`--field value` for each, then what the user gave, which stands instead of the same fields here."""
    users = given_flags(given)
    return [part for name, value in values.items() if name not in users for part in (f"--{name}", value)] + [*given]


@dataclass
class StockArguments:
    """What only the stock side is asked."""

    same_batches: bool = field(default=False, metadata={"help": "train on the batches of recipes/finetune.py"})
