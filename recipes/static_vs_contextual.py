r"""Static against contextual vectors: what does BERT know that TF-IDF and word vectors do not?

    python recipes/static_vs_contextual.py --task sst2 --model_name_or_path runs/my_bert \
        --data_dir data/glue --finetuned runs/sst2
    python recipes/static_vs_contextual.py --task conll2003 --model_name_or_path runs/my_bert \
        --data_dir data/ner --words Washington

A task with one class per text compares classifiers on the same splits. One with tags of entities
compares the vectors of words that are tagged as several types. docs/static.md has the method.
"""

import logging

from bert_recipes.config import parse_arguments
from bert_recipes.errors import run_cli
from bert_recipes.features.arguments import StaticArguments


def main() -> None:
    """Compare, print, write."""
    (args,) = parse_arguments(StaticArguments)
    # Imported only now, for it takes seconds.
    from bert_recipes.features.results import save_results
    from bert_recipes.features.static import compare, make_table

    logging.basicConfig(
        format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S", level=logging.INFO
    )
    results = compare(args)
    folder = args.folder(results["task"])
    table = make_table(results["rows"])
    save_results(folder, results, table, args)
    print(table)
    print(f"results, table and settings: {folder}")


if __name__ == "__main__":
    run_cli(main)
