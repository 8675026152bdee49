"""What of a folder is uploaded: a list of names, so that nothing else ever is."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_recipes.checkpointing import MANIFEST_FILE, STATE_FILE, last_complete, list_checkpoints, why_incomplete
from bert_recipes.config_file import read_tree
from bert_recipes.errors import InputError
from bert_recipes.file_hash import hash_of
from bert_recipes.hub.identity import IDENTITY_FILE, read_run_id
from bert_recipes.own_card import CARD_FILE, TRACE_FILE


logger = logging.getLogger(__name__)

CONFIG_FILE, WEIGHTS_FILE, INDEX_FILE = "config.json", "model.safetensors", "model.safetensors.index.json"
SETTINGS_FILE, RESULTS_FILE = "run.yaml", "all_results.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "special_tokens_map.json",
    "added_tokens.json",
)
# Beside the weights: card and what it is made of, settings, figures, report. Optimiser states are pickles, and what a run predicts
# is its data.
REPORTS = ("report.md", "report.html")
OTHER_FILES = (
    *("generation_config.json", "LICENSE", CARD_FILE, TRACE_FILE, "card.yaml", "bias_probe.json"),
    *(SETTINGS_FILE, "task.yaml", IDENTITY_FILE, RESULTS_FILE, STATE_FILE, *REPORTS),
)
PICTURES = ("*.png", "*.svg")
# What a run writes of its weights; beside other weights it would be wrong.
DESCRIPTIONS = (CARD_FILE, TRACE_FILE, "bias_probe.json", RESULTS_FILE, STATE_FILE, *REPORTS, "losses.png")


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model.

    Attributes:
        folder: Where they lie.
        files: Name in the repository -> file.
        weights: Names of the weights.
    """

    folder: Path
    files: Mapping[str, Path]
    weights: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse links out of the folder: what they lead to was never meant to be published."""
        for path in self.files.values():
            if not path.resolve().is_relative_to(self.folder.resolve()):
                raise InputError(
                    f"{path} leads out of {self.folder}, to {path.resolve()}; nothing is uploaded: copy the file if it belongs there"
                )

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return sum(path.stat().st_size for path in self.files.values())

    @property
    def run_id(self) -> str | None:
        """The run that the model comes from."""
        return read_run_id(self.folder)

    @property
    def step(self) -> int | None:
        """Optimiser steps of the model; None where no file says it."""
        try:
            return int(json.loads((self.folder / STATE_FILE).read_text(encoding="utf-8"))["global_step"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def hash_weights(self) -> dict[str, str]:
        """Name -> SHA-256; reads all of them."""
        return {name: hash_of(self.files[name]) for name in self.weights}


def collect_files(folder: Path, *, with_checkpoints: bool = False) -> ModelFiles:
    """List what of a run, a checkpoint or any model folder is uploaded, and see that it is a model.

    Args:
        folder: Has config.json and weights as safetensors.
        with_checkpoints: Also the models of the complete checkpoints in it, as `checkpoint-N/`.
    """
    _check_folder(folder)
    if (folder / MANIFEST_FILE).is_file():
        reason = why_incomplete(folder)
        if reason is not None:
            raise InputError(f"{folder} is no complete checkpoint: {reason}")
    elif (folder / SETTINGS_FILE).is_file() and not (folder / RESULTS_FILE).is_file():
        raise InputError(f"{folder} holds a run that has not come to its end; {_instead(folder)}")
    model = list_files(folder)
    if not with_checkpoints:
        return model
    files = dict(model.files)
    for checkpoint in list_checkpoints(folder):
        reason = why_incomplete(checkpoint)
        if reason is not None:
            logger.warning("%s is left out: %s", checkpoint, reason)
            continue
        files |= {f"{checkpoint.name}/{name}": path for name, path in model_alone(checkpoint).items()}
    return ModelFiles(folder, files, model.weights)


def list_files(folder: Path) -> ModelFiles:
    """As `collect_files`, of a folder that is known to be whole."""
    files = dict(model_alone(folder))
    weights = tuple(name for name in files if name.endswith(".safetensors"))
    files |= {name: folder / name for name in OTHER_FILES if (folder / name).is_file()}
    for pattern in PICTURES:
        files |= {path.name: path for path in sorted(folder.glob(pattern)) if path.is_file() and path.name[0] != "."}
    return ModelFiles(folder, files, weights)


def model_alone(folder: Path) -> dict[str, Path]:
    """Name -> file of configuration, weights and tokenizer."""
    _check_config(folder)
    names = [CONFIG_FILE, *_weights(folder), *(name for name in TOKENIZER_FILES if (folder / name).is_file())]
    if not {"tokenizer.json", "vocab.txt"} & set(names):
        logger.warning("%s has no tokenizer: whoever opens the model must know which one it was trained with", folder)
    return {name: folder / name for name in names}


def warn_of_what_is_seen(model: ModelFiles, private: bool | None) -> None:
    """Say before a model is published that its settings or its log name paths of this machine, and its report texts of the data.

    Args:
        model: What is published.
        private: Whether it is not.
    """
    if private:
        return
    for name in (SETTINGS_FILE, RESULTS_FILE, STATE_FILE, "tokenizer_config.json"):
        file = model.files.get(name)
        try:
            paths = [] if file is None else list(_paths_in(_read_values(file)))
        except ValueError as error:
            logger.warning("whether paths of this machine will be seen is not known: %s: %s", file, error)
            continue
        if paths:
            logger.warning(
                "%s names %d paths of this machine (%s), which everybody will see", file, len(paths), paths[0]
            )
    reports = [name for name in REPORTS if name in model.files]
    if reports:
        logger.warning(
            "%s in %s may show texts of the data, which everybody will see", " and ".join(reports), model.folder
        )


def _read_values(file: Path) -> Any:
    """A YAML or JSON file as lists and mappings; raises `ValueError` where it is none."""
    if file.suffix == ".yaml":
        return read_tree(file)[0]
    return json.loads(file.read_text(encoding="utf-8"))


def _paths_in(values: Any) -> Iterator[str]:
    """The absolute paths among the texts of lists and mappings."""
    if isinstance(values, str) and re.match(r"/[^\s/]", values):
        yield values
    elif isinstance(values, dict | list):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _paths_in(value)


def _check_folder(folder: Path) -> None:
    if not folder.exists():
        raise InputError(f"no folder {folder}; give the folder of a finished run or of a checkpoint")
    if not folder.is_dir():
        raise InputError(f"{folder} is a file; give the folder that it lies in")


def _instead(folder: Path) -> str:
    """What else could be pushed of a run without a model."""
    newest, _ = last_complete(folder)
    return "it has no complete checkpoint yet" if newest is None else f"to push its newest checkpoint give {newest}"


def _check_config(folder: Path) -> None:
    file = folder / CONFIG_FILE
    if not file.is_file():
        raise InputError(f"{folder} holds no model: it has no {CONFIG_FILE}; {_instead(folder)}")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file} is no JSON: {error}") from error
    if not isinstance(content, dict) or "model_type" not in content:
        raise InputError(f"{file} has no model_type: it is no configuration of transformers")


def _weights(folder: Path) -> Iterator[str]:
    """Names of the weights, each of which opens."""
    from safetensors import SafetensorError, safe_open

    names = [WEIGHTS_FILE] if (folder / WEIGHTS_FILE).is_file() else _shards(folder)
    for name in names:
        if name == INDEX_FILE:
            continue
        try:
            with safe_open(folder / name, framework="numpy"):
                pass
        except (SafetensorError, OSError) as error:
            raise InputError(
                f"{folder / name} cannot be opened as safetensors: {error}; nothing is uploaded"
            ) from error
    yield from names


def _shards(folder: Path) -> list[str]:
    index = folder / INDEX_FILE
    if not index.is_file():
        there = ""
        if any(folder.glob("global_step*")):
            there = ", but a part for each process, of which recipes/consolidate_checkpoint.py makes a model"
        raise InputError(
            f"{folder} holds no model: it has no {WEIGHTS_FILE}{there}; no weights of another form are uploaded"
        )
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{index} is damaged: {type(error).__name__}") from error
    for name in names:
        # A name, not a path out of the folder.
        if (
            not isinstance(name, str)
            or not re.fullmatch(r"[\w.-]+\.safetensors", name)
            or not (folder / name).is_file()
        ):
            raise InputError(f"{index} names {name}, which is no safetensors file in {folder}")
    return [INDEX_FILE, *names]
