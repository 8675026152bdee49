"""Tell at once whether the Hub can be reached; the libraries wait 20 to 50 seconds before they say that it cannot."""

import re
import socket
import urllib.request
from urllib.parse import urlsplit


# Long enough for a slow link. huggingface_hub itself tries six times, which takes 23 seconds without a network.
_CONNECT_SECONDS = 3.0


def is_hub_name(name: str) -> bool:
    """Tell whether a string may be the name of a model on the Hub: ``model`` or ``owner/model``.

    Args:
        name: what the user gave; known not to be a local path.
    """
    return re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name, flags=re.ASCII) is not None and not name.endswith(".txt")


def why_unreachable() -> str | None:
    """Say why the Hub cannot be asked now, or None if it can.

    Returns:
        "HF_HUB_OFFLINE is set" or "<endpoint> cannot be reached".
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    return None if _can_connect(constants.ENDPOINT) else f"{constants.ENDPOINT} cannot be reached"


def _can_connect(endpoint: str) -> bool:
    url = urlsplit(endpoint)
    if urllib.request.getproxies() or url.hostname is None:
        return True  # Only the proxy knows; let the client find out.
    try:
        socket.create_connection((url.hostname, url.port or 443), timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
