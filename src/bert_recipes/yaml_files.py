"""Read YAML files: their texts as they are written, and the line of each key."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from bert_recipes.errors import InputError


# Far above what people write by hand. Nine lines of aliases can stand for a billion values.
MAX_VALUES = 1_000_000


class Loader(yaml.SafeLoader):
    """Safe YAML in which 2e-5 is a number, as people write it (YAML 1.2), and no string (1.1)."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*\.?|\d*\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def compose(path: Path) -> tuple[Loader, yaml.Node]:
    """Return the loader of a file, and the mapping in it as a node.

    A node still holds texts and lines; the loader can construct its values.
    """
    try:
        loader = Loader(path.read_text(encoding="utf-8-sig"))
        root = loader.get_single_node()
    except FileNotFoundError:
        present = sorted(file.name for file in path.parent.glob("[!.]*.yaml"))
        hint = f"; {path.parent} holds {', '.join(present)}" if present else ""
        raise InputError(f"{path}: no such file{hint}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 ({error})") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if root is None:
        raise InputError(f"{path}: no settings in this file; write `field: value` lines")
    if not isinstance(root, yaml.MappingNode):
        raise InputError(
            f"{path}, line {root.start_mark.line + 1}: expected lines `field: value`, with the "
            "space"
        )
    _check_size(path, root)
    return loader, root


def _check_size(path: Path, root: yaml.Node) -> None:
    """Refuse a file that stands for too many values.

    Each alias (`*name`) is all that its anchor (`&name`) holds.
    """
    nodes = [root]
    num_values = 0
    while nodes:
        node = nodes.pop()
        num_values += 1
        if num_values > MAX_VALUES:
            raise InputError(
                f"{path}: its aliases (*name) stand for more than {MAX_VALUES:,} values, or hold "
                "themselves; write values out"
            )
        if isinstance(node, yaml.MappingNode):
            nodes.extend(value for _, value in node.value)
        elif isinstance(node, yaml.SequenceNode):
            nodes.extend(node.value)


def pairs(path: Path, mapping: yaml.Node) -> Iterator[tuple[str, int, yaml.Node]]:
    """Yield key, line and value of each entry."""
    seen = set()
    for key, value in mapping.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise InputError(f"{path}, line {line}: a key must be one word or text")
        if key.value in seen:
            raise InputError(f"{path}, line {line}: {key.value!r} is given a second time; keep one")
        seen.add(key.value)
        yield key.value, line, value


def read_tree(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Read a file of lists and mappings of texts.

    Every value is as it is written, so that `no` and `012` stay words.

    Returns:
        Key -> text, None, list or mapping of such; and key -> line, for the keys of the first
        level.
    """
    _, root = compose(path)
    line_of = {key: line for key, line, _ in pairs(path, root)}
    return _plain(path, root), line_of


def _plain(path: Path, node: yaml.Node) -> Any:
    """Return a node as lists and mappings of texts."""
    if isinstance(node, yaml.MappingNode):
        mapping = {}
        for key, _, value in pairs(path, node):
            mapping[key] = _plain(path, value)
        return mapping
    if isinstance(node, yaml.SequenceNode):
        return [_plain(path, item) for item in node.value]
    if node.tag == "tag:yaml.org,2002:null":
        return None
    return node.value
