"""Tell at once whether the Hub can be reached, and which weights a model has there.

The libraries wait 20 to 50 seconds before they say that the Hub cannot be reached.
"""

import contextlib
import logging
import socket
import threading
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from bert_recipes.errors import InputError


logger = logging.getLogger(__name__)

# Weights as transformers names them: those that are looked for first, and the older ones, a pickle.
SAFE_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
OLD_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json")
# Long enough for a slow link. huggingface_hub itself tries six times, which takes 23 seconds
# without a network.
_CONNECT_SECONDS = 3.0


def is_hub_name(name: str) -> bool:
    """Return whether a string may name a model on the Hub: ``model`` or ``owner/model``.

    It is known not to be a local path.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return not name.endswith(".txt")


def network_errors(*classes: type[Exception]) -> tuple[type[Exception], ...]:
    """Return what is raised where the Hub refuses or cannot be reached.

    Args:
        classes: That are to be caught with it.
    """
    from huggingface_hub.errors import HfHubHTTPError

    # The HTTP client below the Hub's differs by version (httpx, httpx2): its errors are known by
    # their common base class.
    bases = [base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception)]
    return (OSError, *bases, *classes)


def why_unreachable() -> str | None:
    """Return why the Hub cannot be asked now, or None if it can."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    if not can_connect(constants.ENDPOINT):
        return f"the Hub ({constants.ENDPOINT}) cannot be reached"
    return None


def can_connect(endpoint: str) -> bool:
    """Return within seconds whether a server answers at a URL.

    True also where there is a proxy: only that knows.
    """
    url = urlsplit(endpoint)
    if urllib.request.getproxies().keys() - {"no"} or url.hostname is None:
        return True  # let the client find out
    usual_port = 80 if url.scheme == "http" else 443
    address = (url.hostname, url.port or usual_port)
    answered = threading.Event()
    # A timeout of a socket holds for one address and not for the look-up of the name, which alone
    # may take half a minute.
    attempt = threading.Thread(target=_connect, args=(address, answered), daemon=True)
    attempt.start()
    attempt.join(_CONNECT_SECONDS)  # a refusal ends it at once
    return answered.is_set()


def _connect(address: tuple[str, int], answered: threading.Event) -> None:
    with contextlib.suppress(OSError):
        socket.create_connection(address, timeout=_CONNECT_SECONDS).close()
        answered.set()


def has_safetensors(name: str, *, cached_only: bool) -> bool:
    """Return whether a checkpoint's weights are safetensors.

    False, with a log line, where it has pytorch_model.bin alone. transformers opens such a file
    with torch's `weights_only=True`: tensors are read, and no code of the pickle is run.

    Args:
        name: Folder or Hub name.
        cached_only: Ask the local Hub cache only.
    """
    if any(_has_file(name, file, cached_only=cached_only) for file in SAFE_WEIGHTS):
        return True
    old = [file for file in OLD_WEIGHTS if _has_file(name, file, cached_only=cached_only)]
    if not old:
        return True  # the library says what is missing
    logger.info(
        "%s has no %s; %s is read, its tensors alone (weights_only=True); what is saved is "
        "safetensors",
        name,
        SAFE_WEIGHTS[0],
        old[0],
    )
    return False


def _has_file(name: str, file: str, *, cached_only: bool) -> bool:
    if Path(name).is_dir():
        return (Path(name) / file).is_file()
    from huggingface_hub import file_exists, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(name, file), str):
        return True
    return not cached_only and file_exists(name, file)


def refuse_token_flags(argv: Sequence[str]) -> None:
    """Refuse a token on a command line, whatever the script calls it."""
    for argument in argv:
        flag = argument.split("=")[0]
        if flag.startswith("--") and flag.endswith("token"):
            raise InputError(
                f"{flag}: a token on the command line is seen by everybody who lists the "
                "processes; log in with `hf auth login`, or "
                "set HF_TOKEN in the environment"
            )
