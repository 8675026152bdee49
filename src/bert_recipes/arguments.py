"""The settings of a pre-training run, beside those of `TrainingArguments`."""

from __future__ import annotations

import logging
import math
import os
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from typing import ClassVar

import torch
from transformers import TrainingArguments

from bert_recipes.errors import InputError
from bert_recipes.optimization import OPTIMIZERS, SCHEDULES
from bert_recipes.precision import PRECISIONS, choose_precision


logger = logging.getLogger(__name__)


@dataclass
class ModelArguments:
    """Which model to train.

    Attributes:
        size: Size of a new model: tiny, mini, small, medium, base, large.
        model_name_or_path: Start from this checkpoint (folder or Hub name) instead of a new model.
        hidden_act: Activation of a new model.
        weight_init: Initialisation of a new model.
        initializer_range: Deviation of the normal that new weights are drawn from (original: 0.02).
        dropout: Dropout of a new model, hidden states and attention (paper, appendix A.2: 0.1).
        max_position_embeddings: Positions of a new model.
    """

    size: str = field(default="tiny", metadata={"help": "size of a new model: tiny, mini, small, medium, base, large"})
    model_name_or_path: str | None = field(
        default=None, metadata={"help": "start from this checkpoint (folder or Hub name) instead of a new model"}
    )
    hidden_act: str = field(
        default="gelu_new", metadata={"help": "activation of a new model: gelu_new (the original's tanh form) or gelu"}
    )
    weight_init: str = field(
        default="truncated_normal", metadata={"help": "new weights: truncated_normal (original) or normal (stock)"}
    )
    initializer_range: float = field(default=0.02, metadata={"help": "deviation of new weights (original: 0.02)"})
    dropout: float = field(default=0.1, metadata={"help": "dropout of a new model (paper: 0.1)"})
    max_position_embeddings: int = field(default=512, metadata={"help": "positions of a new model (paper: 512)"})


@dataclass
class DataArguments:
    """What to train on, and the rules that make pairs and masks of it.

    Attributes:
        store: Folder written by recipes/prepare_corpus.py.
        train_file, validation_file: Instance files of recipes/create_pretraining_data.py instead of a store.
        tokenizer: Tokenizer folder; default: the one inside the store.
        max_seq_length: Tokens of a pair with [CLS] and [SEP]s.
        short_seq_prob: Share of documents with a shorter target (original: 0.1).
        mlm_probability, max_predictions_per_seq, mask_rate, keep_rate, random_rate, whole_word, selection: see
            `MaskingRates`.
        max_eval_pairs: Held-out pairs that an evaluation uses.
        data_cache_dir: Where the index of each epoch is kept; default: beside the store's files.
        data_num_processes: Processes that build an epoch's index.
    """

    store: str | None = field(default=None, metadata={"help": "token-id store written by recipes/prepare_corpus.py"})
    train_file: list[str] | None = field(
        default=None, metadata={"help": "instance files of create_pretraining_data.py, instead of a store"}
    )
    validation_file: list[str] | None = field(default=None, metadata={"help": "held-out instance files"})
    tokenizer: str | None = field(default=None, metadata={"help": "tokenizer folder; default: the store's own"})
    max_seq_length: int = field(default=128, metadata={"help": "tokens of a pair, special tokens included"})
    short_seq_prob: float = field(default=0.1, metadata={"help": "share of documents with a shorter target length"})
    mlm_probability: float = field(default=0.15, metadata={"help": "share of the tokens that is predicted"})
    max_predictions_per_seq: int | None = field(
        default=None, metadata={"help": "limit of predicted tokens a pair; default: mlm_probability x max_seq_length"}
    )
    mask_rate: float = field(default=0.8, metadata={"help": "share of predicted tokens replaced by [MASK]"})
    keep_rate: float = field(default=0.1, metadata={"help": "share of predicted tokens left as they are"})
    random_rate: float = field(default=0.1, metadata={"help": "share of predicted tokens replaced by a random word"})
    whole_word: bool = field(default=False, metadata={"help": "mask whole words"})
    selection: str = field(default="count", metadata={"help": "count (the original's fixed number) or bernoulli"})
    max_eval_pairs: int = field(default=2000, metadata={"help": "held-out pairs of an evaluation"})
    data_cache_dir: str | None = field(default=None, metadata={"help": "folder for the index of each epoch"})
    data_num_processes: int = field(default=1, metadata={"help": "processes that build an epoch's index"})

    def __post_init__(self) -> None:
        """Fill in the derived value and check the ranges."""
        if (self.store is None) == (self.train_file is None):
            raise InputError("give either --store FOLDER (recipes/prepare_corpus.py) or --train_file FILE, not both")
        if self.max_seq_length < 8:
            raise InputError(f"max_seq_length is {self.max_seq_length}; allowed: 8 or more")
        if not 0.0 <= self.short_seq_prob <= 1.0:
            raise InputError(f"short_seq_prob is {self.short_seq_prob}; allowed: 0 to 1")
        if self.max_eval_pairs < 1:
            raise InputError(f"max_eval_pairs is {self.max_eval_pairs}; allowed: 1 or more")


@dataclass
class PreTrainingArguments(TrainingArguments):
    """`TrainingArguments` with the paper's defaults and what pre-training adds.

    Defaults: learning rate, Adam and warm-up of Devlin et al. 2019, appendix A.2; epsilon of google-research/bert
    optimization.py.

    Attributes:
        optimizer: bert_adam, adamw, lamb, or trainer (then `optim` decides).
        schedule: bert_linear, or trainer (then `lr_scheduler_type` decides).
        precision: auto, fp32, bf16, fp16.
        schedule_total_steps: Steps of the whole schedule where the run is a part of it; default: the run's own.
        schedule_start_step: Step of the schedule at which the run begins.
        global_train_batch_size: Pairs of an optimiser step over all processes. It is cut into micro-batches of at most
            per_device_train_batch_size and decides gradient_accumulation_steps, so that one configuration serves any
            number of processes that divides it.
        overwrite_run: Start anew in an output_dir that holds a run.
    """

    # What belongs to one launch or follows from the machine: never saved, so that run.yaml can be run elsewhere.
    LAUNCH_FIELDS: ClassVar[frozenset[str]] = frozenset(
        {"bf16", "fp16", "overwrite_run", "resume_from_checkpoint", "use_cpu"}
    )

    learning_rate: float = field(default=1e-4, metadata={"help": "peak learning rate (paper: 1e-4)"})
    adam_epsilon: float = field(default=1e-6, metadata={"help": "epsilon of Adam (original: 1e-6)"})
    weight_decay: float = field(default=0.01, metadata={"help": "weight decay (paper: 0.01)"})
    warmup_steps: float = field(default=10_000, metadata={"help": "warm-up steps, or their share if below 1"})
    max_grad_norm: float = field(default=1.0, metadata={"help": "clip the gradient's global norm (original: 1.0)"})
    remove_unused_columns: bool | None = field(default=False, metadata={"help": "must stay false: masks need the key"})
    seed: int = field(default=12345, metadata={"help": "seed of weights, pairs, masks and order (original: 12345)"})
    # Declared again for the type checker: the base class assigns them in ways that it cannot follow.
    per_device_train_batch_size: int = field(default=8, metadata={"help": "pairs a process takes at once, at most"})
    use_cpu: bool = field(default=False, metadata={"help": "use the CPU even where there is a GPU"})
    bf16: bool = field(default=False, metadata={"help": "the same as precision: bf16"})
    fp16: bool = field(default=False, metadata={"help": "the same as precision: fp16"})
    resume_from_checkpoint: str | None = field(
        default=None, metadata={"help": "checkpoint folder, or last: the newest one in output_dir"}
    )
    optimizer: str = field(default="bert_adam", metadata={"help": f"one of {', '.join(OPTIMIZERS)}"})
    schedule: str = field(default="bert_linear", metadata={"help": f"one of {', '.join(SCHEDULES)}"})
    schedule_total_steps: int | None = field(default=None, metadata={"help": "steps of the whole schedule"})
    schedule_start_step: int = field(default=0, metadata={"help": "step of the schedule at which the run begins"})
    precision: str = field(default="auto", metadata={"help": f"one of {', '.join(PRECISIONS)}"})
    global_train_batch_size: int | None = field(
        default=None, metadata={"help": "pairs of a step over all processes; decides the accumulation"}
    )
    overwrite_run: bool = field(default=False, metadata={"help": "start anew in an output_dir that holds a run"})

    def __post_init__(self) -> None:
        """Choose device, precision and accumulation, then let the Trainer's own checks run.

        Raises:
            InputError: A value out of range, or a precision that the hardware does not have.
        """
        for name, allowed in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES), ("precision", PRECISIONS)):
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} is '{getattr(self, name)}'; allowed: {', '.join(allowed)}")
        self._check_ranges()
        self._check_without_effect()
        self._check_packages()
        launched_on_cpu = os.environ.get("ACCELERATE_USE_CPU", "false").lower() in ("1", "true", "yes")
        self.use_cpu = self.use_cpu or launched_on_cpu or not torch.cuda.is_available()
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

    def _check_ranges(self) -> None:
        """Refuse numbers with which training cannot work."""
        rules: tuple[tuple[str, bool, str], ...] = (
            ("per_device_train_batch_size", self.per_device_train_batch_size >= 1, "1 or more"),
            ("per_device_eval_batch_size", self.per_device_eval_batch_size >= 1, "1 or more"),
            ("gradient_accumulation_steps", self.gradient_accumulation_steps >= 1, "1 or more"),
            ("max_steps", self.max_steps != 0, "1 or more, or -1 for num_train_epochs"),
            ("num_train_epochs", self.num_train_epochs > 0, "above 0"),
            ("learning_rate", 0 <= self.learning_rate < math.inf, "0 or more"),
            ("adam_beta1", 0 <= self.adam_beta1 < 1, "0 or more and below 1"),
            ("adam_beta2", 0 <= self.adam_beta2 < 1, "0 or more and below 1"),
            ("adam_epsilon", 0 <= self.adam_epsilon < math.inf, "0 or more"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "0 or more"),
            ("max_grad_norm", self.max_grad_norm >= 0, "0 (no clipping) or more"),
            ("warmup_steps", self.warmup_steps >= 0, "0 or more"),
            ("seed", 0 <= self.seed < 2**32, "0 to 4294967295"),
            ("schedule_start_step", self.schedule_start_step >= 0, "0 or more"),
            ("dataloader_num_workers", self.dataloader_num_workers >= 0, "0 or more"),
        )
        for name, holds, allowed in rules:
            if not holds:
                raise InputError(f"{name} is {getattr(self, name)}; allowed: {allowed}")
        if self.dataloader_persistent_workers and self.dataloader_num_workers == 0:
            raise InputError("dataloader_persistent_workers needs dataloader_num_workers of 1 or more")
        if self.schedule_total_steps is not None and self.schedule_total_steps <= self.schedule_start_step:
            raise InputError(
                f"schedule_total_steps is {self.schedule_total_steps}; it must be above schedule_start_step "
                f"{self.schedule_start_step}"
            )

    def _check_without_effect(self) -> None:
        """Refuse settings of the Trainer that would be ignored here."""
        defaults = {item.name: item.default for item in fields(TrainingArguments)}
        reasons = {
            "optim": "optimizer decides; give --optimizer trainer to let optim decide",
            "lr_scheduler_type": "schedule decides; give --schedule trainer to let lr_scheduler_type decide",
            "auto_find_batch_size": "the global batch would change with the memory at hand",
            "train_sampling_strategy": "pairs come in a fixed shuffled order",
            "ignore_data_skip": "a resumed run goes on where it stopped",
        }
        if self.optimizer == "trainer":
            del reasons["optim"]
        if self.schedule == "trainer":
            del reasons["lr_scheduler_type"]
        for name, reason in reasons.items():
            if getattr(self, name) != defaults[name]:
                raise InputError(f"{name} has no effect here: {reason}")
        for name in ("eval_strategy", "save_strategy", "logging_strategy"):
            if str(getattr(self, name)).rsplit(".", 1)[-1].lower() == "epoch":
                raise InputError(f"{name} is 'epoch'; a run is one pass over many epochs of pairs: give steps or no")
        if self.remove_unused_columns:
            raise InputError("remove_unused_columns is true; the masks need the pairs' keys: leave it false")

    def _check_packages(self) -> None:
        """Refuse trackers and engines that are not installed."""
        wanted = [self.report_to] if isinstance(self.report_to, str) else list(self.report_to or ())
        for name in wanted:
            if name in ("wandb", "tensorboard") and find_spec(name) is None:
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

    @staticmethod
    def _num_processes() -> int:
        return int(os.environ.get("WORLD_SIZE", "1"))

    def _split_global_batch(self) -> None:
        """Cut the global batch into the largest micro-batches that per_device_train_batch_size allows."""
        total = self.global_train_batch_size
        if total is None:
            return
        processes = self._num_processes()
        if total < 1 or total % processes:
            raise InputError(
                f"global_train_batch_size {total} cannot be shared by {processes} processes; give a multiple of their number"
            )
        share = total // processes
        micro = next(size for size in range(min(self.per_device_train_batch_size, share), 0, -1) if share % size == 0)
        if micro != self.per_device_train_batch_size:
            logger.info(
                "micro-batches of %d instead of %d: %d pairs a process and step",
                micro,
                self.per_device_train_batch_size,
                share,
            )
        self.per_device_train_batch_size = micro
        self.gradient_accumulation_steps = share // micro
