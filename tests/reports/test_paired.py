"""The paired bootstrap: the differences that the runs' own metrics have, and intervals as SciPy
finds them.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import read_task_file
from bert_recipes.finetuning.run import hash_of_examples
from bert_recipes.metrics.squad import squad_v2_scores
from bert_recipes.reports.compare import compare_runs, read_runs
from bert_recipes.reports.paired import join_answers, paired_bootstrap
from bert_recipes.tasks.sources import load_split


LABELS = ("yes", "no", "perhaps")
QUESTIONS = "question_answering"


def read_lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def write_lines(file: Path, lines: list[dict]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def predictions_of(folder: Path) -> list:
    return [line["prediction"] for line in read_lines(folder / "predictions_validation.jsonl")]


def right_prediction(kind, row):
    if kind == "sequence_classification":
        return LABELS[row["label"]]
    if kind == QUESTIONS:
        return row["answers"]["text"][0]
    return row["labels" if kind == "token_classification" else "label"]


@pytest.fixture
def beside(tiny_runs, tmp_path: Path):
    """Kind -> a run, and one with the same files whose first `number` predictions are right; gives
    their folders and the validation rows.
    """

    def make(kind: str, number: int) -> tuple[list[Path], list[dict]]:
        run, better = tiny_runs(kind), tmp_path / "better"
        shutil.copytree(run, better)
        rows = read_lines(run.parent / "data" / "validation.jsonl")
        file = better / "predictions_validation.jsonl"
        lines = read_lines(file)
        for line, row in zip(lines[:number], rows, strict=False):
            line["prediction"] = right_prediction(kind, row)
        write_lines(file, lines)
        return [run, better], rows

    return make


@pytest.mark.parametrize(
    "kind", ["sequence_classification", "token_classification", QUESTIONS, "multiple_choice"]
)
def test_the_difference_is_that_of_the_metrics_and_a_run_that_is_always_right_is_better(
    kind, beside
):
    folders, _ = beside(kind, 23)
    results = json.loads((folders[0] / "all_results.json").read_text())
    table = paired_bootstrap(read_runs(folders), None)
    assert table
    best = 100.0 if kind == QUESTIONS else 1.0
    for name, runs, difference, interval, share in table:
        assert runs == "better - run"
        assert float(difference) == pytest.approx(best - results[f"eval_{name}"], abs=1e-4)
        if float(difference):
            assert float(interval.split(" to ")[0]) > 0
            assert share == "100.0%"
    run = read_runs(folders)["run"]
    alike = paired_bootstrap({"run": run, "again": run}, None)
    assert {tuple(row[2:]) for row in alike} == {("+0.0000", "+0.0000 to +0.0000", "50.0%")}


def test_the_interval_is_that_of_scipy(beside):
    folders, rows = beside("sequence_classification", 5)
    table = {row[0]: row for row in paired_bootstrap(read_runs(folders), None)}
    right = [LABELS[row["label"]] for row in rows]
    first, second = (np.equal(predictions_of(folder), right).astype(float) for folder in folders)
    gains = second - first
    expected = stats.bootstrap(
        (gains,), np.mean, method="percentile", n_resamples=9999, random_state=1
    ).confidence_interval
    _, _, difference, interval, _ = table["accuracy"]
    ends = [float(end) for end in interval.split(" to ")]
    assert ends == pytest.approx(list(expected), abs=0.05)
    assert float(difference) == pytest.approx(gains.mean(), abs=1e-4)


def test_other_data_is_refused_and_the_comparison_says_why_it_has_no_bootstrap(beside, tmp_path):
    folders, rows = beside("sequence_classification", 5)
    other = tmp_path / "other"
    shutil.copytree(folders[0].parent / "data", other)
    write_lines(other / "validation.jsonl", rows[::-1])
    message = r"validation of .*other is not the data that .*run was measured on"
    with pytest.raises(InputError, match=message):
        paired_bootstrap(read_runs(folders), str(other))
    for data_dir, words in (
        (str(other), "No paired bootstrap: validation of"),
        (None, "| accuracy | better - run | +"),
    ):
        assert words in compare_runs(read_runs(folders), data_dir)["report.md"].decode()


def test_figures_of_squad_2_are_of_the_questions_with_and_of_those_without_an_answer(
    beside, tmp_path
):
    folders, rows = beside(QUESTIONS, 23)
    data = folders[0].parent / "data"
    copy_of_data = shutil.copytree(data, tmp_path / "data")
    rows[0]["answers"] = {"text": [], "answer_start": []}
    write_lines(copy_of_data / "validation.jsonl", rows)
    task_file = copy_of_data / "task.yaml"
    task_file.write_text(task_file.read_text().replace("metrics: squad", "metrics: squad_v2"))
    task = read_task_file(str(task_file))
    split = load_split(task, "validation", data_dir=None, max_examples=None, need_labels=True)
    gold = {row["id"]: row["answers"]["text"] for row in rows}
    pair, scores = [], []
    for folder in folders:
        copy = shutil.copytree(folder, tmp_path / "changed" / folder.name)
        results = json.loads((copy / "all_results.json").read_text())
        results["splits"]["validation"]["sha256"] = hash_of_examples(split.examples)
        (copy / "all_results.json").write_text(json.dumps(results))
        for name in ("run.yaml", "task.yaml"):
            text = (copy / name).read_text().replace(str(data), str(copy_of_data))
            (copy / name).write_text(text.replace("- squad", "- squad_v2"))
        pair.append(copy)
        answers = dict(zip(gold, predictions_of(folder), strict=True))
        scores.append(squad_v2_scores(gold, answers))
    table = {row[0]: float(row[2]) for row in paired_bootstrap(read_runs(pair), None)}
    assert {*table} == {"exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1"}
    for name, difference in table.items():
        assert difference == pytest.approx(scores[1][name] - scores[0][name], abs=1e-4)


def test_an_ensemble_answers_what_its_members_find_likeliest_in_the_mean(beside, tmp_path):
    (run, other), rows = beside(QUESTIONS, 0)
    alone = join_answers([run, run], tmp_path / "alone")
    results = json.loads((run / "all_results.json").read_text())
    for name in ("exact_match", "f1"):
        assert alone[f"eval_{name}"] == pytest.approx(results[f"eval_{name}"])
        assert alone["jackknife"][name] == pytest.approx(results["jackknife"][name], abs=1e-5)
    # The other member is sure of the right answers, and in one case less than the first member is
    # of its own.
    lists = json.loads((other / "nbest_predictions.json").read_text())
    expected = {row["id"]: row["answers"]["text"][0] for row in rows}
    sure = {name: [{"text": text, "probability": 1.0}] for name, text in expected.items()}
    first, likeliest = rows[0]["id"], lists[rows[0]["id"]][0]
    assert likeliest["text"] != expected[first]
    sure[first][0]["probability"] = likeliest["probability"] / 2
    expected[first] = likeliest["text"]
    (other / "nbest_predictions.json").write_text(json.dumps(sure))
    join_answers([run, other], tmp_path / "both")
    assert predictions_of(tmp_path / "both") == list(expected.values())
