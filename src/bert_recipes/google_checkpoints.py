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
from bert_recipes.tensorflow_files import INDEX_SUFFIX, BundleReader, shown
from bert_recipes.tokenization.loading import check_vocabulary, load_tokenizer


logger = logging.getLogger(__name__)

CHECKPOINT_NAME, CONFIG_NAME, VOCABULARY_NAME = "bert_model.ckpt", "bert_config.json", "vocab.txt"
WEIGHTS_FILE, REPORT_FILE = "model.safetensors", "google_checkpoint.json"
_SIZES = [
    "vocab_size",
    "hidden_size",
    "max_position_embeddings",
    "type_vocab_size",
    "intermediate_size",
]
_SIZES += ["num_hidden_layers", "num_attention_heads"]
# Of the class in modeling.py, for a file that does not state them.
_FRACTIONS = {
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
}
# The multilingual and the Chinese models' files have these too; modeling.py reads none of them.
_UNUSED = ["directionality"]
_UNUSED += [
    f"pooler_{each}"
    for each in ("fc_size", "num_attention_heads", "num_fc_layers", "size_per_head", "type")
]
# The original's name -> transformers'. Its "gelu" is the tanh form; transformers calls the exact
# one so.
_ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu", "tanh": "tanh"}
_LAYER_NORM_EPS = 1e-12
# Released models whose names do not say it. google-research/bert tokenization.py,
# `validate_case_matches_checkpoint`.
_LOWER_CASE = ("multilingual_L-12_H-768_A-12", "chinese_L-12_H-768_A-12")
_READ = ("float32", "float16", "bfloat16")
# Last part of a variable's name -> that of the tensor. The embeddings' tables have none of their
# own.
_LAST_PARTS = dict.fromkeys(("kernel", "gamma", "output_weights"), "weight")
_LAST_PARTS |= dict.fromkeys(("bias", "beta", "output_bias"), "bias")
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
_LAYER = re.compile(r"layer_(\d{1,4})/")


class Weight(NamedTuple):
    """One weight in both worlds: its names, its shape in the original, and its part: "encoder",
    "pooler", or one of the heads.
    """

    variable: str
    tensor: str
    shape: tuple[int, ...]
    part: str

    @property
    def is_kernel(self) -> bool:
        """Whether torch keeps it the other way around."""
        return self.variable.endswith("/kernel")


def list_weights(sizes: Mapping[str, int], num_labels: int = 0) -> list[Weight]:
    """List every weight that a BERT of these sizes may have; `num_labels` are a classifier's
    rows.
    """
    vocabulary, hidden, positions, types, inner = (sizes[name] for name in _SIZES[:5])
    found = []

    def add(part: str, variable: str, *shape: int) -> None:
        # The squad head and the classifier, whose variables stand alone, have names of their own.
        name = (
            variable.replace("cls/squad/", "qa_outputs/")
            if "/" in variable
            else f"classifier/{variable}"
        )
        scope, _, last = re.sub(r"layer_(\d+)", r"layer/\1", name).rpartition("/")
        tensor = f"{scope.replace('/', '.')}.{_LAST_PARTS.get(last, f'{last}.weight')}"
        found.append(Weight(variable, tensor, shape, part))

    def add_dense(part: str, scope: str, inputs: int, outputs: int) -> None:
        add(part, f"{scope}/kernel", inputs, outputs)
        add(part, f"{scope}/bias", outputs)

    def add_norm(part: str, scope: str) -> None:
        add(part, f"{scope}/LayerNorm/gamma", hidden)
        add(part, f"{scope}/LayerNorm/beta", hidden)

    for name, rows in (("word", vocabulary), ("position", positions), ("token_type", types)):
        add("encoder", f"bert/embeddings/{name}_embeddings", rows, hidden)
    add_norm("encoder", "bert/embeddings")
    for scope in (f"bert/encoder/layer_{number}" for number in range(sizes["num_hidden_layers"])):
        for name in ("self/query", "self/key", "self/value", "output/dense"):
            add_dense("encoder", f"{scope}/attention/{name}", hidden, hidden)
        add_norm("encoder", f"{scope}/attention/output")
        add_dense("encoder", f"{scope}/intermediate/dense", hidden, inner)
        add_dense("encoder", f"{scope}/output/dense", inner, hidden)
        add_norm("encoder", f"{scope}/output")
    add_dense("pooler", "bert/pooler/dense", hidden, hidden)
    add_dense("masked_lm", "cls/predictions/transform/dense", hidden, hidden)
    add_norm("masked_lm", "cls/predictions/transform")
    add("masked_lm", "cls/predictions/output_bias", vocabulary)
    heads = (
        ("next_sentence", "cls/seq_relationship/", 2),
        ("classifier", "", num_labels),
        ("squad", "cls/squad/", 2),
    )
    for part, scope, rows in heads:
        add(part, f"{scope}output_weights", rows, hidden)
        add(part, f"{scope}output_bias", rows)
    return found


def select_weights(
    shapes: Mapping[str, tuple[int, ...]],
    sizes: Mapping[str, int],
    where: str,
    config_file: Path,
) -> tuple[list[Weight], str]:
    """Pick the weights that a checkpoint has, and see that they make up one model of its
    configuration: none missing, none unknown.

    Returns the class of transformers that has them as well. `shapes` are those of its variables;
    `where` and `config_file` are for messages.
    """
    if not any(name.startswith("bert/") for name in shapes):
        what = f"its first is {shown(min(shapes))}" if shapes else "it is empty"
        raise InputError(
            f"{where}: none of the original's weights, whose names begin with bert, is in it; "
            f"{what}"
        )
    num_layers = max(
        (int(match[1]) + 1 for match in map(_LAYER.search, shapes) if match), default=0
    )
    if num_layers != sizes["num_hidden_layers"]:
        raise InputError(
            f"{where} has {num_layers} layers, {config_file} says num_hidden_layers "
            f"{sizes['num_hidden_layers']}; they do not belong "
            "together"
        )
    rows = shapes.get("output_weights", (0,))
    known = {weight.variable: weight for weight in list_weights(sizes, rows[0])}
    if unknown := sorted(shapes.keys() - known.keys()):
        raise InputError(
            f"{where}: {_some(unknown)} not of the original's model; leave such out with "
            f"--skip_variables {shown(unknown[0])}"
        )
    parts = {known[name].part for name in shapes} | {"encoder"}
    heads = frozenset(parts) - {"encoder", "pooler"}
    if heads not in _ARCHITECTURES:
        raise InputError(
            f"{where}: heads for {', '.join(sorted(heads))}, and no model has all of them; leave "
            "some out with "
            "--skip_variables: cls/predictions, cls/seq_relationship, cls/squad, or "
            "output_weights output_bias"
        )
    architecture, needs_pooler = _ARCHITECTURES[heads]
    parts |= {"pooler"} if needs_pooler else set()
    chosen = {name: weight for name, weight in known.items() if weight.part in parts}
    if missing := [name for name in chosen if name not in shapes]:
        raise InputError(f"{where}: {_some(missing)} missing; the checkpoint is not complete")
    for name, weight in chosen.items():
        if shapes[name] != weight.shape:
            raise InputError(
                f"{where}: {name} is {list(shapes[name])}, by {config_file} it is "
                f"{list(weight.shape)}; they do not belong together"
            )
    return list(chosen.values()), architecture


def select_skipped(names: Collection[str], skipped: Collection[str], where: str) -> set[str]:
    """The names that are, or lie below, those that the user leaves out."""
    found = set()
    for start in skipped:
        below = {name for name in names if name == start or name.startswith(f"{start}/")}
        if not below:
            raise InputError(f"skip_variables: {where} has nothing that is called {shown(start)}")
        found |= below
    return found


def _some(names: list[str]) -> str:
    return f"{shown(names[0])}{f' and {len(names) - 1} more are' if len(names) > 1 else ' is'}"


# Configurations


def _check_config(values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Take sizes, fractions and what the multilingual models have besides out of a
    configuration.
    """
    for name in _SIZES:
        if type(values.get(name)) is not int or values[name] < 1:
            raise InputError(
                f"{path}: {name} is {values.get(name)!r:.100}; a BERT's configuration has a "
                "number above 0"
            )
    if values["hidden_size"] % values["num_attention_heads"]:
        raise InputError(
            f"{path}: hidden_size {values['hidden_size']} is no multiple of num_attention_heads"
        )
    fractions = {name: values.get(name, default) for name, default in _FRACTIONS.items()}
    for name, value in fractions.items():
        if not isinstance(value, int | float) or not 0 <= value < 1:
            raise InputError(f"{path}: {name} is {value!r:.100}; allowed: 0 or more and below 1")
    others = {name: values[name] for name in _UNUSED if isinstance(values.get(name), str | int)}
    return (
        {name: values[name] for name in _SIZES}
        | {key: float(each) for key, each in fractions.items()}
        | others
    )


def read_bert_config(path: Path) -> dict[str, Any]:
    """Read bert_config.json: sizes, fractions and activation under the original's names."""
    values = read_json_object(path)
    checked = _check_config(values, path) | {"hidden_act": values.get("hidden_act", "gelu")}
    if checked["hidden_act"] not in list(_ACTIVATIONS):
        raise InputError(
            f"{path}: hidden_act is {checked['hidden_act']!r:.100}; the original has "
            f"{', '.join(_ACTIVATIONS)}"
        )
    if ignored := sorted(values.keys() - checked.keys()):
        logger.warning(
            "%s: left out, as the original does not know it: %s",
            path,
            ", ".join(map(ascii, ignored[:10])),
        )
    return checked


# From the original to the Hub's form


class OriginalFiles(NamedTuple):
    """An original checkpoint: the prefix of its files, bert_config.json and vocab.txt."""

    prefix: Path
    config_file: Path
    vocab_file: Path


def find_files(
    tf_checkpoint: str, config_file: str | None, vocab_file: str | None
) -> OriginalFiles:
    """Find what a checkpoint is made of: in a folder, by the path that the original's scripts take,
    or by one of its files.
    """
    prefix = _find_prefix(Path(tf_checkpoint))
    files = OriginalFiles(
        prefix,
        Path(config_file or prefix.parent / CONFIG_NAME),
        Path(vocab_file or prefix.parent / VOCABULARY_NAME),
    )
    for path, flag in ((files.config_file, "bert_config_file"), (files.vocab_file, "vocab_file")):
        if not path.is_file():
            raise InputError(f"{flag}: no file {path}; say where it is with --{flag}")
    return files


def _find_prefix(path: Path) -> Path:
    """The path of a checkpoint without the ends of its files' names: of a folder the original's,
    the newest, or the only one.
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
    found = sorted(file.name.removesuffix(INDEX_SUFFIX) for file in path.glob(f"*{INDEX_SUFFIX}"))
    if not found:
        raise InputError(
            f"tf_checkpoint: {path} has no TensorFlow checkpoint (no file *{INDEX_SUFFIX})"
        )
    state = path / "checkpoint"  # TensorFlow's own file, which names the newest
    text = state.read_text("utf-8", errors="replace") if state.is_file() else ""
    match = re.search(r'^model_checkpoint_path: "(?:.*/)?(.*)"$', text, re.MULTILINE)
    for name in (CHECKPOINT_NAME, match[1] if match else "", found[0] if len(found) == 1 else ""):
        if name in found:
            return path / name
    raise InputError(
        f"tf_checkpoint: {path} has several checkpoints: give one, such as {path / found[-1]}"
    )


def settle_case(prefix: Path, do_lower_case: bool | None) -> bool | None:
    """Settle whether text is lower-cased, by the user or by the name of a released model's folder;
    None: the vocabulary decides.

    Source: google-research/bert tokenization.py, `validate_case_matches_checkpoint`.
    """
    name = prefix.resolve().parent.name
    words = name.lower().split("_")
    is_lower, is_upper = name in _LOWER_CASE or "uncased" in words, "cased" in words
    if not (is_lower or is_upper):
        return do_lower_case
    if do_lower_case in (None, is_lower):
        return is_lower
    raise InputError(
        f"do_lower_case is {str(do_lower_case).lower()}, but {name} is "
        f"{'an uncased' if is_lower else 'a cased'} model by its name: "
        f"give --do_lower_case {str(is_lower).lower()}, or rename the folder if it is misnamed"
    )


@dataclass(frozen=True)
class Converted:
    """What became of a checkpoint's variables; `skipped` are left out as the user wished."""

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
    """Convert a checkpoint of google-research/bert to float32 weights under stock's names; every
    variable is accounted for.

    `exact_gelu` takes the configuration's "gelu" for the exact form, as transformers' former
    converter did, instead of the tanh form, which the original's code computes. `labels` name a
    classifier's rows; `skipped` are variables, or the names above them.
    """
    do_lower_case, where = settle_case(files.prefix, do_lower_case), str(files.prefix)
    values = read_bert_config(files.config_file)
    reader = BundleReader(files.prefix)
    if any(
        "/.ATTRIBUTES/" in name or name == "_CHECKPOINTABLE_OBJECT_GRAPH"
        for name in reader.variables
    ):
        raise InputError(
            f"{where}: a checkpoint of TensorFlow 2's objects (Keras, tf-models); "
            "google-research/bert's has variables bert/..."
        )
    of_optimizer = set(filter(OF_OPTIMIZER.fullmatch, reader.variables))
    left_out = of_optimizer | select_skipped(reader.variables, skipped, where)
    found = {name: variable for name, variable in reader.variables.items() if name not in left_out}
    shapes = {name: variable.shape for name, variable in found.items()}
    weights, architecture = select_weights(shapes, values, where, files.config_file)
    for name, variable in found.items():
        if variable.dtype not in _READ:
            raise InputError(
                f"{where}: {name} is {variable.dtype}; converted are {', '.join(_READ)}"
            )
    tokenizer = load_tokenizer(files.vocab_file, do_lower_case)
    check_vocabulary(str(files.config_file), values["vocab_size"], tokenizer)
    activation = values["hidden_act"] if exact_gelu else _ACTIVATIONS[values["hidden_act"]]
    config = BertConfig(
        **{**values, "hidden_act": activation},
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
        skipped=sorted(left_out - of_optimizer),
        do_lower_case=tokenizer.do_lower_case,
    )
    tensors = {}
    for weight in weights:
        array = reader.read(weight.variable).astype(np.float32, copy=False)
        # The bare encoder's names have no prefix.
        name = weight.tensor.removeprefix("bert." * (architecture == "BertModel"))
        tensors[name] = np.ascontiguousarray(array.T) if weight.is_kernel else array
    with atomic_dir(output_dir) as folder:
        save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
        config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_json(folder / REPORT_FILE, {"checkpoint": files.prefix.name, **vars(converted)})
    return converted


def _classes_of(weights: list[Weight]) -> int:
    return next((weight.shape[0] for weight in weights if weight.part == "classifier"), 0)


def _label_settings(labels: list[str] | None, weights: list[Weight]) -> dict[str, Any]:
    """id2label and label2id of a classifier; nothing without one."""
    rows = _classes_of(weights)
    labels = [f"LABEL_{number}" for number in range(rows)] if labels is None else labels
    if not len(labels) == len(set(labels)) == rows:
        raise InputError(
            f"labels: {len(set(labels))} different ones for a classifier of {rows} classes (0: "
            "there is none)"
        )
    if not rows:
        return {}
    return {
        "id2label": dict(enumerate(labels)),
        "label2id": {label: number for number, label in enumerate(labels)},
    }
