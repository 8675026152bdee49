"""An original checkpoint as a folder in Hub form."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bert_recipes.errors import InputError
from bert_recipes.google_checkpoints.configuration import read_bert_config, to_hub_config
from bert_recipes.google_checkpoints.location import OriginalFiles, check_case
from bert_recipes.google_checkpoints.names import (
    Weight,
    architecture_of,
    check_layers,
    check_shape,
    check_skipped,
    is_chosen,
    is_of_optimizer,
    list_weights,
    select_weights,
)
from bert_recipes.google_checkpoints.weights_file import WEIGHTS_FILE, write_weights
from bert_recipes.model_folder import new_folder
from bert_recipes.tensor_bundle import BundleReader
from bert_recipes.tokenization import OriginalBertTokenizer, load_tokenizer
from bert_recipes.whole_files import write_json


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

    Raises:
        InputError: Files that are damaged or do not belong together, variables that are missing, unknown or of another shape, or
            output_dir cannot be written.

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
