"""An estimate ends when it knows enough, and when it is told to."""

from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerControl, TrainerState

from bert_recipes.training import estimate
from bert_recipes.training.estimate import _StepTimer


ON_CPU = SimpleNamespace(device=torch.device("cpu"))


def gather_of_one(seconds):
    return seconds


@pytest.mark.parametrize(
    ("seconds_per_step", "steps"), [(0.5, 14), (5.0, 14), (25.0, 4), (59.0, 3), (210.0, 2)]
)
def test_slow_steps_are_fewer(monkeypatch, seconds_per_step, steps):
    # What comes before the first step, as an index of the data, does not count.
    clock = iter([300 + number * seconds_per_step for number in range(20)])
    monkeypatch.setattr(estimate.time, "perf_counter", clock.__next__)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # not for this run
    timer, control, done = _StepTimer(gather_of_one), TrainerControl(), 0
    while not control.should_training_stop:
        timer.on_step_end(ON_CPU, TrainerState(), control)
        done += 1
    assert done == steps


def test_a_stop_that_somebody_else_asked_for_stays():
    timer, control = _StepTimer(gather_of_one), TrainerControl(should_training_stop=True)
    timer.on_step_end(ON_CPU, TrainerState(), control)
    assert control.should_training_stop


def test_processes_end_an_estimate_after_the_same_step():
    """The other one has just passed the limit: alone it would end, and this one wait for it."""

    def gather_of_two(seconds):
        return torch.cat([seconds, torch.tensor([estimate.MOST_SECONDS + 0.1])])

    timer, control = _StepTimer(gather_of_two), TrainerControl()
    timer.on_step_end(ON_CPU, TrainerState(), control)
    assert control.should_training_stop
    assert timer.is_slow
