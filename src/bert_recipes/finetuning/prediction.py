"""A fine-tuned checkpoint at work on a user's own inputs."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from bert_recipes.config import read_task_file
from bert_recipes.errors import InputError, saving
from bert_recipes.finetuning.arguments import TASK_FILE, FineTuningArguments, TaskArguments
from bert_recipes.finetuning.input_arguments import InputArguments, architecture, read_model_config
from bert_recipes.finetuning.prediction_files import rounded
from bert_recipes.finetuning.prediction_inputs import InputChunk, read_chunks
from bert_recipes.precision import PRECISIONS
from bert_recipes.tasks.task import Task
from bert_recipes.tokenization import OriginalBertTokenizer
from bert_recipes.whole_files import written_aside


if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from bert_recipes.finetuning.kind import EncodedSplit, Prediction
    from bert_recipes.finetuning.trainer import FineTuningTrainer

logger = logging.getLogger(__name__)

# Columns of an input for a checkpoint that has no task.yaml.
_TEXT_COLUMNS = {
    "sequence_classification": ("text",),
    "token_classification": ("tokens",),
    "question_answering": ("question", "context"),
    "multiple_choice": ("context",),
}


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
        """The settings of a Trainer that only predicts.

        Args:
            folder: The Trainer wants one; nothing is left in it.
        """
        return FineTuningArguments(
            output_dir=folder,
            per_device_eval_batch_size=self.batch_size,
            precision=self.precision,
            use_cpu=self.use_cpu,
            report_to="none",
        )


@dataclass(frozen=True)
class Predictor:
    """A checkpoint that is ready to predict.

    Attributes:
        task: What the columns of its inputs are.
        trainer: Runs the model.
    """

    task: Task
    trainer: FineTuningTrainer

    def predict(self, chunk: InputChunk) -> tuple[EncodedSplit, list[Prediction]]:
        """What the model reads of some inputs, and what it says of each, in their order."""
        encoded = self.trainer.kind.encode(chunk.split, for_training=False)
        return encoded, self.trainer.predict_split(encoded)

    def lines(self, chunks: Iterable[InputChunk]) -> Iterator[dict[str, Any]]:
        """Yield `idx`, `prediction` and (where there are any) `probabilities` of each input, in the order of the inputs."""
        length = self.trainer.kind.settings.max_seq_length
        num_full = 0
        for chunk in chunks:
            encoded, predictions = self.predict(chunk)
            if self.task.kind in ("sequence_classification", "multiple_choice"):
                num_full += int((encoded.lengths >= length).sum())
            for idx, prediction in zip(chunk.ids, predictions, strict=True):
                line: dict[str, Any] = {"idx": idx, "prediction": prediction.value}
                if prediction.probabilities is not None:
                    line["probabilities"] = rounded(prediction.probabilities)
                yield line
        if num_full:
            logger.warning("%d inputs fill all %d positions; what does not fit is cut off", num_full, length)


def check_inputs(task: Task, path: Path, id_column: str | None = None) -> int:
    """Read an input file to its end, so that mistakes are found before anything is predicted.

    Returns:
        Number of inputs.
    """
    return sum(len(chunk.ids) for chunk in read_chunks(path, task, id_column=id_column))


def load_predictor(
    args: PredictionArguments, inputs: InputArguments, run_arguments: FineTuningArguments
) -> tuple[Predictor, int]:
    """Find out what the checkpoint does, check the input file, and load the model.

    Returns:
        The predictor, and the number of inputs.
    """
    from bert_recipes.finetuning.checkpoints import open_tokenizer

    name = args.model_name_or_path
    config = read_model_config(name)
    task = task_of_checkpoint(config, args)
    settings = TaskArguments(task=task.name, model_name_or_path=name, **inputs.resolved(config, name))
    tokenizer = open_tokenizer(name)
    num_inputs = check_inputs(task, Path(args.input_file), args.id_column)
    return make_predictor(task, settings, tokenizer, run_arguments), num_inputs


def make_predictor(
    task: Task, settings: TaskArguments, tokenizer: OriginalBertTokenizer, run_arguments: FineTuningArguments
) -> Predictor:
    """Load the model.

    Args:
        task: Of `task_of_checkpoint`.
        settings: Its model_name_or_path is the checkpoint.
        tokenizer: The checkpoint's.
        run_arguments: Device and precision.
    """
    from bert_recipes.finetuning.checkpoints import open_model
    from bert_recipes.finetuning.kinds import KIND_CLASSES
    from bert_recipes.finetuning.trainer import FineTuningTrainer

    kind_class = KIND_CLASSES[task.kind]
    name = str(settings.model_name_or_path)
    model = open_model(name, task, kind_class, tokenizer, settings, seed=run_arguments.seed, needs_head=True)
    kind = kind_class(task, tokenizer, settings, model.config.label2id if task.labels else {})
    return Predictor(task, FineTuningTrainer(model, run_arguments, kind, processing_class=tokenizer))


def kind_of_head(config: PretrainedConfig) -> str | None:
    """The kind of task whose head the checkpoint has; None for any other architecture."""
    from bert_recipes.finetuning.kinds import KIND_CLASSES

    built = architecture(config)
    heads = {name: kind.auto_class.removeprefix("AutoModel") for name, kind in KIND_CLASSES.items()}
    return next((name for name, head in heads.items() if built.endswith(head)), None)


def task_of_checkpoint(config: PretrainedConfig, args: PredictionArguments) -> Task:
    """The row beside the weights, or one that follows from config.json; columns as the user names them."""
    name = args.model_name_or_path
    file = Path(name) / TASK_FILE
    task = read_task_file(file) if file.is_file() else _task_of_config(config, args)
    if file.is_file() and args.text_columns and len(args.text_columns) != len(task.text_columns):
        raise InputError(
            f"--text_columns names {len(args.text_columns)} columns; {name} was trained on {len(task.text_columns)}: "
            f"{', '.join(task.text_columns)}"
        )
    if args.choice_columns and task.kind != "multiple_choice":
        raise InputError(f"--choice_columns is for multiple choice; {name} is a {architecture(config)}")
    changes: dict[str, Any] = {}
    if args.text_columns:
        changes["text_columns"] = tuple(args.text_columns)
    if args.choice_columns:
        changes["choice_columns"] = tuple(args.choice_columns)
    if args.id_column:
        changes["id_column"] = args.id_column
    if args.version_2_with_negative is not None and task.kind == "question_answering":
        changes["metrics"] = ("squad_v2" if args.version_2_with_negative else "squad",)
    return dataclasses.replace(task, **changes)


def _task_of_config(config: PretrainedConfig, args: PredictionArguments) -> Task:
    built, kind = architecture(config), kind_of_head(config)
    if kind is None:
        from bert_recipes.finetuning.kinds import KIND_CLASSES

        heads = ", ".join(each.auto_class.removeprefix("AutoModelFor") for each in KIND_CLASSES.values())
        raise InputError(
            f"{args.model_name_or_path} is {built or 'of no named architecture'}, which predicts none of: "
            f"{heads}; fine-tune it first (recipes/finetune.py)"
        )
    columns = tuple(args.text_columns or _TEXT_COLUMNS[kind])
    allowed = (2,) if kind == "question_answering" else (1,) if kind == "token_classification" else (1, 2)
    if len(columns) not in allowed:
        wanted = " or ".join(map(str, allowed))
        raise InputError(f"--text_columns names {len(columns)} columns; a {built} takes {wanted}")
    if kind == "multiple_choice" and not args.choice_columns:
        raise InputError(f"{args.model_name_or_path} has no {TASK_FILE}: name the choices with --choice_columns")
    names = tuple(str(config.id2label[number]) for number in sorted(config.id2label))
    problem = getattr(config, "problem_type", None)
    if kind != "sequence_classification":
        problem = "single_label_classification"
    elif problem is None:
        problem = "regression" if len(names) == 1 else "single_label_classification"
    has_labels = kind in ("sequence_classification", "token_classification") and problem != "regression"
    return Task(
        name=Path(args.model_name_or_path).name,
        kind=kind,
        text_columns=columns,
        choice_columns=tuple(args.choice_columns or ()),
        label_column="",
        labels=names if has_labels else (),
        problem_type=problem,
        metrics=("squad",) if kind == "question_answering" else (),
    )


def write_lines(lines: Iterable[dict[str, Any]], file: TextIO | None) -> None:
    """Write one JSON object a line; with None only go through them, as a process does that is not the main one."""
    for line in lines:
        if file is not None:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """Open a file for writing that is there as a whole or not at all."""
    with saving(path), written_aside(path) as aside, aside.open("w", encoding="utf-8") as file:
        yield file
