"""The published sizes of BERT and its family, where a model's parameters are, and whether a
checkpoint has more of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from bert_recipes.errors import InputError


if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig


# name -> (layers, hidden size). Heads are hidden / 64 and the feed-forward size is 4 x hidden in
# all of them.
# base and large: Devlin et al. 2019, section 3; the others: google-research/bert README, "Smaller
# BERT Models".
SIZES = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}
HEAD_SIZE = 64
# google-research/albert README: larger ones of ALBERT, and the size of its embeddings.
ALBERT_SIZES = {"xlarge": (24, 2048), "xxlarge": (12, 4096)}
ALBERT_EMBEDDING_SIZE, ALBERT_HEADS = 128, {"xlarge": 16}
# google-research/electra configure_pretraining.py and util/training_utils.py: small is another one
# than BERT's.
ELECTRA_SIZES = {"small": (12, 256)}
# Jiao et al. 2020, section 4.1: students of BERT-base, with its 12 heads.
TINYBERT_SIZES = {"tinybert4": (4, 312), "tinybert6": (6, 768)}
MEMBER_SIZES = {
    "albert": ALBERT_SIZES,
    "electra": ELECTRA_SIZES,
    "bert": TINYBERT_SIZES,
    "tinybert": TINYBERT_SIZES,
}
# The shortest input of the data: [CLS] A [SEP] B [SEP] with room to draw a shorter length.
MIN_POSITIONS = 8


def shape_of(size: str, sizes: Mapping[str, tuple[int, int]] = SIZES) -> tuple[int, int, int]:
    """Layers, hidden size and heads of a size by its name, or as "4/256" or "4/256/4"."""
    if size in sizes:
        layers, hidden = sizes[size]
        return layers, hidden, hidden // HEAD_SIZE
    numbers = (
        [int(part) for part in size.split("/")]
        if re.fullmatch(r"[1-9]\d*(/[1-9]\d*){1,2}", size)
        else []
    )
    if not numbers:
        raise InputError(
            f"size is '{size}'; allowed: {', '.join(sizes)}, or LAYERS/HIDDEN_SIZE or "
            "LAYERS/HIDDEN_SIZE/HEADS"
        )
    layers, hidden, heads = (*numbers, max(1, numbers[1] // HEAD_SIZE))[:3]
    if hidden % heads:
        raise InputError(f"size is '{size}': {hidden} is no multiple of {heads} heads")
    return layers, hidden, heads


def pretraining_config(
    size: str,
    *,
    vocab_size: int,
    model_type: str = "bert",
    max_position_embeddings: int = 512,
    dropout: float = 0.1,
    hidden_act: str = "gelu_new",
    weight_init: str = "truncated_normal",
    initializer_range: float = 0.02,
    pad_token_id: int = 0,
    **others: Any,
) -> Any:
    """A stock configuration with the original's hyperparameters: `BertConfig`, or that of a member
    of the family.

    Args:
        max_position_embeddings: Longest input in tokens (paper: 512). RoBERTa's configuration says
            more: its positions begin behind that of pads.
        dropout: On hidden states and attention probabilities (paper, appendix A.2: 0.1).
        hidden_act: "gelu_new" is the tanh approximation of google-research/bert modeling.py `gelu`;
            "gelu" is exact.
        weight_init: "truncated_normal" (original), "normal" (stock transformers) or
            "sinusoidal_positions" (`OriginalInitialization`).
        initializer_range: Deviation of that normal (original: 0.02).
        others: Of the member: ALBERT's and ELECTRA's `embedding_size`, ALBERT's `share_layers`;
            RoBERTa's `bos_token_id` and `eos_token_id`.
    """
    layers, hidden, heads = shape_of(size, SIZES | MEMBER_SIZES.get(model_type, {}))
    import transformers  # takes seconds, and the sizes are wanted without it
    from transformers.activations import ACT2FN

    if hidden_act not in ACT2FN:
        raise InputError(f"hidden_act is '{hidden_act}'; transformers knows {', '.join(ACT2FN)}")
    settings: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "max_position_embeddings": max_position_embeddings,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        "hidden_act": hidden_act,
        "weight_init": weight_init,
        "initializer_range": initializer_range,
        "pad_token_id": pad_token_id,
    }
    if (
        model_type == "roberta"
    ):  # fairseq models/roberta/model.py; HF's defaults are not those of the released models
        settings |= {"type_vocab_size": 1, "layer_norm_eps": 1e-5}
        settings["max_position_embeddings"] += pad_token_id + 1
    if model_type == "albert":
        settings |= {"embedding_size": ALBERT_EMBEDDING_SIZE}
        settings["num_attention_heads"] = ALBERT_HEADS.get(size, heads)
        settings["num_hidden_groups"] = layers if others.pop("share_layers", None) == "none" else 1
    if size == "tinybert4":
        settings |= {"num_attention_heads": 12, "intermediate_size": 1200}
    if model_type == "electra":
        settings |= {
            "embedding_size": 128 if hidden <= 256 else hidden,
            "generator_size": 1 / 3 if hidden == 768 else 1 / 4,
        }
    settings |= {name: value for name, value in others.items() if value is not None}
    if hidden % (heads := settings["num_attention_heads"]):
        raise InputError(
            f"size {size} has {hidden} units, which {heads} heads cannot share; give another size"
        )
    kinds = {
        "bert": "BertConfig",
        "roberta": "RobertaConfig",
        "albert": "AlbertConfig",
        "electra": "ElectraConfig",
    }
    return getattr(transformers, kinds[model_type])(**settings)


def num_positions(config: Any, default: int = 0) -> int:
    """Tokens of the longest input that a model takes; the default where its configuration does not
    say it.
    """
    positions = getattr(config, "max_position_embeddings", default)
    return positions - (config.pad_token_id + 1 if counts_from_pad(config) else 0)


def counts_from_pad(config: Any) -> bool:
    """Return whether a model numbers the ids that are no padding, from the one behind that of pads,
    as RoBERTa and what was made of it.
    """
    return config.model_type in (
        "roberta",
        "xlm-roberta",
        "camembert",
        "xlm-roberta-xl",
        "longformer",
    )


# component -> does this parameter name belong to it; the first that matches counts.
_HEADS = (
    "cls.",
    "lm_head.",
    "predictions.",
    "sop_classifier.",
    "vocab_",
    "discriminator_predictions.",
    "generator_",
)
_COMPONENTS: tuple[tuple[str, Callable[[str], bool]], ...] = (
    ("pre-training heads: generator", lambda name: name.startswith("generator.")),
    ("pre-training heads: biases", lambda name: name.startswith(_HEADS) and name.endswith("bias")),
    ("pre-training heads: weights", lambda name: name.startswith(_HEADS)),
    ("token embeddings", lambda name: "word_embeddings" in name),
    ("segment embeddings", lambda name: "token_type_embeddings" in name),
    ("position embeddings", lambda name: "position_embeddings" in name),
    (
        "embeddings to hidden size",
        lambda name: "embedding_hidden_mapping_in" in name or "embeddings_project" in name,
    ),
    ("LayerNorms", lambda name: "LayerNorm" in name or "layer_norm" in name),
    ("pooler", lambda name: "pooler" in name),
    ("attention biases", lambda name: ".attention." in name and name.endswith("bias")),
    ("attention weights", lambda name: ".attention." in name),
    ("feed-forward biases", lambda name: name.endswith("bias")),
    ("feed-forward weights", lambda name: True),
)


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Component -> parameters of a BERT, in the order of the forward pass, heads last; tied ones
    counted once, empty ones left out.
    """
    counts = dict.fromkeys(
        [name for name, _ in (*_COMPONENTS[3:], *_COMPONENTS[:3])], 0
    )  # heads last
    for name, parameter in model.named_parameters():
        counts[next(component for component, belongs in _COMPONENTS if belongs(name))] += (
            parameter.numel()
        )
    return {name: count for name, count in counts.items() if count}


def check_layers(name: str, config: PretrainedConfig, unexpected: Iterable[str]) -> None:
    """Refuse a checkpoint with more layers than its config.json says, or a BiLSTM: they would be
    dropped without a word.

    Args:
        unexpected: Names of the weights that the model has no place for (`output_loading_info`).
    """
    unexpected = list(unexpected)
    if any(key.startswith("bilstm.") for key in unexpected):
        raise InputError(
            f"{name} was fine-tuned with a BiLSTM, which only that run has; fine-tune without "
            "--bilstm"
        )
    found = {
        int(match[1]): match[0]
        for key in unexpected
        if (match := re.search(r"\blayers?\.(\d+)\b", key))
    }
    beyond = [
        found[number]
        for number in sorted(found)
        if number >= getattr(config, "num_hidden_layers", number + 1)
    ]
    if beyond:
        raise InputError(
            f"{name}: its config.json has num_hidden_layers {config.num_hidden_layers}, its "
            f"weights also {', '.join(beyond)}, which "
            "would be dropped; they do not belong together: correct config.json"
        )
