"""Find a tokenizer's files on the Hub or in its local cache, without waiting for a network that is not there."""

import re
import socket
import urllib.request
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from bert_recipes.errors import InputError


_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")

# Long enough for a slow link. huggingface_hub itself tries six times, which takes 23 seconds without a network.
_CONNECT_SECONDS = 3.0


def is_hub_name(name: str) -> bool:
    """Tell whether a string may be the name of a model on the Hub: ``model`` or ``owner/model``.

    Args:
        name: what the user gave; known not to be a local path.
    """
    return re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name, flags=re.ASCII) is not None and not name.endswith(".txt")


def find_hub_folder(name: str) -> Path:
    """Find the folder with the tokenizer files of a model, downloading them if they are not in the cache.

    Args:
        name: the model's name.

    Returns:
        A folder of the local cache.

    Raises:
        InputError: not in the cache, and offline or not on the Hub.
    """
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    for file in ("tokenizer.json", "vocab.txt"):
        cached = try_to_load_from_cache(name, file)
        if isinstance(cached, str):
            return Path(cached).parent
    wanted = f"{name}: no such file or folder, and no model of that name in the local Hub cache"
    if constants.HF_HUB_OFFLINE:
        raise InputError(f"{wanted}; HF_HUB_OFFLINE is set, so give a local folder or vocab.txt, or unset it")
    if not _can_connect(constants.ENDPOINT):
        raise InputError(f"{wanted}; {constants.ENDPOINT} cannot be reached, so give a local folder or vocab.txt")
    try:
        folders = [path.parent for path in map(partial(_download, name), _FILES) if path is not None]
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "?")
        raise InputError(
            f"{wanted}; {constants.ENDPOINT} answers {status}: check the name, or give a local folder"
        ) from None
    if not folders:
        raise InputError(f"{name}: this model on the Hub has no {', '.join(_FILES)}; BERT needs WordPiece")
    return folders[0]


def _download(name: str, file: str) -> Path | None:
    """Download one file into the local cache; None if the model has no such file."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import RemoteEntryNotFoundError

    try:
        return Path(hf_hub_download(name, file))
    except RemoteEntryNotFoundError:
        return None


def _can_connect(endpoint: str) -> bool:
    url = urlsplit(endpoint)
    if urllib.request.getproxies() or url.hostname is None:
        return True  # Only the proxy knows; let the client find out.
    try:
        socket.create_connection((url.hostname, url.port or 443), timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
