"""Test by the paired bootstrap whether one fine-tuned model is better than another one.

Source: Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation"; percentile
intervals (Efron and Tibshirani 1993, section 13.3).
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.finetuning.kind import Prediction
from bert_recipes.finetuning.run import make_kind
from bert_recipes.metrics.squad import are_unspaced
from bert_recipes.reports.facts import RunFiles
from bert_recipes.reports.finetuning_facts import gold_texts, score_answer
from bert_recipes.reports.page import format_interval, words_of
from bert_recipes.run_folder import TASK_FILE
from bert_recipes.tasks.examples import hash_of_examples
from bert_recipes.tasks.sources import load_split
from bert_recipes.tasks.task import Task, figure_names
from bert_recipes.tasks.task_file import read_task_file
from bert_recipes.tokenization.loading import load_tokenizer


RESAMPLES = 1000
BOOTSTRAP_HEADS = [
    "metric",
    "runs",
    "difference",
    "95% interval",
    "resamples in which it is better",
]

# Numbers of rows (N,) -> the metrics over them.
Scorer = Callable[[np.ndarray], Mapping[str, float]]


def paired_bootstrap(runs: Mapping[str, RunFiles], data_dir: str | None) -> list[list[str]]:
    """Return a row (`BOOTSTRAP_HEADS`) for each metric and run beside the first one.

    Raises `InputError` where the validation data of the runs is out of reach, or not what it was.

    Args:
        runs: By their names.
        data_dir: Folder of the validation data; None: where the runs had it.
    """
    names = list(runs)
    first = runs[names[0]]
    task = first.task
    assert task is not None

    table = []
    for split in task.validation_splits:
        scorers = [make_scorer(run, split, data_dir) for run in runs.values()]
        samples = _score_samples(scorers, first.results["splits"][split]["examples"])
        for metric in figure_names(task.metrics, [split], task.labels):
            words = words_of(metric)
            title = words if len(task.validation_splits) == 1 else f"{split}: {words}"
            for column in range(1, len(names)):
                differences = [_difference(sample, column, metric) for sample in samples]
                cells = _describe_differences(np.array(differences))
                if cells:
                    table.append([title, f"{names[column]} - {names[0]}", *cells])
    return table


def _score_samples(scorers: Sequence[Scorer], size: int) -> list[list[Mapping[str, float]]]:
    """Return the metrics of each run on the data, then on each of `RESAMPLES` resamples."""
    rng = np.random.default_rng(0)
    all_rows = np.arange(size)
    samples = [[score(all_rows) for score in scorers]]
    for _ in range(RESAMPLES):
        rows = rng.integers(0, size, size)
        samples.append([score(rows) for score in scorers])
    return samples


def _difference(sample: Sequence[Mapping[str, float]], column: int, metric: str) -> float:
    return sample[column].get(metric, math.nan) - sample[0].get(metric, math.nan)


def _describe_differences(differences: np.ndarray) -> list[str]:
    """Return the cells of a metric: difference, interval, share of the resamples that are better.

    Args:
        differences: float (1 + RESAMPLES,), the first one on the data itself. NaN where the metric
            is undefined; without a defined one there are no cells.
    """
    difference = differences[0]
    resampled = differences[1:]
    is_defined = np.isfinite(resampled)
    resampled = resampled[is_defined]
    if not math.isfinite(difference) or len(resampled) == 0:
        return []

    low, high = np.percentile(resampled, [2.5, 97.5])
    interval = format_interval((low, high))
    share_of_ties = np.mean(resampled == 0)
    share = np.mean(resampled > 0) + share_of_ties / 2
    return [f"{difference:+.4f}", interval, f"{share:.1%}"]


# Metrics of some rows


def make_scorer(run: RunFiles, split: str, data_dir: str | None) -> Scorer:
    """Return what computes the metrics of a run over some rows of a split.

    Args:
        run: A fine-tuning run.
        split: A validation split.
        data_dir: Folder of the data; None: where the run had it.
    """
    assert run.task is not None
    task, examples = _load_examples(run, run.task, split, data_dir)
    file = run.folder / f"predictions_{split}.jsonl"
    if not file.is_file():
        raise InputError(f"no {file}; a run that diverged, or came from the Hub, has none")
    # Not str.splitlines(), which also cuts where a prediction has U+2028.
    with file.open(encoding="utf-8") as lines:
        values = [json.loads(line)["prediction"] for line in lines]
    if task.kind == "question_answering":
        return _answer_scorer(task, examples, values)

    arguments = TaskArguments(task_file=str(run.folder / TASK_FILE))
    tokenizer = load_tokenizer(run.folder)
    kind = make_kind(task, tokenizer, arguments)

    predictions = []
    for example, value in zip(examples, values, strict=True):
        predictions.append(Prediction(example.idx, value))

    def score(rows: np.ndarray) -> Mapping[str, float]:
        return kind.score([examples[row] for row in rows], [predictions[row] for row in rows])

    return score


def _load_examples(
    run: RunFiles,
    task: Task,
    split: str,
    data_dir: str | None,
) -> tuple[Task, Sequence[Any]]:
    """Return the task with its data, and the examples that a run was measured on.

    Args:
        run: A fine-tuning run.
        task: The run's own copy, without the data.
        split: A validation split.
        data_dir: Folder of the data; None: where the run had it.
    """
    settings = run.settings
    data_dir = data_dir or settings.get("data_dir")
    task_file = settings.get("task_file")
    if task_file and Path(task_file).is_file():
        task = read_task_file(task_file, data_dir)
    limit = settings.get("max_eval_examples")
    loaded = load_split(
        task,
        split,
        data_dir=data_dir,
        max_examples=int(limit) if limit else None,
        need_labels=True,
    )
    if hash_of_examples(loaded.examples) != run.results["splits"][split]["sha256"]:
        raise InputError(
            f"{split} of {data_dir or task.name} is not the data that {run.folder} was measured on"
        )
    return task, loaded.examples


def _answer_scorer(task: Task, examples: Sequence[Any], answers: Sequence[str]) -> Scorer:
    """Return what averages the metrics of answers.

    Of SQuAD 2.0 some metrics are of the questions that have an answer, others of those that have
    none.

    Args:
        task: Of question answering.
        examples: With gold answers.
        answers: Predictions, in the order of the examples.
    """
    scores = []
    unspaced = are_unspaced(map(gold_texts, examples))
    for example, answer in zip(examples, answers, strict=True):
        scores.append(score_answer(task, example, answer, unspaced=unspaced))
    columns = {}
    for name in sorted(set().union(*scores)):
        columns[name] = np.array([score.get(name, math.nan) for score in scores])

    def score(rows: np.ndarray) -> Mapping[str, float]:
        return {name: float(np.nanmean(column[rows])) for name, column in columns.items()}

    return score
