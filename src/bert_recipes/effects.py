"""Settings that have an effect only under a condition, and those of a run that have none.

The conditions are in effects.yaml, one table for all scripts.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import yaml


# What is demanded of a setting or property: that it is set, that it is not, or one of these values.
Demand = str | list[Any]


@cache
def read_effects() -> list[tuple[list[str], dict[str, Demand]]]:
    """Read the table: names of settings, and the conditions of which one must hold."""
    text = Path(__file__).with_name("effects.yaml").read_text(encoding="utf-8")
    rows = yaml.safe_load(text)
    return [(row["settings"], row.get("when", {})) for row in rows]


def settings_without_effect(instances: Sequence[Any], values: Mapping[str, Any]) -> list[str]:
    """Name the values that have no effect beside all settings of a run, with what each needs.

    Example:
        >>> settings_without_effect([RunArguments(save_strategy="no")], {"save_steps": 4})
        ['save_steps 4 (only with --save_strategy steps, not no)']
    """
    texts_of_reason: dict[str, list[str]] = {}
    for names, conditions in read_effects():
        texts = [f"{name} {_as_text(values[name])}" for name in names if name in values]
        if not texts:
            continue
        reason = _why_without_effect(conditions, instances)
        if reason is not None:
            texts_of_reason.setdefault(reason, []).extend(texts)

    lines = []
    for reason, texts in texts_of_reason.items():
        lines.append(f"{', '.join(texts)} ({reason})")
    return lines


def _why_without_effect(conditions: Mapping[str, Demand], instances: Sequence[Any]) -> str | None:
    """Return what none of the instances fulfils.

    None where a condition holds, or the script has none of them.
    """
    if not conditions:
        return "nothing here reads it"
    reasons = []
    for name, demand in conditions.items():
        for instance in instances:
            is_setting = any(field.name == name for field in dataclasses.fields(instance))
            if not is_setting and not hasattr(type(instance), name):
                continue
            value = _plain(getattr(instance, name))
            if _holds(demand, value):
                return None
            words = f"--{name}" if is_setting else name.replace("_", " ")
            reasons.append(_describe(words, demand, value))
    return ", or ".join(reasons) or None


def _holds(demand: Demand, value: Any) -> bool:
    if isinstance(demand, list):
        items = value if isinstance(value, list) else [value]
        return any(item in demand for item in items)
    is_set = value not in (None, False, 0, [], "no")
    return is_set if demand == "set" else not is_set


def _describe(name: str, demand: Demand, value: Any) -> str:
    """Return what is needed, and what there is instead."""
    if isinstance(demand, list):
        return f"only with {name} {' or '.join(map(_as_text, demand))}, not {_as_text(value)}"
    return f"only with {name}" if demand == "set" else f"only without {name}"


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _as_text(value: Any) -> str:
    value = _plain(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return "null" if value is None else str(value)
