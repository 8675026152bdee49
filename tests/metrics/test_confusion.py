import warnings

import numpy as np
import pytest

from bert_recipes.errors import InputError
from bert_recipes.metrics.confusion import class_scores, confusion_matrix


def test_counts_and_scores_are_those_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    for _ in range(60):
        classes, rows = int(rng.integers(1, 6)), int(rng.integers(1, 40))
        gold, said = rng.integers(0, classes, rows), rng.integers(0, classes, rows)
        matrix = confusion_matrix(said, gold, classes)
        names = list(range(classes))
        with warnings.catch_warnings():
            # It warns where one class only is there.
            warnings.simplefilter("ignore")
            assert (matrix == metrics.confusion_matrix(gold, said, labels=names)).all()
        expected = metrics.precision_recall_fscore_support(gold, said, labels=names, zero_division=0)
        found = [(score.precision, score.recall, score.f1, score.support) for score in class_scores(matrix)]
        assert np.allclose(np.array(found).T, expected)
        assert [score.predicted for score in class_scores(matrix)] == np.bincount(said, minlength=classes).tolist()


def test_rows_are_what_is_right():
    assert confusion_matrix([1, 1, 1], [0, 0, 1], 2).tolist() == [[0, 2], [0, 1]]


@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [([2], [0], "prediction 2; allowed are the classes 0 to 1"), ([0], [-1], "reference -1"), ([0], [0, 1], "shape")],
)
def test_what_is_no_class_is_refused(predictions, references, message):
    with pytest.raises(InputError, match=message):
        confusion_matrix(predictions, references, 2)
