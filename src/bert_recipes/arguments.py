"""The settings of a pre-training run, beside those of `TrainingArguments`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from bert_recipes.errors import InputError
from bert_recipes.run_arguments import RunArguments


@dataclass
class ModelArguments:
    """Which model to train."""

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
    """What to train on, and the rules that make pairs and masks of it."""

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
        if self.store is None and self.train_file is None:
            raise InputError(
                "the data is missing: give --store FOLDER (recipes/prepare_corpus.py) or --train_file FILE"
            )
        if self.store is not None and self.train_file is not None:
            raise InputError("both --store and --train_file are given; give one of them")
        if self.max_seq_length < 8:
            raise InputError(f"max_seq_length is {self.max_seq_length}; allowed: 8 or more")
        if not 0.0 <= self.short_seq_prob <= 1.0:
            raise InputError(f"short_seq_prob is {self.short_seq_prob}; allowed: 0 to 1")
        if self.max_eval_pairs < 1:
            raise InputError(f"max_eval_pairs is {self.max_eval_pairs}; allowed: 1 or more")


@dataclass
class PreTrainingArguments(RunArguments):
    """The settings of a pre-training run.

    Defaults: learning rate, Adam and warm-up of Devlin et al. 2019, appendix A.2; epsilon of google-research/bert
    optimization.py.
    """

    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = {
        "auto_find_batch_size": "the global batch would change with the memory at hand",
        "train_sampling_strategy": "pairs come in a fixed shuffled order",
        "ignore_data_skip": "a resumed run goes on where it stopped",
    }

    NOT_READ: ClassVar[frozenset[str]] = frozenset({"data_seed", "label_smoothing_factor"})

    learning_rate: float = field(default=1e-4, metadata={"help": "peak learning rate (paper: 1e-4)"})
    warmup_steps: float = field(
        default=0.01, metadata={"help": "warm-up steps, or their share if below 1 (paper: 0.01)"}
    )
    seed: int = field(default=12345, metadata={"help": "seed of weights, pairs, masks and order (original: 12345)"})

    def _check_without_effect(self) -> None:
        super()._check_without_effect()
        for name in ("eval_strategy", "save_strategy", "logging_strategy"):
            if str(getattr(self, name)).rsplit(".", 1)[-1].lower() == "epoch":
                raise InputError(f"{name} is 'epoch'; a run is one pass over many epochs of pairs: give steps or no")
