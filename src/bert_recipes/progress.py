"""How far a long piece of work is: a bar on a terminal, lines in a log, so that no minutes pass in
silence.
"""

import sys
from typing import Any

from tqdm import tqdm


# Our choice, in seconds: rarely enough for a log file.
SECONDS_BETWEEN_LINES = 10.0
LINE_FORMAT = "{desc}: {n_fmt} of {total_fmt} {unit} [{elapsed}<{remaining}]"
LINE_FORMAT_WITHOUT_TOTAL = "{desc}: {n_fmt} {unit} [{elapsed}]"


class _Lines:
    """What tqdm draws over and over in one place, as lines of stderr."""

    def write(self, text: str) -> None:
        if line := " ".join(text.split()):
            sys.stderr.write(f"{line}\n")

    def flush(self) -> None:
        sys.stderr.flush()


class Progress(tqdm):
    """`tqdm`; where stderr is no terminal, a line every ten seconds instead of a bar."""

    def __init__(self, iterable: Any = None, total: float | None = None, **settings: Any) -> None:
        if total is None and hasattr(iterable, "__len__"):
            total = len(iterable)
        if not sys.stderr.isatty():
            # Nothing is said of what is done within the first of them.
            settings |= {"file": _Lines(), "leave": False, "miniters": 1}
            settings |= {"mininterval": SECONDS_BETWEEN_LINES, "delay": SECONDS_BETWEEN_LINES}
            settings["bar_format"] = LINE_FORMAT_WITHOUT_TOTAL if total is None else LINE_FORMAT
        super().__init__(iterable, total=total, **settings)
