"""Checkpoints of google-research/bert to folders in Hub form.

Nothing is changed on the way but the names, the orientation of matrices, and types that are smaller
than float32.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file
from transformers import BertConfig

from bert_recipes.errors import InputError
from bert_recipes.files import atomic_dir, read_json_object, write_json
from bert_recipes.run_folder import WEIGHTS_FILE
from bert_recipes.tensorflow_files import INDEX_SUFFIX, BundleReader, shown
from bert_recipes.tokenization.loading import check_vocabulary, load_tokenizer


logger = logging.getLogger(__name__)

CHECKPOINT_NAME = "bert_model.ckpt"
CONFIG_NAME = "bert_config.json"
VOCABULARY_NAME = "vocab.txt"
REPORT_FILE = "google_checkpoint.json"
_SIZES = (
    "vocab_size",
    "hidden_size",
    "max_position_embeddings",
    "type_vocab_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
)
# Of the class in modeling.py, for a file that does not state them.
_FRACTIONS = {
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
}
# The multilingual and the Chinese models' files have these too; modeling.py reads none of them.
_UNUSED = (
    "directionality",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
)
# The original's name -> transformers'. Its "gelu" is the tanh form; transformers calls the exact
# one so.
_ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu", "tanh": "tanh"}
_LAYER_NORM_EPS = 1e-12
# Released models whose names do not say it. google-research/bert tokenization.py,
# `validate_case_matches_checkpoint`.
_LOWER_CASE = ("multilingual_L-12_H-768_A-12", "chinese_L-12_H-768_A-12")
_READ = ("float32", "float16", "bfloat16")
# Last word of a variable's name -> that of the tensor. The embeddings' tables have none.
_LAST_WORDS = {
    "kernel": "weight",
    "gamma": "weight",
    "output_weights": "weight",
    "bias": "bias",
    "beta": "bias",
    "output_bias": "bias",
}
# Heads -> the class of transformers that has them, and whether it needs the pooler. The original
# always has one; a class that has none leaves its weights in the file alone, and `AutoModel` takes
# them up.
_ARCHITECTURES: Mapping[frozenset[str], tuple[str, bool]] = {
    frozenset(): ("BertModel", False),
    frozenset({"masked_lm", "next_sentence"}): ("BertForPreTraining", True),
    frozenset({"masked_lm"}): ("BertForMaskedLM", False),
    frozenset({"next_sentence"}): ("BertForNextSentencePrediction", True),
    frozenset({"classifier"}): ("BertForSequenceClassification", True),
    frozenset({"squad"}): ("BertForQuestionAnswering", False),
}
# What training adds: the number of steps, and the two moments of each variable.
OF_OPTIMIZER = re.compile(r"global_step|(.*/)?(adam_m|adam_v|AdamWeightDecayOptimizer(_1)?)")
# Of a checkpoint of TensorFlow 2's objects.
_OF_OBJECTS = re.compile(r"/\.ATTRIBUTES/|^_CHECKPOINTABLE_OBJECT_GRAPH$")
_LAYER = re.compile(r"layer_(\d{1,4})/")

Shapes = dict[str, tuple[int, ...]]


# Weights


class Weight(NamedTuple):
    """A weight in both worlds: its names, and its shape in the original."""

    variable: str
    tensor: str
    shape: tuple[int, ...]
    component: str  # "encoder", "pooler", or one of the heads

    @property
    def is_kernel(self) -> bool:
        """Return whether torch keeps it the other way around."""
        return self.variable.endswith("/kernel")


def list_weights(sizes: Mapping[str, int], num_labels: int = 0) -> list[Weight]:
    """List every weight that a BERT of these sizes may have.

    Args:
        sizes: Of the configuration.
        num_labels: A classifier's rows.
    """
    hidden = sizes["hidden_size"]
    components = {
        "encoder": _encoder_shapes(sizes),
        "pooler": _dense("bert/pooler/dense", hidden, hidden),
        "masked_lm": {
            **_dense("cls/predictions/transform/dense", hidden, hidden),
            **_norm("cls/predictions/transform", hidden),
            "cls/predictions/output_bias": (sizes["vocab_size"],),
        },
        "next_sentence": _output("cls/seq_relationship/", 2, hidden),
        "classifier": _output("", num_labels, hidden),
        "squad": _output("cls/squad/", 2, hidden),
    }
    weights = []
    for component, shapes in components.items():
        for variable, shape in shapes.items():
            weights.append(Weight(variable, _tensor_name(variable), shape, component))
    return weights


def _encoder_shapes(sizes: Mapping[str, int]) -> Shapes:
    hidden = sizes["hidden_size"]
    inner = sizes["intermediate_size"]
    shapes: Shapes = {
        "bert/embeddings/word_embeddings": (sizes["vocab_size"], hidden),
        "bert/embeddings/position_embeddings": (sizes["max_position_embeddings"], hidden),
        "bert/embeddings/token_type_embeddings": (sizes["type_vocab_size"], hidden),
        **_norm("bert/embeddings", hidden),
    }
    for number in range(sizes["num_hidden_layers"]):
        layer = f"bert/encoder/layer_{number}"
        for name in ("self/query", "self/key", "self/value", "output/dense"):
            shapes.update(_dense(f"{layer}/attention/{name}", hidden, hidden))
        shapes.update(_norm(f"{layer}/attention/output", hidden))
        shapes.update(_dense(f"{layer}/intermediate/dense", hidden, inner))
        shapes.update(_dense(f"{layer}/output/dense", inner, hidden))
        shapes.update(_norm(f"{layer}/output", hidden))
    return shapes


def _dense(scope: str, inputs: int, outputs: int) -> Shapes:
    return {f"{scope}/kernel": (inputs, outputs), f"{scope}/bias": (outputs,)}


def _norm(scope: str, size: int) -> Shapes:
    return {f"{scope}/LayerNorm/gamma": (size,), f"{scope}/LayerNorm/beta": (size,)}


def _output(prefix: str, rows: int, hidden: int) -> Shapes:
    return {f"{prefix}output_weights": (rows, hidden), f"{prefix}output_bias": (rows,)}


def _tensor_name(variable: str) -> str:
    """Return the name of a variable in transformers.

    bert/encoder/layer_0/output/LayerNorm/gamma is bert.encoder.layer.0.output.LayerNorm.weight.
    """
    scope, _, last = variable.rpartition("/")
    # Heads of fine-tuned models have other names there; a classifier's variables have no scope.
    if scope == "":
        scope = "classifier"
    elif scope == "cls/squad":
        scope = "qa_outputs"
    module = re.sub(r"layer_(\d+)", r"layer.\1", scope).replace("/", ".")
    parameter = _LAST_WORDS.get(last, f"{last}.weight")
    return f"{module}.{parameter}"


def select_weights(
    shapes: Mapping[str, tuple[int, ...]],
    sizes: Mapping[str, int],
    where: str,
    config_file: Path,
) -> tuple[list[Weight], str]:
    """Select the weights that a checkpoint has, and the class of transformers that has them.

    They must make up one model of its configuration: none missing, none unknown.

    Args:
        shapes: Of the checkpoint's variables.
        sizes: Of its configuration.
        where: The checkpoint, for messages.
        config_file: For messages.
    """
    _check_layers(shapes, sizes, where, config_file)
    num_labels = shapes.get("output_weights", (0,))[0]
    weights = {weight.variable: weight for weight in list_weights(sizes, num_labels)}
    unknown = sorted(shapes.keys() - weights.keys())
    if unknown:
        raise InputError(
            f"{where}: {_some(unknown)} not of the original's model; leave such out with "
            f"--skip_variables {shown(unknown[0])}"
        )
    components = {weights[name].component for name in shapes}
    heads = frozenset(components - {"encoder", "pooler"})
    if heads not in _ARCHITECTURES:
        raise InputError(
            f"{where}: heads for {', '.join(sorted(heads))}, and no model has all of them; leave "
            "some out with --skip_variables: cls/predictions, cls/seq_relationship, cls/squad, or "
            "output_weights output_bias"
        )
    architecture, needs_pooler = _ARCHITECTURES[heads]
    components.add("encoder")
    if needs_pooler:
        components.add("pooler")
    selected = [weight for weight in weights.values() if weight.component in components]
    missing = [weight.variable for weight in selected if weight.variable not in shapes]
    if missing:
        raise InputError(f"{where}: {_some(missing)} missing; the checkpoint is not complete")
    for weight in selected:
        shape = shapes[weight.variable]
        if shape != weight.shape:
            raise InputError(
                f"{where}: {weight.variable} is {list(shape)}, by {config_file} it is "
                f"{list(weight.shape)}; they do not belong together"
            )
    return selected, architecture


def _check_layers(
    shapes: Mapping[str, tuple[int, ...]],
    sizes: Mapping[str, int],
    where: str,
    config_file: Path,
) -> None:
    if not any(name.startswith("bert/") for name in shapes):
        content = f"its first is {shown(min(shapes))}" if shapes else "it is empty"
        raise InputError(
            f"{where}: none of the original's weights, whose names begin with bert, is in it; "
            f"{content}"
        )
    num_layers = 0
    for name in shapes:
        match = _LAYER.search(name)
        if match is not None:
            num_layers = max(num_layers, int(match[1]) + 1)
    if num_layers != sizes["num_hidden_layers"]:
        raise InputError(
            f"{where} has {num_layers} layers, {config_file} says num_hidden_layers "
            f"{sizes['num_hidden_layers']}; they do not belong together"
        )


def select_skipped(names: Collection[str], skipped: Collection[str], where: str) -> set[str]:
    """Return the names that are, or lie below, those that the user leaves out."""
    selected = set()
    for start in skipped:
        below = {name for name in names if name == start or name.startswith(f"{start}/")}
        if not below:
            raise InputError(f"skip_variables: {where} has nothing that is called {shown(start)}")
        selected.update(below)
    return selected


def _some(names: list[str]) -> str:
    first = shown(names[0])
    return f"{first} is" if len(names) == 1 else f"{first} and {len(names) - 1} more are"


# Configurations


def read_bert_config(path: Path) -> dict[str, Any]:
    """Read bert_config.json: sizes, fractions and activation under the original's names."""
    content = read_json_object(path)
    values: dict[str, Any] = {}
    for name in _SIZES:
        size = content.get(name)
        if type(size) is not int or size < 1:
            raise InputError(
                f"{path}: {name} is {size!r:.100}; a BERT's configuration has a number above 0"
            )
        values[name] = size
    if values["hidden_size"] % values["num_attention_heads"]:
        raise InputError(
            f"{path}: hidden_size {values['hidden_size']} is no multiple of num_attention_heads"
        )
    for name, default in _FRACTIONS.items():
        fraction = content.get(name, default)
        if not isinstance(fraction, int | float) or not 0 <= fraction < 1:
            raise InputError(f"{path}: {name} is {fraction!r:.100}; allowed: 0 or more and below 1")
        values[name] = float(fraction)
    for name in _UNUSED:
        if isinstance(content.get(name), str | int):
            values[name] = content[name]
    activation = content.get("hidden_act", "gelu")
    if activation not in list(_ACTIVATIONS):
        raise InputError(
            f"{path}: hidden_act is {activation!r:.100}; the original has {', '.join(_ACTIVATIONS)}"
        )
    values["hidden_act"] = activation
    ignored = sorted(content.keys() - values.keys())
    if ignored:
        logger.warning(
            "%s: left out, as the original does not know it: %s",
            path,
            ", ".join(map(ascii, ignored[:10])),
        )
    return values


# From the original to the Hub's form


class OriginalFiles(NamedTuple):
    """An original checkpoint: the prefix of its files, bert_config.json and vocab.txt."""

    prefix: Path
    config_file: Path
    vocab_file: Path


def find_files(
    tf_checkpoint: str, config_file: str | None, vocab_file: str | None
) -> OriginalFiles:
    """Find what a checkpoint is made of.

    Args:
        tf_checkpoint: A folder, the path that the original's scripts take, or one of its files.
        config_file: None: bert_config.json beside it.
        vocab_file: None: vocab.txt beside it.
    """
    prefix = _find_prefix(Path(tf_checkpoint))
    files = OriginalFiles(
        prefix,
        Path(config_file or prefix.with_name(CONFIG_NAME)),
        Path(vocab_file or prefix.with_name(VOCABULARY_NAME)),
    )
    for path, flag in ((files.config_file, "bert_config_file"), (files.vocab_file, "vocab_file")):
        if not path.is_file():
            raise InputError(f"{flag}: no file {path}; say where it is with --{flag}")
    return files


def _find_prefix(path: Path) -> Path:
    """Return the path of a checkpoint without the ends of its files' names.

    Of a folder it is the original's, the newest, or the only one.
    """
    if not path.is_dir():
        # What a person, or the shell's completion, may point at.
        prefix = path.with_name(re.sub(r"\.(index|meta|data-\d{5}-of-\d{5})$", "", path.name))
        if prefix.with_name(f"{prefix.name}{INDEX_SUFFIX}").is_file():
            return prefix
        raise InputError(
            f"tf_checkpoint: no file {prefix}{INDEX_SUFFIX}; give the folder or path of a "
            "checkpoint in TensorFlow's format of version 2"
        )
    names = sorted(file.name.removesuffix(INDEX_SUFFIX) for file in path.glob(f"*{INDEX_SUFFIX}"))
    if not names:
        raise InputError(
            f"tf_checkpoint: {path} has no TensorFlow checkpoint (no file *{INDEX_SUFFIX})"
        )
    for name in (CHECKPOINT_NAME, _newest_name(path)):
        if name in names:
            return path / name
    if len(names) > 1:
        raise InputError(
            f"tf_checkpoint: {path} has several checkpoints: give one, such as {path / names[-1]}"
        )
    return path / names[0]


def _newest_name(folder: Path) -> str | None:
    """Return the name of the newest checkpoint, by TensorFlow's file; None where there is none."""
    state = folder / "checkpoint"
    if not state.is_file():
        return None
    text = state.read_text("utf-8", errors="replace")
    match = re.search(r'^model_checkpoint_path: "(?:.*/)?(.*)"$', text, re.MULTILINE)
    return None if match is None else match[1]


def settle_case(prefix: Path, do_lower_case: bool | None) -> bool | None:
    """Return whether text is lower-cased, by the user or by a released model's folder.

    None: the vocabulary decides.

    Source: google-research/bert tokenization.py, `validate_case_matches_checkpoint`.
    """
    name = prefix.resolve().parent.name
    words = name.lower().split("_")
    if name in _LOWER_CASE or "uncased" in words:
        is_lower = True
    elif "cased" in words:
        is_lower = False
    else:
        return do_lower_case
    if do_lower_case not in (None, is_lower):
        model = "an uncased model" if is_lower else "a cased model"
        raise InputError(
            f"do_lower_case is {str(do_lower_case).lower()}, but {name} is {model} by its name: "
            f"give --do_lower_case {str(is_lower).lower()}, or rename the folder if it is misnamed"
        )
    return is_lower


@dataclass(frozen=True)
class Converted:
    """Hold what became of a checkpoint's variables; `skipped` are left out as the user wished."""

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
    """Convert a checkpoint of google-research/bert to float32 weights under stock's names.

    Every variable is accounted for.

    Args:
        files: Of the checkpoint.
        output_dir: A new folder.
        do_lower_case: As in `settle_case`.
        exact_gelu: Take the configuration's "gelu" for the exact form, as transformers' former
            converter did, instead of the tanh form, which the original's code computes.
        labels: Names of a classifier's rows.
        skipped: Variables, or the names above them, that are left out.
    """
    where = str(files.prefix)
    do_lower_case = settle_case(files.prefix, do_lower_case)
    values = read_bert_config(files.config_file)
    reader = BundleReader(files.prefix)
    if any(_OF_OBJECTS.search(name) for name in reader.variables):
        raise InputError(
            f"{where}: a checkpoint of TensorFlow 2's objects (Keras, tf-models); "
            "google-research/bert's has variables bert/..."
        )
    of_optimizer = {name for name in reader.variables if OF_OPTIMIZER.fullmatch(name)}
    skipped_variables = select_skipped(reader.variables, skipped, where) - of_optimizer
    left_out = of_optimizer | skipped_variables
    shapes = {name: entry.shape for name, entry in reader.variables.items() if name not in left_out}
    weights, architecture = select_weights(shapes, values, where, files.config_file)
    for name in shapes:
        dtype = reader.variables[name].dtype
        if dtype not in _READ:
            raise InputError(f"{where}: {name} is {dtype}; converted are {', '.join(_READ)}")
    tokenizer = load_tokenizer(files.vocab_file, do_lower_case)
    check_vocabulary(str(files.config_file), values["vocab_size"], tokenizer)
    if not exact_gelu:
        values["hidden_act"] = _ACTIVATIONS[values["hidden_act"]]
    config = BertConfig(
        **values,
        layer_norm_eps=_LAYER_NORM_EPS,
        pad_token_id=int(tokenizer.pad_token_id),
        architectures=[architecture],
        **_label_settings(labels, weights),
    )
    converted = Converted(
        architecture=architecture,
        num_variables=len(weights),
        num_parameters=sum(math.prod(weight.shape) for weight in weights),
        num_of_optimizer=len(of_optimizer),
        skipped=sorted(skipped_variables),
        do_lower_case=tokenizer.do_lower_case,
    )
    tensors = _read_tensors(reader, weights, architecture)
    with atomic_dir(output_dir) as folder:
        save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
        config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_json(folder / REPORT_FILE, {"checkpoint": files.prefix.name, **vars(converted)})
    return converted


def _read_tensors(
    reader: BundleReader, weights: list[Weight], architecture: str
) -> dict[str, np.ndarray]:
    # The bare encoder's names have no prefix.
    prefix = "bert." if architecture == "BertModel" else ""
    tensors = {}
    for weight in weights:
        array = reader.read(weight.variable).astype(np.float32, copy=False)
        if weight.is_kernel:
            array = np.ascontiguousarray(array.T)
        tensors[weight.tensor.removeprefix(prefix)] = array
    return tensors


def _label_settings(labels: list[str] | None, weights: list[Weight]) -> dict[str, Any]:
    """Return id2label and label2id of a classifier; nothing without one."""
    num_classes = 0
    for weight in weights:
        if weight.component == "classifier":
            num_classes = weight.shape[0]
    if labels is None:
        labels = [f"LABEL_{number}" for number in range(num_classes)]
    if not len(labels) == len(set(labels)) == num_classes:
        raise InputError(
            f"labels: {len(set(labels))} different ones for a classifier of {num_classes} classes "
            "(0: there is none)"
        )
    if not labels:
        return {}
    return {
        "id2label": dict(enumerate(labels)),
        "label2id": {label: number for number, label in enumerate(labels)},
    }
