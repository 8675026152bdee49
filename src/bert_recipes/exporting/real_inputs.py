"""On what an export is compared with its checkpoint: what the run itself was measured on, or what the user names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig, PreTrainedModel

from bert_recipes.arguments import DataArguments, ModelArguments
from bert_recipes.config_file import read_tree
from bert_recipes.data.collator import DataCollatorForPreTraining
from bert_recipes.errors import InputError
from bert_recipes.evaluation import EVALUATION_SEED
from bert_recipes.exporting.arguments import ExportArguments
from bert_recipes.exporting.comparison import RealInputs
from bert_recipes.exporting.heads import PRETRAINING, Head
from bert_recipes.exporting.pretraining_inputs import PretrainingInputs, TextLines
from bert_recipes.exporting.task_inputs import TaskInputs
from bert_recipes.field_types import accepts_list, element_type, field_types, read_text
from bert_recipes.finetuning.access import check_access
from bert_recipes.finetuning.arguments import TASK_FILE, TaskArguments
from bert_recipes.finetuning.checkpoints import open_model, open_tokenizer
from bert_recipes.finetuning.input_arguments import InputArguments, read_model_config
from bert_recipes.finetuning.kind import EncodedSplit, TaskKind
from bert_recipes.finetuning.kinds import KIND_CLASSES
from bert_recipes.finetuning.prediction import PredictionArguments, check_inputs, task_of_checkpoint
from bert_recipes.finetuning.prediction_inputs import read_chunks
from bert_recipes.finetuning.scoring import ScoringArguments
from bert_recipes.layer_choice import choose_layers
from bert_recipes.phases import key_in_last_phase
from bert_recipes.pretraining import load_data, load_model
from bert_recipes.run_folder import CONFIG_FILE
from bert_recipes.tasks.figures import split_suffixes
from bert_recipes.tasks.loading import load_split
from bert_recipes.tasks.task import Task
from bert_recipes.tokenization import OriginalBertTokenizer


# Settings of this machine and of the last evaluation, not of the data.
_NOT_OF_THE_DATA = ("max_eval_pairs", "data_cache_dir", "data_num_processes")


@dataclass(frozen=True)
class CheckedModel:
    """A checkpoint as this project runs it, and real inputs for it.

    Attributes:
        model: With the fast layers, where the machine has them.
        tokenizer: Its own.
        inputs: Gives the inputs, at most so many.
    """

    model: PreTrainedModel
    tokenizer: OriginalBertTokenizer
    inputs: Callable[[int], RealInputs]


def load_checked_model(args: ExportArguments, config: PretrainedConfig, head: Head) -> CheckedModel:
    """Find and read the inputs, and open the checkpoint.

    Args:
        args: Which inputs; without them what run.yaml beside the weights says.
        config: Of the checkpoint.
        head: As well.
    """
    said = _read_run(Path(args.model_name_or_path))
    if head.name == PRETRAINING:
        _refuse(args, ("task", "task_file", "text_columns", "choice_columns"), "a pre-trained model")
        checked = _pretrained(args, config, said)
    else:
        _refuse(args, ("store",), "a fine-tuned model")
        checked = _of_file(args, config) if args.input_file is not None else _of_task(args, said)
    choose_layers(checked.model, "auto")
    return checked


def _read_run(folder: Path) -> Mapping[str, Any]:
    file = folder / CONFIG_FILE
    return read_tree(file)[0] if file.is_file() else {}


def _refuse(args: ExportArguments, names: tuple[str, ...], what: str) -> None:
    for name in names:
        if getattr(args, name) is not None:
            raise InputError(f"--{name} is not for {what}, which {args.model_name_or_path} is")


# Fine-tuned


def _of_task(args: ExportArguments, said: Mapping[str, Any]) -> CheckedModel:
    name = args.model_name_or_path
    task, task_file = args.task, args.task_file
    if task is None and task_file is None:
        task, task_file = said.get("task"), said.get("task_file")
        beside = Path(name) / TASK_FILE
        if task_file is not None and not Path(task_file).is_file() and beside.is_file():
            task_file = str(beside)
    if task is None and task_file is None:
        raise InputError(
            f"{name} does not say on what it was measured; give --task NAME or --task_file FILE (with --data_dir), or "
            "--input_file with inputs of any kind"
        )
    settings = ScoringArguments(
        model_name_or_path=name, task=task, task_file=task_file, data_dir=args.data_dir or said.get("data_dir")
    )
    row = check_access(settings, for_training=False)
    if not row.validation_splits:
        raise InputError(f"task {row.name} has no validation split; give --input_file with inputs of any kind")
    tokenizer, model, kind = _open(args, row, settings)

    def inputs(most: int) -> RealInputs:
        splits: dict[str, EncodedSplit] = {}
        for suffix, split in zip(split_suffixes(row.validation_splits), row.validation_splits, strict=True):
            found = load_split(row, split, data_dir=settings.data_dir, max_examples=most, need_labels=True)
            splits[suffix] = kind.encode(found, for_training=False)
        shown = ", ".join(
            f"{each.split.name} ({len(each.split.examples)} of {each.split.num_rows})" for each in splits.values()
        )
        return TaskInputs(kind, splits, f"task {row.name}, {shown}")

    return CheckedModel(model, tokenizer, inputs)


def _of_file(args: ExportArguments, config: PretrainedConfig) -> CheckedModel:
    name, path = args.model_name_or_path, Path(str(args.input_file))
    wanted = PredictionArguments(
        name, input_file=str(path), text_columns=args.text_columns, choice_columns=args.choice_columns
    )
    task = task_of_checkpoint(config, wanted)
    available = check_inputs(task, path)
    lengths = InputArguments().resolved(config, name)
    tokenizer, model, kind = _open(args, task, TaskArguments(task=task.name, model_name_or_path=name, **lengths))

    def inputs(most: int) -> RealInputs:
        first = next(read_chunks(path, task, min(most, available)))
        encoded = kind.encode(first.split, for_training=False)
        return TaskInputs(kind, {"": encoded}, f"{path.name} ({len(first.ids)} of {available})")

    return CheckedModel(model, tokenizer, inputs)


def _open(
    args: ExportArguments, task: Task, settings: TaskArguments
) -> tuple[OriginalBertTokenizer, PreTrainedModel, TaskKind]:
    kind_class = KIND_CLASSES[task.kind]
    tokenizer = open_tokenizer(args.model_name_or_path)
    model = open_model(args.model_name_or_path, task, kind_class, tokenizer, settings, seed=0, needs_head=True)
    return tokenizer, model, kind_class(task, tokenizer, settings, model.config.label2id if task.labels else {})


# Pre-trained


def _pretrained(args: ExportArguments, config: PretrainedConfig, said: Mapping[str, Any]) -> CheckedModel:
    name = args.model_name_or_path
    trained = _data_settings(name, said)
    if args.input_file is not None:
        tokenizer = open_tokenizer(name)
        length = min(trained.get("max_seq_length", 512), config.max_position_embeddings)
        lines = TextLines(Path(args.input_file), tokenizer, length, args.max_eval_examples)
        collator = DataCollatorForPreTraining(tokenizer)
        model = load_model(ModelArguments(model_name_or_path=name), tokenizer, length, seed=0)
        return CheckedModel(
            model,
            tokenizer,
            lambda most: PretrainingInputs(
                lines, collator, most, length, f"{Path(str(args.input_file)).name} ({len(lines.rows)} texts)", "texts"
            ),
        )
    if args.store is not None:
        trained = {key: value for key, value in trained.items() if key not in ("train_file", "validation_file")}
        trained |= {"store": args.store, "tokenizer": None}
    if not (trained.get("store") or trained.get("train_file")):
        raise InputError(
            f"{name} does not say on what it was measured; give --store FOLDER (recipes/prepare_corpus.py), or --input_file "
            "with lines of text"
        )
    data = load_data(DataArguments(**trained), EVALUATION_SEED)
    held_out = data.validation
    where = trained.get("store") or trained.get("validation_file")
    if held_out is None:
        raise InputError(
            f"{trained.get('store') or trained.get('train_file')} has no held-out part; give another --store, or --input_file "
            "with lines of text"
        )
    source = f"held-out pairs of {where}, of {held_out.num_pairs(0):,}"
    model = load_model(ModelArguments(model_name_or_path=name), data.tokenizer, data.max_seq_length, seed=0)
    return CheckedModel(
        model,
        data.tokenizer,
        lambda most: PretrainingInputs(held_out, data.collator, most, data.max_seq_length, source, "pairs"),
    )


def _data_settings(name: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `DataArguments` that run.yaml has, as they were in the run's last phase."""
    hints = field_types(DataArguments)
    values: dict[str, Any] = {}
    for item in fields(DataArguments):
        key = key_in_last_phase(said, item.name)
        text = said.get(key)
        if text is None or item.name in _NOT_OF_THE_DATA:
            continue
        try:
            if isinstance(text, list) and accepts_list(hints[item.name]):
                values[item.name] = [read_text(element_type(hints[item.name]), each) for each in text]
            else:
                values[item.name] = read_text(hints[item.name], text)
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(f"{Path(name) / CONFIG_FILE}: {key}: {error}") from error
    return values


def config_of(args: ExportArguments) -> PretrainedConfig:
    """The checkpoint's configuration."""
    return read_model_config(args.model_name_or_path)
