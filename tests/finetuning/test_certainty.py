"""Baselines and intervals that a run leaves beside its figures."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.finetuning.certainty import describe_certainty
from bert_recipes.finetuning.kind import EncodedSplit, Prediction
from bert_recipes.finetuning.question_answering import AnswerPrediction, QuestionAnswering
from bert_recipes.finetuning.sequence_classification import SequenceClassification
from bert_recipes.tasks.catalogue import get_task
from bert_recipes.tasks.examples import Answer, QuestionExample, Split, TextExample
from bert_recipes.tokenization.loading import load_tokenizer


TOP = {"question_answering": 100.0} | dict.fromkeys(
    ("sequence_classification", "token_classification", "multiple_choice"), 1.0
)


def certainty_of(kind, examples, predictions):
    split = Split(name="validation", examples=examples, source="made", num_rows=len(examples))
    encoded = EncodedSplit(split, [], np.zeros(0, dtype=np.int64))
    return describe_certainty(kind, {"": encoded}, {"validation": predictions})


def classified(folder, task, labels, values):
    kind = SequenceClassification(
        task,
        load_tokenizer(folder),
        TaskArguments(task="mrpc"),
        {name: n for n, name in enumerate(task.labels)},
    )
    examples = [TextExample(idx=row, text="a", label=label) for row, label in enumerate(labels)]
    return certainty_of(
        kind, examples, [Prediction(row, value) for row, value in enumerate(values)]
    )


def test_the_f1_of_mrpc_stands_beside_that_of_always_equivalent(tiny_checkpoint):
    """279 of MRPC's 408 validation pairs are equivalent: F1 = 2 * 279 / (408 + 279)."""
    labels = [1] * 279 + [0] * 129
    values = ["equivalent"] * 408
    found = classified(tiny_checkpoint, get_task("mrpc"), labels, values)
    assert found["baselines"] == pytest.approx({"accuracy": 279 / 408, "f1": 2 * 279 / (408 + 279)})
    low, high = found["intervals"]["f1"]
    assert low < 2 * 279 / (408 + 279) < high
    assert high - low == pytest.approx(0.054, abs=0.025)
    assert found["intervals"]["accuracy"] == pytest.approx([0.637, 0.727], abs=0.001)


def test_a_constant_answer_knows_no_correlation(tiny_checkpoint):
    cola, stsb = get_task("cola"), get_task("stsb")
    found = classified(tiny_checkpoint, cola, [1, 0] * 20, list(cola.labels) * 20)
    assert found["baselines"] == {"matthews_correlation": 0.0}
    rng = np.random.default_rng(0)
    gold = rng.normal(size=40)
    found = classified(
        tiny_checkpoint,
        replace(stsb, labels=()),
        gold.tolist(),
        (gold + rng.normal(size=40)).tolist(),
    )
    assert found["baselines"] == {"pearson": 0.0, "spearmanr": 0.0}
    assert all(0 < low < high <= 1 for low, high in found["intervals"].values())


def test_several_labels_are_held_against_all_and_the_most_frequent(tiny_checkpoint):
    multi = replace(
        get_task("mrpc"),
        labels=("a", "b", "c"),
        problem_type="multi_label_classification",
        metrics=("multi_label",),
    )
    labels = [(0,), (0,), (0, 1), (), (0,), (2,)]
    found = classified(tiny_checkpoint, multi, labels, [["a"]] * 6)
    assert found["baselines"]["subset_accuracy"] == 0.5
    assert found["baselines"]["f1_micro"] == pytest.approx(2 * 4 / (6 + 6))


def test_a_model_that_says_one_class_and_one_that_is_always_right(tiny_checkpoint):
    """Where no row moves a figure nothing is known of its spread; a share's interval is known also
    there.
    """
    found = classified(tiny_checkpoint, get_task("mrpc"), [1] * 12, ["equivalent"] * 12)
    assert found["baselines"] == {"accuracy": 1.0, "f1": 1.0}
    assert found["intervals"] == {"accuracy": pytest.approx([0.757, 1.0], abs=0.001)}


def test_answers_are_held_against_no_answer(tiny_checkpoint):
    task = get_task("squad_v2")
    kind = QuestionAnswering(
        task, load_tokenizer(tiny_checkpoint), TaskArguments(task="squad_v2"), {}
    )
    answers = [(Answer(text="b", answer_start=2),) if row % 3 else () for row in range(30)]
    examples = [
        QuestionExample(idx=str(row), question="q", context="a b", answers=each)
        for row, each in enumerate(answers)
    ]
    said = [AnswerPrediction(str(row), "b", best_text="b", null_odds=-1.0) for row in range(30)]
    found = certainty_of(kind, examples, said)
    assert found["baselines"]["f1"] == pytest.approx(100 / 3)  # every third question has none
    assert found["baselines"]["NoAns_f1"] == 100
    low, high = found["intervals"]["f1"]
    assert 40 < low < 200 / 3 < high < 95


@pytest.mark.parametrize(
    "kind",
    [
        "sequence_classification",
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in ("token_classification", "question_answering")
        ),
        pytest.param("multiple_choice", marks=pytest.mark.slow),
    ],
)
def test_a_run_leaves_them_in_its_results(tiny_runs, kind):
    folder = tiny_runs(kind)
    results = json.loads((folder / "all_results.json").read_text())
    rows = [
        json.loads(line)
        for line in (folder.parent / "data" / "validation.jsonl").read_text().splitlines()
    ]
    if kind == "question_answering":
        expected = {"f1": 0.0, "exact_match": 0.0}
    else:
        counts = Counter(label for row in rows for label in row.get("labels", [row.get("label")]))
        expected = {"accuracy": max(counts.values()) / counts.total()}
    for name, value in expected.items():
        assert results["baselines"][name] == pytest.approx(value)
        assert np.mean(results["jackknife"][name]) == pytest.approx(
            results[f"eval_{name}"], abs=0.02 * TOP[kind]
        )
        if name in results["intervals"]:
            low, high = results["intervals"][name]
            assert low <= results[f"eval_{name}"] <= high
