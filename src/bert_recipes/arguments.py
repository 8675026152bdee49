"""The settings of a pre-training run, beside those of `TrainingArguments`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import torch
from transformers import TrainingArguments

from bert_recipes.errors import InputError
from bert_recipes.optimization import OPTIMIZERS, SCHEDULES
from bert_recipes.precision import PRECISIONS, choose_precision


@dataclass
class ModelArguments:
    """Which model to train.

    Attributes:
        size: Size of a new model: tiny, mini, small, medium, base, large.
        model_name_or_path: Start from this checkpoint (folder or Hub name) instead of a new model.
        hidden_act: Activation of a new model.
        weight_init: Initialisation of a new model.
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
        global_train_batch_size: Pairs of an optimiser step over all processes; decides gradient_accumulation_steps,
            whatever that says, so that one configuration serves any number of processes.
        overwrite_run: Start anew in an output_dir that holds a run.
    """

    learning_rate: float = field(default=1e-4, metadata={"help": "peak learning rate (paper: 1e-4)"})
    adam_epsilon: float = field(default=1e-6, metadata={"help": "epsilon of Adam (original: 1e-6)"})
    weight_decay: float = field(default=0.01, metadata={"help": "weight decay (paper: 0.01)"})
    warmup_steps: float = field(default=10_000, metadata={"help": "warm-up steps, or their share if below 1"})
    max_grad_norm: float = field(default=1.0, metadata={"help": "clip the gradient's global norm (original: 1.0)"})
    remove_unused_columns: bool | None = field(default=False, metadata={"help": "must stay false: masks need the key"})
    seed: int = field(default=12345, metadata={"help": "seed of weights, pairs, masks and order (original: 12345)"})
    # Declared again for the type checker: the base class assigns them in ways that it cannot follow.
    use_cpu: bool = field(default=False, metadata={"help": "use the CPU even where there is a GPU"})
    bf16: bool = field(default=False, metadata={"help": "bfloat16 under autocast; precision decides this by itself"})
    fp16: bool = field(default=False, metadata={"help": "float16 under autocast; precision decides this by itself"})
    optimizer: str = field(default="bert_adam", metadata={"help": f"one of {', '.join(OPTIMIZERS)}"})
    schedule: str = field(default="bert_linear", metadata={"help": f"one of {', '.join(SCHEDULES)}"})
    precision: str = field(default="auto", metadata={"help": f"one of {', '.join(PRECISIONS)}"})
    global_train_batch_size: int | None = field(
        default=None, metadata={"help": "pairs of a step over all processes; sets gradient_accumulation_steps"}
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
        if not self.use_cpu and not torch.cuda.is_available():
            self.use_cpu = True
        wanted = self.precision
        if wanted == "auto" and (self.bf16 or self.fp16):
            wanted = "bf16" if self.bf16 else "fp16"
        chosen = choose_precision(wanted, use_cpu=self.use_cpu)
        self.bf16, self.fp16, self.precision_reason = chosen.name == "bf16", chosen.name == "fp16", chosen.reason
        if self.remove_unused_columns:
            raise InputError("remove_unused_columns is true; the masks need the pairs' keys: leave it false")
        self._split_global_batch()
        try:
            super().__post_init__()
        except ValueError as error:
            raise InputError(str(error)) from error

    def _split_global_batch(self) -> None:
        total = self.global_train_batch_size
        if total is None:
            return
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        micro = self.per_device_train_batch_size * processes
        if total < 1 or total % micro:
            raise InputError(
                f"global_train_batch_size {total} is no multiple of per_device_train_batch_size "
                f"{self.per_device_train_batch_size} x {processes} processes = {micro}; change one of them"
            )
        self.gradient_accumulation_steps = total // micro
