"""What a report says of a fine-tuned model's predictions, of every kind of task."""

import json

import numpy as np
import pytest

from bert_recipes.config import read_task_file
from bert_recipes.finetuning.kind import Prediction
from bert_recipes.finetuning.question_answering import AnswerPrediction
from bert_recipes.metrics.calibration import expected_calibration_error, reliability_bins
from bert_recipes.reports import finetuning_facts, label_facts
from bert_recipes.reports.finetuning_facts import split_facts
from bert_recipes.tasks.examples import Answer, ChoiceExample, QuestionExample, TaggedExample, TextExample
from bert_recipes.tasks.task import Task


KINDS = ("sequence_classification", "token_classification", "question_answering", "multiple_choice")


def facts_of(task, examples, predictions):
    facts = split_facts(task, "", "validation", examples, {"validation": predictions})
    json.dumps(facts, allow_nan=False)
    assert facts["examples"] == facts["looked_at"] == len(examples)
    return facts


def texts_task(**values):
    return Task(name="t", kind="sequence_classification", text_columns=("a", "b"), label_column="label", **values)


def of_class(task, number, share):
    """A prediction of class `number`."""
    others = (1 - share) / (len(task.labels) - 1)
    shares = {name: share if place == number else others for place, name in enumerate(task.labels)}
    return Prediction(idx=0, value=task.labels[number], probabilities=shares)


def test_classes():
    task = texts_task(labels=("x", "y", "z"))
    rng = np.random.default_rng(0)
    gold, said, shares = rng.integers(0, 3, 200), rng.integers(0, 3, 200), 0.4 + 0.6 * rng.random(200)
    examples = [
        TextExample(idx=row, text=f"text {row}", text_pair="q" * 900, label=int(gold[row])) for row in range(200)
    ]
    facts = facts_of(task, examples, [of_class(task, said[row], shares[row]) for row in range(200)])
    matrix = np.zeros((3, 3), int)
    np.add.at(matrix, (gold, said), 1)
    assert facts["confusion"] == matrix.tolist()
    assert [score["support"] for score in facts["classes"]] == matrix.sum(axis=1).tolist()
    expected = expected_calibration_error(reliability_bins(shares, gold == said))
    assert facts["calibration"]["expected_calibration_error"] == pytest.approx(expected)
    wrong = sorted((row for row in range(200) if gold[row] != said[row]), key=lambda row: -shares[row])[:12]
    assert [error["texts"][0] for error in facts["worst"]] == [["a", f"text {row}"] for row in wrong]
    assert [error["probability"] for error in facts["worst"]] == pytest.approx(shares[wrong].tolist())
    assert [(e["said"], e["truth"]) for e in facts["worst"]] == [("xyz"[said[row]], "xyz"[gold[row]]) for row in wrong]
    assert all(len(error["texts"][1][1]) < 520 for error in facts["worst"])


def test_a_model_without_errors_has_none():
    task = texts_task(labels=("x", "y"))
    examples = [TextExample(idx=0, text="a", label=1)]
    facts = facts_of(task, examples, [of_class(task, 1, 0.9)])
    assert facts["worst"] == []
    assert facts["confusion"] == [[0, 0], [0, 1]]


def test_of_many_classes_the_most_frequent_mistakes_are_listed():
    names = tuple(f"c{number}" for number in range(60))
    task = texts_task(labels=names)
    gold = [0] * 5 + [1] * 3 + [2] * 9
    said = [7] * 5 + [8] * 3 + [2] * 9
    examples = [TextExample(idx=0, text="t", label=number) for number in gold]
    facts = facts_of(task, examples, [of_class(task, number, 0.5) for number in said])
    assert "confusion" not in facts
    assert facts["mistakes"] == [["c0", "c7", 5], ["c1", "c8", 3]]
    assert len(facts["classes"]) == 60
    score = facts["classes"][1]
    assert (score["recall"], score["support"], score["predicted"]) == (0.0, 3, 0)
    assert (facts["classes"][2]["f1"], facts["classes"][7]["predicted"]) == (1.0, 5)


def test_very_many_classes_need_no_matrix():
    number = 50_000  # a matrix of them has 2,500,000,000 cells
    facts = label_facts.class_facts([f"c{place}" for place in range(number)], [0, 1, 1, 5], [0, 1, 7, 5])
    assert facts["mistakes"] == [["c1", "c7", 1]]
    assert facts["classes"][1]["recall"] == 0.5


def test_several_labels():
    task = texts_task(labels=("x", "y"), problem_type="multi_label_classification", metrics=("multi_label",))
    shares = [{"x": 0.9, "y": 0.2}, {"x": 0.1, "y": 0.6}, {"x": 0.99, "y": 0.4}]
    gold = [(0,), (0, 1), ()]
    examples = [TextExample(idx=n, text=f"t{n}", label=labels) for n, labels in enumerate(gold)]
    facts = facts_of(task, examples, [Prediction(idx=0, value=[], probabilities=each) for each in shares])
    assert [(s["support"], s["predicted"]) for s in facts["classes"]] == [(2, 2), (1, 1)]
    assert [s["f1"] for s in facts["classes"]] == [0.5, 1.0]
    assert sum(each["count"] for each in facts["calibration"]["bins"]) == 6
    first, second = facts["worst"]
    assert (first["texts"], first["said"], first["truth"], first["about"]) == ([["", "t2"]], "x", "none", "x")
    assert (second["said"], second["truth"], second["about"], second["probability"]) == ("y", "x, y", "x", 0.1)


def test_numbers():
    task = texts_task(problem_type="regression", metrics=("pearson",), label_range=(0.0, 5.0))
    examples = [TextExample(idx=n, text=f"t{n}", label=float(n)) for n in range(5)]
    facts = facts_of(task, examples, [Prediction(idx=0, value=value) for value in (0.5, 1.0, 2.0, 0.0, 4.0)])
    assert facts["mean_absolute_error"] == pytest.approx(0.7)
    assert facts["root_mean_squared_error"] == pytest.approx(np.sqrt((0.25 + 9) / 5))
    assert facts["error_of_the_mean"] == pytest.approx(1.2)
    assert facts["worst"][0] == {"texts": [["", "t3"]], "said": "0.000", "truth": "3.000"}
    assert facts["dots"][0] == [0, 1, 2, 3, 4]


def test_tags():
    task = Task(
        name="t",
        kind="token_classification",
        text_columns=("tokens",),
        label_column="labels",
        labels=("O", "B-X", "I-X"),
        metrics=("entities",),
    )
    long = tuple(f"w{n}" for n in range(60))
    examples = [
        TaggedExample(idx=0, tokens=("a", "b", "c"), labels=(1, 2, 0)),
        TaggedExample(idx=1, tokens=long, labels=(0,) * 60),
    ]
    predictions = [
        Prediction(idx=0, value=["B-X", "O", "B-X"], probabilities=[0.9, 0.8, 0.95]),
        Prediction(idx=1, value=["O"] * 30 + ["B-X"] + ["O"] * 29, probabilities=[0.99] * 60),
    ]
    facts = facts_of(task, examples, predictions)
    assert facts["words"] == 63
    assert np.array(facts["confusion"]).sum() == 63
    assert facts["confusion"] == [[59, 2, 0], [0, 1, 0], [1, 0, 0]]
    every = facts["entities"][-1]
    assert (every["type"], every["support"], every["predicted"], every["f1"]) == ("all", 1, 3, 0.0)
    first, second = facts["worst"]  # one of each sentence, the most confident first
    assert (first["word"], first["said"], first["truth"]) == ("w30", "B-X", "O")
    assert first["before"].startswith("... w16 ")
    assert first["after"].endswith(" w44 ...")
    assert (second["word"], second["before"], second["probability"]) == ("c", "a b", 0.95)


def question(number, answers, context="The tower was built in 1889 by Eiffel."):
    gold = tuple(Answer(text=text, answer_start=context.index(text)) for text in answers)
    return QuestionExample(idx=f"q{number}", question="When?", context=context, answers=gold)


def test_answers():
    task = Task(
        name="t", kind="question_answering", text_columns=("q", "c"), label_column="answers", metrics=("squad_v2",)
    )
    examples = [question(0, ["1889"]), question(1, ["1889"]), question(2, []), question(3, ["built in 1889"])]
    said = [("1889", 0.9), ("Eiffel", 0.8), ("tower", 0.95), ("in 1889", 0.4)]
    predictions = [AnswerPrediction(idx=f"q{n}", value=text, probabilities=p) for n, (text, p) in enumerate(said)]
    facts = facts_of(task, examples, predictions)
    assert facts["confusion"] == [[3, 0], [1, 0]]  # "no answer" was never said
    assert facts["f1_counts"] == [2, 0, 0, 0, 0, 0, 0, 0, 1, 1]
    assert [error["said"] for error in facts["worst"]] == ["tower", "Eiffel"]
    assert facts["worst"][0]["truth"] == "no answer"
    assert facts["worst"][1]["before"] == "The tower was built in "
    assert facts["worst"][1]["answer"] == "1889"
    one = Task(
        name="t", kind="question_answering", text_columns=("q", "c"), label_column="answers", metrics=("squad",)
    )
    assert "confusion" not in facts_of(one, examples[:2], predictions[:2])


def test_a_paragraph_without_spaces_is_cut_where_it_falls():
    context = "\u5854" * 600
    example = QuestionExample(
        idx="q", question="?", context=context, answers=(Answer(text=context[:3], answer_start=300),)
    )
    task = Task(
        name="t", kind="question_answering", text_columns=("q", "c"), label_column="answers", metrics=("squad",)
    )
    (error,) = facts_of(task, [example], [AnswerPrediction(idx="q", value="no", probabilities=0.5)])["worst"]
    assert error["before"] == "... " + context[:220]
    assert error["after"] == context[:220] + " ..."


def test_choices():
    task = Task(name="t", kind="multiple_choice", text_columns=("c",), choice_columns=("a", "b"), label_column="label")
    examples = [ChoiceExample(idx=n, context=f"c{n}", choices=("yes", "no"), label=n % 2) for n in range(3)]
    predictions = [Prediction(idx=n, value=0, probabilities=[0.7 + n / 10, 0.3 - n / 10]) for n in range(3)]
    facts = facts_of(task, examples, predictions)
    assert facts["confusion"] == [[2, 0], [1, 0]]
    (error,) = facts["worst"]
    assert (error["said"], error["truth"], error["probability"]) == ("yes", "no", pytest.approx(0.8))


def test_a_split_that_is_too_large_is_looked_at_in_part(monkeypatch):
    monkeypatch.setattr(finetuning_facts, "MOST_EXAMPLES", 10)
    task = texts_task(labels=("x", "y"))
    examples = [TextExample(idx=n, text=f"t{n}", label=n % 2) for n in range(1000)]
    found = split_facts(task, "", "v", examples, {"v": [of_class(task, 0, 0.9)] * 1000})
    assert (found["examples"], found["looked_at"]) == (1000, 10)
    assert np.array(found["confusion"]).sum() == 10


def test_a_split_whose_outputs_were_not_finite_is_said_to_be():
    examples = [TextExample(idx=0, text="t", label=0)]
    assert split_facts(texts_task(labels=("x",)), "", "v", examples, {})["looked_at"] == 0


# Runs


SECTIONS = {
    "sequence_classification": ("By class", "What was taken for what", "Can the probabilities be trusted?", "Worst"),
    "token_classification": ("By class", "What was taken for what", "Can the probabilities be trusted?", "Worst"),
    "question_answering": ("F1 of the answers", "Can the probabilities be trusted?"),
    "multiple_choice": ("By class", "What was taken for what", "Can the probabilities be trusted?", "Worst errors"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_every_kind_has_its_report(tiny_runs, kind):
    folder = tiny_runs(kind)
    facts = json.loads((folder / "report.json").read_text(), parse_constant=pytest.fail)
    lines = [json.loads(line) for line in (folder / "predictions_validation.jsonl").read_text().splitlines()]
    (split,) = facts["splits"]
    assert split["looked_at"] == split["examples"] == len(lines)
    assert facts["task"] == read_task_file(folder / "task.yaml").name
    page, text = (folder / "report.html").read_text(), (folder / "report.md").read_text()
    for title in SECTIONS[kind]:
        assert f"<h2>{title}" in page
        assert f"\n## {title}" in text
    assert 'aria-label="Reliability: expected calibration error' in page
    assert "Guo et al. 2017" in text


def test_probabilities_and_errors_of_a_run_are_those_of_its_predictions(tiny_runs):
    folder = tiny_runs("sequence_classification")
    facts = json.loads((folder / "report.json").read_text())["splits"][0]
    lines = [json.loads(line) for line in (folder / "predictions_validation.jsonl").read_text().splitlines()]
    rows = [json.loads(line) for line in (folder.parent / "data" / "validation.jsonl").read_text().splitlines()]
    wrong = [
        (line["probabilities"][line["prediction"]], row["first"])
        for line, row in zip(lines, rows, strict=True)
        if line["prediction"] != ("yes", "no", "perhaps")[row["label"]]
    ]
    surest = max(wrong)
    assert facts["worst"][0]["probability"] == pytest.approx(surest[0], abs=1e-6)
    assert facts["worst"][0]["texts"][0] == ["first", surest[1]]
    accuracy = json.loads((folder / "all_results.json").read_text())["eval_accuracy"]
    assert np.trace(facts["confusion"]) / len(rows) == pytest.approx(accuracy)


def test_a_text_is_cut_to_what_can_be_looked_at():
    assert label_facts.clip("a\n b " * 10) == ("a b " * 10).strip()
    assert label_facts.clip("x" * 900) == "x" * 500 + " ..."
