"""A checkpoint's figures on a task, without training."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_recipes.config_file import read_tree
from bert_recipes.errors import InputError
from bert_recipes.finetuning.access import check_access, load_task
from bert_recipes.finetuning.arguments import FineTuningArguments, TaskArguments
from bert_recipes.finetuning.input_arguments import InputArguments, read_model_config
from bert_recipes.machine import describe_machine


@dataclass
class ScoringArguments(InputArguments, TaskArguments):  # type: ignore[misc]  # None: as the checkpoint was trained
    """`TaskArguments` of a checkpoint that is trained already: its inputs are cut as they were in training."""

    predictions_dir: str | None = field(
        default=None,
        metadata={"help": "also write predictions_<split>.jsonl and the task's own files into this folder"},
    )

    def __post_init__(self) -> None:
        if self.model_name_or_path is None:
            raise InputError(
                "model_name_or_path is missing: give the folder (or Hub name) of the checkpoint to measure"
            )
        config = read_model_config(self.model_name_or_path)
        for name, value in self.resolved(config, self.model_name_or_path).items():
            setattr(self, name, value)
        super().__post_init__()


def names_a_task(argv: Sequence[str]) -> bool:
    """Whether a command line, or the --config file on it, says `task` or `task_file`."""
    flags = [argument.partition("=")[0].replace("-", "_") for argument in argv]
    if {"__task", "__task_file"} & set(flags):
        return True
    if "__config" not in flags:
        return False
    place = flags.index("__config")
    file = argv[place].partition("=")[2] or "".join(argv[place + 1 : place + 2])
    return Path(file).is_file() and bool({"task", "task_file"} & read_tree(Path(file))[0].keys())


def score_checkpoint(settings: ScoringArguments, args: FineTuningArguments) -> dict[str, Any]:
    """Measure a checkpoint on the validation splits of a task; every process takes part.

    Args:
        settings: Checkpoint, task and data.
        args: Batch, precision, device; do_predict also predicts the test splits into predictions_dir.

    Returns:
        `eval_<figure>`s as a training run has them in all_results.json, and what was measured, on which machine.
    """
    task = load_task(settings)
    if not task.validation_splits:
        raise InputError(f"task {task.name} has no validation split to measure on; recipes/predict.py predicts inputs")
    if args.do_predict and settings.predictions_dir is None:
        raise InputError("do_predict is true; say with --predictions_dir where the predictions go")
    check_access(settings, for_training=False, with_tests=args.do_predict)
    from bert_recipes.finetuning.run import describe_data, prepare_run, write_predictions  # takes seconds

    run = prepare_run(settings, args, for_training=False)
    results = describe_data(run) | run.trainer.evaluate() | run.trainer.certainty()
    if settings.predictions_dir is not None:
        folder = Path(settings.predictions_dir)
        folder.mkdir(parents=True, exist_ok=True)
        write_predictions(run, folder)
    results.pop("epoch", None)  # nothing was trained
    return results | {"machine": describe_machine(), "date": time.strftime("%Y-%m-%d")}
