"""Reports of users' mistakes: one clear line, exit code not 0, no traceback."""

import difflib
import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn


# What torch.save says of a file that cannot be written; it passes the reason on in some versions
# only.
_TORCH_WRITE_ERRORS = (
    "no space left",
    "os error",
    "file write failed",
    "pytorchstreamwriter failed",
    "unexpected pos",
)


class InputError(ValueError):
    """A mistake in what the user gave: a file, a key, a flag, a value.

    The message is one line that says what is wrong, where (file and line, or key), what was given,
    what is allowed and how to mend it. Programming errors are never reported with this class, so
    that they keep their traceback.
    """

    exit_code = 1


class PushError(InputError):
    """An upload to the Hub that failed for good, of a model that is complete on the disk."""

    exit_code = 3


class Interrupted(Exception):
    """A signal asked a run to end, and it did so in good order.

    The exit code is 128 + the signal's number.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def is_main_process() -> bool:
    """Return whether this process is the only one of a run, or the first of several."""
    return os.environ.get("RANK", "0") == "0"


def run_cli(main: Callable[[], None]) -> NoReturn:
    """Run a script's ``main`` and end the process with its exit code.

    ======================  =========  ==========================================
    what ``main`` does      exit code  on stderr
    ======================  =========  ==========================================
    returns                 0          nothing
    `InputError`            1          ``error: ...``, one line
    `PushError`             3          ``error: ...``, one line: all is done but the push
    `OSError`               1          ``error: FILE: reason``, one line
    a full GPU              1          ``error: ...``, one line, with what to lower
    `Interrupted`           143, 130   its message, one line
    Ctrl-C                  130        ``interrupted``
    reader of stdout gone   141        nothing (``script | head`` is no mistake)
    any other exception     1          its traceback
    ======================  =========  ==========================================

    Of several processes each prints its `InputError`, those with a `RANK` other than 0 with it.
    """
    try:
        main()
        # A closed pipe shows only when the buffer is written: here, not in the interpreter's
        # shutdown.
        sys.stdout.flush()
        _leave_together()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(130)
    except Exception as error:
        # Torch's handler would raise once more where the message is being written.
        _stop_watching_workers()
        _report(error)
    finally:
        end_workers()
    sys.exit(0)


def _report(error: Exception) -> NoReturn:
    """Print the one line of an exception and exit, or raise it again: a bug shows its traceback."""
    if isinstance(error, InputError):
        message = _message_of(error)
        rank = os.environ.get("RANK", "0")
        if rank != "0":
            message = f"process {rank}: {message}"
        _fail(message, error.exit_code)
    if _is_full_gpu(error):
        _fail(
            f"{first_line(error)}; give a smaller --per_device_train_batch_size, with "
            "--global_train_batch_size as the batch was before: the result is the same; or a "
            "smaller batch where nothing is trained"
        )
    if isinstance(error, Interrupted):
        _leave_together()
        if is_main_process():
            print(error, file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)
    if isinstance(error, BrokenPipeError) and _is_reader_gone():
        # The interpreter flushes stdout once more on its way out and would print a warning: give it
        # a place to write to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    # A connection to a data worker or a tracker that is gone is no mistake of the user.
    is_lost_process = isinstance(error, BrokenPipeError | ConnectionResetError)
    if isinstance(error, OSError) and not is_lost_process:
        _fail(describe_os_error(error))
    raise error


def _is_full_gpu(error: Exception) -> bool:
    """Return whether torch ran out of a GPU's memory."""
    torch = sys.modules.get("torch")  # this module imports no heavy package
    return torch is not None and isinstance(error, torch.OutOfMemoryError)


def _message_of(error: InputError) -> str:
    """Return its line, without the traceback that torch puts before that of a data worker."""
    message = str(error)
    if not message.startswith("Caught "):
        return message
    _, _, line = message.rpartition("bert_recipes.errors.InputError: ")
    return line


def _is_reader_gone() -> bool:
    """Return whether nobody reads stdout any longer."""
    try:
        # What was not written before is lost: only another write shows it.
        sys.stdout.write("\n")
        sys.stdout.flush()
    except BrokenPipeError:
        return True
    return False


def exit_on_sigterm() -> None:
    """Let a polite end (kill, a cluster's time limit) clean up like Ctrl-C, with exit code 143."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def _fail(message: str, exit_code: int = 1) -> NoReturn:
    # Libraries' messages may run over several lines; a log reader and a test want exactly one.
    print("error: " + " ".join(message.split()), file=sys.stderr)  # noqa: T201
    sys.exit(exit_code)


def _leave_together() -> None:
    """End the group of a run's processes before they end.

    A thread of it may abort a process in its last moments.
    """
    distributed = sys.modules.get("torch.distributed")  # this module imports no heavy package
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    # What is wrapped holds on to the group.
    gc.collect()
    distributed.barrier()
    distributed.destroy_process_group()


def describe_os_error(error: OSError) -> str:
    """Return ``FILE: reason``, or the error's text where a library names no file."""
    if error.strerror is None:
        return str(error) or type(error).__name__
    names = []
    for name in (error.filename, error.filename2):
        if name is not None:
            names.append(os.fsdecode(name) if isinstance(name, bytes) else str(name))
    return f"{' -> '.join(names)}: {error.strerror}" if names else error.strerror


@contextmanager
def saving(path: str | os.PathLike[str]) -> Iterator[None]:
    """Report in one line that something cannot be written, whatever the library raises for it.

    A full disk is an `OSError` for Python, a ``SafetensorError`` for safetensors, a `RuntimeError`
    for ``torch.save`` and a bare `Exception` for tokenizers. Every other exception passes
    unchanged.
    """
    try:
        yield
    except Exception as error:
        reason = _write_error(error)
        if reason is None:
            raise
        name = os.fspath(path)
        reason = " ".join(reason.removeprefix(f"{name}: ").split())
        raise InputError(f"{name}: cannot be written: {reason}") from error


def _write_error(error: Exception) -> str | None:
    """Return why something could not be written; None for an exception about something else."""
    if isinstance(error, OSError):
        # A reader of stdout that is gone is no write error, and one without a number comes from no
        # system call.
        is_write_error = error.errno is not None and not isinstance(error, ConnectionError)
        return describe_os_error(error) if is_write_error else None
    signs: tuple[str, ...] = ()
    if isinstance(error, RuntimeError):
        signs = _TORCH_WRITE_ERRORS
    # By name: this module imports no heavy package.
    elif type(error) is Exception or type(error).__name__ == "SafetensorError":
        signs = ("os error", "i/o error")
    text = str(error)
    return text if any(sign in text.lower() for sign in signs) else None


def _stop_watching_workers() -> None:
    """Keep torch's handler from raising for each data worker that ends from now on."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def end_workers() -> None:
    """Kill the data workers that an exception's frames still hold.

    They ignore SIGTERM, and Python would wait for them forever.
    """
    workers = [child for child in multiprocessing.active_children() if child.daemon]
    if workers:
        _stop_watching_workers()
    for worker in workers:
        worker.kill()


# Words that messages have in common


def did_you_mean(
    name: str, allowed: Iterable[str], *, cutoff: float = 0.5, shown: Callable[[str], str] = str
) -> str:
    """Return "did you mean X? ", X being the allowed name that is most like an unknown one.

    X is written as `shown` has it; "" where none is like it.

    Example:
        >>> did_you_mean("acuracy", ["accuracy", "f1"])
        'did you mean accuracy? '
    """
    matches = difflib.get_close_matches(name, list(allowed), n=1, cutoff=cutoff)
    return f"did you mean {shown(matches[0])}? " if matches else ""


def shorten(items: Sequence[object], most: int = 10) -> str:
    """Return a list in one line, of a longer one the first `most` items and three dots.

    Example:
        >>> shorten([1, 2, 3], most=2)
        '1, 2, ...'
    """
    words = [str(item) for item in items[:most]]
    if len(items) > most:
        words.append("...")
    return ", ".join(words)


def first_line(error: BaseException) -> str:
    """Return the first line of what a library says, its error's name where it says nothing."""
    return (str(error) or type(error).__name__).splitlines()[0]
