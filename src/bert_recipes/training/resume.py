"""Check the output folder, find the checkpoint to resume from and read its trainer state."""

import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bert_recipes.checkpointing import (
    last_complete,
    list_checkpoints,
    may_replace_card,
    read_run_id,
    read_step,
    remove_leftovers,
    restore_replaced,
    retire_later_checkpoints,
    why_incomplete,
)
from bert_recipes.config import resolved_values
from bert_recipes.errors import InputError, is_main_process
from bert_recipes.files import final_name, lock_run
from bert_recipes.run_folder import (
    CARD_FILE,
    CARD_SETTINGS_FILE,
    CONFIG_FILE,
    MARKDOWN_FILE,
    NO_WEIGHTS_FILE,
    PAGE_FILE,
    PROGRESS_FILE,
    RESULTS_FILE,
    TASK_FILE,
    UNFINISHED_FILE,
)
from bert_recipes.training.launch import run_on_main_process
from bert_recipes.training.optimization import ADAM_OPTIMIZERS, SCHEDULERS_BY_METRIC


logger = logging.getLogger(__name__)

# Values of --resume that name no checkpoint.
RESUME_WORDS = ("auto", "last", "no")
# Variables of a scheduler that has started a run again, and of torch's launcher, which may.
_RESTART_COUNTS = ("SLURM_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")
# Files that a run may leave in its folder; nothing else is ever deleted.
RUN_FILES = (
    CONFIG_FILE,
    TASK_FILE,
    "*.json",
    "predictions_*",
    "*.safetensors",
    "vocab.txt",
    "generator",
    UNFINISHED_FILE,
    "checkpoint-*",
    "abandoned-checkpoint-*",
    ".aside-*",
    "training_args.bin",  # written by stock, deleted right after
    MARKDOWN_FILE,
    PAGE_FILE,
    "losses.png",
    CARD_FILE,
    CARD_SETTINGS_FILE,
    ".gitattributes",
    NO_WEIGHTS_FILE,  # of sweeps
    "blimp",  # scores, of make blimp
    # Trackers: TensorBoard, wandb, codecarbon (with the older files that it sets aside).
    "runs",
    "wandb",
    "emissions.csv*",
)
# Of a fine-tuning run: texts, labels and ids. Checkpoints of version 0.2.0 have none.
TRAINING_EXAMPLES = "training examples"
# What a checkpoint of an earlier version may lack. A run that begins has the same values, but for
# the clock on a GPU.
NO_PROGRESS: Mapping[str, Any] = {
    "total_loss": 0.0,
    "last_logged_step": 0,
    "skipped_steps": 0,
    "steps_without_loss": 0,
    "evaluation_is_due": False,
    "cost": None,
    "clock": 0.0,
    "max_minutes": None,
    "longest_pause": 0.0,
    "first_step_seconds": 0.0,  # the minutes were counted from the start
    "kept_steps": (),
    "best_metric": None,
    "pairs_of_epochs": {},
}
# Stock settings with which the remaining steps learn the same: paths, logging, saving, evaluation,
# and how the work is split. Settings of this project have it in their metadata, {"resume": "may
# change"}. Data, tokenizer, precision and global batch are compared by content
# (`RecipeTrainer.resume_fingerprint`).
_CHANGEABLE_PREFIXES = (
    "logging_",
    "eval_",
    "save_",
    "hub_",
    "push_to_hub",
    "dataloader_",
    "ddp_",
    "fsdp",
    "torch_compile",
)
_CHANGEABLE = {
    "output_dir",
    "run_name",
    "report_to",
    "project",
    "trackio_space_id",
    "trackio_static_space_id",
    "disable_tqdm",
    "debug",
    "log_level",
    "log_level_replica",
    "do_train",
    "do_eval",
    "do_predict",
    "prediction_loss_only",
    "load_best_model_at_end",
    "metric_for_best_model",
    "greater_is_better",
    "batch_eval_metrics",
    "enable_jit_checkpoint",  # always false; not every version of transformers has it
    "include_for_metrics",
    "per_device_eval_batch_size",
    "deepspeed",
    "accelerator_config",
    "parallelism_config",
    "local_rank",
    "skip_memory_metrics",
    "torch_empty_cache_steps",
    "average_tokens_across_devices",
    "include_num_input_tokens_seen",
}
# Optimizers, ours and the Trainer's, whose states are alike.
_ADAMS = (*ADAM_OPTIMIZERS, "adamw_torch", "adamw_torch_fused")


# The output folder


def check_output_dir(args: Any) -> None:
    """Refuse at once what `prepare_output_dir` would refuse, or what each restart would delete.

    Only the main process looks; nothing is changed.
    """
    if args.estimate or not is_main_process():
        return
    folder = Path(args.output_dir)
    names_checkpoint = args.resume not in RESUME_WORDS
    goes_back = names_checkpoint and _lies_in(Path(args.resume), folder)
    begins_elsewhere = names_checkpoint and not goes_back
    if args.overwrite_run or goes_back:
        _check_restarts(args)
    if args.overwrite_run or begins_elsewhere or _starts_from_scratch(args.resume, folder):
        _check_available(folder, args)


def _check_restarts(args: Any) -> None:
    """Refuse to begin anew where a scheduler starts the command again."""
    setting = "overwrite_run true" if args.overwrite_run else f"resume {args.resume}"
    for name in _RESTART_COUNTS:
        if int(os.environ.get(name, "0")) > 0:
            raise InputError(
                f"{setting}: {name} is {os.environ[name]}, and each start would throw away "
                "what was trained before; leave it out, and the run is resumed (--resume auto)"
            )


def lock_output_dir(args: Any) -> None:
    """Keep the output folder for this process until it ends; another one is refused there."""
    run_on_main_process(args, lambda: lock_run(Path(args.output_dir)))


def find_resume_checkpoint(args: Any) -> str | None:
    """Return the checkpoint folder to resume from; None if the run starts from scratch."""
    return run_on_main_process(args, lambda: _find_checkpoint(args, Path(args.output_dir)))


def prepare_output_dir(
    args: Any,
    configs: Sequence[Any],
    checkpoint: str | None,
    sources: Mapping[str, str | None],
) -> None:
    """Refuse a folder that the run may not write to, and delete what it replaces there.

    Args:
        args: The arguments of the run.
        configs: All settings of the run. A resumed run must have the settings of its start.
        checkpoint: The result of `find_resume_checkpoint`.
        sources: The files and folders that the run reads, by setting: none may lie in a folder
            that is deleted.
    """
    resume_from = None if checkpoint is None else Path(checkpoint)
    run_on_main_process(args, lambda: _check_and_clear(args, configs, resume_from, sources))


def _check_and_clear(
    args: Any,
    configs: Sequence[Any],
    resume_from: Path | None,
    sources: Mapping[str, str | None],
) -> None:
    """Check the folder first, and only then change anything."""
    folder = Path(args.output_dir)
    if resume_from is not None:
        _check_same_settings(resume_from / CONFIG_FILE, configs, allow=args.allow_changes)
    if resume_from is None or not _lies_in(resume_from, folder):
        _check_available(folder, args)
        _check_sources(folder, sources)
    else:
        for checkpoint in retire_later_checkpoints(folder, resume_from):
            logger.warning(
                "%s: later than %s, from which the run is resumed; it is not used again",
                checkpoint,
                resume_from.name,
            )
        # Without results the run is unfinished again.
        (folder / RESULTS_FILE).unlink(missing_ok=True)
    if args.overwrite_run and folder.is_dir():
        shutil.rmtree(folder)
    elif folder.is_dir():
        remove_leftovers(folder)


def _lies_in(checkpoint: Path, folder: Path) -> bool:
    return checkpoint.parent.resolve() == folder.resolve()


def _check_sources(folder: Path, sources: Mapping[str, str | None]) -> None:
    """Refuse to read from a folder that may be deleted."""
    for name, path in sources.items():
        if path is None or not Path(path).exists():  # a Hub name
            continue
        if Path(path).resolve().is_relative_to(folder.resolve()):
            raise InputError(
                f"{name} {path} lies in output_dir {folder}, which --overwrite_run true would "
                "delete; give another --output_dir"
            )


def is_run_file(path: Path) -> bool:
    """Return whether a run leaves files of this name in its folder, also when it is killed."""
    name = Path(final_name(path.name))
    return any(name.match(pattern) for pattern in RUN_FILES)


def run_name(folder: Path) -> str:
    """Return the name of a run: that of its folder, for a seed with that of the parent folder."""
    folder = folder.resolve()
    return f"{folder.parent.name}-{folder.name}" if folder.name.startswith("seed-") else folder.name


def is_unfinished(folder: Path) -> bool:
    """Return whether a folder holds a run that has not come to its end."""
    if not (folder / CONFIG_FILE).is_file():
        return False
    return (folder / UNFINISHED_FILE).is_file() or not (folder / RESULTS_FILE).is_file()


def _starts_from_scratch(resume: str, folder: Path) -> bool:
    return resume == "no" or (resume == "auto" and not is_unfinished(folder))


def _find_checkpoint(args: Any, folder: Path) -> str | None:
    resume = args.resume
    restore_replaced(folder)
    if args.overwrite_run or _starts_from_scratch(resume, folder):
        return None
    if resume not in RESUME_WORDS:
        reason = why_incomplete(Path(resume))
        if reason is not None:
            raise InputError(f"resume: {resume} is no complete checkpoint: {reason}")
        return _checkpoint_of_branch(args, folder) or resume
    checkpoint, incomplete = last_complete(folder)
    for path, reason in incomplete:
        logger.warning("%s is skipped: %s", path, reason)
    if checkpoint is not None:
        logger.info("the run in %s is resumed from %s", folder, checkpoint.name)
    elif resume == "last" or incomplete or (folder / RESULTS_FILE).is_file():
        raise InputError(
            f"{folder} holds no complete checkpoint to resume from; start from scratch with "
            "--overwrite_run true"
        )
    else:
        logger.info("the run in %s has no checkpoint yet: it starts from scratch", folder)
    return None if checkpoint is None else str(checkpoint)


def _checkpoint_of_branch(args: Any, folder: Path) -> str | None:
    """Return the newest checkpoint in `folder` if its run began with `args.resume`, from elsewhere.

    None if there is none, or if it is older than `args.resume`.
    """
    if _lies_in(Path(args.resume), folder):
        if folder / Path(args.resume).name not in list_checkpoints(folder):
            raise InputError(
                f"resume: {args.resume} lies in output_dir, where checkpoints are named "
                "checkpoint-N, N the step; rename it first"
            )
        return None
    if not _goes_on(args, folder):
        return None
    checkpoint, _ = last_complete(folder)
    if checkpoint is None or read_step(checkpoint) < read_step(Path(args.resume)):
        return None
    logger.info(
        "the run in %s has gone on since %s: it is resumed from %s",
        folder,
        args.resume,
        checkpoint.name,
    )
    return str(checkpoint)


def _goes_on(args: Any, folder: Path) -> bool:
    """Return whether a command goes on with the unfinished run in its folder.

    A run that began with a checkpoint has its run's id.
    """
    if not is_unfinished(folder):
        return False
    if args.resume in RESUME_WORDS:
        return args.resume == "auto"
    run_id = read_run_id(folder)
    return run_id is not None and run_id == read_run_id(Path(args.resume))


def _check_available(folder: Path, args: Any) -> None:
    """Refuse a folder whose content may not be deleted or written over."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / CONFIG_FILE).is_file():
        raise InputError(
            f"output_dir {folder} holds files that are no run of this project; give another "
            "--output_dir"
        )
    if args.overwrite_run:
        _check_foreign_files(folder)
    elif not _goes_on(args, folder):
        run = "a finished run" if (folder / RESULTS_FILE).is_file() else "another run"
        checkpoint, _ = last_complete(folder)
        if checkpoint is None:
            advice = " without a checkpoint;"
        else:
            advice = "; continue it with --resume last,"
        raise InputError(
            f"output_dir {folder} holds {run}{advice} replace it with --overwrite_run true, or "
            "give another --output_dir"
        )


def _check_foreign_files(folder: Path) -> None:
    foreign = sorted(path.name for path in folder.iterdir() if not is_run_file(path))
    if not may_replace_card(folder):
        foreign.append(f"{CARD_FILE}, which was edited")
    if foreign:
        raise InputError(
            f"output_dir {folder} holds more than a run ({', '.join(foreign[:3])}), so it is not "
            "replaced; move that away or give another --output_dir"
        )


def _check_same_settings(file: Path, configs: Sequence[Any], *, allow: bool) -> None:
    """Refuse to resume with settings under which the run would become another one."""
    if not file.is_file():  # a checkpoint that was not written by a recipe
        return
    defaults = {}
    changeable = set(_CHANGEABLE)
    for config in configs:
        for field in fields(config):
            defaults[field.name] = None if field.default is MISSING else field.default
        changeable.update(_changeable_fields(config))
    # run.yaml of an older version lacks newer settings: they had their defaults.
    settings_before = defaults | yaml.safe_load(file.read_text(encoding="utf-8"))
    settings = defaults | resolved_values(*configs)
    _check_states(file, settings_before, settings)

    # The minutes first: with them max_steps is a number that nobody has given.
    for name in dict.fromkeys(["max_minutes", *settings_before]):
        before = settings_before.get(name)
        now = settings.get(name)
        if before == now or name in changeable or name.startswith(_CHANGEABLE_PREFIXES):
            continue
        advice = f"leave --{name} out" if before is None else f"give --{name} {_format(before)}"
        _refuse_change(
            f"resume: {name} is {_format(now)}, but in {file} {_format(before)}",
            f"a run is resumed with its own settings: {advice}, start from scratch with "
            "--overwrite_run true,",
            allow=allow,
        )


def _check_states(file: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse an optimizer or a schedule that cannot read the state of the one before."""
    optimizer_before = _kind_of_optimizer(before)
    optimizer_now = _kind_of_optimizer(now)
    if optimizer_before != optimizer_now:
        change = f"optimizer is {optimizer_now}, but in {file} {optimizer_before}"
    elif _follows_metric(before) and not _follows_metric(now):
        change = f"schedule goes by steps, but in {file} it is {before['lr_scheduler_type']}"
    else:
        return
    raise InputError(
        f"resume: the {change}; the saved state does not fit it. Resume with the setting of that "
        f"file, or start a new run from the weights with --model_name_or_path {file.parent}"
    )


def _kind_of_optimizer(settings: Mapping[str, Any]) -> str:
    name = settings.get("optimizer")
    if name == "trainer":
        name = settings.get("optim")
    return "bert_adam or adamw" if name in _ADAMS else str(name)


def _follows_metric(settings: Mapping[str, Any]) -> bool:
    if settings.get("schedule") != "trainer":
        return False
    return settings.get("lr_scheduler_type") in SCHEDULERS_BY_METRIC


def _changeable_fields(config: Any) -> set[str]:
    """Return the names of the fields that may change, also of a class that redefines them."""
    names = set()
    for kind in filter(is_dataclass, type(config).__mro__):
        for field in fields(kind):
            if field.metadata.get("resume") == "may change":
                names.add(field.name)
    return names


def _refuse_change(message: str, advice: str, *, allow: bool) -> None:
    if not allow:
        raise InputError(f"{message}; {advice} or resume with --allow_changes true")
    logger.warning("%s; the run is resumed with it, as allow_changes is true", message)


def _format(value: Any) -> str:
    if value is None:
        return "not given"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


# The state of a trainer


def read_progress(
    checkpoint: Path,
    fingerprint: Mapping[str, Any],
    engine: str,
    processes: int,
    *,
    allow_changes: bool,
) -> dict[str, Any]:
    """Read the progress of a complete checkpoint, with the keys of `NO_PROGRESS` and more.

    A checkpoint of another run is refused, and one whose optimizer state this engine cannot open.
    """
    state: dict[str, Any] = json.loads((checkpoint / PROGRESS_FILE).read_text(encoding="utf-8"))
    engine_before = state["engine"]
    processes_before = len(state["processes"])
    is_deepspeed = engine.startswith("DeepSpeed")
    # DeepSpeed's files can be opened only with the same stage and number of processes.
    if engine_before != engine or (is_deepspeed and processes_before != processes):
        raise InputError(
            f"{checkpoint} was written by {processes_before} process(es) with engine "
            f"{engine_before}, this run has {processes} with engine {engine} and cannot load its "
            "optimizer state; launch it as before, or start a new run from its weights with "
            "--model_name_or_path (of DeepSpeed's checkpoints recipes/convert_checkpoint.py "
            "makes a model)"
        )
    if is_deepspeed:
        logger.info(
            "%s holds pickles, as DeepSpeed writes them: opening them runs what code they hold",
            checkpoint,
        )
    for name, value in fingerprint.items():
        if name == TRAINING_EXAMPLES and name not in state["identity"]:
            continue
        before = state["identity"].get(name)
        if before != value:
            message = f"{name} is {value}, {checkpoint} was made with {before}"
            _refuse_change(message, "restore it, start from scratch,", allow=allow_changes)
    return {**NO_PROGRESS, **state}


def state_of_process(
    states: Sequence[dict[str, Any]], index: int, processes: int
) -> dict[str, Any]:
    """Return the state of a process; the mean if there were more or fewer processes."""
    if len(states) == processes:
        return states[index]
    means = {}
    for name in states[0]:
        means[name] = np.mean([state[name] for state in states], axis=0).tolist()
    return means
