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
