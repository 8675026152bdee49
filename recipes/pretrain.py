r"""Pre-train a BERT: masked LM + next sentence prediction over a token-id store.

    accelerate launch recipes/pretrain.py
    accelerate launch --quiet --config_file accelerate_configs/ddp.yaml recipes/pretrain.py \
        --config recipes/configs/pretrain/bert_base.yaml --store my_store [--field value ...]

Without --config it runs the quickstart's configuration; the quickstart's data is made first where
it is missing. Fields: those of transformers.TrainingArguments and of
src/bert_recipes/training/arguments.py; `--help` lists them.
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
from bert_recipes.training.resume import check_output_dir, prepare_output_dir


REPOSITORY = Path(__file__).resolve().parents[1]
QUICKSTART = REPOSITORY / "recipes" / "configs" / "pretrain" / "quickstart.yaml"
logger = logging.getLogger("pretrain")


def main() -> None:
    """Parse, check, train, report, push."""
    model_args, data_args, args, phase_args, distillation = parse_arguments(
        ModelArguments,
        DataArguments,
        PreTrainingArguments,
        PhaseArguments,
        DistillationArguments,
        default_config=QUICKSTART,
    )
    check_output_dir(args)
    # Imported only now, for it takes seconds.
    from bert_recipes.hub import PushCheckpoints, check_push, push_run
    from bert_recipes.reports.facts import describe_run, gather_pretraining
    from bert_recipes.reports.finish import finish_run
    from bert_recipes.reports.page import pretraining_table
    from bert_recipes.training.distillation import DistillationTrainer, make_student
    from bert_recipes.training.estimate import print_estimate
    from bert_recipes.training.launch import run_on_main_process
    from bert_recipes.training.pretraining import (
        build_missing_quickstart,
        load_model,
        load_phases,
        load_teacher,
        make_trainer,
    )
    from bert_recipes.training.run import (
        check_launch,
        describe_checkpoint,
        describe_pretraining_data,
        run_training,
        start_logging,
    )
    from bert_recipes.training.tinybert import TinyBertTrainer

    start_logging(args)
    check_launch(args)
    check_push(args)
    phases = plan_phases(args, data_args, phase_args)
    run_on_main_process(args, lambda: build_missing_quickstart(data_args.store, REPOSITORY))
    parts = load_phases(data_args, args.seed, phases)
    data, longest = parts[0], max(part.max_seq_length for part in parts)
    teacher = load_teacher(distillation, data.tokenizer)
    kind: Any = None
    weights = distillation.imitation_weights
    if teacher is None:
        model = load_model(model_args, data.tokenizer, longest, args.seed)
    elif None not in weights:
        model = load_model(
            model_args, data.tokenizer, longest, args.seed, heads=teacher.config.num_attention_heads
        )
        start = model_args.model_name_or_path
        kind = partial(TinyBertTrainer, teacher=teacher, weights=weights, starts_from=start)
    else:
        model = make_student(teacher, distillation, args.seed)
        kind = partial(DistillationTrainer, teacher=teacher, settings=distillation)
    trainer = make_trainer(model, args, parts, data_args.max_eval_pairs, phases, kind)
    if args.estimate:
        print_estimate(trainer)
        return
    configs = (model_args, data_args, args, phase_args, distillation)
    if args.push_to_hub:
        trainer.add_callback(PushCheckpoints())
    resume_from = prepare_output_dir(args, configs)
    description = describe_run(trainer, data)
    logger.info(
        "run: %s",
        ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in description.items()),
    )
    facts = {"data": describe_pretraining_data(data_args, data)}
    if model_args.model_name_or_path is not None:
        facts["base_model"] = describe_checkpoint(model_args.model_name_or_path, model.config)

    def finish(results: dict[str, Any]) -> None:
        gather = partial(gather_pretraining, trainer, data, description)
        push = partial(push_run, args, trainer.state.global_step)
        finish_run(trainer, results, gather=gather, table=pretraining_table, push=push)

    run_training(trainer, configs, resume_from, facts, finish)


if __name__ == "__main__":
    run_cli(main)
