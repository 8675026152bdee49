"""What every fuzz shares: how many inputs, what an error must look like, how long one may take,
what was met.
"""

import contextlib
import io
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from bert_recipes.errors import InputError, run_cli


SECONDS_AN_INPUT = 30
LONGEST_MESSAGE = 4000


def numbers(fast: int, slow: int) -> pytest.MarkDecorator:
    """How many inputs the fast tests take, and the longer proofs."""
    return pytest.mark.parametrize(
        "num_examples", [fast, pytest.param(slow, marks=pytest.mark.slow)]
    )


class Outcomes:
    """Counts what became of the inputs."""

    def __init__(self) -> None:
        self.num_accepted = 0
        self.refused: Counter[str] = Counter()

    def add(self, message: str | None) -> None:
        """Note one input; None: it was accepted."""
        if message is None:
            self.num_accepted += 1
        else:
            self.refused[kind_of(message)] += 1

    def check(self, num_examples: int, share: float = 0.15, kinds: int = 10) -> None:
        """Tell what was met; a fuzz that meets only one side of it tests nothing.

        Args:
            num_examples: How many inputs there were to be; of a few, few kinds are expected.
            share: Of many, at least so large a part is accepted, and refused.
            kinds: Of many, at least so many kinds of refusal are met.
        """
        least_share, least_kinds = (share, kinds) if num_examples >= 200 else (0.05, min(3, kinds))
        num_refused = self.refused.total()
        num_inputs = self.num_accepted + num_refused
        accepted = f"{self.num_accepted} accepted"
        print(f"\n{num_inputs} inputs: {accepted}, {num_refused} refused:")  # noqa: T201
        for kind, number in self.refused.most_common():
            print(f"{number:6} {kind}")  # noqa: T201
        assert num_inputs >= num_examples
        assert min(self.num_accepted, num_refused) >= least_share * num_examples
        assert len(self.refused) >= least_kinds


def kind_of(message: str) -> str:
    """A message without what differs from input to input."""
    text = re.sub(r"'[^']*'|\"[^\"]*\"|/\S+", "_", message)
    text = re.sub(r"\([^)]*\)?", "()", text)
    return re.sub(r"[\d,]*\d", "#", text)[:70]


def fuzz(strategy: Any, num_examples: int, check: Callable[[Any], None]) -> None:
    """Give `check` so many inputs, drawn by Hypothesis, which shrinks one that fails and prints it.

    They are the same ones whenever the same modules are loaded: it takes some numbers from their
    sources.
    """
    profile = settings(
        max_examples=num_examples,
        derandomize=True,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        deadline=None,  # `at_most` sees to it
        suppress_health_check=list(HealthCheck),
    )

    def checked(drawn: Any) -> None:
        with at_most(SECONDS_AN_INPUT):
            check(drawn)

    profile(given(strategy)(checked))()


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fail if the block takes longer."""

    def stop(signal_number: int, frame: Any) -> None:
        raise AssertionError(f"an input took more than {seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def refusal_of(action: Callable[[], Any], *, may_name_paths: bool = False) -> str | None:
    """Run what a script does; None if it ends well, else the line that the user sees.

    Args:
        action: What to do.
        may_name_paths: The input has paths of its own, which the system may refuse and which may
            hold line breaks.

    Raises:
        Exception: Whatever is no `InputError`.
    """
    expected = (InputError, OSError) if may_name_paths else InputError
    try:
        action()
    except expected as error:
        refusal = error
    else:
        return None
    assert may_name_paths or len(str(refusal).splitlines()) == 1
    line = _printed(refusal)
    assert may_name_paths or len(line) < LONGEST_MESSAGE
    return line


def _printed(error: Exception) -> str:
    """What `run_cli` prints."""

    def main() -> None:
        raise error

    stream = io.StringIO()
    with contextlib.redirect_stderr(stream), pytest.raises(SystemExit) as caught:
        run_cli(main)
    (line,) = stream.getvalue().splitlines()
    assert caught.value.code == 1
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


@contextlib.contextmanager
def empty_folder(folder: Path) -> Iterator[Path]:
    """A folder for one input, to work in; Hypothesis itself needs one that stays."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with contextlib.chdir(folder):
        yield folder
    shutil.rmtree(folder)
