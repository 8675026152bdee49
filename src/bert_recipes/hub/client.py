"""The Hub's client: how long it waits for an answer, what it writes to the log, and its errors in one line."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bert_recipes.errors import InputError


if TYPE_CHECKING:
    from huggingface_hub import HfApi


# Seconds that a connection may take, and an answer: to a question, and to an upload, whose parts the server joins and checks.
_CONNECTING, ASKING, UPLOADING = 5.0, 15.0, 120.0
# Answers after which the same request may be answered better: too late, conflict, too early, too many, and all faults of the server.
_PASSING = frozenset({408, 409, 412, 425, 429})
_SIGNED_URL = re.compile(r"(https?://[^\s'\"?]+)\?[^\s'\"]*")
_TOKEN = re.compile(r"\bhf_\w{4,}")
_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
# What the library has sent so far, of the environment or of the login; to be kept out of messages. Anything shorter is no token, and
# would be found in every word.
_seen_tokens: set[str] = set()
_SHORTEST = 4

TOKEN_ADVICE = (
    "a token on the command line or in a file of settings is seen by everybody who lists the processes, and would be kept; log in with "
    "`hf auth login`, or set HF_TOKEN in the environment"
)


def make_client(seconds: float = ASKING) -> HfApi:
    """The library's client, which by itself would wait for ever for an answer.

    Args:
        seconds: How long an answer may take.
    """
    from huggingface_hub import HfApi, get_session, set_client_factory
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():  # a log
        disable_progress_bars()
    session = get_session()
    if session.timeout.read is None:  # the library's own
        kind, hooks = type(session), session.event_hooks
        set_client_factory(lambda: kind(event_hooks=hooks, follow_redirects=True, timeout=_limits(UPLOADING)))
        session = get_session()
    session.timeout = _limits(seconds)
    _hide_signatures()
    # True: never without the token, also where the environment says that requests bear none unless asked for.
    return HfApi(token=True)


def _limits(seconds: float) -> tuple[float, float, float, None]:
    """For connecting, reading, writing, and waiting for a free connection, which never takes long."""
    return _CONNECTING, seconds, seconds, None


def hub_errors() -> tuple[type[BaseException], ...]:
    """What the library raises where the Hub refuses, cannot be reached, or answers nonsense."""
    from huggingface_hub.errors import HfHubHTTPError

    # Its bases are OSError and the class of the HTTP library, which is another one since version 2.
    return (*HfHubHTTPError.__bases__, RuntimeError, ValueError, KeyError)


def status_of(error: BaseException) -> int | None:
    """HTTP status of the answer behind an error; None where there was no answer."""
    seen: BaseException | None = error
    while seen is not None:
        status = getattr(getattr(seen, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
        seen = seen.__cause__
    return None


def may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed on another try."""
    status = status_of(error)
    if status is not None:
        return status in _PASSING or status >= 500
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.filename is not None:  # a file that cannot be read
            return False
        seen = seen.__cause__
    # ValueError: what is sent is wrong. Everything else is the network: HTTP libraries, Xet's client.
    return not isinstance(error, InputError | ValueError | KeyError | TypeError)


def describe(error: BaseException) -> str:
    """One line of what the Hub or the network said, without a token or the signature of a URL."""
    parts: list[str] = []
    seen: BaseException | None = error
    while seen is not None:
        server_message = getattr(seen, "server_message", None)
        lines = str(server_message or seen).strip().splitlines()
        text = lines[0].rstrip(". ") if lines else type(seen).__name__
        status = getattr(getattr(seen, "response", None), "status_code", None)
        parts.append(f"{status}: {text}" if status is not None and str(status) not in text else text)
        seen = None if status is not None else seen.__cause__
    return redact(": ".join(dict.fromkeys(parts)))


def redact(text: str) -> str:
    """A text without the user's token, anything that looks like one, and signatures of URLs.

    Asks nobody for the token: that may itself go over the network, and write a log in which it is looked for.
    """
    for own in _seen_tokens | {os.environ.get(name, "").strip() for name in _VARIABLES}:
        if len(own) >= _SHORTEST:
            text = text.replace(own, "<token>")
    return _TOKEN.sub("<token>", _SIGNED_URL.sub(r"\1", text))


def own_token() -> str | None:
    """The token of the environment or the login.

    Raises:
        InputError: It cannot be read.
    """
    from huggingface_hub import get_token

    try:
        token = get_token()
    except hub_errors() as error:  # a login of a CI that does not work
        raise InputError(f"no token for the Hub: {_TOKEN.sub('<token>', str(error))}") from error
    if token:
        _seen_tokens.add(token)
    return token


def token_source() -> str:
    """Where the token comes from, for messages."""
    names = [name for name in _VARIABLES if os.environ.get(name)]
    return f"the environment ({names[0]})" if names else "the login of `hf auth login`"


def refuse_token_flags(argv: Sequence[str]) -> None:
    """Refuse a token on a command line, whatever the script calls it.

    Raises:
        InputError: There is one.
    """
    for argument in argv:
        flag = argument.split("=")[0].replace("-", "_")
        if flag.startswith("__") and flag.endswith("token"):
            raise InputError(f"{argument.split('=')[0]}: {TOKEN_ADVICE}")


class _SignatureFilter(logging.Filter):
    """Takes the signatures out of URLs: who has one may write to the Hub's storage for an hour."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record, and let it pass."""
        record.msg, record.args = redact(record.getMessage()), ()
        return True


def _hide_signatures() -> None:
    # The library warns of each try that fails, and the HTTP library (whose name depends on the version) tells of each request, with
    # the whole URL.
    for name in ("huggingface_hub.utils._http", "httpx", "httpx2"):
        log = logging.getLogger(name)
        if not any(isinstance(item, _SignatureFilter) for item in log.filters):
            log.addFilter(_SignatureFilter())
