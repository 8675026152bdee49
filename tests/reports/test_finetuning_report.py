"""The report of a fine-tuning run says what its files say."""

import re

import pytest

from bert_recipes.reports.writing import write_report


TASK = "name: mine\nkind: sequence_classification\ntext_columns: [text]\nlabels: [a, b]\nfiles: {train: a.jsonl}\n"
HISTORY = [
    {"step": step, "loss": 1.0 / step, "eval_loss": 0.5, "eval_accuracy": 0.7, "learning_rate": 1e-5}
    for step in (1, 2)
]


@pytest.fixture
def report_of(make_run_folder):
    def texts(**parts):
        folder = make_run_folder(**parts)
        write_report(folder)
        return (folder / "report.md").read_text(), (folder / "report.html").read_text()

    return texts


CERTAINTY = {"intervals": {"accuracy": [0.58, 0.92]}, "baselines": {"accuracy": 0.75}}


def test_a_figure_stands_beside_its_interval_and_the_best_constant_answer(report_of, finetuning_facts):
    results = {"task": "mine", "eval_accuracy": 0.8, **CERTAINTY}
    text, page = report_of(results=results, facts=finetuning_facts, task=TASK)
    assert "| figure | value | 95% interval | constant answer |" in text
    assert "| accuracy | 0.8000 | 0.5800 to 0.9200 | 0.7500 |" in text
    assert "95% interval 58.0% to 92.0%; constant answer: 75.0%" in page


@pytest.mark.parametrize(
    ("accuracy", "interval", "baseline", "is_said"),
    [
        (0.8, [0.58, 0.92], 0.75, True),  # few rows
        (0.8, [0.76, 0.84], 0.75, False),
        (0.7, [0.66, 0.74], 0.75, True),  # below
        (0.75, [0.75, 0.75], 0.75, True),  # one class only
        (0.1, [0.0, 0.22], 0.0, False),  # "no answer" is never right here
        (0.0, None, 0.0, True),
        (0.1, [-0.1, 0.3], 0.0, True),  # a correlation
        (0.8, None, 0.75, False),  # no interval
        (0.75, None, 0.75, True),
        (0.8, [0.58, 0.92], None, False),  # an older run
        (None, None, 0.75, False),  # it diverged
    ],
)
def test_what_is_no_better_than_a_constant_answer_is_said(report_of, accuracy, interval, baseline, is_said):
    certainty = {"intervals": {"accuracy": interval} if interval else {}}
    certainty |= {"baselines": {"accuracy": baseline} if baseline is not None else {}}
    text, page = report_of(results={"task": "mine", "eval_accuracy": accuracy, **certainty}, task=TASK)
    said = "accuracy: nothing shows that the model does better than one constant answer."
    assert (f"**Attention:** {said}" in text) is is_said
    assert (said in page) is is_said


def test_curves_classes_confusion_reliability_and_errors_are_there(report_of, finetuning_facts):
    results = {"task": "mine", "eval_loss": 0.5, "eval_accuracy": 0.7, "train_steps": 2}
    text, page = report_of(results=results, history=HISTORY, facts=finetuning_facts)
    for title in (
        "Loss",
        "Figures on the validation data",
        "Learning rate",
        "Reliability: expected calibration error 0.138",
    ):
        assert f'aria-label="{title}"' in page
    assert "| no | 0.500 | 0.750 | 0.600 | 8 | 12 |" in text
    assert "| no | 4 | 4 |" in text
    assert "| 0.50 to 1.00 | 12 | 0.900 | 0.750 |" in text
    assert re.search(r"\| c \| .* \(0\.980\) \| no \|", text)


def test_a_split_without_predictions_is_said_to_be(report_of, finetuning_facts):
    split = {"name": "validation", "suffix": "", "examples": 16, "looked_at": 0}
    text, _ = report_of(results={"task": "mine"}, facts=finetuning_facts | {"splits": [split]})
    assert "**Attention:** validation: the model's outputs are not finite, nothing was predicted." in text
    assert "## By class" not in text


def test_a_run_without_facts_has_its_figures(report_of):
    text, page = report_of(results={"task": "mine", "eval_f1": 0.5}, history=HISTORY[:1])
    assert "| f1 | 0.5000 |  |  |" in text
    assert "The run left no report.json" in page
