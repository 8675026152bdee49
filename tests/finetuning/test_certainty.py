"""Baselines and intervals that a run leaves beside its figures."""

from dataclasses import replace

import numpy as np
import pytest

from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.finetuning.certainty import describe_certainty
from bert_recipes.finetuning.kind import EncodedSplit, Prediction
from bert_recipes.finetuning.question_answering import QuestionAnswering
from bert_recipes.finetuning.sequence_classification import SequenceClassification
from bert_recipes.finetuning.squad import AnswerPrediction
from bert_recipes.tasks.catalogue import get_task
from bert_recipes.tasks.examples import Answer, QuestionExample, Split, TextExample
from bert_recipes.tokenization.loading import load_tokenizer


MRPC = get_task("mrpc")


def certainty_of(kind, examples, predictions):
    split = Split(name="validation", examples=examples, source="made", num_rows=len(examples))
    encoded = EncodedSplit(split, [], np.zeros(0, dtype=np.int64))
    return describe_certainty(kind, {"": encoded}, {"validation": predictions})


@pytest.fixture(scope="module")
def certainty_of_texts(tiny_checkpoint):
    tokenizer = load_tokenizer(tiny_checkpoint)

    def certainty(task, labels, values):
        label2id = {name: number for number, name in enumerate(task.labels)}
        kind = SequenceClassification(task, tokenizer, TaskArguments(task="mrpc"), label2id)
        examples = [TextExample(idx=row, text="a", label=label) for row, label in enumerate(labels)]
        predictions = [Prediction(row, value) for row, value in enumerate(values)]
        return certainty_of(kind, examples, predictions)

    return certainty


def test_the_f1_of_mrpc_stands_beside_that_of_always_equivalent(certainty_of_texts):
    """279 of MRPC's 408 validation pairs are equivalent: F1 = 2 * 279 / (408 + 279)."""
    certainty = certainty_of_texts(MRPC, [1] * 279 + [0] * 129, ["equivalent"] * 408)
    f1 = 2 * 279 / (408 + 279)
    assert certainty["baselines"] == pytest.approx({"accuracy": 279 / 408, "f1": f1})
    low, high = certainty["intervals"]["f1"]
    assert low < f1 < high
    assert high - low == pytest.approx(0.054, abs=0.025)
    assert certainty["intervals"]["accuracy"] == pytest.approx([0.637, 0.727], abs=0.001)


def test_a_constant_answer_knows_no_correlation(certainty_of_texts):
    cola = get_task("cola")
    certainty = certainty_of_texts(cola, [1, 0] * 20, list(cola.labels) * 20)
    assert certainty["baselines"] == {"matthews_correlation": 0.0}
    rng = np.random.default_rng(0)
    gold = rng.normal(size=40)
    values = gold + rng.normal(size=40)
    certainty = certainty_of_texts(get_task("stsb"), gold.tolist(), values.tolist())
    assert certainty["baselines"] == {"pearson": 0.0, "spearmanr": 0.0}
    assert all(0 < low < high <= 1 for low, high in certainty["intervals"].values())


def test_several_labels_are_held_against_all_and_the_most_frequent(certainty_of_texts):
    task = replace(
        MRPC,
        labels=("a", "b", "c"),
        problem_type="multi_label_classification",
        metrics=("multi_label",),
    )
    labels = [(0,), (0,), (0, 1), (), (0,), (2,)]
    baselines = certainty_of_texts(task, labels, [["a"]] * 6)["baselines"]
    assert baselines["subset_accuracy"] == 0.5
    assert baselines["f1_micro"] == pytest.approx(2 * 4 / (6 + 6))


def test_where_no_row_moves_a_figure_only_a_share_has_an_interval(certainty_of_texts):
    certainty = certainty_of_texts(MRPC, [1] * 12, ["equivalent"] * 12)
    assert certainty["baselines"] == {"accuracy": 1.0, "f1": 1.0}
    assert certainty["intervals"] == {"accuracy": pytest.approx([0.757, 1.0], abs=0.001)}


def test_answers_are_held_against_no_answer(tiny_checkpoint):
    settings = TaskArguments(task="squad_v2")
    kind = QuestionAnswering(get_task("squad_v2"), load_tokenizer(tiny_checkpoint), settings, {})
    examples = []
    predictions = []
    for row in range(30):
        answers = (Answer(text="b", answer_start=2),) if row % 3 else ()
        example = QuestionExample(idx=str(row), question="q", context="a b", answers=answers)
        examples.append(example)
        predictions.append(AnswerPrediction(str(row), "b", best_text="b", null_odds=-1.0))
    certainty = certainty_of(kind, examples, predictions)
    assert certainty["baselines"]["f1"] == pytest.approx(100 / 3)  # every third question has none
    assert certainty["baselines"]["NoAns_f1"] == 100
    low, high = certainty["intervals"]["f1"]
    assert 40 < low < 200 / 3 < high < 95
