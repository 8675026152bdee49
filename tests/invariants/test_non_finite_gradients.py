"""A step whose gradient is not finite changes nothing and is counted; too many of them in a row end
the run.
"""

import copy
import json
import math
import multiprocessing
from types import SimpleNamespace

import pytest
import torch
from small_run import RecordingTrainer, small_run

from bert_recipes.errors import InputError


def spoil(monkeypatch, value, steps):
    """After the backward pass of these steps (from 0) one element of the gradient has this
    value.
    """
    training_step = RecordingTrainer.training_step
    weights = []

    def spoiled_step(self, model, inputs, *args, **kwargs):
        weights.append(copy.deepcopy(dict(model.named_parameters())))
        loss = training_step(self, model, inputs, *args, **kwargs)
        if self.state.global_step in steps:
            next(model.parameters()).grad.view(-1)[7] = value
        return loss

    monkeypatch.setattr(RecordingTrainer, "training_step", spoiled_step)
    return weights


@pytest.fixture
def run(small_store, tmp_path):
    """Train in this process, with a checkpoint of step 5. Args: settings."""

    def run_it(**settings):
        saving = {"save_strategy": "steps", "save_steps": 5, "per_device_train_batch_size": 16}
        return small_run(
            store=str(small_store), output_dir=str(tmp_path / "run"), **saving | settings
        )

    return run_it


@pytest.fixture
def skipped_steps(tmp_path):
    """Return a function: the number that the checkpoint of step 5 has."""
    file = tmp_path / "run" / "checkpoint-5" / "progress.json"
    return lambda: json.loads(file.read_text())["skipped_steps"]


@pytest.mark.parametrize(("value", "max_grad_norm"), [(float("nan"), 0.0), (float("inf"), 1.0)])
def test_the_step_changes_no_weight_and_is_counted(
    run, skipped_steps, monkeypatch, caplog, value, max_grad_norm
):
    weights = spoil(monkeypatch, value, steps={1})
    result = run(max_steps=5, max_grad_norm=max_grad_norm)
    torch.testing.assert_close(weights[2], weights[1], rtol=0, atol=0)
    assert any(not torch.equal(weights[3][name], weights[2][name]) for name in weights[2])
    assert all(torch.isfinite(tensor).all() for tensor in result["weights"].values())
    assert "step 2 is skipped: its gradient is not finite" in caplog.text
    assert skipped_steps() == 1


@pytest.mark.parametrize(
    ("optimizer", "value"),
    [("bert_adam", float("nan")), ("adamw", float("inf")), ("muon", float("inf"))],
)
def test_leaving_a_step_out_on_the_device_is_leaving_it_out(
    run, skipped_steps, monkeypatch, caplog, optimizer, value
):
    """On a GPU the optimizer decides, and the host reads the norm one step later; weights, moments
    and counts are the same.
    """
    spoil(monkeypatch, value, steps={1, 2})
    weights = []
    for is_on_device in (False, True):
        decide(monkeypatch, is_on_device)
        caplog.clear()
        weights.append(run(max_steps=5, optimizer=optimizer, weight_decay=0.1)["weights"])
        assert "step 2 is skipped" in caplog.text
        assert "step 3 is skipped" in caplog.text
        assert skipped_steps() == 2
    torch.testing.assert_close(weights[1], weights[0], rtol=0, atol=0)


def decide(monkeypatch, is_on_device):
    """Let the optimizer leave steps out on the device, as on a GPU, or the host."""
    name = "_optimizer_skips_on_device"
    monkeypatch.setattr(RecordingTrainer, name, lambda self, norm: is_on_device)


@pytest.mark.parametrize("is_on_device", [False, True])
def test_too_many_in_a_row_end_the_run_with_advice(run, monkeypatch, is_on_device):
    """Also where they are read late."""
    decide(monkeypatch, is_on_device)
    # One, and later one more, are fewer than two in a row.
    spoil(monkeypatch, float("nan"), steps={0, 2, 3})
    words = r"step 4: the gradient was not finite for 2 step.* in a row; .* Lower learning_rate"
    with pytest.raises(InputError, match=words):
        run(max_steps=8, max_skipped_steps=2)


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_loss_scaler_may_search_down_to_a_scale_of_one_and_no_further(run, scale):
    """It halves its scale at each step whose gradient is not finite, as with float16 on a GPU."""
    trainer = run(max_steps=1, max_skipped_steps=3)["trainer"]
    trainer.accelerator.scaler = SimpleNamespace(get_scale=lambda: scale)
    for step in (2, 3):
        trainer._count_norm(step, math.inf)
    if scale < 1:
        with pytest.raises(InputError, match="step 4: the gradient was not finite for 3 step"):
            trainer._count_norm(4, math.inf)
    else:
        for step in range(4, 20):
            trainer._count_norm(step, math.inf)
        assert trainer.skipped_steps == 18


def test_a_run_that_ends_by_an_error_leaves_no_data_worker(run, monkeypatch):
    """They ignore SIGTERM, so that Python would wait for them at its end."""
    spoil(monkeypatch, float("nan"), steps={1, 2})
    with pytest.raises(InputError, match=r"not finite for 2 step.* in a row"):
        run(max_steps=8, max_skipped_steps=2, dataloader_num_workers=2)
    for worker in multiprocessing.active_children():
        worker.join(timeout=10)
        assert not worker.is_alive()
