"""Fine-tune a BERT on a task of the paper or on your own: GLUE, SQuAD, SWAG, NER.

    accelerate launch --quiet --config_file accelerate_configs/cpu.yaml recipes/finetune.py \
        --config recipes/configs/finetune/glue.yaml --task mrpc --model_name_or_path runs/quickstart --data_dir DATA

Fields: those of transformers.TrainingArguments and of src/bert_recipes/finetuning/arguments.py; `--help` lists them.
"""

import logging
from functools import partial
from pathlib import Path
from typing import Any

from bert_recipes.config import parse_arguments
from bert_recipes.errors import run_cli
from bert_recipes.finetuning.access import check_access, load_task
from bert_recipes.finetuning.arguments import FineTuningArguments, TaskArguments
from bert_recipes.run_folder import check_output_dir, claim_output_dir


logger = logging.getLogger("finetune")


def main() -> None:
    """Parse, check, train, measure, predict, push."""
    settings, args = parse_arguments(TaskArguments, FineTuningArguments, check_first=check_access)
    task = load_task(settings)
    if not args.has_output_dir:
        args.output_dir = f"runs/{task.name}"
    check_output_dir(args)
    # Imported only now, for it takes seconds: what is out of reach has been said before.
    from bert_recipes.finetuning.run import describe_origin, prepare_run, read_by, write_predictions
    from bert_recipes.model_card import write_card_of_run
    from bert_recipes.pushing import check_push
    from bert_recipes.reports.figures import format_figures
    from bert_recipes.reports.finetuning_facts import gather_finetuning
    from bert_recipes.reports.writing import report_run
    from bert_recipes.training import check_launch, run_training, start_logging

    start_logging(args)
    check_launch(args)
    check_push(args)

    # 1. Data, checkpoint, head; every mistake is found here
    run = prepare_run(settings, args)
    resume_from = claim_output_dir(args, (settings, args), sources=read_by(settings))
    facts = describe_origin(run)
    logger.info("run: %s, %s", run.checkpoint, facts["splits"])
    logger.info("%d steps of %d examples", args.max_steps, run.trainer.global_batch_size)

    def finish(results: dict[str, Any]) -> None:
        # 3. Predictions, line k for row k, the report and the card
        files = write_predictions(run, Path(args.output_dir))
        if run.trainer.is_world_process_zero():
            print(format_figures(results))
            files += report_run(Path(args.output_dir), partial(gather_finetuning, run), is_main=True)
            files += write_card_of_run(Path(args.output_dir))
            print(f"{', '.join(['model', 'all_results.json', *(file.name for file in files)])}: {args.output_dir}")
        run.trainer.trackers.finish()

        # 4. The Hub, where it is wanted
        url = run.trainer.push_to_hub()
        if url is not None and run.trainer.is_world_process_zero():
            print(f"on the Hub: {url}")

    # 2. Training, and the figures on the validation splits
    run_training(run.trainer, (settings, args), resume_from, facts, finish)


if __name__ == "__main__":
    run_cli(main)
