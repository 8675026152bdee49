"""Where a checkpoint lies, what of it can be opened, and one line for what cannot."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from bert_recipes.checkpointing import STATE_FILE, last_complete
from bert_recipes.errors import InputError
from bert_recipes.hub_access import is_hub_name, why_unreachable
from bert_recipes.tokenization.hub_folder import find_hub_folder


logger = logging.getLogger(__name__)


def check_checkpoint(name: str) -> bool:
    """See that a checkpoint is there, before anything heavy is done.

    Args:
        name: Folder or Hub name.

    Returns:
        Whether only the local Hub cache can be asked for it.
    """
    if not name.strip():
        raise InputError("model_name_or_path is empty; give a checkpoint folder or a Hub name")
    folder = Path(name)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise InputError(f"model_name_or_path: {name} {_why_no_model(folder)}")
        if not any((folder / file).is_file() for file in ("model.safetensors", "model.safetensors.index.json")):
            raise InputError(f"model_name_or_path: {name} has no model.safetensors; no other weights are opened")
        return False
    if not is_hub_name(name):
        raise InputError(f"model_name_or_path: no folder {name}; give a checkpoint folder or a Hub name")
    reason = why_unreachable()
    if reason is not None and not isinstance(try_to_load_from_cache(name, "config.json"), str):
        where = f"no folder {name}, no model of that name in the local Hub cache"
        raise InputError(f"model_name_or_path: {where}, and {reason}; give a checkpoint folder")
    return reason is not None


def _why_no_model(folder: Path) -> str:
    """What is said of a folder without config.json: a run writes its model at its end."""
    # A finished run has results; a checkpoint of one has a state.
    if not (folder / "run.yaml").is_file() or any(
        (folder / file).is_file() for file in ("all_results.json", STATE_FILE)
    ):
        return "has no config.json; give a checkpoint folder"
    newest, _ = last_complete(folder)
    instead = "it has no complete checkpoint yet" if newest is None else f"its newest complete checkpoint is {newest}"
    return f"holds a run that has not come to its end, and has no config.json yet; {instead}"


@contextmanager
def opening(name: str) -> Iterator[None]:
    """Report in one line that a checkpoint cannot be opened, whatever the library raises for it."""
    try:
        yield
    except InputError:
        raise
    except (OSError, RuntimeError, ValueError, KeyError, SafetensorError, StrictDataclassError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise InputError(f"model_name_or_path: {name} cannot be opened: {reason}") from error


def find_tokenizer(name: str) -> Path | None:
    """The folder of a checkpoint's tokenizer files, or None if it has none (or none within reach)."""
    folder = Path(name)
    if folder.is_dir():
        return folder if any((folder / file).is_file() for file in ("tokenizer.json", "vocab.txt")) else None
    try:
        return find_hub_folder(name)
    except InputError as error:
        logger.info("%s", error)
        return None


def warn_once(message: str, *values: object) -> None:
    """Warn in the main process only: the others have the same settings."""
    logger.log(logging.WARNING if os.environ.get("RANK", "0") == "0" else logging.DEBUG, message, *values)
