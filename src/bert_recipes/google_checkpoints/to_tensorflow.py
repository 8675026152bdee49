"""A folder in Hub form as a checkpoint that the code of google-research/bert reads."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import BertConfig

from bert_recipes.errors import InputError
from bert_recipes.google_checkpoints.configuration import read_json_mapping, to_bert_config
from bert_recipes.google_checkpoints.location import CHECKPOINT_NAME, CONFIG_NAME, VOCABULARY_NAME
from bert_recipes.google_checkpoints.names import (
    ARCHITECTURES,
    Weight,
    architecture_of,
    check_layers,
    check_shape,
    check_skipped,
    is_chosen,
    list_weights,
    select_weights,
)
from bert_recipes.google_checkpoints.weights_file import WeightsReader
from bert_recipes.model_folder import new_folder
from bert_recipes.tensor_bundle import BundleWriter
from bert_recipes.tokenization import OriginalBertTokenizer, load_tokenizer


_EMBEDDINGS = "bert.embeddings.word_embeddings.weight"
# Shared weights under their second names, and numbers 0, 1, 2, ... that old versions kept with the weights.
_DECODER, _DECODER_BIAS, _POSITIONS = (
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
    "bert.embeddings.position_ids",
)
_SHARED = {_DECODER: _EMBEDDINGS, _DECODER_BIAS: "cls.predictions.bias"}
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
        weights = _choose(shapes, config, folder)
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


def _choose(shapes: dict[str, tuple[int, ...]], config: dict[str, Any], folder: Path) -> list[Weight]:
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
