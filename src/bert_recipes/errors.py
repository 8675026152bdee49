"""How users' mistakes are reported: one clear line, exit code not 0, no traceback."""

import gc
import multiprocessing
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn


# Long enough for the main process to meet the same mistake: it prints it, and the launcher then ends the others.
_SECONDS_FOR_MAIN_PROCESS = 10.0
# What torch.save says of a file that cannot be written; it passes the reason on in some versions only.
_TORCH_WRITE_ERRORS = (
    "no space left",
    "os error",
    "file write failed",
    "pytorchstreamwriter failed",
    "unexpected pos",
)


class InputError(ValueError):
    """A mistake in what the user gave: a file, a key, a flag, a value.

    The message is one line that says what is wrong, where (file and line, or key), what was given, what is allowed
    and how to mend it. Programming errors are never reported with this class, so that they keep their traceback.

    Example:
        >>> raise InputError("data/a.txt, line 3: not UTF-8 (byte 0xe9); convert the file or pass --encoding_errors replace")
    """

    exit_code = 1


class PushError(InputError):
    """An upload to the Hub that failed for good, of a model that is whole on the disk."""

    exit_code = 3


class Interrupted(Exception):
    """A signal asked a run to end, and it did so in good order.

    Args:
        message: What was done, and how to go on.
        exit_code: 128 + the number of the signal.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def run_cli(main: Callable[[], None]) -> NoReturn:
    """Run a script's ``main`` and end the process with its exit code.

    ======================  =========  ==========================================
    what ``main`` does      exit code  on stderr
    ======================  =========  ==========================================
    returns                 0          nothing
    `InputError`            1          ``error: ...``, one line
    `PushError`             3          ``error: ...``, one line: all is done but the push
    `OSError`               1          ``error: FILE: reason``, one line
    `Interrupted`           143, 130   what it says, one line
    Ctrl-C                  130        ``interrupted``
    a process is lost       1          ``error: ...``, one line (`describe_lost_process`)
    reader of stdout gone   141        nothing (``script | head`` is no mistake)
    any other exception     1          its traceback: that is a bug of ours
    ======================  =========  ==========================================

    Of several processes all meet the same `InputError`, and one line is enough: those with a `RANK` other than 0 leave
    it to the main process. A mistake that only they have met is printed after ten seconds, if nobody has ended them.

    Args:
        main: the script's entry point; takes nothing, returns nothing.

    Example:
        >>> if __name__ == "__main__":
        ...     run_cli(main)
    """
    try:
        _run(main)
    except InputError as error:
        _fail(_wait_for_main_process() + str(error), error.exit_code)
    except Interrupted as error:
        _leave_together()
        if os.environ.get("RANK", "0") == "0":
            print(error, file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(130)
    except BrokenPipeError:
        # The interpreter flushes stdout once more on its way out and would print a warning: give it a place to write to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        _fail(describe_os_error(error))
    except _LostProcess as error:
        _fail(str(error))
    finally:
        end_workers()
    sys.exit(0)


class _LostProcess(Exception):
    """Another process of the run is gone; the message is one line."""


def _run(main: Callable[[], None]) -> None:
    try:
        main()
        # A closed pipe shows only when the buffer is written: here, not in the interpreter's shutdown.
        sys.stdout.flush()
        _leave_together()
    except (InputError, Interrupted, OSError, EOFError, RuntimeError) as error:
        # Torch's handler would raise once more where the message is being written.
        stop_watching_workers()
        lost = describe_lost_process(error)
        if lost is None:
            raise
        raise _LostProcess(lost) from error


def _leave_together() -> None:
    """Processes of a run end their group before they end: a thread of it may abort the process in its last moments."""
    distributed = sys.modules.get("torch.distributed")  # this module imports no heavy package
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    # What is wrapped holds on to the group.
    gc.collect()
    distributed.barrier()
    distributed.destroy_process_group()


def describe_os_error(error: OSError) -> str:
    """Say in one line which file an operating-system error is about.

    Args:
        error: any `OSError`; libraries also raise it with a text of their own and without a file name.

    Returns:
        ``FILE: reason``, or the error's own text where no file name is known.
    """
    if error.strerror is None:
        return str(error) or type(error).__name__
    names = [
        os.fsdecode(name) if isinstance(name, (str, bytes)) else str(name)
        for name in (error.filename, error.filename2)
        if name is not None
    ]
    return f"{' -> '.join(names)}: {error.strerror}" if names else error.strerror


def _wait_for_main_process() -> str:
    """In the main process nothing; in another one wait for the launcher's signal, then say who speaks."""
    rank = os.environ.get("RANK", "0")
    if rank == "0":
        return ""
    time.sleep(_SECONDS_FOR_MAIN_PROCESS)
    return f"process {rank}: "


class saving:
    """Report in one line that something cannot be written, whatever the library raises for it.

    A full disk is an `OSError` for Python, a ``SafetensorError`` for safetensors, a `RuntimeError` for ``torch.save`` and
    a bare `Exception` for tokenizers. Every other exception passes unchanged.

    Args:
        path: what is being written, for the message.

    Example:
        >>> with saving(folder):  # doctest: +SKIP
        ...     model.save_pretrained(folder)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        reason = None if error is None else _write_error(error)
        if reason is not None:
            reason = reason.removeprefix(f"{self.path}: ")
            raise InputError(f"{self.path}: cannot be written: {' '.join(reason.split())}") from error


def _write_error(error: BaseException) -> str | None:
    """Say why something could not be written; None for an exception that is about something else."""
    text = str(error)
    if isinstance(error, OSError):
        # A reader of stdout that is gone is no write error, and one without a number comes from no system call.
        return None if error.errno is None or isinstance(error, ConnectionError) else describe_os_error(error)
    if type(error).__name__ == "SafetensorError":  # by name: this module imports no heavy package
        return text if "os error" in text.lower() or "i/o error" in text.lower() else None
    if isinstance(error, RuntimeError):
        return text if any(sign in text.lower() for sign in _TORCH_WRITE_ERRORS) else None
    return text if type(error) is Exception and "os error" in text.lower() else None


def _fail(message: str, exit_code: int = 1) -> NoReturn:
    # Libraries' messages may run over several lines; a log reader and a test want exactly one.
    print("error: " + " ".join(message.split()), file=sys.stderr)  # noqa: T201
    sys.exit(exit_code)


# What torch says of a process that it waits for in vain: gloo, NCCL, the loader of data.
_LOST_PEER = (
    "connection closed by peer",
    "connection reset by peer",
    "socket closed",
    "broken pipe",
    "remote process exited",
)


_LATE_PEER = ("timed out waiting", "watchdog caught collective operation timeout", "timeout after", "wait timeout")


_LATE_WORKER = re.compile(r"DataLoader timed out after")


_LOST_WORKER = re.compile(
    r"DataLoader worker \(pid\S* [\d, ]+\) (exited unexpectedly|is killed by signal)|received 0 items of ancillary data"
)


_GO_ON = "the checkpoints before are whole, the same command goes on"


def describe_lost_process(error: BaseException) -> str | None:
    """Say in one line that another process of the run is gone; None for an error that is about something else.

    Args:
        error: What torch raises where it waits for other processes, or for the workers that read the data.
    """
    text = " ".join(str(error).split()) or type(error).__name__
    if _is_of_worker(error) or (isinstance(error, RuntimeError) and _LOST_WORKER.search(text)):
        return (
            f"a data worker has ended ({text[:120]}), most often because memory ran out; {_GO_ON}; with less memory: fewer "
            "--dataloader_num_workers"
        )
    if not isinstance(error, RuntimeError):
        return None
    if _LATE_WORKER.search(text):
        return (
            f"a data worker did not answer within --ddp_timeout seconds ({text[:120]}); what it could not do is above, most "
            f"often that shared memory (/dev/shm) is full: fewer --dataloader_num_workers; {_GO_ON}"
        )
    said = text.lower()
    if any(sign in said for sign in _LOST_PEER):
        return (
            f"another process of the run has ended ({text[:120]}); its own message is above, if it had one; {_GO_ON}"
        )
    if any(sign in said for sign in _LATE_PEER):
        return f"another process of the run did not answer within --ddp_timeout seconds ({text[:120]}); {_GO_ON}"
    return None


def _is_of_worker(error: BaseException) -> bool:
    """Whether a worker ended while it was handing a batch over: the connection breaks before torch knows of the end."""
    if not isinstance(error, ConnectionError | EOFError | FileNotFoundError):
        return False
    # Where `torch.utils.data` takes a batch from a worker; what a worker itself raises comes from elsewhere.
    return any(frame.f_code.co_name == "_try_get_data" for frame, _ in traceback.walk_tb(error.__traceback__))


def stop_watching_workers() -> None:
    """Keep torch's handler from raising for each data worker that ends from now on, wherever the program is."""
    if hasattr(signal, "SIGCHLD"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def end_workers() -> None:
    """Kill the data workers that an exception's frames still hold: they ignore SIGTERM, and Python would wait for them for ever."""
    workers = [child for child in multiprocessing.active_children() if child.daemon]
    if workers:
        stop_watching_workers()
    for worker in workers:
        worker.kill()
