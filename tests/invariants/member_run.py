"""Every member of the family, trained for three steps by several processes, saved and resumed;
alone where nothing has launched it.

accelerate launch --config_file accelerate_configs/fsdp.yaml --num_processes 2
tests/invariants/member_run.py SETTINGS --use_cpu true
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from engine_run import first_moments, leave, use_gloo
from safetensors.torch import save_file
from small_run import small_run
from transformers import TrainerCallback


MEMBERS = ("bert", "roberta", "albert", "electra", "distilbert")


class FirstGradient(TrainerCallback):
    """Keeps the gradient of the first step, of the global batch: Adam's first moment is then a
    tenth of it.
    """

    trainer: Any = None

    def __init__(self) -> None:
        self.gradient: dict[str, torch.Tensor] = {}

    def on_step_end(self, args: Any, state: Any, *others: Any, **kwargs: Any) -> None:
        if state.global_step == 1:
            self.gradient = {
                name: 10 * moment for name, moment in first_moments(self.trainer).items()
            }


def member_run(member: str, store: str, output_dir: str) -> dict[str, Any]:
    """Train three steps, save the model, and train the last step again from the checkpoint before
    it.

    Leaves in output_dir: gradient.safetensors, of the first step, and the folders model and
    resumed_model. Returns the logs, JSON.
    """
    folder, first_gradient = Path(output_dir), FirstGradient()
    # Wide enough for ZeRO 3, which leaves tensors of less than 100,000 numbers whole.
    settings: dict[str, Any] = {"store": store, "objective": member, "inputs": {"size": "2/256"}}
    settings |= {"save_strategy": "steps", "save_steps": 2}
    settings |= {"global_train_batch_size": 8, "per_device_train_batch_size": 2, "warmup_steps": 0}
    settings |= {"max_grad_norm": 1.0, "per_device_eval_batch_size": 4}
    run = small_run(output_dir=str(folder / "run"), callbacks=[first_gradient], **settings)
    trainer = run["trainer"]
    trainer.save_model(str(folder / "model"))
    checkpoint = str(folder / "run" / "checkpoint-2")
    resumed = small_run(output_dir=str(folder / "resumed"), resume_from=checkpoint, **settings)
    resumed["trainer"].save_model(str(folder / "resumed_model"))
    if trainer.is_world_process_zero():
        save_file(first_gradient.gradient, folder / "gradient.safetensors")
    return {
        "history": run["history"],
        "metrics": run["metrics"],
        "resumed_metrics": resumed["metrics"],
    }


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    use_gloo()
    output_dir = Path(settings["output_dir"])
    logs = {
        member: member_run(member, settings["store"], str(output_dir / member))
        for member in MEMBERS
    }
    leave(output_dir / "found.json", logs)
