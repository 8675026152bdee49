"""Write a tokenizer folder whole or not at all."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.tokenization.bert_tokenizer import OriginalBertTokenizer


REPORT_FILE = "tokenizer_report.json"
# All that is ever written: a folder that holds anything else is not a tokenizer's alone and is left as it is.
_OUR_FILES = frozenset({"tokenizer.json", "tokenizer_config.json", "vocab.txt", REPORT_FILE})


def check_tokenizer_folder(folder: Path, *, overwrite: bool) -> None:
    """Refuse, before any work, a folder whose contents would be lost.

    Args:
        folder: where a tokenizer is to be written.
        overwrite: whether a tokenizer that is there already may be replaced.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"output_dir: {folder} is a file; give a folder")
    present = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    if others := sorted(present - _OUR_FILES):
        raise InputError(f"output_dir: {folder} holds other things ({others[0]}); give a new or empty folder")
    if present and not overwrite:
        raise InputError(f"output_dir: {folder} holds a tokenizer; give another folder, or --overwrite to replace it")


def write_tokenizer_folder(folder: Path, tokenizer: OriginalBertTokenizer, report: Mapping[str, Any]) -> None:
    """Write tokenizer and report beside their place and rename the folder when it is whole.

    Args:
        folder: the place; passed `check_tokenizer_folder`.
        tokenizer: what `save_pretrained` writes.
        report: written as tokenizer_report.json.
    """
    folder = Path(os.path.realpath(folder))  # a link stays
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as aside:
        whole = Path(aside) / "whole"
        tokenizer.save_pretrained(whole)
        text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
        (whole / REPORT_FILE).write_text(text, encoding="utf-8", newline="\n")
        if folder.is_dir():
            folder.rename(Path(aside) / "replaced")
        whole.rename(folder)
