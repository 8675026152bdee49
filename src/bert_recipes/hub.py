"""Runs that go to the Hub: asked for before they begin, pushed beside the training and at its end,
never lost for a push.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    ModelCard,
    ModelCardData,
    get_session,
    get_token,
    set_client_factory,
)
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError
from huggingface_hub.utils import disable_progress_bars, validate_repo_id
from safetensors import SafetensorError, safe_open
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from bert_recipes.checkpointing import (
    ASIDE_PREFIX,
    CARD_FILE,
    IDENTITY_FILE,
    MANIFEST_FILE,
    STATE_FILE,
    is_generated_card,
    last_complete,
    list_checkpoints,
    parse_run_id,
    read_run_id,
    seal_card,
    why_incomplete,
)
from bert_recipes.errors import InputError, PushError
from bert_recipes.files import hash_of
from bert_recipes.hub_access import network_errors, why_unreachable


logger = logging.getLogger(__name__)

WEIGHTS_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
SETTINGS_FILE, RESULTS_FILE = "run.yaml", "all_results.json"
TOKENIZER_FILES = (
    *(
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
        "special_tokens_map.json",
        "added_tokens.json",
    ),
)
# Beside the weights: card and what it is made of, settings, metrics, report. Optimiser states are
# pickles, and what a run predicts is its data.
REPORTS = ("report.md", "report.html")
OTHER_FILES = (
    *("generation_config.json", "LICENSE", CARD_FILE, "card.yaml", "bias_probe.json"),
    *(SETTINGS_FILE, "task.yaml", IDENTITY_FILE, RESULTS_FILE, STATE_FILE, *REPORTS),
)
PICTURES = ("*.png", "*.svg")
# What a run writes of its weights; beside other weights it would be wrong.
DESCRIPTIONS = (
    CARD_FILE,
    "bias_probe.json",
    RESULTS_FILE,
    STATE_FILE,
    *REPORTS,
    "losses.png",
)
# What may lie in a repository that holds no model.
_NO_MODEL = re.compile(r"\.gitattributes|LICENSE.*|.*\.(md|txt|png|svg)", re.IGNORECASE)
# Weights with the names that a push gives them.
_PUSHED_WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?")

# Seconds that a connection may take, and an answer: to a question, and to an upload, whose parts
# the server joins and checks.
_CONNECTING, ASKING, UPLOADING = 5.0, 15.0, 120.0
# Seconds before a push is tried again; the library tries the upload of a file six times, but a
# commit once.
_WAITS = (5.0, 30.0)
# Answers after which the same request may be answered better: too late, conflict, too early, too
# many.
_PASSING = frozenset({408, 409, 412, 425, 429})


# A run's pushes


def check_push(args: Any) -> None:
    """See in the main process, before anything is loaded, that the run may be pushed; its
    hub_model_id becomes the full name.
    """
    is_main = os.environ.get("RANK", "0") == "0"
    if not args.push_to_hub:
        return
    if args.hub_strategy == "checkpoint":
        raise InputError(
            "hub_strategy 'checkpoint' would upload the optimiser's state, which is a pickle; "
            "allowed: end, every_save (each save is a "
            "commit), all_checkpoints (the models of all of them, in folders)"
        )
    if is_main and not args.hub_is_checked:
        target = _target(args)
        command = push_command(Path(args.output_dir), target, args.hub_tags or ())
        later = f"train without --push_to_hub and push the run afterwards: {command}"
        args.hub_model_id = open_target(target, later=later).repo_id
    args.hub_is_checked = True


class PushCheckpoints(TrainerCallback):
    """Pushes the model of each checkpoint beside the training, as hub_strategy says; a push that
    fails is a warning.
    """

    # The push that was started last. Its thread is a daemon: a run that a signal ends does not wait
    # for an upload, which the next one takes up.
    last: ClassVar[threading.Thread | None] = None

    def __init__(self) -> None:
        self._has_warned = False

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin to push the checkpoint that was just saved; where a signal ends the run nothing is
        pushed.
        """
        strategy, before = args.hub_strategy, PushCheckpoints.last
        if (
            strategy == "end"
            or not state.is_world_process_zero
            or getattr(control, "is_interrupted", False)
        ):
            return
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if before is not None and before.is_alive() and not args.hub_always_push:
            logger.info("%s is not pushed: the push before it is not done", checkpoint)
            return
        with _warning_instead(args, checkpoint):
            model = link_files(checkpoint, with_folder=strategy == "all_checkpoints")
            if not self._has_warned:
                warn_of_what_is_seen(list_files(checkpoint), args.hub_private_repo)
                self._has_warned = True
            job = (before, args, checkpoint, model, state.global_step)
            PushCheckpoints.last = threading.Thread(
                target=_push_checkpoint, args=job, name="push", daemon=True
            )
            PushCheckpoints.last.start()


def _push_checkpoint(
    before: threading.Thread | None, args: Any, checkpoint: Path, model: ModelFiles, step: int
) -> None:
    if before is not None:
        before.join()
    with _warning_instead(args, checkpoint):
        url = push(
            _target(args), model, f"Training in progress, step {step}", tags=args.hub_tags or ()
        )
        logger.info("pushed step %d: %s", step, url)
    shutil.rmtree(model.folder, ignore_errors=True)


@contextmanager
def _warning_instead(args: Any, checkpoint: Path) -> Iterator[None]:
    try:
        yield
    except (InputError, OSError) as error:
        command = push_command(checkpoint, _target(args), args.hub_tags or ())
        logger.warning(
            "%s is not on the Hub: %s; training continues. To push it: %s",
            checkpoint,
            error,
            command,
        )


def push_run(args: Any, step: int) -> str | None:
    """Push the finished run in output_dir, in the main process; returns the model's page."""
    if not args.push_to_hub or args.process_index != 0:
        return None
    check_push(args)
    folder, tags, target = Path(args.output_dir), args.hub_tags or (), _target(args)
    if PushCheckpoints.last is not None:
        PushCheckpoints.last.join()
    try:
        model = collect_files(folder)
        warn_of_what_is_seen(model, target.private)
        url = push(target, model, f"End of training, step {step}", tags=tags)
    except (InputError, OSError) as error:
        command = push_command(folder, target, tags)
        raise PushError(
            f"the run is finished and complete in {folder}, but not on the Hub: {error}; push it "
            f"with {command}"
        ) from error
    logger.info("pushed %.1f MB: %s", model.size / 1e6, url)
    return url


def _target(args: Any) -> PushTarget:
    """Where a run goes; what it, or the run that it resumes, has pushed before is its own."""
    folder = Path(args.output_dir)
    # Before `check_push` it is the run that lies there and would be overwritten.
    sources = [folder] if args.hub_is_checked or not args.overwrite_run else []
    sources += [Path(args.resume)] if args.resume not in ("auto", "last", "no") else []
    run_ids = frozenset(run_id for run_id in map(read_run_id, sources) if run_id is not None)
    name = args.hub_model_id or folder.absolute().name  # as stock has it
    return PushTarget(name, args.hub_revision, args.hub_private_repo, args.hub_overwrite, run_ids)


# The files of a model


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model: name in the repository -> file in the folder."""

    folder: Path
    files: Mapping[str, Path]

    def __post_init__(self) -> None:
        """Refuse links out of the folder: what they lead to was never meant to be published."""
        for path in self.files.values():
            if not path.resolve().is_relative_to(self.folder.resolve()):
                raise InputError(
                    f"{path} leads out of {self.folder}, to {path.resolve()}; nothing is "
                    "uploaded: copy the file if it belongs there"
                )

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return sum(path.stat().st_size for path in self.files.values())

    def hash_weights(self) -> dict[str, str]:
        """Name -> SHA-256; reads all of them."""
        return {name: hash_of(path) for name, path in self.files.items() if _is_weights(name)}


def collect_files(folder: Path, *, with_checkpoints: bool = False) -> ModelFiles:
    """List what of a run, a checkpoint or any model folder is uploaded (checkpoints as
    `checkpoint-N/`), and see that it is a model.
    """
    if not folder.is_dir():
        raise InputError(
            f"no folder {folder}; give the folder of a finished run or of a checkpoint"
        )
    if (folder / MANIFEST_FILE).is_file():
        if reason := why_incomplete(folder):
            raise InputError(f"{folder} is no complete checkpoint: {reason}")
    elif (folder / SETTINGS_FILE).is_file() and not (folder / RESULTS_FILE).is_file():
        newest, _ = last_complete(folder)
        instead = (
            "it has no complete checkpoint yet"
            if newest is None
            else f"to push its newest one give {newest}"
        )
        raise InputError(f"{folder} holds a run that has not come to its end; {instead}")
    files = dict(list_files(folder).files)
    for checkpoint in list_checkpoints(folder) if with_checkpoints else ():
        if reason := why_incomplete(checkpoint):
            logger.warning("%s is left out: %s", checkpoint, reason)
        else:
            files |= {
                f"{checkpoint.name}/{name}": path for name, path in _model_alone(checkpoint).items()
            }
    return ModelFiles(folder, files)


def list_files(folder: Path) -> ModelFiles:
    """As `collect_files`, of a folder that is known to be complete."""
    files = _model_alone(folder)
    files |= {name: folder / name for name in OTHER_FILES if (folder / name).is_file()}
    pictures = sorted(path for pattern in PICTURES for path in folder.glob(pattern))
    return ModelFiles(
        folder,
        files | {path.name: path for path in pictures if path.is_file() and path.name[0] != "."},
    )


def link_files(checkpoint: Path, *, with_folder: bool = False) -> ModelFiles:
    """Give a checkpoint's files second names in a hidden folder beside it: they stay when it is
    deleted before they are uploaded.

    With with_folder the model is also pushed as `checkpoint-N/`.
    """
    staged = checkpoint.with_name(f"{ASIDE_PREFIX}push-{checkpoint.name}")
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir()
    for path in list_files(checkpoint).files.values():
        try:
            os.link(path, staged / path.name)
        except OSError:  # a file system without hard links
            shutil.copyfile(path, staged / path.name)
    files = dict(list_files(staged).files)
    if with_folder:
        files |= {f"{checkpoint.name}/{name}": path for name, path in _model_alone(staged).items()}
    return ModelFiles(staged, files)


def _is_weights(name: str) -> bool:
    return name.endswith(".safetensors") and "/" not in name


def _model_alone(folder: Path) -> dict[str, Path]:
    """Name -> file of configuration, weights, each of which opens as safetensors, and tokenizer."""
    config, weights, index = (folder / name for name in ("config.json", WEIGHTS_FILE, INDEX_FILE))
    if not config.is_file() or '"model_type"' not in config.read_text(encoding="utf-8"):
        raise InputError(
            f"{folder} holds no model: it has no config.json of transformers, with a model_type"
        )
    if not weights.is_file() and not index.is_file():
        parts = (
            ", but a part for each process, of which recipes/consolidate_checkpoint.py makes "
            "a model"
        )
        raise InputError(
            f"{folder} holds no model: it has no "
            f"{WEIGHTS_FILE}{parts * any(folder.glob('global_step*'))}; no weights of another "
            "form are uploaded"
        )
    names, path = [WEIGHTS_FILE], index
    try:
        if not weights.is_file():
            names = sorted(
                set(map(str, json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            )
        for path in [folder / name for name in names]:
            with safe_open(path, framework="numpy"):
                pass
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} cannot be opened as safetensors: {error}; nothing is uploaded"
        ) from error
    names = [config.name, *([] if weights.is_file() else [INDEX_FILE]), *names]
    tokenizer = [name for name in TOKENIZER_FILES if (folder / name).is_file()]
    if not {"tokenizer.json", "vocab.txt"} & set(tokenizer):
        logger.warning(
            "%s has no tokenizer: whoever opens the model must know which one it was trained with",
            folder,
        )
    return {name: folder / name for name in names + tokenizer}


def warn_of_what_is_seen(model: ModelFiles, private: bool | None) -> None:
    """Say before a model is published that its settings or its log name paths of this machine, and
    its report texts of the data.
    """
    if private:
        return
    for name in (SETTINGS_FILE, RESULTS_FILE, STATE_FILE, "tokenizer_config.json"):
        text = (
            model.files[name].read_text(encoding="utf-8", errors="replace")
            if name in model.files
            else ""
        )
        if paths := re.findall(r"(?<=[\s\[\"'])/[^\s/\]\"',][^\]\"',\n]*", text):
            what = "%s names %d paths of this machine (%s), which everybody will see"
            logger.warning(what, model.files[name], len(paths), paths[0])
    if reports := [name for name in REPORTS if name in model.files]:
        what = "%s in %s may show texts of the data, which everybody will see"
        logger.warning(what, " and ".join(reports), model.folder)


# The Hub


class RemoteModel(NamedTuple):
    """What a revision of a repository holds."""

    commit: str
    files: Mapping[
        str, str | None
    ]  # name -> SHA-256; None where the Hub does not say it (small files)
    run_id: str | None  # of the run that it was pushed from, if it was pushed from here
    description: str


@dataclass(frozen=True)
class PushTarget:
    """A repository and branch on the Hub."""

    repo_id: str  # owner/name
    revision: str | None = None  # branch; None: main
    private: bool | None = True  # of a new repository; None: what the owner's default is
    overwrite: bool = False  # another model that lies there is replaced
    run_ids: frozenset[str] = frozenset()  # runs whose model it may hold

    def replaces(
        self, remote: RemoteModel, hash_weights: Callable[[], Mapping[str, str]] | None = None
    ) -> bool:
        """Tell whether a push replaces another model: neither one of these runs nor the same
        weights; refuse it where not allowed.

        hash_weights gives name -> SHA-256 of what is to be pushed; it is called only where nothing
        else decides.
        """
        if all(_NO_MODEL.fullmatch(name) for name in remote.files) or remote.run_id in self.run_ids:
            return False
        known = {name: digest for name, digest in remote.files.items() if _is_weights(name)}
        if known and hash_weights is not None and known == dict(hash_weights()):
            return False
        if self.overwrite:
            return True
        name = self.repo_id if self.revision is None else f"{self.repo_id} (branch {self.revision})"
        raise InputError(
            f"{name} holds another model ({remote.description}); give another repository or "
            "branch, or replace it with "
            "--overwrite true (--hub_overwrite true in training): its history stays"
        )


def check_names(repo_id: str, revision: str | None) -> None:
    """See without the network that a repository and a branch can bear their names."""
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise InputError(
            f"'{repo_id}' cannot be a repository of the Hub: give name or owner/name, of letters, "
            "digits, '-', '_' and '.', with --repo "
            f"(in training --hub_model_id, by default the name of output_dir) ({error})"
        ) from error
    if revision is not None and (
        not revision or re.fullmatch(r"[0-9a-f]{40}|.*(\s|\.\.).*", revision)
    ):
        raise InputError(
            f"'{revision}' is a commit or cannot be a branch: give a branch, which is made if "
            "need be"
        )


def open_target(
    wanted: PushTarget, *, later: str, hash_weights: Callable[[], Mapping[str, str]] | None = None
) -> PushTarget:
    """Ask the Hub whether a model may be pushed; make the repository and the branch where there are
    none.

    Returns the target with the full name: without an owner it is the user's. `later` says what to
    do where the Hub cannot be reached.
    """
    check_names(wanted.repo_id, wanted.revision)
    if reason := why_unreachable():
        raise InputError(f"{reason}, so nothing was uploaded; {later}")
    source, api, target, owner = _check_token(), make_client(), wanted, "your own name"
    try:
        user: dict[str, Any] = api.whoami()
        if ((user.get("auth") or {}).get("accessToken") or {}).get("role") == "read":
            raise InputError(
                f"the token in {source} may only read; make one that may write: `hf auth login`"
            )
        owner = user["name"]
        if "/" not in wanted.repo_id:
            target = replace(wanted, repo_id=f"{owner}/{wanted.repo_id}")
        _find_or_create(api, target)
        api.auth_check(target.repo_id, write=True)
        _find_or_create_branch(api, target)
        remote = read_remote(api, target)
    except InputError:
        raise
    except network_errors(
        RuntimeError, ValueError, KeyError
    ) as error:  # the last two where it answers nonsense
        status, said = explain(error)
        told = {
            401: f"the token in {source} is not valid (401): renew it",
            403: f"{target.repo_id}: the token in {source} may not write there ({said}); give a "
            f"repository under {owner}/",
        }
        raise InputError(
            told.get(status or 0)
            or f"the request to the Hub about {target.repo_id} failed: {said}; {later}"
        ) from error
    if target.replaces(remote, hash_weights):
        logger.warning(
            "%s: the model there (%s) will be replaced; its history stays",
            target.repo_id,
            remote.description,
        )
    return target


def make_client(seconds: float = ASKING) -> HfApi:
    """The library's client, which by itself would wait for ever for an answer, and here waits so
    many seconds.
    """
    if not sys.stderr.isatty():  # a log
        disable_progress_bars()
    session = get_session()
    if session.timeout.read is None:  # the library's own
        kind, hooks, limits = (
            type(session),
            session.event_hooks,
            (_CONNECTING, UPLOADING, UPLOADING, None),
        )
        set_client_factory(lambda: kind(event_hooks=hooks, follow_redirects=True, timeout=limits))
        session = get_session()
    # For connecting, reading, writing, and waiting for a free connection, which never takes long.
    session.timeout = (_CONNECTING, seconds, seconds, None)
    # True: never without the token, also where the environment says that requests bear none unless
    # asked for.
    return HfApi(token=True)


def explain(error: BaseException) -> tuple[int | None, str]:
    """HTTP status of the answer behind an error, None where there was no answer; and one line of
    what the Hub or the network said.
    """
    status, parts, seen = None, list[str](), [error]
    for each in seen:
        status = status or getattr(getattr(each, "response", None), "status_code", None)
        lines = str(getattr(each, "server_message", None) or each).strip().splitlines()
        parts.append(lines[0].rstrip(". ") if lines else type(each).__name__)
        seen += [] if each.__cause__ is None else [each.__cause__]
    text = ": ".join(dict.fromkeys(parts))
    return status, text if status is None else f"{status}: {text}"


def _check_token() -> str:
    """See that there is a token that a request can hold (a library's message about another one
    would show it); say its source.
    """
    token = get_token()
    if token is None:
        raise InputError(
            "no token for the Hub: log in with `hf auth login`, or set HF_TOKEN in the environment"
        )
    names = [name for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if os.environ.get(name)]
    source = f"the environment ({names[0]})" if names else "the login of `hf auth login`"
    if not re.fullmatch(r"[!-~]+", token):
        raise InputError(
            f"the token in {source} has a blank or another character that no token has; copy it "
            "again"
        )
    return source


def _find_or_create(api: HfApi, target: PushTarget) -> None:
    """Make a repository where there is none, the one sound test of the right to make it; refuse to
    publish what is private.
    """
    name = target.repo_id
    try:
        is_private = api.model_info(name, timeout=ASKING).private
    except RepositoryNotFoundError:
        kind = {None: "as is usual there", True: "private", False: "public"}[target.private]
        logger.info("%s: made on the Hub, %s", name, kind)
        api.create_repo(name, private=target.private, exist_ok=True)
        return
    if is_private is False and target.private:
        raise InputError(
            f"{name} is a public repository, and a push is private unless you say otherwise: to "
            "publish the model give "
            "--private false (--hub_private_repo false in training), or give another repository"
        )
    if is_private and target.private is False:
        logger.warning("%s is private and stays so; its settings on the Hub make it public", name)


def _find_or_create_branch(api: HfApi, target: PushTarget) -> None:
    """A new branch begins at the first commit, which is empty, and not with what main holds."""
    name, revision = target.repo_id, target.revision
    if revision is None:
        return
    refs = api.list_repo_refs(name, include_pull_requests=True)
    if revision in {ref.name for ref in refs.branches} | {
        ref.ref for ref in refs.pull_requests or ()
    }:
        return
    if revision.startswith("refs/") or revision in {ref.name for ref in refs.tags}:
        raise InputError(
            f"{name}: {revision} is no branch; give a branch, which is made where there is none"
        )
    first = api.list_repo_commits(name)[-1].commit_id
    api.create_branch(name, branch=revision, revision=first, exist_ok=True)
    logger.info("%s: branch %s is made", name, revision)


def read_remote(api: HfApi, target: PushTarget) -> RemoteModel:
    """Ask what a repository holds."""
    info = api.model_info(
        target.repo_id, revision=target.revision, files_metadata=True, timeout=ASKING
    )
    siblings = info.siblings or []
    files = {item.rfilename: None if item.lfs is None else item.lfs.sha256 for item in siblings}
    commit = str(info.sha)
    run_id = (
        parse_run_id(_read_text(api, target, IDENTITY_FILE, commit))
        if IDENTITY_FILE in files
        else None
    )
    architectures = (info.config or {}).get("architectures") or ("a model",)
    size = sum(item.size or 0 for item in siblings if item.lfs is not None)
    described = [architectures[0], f"{size / 1e6:,.1f} MB"]
    described += [f"of {info.last_modified:%Y-%m-%d}"] if info.last_modified is not None else []
    return RemoteModel(commit, files, run_id, ", ".join(described))


def _read_text(api: HfApi, target: PushTarget, name: str, commit: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = api.hf_hub_download(target.repo_id, name, revision=commit, local_dir=folder)
        return Path(path).read_text(encoding="utf-8", errors="replace")


# Uploads


def push(target: PushTarget, model: ModelFiles, message: str, *, tags: Sequence[str] = ()) -> str:
    """Upload a model as one commit: who opens the repository meanwhile sees the former one, never a
    half.

    The target has passed `open_target`; tags are added to those of the card. Returns the model's
    page. A `PushError` is for good; an `InputError` is a card that cannot be read, or another model
    that has come to lie there meanwhile.
    """
    if CARD_FILE in model.files:
        _read_card(model.files[CARD_FILE])  # before gigabytes are sent
    for wait in (*_WAITS, None):
        try:
            return _push_once(target, model, message, tags)
        except InputError:
            raise
        except Exception as error:  # of several libraries; whatever it is, a run is not lost for it
            status, said = explain(error)
            may_pass = status is None or status in _PASSING or status >= 500
            if wait is None or not may_pass or isinstance(error, ValueError | FileNotFoundError):
                raise PushError(f"{target.repo_id}: {said}") from error
            logger.warning("push to %s: %s; tried again in %g seconds", target.repo_id, said, wait)
            time.sleep(wait)
    raise AssertionError("the loop returns or raises")


def push_command(folder: Path, target: PushTarget, tags: Sequence[str] = ()) -> str:
    """What pushes a model afterwards, for messages; whose the repository is may not be known
    yet.
    """
    name = target.repo_id if "/" in target.repo_id else f"NAMESPACE/{target.repo_id}"
    words = ["python", "recipes/push_to_hub.py", "--run", str(folder), "--repo", name]
    words += [] if target.revision is None else ["--revision", target.revision]
    words += [] if target.private else ["--private", "null" if target.private is None else "false"]
    words += ["--overwrite", "true"] if target.overwrite else []
    words += ["--tags", *tags] if tags else []
    return shlex.join(words)


def _push_once(target: PushTarget, model: ModelFiles, message: str, tags: Sequence[str]) -> str:
    """One try, with what the Hub holds now."""
    api = make_client(UPLOADING)
    remote = read_remote(api, target)
    if target.replaces(remote, model.hash_weights):
        left = set(remote.files) - {".gitattributes"}
    else:
        # Weights of an earlier push in another form: one file would be loaded before shards. What
        # else the user has put there stays.
        left = {name for name in remote.files if _PUSHED_WEIGHTS.fullmatch(name)}
        left |= _stale_descriptions(api, target, model, remote)
    left -= model.files.keys()
    contents: dict[str, str | bytes] = {name: str(path) for name, path in model.files.items()}
    if tags and (CARD_FILE in model.files or CARD_FILE not in remote.files.keys() - left):
        contents[CARD_FILE] = _card_with_tags(model, tags)
    added = [CommitOperationAdd(name, content) for name, content in contents.items()]
    for operation in added:
        # One after the other: the library's pool of threads would be waited for when a signal ends
        # the process, and would send the same bytes under two names twice.
        if operation.path_in_repo.endswith(".safetensors"):
            api.preupload_lfs_files(
                target.repo_id, [operation], revision=target.revision, free_memory=False
            )
    api.create_commit(
        target.repo_id,
        [*added, *(CommitOperationDelete(name) for name in sorted(left - contents.keys()))],
        commit_message=message,
        revision=target.revision,
        # what was looked at: whoever has committed since is not written over
        parent_commit=remote.commit,
    )
    url = f"{api.endpoint}/{target.repo_id}"
    return url if target.revision is None else f"{url}/tree/{target.revision}"


def _stale_descriptions(
    api: HfApi, target: PushTarget, model: ModelFiles, remote: RemoteModel
) -> set[str]:
    """What an earlier push of the run says of other weights, as far as this push does not write
    over it; an edited card stays.
    """
    told = set(DESCRIPTIONS) & remote.files.keys() - model.files.keys()
    if not told or remote.run_id not in target.run_ids:
        return set()
    if all(remote.files.get(name) == digest for name, digest in model.hash_weights().items()):
        return set()  # they are its own
    if CARD_FILE in told:
        text = _read_text(api, target, CARD_FILE, remote.commit)
        told -= set() if text == seal_card(text) else {CARD_FILE}
    return told


def _card_with_tags(model: ModelFiles, tags: Sequence[str]) -> bytes:
    """The folder's card with the tags, sealed again where it is generated; tags alone where it has
    none.
    """
    if CARD_FILE not in model.files:
        return f"---\n{ModelCardData(tags=list(dict.fromkeys(tags))).to_yaml()}\n---\n".encode()
    card = _read_card(model.files[CARD_FILE])
    card.data["tags"] = list(dict.fromkeys([*(card.data.get("tags") or ()), *tags]))
    return (seal_card(str(card)) if is_generated_card(model.folder) else str(card)).encode()


def _read_card(path: Path) -> ModelCard:
    try:
        return ModelCard(path.read_text(encoding="utf-8"))
    except Exception as error:  # of YAML's reader and of the library's several checks
        raise InputError(
            f"{path}: the metadata at its head cannot be read: {' '.join(str(error).split())}; "
            "nothing is uploaded"
        ) from error
