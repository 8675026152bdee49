"""Run a script of this folder as two processes, and compare gradients of two runs."""

import gc
import json
import os
import sys
from pathlib import Path

import torch
from python_process import run_python
from safetensors.torch import load_file, save_file


HERE = Path(__file__).resolve().parent
Gradients = list[dict[str, torch.Tensor]]


def run_two(script: str, settings: dict, launch: str | None = None) -> None:
    """Run a script with settings, by torchrun or by `accelerate launch` with a configuration."""
    launcher = "torch.distributed.run --nproc-per-node 2 --standalone"
    flags = ""
    if launch is not None:
        launcher = "accelerate.commands.launch --main_process_port 0 --num_processes 2"
        launcher += f" --config_file accelerate_configs/{launch}.yaml"
        flags = "--use_cpu true"
    words = json.dumps(settings, separators=(",", ":"))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run_python(f"-m {launcher}", HERE / script, words, flags, env=environment)


def end_processes() -> None:
    """End the process group of a script, all processes together.

    The wrapped model and its Trainer hold on to each other and to the process group: they go before
    it, or a thread of gloo may still want the interpreter's lock when that is going down (SIGABRT).
    """
    gc.collect()
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def save_gradients(gradients: Gradients, file: Path) -> None:
    """Write the gradients of each step by the names of their weights."""
    flat = {}
    for step, gradients_of_step in enumerate(gradients):
        for name, gradient in gradients_of_step.items():
            flat[f"{step}/{name}"] = gradient
    save_file(flat, file)


def load_gradients(file: Path) -> Gradients:
    """Read what `save_gradients` has written."""
    flat = load_file(file)
    gradients: Gradients = [{} for _ in {key.split("/")[0] for key in flat}]
    for key, gradient in flat.items():
        step, name = key.split("/", 1)
        gradients[int(step)][name] = gradient
    return gradients


def assert_same_gradients(gradients: Gradients, expected: Gradients, tolerance=1e-6) -> None:
    """Compare the gradients of the first two steps.

    The first update has rate 0, so that both come from equal weights; after that the weights drift
    apart by rounding.
    """
    assert len(gradients) == len(expected) == 3
    for step in (0, 1):
        ours, theirs = gradients[step], expected[step]
        assert ours.keys() == theirs.keys()
        norm = torch.stack([gradient.norm() for gradient in theirs.values()]).norm()
        difference = torch.stack([(ours[name] - theirs[name]).norm() for name in theirs]).norm()
        assert norm > 0
        assert difference / norm < tolerance, f"step {step}: {difference / norm}"
