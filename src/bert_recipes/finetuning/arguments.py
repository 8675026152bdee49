"""Settings of fine-tuning, and how a fine-tuned checkpoint reads its inputs."""

import json
import logging
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from transformers import AutoConfig, PretrainedConfig
from transformers.trainer_utils import IntervalStrategy

from bert_recipes.checkpointing import check_checkpoint, find_file, opening
from bert_recipes.config import field_types, read_text, warn_in_main_process
from bert_recipes.errors import InputError
from bert_recipes.finetuning.order import STRATEGIES
from bert_recipes.models.sizes import num_positions
from bert_recipes.rows import COMPRESSION_SUFFIXES, format_suffix
from bert_recipes.run_folder import CONFIG_FILE, MODEL_CONFIG_FILE, RUN_ID_FILE, TASK_FILE
from bert_recipes.settings import changeable, check_limits, option, required
from bert_recipes.tasks.catalogue import get_task
from bert_recipes.tasks.sources import check_source
from bert_recipes.tasks.task import Task
from bert_recipes.tasks.task_file import read_task_file
from bert_recipes.training.arguments import PRECISIONS, RunArguments, key_in_last_phase
from bert_recipes.training.optimization import OPTIMIZERS, SCHEDULES
from bert_recipes.yaml_files import read_tree


logger = logging.getLogger(__name__)

DECODERS = ("original", "offsets")
CONTEXTS = ("sentence", "document", "none")
# What is read of a text that is too long, and how the logits of several windows become one.
LONG_DOCUMENTS = ("head", "tail", "head_tail", "windows")
POOLS = ("mean", "max", "first", "vote")
# Stages of TinyBERT's task-specific distillation.
DISTIL = ("intermediate", "prediction")


@dataclass
class TaskArguments:
    """Choose the task, its data, and how inputs are cut."""

    # The task and its data
    task: str | None = option(None, "name of a task", is_common=True)
    task_file: str | None = changeable(None, "YAML file of your own task", is_common=True)
    model_name_or_path: str | None = changeable(
        None,
        "checkpoint folder or Hub name; default: the newest finished pre-training run under runs/",
        is_common=True,
    )
    data_dir: str | None = changeable(
        None, "local folder of the task's data; default: the Hub", is_common=True
    )
    max_train_examples: int | None = option(
        None, "train on at most this many examples", least=1, is_common=True
    )
    max_eval_examples: int | None = changeable(
        None, "evaluate on at most this many examples", least=1
    )
    max_predict_examples: int | None = changeable(
        None, "predict at most this many examples", least=1
    )

    # Inputs
    max_seq_length: int = option(
        128, "positions of an input, special tokens included", least=8, is_common=True
    )
    pad_to_max_length: bool = option(False, "pad to max_seq_length, not to the batch")

    # What is trained
    freeze_encoder: bool = option(False, "train the head only")
    bilstm: bool = option(
        False,
        "a new BiLSTM between encoder and head, for figures: no other run opens its checkpoint",
    )
    dropout: float | None = option(
        None, "dropout of encoder and head; default: the model's", least=0, below=1
    )

    # Question answering
    doc_stride: int = option(
        128, "question answering, long_documents: step between windows of a text", least=1
    )
    max_query_length: int = option(
        64, "question answering: pieces of the question, at most", least=1
    )
    n_best_size: int = option(20, "question answering: answers that are kept", least=1)
    max_answer_length: int = option(30, "question answering: pieces of an answer, at most", least=1)
    null_score_diff_threshold: float = option(
        0.0, "question answering: no answer where the null score exceeds the best by more"
    )
    decoder: str = option("original", "question answering", choices=DECODERS)

    # Tagging
    label_all_pieces: bool = option(False, "tagging: label every piece of a word")
    context: str = option(
        "sentence", "tagging: what an input shows; none: choices without theirs", choices=CONTEXTS
    )

    # Long texts
    long_documents: str | None = option(
        None,
        "texts that are too long: their head, their tail, both, or windows doc_stride apart",
        choices=LONG_DOCUMENTS,
        is_common=True,
    )
    pool: str | None = option(None, "windows of a text: how their logits become one", choices=POOLS)

    # Loss
    class_weights: dict | str | None = option(
        None,
        'the classes in the training loss: auto (rare ones count more), or {"NAME": 3} (others: 1)',
    )

    def __post_init__(self) -> None:
        if (self.task is None) == (self.task_file is None):
            raise InputError("give either --task NAME or --task_file FILE.yaml, and not both")
        check_limits(self)
        if self.pool is not None and self.long_documents != "windows":
            raise InputError(
                f"pool is {self.pool}; it joins windows: give --long_documents windows, or leave "
                "it out"
            )
        if isinstance(self.class_weights, str) and self.class_weights != "auto":
            raise InputError(
                f"class_weights is '{self.class_weights}'; allowed: auto, or a mapping of labels "
                "to numbers"
            )

    @property
    def task_kind(self) -> str:
        """Return one of the four kinds of tasks."""
        return self.loaded_task.kind

    @cached_property
    def loaded_task(self) -> Task:
        """Return the task's definition; a file without labels is read through for them, once."""
        if self.task is not None:
            return get_task(self.task)
        return read_task_file(str(self.task_file), self.data_dir)


def check_context(task: Task, context: str) -> None:
    """Refuse choices without their context where the task has no choices."""
    if context == "none" and task.kind != "multiple_choice":
        raise InputError(
            f"context is none, for choices without theirs; task {task.name} has no choices"
        )


@dataclass
class TeachingArguments:
    """Choose what a fine-tuned teacher teaches: TinyBERT's stages of a task, one run each.

    Source: Jiao et al. 2020, section 3.2.
    """

    teacher: str | None = changeable(
        None, "checkpoint that is fine-tuned on the task, and teaches the model", is_common=True
    )
    distil: str | None = option(
        None, "what is learned: the teacher's layers, then its answers", choices=DISTIL
    )
    temperature: float = option(1.0, "answers: of both softmaxes (paper: 1)", above=0)
    alpha_attn: float = option(1.0, "layers: weight of the attention scores (paper: 1)", least=0)
    alpha_hidn: float = option(1.0, "layers: weight of the hidden states (paper: 1)", least=0)
    alpha_embd: float = option(1.0, "layers: weight of the embeddings (paper: 1)", least=0)

    def __post_init__(self) -> None:
        check_limits(self)
        if (self.teacher is None) != (self.distil is None):
            raise InputError(
                f"--teacher CHECKPOINT and --distil {' or '.join(DISTIL)}: give both, or neither"
            )


@dataclass
class FineTuningArguments(RunArguments):
    """Choose how a fine-tuning run is trained.

    Defaults: batch and epochs of Devlin et al. 2019, section 4.1; learning rate of the example in
    google-research/bert README; warm-up of run_classifier.py. Adam is with bias correction, which
    small tasks need (Mosbach et al. 2021, "On the Stability of Fine-tuning BERT"); `--optimizer
    bert_adam --schedule bert_linear` is the original's.
    """

    run_kind: ClassVar[str] = "fine-tuning"

    # Steps
    learning_rate: float = option(2e-5, "peak learning rate")
    num_train_epochs: float = option(3.0, "passes over the training examples", is_common=True)
    warmup_steps: float = option(0.1, "warm-up steps, or their fraction if below 1")
    global_train_batch_size: int | None = option(
        32, "examples per step over all processes; decides the accumulation", is_common=True
    )
    per_device_train_batch_size: int = option(
        32, "examples per process at once, at most", least=1, is_common=True
    )
    per_device_eval_batch_size: int = option(64, "examples of a prediction batch", least=1)

    # Optimizer and order
    optimizer: str = option("adamw", "one of", choices=OPTIMIZERS)
    schedule: str = option("trainer", "one of", choices=SCHEDULES)
    seed: int = option(42, "seed of new weights, dropout and the order of examples")
    train_sampling_strategy: str = option("group_by_length", "one of", choices=STRATEGIES)

    # Checkpoints
    save_strategy: str = option("epoch", "checkpoints: no, steps, epoch, best")
    save_total_limit: int | None = option(1, "checkpoints that are kept, the best among them")
    logging_steps: float = option(50, "steps between two log lines")
    # The default of the Trainer is the loss; here it is the task's own metric.
    metric_for_best_model: str | None = option(
        None, "metric that chooses the best checkpoint; default: the task's"
    )
    early_stopping_patience: int | None = option(
        None,
        "end after so many evaluations in a row without a better one, and keep the best checkpoint",
    )

    def __post_init__(self) -> None:
        self.wanted_best_metric = self.metric_for_best_model
        # eval_strategy sets do_eval, which run.yaml then has.
        if self.do_eval and self.eval_strategy == "no":
            raise InputError(
                "do_eval has no effect here: every run ends with its metrics; "
                "recipes/evaluate_checkpoint.py measures without training, --eval_strategy epoch "
                "measures during it"
            )
        patience = self.early_stopping_patience
        if patience is not None:
            if patience < 1 or self.eval_strategy == "no":
                raise InputError(
                    f"early_stopping_patience is {patience} and eval_strategy "
                    f"'{IntervalStrategy(self.eval_strategy).value}'; allowed: 1 or more "
                    "evaluations, with --eval_strategy epoch or steps"
                )
            self.load_best_model_at_end = True
        super().__post_init__()


def _as_trained(name: str) -> Any:
    """Return a field of `TaskArguments` whose default is the checkpoint's value."""
    metadata = dict(TaskArguments.__dataclass_fields__[name].metadata)
    metadata["help"] = f"{metadata['help']}; default: as the checkpoint was trained"
    return field(default=None, metadata=metadata)


@dataclass
class InputArguments:
    """Choose how inputs are cut and answers decoded; None: as the checkpoint was trained."""

    max_seq_length: int | None = _as_trained("max_seq_length")
    pad_to_max_length: bool | None = _as_trained("pad_to_max_length")
    label_all_pieces: bool | None = _as_trained("label_all_pieces")
    context: str | None = _as_trained("context")
    doc_stride: int | None = _as_trained("doc_stride")
    long_documents: str | None = _as_trained("long_documents")
    pool: str | None = _as_trained("pool")
    max_query_length: int | None = _as_trained("max_query_length")
    n_best_size: int | None = _as_trained("n_best_size")
    max_answer_length: int | None = _as_trained("max_answer_length")
    null_score_diff_threshold: float | None = _as_trained("null_score_diff_threshold")
    decoder: str | None = _as_trained("decoder")

    def resolved(self, config: PretrainedConfig, name: str) -> dict[str, Any]:
        """Return a value for every field: the user's, the run.yaml's or that of `TaskArguments`.

        A checkpoint without run.yaml reads as many positions as it has, 512 at most; 384 for
        question answering.

        Args:
            config: The checkpoint's.
            name: The checkpoint's folder or Hub name.
        """
        trained = dict(read_trained_settings(name))
        if self.long_documents not in (None, "windows"):
            trained.pop("pool", None)  # it is of windows
        values = {}
        for item in fields(InputArguments):
            default = TaskArguments.__dataclass_fields__[item.name].default
            value = getattr(self, item.name)
            values[item.name] = trained.get(item.name, default) if value is None else value
        if self.max_seq_length is None and "max_seq_length" not in trained:
            # 384: google-research/bert run_squad.py; windows take what does not fit. Elsewhere
            # batches are padded to their longest input, so that short ones cost nothing.
            most = 384 if architecture(config).endswith("ForQuestionAnswering") else 512
            length = min(most, num_positions(config, most))
            message = "%s does not say how long its inputs were: max_seq_length %d"
            logger.info(message, name, length)
            values["max_seq_length"] = length
        return values


def read_trained_settings(name: str) -> Mapping[str, Any]:
    """Return the fields of `InputArguments` that a checkpoint's run.yaml has, of its last phase.

    There are none where it has no run.yaml.

    Args:
        name: The checkpoint's folder or Hub name.
    """
    file = find_file(name, CONFIG_FILE)
    if file is None:
        return {}
    texts, _ = read_tree(file)
    hints = field_types(TaskArguments)
    values = {"context": "document"}  # what runs read that were made before the setting
    for item in fields(InputArguments):
        text = texts.get(key_in_last_phase(texts, item.name))
        if text is not None:
            try:
                values[item.name] = read_text(hints[item.name], text)
            except (TypeError, ValueError) as error:
                raise InputError(f"{file}: {item.name}: {error}") from error
    return values


def read_model_config(name: str) -> PretrainedConfig:
    """Read the config.json of a checkpoint, a folder or on the Hub."""
    cached_only = check_checkpoint(name)
    with opening(name):
        return AutoConfig.from_pretrained(
            name, local_files_only=cached_only, trust_remote_code=False
        )


def architecture(config: PretrainedConfig) -> str:
    """Return the name of the class that wrote the checkpoint; "" where config.json does not say."""
    return str((config.architectures or [""])[0])


@dataclass
class ScoringArguments(InputArguments, TaskArguments):  # type: ignore[misc]  # None: as the checkpoint was trained
    """Set `TaskArguments` of a trained checkpoint: its inputs are cut as they were in training."""

    split: str = option(
        "validation",
        "which splits of the task are measured",
        choices=("validation", "test"),
        is_common=True,
    )
    predictions_dir: str | None = option(
        None,
        "also write predictions_<split>.jsonl and the task's own files into this folder",
        is_common=True,
    )

    def __post_init__(self) -> None:
        if self.model_name_or_path is None:
            raise InputError(
                "model_name_or_path is missing: give the folder (or Hub name) of the checkpoint "
                "to evaluate"
            )
        self._check_predictions_dir()
        config = read_model_config(self.model_name_or_path)
        for name, value in self.resolved(config, self.model_name_or_path).items():
            setattr(self, name, value)
        super().__post_init__()

    def _check_predictions_dir(self) -> None:
        """Refuse the folder of a run, whose own predictions and task.yaml would be replaced."""
        if self.predictions_dir is None:
            return
        for name in (MODEL_CONFIG_FILE, RUN_ID_FILE):
            if Path(self.predictions_dir, name).exists():
                raise InputError(
                    f"predictions_dir {self.predictions_dir} is the folder of a run or checkpoint "
                    f"(it has {name}), whose own files would be replaced; give another folder"
                )


@dataclass
class PredictionArguments:
    """Choose what is predicted, with which checkpoint."""

    model_name_or_path: str = required("checkpoint folder or Hub name")
    input_file: str = required(".txt (one input a line), .jsonl, .json, .csv, .tsv or .parquet")
    output_file: str | None = option(None, "JSON Lines; default: stdout")
    text_columns: list[str] | None = option(
        None, "columns of the texts, two for pairs; default: those of the model's task.yaml"
    )
    choice_columns: list[str] | None = option(None, "multiple choice: columns of the choices")
    id_column: str | None = option(None, "column of the ids; default: idx or id, if there")
    version_2_with_negative: bool | None = option(
        None, "question answering: there may be no answer; default: what task.yaml says"
    )
    batch_size: int = option(64, "inputs that a device takes at once", least=1)
    precision: str = option("auto", "one of", choices=PRECISIONS)
    use_cpu: bool = option(False, "use the CPU even where there is a GPU")

    def __post_init__(self) -> None:
        check_limits(self)
        if self.output_file is None:
            return
        output = Path(self.output_file)
        if format_suffix(output) in (".csv", ".tsv", ".parquet", ".xlsx", ".conll"):
            raise InputError(f"output_file {output}: predictions are JSON Lines; name it .jsonl")
        if output.suffix in COMPRESSION_SUFFIXES:
            raise InputError(f"output_file {output}: it is written as plain text; name it .jsonl")
        # The tags of words are also written as columns, beside the output.
        for written in (output, output.with_suffix(".conll")):
            if written.resolve() == Path(self.input_file).resolve():
                raise InputError(
                    f"output_file {output}: {written} is the input file; give another name"
                )

    def check_columns_file(self) -> None:
        """Refuse to replace a file that is there and has the name of the columns of tags."""
        output = Path(str(self.output_file))
        columns = output.with_suffix(".conll")
        if columns.exists() and not output.exists():
            raise InputError(
                f"output_file {output}: the tags would also be written to {columns}, which is "
                "there already; give another name"
            )

    def run_arguments(self, folder: str) -> FineTuningArguments:
        """Return the settings of a Trainer that only predicts.

        It needs a folder, and writes nothing into it.
        """
        return FineTuningArguments(
            output_dir=folder,
            per_device_eval_batch_size=self.batch_size,
            precision=self.precision,
            use_cpu=self.use_cpu,
            report_to="none",
        )


def names_a_task(argv: Sequence[str]) -> bool:
    """Return whether a command line, or the --config file on it, says `task` or `task_file`."""
    return bool(read_early(argv, "task", "task_file"))


def read_early(argv: Sequence[str], *names: str) -> dict[str, Any]:
    """Return settings that decide which others there are, as a user has written them.

    A flag wins over the --config file; one without a value is an empty text.
    """
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("config", *names):
        flag = f"--{name}"
        other_flag = flag.replace("_", "-")
        parser.add_argument(flag, other_flag, nargs="?", const="")
    flags, _ = parser.parse_known_args(argv)

    in_file: dict[str, Any] = {}
    if flags.config and Path(flags.config).is_file():
        in_file, _ = read_tree(Path(flags.config))
    settings = {}
    for name in names:
        typed = getattr(flags, name)
        if typed is not None:
            settings[name] = typed
        elif name in in_file:
            settings[name] = in_file[name]
    return settings


DEFAULT_MODEL = "google-bert/bert-base-uncased"


def check_access(
    settings: TaskArguments,
    *,
    for_training: bool = True,
    with_validation: bool = True,
    with_tests: bool = False,
) -> Task:
    """Load the task's definition, choose the checkpoint, and see that both and the data are there.

    Args:
        settings: Its model_name_or_path is filled in.
        for_training: The training split is read.
        with_validation: The validation splits are read.
        with_tests: The test splits are read.
    """
    task = settings.loaded_task
    if for_training and not task.train_split:
        raise InputError(
            f"task {task.name} has no training data; predict it with a model of another task"
        )
    settings.model_name_or_path = choose_checkpoint(settings.model_name_or_path)
    splits: list[str] = []
    if for_training:
        splits.append(task.train_split)
    if with_validation:
        splits += task.validation_splits
    if with_tests:
        splits += task.test_splits
    check_source(task, settings.data_dir, splits)
    return task


def choose_checkpoint(name: str | None, runs_dir: Path = Path("runs")) -> str:
    """Return a checkpoint: the named one, the newest finished pre-training run, `DEFAULT_MODEL`.

    Runs are looked for under runs_dir.
    """
    if name is not None:
        check_checkpoint(name)
        return name
    results = [*runs_dir.glob("*/all_results.json"), *runs_dir.glob("*/*/all_results.json")]
    runs = [file for file in results if _is_pretraining_run(file.parent)]
    if runs:
        newest = max(runs, key=lambda file: (file.stat().st_mtime, file.parent)).parent
        message = "model_name_or_path is not given: %s is the newest finished pre-training run"
        warn_in_main_process(message, newest)  # before logging is set up
        return str(newest)
    try:
        check_checkpoint(DEFAULT_MODEL)
    except InputError as error:
        raise InputError(
            f"{error} with --model_name_or_path FOLDER (make: MODEL=FOLDER): there is no finished "
            f"pre-training run under {runs_dir}/ to take instead"
        ) from error
    return DEFAULT_MODEL


def _is_pretraining_run(folder: Path) -> bool:
    """Return whether a folder has a model with a head of pre-training.

    A folder with another config.json may be somebody else's, or still being written.
    """
    if (folder / TASK_FILE).is_file():
        return False
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return config["architectures"][0].endswith(("ForPreTraining", "ForMaskedLM"))
    except (OSError, ValueError, AttributeError, TypeError, LookupError, RecursionError):
        return False
