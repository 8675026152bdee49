import math
import subprocess
import sys

import numpy as np
import pytest

from bert_recipes.errors import InputError
from bert_recipes.metrics.classification import METRIC_NAMES, compute


def test_figures_stand_under_their_names_in_the_order_asked_for():
    scores = compute(("f1", "accuracy", "matthews_correlation"), [1, 1, 0, 0], [1, 0, 0, 0])
    assert list(scores) == ["f1", "accuracy", "matthews_correlation"]
    assert scores == pytest.approx({"f1": 2 / 3, "accuracy": 0.75, "matthews_correlation": 1 / math.sqrt(3)})
    assert compute(["spearmanr", "pearson"], [1.0, 2.0], [1.0, 2.0]) == pytest.approx(
        {"spearmanr": 1.0, "pearson": 1.0}
    )


def test_metrics_of_several_figures_give_them_under_their_own_names():
    assert compute(["multi_label"], np.eye(2, dtype=bool), np.eye(2, dtype=bool)) == {
        **{"f1_micro": 1.0, "f1_macro": 1.0, "subset_accuracy": 1.0}
    }
    assert compute(["squad"], {"q": "x"}, {"q": ["x", "y"]}) == {"exact_match": 100.0, "f1": 100.0}
    assert compute(["squad_v2"], {"q": ""}, {"q": []})["NoAns_exact"] == 100.0
    tags = compute(["entities"], [["B-PER", "O"]], [["B-PER", "B-LOC"]])
    assert (tags["precision"], tags["recall"], tags["LOC_number"]) == (1.0, 0.5, 1)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("acuracy", "did you mean accuracy?"),
        ("F1", "did you mean f1?"),
        ("matthews", "did you mean matthews_correlation?"),
        ("spearman", "did you mean spearmanr?"),
        ("bleu", "Allowed are accuracy, f1,"),
    ],
)
def test_an_unknown_metric_is_refused_with_the_nearest_name(name, hint):
    with pytest.raises(InputError) as error:
        compute(["accuracy", name], [1], [1])
    assert f"unknown metric {name!r}: " in str(error.value)
    assert hint in str(error.value)


@pytest.mark.parametrize("name", METRIC_NAMES)
def test_every_metric_refuses_empty_input_and_different_lengths(name):
    with pytest.raises(InputError, match=r"shape|none of the|no word"):
        compute([name], {} if "squad" in name else [], {} if "squad" in name else [])
    if "squad" not in name:
        one, two = {"multi_label": ([[1]], [[1], [0]]), "entities": ([["O"]], [["O"], ["O"]])}.get(name, ([1], [1, 0]))
        with pytest.raises(InputError, match=r"shape|differ in the number"):
            compute([name], one, two)


@pytest.mark.parametrize("name", ["accuracy", "f1", "f1_macro", "f1_micro", "matthews_correlation"])
def test_hidden_labels_are_refused(name):
    """GLUE's test files have the label -1 in every row."""
    with pytest.raises(InputError, match="a label is -1: the labels are hidden"):
        compute([name], [0, 1], [0, -1])


def test_negative_scores_are_no_hidden_labels():
    assert compute(["pearson"], [-1.0, 2.0], [-1.0, 2.0]) == pytest.approx({"pearson": 1.0})


def test_metrics_need_no_heavy_package():
    code = (
        "import sys, bert_recipes.metrics; "
        "print([m for m in ('torch', 'transformers', 'datasets', 'evaluate', 'sklearn', 'scipy') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("values", [[1.0, math.nan], [math.inf, 2.0]])
def test_what_is_not_finite_is_refused(values):
    with pytest.raises(InputError, match="not finite"):
        compute(["pearson"], values, [1.0, 2.0])
