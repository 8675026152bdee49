"""Join question-answering runs into an ensemble that answers together."""

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_recipes.files import atomic_dir, write_json
from bert_recipes.metrics.certainty import jackknife_intervals, jackknife_replicates
from bert_recipes.reports.facts import read_run
from bert_recipes.reports.paired import make_scorer
from bert_recipes.run_folder import CONFIG_FILE, RESULTS_FILE, TASK_FILE


def join_answers(members: Sequence[Path], folder: Path) -> dict[str, Any]:
    """Make the run of an ensemble of question-answering runs, and return its metrics.

    The answer to a question is that of the greatest mean probability in the members' n-best lists.
    Devlin et al. 2019, section 4.2, do not say how their ensemble answers. Only the first
    validation split is answered.

    Args:
        members: Folders of the runs.
        folder: Of the ensemble; replaced where it exists.
    """
    first = read_run(members[0])
    assert first.task is not None
    split = first.task.validation_splits[0]
    measured = first.results["splits"][split]
    answers_of_members = [
        json.loads((member / "nbest_predictions.json").read_text(encoding="utf-8"))
        for member in members
    ]

    with atomic_dir(folder, replace=True) as staged:
        for name in (TASK_FILE, CONFIG_FILE):
            shutil.copy(members[0] / name, staged)
        write_json(staged / RESULTS_FILE, {"splits": {split: measured}})
        with (staged / f"predictions_{split}.jsonl").open("w", encoding="utf-8") as file:
            for idx in answers_of_members[0]:
                answer = _likeliest([answers[idx] for answers in answers_of_members])
                file.write(json.dumps({"idx": idx, "prediction": answer}) + "\n")

    score = make_scorer(read_run(folder), split, None)
    size = measured["examples"]
    figures = score(np.arange(size))
    replicates = jackknife_replicates(lambda rows: score(np.array(rows)), size)
    results: dict[str, Any] = {f"eval_{name}": value for name, value in figures.items()}
    results["intervals"] = jackknife_intervals(figures, replicates)
    results["jackknife"] = replicates
    return results


def _likeliest(lists: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """Return the answer with the greatest sum of probabilities in some n-best lists."""
    sums: Counter[str] = Counter()
    for answers in lists:
        for answer in answers:
            sums[answer["text"]] += answer["probability"]
    return sums.most_common(1)[0][0]
