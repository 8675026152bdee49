"""A flat YAML file and ``--field value`` to dataclasses, and back.

The one place that knows argparse, and with `config_file` the one that knows YAML. Values are read by the type of the
field that they are for, from the text in the file or on the command line, so that both mean the same: ``2e-5`` is a float, ``no`` is the text "no"
for ``eval_strategy`` and False for ``bf16``, ``012`` is twelve. Whatever cannot be read is one line that names the
file, the line, the key, what was given and what is allowed.
"""

import dataclasses
import re
import sys
from argparse import SUPPRESS, ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter
from argparse import Namespace as ArgumentNamespace
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml
from transformers.hf_argparser import HfArgumentParser

from bert_recipes import field_types
from bert_recipes.config_file import nearest_name, read_flat_yaml, read_tree
from bert_recipes.errors import InputError
from bert_recipes.tasks.definition import build_task, task_values
from bert_recipes.tasks.task import Task
from bert_recipes.whole_files import written_aside


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
    hints = {name: hint for kind in dataclass_types for name, hint in field_types.field_types(kind).items()}
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
    with written_aside(Path(path)) as aside:
        aside.write_text("\n".join(lines) + "\n", encoding="utf-8")


def resolved_values(*instances: Any) -> dict[str, Any]:
    """Return what `save_config` writes, as values of plain types by the names of the fields.

    Args:
        instances: dataclass instances without a common field name.
    """
    return {
        field.name: field_types.to_plain(getattr(instance, field.name))
        for instance in instances
        for field in _writable_fields(instance)
    }


def is_secret(name: str) -> bool:
    """Tell whether a field holds a secret, by its name (``hub_token``): such a value is never written."""
    return _SECRET_FIELD.search(name) is not None


def read_task_file(path: str | Path) -> Task:
    """Read a user's own task (docs/tasks.md): a row in YAML.

    Args:
        path: The file; the `files` in it are relative to its folder.

    Example:
        >>> read_task_file("tickets.yaml").labels  # doctest: +SKIP
        ('bug', 'question')
    """
    path = Path(path)
    values, lines = read_tree(path)

    def place(key: str | None) -> str:
        return f"{path}, line {lines[key]}" if key in lines else str(path)

    return build_task(values, place, path.parent, path.stem)


def write_task_file(path: str | Path, task: Task) -> None:
    """Write a row as YAML that `read_task_file` reads back; of its files only the names, as machines differ.

    Args:
        path: The file; its folder must exist. It is replaced as a whole or not at all.
        task: Any row.

    Raises:
        OSError: The file cannot be written.
    """
    header = "# The task of a run. Its data: --data_dir FOLDER, or files of these names beside this one.\n"
    text = yaml.safe_dump(task_values(task), sort_keys=False, allow_unicode=True, width=sys.maxsize)
    with written_aside(Path(path)) as aside:
        aside.write_text(header + str(text), encoding="utf-8")


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
            return field_types.read_text(hint, raw)
        if len(raw) == 1:
            return field_types.read_text(hint, raw[0])
        return [field_types.read_text(field_types.element_type(hint), text) for text in raw]
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
    plain = field_types.to_plain(value)
    # None: PyYAML's word for a collection of plain values on one line.
    style = None if isinstance(plain, (dict, list)) else False
    text = yaml.safe_dump(
        {name: plain}, default_flow_style=style, sort_keys=False, allow_unicode=True, width=sys.maxsize
    )
    return str(text).removesuffix("\n")
