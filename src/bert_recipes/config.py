"""A flat YAML file and ``--field value`` to dataclasses, and back.

The one place that knows argparse and YAML. Values are read by the type of the field that they are for, from the text
that stands in the file or on the command line, so that both mean the same: ``2e-5`` is a float, ``no`` is the text "no"
for ``eval_strategy`` and False for ``bf16``, ``012`` is twelve. Whatever cannot be read is one line that names the
file, the line, the key, what was given and what is allowed.
"""

import dataclasses
import difflib
import os
import re
import sys
from argparse import SUPPRESS, ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter
from argparse import Namespace as ArgumentNamespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml
from transformers.hf_argparser import HfArgumentParser

from bert_recipes import field_types
from bert_recipes.errors import InputError


_MISSING = object()
# What the launcher sets, not the run: false for the next launch, so never written.
_LAUNCH_FIELDS = frozenset({"local_rank"})
_SECRET_FIELD = re.compile(r"(^|_)(token|api_key|password|secret)$")


def parse_arguments(
    *dataclass_types: type, argv: Sequence[str] | None = None, default_config: Path | None = None
) -> tuple[Any, ...]:
    """Read the configuration of a run: ``--config FILE`` (flat YAML), then ``--field value``, which wins.

    Args:
        dataclass_types: what to fill, for example `transformers.TrainingArguments`; no field name may occur twice.
        argv: the command line without the script's name; `sys.argv` where it is None.
        default_config: read where the command line has no ``--config``.

    Returns:
        One instance per type, in the same order.

    Raises:
        InputError: an unknown key or flag (the nearest valid name is given), a value of the wrong type, a key twice,
            a missing field, a file that is not flat YAML, or a value that a dataclass refuses with a `ValueError`.

    Example:
        >>> (args,) = parse_arguments(TrainingArguments, argv=["--output_dir", "runs/x", "--learning_rate", "2e-5"])
        >>> args.learning_rate
        2e-05
    """
    hints = {name: hint for kind in dataclass_types for name, hint in field_types.field_types(kind).items()}
    given = _parse_command_line(dataclass_types, hints, sys.argv[1:] if argv is None else argv)
    config_file = _config_file(given.pop("config", []), default_config)
    values = {} if config_file is None else _read_flat_yaml(config_file, hints)
    values |= {name: _read_flag(name, hints[name], raw) for name, raw in given.items()}
    return tuple(_build(kind, values) for kind in dataclass_types)


def save_config(path: str | Path, *instances: Any) -> None:
    """Write the resolved values as a flat YAML file that ``--config`` reads back to the same values.

    Left out: None where that is the default, secrets (``hub_token`` and whatever else is named like one) and what
    belongs to the launch (``local_rank``, and what the class names in ``LAUNCH_FIELDS``).
    A value that has no form in YAML is named in a comment at the end.

    Args:
        path: the file; its folder must exist. It is replaced as a whole or not at all.
        instances: dataclass instances without a common field name.

    Raises:
        OSError: the file cannot be written.

    Example:
        >>> save_config("runs/x/config.yaml", training_args)
    """
    lines = ["# The resolved configuration of a run; --config reads it back."]
    unwritable = []
    for instance in instances:
        lines.append(f"\n# {type(instance).__name__}")
        for field in _writable_fields(instance):
            try:
                lines.append(_yaml_line(field.name, getattr(instance, field.name)))
            except yaml.representer.RepresenterError:
                unwritable.append(field.name)
    if unwritable:
        lines.append(f"\n# Not written, for want of a form in YAML: {', '.join(unwritable)}")
    path = Path(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        aside.write_text("\n".join(lines) + "\n", encoding="utf-8")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


# The command line


class _HelpFormatter(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter):
    """Defaults beside the options, and the script's docstring as it was written."""


class _Parser(HfArgumentParser):
    def error(self, message: str) -> NoReturn:
        # "argument --max_steps/--max-steps: expected one argument" -> "--max_steps: ..."
        raise InputError(re.sub(r"^argument (--[\w-]+)\S*: ", r"\1: ", message))


def _parse_command_line(dataclass_types: Sequence[Any], hints: dict[str, Any], argv: Sequence[str]) -> dict[str, Any]:
    """Split the command line into {field: text, list of texts, or a bool of a bare flag}, given fields only."""
    description = sys.modules["__main__"].__doc__
    parser = _Parser(dataclass_types, allow_abbrev=False, formatter_class=_HelpFormatter, description=description)
    for name, hint in hints.items():
        action = parser._option_string_actions[f"--{name}"]
        # argparse only splits; `field_types` converts, for the file and the command line alike.
        action.type, action.required = str, False
        if action.choices is not None:
            action.metavar, action.choices = "{" + ",".join(map(str, action.choices)) + "}", None
        if field_types.accepts_list(hint):
            action.nargs = "+"
        elif field_types.is_flag(hint):
            action.nargs, action.const = "?", True
    parser.add_argument(
        "--config", action="append", metavar="FILE", default=SUPPRESS, help="flat YAML file; flags win over it"
    )
    # Values that are there already keep argparse from filling in defaults: what is given can be told from what is not.
    namespace = ArgumentNamespace(**dict.fromkeys(hints, _MISSING))
    namespace, unknown = parser.parse_known_args(list(argv), namespace)
    if unknown:
        _refuse_argument(unknown[0], [*hints, "config"])
    return {name: value for name, value in vars(namespace).items() if value is not _MISSING}


def _refuse_argument(argument: str, names: Iterable[str]) -> NoReturn:
    if not argument.startswith("-"):
        hint = f"; a configuration is given as --config {argument}" if argument.endswith((".yaml", ".yml")) else ""
        raise InputError(f"unexpected argument {argument!r}: every value follows its --field{hint}")
    flag = argument.split("=")[0]
    raise InputError(f"unknown option {flag}{_nearest(flag.lstrip('-').replace('-', '_'), names, prefix='--')}")


def _nearest(name: str, names: Iterable[str], prefix: str = "") -> str:
    matches = difflib.get_close_matches(name.lower(), list(names), n=1, cutoff=0.5)
    return f"; did you mean {prefix}{matches[0]}?" if matches else "; --help lists the valid names"


def _config_file(given: list[str], default_config: Path | None) -> Path | None:
    if len(given) > 1:
        raise InputError(f"--config: given {len(given)} times; nothing inherits, give one file")
    return Path(given[0]) if given else default_config


def _read_flag(name: str, hint: Any, raw: str | bool | list[str]) -> Any:
    if isinstance(raw, bool):
        return raw
    try:
        if isinstance(raw, str):
            return field_types.read_text(hint, raw)
        if len(raw) == 1:
            return field_types.read_text(hint, raw[0])
        return [field_types.read_text(field_types.element_type(hint), text) for text in raw]
    except ValueError as error:
        raise InputError(f"--{name}: {error}") from error


# The file


class _Loader(yaml.SafeLoader):
    """Safe YAML in which 2e-5 is a number (YAML 1.2), as people write it, and not a string (YAML 1.1)."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d[\d_]*\.?|\d*\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _read_flat_yaml(path: Path, hints: dict[str, Any]) -> dict[str, Any]:
    loader, pairs = _compose(path, _read_utf8(path))
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
            raise InputError(f"{where}: unknown key {key!r}{_nearest(key.replace('-', '_'), hints)}")
        if key in lines:
            raise InputError(f"{where}: {key!r} is given a second time (first in line {lines[key]}); keep one")
        lines[key] = line
        try:
            values[key] = _read_node(hints[key], value_node, loader)
        except (ValueError, yaml.YAMLError) as error:
            raise InputError(f"{where}: {key}: {error}") from error
    return values


def _read_utf8(path: Path) -> str:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        present = sorted(file.name for file in path.parent.glob("*.yaml"))
        there = f"; {path.parent} holds {', '.join(present)}" if present else ""
        raise InputError(f"{path}: no such configuration file{there}") from None
    except IsADirectoryError:
        raise InputError(f"{path}: a folder; --config takes one YAML file") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, line {line}: not UTF-8 (byte 0x{data[error.start]:02x})") from error


def _compose(path: Path, text: str) -> tuple[_Loader, list[tuple[yaml.Node, yaml.Node]]]:
    """The file's (key, value) nodes, which still hold their text and line, and the loader that can construct them."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InputError(f"{path}, line {line}: a character that YAML forbids ({error.character!r})") from error
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


def _read_node(hint: Any, node: yaml.Node, loader: _Loader) -> Any:
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


# The instances


def _build(kind: type, values: dict[str, Any]) -> Any:
    fields = [field for field in dataclasses.fields(kind) if field.init]
    needed = [field.name for field in fields if _default(field) is _MISSING and field.name not in values]
    if needed:
        raise InputError(f"missing: give {', '.join('--' + name for name in needed)}, or the key in the YAML file")
    try:
        return kind(**{field.name: values[field.name] for field in fields if field.name in values})
    except ValueError as error:
        # The checks of a dataclass's __post_init__ are about what the user gave.
        raise InputError(str(error)) from error


def _default(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return _MISSING if field.default is dataclasses.MISSING else field.default


def _writable_fields(instance: Any) -> list[dataclasses.Field]:
    return [
        field
        for field in dataclasses.fields(instance)
        if field.init
        and field.name not in _LAUNCH_FIELDS
        and field.name not in getattr(instance, "LAUNCH_FIELDS", ())
        and not _SECRET_FIELD.search(field.name)
        and not (getattr(instance, field.name) is None and _default(field) is None)
    ]


def _yaml_line(name: str, value: Any) -> str:
    plain = field_types.to_plain(value)
    # None: PyYAML's word for a collection of plain values on one line.
    style = None if isinstance(plain, (dict, list)) else False
    text = yaml.safe_dump(
        {name: plain}, default_flow_style=style, sort_keys=False, allow_unicode=True, width=sys.maxsize
    )
    return str(text).removesuffix("\n")
