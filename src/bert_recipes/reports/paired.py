"""Whether one fine-tuned model is better than another one on the same rows: the paired bootstrap.

Source: Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation"; percentile
intervals (Efron and Tibshirani 1993, section 13.3).
"""

import itertools
import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from bert_recipes.errors import InputError
from bert_recipes.files import atomic_dir, write_json
from bert_recipes.finetuning.arguments import TASK_FILE, TaskArguments
from bert_recipes.finetuning.kind import Prediction
from bert_recipes.finetuning.run import KIND_CLASSES, hash_of_examples
from bert_recipes.metrics.certainty import jackknife_intervals, jackknife_replicates
from bert_recipes.reports.facts import RunFiles, read_run, score_answer
from bert_recipes.tasks.examples import QuestionExample
from bert_recipes.tasks.sources import load_split
from bert_recipes.tasks.task import figure_names
from bert_recipes.tasks.task_file import read_task_file
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.training.resume import CONFIG_FILE, RESULTS_FILE


RESAMPLES = 1000
HEADS = ["metric", "runs", "difference", "95% interval", "resamples in which it is better"]


def paired_bootstrap(runs: Mapping[str, RunFiles], data_dir: str | None) -> list[list[str]]:
    """A row (`HEADS`) for each metric and run beside the first one.

    Raises `InputError` where the validation data of the runs is out of reach, or not what it was.
    """
    (first_name, first), *others = runs.items()
    task = first.task
    assert task is not None
    table = []
    for split in task.validation_splits:
        scorers = [_scorer(run, split, data_dir) for run in runs.values()]
        size, rng = first.results["splits"][split]["examples"], np.random.default_rng(0)
        draws = itertools.chain(
            [np.arange(size)], (rng.integers(0, size, size) for _ in range(RESAMPLES))
        )
        samples = [[score(rows) for score in scorers] for rows in draws]
        for name in figure_names(task.metrics, [split], task.labels):
            values = np.array([[each.get(name, math.nan) for each in sample] for sample in samples])
            differences = values[:, 1:] - values[:, :1]
            for (other, _), (real, *resampled) in zip(others, differences.T, strict=True):
                known = np.array(resampled)[np.isfinite(resampled)]
                if not math.isfinite(real) or not known.size:
                    continue
                low, high = np.percentile(known, [2.5, 97.5])
                title = name if len(task.validation_splits) == 1 else f"{split}: {name}"
                share = (known > 0).mean() + (known == 0).mean() / 2
                cells = (f"{real:+.4f}", f"{low:+.4f} to {high:+.4f}", f"{share:.1%}")
                table.append([title, f"{other} - {first_name}", *cells])
    return table


def join_answers(members: Sequence[Path], folder: Path) -> dict[str, Any]:
    """Make the run of an ensemble of question-answering runs, and return its metrics.

    The answer to a question is that of the greatest mean probability in the members' n-best lists.
    Devlin et al. 2019, section 4.2, do not say how their ensemble answers. Only the first
    validation split is answered.
    """
    first = read_run(members[0])
    assert first.task is not None
    split = first.task.validation_splits[0]
    lists = [
        json.loads((member / "nbest_predictions.json").read_text(encoding="utf-8"))
        for member in members
    ]
    with atomic_dir(folder, replace=True) as made:
        for name in (TASK_FILE, CONFIG_FILE):
            shutil.copy(members[0] / name, made)
        write_json(made / RESULTS_FILE, {"splits": {split: first.results["splits"][split]}})
        with (made / f"predictions_{split}.jsonl").open("w", encoding="utf-8") as file:
            for idx in lists[0]:
                shares: Counter[str] = Counter()
                for answer in itertools.chain.from_iterable(answers[idx] for answers in lists):
                    shares[answer["text"]] += answer["probability"]
                file.write(
                    json.dumps({"idx": idx, "prediction": shares.most_common(1)[0][0]}) + "\n"
                )
    score, size = _scorer(read_run(folder), split, None), first.results["splits"][split]["examples"]
    figures, replicates = (
        score(np.arange(size)),
        jackknife_replicates(lambda rows: score(np.array(rows)), size),
    )
    results: dict[str, Any] = {f"eval_{name}": value for name, value in figures.items()}
    return results | {
        "intervals": jackknife_intervals(figures, replicates),
        "jackknife": replicates,
    }


def _scorer(
    run: RunFiles, split: str, data_dir: str | None
) -> Callable[[np.ndarray], Mapping[str, float]]:
    """Numbers of rows -> the metrics of a run over them."""
    task, folder, settings = run.task, run.folder, run.settings
    assert task is not None
    file, limit, source = (
        settings.get(name) for name in ("task_file", "max_eval_examples", "data_dir")
    )
    source = data_dir or source
    if file and Path(file).is_file():
        task = read_task_file(file)  # whose data lies beside it
    examples = load_split(
        task, split, data_dir=source, max_examples=limit and int(limit), need_labels=True
    ).examples
    if hash_of_examples(examples) != run.results["splits"][split]["sha256"]:
        raise InputError(
            f"{split} of {source or task.name} is not the data that {folder} was measured on"
        )
    lines = (folder / f"predictions_{split}.jsonl").read_text(encoding="utf-8").splitlines()
    values = [json.loads(line)["prediction"] for line in lines]
    if task.kind == "question_answering":
        questions = cast(Sequence[QuestionExample], examples)
        pairs = zip(questions, values, strict=True)
        scores = [score_answer(task, question, value) for question, value in pairs]
        # Of SQuAD 2.0 some figures are of the questions that have an answer, others of those that
        # have none.
        names = sorted({name for each in scores for name in each})
        table = {name: np.array([each.get(name, math.nan) for each in scores]) for name in names}
        return lambda rows: {
            name: float(np.nanmean(column[rows])) for name, column in table.items()
        }
    numbers = {name: number for number, name in enumerate(task.labels)}
    arguments = TaskArguments(task_file=str(folder / TASK_FILE))
    kind = KIND_CLASSES[task.kind](task, load_tokenizer(folder), arguments, numbers)
    predictions = [
        Prediction(example.idx, value) for example, value in zip(examples, values, strict=True)
    ]
    return lambda rows: kind.score(
        [examples[row] for row in rows], [predictions[row] for row in rows]
    )
