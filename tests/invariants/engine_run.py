"""Runs of a step or two of both Trainers under the engine of the launcher's configuration; alone
where nothing has launched it.

accelerate launch --config_file accelerate_configs/fsdp.yaml --num_processes 2
tests/invariants/engine_run.py SETTINGS --use_cpu true
"""

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from finetuning_run import finetuning_run
from safetensors.torch import save_file
from small_run import small_run
from torch.distributed.tensor import DTensor


COUNT = 12345.0  # bfloat16 makes 12352 of it


def engine_run(store: str, output_dir: str, precision: str) -> dict[str, Any]:
    """Pre-train for a step of 64 micro-batches, fine-tune for two, and evaluate with unequal
    numbers of batches.

    Returns:
        JSON: what the model was wrapped in, what a count and the losses have become, logs and
            figures of both runs. In output_dir:
        gradient.safetensors, by Adam's first moment, and weights.safetensors, of the fine-tuning.
    """
    common = {"precision": precision, "per_device_eval_batch_size": 4, "warmup_steps": 0}
    split = {"max_steps": 1, "global_train_batch_size": 64, "per_device_train_batch_size": 1}
    pretraining = small_run(store=store, output_dir=f"{output_dir}/pretraining", **common, **split)
    trainer = pretraining["trainer"]
    if trainer.is_fsdp_enabled:
        trainer.model.reshard()  # the root's weights are still whole after a forward pass
    gradient = {name: 10 * moment for name, moment in first_moments(trainer).items()}
    batch = trainer._prepare_inputs(next(iter(trainer.get_eval_dataloader())))
    with torch.no_grad():
        once = trainer.model_wrapped(
            **batch, num_items_in_batch=torch.tensor(1.0), num_pairs_in_batch=torch.tensor(1.0)
        )
        by_count = {
            name: torch.tensor(COUNT) for name in ("num_items_in_batch", "num_pairs_in_batch")
        }
        shared = trainer.model_wrapped(**batch, **by_count)
    facts = {
        "wrapped": type(trainer.model_wrapped).__name__,
        "loss_types": [str(loss.dtype) for loss in (once.mlm_loss, once.nsp_loss)],
        "weight_types": sorted(
            {str(weight.dtype) for weight in trainer.model.state_dict().values()}
        ),
        "counts": [float(once.mlm_loss / shared.mlm_loss), float(once.nsp_loss / shared.nsp_loss)],
        "pretraining": {"history": pretraining["history"], "metrics": pretraining["metrics"]},
    }
    common |= {"max_steps": 2, "global_train_batch_size": 16, "per_device_train_batch_size": 2}
    finetuning = finetuning_run(
        "sequence_classification", output_dir=f"{output_dir}/finetuning", **common
    )
    metrics = finetuning["trainer"].evaluate()
    predictions = [item.probabilities for item in finetuning["trainer"].predictions["validation"]]
    facts["finetuning"] = {
        "history": finetuning["history"],
        "metrics": metrics,
        "predictions": predictions,
    }
    weights = {name: whole(weight) for name, weight in finetuning["weights"].items()}
    if trainer.is_world_process_zero():
        save_file(gradient, f"{output_dir}/gradient.safetensors")
        save_file(weights, f"{output_dir}/weights.safetensors")
    return facts


def first_moments(trainer: Any) -> dict[str, torch.Tensor]:
    """Return Adam's first moment of every weight, whole: after the first step a tenth of its
    gradient.
    """
    weights = dict(trainer.model.named_parameters())
    if not trainer.is_deepspeed_enabled:
        states = {
            name: trainer.optimizer.state[weight]["exp_avg"] for name, weight in weights.items()
        }
        return {name: whole(state).clone() for name, state in states.items()}
    from deepspeed.utils import safe_get_full_optimizer_state

    optimizer = trainer.deepspeed.optimizer
    if hasattr(optimizer, "_hp_optimizer_states_linked"):
        # It has looked for the state of all groups after the step of the first one.
        optimizer._hp_optimizer_states_linked = False
        optimizer._lazy_init_hp_params_optimizer_state()
    return {
        name: safe_get_full_optimizer_state(weight, "exp_avg").clone()
        for name, weight in weights.items()
    }


def whole(weight: torch.Tensor) -> torch.Tensor:
    """Return a tensor of which each process may have a part; all processes call it together."""
    return weight.full_tensor() if isinstance(weight, DTensor) else weight


def use_gloo() -> None:
    """Let DeepSpeed use gloo's collectives, as on GPUs it uses NCCL's: its own for CPUs take a
    minute to compile.
    """
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        import deepspeed

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def leave(file: Path, facts: Any) -> None:
    """Write the facts, in the main process, and end all processes."""
    if os.environ.get("RANK", "0") == "0":
        file.write_text(json.dumps(facts))
    gc.collect()
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    # DTensor's caches hold on to the process group, and a thread of gloo that wants the
    # interpreter's lock while that is going down
    # aborts the process: leave without going down.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    use_gloo()
    leave(Path(settings["output_dir"], "found.json"), engine_run(**settings))
