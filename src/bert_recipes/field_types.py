"""From the text of a setting to the value that its field's type asks for, the same for YAML and the command line.

Knows neither of the two: it sees an annotation (``float | None``) and a text (``2e-5``).
"""

import dataclasses
import enum
import json
import os
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


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
