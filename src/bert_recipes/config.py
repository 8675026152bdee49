"""A flat YAML file and ``--field value`` to dataclasses, and back.

The one place that knows argparse, and with `config_file` the one that knows YAML. Values are read by the type of the
field that they are for, from the text in the file or on the command line, so that both mean the same: ``2e-5`` is a float, ``no`` is the text "no"
for ``eval_strategy`` and False for ``bf16``, ``012`` is twelve. Whatever cannot be read is one line that names the
file, the line, the key, what was given and what is allowed.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import json
import logging
import math
import os
import re
import sys
import types
from argparse import SUPPRESS, ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter
from argparse import Namespace as ArgumentNamespace
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import yaml
from transformers.hf_argparser import HfArgumentParser

from bert_recipes.errors import InputError
from bert_recipes.files import written_aside


NULL_WORDS = frozenset({"null", "Null", "NULL", "None", "~", ""})
TRUE_WORDS = frozenset({"true", "yes", "on", "t", "y", "1"})
FALSE_WORDS = frozenset({"false", "no", "off", "f", "n", "0"})


def field_types(dataclass_type: type) -> dict[str, Any]:
    """Return {name: annotation} of the fields that can be given, in their order."""
    hints = get_type_hints(dataclass_type)
    return {field.name: hints[field.name] for field in dataclasses.fields(dataclass_type) if field.init}


def members(hint: Any) -> tuple[Any, ...]:
    """Return the alternatives of a union, None included, or the annotation itself."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def accepts_list(hint: Any) -> bool:
    """Tell whether a list is one of the alternatives."""
    return any(_origin(member) is list for member in members(hint))


def accepts_mapping(hint: Any) -> bool:
    """Tell whether a mapping is one of the alternatives."""
    return any(_origin(member) is dict for member in members(hint))


def is_only_list(hint: Any) -> bool:
    """Tell whether a single value has to be wrapped in a list: no other alternative could take it."""
    return all(_origin(member) is list or member is types.NoneType for member in members(hint))


def is_flag(hint: Any) -> bool:
    """Tell whether the field's name alone, without a value, can mean True."""
    return bool in members(hint) and str not in members(hint)


def element_type(hint: Any) -> Any:
    """Return the type of a list's elements; text where the annotation does not say."""
    lists = [member for member in members(hint) if _origin(member) is list]
    return next(iter(get_args(lists[0])), str)


def read_text(hint: Any, text: str, *, is_quoted: bool = False) -> Any:
    """Read a text as the field's type.

    Args:
        hint: the field's annotation. In ``SomeEnum | str`` the enumeration counts, as for `HfArgumentParser`.
        text: what was given.
        is_quoted: the text stood in quotes, so that ``"null"`` and ``"true"`` are text where text is allowed.

    Returns:
        The value: an enumeration's member, bool, int, float, dict (from JSON), `Path`, str, or None.

    Raises:
        ValueError: no alternative of the type takes the text; the message says what was given and what is allowed.

    Example:
        >>> read_text(float | None, "2e-5"), read_text(float | None, "null"), read_text(bool, "no")
        (2e-05, None, False)
    """
    alternatives = members(hint)
    if is_quoted and str in alternatives and not any(_choices(member) for member in alternatives) and _is_sound(text):
        return text
    if types.NoneType in alternatives and text in NULL_WORDS and not is_quoted:
        return None
    if any(isinstance(member, type) and issubclass(member, enum.Enum) for member in alternatives):
        alternatives = tuple(member for member in alternatives if member is not str)
    if is_only_list(hint):
        return [read_text(element_type(hint), text, is_quoted=is_quoted)]
    for member in sorted(alternatives, key=_width):
        try:
            return _read_as(member, text, beside_text=str in alternatives)
        except (ValueError, TypeError):
            continue
    raise ValueError(f"expected {describe(hint)}, got {text!r}{_hint(alternatives, text)}")


def to_plain(value: Any) -> Any:
    """Return a field's value in the types that YAML and JSON have; what has no such form is returned as it is.

    Example:
        >>> to_plain({"strategy": IntervalStrategy.NO, "folder": Path("runs")})
        {'strategy': 'no', 'folder': 'runs'}
    """
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    # transformers' nested settings (AcceleratorConfig) are objects once they are resolved.
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def describe(hint: Any) -> str:
    """Say in words what a field takes, every choice of it."""
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}
    words |= {types.NoneType: "null", dict: "a mapping", list: "a list"}
    parts = []
    for member in members(hint):
        choices = _choices(member)
        if choices:
            parts.append("one of " + ", ".join(choices))
        elif member is str and any(_choices(other) for other in members(hint)):
            continue
        else:
            parts.append(words.get(_origin(member), f"a {getattr(member, '__name__', member)} (only from Python)"))
    return " or ".join(parts)


def _origin(hint: Any) -> Any:
    return get_origin(hint) or hint


def _choices(hint: Any) -> dict[str, Any]:
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {str(member.value): member for member in hint}
    return {str(value): value for value in get_args(hint)} if get_origin(hint) is Literal else {}


def _width(hint: Any) -> int:
    """The order in which the alternatives are tried: those that take the fewest texts first."""
    order = [types.NoneType, bool, int, float, dict, list, Path, str]
    return order.index(_origin(hint)) if _origin(hint) in order else -1


def _read_as(hint: Any, text: str, *, beside_text: bool) -> Any:
    kind = _origin(hint)
    choices = _choices(hint)
    if choices:
        # Literal[False] is written "false" in YAML and "False" on a command line.
        return choices[text] if text in choices else _pick(choices, text.capitalize())
    if kind is bool:
        return _read_bool(text, ({"true"}, {"false"}) if beside_text else (TRUE_WORDS, FALSE_WORDS))
    if kind is float and text.lower().lstrip("+-") in (".inf", ".nan"):
        return float(text.replace(".", ""))
    if kind is dict:
        return _read_json_object(text)
    if kind is str and text in ("true", "True", "false", "False"):
        raise ValueError("a truth value where text is expected: more likely a mistake")
    if kind in (str, Path) and not _is_sound(text):
        raise ValueError("most texts become paths or are written to files, and this one cannot")
    if kind in (int, float, Path, str):
        return kind(text)
    raise TypeError(f"{kind} has no form as text")


def _is_sound(text: str) -> bool:
    """Tell whether a text can be a path: the system takes no NUL and no half of a surrogate pair."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _pick(choices: dict[str, Any], text: str) -> Any:
    if text not in choices or isinstance(choices[text], str):
        raise ValueError(text)
    return choices[text]


def _read_bool(text: str, words: tuple[frozenset[str] | set[str], frozenset[str] | set[str]]) -> bool:
    if text.lower() not in words[0] | words[1]:
        raise ValueError(text)
    return text.lower() in words[0]


def _read_json_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise TypeError("a JSON object")
    return value


def _hint(alternatives: tuple[Any, ...], text: str) -> str:
    """What to do about the commonest slips."""
    if (str in alternatives or Path in alternatives) and not _is_sound(text):
        return "; take the NUL character or the lone surrogate out"
    if int in alternatives:
        try:
            if float(text).is_integer():
                return f"; write {int(float(text))}"
        except (ValueError, OverflowError):
            return ""
    if str in alternatives and text.lower() in ("true", "false"):
        return "; quote it if the word is meant"
    return ""


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
        return read_text(hint, node.value, is_quoted=node.style is not None)
    if isinstance(node, yaml.MappingNode):
        if accepts_mapping(hint):
            return loader.construct_object(node, deep=True)
        raise ValueError(f"expected {describe(hint)}, got a mapping")
    if accepts_list(hint):
        return [_read_node(element_type(hint), child, loader) for child in node.value]
    raise ValueError(f"expected one value ({describe(hint)}), got a list of {len(node.value)}")


_MISSING = object()
# What the launcher sets, not the run: false for the next launch, so never written.
_LAUNCH_FIELDS = frozenset({"local_rank"})
_SECRET_FIELD = re.compile(r"(^|_)(token|api_key|password|secret)$")


def parse_arguments(
    *dataclass_types: type,
    argv: Sequence[str] | None = None,
    default_config: Path | None = None,
    check_first: Callable[[Any], object] | None = None,
) -> tuple[Any, ...]:
    """Read the configuration of a run: ``--config FILE`` (flat YAML), then ``--field value``, which wins.

    Args:
        dataclass_types: what to fill, for example `transformers.TrainingArguments`; no field name may occur twice.
        argv: the command line without the script's name; `sys.argv` where it is None.
        default_config: read where the command line has no ``--config``.
        check_first: called with the instance of the first type before the others are made, which takes seconds for
            `TrainingArguments`.

    Returns:
        One instance per type, in the same order.

    Example:
        >>> (args,) = parse_arguments(TrainingArguments, argv=["--output_dir", "runs/x", "--learning_rate", "2e-5"])
        >>> args.learning_rate
        2e-05
    """
    hints = {name: hint for kind in dataclass_types for name, hint in field_types(kind).items()}
    given = _parse_command_line(dataclass_types, hints, sys.argv[1:] if argv is None else argv)
    config_file = _config_file(given.pop("config", []), default_config)
    values = {} if config_file is None else read_flat_yaml(config_file, hints)
    values |= {name: _read_flag(name, hints[name], raw) for name, raw in given.items()}
    for kind in dataclass_types:
        if hasattr(kind, "settle"):  # what was typed on the command line is known here alone
            values = kind.settle(values, given.keys())
    first = _build(dataclass_types[0], values)
    if check_first is not None:
        check_first(first)
    return first, *(_build(kind, values) for kind in dataclass_types[1:])


def save_config(path: str | Path, *instances: Any) -> None:
    """Write the resolved values as a flat YAML file that ``--config`` reads back to the same values.

    Left out: None where that is the default, secrets (``hub_token`` and whatever else is named like one) and what
    belongs to the launch (``local_rank``, and what the class names in ``LAUNCH_FIELDS``).
    A value that has no form in YAML is named in a comment at the end.

    Args:
        path: the file; its folder must exist. It is replaced as a whole or not at all.
        instances: dataclass instances without a common field name.

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
    with written_aside(Path(path)) as aside:
        aside.write_text("\n".join(lines) + "\n", encoding="utf-8")


def resolved_values(*instances: Any) -> dict[str, Any]:
    """Return what `save_config` writes, as values of plain types by the names of the fields.

    Args:
        instances: dataclass instances without a common field name.
    """
    return {
        field.name: to_plain(getattr(instance, field.name))
        for instance in instances
        for field in _writable_fields(instance)
    }


def is_secret(name: str) -> bool:
    """Tell whether a field holds a secret, by its name (``hub_token``): such a value is never written."""
    return _SECRET_FIELD.search(name) is not None


# The command line


class _HelpFormatter(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter):
    """Defaults beside the options, and the script's docstring as it was written."""


class _Parser(HfArgumentParser):
    def add_argument(self, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("resume", None)  # of a field's metadata: `training.resume` reads it, argparse knows no such thing
        return super().add_argument(*args, **kwargs)

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
        if accepts_list(hint):
            action.nargs = "+"
        elif is_flag(hint):
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
    raise InputError(f"unknown option {flag}{nearest_name(flag.lstrip('-').replace('-', '_'), names, prefix='--')}")


def _config_file(given: list[str], default_config: Path | None) -> Path | None:
    if len(given) > 1:
        raise InputError(f"--config: given {len(given)} times; nothing inherits, give one file")
    return Path(given[0]) if given else default_config


def _read_flag(name: str, hint: Any, raw: str | bool | list[str]) -> Any:
    if isinstance(raw, bool):
        return raw
    try:
        if isinstance(raw, str):
            return read_text(hint, raw)
        if len(raw) == 1:
            return read_text(hint, raw[0])
        return [read_text(element_type(hint), text) for text in raw]
    except ValueError as error:
        raise InputError(f"--{name}: {error}") from error


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
        and not is_secret(field.name)
        and not (getattr(instance, field.name) is None and _default(field) is None)
    ]


def _yaml_line(name: str, value: Any) -> str:
    plain = to_plain(value)
    # None: PyYAML's word for a collection of plain values on one line.
    style = None if isinstance(plain, (dict, list)) else False
    text = yaml.safe_dump(
        {name: plain}, default_flow_style=style, sort_keys=False, allow_unicode=True, width=sys.maxsize
    )
    return str(text).removesuffix("\n")


logger = logging.getLogger(__name__)

# What makes the batch of a step, with the number of processes; and that batch.
PARTS, TOTAL = ("per_device_train_batch_size", "gradient_accumulation_steps"), "global_train_batch_size"


def settle(
    values: Mapping[str, Any], typed: Collection[str], defaults: Mapping[str, Any], processes: int
) -> dict[str, Any]:
    """Make the settings of a file agree with those that were typed.

    Batch sizes that were typed make the batch of a step, unless that was typed too. Intervals of a file that are longer than
    the run become a fifth of it: it would never be logged, measured or saved.

    Args:
        values: Of the file and the command line, by field.
        typed: The fields of the command line.
        defaults: Of `PARTS` and `TOTAL`.
        processes: Of the run.
    """
    values, parts = dict(values), [name for name in PARTS if name in typed]
    known, total = math.prod([processes, *(values[name] for name in parts)]), values.get(TOTAL, defaults[TOTAL])
    flags = " x ".join([*(f"--{name} {values[name]}" for name in parts), f"{processes} processes"])
    made = math.prod([processes, *(values.get(name, defaults[name]) for name in PARTS)])
    if parts and TOTAL not in typed and made > 0:
        values[TOTAL] = made
        if total not in (None, made):
            message = "%s: a step takes %d examples instead of %d; give --global_train_batch_size %d too to keep these"
            warn_early(message, flags, made, total, total)
    elif parts and total and known > 0:
        if total % known or (len(parts) == len(PARTS) and total != known):
            raise InputError(f"--{TOTAL} {total} does not agree with {flags} ({known}); leave one of them out")
        if PARTS[0] not in typed:
            values[PARTS[0]] = total // known
    if TOTAL in typed and PARTS[1] not in typed:
        values.pop(PARTS[1], None)
    steps = values.get("max_steps", -1)
    long = [name for name in ("logging_steps", "eval_steps", "save_steps") if (values.get(name) or 0) > steps > 0]
    long = [name for name in long if name not in typed]
    for name in long:
        # As often as it is measured: with load_best_model_at_end a checkpoint must have been.
        measured = values.get("eval_steps") if name == "save_steps" and "eval_steps" not in long else None
        values[name] = measured or -(-steps // 5)
    if long:
        warn_early("the file's %s: longer than the run of %d steps, made shorter", ", ".join(long), steps)
    return values


def warn_early(message: str, *parts: object) -> None:
    """Warn in the main process alone, before logging is set up."""
    if os.environ.get("RANK", "0") == "0":
        logger.warning(message, *parts)
