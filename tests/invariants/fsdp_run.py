"""A few steps of the model with its weights shared out by FSDP2 (`fully_shard`), or whole; alone or under torchrun.

torchrun --nproc-per-node 2 tests/invariants/fsdp_run.py OUTPUT_DIR
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.optimization import create_optimizer


VOCABULARY, ROWS, LENGTH, STEPS = 200, 8, 24, 6


def whole_batch(step: int) -> dict[str, torch.Tensor]:
    """The batch of a step, (8, 24), ragged."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(5, VOCABULARY, (ROWS, LENGTH), generator=generator)
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (ROWS, 1), generator=generator)
    is_token = torch.arange(LENGTH)[None] < lengths
    is_masked = (torch.rand(ROWS, LENGTH, generator=generator) < 0.15) & is_token
    return {
        "input_ids": ids.where(is_token, torch.tensor(0)),
        "token_type_ids": torch.zeros_like(ids),
        "attention_mask": is_token.long(),
        "labels": ids.where(is_masked, torch.tensor(-100)),
        "next_sentence_label": torch.randint(0, 2, (ROWS,), generator=generator),
    }


def train(rank: int, world_size: int) -> dict[str, Any]:
    """Losses of all steps and the whole weights at the end."""
    torch.manual_seed(0)
    model = BertForPreTraining(pretraining_config("tiny", vocab_size=VOCABULARY, dropout=0.0))
    if world_size > 1:
        mesh = init_device_mesh("cpu", (world_size,))
        # As Accelerate's policy with accelerate_configs/fsdp.yaml: each layer, then what is left.
        for layer in model.bert.encoder.layer:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = create_optimizer("bert_adam", model, learning_rate=1e-3)
    losses = []
    for step in range(STEPS):
        batch = whole_batch(step)
        counts = {"num_items_in_batch": int((batch["labels"] != -100).sum()), "num_pairs_in_batch": ROWS}
        loss = model(**{name: rows[rank::world_size] for name, rows in batch.items()}, **counts).loss
        # Gradients are averaged over the processes, the parts of the loss are to be added up.
        (loss * world_size).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        if world_size > 1:
            torch.distributed.all_reduce(total)
        losses.append(float(total))
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model, options=options) if world_size > 1 else model.state_dict()
    return {"losses": losses, "weights": {name: each.clone().contiguous() for name, each in weights.items()}}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1:
        torch.distributed.init_process_group("gloo")
    result = train(rank, world_size)
    if rank == 0:
        save_file(result["weights"], folder / "weights.safetensors")
        (folder / "losses.json").write_text(json.dumps(result["losses"]))
    if world_size > 1:
        torch.distributed.barrier()
        # DTensor's caches of sharding rules hold on to the group after `destroy_process_group`, and a thread of gloo that wants the
        # interpreter's lock while that is going down aborts the process: leave without going down.
        sys.stderr.flush()
        os._exit(0)
