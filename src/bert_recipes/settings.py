"""Fields of settings, and the values that they may have."""

import math
import operator
from collections.abc import Collection, Mapping
from dataclasses import MISSING, field, fields
from typing import Any

from bert_recipes.errors import InputError


# Name in the metadata -> comparison with the limit, and its text in a message.
_LIMITS = {
    "least": (operator.ge, "{:,} or more"),
    "above": (operator.gt, "above {:,}"),
    "most": (operator.le, "{:,} or less"),
    "below": (operator.lt, "below {:,}"),
}


# Option of an earlier version, of all recipes or of some -> replacement.
_ENERGY_OF_RUN = "give it to the run, whose card then reports energy and CO2"
REMOVED_OPTIONS: dict[str, str] = {
    "to_tensorflow": "use the folder in the Hub's form; TensorFlow checkpoints are read only",
    "power_watts": _ENERGY_OF_RUN,
    "country_iso_code": _ENERGY_OF_RUN,
    "carbon_intensity": _ENERGY_OF_RUN,
    "embeddings": "int8 always has the embeddings",
    "features_dir": "features are computed in each run",
    "join": "use --layers concat_last_four or sum_last_four",
    "max_score_drop": "read the loss in export.json",
    "part_mb": "vectors are written in one pass",
    "per_channel": "int8 always has a scale per column",
    "speed_examples": "use make benchmark to measure speed",
}

# numpy and torch take these; Python's generator takes -3 for 3. Of a list, each seed counts once.
SEEDS: Mapping[str, Any] = {"least": 0, "most": 2**32 - 1, "is_distinct": True}


def option(default: Any, help: str, *, choices: Collection[str] = (), **metadata: Any) -> Any:
    """Declare a field of settings.

    Args:
        default: The value where the user gives none.
        help: The purpose of the field, without its choices.
        choices: The allowed texts.
        metadata: Limits by the names of `_LIMITS` with `advice` for a value outside; `is_distinct`:
            a list holds nothing twice; `is_common`: `--help` lists it; `is_saved=False`: it belongs
            to one launch, run.yaml leaves it out; `refused`: why another value than the default is
            refused (`RunArguments`).
    """
    help = f"{help}: {', '.join(choices)}" if choices else help
    return field(default=default, metadata={"help": help, "allowed": choices, **metadata})


def required(help: str, **metadata: Any) -> Any:
    """Declare a field that must be given."""
    return option(MISSING, help, **metadata)


def changeable(default: Any, help: str, **metadata: Any) -> Any:
    """Declare a field that may change at a resume: the remaining steps learn the same."""
    return option(default, help, resume="may change", **metadata)


def metadata_of(settings_class: type) -> dict[str, Mapping[str, Any]]:
    """Return the metadata of each field.

    The class's `LIBRARY_FIELDS` completes the metadata of fields that a library declares.
    """
    library_fields = getattr(settings_class, "LIBRARY_FIELDS", {})
    metadata: dict[str, Mapping[str, Any]] = {}
    for item in fields(settings_class):
        library_metadata = library_fields.get(item.name, {})
        # A field that `option` declares again keeps its own help; the library's own text is long.
        is_option = "allowed" in item.metadata
        if is_option:
            metadata[item.name] = {**library_metadata, **item.metadata}
        else:
            metadata[item.name] = {**item.metadata, **library_metadata}
    return metadata


def check_limits(settings: Any) -> None:
    """Refuse the first value, or item of a list, that its field's metadata does not allow.

    None is always allowed: the field is not set.
    """
    for name, metadata in metadata_of(type(settings)).items():
        value = getattr(settings, name)
        values = value if isinstance(value, list) else [value]
        if metadata.get("is_distinct") and len(set(values)) < len(values):
            raise InputError(f"{name} is {values}; allowed: each once")
        for item in values:
            if item is not None:
                check_value(name, item, metadata)


def check_value(name: str, value: Any, metadata: Mapping[str, Any]) -> None:
    """Refuse a value that is not among the choices of a field, or outside its limits."""
    choices = metadata.get("allowed")
    if choices:
        if value not in choices:
            raise InputError(f"{name} is {value!r}; allowed: {', '.join(choices)}")
        return

    limits = {limit: metadata[limit] for limit in _LIMITS if limit in metadata}
    if not limits:
        return
    is_allowed = value != math.inf
    for limit, bound in limits.items():
        holds, _ = _LIMITS[limit]
        is_allowed = is_allowed and holds(value, bound)
    if not is_allowed:
        advice = f"; {metadata['advice']}" if "advice" in metadata else ""
        raise InputError(f"{name} is {value!r}; allowed: {_describe_limits(limits)}{advice}")


def _describe_limits(limits: Mapping[str, Any]) -> str:
    """Describe limits by their names: "0 to 1", "above 0 and below 1"."""
    if limits.keys() == {"least", "most"}:
        return f"{limits['least']:,} to {limits['most']:,}"
    texts = []
    for limit, bound in limits.items():
        _, text = _LIMITS[limit]
        texts.append(text.format(bound))
    return " and ".join(texts)
