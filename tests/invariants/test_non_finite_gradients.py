"""A step whose gradient is not finite changes nothing and is counted; too many of them in a row end
the run.
"""

import json
import multiprocessing

import pytest
import torch
from small_run import RecordingTrainer, small_run

from bert_recipes.errors import InputError


def spoil(monkeypatch, value, steps):
    """After the backward pass of these steps (from 0) one element of the gradient has this
    value.
    """
    computed = RecordingTrainer.training_step
    weights = {}

    def training_step(self, model, inputs, *args, **kwargs):
        weights[self.state.global_step] = {
            name: each.detach().clone() for name, each in model.named_parameters()
        }
        loss = computed(self, model, inputs, *args, **kwargs)
        if self.state.global_step in steps:
            next(model.parameters()).grad.view(-1)[7] = value
        return loss

    monkeypatch.setattr(RecordingTrainer, "training_step", training_step)
    return weights


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("max_grad_norm", [0.0, 1.0])
def test_the_step_changes_no_weight_and_is_counted(
    small_store, tmp_path, monkeypatch, caplog, value, max_grad_norm
):
    weights = spoil(monkeypatch, value, steps={1})
    settings = {"max_steps": 4, "max_grad_norm": max_grad_norm, "per_device_train_batch_size": 16}
    settings |= {"save_strategy": "steps", "save_steps": 4}
    result = small_run(store=str(small_store), output_dir=str(tmp_path), **settings)
    assert all(torch.equal(weights[1][name], weights[2][name]) for name in weights[1])
    assert not all(torch.equal(weights[2][name], weights[3][name]) for name in weights[1])
    assert all(torch.isfinite(each).all() for each in result["weights"].values())
    assert "step 2 is skipped: its gradient is not finite" in caplog.text
    assert (
        json.loads((tmp_path / "checkpoint-4" / "progress.json").read_text())["skipped_steps"] == 1
    )


def test_too_many_in_a_row_end_the_run_with_advice(small_store, tmp_path, monkeypatch):
    spoil(monkeypatch, float("nan"), steps={0, 2, 3})
    settings = {"max_steps": 8, "max_skipped_steps": 2, "per_device_train_batch_size": 16}
    # One, and later one more, are fewer than two in a row.
    with pytest.raises(
        InputError,
        match=r"step 4: the gradient was not finite for 2 steps in a row; .* Lower learning_rate",
    ):
        small_run(store=str(small_store), output_dir=str(tmp_path), **settings)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("optimizer", ["bert_adam", "adamw", "muon"])
def test_leaving_a_step_out_on_the_device_is_leaving_it_out(
    small_store, tmp_path, monkeypatch, caplog, optimizer, value
):
    """On a GPU the optimiser decides, and the host reads the norm one step later; weights, moments
    and counts are the same.
    """
    settings = {"max_steps": 5, "optimizer": optimizer, "per_device_train_batch_size": 16}
    settings |= {"save_strategy": "steps", "save_steps": 5, "weight_decay": 0.1}
    spoil(monkeypatch, value, steps={1, 2})
    results, progress = [], []
    for skips_on_device in (False, True):
        folder = tmp_path / str(skips_on_device)
        monkeypatch.setattr(
            RecordingTrainer,
            "_optimizer_skips_on_device",
            lambda self, norm, it=skips_on_device: it,
        )
        caplog.clear()
        results.append(small_run(store=str(small_store), output_dir=str(folder), **settings))
        assert "step 2 is skipped" in caplog.text
        assert "step 3 is skipped" in caplog.text
        progress.append(
            json.loads((folder / "checkpoint-5" / "progress.json").read_text())["skipped_steps"]
        )
    assert progress == [2, 2]
    host, device = (result["weights"] for result in results)
    for name in host:
        torch.testing.assert_close(device[name], host[name], rtol=0, atol=0, msg=name)


def test_too_many_in_a_row_end_the_run_though_they_are_read_late(
    small_store, tmp_path, monkeypatch
):
    monkeypatch.setattr(RecordingTrainer, "_optimizer_skips_on_device", lambda self, norm: True)
    spoil(monkeypatch, float("nan"), steps={0, 2, 3})
    settings = {"max_steps": 8, "max_skipped_steps": 2, "per_device_train_batch_size": 16}
    with pytest.raises(
        InputError, match=r"step 4: the gradient was not finite for 2 steps in a row"
    ):
        small_run(store=str(small_store), output_dir=str(tmp_path), **settings)


def test_a_run_that_ends_by_an_error_leaves_no_data_worker(small_store, tmp_path, monkeypatch):
    """They ignore SIGTERM, so that Python would wait for them at its end."""
    spoil(monkeypatch, float("nan"), steps={1, 2})
    settings = {
        "max_steps": 8,
        "max_skipped_steps": 2,
        "per_device_train_batch_size": 16,
        "dataloader_num_workers": 2,
    }
    with pytest.raises(InputError, match="not finite for 2 steps in a row"):
        small_run(store=str(small_store), output_dir=str(tmp_path), **settings)
    for worker in multiprocessing.active_children():
        worker.join(timeout=10)
        assert not worker.is_alive()
