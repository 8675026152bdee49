"""Train a BERT on a fixed corpus until it knows enough of it: the speedrun.

    python benchmarks/speedrun.py --config benchmarks/speedrun_records/1_bert_adam.yaml

Without --config it runs the record of the quickstart's track. It prints the seconds of training
until an evaluation on held-out text meets the goal. docs/speedrun.md has the rules and the records.
"""

import logging
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from speedrun_clock import Clock, Goal

from bert_recipes import BertTrainer, DataCollatorForPreTraining, PreTrainingDataset, open_store
from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError, run_cli
from bert_recipes.files import hash_of, write_json
from bert_recipes.models.kernels.loading import load_kernels
from bert_recipes.settings import option
from bert_recipes.training.arguments import (
    DataArguments,
    DistillationArguments,
    ModelArguments,
    PreTrainingArguments,
)
from bert_recipes.training.bert_trainer import EVALUATION_SEED
from bert_recipes.training.launch import start_logging
from bert_recipes.training.pretraining import build_missing_quickstart, build_model, load_data
from bert_recipes.training.speed import describe_machine


ROOT = Path(__file__).resolve().parents[1]
RECORDS = list((ROOT / "benchmarks" / "speedrun_records").glob("*.yaml"))
RECORD = max(RECORDS, key=lambda file: int(file.name.partition("_")[0]))
MAX_EVAL_PAIRS = 4000
# The text of the quickstart is the documentation of these.
CORPUS_NEEDS = "Python 3.11.7 on Linux and the packages of constraints.txt (make install)"
logger = logging.getLogger("speedrun")


class Track(NamedTuple):
    """What is trained on what, and to which goal."""

    size: str
    corpus: Path  # train/, validation/ and store/
    sha256: list[str]  # of the text of both splits
    goal: Goal


TRACKS = {
    "quickstart": Track(
        "tiny",
        Path("data/quickstart"),
        [
            "82c1cc4c7e8ce6e387ea51469c8a05a0fd5b531edd2c65479bba51ec33e641fb",
            "e1e0e1d112eaff9c60d2512ff05f7901b65c4a8810d67466e7095a3c965eb029",
        ],
        Goal(max_mlm_loss=3.00, min_nsp_accuracy=0.84),
    ),
    # benchmarks/wikitext.py makes the corpus. Its first run will fix hash and goal.
    "wikitext103": Track("base", Path("data/wikitext103"), [], Goal(max_mlm_loss=0.0)),
}


@dataclass
class SpeedrunArguments:
    """Choose the track."""

    track: str = option("quickstart", "what is trained on what", choices=TRACKS)


def hashes_of(corpus: Path) -> list[str]:
    """Return the SHA-256 of the text of both splits."""
    return [hash_of(corpus / split / "documents.txt") for split in ("train", "validation")]


def main() -> None:
    """Train with the settings of a record, and write what it took to result.json."""
    kinds = (SpeedrunArguments, ModelArguments, DataArguments, PreTrainingArguments)
    # --store is required, and set below. An evaluation on start would start the clock anew.
    argv = [*sys.argv[1:], "--store", "unused", "--eval_on_start", "false"]
    speedrun_args, model_args, data_args, args = parse_arguments(
        *kinds, argv=argv, default_config=RECORD
    )
    start_logging(args)
    track = TRACKS[speedrun_args.track]

    # 1. The corpus; the quickstart's is made where it is missing
    build_missing_quickstart(args, str(track.corpus / "store"), ROOT)
    hashes = hashes_of(track.corpus)
    if track.sha256 and hashes != track.sha256:
        logger.warning("not the corpus of the table: that takes %s", CORPUS_NEEDS)

    # 2. The data: new pairs of sentences and masks in every epoch; the held-out ones are fixed
    data_args.store = str(track.corpus / "store")
    # The pairs of each epoch are made here, which counts.
    data_args.data_cache_dir = str(Path(args.output_dir) / "pairs")
    shutil.rmtree(data_args.data_cache_dir, ignore_errors=True)
    model_args.size = track.size
    data = load_data(data_args, args.seed)
    held_out = PreTrainingDataset.from_store(
        open_store(data_args.store), "validation", seed=EVALUATION_SEED
    )

    # 3. The model: stock's names and weights. Kernels that have to be compiled do not count.
    load_kernels(args.fast_layers, args.device)
    clock = Clock(track.goal)
    clock.start()
    model = build_model(model_args, DistillationArguments(), data, teacher=None, seed=args.seed)

    # 4. The training
    trainer = BertTrainer(
        model,
        args,
        data.collator,
        train_dataset=data.train,
        eval_dataset=held_out,
        processing_class=data.tokenizer,
        unigram_counts=data.unigram_counts,
        max_eval_pairs=MAX_EVAL_PAIRS,
    )
    clock.watch(trainer, DataCollatorForPreTraining(data.tokenizer, seed=EVALUATION_SEED))
    trainer.train()

    # 5. What it took
    trainer.save_model(args.output_dir)  # with its tokenizer
    result = {
        "is_reached": clock.is_reached,
        "seconds": clock.seconds,
        "seed": args.seed,
        "is_corpus_of_the_table": hashes == track.sha256,
        "corpus_sha256": hashes,
        "curve": clock.curve,
        "machine": describe_machine(args.device),
    }
    write_json(Path(args.output_dir) / "result.json", result)
    learned = clock.describe()
    if not clock.is_reached:
        raise InputError(f"not reached: {learned}; raise --max_steps or change the recipe")
    print(f"{clock.seconds:.1f} seconds of training: {learned}")


if __name__ == "__main__":
    run_cli(main)
