"""Model FLOPs beside PyTorch's own counter, the machine, the allocator."""

import ctypes
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig

from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.training import speed
from bert_recipes.training.speed import (
    BatchStats,
    describe_machine,
    forward_flops,
    peak_memory_mb,
    training_flops,
)


CONFIG = BertConfig(
    vocab_size=97,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=80,
    max_position_embeddings=64,
    attn_implementation="eager",
)


def test_the_passes_have_the_flops_that_pytorch_counts():
    """4 x 24 tokens without pads, 5 of them predicted."""
    model = BertForPreTraining(CONFIG)
    model.set_attn_implementation("eager")
    ids = torch.randint(5, CONFIG.vocab_size, (4, 24))
    labels = torch.full_like(ids, -100)
    labels.view(-1)[[0, 7, 30, 50, 95]] = 9
    batch = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": torch.zeros_like(ids),
        "labels": labels,
        "next_sentence_label": torch.tensor([0, 1, 1, 0]),
    }
    with FlopCounterMode(display=False) as forward:
        output = model(**batch)
    with FlopCounterMode(display=False) as backward:
        output.loss.backward()
    work = BatchStats(tokens=4 * 24, squares=4 * 24**2, sequences=4, masked=5)
    assert forward_flops(CONFIG, work) == forward.get_total_flops()
    assert training_flops(CONFIG, work) == forward.get_total_flops() + backward.get_total_flops()


@pytest.mark.parametrize(
    ("name", "pooler"), [("SequenceClassification", True), ("TokenClassification", False)]
)
def test_a_model_of_a_task_has_them_too_but_for_its_own_small_head(name: str, pooler: bool):
    model = getattr(transformers, f"BertFor{name}")(CONFIG).eval()
    model.set_attn_implementation("eager")
    ids = torch.randint(5, CONFIG.vocab_size, (4, 24))
    with FlopCounterMode(display=False) as counted:
        model(input_ids=ids, attention_mask=torch.ones_like(ids))
    head = 2 * CONFIG.hidden_size * CONFIG.num_labels * (4 if pooler else 4 * 24)
    assert (model.base_model.pooler is not None) is pooler
    work = BatchStats(tokens=4 * 24, squares=4 * 24**2, sequences=4)
    assert forward_flops(CONFIG, work, nsp=False, pooler=pooler) + head == counted.get_total_flops()


X86 = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
flags\t\t: fpu avx2 avx512f avx512_bf16

processor\t: 1
cpu family\t: 26
model name\t: another
"""
ARM = """processor\t: 0
Features\t: fp asimd sve bf16
CPU implementer\t: 0x41
CPU part\t: 0xd4f
"""


@pytest.mark.parametrize(
    ("text", "model", "instructions"),
    [
        (X86, "family 25, model 17", ["avx2", "avx512f", "avx512_bf16"]),
        (ARM, "implementer 0x41, part 0xd4f", ["asimd", "sve", "bf16"]),
        (None, None, None),  # what the system does not say is left out
    ],
)
def test_the_first_processor_is_described(tmp_path: Path, monkeypatch, text, model, instructions):
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text, encoding="utf-8")
    facts = speed.read_cpu_facts(tmp_path / "cpuinfo")
    monkeypatch.setattr(speed, "read_cpu_facts", lambda: facts)
    described = describe_machine()
    assert described.get("processor_model") == model
    assert described.get("instructions") == instructions
    assert described["processor"]


def test_a_gpu_that_does_not_compute_is_not_described(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 0)
    for device, gpu in (("cpu", None), ("cuda", "a GPU")):
        assert describe_machine(torch.device(device))["gpu"] == gpu
        assert (peak_memory_mb(torch.device(device)) == 0) == (gpu is not None)


class Libc:
    """A mallopt that refuses thresholds above a limit."""

    def __init__(self, limit):
        self.limit, self.set = limit, []

    def mallopt(self, name, value):
        if name == speed._M_MMAP_THRESHOLD and value > self.limit:
            return 0
        self.set.append((name, value))
        return 1


@pytest.mark.parametrize(
    ("system", "limit", "threshold"),
    [
        ("glibc", 1 << 31, 1 << 30),
        ("glibc", 1 << 25, 1 << 25),
        ("glibc", 0, None),  # the other two alone would freeze it at its low start
        ("musl", 1 << 31, None),
    ],
)
def test_the_largest_threshold_that_is_accepted_is_taken_or_nothing_is_set(
    monkeypatch, system, limit, threshold
):
    libc = Libc(limit)
    monkeypatch.setattr(speed.platform, "libc_ver", lambda: (system, "2"))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: libc)
    assert speed.keep_freed_memory() == (threshold is not None)
    settings = [(speed._M_TRIM_THRESHOLD, -1), (speed._M_TOP_PAD, 64 << 20)]
    assert libc.set == ([(speed._M_MMAP_THRESHOLD, threshold), *settings] if threshold else [])


KEEPING = """
import ctypes
from bert_recipes.training.speed import keep_freed_memory

assert keep_freed_memory()
libc = ctypes.CDLL(None)
libc.sbrk.restype = libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.sbrk.argtypes = [ctypes.c_ssize_t]
blocks = [libc.malloc(500 << 20) for _ in range(6)]
assert all(blocks)
top = libc.sbrk(0)
for block in reversed(blocks):
    libc.free(block)
print(libc.sbrk(0) == top)
"""


@pytest.mark.slow
def test_more_than_two_gigabytes_are_kept_too():
    """A stock step of a small model frees three. The blocks are never written to, so that they take
    no speed.
    """
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("no glibc")
    done = subprocess.run(
        [sys.executable, "-c", KEEPING], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip() == "True", done.stderr[-2000:]
