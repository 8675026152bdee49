"""Texts in a user's file, of any size -> predictions with probabilities, by any fine-tuned checkpoint."""

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from transformers import PretrainedConfig

from bert_recipes.errors import InputError, saving
from bert_recipes.files import atomic_write
from bert_recipes.finetuning.arguments import (
    TASK_FILE,
    FineTuningArguments,
    InputArguments,
    PredictionArguments,
    TaskArguments,
    architecture,
    read_model_config,
    read_task_file,
)
from bert_recipes.finetuning.checkpoints import open_model, open_tokenizer
from bert_recipes.finetuning.kind import EncodedSplit, Prediction
from bert_recipes.finetuning.run import KIND_CLASSES
from bert_recipes.finetuning.trainer import FineTuningTrainer
from bert_recipes.tasks.reading import read_examples
from bert_recipes.tasks.rows import Split
from bert_recipes.tasks.sources import read_conll, read_squad, read_table, read_text_lines
from bert_recipes.tasks.task import DOCUMENT, TABLE_SUFFIXES, Rows, Task, example_id
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer


logger = logging.getLogger(__name__)

# Name of the only split that an input file has.
INPUT = "input"
CHUNK_SIZE = 10_000


class InputChunk(NamedTuple):
    """Examples of some consecutive rows of an input file, without labels, and what each is called in the output."""

    split: Split
    ids: list[int | str]


def read_chunks(
    path: Path, task: Task, chunk_size: int = CHUNK_SIZE, *, id_column: str | None = None
) -> Iterator[InputChunk]:
    """Read an input file.

    Columns are found by their names; a `.txt` file has none: a line is one text, or as many as the task has, with tabs
    between. The words of a tagging task are a list, or a text that is split at its spaces. Labels are not looked at. An
    id is the column `task.id_column`, else `idx` or `id`, else the number of the row, from 0; every row must have
    id_column. A chunk has chunk_size rows, more only where a document of a CoNLL file does not end there.
    """
    rows = _open(path, task)
    chunk: list[tuple[int, Mapping[str, Any]]] = []
    ids: list[int | str] = []
    num_rows = 0
    for number, row in rows.rows:
        where = rows.where(number)
        if id_column is not None and id_column not in row:
            raise InputError(f"{where}: no column '{id_column}' (--id_column); columns: {', '.join(row)}")
        if len(chunk) >= chunk_size and (DOCUMENT not in row or row[DOCUMENT] != chunk[-1][1][DOCUMENT]):
            yield _chunk(task, rows, chunk, ids)
            chunk, ids = [], []
        chunk.append((number, _needed_columns(task, row, where)))
        ids.append(_output_id(task, row, num_rows, where))
        num_rows += 1
    if not num_rows:
        raise InputError(f"{path}: no input in it")
    yield _chunk(task, rows, chunk, ids)


def chunk_of_rows(task: Task, rows: Sequence[Mapping[str, Any]], source: str) -> InputChunk:
    """Take inputs that are in memory already, with the rules of `read_chunks`; source is for messages."""
    table = Rows(source, "row", list(enumerate(rows, start=1)))
    kept = [(number, _needed_columns(task, row, table.where(number))) for number, row in table.rows]
    ids = [_output_id(task, row, number - 1, table.where(number)) for number, row in table.rows]
    return _chunk(task, table, kept, ids)


def _chunk(task: Task, rows: Rows, chunk: list[tuple[int, Mapping[str, Any]]], ids: list[int | str]) -> InputChunk:
    # What reads a task's test split reads this; ids are kept apart, as here they need not differ.
    plain = dataclasses.replace(task, test_splits=(INPUT,), id_column=None, files={}, label_column="")
    examples = read_examples(plain, INPUT, Rows(rows.source, rows.unit, chunk))
    split = Split(name=INPUT, examples=examples, source=rows.source, num_rows=len(examples), is_labelled=False)
    return InputChunk(split, ids)


def _open(path: Path, task: Task) -> Rows:
    if not path.is_file():
        raise InputError(f"--input_file {path}: no such file")
    suffix = path.suffix.lower()
    if suffix == ".txt":
        return Rows(str(path), "line", _text_rows(path, (*task.text_columns, *task.choice_columns)))
    if suffix == ".conll" and task.kind == "token_classification":
        return read_conll(path, task.text_columns[0], task.label_column)
    if suffix == ".json" and task.kind == "question_answering":
        return read_squad(path, task)
    if suffix not in TABLE_SUFFIXES:
        others = ", .conll" if task.kind == "token_classification" else ""
        raise InputError(
            f"--input_file {path}: unknown ending '{path.suffix}'; allowed: .txt, {', '.join(TABLE_SUFFIXES)}{others}"
        )
    return read_table(path)


def _text_rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(read_text_lines(path), start=1):
        line = line.rstrip("\r\n")
        if not line.strip():
            raise InputError(f"{path}, line {number}: empty; every line is an input")
        texts = [line] if len(columns) == 1 else line.split("\t")
        if len(texts) != len(columns):
            raise InputError(
                f"{path}, line {number}: {len(texts) - 1} tabs; the model takes {len(columns)} texts with a tab between "
                f"two: {', '.join(columns)}"
            )
        yield number, dict(zip(columns, texts, strict=True))


def _needed_columns(task: Task, row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The columns that the model reads, none of them empty; of a pair of texts one may be."""
    kept = {}
    flags = dict.fromkeys(task.text_columns, "text_columns") | dict.fromkeys(task.choice_columns, "choice_columns")
    for column, flag in flags.items():
        if column not in row:
            present = ", ".join(name for name in row if name != DOCUMENT) or "none"
            raise InputError(
                f"{where}: no column '{column}'; columns present: {present}; say with --{flag} which to read"
            )
        kept[column] = row[column]
    if task.kind == "token_classification" and isinstance(kept[task.text_columns[0]], str):
        kept[task.text_columns[0]] = kept[task.text_columns[0]].split()
    empty = [column for column, value in kept.items() if value == [] or (isinstance(value, str) and not value.strip())]
    if empty and (task.kind != "sequence_classification" or len(empty) == len(kept)):
        raise InputError(f"{where}: column '{empty[0]}' is empty; there is nothing to predict from")
    if DOCUMENT in row:
        kept[DOCUMENT] = row[DOCUMENT]
    return kept


def _output_id(task: Task, row: Mapping[str, Any], index: int, where: str) -> int | str:
    names = (task.id_column, "idx", "id")
    column = next((name for name in names if name is not None and name in row), None)
    idx = index if column is None else example_id(dataclasses.replace(task, id_column=column), row, index, where)
    return str(idx) if task.kind == "question_answering" else idx


# Columns of an input for a checkpoint that has no task.yaml.
_TEXT_COLUMNS = {
    "sequence_classification": ("text",),
    "token_classification": ("tokens",),
    "question_answering": ("question", "context"),
    "multiple_choice": ("context",),
}


@dataclass(frozen=True)
class Predictor:
    """A checkpoint that is ready to predict."""

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
                yield prediction.as_line(idx)
        if num_full:
            logger.warning("%d inputs fill all %d positions; what does not fit is cut off", num_full, length)


def check_inputs(task: Task, path: Path, id_column: str | None = None) -> int:
    """Count the inputs of a file, so that mistakes in it are found before anything is predicted."""
    return sum(len(chunk.ids) for chunk in read_chunks(path, task, id_column=id_column))


def load_predictor(
    args: PredictionArguments, inputs: InputArguments, run_arguments: FineTuningArguments
) -> tuple[Predictor, int]:
    """Find out what the checkpoint does, check the input file (and count its inputs), and load the model."""
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
    """Load the model of settings.model_name_or_path for a `task_of_checkpoint`."""
    kind_class = KIND_CLASSES[task.kind]
    name = str(settings.model_name_or_path)
    model = open_model(name, task, kind_class, tokenizer, settings, seed=run_arguments.seed, needs_head=True)
    kind = kind_class(task, tokenizer, settings, model.config.label2id if task.labels else {})
    return Predictor(task, FineTuningTrainer(model, run_arguments, kind, processing_class=tokenizer))


def kind_of_head(config: PretrainedConfig) -> str | None:
    """The kind of task whose head the checkpoint has; None for any other architecture."""
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


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """Open a file for writing that is complete or absent."""
    with saving(path), atomic_write(path) as aside, aside.open("w", encoding="utf-8") as file:
        yield file
