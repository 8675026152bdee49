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


def test_accuracy_stands_beside_that_of_the_larger_class(report_of, finetuning_facts):
    score = finetuning_facts["splits"][0]["classes"][0]
    classes = [score | {"support": 4}, score | {"support": 12}]
    facts = finetuning_facts | {"splits": [finetuning_facts["splits"][0] | {"classes": classes}]}
    text, page = report_of(results={"task": "mine", "eval_accuracy": 0.8}, facts=facts, task=TASK)
    assert "| accuracy | 0.8000 |" in text
    assert "| accuracy of always saying the larger class (yardstick) | 0.7500 |" in text
    assert "always the larger class: 75.0%" in page


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
    assert "| f1 | 0.5000 |" in text
    assert "The run left no report.json" in page
