"""Runs that go to the Hub: seen to before they begin, pushed beside the training and at its end, never lost for a push."""

from __future__ import annotations

import logging
import os
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import Trainer
from transformers.trainer_utils import HubStrategy

from bert_recipes.checkpointing import ASIDE_PREFIX
from bert_recipes.errors import InputError, PushError
from bert_recipes.hub.background import BackgroundPushes
from bert_recipes.hub.identity import read_run_id
from bert_recipes.hub.model_files import ModelFiles, collect_files, list_files, model_alone, warn_of_what_is_seen
from bert_recipes.hub.target import MAIN, PushTarget, check_names, open_target
from bert_recipes.hub.upload import push, push_command
from bert_recipes.main_process import ask_main_process, ask_main_process_for_long


if TYPE_CHECKING:
    from bert_recipes.run_arguments import RunArguments

logger = logging.getLogger(__name__)


def check_push(args: RunArguments) -> None:
    """Ask the Hub, before anything is loaded, whether the run may be pushed; does nothing without push_to_hub, or a second time.

    Args:
        args: Its hub_model_id becomes the full name.
    """
    if not args.push_to_hub or args.hub_is_checked:
        return
    args.hub_model_id = ask_main_process(args, lambda: open_target(_target(args), later=_later(args)).repo_id)
    args.hub_is_checked = True


def _target(args: RunArguments) -> PushTarget:
    folder = Path(args.output_dir)
    # The run that goes on here, from wherever: what it pushed before is its own.
    places = [] if args.overwrite_run else [folder]
    places += [Path(args.resume)] if args.resume not in ("auto", "last", "no") else []
    run_ids = frozenset(run_id for run_id in map(read_run_id, places) if run_id is not None)
    name = args.hub_model_id or _name_of(folder)
    return PushTarget(name, args.hub_revision, args.hub_private_repo, args.hub_overwrite, run_ids)


def _name_of(folder: Path) -> str:
    """The repository's name where none is given, as stock has it."""
    name = folder.absolute().name
    try:
        check_names(name, None)
    except InputError as error:
        raise InputError(
            f"output_dir {folder} gives the repository its name, and {error}; give --hub_model_id"
        ) from error
    return name


def _later(args: RunArguments) -> str:
    command = push_command(Path(args.output_dir), _target(args), args.hub_tags or ())
    return f"train without --push_to_hub and push the run afterwards: {command}"


class PushingTrainer(Trainer):
    """`Trainer` whose pushes are those of this project, under the Trainer's own settings.

    Stock writes a model card of its own making, copies each checkpoint over the model in output_dir, uploads whatever else lies
    there, pickles its arguments into it, and ends the run where an upload fails. `on_push_begin` is not called: trackio would make a
    Space of the logs then.
    """

    args: RunArguments
    hub_model_id: str | None
    _has_warned = False

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Do nothing: `check_push` has found or made the repository before anything was loaded."""
        self.hub_model_id, self.push_in_progress = self.args.hub_model_id, None

    def push_to_hub(self, commit_message: str | None = None, **kwargs: Any) -> str | None:
        """Push the finished run in output_dir; call it in all processes, last of all.

        Args:
            commit_message: Default: says the step.
            kwargs: None of those of stock.

        Returns:
            The model's page; None without push_to_hub.

        Raises:
            PushError: It failed for good; the run is whole on the disk.
        """
        if kwargs:
            raise TypeError(f"push_to_hub takes no {', '.join(kwargs)}: the settings hub_* say it")
        if not self.args.push_to_hub:
            return None
        check_push(self.args)
        message = commit_message or f"End of training, step {self.state.global_step}"
        return ask_main_process_for_long(self.args, partial(self._push_run, message))

    def _push_run(self, message: str) -> str:
        folder, tags = Path(self.args.output_dir), self.args.hub_tags or ()
        target = self._own_target(folder)
        self._background.wait()
        try:
            if target.revision in (None, MAIN):
                from bert_recipes.model_card import name_repository  # what it needs is loaded only here

                name_repository(folder, target.repo_id)
            model = collect_files(folder)
            warn_of_what_is_seen(model, target.private)
            done = push(target, model, message, tags=tags)
        except (InputError, OSError) as error:
            command = push_command(folder, target, tags)
            raise PushError(
                f"the run is finished and whole in {folder}, but not on the Hub: {error}; push it with {command}"
            ) from error
        logger.info("pushed %.1f MB: %s", model.size / 1e6, done.url)
        return done.url

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """As stock: push the model of a checkpoint beside the training, unless hub_strategy says to push at the end only."""
        strategy = HubStrategy(self.args.hub_strategy)
        if not self.is_world_process_zero() or strategy == HubStrategy.END:
            return
        if self._background.is_busy and not self.args.hub_always_push:
            logger.info("%s is not pushed: the push before it is not done", checkpoint_folder)
            return
        checkpoint = Path(checkpoint_folder)
        try:
            model = link_files(checkpoint, with_folder=strategy == HubStrategy.ALL_CHECKPOINTS)
            if not self._has_warned:
                warn_of_what_is_seen(list_files(checkpoint), self.args.hub_private_repo)
                self._has_warned = True
        except (InputError, OSError) as error:
            self._report(checkpoint, error)
            return
        self._background.add(partial(self._push_checkpoint, checkpoint, model, self.state.global_step))

    def _push_checkpoint(self, checkpoint: Path, model: ModelFiles, step: int) -> None:
        """In the background: push, report, raise nothing."""
        try:
            target = self._own_target(checkpoint.parent)
            done = push(target, model, f"Training in progress, step {step}", tags=self.args.hub_tags or ())
            logger.info("pushed step %d: %s", step, done.url)
        except (InputError, OSError) as error:
            self._report(checkpoint, error)
        finally:
            shutil.rmtree(model.folder, ignore_errors=True)

    def _report(self, checkpoint: Path, error: Exception) -> None:
        command = push_command(checkpoint, self._own_target(checkpoint.parent), self.args.hub_tags or ())
        logger.warning("%s is not on the Hub: %s; training goes on. To push it: %s", checkpoint, error, command)

    def _finish_current_push(self) -> None:
        """Do nothing: a push may go on while the run is measured; `push_to_hub` waits for it."""

    def _own_target(self, folder: Path) -> PushTarget:
        args, run_id = self.args, read_run_id(folder)
        run_ids = frozenset() if run_id is None else frozenset({run_id})
        return PushTarget(
            str(args.hub_model_id), args.hub_revision, args.hub_private_repo, args.hub_overwrite, run_ids
        )

    @property
    def _background(self) -> BackgroundPushes:
        if "_pushes" not in self.__dict__:
            self._pushes = BackgroundPushes()
        return self._pushes


def link_files(checkpoint: Path, *, with_folder: bool = False) -> ModelFiles:
    """The files of a sealed checkpoint under second names, so that they stay when it is deleted before they are uploaded.

    Args:
        checkpoint: `checkpoint-N` in a run's folder.
        with_folder: The model also as `checkpoint-N/`.

    Returns:
        The files in a hidden folder beside the checkpoint.

    Raises:
        InputError: No model in it.
        OSError: What the file system says.
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
