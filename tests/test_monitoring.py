import pytest

from bert_recipes.monitoring import describe_progress


STUCK = {"eval_mlm_loss": 6.72, "eval_unigram_loss": 6.76}


def test_a_loss_at_the_unigram_level_is_said_in_words_with_advice():
    message = describe_progress(STUCK, step=5000, max_steps=10_000, warmup_steps=1000)
    assert "at step 5000" in message
    assert "6.72" in message
    assert "6.76" in message
    assert "learning rate" in message


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
