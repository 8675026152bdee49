"""FSDP2 on two processes is the same training; its whole state dict has stock's names.

Accelerate uses FSDP on GPUs only, so that `accelerate_configs/fsdp.yaml` itself is checked but not run here; this is what it asks
PyTorch for.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from fsdp_run import train
from safetensors.torch import load_file


def test_two_processes_are_one(tmp_path):
    alone = train(0, 1)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    script = Path(__file__).with_name("fsdp_run.py")
    done = subprocess.run(
        [*command, str(script), str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    losses = json.loads((tmp_path / "losses.json").read_text())
    assert losses == pytest.approx(alone["losses"], rel=1e-5)
    assert losses[-1] < losses[0]
    weights = load_file(tmp_path / "weights.safetensors")
    assert weights.keys() == alone["weights"].keys()
    for name, weight in weights.items():
        torch.testing.assert_close(weight, alone["weights"][name], rtol=1e-4, atol=1e-6)
    stock = transformers.BertForPreTraining(transformers.BertConfig(**_sizes_of(weights)))
    assert stock.load_state_dict(weights, strict=False).missing_keys == []


def _sizes_of(weights):
    vocab_size, hidden = weights["bert.embeddings.word_embeddings.weight"].shape
    layers = len({name.split(".")[3] for name in weights if ".layer." in name})
    intermediate = len(weights["bert.encoder.layer.0.intermediate.dense.bias"])
    return {
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "intermediate_size": intermediate,
    }
