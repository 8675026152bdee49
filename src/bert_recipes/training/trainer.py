"""`RecipeTrainer`: the base of the Trainers of pre-training and fine-tuning.

The loss of the global batch, one order of examples, exact resume, an orderly end at a signal.
"""

import copy
import itertools
import json
import logging
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from accelerate.utils import gather_object, patch_environment
from safetensors.torch import load_file, save_file
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from tqdm import tqdm
from transformers import (
    PreTrainedModel,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainingArguments,
)
from transformers.trainer_utils import IntervalStrategy, SaveStrategy, TrainOutput

from bert_recipes.checkpointing import (
    commit,
    last_complete,
    read_step,
    restore_replaced,
    rotate,
    staging_dir,
    write_manifest,
)
from bert_recipes.config import warn_in_main_process
from bert_recipes.data.order import ResumableBatchSampler
from bert_recipes.errors import InputError, Interrupted, end_workers, saving
from bert_recipes.models.bert import PreTrainingModel
from bert_recipes.models.bert_model import PackedModel, enable_packed_layers
from bert_recipes.models.sizes import inputs_of
from bert_recipes.run_folder import PROGRESS_FILE, STATE_FILE
from bert_recipes.training.arguments import RunArguments
from bert_recipes.training.batch_buffer import BatchBuffer, DeviceCollator
from bert_recipes.training.callbacks import (
    ClockIntervals,
    CountEpochs,
    MomentumWarmup,
    StopOnSignal,
    ignore_signals,
)
from bert_recipes.training.console import LogPrinter, LogPrinterAboveBar
from bert_recipes.training.cost import EnergySettings, RunTime
from bert_recipes.training.engines import (
    complete_engine,
    fsdp_groups,
    load_fsdp_weights,
    name_engine,
    set_up_engine,
    sharded_once,
)
from bert_recipes.training.late_number import LateNumber, PreviousNumber
from bert_recipes.training.launch import asks_for_fsdp, check_processes_agree, take_one_gpu
from bert_recipes.training.optimization import (
    SCHEDULERS_BY_METRIC,
    MuonSettings,
    Schedule,
    create_optimizer,
    set_peak_rates,
    settings_of_groups,
    skips_on_device,
)
from bert_recipes.training.resume import NO_PROGRESS, read_progress, state_of_process
from bert_recipes.training.speed import (
    NUM_WORK_COUNTS,
    BatchStats,
    ThroughputMeter,
    best_rate,
    keep_freed_memory,
    single_thread,
)
from bert_recipes.training.trackers import prepare_trackers


logger = logging.getLogger(__name__)

# Added to stock TrainingArguments. "trainer" leaves optimizer and schedule to stock.
RECIPE_SETTINGS: dict[str, Any] = {
    "optimizer": "trainer",
    "schedule": "trainer",
    "fast_layers": "auto",
    "keep_freed_memory": True,
    "max_skipped_steps": 10,
    "max_minutes": None,
    "random_replacements": 0.0,
    "resume": "no",
    "overwrite_run": False,
    "allow_changes": False,
    "estimate": False,
    "hub_is_checked": False,
    "sampled_softmax": False,
    "save_at_epochs": None,
    "energy": EnergySettings(),
}


@contextmanager
def _overridden(args: TrainingArguments, **settings: Any) -> Iterator[None]:
    """Change, inside of the block, settings that stock would follow where it should not."""
    before = {name: getattr(args, name) for name in settings}
    vars(args).update(settings)
    try:
        yield
    finally:
        vars(args).update(before)


# DeepSpeed warns of a machine without a GPU wherever it is installed. Stock warns at a resume of
# another split of the batch, which may change here.
_NOISE = ("Setting accelerator to", "do not match the ones in the `trainer_state.json`")


def _is_news(record: logging.LogRecord) -> bool:
    return not any(words in record.getMessage() for words in _NOISE)


# Of stock `TrainingArguments`; `RunArguments` has the reasons.
_REFUSED = (
    "auto_find_batch_size",
    "bf16_full_eval",
    "fp16_full_eval",
    "enable_jit_checkpoint",
    "ignore_data_skip",
    "save_on_each_node",
    "save_only_model",
)


def _check_stock(args: Any, compute_loss_func: Any) -> None:
    """Refuse what stock would do and this Trainer would not, or could not resume from.

    `RunArguments` refuses such settings, or warns of them, where they are read.
    """
    is_stock = not isinstance(args, RunArguments)
    if compute_loss_func is not None or (is_stock and args.label_smoothing_factor):
        raise InputError(
            "label_smoothing_factor and compute_loss_func are not read: the loss is the model's "
            "own, over the global batch; leave them out, or override micro_batch_loss"
        )
    if is_stock and args.train_sampling_strategy != "random":
        warn_in_main_process(
            "train_sampling_strategy %s has no effect: rows are shuffled anew in each epoch",
            args.train_sampling_strategy,
        )
    if is_stock and args.data_seed is not None:
        warn_in_main_process("data_seed has no effect: rows are shuffled by seed")
    for name in _REFUSED:
        if is_stock and getattr(args, name, False):  # the oldest transformers lack one
            reason = RunArguments.LIBRARY_FIELDS[name]["refused"]
            raise InputError(f"{name} is {getattr(args, name)}; leave it out: {reason}")


class RecipeTrainer(Trainer):
    """`Trainer` with fixed examples in each step, and checkpoints that are complete or absent.

    The loss is a mean over the global batch G: all micro-batches of all processes. Stock BERT heads
    scale the loss with both. Step s trains on the samples [s * G, (s + 1) * G) of one order,
    however G is split. SIGTERM and SIGINT end the run after the step that is being computed, with a
    checkpoint. A step whose gradient is not finite changes nothing and is counted. A subclass says
    what the loss is a mean over (`num_items`), and computes the loss of a micro-batch
    (`micro_batch_loss`). `resume_fingerprint` names what must be the same where a run is resumed,
    such as the data and the tokenizer.
    """

    args: Any
    optimizer: Any
    deepspeed: Any
    lr_scheduler: Any
    control: TrainerControl
    num_phases = 1
    # Fields of the model's output that are logged beside their sum.
    logged_losses = ("mlm_loss", "nsp_loss")

    def __init__(
        self,
        model: PreTrainedModel,
        args: Any,
        *,
        resume_fingerprint: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        _check_stock(args, kwargs.get("compute_loss_func"))
        if not isinstance(args, RunArguments):
            args = copy.copy(args)  # another Trainer may get them too
        for name, value in RECIPE_SETTINGS.items():
            if not hasattr(args, name):
                setattr(args, name, value)
        # A script of one's own has not called `check_launch`.
        take_one_gpu(args, trains=kwargs.get("train_dataset") is not None)
        if args.device.type == "mps":
            raise InputError("Apple's GPU is not supported, as it has no float64: use_cpu=True")
        for library in ("DeepSpeed", "transformers.trainer_utils"):
            logging.getLogger(library).addFilter(_is_news)
        # FSDP gathers the weights of a layer when the layer is called as a module. Fast layers are
        # called as functions.
        enable_packed_layers(model, "off" if asks_for_fsdp(args) else args.fast_layers, args)
        if args.device.type == "cpu" and args.keep_freed_memory:
            keep_freed_memory()
        if args.ddp_find_unused_parameters is None and isinstance(model.base_model, PackedModel):
            # Every pass uses all parameters; DDP would search for unused ones at each step.
            args.ddp_find_unused_parameters = False
        prepare_trackers(args)
        # One folder, so that a resumed run continues its TensorBoard run.
        events = os.environ.get("TENSORBOARD_LOGGING_DIR", str(Path(args.output_dir) / "runs"))
        with (
            _overridden(args, push_to_hub=False),
            patch_environment(TENSORBOARD_LOGGING_DIR=events),
        ):
            super().__init__(model=model, args=args, **kwargs)
        names = inputs_of(model)
        # A model that is wrapped may hide its inputs.
        has_one_segment = "input_ids" in names and "token_type_ids" not in names
        if self.processing_class is not None and has_one_segment:
            # Stock's classes would look up a second type, which the model does not have.
            self.processing_class.model_input_names = list(names)
            self.processing_class.init_kwargs["model_input_names"] = list(names)
        set_up_engine(self, args.optimizer)
        check_processes_agree(args, "precision", self.precision, "--precision")
        # DDP then keeps no second copy of the gradients.
        self.accelerator.ddp_handler.gradient_as_bucket_view = True
        # `micro_batch_loss` divides by the counts of the whole step: stock must not divide again.
        self.model_accepts_loss_kwargs = True
        self._set_up_state()
        self.resume_fingerprint = {
            "precision": self.precision,  # "auto" may be another one on another machine
            "global batch": self.global_batch_size,
            **(resume_fingerprint or {}),
        }
        self._set_up_callbacks()

    def _replace_epochs_by_steps(self, steps_per_epoch: int) -> None:
        """Turn evaluating, saving and logging by epochs into the same by steps.

        The loader is one pass over the complete run: for stock it is one epoch.
        """
        args = self.args
        if args.eval_strategy == IntervalStrategy.EPOCH:
            self._set_argument("eval_strategy", IntervalStrategy.STEPS)
            self._set_argument("eval_steps", steps_per_epoch)
            self._set_argument("eval_delay", args.eval_delay * steps_per_epoch)
        if args.save_strategy == SaveStrategy.EPOCH:
            self._set_argument("save_strategy", SaveStrategy.STEPS)
            self._set_argument("save_steps", steps_per_epoch)
        if args.logging_strategy == IntervalStrategy.EPOCH:
            self._set_argument("logging_strategy", IntervalStrategy.STEPS)
            self._set_argument("logging_steps", steps_per_epoch)

    def _set_argument(self, name: str, value: Any) -> None:
        """Set an argument from what this run has; run.yaml keeps the one that was given.

        Another run of the same file may have another task or batch.
        """
        given_values = vars(self.args).setdefault("given_values", {})
        given_values.setdefault(name, getattr(self.args, name))
        setattr(self.args, name, value)

    def _set_up_state(self) -> None:
        args = self.args
        work_device = args.device if args.world_size > 1 else torch.device("cpu")
        self.meter = ThroughputMeter(args.device, work_device)
        self._best_rate: float | None = None  # FLOP/s of matrix products of a process
        self.run_time = RunTime()
        # Steps whose gradient was not finite.
        self.skipped_steps = 0
        self._skipped_in_a_row = 0
        self._unread_norm: tuple[int, LateNumber] | None = None  # a step, and its gradient's norm
        self._steps_without_loss = 0  # left out of the mean loss
        self._total_at_log = 0.0  # the sum of the losses at the last log line
        self._step_of_log = 0  # the step of that line
        self._globalstep_last_logged = 0  # stock sets it in `train`

        self.num_resumed_steps = 0  # before this call of train()
        self._created_optimizer = False  # not one that it was given
        self._settings_of_groups: list[dict[str, Any]] = []
        # Name of a file -> the function that writes it into each checkpoint, for a resumed run.
        self.checkpoint_files: dict[str, Callable[[Path], object]] = {}
        # Name of a file -> a module of the model whose weights it holds, apart from stock's.
        self.module_files: dict[str, torch.nn.Module] = {}
        # Whether the run ends with a checkpoint whatever save_strategy says: a run that is stopped
        # during its last evaluation is resumed from it.
        self.ends_with_checkpoint = False
        self._save_total_limit = args.save_total_limit
        self.kept_steps: list[int] = []  # of checkpoints that the limit does not delete
        self._staging: Path | None = None  # while a checkpoint is written
        self._loaded_state: Mapping[str, Any] = NO_PROGRESS
        # Whether the evaluation of this step comes after its checkpoint, or was stopped. A resumed
        # run begins with that evaluation.
        self._evaluation_is_due = False
        # Step and metrics of the last evaluation while training.
        self._last_metrics: tuple[int | None, dict[str, float]] = None, {}

        # Only with max_minutes.
        self.clock = 0.0  # fraction of the minutes that is over, the same in all processes
        self._shared_clock = PreviousNumber()
        # Seconds of logging, saving and evaluating after a step, at most.
        self._longest_pause = 0.0
        # When the clock started, in seconds of the run; None: not yet.
        self._clock_start: float | None = None

    def _set_up_callbacks(self) -> None:
        args = self.args
        stock_console = PrinterCallback if args.disable_tqdm else ProgressCallback
        if self.pop_callback(stock_console) is not None:
            has_bar = not args.disable_tqdm and sys.stderr.isatty()
            printer = LogPrinterAboveBar if has_bar else LogPrinter
            self.add_callback(printer(self))
        self.stop_request = StopOnSignal()
        self.add_callback(self.stop_request)
        self.add_callback(_RestoreAndSave(self))
        # First of all, so that every other one sees the epochs.
        self.callback_handler.callbacks.insert(0, CountEpochs(self))
        if args.max_minutes is not None:
            self.add_callback(ClockIntervals(self))
        if args.optimizer == "muon" and args.muon_momentum_warmup > 0:
            self.add_callback(MomentumWarmup(self))

    @property
    def progress(self) -> float:
        """Return the fraction of the run that is done, of its steps or of its minutes."""
        if self.args.max_minutes is not None:
            return self.clock
        return self.state.global_step / self.state.max_steps

    def show_progress(self, batches: Any, description: str) -> Any:
        """Return the batches with a progress bar, in the main process and on a terminal alone."""
        is_quiet = self.args.disable_tqdm or not self.is_world_process_zero()
        # None leaves it to tqdm, which draws on a terminal alone.
        disable = True if is_quiet else None
        return tqdm(batches, desc=description, leave=False, disable=disable)

    @property
    def precision(self) -> str:
        """Return fp32, bf16 or fp16."""
        if self.args.bf16:
            return "bf16"
        return "fp16" if self.args.fp16 else "fp32"

    # 1. A run

    def train(
        self, resume_from_checkpoint: str | Path | bool | None = None, **kwargs: Any
    ) -> TrainOutput:
        """Train as stock.

        Raises:
            Interrupted: A signal asked for the end; everything is saved.
        """
        args = self.args
        checkpoint = self._find_checkpoint(resume_from_checkpoint)
        logger.info(
            "batch: %d examples x %d micro-batches x %d processes = %d examples per step",
            args.train_batch_size,
            args.gradient_accumulation_steps,
            args.world_size,
            self.global_batch_size,
        )
        if args.push_to_hub and not args.hub_is_checked:
            warn_in_main_process(
                "push_to_hub is true: nothing is pushed before you call trainer.push_to_hub()"
            )
        # The weights are made with one seed. From here on each process has its own dropout masks. A
        # resume loads the random states of its checkpoint after this.
        if args.process_index > 0:
            torch.manual_seed(args.seed + args.process_index)
        with self.run_time:
            self._start_from(checkpoint)
            self.stop_request.begin()
            # The log of a resumed run has the first evaluation already.
            eval_on_start = args.eval_on_start and self.num_resumed_steps == 0
            # At the end stock would delete all checkpoints but the best; `rotate` has deleted old
            # ones.
            stock_settings = _overridden(
                args, push_to_hub=False, save_total_limit=None, eval_on_start=eval_on_start
            )
            resume_from_checkpoint = None if checkpoint is None else str(checkpoint)
            with self.stop_request.listening(), stock_settings:
                try:
                    output = super().train(resume_from_checkpoint, **kwargs)
                except BaseException:
                    end_workers()
                    # A later call begins anew.
                    self.is_in_train = False
                    self.stop_request.signal = None
                    raise
                self._read_norm()
                self._stop_if_asked()
        return output._replace(training_loss=self.mean_loss)

    def _start_from(self, checkpoint: Path | None) -> None:
        """Set the counters to those of a checkpoint, or to 0.

        The checkpoint's state is read here, as the data may need it, and applied by
        `_RestoreAndSave` when everything else is loaded.
        """
        self.num_resumed_steps = 0
        self._last_saved_step = 0
        self._resumed_from = checkpoint
        progress = NO_PROGRESS
        if checkpoint is not None:
            self.num_resumed_steps = read_step(checkpoint)
            progress = read_progress(
                checkpoint,
                self.resume_fingerprint,
                self.engine,
                self.args.world_size,
                allow_changes=self.args.allow_changes,
            )
        self._loaded_state = progress
        self.skipped_steps = progress["skipped_steps"]
        self._skipped_in_a_row = 0
        self._steps_without_loss = progress["steps_without_loss"]
        self._total_at_log = progress["total_loss"]
        self._step_of_log = progress["last_logged_step"]
        # Earlier versions wrote totals that are not finite.
        if not math.isfinite(self._total_at_log):
            self._total_at_log = 0.0
            self._steps_without_loss = self._step_of_log
        # A fraction of max_minutes, which allow_changes may change, or replace by steps.
        self.clock = 0.0
        if self.args.max_minutes:
            minutes_before = progress["max_minutes"] or self.args.max_minutes
            self.clock = progress["clock"] * minutes_before / self.args.max_minutes
        self._longest_pause = progress["longest_pause"]
        self._clock_start = progress["first_step_seconds"]
        # The first step on a GPU compiles.
        if checkpoint is None and self.args.device.type != "cpu":
            self._clock_start = None
        self._shared_clock = PreviousNumber()
        self.kept_steps = list(progress["kept_steps"])
        self._evaluation_is_due = False
        self._set_best_rule()

    def _set_best_rule(self) -> None:
        """Set the rule by which the best step is chosen, and refuse a change that cannot resume."""
        args = self.args
        rule_before = self._loaded_state["best_metric"]  # None: unknown, or of a new run
        self._best_rule = rule_before  # "highest f1", "lowest loss"
        self._has_other_best_rule = False
        if args.metric_for_best_model is None:
            return
        name = args.metric_for_best_model.removeprefix("eval_")
        direction = "highest" if args.greater_is_better else "lowest"
        self._best_rule = f"{direction} {name}"
        self._has_other_best_rule = rule_before not in (None, self._best_rule)
        follows_metric = args.lr_scheduler_type in SCHEDULERS_BY_METRIC
        if self._has_other_best_rule and follows_metric and args.schedule == "trainer":
            raise InputError(
                f"metric_for_best_model: the learning rate follows the {rule_before} of "
                f"{self._resumed_from}, not the {self._best_rule}; resume with the metric of the "
                "run"
            )

    def minutes_were_over(self) -> bool:
        """Return whether no minutes are left after the checkpoint of a run by the clock."""
        # A checkpoint of an earlier version does not say of how many minutes its clock is.
        return self.clock >= 1.0 and self._loaded_state["max_minutes"] is not None

    def _find_checkpoint(self, resume: str | Path | bool | None) -> Path | None:
        """Return the folder that stock's `resume_from_checkpoint` means.

        True is the newest complete checkpoint in output_dir.
        """
        if resume is not True:
            return Path(resume) if resume else None
        if self.args.should_save:
            restore_replaced(Path(self.args.output_dir))
        self.accelerator.wait_for_everyone()
        checkpoint, _ = last_complete(Path(self.args.output_dir))
        if checkpoint is None:
            raise InputError(f"{self.args.output_dir} holds no complete checkpoint to resume from")
        return checkpoint

    @property
    def global_batch_size(self) -> int:
        """Return the examples of an optimizer step over all processes."""
        return (
            self.args.train_batch_size
            * self.args.gradient_accumulation_steps
            * self.args.world_size
        )

    @property
    def mean_loss(self) -> float:
        """Return, after `train`, the mean of the training loss over all steps of the run.

        Steps before a resume count too, steps of a log line that is not finite do not. The mean is
        NaN where no line is finite.
        """
        # The loss since the last log line is not in it: each process has a different sum.
        num_steps = self.state.global_step - self._steps_without_loss
        sums = torch.tensor([[self._total_loss_scalar, num_steps]], dtype=torch.float64)
        total, num_steps = self.accelerator.gather(sums.to(self.args.device)).mean(0).tolist()
        if num_steps == 0 and self._steps_without_loss:
            return math.nan
        return total / max(num_steps, 1)

    # 2. Stopping

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Let a signal end a measurement or prediction inside of the block, in all processes.

        The block ends where `check_stop` is called, and at its own end.
        """
        with self.stop_request.listening():
            yield
            self.check_stop()

    def check_stop(self) -> None:
        """Raise `Interrupted` between two batches that are measured or predicted.

        All processes call it together.
        """
        # Stopped at the end of a phase, a resumed run would measure the data of the next phase.
        if self._is_end_of_phase():
            return
        number = self._signal_of_any()
        if number:
            if not self.is_in_train:  # a later call begins anew
                self.stop_request.signal = None
            self._interrupt(number, "before all was measured and predicted", "does the rest")

    def _stop_if_asked(self) -> None:
        """Raise where any process was asked to stop, also after the last step."""
        number = self._signal_of_any()
        if not number:
            return
        is_saved = self.stop_request.is_stopped or self._is_saved
        if not is_saved and not self.args.load_best_model_at_end:
            self._save_checkpoint(self.model_wrapped, None)
        place = f"after step {self.state.global_step} of {self.state.max_steps}"
        self.stop_request.signal = None  # a later call begins anew
        self._interrupt(number, place, "resumes from there")

    def _signal_of_any(self) -> int:
        """Return the signal by which any process was asked to stop, 0 for none.

        All processes call it together.
        """
        number = self.stop_request.signal or 0
        if self.args.world_size == 1:
            return number
        numbers = self.accelerator.gather(torch.tensor([number], device=self.args.device))
        return int(numbers.max())

    def _interrupt(self, number: int, place: str, continuation: str) -> NoReturn:
        signal_name = signal.Signals(number).name
        message = f"stopped by {signal_name} {place}"
        if not isinstance(self.args, RunArguments):
            if 0 < self.state.global_step < self.state.max_steps:
                message += "; train(resume_from_checkpoint=True) resumes the training"
        elif self.state.max_steps:  # what only measures or predicts begins again
            flags = "" if self.args.resume == "auto" else " with --resume auto"
            if self.args.overwrite_run:
                flags = " without --overwrite_run"
            message += f"; the same command{flags} {continuation}"
        raise Interrupted(message, 128 + number)

    def _is_end_of_phase(self) -> bool:
        """Return whether this step is the last one of a phase, which ends with a checkpoint."""
        return False

    def _is_start_of_phase(self) -> bool:
        """Return whether a later phase than the first begins with the next step."""
        return False

    # 3. Examples of a step

    def train_loader(
        self,
        keys: Callable[[int, int], list[Any]],
        num_samples: int,
        first_step: int = 0,
        dataset: Any = None,
    ) -> DataLoader:
        """Return the micro-batches of this process as one pass over the whole run.

        Micro-batches of finished steps are not read.

        Args:
            keys: Returns the keys of samples by their numbers, counted from step `first_step` on.
            num_samples: The number of samples from there on.
            first_step: The step with which the order begins.
            dataset: What is read by these keys; None: train_dataset.
        """
        args = self.args
        batches = ResumableBatchSampler(
            keys,
            num_samples,
            batch_size=args.train_batch_size,
            num_processes=args.world_size,
            process_index=args.process_index,
            first=first_step * args.gradient_accumulation_steps,
            skipped=self.num_resumed_steps * args.gradient_accumulation_steps,
        )
        # The oldest transformers lack it.
        start_method = getattr(args, "dataloader_multiprocessing_context", None)
        return DataLoader(
            self.train_dataset if dataset is None else dataset,
            batch_sampler=batches,
            collate_fn=self.device_collator(self.data_collator),
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory and args.device.type != "cpu",
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            # A worker that cannot hand a batch over (shared memory is full) prints an error and
            # reads on: the process would wait for that batch for ever.
            timeout=args.ddp_timeout if args.dataloader_num_workers else 0,
            worker_init_fn=ignore_signals,
            multiprocessing_context=start_method if args.dataloader_num_workers else None,
        )

    def device_collator(self, collator: Callable[[list[Any]], Any]) -> DeviceCollator:
        """Return what collates batches for the device and the encoder of this run."""
        # An exported ONNX model, put in place for comparison, has no base_model.
        base = getattr(self.model, "base_model", None)
        return DeviceCollator(
            collator,
            adds_packing=isinstance(base, PackedModel) and base.reads_packing_on(self.args.device),
            packs_labels=isinstance(self.model, PreTrainingModel),
            joins=self.args.device.type == "cuda",
        )

    def _prepare_input(self, data: Any) -> Any:
        if isinstance(data, BatchBuffer):
            return data.to(self.args.device).tensors()
        return super()._prepare_input(data)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> Any:
        """Return the micro-batches of a step, and its `num_items`.

        The items are float64 (K,), over all micro-batches and processes, and on the CPU where there
        is one process. Nothing waits for the device.
        """
        if self.control.should_training_stop:  # the run was over before it was resumed
            return [], None
        start = time.perf_counter()
        batches = list(itertools.islice(epoch_iterator, num_batches))
        seconds_waited = time.perf_counter() - start
        if not batches:
            return batches, None
        items, work = self._count_step(batches, device)
        self.meter.count_step(work, seconds_waited)
        for number, batch in enumerate(batches):
            if isinstance(batch, BatchBuffer):
                batches[number] = self._prepare_input(batch)
        return batches, items

    def _count_step(
        self, batches: Sequence[Any], device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `num_items` and `count_work` of a step over all processes, and set the clock."""
        with single_thread():
            micro_counts = torch.stack([self._counts_of(batch) for batch in batches])
        counts = micro_counts.sum(dim=0, dtype=torch.float64)
        fraction = self._elapsed_fraction()
        if self.args.world_size > 1:
            counts, fraction = self._share_counts(counts, fraction, device)
        self.clock = min(fraction, 1.0)
        return counts[:-NUM_WORK_COUNTS], counts[-NUM_WORK_COUNTS:]

    def _share_counts(
        self, counts: torch.Tensor, fraction: float, device: torch.device
    ) -> tuple[torch.Tensor, float]:
        """Return the counts of all processes, and the elapsed fraction of the step before.

        The request to stop and the clock travel with the counts: no second collective in each
        step. Reading this step's numbers at once would make the host wait.
        """
        is_asked = self.stop_request.signal is not None
        share = fraction / self.args.world_size
        extra_counts = counts.new_tensor([is_asked, share])
        all_counts = torch.cat([counts, extra_counts]).to(device, non_blocking=True)
        all_counts = self.accelerator.reduce(all_counts, reduction="sum")
        num_asked, fraction_now = all_counts[-2:]
        self.stop_request.num_asked = LateNumber(num_asked)
        return all_counts[:-2], self._shared_clock.swap(fraction_now)

    def _counts_of(self, batch: Any) -> torch.Tensor:
        """Return int64 (K + NUM_WORK_COUNTS,), `num_items` and `count_work` of a micro-batch.

        The counts are on the CPU where the batch comes from the loader.
        """
        tensors = batch.tensors() if isinstance(batch, BatchBuffer) else batch
        items = self.num_items(tensors)
        return torch.cat([items, self.count_work(tensors, items)])

    def _elapsed_fraction(self) -> float:
        """Return this process's fraction of `max_minutes` that is over.

        The clock starts with the run. On a GPU it starts after the first step, because compiling in
        that step would use up the warm-up of a short run. As much time as the longest pause up to
        now took is set aside for the evaluation and the checkpoint at the end.
        """
        if not self.args.max_minutes:
            return 0.0
        if self._clock_start is None:
            if self.state.global_step == 0:
                return 0.0
            self._clock_start = self.run_time.seconds
        seconds = 60 * self.args.max_minutes - self._longest_pause - self._clock_start
        return (self.run_time.seconds - self._clock_start) / max(seconds, 1e-9)

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> None:
        """Count nothing: `get_batch_samples` counts.

        Stock asks in `predict` too, whose loss is of one batch.
        """

    def num_items(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return (K,), int64 or with class weights float64, what each of K losses is a mean over.

        The items are those of this batch.
        """
        raise NotImplementedError

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | None = None,
    ) -> Any:
        """Return the loss of one micro-batch; those of a step add up to that of the global batch.

        `num_items_in_batch` is `num_items` of the global batch. Autocast is Accelerate's, around
        the model's `forward`.
        """
        counts = self.num_items(inputs) if num_items_in_batch is None else num_items_in_batch
        counts = torch.where(counts > 0, counts, 1).float()
        loss, output = self.micro_batch_loss(model, inputs, counts)
        if num_items_in_batch is not None:
            losses = [getattr(output, name, None) for name in self.logged_losses]
            self.meter.add_losses(losses, self.args.world_size)
            # DDP averages the gradients of the processes; their sum is needed.
            loss = loss * self.args.world_size
        return (loss, output) if return_outputs else loss

    def micro_batch_loss(
        self, model: Any, inputs: Any, counts: torch.Tensor
    ) -> tuple[torch.Tensor, Any]:
        """Return what a micro-batch adds to the loss, and the model's output.

        `counts`, float32 (K,), are `num_items` of the whole step.
        """
        raise NotImplementedError

    def count_work(self, batch: dict[str, torch.Tensor], items: torch.Tensor) -> torch.Tensor:
        """Return int64 (NUM_WORK_COUNTS,), the `BatchStats` of a batch with these `num_items`."""
        mask = batch.get("attention_mask")
        if mask is None:
            mask = torch.ones_like(batch["input_ids"])
        lengths = mask.sum(dim=-1).flatten()  # without padding
        num_tokens = lengths.sum()
        num_squares = (lengths**2).sum()
        num_sequences = lengths.new_tensor(len(lengths))
        num_masked = lengths.new_zeros(())
        return torch.stack([num_tokens, num_squares, num_sequences, num_masked])

    def autocast(self) -> torch.autocast:
        """Return the autocast of the run's precision, for a teacher.

        Accelerate's has no effect under an engine.
        """
        dtype = torch.float16 if self.args.fp16 else torch.bfloat16
        is_half = self.args.bf16 or self.args.fp16
        return torch.autocast(self.args.device.type, dtype, enabled=is_half)

    # 4. Optimizer and engine

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """Build the optimizer that `args.optimizer` names."""
        args = self.args
        if self.optimizer is not None:
            return self.optimizer
        if args.optimizer == "trainer":
            self.optimizer = super().create_optimizer(model)
        else:
            self.optimizer = create_optimizer(
                args.optimizer,
                model or self.model,
                learning_rate=args.learning_rate,
                betas=(args.adam_beta1, args.adam_beta2),
                epsilon=args.adam_epsilon,
                weight_decay=args.weight_decay,
                muon=MuonSettings(
                    args.muon_learning_rate or MuonSettings.learning_rate,
                    args.muon_row_beta,
                    args.muon_weight_decay,
                ),
            )
        self._created_optimizer = True
        return self.optimizer

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> Any:
        """Build the schedule that `args.schedule` names."""
        # With the groups and rates that a subclass has added.
        self._settings_of_groups = settings_of_groups(optimizer or self.optimizer)
        if self.lr_scheduler is not None:
            return self.lr_scheduler
        if self.args.schedule == "trainer":
            kwargs = self.args.lr_scheduler_kwargs or {}
            if self.args.lr_scheduler_type in SCHEDULERS_BY_METRIC:
                kwargs = {"mode": "max" if self.args.greater_is_better else "min", **kwargs}
            with _overridden(self.args, lr_scheduler_kwargs=kwargs):
                scheduler: Any = super().create_scheduler(num_training_steps, optimizer)
            if type(scheduler) is LambdaLR:
                factors = scheduler.lr_lambdas
                scheduler.lr_lambdas = [self._by_clock(f, num_training_steps) for f in factors]
            return scheduler
        schedule = self.schedule_of(num_training_steps)
        if schedule.warmup_steps >= schedule.steps:
            message = (
                "warmup_steps %d is not shorter than the run of %d steps: the learning rate will "
                "not reach its peak"
            )
            warn_in_main_process(message, schedule.warmup_steps, schedule.steps)
        factor = self._by_clock(schedule.factor, schedule.steps)
        self.lr_scheduler = LambdaLR(optimizer or self.optimizer, factor)
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def _by_clock(self, factor: Callable[[int], float], num_steps: int) -> Callable[[int], float]:
        """Return a factor of the learning rate that follows the minutes, if there are minutes."""
        if self.args.max_minutes is None:
            return factor
        return lambda step: factor(round(self.clock * num_steps))

    def schedule_of(self, num_training_steps: int) -> Schedule:
        """Return the schedule of the steps that are trained now."""
        args = self.args
        warmup = args.get_warmup_steps(num_training_steps)
        return Schedule(
            0,
            num_training_steps,
            warmup,
            args.learning_rate,
            args.schedule_power,
            args.flat_until,
        )

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load as stock, but keep this run's settings, which may be others with allow_changes."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or not self._settings_of_groups:
            return
        if self._created_optimizer:
            groups = self.optimizer.param_groups
            for group, settings in zip(groups, self._settings_of_groups, strict=True):
                group.update(settings)
        # A scheduler that the caller passed in stays as stock has restored it; so do, under
        # `schedule: trainer`, the rates of an optimizer that the caller passed in.
        has_rates_of_run = self._created_optimizer or self.args.schedule != "trainer"
        is_ours = self._created_lr_scheduler and type(self.lr_scheduler) is LambdaLR
        if has_rates_of_run and is_ours:
            set_peak_rates(self.lr_scheduler, self._peak_rates())

    def _peak_rates(self) -> list[float]:
        """Return the peak learning rate of each parameter group.

        In a phase with its own learning rate a group keeps its ratio to the rate of the run.
        """
        peaks = [settings["initial_lr"] for settings in self._settings_of_groups]
        if self.args.schedule == "trainer":
            return peaks
        rate_of_run = self.args.learning_rate
        rate_of_phase = self.schedule_of(self.state.max_steps).learning_rate
        if rate_of_phase == rate_of_run:
            return peaks
        if not rate_of_run:
            return [rate_of_phase] * len(peaks)
        return [rate_of_phase * (peak / rate_of_run) for peak in peaks]

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """Return the norm as stock, and skip the step if it is not finite."""
        norm = super()._get_grad_norm(model, grad_norm)
        if norm is not None:
            self._skip_if_not_finite(model, norm)
        return norm

    def _skip_if_not_finite(self, model: Any, norm: Any) -> None:
        """Let this step change nothing if the norm of its gradient is not finite.

        On a GPU the optimizer decides that on the device, and the host reads the norm one step
        later, as it would wait otherwise.
        """
        if self._optimizer_skips_on_device(norm):
            # The optimizer's `step` reads it on the device.
            self.optimizer.optimizer.found_inf = (~torch.isfinite(norm)).float()
            self._read_norm()
            self._unread_norm = self.state.global_step + 1, LateNumber(norm)
        else:
            self._count_norm(self.state.global_step + 1, norm)
            if not math.isfinite(norm):
                model.zero_grad()  # the optimizer then has nothing to do

    def _optimizer_skips_on_device(self, norm: Any) -> bool:
        is_on_gpu = isinstance(norm, torch.Tensor) and norm.is_cuda
        return (
            is_on_gpu
            and self.accelerator.scaler is None
            and skips_on_device(self.optimizer.optimizer)
        )

    def _read_norm(self) -> None:
        """Check the norm of the last step, if it is still unread."""
        if self._unread_norm is not None:
            step, norm = self._unread_norm
            self._unread_norm = None
            self._count_norm(step, norm.read())

    def _count_norm(self, step: int, norm: Any) -> None:
        """Count, report and at last refuse gradients that are not finite."""
        if math.isfinite(norm):
            self._skipped_in_a_row = 0
            return
        self.skipped_steps += 1
        self._skipped_in_a_row += 1
        scaler = self.accelerator.scaler
        if scaler is not None and scaler.get_scale() >= 1:
            # A loss scaler finds its scale like this and halves it every time. Below 1 the scale is
            # not the reason.
            return
        if self.is_deepspeed_enabled:
            # DeepSpeed has updated the weights by the time that it returns the norm.
            self._refuse_gradient(step, "one step, and DeepSpeed cannot leave a step out")
        if self._skipped_in_a_row >= self.args.max_skipped_steps:
            self._refuse_gradient(step, f"{self._skipped_in_a_row} step(s) in a row")
        if self.is_world_process_zero():
            logger.warning("step %d is skipped: its gradient is not finite (%s)", step, float(norm))

    def _refuse_gradient(self, step: int, duration: str) -> NoReturn:
        raise InputError(
            f"step {step}: the gradient was not finite for {duration}; the checkpoints are from "
            "before. Lower learning_rate, give more warmup_steps, or --precision fp32"
        )

    @cached_property
    def _flops_per_token(self) -> int:
        return 6 * self.model.num_parameters(exclude_embeddings=True)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Count as stock, 6 x parameters x tokens.

        Stock walks through all modules at every step to count the parameters.
        """
        return self._flops_per_token * inputs[self.model.main_input_name].numel()

    @property
    def engine(self) -> str:
        """Return the name of the engine that splits the optimizer's state, or `NO_ENGINE`."""
        return name_engine(self)

    def _build_accelerator_args(self, **kwargs: Any) -> dict[str, Any]:
        return complete_engine(self.args, super()._build_accelerator_args(**kwargs))

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Warn as stock, but not of the second name of a tied weight.

        Safetensors keeps one name of a weight; stock takes the other for a missing one.
        """
        tied = self.model.all_tied_weights_keys
        missing = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    def _load_from_checkpoint(self, resume_from_checkpoint: Any, model: Any = None) -> None:
        if self.is_fsdp_enabled:
            load_fsdp_weights(self, Path(resume_from_checkpoint))
            return
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        self._load_modules(Path(resume_from_checkpoint))

    def _load_modules(self, checkpoint: Path) -> None:
        for name, module in self.module_files.items():
            module.load_state_dict(load_file(checkpoint / name))

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Load the state of the scaler of float16; a run in another precision has none."""
        if self.accelerator.scaler is not None:
            super()._load_scaler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Load as stock; a process without a file, as of another number of them, gets a new seed.

        With the seed of the start it would repeat the dropout of the first steps.
        """
        super()._load_rng_state(checkpoint)
        if checkpoint is None:
            return
        args = self.args
        name = "rng_state.pth" if args.world_size == 1 else f"rng_state_{args.process_index}.pth"
        if not (Path(checkpoint) / name).is_file():
            entropy = [args.seed, args.process_index, self.state.global_step]
            (seed,) = np.random.SeedSequence(entropy).generate_state(1).tolist()
            torch.manual_seed(seed)

    def read_weights(self, checkpoint: Path) -> dict[str, torch.Tensor]:
        """Return the weights of a checkpoint by their names in the model."""
        return load_file(checkpoint / "model.safetensors")

    def _load_best_model(self) -> None:
        if self.stop_request.is_stopped:  # the last step is saved, and nothing more is measured
            return
        # Else the next evaluation would convert the best weights as if they were those of training.
        self.use_mean_weights()
        if self.is_fsdp_enabled:
            self._load_from_checkpoint(self.state.best_model_checkpoint)
        else:
            super()._load_best_model()
            self._load_modules(Path(self.state.best_model_checkpoint))

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        if not self.is_fsdp_enabled:
            return super()._prepare_for_training(*args, **kwargs)
        with fsdp_groups(self), sharded_once(self):
            return super()._prepare_for_training(*args, **kwargs)

    # 5. Checkpoints

    def use_mean_weights(self) -> None:
        """Switch a schedule-free optimizer to its mean weights, with which a model is measured.

        Stock's evaluation does the same, and its next training step switches back.
        """
        evaluate = getattr(self.optimizer, "eval", None)
        if callable(evaluate):
            evaluate()

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save as stock, with the mean weights of a schedule-free optimizer."""
        self.use_mean_weights()
        super().save_model(output_dir, _internal_call)

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None
    ) -> None:
        """Save as stock, but a tied weight under its first name alone.

        Engines give a tied weight under both names.
        """
        if state_dict is not None:
            tied = self.model.all_tied_weights_keys
            state_dict = {name: weight for name, weight in state_dict.items() if name not in tied}
        super()._save(output_dir, state_dict)
        if self.args.should_save:  # stock calls this in every process
            for name, module in self.module_files.items():
                save_file(module.state_dict(), Path(output_dir or self.args.output_dir) / name)

    @property
    def _is_saved(self) -> bool:
        """Return whether this training has saved this step, or was resumed from it."""
        return self.state.global_step in (self._last_saved_step, self.num_resumed_steps)

    def _checkpoint_folder(self) -> Path:
        return Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self._staging is None else str(self._staging)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write everything into a staging folder, seal it, and only then give it its name.

        Older checkpoints are deleted after that.
        """
        target = self._checkpoint_folder()
        staging = staging_dir(target.parent)
        try:
            with saving(target):
                if self.args.should_save:
                    shutil.rmtree(staging, ignore_errors=True)
                self.accelerator.wait_for_everyone()
                self._staging = staging
                super()._save_checkpoint(model, trial)
                self._name_best(target)
                state = self.state_dict()
                state["processes"] = gather_object([state.pop("process")])
                self.accelerator.wait_for_everyone()
                if self.args.should_save:
                    self._finish_checkpoint(staging / target.name, target, state)
            self.accelerator.wait_for_everyone()
            self._last_saved_step = self.state.global_step
        finally:
            self._staging = None
            if self.args.should_save:
                shutil.rmtree(staging, ignore_errors=True)

    def _finish_checkpoint(self, written: Path, target: Path, state: Mapping[str, Any]) -> None:
        """Complete, seal, rename and rotate a written checkpoint, in the main process."""
        (written / PROGRESS_FILE).write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
        # Stock pickles its arguments beside the weights; run.yaml has the same and is safe to open.
        (written / "training_args.bin").unlink(missing_ok=True)
        # Under FSDP stock writes the weights a second time, not as safetensors.
        (written / "pytorch_model_fsdp.bin").unlink(missing_ok=True)
        self.state.save_to_json(str(written / STATE_FILE))
        num_states = len(list(written.glob("rng_state*.pth")))
        if num_states != self.args.world_size:
            raise InputError(
                f"output_dir {target.parent}: {num_states} of {self.args.world_size} processes "
                "wrote their part of the checkpoint there; it must be one folder that all machines "
                "share"
            )
        for name, write in self.checkpoint_files.items():
            write(written / name)
        write_manifest(written)
        commit(written, target)
        self._rotate(target)

    def _rotate(self, newest: Path) -> None:
        keep = [newest]
        keep += [newest.with_name(f"checkpoint-{step}") for step in self.kept_steps]
        if self.state.best_model_checkpoint is not None:
            keep.append(Path(self.state.best_model_checkpoint))
        rotate(newest.parent, self._save_total_limit, keep=keep)

    def _name_best(self, target: Path) -> None:
        """Give the best checkpoint its final name in the state.

        Stock looks for that checkpoint in the folder that is being written to.
        """
        if not self.state.best_global_step:
            return
        best = target.with_name(f"checkpoint-{self.state.best_global_step}")
        # After --resume FOLDER the best one may be in the folder of the other run.
        earlier = Path(self.state.best_model_checkpoint or best)
        self.state.best_model_checkpoint = None
        if best == target or best.is_dir():
            self.state.best_model_checkpoint = str(best)
        elif earlier.name == best.name and earlier.is_dir():
            self.state.best_model_checkpoint = str(earlier)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint keeps beside stock's files, as JSON.

        All processes call it together. `process` is the state of this process alone.
        """
        return {
            "identity": self.resume_fingerprint,
            "engine": self.engine,
            "total_loss": self._total_loss_scalar,
            "last_logged_step": self._globalstep_last_logged,
            "skipped_steps": self.skipped_steps,
            "steps_without_loss": self._steps_without_loss,
            "evaluation_is_due": self._evaluation_is_due,
            "cost": self.run_time.state_dict(),
            "clock": self.clock,
            "max_minutes": self.args.max_minutes,
            "longest_pause": self._longest_pause,
            "first_step_seconds": self._clock_start,  # the key of earlier versions
            "kept_steps": self.kept_steps,
            "best_metric": self._best_rule,
            "process": {"loss": float(self._tr_loss), "meter": self.meter.sums()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the sums where the checkpoint left them; everything else is loaded by now."""
        process_state = state_of_process(
            state["processes"], self.args.process_index, self.args.world_size
        )
        self._tr_loss.fill_(process_state["loss"])
        self.meter.take_sums(process_state["meter"])
        self._total_loss_scalar = self._total_at_log
        self._globalstep_last_logged = state["last_logged_step"]
        self.run_time.load_state_dict(state["cost"])

    def run_missed_evaluation(self) -> None:
        """Evaluate a resumed checkpoint whose evaluation was stopped."""
        self._determine_best_metric(self._evaluate(None, None), None)
        if self.state.best_global_step == self.state.global_step:
            # It may lie in the folder of another run.
            self.state.best_model_checkpoint = str(self._resumed_from)

    # 6. Log

    def epochs_at(self, step: float) -> float:
        """Return the passes over the training data up to a step."""
        return step * self.global_batch_size / len(self.train_dataset)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as stock, but with the mean over all steps as `train_loss` at the end.

        Stock divides the sum over all steps by the number of steps since a resume.
        """
        # Stock has just logged the loss; callbacks may log at other times.
        if self._globalstep_last_logged > self._step_of_log:
            self._close_log_interval()
        if "train_loss" in logs:
            self._close_log_interval()
            logs["train_loss"] = self.mean_loss
        super().log(logs, start_time)

    def _close_log_interval(self) -> None:
        """Note the loss and the step of this log line.

        If the loss is not finite, the steps since the last line are left out of the mean; the line
        shows it.
        """
        if not math.isfinite(self._total_loss_scalar):
            self._tr_loss.zero_()  # stock subtracts it from itself, which leaves NaN
            self._total_loss_scalar = self._total_at_log
            self._steps_without_loss += self.state.global_step - self._step_of_log
        self._total_at_log = self._total_loss_scalar
        self._step_of_log = self.state.global_step

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Save the last step before it is measured.

        A resumed run makes up for an evaluation that was stopped by a signal.
        """
        start = time.perf_counter()
        control = self.control
        if control.should_log or control.should_save or control.should_evaluate:
            self._read_norm()
        is_last = self.state.global_step >= self.state.max_steps
        saves_first = is_last and control.should_evaluate and control.should_save
        with self.meter.paused():
            if saves_first:
                self._log_and_save(*args, **kwargs)
                control.should_evaluate = True
            try:
                super()._maybe_log_save_evaluate(*args, **kwargs)
            except Interrupted:
                # The evaluation was stopped: save the step, unless that is done.
                self.stop_request.stop(control)
                control.should_save = not saves_first
                self._log_and_save(*args, **kwargs)
            if saves_first:
                self._choose_best_again()
        self._longest_pause = max(self._longest_pause, time.perf_counter() - start)

    def _choose_best_again(self) -> None:
        """Name the best checkpoint, and rotate, after the saved last step was measured."""
        self._name_best(self._checkpoint_folder())
        if self.args.should_save:
            self._rotate(self._checkpoint_folder())
        self.accelerator.wait_for_everyone()

    def _log_and_save(self, *args: Any, **kwargs: Any) -> None:
        """Log and save as stock, and evaluate later, as the checkpoint says."""
        self._evaluation_is_due = True
        self.control.should_evaluate = False
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate as stock while training, and remember the metrics."""
        metrics: dict[str, float] = super()._evaluate(*args, **kwargs)
        self._last_metrics = self.state.global_step, metrics
        return metrics

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Return whether to save this step, which stock does where save_strategy is best.

        A save that is due stays due. A step that is saved already is not saved again: the last one
        is saved before its evaluation. A metric that this data lacks, as of a type of entities, is
        never the best; nor is one that is undefined, as a correlation of equal predictions.
        """
        name = self.args.metric_for_best_model
        if name is not None:
            value = metrics.get(f"eval_{name.removeprefix('eval_')}")
            if value is None:
                warn_in_main_process("metric_for_best_model: the held-out data has no %s", name)
            if value is None or math.isnan(value):
                return self.control.should_save
        is_best: bool = super()._determine_best_metric(metrics, trial)
        if is_best and self.args.load_best_model_at_end and not self._is_saved:
            self.control.should_save = True
        return (is_best and not self._is_saved) or self.control.should_save

    def evaluate_at_end(self) -> dict[str, float]:
        """Return the metrics of the finished model.

        The model is measured now unless its step was the last one measured.
        """
        step = self.state.global_step
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint:
            step = self.state.best_global_step
        measured_step, metrics = self._last_metrics
        return metrics if measured_step == step else self.evaluate()

    def flops_of(self, work: BatchStats) -> int | None:
        """Return the model FLOPs of training steps (`speed.training_flops`), None if unknown."""
        return None

    def measure_all(self) -> dict[str, Any]:
        """Return the metrics of the finished model on all held-out data."""
        return {} if self.eval_dataset is None else self.evaluate_at_end()

    def mfu_and_hours_left(self) -> dict[str, float]:
        """Return `mfu` and `hours_left` by the meter's last reading.

        `mfu` is the fraction of the machine's rate of matrix products.
        """
        if self.meter.interval is None:
            return {}
        args = self.args
        work, seconds, steps = self.meter.interval
        steps_left = self.state.max_steps - self.state.global_step
        hours_left = steps_left * seconds / steps / 3600
        if args.max_minutes is not None:
            hours_left = (1 - self.clock) * args.max_minutes / 60
        flops = self.flops_of(work)
        if flops is None:
            return {"hours_left": hours_left}
        num_passes = steps * args.gradient_accumulation_steps * args.world_size
        tokens = max(round(work.tokens / num_passes), 1)
        rate = flops / seconds / args.world_size
        return {"mfu": rate / self._peak_rate(rate, tokens), "hours_left": hours_left}

    def _peak_rate(self, rate: float, tokens: int) -> float:
        """Return the FLOP/s that a process can reach; it reached `rate` by now.

        Measuring takes seconds for a large model on a CPU. The rate is measured once, and again
        where the process is a tenth faster: other work on the machine slowed the measurement.
        """
        measured = self._best_rate
        if measured is None or rate > 1.1 * measured:
            measured = best_rate(self.model.config, tokens, self.precision, self.args.device)
        self._best_rate = max(measured, rate)
        return self._best_rate


class _RestoreAndSave(TrainerCallback):
    """Restore a checkpoint's state; end a phase, and a run by the clock, with a checkpoint."""

    def __init__(self, trainer: RecipeTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        # Intervals of this run, where stock would take the checkpoint's, before stock's loop reads
        # them.
        state.compute_steps(args, state.max_steps)
        loaded_state = self.trainer._loaded_state
        if self.trainer._resumed_from is not None:
            self.trainer.load_state_dict(loaded_state)
        self._reset_best_step(state)
        if self.trainer.minutes_were_over():
            state.max_steps = state.global_step
            control.should_training_stop = True
        if loaded_state["evaluation_is_due"] and args.eval_strategy != "no":
            self.trainer.run_missed_evaluation()

    def _reset_best_step(self, state: Any) -> None:
        """Forget the best step where another phase or another metric begins."""
        is_start = self.trainer._is_start_of_phase()
        has_other_rule = self.trainer._has_other_best_rule and state.best_metric is not None
        if not is_start and not has_other_rule:
            return
        # Held-out losses of shorter inputs say nothing about the best step of a phase.
        if not is_start and state.is_world_process_zero:
            logger.warning(
                "metric_for_best_model has changed: the best step is chosen among those after the "
                "resume"
            )
        state.best_metric = state.best_global_step = state.best_model_checkpoint = None

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        if self.trainer._is_end_of_phase():
            control.should_training_stop = True
            control.should_save = True
        if self.trainer.clock >= 1.0:
            state.max_steps = state.global_step
            control.should_training_stop = True
            # As stock at max_steps.
            if args.save_strategy == "steps":
                control.should_save = True
            if args.eval_strategy == "steps":
                control.should_evaluate = True
        if self.trainer.ends_with_checkpoint and state.global_step >= state.max_steps:
            control.should_save = True
