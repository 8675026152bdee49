r"""Named entities from a frozen BERT: six ways of taking layers, the paper's Table 7.

    python recipes/feature_based_ner.py --model_name_or_path google-bert/bert-base-cased \
        --data_dir data/ner

The hidden states of all words are computed once, in memory; a BiLSTM is trained on them for every
way and seed. `--help` lists the fields; docs/ner.md says what is the paper's and what is ours.
"""

import logging
from pathlib import Path
from statistics import fmean

from bert_recipes.config import parse_arguments
from bert_recipes.errors import run_cli, saving
from bert_recipes.features.arguments import FeatureNerArguments


def main() -> None:
    """Compute the features, train and measure on them, print the table."""
    (args,) = parse_arguments(FeatureNerArguments)
    # Imported only now, for it takes seconds.
    from bert_recipes.features.ner import (
        load_feature_data,
        make_table,
        mean_replicates,
        measure_ways,
        resolve_length,
    )
    from bert_recipes.features.results import check_results_folder, save_results

    logging.basicConfig(
        format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S", level=logging.INFO
    )
    folder = Path(args.output_dir)
    resolve_length(args)
    check_results_folder(folder, args)
    with saving(folder):
        folder.mkdir(parents=True, exist_ok=True)
    data = load_feature_data(args)
    records = measure_ways(args, data)
    table = make_table(records, data)
    figures = {}
    for way in args.layers:
        scores = [record["f1"] for record in records if record["way"] == way]
        figures[f"eval_f1_{way}"] = fmean(scores)
    results = {
        "model": args.model_name_or_path,
        "train_sentences": len(data.train.examples),
        "eval_sentences": len(data.validation.examples),
        "max_seq_length": args.max_seq_length,
        "num_layers": data.train_features.vectors.shape[0] - 1,
        **figures,
        "jackknife": mean_replicates(records),
        "runs": records,
    }
    save_results(folder, results, table, args)
    print(table)
    print(f"results, table and settings: {folder}")


if __name__ == "__main__":
    run_cli(main)
