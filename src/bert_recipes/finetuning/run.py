"""Build a fine-tuning run, write its predictions, measure a checkpoint on a task.

The way of a run: `prepare_run`; `training.run.run_training` trains and measures it, and calls the
recipe's `finish`, which calls `write_predictions` and `reports.finish.finish_run`.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from bert_recipes.errors import InputError, saving
from bert_recipes.finetuning.arguments import (
    FineTuningArguments,
    ScoringArguments,
    TaskArguments,
    TeachingArguments,
    check_access,
    check_context,
)
from bert_recipes.finetuning.checkpoints import open_model, open_tokenizer
from bert_recipes.finetuning.distillation import choose_trainer
from bert_recipes.finetuning.kind import (
    EncodedSplit,
    NotFiniteError,
    Prediction,
    TaskKind,
    warn_of_cut_texts,
    warn_of_shared_rows,
    warn_of_unknown,
)
from bert_recipes.finetuning.multiple_choice import MultipleChoice
from bert_recipes.finetuning.question_answering import QuestionAnswering
from bert_recipes.finetuning.sequence_classification import (
    SequenceClassification,
    pairs_have_no_windows,
)
from bert_recipes.finetuning.token_classification import TokenClassification
from bert_recipes.finetuning.trainer import FineTuningTrainer
from bert_recipes.run_folder import TASK_FILE
from bert_recipes.tasks.catalogue import get_task
from bert_recipes.tasks.examples import Split, hash_of_examples
from bert_recipes.tasks.sources import check_source, load_split
from bert_recipes.tasks.task import Task, figure_names, metric_prefixes, with_prefix
from bert_recipes.tasks.task_file import log_found_labels, write_task_file
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer
from bert_recipes.training.optimization import SCHEDULERS_BY_METRIC
from bert_recipes.training.run import describe_checkpoint
from bert_recipes.training.speed import describe_machine


logger = logging.getLogger(__name__)

_KIND_CLASSES: dict[str, type[TaskKind]] = {
    "sequence_classification": SequenceClassification,
    "token_classification": TokenClassification,
    "question_answering": QuestionAnswering,
    "multiple_choice": MultipleChoice,
}


def make_kind(
    task: Task,
    tokenizer: OriginalBertTokenizer,
    settings: TaskArguments,
    label2id: Mapping[str, int] | None = None,
) -> TaskKind:
    """Return how the examples of a task become inputs, predictions and metrics.

    Args:
        task: Its kind decides.
        tokenizer: The checkpoint's.
        settings: Lengths, and what is read.
        label2id: The checkpoint's numbers of the classes; None: those of the task.
    """
    if label2id is None or not task.labels:
        label2id = {name: number for number, name in enumerate(task.labels)}
    return _KIND_CLASSES[task.kind](task, tokenizer, settings, label2id)


# GLUE's diagnostic set has no training data: the MNLI model answers it (Wang et al. 2019, section
# 3.4).
DIAGNOSTICS = {"mnli": "ax"}


@dataclass(frozen=True)
class FineTuningRun:
    """Hold a Trainer that is ready to train or to predict, and what --do_predict predicts.

    Attributes:
        encoded_tests: Name of the predictions -> test split, GLUE's diagnostic set among them.
    """

    task: Task
    checkpoint: str
    trainer: FineTuningTrainer
    encoded_tests: Mapping[str, EncodedSplit]

    def encoded_splits(self) -> dict[str, EncodedSplit]:
        """Return the validation and test splits by their names."""
        splits = {encoded.split.name: encoded for encoded in self.trainer.eval_splits.values()}
        splits.update(self.encoded_tests)
        return splits


def prepare_run(
    task_args: TaskArguments,
    args: FineTuningArguments,
    teaching_args: TeachingArguments | None = None,
    *,
    for_training: bool = True,
    with_validation: bool = True,
) -> FineTuningRun:
    """Load checkpoint and data and build the Trainer; find mistakes before anything is trained.

    Args:
        task_args: As `check_access` leaves them.
        args: How the run is trained.
        teaching_args: Who teaches; None: nobody.
        for_training: Load the training split; without it the checkpoint must have the task's head.
        with_validation: Load the validation splits.
    """
    task = task_args.loaded_task
    log_found_labels(task)
    if teaching_args is None:
        teaching_args = TeachingArguments()
    if teaching_args.distil == "intermediate":
        _check_measures_nothing(args)
        with_validation = False
    _check_settings(task, task_args, args)
    if for_training:
        _check_evaluations(task, args)
        _check_long_documents(task, task_args)

    # Checkpoint and data
    checkpoint = str(task_args.model_name_or_path)
    tokenizer = open_tokenizer(checkpoint)
    train_split = None
    if for_training:
        train_split = load_split(
            task,
            task.train_split,
            data_dir=task_args.data_dir,
            max_examples=task_args.max_train_examples,
            need_labels=True,
        )
    validation_splits = _load_validation(task, task_args) if with_validation else {}
    model = open_model(
        checkpoint,
        task,
        tokenizer,
        task_args,
        seed=args.seed,
        needs_head=not for_training,
    )

    # Model inputs
    kind = make_kind(task, tokenizer, task_args, model.config.label2id)
    train = None if train_split is None else kind.encode(train_split, for_training=True)
    eval_splits = {prefix: kind.encode(split) for prefix, split in validation_splits.items()}
    _warn_of_data(kind, train, eval_splits)

    _choose_best_metric(args, task, kind)
    trainer_class = choose_trainer(teaching_args, task_args, kind, args.seed)
    trainer = trainer_class(
        model,
        args,
        kind,
        train_dataset=train,
        eval_splits=eval_splits,
        freeze_encoder=task_args.freeze_encoder,
        processing_class=tokenizer,
    )
    trainer.checkpoint_files[TASK_FILE] = partial(write_task_file, task=task)
    encoded_tests = _encode_tests(task, trainer, task_args) if args.do_predict else {}
    return FineTuningRun(task, checkpoint, trainer, encoded_tests)


def _load_validation(task: Task, task_args: TaskArguments) -> dict[str, Split]:
    """Return the validation splits by their metric prefix."""
    splits = {}
    prefixes = metric_prefixes(task.validation_splits)
    for prefix, name in zip(prefixes, task.validation_splits, strict=True):
        splits[prefix] = load_split(
            task,
            name,
            data_dir=task_args.data_dir,
            max_examples=task_args.max_eval_examples,
            need_labels=True,
        )
    return splits


def _warn_of_data(
    kind: TaskKind, train: EncodedSplit | None, eval_splits: Mapping[str, EncodedSplit]
) -> None:
    """Warn of cut text, unknown characters, rows in two splits, and a run that measures nothing."""
    read_splits = list(eval_splits.values()) if train is None else [train]
    for encoded in read_splits:
        warn_of_unknown(encoded, kind.tokenizer)
        warn_of_cut_texts(encoded, kind)
    if train is None:
        return
    warn_of_shared_rows(train, eval_splits)
    if not kind.task.validation_splits:
        message = "task %s has no validation split: nothing is measured; name one in its `files`"
        logger.warning(message, kind.task.name)


def _check_measures_nothing(args: FineTuningArguments) -> None:
    """Refuse to measure a stage in which the head does not learn."""
    if args.eval_strategy != "no" or args.do_predict:
        raise InputError(
            "distil is intermediate, which leaves the head as it is: give neither --eval_strategy "
            "nor --do_predict"
        )


def _check_settings(task: Task, task_args: TaskArguments, args: FineTuningArguments) -> None:
    """Refuse settings that the task has no use for, and test splits that are not there."""
    check_context(task, task_args.context)
    if args.do_predict:
        check_source(task, task_args.data_dir, task.test_splits)


def _check_evaluations(task: Task, args: FineTuningArguments) -> None:
    if not task.validation_splits and args.eval_strategy != "no":
        raise InputError(
            f"eval_strategy is '{args.eval_strategy.value}' but task {task.name} has no "
            "validation split; give it one, or --eval_strategy no"
        )


def _check_long_documents(task: Task, task_args: TaskArguments) -> None:
    """Refuse `long_documents` for pairs before anything is read.

    A checkpoint that was trained with it is refused where a pair is too long.
    """
    is_cut = task_args.long_documents not in (None, "head")
    if is_cut and task.kind == "sequence_classification" and len(task.text_columns) > 1:
        raise InputError(pairs_have_no_windows(task, task_args.long_documents))


def _choose_best_metric(args: FineTuningArguments, task: Task, kind: TaskKind) -> None:
    """Set the metric that chooses the best checkpoint to the task's, or check the user's."""
    saves_best = args.load_best_model_at_end or args.save_strategy == SaveStrategy.BEST
    if saves_best and args.eval_strategy == "no":
        raise InputError(
            "the best checkpoint is wanted, but no evaluation is made during training: "
            "--eval_strategy epoch"
        )
    metric = args.wanted_best_metric
    if metric is None and (saves_best or args.lr_scheduler_type in SCHEDULERS_BY_METRIC):
        args.metric_for_best_model = task.best_metric
        args.greater_is_better = True
    if metric is None or not task.validation_splits:
        return
    allowed = figure_names(task.metrics, task.validation_splits, task.labels)
    if not kind.loss_counts_padding:
        prefixes = metric_prefixes(task.validation_splits)
        allowed += [with_prefix(prefix, "loss") for prefix in prefixes]
    if metric.removeprefix("eval_") not in allowed:
        raise InputError(f"metric_for_best_model is '{metric}'; allowed: {', '.join(allowed)}")


def _encode_tests(
    task: Task, trainer: FineTuningTrainer, task_args: TaskArguments
) -> dict[str, EncodedSplit]:
    """Return `FineTuningRun.encoded_tests`, with the diagnostic set where it can be read.

    Those with labels become the Trainer's `labelled_tests`.
    """
    if not task.test_splits:
        logger.warning("do_predict: task %s has no test split; nothing is predicted", task.name)
    read = partial(
        load_split, data_dir=task_args.data_dir, max_examples=task_args.max_predict_examples
    )
    encoded_splits = {}
    prefixes = metric_prefixes(task.test_splits, "test")
    for prefix, name in zip(prefixes, task.test_splits, strict=True):
        encoded = trainer.kind.encode(read(task, name))
        encoded_splits[name] = encoded
        if encoded.split.is_labelled:
            trainer.labelled_tests[prefix] = encoded
    if task.is_benchmark and task.name in DIAGNOSTICS:
        diagnostic = get_task(DIAGNOSTICS[task.name])
        try:
            split = read(diagnostic, diagnostic.test_splits[0])
        except InputError as error:
            logger.warning("no predictions for %s: %s", diagnostic.name, error)
        else:
            encoded_splits[diagnostic.name] = trainer.kind.encode(split)
    for name, encoded in encoded_splits.items():
        if not encoded.split.is_labelled:
            message = "test split %s has no labels: it is predicted, and cannot be measured"
            logger.info(message, name)
    return encoded_splits


def write_predictions(run: FineTuningRun, folder: Path) -> list[Path]:
    """Write the predictions of the last evaluation and of the test splits; return the files.

    Every process takes part in predicting, the main process writes. A model that has diverged
    predicts nothing; the run itself is finished.
    """
    trainer = run.trainer
    predictions = dict(trainer.predictions)
    validation_names = [encoded.split.name for encoded in trainer.eval_splits.values()]
    if all(name in predictions for name in validation_names):
        predictions.update(_predict_unlabelled(run))
    files: list[Path] = []
    if trainer.is_world_process_zero():
        encoded_splits = run.encoded_splits()
        with saving(folder):
            for name, predictions_of_split in predictions.items():
                examples = encoded_splits[name].split.examples
                files += trainer.kind.write(folder, name, examples, predictions_of_split)
        write_task_file(folder / TASK_FILE, run.task)
    return files


def _predict_unlabelled(run: FineTuningRun) -> dict[str, list[Prediction]]:
    """Return the predictions of the test splits that were not measured."""
    predictions = {}
    for name, encoded in run.encoded_tests.items():
        is_measured = encoded.split.is_labelled and name in run.task.test_splits
        if is_measured:
            continue
        try:
            predictions[name] = run.trainer.predict_split(encoded)
        except NotFiniteError as error:  # every process has the same outputs
            logger.warning("nothing is predicted: %s", error)
    return predictions


def files_read(task_args: TaskArguments, teaching_args: TeachingArguments) -> dict[str, str | None]:
    """Return the files and folders that a run reads, by their settings."""
    return {
        "model_name_or_path": task_args.model_name_or_path,
        "data_dir": task_args.data_dir,
        "task_file": task_args.task_file,
        "teacher": teaching_args.teacher,
    }


def describe_data(run: FineTuningRun) -> dict[str, Any]:
    """Return the task, the checkpoint and the sizes of the splits, for all_results.json."""
    splits = {}
    if run.trainer.train_dataset is not None:
        splits["train"] = _describe_split(run.trainer.train_dataset)
    for name, encoded in run.encoded_splits().items():
        splits[name] = _describe_split(encoded)
    return {"task": run.task.name, "model": run.checkpoint, "splits": splits}


def _describe_split(encoded: EncodedSplit) -> dict[str, Any]:
    """Return sizes and source of a split, and what identifies its examples."""
    split = encoded.split
    # Training questions whose answer is not in their paragraph, or not in the paragraph's words.
    num_left_out = split.num_left_out + len(getattr(encoded.details, "dropped", ()))
    is_of_hub = split.source.startswith("Hub data set ")
    return {
        "examples": len(split.examples),
        "features": len(encoded),
        "left_out": num_left_out,
        "published": split.published_rows,
        "partial": split.is_partial,
        # A file's name without the folders of this machine.
        "source": split.source if is_of_hub else Path(split.source).name,
        "sha256": hash_of_examples(split.examples),
    }


def describe_origin(run: FineTuningRun, teacher: str | None = None) -> dict[str, Any]:
    """Return `describe_data`, the checkpoint a run began with and its teacher, if it has one."""
    facts = describe_data(run)
    facts["base_model"] = describe_checkpoint(run.checkpoint, run.trainer.model.config)
    if teacher is not None:
        facts["teacher"] = describe_checkpoint(teacher)
    return facts


def score_checkpoint(settings: ScoringArguments, args: FineTuningArguments) -> dict[str, Any]:
    """Measure a checkpoint on the validation or the test splits of a task.

    Every process takes part.

    Args:
        settings: The checkpoint, the task, and the splits.
        args: do_predict adds the test splits to the validation splits.

    Returns:
        The metrics, named as in a training run's all_results.json, the sizes of the splits, the
        machine and the date.
    """
    task = settings.loaded_task
    with_validation = settings.split == "validation"
    splits = task.validation_splits if with_validation else task.test_splits
    if not splits:
        raise InputError(
            f"task {task.name} has no {settings.split} split to measure on; recipes/predict.py "
            "predicts inputs"
        )
    # The configuration may be that of a training run: here nothing is saved or chosen.
    args.eval_strategy = IntervalStrategy.NO
    args.save_strategy = SaveStrategy.NO
    args.load_best_model_at_end = False
    if not with_validation:
        args.do_predict = True
        if settings.max_predict_examples is None:
            settings.max_predict_examples = settings.max_eval_examples
    check_access(
        settings, for_training=False, with_validation=with_validation, with_tests=args.do_predict
    )
    run = prepare_run(settings, args, for_training=False, with_validation=with_validation)
    # The diagnostic set, which is no split of the task, never has labels.
    has_unlabelled = len(run.trainer.labelled_tests) < len(task.test_splits)
    if args.do_predict and has_unlabelled and settings.predictions_dir is None:
        raise InputError(
            f"the test split of task {task.name} has no labels to measure with; say with "
            "--predictions_dir where its predictions go"
        )
    results = describe_data(run)
    results.update(run.trainer.measure_all())
    if settings.predictions_dir is not None:
        folder = Path(settings.predictions_dir)
        folder.mkdir(parents=True, exist_ok=True)
        write_predictions(run, folder)
    results.pop("epoch", None)  # nothing was trained
    results["machine"] = describe_machine(args.device)
    results["date"] = time.strftime("%Y-%m-%d")
    return results
