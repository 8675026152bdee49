"""A flat YAML file and ``--field value`` to dataclasses, and back: the one place that knows
argparse.

Values are read by the type of the field that they are for, from their text, so that a file and the
command line mean the
same: ``2e-5`` is a float, ``no`` is the text "no" for ``eval_strategy`` and False for ``bf16``,
``012`` is twelve.
"""

import contextlib
import dataclasses
import enum
import inspect
import json
import logging
import math
import os
import re
import sys
import types
from argparse import SUPPRESS, ArgumentDefaultsHelpFormatter, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import yaml
from transformers.hf_argparser import HfArgumentParser

from bert_recipes.effects import settings_without_effect
from bert_recipes.errors import InputError, did_you_mean
from bert_recipes.files import atomic_write
from bert_recipes.settings import REMOVED_OPTIONS, check, metadata_of
from bert_recipes.yaml_files import Loader, compose, pairs


logger = logging.getLogger(__name__)

_NULL_WORDS = frozenset({"null", "Null", "NULL", "None", "~", ""})
_TRUE_WORDS = frozenset({"true", "yes", "on", "t", "y", "1"})
_FALSE_WORDS = frozenset({"false", "no", "off", "f", "n", "0"})
# Of the alternatives of a type those that take the fewest texts are tried first.
_KINDS = {
    types.NoneType: "null",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    dict: "a mapping",
    list: "a list",
    Path: "a path",
    str: "text",
}
_EMPTY = "the value is empty; leave it out, or write null for none"
_LIBRARY_TITLE = "other options of transformers"
_SECRET_FIELD = re.compile(r"(^|_)(token|api_key|password|secret)$")


def parse_arguments(
    *dataclass_types: type,
    argv: Sequence[str] | None = None,
    default_config: Path | None = None,
    check_first: Callable[[Any], object] | None = None,
) -> tuple[Any, ...]:
    """Read the configuration of a run: ``--config FILE`` (flat YAML), then ``--field value``.

    A flag wins over the file. ``--help`` lists the fields marked `is_common`, ``--help_all`` all.

    Args:
        dataclass_types: what to fill, for example `transformers.TrainingArguments`; no field name
            may occur twice.
        argv: the command line without the script's name; `sys.argv` where it is None.
        default_config: read where the command line has no ``--config``.
        check_first: called with the instance of the first type before the others are made, which
            takes seconds for `TrainingArguments`.

    Example:
        >>> argv = ["--output_dir", "runs/x", "--learning_rate", "2e-5"]
        >>> (args,) = parse_arguments(TrainingArguments, argv=argv)
        >>> args.learning_rate
        2e-05
    """
    hints = {name: hint for kind in dataclass_types for name, hint in field_types(kind).items()}
    given = _parse_command_line(dataclass_types, hints, sys.argv[1:] if argv is None else argv)
    files = given.pop("config", [])
    if len(files) > 1:
        raise InputError(f"--config: given {len(files)} times; nothing inherits, give one file")
    config_file = Path(files[0]) if files else default_config
    in_file = {} if config_file is None else read_flat_yaml(config_file, hints)
    values = dict(in_file)
    for name, raw in given.items():
        values[name] = _read_flag(name, hints[name], raw)
    set_by_user = dict(values)
    for kind in dataclass_types:
        if hasattr(
            kind, "settle"
        ):  # what was typed on the command line, and what is in the file, is known here alone
            values = kind.settle(values, given.keys(), in_file)
    first = _build(dataclass_types[0], values)
    if check_first is not None:
        check_first(first)
    instances = (first, *(_build(kind, values) for kind in dataclass_types[1:]))
    _name_settings_without_effect(instances, set_by_user, typed=given.keys())
    return instances


def _name_settings_without_effect(
    instances: Sequence[Any], values: Mapping[str, Any], typed: Collection[str]
) -> None:
    """Name in one warning what the user set and nothing in this run reads; a file may repeat a
    default.
    """
    changed = {name: values[name] for name in typed}
    for instance in instances:
        for field in dataclasses.fields(instance):
            factory = field.default_factory
            default = field.default if factory is dataclasses.MISSING else factory()
            if field.name in values and values[field.name] != default:
                changed[field.name] = values[field.name]
    if without := settings_without_effect(instances, changed):
        warn_early("without effect here: %s", "; ".join(without))


def read_flat_yaml(path: Path, hints: Mapping[str, Any]) -> dict[str, Any]:
    """Read the `field: value` lines of a file by the annotations of the fields."""
    loader, root = compose(path)
    values: dict[str, Any] = {}
    for key, line, node in pairs(path, root):
        where = f"{path}, line {line}"
        if key not in hints:
            if isinstance(node, yaml.MappingNode):
                raise InputError(
                    f"{where}: {key!r} opens a section, but settings are flat: write its keys "
                    "without it"
                )
            raise InputError(
                f"{where}: unknown key {key!r}{nearest_name(key.replace('-', '_'), hints)}"
            )
        try:
            values[key] = _read_node(hints[key], node, loader)
        except (ValueError, yaml.YAMLError) as error:
            raise InputError(f"{where}: {key}: {' '.join(str(error).split())}") from error
    return values


def save_config(path: str | Path, *instances: Any) -> None:
    """Write the resolved values as a flat YAML file that ``--config`` reads back to the same
    values.

    Left out: None where that is the default, secrets (``hub_token`` and whatever else is named like
    one) and what belongs to the launch: ``local_rank``, fields with ``is_saved=False`` and those in
    the instance's ``unsaved_fields``.
    """
    lines = ["# The resolved configuration of a run; --config reads it back."]
    for instance in instances:
        lines.append(f"\n# {type(instance).__name__}")
        for name, value in resolved_values(instance).items():
            # None: PyYAML's word for a collection of plain values on one line.
            style = None if isinstance(value, dict | list) else False
            options: Any = {"sort_keys": False, "allow_unicode": True, "width": sys.maxsize}
            lines.append(
                yaml.safe_dump({name: value}, default_flow_style=style, **options).removesuffix(
                    "\n"
                )
            )
    with atomic_write(Path(path)) as aside:
        aside.write_text("\n".join(lines) + "\n", encoding="utf-8")


def resolved_values(*instances: Any) -> dict[str, Any]:
    """Return what `save_config` writes, in the types that YAML and JSON have, by the names of the
    fields.
    """
    values = {}
    for instance in instances:
        metadata = metadata_of(type(instance))
        unsaved_fields = getattr(instance, "unsaved_fields", ())
        for field in dataclasses.fields(instance):
            is_saved = metadata[field.name].get("is_saved", True)
            if not field.init or not is_saved or field.name in unsaved_fields:
                continue
            if field.name == "local_rank" or _SECRET_FIELD.search(field.name):
                continue
            value = getattr(instance, field.name)
            if value is not None or field.default is not None:
                values[field.name] = _to_plain(value)
    return values


# Types of fields


def field_types(dataclass_type: type) -> dict[str, Any]:
    """Return {name: annotation} of the fields that can be given, in their order."""
    hints = get_type_hints(dataclass_type)
    return {
        field.name: hints[field.name] for field in dataclasses.fields(dataclass_type) if field.init
    }


def members(hint: Any) -> tuple[Any, ...]:
    """Return the alternatives of a union, None included, or the annotation itself."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def accepts_list(hint: Any) -> bool:
    """Tell whether a list is one of the alternatives."""
    return list in map(_origin, members(hint))


def element_type(hint: Any) -> Any:
    """Return the type of a list's elements; text where the annotation does not say."""
    return next(
        (
            get_args(member)[0]
            for member in members(hint)
            if _origin(member) is list and get_args(member)
        ),
        str,
    )


def read_text(hint: Any, text: str) -> Any:
    """Read a text as a field's type; in ``SomeEnum | str`` the enumeration counts, as for
    `HfArgumentParser`.

    Raises:
        ValueError: no alternative of the type takes the text; the message says what was given and
            what is allowed.

    Example:
        >>> read_text(float | None, "2e-5"), read_text(float | None, "null"), read_text(bool, "no")
        (2e-05, None, False)
    """
    kinds = _alternatives(hint)
    if types.NoneType in kinds and text in _NULL_WORDS:
        return None
    if {_origin(kind) for kind in kinds} <= {list, types.NoneType}:
        return [read_text(element_type(hint), text)]
    order = list(_KINDS)
    for kind in sorted(
        kinds, key=lambda kind: order.index(_origin(kind)) if _origin(kind) in order else -1
    ):
        with contextlib.suppress(ValueError, TypeError):
            return _read_as(kind, text, beside_text=str in kinds)
    raise ValueError(f"expected {_describe(hint)}, got {text!r}")


def nearest_name(name: str, names: Iterable[str], prefix: str = "") -> str:
    """Name the valid name that is most like an unknown one, as the end of a message."""
    if name in REMOVED_OPTIONS:
        return f"; it was removed: {REMOVED_OPTIONS[name]}"
    hint = did_you_mean(name.lower(), names, shown=lambda match: prefix + match)
    return f"; {hint.rstrip() or '--help lists the valid names'}"


def _origin(hint: Any) -> Any:
    return get_origin(hint) or hint


def _choices(hint: Any) -> dict[str, Any]:
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {str(member.value): member for member in hint}
    # Literal[False] is written "false" in YAML and "False" on a command line.
    literals = get_args(hint) if get_origin(hint) is Literal else ()
    return {
        str(value).lower() if isinstance(value, bool) else str(value): value for value in literals
    }


def _alternatives(hint: Any) -> list[Any]:
    kinds = list(members(hint))
    has_enum = any(isinstance(kind, type) and issubclass(kind, enum.Enum) for kind in kinds)
    return [kind for kind in kinds if kind is not str] if has_enum else kinds


def _describe(hint: Any) -> str:
    texts = []
    for kind in _alternatives(hint):
        choices = ", ".join(_choices(kind))
        texts.append(f"one of {choices}" if choices else _KINDS.get(_origin(kind), str(kind)))
    return " or ".join(texts)


def _read_as(kind: Any, text: str, *, beside_text: bool) -> Any:
    word, choices, kind = text.lower(), _choices(kind), _origin(kind)
    if choices:
        if text not in choices and isinstance(choices.get(word, ""), str):
            raise ValueError(text)
        return choices[text if text in choices else word]
    if kind is bool:
        if word not in (("true", "false") if beside_text else _TRUE_WORDS | _FALSE_WORDS):
            raise ValueError(text)
        return word in _TRUE_WORDS
    if kind is float:
        number = float(re.sub(r"^([-+]?)\.(inf|nan)$", r"\1\2", word))  # as YAML writes them
        if math.isnan(number):  # compares as false with every limit
            raise ValueError(text)
        return number
    value = json.loads(text) if kind is dict else text
    # A truth value where text is expected is more likely a mistake.
    if (kind is dict and not isinstance(value, dict)) or (
        kind is str and word in ("true", "false")
    ):
        raise ValueError(text)
    if kind not in (int, Path, str, dict):
        raise TypeError(f"{kind} has no form as text")
    return kind(value)


def _to_plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    # transformers' nested settings (AcceleratorConfig) are objects once they are resolved.
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    if isinstance(value, dict):
        return {key: _to_plain(item) for key, item in value.items()}
    return [_to_plain(item) for item in value] if isinstance(value, list | tuple) else value


# YAML


def _read_node(hint: Any, node: yaml.Node, loader: Loader) -> Any:
    if isinstance(node, yaml.ScalarNode):
        is_quoted = node.style is not None
        if is_quoted and not node.value.strip():
            raise ValueError(_EMPTY)
        return (
            node.value if is_quoted and str in _alternatives(hint) else read_text(hint, node.value)
        )
    if isinstance(node, yaml.MappingNode) and dict in map(_origin, members(hint)):
        return loader.construct_object(node, deep=True)
    if isinstance(node, yaml.SequenceNode) and accepts_list(hint):
        return [_read_node(element_type(hint), child, loader) for child in node.value]
    given = "a mapping" if isinstance(node, yaml.MappingNode) else f"a list of {len(node.value)}"
    raise ValueError(f"expected one value ({_describe(hint)}), got {given}")


# The command line


class _HelpFormatter(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter):
    """Show one spelling of each option and its default, and the script's docstring as written."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=29)

    def _format_action_invocation(self, action: Any) -> str:
        name = next(name for name in action.option_strings if name.startswith("--"))
        return f"{name} {action.metavar}" if action.metavar else name

    def _get_help_string(self, action: Any) -> str | None:
        has_default = action.default is not None and action.default is not False
        return super()._get_help_string(action) if has_default else action.help


class _Parser(HfArgumentParser):
    def add_argument(self, *args: Any, **kwargs: Any) -> Any:
        # The metadata of a field, which other readers have too: `settings.check`,
        # `training.resume`.
        known = (
            "dest",
            "type",
            "default",
            "required",
            "action",
            "nargs",
            "const",
            "choices",
            "metavar",
            "help",
        )
        return super().add_argument(
            *args, **{name: value for name, value in kwargs.items() if name in known}
        )

    def error(self, message: str) -> NoReturn:
        # "argument --max_steps/--max-steps: expected one argument" -> "--max_steps: ..."
        raise InputError(re.sub(r"^argument (--[\w-]+)\S*: ", r"\1: ", message))


def _parse_command_line(
    dataclass_types: Sequence[Any],
    hints: Mapping[str, Any],
    argv: Sequence[str],
) -> dict[str, Any]:
    """Split the command line into {field: text, list of texts, or a bool of a bare flag}, given
    fields only.
    """
    description = sys.modules["__main__"].__doc__
    usage, form = "%(prog)s [--config FILE] [--field value ...]", _HelpFormatter
    parser = _Parser(
        dataclass_types,
        usage=usage,
        allow_abbrev=False,
        formatter_class=form,
        description=description,
    )
    helps = {}
    for settings_class in dataclass_types:
        for name, metadata in metadata_of(settings_class).items():
            helps[name] = metadata.get("help")
    for name, hint in hints.items():
        action = parser._option_string_actions[f"--{name}"]
        action.help = helps[name]
        # argparse only splits; `read_text` converts, for the file and the command line alike.
        action.type, action.required = str, False
        if action.choices is not None:
            action.metavar, action.choices = "{" + ",".join(map(str, action.choices)) + "}", None
        if accepts_list(hint):
            action.nargs = "+"
        elif bool in members(hint) and str not in members(hint):
            action.nargs, action.const = "?", True
    parser.add_argument("--help_all", action="help", help=SUPPRESS)
    parser.add_argument(
        "--config",
        action="append",
        metavar="FILE",
        default=SUPPRESS,
        help="flat YAML file; flags win over it",
    )
    _group_options(parser, dataclass_types, lists_all="--help_all" in argv)
    _refuse_repeated_flags(parser, argv)
    # Values that are there already keep argparse from filling in defaults: what is given can be
    # told from what is not.
    missing = object()
    namespace, unknown = parser.parse_known_args(
        list(argv), Namespace(**dict.fromkeys(hints, missing))
    )
    if unknown and not unknown[0].startswith("-"):
        hint = (
            f"; a configuration is given as --config {unknown[0]}"
            if unknown[0].endswith((".yaml", ".yml"))
            else ""
        )
        raise InputError(
            f"unexpected argument {unknown[0]!r}: every value follows its --field{hint}"
        )
    if unknown:
        flag = unknown[0].split("=")[0]
        nearest = nearest_name(flag.lstrip("-").replace("-", "_"), [*hints, "config"], prefix="--")
        raise InputError(f"unknown option {flag}{nearest}")
    return {name: value for name, value in vars(namespace).items() if value is not missing}


def _refuse_repeated_flags(parser: _Parser, argv: Sequence[str]) -> None:
    """Refuse a setting that stands twice on the command line; --config, which may not either, has
    its own words.
    """
    seen: set[str] = set()
    for argument in argv:
        action = parser._option_string_actions.get(argument.split("=")[0])
        if action is None or action.dest in ("config", "help"):
            continue
        if action.dest in seen:
            raise InputError(f"--{action.dest} is given twice on the command line; give it once")
        seen.add(action.dest)


def _group_options(parser: _Parser, dataclass_types: Sequence[type], *, lists_all: bool) -> None:
    """List the common options in the help, or all in groups, the library's last.

    Of a class that marks none of its fields as common, all are.
    """
    num_options = 0
    common = []
    for settings_class in dataclass_types:
        metadata = metadata_of(settings_class)
        names = list(field_types(settings_class))
        num_options += len(names)
        marked = [name for name in names if metadata[name].get("is_common")]
        common.extend(marked or names)
    actions: dict[str, Any] = {}
    for action in parser._actions:
        actions.setdefault(action.dest, action)  # the second of a field is its --no_ form
    options = parser._optionals._group_actions
    options[:] = [actions["help"], actions["config"]]
    if not lists_all:
        options.extend(actions[name] for name in common)
        if len(common) < num_options:
            parser.epilog = f"--help_all lists all {num_options} options."
        return
    groups: dict[str, list[Any]] = {}
    for settings_class in dataclass_types:
        for name in field_types(settings_class):
            groups.setdefault(_help_title(settings_class, name), []).append(actions[name])
    for title in sorted(groups, key=lambda title: title.startswith(_LIBRARY_TITLE)):
        parser.add_argument_group(title)._group_actions = groups[title]


def _help_title(settings_class: type, name: str) -> str:
    """Return the title of an option's group: the first line of the class that declares it."""
    declaring_class = settings_class
    for base in settings_class.__mro__:
        if name in inspect.get_annotations(base):
            declaring_class = base
            break
    if declaring_class.__module__.startswith("transformers"):
        return f"{_LIBRARY_TITLE}.{declaring_class.__name__}, see its documentation"
    return (declaring_class.__doc__ or declaring_class.__name__).split("\n")[0].rstrip(".")


def _read_flag(name: str, hint: Any, raw: str | bool | list[str]) -> Any:
    if isinstance(raw, bool):
        return raw
    texts = [raw] if isinstance(raw, str) else raw
    try:
        if not all(text.strip() for text in texts):
            raise ValueError(_EMPTY)
        if len(texts) == 1:
            return read_text(hint, texts[0])
        return [read_text(element_type(hint), text) for text in texts]
    except ValueError as error:
        raise InputError(f"--{name}: {error}") from error


def _build(kind: type, values: Mapping[str, Any]) -> Any:
    fields = [field for field in dataclasses.fields(kind) if field.init]
    needed = []
    for field in fields:
        if (
            field.default is field.default_factory is dataclasses.MISSING
            and field.name not in values
        ):
            needed.append(f"--{field.name}")
    if needed:
        raise InputError(f"missing: give {', '.join(needed)}, or the key in the YAML file")
    try:
        settings = kind(
            **{field.name: values[field.name] for field in fields if field.name in values}
        )
        check(settings)
        return settings
    except ValueError as error:
        # The checks of a dataclass's __post_init__ are about what the user gave.
        raise InputError(str(error)) from error


# Batch sizes and intervals

# What makes the batch of a step, with the number of processes; and that batch.
PARTS, TOTAL = (
    ("per_device_train_batch_size", "gradient_accumulation_steps"),
    "global_train_batch_size",
)


def settle(
    values: Mapping[str, Any], typed: Collection[str], defaults: Mapping[str, Any], processes: int
) -> dict[str, Any]:
    """Make the settings of a file agree with those that were typed: `values` are of both,
    `defaults` of `PARTS` and `TOTAL`.

    Batch sizes that were typed make the global batch, unless that was typed too. Intervals of a
    file that are longer than
    the run become a fifth of it: it would never be logged, measured or saved.
    """
    values = dict(values)
    _settle_batch(values, typed, defaults, processes)
    steps = values.get("max_steps", -1)
    too_long = []
    for name in ("logging_steps", "eval_steps", "save_steps"):
        if name not in typed and (values.get(name) or 0) > steps > 0:
            too_long.append(name)
    for name in too_long:
        # As often as it is measured: with load_best_model_at_end a checkpoint must have been.
        measured = (
            values.get("eval_steps")
            if name == "save_steps" and "eval_steps" not in too_long
            else None
        )
        values[name] = measured or -(-steps // 5)
    if too_long:
        warn_early(
            "the file's %s exceed this %d-step run; shortened to %s",
            ", ".join(too_long),
            steps,
            ", ".join(str(values[name]) for name in too_long),
        )
    return values


def _settle_batch(
    values: dict[str, Any], typed: Collection[str], defaults: Mapping[str, Any], processes: int
) -> None:
    """Let what was typed of a batch make the rest of it: the parts the total, or the total the part
    that is missing.
    """
    total = values.get(TOTAL, defaults[TOTAL])
    typed_product = product = processes
    factors = []
    for name in PARTS:
        product *= values.get(name, defaults[name])
        if name in typed:
            typed_product *= values[name]
            factors.append(f"--{name} {values[name]}")
    flags = " x ".join([*factors, f"{processes} processes"])
    if factors and TOTAL not in typed and product > 0:
        values[TOTAL] = product
        if total not in (None, product):
            message = (
                "%s: a step takes %d examples instead of %d; give --global_train_batch_size "
                "%d too to keep these"
            )
            warn_early(message, flags, product, total, total)
    elif factors and total and typed_product > 0:
        has_all_parts = len(factors) == len(PARTS)
        if total % typed_product or (has_all_parts and total != typed_product):
            raise InputError(
                f"--{TOTAL} {total} does not agree with {flags} ({typed_product}); leave one of "
                "them out"
            )
        if PARTS[0] not in typed:
            values[PARTS[0]] = total // typed_product
    if TOTAL in typed and PARTS[1] not in typed:
        values.pop(PARTS[1], None)


def warn_early(message: str, *parts: object) -> None:
    """Warn in the main process alone, before logging is set up."""
    if os.environ.get("RANK", "0") == "0":
        logger.warning(message, *parts)
