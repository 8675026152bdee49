r"""Predict your own inputs with a fine-tuned checkpoint: texts, pairs, words, questions, choices.

    python recipes/predict.py --model_name_or_path runs/sst2 --input_file reviews.txt \
        --output_file predictions.jsonl

Line k of the output is the prediction for input k: `idx`, `prediction` and `probabilities`. For
words there is a CoNLL file beside it (predictions.conll). A run of recipes/finetune.py
knows its columns (task.yaml) and how its inputs were cut (run.yaml); for any other checkpoint
--text_columns names them.
"""

import json
import logging
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bert_recipes.config import parse_arguments
from bert_recipes.errors import run_cli
from bert_recipes.finetuning.arguments import InputArguments, PredictionArguments


logger = logging.getLogger("predict")


def main() -> None:
    """Parse, check, predict; a Trainer that only predicts leaves no folder behind."""
    args, inputs = parse_arguments(PredictionArguments, InputArguments)
    # Imported only now, for it takes seconds.
    from bert_recipes.finetuning.prediction import load_predictor, read_chunks, replacing
    from bert_recipes.training.launch import check_launch, start_logging

    with tempfile.TemporaryDirectory() as folder:
        run_arguments = args.run_arguments(folder)
        start_logging(run_arguments)
        check_launch(run_arguments, trains=False)

        # 1. Checkpoint and inputs; every mistake is found here
        predictor, num_inputs = load_predictor(args, inputs, run_arguments)
        logger.info("%s: %s, %d inputs", args.model_name_or_path, predictor.task.kind, num_inputs)
        if args.output_file is not None and predictor.task.kind == "token_classification":
            args.check_columns_file()

        # 2. Predictions; every process takes part, the main one writes
        with predictor.trainer.stoppable(), ExitStack() as stack:
            is_main, file, columns = predictor.trainer.is_world_process_zero(), sys.stdout, None
            if is_main and args.output_file is not None:
                path = Path(args.output_file)
                file = stack.enter_context(replacing(path))
                if predictor.task.kind == "token_classification":
                    columns = stack.enter_context(replacing(path.with_suffix(".conll")))
            for chunk, predictions in predictor.predict_chunks(
                read_chunks(Path(args.input_file), predictor.task, id_column=args.id_column)
            ):
                if not is_main:
                    continue
                for line in predictor.lines(chunk, predictions):
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
                if columns is not None:
                    predictor.write_columns(columns, chunk, predictions)
        if is_main and args.output_file is not None:
            logger.info("%d predictions: %s", num_inputs, args.output_file)


if __name__ == "__main__":
    run_cli(main)
