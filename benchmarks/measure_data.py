"""Measure what the data costs: an epoch's index, pairs and masked batches, and what that makes for
16 GB of text.

python benchmarks/measure_data.py --store my_store --results_file results.json
"""

import json
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from bert_recipes.config import parse_arguments
from bert_recipes.data.order import epoch_order
from bert_recipes.data.store import Store, open_store
from bert_recipes.errors import InputError, run_cli
from bert_recipes.files import write_json
from bert_recipes.settings import option
from bert_recipes.training.arguments import DataArguments
from bert_recipes.training.speed import describe_machine


# Devlin et al. 2019, section 3.1: 3,300 M words; RoBERTa (Liu et al. 2019, section 3.2) gives their
# size as 16 GB.
LARGE_CORPUS_BYTES = 16e9
INDEX_BYTES_A_PAIR = 24


@dataclass
class MeasureArguments:
    """How much to measure."""

    num_pairs: int = option(20_000, "pairs to draw and mask")
    batch_size: int = option(32, "pairs of a batch")
    results_file: str | None = option(None, "also write the figures to this JSON file")


def train_text_bytes(store: Store) -> float:
    """Return the bytes of text that the training split was made of; of a part that was split off,
    by its share of the tokens.
    """
    read = store.metadata.get("read", {}).get("train")
    if not read or not read["text_bytes"]:
        raise InputError(
            f"{store.path}: does not say how much text it was made of; make it with "
            "recipes/prepare_corpus.py"
        )
    train, held_out = store.train.num_tokens, 0
    if store.metadata["settings"]["validation_fraction"] and store.validation is not None:
        held_out = store.validation.num_tokens
    return float(read["text_bytes"] * train / (train + held_out))


def main() -> None:
    """Build an index, draw, collate, extrapolate, print."""
    measure, data_args = parse_arguments(MeasureArguments, DataArguments)
    # Imported only now, for it takes seconds.
    from bert_recipes.training.pretraining import load_data

    if data_args.store is None:
        raise InputError(
            "measure_data measures a store's pairs: give --store FOLDER instead of --train_file"
        )
    store = open_store(data_args.store)
    text_bytes = train_text_bytes(store)
    with tempfile.TemporaryDirectory() as folder:
        data = load_data(replace(data_args, data_cache_dir=folder), seed=12345)
        start = time.perf_counter()
        total = data.train.num_pairs(0)
        index_seconds = time.perf_counter() - start
        order = epoch_order(0, 0, total)[: measure.num_pairs].tolist()
        start = time.perf_counter()
        pairs = [data.train[(0, index)] for index in order]
        pair_seconds = time.perf_counter() - start
        start = time.perf_counter()
        for first in range(0, len(pairs), measure.batch_size):
            data.collator(pairs[first : first + measure.batch_size])
        collate_seconds = time.perf_counter() - start
    times = LARGE_CORPUS_BYTES / text_bytes
    results = {
        "max_seq_length": data_args.max_seq_length,
        # How many build the index; pairs are drawn and masked by one.
        "data_num_processes": data_args.data_num_processes,
        "text_mb": round(text_bytes / 1e6, 1),
        "tokens": store.train.num_tokens,
        "pairs_in_epoch_0": total,
        "index_seconds": round(index_seconds, 3),
        "index_mb": round(total * INDEX_BYTES_A_PAIR / 1e6, 2),
        "pairs_per_second_one_process": round(len(pairs) / pair_seconds),
        "masked_pairs_per_second_one_process": round(len(pairs) / collate_seconds),
        "for_16_gb": {
            "pairs": round(total * times),
            "index_seconds": round(index_seconds * times),
            "index_gb": round(total * times * INDEX_BYTES_A_PAIR / 1e9, 2),
        },
        "machine": describe_machine(),
        "date": time.strftime("%Y-%m-%d"),
    }
    print(json.dumps(results, indent=2))
    if measure.results_file:
        write_json(Path(measure.results_file), results)


if __name__ == "__main__":
    run_cli(main)
