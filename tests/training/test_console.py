"""The lines that a run prints: what is in them, and that a run prints these and no dictionaries."""

import pytest

from bert_recipes.training.console import evaluation_line, time_left, training_line


def test_a_training_line_has_what_is_known():
    logs = {"loss": 7.8254, "mlm_loss": 7.136, "nsp_loss": 0.6893, "grad_norm": 0.894, "learning_rate": 8.96e-4}
    line = training_line(
        logs | {"tokens_per_second": 58760.0, "mfu": 0.183, "hours_left": 0.5, "epoch": 0.1}, 500, 8000
    )
    assert line == (
        "step   500/8,000  loss 7.825  masked-LM 7.136  next-sentence 0.689  gradient 0.89  rate 9.0e-04  tokens/s 58,760  "
        "MFU 18%  30 min left"
    )
    assert training_line({"loss": 1.0, "data_wait_share": 0.2}, 9, 9) == "step 9/9  loss 1.000  waiting for data 20%"


def test_an_evaluation_line_has_the_metrics_and_nothing_about_the_measuring():
    logs = {
        "eval_accuracy": 0.857,
        "eval_loss": 0.3,
        "eval_runtime": 2.0,
        "eval_samples_per_second": 9.0,
        "epoch": 1.0,
    }
    assert evaluation_line(logs, 12, 200) == "step  12/200  held out: accuracy 85.7%"
    logs = {
        "eval_mlm_loss": 4.057,
        "eval_unigram_loss": 6.17,
        "eval_nsp_accuracy": 0.822,
        "eval_majority_accuracy": 0.54,
    }
    assert evaluation_line(logs, 8, 8) == "step 8/8  held out: masked-LM loss 4.057  next-sentence accuracy 82.2%"
    assert evaluation_line({"eval_pearson": -0.1, "eval_f1": None}, 8, 8) == "step 8/8  held out: pearson -0.100"
    assert evaluation_line({"eval_f1": 0.5}, 0, 0) == "held out: f1 50.0%"


@pytest.mark.parametrize(("hours", "text"), [(0.001, "1 min left"), (0.5, "30 min left"), (7.42, "7.4 h left")])
def test_time_left(hours: float, text: str):
    assert time_left(hours) == text
