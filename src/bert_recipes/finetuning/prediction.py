"""Predict the texts of a user's file, of any size, with any fine-tuned checkpoint."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from transformers import PretrainedConfig

from bert_recipes.checkpointing import find_file
from bert_recipes.errors import InputError, saving
from bert_recipes.files import atomic_write
from bert_recipes.finetuning.arguments import (
    FineTuningArguments,
    InputArguments,
    PredictionArguments,
    TaskArguments,
    architecture,
    check_context,
    read_model_config,
)
from bert_recipes.finetuning.checkpoints import (
    HEADS,
    kind_of_head,
    label_names,
    open_model,
    open_tokenizer,
)
from bert_recipes.finetuning.kind import EncodedSplit, Prediction, warn_of_unknown
from bert_recipes.finetuning.run import make_kind
from bert_recipes.finetuning.token_classification import list_spans, write_columns
from bert_recipes.finetuning.trainer import FineTuningTrainer
from bert_recipes.rows import (
    TABLE_SUFFIXES,
    NumberedRow,
    NumberedRows,
    Rows,
    column_value,
    format_suffix,
    is_missing,
    read_lines,
)
from bert_recipes.run_folder import TASK_FILE
from bert_recipes.tags import are_entities, odd_tags
from bert_recipes.tasks.conll import LINES, has_columns
from bert_recipes.tasks.examples import Split
from bert_recipes.tasks.reading import is_id, read_examples, read_id
from bert_recipes.tasks.sources import open_file
from bert_recipes.tasks.tagging import are_words_in_rows, join_words
from bert_recipes.tasks.task import CLASSIFICATION_KINDS, DOCUMENT, Task
from bert_recipes.tasks.task_file import read_task_file
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer


logger = logging.getLogger(__name__)

# Name of the only split that an input file has.
INPUT = "input"
CHUNK_SIZE = 10_000


class InputChunk(NamedTuple):
    """Examples of some consecutive rows of an input file, without labels, and their ids."""

    split: Split
    ids: list[int | str]


def read_chunks(
    path: Path, task: Task, chunk_size: int = CHUNK_SIZE, *, id_column: str | None = None
) -> Iterator[InputChunk]:
    """Read an input file, as the task's files are read.

    Columns are found by their names; a `.txt` file has none: a line is one text, or as many as the
    task has, with tabs between; for a tagging task it may also have a word a line. The words of a
    tagging task are a list, or a text that is cut into words. Labels are not looked at. An id is
    the column `task.id_column`, else `idx` or `id`, else the number of the row, from 0; every row
    must have id_column. A chunk has chunk_size rows, or the rows up to the end of the document in a
    CoNLL file.
    """
    is_tagging = task.kind == "token_classification"
    is_text = format_suffix(path) == ".txt"
    if is_text and not (is_tagging and has_columns(path, task)):
        columns_of_line = [*task.text_columns, *task.choice_columns]
        rows = Rows(str(path), "line", _text_rows(path, columns_of_line), are_texts=True)
    else:
        unlabelled = replace(task, label_column="")
        # A table of words may have blank lines between its sentences.
        may_have_word_rows = is_tagging and format_suffix(path) in TABLE_SUFFIXES
        has_word_rows = may_have_word_rows and are_words_in_rows(task, open_file(unlabelled, path))
        rows = open_file(unlabelled, path, are_inputs=not has_word_rows)
        if format_suffix(path) in (".json", ".jsonl"):
            columns: dict[str, None] = {}
            for _, row in rows.rows:
                columns.update(dict.fromkeys(row))
            again = open_file(unlabelled, path, are_inputs=not has_word_rows)
            rows = replace(again, rows=_fill_columns(again.rows, columns))
        if is_tagging:
            rows = Rows(rows.source, rows.unit, join_words(task, rows, is_test=True))
    yield from _chunks(task, rows, chunk_size, id_column)


def _fill_columns(rows: Iterable[NumberedRow], columns: Mapping[str, None]) -> NumberedRows:
    """Yield rows of JSON; a column that only other rows have is null."""
    for number, row in rows:
        yield number, {**columns, **row}


def chunk_of_rows(task: Task, rows: Sequence[Mapping[str, Any]], source: str) -> InputChunk:
    """Return inputs that are in memory already as a chunk, with the rules of `read_chunks`.

    Messages name the source.
    """
    numbered = Rows(source, "row", list(enumerate(rows, start=1)))
    return next(_chunks(task, numbered, len(rows)))


def _text_rows(path: Path, columns: Sequence[str]) -> NumberedRows:
    """Yield the texts of each line; only the end of the file may have blank lines."""
    first_blank = 0
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            first_blank = first_blank or number
            continue
        if first_blank:
            raise InputError(
                f"{path}, line {first_blank}: a blank line; every line is an input: fill it, or "
                "delete it"
            )
        texts = line.split("\t") if len(columns) > 1 else [line]
        if len(texts) != len(columns):
            form = " TAB ".join(columns)
            raise InputError(
                f"{path}, line {number}: {line!r:.60}; every line is an input of the form: {form}"
            )
        yield number, dict(zip(columns, texts, strict=True))


def _chunks(
    task: Task, rows: Rows, chunk_size: int, id_column: str | None = None
) -> Iterator[InputChunk]:
    """Yield the rows of a table as inputs, the sentences of a document in one chunk."""
    numbered_rows: list[tuple[int, Mapping[str, Any]]] = []
    ids: list[int | str] = []
    document = None
    for index, (number, row) in enumerate(rows.rows):
        is_new_document = DOCUMENT not in row or row[DOCUMENT] != document
        if len(ids) >= chunk_size and is_new_document:
            yield InputChunk(_read_inputs(task, rows, numbered_rows), ids)
            numbered_rows = []
            ids = []
        document = row.get(DOCUMENT)
        where = rows.where(number)
        numbered_rows.append((number, _read_columns(task, row, where)))
        idx = _read_id(task, row, index, where, id_column)
        ids.append(str(idx) if task.kind == "question_answering" else idx)
    if not ids:
        raise InputError(f"{rows.source}: no input in it")
    yield InputChunk(_read_inputs(task, rows, numbered_rows), ids)


def _read_inputs(
    task: Task, rows: Rows, numbered_rows: Sequence[tuple[int, Mapping[str, Any]]]
) -> Split:
    """Return inputs as a task's test split, read without ids: here they may repeat."""
    unlabelled = replace(
        task,
        test_splits=(INPUT,),
        id_column=None,
        files={},
        label_column="",
        label_columns=(),
        sentence_column=None,
    )
    table = replace(rows, rows=numbered_rows)
    examples = read_examples(unlabelled, INPUT, table).examples
    return Split(
        name=INPUT,
        examples=examples,
        source=rows.source,
        num_rows=len(examples),
        is_labelled=False,
    )


def _read_id(
    task: Task, row: Mapping[str, Any], index: int, where: str, id_column: str | None
) -> int | str:
    """Return the id of an input: of id_column, else of a usual column, else the row's number.

    A column that nobody named may lack the id in some rows, or hold something else.
    """
    if id_column is not None:
        return read_id(column_value(row, id_column, where), id_column, where)
    for column in (task.id_column or "idx", "idx", "id"):
        value = row.get(column)
        is_named = column == task.id_column
        if not is_missing(value) and value != "" and (is_named or is_id(value)):
            return read_id(value, column, where)
    return index


def _read_columns(task: Task, row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return the columns that the model reads.

    These may be empty: one text of a pair; in multiple choice the context, and choices that the row
    does not have.
    """
    values: dict[str, Any] = {}
    try:
        for column in (*task.text_columns, *task.choice_columns):
            values[column] = column_value(row, column, where)
    except InputError as error:
        raise InputError(
            f"{error}; say with --text_columns or --choice_columns which to read"
        ) from error
    empty = [column for column, value in values.items() if _is_empty(value)]
    may_lack_texts = task.kind in ("sequence_classification", "multiple_choice")
    needs_all = not may_lack_texts or len(empty) == len(values)
    if empty and needs_all:
        raise InputError(
            f"{where}: column '{empty[0]}' is empty; there is nothing to predict from: fill it, or "
            "delete the row"
        )
    for column in (DOCUMENT, LINES):
        if column in row:
            values[column] = row[column]
    return values


def _is_empty(value: Any) -> bool:
    is_blank = isinstance(value, str) and not value.strip()
    return is_blank or is_missing(value) or value == []


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
        """Yield chunks with a prediction for each of their inputs.

        A warning says what of them the model cannot read.
        """
        kind = self.trainer.kind
        max_length = kind.settings.max_seq_length
        num_full = 0
        has_warned = False
        for chunk in chunks:
            encoded, predictions = self.predict(chunk)
            has_warned = has_warned or warn_of_unknown(encoded, kind.tokenizer)
            num_full += int((encoded.lengths >= max_length).sum())
            yield chunk, predictions
        if num_full and kind.cuts_texts:
            message = "%d inputs fill all %d positions; what does not fit is cut off"
            logger.warning(message, num_full, max_length)

    def lines(
        self, chunk: InputChunk, predictions: Sequence[Prediction]
    ) -> Iterator[dict[str, Any]]:
        """Yield `idx`, `prediction` and (where there are any) `probabilities` of each input.

        Where texts were cut into words to find entities in them, `spans` are these in characters
        (`list_spans`).
        """
        labels = self.task.labels
        is_tagging = self.task.kind == "token_classification"
        has_entities = is_tagging and are_entities(labels) and not odd_tags(labels)
        examples: Sequence[Any] = chunk.split.examples
        for idx, example, prediction in zip(chunk.ids, examples, predictions, strict=True):
            line = prediction.as_line(idx)
            if has_entities and example.offsets is not None:
                tags: Any = prediction.value
                line["spans"] = list_spans(example, tags)
            yield line

    def write_columns(
        self, file: TextIO, chunk: InputChunk, predictions: Sequence[Prediction]
    ) -> None:
        """Write the words of a chunk of a tagging task and their tags in the columns of CoNLL."""
        examples: Sequence[Any] = chunk.split.examples
        tags: list[Any] = [prediction.value for prediction in predictions]
        write_columns(file, examples, self.task.labels, tags)


def load_predictor(
    args: PredictionArguments, inputs: InputArguments, run_arguments: FineTuningArguments
) -> tuple[Predictor, int]:
    """Load a checkpoint, and read the complete input file before.

    Args:
        args: The checkpoint and the input file.
        inputs: How inputs are cut; None: as the checkpoint was trained.
        run_arguments: Of `PredictionArguments.run_arguments`.

    Returns:
        The checkpoint, and the number of inputs.
    """
    name = args.model_name_or_path
    config = read_model_config(name)
    task = task_of_checkpoint(config, args)
    choices = inputs.resolved(config, name)
    settings = TaskArguments(task=task.name, model_name_or_path=name, **choices)
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
    check_context(task, settings.context)
    name = str(settings.model_name_or_path)
    model = open_model(name, task, tokenizer, settings, seed=run_arguments.seed, needs_head=True)
    kind = make_kind(task, tokenizer, settings, model.config.label2id)
    trainer = FineTuningTrainer(model, run_arguments, kind, processing_class=tokenizer)
    return Predictor(task, trainer)


def task_of_checkpoint(config: PretrainedConfig, args: PredictionArguments) -> Task:
    """Return the task that is defined beside the weights, or the one that config.json tells.

    Columns are as the user names them.
    """
    name = args.model_name_or_path
    file = find_file(name, TASK_FILE)
    task = _task_of_config(config, name) if file is None else read_task_file(file)
    columns = tuple(args.text_columns or task.text_columns)
    choices = tuple(args.choice_columns or task.choice_columns)
    numbers = [len(task.text_columns)]
    if file is None and task.kind in ("sequence_classification", "multiple_choice"):
        numbers.append(2)  # it may have been trained on pairs
    if len(columns) not in numbers:
        raise InputError(
            f"--text_columns names {len(columns)} columns; {name} was trained on "
            f"{len(task.text_columns)}: {', '.join(task.text_columns)}"
        )
    if bool(choices) != (task.kind == "multiple_choice"):
        raise InputError(
            "--choice_columns is for multiple choice, which needs it where there is no "
            f"{TASK_FILE}; {name} is a {architecture(config)}"
        )
    metrics = task.metrics
    if args.version_2_with_negative is not None and task.kind == "question_answering":
        metrics = ("squad_v2",) if args.version_2_with_negative else ("squad",)
    return replace(
        task,
        text_columns=columns,
        choice_columns=choices,
        id_column=args.id_column or task.id_column,
        metrics=metrics,
    )


def _task_of_config(config: PretrainedConfig, name: str) -> Task:
    """Return the task that follows from a config.json: its head, its labels, the usual columns."""
    kind = kind_of_head(config)
    if kind is None:
        heads = [head.removeprefix("For") for head in HEADS.values()]
        raise InputError(
            f"{name} is {architecture(config) or 'of no named architecture'}, which predicts none "
            f"of: {', '.join(heads)}; fine-tune it first (recipes/finetune.py)"
        )
    names = label_names(config)
    problem_type = "single_label_classification"
    if kind == "sequence_classification":
        if len(names) == 1:
            problem_type = "regression"
        problem_type = getattr(config, "problem_type", None) or problem_type
    is_classification = kind in CLASSIFICATION_KINDS
    has_labels = is_classification and problem_type != "regression"
    return Task(
        name=Path(name).name,
        kind=kind,
        text_columns=_TEXT_COLUMNS[kind],
        label_column="",
        labels=tuple(names) if has_labels else (),
        problem_type=problem_type,
        metrics=("squad",) if kind == "question_answering" else (),
    )


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """Open a file for writing that is complete or absent."""
    with saving(path), atomic_write(path) as aside, aside.open("w", encoding="utf-8") as file:
        yield file
