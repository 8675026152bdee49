"""Runs that go to the Hub: seen to before they begin, pushed beside the training and at its end, never lost for a push."""

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
from traceback import format_exception
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
from bert_recipes.config import read_tree
from bert_recipes.errors import InputError, PushError
from bert_recipes.files import hash_of
from bert_recipes.hub_access import why_unreachable


if TYPE_CHECKING:
    from huggingface_hub import HfApi, ModelCard


logger = logging.getLogger(__name__)


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
        target = _checked_target(args)
        done = push(target, model, f"Training in progress, step {step}", tags=args.hub_tags or ())
        logger.info("pushed step %d: %s", step, done.url)
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
        done = push(target, model, f"End of training, step {step}", tags=tags)
    except (InputError, OSError) as error:
        command = push_command(folder, target, tags)
        raise PushError(
            f"the run is finished and complete in {folder}, but not on the Hub: {error}; push it with {command}"
        ) from error
    logger.info("pushed %.1f MB: %s", model.size / 1e6, done.url)
    return done.url


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


# Seconds that a connection may take, and an answer: to a question, and to an upload, whose parts the server joins and checks.
_CONNECTING, ASKING, UPLOADING = 5.0, 15.0, 120.0
# Answers after which the same request may be answered better: too late, conflict, too early, too many, and all faults of the server.
_PASSING = frozenset({408, 409, 412, 425, 429})
_SIGNED_URL = re.compile(r"(https?://[^\s'\"?]+)\?[^\s'\"]*")
_TOKEN = re.compile(r"\bhf_\w{4,}")
_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
# What the library has sent so far, of the environment or of the login; to be kept out of messages. Anything shorter is no token, and
# would be found in every word.
_seen_tokens: set[str] = set()
_SHORTEST = 4

TOKEN_ADVICE = (
    "a token on the command line or in a file of settings is seen by everybody who lists the processes, and would be kept; log in with "
    "`hf auth login`, or set HF_TOKEN in the environment"
)


def make_client(seconds: float = ASKING) -> HfApi:
    """The library's client, which by itself would wait for ever for an answer.

    Args:
        seconds: How long an answer may take.
    """
    from huggingface_hub import HfApi, get_session, set_client_factory
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():  # a log
        disable_progress_bars()
    session = get_session()
    if session.timeout.read is None:  # the library's own
        kind, hooks = type(session), session.event_hooks
        set_client_factory(lambda: kind(event_hooks=hooks, follow_redirects=True, timeout=_limits(UPLOADING)))
        session = get_session()
    session.timeout = _limits(seconds)
    _hide_signatures()
    # True: never without the token, also where the environment says that requests bear none unless asked for.
    return HfApi(token=True)


def _limits(seconds: float) -> tuple[float, float, float, None]:
    """For connecting, reading, writing, and waiting for a free connection, which never takes long."""
    return _CONNECTING, seconds, seconds, None


def hub_errors() -> tuple[type[BaseException], ...]:
    """What the library raises where the Hub refuses, cannot be reached, or answers nonsense."""
    from huggingface_hub.errors import HfHubHTTPError

    # Its bases are OSError and the class of the HTTP library, which is another one since version 2.
    return (*HfHubHTTPError.__bases__, RuntimeError, ValueError, KeyError)


def status_of(error: BaseException) -> int | None:
    """HTTP status of the answer behind an error; None where there was no answer."""
    seen: BaseException | None = error
    while seen is not None:
        status = getattr(getattr(seen, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
        seen = seen.__cause__
    return None


def may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed on another try."""
    status = status_of(error)
    if status is not None:
        return status in _PASSING or status >= 500
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.filename is not None:  # a file that cannot be read
            return False
        seen = seen.__cause__
    # ValueError: what is sent is wrong. Everything else is the network: HTTP libraries, Xet's client.
    return not isinstance(error, InputError | ValueError | KeyError | TypeError)


def describe(error: BaseException) -> str:
    """One line of what the Hub or the network said, without a token or the signature of a URL."""
    parts: list[str] = []
    seen: BaseException | None = error
    while seen is not None:
        server_message = getattr(seen, "server_message", None)
        lines = str(server_message or seen).strip().splitlines()
        text = lines[0].rstrip(". ") if lines else type(seen).__name__
        status = getattr(getattr(seen, "response", None), "status_code", None)
        parts.append(f"{status}: {text}" if status is not None and str(status) not in text else text)
        seen = None if status is not None else seen.__cause__
    return redact(": ".join(dict.fromkeys(parts)))


def redact(text: str) -> str:
    """A text without the user's token, anything that looks like one, and signatures of URLs.

    Asks nobody for the token: that may itself go over the network, and write a log in which it is looked for.
    """
    for own in _seen_tokens | {os.environ.get(name, "").strip() for name in _VARIABLES}:
        if len(own) >= _SHORTEST:
            text = text.replace(own, "<token>")
    return _TOKEN.sub("<token>", _SIGNED_URL.sub(r"\1", text))


def own_token() -> str | None:
    """The token of the environment or the login."""
    from huggingface_hub import get_token

    try:
        token = get_token()
    except hub_errors() as error:  # a login of a CI that does not work
        raise InputError(f"no token for the Hub: {_TOKEN.sub('<token>', str(error))}") from error
    if token:
        _seen_tokens.add(token)
    return token


def token_source() -> str:
    """Where the token comes from, for messages."""
    names = [name for name in _VARIABLES if os.environ.get(name)]
    return f"the environment ({names[0]})" if names else "the login of `hf auth login`"


def refuse_token_flags(argv: Sequence[str]) -> None:
    """Refuse a token on a command line, whatever the script calls it."""
    for argument in argv:
        flag = argument.split("=")[0].replace("-", "_")
        if flag.startswith("__") and flag.endswith("token"):
            raise InputError(f"{argument.split('=')[0]}: {TOKEN_ADVICE}")


class _SignatureFilter(logging.Filter):
    """Takes the signatures out of URLs: who has one may write to the Hub's storage for an hour."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record, and let it pass."""
        record.msg, record.args = redact(record.getMessage()), ()
        return True


def _hide_signatures() -> None:
    # The library warns of each try that fails, and the HTTP library (whose name depends on the version) tells of each request, with
    # the whole URL.
    for name in ("huggingface_hub.utils._http", "httpx", "httpx2"):
        log = logging.getLogger(name)
        if not any(isinstance(item, _SignatureFilter) for item in log.filters):
            log.addFilter(_SignatureFilter())


class BackgroundPushes:
    """Jobs that a thread does in their order.

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
        """Do a job after those before it.

        Args:
            job: Raises nothing.
        """
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
            except Exception as error:  # a bug of ours, which shall end no run
                logger.error("a push failed: %s", redact("".join(format_exception(error))))
            finally:
                self._jobs.task_done()


_pushes = BackgroundPushes()

CONFIG_FILE, WEIGHTS_FILE, INDEX_FILE = "config.json", "model.safetensors", "model.safetensors.index.json"
SETTINGS_FILE, RESULTS_FILE = "run.yaml", "all_results.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "special_tokens_map.json",
    "added_tokens.json",
)
# Beside the weights: card and what it is made of, settings, figures, report. Optimiser states are pickles, and what a run predicts
# is its data.
REPORTS = ("report.md", "report.html")
OTHER_FILES = (
    *("generation_config.json", "LICENSE", CARD_FILE, "card.yaml", "bias_probe.json"),
    *(SETTINGS_FILE, "task.yaml", IDENTITY_FILE, RESULTS_FILE, STATE_FILE, *REPORTS),
)
PICTURES = ("*.png", "*.svg")
# What a run writes of its weights; beside other weights it would be wrong.
DESCRIPTIONS = (CARD_FILE, "bias_probe.json", RESULTS_FILE, STATE_FILE, *REPORTS, "losses.png")


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model.

    Attributes:
        folder: Where they lie.
        files: Name in the repository -> file.
        weights: Names of the weights.
    """

    folder: Path
    files: Mapping[str, Path]
    weights: tuple[str, ...]

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
        return {name: hash_of(self.files[name]) for name in self.weights}


def collect_files(folder: Path, *, with_checkpoints: bool = False) -> ModelFiles:
    """List what of a run, a checkpoint or any model folder is uploaded, and see that it is a model.

    Args:
        folder: Has config.json and weights as safetensors.
        with_checkpoints: Also the models of the complete checkpoints in it, as `checkpoint-N/`.
    """
    _check_folder(folder)
    if (folder / MANIFEST_FILE).is_file():
        reason = why_incomplete(folder)
        if reason is not None:
            raise InputError(f"{folder} is no complete checkpoint: {reason}")
    elif (folder / SETTINGS_FILE).is_file() and not (folder / RESULTS_FILE).is_file():
        raise InputError(f"{folder} holds a run that has not come to its end; {_instead(folder)}")
    model = list_files(folder)
    if not with_checkpoints:
        return model
    files = dict(model.files)
    for checkpoint in list_checkpoints(folder):
        reason = why_incomplete(checkpoint)
        if reason is not None:
            logger.warning("%s is left out: %s", checkpoint, reason)
            continue
        files |= {f"{checkpoint.name}/{name}": path for name, path in model_alone(checkpoint).items()}
    return ModelFiles(folder, files, model.weights)


def list_files(folder: Path) -> ModelFiles:
    """As `collect_files`, of a folder that is known to be whole."""
    files = dict(model_alone(folder))
    weights = tuple(name for name in files if name.endswith(".safetensors"))
    files |= {name: folder / name for name in OTHER_FILES if (folder / name).is_file()}
    for pattern in PICTURES:
        files |= {path.name: path for path in sorted(folder.glob(pattern)) if path.is_file() and path.name[0] != "."}
    return ModelFiles(folder, files, weights)


def model_alone(folder: Path) -> dict[str, Path]:
    """Name -> file of configuration, weights and tokenizer."""
    _check_config(folder)
    names = [CONFIG_FILE, *_weights(folder), *(name for name in TOKENIZER_FILES if (folder / name).is_file())]
    if not {"tokenizer.json", "vocab.txt"} & set(names):
        logger.warning("%s has no tokenizer: whoever opens the model must know which one it was trained with", folder)
    return {name: folder / name for name in names}


def warn_of_what_is_seen(model: ModelFiles, private: bool | None) -> None:
    """Say before a model is published that its settings or its log name paths of this machine, and its report texts of the data.

    Args:
        model: What is published.
        private: Whether it is not.
    """
    if private:
        return
    for name in (SETTINGS_FILE, RESULTS_FILE, STATE_FILE, "tokenizer_config.json"):
        file = model.files.get(name)
        try:
            paths = [] if file is None else list(_paths_in(_read_values(file)))
        except ValueError as error:
            logger.warning("whether paths of this machine will be seen is not known: %s: %s", file, error)
            continue
        if paths:
            logger.warning(
                "%s names %d paths of this machine (%s), which everybody will see", file, len(paths), paths[0]
            )
    reports = [name for name in REPORTS if name in model.files]
    if reports:
        logger.warning(
            "%s in %s may show texts of the data, which everybody will see", " and ".join(reports), model.folder
        )


def _read_values(file: Path) -> Any:
    """A YAML or JSON file as lists and mappings; raises `ValueError` where it is none."""
    if file.suffix == ".yaml":
        return read_tree(file)[0]
    return json.loads(file.read_text(encoding="utf-8"))


def _paths_in(values: Any) -> Iterator[str]:
    """The absolute paths among the texts of lists and mappings."""
    if isinstance(values, str) and re.match(r"/[^\s/]", values):
        yield values
    elif isinstance(values, dict | list):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _paths_in(value)


def _check_folder(folder: Path) -> None:
    if not folder.exists():
        raise InputError(f"no folder {folder}; give the folder of a finished run or of a checkpoint")
    if not folder.is_dir():
        raise InputError(f"{folder} is a file; give the folder that it lies in")


def _instead(folder: Path) -> str:
    """What else could be pushed of a run without a model."""
    newest, _ = last_complete(folder)
    return "it has no complete checkpoint yet" if newest is None else f"to push its newest checkpoint give {newest}"


def _check_config(folder: Path) -> None:
    file = folder / CONFIG_FILE
    if not file.is_file():
        raise InputError(f"{folder} holds no model: it has no {CONFIG_FILE}; {_instead(folder)}")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file} is no JSON: {error}") from error
    if not isinstance(content, dict) or "model_type" not in content:
        raise InputError(f"{file} has no model_type: it is no configuration of transformers")


def _weights(folder: Path) -> Iterator[str]:
    """Names of the weights, each of which opens."""
    from safetensors import SafetensorError, safe_open

    names = [WEIGHTS_FILE] if (folder / WEIGHTS_FILE).is_file() else _shards(folder)
    for name in names:
        if name == INDEX_FILE:
            continue
        try:
            with safe_open(folder / name, framework="numpy"):
                pass
        except (SafetensorError, OSError) as error:
            raise InputError(
                f"{folder / name} cannot be opened as safetensors: {error}; nothing is uploaded"
            ) from error
    yield from names


def _shards(folder: Path) -> list[str]:
    index = folder / INDEX_FILE
    if not index.is_file():
        there = ""
        if any(folder.glob("global_step*")):
            there = ", but a part for each process, of which recipes/consolidate_checkpoint.py makes a model"
        raise InputError(
            f"{folder} holds no model: it has no {WEIGHTS_FILE}{there}; no weights of another form are uploaded"
        )
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{index} is damaged: {type(error).__name__}") from error
    for name in names:
        # A name, not a path out of the folder.
        if (
            not isinstance(name, str)
            or not re.fullmatch(r"[\w.-]+\.safetensors", name)
            or not (folder / name).is_file()
        ):
            raise InputError(f"{index} names {name}, which is no safetensors file in {folder}")
    return [INDEX_FILE, *names]


_WEIGHTS = (
    *(".safetensors", ".bin", ".h5", ".msgpack", ".ckpt", ".pt", ".pth", ".onnx", ".gguf", ".keras", ".tflite", ".pb"),
    *(".npz", ".pkl", ".joblib", ".mlmodel", ".nemo", ".data-00000-of-00001"),
)


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

    @property
    def weights(self) -> dict[str, str | None]:
        """Those of the files that may hold weights."""
        return {name: digest for name, digest in self.files.items() if name.endswith(_WEIGHTS)}

    @property
    def is_empty(self) -> bool:
        """Whether there is no model in it."""
        return not self.weights and "config.json" not in self.files

    def is_of(self, run_ids: Collection[str], hash_weights: Callable[[], Mapping[str, str]] | None = None) -> bool:
        """Whether it is an earlier push of the same run, or of the same weights.

        Args:
            run_ids: Any of these runs.
            hash_weights: Name -> SHA-256 of the weights that are to be pushed; called only where nothing else decides.
        """
        if self.run_id is not None and self.run_id in run_ids:
            return True
        known = {name: digest for name, digest in self.weights.items() if "/" not in name}
        return bool(known) and hash_weights is not None and known == dict(hash_weights())


def read_remote(api: HfApi, repo_id: str, revision: str | None) -> RemoteModel:
    """Ask what a repository holds.

    Args:
        api: Of `make_client`.
        repo_id: owner/name.
        revision: Branch; None: main.

    Raises:
        Exception: Those of `hub_errors`.
    """
    info = api.model_info(repo_id, revision=revision, files_metadata=True, timeout=ASKING)
    siblings = info.siblings or []
    files = {item.rfilename: None if item.lfs is None else item.lfs.sha256 for item in siblings}
    run_id = parse_run_id(read_text(api, repo_id, IDENTITY_FILE, info.sha)) if IDENTITY_FILE in files else None
    architectures = (info.config or {}).get("architectures") or ()
    size = sum(item.size or 0 for item in siblings if item.rfilename.endswith(_WEIGHTS))
    described = [architectures[0] if architectures else "a model", f"{size / 1e6:,.1f} MB"]
    if info.last_modified is not None:
        described.append(f"of {info.last_modified:%Y-%m-%d}")
    return RemoteModel(info.sha or "", files, run_id, ", ".join(described))


def read_text(api: HfApi, repo_id: str, name: str, revision: str | None) -> str:
    """The text of a small file in a repository; what is not UTF-8 in it is replaced.

    Raises:
        Exception: Those of `hub_errors`.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = api.hf_hub_download(repo_id, name, revision=revision, local_dir=folder)
        return Path(path).read_text(encoding="utf-8", errors="replace")


def has_own_card(api: HfApi, repo_id: str, remote: RemoteModel) -> bool:
    """Whether a card may be deleted in a repository: there is none, or one as this project wrote it (`is_generated_card`).

    Raises:
        Exception: Those of `hub_errors`.
    """
    with tempfile.TemporaryDirectory() as folder:
        if CARD_FILE in remote.files:
            api.hf_hub_download(repo_id, CARD_FILE, revision=remote.commit, local_dir=folder)
        return is_generated_card(Path(folder))


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
    """See without the network that a repository and a branch can bear their names."""
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
    """Name -> bytes: the card with its tags, sealed again where it is generated."""
    if CARD_FILE in model.files and is_generated_card(model.folder):
        card = seal_card(card.decode()).encode()
    return {CARD_FILE: card}


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


def link_files(checkpoint: Path, *, with_folder: bool = False) -> ModelFiles:
    """The files of a sealed checkpoint under second names, so that they stay when it is deleted before they are uploaded.

    Args:
        checkpoint: `checkpoint-N` in a run's folder.
        with_folder: The model also as `checkpoint-N/`.

    Returns:
        The files in a hidden folder beside the checkpoint.
    """
    aside = checkpoint.with_name(f"{ASIDE_PREFIX}push-{checkpoint.name}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    for path in list_files(checkpoint).files.values():
        try:
            os.link(path, aside / path.name)
        except OSError:  # a file system without hard links
            shutil.copyfile(path, aside / path.name)
    model = list_files(aside)
    if not with_folder:
        return model
    second = {f"{checkpoint.name}/{name}": path for name, path in model_alone(aside).items()}
    return ModelFiles(aside, {**model.files, **second}, model.weights)
