import warnings

import numpy as np
import pytest

from bert_recipes.errors import InputError
from bert_recipes.metrics.classification import compute


SINGLE = ("accuracy", "f1_macro", "f1_micro", "matthews_correlation")


def expected(name, predictions, references):
    """The figure of scikit-learn."""
    metrics = pytest.importorskip("sklearn.metrics")
    with warnings.catch_warnings():
        # It warns where one class only is there; the value is what counts here.
        warnings.simplefilter("ignore")
        if name in ("accuracy", "subset_accuracy"):
            return metrics.accuracy_score(references, predictions)
        if name == "matthews_correlation":
            return metrics.matthews_corrcoef(references, predictions)
        average = {"f1": "binary", "f1_macro": "macro", "f1_micro": "micro"}[name]
        return metrics.f1_score(references, predictions, average=average, zero_division=0)


def check(name, predictions, references):
    value = compute([name], predictions, references)[name]
    assert type(value) is float
    assert value == pytest.approx(expected(name, predictions, references), abs=1e-12), (predictions, references)


@pytest.mark.parametrize("name", ["f1", *SINGLE])
def test_two_classes_are_measured_as_scikit_learn_does_on_random_inputs(name):
    rng = np.random.default_rng(0)
    for _ in range(25):
        # Few rows and lopsided shares: one class only, on one side or on both, is frequent.
        rows, share, other_share = rng.integers(1, 30), rng.random() ** 3, rng.random() ** 3
        check(name, (rng.random(rows) < share).astype(int), (rng.random(rows) < other_share).astype(int))


@pytest.mark.parametrize("name", SINGLE)
def test_many_classes_are_measured_as_scikit_learn_does_on_random_inputs(name):
    """The classes of the two sides differ often: unknown labels are predicted, known ones never."""
    rng = np.random.default_rng(1)
    for _ in range(25):
        rows = rng.integers(1, 40)
        predictions = rng.integers(0, rng.integers(1, 8), rows)
        references = np.where(rng.random(rows) < 0.4, predictions, rng.integers(0, rng.integers(1, 8), rows) + 2)
        check(name, predictions, references)


@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize(
    ("predictions", "references"),
    [
        ([0], [0]),
        ([0], [3]),
        ([1, 1, 1], [1, 1, 1]),
        ([1, 1, 1], [0, 0, 0]),
        ([0, 1, 0], [1, 1, 1]),
        ([2, 2, 2], [0, 1, 2]),
        ([7, 7, 7], [0, 1, 2]),
        (["no", "yes", "maybe"], ["no", "yes", "yes"]),
        ([True, False], [True, True]),
        ([0.0, 1.0], [1, 1]),
    ],
)
def test_hard_inputs_are_measured_as_scikit_learn_does(name, predictions, references):
    check(name, predictions, references)


@pytest.mark.parametrize("name", ["f1_micro", "f1_macro", "subset_accuracy"])
def test_multi_label_rows_are_measured_as_scikit_learn_does_on_random_inputs(name):
    rng = np.random.default_rng(2)
    for _ in range(25):
        shape = (rng.integers(1, 20), rng.integers(2, 6))
        predictions, references = (rng.random(shape) < rng.random(shape[1]) ** 2 for _ in range(2))
        value = compute(["multi_label"], predictions, references)[name]
        assert value == pytest.approx(expected(name, predictions, references), abs=1e-12)


@pytest.mark.parametrize("predicted", [0, 1])
@pytest.mark.parametrize("there", [0, 1])
def test_multi_label_rows_that_are_all_alike_are_measured_as_scikit_learn_does(predicted, there):
    predictions, references = np.full((3, 4), predicted), np.full((3, 4), there)
    values = compute(["multi_label"], predictions, references)
    assert values == pytest.approx({name: expected(name, predictions, references) for name in values})
    assert values == dict.fromkeys(values, float(predicted == there == 1)) | {
        "subset_accuracy": float(predicted == there)
    }


def test_a_multi_label_task_of_one_class_is_measured_as_its_only_column():
    predictions, references = np.array([1, 0, 1, 1]), np.array([1, 1, 0, 1])
    values = compute(["multi_label"], predictions[:, None], references[:, None])
    f1 = compute(["f1"], predictions, references)["f1"]
    assert values == pytest.approx({"f1_micro": f1, "f1_macro": f1, "subset_accuracy": 0.5})


def test_matthews_correlation_survives_as_many_rows_as_qqp_has():
    """The product of the variances passes 2 ** 63 there."""
    rng = np.random.default_rng(3)
    references = rng.integers(0, 2, 400_000)
    check("matthews_correlation", np.where(rng.random(400_000) < 0.9, references, 1 - references), references)


def test_f1_is_that_of_class_1_whatever_the_order():
    assert compute(["f1"], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0])["f1"] == pytest.approx(0.5)
    assert compute(["f1"], [0, 0], [0, 0])["f1"] == 0.0
    assert compute(["f1"], [0, 0, 1, 1, 1], [0, 1, 0, 1, 1])["f1"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("values", [([0, 2], [0, 1]), ([0, 1], [2, 1]), (["0", "1"], ["0", "1"])])
def test_f1_of_other_classes_than_0_and_1_is_refused_naming_those_for_many(values):
    with pytest.raises(InputError, match=r"classes 0 and 1; take f1_macro or f1_micro"):
        compute(["f1"], *values)
