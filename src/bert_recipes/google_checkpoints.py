"""Checkpoints of google-research/bert to folders in Hub form, and back.

Nothing is changed on the way but the names and the orientation of matrices: there and back again is
the same bit for bit.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from transformers import BertConfig

from bert_recipes.errors import InputError
from bert_recipes.files import atomic_dir, read_json_object, write_json
from bert_recipes.tensorflow_files import INDEX_SUFFIX, BundleReader, BundleWriter, shown
from bert_recipes.tokenization.loading import check_vocabulary, load_tokenizer


logger = logging.getLogger(__name__)

CHECKPOINT_NAME, CONFIG_NAME, VOCABULARY_NAME = "bert_model.ckpt", "bert_config.json", "vocab.txt"
WEIGHTS_FILE, HUB_CONFIG_FILE, REPORT_FILE = (
    "model.safetensors",
    "config.json",
    "google_checkpoint.json",
)
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
_LAYER = re.compile(r"layer[_.](\d{1,4})[/.]")


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
    *,
    by_tensor: bool,
) -> tuple[list[Weight], str]:
    """Pick the weights that a checkpoint has, and see that they make up one model of its
    configuration: none missing, none unknown.

    Returns the class of transformers that has them as well. `shapes` are those of its variables, or
    of its tensors where by_tensor says so; `where` and `config_file` are for messages.
    """
    if not any(re.match("bert[/.]", name) for name in shapes):
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
    rows = shapes.get("classifier.weight" if by_tensor else "output_weights", (0,))
    known = {
        weight.tensor if by_tensor else weight.variable: weight
        for weight in list_weights(sizes, rows[0])
    }
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
        wanted = weight.shape[::-1] if by_tensor and weight.is_kernel else weight.shape
        if shapes[name] != wanted:
            raise InputError(
                f"{where}: {name} is {list(shapes[name])}, by {config_file} it is {list(wanted)}; "
                "they do not belong together"
            )
    return list(chosen.values()), architecture


def select_skipped(names: Collection[str], skipped: Collection[str], where: str) -> set[str]:
    """The names that are, or lie below, those that the user leaves out."""
    found = set()
    for start in skipped:
        below = {
            name for name in names if name == start or name.startswith((f"{start}/", f"{start}."))
        }
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


def to_bert_config(values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Make the original's configuration from the values of config.json, whose path is for
    messages.
    """
    activation = values.get("hidden_act", "gelu")
    original = {
        "gelu": "gelu",
        "gelu_new": "gelu",
        "gelu_pytorch_tanh": "gelu",
        "relu": "relu",
        "tanh": "tanh",
    }
    for name, allowed, why in (
        ("model_type", ["bert"], "the original's code has bert only"),
        ("position_embedding_type", ["absolute"], "it is not the original's"),
        ("is_decoder", [False], "the original's model sees both sides"),
        ("hidden_act", list(original), f"the original has {', '.join(_ACTIVATIONS)}"),
    ):
        if (
            values.get(name, allowed[0]) not in allowed
        ):  # the oldest checkpoints do not name their kind
            raise InputError(f"{path}: {name} is {values[name]!r:.100}; {why}")
    if activation == "gelu":
        logger.warning(
            "%s: hidden_act is gelu, the exact form; the gelu of the original's code is its tanh "
            "form, so that its outputs "
            "differ a little",
            path,
        )
    epsilon = values.get("layer_norm_eps", _LAYER_NORM_EPS)
    if epsilon != _LAYER_NORM_EPS:
        logger.warning(
            "%s: layer_norm_eps is %.100r; the original's code computes with 1e-12", path, epsilon
        )
    return dict(
        sorted((_check_config(values, path) | {"hidden_act": original[activation]}).items())
    )


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
    weights, architecture = select_weights(
        shapes, values, where, files.config_file, by_tensor=False
    )
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


# From the Hub's form to the original

# Second names of shared weights, and numbers 0, 1, 2, ... that old versions kept with the weights.
_SHARED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_POSITIONS = "bert.embeddings.position_ids"


class Written(NamedTuple):
    """What was written; `labels` are a classifier's, in the order of its rows: the original keeps
    none.
    """

    prefix: Path
    num_variables: int
    num_parameters: int
    skipped: list[str]
    do_lower_case: bool
    labels: list[str]


def convert_to_tensorflow(
    folder: Path, output_dir: Path, *, skipped: Collection[str] = ()
) -> Written:
    """Write bert_model.ckpt, bert_config.json and vocab.txt of a folder in Hub form with its
    tokenizer, but for skipped tensors.
    """
    config_file = folder / HUB_CONFIG_FILE
    if not config_file.is_file():
        raise InputError(
            f"model_name_or_path: {folder} has no config.json; give a checkpoint in Hub form"
        )
    # What a configuration does not state is stock's default.
    hub_config = {**BertConfig().to_dict(), **read_json_object(config_file)}
    config = to_bert_config(hub_config, config_file)
    tokenizer = load_tokenizer(folder)
    pieces = len(tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False))
    if tokenizer.extra_tokens:
        raise InputError(
            f"{folder}: its tokenizer has {len(tokenizer.extra_tokens)} added tokens, and "
            f"{VOCABULARY_NAME} no place for them"
        )
    if pieces > config["vocab_size"]:
        raise InputError(
            f"{folder}: {pieces:,} pieces in the vocabulary, but vocab_size is "
            f"{config['vocab_size']:,}; they do not belong together"
        )
    files = _open_weights(folder)
    names = {_full_name(name, files): name for name in files}

    def read(name: str) -> np.ndarray:
        tensor = files[names[name]].get_tensor(names[name])
        if tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise InputError(
                f"{folder}: {name} is {tensor.dtype}; weights of these types are converted: {_READ}"
            )
        return np.asarray(tensor.float().numpy())

    left_out = select_skipped(names, skipped, str(folder)) | ({_POSITIONS} & names.keys())
    for second, first in _SHARED.items():
        if second in left_out or second not in names:
            continue
        if first not in names:
            # Files of some versions have a shared weight under its second name only.
            names[first] = names.pop(second)
        elif np.array_equal(read(first), read(second)):
            left_out.add(second)
        else:
            raise InputError(
                f"{folder}: {second} is not {first}; the original has one weight for both"
            )
    kept = names.keys() - left_out
    shapes = {name: tuple(files[names[name]].get_slice(names[name]).get_shape()) for name in kept}
    weights, _ = select_weights(shapes, config, str(folder), config_file, by_tensor=True)
    labels = _check_head(hub_config, weights, folder)
    with atomic_dir(output_dir) as staged:
        with BundleWriter(staged / CHECKPOINT_NAME) as writer:
            for weight in sorted(weights):
                values = read(weight.tensor)
                writer.add(
                    weight.variable, np.ascontiguousarray(values.T) if weight.is_kernel else values
                )
        (staged / CONFIG_NAME).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        tokenizer.save_vocabulary(str(staged))
    return Written(
        prefix=output_dir / CHECKPOINT_NAME,
        num_variables=len(weights),
        num_parameters=sum(math.prod(weight.shape) for weight in weights),
        skipped=sorted(left_out - {*_SHARED, _POSITIONS}),
        do_lower_case=tokenizer.do_lower_case,
        labels=labels,
    )


def _open_weights(folder: Path) -> dict[str, Any]:
    """Name of each tensor of a folder -> the open safetensors file that has it; nothing else is
    opened.
    """
    index_file, paths = folder / f"{WEIGHTS_FILE}.index.json", [folder / WEIGHTS_FILE]
    if not paths[0].is_file():
        if not index_file.is_file():
            raise InputError(f"{folder}: no {WEIGHTS_FILE}; no other weights are opened")
        names = {
            str(name) for name in (read_json_object(index_file).get("weight_map") or {}).values()
        }
        paths = [folder / name for name in sorted(names)]
    files: dict[str, Any] = {}
    for path in paths:
        if path.parent != folder or path.suffix != ".safetensors" or not path.is_file():
            raise InputError(f"{index_file}: {path.name!r:.100} is no safetensors file beside it")
        try:
            file: Any = safe_open(path, framework="pt")
        except SafetensorError as error:
            raise InputError(
                f"{path}: no safetensors file, or damaged ({error}); copy it again"
            ) from error
        files |= dict.fromkeys(file.keys(), file)
    return files


def _full_name(name: str, names: Collection[str]) -> str:
    """The name that a weight has in `BertForPreTraining`, whatever class and age its file is of."""
    if name.split(".")[0] in ("embeddings", "encoder", "pooler") and f"bert.{name}" not in names:
        name = f"bert.{name}"
    # Of the first converted checkpoints, which are on the Hub as they were; transformers renames
    # them when it loads.
    return re.sub(
        r"LayerNorm\.gamma$",
        "LayerNorm.weight",
        re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name),
    )


def _check_head(hub_config: Mapping[str, Any], weights: list[Weight], folder: Path) -> list[str]:
    """See that the original has this head, which the names of weights alone do not say; return a
    classifier's labels.
    """
    rows = _classes_of(weights)
    if not rows:
        return []
    advice = "give --skip_variables classifier to convert the encoder alone"
    wanted = _ARCHITECTURES[frozenset({"classifier"})][0]
    built = (hub_config.get("architectures") or [wanted])[0]
    if built != wanted:
        raise InputError(f"{folder}: a {built!r:.100}, and the original's code has none; {advice}")
    problem = hub_config.get("problem_type")
    # One row without a type is a number, by the rule of transformers.
    if rows == 1 or problem not in (None, "single_label_classification"):
        raise InputError(
            f"{folder}: its classifier is for {problem or 'regression'!r:.100} ({rows} rows), and "
            "run_classifier.py chooses one of two "
            f"classes or more; {advice}"
        )
    labels = hub_config.get("id2label") or {}
    return [str(labels.get(str(number), f"LABEL_{number}")) for number in range(rows)]
