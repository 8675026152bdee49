"""Find a tokenizer's files on the Hub or in its local cache, without waiting for a network that is not there."""

from functools import partial
from pathlib import Path

from bert_recipes.errors import InputError
from bert_recipes.hub_access import why_unreachable


_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "added_tokens.json")


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
    reason = why_unreachable()
    if reason:
        raise InputError(f"{wanted}; {reason}, so give a local folder or vocab.txt")
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
