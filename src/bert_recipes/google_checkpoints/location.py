"""Where the files of an original checkpoint lie, and what the name of their folder says of upper and lower case."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from bert_recipes.errors import InputError
from bert_recipes.tensor_bundle.reader import INDEX_SUFFIX


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

    Raises:
        InputError: Something is not there, or a folder holds several checkpoints.
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

    Raises:
        InputError: They contradict each other, as the original has it.
    """
    by_name = lower_case_by_name(prefix)
    if do_lower_case is None or by_name is None or do_lower_case == by_name:
        return by_name if do_lower_case is None else do_lower_case
    raise InputError(
        f"do_lower_case is {str(do_lower_case).lower()}, but {prefix.resolve().parent.name} is {'an uncased' if by_name else 'a cased'} "
        f"model by its name: give --do_lower_case {str(by_name).lower()}, or rename the folder if it is misnamed"
    )
