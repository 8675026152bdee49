"""A store's pairs as a task: does the second text follow the first, or are both in order? With a
frozen encoder it is a probe.

python recipes/make_pair_task.py --store my_store --pair_label order --output_dir my_order_task
python recipes/finetune.py --task_file my_order_task/task.yaml --model_name_or_path runs/my_bert
--freeze_encoder true --output_dir runs/order_probe

Validation examples are pairs of the store's held-out part.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

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
    """Which pairs, how many, and where they go."""

    store: str = required("token-id store with a held-out part")
    output_dir: str = required("new folder of task.yaml, train.jsonl and validation.jsonl")
    pair_label: str = option(
        "next", "next (is the second text the next one) or order (are both swapped)", choices=LABELS
    )
    max_seq_length: int = option(128, "tokens of a pair, special tokens included", least=8)
    num_train: int = option(20000, "pairs to train on, at most", least=1)
    num_validation: int = option(2000, "held-out pairs, at most", least=1)
    seed: int = option(12345, "seed of the pairs", **SEEDS)


def main() -> None:
    """Draw, decode, write."""
    (args,) = parse_arguments(PairTaskArguments)
    store, folder = open_store(args.store), Path(args.output_dir)
    if store.validation is None:
        raise InputError(
            f"{args.store} has no held-out part to validate on; prepare it with "
            "--validation_fraction"
        )
    tokenizer = load_tokenizer(store.tokenizer_path)
    check_new_folder(folder)
    names, sizes = (
        LABELS[args.pair_label],
        {"train": args.num_train, "validation": args.num_validation},
    )
    with atomic_dir(folder) as made:
        for name, most in sizes.items():
            settings = {
                "max_seq_length": args.max_seq_length,
                "seed": args.seed,
                "pair_label": args.pair_label,
            }
            pairs = PreTrainingDataset.from_store(store, name, **settings)
            with (made / f"{name}.jsonl").open("w", encoding="utf-8") as file:
                for index in epoch_order(args.seed, 0, pairs.num_pairs(0))[:most].tolist():
                    pair = pairs[(0, index)]
                    if (label := int(pair["next_sentence_label"])) < 0:
                        continue  # a text without a neighbour has no order
                    second = pair["token_type_ids"] == 1
                    parts = (pair["input_ids"][~second], pair["input_ids"][second])
                    texts = (tokenizer.decode(part, skip_special_tokens=True) for part in parts)
                    row = dict(zip(("first", "second"), texts, strict=True)) | {
                        "label": names[label]
                    }
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
        (made / "task.yaml").write_text(
            f"name: pairs_{args.pair_label}\nkind: sequence_classification\n"
            "files: {train: train.jsonl, validation: validation.jsonl}\n"
            f"text_columns: [first, second]\nlabels: [{', '.join(names)}]\nmetrics: [accuracy]\n",
            encoding="utf-8",
        )
    print(f"{folder}: task.yaml, train.jsonl, validation.jsonl")


if __name__ == "__main__":
    run_cli(main)
