import math

import pytest

from bert_recipes.monitoring import describe_progress, describe_spike


STUCK = {"eval_mlm_loss": 6.72, "eval_unigram_loss": 6.76}


def test_a_loss_at_the_unigram_level_is_said_in_words_with_advice():
    message = describe_progress(STUCK, step=5000, max_steps=10_000, warmup_steps=1000)
    assert "at step 5000" in message
    assert "6.72" in message
    assert "6.76" in message
    assert "learning rate" in message


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (9.76, "the model is worse than that"),  # far above
        (6.87, "the model is worse than that"),  # just above the margin
        (6.85, "nothing shows that the model has learned more than the frequencies"),
        (6.67, "nothing shows that the model has learned more than the frequencies"),
        (6.65, None),
        (2.0, None),
        (math.nan, "is not finite: training has diverged"),
        (math.inf, "is not finite: training has diverged"),
    ],
)
def test_what_is_said_fits_the_side_of_the_yardstick(loss, said):
    metrics = {"eval_mlm_loss": loss, "eval_unigram_loss": 6.76}
    message = describe_progress(metrics, step=5000, max_steps=10_000, warmup_steps=1000)
    assert (message is None) is (said is None)
    assert said is None or said in message
    assert message is None or "has learned the frequencies" not in message


@pytest.mark.parametrize(
    ("metrics", "step"),
    [
        ({"eval_mlm_loss": 6.5, "eval_unigram_loss": 6.76}, 5000),  # it learns
        (STUCK, 1500),  # too early to tell
        ({"eval_mlm_loss": 6.72}, 5000),  # no yardstick
    ],
)
def test_otherwise_nothing_is_said(metrics, step):
    assert describe_progress(metrics, step=step, max_steps=10_000, warmup_steps=1000) is None


FLAT = [3.0 + 0.01 * (-1) ** number for number in range(60)]


def test_a_loss_that_jumps_is_said_in_words_with_advice():
    message = describe_spike([*FLAT, 4.0], step=700)
    assert "at step 700 the training loss is 4.00" in message
    assert "3.00 on average" in message
    assert "learning rate" in message


@pytest.mark.parametrize(
    "losses",
    [
        FLAT,  # as before
        [*FLAT, 3.3],  # far in deviations, but small
        [number % 3 + 3.0 for number in range(60)],  # it always jumps
        [3.0, 9.0],  # too early to tell
        [9.0 - 0.1 * number for number in range(60)],  # it falls
        [*FLAT, float("nan")],  # said elsewhere
    ],
)
def test_otherwise_no_spike_is_seen(losses):
    assert describe_spike(losses, step=1) is None


def test_losses_that_are_not_finite_are_no_reason_to_stop():
    """A step whose gradient is not finite is left out, its loss stands in the log."""
    assert describe_spike([5.0] * 12 + [math.nan, math.inf, 5.1], 15) is None
    assert "at step 15" in describe_spike([5.0] * 12 + [math.nan, 9.0], 15)
