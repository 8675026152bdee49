# /// script
# requires-python = ">=3.11"
# dependencies = ["bert-recipes"]
# ///
r"""Fine-tune a BERT on a task of the paper or on your own: GLUE, SQuAD, SWAG, NER.

    accelerate launch --quiet --config_file accelerate_configs/cpu.yaml recipes/finetune.py \
        --config recipes/configs/finetune/glue.yaml --task mrpc \
        --model_name_or_path runs/quickstart --data_dir DATA

Fields: those of transformers.TrainingArguments and of src/bert_recipes/finetuning/arguments.py.
"""

import logging
from functools import partial
from pathlib import Path
from typing import Any

from bert_recipes.config import parse_arguments
from bert_recipes.errors import run_cli
from bert_recipes.finetuning.arguments import (
    FineTuningArguments,
    TaskArguments,
    TeachingArguments,
    check_access,
)
from bert_recipes.shipped import ROOT
from bert_recipes.training.resume import (
    check_output_dir,
    find_resume_checkpoint,
    lock_output_dir,
    prepare_output_dir,
)


logger = logging.getLogger("finetune")


def main() -> None:
    """Fine-tune, measure, predict, report and push one model."""
    task_args, args, teaching_args = parse_arguments(
        TaskArguments,
        FineTuningArguments,
        TeachingArguments,
        configs=ROOT / "recipes" / "configs" / "finetune",
        check_first=check_access,
    )
    if not args.has_output_dir:
        args.output_dir = f"runs/{task_args.loaded_task.name}"
    check_output_dir(args)

    # Importing these takes seconds: first refuse wrong settings.
    from bert_recipes.finetuning.run import describe_origin, files_read, prepare_run
    from bert_recipes.hub import PushCheckpoints, check_push
    from bert_recipes.training.estimate import print_estimate
    from bert_recipes.training.launch import check_launch, start_logging
    from bert_recipes.training.run import run_training

    start_logging(args)
    check_launch(args)
    if not args.estimate:
        check_push(args)
    run = prepare_run(task_args, args, teaching_args)
    if args.estimate:
        print_estimate(run.trainer)
        return
    if args.push_to_hub:
        run.trainer.add_callback(PushCheckpoints())
    settings = [task_args, args]
    if teaching_args.teacher is not None:
        settings.append(teaching_args)
    lock_output_dir(args)
    checkpoint = find_resume_checkpoint(args)
    prepare_output_dir(args, settings, checkpoint, files_read(task_args, teaching_args))
    facts = describe_origin(run, teaching_args.teacher)
    log_examples(run, facts)
    run_training(run.trainer, settings, checkpoint, facts, partial(finish, run))


def log_examples(run: Any, facts: dict[str, Any]) -> None:
    """Log the checkpoint, the task and the sizes of its splits in one line."""
    sizes = [f"{name} {split['examples']:,}" for name, split in facts["splits"].items()]
    message = "%s on task %s: examples: %s; %d steps"
    max_steps = run.trainer.args.max_steps
    logger.info(message, run.checkpoint, run.task.name, ", ".join(sizes), max_steps)


def finish(run: Any, results: dict[str, Any]) -> None:
    """Write the predictions, the report and the card of a trained model, and push it."""
    from bert_recipes.finetuning.run import write_predictions
    from bert_recipes.hub import push_run
    from bert_recipes.reports.finetuning_facts import gather_finetuning
    from bert_recipes.reports.finish import finish_run
    from bert_recipes.reports.page import finetuning_table

    trainer = run.trainer
    files = write_predictions(run, Path(trainer.args.output_dir))
    gather = partial(gather_finetuning, run)
    push = partial(push_run, trainer.args, trainer.state.global_step)
    table = partial(finetuning_table, best_metric=run.task.best_metric)
    finish_run(trainer, results, gather=gather, table=table, push=push, files=files)


if __name__ == "__main__":
    run_cli(main)
