"""A fine-tuning run: what is within reach, its parts, its predictions; measuring a checkpoint on a
task.
"""

import hashlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.trainer_utils import SaveStrategy

from bert_recipes.errors import InputError, saving
from bert_recipes.finetuning.arguments import (
    TASK_FILE,
    FineTuningArguments,
    ScoringArguments,
    TaskArguments,
    TeachingArguments,
    check_access,
    load_task,
)
from bert_recipes.finetuning.checkpoints import open_model, open_tokenizer
from bert_recipes.finetuning.distillation import choose_trainer
from bert_recipes.finetuning.kind import EncodedSplit, TaskKind, warn_of_unknown
from bert_recipes.finetuning.multiple_choice import MultipleChoice
from bert_recipes.finetuning.question_answering import QuestionAnswering
from bert_recipes.finetuning.sequence_classification import SequenceClassification
from bert_recipes.finetuning.token_classification import TokenClassification
from bert_recipes.finetuning.trainer import FineTuningTrainer
from bert_recipes.tasks.catalogue import get_task
from bert_recipes.tasks.examples import Example
from bert_recipes.tasks.sources import load_split
from bert_recipes.tasks.task import Task, figure_names, split_suffixes, with_suffix
from bert_recipes.tasks.task_file import write_task_file
from bert_recipes.training.run import describe_checkpoint
from bert_recipes.training.speed import describe_machine


logger = logging.getLogger(__name__)

KIND_CLASSES: dict[str, type[TaskKind]] = {
    "sequence_classification": SequenceClassification,
    "token_classification": TokenClassification,
    "question_answering": QuestionAnswering,
    "multiple_choice": MultipleChoice,
}


# GLUE's diagnostic set has no training data: the MNLI model answers it (Wang et al. 2019, section
# 3.4).
DIAGNOSTICS = {"mnli": "ax"}


@dataclass(frozen=True)
class FineTuningRun:
    """The parts of a run: the trainer is ready to train or to predict, test splits are encoded
    where they are wanted.
    """

    task: Task
    checkpoint: str
    trainer: FineTuningTrainer
    test_splits: Mapping[str, EncodedSplit]

    def is_measured(self, test_split: str) -> bool:
        """Tell whether a test split has labels, so that it is predicted where it is measured."""
        return any(item.split.name == test_split for item in self.trainer.test_splits.values())


def prepare_run(
    settings: TaskArguments,
    args: FineTuningArguments,
    teaching: TeachingArguments | None = None,
    *,
    for_training: bool = True,
    with_validation: bool = True,
) -> FineTuningRun:
    """Load checkpoint and data and join the parts; mistakes are found before anything is trained.

    Settings are as `check_access` leaves them. Not for training, the checkpoint must have the
    task's head.
    """
    task, name = load_task(settings), str(settings.model_name_or_path)
    if settings.context == "none" and task.kind != "multiple_choice":
        raise InputError(
            f"context is none, for choices without theirs; task {task.name} has no choices"
        )
    kind_class, teaching = KIND_CLASSES[task.kind], teaching or TeachingArguments()
    measures = with_validation and teaching.distil != "intermediate"
    validation_splits = task.validation_splits if measures else ()
    tokenizer = open_tokenizer(name)
    limits = {task.train_split: settings.max_train_examples} if for_training else {}
    limits |= dict.fromkeys(validation_splits, settings.max_eval_examples)
    splits = {
        split: load_split(
            task, split, data_dir=settings.data_dir, max_examples=limit, need_labels=True
        )
        for split, limit in limits.items()
    }
    model = open_model(
        name, task, kind_class, tokenizer, settings, seed=args.seed, needs_head=not for_training
    )
    kind = kind_class(task, tokenizer, settings, model.config.label2id if task.labels else {})
    train = kind.encode(splits[task.train_split], for_training=True) if for_training else None
    suffixes = split_suffixes(validation_splits)
    validation = {
        suffix: kind.encode(splits[split])
        for suffix, split in zip(suffixes, validation_splits, strict=True)
    }
    for encoded in [train] if train is not None else validation.values():
        warn_of_unknown(encoded, tokenizer)
    if teaching.distil == "intermediate" and (args.eval_strategy != "no" or args.do_predict):
        raise InputError(
            "distil is intermediate, which leaves the head as it is: give neither --eval_strategy "
            "nor --do_predict"
        )
    if not validation and args.eval_strategy != "no":
        raise InputError(
            f"eval_strategy is '{args.eval_strategy.value}' but task {task.name} has no "
            "validation split; give it one, or "
            "--eval_strategy no"
        )
    if for_training and not task.validation_splits:
        logger.warning(
            "task %s has no validation split: nothing is measured; name one in its `files`",
            task.name,
        )
    _choose_best_metric(args, task, kind)
    trainer = choose_trainer(teaching, settings, kind, args.seed)(
        model,
        args,
        kind,
        train_dataset=train,
        eval_splits=validation,
        freeze_encoder=settings.freeze_encoder,
        processing_class=tokenizer,
    )
    tests = _encode_tests(task, kind, settings) if args.do_predict else {}
    for suffix, split in zip(
        split_suffixes(task.test_splits, "test"), task.test_splits, strict=True
    ):
        if split in tests and tests[split].split.is_labelled:
            trainer.test_splits = {**trainer.test_splits, suffix: tests[split]}
    return FineTuningRun(task, name, trainer, tests)


def _choose_best_metric(args: FineTuningArguments, task: Task, kind: TaskKind) -> None:
    """Fill in the metric that chooses the best checkpoint, or see that the one given will be
    there.
    """
    wants_best = args.load_best_model_at_end or args.save_strategy == SaveStrategy.BEST
    if wants_best and args.eval_strategy == "no":
        raise InputError(
            "the best checkpoint is wanted, but no evaluation is made during training: "
            "--eval_strategy epoch"
        )
    if args.wanted_best_metric is None and wants_best:
        args.metric_for_best_model, args.greater_is_better = task.best_metric, True
    if args.wanted_best_metric is None or not task.validation_splits:
        return
    known = figure_names(task.metrics, task.validation_splits, task.labels)
    if not kind.loss_counts_padding:
        known += [with_suffix(suffix, "loss") for suffix in split_suffixes(task.validation_splits)]
    if args.wanted_best_metric.removeprefix("eval_") not in known:
        raise InputError(
            f"metric_for_best_model is '{args.wanted_best_metric}'; allowed: {', '.join(known)}"
        )


def _encode_tests(task: Task, kind: TaskKind, settings: TaskArguments) -> dict[str, EncodedSplit]:
    """Return the splits that --do_predict asks for, the diagnostic set of the task's model among
    them where it is at hand.
    """
    limit = settings.max_predict_examples
    if not task.test_splits:
        logger.warning("do_predict: task %s has no test split; nothing is predicted", task.name)
    tests = {
        name: load_split(task, name, data_dir=settings.data_dir, max_examples=limit)
        for name in task.test_splits
    }
    if task.name in DIAGNOSTICS:
        other = get_task(DIAGNOSTICS[task.name])
        try:
            tests[other.name] = load_split(
                other, other.test_splits[0], data_dir=settings.data_dir, max_examples=limit
            )
        except InputError as error:
            logger.warning("no predictions for %s: %s", other.name, error)
    for name, split in tests.items():
        if not split.is_labelled:
            logger.info(
                "test split %s has no labels: it is predicted, and cannot be measured", name
            )
    return {name: kind.encode(split) for name, split in tests.items()}


def write_predictions(run: FineTuningRun, folder: Path) -> list[Path]:
    """Write the predictions of the last evaluation and of the test splits into a folder; return the
    files.

    Every process takes part in predicting, the main process writes. A model that has diverged, as
    the evaluation has reported, predicts nothing.
    """
    trainer, files = run.trainer, list[Path]()
    encoded = {item.split.name: item for item in trainer.eval_splits.values()}
    predictions = dict(trainer.predictions)
    if encoded.keys() <= predictions.keys():
        for name, item in run.test_splits.items():
            if not run.is_measured(name):
                predictions[name] = trainer.predict_split(item)
    encoded |= run.test_splits
    if trainer.is_world_process_zero():
        with saving(folder):
            for name, predicted in predictions.items():
                files += trainer.kind.write(folder, name, encoded[name].split.examples, predicted)
        write_task_file(folder / TASK_FILE, run.task)
    return files


def read_by(settings: TaskArguments) -> dict[str, str | None]:
    """Return setting -> file or folder that a run reads."""
    return {
        name: getattr(settings, name) for name in ("model_name_or_path", "data_dir", "task_file")
    }


def describe_data(run: FineTuningRun) -> dict[str, Any]:
    """Return what all_results.json says of the data: examples a split, beside those published, and
    what tells them from others.
    """
    encoded = {} if run.trainer.train_dataset is None else {"train": run.trainer.train_dataset}
    encoded |= {item.split.name: item for item in run.trainer.eval_splits.values()} | dict(
        run.test_splits
    )
    splits = {
        name: {
            "examples": len(item.split.examples),
            "features": len(item),
            # training questions whose answer cannot be found in its paragraph, or in the
            # paragraph's words
            "left_out": item.split.num_left_out + len(getattr(item.details, "dropped", ())),
            "published": item.split.published_rows,
            "partial": item.split.is_partial,
            # Without the folders of this machine.
            "source": source
            if (source := item.split.source).startswith("Hub data set ")
            else Path(source).name,
            "sha256": hash_of_examples(item.split.examples),
        }
        for name, item in encoded.items()
    }
    return {"task": run.task.name, "model": run.checkpoint, "splits": splits}


def hash_of_examples(examples: Sequence[Example]) -> str:
    """Return the SHA-256 (hex) of examples as they were read: texts, labels and ids in their
    order.
    """
    digest = hashlib.sha256()
    for example in examples:
        digest.update(repr(example).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def describe_origin(run: FineTuningRun) -> dict[str, Any]:
    """Return what all_results.json of a training run says of where it comes from: `describe_data`,
    and the checkpoint.
    """
    return describe_data(run) | {
        "base_model": describe_checkpoint(run.checkpoint, run.trainer.model.config)
    }


def score_checkpoint(settings: ScoringArguments, args: FineTuningArguments) -> dict[str, Any]:
    """Measure a checkpoint on the validation or the test splits of a task; every process takes
    part.

    Metrics are named as in a training run's all_results.json. do_predict takes the test splits
    beside the validation splits.
    """
    task = load_task(settings)
    takes_validation = settings.split == "validation"
    if not (task.validation_splits if takes_validation else task.test_splits):
        raise InputError(
            f"task {task.name} has no {settings.split} split to measure on; recipes/predict.py "
            "predicts inputs"
        )
    if not takes_validation:
        args.do_predict = True
        settings.max_predict_examples = settings.max_predict_examples or settings.max_eval_examples
    check_access(
        settings, for_training=False, with_validation=takes_validation, with_tests=args.do_predict
    )

    run = prepare_run(settings, args, for_training=False, with_validation=takes_validation)
    if settings.predictions_dir is None and len(run.trainer.test_splits) < len(run.test_splits):
        raise InputError(
            f"the test split of task {task.name} has no labels to measure with; say with "
            "--predictions_dir where its "
            "predictions go"
        )
    results = describe_data(run) | run.trainer.measure_all()
    if settings.predictions_dir is not None:
        folder = Path(settings.predictions_dir)
        folder.mkdir(parents=True, exist_ok=True)
        write_predictions(run, folder)
    results.pop("epoch", None)  # nothing was trained
    return results | {"machine": describe_machine(), "date": time.strftime("%Y-%m-%d")}
