"""Warnings about the loss of a run, and its end at a signal."""

import math
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from transformers import TrainerControl, TrainerState

from bert_recipes.training.arguments import PreTrainingArguments
from bert_recipes.training.callbacks import (
    ClockIntervals,
    EarlyStopping,
    LossWatch,
    StopOnSignal,
    describe_overfitting,
    describe_spike,
    describe_stuck_discriminator,
    describe_stuck_loss,
    ignore_signals,
)


def progress(metrics: dict) -> str | None:
    return describe_stuck_loss(metrics, step=5000)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (6.87, "loss is 6.87, worse than the word-frequency baseline (6.76)"),
        (6.85, "loss is 6.85, no better than the word-frequency baseline (6.76)"),
        (6.67, "loss is 6.67, no better than the word-frequency baseline (6.76)"),
        (6.65, None),
        (math.nan, "loss is not finite: training has diverged"),
        (math.inf, "loss is not finite: training has diverged"),
    ],
)
def test_what_is_said_fits_the_side_of_the_baseline(loss, said):
    message = progress({"eval_mlm_loss": loss, "eval_unigram_loss": 6.76})
    if said is None:
        assert message is None
    else:
        assert message.startswith(f"at step 5000 the held-out masked-LM {said}")
        assert "learning rate" in message


@pytest.mark.parametrize(
    ("settings", "step", "seconds", "is_said"),
    [
        ({"max_steps": 10_000}, 1999, 1000, False),
        ({"max_steps": 10_000}, 2000, 0, True),
        ({"max_minutes": 10}, 50, 119, False),
        ({"max_minutes": 10}, 50, 121, False),  # a short run is at the frequencies first
        ({"max_minutes": 10}, 50, 541, True),
        ({"max_minutes": 10}, 1200, 121, True),
    ],
)
def test_too_early_and_without_a_baseline_nothing_is_said(
    settings, step, seconds, is_said, tmp_path, caplog, monkeypatch
):
    """After warm-up and a tenth of the steps, or of the minutes."""
    assert progress({"eval_mlm_loss": 6.72}) is None
    args = PreTrainingArguments(
        output_dir=str(tmp_path), warmup_steps=0.1, use_cpu=True, **settings
    )
    clock = seconds / 60 / args.max_minutes if args.max_minutes else 0.0
    share_of_steps = step / args.max_steps
    fraction = clock if args.max_minutes else share_of_steps
    watch = LossWatch(overfitting_trainer([], progress=fraction))
    state = TrainerState(global_step=step, max_steps=args.max_steps)
    watch.on_evaluate(
        args, state, TrainerControl(), metrics={"eval_mlm_loss": 6.72, "eval_unigram_loss": 6.76}
    )
    assert ("word-frequency baseline" in caplog.text) is is_said


@pytest.mark.parametrize(
    ("loss", "is_said"), [(0.40, True), (0.37, True), (0.36, False), (0.2, False)]
)
def test_a_discriminator_at_the_base_rate_is_said(loss, is_said):
    """Nearer than a twentieth of 0.38; a run without a discriminator has neither figure."""
    metrics = {"eval_disc_loss": loss, "eval_base_rate_loss": 0.38}
    message = describe_stuck_discriminator(metrics, step=700)
    assert (message is not None) is is_said
    if message is not None:
        assert f"at step 700 the held-out replaced-token loss is {loss:.4f}" in message
    assert describe_stuck_discriminator({"eval_mlm_loss": 5.0}, step=700) is None


def test_each_loss_is_warned_of_once_a_discriminators_after_half_of_the_run(tmp_path, caplog):
    args = PreTrainingArguments(output_dir=str(tmp_path), max_steps=100, use_cpu=True)
    watch = LossWatch(overfitting_trainer([], progress=0.0))
    control = TrainerControl()
    metrics = {
        "eval_mlm_loss": 6.7,
        "eval_unigram_loss": 6.7,
        "eval_disc_loss": 0.38,
        "eval_base_rate_loss": 0.38,
    }
    for step in (2000, 4000, 6000, 8000):
        state = TrainerState(global_step=step, max_steps=10_000)
        watch.trainer.progress = step / 10_000
        watch.on_evaluate(args, state, control, metrics=metrics)
    assert [record.message.split(" loss is")[0] for record in caplog.records] == [
        "at step 2000 the held-out masked-LM",
        "at step 6000 the held-out replaced-token",
    ]


def history(*losses):
    return [{"step": 100 * n, "eval_mlm_loss": loss} for n, loss in enumerate(losses, 1)]


@pytest.mark.parametrize(
    ("losses", "is_said"),
    [((), False), ((3.0,), False), ((3.0, 2.5, 2.59), False), ((3.0, 2.5, 2.7), True)],
)
def test_a_held_out_loss_that_has_risen_is_said(losses, is_said):
    trainer = overfitting_trainer([{"step": 50, "loss": 1.0}, *history(*losses)])
    message = describe_overfitting(trainer)
    assert (message is not None) is is_said
    if is_said:
        words = "at step 300 the held-out masked-LM loss is 2.70, and was 2.50 at step 200"
        assert message.startswith(words)
    trainer.first_step = 200  # losses of an earlier phase, which are of other lengths
    assert describe_overfitting(trainer) is None
    trainer.first_step, trainer.args.load_best_model_at_end = 0, True
    assert describe_overfitting(trainer) is None


def overfitting_trainer(log_history, **values):
    return SimpleNamespace(
        args=SimpleNamespace(load_best_model_at_end=False),
        state=SimpleNamespace(log_history=log_history),
        first_step=0,
        **values,
    )


@pytest.mark.parametrize(("progress", "times"), [(0.5, 0), (0.95, 1)])
def test_overfitting_is_said_once_near_the_end(progress, times, tmp_path, caplog):
    args = PreTrainingArguments(output_dir=str(tmp_path), max_steps=10, use_cpu=True)
    watch = LossWatch(overfitting_trainer(history(3.0, 2.5, 2.7), progress=progress))
    state = TrainerState(global_step=9, max_steps=10)
    for _ in range(2):
        watch.on_evaluate(args, state, TrainerControl(), metrics={})
    assert caplog.text.count("learns its text by heart") == times


def test_evaluations_after_training_stop_no_run():
    """The best model is measured again at the end, which is no evaluation without a better one."""
    args = SimpleNamespace(metric_for_best_model="eval_f1", greater_is_better=True)
    stopping, control = EarlyStopping(patience=3), TrainerControl()
    state = TrainerState(log_history=[{"eval_f1": f1} for f1 in (0.8, 0.7, 0.75)])
    stopping.on_train_begin(args, state, control)
    stopping.on_train_end(args, state, control)
    state.log_history.append({"eval_f1": 0.8})
    stopping.on_evaluate(args, state, control)
    assert not control.should_training_stop


def clock_events(clocks, **settings):
    """The events that a run by the clock asks for at the end of each step, beside those of its
    settings.
    """
    strategies = {"logging_strategy": "steps", "eval_strategy": "steps", "save_strategy": "steps"}
    args, trainer = SimpleNamespace(**strategies | settings), SimpleNamespace(clock=0.0)
    intervals = ClockIntervals(trainer)
    intervals.on_train_begin(args, TrainerState(), TrainerControl())
    clocks_of = {"log": [], "evaluate": [], "save": []}
    for trainer.clock in clocks:
        control = TrainerControl()
        intervals.on_step_end(args, TrainerState(), control)
        for event, clocks_of_event in clocks_of.items():
            if getattr(control, f"should_{event}"):
                clocks_of_event.append(trainer.clock)
    return clocks_of


def test_a_run_by_the_clock_is_measured_and_saved_at_each_fifth_of_its_minutes():
    clocks = [step / 100 for step in range(1, 101)]
    events = clock_events(clocks)
    assert events["evaluate"] == pytest.approx([0.2, 0.4, 0.6, 0.8], abs=0.02)
    assert events["save"] == events["evaluate"]
    assert len(events["log"]) >= 40
    events = clock_events(clocks, eval_strategy="no", save_strategy="no")
    assert not events["evaluate"] + events["save"]


def test_long_evaluations_are_made_less_often():
    """Each takes a tenth of the minutes here: two of them are a fifth."""
    steps = [*range(1, 21), *range(31, 81), *range(91, 101)]
    events = clock_events([step / 100 for step in steps])
    assert len(events["evaluate"]) == 2


FLAT = [3.0 + 0.01 * (-1) ** number for number in range(60)]


def test_a_loss_that_jumps_is_said_in_words_with_advice():
    message = describe_spike([*FLAT, 4.0], step=700)
    assert message.startswith(
        "at step 700 the training loss is 4.00; the 50 lines of the log before have 3.00 on average"
    )
    assert "learning rate" in message
    # A step whose gradient is not finite is left out, its loss stands in the log.
    assert "at step 15" in describe_spike([5.0] * 12 + [math.nan, 9.0], 15)


@pytest.mark.parametrize(
    "losses",
    [
        FLAT,  # as before
        [*FLAT, 3.3],  # far in deviations, but small
        [number % 3 + 3.0 for number in range(60)],  # it always jumps
        [3.0, 9.0],  # too early to tell
        [*FLAT, math.nan],  # said elsewhere
    ],
)
def test_otherwise_no_spike_is_seen(losses):
    assert describe_spike(losses, step=1) is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_remembered_and_the_handlers_are_put_back(number, capfd):
    before = [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)]
    request = StopOnSignal()
    with request.listening():
        assert request.signal is None
        os.kill(os.getpid(), number)
        time.sleep(0.01)
        assert request.signal == number
        os.kill(os.getpid(), signal.SIGTERM)  # launchers send it more than once
        time.sleep(0.01)
    assert [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)] == before
    assert signal.Signals(number).name in capfd.readouterr().err


LISTENING = """
import time
from bert_recipes.training.callbacks import StopOnSignal
with StopOnSignal().listening():
    print("ready", flush=True)
    time.sleep(60)
    time.sleep(60)
"""


def test_a_second_interrupt_leaves_at_once():
    command = [sys.executable, "-c", LISTENING]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert b"the run saves and stops" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130


def test_in_a_thread_nothing_is_handled():
    def handler_while_listening():
        with StopOnSignal().listening():
            return signal.getsignal(signal.SIGTERM)

    with ThreadPoolExecutor() as threads:
        handler = threads.submit(handler_while_listening).result()
    assert handler == signal.getsignal(signal.SIGTERM)


def test_processes_that_load_data_leave_signals_to_the_one_that_trains(monkeypatch):
    handlers = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    ignore_signals(3)
    assert handlers == {signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_IGN}
