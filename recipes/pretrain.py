# /// script
# requires-python = ">=3.11"
# dependencies = ["bert-recipes"]
# ///
r"""Pre-train a BERT: masked LM + next sentence prediction over a token-id store.

    accelerate launch recipes/pretrain.py
    accelerate launch --quiet --config_file accelerate_configs/ddp.yaml --num_processes 2 \
        recipes/pretrain.py --config recipes/configs/pretrain/bert_base.yaml --store my_store

--num_processes is the number of GPUs. --field value sets any field of
transformers.TrainingArguments and of src/bert_recipes/training/arguments.py. Without --config it
runs the quickstart's configuration; the quickstart's data is made first where it is missing.
"""

import logging
from functools import partial
from typing import Any

from bert_recipes.config import parse_arguments
from bert_recipes.errors import run_cli
from bert_recipes.shipped import ROOT
from bert_recipes.training.arguments import (
    DataArguments,
    DistillationArguments,
    ModelArguments,
    PhaseArguments,
    PreTrainingArguments,
    check_teacher,
    plan_phases,
)
from bert_recipes.training.objectives import OBJECTIVES
from bert_recipes.training.resume import (
    check_output_dir,
    find_resume_checkpoint,
    lock_output_dir,
    prepare_output_dir,
)


CONFIGS = ROOT / "recipes" / "configs" / "pretrain"
logger = logging.getLogger("pretrain")


def main() -> None:
    """Pre-train, evaluate, report and push one model."""
    settings = parse_arguments(
        ModelArguments,
        DataArguments,
        PreTrainingArguments,
        PhaseArguments,
        DistillationArguments,
        default_config=CONFIGS / "quickstart.yaml",
        configs=CONFIGS,
    )
    model_args, data_args, args, phase_args, distillation_args = settings
    check_teacher(model_args.objective, distillation_args)
    check_output_dir(args)

    # Importing these takes seconds: first refuse wrong settings.
    from bert_recipes.hub import PushCheckpoints, check_push
    from bert_recipes.reports.pretraining_facts import describe_run
    from bert_recipes.training import pretraining
    from bert_recipes.training.estimate import print_estimate
    from bert_recipes.training.launch import check_launch, start_logging
    from bert_recipes.training.run import run_training

    start_logging(args)
    check_launch(args)
    if not args.estimate:
        check_push(args)
    plans = plan_phases(args, data_args, phase_args)
    # A fraction is written to run.yaml as whole steps.
    phase_args.phase2_steps = phase_args.steps_of(args.max_steps)
    pretraining.build_missing_quickstart(args, data_args.store, ROOT)
    data = pretraining.load_phases(data_args, plans, args.seed)
    pretraining.check_held_out(args, data)
    trainer, teacher = build_trainer(model_args, data_args, args, distillation_args, data)
    if args.estimate:
        print_estimate(trainer)
        return
    if args.push_to_hub:
        trainer.add_callback(PushCheckpoints())
    lock_output_dir(args)
    checkpoint = find_resume_checkpoint(args)
    sources = pretraining.files_read(model_args, data_args, distillation_args)
    prepare_output_dir(args, settings, checkpoint, sources)
    sizes = describe_run(trainer, data)
    log_sizes(sizes)
    checkpoints = {
        "base_model": (model_args.model_name_or_path, trainer.model),
        "teacher": (distillation_args.teacher, teacher),
    }
    input_facts = pretraining.describe_inputs(data_args, data, checkpoints)
    # `finish` is called before the run counts as finished: a killed report is made at the resume.
    run_training(trainer, settings, checkpoint, input_facts, partial(finish, trainer, data, sizes))


def build_trainer(
    model_args: ModelArguments,
    data_args: DataArguments,
    args: PreTrainingArguments,
    distillation_args: DistillationArguments,
    data: Any,
) -> tuple[Any, Any]:
    """Return the Trainer of the objective with its model, and the teacher or None."""
    from bert_recipes.training import pretraining

    teacher = pretraining.load_teacher(
        distillation_args.teacher, model_args.objective, data.tokenizer
    )
    model = pretraining.build_model(model_args, distillation_args, data, teacher, args.seed)
    objective = OBJECTIVES[model_args.objective]
    trainer_class = objective.trainer_class(teacher, distillation_args)
    trainer = pretraining.make_trainer(model, args, data, data_args.max_eval_pairs, trainer_class)
    return trainer, teacher


def log_sizes(sizes: dict[str, Any]) -> None:
    """Log the sizes of a run in one line."""
    texts = [f"{name.replace('_', ' ')} {value}" for name, value in sizes.items()]
    logger.info("run: %s", ", ".join(texts))


def finish(trainer: Any, data: Any, sizes: dict[str, Any], results: dict[str, Any]) -> None:
    """Write the report and the card of a trained model, and push it."""
    from bert_recipes.hub import push_run
    from bert_recipes.reports.finish import finish_run
    from bert_recipes.reports.page import pretraining_table
    from bert_recipes.reports.pretraining_facts import gather_pretraining

    gather = partial(gather_pretraining, trainer, data, sizes, results)
    push = partial(push_run, trainer.args, trainer.state.global_step)
    finish_run(trainer, results, gather=gather, table=pretraining_table, push=push)


if __name__ == "__main__":
    run_cli(main)
