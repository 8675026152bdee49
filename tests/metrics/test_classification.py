import warnings

import numpy as np
import pytest

from bert_recipes.errors import InputError
from bert_recipes.metrics import classification


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
    value = getattr(classification, name)(predictions, references)
    assert type(value) is float
    assert value == pytest.approx(expected(name, predictions, references), abs=1e-12), (predictions, references)


@pytest.mark.parametrize("name", ["f1", *SINGLE])
def test_two_classes_are_measured_as_scikit_learn_does_on_random_inputs(name):
    rng = np.random.default_rng(0)
    for _ in range(600):
        # Few rows and lopsided shares: one class only, on one side or on both, is frequent.
        rows, share, other_share = rng.integers(1, 30), rng.random() ** 3, rng.random() ** 3
        check(name, (rng.random(rows) < share).astype(int), (rng.random(rows) < other_share).astype(int))


@pytest.mark.parametrize("name", SINGLE)
def test_many_classes_are_measured_as_scikit_learn_does_on_random_inputs(name):
    """The classes of the two sides differ often: unknown labels are predicted, known ones never."""
    rng = np.random.default_rng(1)
    for _ in range(600):
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
        ([-1, 0, 1], [0, 0, 1]),
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
    for _ in range(600):
        shape = (rng.integers(1, 20), rng.integers(2, 6))
        predictions, references = (rng.random(shape) < rng.random(shape[1]) ** 2 for _ in range(2))
        value = classification.multi_label(predictions, references)[name]
        assert value == pytest.approx(expected(name, predictions, references), abs=1e-12)


@pytest.mark.parametrize("predicted", [0, 1])
@pytest.mark.parametrize("there", [0, 1])
def test_multi_label_rows_that_are_all_alike_are_measured_as_scikit_learn_does(predicted, there):
    predictions, references = np.full((3, 4), predicted), np.full((3, 4), there)
    values = classification.multi_label(predictions, references)
    assert values == pytest.approx({name: expected(name, predictions, references) for name in values})
    assert values == dict.fromkeys(values, float(predicted == there == 1)) | {
        "subset_accuracy": float(predicted == there)
    }


def test_a_multi_label_task_of_one_class_is_measured_as_its_only_column():
    predictions, references = np.array([1, 0, 1, 1]), np.array([1, 1, 0, 1])
    values = classification.multi_label(predictions[:, None], references[:, None])
    f1 = classification.f1(predictions, references)
    assert values == pytest.approx({"f1_micro": f1, "f1_macro": f1, "subset_accuracy": 0.5})


def test_matthews_correlation_survives_as_many_rows_as_qqp_has():
    """The product of the variances passes 2 ** 63 there."""
    rng = np.random.default_rng(3)
    references = rng.integers(0, 2, 400_000)
    check("matthews_correlation", np.where(rng.random(400_000) < 0.9, references, 1 - references), references)


def test_f1_is_that_of_class_1_whatever_the_order():
    assert classification.f1([1, 1, 0, 0, 0], [1, 0, 1, 0, 0]) == pytest.approx(0.5)
    assert classification.f1([0, 0], [0, 0]) == 0.0
    assert classification.f1([0, 0, 1, 1, 1], [0, 1, 0, 1, 1]) == pytest.approx(2 / 3)


@pytest.mark.parametrize("values", [([0, 2], [0, 1]), ([0, 1], [2, 1]), (["0", "1"], ["0", "1"])])
def test_f1_of_other_classes_than_0_and_1_is_refused_naming_the_figures_for_many(values):
    with pytest.raises(InputError, match=r"classes 0 and 1; take f1_macro or f1_micro"):
        classification.f1(*values)


@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [
        ([], [], "at least one row"),
        (np.zeros((3, 0)), np.zeros((3, 0)), "at least one row"),
        ([0, 1], [0, 1, 1], r"differ in shape: \(2,\) and \(3,\)"),
        ([[0, 1]], [0], "differ in shape"),
        ([0, 1], ["no", "yes"], "like 0 cannot be compared with references like 'no'"),
        ([0.2, 0.8], [0, 1], "predictions hold values of type float64; .*argmax"),
        ([0, 1], [0, None], "references hold values of type NoneType, int"),
        ([[0, 1], [1]], [[0, 1], [1]], "rows of different length"),
        ([[0, 2]], [[0, 1]], r"predictions, row 0: \[0, 2\]; a multi-label row holds only 0 and 1"),
        ([[["x"]]], [[["x"]]], r"shape \(1, 1, 1\)"),
    ],
)
@pytest.mark.parametrize("name", ["accuracy", "f1_macro", "f1_micro"])
def test_what_cannot_be_measured_is_refused_in_one_line(name, predictions, references, message):
    with pytest.raises(InputError, match=message) as error:
        getattr(classification, name)(predictions, references)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["f1", "matthews_correlation"])
def test_figures_of_one_class_a_row_refuse_matrices(name):
    with pytest.raises(InputError, match=r"shape \(1, 2\), but this figure takes one class for every row"):
        getattr(classification, name)([[0, 1]], [[0, 1]])


def test_multi_label_refuses_one_class_a_row():
    with pytest.raises(InputError, match="takes a matrix"):
        classification.multi_label([0, 1], [0, 1])
