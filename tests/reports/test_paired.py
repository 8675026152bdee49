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
TOP = {"question_answering": 100.0}


def right_answer(kind, row):
    if kind == "sequence_classification":
        return LABELS[row["label"]]
    return {"token_classification": row.get("labels"), "multiple_choice": row.get("label")}.get(
        kind, row.get("answers", {}).get("text", [""])[0]
    )


@pytest.fixture
def beside(tiny_runs, tmp_path: Path):
    """Kind -> a run, and one with the same files whose first `number` predictions are right; gives
    both folders.
    """

    def make(kind: str, number: int) -> list[Path]:
        run, better = tiny_runs(kind), tmp_path / "better"
        shutil.copytree(run, better)
        rows = [
            json.loads(line)
            for line in (run.parent / "data" / "validation.jsonl").read_text().splitlines()
        ]
        file = better / "predictions_validation.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line, row in zip(lines[:number], rows, strict=False):
            line["prediction"] = right_answer(kind, row)
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return [run, better]

    return make


@pytest.mark.parametrize(
    "kind",
    ["sequence_classification", "token_classification", "question_answering", "multiple_choice"],
)
def test_the_difference_is_that_of_the_metrics_and_a_run_that_is_always_right_is_better(
    kind, beside
):
    folders = beside(kind, 23)
    results = json.loads((folders[0] / "all_results.json").read_text())
    table = paired_bootstrap(read_runs(folders), None)
    assert table
    for name, runs, difference, interval, share in table:
        assert runs == "better - run"
        assert float(difference) == pytest.approx(
            TOP.get(kind, 1.0) - results[f"eval_{name}"], abs=1e-4
        )
        if float(difference):
            assert float(interval.split(" to ")[0]) > 0
            assert share == "100.0%"
    run = read_runs(folders)["run"]
    alike = paired_bootstrap({"run": run, "again": run}, None)
    assert {tuple(row[2:]) for row in alike} == {("+0.0000", "+0.0000 to +0.0000", "50.0%")}


def test_the_interval_is_that_of_scipy(beside):
    folders = beside("sequence_classification", 5)
    found = next(row for row in paired_bootstrap(read_runs(folders), None) if row[0] == "accuracy")
    rows = [
        json.loads(line)
        for line in (folders[0].parent / "data" / "validation.jsonl").read_text().splitlines()
    ]
    right = []
    for folder in folders:
        lines = map(json.loads, (folder / "predictions_validation.jsonl").read_text().splitlines())
        right.append(
            [
                line["prediction"] == LABELS[row["label"]]
                for line, row in zip(lines, rows, strict=True)
            ]
        )
    gains = np.subtract(*np.array(right, float)[::-1])
    wanted = stats.bootstrap(
        (gains,), np.mean, method="percentile", n_resamples=9999, random_state=1
    ).confidence_interval
    low, high = map(float, found[3].split(" to "))
    assert (low, high) == pytest.approx(tuple(wanted), abs=0.05)
    assert float(found[2]) == pytest.approx(gains.mean(), abs=1e-4)


def test_other_data_is_refused_and_the_comparison_says_why_it_has_no_bootstrap(beside, tmp_path):
    folders = beside("sequence_classification", 5)
    other = tmp_path / "other"
    shutil.copytree(folders[0].parent / "data", other)
    lines = (other / "validation.jsonl").read_text().splitlines()
    (other / "validation.jsonl").write_text("\n".join(lines[::-1]) + "\n")
    with pytest.raises(
        InputError, match=r"validation of .*other is not the data that .*run was measured on"
    ):
        paired_bootstrap(read_runs(folders), str(other))
    assert "No paired bootstrap: validation of" in compare_runs(read_runs(folders), str(other))[1]
    assert "| accuracy | better - run | +" in compare_runs(read_runs(folders))[1]


def test_figures_of_squad_2_are_of_the_questions_with_and_of_those_without_an_answer(
    beside, tmp_path
):
    run, better = beside("question_answering", 23)
    shutil.copytree(run.parent / "data", tmp_path / "data")
    file, own = tmp_path / "data" / "validation.jsonl", tmp_path / "data" / "task.yaml"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[0]["answers"] = {"text": [], "answer_start": []}
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    own.write_text(own.read_text().replace("metrics: squad", "metrics: squad_v2"))
    examples = load_split(
        read_task_file(str(own)), "validation", data_dir=None, max_examples=None, need_labels=True
    )
    pair = []
    for folder in (run, better):
        copy = shutil.copytree(folder, tmp_path / "changed" / folder.name)
        results = json.loads((copy / "all_results.json").read_text())
        results["splits"]["validation"]["sha256"] = hash_of_examples(examples.examples)
        (copy / "all_results.json").write_text(json.dumps(results))
        for name in ("run.yaml", "task.yaml"):
            text = (
                (copy / name).read_text().replace(str(run.parent / "data"), str(tmp_path / "data"))
            )
            (copy / name).write_text(text.replace("- squad", "- squad_v2"))
        pair.append(copy)
    gold, whole = {row["id"]: row["answers"]["text"] for row in rows}, []
    for folder in pair:
        lines = map(json.loads, (folder / "predictions_validation.jsonl").read_text().splitlines())
        whole.append(squad_v2_scores(gold, {line["idx"]: line["prediction"] for line in lines}))
    table = {row[0]: float(row[2]) for row in paired_bootstrap(read_runs(pair), None)}
    assert {*table} == {"exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1"}
    assert table == pytest.approx(
        {name: whole[1][name] - whole[0][name] for name in table}, abs=1e-4
    )


def test_an_ensemble_answers_what_its_members_find_likeliest_in_the_mean(beside, tmp_path):
    run, other = beside("question_answering", 0)
    alone = join_answers([run, run], tmp_path / "alone")
    results = json.loads((run / "all_results.json").read_text())
    for name in ("exact_match", "f1"):
        assert alone[f"eval_{name}"] == pytest.approx(results[f"eval_{name}"])
        assert alone["jackknife"][name] == pytest.approx(results["jackknife"][name], abs=1e-5)
    # The other member is sure of the right answers, and gives them less than the first gives its
    # own in one case alone.
    rows = [
        json.loads(line)
        for line in (run.parent / "data" / "validation.jsonl").read_text().splitlines()
    ]
    lists = json.loads((other / "nbest_predictions.json").read_text())
    sure = {row["id"]: [{"text": row["answers"]["text"][0], "probability": 1.0}] for row in rows}
    first = rows[0]["id"]
    sure[first][0]["probability"] = lists[first][0]["probability"] / 2
    (other / "nbest_predictions.json").write_text(json.dumps(sure))
    join_answers([run, other], tmp_path / "both")
    lines = (tmp_path / "both" / "predictions_validation.jsonl").read_text().splitlines()
    answers = {line["idx"]: line["prediction"] for line in map(json.loads, lines)}
    wanted = {row["id"]: row["answers"]["text"][0] for row in rows} | {
        first: lists[first][0]["text"]
    }
    assert lists[first][0]["text"] != rows[0]["answers"]["text"][0]
    assert answers == wanted
