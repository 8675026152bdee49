"""Where a model is to be pushed, and whether it may be: found out before hours of training or of uploading."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from transformers.trainer_utils import HubStrategy

from bert_recipes.errors import InputError
from bert_recipes.hub.client import (
    ASKING,
    TOKEN_ADVICE,
    describe,
    hub_errors,
    make_client,
    own_token,
    status_of,
    token_source,
)
from bert_recipes.hub.remote import RemoteModel, read_remote
from bert_recipes.hub_access import why_unreachable


if TYPE_CHECKING:
    from huggingface_hub import HfApi

logger = logging.getLogger(__name__)

MAIN = "main"


@dataclass(frozen=True)
class FlagNames:
    """What the settings of a push are called where they are given, for messages."""

    repo: str = "--hub_model_id"
    revision: str = "--hub_revision"
    private: str = "--hub_private_repo"
    overwrite: str = "--hub_overwrite"


@dataclass(frozen=True)
class PushTarget:
    """A place on the Hub.

    Attributes:
        repo_id: owner/name.
        revision: Branch; None: main.
        private: What a new repository is; None: what the owner's default is.
        overwrite: Another model that lies there is replaced.
        run_ids: Runs whose model it may hold.
        flags: Names of the settings.
    """

    repo_id: str
    revision: str | None = None
    private: bool | None = True
    overwrite: bool = False
    run_ids: frozenset[str] = frozenset()
    flags: FlagNames = FlagNames()

    def is_replaced(self, remote: RemoteModel, hash_weights: Callable[[], Mapping[str, str]] | None = None) -> bool:
        """Whether a push replaces another model.

        Args:
            remote: What lies there.
            hash_weights: Of the model that is to be pushed (`RemoteModel.is_of`).

        Raises:
            InputError: It would, and is not to.
        """
        if remote.is_empty or remote.is_of(self.run_ids, hash_weights):
            return False
        if self.overwrite:
            return True
        place = self.repo_id if self.revision is None else f"{self.repo_id} (branch {self.revision})"
        raise InputError(
            f"{place} holds another model ({remote.description}); give another {self.flags.repo} or {self.flags.revision}, or replace it "
            f"with {self.flags.overwrite} true: its history stays"
        )


def check_names(repo_id: str, revision: str | None) -> None:
    """See without the network that a repository and a branch can bear their names.

    Raises:
        InputError: They cannot.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise InputError(
            f"'{repo_id}' cannot be a repository of the Hub: give name or owner/name, of letters, digits, '-', '_' and '.' ({error})"
        ) from error
    if revision is not None and re.fullmatch(r"[0-9a-f]{40}", revision):
        raise InputError(
            f"revision {revision} is a commit; a push makes a new one: give a branch, which is made where there is none"
        )
    if revision is not None and (
        re.search(r"[\s~^:?*\\[]|\.\.|//", revision)
        or revision.startswith(("-", "/"))
        or revision.endswith("/")
        or not revision
    ):
        raise InputError(f"'{revision}' cannot be a branch: give letters, digits, '-', '_', '.' and '/'")


def check_full_name(repo_id: str, flag: str) -> None:
    """See without the network that a name says whose repository it is; `check_names` sees to the rest.

    Args:
        repo_id: What was given.
        flag: Where.

    Raises:
        InputError: It does not.
    """
    if not re.fullmatch(r"[^/\s]+/[^/\s]+", repo_id):
        raise InputError(
            f"{flag} '{repo_id}' is not NAMESPACE/NAME: give your name on the Hub, or that of your organisation, and the "
            "repository's, for example me/my-bert"
        )


def open_target(
    wanted: PushTarget, *, later: str, hash_weights: Callable[[], Mapping[str, str]] | None = None
) -> PushTarget:
    """Ask the Hub whether a model may be pushed; make the repository and the branch where there are none.

    Args:
        wanted: Its repo_id may lack the owner: then it is the user.
        later: What to do where the Hub cannot be reached.
        hash_weights: Of the model, where it is there already (`RemoteModel.is_of`).

    Returns:
        The target with the full name.

    Raises:
        InputError: No network, no token, a wrong one, no right to write, a branch that cannot be written to, another model,
            or a public repository where a private one is wanted.
    """
    check_names(wanted.repo_id, wanted.revision)
    reason = why_unreachable()
    if reason is not None:
        raise InputError(f"{reason}, so nothing was uploaded; {later}")
    _check_token()
    api = make_client()
    owner = _who_am_i(api, later)
    name = wanted.repo_id if "/" in wanted.repo_id else f"{owner}/{wanted.repo_id}"
    target = replace(wanted, repo_id=name)
    with _asking(f"the repository {name}", later):
        _check_visibility(target, is_public=_find_or_create(api, name, wanted, owner))
        _check_write(api, name)
        if wanted.revision not in (None, MAIN):
            _find_or_create_branch(api, name, str(wanted.revision))
        remote = read_remote(api, name, wanted.revision)
    if target.is_replaced(remote, hash_weights):
        logger.warning("%s: the model there (%s) will be replaced; its history stays", name, remote.description)
    return target


def _check_token() -> None:
    """See that there is a token that a request can hold; a library's message about another one would show it."""
    token = own_token()
    if token is None:
        raise InputError("no token for the Hub: log in with `hf auth login`, or set HF_TOKEN in the environment")
    if not re.fullmatch(r"[!-~]+", token):
        raise InputError(
            f"the token in {token_source()} has a blank or another character that no token has; copy it anew, or `hf auth login`"
        )


def _who_am_i(api: HfApi, later: str) -> str:
    """The user's name; a token that cannot write is refused."""
    source = token_source()
    with _asking(
        "whose the token is", later, {401: f"the token in {source} is not valid (401): renew it with `hf auth login`"}
    ):
        answer: dict[str, Any] = api.whoami()
        owner = str(answer["name"])
    role = ((answer.get("auth") or {}).get("accessToken") or {}).get("role")
    if role == "read":
        raise InputError(
            f"the token in {source} may only read; make one that may write, and log in with `hf auth login`"
        )
    return owner


def _find_or_create(api: HfApi, name: str, wanted: PushTarget, owner: str) -> bool | None:
    """Whether a repository is public; None for one that is made now, which is the one sound test of the right to make it."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        return api.model_info(name, timeout=ASKING).private is False
    except GatedRepoError as error:
        raise InputError(f"{name} is gated and this token may not enter it; give a repository of your own") from error
    except RepositoryNotFoundError:
        logger.info(
            "%s: made on the Hub, %s",
            name,
            "as is usual there" if wanted.private is None else "private" if wanted.private else "public",
        )
    try:
        api.create_repo(name, private=wanted.private, exist_ok=True)
    except hub_errors() as error:
        if status_of(error) not in (401, 403):
            raise
        space = name.split("/")[0]
        whose = "the token has no right to make repositories" if space == owner else f"{owner} may not write there"
        raise InputError(
            f"{name} cannot be made on the Hub ({status_of(error)}): {whose}; give a repository under {owner}/"
        ) from error
    return None


def _check_write(api: HfApi, name: str) -> None:
    """See that the token may write to a repository that is there."""
    from huggingface_hub import get_session
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

    try:
        # `HfApi.auth_check(write=True)`, which older libraries do not have.
        url = f"{api.endpoint}/api/models/{name}/auth-check/write"
        hf_raise_for_status(get_session().get(url, headers=build_hf_headers(token=True)))
    except hub_errors() as error:
        if status_of(error) not in (401, 403):
            raise
        raise InputError(
            f"{name}: the token in {token_source()} may not write to this repository ({status_of(error)}); give one of your own"
        ) from error


def _find_or_create_branch(api: HfApi, name: str, revision: str) -> None:
    """A new branch begins at the first commit, which is empty, and not with what main holds."""
    refs = api.list_repo_refs(name, include_pull_requests=True)
    if revision in {ref.name for ref in refs.branches} | {ref.ref for ref in refs.pull_requests or ()}:
        return
    if revision in {ref.name for ref in refs.tags}:
        raise InputError(f"{name}: {revision} is a tag, which stays at its commit; give a branch")
    if revision.startswith("refs/"):
        raise InputError(f"{name} has no {revision}; give a branch, which is made where there is none")
    first = api.list_repo_commits(name)[-1].commit_id
    api.create_branch(name, branch=revision, revision=first, exist_ok=True)
    logger.info("%s: branch %s is made", name, revision)


def _check_visibility(target: PushTarget, *, is_public: bool | None) -> None:
    """Refuse to publish what is meant to be private."""
    if is_public and target.private:
        raise InputError(
            f"{target.repo_id} is a public repository, and a push is private unless you say otherwise: to publish the model give "
            f"{target.flags.private} false, or give another {target.flags.repo}"
        )
    if is_public is False and target.private is False:
        logger.warning("%s is private and stays so; its settings on the Hub make it public", target.repo_id)


@contextmanager
def _asking(what: str, later: str, answers: Mapping[int, str] | None = None) -> Iterator[None]:
    """Report in one line that a question to the Hub failed.

    Args:
        what: Was asked for.
        later: What to do where the Hub cannot be reached.
        answers: HTTP status -> message.
    """
    try:
        yield
    except InputError:
        raise
    except hub_errors() as error:
        status = status_of(error)
        if answers is not None and status is not None and status in answers:
            raise InputError(answers[status]) from error
        raise InputError(f"the Hub was asked for {what}, and this came of it: {describe(error)}; {later}") from error


def stale_weights(remote: RemoteModel, kept: Collection[str]) -> list[str]:
    """Weights of an earlier push of the same run that the new one does not write over; one file would be loaded before shards.

    Only those with the names that a push gives them: what else the user has put there stays.
    """
    own = re.compile(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?")
    return [name for name in remote.files if own.fullmatch(name) and name not in kept]


def replaced_files(remote: RemoteModel, kept: Collection[str]) -> list[str]:
    """What is deleted with a model that is replaced: everything of it that the new one does not write over."""
    return [name for name in remote.files if name not in kept and name != ".gitattributes"]


def check_push_settings(args: Any) -> None:
    """See without the network that the settings of a push can be followed."""
    if args.hub_token is not None:
        raise InputError(f"hub_token: {TOKEN_ADVICE}")
    if not args.push_to_hub:
        for name in ("hub_model_id", "hub_revision", "hub_overwrite", "hub_tags"):
            if getattr(args, name) and os.environ.get("RANK", "0") == "0":
                logger.warning("%s has no effect without --push_to_hub true", name)
        return
    if HubStrategy(args.hub_strategy) == HubStrategy.CHECKPOINT:
        raise InputError(
            "hub_strategy 'checkpoint' would upload the optimiser's state, which is a pickle; allowed: end, every_save (each save is a "
            "commit), all_checkpoints (the models of all of them, in folders)"
        )
    if args.hub_model_id is not None:
        check_names(args.hub_model_id, args.hub_revision)
