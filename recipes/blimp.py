r"""BLiMP: does a model find the grammatical sentence of two the likelier one?

    python recipes/blimp.py --model_name_or_path runs/my_bert --data_dir blimp/data \
        --output_dir runs/blimp/my_bert

Writes all_results.json and table.md: accuracy over all pairs, by phenomenon and by paradigm. Chance
is 50 %. docs/blimp.md has the method.
"""

import logging
import time
from pathlib import Path

from bert_recipes.config import parse_arguments, save_config
from bert_recipes.errors import run_cli, saving
from bert_recipes.features.arguments import BlimpArguments
from bert_recipes.files import write_json
from bert_recipes.training.speed import describe_machine


def main() -> None:
    """Score, print, write."""
    (args,) = parse_arguments(BlimpArguments)
    # Imported only now, for it takes seconds.
    from bert_recipes.features.likelihood import blimp_table, measure_blimp

    logging.basicConfig(
        format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S", level=logging.INFO
    )
    folder, start = Path(args.output_dir), time.perf_counter()
    with saving(folder):
        folder.mkdir(parents=True, exist_ok=True)
    results = measure_blimp(args)
    results |= {"seconds": round(time.perf_counter() - start, 1), "whole_words": args.whole_words}
    results |= {"machine": describe_machine(), "date": time.strftime("%Y-%m-%d")}
    table = blimp_table(results)
    with saving(folder):
        write_json(folder / "all_results.json", results)
        (folder / "table.md").write_text(table, encoding="utf-8")
        save_config(folder / "run.yaml", args)
    print(table)
    print(f"results, table and settings: {folder}")


if __name__ == "__main__":
    run_cli(main)
