"""An ensemble of question-answering runs answers what its members find likeliest together."""

import json
import shutil

import pytest
from ensembles import join_answers


def read_lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_an_ensemble_answers_what_its_members_find_likeliest_in_the_mean(tiny_runs, tmp_path):
    run = tiny_runs("question_answering")
    rows = read_lines(run.parent / "data" / "validation.jsonl")
    results = json.loads((run / "all_results.json").read_text())
    twice = join_answers([run, run], tmp_path / "twice")
    for name in ("exact_match", "f1"):
        assert twice[f"eval_{name}"] == pytest.approx(results[f"eval_{name}"])
        assert twice["jackknife"][name] == pytest.approx(results["jackknife"][name], abs=1e-5)

    # The other member is sure of the right answers, and in one case less than the first member is
    # of its own.
    expected = [row["answers"]["text"][0] for row in rows]
    probabilities = [1.0] * len(rows)
    likeliest = json.loads((run / "nbest_predictions.json").read_text())[rows[0]["id"]][0]
    assert likeliest["text"] != expected[0]
    probabilities[0] = likeliest["probability"] / 2

    lists = {}
    for row, text, probability in zip(rows, expected, probabilities, strict=True):
        lists[row["id"]] = [{"text": text, "probability": probability}]
    sure = tmp_path / "sure"
    shutil.copytree(run, sure)
    (sure / "nbest_predictions.json").write_text(json.dumps(lists))

    join_answers([run, sure], tmp_path / "both")
    lines = read_lines(tmp_path / "both" / "predictions_validation.jsonl")
    answers = [line["prediction"] for line in lines]
    assert answers == [likeliest["text"], *expected[1:]]
