r"""Fine-tune a BERT on a task of the paper or on your own: GLUE, SQuAD, SWAG, NER.

    accelerate launch --quiet --config_file accelerate_configs/cpu.yaml recipes/finetune.py \
        --config recipes/configs/finetune/glue.yaml --task mrpc \
        --model_name_or_path runs/quickstart --data_dir DATA

Fields: those of transformers.TrainingArguments and of src/bert_recipes/finetuning/arguments.py;
`--help` lists them.
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
    load_task,
)
from bert_recipes.training.resume import check_output_dir, prepare_output_dir


logger = logging.getLogger("finetune")


def main() -> None:
    """Parse, check, train, measure, predict, push."""
    settings, args, teaching = parse_arguments(
        TaskArguments, FineTuningArguments, TeachingArguments, check_first=check_access
    )
    configs = (settings, args) if teaching.teacher is None else (settings, args, teaching)
    task = load_task(settings)
    if not args.has_output_dir:
        args.output_dir = f"runs/{task.name}"
    check_output_dir(args)
    # Imported only now, for it takes seconds: what is out of reach has been reported before.
    from bert_recipes.finetuning.run import describe_origin, prepare_run, read_by, write_predictions
    from bert_recipes.hub import PushCheckpoints, check_push, push_run
    from bert_recipes.reports.facts import gather_finetuning
    from bert_recipes.reports.finish import finish_run
    from bert_recipes.reports.page import finetuning_table
    from bert_recipes.training.estimate import print_estimate
    from bert_recipes.training.run import check_launch, run_training, start_logging

    start_logging(args)
    check_launch(args)
    check_push(args)

    # 1. Data, checkpoint, head; every mistake is found here
    run = prepare_run(settings, args, teaching)
    if args.estimate:
        print_estimate(run.trainer)
        return
    if args.push_to_hub:
        run.trainer.add_callback(PushCheckpoints())
    resume_from = prepare_output_dir(
        args, configs, sources=read_by(settings) | {"teacher": teaching.teacher}
    )
    facts = describe_origin(run)
    sizes = ", ".join(f"{name} {split['examples']:,}" for name, split in facts["splits"].items())
    logger.info(
        "%s on task %s: examples: %s; %d steps", run.checkpoint, task.name, sizes, args.max_steps
    )

    def finish(results: dict[str, Any]) -> None:
        # 3. Predictions, line k for row k, the report, the card, the Hub
        files = write_predictions(run, Path(args.output_dir))
        gather = partial(gather_finetuning, run)
        push = partial(push_run, args, run.trainer.state.global_step)
        table = partial(finetuning_table, best_metric=task.best_metric)
        finish_run(run.trainer, results, gather=gather, table=table, push=push, files=files)

    # 2. Training, and the metrics on the validation splits
    run_training(run.trainer, configs, resume_from, facts, finish)


if __name__ == "__main__":
    run_cli(main)
