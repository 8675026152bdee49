"""Print pairs as the model sees them: pieces, segments, positions, masks, the label.

    python recipes/show_data.py --store my_store --num_pairs 3 --config laptop

--config takes a configuration of pre-training, or the run.yaml of a run, and its flags are taken
too: the pairs and masks are those with which such a run begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from bert_recipes.config import parse_arguments
from bert_recipes.data.masking import IGNORE_INDEX
from bert_recipes.errors import InputError, run_cli
from bert_recipes.settings import option
from bert_recipes.shipped import ROOT
from bert_recipes.training.arguments import (
    DataArguments,
    DistillationArguments,
    ModelArguments,
    PhaseArguments,
    PreTrainingArguments,
)


if TYPE_CHECKING:
    import torch


# By the label of pairs that the settings ask for.
LABELS = {
    "next": {
        0: "0 = next (B follows A in its document)",
        1: "1 = random (B comes from another document)",
    },
    "order": {0: "0 = in order", 1: "1 = swapped", IGNORE_INDEX: "-100 = none"},
}


@dataclass
class ShowArguments:
    """Choose what is shown."""

    num_pairs: int = option(3, "pairs to print", least=1)
    epoch: int = option(0, "epoch to take them from", least=0)
    first: int = option(0, "number of the first pair in its epoch", least=0)


def describe_replacement(seen: int, label: int, mask_id: int, *, is_causal: bool) -> str:
    """Return what stands in the place of a token that is predicted."""
    if is_causal:
        return "the next token"
    if seen == mask_id:
        return "[MASK]"
    return "kept" if seen == label else "random word"


def print_pair(
    row: Mapping[str, torch.Tensor], tokenizer: PreTrainedTokenizerBase, *, is_causal: bool = False
) -> None:
    """Print one row of a batch as a table.

    Args:
        row: The tensors of one input.
        tokenizer: The tokenizer of the data.
        is_causal: Whether a label is the token that follows, and nothing is masked.
    """
    mask_id = tokenizer.mask_token_id
    print(f"{'position':>8} {'segment':>7}  {'input':20} {'predict':20} how")
    length = int(row["attention_mask"].sum())
    ids = row["input_ids"][:length].tolist()
    labels = row["labels"][:length].tolist()
    segments = row["token_type_ids"][:length].tolist()
    for position in range(length):
        seen = ids[position]
        label = labels[position]
        piece = tokenizer.convert_ids_to_tokens(seen)
        target = ""
        how = ""
        if label != IGNORE_INDEX:
            target = tokenizer.convert_ids_to_tokens(label)
            how = describe_replacement(seen, label, mask_id, is_causal=is_causal)
        segment = "A" if segments[position] == 0 else "B"
        print(f"{position:>8} {segment:>7}  {piece:20} {target:20} {how}".rstrip())


def main() -> None:
    """Load, draw, mask, print."""
    show_args, _, data_args, args, *_ = parse_arguments(
        ShowArguments,
        ModelArguments,
        DataArguments,
        PreTrainingArguments,
        PhaseArguments,
        DistillationArguments,
        configs=ROOT / "recipes" / "configs" / "pretrain",
    )
    # Imported only now, for it takes seconds.
    from bert_recipes.training.pretraining import load_data

    data = load_data(data_args, args.seed)
    pair_labels = LABELS.get(data_args.pair_label, {})
    epoch = show_args.epoch
    total = data.train.num_pairs(epoch)
    first = show_args.first
    if not 0 <= first < total:
        raise InputError(f"first is {first}; epoch {epoch} has pairs 0 to {total - 1}")
    end = min(first + show_args.num_pairs, total)
    for index in range(first, end):
        batch = data.collator([data.train[(epoch, index)]])
        predicted = int((batch["labels"] != IGNORE_INDEX).sum())
        print(
            f"pair {index} of {total:,} in epoch {epoch}: {batch['input_ids'].shape[1]} "
            f"tokens, {predicted} predicted"
        )
        if "next_sentence_label" in batch:
            label = int(batch["next_sentence_label"][0])
            # Instance files bring labels, whatever pair_label says.
            print(f"next_sentence_label {pair_labels.get(label, label)}")
        row = {name: values[0] for name, values in batch.items()}
        print_pair(row, data.tokenizer, is_causal=data_args.selection == "causal")
        print()


if __name__ == "__main__":
    run_cli(main)
