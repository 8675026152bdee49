"""The progress of long work: a bar on a terminal, lines in a log."""

import sys
from typing import Any

from tqdm import tqdm


# Our choice, in seconds: rarely enough for a log file.
SECONDS_BETWEEN_LINES = 10.0
LINE_FORMAT = "{desc}: {n_fmt} of {total_fmt} {unit} [{elapsed}<{remaining}]"
LINE_FORMAT_WITHOUT_TOTAL = "{desc}: {n_fmt} {unit} [{elapsed}]"


class _Lines:
    """A file for tqdm: what it draws over and over in one place becomes lines of stderr."""

    def write(self, text: str) -> None:
        words = text.split()
        if words:
            sys.stderr.write(f"{' '.join(words)}\n")

    def flush(self) -> None:
        sys.stderr.flush()


class Progress(tqdm):
    """`tqdm`; where stderr is no terminal, a line every ten seconds instead of a bar."""

    def __init__(self, iterable: Any = None, total: float | None = None, **settings: Any) -> None:
        if total is None and hasattr(iterable, "__len__"):
            total = len(iterable)
        if not sys.stderr.isatty():
            settings.update(
                file=_Lines(),
                leave=False,
                miniters=1,
                mininterval=SECONDS_BETWEEN_LINES,
                delay=SECONDS_BETWEEN_LINES,  # work that is done within it needs no line
                bar_format=LINE_FORMAT_WITHOUT_TOTAL if total is None else LINE_FORMAT,
            )
        super().__init__(iterable, total=total, **settings)
