"""YAML files as values, each slip with its file and line.

Two kinds: flat files of settings, read by the types of the fields, and task files, whose values stay texts.
"""

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from bert_recipes import field_types
from bert_recipes.errors import InputError


class Loader(yaml.SafeLoader):
    """Safe YAML in which 2e-5 is a number (YAML 1.2), as people write it, and not a string (YAML 1.1)."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d[\d_]*\.?|\d*\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read_flat_yaml(path: Path, hints: dict[str, Any]) -> dict[str, Any]:
    """Read `field: value` lines by the types of the fields.

    Args:
        path: The file.
        hints: Field -> its annotation.

    Returns:
        The fields that the file has.

    Raises:
        InputError: No such file, not UTF-8, not flat YAML, an unknown key, a key twice, a value of another type.
    """
    loader, pairs = _compose(path, _read_utf8(path, "configuration"))
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key_node, value_node in pairs:
        line = key_node.start_mark.line + 1
        where = f"{path}, line {line}"
        key = key_node.value
        if not isinstance(key_node, yaml.ScalarNode):
            raise InputError(f"{where}: a key must be the name of a field")
        if key not in hints:
            if isinstance(value_node, yaml.MappingNode):
                raise InputError(f"{where}: {key!r} opens a section, but settings are flat: write its keys without it")
            raise InputError(f"{where}: unknown key {key!r}{nearest_name(key.replace('-', '_'), hints)}")
        if key in lines:
            raise InputError(f"{where}: {key!r} is given a second time (first in line {lines[key]}); keep one")
        lines[key] = line
        try:
            values[key] = _read_node(hints[key], value_node, loader)
        except (ValueError, yaml.YAMLError) as error:
            raise InputError(f"{where}: {key}: {error}") from error
    return values


def read_tree(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Read a file of lists and mappings of texts: every value as it is written, so that `no` and `012` stay words.

    Returns:
        Key -> text, None, list or mapping of such; and key -> line, for the keys of the first level.

    Raises:
        InputError: No such file, not UTF-8, not YAML, a tag or an alias, a key twice or that is no text.
    """
    _, pairs = _compose(path, _read_utf8(path, "task"))
    lines = {key.value: key.start_mark.line + 1 for key, _ in pairs if isinstance(key, yaml.ScalarNode)}
    return _mapping(path, pairs), lines


def _mapping(path: Path, pairs: list[tuple[yaml.Node, yaml.Node]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        where = f"{path}, line {key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode):
            raise InputError(f"{where}: a key must be one word or text")
        if key.value in values:
            raise InputError(f"{where}: {key.value!r} is given a second time; keep one")
        values[key.value] = _plain(path, value)
    return values


def _plain(path: Path, node: yaml.Node) -> Any:
    if not node.tag.startswith("tag:yaml.org,2002:") or node.tag.startswith("tag:yaml.org,2002:python"):
        raise InputError(f"{path}, line {node.start_mark.line + 1}: the tag {node.tag!r} is not supported")
    if isinstance(node, yaml.MappingNode):
        return _mapping(path, node.value)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(path, item) for item in node.value]
    return None if node.tag == "tag:yaml.org,2002:null" else node.value


def nearest_name(name: str, names: Iterable[str], prefix: str = "") -> str:
    """Name the valid name that is most like an unknown one, as the end of a message."""
    matches = difflib.get_close_matches(name.lower(), list(names), n=1, cutoff=0.5)
    return f"; did you mean {prefix}{matches[0]}?" if matches else "; --help lists the valid names"


def _read_utf8(path: Path, kind: str) -> str:
    option = "--config" if kind == "configuration" else "--task_file"
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        present = sorted(file.name for file in path.parent.glob("*.yaml") if file.name[0] != ".")
        there = f"; {path.parent} holds {', '.join(present)}" if present else ""
        raise InputError(f"{path}: no such {kind} file{there}") from None
    except IsADirectoryError:
        raise InputError(f"{path}: a folder; {option} takes one YAML file") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, line {line}: not UTF-8 (byte 0x{data[error.start]:02x})") from error


def _compose(path: Path, text: str) -> tuple[Loader, list[tuple[yaml.Node, yaml.Node]]]:
    """The file's (key, value) nodes, which still hold their text and line, and the loader that can construct them."""
    try:
        loader = Loader(text)
        root = loader.get_single_node()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InputError(f"{path}, line {line}: a character that YAML forbids ({error.character!r})") from error
    except RecursionError:
        raise InputError(f"{path}: not valid YAML: brackets inside each other a thousand deep") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = str(error.problem or error.context)
        problem = "a tab; YAML indents with spaces" if "\\t" in problem else problem
        raise InputError(f"{path}, line {mark.line + 1 if mark else 1}: not valid YAML: {problem}") from error
    if root is None:
        raise InputError(f"{path}: no settings in this file; write `field: value` lines or leave --config out")
    if not isinstance(root, yaml.MappingNode):
        raise InputError(f"{path}, line {root.start_mark.line + 1}: expected lines `field: value`, with the space")
    return loader, root.value


def _read_node(hint: Any, node: yaml.Node, loader: Loader) -> Any:
    """A YAML node as a value of the field's type; raises `ValueError` with what was given and what is expected."""
    if not node.tag.startswith("tag:yaml.org,2002:") or node.tag.startswith("tag:yaml.org,2002:python"):
        raise ValueError(f"the tag {node.tag!r} is not supported; write the plain value")
    if isinstance(node, yaml.ScalarNode):
        return field_types.read_text(hint, node.value, is_quoted=node.style is not None)
    if isinstance(node, yaml.MappingNode):
        if field_types.accepts_mapping(hint):
            return loader.construct_object(node, deep=True)
        raise ValueError(f"expected {field_types.describe(hint)}, got a mapping")
    if field_types.accepts_list(hint):
        return [_read_node(field_types.element_type(hint), child, loader) for child in node.value]
    raise ValueError(f"expected one value ({field_types.describe(hint)}), got a list of {len(node.value)}")
