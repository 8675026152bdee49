"""The settings that every training run of this project has, beside those of `TrainingArguments`."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from typing import Any, ClassVar

import torch
from transformers import TrainingArguments

from bert_recipes.emissions import EnergySettings
from bert_recipes.errors import InputError
from bert_recipes.hub.target import check_push_settings
from bert_recipes.kernels import FAST_LAYERS
from bert_recipes.optimization import OPTIMIZERS, SCHEDULES
from bert_recipes.precision import PRECISIONS, choose_precision
from bert_recipes.typed_settings import PARTS, TOTAL, settle, warn_early


# What the extra `tracking` brings.
TRACKERS = ("tensorboard", "trackio", "wandb")


@dataclass
class RunArguments(TrainingArguments):
    """`TrainingArguments` with the device, precision, batch and optimiser settings of this project."""

    # What belongs to one launch or follows from the machine: never saved, so that run.yaml can be run elsewhere.
    LAUNCH_FIELDS: ClassVar[frozenset[str]] = frozenset(
        {
            "allow_changes",
            "bf16",
            "fp16",
            "hub_overwrite",
            "overwrite_run",
            "resume",
            "resume_from_checkpoint",
            "use_cpu",
        }
    )
    # Settings of the Trainer that would be ignored -> why.
    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = {}
    # As well, but common in files that are shared with stock's Trainer: they are named in a warning.
    NOT_READ: ClassVar[frozenset[str]] = frozenset()

    adam_epsilon: float = field(default=1e-6, metadata={"help": "epsilon of Adam (original: 1e-6)"})
    weight_decay: float = field(default=0.01, metadata={"help": "weight decay (paper: 0.01)"})
    max_grad_norm: float = field(default=1.0, metadata={"help": "clip the gradient's global norm (original: 1.0)"})
    remove_unused_columns: bool | None = field(default=False, metadata={"help": "must stay false"})
    # Declared again for the type checker: the base class assigns them in ways that it cannot follow.
    per_device_train_batch_size: int = field(default=8, metadata={"help": "examples a process takes at once, at most"})
    gradient_accumulation_steps: int = field(
        default=1, metadata={"help": "micro-batches of a step; global_train_batch_size decides it where it is given"}
    )
    use_cpu: bool = field(default=False, metadata={"help": "use the CPU even where there is a GPU"})
    bf16: bool = field(default=False, metadata={"help": "the same as precision: bf16"})
    fp16: bool = field(default=False, metadata={"help": "the same as precision: fp16"})
    # The buffers of these models are constants.
    ddp_broadcast_buffers: bool | None = field(default=False, metadata={"help": "DDP sends buffers before each pass"})
    # A loss that is not finite ends the run soon, and is not hidden in a mean before that.
    logging_nan_inf_filter: bool = field(default=False, metadata={"help": "must stay false"})
    optimizer: str = field(default="bert_adam", metadata={"help": f"one of {', '.join(OPTIMIZERS)}"})
    schedule: str = field(default="bert_linear", metadata={"help": f"one of {', '.join(SCHEDULES)}"})
    schedule_power: float = field(default=1.0, metadata={"help": "exponent of bert_linear's decay (original: 1)"})
    precision: str = field(default="auto", metadata={"help": f"one of {', '.join(PRECISIONS)}"})
    fast_layers: str = field(default="auto", metadata={"help": f"fused CPU kernels: {', '.join(FAST_LAYERS)}"})
    keep_freed_memory: bool = field(
        default=True, metadata={"help": "on a CPU: glibc keeps what a step frees for the next one"}
    )
    global_train_batch_size: int | None = field(
        default=None, metadata={"help": "examples of a step over all processes; decides the accumulation"}
    )
    resume: str = field(
        default="auto", metadata={"help": "auto (an unfinished run goes on), last, no, or a checkpoint folder"}
    )
    allow_changes: bool = field(default=False, metadata={"help": "resume although settings or data have changed"})
    overwrite_run: bool = field(default=False, metadata={"help": "start anew in an output_dir that holds a run"})
    max_skipped_steps: int = field(
        default=10, metadata={"help": "steps in a row with a gradient that is not finite before the run ends"}
    )
    # Stock's default makes public repositories.
    hub_private_repo: bool | None = field(
        default=True, metadata={"help": "a new repository is private; null: as the owner's default is"}
    )
    hub_overwrite: bool = field(
        default=False, metadata={"help": "push over another model that lies in the repository"}
    )
    hub_tags: list[str] | None = field(default=None, metadata={"help": "tags for the model card on the Hub"})
    power_watts: float | None = field(
        default=None, metadata={"help": "draw of all that the run uses, watts: its energy is estimated by it"}
    )
    country_iso_code: str | None = field(
        default=None, metadata={"help": "country of the machines (DEU): energy and CO2 are estimated by codecarbon"}
    )
    carbon_intensity: float | None = field(
        default=None, metadata={"help": "g CO2e/kWh of the electricity; default: codecarbon's for the country"}
    )

    def __post_init__(self) -> None:
        for name, choices in (
            ("optimizer", OPTIMIZERS),
            ("schedule", SCHEDULES),
            ("precision", PRECISIONS),
            ("fast_layers", FAST_LAYERS),
        ):
            if getattr(self, name) not in choices:
                raise InputError(f"{name} is '{getattr(self, name)}'; allowed: {', '.join(choices)}")
        for name, holds, allowed in self._rules():
            if not holds:
                raise InputError(f"{name} is {getattr(self, name)}; allowed: {allowed}")
        if self.dataloader_persistent_workers and self.dataloader_num_workers == 0:
            raise InputError("dataloader_persistent_workers needs dataloader_num_workers of 1 or more")
        self._check_without_effect()
        self._check_packages()
        check_push_settings(self)
        self.hub_is_checked = False  # `check_push` has asked the Hub
        self.energy.check()
        launched_on_cpu = os.environ.get("ACCELERATE_USE_CPU", "false").lower() in ("1", "true", "yes")
        self.cpu_is_chosen = self.use_cpu or launched_on_cpu
        self.use_cpu = self.cpu_is_chosen or not torch.cuda.is_available()
        chosen = choose_precision(self._wanted_precision(), use_cpu=self.use_cpu)
        self.bf16, self.fp16, self.precision_reason = chosen.name == "bf16", chosen.name == "fp16", chosen.reason
        self._split_global_batch()
        # What a launcher or an Accelerate configuration says about precision must not overrule the run's choice.
        mixed_precision = "no" if chosen.name == "fp32" else chosen.name
        os.environ["ACCELERATE_MIXED_PRECISION"] = mixed_precision
        try:
            super().__post_init__()
        except ValueError as error:
            raise InputError(str(error)) from error
        self.mixed_precision = mixed_precision
        # Models are loaded whole: transformers' way for ZeRO 3 draws other heads and saves LayerNorm as gamma and beta.
        from transformers.integrations.deepspeed import unset_hf_deepspeed_config  # takes seconds

        unset_hf_deepspeed_config()

    @property
    def energy(self) -> EnergySettings:
        """How the energy of the run is estimated."""
        return EnergySettings(self.power_watts, self.country_iso_code, self.carbon_intensity)

    def _rules(self) -> tuple[tuple[str, bool, str], ...]:
        """(name, whether it holds, what is allowed) for numbers with which training cannot work."""
        return (
            ("per_device_train_batch_size", self.per_device_train_batch_size >= 1, "1 or more"),
            ("per_device_eval_batch_size", self.per_device_eval_batch_size >= 1, "1 or more"),
            ("gradient_accumulation_steps", self.gradient_accumulation_steps >= 1, "1 or more"),
            ("max_steps", self.max_steps == -1 or self.max_steps >= 1, "1 or more, or -1 for num_train_epochs"),
            ("num_train_epochs", self.num_train_epochs > 0, "above 0"),
            ("learning_rate", 0 <= self.learning_rate < math.inf, "0 or more"),
            ("adam_beta1", 0 <= self.adam_beta1 < 1, "0 or more and below 1"),
            ("adam_beta2", 0 <= self.adam_beta2 < 1, "0 or more and below 1"),
            ("adam_epsilon", 0 <= self.adam_epsilon < math.inf, "0 or more"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "0 or more"),
            ("max_grad_norm", self.max_grad_norm >= 0, "0 (no clipping) or more"),
            ("warmup_steps", self.warmup_steps >= 0, "0 or more"),
            ("schedule_power", self.schedule_power > 0, "above 0"),
            ("seed", 0 <= self.seed < 2**32, "0 to 4294967295"),
            ("max_skipped_steps", self.max_skipped_steps >= 1, "1 or more"),
            ("dataloader_num_workers", self.dataloader_num_workers >= 0, "0 or more"),
        )

    def _check_without_effect(self) -> None:
        """Refuse settings of the Trainer that would be ignored here."""
        defaults = {item.name: item.default for item in fields(TrainingArguments)}
        reasons = {
            **self.WITHOUT_EFFECT,
            "save_only_model": "no run could go on from such checkpoints; the finished run's folder is a model alone",
            "save_on_each_node": "output_dir is one folder that all machines share",
        }
        if self.optimizer != "trainer":
            reasons["optim"] = "optimizer decides; give --optimizer trainer to let optim decide"
        if self.schedule != "trainer":
            reasons["lr_scheduler_type"] = "schedule decides; give --schedule trainer to let lr_scheduler_type decide"
        for name, reason in reasons.items():
            if getattr(self, name) != defaults[name]:
                raise InputError(f"{name} has no effect here: {reason}")
        unread = {*self.NOT_READ, *({"optim_args"} if self.optimizer != "trainer" else ())}
        unread |= {"lr_scheduler_kwargs"} if self.schedule != "trainer" else set()
        given = [f"{name} {getattr(self, name)}" for name in sorted(unread) if getattr(self, name) != defaults[name]]
        if given:
            warn_early("without effect here: %s", ", ".join(given))
        if self.resume_from_checkpoint is not None:
            raise InputError("resume_from_checkpoint has no effect here: give --resume last, or --resume FOLDER")
        if self.logging_nan_inf_filter:
            raise InputError("logging_nan_inf_filter is true; it would hide what is wrong in the log: leave it false")
        if self.overwrite_run and self.resume not in ("auto", "no"):
            raise InputError(f"resume is '{self.resume}' and overwrite_run true; give one of them")
        if self.remove_unused_columns:
            raise InputError("remove_unused_columns is true; the batches hold what the recipe needs: leave it false")

    def _check_packages(self) -> None:
        """Refuse trackers and engines that are not installed."""
        from transformers.integrations import INTEGRATION_TO_CALLBACK  # takes seconds

        wanted = [self.report_to] if isinstance(self.report_to, str) else list(self.report_to or ())
        for name in wanted:
            if name not in (*INTEGRATION_TO_CALLBACK, "all", "none"):
                allowed = ", ".join(["none", "all", *sorted(INTEGRATION_TO_CALLBACK)])
                raise InputError(f"report_to is '{name}'; allowed: {allowed}")
            if name in TRACKERS and find_spec(name) is None:
                raise InputError(f"report_to: {name} is not installed; pip install 'bert-recipes[tracking]'")
        if self.deepspeed and find_spec("deepspeed") is None:
            raise InputError("deepspeed is not installed; pip install 'bert-recipes[deepspeed]'")

    def _wanted_precision(self) -> str:
        """`precision`, or what the Trainer's own flags bf16 and fp16 say."""
        flags = [name for name in ("bf16", "fp16") if getattr(self, name)]
        if not flags:
            return self.precision
        if len(flags) > 1 or self.precision not in ("auto", flags[0]):
            raise InputError(f"precision is '{self.precision}' and {' and '.join(flags)} true; give one of them")
        self.precision = flags[0]
        return self.precision

    @property
    def examples_a_step(self) -> int:
        """Of all processes together, given as global_train_batch_size or not."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps * self._num_processes()

    @staticmethod
    def _num_processes() -> int:
        return int(os.environ.get("WORLD_SIZE", "1"))

    def _split_global_batch(self) -> None:
        """Cut the global batch into the largest micro-batches that per_device_train_batch_size allows."""
        total, wanted = self.global_train_batch_size, self.gradient_accumulation_steps
        if total is None:
            return
        micro, accumulation = self.split_batch(total, self.per_device_train_batch_size)
        if wanted not in (1, accumulation):
            raise InputError(
                f"gradient_accumulation_steps is {wanted} and global_train_batch_size {total}, which makes it {accumulation} "
                f"({micro} examples x {self._num_processes()} processes at once); leave one of them out"
            )
        self.per_device_train_batch_size, self.gradient_accumulation_steps = micro, accumulation
        # It follows from the number of processes, which is another one elsewhere.
        self.LAUNCH_FIELDS = self.LAUNCH_FIELDS | {"gradient_accumulation_steps"}  # type: ignore[misc]

    @classmethod
    def settle(cls, values: dict[str, Any], typed: Collection[str]) -> dict[str, Any]:
        """See `typed_settings.settle`."""
        return settle(values, typed, {name: getattr(cls, name) for name in (*PARTS, TOTAL)}, cls._num_processes())

    def split_batch(self, total: int, most: int) -> tuple[int, int]:
        """Cut a global batch into the largest micro-batches of at most `most` examples: their size, and their number a process."""
        processes = self._num_processes()
        if total < 1 or total % processes:
            raise InputError(
                f"a global batch of {total} cannot be shared by {processes} processes; give --global_train_batch_size as a "
                "multiple of their number"
            )
        share = total // processes
        micro = next(size for size in range(min(most, share), 0, -1) if share % size == 0)
        return micro, share // micro
