"""Pre-train a BERT: masked LM + next sentence prediction over a token-id store.

    accelerate launch recipes/pretrain.py
    accelerate launch --quiet --config_file accelerate_configs/ddp.yaml recipes/pretrain.py \
        --config recipes/configs/pretrain/bert_base.yaml --store my_store [--field value ...]

Without --config it runs the quickstart's configuration; the quickstart's data is made first where it is missing. Fields: those of transformers.TrainingArguments and of
src/bert_recipes/arguments.py; `--help` lists them.
"""

import logging
from functools import partial
from pathlib import Path
from typing import Any

from bert_recipes.arguments import DataArguments, ModelArguments, PreTrainingArguments
from bert_recipes.config import parse_arguments
from bert_recipes.errors import run_cli
from bert_recipes.phases import PhaseArguments, plan_phases
from bert_recipes.quickstart import build_quickstart
from bert_recipes.run_folder import check_output_dir, claim_output_dir


REPOSITORY = Path(__file__).resolve().parents[1]
QUICKSTART = REPOSITORY / "recipes" / "configs" / "pretrain" / "quickstart.yaml"
logger = logging.getLogger("pretrain")


def main() -> None:
    """Parse, check, train, report, push."""
    model_args, data_args, args, phase_args = parse_arguments(
        ModelArguments, DataArguments, PreTrainingArguments, PhaseArguments, default_config=QUICKSTART
    )
    check_output_dir(args)
    # Imported only now, for it takes seconds.
    from bert_recipes.main_process import ask_main_process
    from bert_recipes.model_card import write_card_of_run
    from bert_recipes.pretraining import load_model, load_phases, make_trainer
    from bert_recipes.pushing import check_push
    from bert_recipes.reports.pretraining import describe_results
    from bert_recipes.reports.pretraining_facts import describe_run, gather_pretraining
    from bert_recipes.reports.writing import report_run
    from bert_recipes.run_origin import describe_checkpoint, describe_pretraining_data
    from bert_recipes.training import check_launch, run_training, start_logging

    start_logging(args)
    check_launch(args)
    check_push(args)
    phases = plan_phases(args, data_args, phase_args)
    ask_main_process(args, lambda: build_quickstart(data_args.store, REPOSITORY))
    parts = load_phases(data_args, args.seed, phases)
    data, longest = parts[0], max(part.max_seq_length for part in parts)
    model = load_model(model_args, data.tokenizer, longest, args.seed)
    trainer = make_trainer(model, args, parts, data_args.max_eval_pairs, phases)
    configs = (model_args, data_args, args, phase_args)
    resume_from = claim_output_dir(args, configs)
    description = describe_run(trainer, data)
    logger.info("run: %s", description)
    facts = {"data": describe_pretraining_data(data_args, data)}
    if model_args.model_name_or_path is not None:
        facts["base_model"] = describe_checkpoint(model_args.model_name_or_path, model.config)

    def finish(results: dict[str, Any]) -> None:
        # Of all processes: where they share the weights out, none can compute alone.
        gather = partial(gather_pretraining, trainer, data, results, description)
        files = report_run(Path(args.output_dir), gather, is_main=trainer.is_world_process_zero())
        if trainer.is_world_process_zero():
            print(describe_results(results))
            files += write_card_of_run(Path(args.output_dir))
            print(f"model, {', '.join(['all_results.json', *(file.name for file in files)])}: {args.output_dir}")
        trainer.trackers.finish()
        url = trainer.push_to_hub()
        if url is not None and trainer.is_world_process_zero():
            print(f"on the Hub: {url}")

    run_training(trainer, configs, resume_from, facts, finish)


if __name__ == "__main__":
    run_cli(main)
