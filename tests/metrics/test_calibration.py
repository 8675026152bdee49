import numpy as np
import pytest

from bert_recipes.errors import InputError
from bert_recipes.metrics.calibration import expected_calibration_error, reliability_bins


def by_hand(probabilities, outcomes, num_bins):
    """The definition, bin by bin."""
    error = 0.0
    for number in range(num_bins):
        low, high = number / num_bins, (number + 1) / num_bins
        inside = [low < p <= high or (number == 0 and p == 0) for p in probabilities]
        if any(inside):
            accuracy = np.mean([o for o, i in zip(outcomes, inside, strict=True) if i])
            confidence = np.mean([p for p, i in zip(probabilities, inside, strict=True) if i])
            error += sum(inside) / len(outcomes) * abs(accuracy - confidence)
    return error


def test_the_error_is_that_of_the_definition():
    rng = np.random.default_rng(0)
    for _ in range(100):
        rows, num_bins = int(rng.integers(1, 200)), int(rng.choice([4, 8, 16]))  # edges without rounding
        probabilities = rng.random(rows) if rng.random() < 0.5 else rng.integers(0, 17, rows) / 16
        outcomes = rng.random(rows) < probabilities
        bins = reliability_bins(probabilities, outcomes, num_bins)
        assert sum(each.count for each in bins) == rows
        assert expected_calibration_error(bins) == pytest.approx(by_hand(probabilities, outcomes, num_bins))


def test_a_model_that_knows_how_often_it_is_right_has_none():
    outcomes = [True, True, True, False]
    assert expected_calibration_error(reliability_bins([0.75] * 4, outcomes)) == 0
    assert expected_calibration_error(reliability_bins([1.0] * 4, outcomes)) == 0.25
    assert expected_calibration_error(reliability_bins([0.0] * 4, outcomes)) == 0.75


def test_the_ends_belong_to_the_first_and_the_last_bin():
    bins = reliability_bins([0.0, 1.0, 1.0 + 1e-9], [False, True, True], 10)
    assert (bins[0].count, bins[-1].count) == (1, 2)


@pytest.mark.parametrize(
    ("probabilities", "outcomes"), [([], []), ([0.5], [True, False]), ([1.5], [True]), ([float("nan")], [True])]
)
def test_what_is_no_probability_is_refused(probabilities, outcomes):
    with pytest.raises(InputError):
        reliability_bins(probabilities, outcomes)
