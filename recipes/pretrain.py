r"""Pre-train a BERT: masked LM + next sentence prediction over a token-id store.

    accelerate launch recipes/pretrain.py
    accelerate launch --quiet --config_file accelerate_configs/ddp.yaml recipes/pretrain.py \
        --config recipes/configs/pretrain/bert_base.yaml --store my_store [--field value ...]

Without --config it runs the quickstart's configuration; the quickstart's data is made first where
it is missing. Fields: those of transformers.TrainingArguments and of
src/bert_recipes/training/arguments.py.
"""

import logging
from functools import partial
from pathlib import Path
from typing import Any

from bert_recipes.config import parse_arguments
from bert_recipes.errors import run_cli
from bert_recipes.training.arguments import (
    DataArguments,
    DistillationArguments,
    ModelArguments,
    PhaseArguments,
    PreTrainingArguments,
    plan_phases,
)
from bert_recipes.training.objectives import OBJECTIVES
from bert_recipes.training.resume import (
    check_output_dir,
    find_resume_checkpoint,
    lock_output_dir,
    take_output_dir,
)


REPOSITORY = Path(__file__).resolve().parents[1]
QUICKSTART_CONFIG = REPOSITORY / "recipes" / "configs" / "pretrain" / "quickstart.yaml"
logger = logging.getLogger("pretrain")


def main() -> None:
    """Pre-train, evaluate, report and push one model."""
    settings = parse_arguments(
        ModelArguments,
        DataArguments,
        PreTrainingArguments,
        PhaseArguments,
        DistillationArguments,
        default_config=QUICKSTART_CONFIG,
    )
    model_args, data_args, args, phase_args, distillation_args = settings
    check_output_dir(args)

    # Imported when the settings are right, for it takes seconds.
    from bert_recipes.hub import PushCheckpoints, check_push
    from bert_recipes.reports.pretraining_facts import describe_run
    from bert_recipes.training import pretraining
    from bert_recipes.training.estimate import print_estimate
    from bert_recipes.training.run import check_launch, run_training, start_logging

    start_logging(args)
    check_launch(args)
    check_push(args)
    plans = plan_phases(args, data_args, phase_args)
    phase_args.phase2_steps = phase_args.steps_of(args.max_steps)  # for run.yaml: whole steps
    pretraining.build_missing_quickstart(args, data_args.store, REPOSITORY)
    data = pretraining.load_phases(data_args, plans, args.seed)
    objective = OBJECTIVES[model_args.objective]
    teacher = pretraining.load_teacher(distillation_args, data.tokenizer)
    model = pretraining.build_model(model_args, distillation_args, data, teacher, args.seed)
    trainer_class = objective.trainer_class(teacher, distillation_args)
    trainer = pretraining.make_trainer(model, args, data, data_args.max_eval_pairs, trainer_class)
    if args.estimate:
        print_estimate(trainer)
        return
    if args.push_to_hub:
        trainer.add_callback(PushCheckpoints())
    lock_output_dir(args)
    checkpoint = find_resume_checkpoint(args)
    take_output_dir(args, settings, checkpoint)
    description = describe_run(trainer, data)
    facts = pretraining.describe_inputs(model_args, data_args, data, model)
    log_description(description)
    run_training(trainer, settings, checkpoint, facts, partial(finish, trainer, data, description))


def log_description(description: dict[str, Any]) -> None:
    """Log the sizes of a run in one line."""
    sizes = [f"{name.replace('_', ' ')} {value}" for name, value in description.items()]
    logger.info("run: %s", ", ".join(sizes))


def finish(trainer: Any, data: Any, description: dict[str, Any], results: dict[str, Any]) -> None:
    """Write the report and the card of a trained model, and push it."""
    from bert_recipes.hub import push_run
    from bert_recipes.reports.finish import finish_run
    from bert_recipes.reports.page import pretraining_table
    from bert_recipes.reports.pretraining_facts import gather_pretraining

    gather = partial(gather_pretraining, trainer, data, description)
    push = partial(push_run, trainer.args, trainer.state.global_step)
    finish_run(trainer, results, gather=gather, table=pretraining_table, push=push)


if __name__ == "__main__":
    run_cli(main)
