"""The settings of a fine-tuning run, beside those of `TrainingArguments`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from bert_recipes.errors import InputError
from bert_recipes.finetuning.sampler import STRATEGIES
from bert_recipes.run_arguments import RunArguments


DECODERS = ("original", "offsets")
CONTEXTS = ("sentence", "document")


TASK_FILE = "task.yaml"


@dataclass
class TaskArguments:
    """Which task, on which data, cut how."""

    task: str | None = field(default=None, metadata={"help": "name of a task"})
    task_file: str | None = field(default=None, metadata={"help": "YAML file of your own task"})
    model_name_or_path: str | None = field(
        default=None,
        metadata={"help": "checkpoint folder or Hub name; default: the newest finished pre-training run under runs/"},
    )
    data_dir: str | None = field(default=None, metadata={"help": "local folder of the task's data; default: the Hub"})
    max_train_examples: int | None = field(default=None, metadata={"help": "train on this many examples at most"})
    max_eval_examples: int | None = field(default=None, metadata={"help": "measure on this many examples at most"})
    max_predict_examples: int | None = field(default=None, metadata={"help": "predict this many examples at most"})
    max_seq_length: int = field(default=128, metadata={"help": "positions of an input, special tokens included"})
    pad_to_max_length: bool = field(default=False, metadata={"help": "pad to max_seq_length, not to the batch"})
    freeze_encoder: bool = field(default=False, metadata={"help": "train the head only"})
    dropout: float | None = field(default=None, metadata={"help": "dropout of encoder and head; default: the model's"})
    doc_stride: int = field(default=128, metadata={"help": "question answering: step between windows of a paragraph"})
    max_query_length: int = field(default=64, metadata={"help": "question answering: pieces of the question, at most"})
    n_best_size: int = field(default=20, metadata={"help": "question answering: answers that are kept"})
    max_answer_length: int = field(default=30, metadata={"help": "question answering: pieces of an answer, at most"})
    null_score_diff_threshold: float = field(
        default=0.0, metadata={"help": "question answering: no answer where the null score exceeds the best by more"}
    )
    decoder: str = field(default="original", metadata={"help": f"question answering: {' or '.join(DECODERS)}"})
    label_all_pieces: bool = field(default=False, metadata={"help": "tagging: label every piece of a word"})
    context: str = field(default="sentence", metadata={"help": f"tagging: an input shows its {' or '.join(CONTEXTS)}"})

    def __post_init__(self) -> None:
        if (self.task is None) == (self.task_file is None):
            both = ", not both" if self.task is not None else ""
            raise InputError(f"give either --task NAME or --task_file FILE.yaml{both}")
        if self.decoder not in DECODERS:
            raise InputError(f"decoder is '{self.decoder}'; allowed: {', '.join(DECODERS)}")
        if self.context not in CONTEXTS:
            raise InputError(f"context is '{self.context}'; allowed: {', '.join(CONTEXTS)}")
        for name in ("max_train_examples", "max_eval_examples", "max_predict_examples"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; allowed: 1 or more; leave it out for all")
        if self.dropout is not None and not 0.0 <= self.dropout < 1.0:
            raise InputError(f"dropout is {self.dropout}; allowed: 0 or more and below 1")
        least = {"max_seq_length": 8, "doc_stride": 1, "max_query_length": 1, "n_best_size": 1, "max_answer_length": 1}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise InputError(f"{name} is {getattr(self, name)}; allowed: {value} or more")


@dataclass
class FineTuningArguments(RunArguments):
    """How a fine-tuning run is trained.

    Defaults: batch and epochs of Devlin et al. 2019, section 4.1; learning rate of the example in google-research/bert
    README; warm-up of run_classifier.py. Adam is with bias correction, which small tasks need (Mosbach et al. 2021, "On
    the Stability of Fine-tuning BERT"); `--optimizer bert_adam --schedule bert_linear` is the original's.
    """

    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = {
        "do_train": "training is what the recipe does; recipes/evaluate_checkpoint.py measures without it",
        "bf16_full_eval": "precision decides",
        "fp16_full_eval": "precision decides",
        "auto_find_batch_size": "the global batch would change with the memory at hand",
        "ignore_data_skip": "a resumed run goes on where it stopped",
        "label_smoothing_factor": "the loss is the original's cross-entropy",
        "prediction_loss_only": "the figures need the predictions",
        "batch_eval_metrics": "figures are computed over the whole split",
    }

    learning_rate: float = field(default=2e-5, metadata={"help": "peak learning rate"})
    num_train_epochs: float = field(default=3.0, metadata={"help": "passes over the training examples"})
    warmup_steps: float = field(default=0.1, metadata={"help": "warm-up steps, or their share if below 1"})
    global_train_batch_size: int | None = field(
        default=32, metadata={"help": "examples of a step over all processes; decides the accumulation"}
    )
    per_device_train_batch_size: int = field(
        default=32, metadata={"help": "examples a process takes at once, at most"}
    )
    per_device_eval_batch_size: int = field(default=64, metadata={"help": "examples of a prediction batch"})
    optimizer: str = field(default="adamw", metadata=RunArguments.__dataclass_fields__["optimizer"].metadata)
    schedule: str = field(default="trainer", metadata=RunArguments.__dataclass_fields__["schedule"].metadata)
    train_sampling_strategy: str = field(
        default="group_by_length", metadata={"help": f"one of {', '.join(STRATEGIES)}"}
    )
    save_strategy: str = field(default="epoch", metadata={"help": "checkpoints: no, steps, epoch, best"})
    save_total_limit: int | None = field(default=1, metadata={"help": "checkpoints that are kept, beside the best"})
    logging_steps: float = field(default=50, metadata={"help": "steps between two lines of the log"})
    # The default of the Trainer is the loss; here it is the task's own figure.
    metric_for_best_model: str | None = field(
        default=None, metadata={"help": "figure that chooses the best checkpoint; default: the task's"}
    )

    def __post_init__(self) -> None:
        self.has_output_dir = self.output_dir is not None
        self.wanted_best_metric = self.metric_for_best_model
        if self.do_eval and self.eval_strategy == "no":  # eval_strategy sets do_eval, which run.yaml then has
            raise InputError(
                "do_eval has no effect here: every run ends with its figures; recipes/evaluate_checkpoint.py measures without "
                "training, --eval_strategy epoch measures during it"
            )
        if self.train_sampling_strategy not in STRATEGIES:
            allowed = ", ".join(STRATEGIES)
            raise InputError(f"train_sampling_strategy is '{self.train_sampling_strategy}'; allowed: {allowed}")
        super().__post_init__()
