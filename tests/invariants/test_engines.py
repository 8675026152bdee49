"""FSDP2 and DeepSpeed, as their configurations launch them, are the same training as one process
without them.

What runs is the library's own: Accelerate reads accelerate_configs/ and prepares the model
(`fsdp2_prepare_model`, `deepspeed.initialize`), on two processes over gloo. All
configurations with all recipes: tests/recipes/test_engines.py.
"""

import json

import pytest
import torch
from engine_run import COUNT, engine_run
from safetensors.torch import load_file
from two_processes import run_two


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def alone(small_store, tmp_path_factory):
    """One process in bfloat16, and its folder."""
    folder = tmp_path_factory.mktemp("alone")
    return engine_run(str(small_store), str(folder), "bf16"), folder


@pytest.fixture(scope="module", params=["fsdp", "deepspeed_zero2"])
def shared(request, small_store, tmp_path_factory):
    if request.param.startswith("deepspeed"):
        pytest.importorskip("deepspeed", reason="deepspeed is an extra")
    folder = tmp_path_factory.mktemp(request.param)
    settings = {"store": str(small_store), "output_dir": str(folder), "precision": "bf16"}
    run_two("engine_run.py", settings, launch=request.param)
    return request.param, json.loads((folder / "found.json").read_text()), folder


def test_the_engine_has_the_model(shared):
    launch, facts, _ = shared
    wrapper = "FSDPBertForPreTraining" if launch == "fsdp" else "DeepSpeedEngine"
    assert facts["wrapped"] == wrapper
    assert facts["weight_types"] == ["torch.float32"]


def test_counts_and_losses_are_not_rounded_to_bfloat16(shared):
    _, facts, _ = shared
    assert facts["counts"] == pytest.approx([COUNT, COUNT], rel=1e-6)
    assert facts["loss_types"] == ["torch.float32", "torch.float32"]


def test_gradients_of_64_micro_batches_add_up_in_float32(alone, shared):
    """A sum that is kept or sent in bfloat16 is a number of bfloat16; one in float32 lies anywhere
    between two of them.
    """
    ours = load_file(shared[2] / "gradient.safetensors")
    theirs = load_file(alone[1] / "gradient.safetensors")
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        if gradient.dim() < 2:  # the gradient of a key's bias is rounding alone
            continue
        assert ours[name].dtype == torch.float32
        # Other layers than one process has: autocast rounds at other places.
        assert (ours[name] - gradient).norm() <= 4e-2 * gradient.norm() + 1e-6, name
        numbers = ours[name][ours[name].abs() > 1e-6]
        rounding = (numbers - numbers.bfloat16().float()).abs() / numbers.abs()
        assert rounding.median() > 2e-4, name


@pytest.mark.parametrize("recipe", ["pretraining", "finetuning"])
def test_the_run_is_that_of_one_process(alone, shared, recipe):
    expected, facts = alone[0][recipe], shared[1][recipe]
    # Rounding moves single weights by as much as a step of Adam's: after that the norm is less
    # sharp.
    tolerance = {"grad_norm": 5e-3}
    for ours, theirs in zip(facts["history"], expected["history"], strict=True):
        for name in theirs.keys() & {"loss", "mlm_loss", "nsp_loss", "grad_norm"}:
            assert ours[name] == pytest.approx(theirs[name], rel=tolerance.get(name, 2e-3)), name
        tolerance["grad_norm"] = 2e-2
    loss = expected["metrics"]["eval_loss"]
    assert facts["metrics"]["eval_loss"] == pytest.approx(loss, rel=2e-3)
    if recipe == "finetuning":
        for ours, theirs in zip(facts["predictions"], expected["predictions"], strict=True):
            assert ours == pytest.approx(theirs, abs=1e-2)
        weights = load_file(shared[2] / "weights.safetensors")
        expected_weights = load_file(alone[1] / "weights.safetensors")
        # Two steps of at most 1e-3 each way.
        torch.testing.assert_close(weights, expected_weights, rtol=0, atol=4e-3)
