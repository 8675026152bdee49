"""A Trainer whose runs may be stopped at any instant, and go on as if they had not been."""

from __future__ import annotations

import logging
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch
from accelerate.utils import gather_object
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import TrainOutput

from bert_recipes.checkpointing import STATE_FILE, aside_of, put_in_place, read_step, rotate, seal
from bert_recipes.engines import EngineTrainer
from bert_recipes.errors import InputError, Interrupted, saving
from bert_recipes.run_arguments import RunArguments
from bert_recipes.run_progress import NO_ENGINE, read_progress, share_of_process, write_progress
from bert_recipes.skipped_steps import SkippedSteps
from bert_recipes.stopping import StopRequest


logger = logging.getLogger(__name__)


class ResumableTrainer(EngineTrainer):
    """`Trainer` with checkpoints that are whole or not there, a log that goes on exactly, and an orderly end at a signal.

    SIGTERM and SIGINT end the run after the step that is being computed, with a checkpoint; processes agree on the step. A
    step whose gradient is not finite changes nothing and is counted; too many of them in a row end the run.
    """

    args: RunArguments
    optimizer: Any
    deepspeed: Any
    control: TrainerControl

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stop_request = StopRequest()
        self.steps_done = 0  # before this call of train()
        self.skipped = SkippedSteps(self.args.max_skipped_steps)
        # Written into each checkpoint by name of the file: what a run that goes on must find again.
        self.checkpoint_files: dict[str, Callable[[Path], None]] = {}
        # Name -> value: what must be the same where a run goes on: the data, the tokenizer, the global batch.
        self.identity: dict[str, Any] = {
            # "auto" may be another one on another machine.
            "precision": "bf16" if self.args.bf16 else "fp16" if self.args.fp16 else "fp32"
        }
        self._save_total_limit = self.args.save_total_limit
        self._stop_flags: list[torch.Tensor] = []
        self._resumed_from: Path | None = None
        self._progress: dict[str, Any] = {}
        self._is_stopped = False
        # Whether the run ends with a checkpoint whatever save_strategy says: one that is ended while it is measured goes on from it.
        self.ends_with_checkpoint = False
        # Whether the evaluation of this step comes after its checkpoint, or was stopped: a run that goes on begins with it.
        self._evaluation_is_due = False
        self._writes_to: Path | None = None
        self.add_callback(_AtStepEnd(self))

    # The run

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> TrainOutput:
        """As stock.

        Args:
            resume_from_checkpoint: Folder of a complete checkpoint, or None.
            kwargs: As stock.

        Raises:
            Interrupted: A signal asked for the end; everything is saved.
            InputError: Too many gradients in a row were not finite.
        """
        self._resumed_from = Path(resume_from_checkpoint) if isinstance(resume_from_checkpoint, str) else None
        self.steps_done = 0 if self._resumed_from is None else read_step(self._resumed_from)
        self._progress = {} if self._resumed_from is None else self._read_progress(self._resumed_from)
        self.skipped = SkippedSteps(self.args.max_skipped_steps, self._progress.get("skipped_steps", 0))
        self._stop_flags, self._is_stopped, self._evaluation_is_due = [], False, False
        with self.stop_request.listening(), self._own_settings():
            output = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
            self._leave_if_asked()
        return output

    @contextmanager
    def _own_settings(self) -> Iterator[None]:
        """Settings that stock would follow where it should not, for one call of `train`."""
        limit, on_start = self.args.save_total_limit, self.args.eval_on_start
        # At the end stock deletes all checkpoints but the best; `rotate` has done what is to be done.
        self._save_total_limit, self.args.save_total_limit = limit, None
        # A run that goes on has its first evaluation in its log.
        self.args.eval_on_start = on_start and self.steps_done == 0
        try:
            yield
        finally:
            self.args.save_total_limit, self.args.eval_on_start = limit, on_start

    def _leave_if_asked(self) -> None:
        """Raise where any process was asked to stop, also after the last step."""
        number = self._asked_to_stop()
        if not number:
            return
        if not self._is_stopped and not self._checkpoint_folder().is_dir() and not self.args.load_best_model_at_end:
            self._save_checkpoint(self.model_wrapped, None)
        self._leave(number, f"after step {self.state.global_step} of {self.state.max_steps}", "goes on from there")

    def _leave(self, number: int, where: str, what: str) -> NoReturn:
        command = "the same command" if self.args.resume == "auto" else "the same command with --resume auto"
        mend = f"; {command} {what}" if self.state.max_steps else ""  # what only measures or predicts begins again
        raise Interrupted(f"stopped by {signal.Signals(number).name} {where}{mend}", 128 + number)

    @property
    def mean_loss(self) -> float:
        """Mean of the training loss over all steps of the run, those before a resume too; after `train`."""
        own = torch.tensor([self._total_loss_scalar], dtype=torch.float64, device=self.args.device)
        # What came after the last line of the log is each process' own.
        total = self.accelerator.gather(own).mean().item()
        return total / max(self.state.global_step, 1)

    # Stopping

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Around what is measured or predicted, in all processes: a signal ends it where `check_stop` is called, and at the end."""
        with self.stop_request.listening():
            yield
            self.check_stop()

    def check_stop(self) -> None:
        """Between two batches that are measured or predicted; all processes call it together.

        Raises:
            Interrupted: One of them was asked to stop.
        """
        # At the end of a phase the next one's data would be measured when the run goes on.
        number = 0 if self._ends_here() else self._asked_to_stop()
        if number:
            self._leave(number, "before all was measured and predicted", "does the rest")

    def _asked_to_stop(self) -> int:
        """The signal by which any process was asked to stop, 0 for none; all call it together."""
        number = self.stop_request.signal or 0
        if self.args.world_size == 1:
            return number
        return int(self.accelerator.gather(torch.tensor([number], device=self.args.device)).max())

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """As stock; the last step is saved before it is measured, and an evaluation that a signal ends is made up for by the run that goes on."""
        saves_first = self.control.should_evaluate and self.control.should_save
        saves_first = saves_first and self.state.global_step >= self.state.max_steps
        if saves_first:
            self._evaluation_is_due, self.control.should_evaluate = True, False
            super()._maybe_log_save_evaluate(*args, **kwargs)
            self.control.should_evaluate = True
        try:
            super()._maybe_log_save_evaluate(*args, **kwargs)
        except Interrupted:
            self._is_stopped = self._evaluation_is_due = self.control.should_training_stop = True
            self.control.should_evaluate, self.control.should_save = False, not saves_first
            super()._maybe_log_save_evaluate(*args, **kwargs)
        if saves_first:  # it may be the best one
            self._name_best(self._checkpoint_folder())
            if self.args.should_save:
                self._rotate(self._checkpoint_folder())
            self.accelerator.wait_for_everyone()

    def _ends_here(self) -> bool:
        """Whether this step is the last one of a part of the run, which ends with a checkpoint."""
        return False

    def stop_flag(self) -> float:
        """1.0 once this process was asked to stop; to be added up over the processes with what else a step adds up."""
        return float(self.stop_request.signal is not None)

    def note_stop_flags(self, total: torch.Tensor) -> None:
        """Take the sum of all processes' flags, float (), on the device: all of them see the same."""
        self._stop_flags.append(total)

    def _wants_to_stop(self) -> bool:
        """Whether all processes know that one was asked to stop."""
        if self.args.world_size == 1:
            return self.stop_request.signal is not None
        # The sum of the step before: it is there by now, and reading it makes no device wait.
        known = self._stop_flags[0] if self._stop_flags else None
        del self._stop_flags[:-1]
        return known is not None and bool(known > 0)

    # Checkpoints

    def _checkpoint_folder(self) -> Path:
        return Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write everything aside, seal it, and only then give it its name; rotate when that is done."""
        folder = Path(self.args.output_dir)
        aside, target = aside_of(folder), self._checkpoint_folder()
        pushes, self.args.push_to_hub = self.args.push_to_hub, False
        try:
            with saving(target):
                if self.args.should_save:
                    shutil.rmtree(aside, ignore_errors=True)
                self.accelerator.wait_for_everyone()
                self._writes_to = aside
                super()._save_checkpoint(model, trial)
                self._name_best(target)
                self._write_progress(aside / target.name)
                self.accelerator.wait_for_everyone()
                if self.args.should_save:
                    self._finish_checkpoint(aside / target.name, target)
            self.accelerator.wait_for_everyone()
        finally:
            self._writes_to, self.args.push_to_hub = None, pushes
            if self.args.should_save:
                shutil.rmtree(aside, ignore_errors=True)
        if pushes and not self._is_stopped:
            self._push_from_checkpoint(str(target))

    def _get_output_dir(self, trial: Any) -> str:
        """As stock; while a checkpoint is written, the folder beside it."""
        return super()._get_output_dir(trial) if self._writes_to is None else str(self._writes_to)

    def _finish_checkpoint(self, written: Path, target: Path) -> None:
        """In the main process: correct what names folders, seal, rename, rotate."""
        # The Trainer pickles its arguments beside the weights; run.yaml says the same and is safe to open.
        (written / "training_args.bin").unlink(missing_ok=True)
        self.state.save_to_json(str(written / STATE_FILE))
        states = len(list(written.glob("rng_state*.pth")))
        if states != self.args.world_size:
            raise InputError(
                f"output_dir {target.parent}: {states} of {self.args.world_size} processes wrote their part of the checkpoint "
                "there; it must be one folder that all machines share"
            )
        for name, write in self.checkpoint_files.items():
            write(written / name)
        seal(written)
        put_in_place(written, target)
        self._rotate(target)

    def _rotate(self, newest: Path) -> None:
        best = self.state.best_model_checkpoint
        rotate(newest.parent, self._save_total_limit, keep=(newest,) if best is None else (newest, Path(best)))

    def _name_best(self, target: Path) -> None:
        """The best checkpoint by its final name; stock looks for it in the folder that is being written to."""
        if self.state.best_global_step:
            best = target.with_name(f"checkpoint-{self.state.best_global_step}")
            self.state.best_model_checkpoint = str(best) if best == target or best.is_dir() else None

    # What else a checkpoint keeps

    def progress_of_process(self) -> dict[str, Any]:
        """What this process must remember, JSON: its part of the sums since the last line of the log."""
        return {"loss": float(self._tr_loss)}

    def take_progress(self, progress: dict[str, Any]) -> None:
        """Go on with what `progress_of_process` said."""
        self._tr_loss.fill_(progress["loss"])

    def progress_of_run(self) -> dict[str, Any]:
        """What all processes must remember, JSON."""
        return {
            "identity": self.identity,
            "engine": self.engine,
            "total_loss": self._total_loss_scalar,
            "last_logged_step": self._globalstep_last_logged,
            "skipped_steps": self.skipped.total,
            "evaluation_is_due": self._evaluation_is_due,
        }

    def _write_progress(self, folder: Path) -> None:
        own = self.progress_of_process()
        everyone = gather_object([own]) if self.args.world_size > 1 else [own]
        if self.args.should_save:
            write_progress(folder, self.progress_of_run(), everyone)

    @property
    def engine(self) -> str:
        """What shares the optimiser's state out: its files in a checkpoint are of this form."""
        if self.is_deepspeed_enabled:
            return f"DeepSpeed ZeRO {self.accelerator.state.deepspeed_plugin.zero_stage}"
        return "FSDP" if self.is_fsdp_enabled else NO_ENGINE

    def _read_progress(self, checkpoint: Path) -> dict[str, Any]:
        return read_progress(
            checkpoint,
            identity=self.identity,
            engine=self.engine,
            processes=self.args.world_size,
            allow_changes=self.args.allow_changes,
        )

    def go_on(self) -> None:
        """Called when everything else is loaded: take up the sums where the checkpoint left them, and make up for an evaluation."""
        if not self._progress:
            return
        self.take_progress(
            share_of_process(self._progress["processes"], self.args.process_index, self.args.world_size)
        )
        self._total_loss_scalar = self._progress["total_loss"]
        self._globalstep_last_logged = self._progress["last_logged_step"]
        if self._progress.get("evaluation_is_due") and self.args.eval_strategy != "no":
            self._determine_best_metric(self._evaluate(None, None), None)
            self._name_best(self._checkpoint_folder())

    # Gradients that are not finite

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """As stock; a step whose gradient is not finite loses its gradients, so that the optimiser leaves everything as it is."""
        norm = super()._get_grad_norm(model, grad_norm)
        if norm is None or not self.skipped.note(float(norm)):
            return norm
        scaler = self.accelerator.scaler
        # With a loss scaler this is how it finds its scale, which halves every time; below 1 it is not the scale that is wrong.
        if scaler is None or scaler.get_scale() < 1:
            step = self.state.global_step + 1
            self.skipped.check(step, is_deepspeed=self.is_deepspeed_enabled)
            if self.is_world_process_zero():
                logger.warning("step %d is skipped: its gradient is not finite (%s)", step, float(norm))
        model.zero_grad()
        return norm


class _AtStepEnd(TrainerCallback):
    """Looks at the end of each step whether the run is to stop."""

    def __init__(self, trainer: ResumableTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # Those of this run: the Trainer would go on with the checkpoint's.
        state.compute_steps(args, state.max_steps)
        self.trainer.go_on()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.trainer._wants_to_stop():
            self.trainer._is_stopped = True
        if self.trainer._is_stopped or self.trainer._ends_here():
            control.should_training_stop = True
            control.should_save = True
        if self.trainer.ends_with_checkpoint and state.global_step >= state.max_steps:
            control.should_save = True
