"""Batch sizes and intervals of a file that agree with the flags of the command line."""

import math
from collections.abc import Collection, Mapping
from typing import Any

from bert_recipes.config import warn_in_main_process
from bert_recipes.errors import InputError


# Micro-batch x accumulation x processes = global batch.
MICRO_BATCH = "per_device_train_batch_size"
ACCUMULATION = "gradient_accumulation_steps"
BATCH_FACTORS = (MICRO_BATCH, ACCUMULATION)
GLOBAL_BATCH = "global_train_batch_size"
INTERVALS = ("logging_steps", "eval_steps", "save_steps")


def reconcile_batch_and_intervals(
    values: Mapping[str, Any], typed: Collection[str], defaults: Mapping[str, Any], processes: int
) -> dict[str, Any]:
    """Make the settings of a file agree with the flags.

    Typed batch sizes make the global batch, unless that was typed too. Intervals of a file that are
    longer than the run become a fifth of it: the run would never be logged, measured or saved.

    Args:
        values: The values of the file and the command line.
        typed: The names of the fields on the command line.
        defaults: The defaults of `BATCH_FACTORS` and `GLOBAL_BATCH`.
        processes: The number of processes of the run.
    """
    reconciled = dict(values)
    _reconcile_batch(reconciled, typed, defaults, processes)
    _shorten_intervals(reconciled, typed)
    return reconciled


def _shorten_intervals(values: dict[str, Any], typed: Collection[str]) -> None:
    num_steps = values.get("max_steps", -1)
    if num_steps <= 0:
        return
    too_long = []
    for name in INTERVALS:
        interval = values.get(name) or 0
        if name not in typed and interval > num_steps:
            too_long.append(name)
    if not too_long:
        return
    for name in too_long:
        values[name] = math.ceil(num_steps / 5)
    # With load_best_model_at_end each checkpoint must be measured.
    if "save_steps" in too_long and "eval_steps" not in too_long:
        values["save_steps"] = values.get("eval_steps") or values["save_steps"]
    warn_in_main_process(
        "the file's %s exceed this %d-step run; shortened to %s",
        ", ".join(too_long),
        num_steps,
        ", ".join(str(values[name]) for name in too_long),
    )


def _reconcile_batch(
    values: dict[str, Any], typed: Collection[str], defaults: Mapping[str, Any], processes: int
) -> None:
    """Compute the global batch from typed factors, or a missing factor from the global batch."""
    factors = {name: values.get(name, defaults[name]) for name in BATCH_FACTORS}
    typed_factors = {name: values[name] for name in BATCH_FACTORS if name in typed}
    global_batch = values.get(GLOBAL_BATCH, defaults[GLOBAL_BATCH])
    if GLOBAL_BATCH in typed and ACCUMULATION not in typed:
        values.pop(ACCUMULATION, None)
    if not typed_factors:
        return

    typed_flags = [f"--{name} {value}" for name, value in typed_factors.items()]
    flags = " x ".join([*typed_flags, f"{processes} processes"])
    product = processes * math.prod(factors.values())
    if GLOBAL_BATCH not in typed and product > 0:
        values[GLOBAL_BATCH] = product
        if global_batch not in (None, product):
            message = (
                "%s: a step takes %d examples instead of %d; give --global_train_batch_size "
                "%d too to keep these"
            )
            warn_in_main_process(message, flags, product, global_batch, global_batch)
        return

    typed_product = processes * math.prod(typed_factors.values())
    if not global_batch or typed_product <= 0:
        return
    has_all_factors = len(typed_factors) == len(BATCH_FACTORS)
    if global_batch % typed_product or (has_all_factors and global_batch != typed_product):
        raise InputError(
            f"--{GLOBAL_BATCH} {global_batch} does not agree with {flags} ({typed_product}); "
            "leave one of them out"
        )
    if MICRO_BATCH not in typed:
        values[MICRO_BATCH] = global_batch // typed_product
