"""The six published sizes of BERT, where a model's parameters are, and whether a checkpoint has more of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from bert_recipes.errors import InputError


if TYPE_CHECKING:
    from torch import nn
    from transformers import BertConfig, PretrainedConfig


# name -> (layers, hidden size). Heads are hidden / 64 and the feed-forward size is 4 x hidden in all of them.
# base and large: Devlin et al. 2019, section 3; the others: google-research/bert README, "Smaller BERT Models".
SIZES = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}
HEAD_SIZE = 64
# The shortest input of the data: [CLS] A [SEP] B [SEP] with room to draw a shorter length.
MIN_POSITIONS = 8


def pretraining_config(
    size: str,
    *,
    vocab_size: int,
    max_position_embeddings: int = 512,
    dropout: float = 0.1,
    hidden_act: str = "gelu_new",
    weight_init: str = "truncated_normal",
    initializer_range: float = 0.02,
    pad_token_id: int = 0,
) -> BertConfig:
    """A stock `BertConfig` with the original's hyperparameters.

    Args:
        max_position_embeddings: Longest input in tokens (paper: 512).
        dropout: On hidden states and attention probabilities (paper, appendix A.2: 0.1).
        hidden_act: "gelu_new" is the tanh approximation of google-research/bert modeling.py `gelu`; "gelu" is exact.
        weight_init: "truncated_normal" (original), "normal" (stock transformers) or "sinusoidal_positions" (`OriginalInitialization`).
        initializer_range: Deviation of that normal (original: 0.02).
    """
    if size not in SIZES:
        raise InputError(f"size is '{size}'; allowed: {', '.join(SIZES)}")
    from transformers import BertConfig  # takes seconds, and the sizes are wanted without it
    from transformers.activations import ACT2FN

    if hidden_act not in ACT2FN:
        raise InputError(f"hidden_act is '{hidden_act}'; transformers knows {', '.join(ACT2FN)}")
    layers, hidden = SIZES[size]
    return BertConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // HEAD_SIZE,
        intermediate_size=4 * hidden,
        max_position_embeddings=max_position_embeddings,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        hidden_act=hidden_act,
        weight_init=weight_init,
        initializer_range=initializer_range,
        pad_token_id=pad_token_id,
    )


# component -> does this parameter name belong to it; the first that matches counts.
_COMPONENTS: tuple[tuple[str, Callable[[str], bool]], ...] = (
    ("pre-training heads: biases", lambda name: name.startswith("cls.") and name.endswith("bias")),
    ("pre-training heads: weights", lambda name: name.startswith("cls.")),
    ("token embeddings", lambda name: "word_embeddings" in name),
    ("segment embeddings", lambda name: "token_type_embeddings" in name),
    ("position embeddings", lambda name: "position_embeddings" in name),
    ("LayerNorms", lambda name: "LayerNorm" in name),
    ("pooler", lambda name: "pooler" in name),
    ("attention biases", lambda name: ".attention." in name and name.endswith("bias")),
    ("attention weights", lambda name: ".attention." in name),
    ("feed-forward biases", lambda name: name.endswith("bias")),
    ("feed-forward weights", lambda name: "dense" in name),
)


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Component -> parameters of a BERT, in the order of the forward pass, heads last; tied ones counted once, empty ones left out."""
    counts = dict.fromkeys([name for name, _ in (*_COMPONENTS[2:], *_COMPONENTS[:2])], 0)  # heads last
    for name, parameter in model.named_parameters():
        counts[next(component for component, belongs in _COMPONENTS if belongs(name))] += parameter.numel()
    return {name: count for name, count in counts.items() if count}


def check_layers(name: str, config: PretrainedConfig, unexpected: Iterable[str]) -> None:
    """Refuse a checkpoint with more layers than its config.json says: they would be dropped without a word.

    Args:
        unexpected: Names of the weights that the model has no place for (`output_loading_info`).
    """
    found = {int(match[1]): match[0] for key in unexpected if (match := re.search(r"\blayers?\.(\d+)\b", key))}
    beyond = [found[number] for number in sorted(found) if number >= getattr(config, "num_hidden_layers", number + 1)]
    if beyond:
        raise InputError(
            f"{name}: its config.json has num_hidden_layers {config.num_hidden_layers}, its weights also {', '.join(beyond)}, which "
            "would be dropped; they do not belong together: correct config.json"
        )
