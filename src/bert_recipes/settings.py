"""Fields of settings, and the values that they may have."""

import math
import operator
import re
from collections.abc import Collection, Mapping
from dataclasses import MISSING, field, fields
from typing import Any

from bert_recipes.errors import InputError


_LIMITS = {
    "least": (operator.ge, "{:,} or more"),
    "above": (operator.gt, "above {:,}"),
    "most": (operator.le, "{:,} or less"),
    "below": (operator.lt, "below {:,}"),
}


# Options of earlier versions -> what to use instead.
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

# numpy and torch take these; Python's generator takes -3 for 3.
SEEDS: Mapping[str, Any] = {"least": 0, "most": 2**32 - 1}


def option(default: Any, help: str, *, choices: Collection[str] = (), **metadata: Any) -> Any:
    """A field of settings with its help, its choices, and limits by the names of `_LIMITS`."""
    help = f"{help}: {', '.join(choices)}" if choices else help
    return field(default=default, metadata={"help": help, "allowed": choices, **metadata})


def required(help: str) -> Any:
    """A field that must be given."""
    return option(MISSING, help)


def free(default: Any, help: str, **metadata: Any) -> Any:
    """A field that may have another value at a resume: it changes nothing of what the remaining
    steps learn.
    """
    return option(default, help, resume="may change", **metadata)


def check(settings: Any) -> None:
    """Refuse the first value of a dataclass, or of a list in it, that is not among the choices of
    its field, or outside its limits; None is none.

    Limits of fields that a library declares stand in the class's `LIMITS`.
    """
    of_library = getattr(settings, "LIMITS", {})
    for item in fields(settings):
        given, choices = getattr(settings, item.name), item.metadata.get("allowed")
        metadata = {**of_library.get(item.name, {}), **item.metadata}
        limits = [(*_LIMITS[name], limit) for name, limit in metadata.items() if name in _LIMITS]
        for value in given if isinstance(given, list) else [given]:
            if value is None or (choices and value in choices) or not (choices or limits):
                continue
            if (
                choices
                or value == math.inf
                or not all(holds(value, limit) for holds, _, limit in limits)
            ):
                allowed = ", ".join(choices or ()) or " and ".join(
                    text.format(limit) for _, text, limit in limits
                )
                allowed = re.sub(r"(\S+) or more and (\S+) or less", r"\1 to \2", allowed)
                advice = f"; {metadata['advice']}" if "advice" in metadata else ""
                raise InputError(f"{item.name} is {value!r}; allowed: {allowed}{advice}")
