"""Two processes with fast layers compute what two with stock layers compute."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bert_recipes.models.kernels.loading import load_kernels


SCRIPT = Path(__file__).parents[1] / "invariants" / "small_run.py"


def gradients_of(store, folder, fast_layers):
    """The gradients of the first step, and the logged losses, of a short run on two processes."""
    settings = {"store": str(store), "output_dir": str(folder), "per_device_train_batch_size": 4}
    settings |= {"gradient_accumulation_steps": 2, "fast_layers": fast_layers}
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--standalone",
        str(SCRIPT),
    ]
    done = subprocess.run(
        [*command, json.dumps(settings)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    flat = load_file(folder / "gradients.safetensors")
    history, _ = json.loads((folder / "logs.json").read_text())
    losses = [line["loss"] for line in history if "loss" in line and "eval_loss" not in line]
    return {name: gradient for name, gradient in flat.items() if name.startswith("0/")}, losses


@pytest.mark.slow
def test_two_processes_have_the_gradient_of_stock_layers(small_store, tmp_path):
    if load_kernels("auto", torch.device("cpu")) is None:
        pytest.skip("no compiler, or no x86-64 with AVX2")
    ours, losses = gradients_of(small_store, tmp_path / "auto", "auto")
    stock, expected = gradients_of(small_store, tmp_path / "off", "off")
    assert losses == pytest.approx(expected, rel=1e-4)
    assert ours.keys() == stock.keys()
    norm = torch.stack([gradient.norm() for gradient in stock.values()]).norm()
    difference = torch.stack(
        [(ours[name] - gradient).norm() for name, gradient in stock.items()]
    ).norm()
    assert 0 < difference < 1e-4 * norm
