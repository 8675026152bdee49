"""The upload: one commit, tried again where the network breaks; what the Hub has already is not sent again."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from traceback import format_exception
from typing import TYPE_CHECKING

from bert_recipes.errors import InputError, PushError
from bert_recipes.hub.client import UPLOADING, describe, make_client, may_pass, redact
from bert_recipes.hub.model_files import DESCRIPTIONS, ModelFiles
from bert_recipes.hub.remote import RemoteModel, has_own_card, read_remote, read_text
from bert_recipes.hub.target import PushTarget, replaced_files, stale_weights
from bert_recipes.own_card import CARD_FILE, TRACE_FILE, is_own_card, trace_of


if TYPE_CHECKING:
    from huggingface_hub import HfApi, ModelCard

logger = logging.getLogger(__name__)

# Seconds before another try. The library itself tries an upload of a file six times, within 23 seconds.
WAITS = (5.0, 30.0)


@dataclass(frozen=True)
class Pushed:
    """A push that is done.

    Attributes:
        url: Page of the model.
        commit: Its commit.
        is_new: False: the Hub had all of it.
    """

    url: str
    commit: str
    is_new: bool


def push(
    target: PushTarget,
    model: ModelFiles,
    message: str,
    *,
    tags: Sequence[str] = (),
    waits: Sequence[float] = WAITS,
    pause: Callable[[float], object] = time.sleep,
) -> Pushed:
    """Upload a model as one commit: who opens the repository meanwhile sees the former one, never a half.

    Args:
        target: Passed `open_target`.
        model: What is uploaded.
        message: Of the commit.
        tags: Added to those of the card.
        waits: Seconds before each further try.
        pause: Waits.

    Raises:
        PushError: It failed for good.
        InputError: A card whose metadata cannot be read; another model has come to lie there meanwhile.
    """
    _check_card(model)
    for number in range(len(waits) + 1):
        try:
            return _push_once(target, model, message, tags)
        except InputError:
            raise
        except Exception as error:  # of several libraries; whatever it is, a run is not lost for it
            logger.debug("push to %s: %s", target.repo_id, redact("".join(format_exception(error))))
            if not may_pass(error) or number == len(waits):
                raise PushError(f"{target.repo_id}: {describe(error)}") from error
            logger.warning(
                "push to %s: %s; tried again in %g seconds (%d of %d)",
                *(target.repo_id, describe(error), waits[number], number + 1, len(waits)),
            )
            pause(waits[number])
    raise AssertionError("the loop returns or raises")


def push_command(folder: Path, target: PushTarget, tags: Sequence[str] = ()) -> str:
    """What pushes a model afterwards, for messages; whose the repository is may not be known yet."""
    name = target.repo_id if "/" in target.repo_id else f"NAMESPACE/{target.repo_id}"
    words = ["python", "recipes/push_to_hub.py", "--run", str(folder), "--repo", name]
    words += [] if target.revision is None else ["--revision", target.revision]
    words += [] if target.private else ["--private", "null" if target.private is None else "false"]
    words += ["--overwrite", "true"] if target.overwrite else []
    words += ["--tags", *tags] if tags else []
    return shlex.join(words)


def _push_once(target: PushTarget, model: ModelFiles, message: str, tags: Sequence[str]) -> Pushed:
    """One try, with what the Hub holds now."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    api = make_client(UPLOADING)
    remote = read_remote(api, target.repo_id, target.revision)
    if target.is_replaced(remote, model.hash_weights):
        left = replaced_files(remote, model.files)
    else:
        left = stale_weights(remote, model.files) + _stale_descriptions(api, target, model, remote)
    changed = _with_tags(model, _card_with_tags(api, target, model, remote, tags, left)) if tags else {}
    operations: list[CommitOperationAdd | CommitOperationDelete] = [
        CommitOperationAdd(name, str(path)) for name, path in model.files.items() if name not in changed
    ]
    operations += [CommitOperationAdd(name, content) for name, content in changed.items()]
    operations += [CommitOperationDelete(name, is_folder=False) for name in left if name not in changed]
    for operation in operations:
        # One after the other: the library's pool of threads would be waited for when a signal ends the process, and would send the
        # same bytes under two names twice.
        if isinstance(operation, CommitOperationAdd) and operation.path_in_repo.endswith(".safetensors"):
            api.preupload_lfs_files(target.repo_id, [operation], revision=target.revision, free_memory=False)
    done = api.create_commit(
        target.repo_id,
        operations,
        commit_message=message,
        revision=target.revision,
        parent_commit=remote.commit or None,  # what was looked at: whoever has committed since is not written over
    )
    place = f"{api.endpoint}/{target.repo_id}"
    return Pushed(
        place if target.revision is None else f"{place}/tree/{target.revision}", done.oid, done.oid != remote.commit
    )


def _stale_descriptions(api: HfApi, target: PushTarget, model: ModelFiles, remote: RemoteModel) -> list[str]:
    """What an earlier push of the run says of other weights, as far as this push does not write over it; an edited card stays."""
    told = [name for name in DESCRIPTIONS if name in remote.files and name not in model.files]
    if not told or remote.run_id not in target.run_ids:
        return []
    if all(remote.files.get(name) == digest for name, digest in model.hash_weights().items()):
        return []  # they are its own
    if CARD_FILE in told and not has_own_card(api, target.repo_id, remote):
        told.remove(CARD_FILE)
    return told


def _with_tags(model: ModelFiles, card: bytes) -> dict[str, bytes]:
    """Name -> bytes: the card with its tags, and the trace of it, by which an edited card is known."""
    if CARD_FILE not in model.files or TRACE_FILE not in model.files or not is_own_card(model.folder):
        return {CARD_FILE: card}
    return {CARD_FILE: card, TRACE_FILE: trace_of(card, model.files[TRACE_FILE].read_bytes())}


def _card_with_tags(
    api: HfApi, target: PushTarget, model: ModelFiles, remote: RemoteModel, tags: Sequence[str], left: Collection[str]
) -> bytes:
    """The card of the folder, else that of the repository if it stays, else none: with the tags, which have no other place."""
    from huggingface_hub import ModelCardData

    if CARD_FILE in model.files:
        card = _read_card(model.files[CARD_FILE])
    elif CARD_FILE in remote.files and CARD_FILE not in left:
        card = _parse_card(read_text(api, target.repo_id, CARD_FILE, remote.commit), f"{target.repo_id}: {CARD_FILE}")
    else:
        return f"---\n{ModelCardData(tags=list(dict.fromkeys(tags))).to_yaml()}\n---\n".encode()
    card.data["tags"] = list(dict.fromkeys([*(card.data.get("tags") or ()), *tags]))
    return str(card).encode()


def _check_card(model: ModelFiles) -> None:
    """See before gigabytes are sent that the Hub can read the card."""
    if CARD_FILE in model.files:
        _read_card(model.files[CARD_FILE])


def _read_card(path: Path) -> ModelCard:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}); nothing is uploaded") from error
    return _parse_card(text, str(path))


def _parse_card(text: str, place: str) -> ModelCard:
    from huggingface_hub import ModelCard

    try:
        return ModelCard(text)
    except Exception as error:  # of YAML's reader and of the library's several checks
        said = " ".join(str(error).split())
        raise InputError(f"{place}: the metadata at its head cannot be read: {said}; nothing is uploaded") from error
