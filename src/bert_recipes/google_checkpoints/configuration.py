"""bert_config.json of the original to config.json of transformers, and back.

Source: google-research/bert modeling.py (`BertConfig`, `get_activation`, `gelu`, `layer_norm`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import BertConfig

from bert_recipes.errors import InputError


logger = logging.getLogger(__name__)

_MOST_BYTES = 1 << 20
_SIZES: tuple[str, ...] = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
)
_SIZES += ("max_position_embeddings", "type_vocab_size")
_MOST_SIZE = 1 << 31
# Of the class in modeling.py, for a file that does not state them.
_SHARES = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02}
# The multilingual and the Chinese models' files have these too; modeling.py reads none of them.
_UNUSED: tuple[str, ...] = ("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers")
_UNUSED += ("pooler_size_per_head", "pooler_type")
# The original's name -> transformers'. Its "gelu" is the tanh form; transformers calls the exact one so.
_ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu", "tanh": "tanh"}
_TANH_GELUS = ("gelu_new", "gelu_pytorch_tanh")
_LAYER_NORM_EPS = 1e-12


def read_json_mapping(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds a mapping.

    Raises:
        InputError: Not such a file, or larger than a megabyte.
        OSError: It cannot be read.
    """
    with open(path, "rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise InputError(f"{path}: more than a megabyte; that is no configuration")
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:100]
        raise InputError(f"{path}: not JSON ({reason})") from error
    if not isinstance(values, dict):
        raise InputError(f"{path}: holds no mapping but a {type(values).__name__}")
    return values


def read_bert_config(path: Path) -> dict[str, Any]:
    """Read bert_config.json.

    Args:
        path: The file.

    Returns:
        Sizes, shares and activation under the original's names, and what the multilingual models have besides.

    Raises:
        InputError: A size is missing or no size, or the activation is not one of the original's.
        OSError: The file cannot be read.
    """
    values = read_json_mapping(path)
    checked: dict[str, Any] = check_sizes(values, path)
    for name, default in _SHARES.items():
        checked[name] = _share(values.get(name, default), name, path)
    activation = values.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise InputError(f"{path}: hidden_act is {activation!r:.100}; the original has {', '.join(_ACTIVATIONS)}")
    checked["hidden_act"] = activation
    checked |= {name: values[name] for name in _UNUSED if isinstance(values.get(name), (str, int))}
    ignored = sorted(values.keys() - checked.keys())
    if ignored:
        logger.warning("%s: left out, as the original does not know it: %s", path, ", ".join(map(ascii, ignored[:10])))
    return checked


def check_sizes(values: Mapping[str, Any], path: Path) -> dict[str, int]:
    """Take the sizes of a model out of its configuration.

    Raises:
        InputError: One is missing or no size, or the heads do not divide the hidden size.
    """
    for name in _SIZES:
        if name not in values:
            raise InputError(f"{path}: no {name}; that is no BERT's configuration")
        value = values[name]
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < _MOST_SIZE:
            raise InputError(f"{path}: {name} is {value!r:.100}; allowed: 1 to {_MOST_SIZE - 1}")
    if values["hidden_size"] % values["num_attention_heads"]:
        raise InputError(
            f"{path}: hidden_size {values['hidden_size']} is no multiple of num_attention_heads "
            f"{values['num_attention_heads']}"
        )
    return {name: values[name] for name in _SIZES}


def to_hub_config(
    values: Mapping[str, Any], *, architecture: str, pad_token_id: int, exact_gelu: bool, labels: list[str] | None
) -> BertConfig:
    """Make transformers' configuration.

    Args:
        values: `read_bert_config`.
        architecture: Class of the model.
        pad_token_id: Id of [PAD] in the vocabulary.
        exact_gelu: Take "gelu" for the exact form.
        labels: Of a classifier, in the order of its rows.
    """
    activation = "gelu" if exact_gelu and values["hidden_act"] == "gelu" else _ACTIVATIONS[values["hidden_act"]]
    extra: dict[str, Any] = {name: values[name] for name in _UNUSED if name in values}
    if labels is not None:
        extra["id2label"] = dict(enumerate(labels))
        extra["label2id"] = {label: number for number, label in enumerate(labels)}
    return BertConfig(
        **{name: values[name] for name in (*_SIZES, *_SHARES)},
        hidden_act=activation,
        layer_norm_eps=_LAYER_NORM_EPS,
        pad_token_id=pad_token_id,
        architectures=[architecture],
        **extra,
    )


def to_bert_config(values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Make the original's configuration.

    Args:
        values: config.json.
        path: That file, for messages.

    Returns:
        What goes into bert_config.json.

    Raises:
        InputError: The original's code has no such model.
    """
    kind = values.get("model_type", "bert")  # the oldest checkpoints do not name their kind
    if kind != "bert":
        raise InputError(f"{path}: model_type is {kind!r:.100}; the original's code has bert only")
    made: dict[str, Any] = dict(check_sizes(values, path))
    made |= {name: _share(values.get(name, default), name, path) for name, default in _SHARES.items()}
    if values.get("position_embedding_type", "absolute") != "absolute":
        raise InputError(
            f"{path}: position_embedding_type {values['position_embedding_type']!r:.100} is not the original's"
        )
    if values.get("is_decoder"):
        raise InputError(f"{path}: is_decoder is true; the original's model sees both sides")
    made["hidden_act"] = _original_activation(values.get("hidden_act", "gelu"), path)
    epsilon = values.get("layer_norm_eps", _LAYER_NORM_EPS)
    if epsilon != _LAYER_NORM_EPS:
        logger.warning("%s: layer_norm_eps is %.100r; the original's code computes with 1e-12", path, epsilon)
    made |= {name: values[name] for name in _UNUSED if isinstance(values.get(name), (str, int))}
    return dict(sorted(made.items()))


def _original_activation(activation: object, path: Path) -> str:
    if activation in _TANH_GELUS:
        return "gelu"
    if activation == "gelu":
        logger.warning(
            "%s: hidden_act is gelu, the exact form; the gelu of the original's code is its tanh form, so that its outputs "
            "differ a little",
            path,
        )
        return "gelu"
    if activation in ("relu", "tanh"):
        return str(activation)
    raise InputError(f"{path}: hidden_act is {activation!r:.100}; the original has {', '.join(_ACTIVATIONS)}")


def _share(value: Any, name: str, path: Path) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1:
        raise InputError(f"{path}: {name} is {value!r:.100}; allowed: 0 or more and below 1")
    return float(value)
