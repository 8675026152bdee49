"""From settings to the parts of a fine-tuning run, and what it leaves behind."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel
from transformers.trainer_utils import SaveStrategy

from bert_recipes.config import write_task_file
from bert_recipes.errors import InputError, saving
from bert_recipes.finetuning.access import load_task
from bert_recipes.finetuning.arguments import TASK_FILE, FineTuningArguments, TaskArguments
from bert_recipes.finetuning.checkpoints import open_model, open_tokenizer
from bert_recipes.finetuning.kind import EncodedSplit, TaskKind
from bert_recipes.finetuning.kinds import KIND_CLASSES
from bert_recipes.finetuning.trainer import FineTuningTrainer
from bert_recipes.run_origin import describe_checkpoint, hash_of_examples, name_of_source
from bert_recipes.tasks.figures import figure_names, split_suffixes, with_suffix
from bert_recipes.tasks.loading import load_split
from bert_recipes.tasks.registry import get_task
from bert_recipes.tasks.task import Task


logger = logging.getLogger(__name__)

# GLUE's diagnostic set has no training data: the MNLI model answers it (Wang et al. 2019, section 3.4).
DIAGNOSTICS = {"mnli": "ax"}


@dataclass(frozen=True)
class FineTuningRun:
    """The parts of a run.

    Attributes:
        task: Its row.
        checkpoint: Folder or Hub name that the model came from.
        trainer: Ready to train or to predict, with the task's kind.
        test_splits: Encoded test splits by name, where they are wanted.
    """

    task: Task
    checkpoint: str
    trainer: FineTuningTrainer
    test_splits: Mapping[str, EncodedSplit]


def prepare_run(settings: TaskArguments, args: FineTuningArguments, *, for_training: bool = True) -> FineTuningRun:
    """Load checkpoint and data and join the parts; mistakes are found before anything is trained.

    Args:
        settings: Task, data, model; as `check_access` leaves them.
        args: How it is trained; do_predict also loads the test splits.
        for_training: False: the checkpoint is measured as it is, and must have the task's head.
    """
    task = load_task(settings)
    assert settings.model_name_or_path is not None
    kind_class = KIND_CLASSES[task.kind]
    tokenizer = open_tokenizer(settings.model_name_or_path)
    splits = _load_splits(task, settings, args, for_training=for_training)
    model = open_model(
        settings.model_name_or_path, task, kind_class, tokenizer, settings, seed=args.seed, needs_head=not for_training
    )
    kind = kind_class(task, tokenizer, settings, model.config.label2id if task.labels else {})
    trainer = _make_trainer(model, kind, task, settings, args, splits)
    return FineTuningRun(task, settings.model_name_or_path, trainer, _encode_tests(task, kind, settings, args))


def _load_splits(
    task: Task, settings: TaskArguments, args: FineTuningArguments, *, for_training: bool
) -> dict[str, Any]:
    """Training and validation splits; test splits are loaded later, as they may be large."""
    data_dir = settings.data_dir
    splits = {}
    if for_training:
        splits[task.train_split] = load_split(
            task, task.train_split, data_dir=data_dir, max_examples=settings.max_train_examples, need_labels=True
        )
    for name in task.validation_splits:
        splits[name] = load_split(
            task, name, data_dir=data_dir, max_examples=settings.max_eval_examples, need_labels=True
        )
    return splits


def _make_trainer(
    model: PreTrainedModel,
    kind: TaskKind,
    task: Task,
    settings: TaskArguments,
    args: FineTuningArguments,
    splits: Mapping[str, Any],
) -> FineTuningTrainer:
    train = kind.encode(splits[task.train_split], for_training=True) if task.train_split in splits else None
    names = task.validation_splits
    validation = {
        suffix: kind.encode(splits[name], for_training=False)
        for suffix, name in zip(split_suffixes(names), names, strict=True)
    }
    if not validation and args.eval_strategy != "no":
        raise InputError(
            f"eval_strategy is '{args.eval_strategy.value}' but task {task.name} has no validation split; give it one, or "
            "--eval_strategy no"
        )
    _choose_best_metric(args, task, kind)
    return FineTuningTrainer(
        model,
        args,
        kind,
        train_dataset=train,
        eval_splits=validation,
        freeze_encoder=settings.freeze_encoder,
        processing_class=kind.tokenizer,
    )


def _choose_best_metric(args: FineTuningArguments, task: Task, kind: TaskKind) -> None:
    """Fill in the figure that chooses the best checkpoint, or see that the one given will be there."""
    wants_best = args.load_best_model_at_end or args.save_strategy == SaveStrategy.BEST
    if wants_best and args.eval_strategy == "no":
        raise InputError(
            "the best checkpoint is wanted, but nothing is measured during training: --eval_strategy epoch"
        )
    if args.wanted_best_metric is None:
        if wants_best:
            args.metric_for_best_model, args.greater_is_better = task.best_metric, True
        return
    known = figure_names(task.metrics, task.validation_splits, task.labels)
    if not kind.loss_counts_padding:
        known += [with_suffix(suffix, "loss") for suffix in split_suffixes(task.validation_splits)]
    if task.validation_splits and args.wanted_best_metric.removeprefix("eval_") not in known:
        raise InputError(f"metric_for_best_model is '{args.wanted_best_metric}'; allowed: {', '.join(known)}")


def _encode_tests(
    task: Task, kind: TaskKind, settings: TaskArguments, args: FineTuningArguments
) -> dict[str, EncodedSplit]:
    """The splits that --do_predict asks for, the diagnostic set of the task's model among them where it is at hand."""
    if not args.do_predict:
        return {}
    limit = settings.max_predict_examples
    tests = {name: load_split(task, name, data_dir=settings.data_dir, max_examples=limit) for name in task.test_splits}
    if task.name in DIAGNOSTICS:
        other = get_task(DIAGNOSTICS[task.name])
        try:
            tests[other.name] = load_split(other, other.test_splits[0], data_dir=settings.data_dir, max_examples=limit)
        except InputError as error:
            logger.warning("no predictions for %s: %s", other.name, error)
    return {name: kind.encode(split, for_training=False) for name, split in tests.items()}


def write_predictions(run: FineTuningRun, folder: Path) -> list[Path]:
    """Write the predictions of the last evaluation and of the test splits into a folder.

    Every process takes part in predicting, the main process writes. A model that has diverged, as the evaluation has
    said, predicts nothing.

    Returns:
        The files.
    """
    files: list[Path] = []
    kind = run.trainer.kind
    is_main = run.trainer.is_world_process_zero()
    has_diverged = False
    for encoded in run.trainer.eval_splits.values():
        split = encoded.split
        if split.name not in run.trainer.predictions:
            has_diverged = True
        elif is_main:
            with saving(folder):
                files += kind.write(folder, split.name, split.examples, run.trainer.predictions[split.name])
    for name, encoded in ({} if has_diverged else run.test_splits).items():
        predictions = run.trainer.predict_split(encoded)
        if is_main:
            with saving(folder):
                files += kind.write(folder, name, encoded.split.examples, predictions)
    if is_main:
        write_task_file(folder / TASK_FILE, run.task)
    return files


def read_by(settings: TaskArguments) -> dict[str, str | None]:
    """Setting -> file or folder that a run reads."""
    return {name: getattr(settings, name) for name in ("model_name_or_path", "data_dir", "task_file")}


def describe_data(run: FineTuningRun) -> dict[str, Any]:
    """What all_results.json says of the data: examples a split, beside those published, and what tells them from others."""
    encoded = {} if run.trainer.train_dataset is None else {"train": run.trainer.train_dataset}
    encoded |= {item.split.name: item for item in run.trainer.eval_splits.values()} | dict(run.test_splits)
    splits = {
        name: {
            "examples": len(item.split.examples),
            "features": len(item),
            # training questions whose answer cannot be found in its paragraph
            "left_out": len(getattr(item.details, "dropped", ())),
            "published": item.split.published_rows,
            "partial": item.split.is_partial,
            "source": name_of_source(item.split.source),
            "sha256": hash_of_examples(item.split.examples),
        }
        for name, item in encoded.items()
    }
    return {"task": run.task.name, "model": run.checkpoint, "splits": splits}


def describe_origin(run: FineTuningRun) -> dict[str, Any]:
    """What all_results.json of a training run says of where it comes from: `describe_data`, and the checkpoint."""
    return describe_data(run) | {"base_model": describe_checkpoint(run.checkpoint, run.trainer.model.config)}
