"""The file of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_recipes import field_types
from bert_recipes.config_file import nearest_name, read_tree
from bert_recipes.errors import InputError
from bert_recipes.sweeps.flags import RESERVED
from bert_recipes.sweeps.ranges import read_range


def read_grid(path: Path, fields: Mapping[str, Any], *, with_ranges: bool = False) -> dict[str, list[str]]:
    """Read a sweep: a flat YAML file of `field: value` or `field: [value, value]`.

    Args:
        path: The file.
        fields: Field -> annotation, all those of a fine-tuning run.
        with_ranges: Whether `[least, greatest, log]` (or `linear`, or `int`) is a range for a field of numbers; the word
            stays the last value.

    Returns:
        Field -> its values as they stand in the file, in its order, checked against the field's type.

    Raises:
        InputError: An unknown field, one that a sweep may not vary, a value of the wrong type, or one given twice.
    """
    tree, lines = read_tree(path)
    grid: dict[str, list[str]] = {}
    for name, given in tree.items():
        where = f"{path}, line {lines[name]}"
        if name in RESERVED:
            raise InputError(f"{where}: {name} cannot stand in a sweep: {RESERVED[name]}")
        if name not in fields:
            raise InputError(f"{where}: unknown key {name!r}{nearest_name(name.replace('-', '_'), fields)}")
        try:
            grid[name] = _as_texts(given)
            _check_values(grid[name], fields[name], with_ranges=with_ranges)
        except ValueError as error:
            raise InputError(f"{where}: {name}: {error}") from error
    return grid


def _as_texts(given: Any) -> list[str]:
    """One value or a list of them, null as the word."""
    if given is None or given == []:
        raise ValueError("no value; give one or a list")
    values = given if isinstance(given, list) else [given]
    if any(isinstance(value, list | dict) for value in values):
        raise ValueError("a list or mapping is no single value; write `field: value` or `field: [value, value]`")
    return ["null" if value is None else value for value in values]


def _check_values(values: Sequence[str], hint: Any, *, with_ranges: bool) -> None:
    if read_range(values, hint) is not None:
        if not with_ranges:
            raise ValueError(f"[{', '.join(values)}] is a range; ranges are searched with --num_trials N")
        return
    read = [field_types.read_text(hint, text) for text in values]
    wrong = [text for text, value in zip(values, read, strict=True) if isinstance(value, float) and value != value]
    if wrong:
        raise ValueError(f"{wrong[0]} is no number; take it out")
    twice = [text for text, value in zip(values, read, strict=True) if read.count(value) > 1]
    if twice:
        raise ValueError(f"{' and '.join(twice)} are the same value; give each once")
