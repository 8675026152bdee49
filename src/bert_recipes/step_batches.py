"""Which samples a process takes at each micro-batch of a run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Protocol

from torch.utils.data import Sampler


class Order(Protocol):
    """The samples of a whole run, one after the other."""

    def __len__(self) -> int:
        """Samples of the run."""

    def keys(self, begin: int, end: int) -> list[Any]:
        """What `dataset[key]` takes, for the samples `begin` to `end` (excluded)."""


class StepBatches(Sampler[list[Any]]):
    """The micro-batches of one process: step s of a run takes the samples [s * G, (s + 1) * G) of its order.

    They do not depend on how the global batch G is split over processes and micro-batches, and any of them is found at once:
    a run that goes on at step 500,000 starts as fast as one that goes on at step 5.

    Args:
        order: Its length is a multiple of the global batch.
        batch_size: Samples of a micro-batch.
        num_processes: That share each micro-batch of the run.
        process_index: Of this one.
        first: Micro-batch of the run with which the order begins.
        skipped: Micro-batches of this process that are done. They are yielded as empty lists, for the Trainer, which steps
            over as many, to throw away.
    """

    def __init__(
        self,
        order: Order,
        *,
        batch_size: int,
        num_processes: int = 1,
        process_index: int = 0,
        first: int = 0,
        skipped: int = 0,
    ) -> None:
        self.order = order
        self.batch_size = batch_size
        self.num_processes = num_processes
        self.process_index = process_index
        self.first = first
        self.skipped = max(first, skipped)

    def __len__(self) -> int:
        return self.first + len(self.order) // (self.batch_size * self.num_processes)

    def __iter__(self) -> Iterator[list[Any]]:
        yield from itertools.repeat([], self.skipped)
        for number in range(self.skipped, len(self)):
            begin = ((number - self.first) * self.num_processes + self.process_index) * self.batch_size
            yield self.order.keys(begin, begin + self.batch_size)
