r"""Vectors out of a BERT, ours or any stock one: of every token by layer, or one for each input.

    python recipes/extract_features.py --model_name_or_path runs/quickstart \
        --input_file texts.txt --output_dir vectors
    python recipes/extract_features.py --model_name_or_path runs/quickstart \
        --input_file texts.jsonl --pooling mean \
        --layers second_to_last --output_dir sentence_vectors

Row k belongs to input k. docs/features.md has the layers, the forms and how to read them; `--help`
lists the fields.
"""

import logging

from bert_recipes.config import parse_arguments
from bert_recipes.errors import exit_on_sigterm, run_cli
from bert_recipes.features.arguments import FeatureArguments


def main() -> None:
    """Parse, check, compute, say how fast."""
    (args,) = parse_arguments(FeatureArguments)
    exit_on_sigterm()
    logging.basicConfig(
        format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S", level=logging.INFO
    )
    # Imported only now, for it takes seconds: what cannot work has been said before.
    from bert_recipes.features.extract import extract_features

    done = extract_features(args)
    print(
        f"{done.num_inputs:,} inputs, {done.num_tokens:,} tokens, {done.num_truncated:,} inputs "
        f"cut; {done.seconds:.1f} s, {done.num_inputs / done.seconds:,.1f} inputs/s"
    )
    print(f"vectors: {done.file}")


if __name__ == "__main__":
    run_cli(main)
