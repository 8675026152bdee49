"""A model with its tokenizer as a folder in Hub form, written as a whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_recipes.errors import InputError, saving
from bert_recipes.whole_files import write_json


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def check_new_folder(folder: Path) -> None:
    """Refuse, before any work, a folder that holds something."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"output_dir: {folder} is a file; give a folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"output_dir: {folder} is not empty; give a new folder")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Give a folder beside a new one to write to, which becomes it when the block ends well.

    Args:
        folder: Passed `check_new_folder`. Whatever goes wrong, it stays as it was.
    """
    folder = Path(os.path.realpath(folder))  # a link stays
    with saving(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as aside:
            whole = Path(aside) / "whole"
            whole.mkdir()
            yield whole
            if folder.is_dir():  # an empty one
                folder.rmdir()
            whole.rename(folder)


def write_model_folder(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    reports: Mapping[str, Any] | None = None,
) -> None:
    """Write weights as safetensors, configuration, tokenizer and reports beside their place, and rename when all is there.

    Args:
        folder: Passed `check_new_folder`.
        model: What `save_pretrained` writes.
        tokenizer: As well.
        reports: File name -> JSON.
    """
    with new_folder(folder) as whole:
        model.save_pretrained(whole)
        tokenizer.save_pretrained(whole)
        for name, report in (reports or {}).items():
            write_json(whole / name, report)
