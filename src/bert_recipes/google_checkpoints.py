"""Checkpoints of google-research/bert to folders in Hub form, and back.

==================  ============================================================================
file                what it holds
==================  ============================================================================
names.py            the original's variables beside the names that stock transformers has for them
configuration.py    bert_config.json to config.json and back
location.py         where the files of an original checkpoint lie, and what their folder's name says
to_hub.py           `convert_to_hub`
to_tensorflow.py    `convert_to_tensorflow`
weights_file.py     model.safetensors: written and read one tensor at a time
==================  ============================================================================

Nothing is changed on the way but the names and the orientation of matrices: there and back again is the same bit for bit.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from transformers import BertConfig

from bert_recipes.errors import InputError
from bert_recipes.files import new_folder, write_json
from bert_recipes.tensorflow_files import INDEX_SUFFIX, BundleReader, BundleWriter, shown
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer


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
    """Read a JSON file that holds a mapping."""
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
    """Take the sizes of a model out of its configuration."""
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


CHECKPOINT_NAME = "bert_model.ckpt"
CONFIG_NAME = "bert_config.json"
VOCABULARY_NAME = "vocab.txt"
# Released models whose names do not say it. google-research/bert tokenization.py, `validate_case_matches_checkpoint`.
_LOWER_CASE = ("multilingual_L-12_H-768_A-12", "chinese_L-12_H-768_A-12")
_UPPER_CASE = ("multi_cased_L-12_H-768_A-12",)
_MOST_STATE_BYTES = 1 << 20


@dataclass(frozen=True)
class OriginalFiles:
    """An original checkpoint.

    Attributes:
        prefix: Of the checkpoint's files.
        config_file: bert_config.json.
        vocab_file: vocab.txt.
    """

    prefix: Path
    config_file: Path
    vocab_file: Path


def find_files(tf_checkpoint: str, config_file: str | None, vocab_file: str | None) -> OriginalFiles:
    """Find what a checkpoint is made of.

    Args:
        tf_checkpoint: A folder, the path that the original's scripts take (``.../bert_model.ckpt``), or one of its files.
        config_file: Where its configuration lies if not beside it as bert_config.json.
        vocab_file: The same of its vocab.txt.
    """
    prefix = _find_prefix(Path(tf_checkpoint))
    files = []
    for given, name, flag in (
        (config_file, CONFIG_NAME, "bert_config_file"),
        (vocab_file, VOCABULARY_NAME, "vocab_file"),
    ):
        path = prefix.parent / name if given is None else Path(given)
        if not path.is_file():
            where = (
                f"{prefix.parent} has no {name}; say where it is with --{flag}" if given is None else f"no file {path}"
            )
            raise InputError(f"{flag}: {where}")
        files.append(path)
    return OriginalFiles(prefix, *files)


def _find_prefix(path: Path) -> Path:
    """The path of a checkpoint without the ends of its files' names."""
    if path.is_dir():
        return _prefix_in(path)
    # What a person, or the shell's completion, may point at.
    name = re.sub(r"\.(index|meta|data-\d{5}-of-\d{5})$", "", path.name)
    prefix = path.with_name(name) if name else path
    if prefix.with_name(f"{name}{INDEX_SUFFIX}").is_file():
        return prefix
    if path.is_file():
        raise InputError(
            f"tf_checkpoint: {path} is a file without {name}{INDEX_SUFFIX} beside it; a checkpoint is {name}{INDEX_SUFFIX} and "
            f"{name}.data-..., in TensorFlow's format of version 2"
        )
    raise InputError(
        f"tf_checkpoint: no {prefix}{INDEX_SUFFIX}; give the folder or the path of a TensorFlow checkpoint"
    )


def _prefix_in(folder: Path) -> Path:
    """The checkpoint of a folder: the original's, the one that TensorFlow's own file names, or the only one."""
    found = sorted(file.name.removesuffix(INDEX_SUFFIX) for file in folder.glob(f"*{INDEX_SUFFIX}"))
    if CHECKPOINT_NAME in found:
        return folder / CHECKPOINT_NAME
    latest = _latest(folder / "checkpoint")
    if latest in found:
        return folder / latest
    if not found:
        raise InputError(f"tf_checkpoint: {folder} has no TensorFlow checkpoint (no file *{INDEX_SUFFIX})")
    if len(found) > 1:
        raise InputError(f"tf_checkpoint: {folder} has several checkpoints: give one, such as {folder / found[-1]}")
    return folder / found[0]


def _latest(state_file: Path) -> str:
    """The checkpoint that the last line of training named, without folder; "" where there is no such file."""
    if not state_file.is_file() or state_file.stat().st_size > _MOST_STATE_BYTES:
        return ""
    match = re.search(
        r'^model_checkpoint_path: "(.*)"$', state_file.read_text("utf-8", errors="replace"), re.MULTILINE
    )
    return match[1].rpartition("/")[2] if match else ""


def lower_case_by_name(prefix: Path) -> bool | None:
    """What the name of a released model's folder says: True for "uncased", False for "cased", None if nothing.

    Source: google-research/bert tokenization.py, `validate_case_matches_checkpoint`.
    """
    name = prefix.resolve().parent.name
    words = name.lower().split("_")
    if name in _LOWER_CASE or "uncased" in words:
        return True
    if name in _UPPER_CASE or "cased" in words:
        return False
    return None


def check_case(prefix: Path, do_lower_case: bool | None) -> bool | None:
    """Settle whether text is lower-cased.

    Args:
        prefix: Of the checkpoint.
        do_lower_case: What the user says; None: nothing.

    Returns:
        That, or what the folder's name says; None if neither does, so that the vocabulary decides.
    """
    by_name = lower_case_by_name(prefix)
    if do_lower_case is None or by_name is None or do_lower_case == by_name:
        return by_name if do_lower_case is None else do_lower_case
    raise InputError(
        f"do_lower_case is {str(do_lower_case).lower()}, but {prefix.resolve().parent.name} is {'an uncased' if by_name else 'a cased'} "
        f"model by its name: give --do_lower_case {str(by_name).lower()}, or rename the folder if it is misnamed"
    )


# Letters of shapes: V vocabulary, H hidden size, P positions, T segment types, F feed-forward size, L labels; 2 is 2.
_EMBEDDINGS = [
    ("bert/embeddings/word_embeddings", "bert.embeddings.word_embeddings.weight", "VH"),
    ("bert/embeddings/position_embeddings", "bert.embeddings.position_embeddings.weight", "PH"),
    ("bert/embeddings/token_type_embeddings", "bert.embeddings.token_type_embeddings.weight", "TH"),
    ("bert/embeddings/LayerNorm/gamma", "bert.embeddings.LayerNorm.weight", "H"),
    ("bert/embeddings/LayerNorm/beta", "bert.embeddings.LayerNorm.bias", "H"),
]
_DENSE_OF_LAYER = {
    "attention/self/query": "HH",
    "attention/self/key": "HH",
    "attention/self/value": "HH",
    "attention/output/dense": "HH",
    "intermediate/dense": "HF",
    "output/dense": "FH",
}
_NORMS_OF_LAYER = ("attention/output/LayerNorm", "output/LayerNorm")
_PARTS = {
    "pooler": [
        ("bert/pooler/dense/kernel", "bert.pooler.dense.weight", "HH"),
        ("bert/pooler/dense/bias", "bert.pooler.dense.bias", "H"),
    ],
    "masked_lm": [
        ("cls/predictions/transform/dense/kernel", "cls.predictions.transform.dense.weight", "HH"),
        ("cls/predictions/transform/dense/bias", "cls.predictions.transform.dense.bias", "H"),
        ("cls/predictions/transform/LayerNorm/gamma", "cls.predictions.transform.LayerNorm.weight", "H"),
        ("cls/predictions/transform/LayerNorm/beta", "cls.predictions.transform.LayerNorm.bias", "H"),
        ("cls/predictions/output_bias", "cls.predictions.bias", "V"),
    ],
    "next_sentence": [
        ("cls/seq_relationship/output_weights", "cls.seq_relationship.weight", "2H"),
        ("cls/seq_relationship/output_bias", "cls.seq_relationship.bias", "2"),
    ],
    "classifier": [("output_weights", "classifier.weight", "LH"), ("output_bias", "classifier.bias", "L")],
    "squad": [
        ("cls/squad/output_weights", "qa_outputs.weight", "2H"),
        ("cls/squad/output_bias", "qa_outputs.bias", "2"),
    ],
}
# Heads -> the class of transformers that has them, and whether it needs the pooler. The original always has one; a class that has
# none leaves its weights in the file alone, and `AutoModel` takes them up.
_ARCHITECTURES: Mapping[frozenset[str], tuple[str, bool]] = {
    frozenset(): ("BertModel", False),
    frozenset({"masked_lm", "next_sentence"}): ("BertForPreTraining", True),
    frozenset({"masked_lm"}): ("BertForMaskedLM", False),
    frozenset({"next_sentence"}): ("BertForNextSentencePrediction", True),
    frozenset({"classifier"}): ("BertForSequenceClassification", True),
    frozenset({"squad"}): ("BertForQuestionAnswering", False),
}
ARCHITECTURES = tuple(name for name, _ in _ARCHITECTURES.values())
# What training adds: the two moments of each variable, and the number of steps.
_OPTIMIZER = re.compile(r"(^|/)(adam_m|adam_v|AdamWeightDecayOptimizer(_1)?)$")
_STEPS = "global_step"
_LAYER = re.compile(r"layer[_.](\d{1,4})[/.]")


@dataclass(frozen=True)
class Weight:
    """One weight in both worlds.

    Attributes:
        variable: Its name in the original.
        tensor: Its name in transformers.
        shape: In the original.
        part: "encoder", or one of the heads.
    """

    variable: str
    tensor: str
    shape: tuple[int, ...]
    part: str

    @property
    def is_kernel(self) -> bool:
        """Whether torch keeps it the other way around."""
        return self.variable.endswith("/kernel")

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """Its shape in transformers."""
        return self.shape[::-1] if self.is_kernel else self.shape


def list_weights(sizes: Mapping[str, int], num_labels: int = 0) -> list[Weight]:
    """List every weight that a BERT of these sizes may have.

    Args:
        sizes: vocab_size, hidden_size, num_hidden_layers, intermediate_size, max_position_embeddings, type_vocab_size.
        num_labels: Rows of a classifier.
    """
    letters = {
        "V": sizes["vocab_size"],
        "H": sizes["hidden_size"],
        "P": sizes["max_position_embeddings"],
        "T": sizes["type_vocab_size"],
        "F": sizes["intermediate_size"],
        "L": num_labels,
        "2": 2,
    }
    rows = [(*row, "encoder") for row in _EMBEDDINGS]
    for layer in range(sizes["num_hidden_layers"]):
        rows += _rows_of_layer(f"bert/encoder/layer_{layer}", f"bert.encoder.layer.{layer}")
    rows += [(*row, part) for part, part_rows in _PARTS.items() for row in part_rows]
    return [
        Weight(variable, tensor, tuple(letters[letter] for letter in shape), part)
        for variable, tensor, shape, part in rows
    ]


def _rows_of_layer(variable: str, tensor: str) -> list[tuple[str, str, str, str]]:
    rows = []
    for place, shape in _DENSE_OF_LAYER.items():
        dotted = place.replace("/", ".")
        rows.append((f"{variable}/{place}/kernel", f"{tensor}.{dotted}.weight", shape, "encoder"))
        rows.append((f"{variable}/{place}/bias", f"{tensor}.{dotted}.bias", shape[1], "encoder"))
    for place in _NORMS_OF_LAYER:
        dotted = place.replace("/", ".")
        rows.append((f"{variable}/{place}/gamma", f"{tensor}.{dotted}.weight", "H", "encoder"))
        rows.append((f"{variable}/{place}/beta", f"{tensor}.{dotted}.bias", "H", "encoder"))
    return rows


def check_layers(names: Collection[str], num_layers: int, where: str, config_file: Path) -> None:
    """See that a checkpoint is a BERT, and has as many layers as its configuration says.

    Args:
        names: Of its variables, or of its tensors.
        num_layers: num_hidden_layers.
        where: The checkpoint, for messages.
        config_file: Its configuration, for messages.
    """
    if not any(re.match("bert[/.]", name) for name in names):
        what = f"its first is {shown(min(names))}" if names else "it is empty"
        raise InputError(f"{where}: none of the original's weights, whose names begin with bert, is in it; {what}")
    numbers = [int(match[1]) for match in map(_LAYER.search, names) if match]
    found = max(numbers, default=-1) + 1
    if found != num_layers:
        raise InputError(
            f"{where} has {found} layers, {config_file} says num_hidden_layers {num_layers}; they do not belong together"
        )


def check_shape(weight: Weight, shape: tuple[int, ...], where: str, config_file: Path, *, by_tensor: bool) -> None:
    """See that a weight is of the shape that the configuration says.

    Args:
        weight: By the configuration.
        shape: In the checkpoint.
        where: The checkpoint, for the message.
        config_file: Its configuration, for the message.
        by_tensor: It is the tensor's shape.
    """
    name, wanted = (weight.tensor, weight.tensor_shape) if by_tensor else (weight.variable, weight.shape)
    if shape != wanted:
        raise InputError(
            f"{where}: {name} is {list(shape)}, by {config_file} it is {list(wanted)}; they do not belong together"
        )


def check_skipped(skipped: Collection[str], names: Collection[str], where: str) -> None:
    """See that what is left out is there."""
    for name in skipped:
        if not any(is_chosen(each, [name]) for each in names):
            raise InputError(f"skip_variables: {where} has nothing that is called {shown(name)}")


def is_of_optimizer(variable: str) -> bool:
    """Whether a variable is not the model's but its training's."""
    return variable == _STEPS or _OPTIMIZER.search(variable) is not None


def is_chosen(name: str, skipped: Collection[str]) -> bool:
    """Whether a name is, or lies below, one that the user leaves out."""
    return any(name == start or name.startswith((f"{start}/", f"{start}.")) for start in skipped)


def select_weights(weights: Iterable[Weight], names: Collection[str], where: str, *, by_tensor: bool) -> list[Weight]:
    """Pick the weights that a checkpoint has, and see that they make up a model: none missing, none unknown.

    Args:
        weights: `list_weights`.
        names: A set or mapping of its variables, or of its tensors.
        where: The checkpoint, for messages.
        by_tensor: They are tensors'.
    """
    known = {weight.tensor if by_tensor else weight.variable: weight for weight in weights}
    unknown = sorted(name for name in names if name not in known)
    if unknown:
        raise InputError(
            f"{where}: {_some(unknown)} not of the original's model; leave such out with --skip_variables {shown(unknown[0])}"
        )
    parts = {known[name].part for name in names} | {"encoder"}
    if architecture_of(parts, where)[1]:
        parts.add("pooler")
    chosen = {name: weight for name, weight in known.items() if weight.part in parts}
    missing = [name for name in chosen if name not in names]
    if missing:
        raise InputError(f"{where}: {_some(missing)} missing; the checkpoint is not whole")
    return list(chosen.values())


def architecture_of(parts: Iterable[str], where: str) -> tuple[str, bool]:
    """The class of transformers that has these heads, and whether it needs the pooler.

    Args:
        parts: Of the weights.
        where: The checkpoint, for the message.
    """
    heads = frozenset(parts) - {"encoder", "pooler"}
    if heads not in _ARCHITECTURES:
        raise InputError(
            f"{where}: heads for {', '.join(sorted(heads))}, and no model has all of them; leave some out with "
            "--skip_variables: cls/predictions, cls/seq_relationship, cls/squad, or output_weights output_bias"
        )
    return _ARCHITECTURES[heads]


def _some(names: list[str]) -> str:
    return f"{shown(names[0])}{f' and {len(names) - 1} more are' if len(names) > 1 else ' is'}"


WEIGHTS_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"
_READ_TENSORS = (torch.float32, torch.float16, torch.bfloat16)


def write_weights(path: Path, shapes: Mapping[str, tuple[int, ...]], read: Callable[[str], np.ndarray]) -> None:
    """Write float32 tensors.

    Args:
        path: The file.
        shapes: Name -> shape.
        read: Name -> contiguous float32 of that shape; called once a name, in the order of the file.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name in sorted(shapes):
        end = place + 4 * math.prod(shapes[name])
        header[name] = {"dtype": "F32", "shape": list(shapes[name]), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in sorted(shapes):
            values = read(name)
            if values.shape != shapes[name] or values.dtype != np.float32 or not values.flags.c_contiguous:
                raise ValueError(f"{name}: {values.dtype} {values.shape} is not what was announced")
            file.write(values.astype("<f4", copy=False).data)


class WeightsReader:
    """The tensors of a folder in Hub form, in one file or in several; only safetensors are opened.

    Args:
        folder: The folder.

    Attributes:
        shapes: Name -> shape.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = _find_files(folder)
        self._homes: dict[str, Any] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}

    def __enter__(self) -> WeightsReader:
        with ExitStack() as stack:
            for path in self._files:
                try:
                    file = stack.enter_context(safe_open(path, framework="pt"))
                except SafetensorError as error:
                    raise InputError(f"{path}: no safetensors file, or damaged ({error}); copy it again") from error
                for name in file.keys():  # noqa: SIM118 - not a mapping
                    self._homes[name] = file
                    self.shapes[name] = tuple(file.get_slice(name).get_shape())
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def read(self, name: str) -> np.ndarray:
        """Read a tensor as float32, which holds the values of smaller types exactly."""
        tensor = self._homes[name].get_tensor(name)
        if tensor.dtype not in _READ_TENSORS:
            allowed = ", ".join(str(kind).removeprefix("torch.") for kind in _READ_TENSORS)
            raise InputError(
                f"{self._folder}: {name} is {tensor.dtype}; weights of these types are converted: {allowed}"
            )
        return tensor.float().numpy()


def _find_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS_FILE).is_file():
        return [folder / WEIGHTS_FILE]
    index_file = folder / _INDEX_FILE
    if not index_file.is_file():
        raise InputError(f"{folder}: no {WEIGHTS_FILE}; no other weights are opened")
    files = read_json_mapping(index_file).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise InputError(f"{index_file}: no weight_map in it")
    names = sorted({str(name) for name in files.values()})
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise InputError(f"{index_file}: {name!r:.100} is no safetensors file beside it")
        if not (folder / name).is_file():
            raise InputError(f"{folder / name}: missing; {index_file.name} names it")
    return [folder / name for name in names]


REPORT_FILE = "google_checkpoint.json"
_READ = ("float32", "float16", "bfloat16")
# A vocabulary may be smaller than its matrix if that was filled up to a multiple of one of these.
_MULTIPLES = (8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Converted:
    """What became of a checkpoint's variables.

    Attributes:
        architecture: Class of the model.
        num_variables: Converted ones.
        num_parameters: Numbers in them.
        num_of_optimizer: Left out: moments of the optimiser and the number of steps.
        skipped: Left out as the user wished.
        do_lower_case: Of the tokenizer.
    """

    architecture: str
    num_variables: int
    num_parameters: int
    num_of_optimizer: int
    skipped: list[str]
    do_lower_case: bool


def convert_to_hub(
    files: OriginalFiles,
    output_dir: Path,
    *,
    do_lower_case: bool | None = None,
    exact_gelu: bool = False,
    labels: list[str] | None = None,
    skipped: Collection[str] = (),
) -> Converted:
    """Convert a checkpoint of google-research/bert.

    Weights are written as float32 under stock's names, one at a time. Nothing is written unless every variable of the checkpoint
    is accounted for.

    Args:
        files: From `find_files`.
        output_dir: Passed `check_new_folder`.
        do_lower_case: Of the tokenizer; None: as the folder's name says, or else the vocabulary.
        exact_gelu: Take the configuration's "gelu" for the exact form, as transformers' former converter did, instead of the
            tanh form, which the original's code computes.
        labels: Names of a classifier's labels, in the order of its rows.
        skipped: Variables, or the names above them, that are left out.

    Example:
        >>> files = find_files("uncased_L-12_H-768_A-12", None, None)  # doctest: +SKIP
        >>> convert_to_hub(files, Path("my_bert")).architecture  # doctest: +SKIP
        'BertForPreTraining'
    """
    do_lower_case = check_case(files.prefix, do_lower_case)
    values = read_bert_config(files.config_file)
    reader = BundleReader(files.prefix)
    weights, left_out = _choose(reader, values, files, skipped)
    architecture, _ = architecture_of({weight.part for weight in weights}, str(files.prefix))
    labels = _check_labels(labels, weights)
    tokenizer = load_tokenizer(files.vocab_file, do_lower_case)
    _check_vocabulary(tokenizer, values, files)
    config = to_hub_config(
        values,
        architecture=architecture,
        pad_token_id=int(tokenizer.pad_token_id),
        exact_gelu=exact_gelu,
        labels=labels,
    )
    tensors = {_tensor_name(weight, architecture): weight for weight in weights}
    converted = Converted(
        architecture=architecture,
        num_variables=len(weights),
        num_parameters=sum(int(np.prod(weight.shape)) for weight in weights),
        num_of_optimizer=sum(map(is_of_optimizer, left_out)),
        skipped=[name for name in left_out if not is_of_optimizer(name)],
        do_lower_case=tokenizer.do_lower_case,
    )
    with new_folder(output_dir) as folder:
        shapes = {name: weight.tensor_shape for name, weight in tensors.items()}
        write_weights(folder / WEIGHTS_FILE, shapes, partial(_read, reader, tensors))
        config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_json(folder / REPORT_FILE, {"checkpoint": files.prefix.name, **vars(converted)})
    return converted


def _choose(
    reader: BundleReader, values: dict[str, Any], files: OriginalFiles, skipped: Collection[str]
) -> tuple[list[Weight], list[str]]:
    """The weights of the checkpoint, held against the configuration, and the names of what is left out."""
    where = str(files.prefix)
    if any("/.ATTRIBUTES/" in name or name == "_CHECKPOINTABLE_OBJECT_GRAPH" for name in reader.variables):
        raise InputError(
            f"{where}: a checkpoint of TensorFlow 2's objects (Keras, tf-models); google-research/bert's names its variables "
            "bert/..., and only those are converted"
        )
    check_skipped(skipped, reader.variables, where)
    found, left_out = {}, []
    for name, variable in reader.variables.items():
        if is_of_optimizer(name) or is_chosen(name, skipped):
            left_out.append(name)
        else:
            found[name] = variable
    check_layers(found, values["num_hidden_layers"], where, files.config_file)
    rows = found["output_weights"].shape if "output_weights" in found else ()
    weights = select_weights(list_weights(values, rows[0] if rows else 0), found, where, by_tensor=False)
    for weight in weights:
        variable = found[weight.variable]
        check_shape(weight, variable.shape, where, files.config_file, by_tensor=False)
        if variable.dtype not in _READ:
            raise InputError(f"{where}: {weight.variable} is {variable.dtype}; converted are {', '.join(_READ)}")
    return weights, left_out


def _check_labels(labels: list[str] | None, weights: list[Weight]) -> list[str] | None:
    """The labels of a classifier; None without one."""
    rows = next((weight.shape[0] for weight in weights if weight.variable == "output_weights"), None)
    if rows is None:
        if labels is not None:
            raise InputError("labels: the checkpoint has no classifier (no output_weights)")
        return None
    if labels is None:
        return [f"LABEL_{number}" for number in range(rows)]
    if len(labels) != rows or len(set(labels)) != rows:
        raise InputError(f"labels: {len(set(labels))} different ones for a classifier of {rows}; give {rows}")
    return labels


def _check_vocabulary(tokenizer: OriginalBertTokenizer, values: dict[str, Any], files: OriginalFiles) -> None:
    size, pieces = values["vocab_size"], len(tokenizer)
    if size != pieces and size not in {-(-pieces // multiple) * multiple for multiple in _MULTIPLES}:
        raise InputError(
            f"{files.vocab_file} has {pieces:,} pieces, {files.config_file} says vocab_size {size:,}; they do not belong together"
        )


def _tensor_name(weight: Weight, architecture: str) -> str:
    """Its name in the file: the bare encoder's have no prefix."""
    return re.sub(r"^bert\.", "", weight.tensor) if architecture == "BertModel" else weight.tensor


def _read(reader: BundleReader, tensors: dict[str, Weight], name: str) -> np.ndarray:
    """A tensor's values as stock keeps them."""
    weight = tensors[name]
    values = reader.read(weight.variable).astype(np.float32, copy=False)
    return np.ascontiguousarray(values.T) if weight.is_kernel else values


_WORD_EMBEDDINGS = "bert.embeddings.word_embeddings.weight"
# Shared weights under their second names, and numbers 0, 1, 2, ... that old versions kept with the weights.
_DECODER, _DECODER_BIAS, _POSITIONS = (
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
    "bert.embeddings.position_ids",
)
_SHARED = {_DECODER: _WORD_EMBEDDINGS, _DECODER_BIAS: "cls.predictions.bias"}
# First parts of the names of a bare encoder's weights.
_ENCODER_PARTS = ("embeddings", "encoder", "pooler")


@dataclass(frozen=True)
class Written:
    """What was written.

    Attributes:
        prefix: The checkpoint's path, as the original's scripts take it.
        num_variables: Variables.
        num_parameters: Numbers in them.
        skipped: Tensors left out as the user wished.
        do_lower_case: Of the tokenizer, for the original's flag.
        labels: Of a classifier, in the order of its rows; the original keeps none.
    """

    prefix: Path
    num_variables: int
    num_parameters: int
    skipped: list[str]
    do_lower_case: bool
    labels: list[str]


def convert_to_tensorflow(folder: Path, output_dir: Path, *, skipped: Collection[str] = ()) -> Written:
    """Write bert_model.ckpt, bert_config.json and vocab.txt.

    Args:
        folder: In Hub form, with its tokenizer: a run of this project, or a download.
        output_dir: Passed `check_new_folder`.
        skipped: Tensors, or the names above them, that are left out.

    Example:
        >>> convert_to_tensorflow(Path("runs/my_bert"), Path("my_bert_tf")).prefix  # doctest: +SKIP
        PosixPath('my_bert_tf/bert_model.ckpt')
    """
    config_file = folder / "config.json"
    if not config_file.is_file():
        raise InputError(
            f"model_name_or_path: {folder} has no config.json; give a folder with a checkpoint in Hub form"
        )
    # What a configuration does not state is stock's default.
    hub_config = {**BertConfig().to_dict(), **read_json_mapping(config_file)}
    config = to_bert_config(hub_config, config_file)
    tokenizer = load_tokenizer(folder)
    _check_tokenizer(tokenizer, config, folder)
    with WeightsReader(folder) as reader:
        names = {_full_name(name, reader.shapes): name for name in reader.shapes}
        left_out = _left_out(names, reader, skipped, folder)
        shapes = {full: reader.shapes[name] for full, name in names.items() if full not in left_out}
        weights = _choose_written(shapes, config, folder)
        labels = _check_head(hub_config, weights, folder)
        with new_folder(output_dir) as aside:
            with BundleWriter(aside / CHECKPOINT_NAME) as writer:
                for weight in sorted(weights, key=lambda weight: weight.variable):
                    values = reader.read(names[weight.tensor])
                    writer.add(weight.variable, np.ascontiguousarray(values.T) if weight.is_kernel else values)
            text = json.dumps(config, indent=2) + "\n"
            (aside / CONFIG_NAME).write_text(text, encoding="utf-8")
            tokenizer.save_vocabulary(str(aside))
    return Written(
        prefix=output_dir / CHECKPOINT_NAME,
        num_variables=len(weights),
        num_parameters=sum(int(np.prod(weight.shape)) for weight in weights),
        skipped=sorted(left_out - {*_SHARED, _POSITIONS}),
        do_lower_case=tokenizer.do_lower_case,
        labels=labels,
    )


def _full_name(name: str, names: Collection[str]) -> str:
    """The name that a weight has in `BertForPreTraining`, whatever class and age its file is of."""
    if name.split(".")[0] in _ENCODER_PARTS and f"bert.{name}" not in names:
        name = f"bert.{name}"
    # Of the first converted checkpoints, which are on the Hub as they were; transformers renames them when it loads.
    return re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))


def _left_out(names: dict[str, str], reader: WeightsReader, skipped: Collection[str], folder: Path) -> set[str]:
    """The tensors that do not become variables: second names of shared weights, and what the user leaves out."""
    check_skipped(skipped, names, str(folder))
    left_out = {name for name in names if is_chosen(name, skipped)} | ({_POSITIONS} & names.keys())
    for second, first in _SHARED.items():
        if second in left_out or second not in names:
            continue
        if first not in names:
            # Files of some versions have a shared weight under its second name only.
            names[first] = names.pop(second)
            continue
        if not np.array_equal(reader.read(names[first]), reader.read(names[second])):
            raise InputError(f"{folder}: {second} is not {first}; the original has one weight for both")
        left_out.add(second)
    return left_out


def _choose_written(shapes: dict[str, tuple[int, ...]], config: dict[str, Any], folder: Path) -> list[Weight]:
    """The weights of the folder, held against its configuration."""
    config_file = folder / "config.json"
    check_layers(shapes, config["num_hidden_layers"], str(folder), config_file)
    rows = shapes.get("classifier.weight", ())
    weights = select_weights(list_weights(config, rows[0] if rows else 0), shapes, str(folder), by_tensor=True)
    for weight in weights:
        check_shape(weight, shapes[weight.tensor], str(folder), config_file, by_tensor=True)
    return weights


def _check_head(hub_config: dict[str, Any], weights: list[Weight], folder: Path) -> list[str]:
    """See that the original has this head, which the names of weights alone do not say; return a classifier's labels."""
    parts = {weight.part for weight in weights}
    by_weights, _ = architecture_of(parts, str(folder))
    named = hub_config.get("architectures")
    built = named[0] if isinstance(named, list) and named else by_weights
    if "classifier" not in parts:
        return []
    advice = "give --skip_variables classifier to convert the encoder alone"
    if built != by_weights:
        raise InputError(
            f"{folder}: a {built!r:.100}, and the original's code has none ({', '.join(ARCHITECTURES)}); {advice}"
        )
    rows = next(weight.shape[0] for weight in weights if weight.part == "classifier")
    problem = hub_config.get("problem_type")
    # One row without a type is a number, by the rule of transformers.
    if rows == 1 or problem not in (None, "single_label_classification"):
        raise InputError(
            f"{folder}: its classifier is for {problem or 'regression'!r:.100} ({rows} {'row' if rows == 1 else 'rows'}), and "
            f"run_classifier.py chooses one of two classes or more; {advice}"
        )
    labels = hub_config.get("id2label")
    labels = labels if isinstance(labels, dict) else {}
    return [str(labels.get(str(number), f"LABEL_{number}")) for number in range(rows)]


def _check_tokenizer(tokenizer: OriginalBertTokenizer, config: dict[str, Any], folder: Path) -> None:
    """See that vocab.txt alone, which is all that the original has, is this tokenizer."""
    pieces = len(tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False))
    if tokenizer.extra_tokens:
        raise InputError(
            f"{folder}: its tokenizer has {len(tokenizer.extra_tokens)} added tokens, for which the original's {VOCABULARY_NAME} has no "
            "place"
        )
    if pieces > config["vocab_size"]:
        raise InputError(
            f"{folder}: {pieces:,} pieces in the vocabulary, but vocab_size is {config['vocab_size']:,}; they do not belong together"
        )
