"""Texts in a user's file, of any size -> predictions with probabilities, by any fine-tuned
checkpoint.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

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
)
from bert_recipes.finetuning.checkpoints import label_names, open_model, open_tokenizer
from bert_recipes.finetuning.kind import EncodedSplit, Prediction, warn_of_unknown
from bert_recipes.finetuning.run import KIND_CLASSES
from bert_recipes.finetuning.token_classification import list_spans, write_columns
from bert_recipes.finetuning.trainer import FineTuningTrainer
from bert_recipes.rows import (
    NumberedRows,
    Rows,
    column_value,
    format_suffix,
    is_missing,
    read_lines,
)
from bert_recipes.tags import are_entities
from bert_recipes.tasks.conll import LINES, has_columns
from bert_recipes.tasks.examples import Split, TaggedExample
from bert_recipes.tasks.reading import read_examples, read_id
from bert_recipes.tasks.sources import open_file
from bert_recipes.tasks.tagging import join_words
from bert_recipes.tasks.task import DOCUMENT, Task
from bert_recipes.tasks.task_file import read_task_file
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer


logger = logging.getLogger(__name__)

# Name of the only split that an input file has.
INPUT = "input"
CHUNK_SIZE = 10_000


class InputChunk(NamedTuple):
    """Examples of some consecutive rows of an input file, without labels, and what each is called
    in the output.
    """

    split: Split
    ids: list[int | str]


def read_chunks(
    path: Path, task: Task, chunk_size: int = CHUNK_SIZE, *, id_column: str | None = None
) -> Iterator[InputChunk]:
    """Read an input file, as the task's own files are read.

    Columns are found by their names; a `.txt` file has none: a line is one text, or as many as the
    task has, with tabs between; for a tagging task it may also have a word a line. The words of a
    tagging task are a list, or a text that is cut into words. Labels are not looked at. An id is
    the column `task.id_column`, else `idx` or `id`, else the number of the row, from 0; every row
    must have id_column. A chunk has chunk_size rows, more only where a document of a CoNLL file
    does not end there.
    """
    is_text = format_suffix(path) == ".txt"
    if is_text and not (task.kind == "token_classification" and has_columns(path, task)):
        rows = Rows(str(path), "line", _text_rows(path, (*task.text_columns, *task.choice_columns)))
    else:
        rows = open_file(replace(task, label_column=""), path)
    if task.kind == "token_classification":
        rows = Rows(rows.source, rows.unit, join_words(task, rows, is_test=True))
    yield from _chunks(task, rows, chunk_size, id_column)


def chunk_of_rows(task: Task, rows: Sequence[Mapping[str, Any]], source: str) -> InputChunk:
    """Take inputs that are in memory already, with the rules of `read_chunks`; source is for
    messages.
    """
    return next(_chunks(task, Rows(source, "row", list(enumerate(rows, start=1))), len(rows)))


def _text_rows(path: Path, columns: tuple[str, ...]) -> NumberedRows:
    blank: int | None = (
        None  # the first of the blank lines at the end of the file, which hold no inputs
    )
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            blank = blank or number
            continue
        if blank is not None:
            raise InputError(f"{path}, line {blank}: a blank line; every line is an input")
        texts = line.split("\t") if len(columns) > 1 else [line]
        if len(texts) != len(columns):
            inputs = " TAB ".join(columns)
            raise InputError(
                f"{path}, line {number}: {line!r:.60}; every line is an input of the form: {inputs}"
            )
        yield number, dict(zip(columns, texts, strict=True))


def _chunks(
    task: Task, rows: Rows, chunk_size: int, id_column: str | None = None
) -> Iterator[InputChunk]:
    # What reads a task's test split reads this; ids are kept apart, as here they need not differ.
    plain = replace(
        task, test_splits=(INPUT,), id_column=None, files={}, label_column="", label_columns=()
    )
    kept: list[tuple[int, Mapping[str, Any]]] = []
    ids: list[int | str] = []

    def chunk() -> InputChunk:
        examples = read_examples(plain, INPUT, Rows(rows.source, rows.unit, kept)).examples
        return InputChunk(
            Split(
                name=INPUT,
                examples=examples,
                source=rows.source,
                num_rows=len(examples),
                is_labelled=False,
            ),
            ids,
        )

    for index, (number, row) in enumerate(rows.rows):
        where = rows.where(number)
        if len(kept) >= chunk_size and (
            DOCUMENT not in row or row[DOCUMENT] != kept[-1][1][DOCUMENT]
        ):
            yield chunk()
            kept, ids = [], []
        kept.append((number, _needed_columns(task, row, where)))
        idx = _input_id(task, row, index, where, id_column)
        ids.append(str(idx) if task.kind == "question_answering" else idx)
    if not kept:
        raise InputError(f"{rows.source}: no input in it")
    yield chunk()


def _input_id(
    task: Task, row: Mapping[str, Any], index: int, where: str, id_column: str | None
) -> int | str:
    """Return the id of an input: of the column that the user names, else of a usual one, else the
    number of the row.

    A table may lack the id in some rows of a column that nobody named.
    """
    if id_column is not None:
        return read_id(column_value(row, id_column, where), id_column, where)
    for column in filter(None, (task.id_column, "idx", "id")):
        if column in row and not is_missing(row[column]) and row[column] != "":
            return read_id(row[column], column, where)
    return index


def _needed_columns(task: Task, row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return the columns that the model reads, none of them empty; of a pair of texts one may
    be.
    """
    try:
        kept = {
            column: column_value(row, column, where)
            for column in (*task.text_columns, *task.choice_columns)
        }
    except InputError as error:
        raise InputError(
            f"{error}; say with --text_columns or --choice_columns which to read"
        ) from error
    empty = [column for column, value in kept.items() if _is_empty(value)]
    if empty and (task.kind != "sequence_classification" or len(empty) == len(kept)):
        raise InputError(f"{where}: column '{empty[0]}' is empty; there is nothing to predict from")
    return kept | {name: row[name] for name in (DOCUMENT, LINES) if name in row}


def _is_empty(value: Any) -> bool:
    return is_missing(value) or value == [] or (isinstance(value, str) and not value.strip())


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
        """Return what the model reads of some inputs, and what it says of each, in their order."""
        encoded = self.trainer.kind.encode(chunk.split)
        return encoded, self.trainer.predict_split(encoded)

    def predict_chunks(
        self, chunks: Iterable[InputChunk]
    ) -> Iterator[tuple[InputChunk, list[Prediction]]]:
        """Yield chunks with a prediction for each of their inputs; warn of what the model cannot
        read in them.
        """
        length, num_full, is_unknown = self.trainer.kind.settings.max_seq_length, 0, False
        for chunk in chunks:
            encoded, predictions = self.predict(chunk)
            is_unknown = is_unknown or warn_of_unknown(encoded, self.trainer.kind.tokenizer)
            if self.task.kind in ("sequence_classification", "multiple_choice"):
                num_full += int((encoded.lengths >= length).sum())
            yield chunk, predictions
        if num_full:
            logger.warning(
                "%d inputs fill all %d positions; what does not fit is cut off", num_full, length
            )

    def lines(
        self, chunk: InputChunk, predictions: Sequence[Prediction]
    ) -> Iterator[dict[str, Any]]:
        """Yield `idx`, `prediction` and (where there are any) `probabilities` of each input of a
        chunk.

        Where texts were cut into words to find entities in them, `spans` are these in characters
        (`list_spans`).
        """
        for idx, example, prediction in zip(
            chunk.ids, chunk.split.examples, predictions, strict=True
        ):
            line = prediction.as_line(idx)
            if (
                isinstance(example, TaggedExample)
                and example.offsets is not None
                and are_entities(self.task.labels)
            ):
                line["spans"] = list_spans(example, cast(list[str], prediction.value))
            yield line

    def write_columns(
        self, file: TextIO, chunk: InputChunk, predictions: Sequence[Prediction]
    ) -> None:
        """Write the words of a chunk of a tagging task and their tags in the columns of CoNLL."""
        examples = cast(Sequence[TaggedExample], chunk.split.examples)
        tags = [cast(list[str], prediction.value) for prediction in predictions]
        write_columns(file, examples, self.task.labels, tags)


def load_predictor(
    args: PredictionArguments, inputs: InputArguments, run_arguments: FineTuningArguments
) -> tuple[Predictor, int]:
    """Find out what the checkpoint does, check the input file (and count its inputs), and load the
    model.
    """
    name = args.model_name_or_path
    config = read_model_config(name)
    task = task_of_checkpoint(config, args)
    settings = TaskArguments(
        task=task.name, model_name_or_path=name, **inputs.resolved(config, name)
    )
    tokenizer = open_tokenizer(name)
    chunks = read_chunks(Path(args.input_file), task, id_column=args.id_column)
    num_inputs = sum(len(chunk.ids) for chunk in chunks)
    return make_predictor(task, settings, tokenizer, run_arguments), num_inputs


def make_predictor(
    task: Task,
    settings: TaskArguments,
    tokenizer: OriginalBertTokenizer,
    run_arguments: FineTuningArguments,
) -> Predictor:
    """Load the model of settings.model_name_or_path for a `task_of_checkpoint`."""
    kind_class = KIND_CLASSES[task.kind]
    name = str(settings.model_name_or_path)
    model = open_model(
        name, task, kind_class, tokenizer, settings, seed=run_arguments.seed, needs_head=True
    )
    kind = kind_class(task, tokenizer, settings, model.config.label2id if task.labels else {})
    return Predictor(
        task, FineTuningTrainer(model, run_arguments, kind, processing_class=tokenizer)
    )


def kind_of_head(config: PretrainedConfig) -> str | None:
    """Return the kind of task whose head the checkpoint has; None for any other architecture."""
    built = architecture(config)
    heads = {name: kind.auto_class.removeprefix("AutoModel") for name, kind in KIND_CLASSES.items()}
    return next((name for name, head in heads.items() if built.endswith(head)), None)


def task_of_checkpoint(config: PretrainedConfig, args: PredictionArguments) -> Task:
    """Return the row beside the weights, or one that follows from config.json; columns as the user
    names them.
    """
    name = args.model_name_or_path
    file = Path(name) / TASK_FILE
    task = read_task_file(file) if file.is_file() else _task_of_config(config, name)
    columns = tuple(args.text_columns or task.text_columns)
    may_be_pair = not file.is_file() and task.kind in ("sequence_classification", "multiple_choice")
    if len(columns) != len(task.text_columns) and not (may_be_pair and len(columns) == 2):
        raise InputError(
            f"--text_columns names {len(columns)} columns; {name} was trained on "
            f"{len(task.text_columns)}: "
            f"{', '.join(task.text_columns)}"
        )
    choices = tuple(args.choice_columns or task.choice_columns)
    if bool(choices) != (task.kind == "multiple_choice"):
        raise InputError(
            "--choice_columns is for multiple choice, which needs it where there is no "
            f"{TASK_FILE}; {name} is a "
            f"{architecture(config)}"
        )
    task = replace(
        task,
        text_columns=columns,
        choice_columns=choices,
        id_column=args.id_column or task.id_column,
    )
    if args.version_2_with_negative is not None and task.kind == "question_answering":
        task = replace(task, metrics=("squad_v2" if args.version_2_with_negative else "squad",))
    return task


def _task_of_config(config: PretrainedConfig, name: str) -> Task:
    kind = kind_of_head(config)
    if kind is None:
        heads = ", ".join(
            each.auto_class.removeprefix("AutoModelFor") for each in KIND_CLASSES.values()
        )
        raise InputError(
            f"{name} is {architecture(config) or 'of no named architecture'}, which predicts none "
            f"of: {heads}; "
            "fine-tune it first (recipes/finetune.py)"
        )
    names = label_names(config)
    problem = "single_label_classification"
    if kind == "sequence_classification":
        problem = getattr(config, "problem_type", None) or (
            "regression" if len(names) == 1 else problem
        )
    has_labels = (
        kind in ("sequence_classification", "token_classification") and problem != "regression"
    )
    return Task(
        name=Path(name).name,
        kind=kind,
        text_columns=_TEXT_COLUMNS[kind],
        label_column="",
        labels=tuple(names) if has_labels else (),
        problem_type=problem,
        metrics=("squad",) if kind == "question_answering" else (),
    )


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """Open a file for writing that is complete or absent."""
    with saving(path), atomic_write(path) as aside, aside.open("w", encoding="utf-8") as file:
        yield file
