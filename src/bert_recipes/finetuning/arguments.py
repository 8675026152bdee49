"""Settings of fine-tuning; how a fine-tuned checkpoint reads its inputs; a task's row as a file."""

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import yaml
from transformers import AutoConfig, PretrainedConfig

from bert_recipes.checkpointing import check_checkpoint, opening
from bert_recipes.config import field_types, read_text, read_tree
from bert_recipes.data.order import STRATEGIES
from bert_recipes.errors import InputError
from bert_recipes.files import atomic_write
from bert_recipes.tasks.rows import get_task
from bert_recipes.tasks.sources import check_source, labels_in_data
from bert_recipes.tasks.task import Task, build_task, task_values
from bert_recipes.training.arguments import PRECISIONS, RunArguments
from bert_recipes.training.resume import CONFIG_FILE


logger = logging.getLogger(__name__)

DECODERS = ("original", "offsets")
CONTEXTS = ("sentence", "document")
TASK_FILE = "task.yaml"


@dataclass
class TaskArguments:
    """Which task, on which data, cut how."""

    task: str | None = field(default=None, metadata={"help": "name of a task"})
    task_file: str | None = field(
        default=None, metadata={"help": "YAML file of your own task", "resume": "may change"}
    )
    model_name_or_path: str | None = field(
        default=None,
        metadata={
            "help": "checkpoint folder or Hub name; default: the newest finished pre-training run under runs/",
            "resume": "may change",
        },
    )
    data_dir: str | None = field(
        default=None, metadata={"help": "local folder of the task's data; default: the Hub", "resume": "may change"}
    )
    max_train_examples: int | None = field(default=None, metadata={"help": "train on this many examples at most"})
    max_eval_examples: int | None = field(
        default=None, metadata={"help": "measure on this many examples at most", "resume": "may change"}
    )
    max_predict_examples: int | None = field(
        default=None, metadata={"help": "predict this many examples at most", "resume": "may change"}
    )
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
        for name, allowed in (("decoder", DECODERS), ("context", CONTEXTS)):
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} is '{getattr(self, name)}'; allowed: {', '.join(allowed)}")
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
        "ignore_data_skip": "a run resumes where it stopped",
        "label_smoothing_factor": "the loss is the original's cross-entropy",
        "prediction_loss_only": "the metrics need the predictions",
        "batch_eval_metrics": "metrics are computed over the complete split",
    }

    learning_rate: float = field(default=2e-5, metadata={"help": "peak learning rate"})
    num_train_epochs: float = field(default=3.0, metadata={"help": "passes over the training examples"})
    warmup_steps: float = field(default=0.1, metadata={"help": "warm-up steps, or their fraction if below 1"})
    global_train_batch_size: int | None = field(
        default=32, metadata={"help": "examples per step over all processes; decides the accumulation"}
    )
    per_device_train_batch_size: int = field(default=32, metadata={"help": "examples per process at once, at most"})
    per_device_eval_batch_size: int = field(default=64, metadata={"help": "examples of a prediction batch"})
    optimizer: str = field(default="adamw", metadata=RunArguments.__dataclass_fields__["optimizer"].metadata)
    schedule: str = field(default="trainer", metadata=RunArguments.__dataclass_fields__["schedule"].metadata)
    train_sampling_strategy: str = field(
        default="group_by_length", metadata={"help": f"one of {', '.join(STRATEGIES)}"}
    )
    save_strategy: str = field(default="epoch", metadata={"help": "checkpoints: no, steps, epoch, best"})
    save_total_limit: int | None = field(default=1, metadata={"help": "checkpoints that are kept, beside the best"})
    logging_steps: float = field(default=50, metadata={"help": "steps between two lines of the log"})
    # The default of the Trainer is the loss; here it is the task's own metric.
    metric_for_best_model: str | None = field(
        default=None, metadata={"help": "metric that chooses the best checkpoint; default: the task's"}
    )

    def __post_init__(self) -> None:
        self.has_output_dir = self.output_dir is not None
        self.wanted_best_metric = self.metric_for_best_model
        if self.do_eval and self.eval_strategy == "no":  # eval_strategy sets do_eval, which run.yaml then has
            raise InputError(
                "do_eval has no effect here: every run ends with its metrics; recipes/evaluate_checkpoint.py measures without "
                "training, --eval_strategy epoch measures during it"
            )
        if self.train_sampling_strategy not in STRATEGIES:
            allowed = ", ".join(STRATEGIES)
            raise InputError(f"train_sampling_strategy is '{self.train_sampling_strategy}'; allowed: {allowed}")
        super().__post_init__()


# google-research/bert run_squad.py: max_seq_length; windows take what does not fit.
_SQUAD_LENGTH = 384
# As many as any original BERT has; batches are padded to their longest input, so that short ones cost nothing.
_MOST_POSITIONS = 512


def _as_trained(name: str) -> Any:
    help_text = TaskArguments.__dataclass_fields__[name].metadata["help"]
    return field(default=None, metadata={"help": f"{help_text}; default: as the checkpoint was trained"})


@dataclass
class InputArguments:
    """How inputs are cut and answers decoded; None: as the checkpoint was trained."""

    max_seq_length: int | None = _as_trained("max_seq_length")
    pad_to_max_length: bool | None = _as_trained("pad_to_max_length")
    label_all_pieces: bool | None = _as_trained("label_all_pieces")
    context: str | None = _as_trained("context")
    doc_stride: int | None = _as_trained("doc_stride")
    max_query_length: int | None = _as_trained("max_query_length")
    n_best_size: int | None = _as_trained("n_best_size")
    max_answer_length: int | None = _as_trained("max_answer_length")
    null_score_diff_threshold: float | None = _as_trained("null_score_diff_threshold")
    decoder: str | None = _as_trained("decoder")

    def resolved(self, config: PretrainedConfig, name: str) -> dict[str, Any]:
        """A value for every field: what was given, what the run's run.yaml says, or the default of `TaskArguments`.

        A checkpoint without run.yaml reads as many positions as it has, 512 at most; 384 for question answering.
        """
        trained = read_trained_settings(Path(name))
        values: dict[str, Any] = {}
        for item in fields(InputArguments):
            given = getattr(self, item.name)
            default = TaskArguments.__dataclass_fields__[item.name].default
            values[item.name] = trained.get(item.name, default) if given is None else given
        if self.max_seq_length is None and "max_seq_length" not in trained:
            most = _SQUAD_LENGTH if architecture(config).endswith("ForQuestionAnswering") else _MOST_POSITIONS
            values["max_seq_length"] = min(most, getattr(config, "max_position_embeddings", most))
            logger.info("%s does not say how long its inputs were: max_seq_length %d", name, values["max_seq_length"])
        return values


def read_trained_settings(folder: Path) -> Mapping[str, Any]:
    """The fields of `InputArguments` that the run.yaml of a folder has; none where it has no run.yaml."""
    path = folder / CONFIG_FILE
    if not path.is_file():
        return {}
    values, lines = read_tree(path)
    hints = field_types(TaskArguments)
    settings: dict[str, Any] = {"context": "document"}  # what runs read that were made before the setting
    for item in fields(InputArguments):
        text = values.get(item.name)
        if text is not None:
            try:
                settings[item.name] = read_text(hints[item.name], text)
            except (ValueError, AttributeError) as error:
                raise InputError(f"{path}, line {lines[item.name]}: {item.name}: {error}") from error
    return settings


def read_model_config(name: str) -> PretrainedConfig:
    """The config.json of a checkpoint, a folder or on the Hub."""
    cached_only = check_checkpoint(name)
    with opening(name):
        return AutoConfig.from_pretrained(name, local_files_only=cached_only)


def architecture(config: PretrainedConfig) -> str:
    """Name of the class that wrote the checkpoint; "" where config.json does not say."""
    return str((config.architectures or [""])[0])


def read_task_file(path: str | Path) -> Task:
    """Read a user's own task (docs/tasks.md): a row in YAML, whose `files` are relative to its folder.

    Example:
        >>> read_task_file("tickets.yaml").labels  # doctest: +SKIP
        ('bug', 'question')
    """
    path = Path(path)
    values, lines = read_tree(path)

    def where(key: str | None) -> str:
        return f"{path}, line {lines[key]}" if key in lines else str(path)

    return build_task(values, where, path.parent, path.stem, labels_in_data)


def write_task_file(path: str | Path, task: Task) -> None:
    """Write a row as YAML that `read_task_file` reads back; of its files only the names, as machines differ."""
    header = "# The task of a run. Its data: --data_dir FOLDER, or files of these names beside this one.\n"
    text = yaml.safe_dump(task_values(task), sort_keys=False, allow_unicode=True, width=sys.maxsize)
    with atomic_write(Path(path)) as aside:
        aside.write_text(header + str(text), encoding="utf-8")


@dataclass
class ScoringArguments(InputArguments, TaskArguments):  # type: ignore[misc]  # None: as the checkpoint was trained
    """`TaskArguments` of a checkpoint that is trained already: its inputs are cut as they were in training."""

    predictions_dir: str | None = field(
        default=None,
        metadata={"help": "also write predictions_<split>.jsonl and the task's own files into this folder"},
    )

    def __post_init__(self) -> None:
        if self.model_name_or_path is None:
            raise InputError(
                "model_name_or_path is missing: give the folder (or Hub name) of the checkpoint to measure"
            )
        config = read_model_config(self.model_name_or_path)
        for name, value in self.resolved(config, self.model_name_or_path).items():
            setattr(self, name, value)
        super().__post_init__()


@dataclass
class PredictionArguments:
    """What is predicted, with which checkpoint."""

    model_name_or_path: str = field(metadata={"help": "checkpoint folder or Hub name"})
    input_file: str = field(metadata={"help": ".txt (one input a line), .jsonl, .json, .csv, .tsv or .parquet"})
    output_file: str | None = field(default=None, metadata={"help": "JSON Lines; default: stdout"})
    text_columns: list[str] | None = field(
        default=None, metadata={"help": "columns of the texts, two for pairs; default: those of the model's task.yaml"}
    )
    choice_columns: list[str] | None = field(
        default=None, metadata={"help": "multiple choice: columns of the choices"}
    )
    id_column: str | None = field(default=None, metadata={"help": "column of the ids; default: idx or id, if there"})
    version_2_with_negative: bool | None = field(
        default=None, metadata={"help": "question answering: there may be no answer; default: what task.yaml says"}
    )
    batch_size: int = field(default=64, metadata={"help": "inputs that a device takes at once"})
    precision: str = field(default="auto", metadata={"help": f"one of {', '.join(PRECISIONS)}"})
    use_cpu: bool = field(default=False, metadata={"help": "use the CPU even where there is a GPU"})

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InputError(f"batch_size is {self.batch_size}; allowed: 1 or more")
        if self.output_file is not None and Path(self.output_file).resolve() == Path(self.input_file).resolve():
            raise InputError(f"output_file {self.output_file} is the input file; give another one")

    def run_arguments(self, folder: str) -> FineTuningArguments:
        """The settings of a Trainer that only predicts: it wants a folder and leaves nothing in it."""
        return FineTuningArguments(
            output_dir=folder,
            per_device_eval_batch_size=self.batch_size,
            precision=self.precision,
            use_cpu=self.use_cpu,
            report_to="none",
        )


def names_a_task(argv: Sequence[str]) -> bool:
    """Whether a command line, or the --config file on it, says `task` or `task_file`."""
    flags = [argument.partition("=")[0].replace("-", "_") for argument in argv]
    if {"__task", "__task_file"} & set(flags):
        return True
    if "__config" not in flags:
        return False
    position = flags.index("__config")
    file = argv[position].partition("=")[2] or "".join(argv[position + 1 : position + 2])
    return Path(file).is_file() and bool({"task", "task_file"} & read_tree(Path(file))[0].keys())


DEFAULT_MODEL = "google-bert/bert-base-uncased"


def load_task(settings: TaskArguments) -> Task:
    """The row that --task or --task_file names."""
    return get_task(settings.task) if settings.task is not None else read_task_file(str(settings.task_file))


def check_access(settings: TaskArguments, *, for_training: bool = True, with_tests: bool = False) -> Task:
    """Load the task's row, fill in settings.model_name_or_path, and see that checkpoint and data are there."""
    task = load_task(settings)
    if for_training and not task.train_split:
        raise InputError(f"task {task.name} has no training data; predict it with a model of another task")
    settings.model_name_or_path = choose_checkpoint(settings.model_name_or_path)
    splits = [task.train_split] if for_training else []
    splits += [*task.validation_splits, *(task.test_splits if with_tests else ())]
    check_source(task, settings.data_dir, splits)
    return task


def choose_checkpoint(name: str | None, runs_dir: Path = Path("runs")) -> str:
    """The one given, else the newest finished pre-training run under runs_dir, else `DEFAULT_MODEL`."""
    if name is not None:
        check_checkpoint(name)
        return name
    newest = newest_pretraining_run(runs_dir)
    if newest is not None:
        logger.info("model_name_or_path is not given: %s is the newest finished pre-training run", newest)
        return str(newest)
    try:
        check_checkpoint(DEFAULT_MODEL)
    except InputError as error:
        raise InputError(
            f"{error} with --model_name_or_path FOLDER (make: MODEL=FOLDER): there is no finished pre-training run under "
            f"{runs_dir}/ to take instead"
        ) from error
    return DEFAULT_MODEL


def newest_pretraining_run(runs_dir: Path) -> Path | None:
    """The run with both pre-training heads that was finished last, or None."""
    finished = []
    for results in [*runs_dir.glob("*/all_results.json"), *runs_dir.glob("*/*/all_results.json")]:
        try:
            config = json.loads((results.parent / "config.json").read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError, UnicodeDecodeError):
            continue  # not a finished run of ours: its folder is somebody else's or still being written
        if isinstance(config, dict) and "BertForPreTraining" in (config.get("architectures") or ()):
            finished.append((results.stat().st_mtime, results.parent))
    return max(finished)[1] if finished else None
