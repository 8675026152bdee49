"""How users' mistakes are reported: one clear line, exit code not 0, no traceback."""

import os
import sys
from collections.abc import Callable
from typing import NoReturn


class InputError(ValueError):
    """A mistake in what the user gave: a file, a key, a flag, a value.

    The message is one line that says what is wrong, where (file and line, or key), what was given, what is allowed
    and how to mend it. Programming errors are never reported with this class, so that they keep their traceback.

    Example:
        >>> raise InputError("data/a.txt, line 3: not UTF-8 (byte 0xe9); convert the file or pass --encoding_errors replace")
    """


def run_cli(main: Callable[[], None]) -> NoReturn:
    """Run a script's ``main`` and end the process with its exit code.

    ======================  =========  ==========================================
    what ``main`` does      exit code  on stderr
    ======================  =========  ==========================================
    returns                 0          nothing
    `InputError`            1          ``error: ...``, one line
    `OSError`               1          ``error: FILE: reason``, one line
    Ctrl-C                  130        ``interrupted``
    reader of stdout gone   141        nothing (``script | head`` is no mistake)
    any other exception     1          its traceback: that is a bug of ours
    ======================  =========  ==========================================

    Args:
        main: the script's entry point; takes nothing, returns nothing.

    Raises:
        SystemExit: always, with the code of the table, unless ``main`` raises an exception of the last row.

    Example:
        >>> if __name__ == "__main__":
        ...     run_cli(main)
    """
    try:
        main()
        # A closed pipe shows only when the buffer is written: here, not in the interpreter's shutdown.
        sys.stdout.flush()
    except InputError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(130)
    except BrokenPipeError:
        # The interpreter flushes stdout once more on its way out and would print a warning: give it a place to write to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        _fail(describe_os_error(error))
    sys.exit(0)


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


def _fail(message: str) -> NoReturn:
    # Libraries' messages may run over several lines; a log reader and a test want exactly one.
    print("error: " + " ".join(message.split()), file=sys.stderr)  # noqa: T201
    sys.exit(1)
