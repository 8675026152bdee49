r"""Named entities from a frozen BERT: the six ways of taking layers of the paper's Table 7, as one
table.

    python recipes/feature_based_ner.py --model_name_or_path google-bert/bert-base-cased \
        --data_dir data/ner

The hidden states of all words are computed once and kept; a BiLSTM is trained on them for every way
and seed. Launched again it resumes where it was stopped. `--help` lists the fields; docs/ner.md
says what is the paper's and what is ours.
"""

import logging
import time
from pathlib import Path
from statistics import fmean

from bert_recipes.config import parse_arguments, save_config
from bert_recipes.errors import run_cli, saving
from bert_recipes.features.arguments import FeatureNerArguments
from bert_recipes.files import write_json
from bert_recipes.training.speed import describe_machine


def main() -> None:
    """Compute or reopen the features, train what is not measured yet, print the table."""
    (args,) = parse_arguments(FeatureNerArguments)
    # Imported only now, for it takes seconds.
    from bert_recipes.features.ner import (
        RESULTS_FILE,
        TABLE_FILE,
        load_feature_data,
        make_table,
        mean_replicates,
        measure_ways,
    )

    logging.basicConfig(
        format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S", level=logging.INFO
    )
    data = load_feature_data(args)
    records = measure_ways(args, data)
    table = make_table(records, data)
    folder = Path(args.output_dir)
    results = {
        "model": args.model_name_or_path,
        "train_sentences": len(data.train.examples),
        "eval_sentences": len(data.validation.examples),
        "max_seq_length": args.max_seq_length,
        "num_layers": data.train_features.vectors.shape[0] - 1,
        "feature_megabytes": round(
            (data.train_features.vectors.nbytes + data.validation_features.vectors.nbytes) / 1e6, 1
        ),
        **{
            f"eval_f1_{way}": fmean(each["f1"] for each in records if each["way"] == way)
            for way in args.layers
        },
        "jackknife": mean_replicates(records, args.layers),
        "runs": records,
        "machine": describe_machine(),
        "date": time.strftime("%Y-%m-%d"),
    }
    with saving(folder):
        write_json(folder / RESULTS_FILE, results)
        (folder / TABLE_FILE).write_text(table, encoding="utf-8")
        save_config(folder / "run.yaml", args)
    print(table)
    print(f"results, table and settings: {folder}")


if __name__ == "__main__":
    run_cli(main)
