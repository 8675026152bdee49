"""FSDP2 and DeepSpeed, as their configurations launch them, are the same training as one process
without them.

What runs is the library's own: Accelerate reads accelerate_configs/ and prepares the model
(`fsdp2_prepare_model`, `deepspeed.initialize`), on two processes over gloo. All
configurations with all recipes: tests/recipes/test_engines.py.
"""

import json
import os
import subprocess
import sys

import pytest
import torch
from engine_run import COUNT, engine_run
from safetensors.torch import load_file


@pytest.fixture(scope="module")
def alone(small_store, tmp_path_factory):
    """One process in bfloat16, and its folder."""
    folder = tmp_path_factory.mktemp("alone")
    return engine_run(str(small_store), str(folder), "bf16"), folder


@pytest.fixture(scope="module", params=["fsdp", "deepspeed_zero2"])
def shared(request, repository, small_store, tmp_path_factory):
    if request.param.startswith("deepspeed"):
        pytest.importorskip("deepspeed", reason="deepspeed is an extra")
    folder = tmp_path_factory.mktemp(request.param)
    command = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--main_process_port",
        "0",
        "--num_processes",
        "2",
        "--config_file",
    ]
    command += [f"accelerate_configs/{request.param}.yaml", "tests/invariants/engine_run.py"]
    settings = {"store": str(small_store), "output_dir": str(folder), "precision": "bf16"}
    done = subprocess.run(
        [*command, json.dumps(settings), "--use_cpu", "true"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=repository,
        env=os.environ | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return request.param, json.loads((folder / "found.json").read_text()), folder


def test_the_engine_has_the_model(shared):
    launch, found, _ = shared
    assert (
        found["wrapped"]
        == {"fsdp": "FSDPBertForPreTraining", "deepspeed_zero2": "DeepSpeedEngine"}[launch]
    )
    assert found["weight_types"] == ["torch.float32"]


def test_counts_and_losses_are_not_rounded_to_bfloat16(shared):
    _, found, _ = shared
    assert found["counts"] == pytest.approx([COUNT, COUNT], rel=1e-6)
    assert found["loss_types"] == ["torch.float32", "torch.float32"]


def test_gradients_of_64_micro_batches_add_up_in_float32(alone, shared):
    """A sum that is kept or sent in bfloat16 is a number of bfloat16; one in float32 lies anywhere
    between two of them.
    """
    ours, theirs = (load_file(folder / "gradient.safetensors") for folder in (shared[2], alone[1]))
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        if gradient.dim() < 2:  # the gradient of a key's bias is rounding alone
            continue
        assert ours[name].dtype == torch.float32
        # Other layers than one process has: autocast rounds at other places.
        assert (ours[name] - gradient).norm() <= 4e-2 * gradient.norm() + 1e-6, name
        found = ours[name][ours[name].abs() > 1e-6]
        assert ((found - found.bfloat16().float()).abs() / found.abs()).median() > 2e-4, name


@pytest.mark.parametrize("recipe", ["pretraining", "finetuning"])
def test_the_run_is_that_of_one_process(alone, shared, recipe):
    expected, found = alone[0][recipe], shared[1][recipe]
    # Rounding moves single weights by as much as a step of Adam's: after that the norm is less
    # sharp.
    tolerance = {"grad_norm": 5e-3}
    for ours, theirs in zip(found["history"], expected["history"], strict=True):
        for name in theirs.keys() & {"loss", "mlm_loss", "nsp_loss", "grad_norm"}:
            assert ours[name] == pytest.approx(theirs[name], rel=tolerance.get(name, 2e-3)), name
        tolerance["grad_norm"] = 2e-2
    assert found["metrics"]["eval_loss"] == pytest.approx(
        expected["metrics"]["eval_loss"], rel=2e-3
    )
    for ours, theirs in zip(
        found.get("predictions", []), expected.get("predictions", []), strict=True
    ):
        assert ours == pytest.approx(theirs, abs=1e-2)
    if recipe == "finetuning":
        ours, theirs = (
            load_file(folder / "weights.safetensors") for folder in (shared[2], alone[1])
        )
        for name, weight in theirs.items():
            torch.testing.assert_close(
                ours[name], weight, rtol=0, atol=4e-3
            )  # two steps of at most 1e-3 each way
