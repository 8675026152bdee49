"""The `evaluate.Metric` classes, without the Hub (HF_HUB_OFFLINE is set): the same figures as the
pure functions.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bert_recipes.errors import InputError
from bert_recipes.metrics import squad
from bert_recipes.metrics.classification import compute


FILE = Path(squad.__file__).with_name("evaluate_metrics.py")
ANSWERS = {"q1": ["the fox", "fox"], "q2": ["1889"], "q3": []}
REFERENCES = [
    {"id": q, "answers": {"text": t, "answer_start": [0] * len(t)}} for q, t in ANSWERS.items()
]


@pytest.fixture
def compute_named(tmp_path):
    """Compute a metric by its configuration name; importing evaluate and datasets takes seconds."""
    from bert_recipes.metrics.evaluate_metrics import NamedMetric

    def compute_one(config, predictions, references, **settings):
        metric = NamedMetric(config, cache_dir=str(tmp_path))
        return metric.compute(predictions=predictions, references=references, **settings)

    return compute_one


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ("cola", ["matthews_correlation"]),
        ("mrpc", ["accuracy", "f1"]),
        ("mnli_mismatched", ["accuracy"]),
    ],
)
def test_glue_tasks_have_the_figures_of_glue(compute_named, config, names):
    sides = [0, 1, 1], [1, 1, 1]
    assert compute_named(config, *sides) == compute(names, *sides)


def test_stsb_is_measured_by_correlations(compute_named):
    sides = [0.5, 1.0, 3.0, 1.0], [1.0, 0.0, 2.5, 1.5]
    assert compute_named("stsb", *sides) == compute(["pearson", "spearmanr"], *sides)


def test_squad_takes_and_returns_what_evaluates_metric_does(compute_named):
    predictions = [
        {"id": "q1", "prediction_text": "A fox"},
        {"id": "q2", "prediction_text": "in 1889"},
    ]
    scores = compute_named("squad", predictions, REFERENCES[:2])
    assert scores == {"exact_match": 50.0, "f1": pytest.approx(100 * (1 + 2 / 3) / 2)}


def test_squad_v2_takes_and_returns_what_evaluates_metric_does(compute_named):
    texts = {"q1": "fox", "q2": "1890", "q3": "no"}
    odds = {"q1": 0.1, "q2": 0.3, "q3": 0.9}
    predictions = [
        {"id": q, "prediction_text": texts[q], "no_answer_probability": odds[q]} for q in texts
    ]
    scores = compute_named("squad_v2", predictions, REFERENCES)
    assert scores == squad.squad_v2_scores(ANSWERS, texts, odds, threshold=1.0)
    names = (
        "exact f1 total HasAns_exact HasAns_f1 HasAns_total NoAns_exact NoAns_f1 NoAns_total "
        "best_exact best_exact_thresh best_f1 best_f1_thresh"
    )
    assert list(scores) == names.split()
    scores = compute_named("squad_v2", predictions, REFERENCES, no_answer_threshold=0.5)
    assert (scores["NoAns_exact"], scores["HasAns_exact"]) == (100.0, 50.0)
    assert scores["best_exact_thresh"] == 0.1


def test_entities_are_reported_as_evaluates_seqeval_does(compute_named):
    predictions = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    references = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    assert compute_named("entities", predictions, references) == {
        "MISC": {"precision": 0.0, "recall": 0.0, "f1": 0.0, "number": 1},
        "PER": {"precision": 1.0, "recall": 1.0, "f1": 1.0, "number": 1},
        "overall_precision": 0.5,
        "overall_recall": 0.5,
        "overall_f1": 0.5,
        "overall_accuracy": 0.8,
    }


@pytest.mark.parametrize("convert", [np.array, lambda rows: np.array(rows, dtype=bool), list])
def test_multi_label_rows_may_be_lists_or_arrays(compute_named, convert):
    sides = [[1, 0, 1], [0, 0, 0]], [[1, 0, 0], [0, 1, 0]]
    assert compute_named("multi_label", *map(convert, sides)) == compute(["multi_label"], *sides)


def test_the_file_is_loadable_by_its_path():
    import evaluate

    path = str(FILE)
    predictions = [{"id": q, "prediction_text": "", "no_answer_probability": 0.0} for q in ANSWERS]
    scores = evaluate.load(path, "squad_v2").compute(predictions=predictions, references=REFERENCES)
    assert scores["NoAns_f1"] == 100.0
    combined = evaluate.combine([evaluate.load(path, "sst2"), evaluate.load(path, "f1_macro")])
    scores = combined.compute(predictions=[0, 1], references=[0, 1])
    assert scores == {"accuracy": 1.0, "f1_macro": 1.0}


def test_accuracy_takes_flags(compute_named):
    assert compute_named("accuracy", [[0, 1], [1, 1]], [[0, 1], [0, 1]]) == {"accuracy": 0.5}


def test_an_unknown_configuration_is_refused_with_those_that_there_are(compute_named):
    with pytest.raises(InputError, match=r"config_name 'mprc'; allowed are .*mrpc.*f1_macro"):
        compute_named("mprc", [0], [0])


@pytest.mark.slow
def test_two_processes_are_measured_together(tmp_path):
    code = """
import sys
from bert_recipes.metrics.evaluate_metrics import NamedMetric
rank = int(sys.argv[1])
settings = {"experiment_id": "two", "cache_dir": sys.argv[2]}
metric = NamedMetric("mrpc", num_process=2, process_id=rank, **settings)
metric.add_batch(predictions=[[0, 1], [1, 1, 0]][rank], references=[[0, 1], [0, 1, 1]][rank])
print(metric.compute())
"""
    command = [sys.executable, "-c", code]
    other = subprocess.Popen([*command, "1", str(tmp_path)], stdout=subprocess.PIPE, text=True)
    main = subprocess.run(
        [*command, "0", str(tmp_path)], capture_output=True, text=True, timeout=200
    )
    assert main.returncode == 0, main.stderr
    assert main.stdout.strip() == str(compute(["accuracy", "f1"], [0, 1, 1, 1, 0], [0, 1, 0, 1, 1]))
    assert other.communicate(timeout=200)[0].strip() == "None"
