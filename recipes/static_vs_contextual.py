r"""Static against contextual vectors: what does BERT know that TF-IDF and word vectors do not?

    python recipes/static_vs_contextual.py --task sst2 --model_name_or_path runs/my_bert \
        --data_dir data/glue --finetuned runs/sst2
    python recipes/static_vs_contextual.py --task conll2003 --model_name_or_path runs/my_bert \
        --data_dir data/ner --words Washington

A task with one class per text compares classifiers on the same splits. One with tags of entities
compares the vectors of words that are tagged as several types. docs/static.md has the method.
"""

import logging
import time

from bert_recipes.config import parse_arguments, save_config
from bert_recipes.errors import run_cli, saving
from bert_recipes.features.arguments import StaticArguments
from bert_recipes.files import write_json
from bert_recipes.training.speed import describe_machine


def main() -> None:
    """Compare, print, write."""
    (args,) = parse_arguments(StaticArguments)
    # Imported only now, for it takes seconds.
    from bert_recipes.features.static import compare, make_table

    logging.basicConfig(
        format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S", level=logging.INFO
    )
    results = compare(args) | {"machine": describe_machine(), "date": time.strftime("%Y-%m-%d")}
    folder, table = args.folder(results["task"]), make_table(results["rows"])
    with saving(folder):
        write_json(folder / "all_results.json", results)
        (folder / "table.md").write_text(table, encoding="utf-8")
        save_config(folder / "run.yaml", args)
    print(table)
    print(f"results, table and settings: {folder}")


if __name__ == "__main__":
    run_cli(main)
