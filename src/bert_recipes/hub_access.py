"""Tell at once whether the Hub can be reached; the libraries wait 20 to 50 seconds before they say that it cannot."""

import contextlib
import re
import socket
import threading
import urllib.request
from collections.abc import Sequence
from urllib.parse import urlsplit

from bert_recipes.errors import InputError


# Long enough for a slow link. huggingface_hub itself tries six times, which takes 23 seconds without a network.
_CONNECT_SECONDS = 3.0


def is_hub_name(name: str) -> bool:
    """Tell whether a string, known not to be a local path, may name a model on the Hub: ``model`` or ``owner/model``."""
    return re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name, flags=re.ASCII) is not None and not name.endswith(".txt")


def why_unreachable() -> str | None:
    """Say why the Hub cannot be asked now, or None if it can."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    return None if can_connect(constants.ENDPOINT) else f"the Hub ({constants.ENDPOINT}) cannot be reached"


def can_connect(endpoint: str) -> bool:
    """Tell within seconds whether a server answers at a URL; True also where there is a proxy: only that knows."""
    url = urlsplit(endpoint)
    if urllib.request.getproxies().keys() - {"no"} or url.hostname is None:
        return True  # let the client find out
    address = (url.hostname, url.port or (80 if url.scheme == "http" else 443))
    answered = threading.Event()
    # A timeout of a socket holds for one address and not for the look-up of the name, which alone may take half a minute.
    attempt = threading.Thread(target=_connect, args=(address, answered), daemon=True)
    attempt.start()
    attempt.join(_CONNECT_SECONDS)  # a refusal ends it at once
    return answered.is_set()


def _connect(address: tuple[str, int], answered: threading.Event) -> None:
    with contextlib.suppress(OSError):
        socket.create_connection(address, timeout=_CONNECT_SECONDS).close()
        answered.set()


def refuse_token_flags(argv: Sequence[str]) -> None:
    """Refuse a token on a command line, whatever the script calls it."""
    for flag in (argument.split("=")[0] for argument in argv):
        if flag.startswith("--") and flag.endswith("token"):
            raise InputError(
                f"{flag}: a token on the command line is seen by everybody who lists the processes; log in with `hf auth login`, or "
                "set HF_TOKEN in the environment"
            )
