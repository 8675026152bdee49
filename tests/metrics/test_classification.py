"""Metrics by name: scikit-learn's and SciPy's figures, and what is refused or undefined."""

import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
from scipy import stats

from bert_recipes.errors import InputError
from bert_recipes.metrics.classification import compute


SINGLE = ("accuracy", "f1_macro", "f1_micro", "matthews_correlation")


CORRELATIONS = {"pearson": stats.pearsonr, "spearmanr": stats.spearmanr}
AVERAGES = {"f1": "binary", "f1_macro": "macro", "f1_micro": "micro"}


def expected(name, predictions, references):
    """The figure of scikit-learn or SciPy."""
    from sklearn import metrics

    with warnings.catch_warnings():
        # They warn where one class only is there, or one number; the value is what counts here.
        warnings.simplefilter("ignore")
        if name in CORRELATIONS:
            return float(CORRELATIONS[name](predictions, references)[0])
        if name in ("accuracy", "subset_accuracy"):
            return metrics.accuracy_score(references, predictions)
        if name == "matthews_correlation":
            return metrics.matthews_corrcoef(references, predictions)
        return metrics.f1_score(references, predictions, average=AVERAGES[name], zero_division=0)


def check(name, predictions, references):
    value = compute([name], predictions, references)[name]
    assert type(value) is float
    assert value == pytest.approx(expected(name, predictions, references), abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("name", ["f1", *SINGLE])
def test_classes_are_measured_as_scikit_learn_does(name):
    """Few rows and lopsided shares: one class only, on one side or on both, is frequent."""
    rng = np.random.default_rng(0)
    for _ in range(25):
        num_classes = 2 if name == "f1" else rng.integers(2, 6)
        draws = rng.random((2, rng.integers(1, 30)))
        check(name, *(draws**3 * num_classes).astype(int))


@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize(
    ("predictions", "references"),
    [
        ([0], [3]),
        ([7, 7, 7], [0, 1, 2]),
        (["no", "yes", "maybe"], ["no", "yes", "yes"]),
        ([True, False], [True, True]),
        ([0.0, 1.0], [1, 1]),
    ],
)
def test_hard_inputs_are_measured_as_scikit_learn_does(name, predictions, references):
    check(name, predictions, references)


def test_multi_label_rows_are_measured_as_scikit_learn_does():
    rng = np.random.default_rng(2)
    for num_columns in [2, 5] * 10:
        predictions, references = rng.random((2, 6, num_columns)) < rng.random(num_columns) ** 2
        scores = compute(["multi_label"], predictions, references)
        assert set(scores) == {"f1_micro", "f1_macro", "subset_accuracy"}
        for name, score in scores.items():
            assert score == pytest.approx(expected(name, predictions, references), abs=1e-12)


def test_a_multi_label_task_of_one_class_is_measured_as_its_only_column():
    predictions = np.array([[1], [0], [1], [1]])
    references = np.array([[1], [1], [0], [1]])
    scores = compute(["multi_label"], predictions, references)
    assert scores == pytest.approx({"f1_micro": 2 / 3, "f1_macro": 2 / 3, "subset_accuracy": 0.5})


def test_matthews_correlation_survives_as_many_rows_as_qqp_has():
    """The product of the variances passes 2 ** 63 there."""
    rng = np.random.default_rng(3)
    references = rng.integers(0, 2, 400_000)
    predictions = np.where(rng.random(400_000) < 0.9, references, 1 - references)
    check("matthews_correlation", predictions, references)


@pytest.mark.parametrize("values", [([0, 2], [0, 1]), ([0, 1], [2, 1]), (["0", "1"], ["0", "1"])])
def test_f1_of_other_classes_than_0_and_1_is_refused_naming_those_for_many(values):
    with pytest.raises(InputError, match=r"classes 0 and 1; take f1_macro or f1_micro"):
        compute(["f1"], *values)


# Correlations


@pytest.mark.parametrize("name", CORRELATIONS)
def test_numbers_are_correlated_as_scipy_does(name):
    """With ties and constant sides among them, of which SciPy returns nan."""
    rng = np.random.default_rng(1)
    for _ in range(40):
        rows = rng.integers(2, 12)
        check(name, *rng.integers(0, rng.integers(1, 5), (2, rows)) / 2)
        references = rng.normal(2.5, 1.0, rows)
        check(name, rng.normal() * references + rng.normal(0.0, 1.0, rows), references)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_the_size_of_scores_does_not_matter(scale):
    rng = np.random.default_rng(2)
    references = rng.normal(size=50)
    predictions = references + rng.normal(size=50)
    value = compute(["pearson"], predictions * scale, references)["pearson"]
    assert value == pytest.approx(expected("pearson", predictions, references), abs=1e-12)


@pytest.mark.parametrize("constant", [0.0, 3.7, 1e300])
def test_a_constant_side_or_a_single_row_has_no_correlation(constant):
    """The mean of equal numbers (3.7) is not always that number."""
    same = np.full(10, constant)
    varied = np.arange(10.0)
    for sides in ((same, varied), (varied, same), (same, same), ([1.0], [2.0])):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            scores = compute(["pearson", "spearmanr"], *sides)
        assert np.isnan(list(scores.values())).all()


def test_no_correlation_passes_1():
    rng = np.random.default_rng(3)
    for _ in range(40):
        values = rng.normal(size=rng.integers(2, 20)) * 10.0 ** rng.integers(-5, 5)
        low, high = (compute(["pearson"], values, factor * values)["pearson"] for factor in (-3, 7))
        assert -1.0 <= low <= high <= 1.0


# By name


def test_figures_stand_under_their_names_in_the_order_asked_for():
    scores = compute(("f1", "accuracy", "matthews_correlation"), [1, 1, 0, 0], [1, 0, 0, 0])
    assert list(scores) == ["f1", "accuracy", "matthews_correlation"]
    assert scores == pytest.approx(
        {"f1": 2 / 3, "accuracy": 0.75, "matthews_correlation": 1 / math.sqrt(3)}
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("F1", "did you mean f1?"),
        ("matthews", "did you mean matthews_correlation?"),
        ("bleu", "unknown metric 'bleu': Allowed are accuracy, f1,"),
    ],
)
def test_an_unknown_metric_is_refused_with_the_nearest_name(name, hint):
    """And one that stands alone: its letters are no metrics."""
    with pytest.raises(InputError) as error:
        compute(["accuracy", name], [1], [1])
    assert hint in str(error.value)
    with pytest.raises(InputError, match=rf"give a list: \['{name}'\]"):
        compute(name, [1], [1])


@pytest.mark.parametrize(
    ("name", "predictions", "references", "message"),
    [
        ("accuracy", [], [], "accuracy: predictions of shape"),
        (
            "accuracy",
            [1],
            [1, 0],
            r"accuracy: predictions of shape \(1,\) for references of shape \(2,\)",
        ),
        ("multi_label", [[1]], [[1], [0]], "shape"),
        ("pearson", [1.0, math.nan], [-1.0, 2.0], "not finite"),
        ("pearson", [-1.0, 2.0], [math.inf, 2.0], "not finite"),
    ],
)
def test_what_cannot_be_compared_is_refused(name, predictions, references, message):
    with pytest.raises(InputError, match=message):
        compute([name], predictions, references)


@pytest.mark.parametrize("name", ["f1", *SINGLE])
def test_hidden_labels_are_refused(name):
    """GLUE's test files have the label -1 in every row."""
    with pytest.raises(InputError, match="a label is -1: the labels are hidden"):
        compute([name], [0, 1], [0, -1])


def test_metrics_need_no_heavy_package():
    heavy = ("torch", "transformers", "datasets", "evaluate", "sklearn", "scipy")
    code = (
        f"import sys, bert_recipes.metrics.classification; print(set({heavy}) & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "set()"
