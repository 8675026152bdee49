"""The paired bootstrap: the differences that the runs' own metrics have, and intervals as SciPy
finds them.
"""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from bert_recipes.errors import InputError
from bert_recipes.metrics.squad import squad_scores, squad_v2_scores
from bert_recipes.reports.compare import compare_runs, read_runs
from bert_recipes.reports.page import words_of
from bert_recipes.reports.paired import _answer_scorer, paired_bootstrap
from bert_recipes.tasks.examples import Answer, QuestionExample
from bert_recipes.tasks.task import Task


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


@pytest.mark.parametrize("kind", ["sequence_classification", "token_classification", QUESTIONS])
def test_the_difference_is_that_of_the_metrics_and_a_run_that_is_always_right_is_better(
    kind, beside
):
    folders, _ = beside(kind, 23)
    results = json.loads((folders[0] / "all_results.json").read_text())
    measured = {name: value for name, value in results.items() if name.startswith("eval_")}
    results = {words_of(name): value for name, value in measured.items()}
    table = paired_bootstrap(read_runs(folders), None)
    assert table
    best = 100.0 if kind == QUESTIONS else 1.0

    for name, runs, difference, interval, share in table:
        assert runs == "better - run"
        assert float(difference) == pytest.approx(best - results[name], abs=1e-4)
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
        (gains,),
        np.mean,
        method="percentile",
        n_resamples=9999,
        random_state=1,
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

    (folders[1] / "predictions_validation.jsonl").unlink()
    text = compare_runs(read_runs(folders))["report.md"].decode()
    assert re.search(r"No paired bootstrap: no .*better/predictions_validation\.jsonl", text)


def test_an_answer_may_have_the_line_separators_of_unicode(beside):
    folders, _ = beside(QUESTIONS, 0)
    file = folders[1] / "predictions_validation.jsonl"
    lines = read_lines(file)
    lines[0]["prediction"] = "a\u2028b\u0085c"
    texts = [json.dumps(line, ensure_ascii=False) + "\n" for line in lines]
    file.write_text("".join(texts), encoding="utf-8")
    assert paired_bootstrap(read_runs(folders), None)


@pytest.mark.parametrize("metric", ["squad", "squad_v2"])
def test_answers_without_spaces_have_the_figures_of_the_run(metric):
    """A date alone does not show that its language has no spaces; the file does."""
    task = Task(
        name="t",
        kind="question_answering",
        text_columns=("question", "context"),
        label_column="answers",
        metrics=(metric,),
    )
    texts = {"q0": "北岛的港口", "q1": "12个月"}
    answers = {"q0": "北岛的", "q1": "12个月。"}
    examples = []
    for idx, text in texts.items():
        gold_answers = (Answer(text=text, answer_start=0),)
        example = QuestionExample(idx=idx, question="?", context="", answers=gold_answers)
        examples.append(example)
    figures = _answer_scorer(task, examples, list(answers.values()))(np.arange(2))
    score = squad_scores if metric == "squad" else squad_v2_scores
    assert figures["f1"] == score({idx: [text] for idx, text in texts.items()}, answers)["f1"]
    assert figures["f1"] == 87.5


def test_figures_of_squad_2_are_of_the_questions_with_and_of_those_without_an_answer():
    task = Task(
        name="t",
        kind="question_answering",
        text_columns=("question", "context"),
        label_column="answers",
        metrics=("squad_v2",),
    )
    gold = {
        "q0": ["a b"],
        "q1": [],
        "q2": ["c"],
        "q3": [],
    }
    answers = {
        "q0": "a b",
        "q1": "",
        "q2": "d",
        "q3": "x",
    }
    examples = []
    for idx, texts in gold.items():
        gold_answers = tuple(Answer(text=text, answer_start=0) for text in texts)
        example = QuestionExample(
            idx=idx,
            question="?",
            context="",
            answers=gold_answers,
        )
        examples.append(example)
    figures = _answer_scorer(task, examples, list(answers.values()))(np.arange(4))
    for name, value in squad_v2_scores(gold, answers).items():
        if not name.endswith("total"):
            assert figures[name] == pytest.approx(value), name
