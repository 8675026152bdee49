r"""How likely your sentences are to a masked LM.

    python recipes/score_sentences.py --model_name_or_path runs/my_bert \
        --input_file sentences.txt --output_file scores.jsonl

Line k of the output is of sentence k: `log_likelihood` (nats, the sum over its pieces, each
predicted from all others), `pieces`, and `perplexity` per piece. docs/blimp.md has the method.
"""

import json
import logging
import math
import sys
from contextlib import ExitStack
from pathlib import Path

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError, run_cli
from bert_recipes.features.arguments import SentenceArguments


def main() -> None:
    """Read, score, write."""
    (args,) = parse_arguments(SentenceArguments)
    # Imported only now, for it takes seconds.
    from bert_recipes.features.extract import read_inputs
    from bert_recipes.features.likelihood import open_scorer
    from bert_recipes.finetuning.prediction import replacing

    logging.basicConfig(
        format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S", level=logging.INFO
    )
    path = Path(args.input_file)
    columns = None if path.suffix.lower() == ".txt" else [args.text_column]
    sentences = [
        first if second is None else f"{first} ||| {second}"
        for first, second in read_inputs(path, columns)
    ]
    if not sentences:
        raise InputError(f"--input_file {path}: no sentence in it")
    with ExitStack() as stack:
        file = sys.stdout
        if args.output_file is not None:
            file = stack.enter_context(replacing(Path(args.output_file)))
        for number, score in enumerate(open_scorer(args).score(sentences)):
            mean = score.log_likelihood / score.num_pieces if score.num_pieces else None
            line: dict[str, float | None] = {
                "row": number,
                "log_likelihood": round(score.log_likelihood, 6),
                "pieces": score.num_pieces,
            }
            line |= {"perplexity": None if mean is None else round(math.exp(-mean), 4)}
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    run_cli(main)
