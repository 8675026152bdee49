"""Examples a second of several models that take turns, on the same inputs and the same threads."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bert_recipes.exporting.comparison import RealInputs
from bert_recipes.exporting.runners import Batch, Runner


# Inputs of a turn that are run one at a time.
ALONE_EXAMPLES = 32


@dataclass(frozen=True)
class Speed:
    """What one model takes.

    Attributes:
        examples_per_second: In batches, of each round.
        milliseconds_alone: Of an input that is run alone, the median of each round.
    """

    examples_per_second: list[float]
    milliseconds_alone: list[float]


@dataclass(frozen=True)
class Speeds:
    """All of them.

    Attributes:
        of: Name -> what it takes.
        examples: Inputs of a turn.
        tokens: Their real tokens.
        load_average: Of the system over the last minute, before the first turn; None where the system has none.
    """

    of: dict[str, Speed]
    examples: int
    tokens: int
    load_average: float | None


def take_turns(
    runners: Mapping[str, Runner], inputs: RealInputs, batch_size: int, max_examples: int, rounds: int
) -> Speeds:
    """Run all models over the same batches, one after the other, several times.

    In each round another one begins. A turn starts with a batch that is not counted.

    Args:
        runners: Name -> model.
        inputs: Batches are taken from them at equal distances, so that all lengths are there.
        batch_size: Inputs of a batch.
        max_examples: Inputs of a turn, at least one batch.
        rounds: Turns of each.
    """
    batches = _choose(inputs, batch_size, max_examples)
    alone = _one_by_one(batches)
    examples = sum(len(batch["input_ids"]) for batch in batches)
    found = {name: Speed([], []) for name in runners}
    names = list(runners)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            runners[name](batches[0])
            seconds = sum(_times(runners[name], batches))
            found[name].examples_per_second.append(examples / seconds)
            runners[name](alone[0])
            found[name].milliseconds_alone.append(1000 * statistics.median(_times(runners[name], alone)))
    tokens = sum(int(batch["attention_mask"].sum()) for batch in batches)
    return Speeds(found, examples, tokens, None if load is None else round(load, 2))


def _times(runner: Runner, batches: Sequence[Batch]) -> list[float]:
    seconds = []
    for batch in batches:
        start = time.perf_counter()
        runner(batch)
        seconds.append(time.perf_counter() - start)
    return seconds


def _choose(inputs: RealInputs, batch_size: int, max_examples: int) -> list[Batch]:
    batches = [batch for _, batch in inputs.batches(min(batch_size, max_examples))]
    wanted = max(1, min(len(batches), max_examples // batch_size))
    return [batches[number * len(batches) // wanted] for number in range(wanted)]


def _one_by_one(batches: Sequence[Batch]) -> list[Batch]:
    """Single inputs without their pads, from all batches in turn."""
    alone: list[Batch] = []
    for number in range(max(len(batch["input_ids"]) for batch in batches)):
        for batch in batches:
            if number < len(batch["input_ids"]) and len(alone) < ALONE_EXAMPLES:
                length = int(batch["attention_mask"][number].sum(-1).max())
                alone.append(
                    {
                        name: batch[name][number : number + 1, ..., :length].contiguous()
                        for name in ("input_ids", "attention_mask", "token_type_ids")
                    }
                )
    return alone
