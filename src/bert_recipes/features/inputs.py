"""Inputs of a user's file, one by one, so that the file may be of any size."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.finetuning.collation import truncate_pair
from bert_recipes.tasks.columns import column_text
from bert_recipes.tasks.files import TABLE_SUFFIXES, read_table, read_text_lines
from bert_recipes.tokenization import OriginalBertTokenizer


logger = logging.getLogger(__name__)

# google-research/bert extract_features.py `read_examples`: the last " ||| " of a line divides it.
_PAIR = re.compile(r"^(.*) \|\|\| (.*)$")
_DEFAULT_COLUMNS = ("text", "text_pair")


@dataclass(frozen=True, slots=True)
class TextInput:
    """A text, or a pair of texts."""

    text: str
    text_pair: str | None


@dataclass(frozen=True, slots=True)
class EncodedInput:
    """Ids of an input.

    Attributes:
        input_ids: [CLS] text [SEP], or [CLS] text [SEP] second text [SEP].
        token_type_ids: 0, and 1 for the second text and its [SEP].
        is_truncated: Whether tokens were cut off.
    """

    input_ids: list[int]
    token_type_ids: list[int]
    is_truncated: bool


@dataclass(frozen=True)
class Survey:
    """What an input file holds.

    Attributes:
        num_inputs: Of them.
        fingerprint: SHA-256 (hex) of the texts.
    """

    num_inputs: int
    fingerprint: str


def survey_inputs(path: Path, text_columns: Sequence[str] | None) -> Survey:
    """Read a file to its end, so that what is wrong in it is found before anything is computed.

    Raises:
        InputError: See `read_inputs`, or there is no input in it.
    """
    digest, num_inputs = hashlib.sha256(), 0
    for each in read_inputs(path, text_columns):
        digest.update(json.dumps([each.text, each.text_pair]).encode())
        num_inputs += 1
    if not num_inputs:
        raise InputError(f"--input_file {path}: no input in it")
    return Survey(num_inputs, digest.hexdigest())


def read_inputs(path: Path, text_columns: Sequence[str] | None = None) -> Iterator[TextInput]:
    """Yield the inputs of a file: input k is line k of a .txt file, or row k of a table.

    Args:
        path: .txt, where an empty line is an input without words, or a table (`read_table`).
        text_columns: Of a table: that of the text, and that of the second text, which may be null or empty. None: `text`,
            and `text_pair` where a row has it.

    Raises:
        InputError: No such file, another ending, or a row without such a text: file and line.
    """
    suffix = path.suffix.lower()
    if not path.is_file():
        raise InputError(f"--input_file {path}: no such file")
    if suffix == ".txt":
        for line in read_text_lines(path):
            line = line.strip()
            pair = _PAIR.match(line)
            yield TextInput(line, None) if pair is None else TextInput(pair[1], pair[2])
        return
    if suffix not in TABLE_SUFFIXES:
        allowed = ", ".join((".txt", *TABLE_SUFFIXES))
        raise InputError(f"--input_file {path}: unknown ending '{path.suffix}'; allowed: {allowed}")
    rows = read_table(path)
    first, *others = _DEFAULT_COLUMNS if text_columns is None else text_columns
    for number, row in rows.rows:
        where = rows.where(number)
        if text_columns is None and first not in row:
            present = ", ".join(row) or "none"
            raise InputError(f"{where}: no column '{first}'; columns present: {present}; name one with --text_columns")
        yield TextInput(column_text(row, first, where), _second_text(row, others, where, text_columns is None))


def _second_text(row: Any, columns: Sequence[str], where: str, may_lack: bool) -> str | None:
    if not columns or (may_lack and columns[0] not in row) or (columns[0] in row and row[columns[0]] is None):
        return None
    return column_text(row, columns[0], where)


def encode_input(each: TextInput, tokenizer: OriginalBertTokenizer, max_seq_length: int) -> EncodedInput:
    """Cut an input into pieces, as the original does: a second text without pieces, or of which none is left, is none.

    Args:
        each: The input.
        tokenizer: The checkpoint's.
        max_seq_length: Positions, 3 or more; a pair loses the last piece of its longer text until it fits.

    Source: google-research/bert extract_features.py `convert_examples_to_features`.
    """
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    first = tokenizer.encode_ids(each.text)
    second = tokenizer.encode_ids(each.text_pair) if each.text_pair else []
    room = max_seq_length - (3 if second else 2)
    is_truncated = len(first) + len(second) > room
    if second:
        truncate_pair(first, second, room)
    else:
        del first[room:]
    tail = [*second, sep] if second else []
    ids = [cls, *first, sep, *tail]
    return EncodedInput(ids, [0] * (len(first) + 2) + [1] * len(tail), is_truncated)
