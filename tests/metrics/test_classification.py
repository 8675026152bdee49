"""Metrics by name: scikit-learn's and SciPy's figures, and what is refused or undefined."""

import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
from scipy import stats

from bert_recipes.errors import InputError
from bert_recipes.metrics.classification import METRIC_NAMES, compute


SINGLE = ("accuracy", "f1_macro", "f1_micro", "matthews_correlation")


def expected(name, predictions, references):
    """The figure of scikit-learn or SciPy."""
    from sklearn import metrics

    with warnings.catch_warnings():
        # They warn where one class only is there, or one number; the value is what counts here.
        warnings.simplefilter("ignore")
        if name in ("pearson", "spearmanr"):
            return float(
                {"pearson": stats.pearsonr, "spearmanr": stats.spearmanr}[name](
                    predictions, references
                )[0]
            )
        if name in ("accuracy", "subset_accuracy"):
            return metrics.accuracy_score(references, predictions)
        if name == "matthews_correlation":
            return metrics.matthews_corrcoef(references, predictions)
        average = {"f1": "binary", "f1_macro": "macro", "f1_micro": "micro"}[name]
        return metrics.f1_score(references, predictions, average=average, zero_division=0)


def check(name, predictions, references):
    value = compute([name], predictions, references)[name]
    assert type(value) is float
    assert value == pytest.approx(expected(name, predictions, references), abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("name", ["f1", *SINGLE])
def test_classes_are_measured_as_scikit_learn_does(name):
    """Few rows and lopsided shares: one class only, on one side or on both, is frequent."""
    rng = np.random.default_rng(0)
    for _ in range(25):
        classes = 2 if name == "f1" else rng.integers(2, 6)
        predictions, references = (
            (rng.random(rows) ** 3 * classes).astype(int)
            for rows in [rng.integers(1, 30)]
            for _ in range(2)
        )
        check(name, predictions, references)


@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize(
    ("predictions", "references"),
    [
        ([0], [3]),
        ([1, 1, 1], [1, 1, 1]),
        ([7, 7, 7], [0, 1, 2]),
        (["no", "yes", "maybe"], ["no", "yes", "yes"]),
        ([True, False], [True, True]),
        ([0.0, 1.0], [1, 1]),
    ],
)
def test_hard_inputs_are_measured_as_scikit_learn_does(name, predictions, references):
    check(name, predictions, references)


@pytest.mark.parametrize("columns", [2, 5])
def test_multi_label_rows_are_measured_as_scikit_learn_does(columns):
    rng = np.random.default_rng(2)
    for _ in range(25):
        predictions, references = (
            rng.random((rng.integers(6, 7), columns)) < rng.random(columns) ** 2 for _ in "pr"
        )
        values = compute(["multi_label"], predictions, references)
        wanted = {
            name: expected(name, predictions, references)
            for name in ("f1_micro", "f1_macro", "subset_accuracy")
        }
        assert values == pytest.approx(wanted, abs=1e-12)


def test_a_multi_label_task_of_one_class_is_measured_as_its_only_column():
    predictions, references = np.array([1, 0, 1, 1]), np.array([1, 1, 0, 1])
    values = compute(["multi_label"], predictions[:, None], references[:, None])
    assert values == pytest.approx({"f1_micro": 2 / 3, "f1_macro": 2 / 3, "subset_accuracy": 0.5})


def test_matthews_correlation_survives_as_many_rows_as_qqp_has():
    """The product of the variances passes 2 ** 63 there."""
    rng = np.random.default_rng(3)
    references = rng.integers(0, 2, 400_000)
    check(
        "matthews_correlation",
        np.where(rng.random(400_000) < 0.9, references, 1 - references),
        references,
    )


@pytest.mark.parametrize("values", [([0, 2], [0, 1]), ([0, 1], [2, 1]), (["0", "1"], ["0", "1"])])
def test_f1_of_other_classes_than_0_and_1_is_refused_naming_those_for_many(values):
    with pytest.raises(InputError, match=r"classes 0 and 1; take f1_macro or f1_micro"):
        compute(["f1"], *values)


# Correlations


@pytest.mark.parametrize("name", ["pearson", "spearmanr"])
def test_numbers_are_correlated_as_scipy_does(name):
    """With ties and constant sides among them, of which SciPy returns nan."""
    rng = np.random.default_rng(1)
    for _ in range(60):
        rows = rng.integers(2, 12)
        check(name, *(rng.integers(0, rng.integers(1, 5), rows) / 2 for _ in range(2)))
        references = rng.normal(2.5, 1.0, rows)
        check(name, rng.normal() * references + rng.normal(0.0, 1.0, rows), references)


@pytest.mark.parametrize("scale", [1e-200, 1e-8, 1e8, 1e200])
def test_the_size_of_scores_does_not_matter(scale):
    rng = np.random.default_rng(2)
    references = rng.normal(size=50)
    predictions = references + rng.normal(size=50)
    value = compute(["pearson"], predictions * scale, references)["pearson"]
    assert value == pytest.approx(expected("pearson", predictions, references), abs=1e-12)


@pytest.mark.parametrize("constant", [0.0, 3.7, 1 / 3, 1e300])
def test_a_constant_side_or_a_single_row_has_no_correlation(constant):
    """3.7: the mean of equal numbers is not always that number, and what is left over is not to be
    correlated.
    """
    same, varied = np.full(10, constant), np.arange(10.0)
    for sides in ((same, varied), (varied, same), (same, same), ([1.0], [2.0])):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert all(
                math.isnan(value) for value in compute(["pearson", "spearmanr"], *sides).values()
            )


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
    assert compute(["squad"], {"q": "x"}, {"q": ["x", "y"]}) == {"exact_match": 100.0, "f1": 100.0}
    assert compute(["squad_v2"], {"q": ""}, {"q": []})["NoAns_exact"] == 100.0
    tags = compute(["entities"], [["B-PER", "O"]], [["B-PER", "B-LOC"]])
    assert (tags["precision"], tags["recall"], tags["LOC_number"]) == (1.0, 0.5, 1)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("F1", "did you mean f1?"),
        ("matthews", "did you mean matthews_correlation?"),
        ("bleu", "unknown metric 'bleu': Allowed are accuracy, f1,"),
    ],
)
def test_an_unknown_metric_is_refused_with_the_nearest_name(name, hint):
    with pytest.raises(InputError) as error:
        compute(["accuracy", name], [1], [1])
    assert hint in str(error.value)


@pytest.mark.parametrize("name", METRIC_NAMES)
def test_every_metric_refuses_empty_input_and_different_lengths(name):
    with pytest.raises(InputError, match=r"shape|none of the|no word"):
        compute([name], {} if "squad" in name else [], {} if "squad" in name else [])
    if "squad" not in name:
        one, two = {"multi_label": ([[1]], [[1], [0]]), "entities": ([["O"]], [["O"], ["O"]])}.get(
            name, ([1], [1, 0])
        )
        with pytest.raises(InputError, match=r"shape|differ in the number"):
            compute([name], one, two)


@pytest.mark.parametrize("name", ["f1", *SINGLE])
def test_hidden_labels_are_refused(name):
    """GLUE's test files have the label -1 in every row."""
    with pytest.raises(InputError, match="a label is -1: the labels are hidden"):
        compute([name], [0, 1], [0, -1])


@pytest.mark.parametrize("values", [[1.0, math.nan], [math.inf, 2.0]])
def test_what_is_not_finite_is_refused(values):
    with pytest.raises(InputError, match="not finite"):
        compute(["pearson"], values, [-1.0, 2.0])


def test_metrics_need_no_heavy_package():
    code = (
        "import sys, bert_recipes.metrics.classification; "
        "print([m for m in ('torch', 'transformers', 'datasets', 'evaluate', 'sklearn', 'scipy') "
        "if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
