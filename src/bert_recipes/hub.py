"""Runs that go to the Hub: asked for before they begin, pushed beside the training and at its end, never lost for a push."""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import shlex
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import HubStrategy

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
from bert_recipes.hub_access import why_unreachable


if TYPE_CHECKING:
    from huggingface_hub import HfApi, ModelCard


logger = logging.getLogger(__name__)

MAIN = "main"
CONFIG_FILE, WEIGHTS_FILE, INDEX_FILE = "config.json", "model.safetensors", "model.safetensors.index.json"
SETTINGS_FILE, RESULTS_FILE = "run.yaml", "all_results.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "special_tokens_map.json",
    "added_tokens.json",
)
# Beside the weights: card and what it is made of, settings, metrics, report. Optimiser states are pickles, and what a run predicts
# is its data.
REPORTS = ("report.md", "report.html")
OTHER_FILES = (
    *("generation_config.json", "LICENSE", CARD_FILE, "card.yaml", "bias_probe.json"),
    *(SETTINGS_FILE, "task.yaml", IDENTITY_FILE, RESULTS_FILE, STATE_FILE, *REPORTS),
)
PICTURES = ("*.png", "*.svg")
# What a run writes of its weights; beside other weights it would be wrong.
DESCRIPTIONS = (CARD_FILE, "bias_probe.json", RESULTS_FILE, STATE_FILE, *REPORTS, "losses.png")
# What may lie in a repository that holds no model.
_NO_MODEL = re.compile(r"\.gitattributes|LICENSE.*|.*\.(md|txt|png|svg)", re.IGNORECASE)
# Weights with the names that a push gives them.
_PUSHED_WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?")

# Seconds that a connection may take, and an answer: to a question, and to an upload, whose parts the server joins and checks.
_CONNECTING, ASKING, UPLOADING = 5.0, 15.0, 120.0
# Seconds before a push is tried again; the library tries the upload of a file six times, but a commit once.
_WAITS = (5.0, 30.0)
# Answers after which the same request may be answered better: too late, conflict, too early, too many.
_PASSING = frozenset({408, 409, 412, 425, 429})

TOKEN_ADVICE = (
    "a token on the command line or in a file of settings is seen by everybody who lists the processes, and would be kept; log in with "
    "`hf auth login`, or set HF_TOKEN in the environment"
)


# A run's pushes


def check_push(args: Any) -> None:
    """See in the main process, before anything is loaded, that the run may be pushed; its hub_model_id becomes the full name.

    Does nothing without push_to_hub, or a second time.
    """
    is_main = os.environ.get("RANK", "0") == "0"
    if not args.push_to_hub:
        given = [name for name in ("hub_model_id", "hub_revision", "hub_overwrite", "hub_tags") if getattr(args, name)]
        if given and is_main:
            logger.warning("without effect without --push_to_hub true: %s", ", ".join(given))
        return
    if HubStrategy(args.hub_strategy) == HubStrategy.CHECKPOINT:
        raise InputError(
            "hub_strategy 'checkpoint' would upload the optimiser's state, which is a pickle; allowed: end, every_save (each save is a "
            "commit), all_checkpoints (the models of all of them, in folders)"
        )
    if args.hub_model_id is not None:
        check_names(args.hub_model_id, args.hub_revision)
    if is_main and not args.hub_is_checked:
        target = _target(args)
        command = push_command(Path(args.output_dir), target, args.hub_tags or ())
        later = f"train without --push_to_hub and push the run afterwards: {command}"
        args.hub_model_id = open_target(target, later=later).repo_id
    args.hub_is_checked = True


class PushCheckpoints(TrainerCallback):
    """Pushes the model of each checkpoint beside the training, as hub_strategy says; a push that fails is a warning."""

    def __init__(self) -> None:
        self._has_warned = False

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Give the checkpoint that was just saved to the thread that pushes; where a signal ends the run nothing is pushed."""
        strategy = HubStrategy(args.hub_strategy)
        if strategy == HubStrategy.END or not state.is_world_process_zero or getattr(control, "is_interrupted", False):
            return
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if _pushes.is_busy and not args.hub_always_push:
            logger.info("%s is not pushed: the push before it is not done", checkpoint)
            return
        try:
            model = link_files(checkpoint, with_folder=strategy == HubStrategy.ALL_CHECKPOINTS)
            if not self._has_warned:
                warn_of_what_is_seen(list_files(checkpoint), args.hub_private_repo)
                self._has_warned = True
        except (InputError, OSError) as error:
            _report(args, checkpoint, error)
            return
        _pushes.add(partial(_push_checkpoint, args, checkpoint, model, state.global_step))


def _push_checkpoint(args: Any, checkpoint: Path, model: ModelFiles, step: int) -> None:
    """In the background: push, report, raise nothing."""
    try:
        url = push(_checked_target(args), model, f"Training in progress, step {step}", tags=args.hub_tags or ())
        logger.info("pushed step %d: %s", step, url)
    except (InputError, OSError) as error:
        _report(args, checkpoint, error)
    finally:
        shutil.rmtree(model.folder, ignore_errors=True)


def _report(args: Any, checkpoint: Path, error: Exception) -> None:
    command = push_command(checkpoint, _checked_target(args), args.hub_tags or ())
    logger.warning("%s is not on the Hub: %s; training goes on. To push it: %s", checkpoint, error, command)


def push_run(args: Any, step: int) -> str | None:
    """Push the finished run in output_dir: the last act of the main process, for which the others need not wait.

    Returns:
        The model's page; None without push_to_hub, and in the other processes.

    Raises:
        PushError: It failed for good; the run is complete on the disk.
    """
    if not args.push_to_hub or args.process_index != 0:
        return None
    check_push(args)
    folder, tags, target = Path(args.output_dir), args.hub_tags or (), _checked_target(args)
    _pushes.wait()
    try:
        model = collect_files(folder)
        warn_of_what_is_seen(model, target.private)
        url = push(target, model, f"End of training, step {step}", tags=tags)
    except (InputError, OSError) as error:
        command = push_command(folder, target, tags)
        raise PushError(
            f"the run is finished and complete in {folder}, but not on the Hub: {error}; push it with {command}"
        ) from error
    logger.info("pushed %.1f MB: %s", model.size / 1e6, url)
    return url


def _target(args: Any) -> PushTarget:
    folder = Path(args.output_dir)
    # The run that is resumed here, from wherever: what it pushed before is its own.
    sources = [] if args.overwrite_run else [folder]
    sources += [Path(args.resume)] if args.resume not in ("auto", "last", "no") else []
    run_ids = frozenset(run_id for run_id in map(read_run_id, sources) if run_id is not None)
    name = args.hub_model_id or folder.absolute().name  # as stock has it
    try:
        check_names(name, None)
    except InputError as error:
        raise InputError(
            f"output_dir {folder} gives the repository its name, and {error}; give --hub_model_id"
        ) from error
    return PushTarget(name, args.hub_revision, args.hub_private_repo, args.hub_overwrite, run_ids)


def _checked_target(args: Any) -> PushTarget:
    """After `check_push`: what this run has pushed is its own."""
    run_id = read_run_id(Path(args.output_dir))
    run_ids = frozenset() if run_id is None else frozenset({run_id})
    return PushTarget(str(args.hub_model_id), args.hub_revision, args.hub_private_repo, args.hub_overwrite, run_ids)


class BackgroundPushes:
    """Jobs that a thread does in their order; a job raises nothing.

    The thread is a daemon: a run that a signal ends does not wait for an upload, which the next one takes up.
    """

    def __init__(self) -> None:
        self._jobs: queue.Queue[Callable[[], None]] = queue.Queue()
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a job is not done."""
        return self._jobs.unfinished_tasks > 0

    def add(self, job: Callable[[], None]) -> None:
        """Do a job after those before it."""
        self._jobs.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="push", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Until all jobs are done."""
        if self.is_busy:
            logger.info("waiting for the push of a checkpoint")
        self._jobs.join()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                job()
            except Exception:  # a bug of ours, which shall end no run
                logger.exception("a push failed")
            finally:
                self._jobs.task_done()


_pushes = BackgroundPushes()


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
                    f"{path} leads out of {self.folder}, to {path.resolve()}; nothing is uploaded: copy the file if it belongs there"
                )

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return sum(path.stat().st_size for path in self.files.values())

    @property
    def run_id(self) -> str | None:
        """The run that the model comes from."""
        return read_run_id(self.folder)

    @property
    def step(self) -> int | None:
        """Optimiser steps of the model; None where no file says it."""
        try:
            return int(json.loads((self.folder / STATE_FILE).read_text(encoding="utf-8"))["global_step"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def hash_weights(self) -> dict[str, str]:
        """Name -> SHA-256; reads all of them."""
        return {name: hash_of(path) for name, path in self.files.items() if _is_weights(name)}


def collect_files(folder: Path, *, with_checkpoints: bool = False) -> ModelFiles:
    """List what of a run, a checkpoint or any model folder is uploaded, and see that it is a model.

    Args:
        folder: has config.json and weights as safetensors.
        with_checkpoints: also the models of the complete checkpoints in it, as `checkpoint-N/`.
    """
    if not folder.is_dir():
        raise InputError(f"no folder {folder}; give the folder of a finished run or of a checkpoint")
    if (folder / MANIFEST_FILE).is_file():
        reason = why_incomplete(folder)
        if reason is not None:
            raise InputError(f"{folder} is no complete checkpoint: {reason}")
    elif (folder / SETTINGS_FILE).is_file() and not (folder / RESULTS_FILE).is_file():
        raise InputError(f"{folder} holds a run that has not come to its end; {_instead(folder)}")
    files = dict(list_files(folder).files)
    for checkpoint in list_checkpoints(folder) if with_checkpoints else ():
        reason = why_incomplete(checkpoint)
        if reason is not None:
            logger.warning("%s is left out: %s", checkpoint, reason)
            continue
        files |= {f"{checkpoint.name}/{name}": path for name, path in _model_alone(checkpoint).items()}
    return ModelFiles(folder, files)


def list_files(folder: Path) -> ModelFiles:
    """As `collect_files`, of a folder that is known to be complete."""
    files = _model_alone(folder)
    files |= {name: folder / name for name in OTHER_FILES if (folder / name).is_file()}
    for pattern in PICTURES:
        files |= {path.name: path for path in sorted(folder.glob(pattern)) if path.is_file() and path.name[0] != "."}
    return ModelFiles(folder, files)


def link_files(checkpoint: Path, *, with_folder: bool = False) -> ModelFiles:
    """Give the files of a sealed checkpoint second names, so that they stay when it is deleted before they are uploaded.

    Args:
        checkpoint: `checkpoint-N` in a run's folder; the second names are in a hidden folder beside it.
        with_folder: the model also as `checkpoint-N/`.
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
    """Name -> file of configuration, weights and tokenizer."""
    config = folder / CONFIG_FILE
    if not config.is_file():
        raise InputError(f"{folder} holds no model: it has no {CONFIG_FILE}; {_instead(folder)}")
    if '"model_type"' not in config.read_text(encoding="utf-8"):
        raise InputError(f"{config} has no model_type: it is no configuration of transformers")
    names = [CONFIG_FILE, *_weights(folder), *(name for name in TOKENIZER_FILES if (folder / name).is_file())]
    if not {"tokenizer.json", "vocab.txt"} & set(names):
        logger.warning("%s has no tokenizer: whoever opens the model must know which one it was trained with", folder)
    return {name: folder / name for name in names}


def _weights(folder: Path) -> list[str]:
    """Names of the weights, each of which opens as safetensors, and of their index."""
    from safetensors import SafetensorError, safe_open

    names, index = [WEIGHTS_FILE], folder / INDEX_FILE
    if not (folder / WEIGHTS_FILE).is_file():
        if not index.is_file():
            has_parts = any(folder.glob("global_step*"))
            there = (
                ", but a part for each process, of which recipes/consolidate_checkpoint.py makes a model" * has_parts
            )
            raise InputError(
                f"{folder} holds no model: it has no {WEIGHTS_FILE}{there}; no weights of another form are uploaded"
            )
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{index} is damaged: {type(error).__name__}") from error
    for name in names:
        try:
            with safe_open(folder / str(name), framework="numpy"):
                pass
        except (SafetensorError, OSError) as error:
            raise InputError(
                f"{folder / str(name)} cannot be opened as safetensors: {error}; nothing is uploaded"
            ) from error
    return names if names == [WEIGHTS_FILE] else [INDEX_FILE, *names]


def _instead(folder: Path) -> str:
    """What else could be pushed of a run without a model."""
    newest, _ = last_complete(folder)
    return "it has no complete checkpoint yet" if newest is None else f"to push its newest checkpoint give {newest}"


def warn_of_what_is_seen(model: ModelFiles, private: bool | None) -> None:
    """Say before a model is published that its settings or its log name paths of this machine, and its report texts of the data."""
    if private:
        return
    for name in (SETTINGS_FILE, RESULTS_FILE, STATE_FILE, "tokenizer_config.json"):
        text = model.files[name].read_text(encoding="utf-8", errors="replace") if name in model.files else ""
        paths = re.findall(r"(?<=[\s\[\"'])/[^\s/\]\"',][^\]\"',\n]*", text)
        if paths:
            logger.warning(
                "%s names %d paths of this machine (%s), which everybody will see",
                *(model.files[name], len(paths), paths[0]),
            )
    reports = [name for name in REPORTS if name in model.files]
    if reports:
        logger.warning(
            "%s in %s may show texts of the data, which everybody will see", " and ".join(reports), model.folder
        )


# The Hub


@dataclass(frozen=True)
class RemoteModel:
    """What a revision of a repository holds.

    Attributes:
        commit: The newest commit.
        files: Name -> SHA-256, or None where the Hub does not say it (small files).
        run_id: The run that it was pushed from, if it was pushed from here.
        description: Of the model, for messages.
    """

    commit: str
    files: Mapping[str, str | None]
    run_id: str | None
    description: str


@dataclass(frozen=True)
class PushTarget:
    """A repository and branch on the Hub.

    Attributes:
        repo_id: owner/name.
        revision: Branch; None: main.
        private: What a new repository is; None: what the owner's default is.
        overwrite: Another model that lies there is replaced.
        run_ids: Runs whose model it may hold.
    """

    repo_id: str
    revision: str | None = None
    private: bool | None = True
    overwrite: bool = False
    run_ids: frozenset[str] = frozenset()

    def replaces(self, remote: RemoteModel, hash_weights: Callable[[], Mapping[str, str]] | None = None) -> bool:
        """Tell whether a push replaces another model: neither one of these runs nor the same weights; refuse it where not allowed.

        Args:
            remote: What lies there.
            hash_weights: Name -> SHA-256 of the weights that are to be pushed; called only where nothing else decides.
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
            f"{name} holds another model ({remote.description}); give another repository or branch, or replace it with "
            "--overwrite true (--hub_overwrite true in training): its history stays"
        )


def check_names(repo_id: str, revision: str | None) -> None:
    """See without the network that a repository and a branch can bear their names."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise InputError(
            f"'{repo_id}' cannot be a repository of the Hub: give name or owner/name, of letters, digits, '-', '_' and '.' ({error})"
        ) from error
    if revision is not None and (not revision or re.fullmatch(r"[0-9a-f]{40}|.*(\s|\.\.).*", revision)):
        raise InputError(f"'{revision}' is a commit or cannot be a branch: give a branch, which is made if need be")


def check_full_name(repo_id: str, flag: str) -> None:
    """See without the network that a name says whose repository it is."""
    if not re.fullmatch(r"[^/\s]+/[^/\s]+", repo_id):
        raise InputError(
            f"{flag} '{repo_id}' is not NAMESPACE/NAME: give your name on the Hub, or that of your organisation, and the "
            "repository's, for example me/my-bert"
        )


def refuse_token_flags(argv: Sequence[str]) -> None:
    """Refuse a token on a command line, whatever the script calls it."""
    for argument in argv:
        flag = argument.split("=")[0].replace("-", "_")
        if flag.startswith("__") and flag.endswith("token"):
            raise InputError(f"{argument.split('=')[0]}: {TOKEN_ADVICE}")


def open_target(
    wanted: PushTarget, *, later: str, hash_weights: Callable[[], Mapping[str, str]] | None = None
) -> PushTarget:
    """Ask the Hub whether a model may be pushed; make the repository and the branch where there are none.

    Args:
        wanted: its repo_id may lack the owner: then it is the user.
        later: what to do where the Hub cannot be reached.
        hash_weights: of the model, where it is there already (`PushTarget.replaces`).

    Returns:
        The target with the full name.
    """
    check_names(wanted.repo_id, wanted.revision)
    reason = why_unreachable()
    if reason is not None:
        raise InputError(f"{reason}, so nothing was uploaded; {later}")
    source = _check_token()
    api = make_client()
    with _asking("whose the token is", later, {401: f"the token in {source} is not valid (401): renew it"}):
        answer: dict[str, Any] = api.whoami()
        owner = str(answer["name"])
    if ((answer.get("auth") or {}).get("accessToken") or {}).get("role") == "read":
        raise InputError(f"the token in {source} may only read; make one that may write: `hf auth login`")
    name = wanted.repo_id if "/" in wanted.repo_id else f"{owner}/{wanted.repo_id}"
    target = replace(wanted, repo_id=name)
    with _asking(f"the repository {name}", later):
        _find_or_create(api, target, owner)
    refused = f"{name}: the token in {source} may not write to this repository; give one of your own"
    with _asking(f"the right to write to {name}", later, {401: refused, 403: refused}):
        _check_write(api, name)
    with _asking(f"the repository {name}", later):
        if wanted.revision not in (None, MAIN):
            _find_or_create_branch(api, name, str(wanted.revision))
        remote = read_remote(api, name, wanted.revision)
    if target.replaces(remote, hash_weights):
        logger.warning("%s: the model there (%s) will be replaced; its history stays", name, remote.description)
    return target


def make_client(seconds: float = ASKING) -> HfApi:
    """The library's client, which by itself would wait for ever for an answer, and here waits so many seconds."""
    from huggingface_hub import HfApi, get_session, set_client_factory
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():  # a log
        disable_progress_bars()
    session = get_session()
    if session.timeout.read is None:  # the library's own
        kind, hooks, limits = type(session), session.event_hooks, (_CONNECTING, UPLOADING, UPLOADING, None)
        set_client_factory(lambda: kind(event_hooks=hooks, follow_redirects=True, timeout=limits))
        session = get_session()
    # For connecting, reading, writing, and waiting for a free connection, which never takes long.
    session.timeout = (_CONNECTING, seconds, seconds, None)
    # True: never without the token, also where the environment says that requests bear none unless asked for.
    return HfApi(token=True)


def hub_errors() -> tuple[type[BaseException], ...]:
    """What the library raises where the Hub refuses, cannot be reached, or answers nonsense."""
    from huggingface_hub.errors import HfHubHTTPError

    # Its bases are OSError and the class of the HTTP library, which is another one since version 2.
    return (*HfHubHTTPError.__bases__, RuntimeError, ValueError, KeyError)


def status_of(error: BaseException | None) -> int | None:
    """HTTP status of the answer behind an error; None where there was no answer."""
    while error is not None:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
        error = error.__cause__
    return None


def _describe(error: BaseException) -> str:
    """One line of what the Hub or the network said."""
    parts: list[str] = []
    seen: BaseException | None = error
    while seen is not None:
        lines = str(getattr(seen, "server_message", None) or seen).strip().splitlines()
        parts.append(lines[0].rstrip(". ") if lines else type(seen).__name__)
        seen = seen.__cause__
    text, status = ": ".join(dict.fromkeys(parts)), status_of(error)
    return text if status is None else f"{status}: {text}"


def _check_token() -> str:
    """See that there is a token that a request can hold (a library's message about another one would show it); say its source."""
    from huggingface_hub import get_token

    token = get_token()
    if token is None:
        raise InputError("no token for the Hub: log in with `hf auth login`, or set HF_TOKEN in the environment")
    names = [name for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if os.environ.get(name)]
    source = f"the environment ({names[0]})" if names else "the login of `hf auth login`"
    if not re.fullmatch(r"[!-~]+", token):
        raise InputError(f"the token in {source} has a blank or another character that no token has; copy it again")
    return source


def _find_or_create(api: HfApi, target: PushTarget, owner: str) -> None:
    """Make a repository where there is none, the one sound test of the right to make it; refuse to publish what is private."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    name = target.repo_id
    try:
        is_private = api.model_info(name, timeout=ASKING).private
    except GatedRepoError as error:
        raise InputError(f"{name} is gated and this token may not enter it; give a repository of your own") from error
    except RepositoryNotFoundError:
        kind = {None: "as is usual there", True: "private", False: "public"}[target.private]
        logger.info("%s: made on the Hub, %s", name, kind)
        try:
            api.create_repo(name, private=target.private, exist_ok=True)
        except hub_errors() as error:
            if status_of(error) not in (401, 403):
                raise
            is_own = name.split("/")[0] == owner
            whose = "the token has no right to make repositories" if is_own else f"{owner} may not write there"
            raise InputError(
                f"{name} cannot be made on the Hub ({status_of(error)}): {whose}; give a repository under {owner}/"
            ) from error
        return
    if is_private is False and target.private:
        raise InputError(
            f"{name} is a public repository, and a push is private unless you say otherwise: to publish the model give "
            "--private false (--hub_private_repo false in training), or give another repository"
        )
    if is_private and target.private is False:
        logger.warning("%s is private and stays so; its settings on the Hub make it public", name)


def _check_write(api: HfApi, name: str) -> None:
    """`HfApi.auth_check(write=True)`, which older libraries do not have."""
    from huggingface_hub import get_session
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

    url = f"{api.endpoint}/api/models/{name}/auth-check/write"
    hf_raise_for_status(get_session().get(url, headers=build_hf_headers(token=True)))


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


@contextmanager
def _asking(what: str, later: str, answers: Mapping[int, str] | None = None) -> Iterator[None]:
    """Report in one line that a question to the Hub failed; answers: HTTP status -> message."""
    try:
        yield
    except InputError:
        raise
    except hub_errors() as error:
        message = (answers or {}).get(status_of(error) or 0)
        raise InputError(
            message or f"the Hub was asked for {what}, and this came of it: {_describe(error)}; {later}"
        ) from error


def read_remote(api: HfApi, repo_id: str, revision: str | None) -> RemoteModel:
    """Ask what a repository holds."""
    info = api.model_info(repo_id, revision=revision, files_metadata=True, timeout=ASKING)
    siblings = info.siblings or []
    files = {item.rfilename: None if item.lfs is None else item.lfs.sha256 for item in siblings}
    run_id = parse_run_id(_read_text(api, repo_id, IDENTITY_FILE, info.sha)) if IDENTITY_FILE in files else None
    architectures = (info.config or {}).get("architectures") or ("a model",)
    size = sum(item.size or 0 for item in siblings if item.lfs is not None)
    described = [architectures[0], f"{size / 1e6:,.1f} MB"]
    if info.last_modified is not None:
        described.append(f"of {info.last_modified:%Y-%m-%d}")
    return RemoteModel(info.sha or "", files, run_id, ", ".join(described))


def _read_text(api: HfApi, repo_id: str, name: str, revision: str | None) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = api.hf_hub_download(repo_id, name, revision=revision, local_dir=folder)
        return Path(path).read_text(encoding="utf-8", errors="replace")


# Uploads


def push(target: PushTarget, model: ModelFiles, message: str, *, tags: Sequence[str] = ()) -> str:
    """Upload a model as one commit: who opens the repository meanwhile sees the former one, never a half.

    Args:
        target: passed `open_target`.
        model: what is uploaded.
        message: of the commit.
        tags: added to those of the card.

    Returns:
        The model's page.

    Raises:
        PushError: It failed for good.
        InputError: A card whose metadata cannot be read; another model has come to lie there meanwhile.
    """
    if CARD_FILE in model.files:
        _read_card(model.files[CARD_FILE])  # before gigabytes are sent
    for wait in (*_WAITS, None):
        try:
            return _push_once(target, model, message, tags)
        except InputError:
            raise
        except Exception as error:  # of several libraries; whatever it is, a run is not lost for it
            status = status_of(error)
            may_pass = status is None or status in _PASSING or status >= 500
            if wait is None or not may_pass or isinstance(error, ValueError | FileNotFoundError):
                raise PushError(f"{target.repo_id}: {_describe(error)}") from error
            logger.warning("push to %s: %s; tried again in %g seconds", target.repo_id, _describe(error), wait)
            time.sleep(wait)
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


def _push_once(target: PushTarget, model: ModelFiles, message: str, tags: Sequence[str]) -> str:
    """One try, with what the Hub holds now."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    api = make_client(UPLOADING)
    remote = read_remote(api, target.repo_id, target.revision)
    others = [name for name in remote.files if name not in model.files]
    if target.replaces(remote, model.hash_weights):
        left = [name for name in others if name != ".gitattributes"]
    else:
        # Weights of an earlier push in another form: one file would be loaded before shards. What else the user has put there stays.
        left = [name for name in others if _PUSHED_WEIGHTS.fullmatch(name)]
        left += _stale_descriptions(api, target, model, remote)
    contents: dict[str, str | bytes] = {name: str(path) for name, path in model.files.items()}
    if tags and (CARD_FILE in model.files or CARD_FILE not in remote.files or CARD_FILE in left):
        contents[CARD_FILE] = _card_with_tags(model, tags)
    operations: list[Any] = [CommitOperationAdd(name, content) for name, content in contents.items()]
    operations += [CommitOperationDelete(name, is_folder=False) for name in left if name not in contents]
    for operation in operations:
        # One after the other: the library's pool of threads would be waited for when a signal ends the process, and would send the
        # same bytes under two names twice.
        if isinstance(operation, CommitOperationAdd) and operation.path_in_repo.endswith(".safetensors"):
            api.preupload_lfs_files(target.repo_id, [operation], revision=target.revision, free_memory=False)
    api.create_commit(
        target.repo_id,
        operations,
        commit_message=message,
        revision=target.revision,
        parent_commit=remote.commit or None,  # what was looked at: whoever has committed since is not written over
    )
    url = f"{api.endpoint}/{target.repo_id}"
    return url if target.revision is None else f"{url}/tree/{target.revision}"


def _stale_descriptions(api: HfApi, target: PushTarget, model: ModelFiles, remote: RemoteModel) -> Collection[str]:
    """What an earlier push of the run says of other weights, as far as this push does not write over it; an edited card stays."""
    told = [name for name in DESCRIPTIONS if name in remote.files and name not in model.files]
    if not told or remote.run_id not in target.run_ids:
        return []
    if all(remote.files.get(name) == digest for name, digest in model.hash_weights().items()):
        return []  # they are its own
    if CARD_FILE in told:
        text = _read_text(api, target.repo_id, CARD_FILE, remote.commit)
        if text != seal_card(text):
            told.remove(CARD_FILE)
    return told


def _card_with_tags(model: ModelFiles, tags: Sequence[str]) -> bytes:
    """The folder's card with the tags, sealed again where it is generated; tags alone where it has none."""
    from huggingface_hub import ModelCardData

    if CARD_FILE not in model.files:
        return f"---\n{ModelCardData(tags=list(dict.fromkeys(tags))).to_yaml()}\n---\n".encode()
    card = _read_card(model.files[CARD_FILE])
    card.data["tags"] = list(dict.fromkeys([*(card.data.get("tags") or ()), *tags]))
    return (seal_card(str(card)) if is_generated_card(model.folder) else str(card)).encode()


def _read_card(path: Path) -> ModelCard:
    from huggingface_hub import ModelCard

    try:
        return ModelCard(path.read_text(encoding="utf-8"))
    except Exception as error:  # of YAML's reader and of the library's several checks
        raise InputError(
            f"{path}: the metadata at its head cannot be read: {' '.join(str(error).split())}; nothing is uploaded"
        ) from error
