"""What one process finds out for all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from accelerate.utils import broadcast_object_list
from transformers import TrainingArguments

from bert_recipes.errors import InputError, describe_os_error


Answer = TypeVar("Answer")
# Processes give each other up after `ddp_timeout` seconds (1,800).
_SECONDS_BETWEEN_SIGNS = 20.0


def ask_main_process(args: TrainingArguments, question: Callable[[], Answer]) -> Answer:
    """Let the main process find something out, so that all processes do the same and the world is asked once.

    Args:
        args: Of the run.
        question: Called in the main process only; its answer can be pickled.

    Returns:
        The answer, in every process.

    Raises:
        InputError: What the question raised, in every process; an `OSError` becomes one.
    """
    found: list[Any] = [None, None]
    if args.process_index == 0:
        try:
            found[0] = question()
        except InputError as error:
            found[1] = error
        except OSError as error:
            found[1] = InputError(describe_os_error(error))
    if args.world_size > 1:
        broadcast_object_list(found)
    if found[1] is not None:
        raise found[1]
    answer: Answer = found[0]
    return answer


def ask_main_process_for_long(args: TrainingArguments, question: Callable[[], Answer]) -> Answer:
    """As `ask_main_process`, for what may take longer than processes wait for each other, such as an upload.

    Args:
        args: Of the run.
        question: Called in a thread of the main process, which gives the others a sign of life meanwhile. A signal that ends the
            process does not wait for it.

    Raises:
        InputError: As there.
    """
    if args.world_size == 1:
        return ask_main_process(args, question)
    answer: Future[Answer] = Future()
    if args.process_index == 0:
        # A daemon, which executors' threads are not: Python would wait for those at its end.
        threading.Thread(target=_answer, args=(answer, question), name="question", daemon=True).start()
    is_done = [False]
    while not is_done[0]:
        if args.process_index == 0:
            is_done = [bool(wait([answer], _SECONDS_BETWEEN_SIGNS).done)]
        broadcast_object_list(is_done)
    return ask_main_process(args, answer.result)


def _answer(answer: Future[Answer], question: Callable[[], Answer]) -> None:
    """In a thread: what a question comes to, or raises."""
    try:
        answer.set_result(question())
    except BaseException as error:  # raised again where it is asked for
        answer.set_exception(error)
