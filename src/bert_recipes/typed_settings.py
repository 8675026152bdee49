"""What is typed on the command line wins over what a configuration file says of the same."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Collection, Mapping
from typing import Any

from bert_recipes.errors import InputError


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

    Raises:
        InputError: Batch sizes were typed that contradict each other.
    """
    values, parts = dict(values), [name for name in PARTS if name in typed]
    known, total = math.prod([processes, *(values[name] for name in parts)]), values.get(TOTAL, defaults[TOTAL])
    flags = " x ".join([*(f"--{name} {values[name]}" for name in parts), f"{processes} processes"])
    if parts and TOTAL not in typed:
        made = math.prod([processes, *(values.get(name, defaults[name]) for name in PARTS)])
        values[TOTAL] = None
        if total not in (None, made) and os.environ.get("RANK", "0") == "0":  # logging is not set up yet
            message = (
                "%s: a step takes %d examples in the place of %d; give --global_train_batch_size %d too to keep these"
            )
            logger.warning(message, flags, made, total, total)
    elif parts and total and known > 0:
        if total % known or (len(parts) == len(PARTS) and total != known):
            raise InputError(f"--{TOTAL} {total} does not agree with {flags} ({known}); leave one of them out")
        if PARTS[0] not in typed:
            values[PARTS[0]] = total // known
    if TOTAL in typed and PARTS[1] not in typed:
        values.pop(PARTS[1], None)
    steps = values.get("max_steps", -1)
    for name in {"logging_steps", "eval_steps", "save_steps"} - set(typed):
        if (values.get(name) or 0) > steps > 0:
            values[name] = -(-steps // 5)
    return values
