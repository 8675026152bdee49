"""Measure a pre-training checkpoint (ours or stock) on the held-out part of a store.

python recipes/evaluate_checkpoint.py --model_name_or_path runs/quickstart --store data/quickstart/store
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from bert_recipes.arguments import DataArguments, ModelArguments, PreTrainingArguments
from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError, run_cli
from bert_recipes.pretraining import load_data, load_model, make_trainer
from bert_recipes.training import check_launch, describe_machine, start_logging


@dataclass
class EvaluateArguments:
    """Where the figures go."""

    results_file: str | None = field(default=None, metadata={"help": "also write the figures to this JSON file"})


def main() -> None:
    """Load, evaluate, print."""
    evaluate, model_args, data_args, args = parse_arguments(
        EvaluateArguments, ModelArguments, DataArguments, PreTrainingArguments
    )
    start_logging(args)
    check_launch(args)
    if model_args.model_name_or_path is None:
        raise InputError("model_name_or_path is missing: give the folder (or Hub name) of the checkpoint to measure")
    data = load_data(data_args, args.seed)
    if data.validation is None:
        raise InputError(f"{data_args.store or data_args.train_file} has no held-out part to measure on")
    model = load_model(model_args, data.tokenizer, data.train.max_seq_length, args.seed)
    trainer = make_trainer(model, args, data, data_args.max_eval_pairs)
    results = trainer.evaluate()
    if trainer.is_world_process_zero():
        results |= {"model": model_args.model_name_or_path, "machine": describe_machine()}
        text = json.dumps(results, indent=2)
        print(text)
        if evaluate.results_file:
            Path(evaluate.results_file).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    run_cli(main)
