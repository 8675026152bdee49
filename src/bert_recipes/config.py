"""Read a flat YAML file and ``--field value`` into dataclasses, and write them back.

Values are read from their text by the type of their field, so that a file and the command line mean
the same: ``2e-5`` is a float, ``no`` is the text "no" for ``eval_strategy`` and False for ``bf16``,
``012`` is twelve.
"""

import contextlib
import dataclasses
import enum
import inspect
import json
import logging
import math
import re
import sys
import types
from argparse import SUPPRESS, ArgumentDefaultsHelpFormatter, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import (
    Any,
    Literal,
    NoReturn,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import yaml
from transformers.hf_argparser import HfArgumentParser

from bert_recipes.effects import settings_without_effect
from bert_recipes.errors import InputError, did_you_mean, is_main_process
from bert_recipes.files import atomic_write
from bert_recipes.settings import REMOVED_OPTIONS, check_limits, metadata_of
from bert_recipes.shipped import find_config
from bert_recipes.yaml_files import Loader, compose, pairs


logger = logging.getLogger(__name__)

_NULL_WORDS = frozenset({"null", "Null", "NULL", "None", "~", ""})
_TRUE_WORDS = frozenset({"true", "yes", "on", "t", "y", "1"})
_FALSE_WORDS = frozenset({"false", "no", "off", "f", "n", "0"})
# Type -> its name in a message. The alternatives of a union are tried in this order: types that
# take the fewest texts come first.
_WORDS_OF_TYPES = {
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
    configs: Path | None = None,
    check_first: Callable[[Any], object] | None = None,
) -> tuple[Any, ...]:
    """Read the configuration of a run: ``--config FILE`` (flat YAML), then ``--field value``.

    A flag wins over the file. ``--help`` lists the fields marked `is_common`, ``--help_all`` all.

    Args:
        dataclass_types: what to fill, for example `transformers.TrainingArguments`; no field name
            may occur twice.
        argv: the command line without the script's name; `sys.argv` where it is None.
        default_config: read where the command line has no ``--config``.
        configs: folder whose files ``--config`` takes by name.
        check_first: called with the instance of the first type before the others are made, which
            takes seconds for `TrainingArguments`.

    Example:
        >>> argv = ["--output_dir", "runs/x", "--learning_rate", "2e-5"]
        >>> (args,) = parse_arguments(TrainingArguments, argv=argv)
        >>> args.learning_rate
        2e-05
    """
    hints: dict[str, Any] = {}
    for settings_class in dataclass_types:
        hints.update(field_types(settings_class))

    arguments = sys.argv[1:] if argv is None else argv
    texts = _parse_command_line(dataclass_types, hints, arguments)
    config_file = _choose_config_file(texts.pop("config", []), default_config, configs)
    in_file = {} if config_file is None else read_flat_yaml(config_file, hints)
    values = dict(in_file)
    for name, text in texts.items():
        values[name] = _read_flag(name, hints[name], text)

    set_by_user = dict(values)
    for settings_class in dataclass_types:
        # A class whose fields depend on each other has a class method `reconcile`. Only here flags
        # and file are known.
        if hasattr(settings_class, "reconcile"):
            values = settings_class.reconcile(values, texts.keys(), in_file)

    instances = [_build(dataclass_types[0], values)]
    if check_first is not None:
        check_first(instances[0])
    instances.extend(_build(settings_class, values) for settings_class in dataclass_types[1:])

    _name_settings_without_effect(instances, set_by_user, typed=texts.keys())
    return tuple(instances)


def _choose_config_file(
    files: Sequence[str], default: Path | None, configs: Path | None
) -> Path | None:
    """Return the file of --config, of which there may be one, or the default."""
    if len(files) > 1:
        raise InputError(f"--config: given {len(files)} times; nothing inherits, give one file")
    if not files:
        return default
    if configs is None:
        return Path(files[0])
    return find_config(files[0], configs)


def _name_settings_without_effect(
    instances: Sequence[Any], values: Mapping[str, Any], typed: Collection[str]
) -> None:
    """Name in one warning the settings of the user that nothing in this run reads.

    A file may repeat a default.
    """
    changed = {name: values[name] for name in typed}
    for instance in instances:
        for field in dataclasses.fields(instance):
            name = field.name
            if name in values and values[name] != _default_of(field):
                changed[name] = values[name]

    without_effect = settings_without_effect(instances, changed)
    if without_effect:
        warn_in_main_process("without effect here: %s", "; ".join(without_effect))


def _default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field, MISSING where it must be given."""
    if field.default_factory is dataclasses.MISSING:
        return field.default
    return field.default_factory()


def read_flat_yaml(path: Path, hints: Mapping[str, Any]) -> dict[str, Any]:
    """Read the `field: value` lines of a file by the annotations of the fields."""
    loader, root = compose(path)

    values: dict[str, Any] = {}
    for key, line, node in pairs(path, root):
        where = f"{path}, line {line}"
        if key not in hints and isinstance(node, yaml.MappingNode):
            raise InputError(
                f"{where}: {key!r} opens a section, but settings are flat: write its keys "
                "without it"
            )
        if key not in hints:
            nearest = nearest_name(key.replace("-", "_"), hints)
            raise InputError(f"{where}: unknown key {key!r}{nearest}")
        try:
            values[key] = _read_node(hints[key], node, loader)
        except (ValueError, yaml.YAMLError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{where}: {key}: {reason}") from error
    return values


def save_config(path: str | Path, *instances: Any) -> None:
    """Write the resolved values as a flat YAML file; ``--config`` reads the same values from it.

    Left out: None where that is the default, secrets (``hub_token`` and other fields named like a
    secret) and fields of one launch: ``local_rank``, fields with ``is_saved=False`` and those in
    the instance's ``unsaved_fields``.
    """
    lines = ["# The resolved configuration of a run; --config reads it back."]
    for instance in instances:
        lines.append(f"\n# {type(instance).__name__}")
        for name, value in resolved_values(instance).items():
            lines.append(_yaml_line(name, value))

    with atomic_write(Path(path)) as aside:
        aside.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _yaml_line(name: str, value: Any) -> str:
    """Return the line of run.yaml, or the lines of a long list, that hold a value."""
    is_collection = isinstance(value, dict | list)

    text = yaml.safe_dump(
        {name: value},
        # With None PyYAML writes a collection of plain values on one line.
        default_flow_style=None if is_collection else False,
        sort_keys=False,
        allow_unicode=True,
        width=sys.maxsize,
    )
    return text.removesuffix("\n")


def resolved_values(*instances: Any) -> dict[str, Any]:
    """Return the values for `save_config`: field -> value in the types that YAML and JSON have.

    Where a Trainer has set a field for its run, the value is that of the instance's
    ``given_values``.
    """
    values = {}
    for instance in instances:
        given_values = getattr(instance, "given_values", {})
        for field in _saved_fields(instance):
            value = given_values.get(field.name, getattr(instance, field.name))
            if value is not None or field.default is not None:
                values[field.name] = _to_plain(value)
    return values


def _saved_fields(instance: Any) -> Iterator[dataclasses.Field[Any]]:
    """Yield the fields of settings that belong to the run, without secrets."""
    metadata = metadata_of(type(instance))
    unsaved_fields = getattr(instance, "unsaved_fields", ())
    for field in dataclasses.fields(instance):
        name = field.name
        is_saved = metadata[name].get("is_saved", True)
        if not field.init or not is_saved or name in unsaved_fields:
            continue
        if name == "local_rank" or _SECRET_FIELD.search(name):
            continue
        yield field


# Types of fields


def field_types(dataclass_type: type) -> dict[str, Any]:
    """Return {name: annotation} of the fields that can be given, in their order."""
    hints = get_type_hints(dataclass_type)
    types_of_fields = {}
    for field in dataclasses.fields(dataclass_type):
        if field.init:
            types_of_fields[field.name] = hints[field.name]
    return types_of_fields


def members(hint: Any) -> tuple[Any, ...]:
    """Return the alternatives of a union, None included, or the annotation itself."""
    if get_origin(hint) in (Union, types.UnionType):
        return get_args(hint)
    return (hint,)


def _accepts(hint: Any, origin: type) -> bool:
    """Return whether a type is one of the alternatives."""
    return origin in map(_origin, members(hint))


def element_type(hint: Any) -> Any:
    """Return the type of a list's elements; text where the annotation does not say."""
    for member in members(hint):
        if _origin(member) is list and get_args(member):
            return get_args(member)[0]
    return str


def read_text(hint: Any, text: str) -> Any:
    """Read a text as a field's type.

    In ``SomeEnum | str`` the enumeration counts, as for `HfArgumentParser`.

    Raises:
        ValueError: no alternative of the type takes the text; the message has the text and the
            allowed types.

    Example:
        >>> read_text(float | None, "2e-5"), read_text(float | None, "null"), read_text(bool, "no")
        (2e-05, None, False)
    """
    alternatives = _alternatives(hint)
    if types.NoneType in alternatives and text in _NULL_WORDS:
        return None

    origins = {_origin(alternative) for alternative in alternatives}
    if origins <= {list, types.NoneType}:
        return [_read_item(element_type(hint), text)]

    allows_text = str in alternatives
    for alternative in sorted(alternatives, key=_order_of_reading):
        with contextlib.suppress(ValueError, TypeError):
            return _read_as(alternative, text, allows_text=allows_text)
    raise ValueError(f"expected {_describe(hint)}, got {text!r}")


def _read_item(hint: Any, text: str) -> Any:
    """Read an element of a list; among texts true and false are words, too."""
    return text if hint is str else read_text(hint, text)


def _order_of_reading(alternative: Any) -> int:
    """Return the place of a type in `_WORDS_OF_TYPES`; choices come first."""
    order = list(_WORDS_OF_TYPES)
    origin = _origin(alternative)
    if origin not in order:
        return -1
    return order.index(origin)


def nearest_name(name: str, names: Iterable[str], prefix: str = "") -> str:
    """Name the valid name that is most like an unknown one, as the end of a message."""
    if name in REMOVED_OPTIONS:
        return f"; it was removed: {REMOVED_OPTIONS[name]}"

    hint = did_you_mean(name.lower(), names, shown=lambda match: prefix + match)
    if not hint:
        return "; --help lists the valid names"
    return f"; {hint.rstrip()}"


def _origin(hint: Any) -> Any:
    """Return the class of an annotation: list of list[str]."""
    return get_origin(hint) or hint


def _choices(hint: Any) -> dict[str, Any]:
    """Return {text: value} of an enumeration's or a Literal's values, else {}."""
    if _is_enum(hint):
        return {str(member.value): member for member in hint}
    if get_origin(hint) is not Literal:
        return {}

    choices = {}
    for value in get_args(hint):
        # Literal[False] is written "false" in YAML and "False" on a command line.
        text = str(value).lower() if isinstance(value, bool) else str(value)
        choices[text] = value
    return choices


def _is_enum(hint: Any) -> bool:
    """Return whether an annotation is an enumeration."""
    return isinstance(hint, type) and issubclass(hint, enum.Enum)


def _alternatives(hint: Any) -> list[Any]:
    """Return the types of a text; beside an enumeration no other text is allowed."""
    alternatives = list(members(hint))
    if any(map(_is_enum, alternatives)):
        return [alternative for alternative in alternatives if alternative is not str]
    return alternatives


def _describe(hint: Any) -> str:
    """Name the alternatives of a type, for a message."""
    texts = []
    for alternative in _alternatives(hint):
        choices = ", ".join(_choices(alternative))
        if choices:
            texts.append(f"one of {choices}")
        else:
            words = _WORDS_OF_TYPES.get(_origin(alternative), str(alternative))
            texts.append(words)
    return " or ".join(texts)


def _read_as(alternative: Any, text: str, *, allows_text: bool) -> Any:
    """Read a text as one type; `allows_text`: text is an alternative too."""
    choices = _choices(alternative)
    if choices:
        return _read_choice(choices, text)

    origin = _origin(alternative)
    if origin is bool:
        return _read_bool(text, allows_text=allows_text)
    if origin is float:
        return _read_float(text)
    if origin is dict:
        value = json.loads(text)
        if not isinstance(value, dict):
            raise ValueError(text)
        return value

    # A truth value where text is expected is probably a mistake.
    if origin is str and text.lower() in ("true", "false"):
        raise ValueError(text)
    if origin not in (int, Path, str):
        raise TypeError(f"{origin} has no form as text")
    return origin(text)


def _read_choice(choices: Mapping[str, Any], text: str) -> Any:
    """Return the value that a text names."""
    if text in choices:
        return choices[text]
    value = choices.get(text.lower())
    if value is None or isinstance(value, str):  # only truth values may be written in capitals
        raise ValueError(text)
    return value


def _read_bool(text: str, *, allows_text: bool) -> bool:
    """Read yes, no and the like; where text is allowed too, only true and false."""
    word = text.lower()
    true_words: Collection[str] = _TRUE_WORDS
    false_words: Collection[str] = _FALSE_WORDS
    if allows_text:
        true_words = ("true",)
        false_words = ("false",)
    if word not in true_words and word not in false_words:
        raise ValueError(text)
    return word in true_words


def _read_float(text: str) -> float:
    """Read a number; nan is refused."""
    # YAML's forms: .inf, -.inf, .nan.
    plain = re.sub(r"^([-+]?)\.(inf|nan)$", r"\1\2", text.lower())
    number = float(plain)
    if math.isnan(number):  # compares as false with every limit
        raise ValueError(text)
    return number


def _to_plain(value: Any) -> Any:
    """Return a value in the types that YAML and JSON have."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)

    # transformers' nested settings (AcceleratorConfig) are objects once they are resolved.
    if hasattr(value, "to_dict"):
        value = value.to_dict()

    if isinstance(value, dict):
        return {key: _to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(item) for item in value]
    return value


# YAML


def _read_node(hint: Any, node: yaml.Node, loader: Loader) -> Any:
    """Read a value of a YAML file by its annotation."""
    if isinstance(node, yaml.ScalarNode):
        return _read_scalar(hint, node)

    if isinstance(node, yaml.MappingNode):
        if _accepts(hint, dict):
            # Keys as they are written: a class may be called 0 or no.
            values = {}
            for key, value in node.value:
                values[key.value] = loader.construct_object(value, deep=True)
            return values
        raise ValueError(f"expected one value ({_describe(hint)}), got a mapping")

    if isinstance(node, yaml.SequenceNode) and _accepts(hint, list):
        item_hint = element_type(hint)
        return [_read_node(item_hint, child, loader) for child in node.value]
    size = len(node.value)
    raise ValueError(f"expected one value ({_describe(hint)}), got a list of {size}")


def _read_scalar(hint: Any, node: yaml.ScalarNode) -> Any:
    """Read one value of a YAML file; a quoted value is text where text is allowed."""
    is_quoted = node.style is not None
    if is_quoted and not node.value.strip():
        raise ValueError(_EMPTY)
    if is_quoted and str in _alternatives(hint):
        return node.value
    return read_text(hint, node.value)


# The command line


class _HelpFormatter(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter):
    """Show one spelling of each option and its default, and the script's docstring as written."""

    def __init__(self, prog: str) -> None:
        """Leave room for the names of the options."""
        super().__init__(prog, max_help_position=29)

    def _format_action_invocation(self, action: Any) -> str:
        """Return one spelling of an option with its value."""
        name = next(name for name in action.option_strings if name.startswith("--"))
        if action.metavar:
            return f"{name} {action.metavar}"
        return str(name)

    def _get_help_string(self, action: Any) -> str | None:
        """Return the help of an option, with its default if it has one."""
        if action.default is None or action.default is False:
            return action.help
        return super()._get_help_string(action)


# Keys of a field's metadata for argparse; `settings.check_limits` reads others.
_ARGPARSE_KEYS = (
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


# argparse's own has no exponents: -1e-3 would be an option.
_NEGATIVE_NUMBER = re.compile(r"^-(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?$")


class _Parser(HfArgumentParser):
    """A parser that takes fields with our metadata, and whose errors are `InputError`."""

    def add_argument(self, *args: Any, **kwargs: Any) -> Any:
        """Add an option, without the metadata that argparse does not know."""
        argparse_kwargs = {name: kwargs[name] for name in kwargs if name in _ARGPARSE_KEYS}
        return super().add_argument(*args, **argparse_kwargs)

    def error(self, message: str) -> NoReturn:
        """Refuse the command line in one line."""
        # "argument --max_steps/--max-steps: expected one argument" -> "--max_steps: ..."
        plain = re.sub(r"^argument (--[\w-]+)\S*: ", r"\1: ", message)
        raise InputError(plain)


def _parse_command_line(
    dataclass_types: Sequence[Any], hints: Mapping[str, Any], argv: Sequence[str]
) -> dict[str, Any]:
    """Split the command line into {field: text, list of texts, or True for a bare flag}.

    The result has only fields that were typed.
    """
    parser = _make_parser(dataclass_types, hints)

    _group_options(parser, dataclass_types, lists_all="--help_all" in argv)
    _refuse_repeated_flags(parser, argv)
    # argparse fills in defaults only where a value is missing. Here none is: fields that were typed
    # differ from the others.
    missing = object()
    untouched = Namespace(**dict.fromkeys(hints, missing))

    namespace, unknown = parser.parse_known_args(list(argv), untouched)
    if unknown:
        _refuse_argument(unknown[0], hints)
    return {name: value for name, value in vars(namespace).items() if value is not missing}


def _make_parser(dataclass_types: Sequence[Any], hints: Mapping[str, Any]) -> _Parser:
    """Return a parser that only splits; `read_text` converts, for file and command line alike."""
    parser = _Parser(
        dataclass_types,
        usage="%(prog)s [--config FILE] [--field value ...]",
        allow_abbrev=False,
        formatter_class=_HelpFormatter,
        description=sys.modules["__main__"].__doc__,
    )
    parser._negative_number_matcher = _NEGATIVE_NUMBER
    for settings_class in dataclass_types:
        for name, metadata in metadata_of(settings_class).items():
            if name in hints:
                action = parser._option_string_actions[f"--{name}"]
                _loosen(action, hints[name], metadata)

    parser.add_argument("--help_all", action="help", help=SUPPRESS)
    parser.add_argument(
        "--config",
        action="append",
        metavar="FILE",
        default=SUPPRESS,
        help="flat YAML file; flags win over it",
    )
    return parser


def _loosen(action: Any, hint: Any, metadata: Mapping[str, Any]) -> None:
    """Let an option take any text."""
    action.help = metadata.get("help")
    action.type = str
    action.required = False
    if action.choices is not None:
        choices = ",".join(map(str, action.choices))
        action.metavar = f"{{{choices}}}"
        action.choices = None

    if _accepts(hint, list):
        action.nargs = "+"
    elif bool in members(hint) and str not in members(hint):
        action.nargs = "?"
        action.const = True


def _refuse_argument(argument: str, names: Iterable[str]) -> NoReturn:
    """Refuse an argument that is no option, or an option that there is not."""
    if not argument.startswith("-"):
        hint = ""
        if argument.endswith((".yaml", ".yml")):
            hint = f"; a configuration is given as --config {argument}"
        raise InputError(f"unexpected argument {argument!r}: every value follows its --field{hint}")

    flag = argument.split("=")[0]
    name = flag.lstrip("-").replace("-", "_")
    nearest = nearest_name(name, [*names, "config"], prefix="--")
    raise InputError(f"unknown option {flag}{nearest}")


def _refuse_repeated_flags(parser: _Parser, argv: Sequence[str]) -> None:
    """Refuse a setting that stands twice on the command line.

    `parse_arguments` refuses a second --config.
    """
    names: set[str] = set()
    for argument in argv:
        action = parser._option_string_actions.get(argument.split("=")[0])
        if action is None or action.dest in ("config", "help"):
            continue
        if action.dest in names:
            raise InputError(f"--{action.dest} is given twice on the command line; give it once")

        names.add(action.dest)


def _group_options(parser: _Parser, dataclass_types: Sequence[type], *, lists_all: bool) -> None:
    """List the common options in the help, or all in groups, the library's last.

    A class that marks none of its fields as common has all of them listed.
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
        actions.setdefault(action.dest, action)  # a field's second action is its --no_ form

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
            title = _help_title(settings_class, name)
            groups.setdefault(title, []).append(actions[name])

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

    text = declaring_class.__doc__ or declaring_class.__name__
    first_line = text.split("\n")[0]
    return first_line.rstrip(".")


def _read_flag(name: str, hint: Any, value: str | bool | list[str]) -> Any:
    """Read the typed text of a field by its annotation."""
    if isinstance(value, bool):
        return value
    texts = [value] if isinstance(value, str) else value
    try:
        if not all(text.strip() for text in texts):
            raise ValueError(_EMPTY)
        if len(texts) == 1:
            return read_text(hint, texts[0])
        item_hint = element_type(hint)
        return [_read_item(item_hint, text) for text in texts]
    except ValueError as error:
        raise InputError(f"--{name}: {error}") from error


def _build(settings_class: type, values: Mapping[str, Any]) -> Any:
    """Make the settings of a class, and check them."""
    arguments = {}
    missing = []
    for field in dataclasses.fields(settings_class):
        if field.init and field.name in values:
            arguments[field.name] = values[field.name]
        elif field.init and _default_of(field) is dataclasses.MISSING:
            missing.append(f"--{field.name}")

    if missing:
        raise InputError(f"missing: give {', '.join(missing)}, or the key in the YAML file")

    try:
        settings = settings_class(**arguments)
        check_limits(settings)
    except ValueError as error:
        # A dataclass's __post_init__ checks values of the user.
        raise InputError(str(error)) from error
    return settings


def warn_in_main_process(message: str, *values: object) -> None:
    """Warn in the main process alone: the others have the same settings.

    It works before logging is set up.
    """
    if is_main_process():
        logger.warning(message, *values)
