"""The published sizes of BERT and its family; what a model takes, where its parameters are."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
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
# Sizes of the family with another number of heads: google-research/albert README; Jiao et al. 2020,
# section 4.1.
NUM_HEADS = {"xlarge": 16, "tinybert4": 12}
# google-research/albert README: larger ones of ALBERT, and the size of its embeddings.
ALBERT_SIZES = {"xlarge": (24, 2048), "xxlarge": (12, 4096)}
ALBERT_EMBEDDING_SIZE = 128
# google-research/electra configure_pretraining.py and util/training_utils.py: small is another one
# than BERT's.
ELECTRA_SIZES = {"small": (12, 256)}
# Jiao et al. 2020, section 4.1: students of BERT-base, with its 12 heads.
TINYBERT_SIZES = {"tinybert4": (4, 312), "tinybert6": (6, 768)}
MEMBER_SIZES = {
    "albert": ALBERT_SIZES,
    "electra": ELECTRA_SIZES,
    "bert": TINYBERT_SIZES,
}
# The shortest input of the data: [CLS] A [SEP] B [SEP] with room to draw a shorter length.
MIN_POSITIONS = 8
INPUT_NAMES = ("input_ids", "attention_mask", "token_type_ids")
# Settings of all sizes of the original.
ORIGINAL_SETTINGS = {
    "max_position_embeddings": 512,
    # The tanh approximation of google-research/bert modeling.py `gelu`; "gelu" is exact.
    "hidden_act": "gelu_new",
    # Or "normal" (stock transformers), "sinusoidal_positions" (`OriginalInitialization`).
    "weight_init": "truncated_normal",
    "initializer_range": 0.02,  # deviation of that normal
    "pad_token_id": 0,
}


def shape_of(size: str, model_type: str) -> tuple[int, int, int]:
    """Return layers, hidden size and heads of a size by its name, or as "4/256" or "4/256/4".

    Args:
        size: Of `SIZES`, or of `MEMBER_SIZES`.
        model_type: Of a member, which may have sizes of its own.
    """
    sizes = SIZES | MEMBER_SIZES.get(model_type, {})
    if size in sizes:
        layers, hidden_size = sizes[size]
        return layers, hidden_size, NUM_HEADS.get(size, hidden_size // HEAD_SIZE)
    if not re.fullmatch(r"[1-9]\d*(/[1-9]\d*){1,2}", size):
        raise InputError(
            f"size is '{size}'; allowed: {', '.join(sizes)}, or LAYERS/HIDDEN_SIZE or "
            "LAYERS/HIDDEN_SIZE/HEADS"
        )
    numbers = [int(number) for number in size.split("/")]
    layers, hidden_size = numbers[:2]
    heads = numbers[2] if len(numbers) == 3 else max(1, hidden_size // HEAD_SIZE)
    if hidden_size % heads:
        raise InputError(f"size is '{size}': {hidden_size} is no multiple of {heads} heads")
    return layers, hidden_size, heads


def pretraining_config(
    size: str,
    *,
    vocab_size: int,
    model_type: str = "bert",
    dropout: float = 0.1,
    **fields: Any,
) -> Any:
    """Return a stock configuration with the original's hyperparameters.

    Args:
        size: As `shape_of` takes it.
        vocab_size: Pieces of the tokenizer.
        model_type: "bert", "roberta", "albert" or "electra".
        dropout: On hidden states and attention probabilities (paper, appendix A.2: 0.1).
        fields: Other fields of the configuration, over `ORIGINAL_SETTINGS` and those of the member;
            None: as there. `max_position_embeddings` is the longest input in tokens; RoBERTa's
            configuration says more, as its positions begin behind that of pads. ALBERT's
            `share_layers` is "all" or "none".
    """
    layers, hidden_size, heads = shape_of(size, model_type)
    # Takes seconds, and the sizes are read without it.
    from transformers import AutoConfig
    from transformers.activations import ACT2FN

    settings: dict[str, Any] = {
        **ORIGINAL_SETTINGS,
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden_size,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }
    if size == "tinybert4":
        settings["intermediate_size"] = 1200
    if model_type == "roberta":
        # fairseq models/roberta/model.py; stock's defaults are not those of the released models.
        settings["type_vocab_size"] = 1
        settings["layer_norm_eps"] = 1e-5
    if model_type == "albert":
        settings["embedding_size"] = ALBERT_EMBEDDING_SIZE
        settings["num_hidden_groups"] = layers if fields.pop("share_layers", None) == "none" else 1
    if model_type == "electra":
        settings["embedding_size"] = 128 if hidden_size <= 256 else hidden_size
        settings["generator_size"] = 1 / 3 if hidden_size == 768 else 1 / 4
    for name, value in fields.items():
        if value is not None:
            settings[name] = value
    if model_type == "roberta":
        settings["max_position_embeddings"] += settings["pad_token_id"] + 1

    hidden_act = settings["hidden_act"]
    if hidden_act not in ACT2FN:
        raise InputError(f"hidden_act is '{hidden_act}'; transformers knows {', '.join(ACT2FN)}")
    heads = settings["num_attention_heads"]
    if hidden_size % heads:
        raise InputError(
            f"size {size} has {hidden_size} units, which {heads} heads cannot share; give another "
            "size"
        )
    return AutoConfig.for_model(model_type, **settings)


def inputs_of(model: nn.Module) -> tuple[str, ...]:
    """Return those `INPUT_NAMES` that a model reads.

    DistilBERT has no token_type_ids, and RoBERTa one type, whatever a tokenizer makes.
    """
    parameters = inspect.signature(model.forward).parameters
    names = [name for name in parameters if name in INPUT_NAMES]
    num_types = getattr(getattr(model, "config", None), "type_vocab_size", 2)
    if num_types < 2 and "token_type_ids" in names:
        names.remove("token_type_ids")
    return tuple(names)


def reads_left_to_right(config: Any) -> bool:
    """Return whether each token attends to earlier ones alone, and predicts the next one."""
    return bool(getattr(config, "is_decoder", False))


def num_positions(config: Any, default: int = 0) -> int:
    """Return the tokens of the longest input that a model takes.

    The default is for a configuration without this number.
    """
    positions = getattr(config, "max_position_embeddings", default)
    return positions - config.pad_token_id - 1 if counts_from_pad(config) else positions


def counts_from_pad(config: Any) -> bool:
    """Return whether a model numbers positions from the one after that of pads, as RoBERTa.

    Descendants of RoBERTa do so too.
    """
    return config.model_type in (
        "roberta",
        "xlm-roberta",
        "camembert",
        "xlm-roberta-xl",
        "roberta-prelayernorm",
        "longformer",
        "data2vec-text",
        "ibert",
        "luke",
        "mpnet",
        "xmod",
    )


PRETRAINING_HEADS = (
    r"^(cls\.|lm_head\.|predictions\.|sop_classifier\.|vocab_|discriminator_predictions\."
    r"|generator_)"
)
# component -> the pattern of its parameters' names; the first that matches counts.
COMPONENTS = {
    "pre-training heads: generator": r"^generator\.",
    "pre-training heads: biases": rf"{PRETRAINING_HEADS}.*bias$",
    "pre-training heads: weights": PRETRAINING_HEADS,
    "token embeddings": r"word_embeddings",
    "segment embeddings": r"token_type_embeddings",
    "position embeddings": r"position_embeddings",
    "embeddings to hidden size": r"embedding_hidden_mapping_in|embeddings_project",
    "LayerNorms": r"LayerNorm|layer_norm",
    "pooler": r"pooler",
    "attention biases": r"\.attention\..*bias$",
    "attention weights": r"\.attention\.",
    "feed-forward biases": r"bias$",
    "feed-forward weights": r"",
}


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Return how many parameters each component has, in the order of the forward pass, heads last.

    Tied ones are counted once; components without parameters are left out.
    """
    counts = dict.fromkeys(COMPONENTS, 0)
    for name, parameter in model.named_parameters():
        for component, pattern in COMPONENTS.items():
            if re.search(pattern, name):
                counts[component] += parameter.numel()
                break
    encoder_counts = {}
    head_counts = {}
    for component, count in counts.items():
        if count and component.startswith("pre-training heads"):
            head_counts[component] = count
        elif count:
            encoder_counts[component] = count
    return {**encoder_counts, **head_counts}


def check_layers(name: str, config: PretrainedConfig, unexpected: Iterable[str]) -> None:
    """Refuse a checkpoint with weights that would be dropped without a word.

    Such weights belong to a BiLSTM, to relative positions, or to more layers than config.json says.

    Args:
        name: The name of the checkpoint.
        config: The model's.
        unexpected: Names of the weights that the model has no place for (`output_loading_info`).
    """
    num_layers = getattr(config, "num_hidden_layers", None)
    layer_names = {}
    for key in unexpected:
        if key.startswith("bilstm."):
            raise InputError(
                f"{name} was fine-tuned with a BiLSTM, which only that run has; fine-tune without "
                "--bilstm"
            )
        if "distance_embedding" in key:
            raise InputError(
                f"{name} has relative positions, which transformers 5 no longer computes; take a "
                "checkpoint with absolute ones"
            )
        match = re.search(r"\blayers?\.(\d+)\b", key)
        if match and num_layers is not None and int(match[1]) >= num_layers:
            layer_names[int(match[1])] = match[0]
    if layer_names:
        in_order = [layer_names[number] for number in sorted(layer_names)]
        raise InputError(
            f"{name}: its config.json has num_hidden_layers {num_layers}, its weights also "
            f"{', '.join(in_order)}, which would be dropped; they do not belong together: correct "
            "config.json"
        )
