"""Whose folder output_dir is, and where in it a run goes on."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bert_recipes.checkpointing import (
    PassedOver,
    last_complete,
    remove_leftovers,
    set_aside_later,
    why_incomplete,
)
from bert_recipes.config import save_config
from bert_recipes.config_file import read_tree
from bert_recipes.errors import InputError
from bert_recipes.main_process import ask_main_process
from bert_recipes.own_card import CARD_FILE, is_own_card
from bert_recipes.run_arguments import RunArguments
from bert_recipes.run_lock import lock_run
from bert_recipes.whole_files import final_name


logger = logging.getLogger(__name__)

CONFIG_FILE = "run.yaml"
RESULTS_FILE = "all_results.json"
# Beside the results until all that follows them is done: predictions, report, card, push.
UNFINISHED_FILE = "unfinished"
# What a run may leave in its folder; nothing else is ever deleted.
RUN_FILES = (
    *("run.yaml", "task.yaml", "*.json", "predictions_*", "*.safetensors", "vocab.txt"),
    *("checkpoint-*", "abandoned-checkpoint-*", ".aside-*"),
    # The Trainer writes it with the model; it is removed at once, if the process lives.
    "training_args.bin",
    UNFINISHED_FILE,
    # A sweep says with it that it has removed the weights.
    "weights_removed.txt",
    *("report.md", "report.html", "losses.png"),
    *("README.md", "card.yaml", ".gitattributes"),
    # Trackers: TensorBoard, wandb, codecarbon (with the older files that it sets aside).
    *("runs", "wandb", "emissions.csv*"),
)
# Settings that change nothing of what the remaining steps learn: where files lie, what is logged, saved and measured, and how
# the work is shared out. Data, tokenizer and global batch are compared by what they are (`ResumableTrainer.identity`).
_FREE_PREFIXES = ("logging_", "eval_", "save_", "hub_", "push_to_hub", "dataloader_", "ddp_", "fsdp", "torch_compile")
_FREE = frozenset(
    [
        "output_dir",
        "run_name",
        "report_to",
        "project",
        "trackio_space_id",
        "disable_tqdm",
        "log_level",
        "log_level_replica",
        "debug",
        "store",
        "train_file",
        "validation_file",
        "tokenizer",
        "data_dir",
        "task_file",
        "model_name_or_path",
        "data_cache_dir",
        "data_num_processes",
        "do_train",
        "do_eval",
        "do_predict",
        "max_eval_pairs",
        "max_eval_examples",
        "max_predict_examples",
        "load_best_model_at_end",
        "metric_for_best_model",
        "greater_is_better",
        "prediction_loss_only",
        "batch_eval_metrics",
        "include_for_metrics",
        "per_device_train_batch_size",
        "per_device_eval_batch_size",
        "gradient_accumulation_steps",
        "global_train_batch_size",
        "phase2_per_device_train_batch_size",
        "deepspeed",
        "accelerator_config",
        "parallelism_config",
        "local_rank",
        "fast_layers",
        "keep_freed_memory",
        # What it comes to is compared (`ResumableTrainer.identity`).
        "precision",
        "max_skipped_steps",
        "skip_memory_metrics",
        "enable_jit_checkpoint",
        "torch_empty_cache_steps",
        "average_tokens_across_devices",
        "include_num_input_tokens_seen",
        "power_watts",
        "country_iso_code",
        "carbon_intensity",
    ]
)


def check_output_dir(args: RunArguments) -> None:
    """Say at once what `claim_output_dir` would refuse of the folder; the main process looks, nothing is changed."""
    folder = Path(args.output_dir)
    begins = args.overwrite_run or args.resume == "no" or (args.resume == "auto" and not is_unfinished(folder))
    if begins and os.environ.get("RANK", "0") == "0":
        _check_free(folder, args)


def claim_output_dir(
    args: RunArguments,
    configs: Sequence[Any],
    *,
    sources: Mapping[str, str | None] = MappingProxyType({}),
) -> str | None:
    """Make the output folder this run's own.

    Args:
        args: Its output_dir, resume, overwrite_run and allow_changes decide.
        configs: The dataclasses of the run: a run goes on with the settings that it was begun with.
        sources: Setting -> file or folder that the run reads, which is not deleted with an old run.

    Returns:
        The checkpoint folder to resume from, or None.
    """
    resume_from = ask_main_process(args, lambda: _lock_and_claim(args, configs, sources))
    return None if resume_from is None else str(resume_from)


def _lock_and_claim(args: RunArguments, configs: Sequence[Any], sources: Mapping[str, str | None]) -> Path | None:
    lock_run(Path(args.output_dir))
    return _claim(args, configs, sources)


def _claim(args: RunArguments, configs: Sequence[Any], sources: Mapping[str, str | None]) -> Path | None:
    """Look at what is there, and only then change anything."""
    folder = Path(args.output_dir)
    resume_from = None if args.overwrite_run else _find_checkpoint(args.resume, folder)
    goes_on = resume_from is not None and resume_from.parent.resolve() == folder.resolve()
    if resume_from is not None:
        _check_same_settings(resume_from / CONFIG_FILE, configs, allow=args.allow_changes)
    if not goes_on:
        _check_free(folder, args)
        _check_sources(folder, sources)
    if folder.is_dir() and args.overwrite_run:
        shutil.rmtree(folder)
    elif folder.is_dir():
        remove_leftovers(folder)
    if goes_on and resume_from is not None:
        for path in set_aside_later(folder, resume_from):
            logger.warning("%s: later than %s, from which the run goes on; it counts no more", path, resume_from.name)
        # The run is unfinished again.
        (folder / RESULTS_FILE).unlink(missing_ok=True)
    return resume_from


def is_run_file(path: Path) -> bool:
    """Whether a run leaves files of this name in its folder, or a process that is killed while it writes one."""
    name = Path(final_name(path.name))
    return any(name.match(pattern) for pattern in RUN_FILES)


def name_of_run(folder: Path) -> str:
    """What a run is called: as its folder; that of a seed says nothing without the folder around it.

    Args:
        folder: Of the run, or a link to it.
    """
    folder = folder.resolve()
    return f"{folder.parent.name}-{folder.name}" if folder.name.startswith("seed-") else folder.name


def is_unfinished(folder: Path) -> bool:
    """Whether a folder holds a run that has not come to its end."""
    is_measured, is_on = (folder / RESULTS_FILE).is_file(), (folder / UNFINISHED_FILE).is_file()
    return (folder / CONFIG_FILE).is_file() and (is_on or not is_measured)


def _find_checkpoint(wanted: str, folder: Path) -> Path | None:
    """The checkpoint that `resume` names; None when the run starts anew."""
    if wanted == "no" or (wanted == "auto" and not is_unfinished(folder)):
        return None
    if wanted not in ("auto", "last"):
        reason = why_incomplete(Path(wanted))
        if reason is not None:
            raise InputError(f"resume: {wanted} is no complete checkpoint: {reason}")
        return Path(wanted)
    found, passed = last_complete(folder)
    _report(passed)
    if found is not None:
        logger.info("the run in %s goes on from %s", folder, found.name)
        return found
    if wanted == "last" or passed or (folder / RESULTS_FILE).is_file():
        raise InputError(f"{folder} holds no complete checkpoint to resume from; start anew with --overwrite_run true")
    logger.info("the run in %s has no checkpoint yet: it starts anew", folder)
    return None


def _report(passed: Sequence[PassedOver]) -> None:
    for each in passed:
        logger.warning("%s is passed over: %s", each.path, each.reason)


def _check_free(folder: Path, args: RunArguments) -> None:
    """Refuse a folder that holds something that may not be deleted or written over."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / CONFIG_FILE).is_file():
        raise InputError(f"output_dir {folder} holds files that are no run of this project; give another --output_dir")
    if not args.overwrite_run:
        if args.resume == "auto" and is_unfinished(folder):
            return
        found, _ = last_complete(folder)
        what = "a finished run" if (folder / RESULTS_FILE).is_file() else "another run"
        go_on = " without a checkpoint;" if found is None else "; continue it with --resume last,"
        raise InputError(
            f"output_dir {folder} holds {what}{go_on} replace it with --overwrite_run true, or give another --output_dir"
        )
    foreign = sorted(path.name for path in folder.iterdir() if not is_run_file(path))
    if not is_own_card(folder):
        foreign.append(f"{CARD_FILE}, which was edited")
    if foreign:
        raise InputError(
            f"output_dir {folder} holds more than a run ({', '.join(foreign[:3])}), so it is not replaced; move that away "
            "or give another --output_dir"
        )


def _check_same_settings(file: Path, configs: Sequence[Any], *, allow: bool) -> None:
    """Refuse to go on with settings under which the run would become another one."""
    if not file.is_file():  # a checkpoint that was not written by a recipe
        return
    before, _ = read_tree(file)
    with tempfile.TemporaryDirectory() as place:
        own = Path(place) / CONFIG_FILE
        save_config(own, *configs)
        now, _ = read_tree(own)
    changed = [
        name
        for name in [*before, *(name for name in now if name not in before)]
        if before.get(name) != now.get(name) and name not in _FREE and not name.startswith(_FREE_PREFIXES)
    ]
    for name in changed:
        was, new = before.get(name), now.get(name)
        said = f"{name} is {_shown(new)}, but in {file} {_shown(was)}"
        if allow:
            logger.warning("%s; the run goes on with it, as allow_changes is true", said)
            continue
        mend = f"leave --{name} out" if was is None else f"give --{name} {_shown(was)}"
        raise InputError(
            f"resume: {said}; a run goes on with its own settings: {mend}, start anew with --overwrite_run true, or go on with "
            "--allow_changes true"
        )


def _shown(value: Any) -> str:
    if value is None:
        return "not given"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _check_sources(folder: Path, sources: Mapping[str, str | None]) -> None:
    """Refuse to replace a folder out of which the run reads."""
    if not folder.is_dir():
        return
    for name, path in sources.items():
        # A Hub name is no path that is there.
        if path is not None and Path(path).exists() and Path(path).resolve().is_relative_to(folder.resolve()):
            raise InputError(
                f"{name} {path} lies in output_dir {folder}, which --overwrite_run true would delete; give another "
                "--output_dir"
            )
