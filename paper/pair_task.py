r"""A store's pairs as a task: does the second text follow the first, or are both in order?

With a frozen encoder it is a probe.

    python paper/pair_task.py --store my_store --pair_label order --output_dir my_order_task
    python recipes/finetune.py --task_file my_order_task/task.yaml --freeze_encoder true \
        --model_name_or_path runs/my_bert --output_dir runs/order_probe

Validation examples are pairs of the store's held-out part.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_recipes.config import parse_arguments
from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.order import epoch_order
from bert_recipes.data.store import open_store
from bert_recipes.errors import InputError, run_cli
from bert_recipes.files import atomic_dir, check_new_folder
from bert_recipes.settings import SEEDS, option, required
from bert_recipes.tokenization.loading import load_tokenizer


# The names of classes 0 and 1 of pre-training.
LABELS = {"next": ("next", "random"), "order": ("in_order", "swapped")}


@dataclass
class PairTaskArguments:
    """Settings of the pairs of a task: label, number, folder."""

    store: str = required("token-id store with a held-out part")
    output_dir: str = required("new folder of task.yaml, train.jsonl and validation.jsonl")
    pair_label: str = option(
        "next", "next (is the second text the next one) or order (are both swapped)", choices=LABELS
    )
    max_seq_length: int = option(128, "tokens of a pair, special tokens included", least=8)
    num_train: int = option(20000, "pairs to train on, at most", least=1)
    num_validation: int = option(2000, "held-out pairs, at most", least=1)
    seed: int = option(12345, "seed of the pairs", **SEEDS)


def write_pair_task(args: PairTaskArguments) -> None:
    """Draw the pairs of both splits, and write them as texts beside their task file."""
    store = open_store(args.store)
    if store.validation is None:
        raise InputError(
            f"{args.store} has no held-out part to validate on; prepare it with "
            "--validation_fraction"
        )
    tokenizer = load_tokenizer(store.tokenizer_path)
    folder = Path(args.output_dir)
    check_new_folder(folder)
    labels = LABELS[args.pair_label]
    with atomic_dir(folder) as aside:
        for split, most in (("train", args.num_train), ("validation", args.num_validation)):
            pairs = PreTrainingDataset.from_store(
                store,
                split,
                max_seq_length=args.max_seq_length,
                seed=args.seed,
                pair_label=args.pair_label,
            )
            with (aside / f"{split}.jsonl").open("w", encoding="utf-8") as file:
                for row in draw_rows(pairs, most, args.seed, tokenizer, labels):
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
        (aside / "task.yaml").write_text(
            f"name: pairs_{args.pair_label}\nkind: sequence_classification\n"
            "files: {train: train.jsonl, validation: validation.jsonl}\n"
            f"text_columns: [first, second]\nlabels: [{', '.join(labels)}]\nmetrics: [accuracy]\n",
            encoding="utf-8",
        )


def draw_rows(
    pairs: PreTrainingDataset, most: int, seed: int, tokenizer: Any, labels: Sequence[str]
) -> Iterator[dict[str, str]]:
    """Yield the texts and the label of the first pairs in a random order."""
    for index in epoch_order(seed, 0, pairs.num_pairs(0))[:most].tolist():
        pair = pairs[(0, index)]
        label = int(pair["next_sentence_label"])
        if label < 0:
            continue  # a text without a neighbour has no order
        is_second = pair["token_type_ids"] == 1
        yield {
            "first": tokenizer.decode(pair["input_ids"][~is_second], skip_special_tokens=True),
            "second": tokenizer.decode(pair["input_ids"][is_second], skip_special_tokens=True),
            "label": labels[label],
        }


def main() -> None:
    """Write the task."""
    (args,) = parse_arguments(PairTaskArguments)
    write_pair_task(args)
    print(f"{args.output_dir}: task.yaml, train.jsonl, validation.jsonl")


if __name__ == "__main__":
    run_cli(main)
