"""Pushes beside the training, one after the other."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from traceback import format_exception

from bert_recipes.hub.client import redact


logger = logging.getLogger(__name__)


class BackgroundPushes:
    """Jobs that a thread does in their order.

    The thread is a daemon: a run that a signal ends does not wait for an upload, which the next one takes up.
    """

    def __init__(self) -> None:
        self._jobs: queue.Queue[Callable[[], None]] = queue.Queue()
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a job is not done."""
        return self._jobs.unfinished_tasks > 0

    def add(self, job: Callable[[], None]) -> None:
        """Do a job after those before it.

        Args:
            job: Raises nothing.
        """
        self._jobs.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="push", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Until all jobs are done."""
        if self.is_busy:
            logger.info("waiting for the push of a checkpoint")
        self._jobs.join()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                job()
            except Exception as error:  # a bug of ours, which shall end no run
                logger.error("a push failed: %s", redact("".join(format_exception(error))))
            finally:
                self._jobs.task_done()
