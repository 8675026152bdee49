"""The lines that a run prints: what is in them, and that a run prints these and no dictionaries."""

from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerState

from bert_recipes.training import console
from bert_recipes.training.arguments import NO_STEP_LIMIT
from bert_recipes.training.console import (
    LogPrinter,
    evaluation_line,
    pace_line,
    training_line,
)


def test_a_training_line_has_what_is_known():
    logs = {
        "loss": 7.8254,
        "mlm_loss": 7.136,
        "nsp_loss": 0.6893,
        "grad_norm": 0.894,
        "learning_rate": 8.96e-4,
        "tokens_per_second": 58760.0,
        "mfu": 0.183,
        "hours_left": 0.5,
        "epoch": 0.1,
    }
    assert training_line(logs, 500, 8000) == (
        "step   500/8,000  loss 7.825  masked-LM 7.136  next-sentence 0.689  gradient 0.89  rate "
        "9.0e-04  tokens/s 58,760  "
        "MFU 18%  epoch 0.1  30 min left"
    )
    line = training_line({"loss": 1.0, "data_wait_share": 0.2}, 9, 9)
    assert line == "step 9/9  loss 1.000  waiting for data 20%"


@pytest.mark.parametrize(
    ("logs", "line"),
    [
        ({"eval_accuracy": 0.857, "eval_loss": 0.3, "eval_runtime": 2.0}, "accuracy 85.7%"),
        (
            {"eval_mlm_loss": 4.057, "eval_unigram_loss": 6.17, "eval_nsp_accuracy": 0.822},
            "masked-LM loss 4.057  next-sentence accuracy 82.2%",
        ),
        ({"eval_pearson": -0.1, "eval_f1": None, "epoch": 1.0}, "pearson -0.100"),
    ],
)
def test_an_evaluation_line_has_the_metrics_and_nothing_about_the_measuring(logs, line):
    assert evaluation_line(logs, 12, 200) == f"step  12/200  held out: {line}"
    assert evaluation_line(logs, 0, 0) == f"held out: {line}"


def make_trainer(step, max_steps, max_minutes=None, device="cpu", **attributes):
    """What the lines need of a Trainer whose data is 60 steps long."""
    defaults = {
        "args": SimpleNamespace(
            max_minutes=max_minutes, gradient_accumulation_steps=2, device=torch.device(device)
        ),
        "state": TrainerState(global_step=step, max_steps=max_steps, is_world_process_zero=True),
        "epochs_at": lambda steps: steps / 60,
        "num_resumed_steps": 0,
        "num_phases": 1,
    }
    return SimpleNamespace(**defaults | attributes)


@pytest.mark.parametrize(
    ("trainer", "seconds", "line"),
    [
        (
            make_trainer(2, 1_000_000),
            3.37,
            "step         2/1,000,000  a step takes 3.4 s: 1,000,000 steps take about 39.0 days, "
            "without evaluations (16,667 passes over the data)",
        ),
        (
            make_trainer(2, 100, num_phases=2, first_step=0, phase_end=90),
            3.37,
            "step   2/100  a step takes 3.4 s: 100 steps take about 6 min, without evaluations, "
            "if inputs of the second phase were as short as those of the first (1.5 passes over "
            "the data in this phase)",
        ),
        (
            make_trainer(30, NO_STEP_LIMIT, max_minutes=30.0),
            0.1,
            "step      30  a step takes 0.1 s: about 18,000 steps in 30 minutes (300 passes over "
            "the data)",
        ),
        (
            make_trainer(30, NO_STEP_LIMIT, max_minutes=30.0),
            21.23,
            "step      30  a step takes 21 s: about 85 steps in 30 minutes (1.4 passes over the "
            "data), which are few: the smallest models learn most in their first 3,000 "
            "(docs/books.md)",
        ),
        (
            make_trainer(571, 1100, num_resumed_steps=567),
            0.7,
            "step   571/1,100  a step takes 0.7 s: the 533 steps of this start take about 6 min "
            "(8.9 passes over the data)",
        ),
    ],
)
def test_the_pace_says_how_long_the_run_will_take(trainer, seconds, line):
    assert pace_line(trainer, seconds) == line


def printed_lines(monkeypatch, capsys, times, device="cpu"):
    """(time, line) of a run of one micro-batch at each of the times; two make a step."""
    clock = [0.0]
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    trainer = make_trainer(0, 1000, device=device)
    args, state = trainer.args, trainer.state
    printer, printed = LogPrinter(trainer), []
    printer.on_train_begin(args, state, None)
    printer.on_step_begin(args, state, None)
    for number, clock[0] in enumerate(times, 1):
        if number % 2:
            printer.on_substep_end(args, state, None)
        else:
            state.global_step += 1
            printer.on_step_end(args, state, None)
        printed += [(clock[0], line) for line in capsys.readouterr().out.splitlines()]
    return printed


def test_the_first_line_comes_within_seconds_and_no_minute_passes_without_one(monkeypatch, capsys):
    """The first micro-batch takes 2 seconds, each later one half a second: 1,000 steps of two take
    1,000 seconds.
    """
    times = [2.0 + 0.5 * number for number in range(300)]
    first, second, third = printed_lines(monkeypatch, capsys, times)
    assert first == (
        3.5,
        "step     2/1,000  a step takes 1 s: 1,000 steps take about 17 min, without evaluations "
        "(17 passes over the data)",
    )
    assert second == (64.0, "step    62/1,000  ")
    assert third[0] == 124.5


def test_a_long_micro_batch_is_enough_to_say_the_pace(monkeypatch, capsys):
    ((seconds, line),) = printed_lines(monkeypatch, capsys, [9.0, 18.0])
    assert seconds == 9.0
    assert line.startswith("step     0/1,000  a step takes 18 s: 1,000 steps take about 5.0 h")


def test_a_gpu_is_timed_after_its_first_micro_batch_which_compiles(monkeypatch, capsys):
    ((seconds, line),) = printed_lines(monkeypatch, capsys, [19.0, 19.1], device="cuda")
    assert seconds == 19.1
    assert line.startswith("step     1/1,000  a step takes 0.2 s: 1,000 steps take about 3 min")


def test_other_processes_print_nothing(monkeypatch, capsys):
    clock = iter(range(0, 10_000, 100))
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    state, printer = TrainerState(max_steps=1000, is_world_process_zero=False), LogPrinter(None)
    printer.on_train_begin(None, state, None)
    for _ in range(5):
        printer.on_step_begin(None, state, None)
        printer.on_step_end(None, state, None)
    assert capsys.readouterr().out == ""


def test_a_duration_is_given_as_people_say_it():
    texts = [console.format_hours(hours) for hours in (0.001, 0.03, 0.5, 7.42, 150.0)]
    assert texts == ["4 s", "2 min", "30 min", "7.4 h", "6.2 days"]
