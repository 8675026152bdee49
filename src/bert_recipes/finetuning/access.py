"""Whether a run's task, checkpoint and data are within reach: found out before anything heavy is imported."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from bert_recipes.checkpoint_access import check_checkpoint
from bert_recipes.config import read_task_file
from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.tasks.loading import check_source
from bert_recipes.tasks.registry import get_task
from bert_recipes.tasks.task import Task


logger = logging.getLogger(__name__)

DEFAULT_MODEL = "google-bert/bert-base-uncased"


def load_task(settings: TaskArguments) -> Task:
    """The row that --task or --task_file names."""
    return get_task(settings.task) if settings.task is not None else read_task_file(str(settings.task_file))


def check_access(settings: TaskArguments, *, for_training: bool = True, with_tests: bool = False) -> Task:
    """Load the task's row, choose the checkpoint, and see that checkpoint and data are there.

    Args:
        settings: Its model_name_or_path is filled in.
        for_training: The task must have training data.
        with_tests: The test splits will be read too.

    Returns:
        The row.

    Raises:
        InputError: Unknown task, one without training data, or something is out of reach.
    """
    task = load_task(settings)
    if for_training and not task.train_split:
        raise InputError(f"task {task.name} has no training data; predict it with a model of another task")
    settings.model_name_or_path = choose_checkpoint(settings.model_name_or_path)
    splits = [task.train_split] if for_training else []
    splits += [*task.validation_splits, *(task.test_splits if with_tests else ())]
    check_source(task, settings.data_dir, splits)
    return task


def choose_checkpoint(name: str | None, runs_dir: Path = Path("runs")) -> str:
    """The checkpoint to start from.

    Args:
        name: What the user gave.
        runs_dir: Where finished runs lie.

    Returns:
        `name`; without one the newest finished pre-training run under runs_dir, or `DEFAULT_MODEL` where there is none.

    Raises:
        InputError: The checkpoint cannot be reached.
    """
    if name is not None:
        check_checkpoint(name)
        return name
    newest = newest_pretraining_run(runs_dir)
    if newest is not None:
        logger.info("model_name_or_path is not given: %s is the newest finished pre-training run", newest)
        return str(newest)
    try:
        check_checkpoint(DEFAULT_MODEL)
    except InputError as error:
        raise InputError(
            f"{error} with --model_name_or_path FOLDER (make: MODEL=FOLDER): there is no finished pre-training run under "
            f"{runs_dir}/ to take instead"
        ) from error
    return DEFAULT_MODEL


def newest_pretraining_run(runs_dir: Path) -> Path | None:
    """The run with both pre-training heads that was finished last, or None."""
    finished = []
    for results in [*runs_dir.glob("*/all_results.json"), *runs_dir.glob("*/*/all_results.json")]:
        try:
            config = json.loads((results.parent / "config.json").read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError, UnicodeDecodeError):
            continue  # not a finished run of ours: its folder is somebody else's or still being written
        if isinstance(config, dict) and "BertForPreTraining" in (config.get("architectures") or ()):
            finished.append((results.stat().st_mtime, results.parent))
    return max(finished)[1] if finished else None
