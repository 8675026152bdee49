"""The same work on many items, in several processes, with its results in order."""

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from typing import Any, TypeVar

from bert_recipes.errors import InputError


Item = TypeVar("Item")
Result = TypeVar("Result")


def run_in_order(
    function: Callable[[Item], Result], items: Iterable[Item], num_processes: int
) -> Iterator[Result]:
    """Yield the result of each item, computed in `num_processes` processes (1: in this one).

    At most two items a process are under way, so memory does not grow with their number.
    """
    if num_processes <= 1:
        yield from map(function, items)
        return

    # spawn is the same on every system, and safe beside threads of the libraries that are loaded
    # here (torch, CUDA).
    pool = ProcessPoolExecutor(
        num_processes,
        mp_context=get_context("spawn"),
        initializer=_start_worker,
        initargs=(function,),
    )
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(_run_in_worker, item))
            if len(waiting) >= 2 * num_processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise InputError(
            f"one of the {num_processes} processes was killed, probably for lack of memory; "
            "set num_processes (of training: data_num_processes) lower or free memory, and run "
            "again"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


# Sent once to each worker, not with every item: a tokenizer, or the maps of a store, are large.
_worker_function: Callable[[Any], Any]


def _start_worker(function: Callable[[Any], Any]) -> None:
    global _worker_function
    _worker_function = function
    follow_parent()


def _run_in_worker(item: Any) -> Any:
    return _worker_function(item)


def follow_parent() -> None:
    """Leave Ctrl-C to the main process, and end with it even if it is killed.

    Called in a process that it started.
    """

    def end_with(parent: Any) -> None:
        parent.join()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with, args=(parent_process(),), daemon=True).start()


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
