"""Which layers make which vector: the names of the paper's Table 7, or any numbers.

Legend: L layers of the encoder, T tokens, H hidden size, D size of a column's vectors.

Source: BERT, Devlin et al. 2019, section 5.3 and Table 7; google-research/bert extract_features.py `layers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch

from bert_recipes.errors import InputError
from bert_recipes.finetuning.feature_tagger import LAYER_CHOICES


JOINS = ("none", "sum", "concat")
# Name -> row of Table 7 that says which layers, and how they are joined. The paper's sums are weighted, by weights that its
# tagger learns; those of fixed vectors have equal weights.
_NAMED: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "last": ("last", "none"),
        "second_to_last": ("second_to_last", "none"),
        "sum_last_four": ("weighted_sum_last_four", "sum"),
        "concat_last_four": ("concat_last_four", "concat"),
        "sum_all": ("weighted_sum_all", "sum"),
        "embeddings": ("embeddings", "none"),
    }
)
COLUMN_NAMES = tuple(_NAMED)


@dataclass(frozen=True)
class Column:
    """One vector a token (or an input), out of one or more hidden states.

    Attributes:
        name: Of the column.
        layers: Numbers of hidden states, 0 to L; 0 is the output of the embeddings.
        join: none (one layer), sum or concat.
    """

    name: str
    layers: tuple[int, ...]
    join: str

    def size(self, hidden_size: int) -> int:
        """D."""
        return hidden_size * len(self.layers) if self.join == "concat" else hidden_size

    def take(self, hidden: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """Join hidden states.

        Args:
            hidden: Number -> (T, H).

        Returns:
            float32 (T, D).
        """
        parts = [hidden[number].float() for number in self.layers]
        return torch.cat(parts, dim=-1) if self.join == "concat" else torch.stack(parts).sum(0)


def choose_columns(wanted: Sequence[str], join: str, num_layers: int) -> list[Column]:
    """Read what the user wants of a model.

    Args:
        wanted: Names of `COLUMN_NAMES`, and numbers: negative ones from the last layer, 0 for the embeddings.
        join: What becomes of the numbers: a column each ("none"), or one column.
        num_layers: L.

    Raises:
        InputError: An unknown name, a layer that the model does not have, one twice, or a join without two numbers.
    """
    numbers = {text: _number(text, num_layers) for text in wanted if text not in _NAMED}
    if join != "none" and len(numbers) < 2:
        raise InputError(f"join is '{join}'; it is for two or more layers given as numbers: give --layers -1 -2 ...")
    columns = []
    for text in wanted:
        if text in _NAMED:
            row, own_join = _NAMED[text]
            LAYER_CHOICES[row].check(num_layers)
            columns.append(Column(text, tuple(range(num_layers + 1)[LAYER_CHOICES[row].taken]), own_join))
        elif join == "none":
            columns.append(Column(f"layer_{numbers[text]}", (numbers[text],), "none"))
    if join != "none":
        name = "_".join([join, *map(str, numbers.values())])
        columns.append(Column(name, tuple(numbers.values()), join))
    if len(set(numbers.values())) < len(numbers) or len(set(wanted)) < len(wanted):
        raise InputError(f"layers: {', '.join(wanted)} names a layer twice")
    return columns


def _number(text: str, num_layers: int) -> int:
    try:
        number = int(text)
    except ValueError:
        hint = ""
        if text.removeprefix("weighted_") in ("sum_last_four", "sum_all"):
            hint = f"; its weights are learned (make ner-features), with equal ones it is {text.removeprefix('weighted_')}"
        raise InputError(
            f"layers: '{text}' is no layer{hint}; allowed: {', '.join(COLUMN_NAMES)}, or numbers like -1"
        ) from None
    if not -num_layers <= number <= num_layers:
        raise InputError(f"layers: {number} is given, the model has {num_layers}: -{num_layers} to {num_layers}")
    return number if number >= 0 else num_layers + 1 + number


def check_google_layers(wanted: Sequence[str]) -> None:
    """Refuse layers that the original's lines cannot name: it counts the first layer as 0, and has no embeddings.

    Raises:
        InputError: Something else than a negative number.
    """
    wrong = [text for text in wanted if not (text.startswith("-") and text[1:].isdigit() and int(text) < 0)]
    if wrong:
        raise InputError(
            f"layers: '{wrong[0]}' is given; google_jsonl counts from the last layer: -1, -2, ..., or give another --format"
        )
