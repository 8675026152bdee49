"""Runs that go to the Hub: asked for before they begin, pushed while they train and at the end."""

from __future__ import annotations

import fnmatch
import glob
import logging
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from huggingface_hub import HfApi, ModelCard, ModelInfo, get_token
from huggingface_hub.utils import disable_progress_bars
from safetensors import SafetensorError, safe_open
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from bert_recipes.checkpointing import (
    ASIDE_PREFIX,
    last_complete,
    list_checkpoints,
    may_replace_card,
    read_run_id,
    read_run_ids,
    seal_card,
    why_incomplete,
)
from bert_recipes.errors import InputError, PushError, first_line, is_main_process
from bert_recipes.files import atomic_write, read_json_object
from bert_recipes.hub_access import network_errors, why_unreachable
from bert_recipes.run_folder import (
    CARD_FILE,
    CARD_SETTINGS_FILE,
    CONFIG_FILE,
    FIT_FILE,
    MANIFEST_FILE,
    MARKDOWN_FILE,
    MODEL_CONFIG_FILE,
    PAGE_FILE,
    PROBE_FILE,
    RESULTS_FILE,
    RUN_ID_FILE,
    STATE_FILE,
    TASK_FILE,
    UNFINISHED_FILE,
    WEIGHTS_FILE,
)
from bert_recipes.shipped import command_hint


logger = logging.getLogger(__name__)

# A model; optimizer states are pickles, and are never uploaded.
MODEL_FILES = (
    MODEL_CONFIG_FILE,
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    FIT_FILE,
    # of ELECTRA
    "generator/config.json",
    "generator/model*.safetensors",
)
# Beside it: card, settings, metrics, report. What a run predicts is its data.
OTHER_FILES = (
    "LICENSE",
    CARD_FILE,
    CARD_SETTINGS_FILE,
    PROBE_FILE,
    CONFIG_FILE,
    TASK_FILE,
    RUN_ID_FILE,
    RESULTS_FILE,
    STATE_FILE,
    MARKDOWN_FILE,
    PAGE_FILE,
    "[!.]*.png",
    "[!.]*.svg",
)
# What a repository without a model may hold: no vocabulary, which is text too.
_NO_MODEL = re.compile(
    r"\.gitattributes|LICENSE.*|(?!.*(vocab|merges)\.txt$).*\.(md|txt|png|svg)", re.IGNORECASE
)
INDEX_FILE = "model.safetensors.index.json"
# Weights of an earlier push, which would be loaded before those in another form.
_WEIGHTS = ["model*.safetensors", "model.safetensors.index.json", "pytorch_model*"]


# A run's pushes


def check_push(args: Any) -> None:
    """See in the main process, before anything is loaded, that the run may be pushed.

    Its hub_model_id becomes the full name.
    """
    if not args.push_to_hub:
        return
    if args.hub_strategy == "checkpoint":
        raise InputError(
            "hub_strategy 'checkpoint' would upload the optimizer's state, which is a pickle; "
            "allowed: end, every_save (each save is a commit), all_checkpoints (the models of all "
            "of them, in folders)"
        )
    if is_main_process() and not args.hub_is_checked:
        target = _target(args)
        command = push_command(Path(args.output_dir), target)
        later = f"train without --push_to_hub and push the run afterwards: {command}"
        target = open_target(target, later=later)
        args.hub_model_id = target.repo_id
        args.hub_replaced_files = target.replaced_files
    args.hub_is_checked = True


class PushCheckpoints(TrainerCallback):
    """Pushes the model of each checkpoint beside the training, as hub_strategy says.

    A push that fails is a warning.
    """

    # The push that was started last.
    last: ClassVar[Future[Any] | None] = None

    def __init__(self) -> None:
        self.api = HfApi(token=True)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin to push the checkpoint that was just saved, unless a signal ends the run."""
        is_interrupted = getattr(control, "is_interrupted", False)
        if args.hub_strategy == "end" or not state.is_world_process_zero or is_interrupted:
            return
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        last = PushCheckpoints.last
        if last is not None and not last.done() and not args.hub_always_push:
            logger.info("%s is not pushed: the push before it is not done", checkpoint)
            return
        try:
            copy = _copy_model(checkpoint)
        except (OSError, InputError) as error:
            _warn(args, checkpoint, error)
            return
        PushCheckpoints.last = self.api.run_as_future(_push_copy, self.api, args, checkpoint, copy)


def _copy_model(checkpoint: Path) -> Path:
    """Copy what is pushed of a checkpoint: training may delete it before it is uploaded."""
    copy = checkpoint.with_name(f"{ASIDE_PREFIX}push-{checkpoint.name}")
    shutil.rmtree(copy, ignore_errors=True)
    names = list_files(checkpoint)
    _check_links(checkpoint, names)
    for name in names:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(checkpoint / name, copy / name)
    return copy


def _push_copy(api: HfApi, args: Any, checkpoint: Path, copy: Path) -> None:
    """Push the copy of a checkpoint to the top or to a folder of its own, and delete the copy.

    What lies there afterwards is the run's: later pushes delete nothing more of another model.
    """
    target = _target(args)
    folder = f"{checkpoint.name}/" if args.hub_strategy == "all_checkpoints" else ""
    try:
        commit = api.upload_folder(
            repo_id=target.repo_id,
            revision=target.revision,
            folder_path=copy,
            path_in_repo=folder,
            delete_patterns=_delete_patterns(target, folder),
            commit_message=f"Training in progress, step {checkpoint.name.partition('-')[2]}",
        )
    except Exception as error:  # of several libraries; whatever it is, a run is not lost for it
        _warn(args, checkpoint, error)
        return
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    logger.info("pushed %s: %s", checkpoint, commit.commit_url)
    # Files in this folder are the run's now; at the top of the repository ("") all are.
    names = args.hub_replaced_files
    args.hub_replaced_files = tuple(name for name in names if not name.startswith(folder))


def _warn(args: Any, checkpoint: Path, error: BaseException) -> None:
    advice = f"To push it: {push_command(checkpoint, _target(args))}"
    if args.hub_strategy == "all_checkpoints":  # each in a folder of the run's repository
        command = push_command(Path(args.output_dir), _target(args))
        advice = f"When the run is finished, push it with them: {command} --checkpoints true"
    logger.warning(
        "%s is not on the Hub: %s; training continues. %s", checkpoint, first_line(error), advice
    )


def push_run(args: Any, step: int) -> str | None:
    """Push the finished run in output_dir, in the main process; returns the model's page."""
    if not args.push_to_hub or args.process_index != 0:
        return None
    check_push(args)
    folder = Path(args.output_dir)
    if PushCheckpoints.last is not None:
        PushCheckpoints.last.exception()  # waits for it
    target = _target(args)
    try:
        names = collect_files(folder, ends_run=True)
        return push(target, folder, names, f"End of training, step {step}")
    except (InputError, OSError) as error:
        raise PushError(
            f"the run is finished and complete in {folder}, but not on the Hub: {error}; push it "
            f"with {push_command(folder, target)}"
        ) from error


def _target(args: Any) -> PushTarget:
    """Return where a run goes; what it, or the run that it resumes, has pushed is its own."""
    folder = Path(args.output_dir)
    sources = []
    # Before `check_push` it is the run that lies there and would be overwritten.
    if args.hub_is_checked or not args.overwrite_run:
        sources.append(folder)
    if args.resume not in ("auto", "last", "no"):
        sources.append(Path(args.resume))
    return PushTarget(
        repo_id=args.hub_model_id or folder.absolute().name,  # as stock has it
        revision=args.hub_revision,
        private=args.hub_private_repo,
        overwrite=args.hub_overwrite,
        tags=tuple(args.hub_tags or ()),
        run_ids=read_run_ids(sources),
        replaced_files=args.hub_replaced_files,
    )


# The files of a model


def list_files(folder: Path, patterns: Sequence[str] = MODEL_FILES + OTHER_FILES) -> list[str]:
    """Return the names of what is uploaded of a run, a checkpoint or any model folder."""
    names: dict[str, None] = {}
    for pattern in patterns:
        for path in sorted(folder.glob(pattern)):
            names[path.relative_to(folder).as_posix()] = None
    return list(names)


def collect_files(
    folder: Path, *, with_checkpoints: bool = False, ends_run: bool = False
) -> list[str]:
    """See that a folder holds a complete model, and return the names of what is uploaded of it.

    Args:
        with_checkpoints: Also the models of its checkpoints.
        ends_run: The run itself pushes, as its last step: it is not marked as finished yet.
    """
    if not folder.is_dir():
        raise InputError(
            f"no folder {folder}; give the folder of a finished run or of a checkpoint"
        )
    is_checkpoint = (folder / MANIFEST_FILE).is_file()
    if not is_checkpoint and not ends_run:
        _check_finished(folder)
    if is_checkpoint:
        reason = why_incomplete(folder)
        if reason is not None:
            raise InputError(f"{folder} is no complete checkpoint: {reason}")
    names = list_files(folder)
    _check_weights(folder, names)
    _check_links(folder, names)
    if not with_checkpoints:
        return names
    for checkpoint in list_checkpoints(folder):
        reason = why_incomplete(checkpoint)
        if reason is not None:
            logger.warning("%s is left out: %s", checkpoint, reason)
            continue
        # By its run's id a push that was interrupted is continued.
        files = list_files(checkpoint, (*MODEL_FILES, RUN_ID_FILE))
        names += [f"{checkpoint.name}/{name}" for name in files]
    return names


def _check_finished(folder: Path) -> None:
    """Refuse the folder of a run that has not come to its end."""
    is_run = (folder / CONFIG_FILE).is_file()
    has_results = (folder / RESULTS_FILE).is_file()
    if not is_run or (has_results and not (folder / UNFINISHED_FILE).is_file()):
        return
    newest, _ = last_complete(folder)
    advice = "it has no complete checkpoint yet"
    if newest is not None:
        advice = f"to push its newest one give {newest}"
    advice += "; to finish the run, give its command again"
    raise InputError(f"{folder} holds a run that has not come to its end; {advice}")


def _check_links(folder: Path, names: Sequence[str]) -> None:
    """Refuse links out of a folder: what they lead to would be published."""
    for name in names:
        if not (folder / name).resolve().is_relative_to(folder.resolve()):
            raise InputError(f"{folder / name} leads out of {folder}; nothing is uploaded")


def _check_weights(folder: Path, names: Sequence[str]) -> None:
    """Refuse a folder without configuration or all weights, which must open as safetensors."""
    weights = [name for name in names if name.endswith(".safetensors")]
    if INDEX_FILE in names and WEIGHTS_FILE not in names:
        weights = _weights_of_index(folder / INDEX_FILE)
    # Not ELECTRA's generator or TinyBERT's layer alone.
    has_weights = any("/" not in name and name != FIT_FILE for name in weights)
    if MODEL_CONFIG_FILE not in names or not has_weights:
        raise InputError(
            f"{folder} holds no model: it has no {MODEL_CONFIG_FILE} or no model.safetensors; "
            "weights of another form are not uploaded (of a DeepSpeed checkpoint "
            "recipes/convert_checkpoint.py makes a model)"
        )
    for name in weights:
        try:
            with safe_open(folder / name, framework="numpy"):
                pass
        except (SafetensorError, OSError) as error:
            raise InputError(
                f"{folder / name} cannot be opened as safetensors: {error}; nothing is uploaded"
            ) from error


def _weights_of_index(file: Path) -> list[str]:
    """Return the names of the files over which an index spreads the weights."""
    weight_map = read_json_object(file).get("weight_map")
    if not isinstance(weight_map, dict):
        raise InputError(f"{file}: no weight_map in it; it is no index of weights")
    return sorted(set(map(str, weight_map.values())))


# The Hub


@dataclass(frozen=True)
class PushTarget:
    """A repository and branch on the Hub, and what is said of the model there.

    Attributes:
        replaced_files: Files of another model that lay there when `open_target` looked. None may
            stay: a tokenizer would be loaded beside the new weights. Checkpoints of `run_ids` and
            files that are not of the model are not among them, and a push of a training takes out
            those of its folder.
    """

    repo_id: str  # owner/name, or a name of the user's
    revision: str | None = None  # branch; None: main
    private: bool | None = True  # of a new repository; None: what the owner's default is
    overwrite: bool = False  # another model that lies there is replaced
    tags: tuple[str, ...] = ()  # added to those of the card
    run_ids: frozenset[str] = frozenset()  # runs whose model it may hold
    replaced_files: tuple[str, ...] = ()


def open_target(target: PushTarget, *, later: str) -> PushTarget:
    """Ask the Hub whether a model may be pushed; repository and branch are made where none are.

    Returns the target with its full name. `later` says what to do where the Hub cannot be reached.
    """
    reason = why_unreachable()
    if reason is not None:
        raise InputError(f"{reason}, so nothing was uploaded; {later}")
    _check_token()
    if not sys.stderr.isatty():  # a log
        disable_progress_bars()
    api = HfApi(token=True)
    try:
        name = api.create_repo(target.repo_id, private=target.private, exist_ok=True).repo_id
        api.auth_check(name, write=True)
        target = replace(target, repo_id=name)
        if target.revision is not None:
            _make_branch(api, name, target.revision)
        info = api.model_info(name, revision=target.revision)
        _check_readers(target, info)
        replaced_files = _files_of_other_model(api, target, info)
    except InputError:
        raise
    except network_errors(ValueError) as error:
        raise InputError(
            f"{target.repo_id} cannot be pushed to: {first_line(error)}; give a repository that "
            f"your token may write to, or {later}"
        ) from error
    return replace(target, replaced_files=replaced_files)


def _make_branch(api: HfApi, name: str, revision: str) -> None:
    """Make a branch where there is none; it begins empty, and not with what main holds."""
    tags = [tag.name for tag in api.list_repo_refs(name).tags]
    if revision in tags:
        raise InputError(
            f"{revision} is a tag of {name}, and nothing can be pushed to a tag; give a branch"
        )
    first = api.list_repo_commits(name)[-1].commit_id
    api.create_branch(name, branch=revision, revision=first, exist_ok=True)


def _check_token() -> None:
    """Refuse a missing token, and one that an error message about the request would show."""
    token = get_token()
    if token is None:
        raise InputError(
            "no token for the Hub: log in with `hf auth login`, or set HF_TOKEN in the environment"
        )
    if not re.fullmatch(r"[!-~]+", token):
        raise InputError(
            "the token for the Hub has a blank or another character that no token has; copy it "
            "again"
        )


def _check_readers(target: PushTarget, info: ModelInfo) -> None:
    """Refuse to publish what is meant to be private, and say who will see the rest."""
    name = target.repo_id
    if target.private and not info.private:
        raise InputError(
            f"{name} is a public repository, and a push is private unless you say otherwise: to "
            "publish the model give --private false (--hub_private_repo false in training), or "
            "give another repository"
        )
    if not info.private:
        warn_of_readers(name)
    elif target.private is False:
        logger.warning("%s is private and stays so; its settings on the Hub make it public", name)


def warn_of_readers(repo_id: str) -> None:
    """Say what everybody will see in a public repository."""
    logger.warning(
        "everybody will see what is pushed to %s: paths of this machine in run.yaml, "
        "all_results.json, the report and the log, texts of the data in the report and the card",
        repo_id,
    )


def _files_of_other_model(api: HfApi, target: PushTarget, info: ModelInfo) -> tuple[str, ...]:
    """Return the files of another model that the user lets be replaced; refuse it otherwise."""
    names = [item.rfilename for item in info.siblings or ()]
    if RUN_ID_FILE in names and _is_of_run(api, target, info, RUN_ID_FILE):
        return ()
    for file in fnmatch.filter(names, f"checkpoint-*/{RUN_ID_FILE}"):
        if _is_of_run(api, target, info, file):
            folder = file.removesuffix(RUN_ID_FILE)
            names = [name for name in names if not name.startswith(folder)]
    model_files = tuple(name for name in names if not _NO_MODEL.fullmatch(name))
    if model_files and not target.overwrite:
        raise InputError(
            f"{target.repo_id} holds another model; give another repository or branch, or replace "
            "it with --overwrite true (--hub_overwrite true in training): its history stays"
        )
    return model_files


def _is_of_run(api: HfApi, target: PushTarget, info: ModelInfo, identity_file: str) -> bool:
    """Return whether a folder on the Hub was pushed by a run whose model may lie there."""
    path = Path(api.hf_hub_download(target.repo_id, identity_file, revision=info.sha))
    return read_run_id(path.parent) in target.run_ids


def push(target: PushTarget, folder: Path, names: Sequence[str], message: str) -> str:
    """Upload files of a folder; returns the model's page.

    This is one commit; above 250 files, or 100 MB of files that are not LFS, huggingface_hub makes
    several. The target has passed `open_target`. Whatever fails is a `PushError`.
    """
    api = HfApi(token=True)
    try:
        _add_tags(folder, target.tags)
        api.upload_folder(
            repo_id=target.repo_id,
            revision=target.revision,
            folder_path=folder,
            allow_patterns=[glob.escape(name) for name in names],
            delete_patterns=_delete_patterns(target),
            commit_message=message,
        )
    except Exception as error:  # of several libraries; whatever it is, a run is not lost for it
        raise PushError(f"{target.repo_id}: {first_line(error)}") from error
    page = f"{api.endpoint}/{target.repo_id}"
    return page if target.revision is None else f"{page}/tree/{target.revision}"


def _delete_patterns(target: PushTarget, folder: str = "") -> list[str]:
    """Return the files that a push deletes, unless it sends them anew, by their names in a folder.

    Args:
        folder: "", the top of the repository, or the name of a folder with a slash.
    """
    names = [name for name in target.replaced_files if name.startswith(folder)]
    return [*_WEIGHTS, *(glob.escape(name.removeprefix(folder)) for name in names)]


def _add_tags(folder: Path, tags: Sequence[str]) -> None:
    """Add tags to the card in a folder; one that is generated is still known as such."""
    file = folder / CARD_FILE
    if tags and not file.is_file():
        message = "%s has no %s, which would have the tags; they are left out: %s"
        logger.warning(message, folder, CARD_FILE, ", ".join(tags))
    if not tags or not file.is_file():
        return
    is_generated = may_replace_card(folder)
    card = ModelCard.load(file)
    card.data.tags = list(dict.fromkeys([*(card.data.tags or ()), *tags]))
    text = seal_card(str(card)) if is_generated else str(card)
    with atomic_write(file) as aside:
        aside.write_text(text, encoding="utf-8")


def push_command(folder: Path, target: PushTarget) -> str:
    """Return what pushes a model afterwards; whose the repository is may not be known yet."""
    name = target.repo_id if "/" in target.repo_id else f"NAMESPACE/{target.repo_id}"
    words = ["--run", str(folder), "--repo", name]
    if target.revision is not None:
        words += ["--revision", target.revision]
    if not target.private:
        words += ["--private", "null" if target.private is None else "false"]
    if target.overwrite:
        words += ["--overwrite", "true"]
    if target.tags:
        words += ["--tags", *target.tags]
    return push_command_of(words)


def push_command_of(flags: Sequence[str]) -> str:
    """Return the command that pushes with these flags."""
    command = command_hint(
        checkout="python recipes/push_to_hub.py", wheel="bert-recipes push-to-hub"
    )
    return f"{command} {shlex.join(flags)}"
