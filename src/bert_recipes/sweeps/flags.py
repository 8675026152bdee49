"""The command line of a script that starts runs: which flags are its own, which those of the runs, and whether they can work."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from typing import Any

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError
from bert_recipes.field_types import field_types
from bert_recipes.finetuning.access import check_access
from bert_recipes.finetuning.arguments import FineTuningArguments, TaskArguments


# What a sweep decides itself, or what would make its runs incomparable -> what to do instead.
RESERVED = {
    "seed": "give --num_seeds or --seeds to the sweep",
    "output_dir": "every run has its own folder under the sweep's --output_dir",
    "task": "one sweep measures one task",
    "task_file": "one sweep measures one task",
    "config": "one configuration serves every run",
    "resume_from_checkpoint": "a sweep goes on by itself when the same command is given again",
    "push_to_hub": "push the best run when the sweep is done: make push RUN=... REPO=...",
    "overwrite_run": "a sweep goes on by itself; for a new one give another --output_dir",
}
# What keeps a check of flags off the GPU and out of DeepSpeed: whether these work, only the runs can tell.
_ON_THE_CPU = ("--use_cpu", "true", "--precision", "fp32", "--bf16", "false", "--fp16", "false", "--deepspeed", "null")


def run_fields() -> dict[str, Any]:
    """Field -> annotation, all those of recipes/finetune.py."""
    return field_types(TaskArguments) | field_types(FineTuningArguments)


def split_flags(
    argv: Sequence[str], names: Iterable[str], *, quoted: Iterable[str] = ()
) -> tuple[list[str], list[str]]:
    """Part a command line into the flags of the given fields and all others, each with its values.

    Args:
        argv: The command line without the script's name.
        names: The fields.
        quoted: Those of them that take flags in quotes: what follows one belongs to it, also where it is a flag.

    Example:
        >>> split_flags(["--rte", "--seed=3", "--num_seeds", "3", "--fp16"], ["num_seeds", "rte"], quoted=["rte"])
        (['--rte=--seed=3', '--num_seeds', '3'], ['--fp16'])
    """
    own, others = {*names, "help"}, ([], [])  # type: tuple[set[str], tuple[list[str], list[str]]]
    target, waiting = others[1], {f"--{name}" for name in quoted}
    for argument in argv:
        if target and target[-1] in waiting:
            target[-1] += f"={argument}"
            continue
        if is_flag(argument) or argument == "-h":
            is_own = argument == "-h" or flag_name(argument) in own
            target = others[0] if is_own else others[1]
        target.append(argument)
    return others


def is_flag(argument: str) -> bool:
    """Whether a part of a command line is a flag: `--rte "--fp16 true"` has one, and its value."""
    return re.match(r"--[A-Za-z][\w-]*(=|$)", argument) is not None


def flag_name(argument: str) -> str:
    """`--learning-rate=3e-5` -> `learning_rate`."""
    return argument.removeprefix("--").split("=")[0].replace("-", "_")


def given_flags(argv: Iterable[str]) -> set[str]:
    """Names of the flags on a command line."""
    return {flag_name(argument) for argument in argv if is_flag(argument)}


def check_flags(argv: Sequence[str], grid: Iterable[str] = ()) -> None:
    """Refuse flags for the runs that the sweep decides itself.

    Raises:
        InputError: A reserved flag, or one that the grid varies too.
    """
    given = given_flags(argv)
    for name in sorted(given & (RESERVED.keys() - {"config", "task", "task_file"})):
        raise InputError(f"--{name} cannot be given here: {RESERVED[name]}")
    for name in grid:
        if name in given:
            raise InputError(f"{name} is in the sweep and on the command line; take it out of one of them")


def flag_value(argv: Sequence[str], name: str) -> str | None:
    """The value of a flag on a command line, the last one where it is given twice; None where it is not given."""
    given = split_flags(argv, [name])[0]
    return given[-1].split("=", 1)[-1] if given else None


def split_quoted(name: str, text: str) -> list[str]:
    """The flags inside the value of a flag, as a shell reads them.

    Raises:
        InputError: A quote is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        reason = str(error)
        raise InputError(f"--{name}: {text!r} cannot be read ({reason}); close every quote in it") from error


def check_flag_names(flags: Sequence[str], own: Iterable[str]) -> None:
    """Refuse a misspelt flag before anything runs.

    Args:
        flags: What every run is given.
        own: Fields of the script itself, which are near misses too.

    Raises:
        InputError: A flag that recipes/finetune.py does not have; the nearest name is given.
    """
    fields = {*run_fields(), "config"}
    for name in sorted(given_flags(flags) - fields):
        near = difflib.get_close_matches(name, [*fields, *own], n=1, cutoff=0.5)
        hint = f"did you mean --{near[0]}?" if near else "recipes/finetune.py --help lists those of the runs"
        raise InputError(f"unknown option --{name}; {hint}")


def check_run(flags: Sequence[str]) -> None:
    """Read flags as a run would, and see that its task, checkpoint and data are within reach.

    Raises:
        InputError: What the run would end with in its first seconds.
    """
    before = dict(os.environ)
    try:
        # A library prints a line when it is imported; stdout is the report's.
        with redirect_stdout(sys.stderr):
            settings, args = parse_arguments(TaskArguments, FineTuningArguments, argv=[*flags, *_ON_THE_CPU])
    finally:
        # Precision and compilation are handed on in the environment, which the runs inherit.
        os.environ.clear()
        os.environ.update(before)
    if args.push_to_hub:  # of a --config file
        raise InputError(f"push_to_hub is true in it, and every run would be pushed; {RESERVED['push_to_hub']}")
    check_access(settings, with_tests=args.do_predict)
