"""Settings of a sample: a side, and the work that is measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from bert_recipes.errors import InputError
from bert_recipes.training.optimization import bfloat16_unit


OURS, STOCK_DEFAULTS = "ours", "stock_defaults"
# Ours, one step after the other: side -> what it is, and the settings with which it is ours without
# the steps to come.
STEPS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "ours_fp32": (
        "vocabulary for masked tokens alone, fused Adam and GELU, kept memory",
        {"precision": "fp32", "fast_layers": "off"},
    ),
    "ours_bf16": ("bfloat16 products", {"precision": "bf16", "fast_layers": "off"}),
    OURS: ("layers on packed rows with fused kernels, logits never held", {}),
    "muon": ("Muon for the matrices of linear layers", {"optimizer": "muon"}),
}
# What was measured, as JSON.
Result = dict[str, Any]
# Of time_to_quality: the settings that learn most in few minutes.
BUDGET = "budget"
MAX_WARMUP_STEPS = 12


@dataclass(frozen=True)
class Sample:
    """Hold what the process of a sample is told."""

    kind: str  # pretraining, finetuning, inference, matmul, data or quality
    side: str = ""
    work_dir: str = ""  # shared by the samples of a run: vocabulary, tables of pairs, prepared text
    config: str = ""  # YAML file of ours
    size: str = "tiny"
    length: int = 128
    tokens_per_step: int = 4096  # positions
    batch_size: int = 32
    vocab_size: int = 30_522
    documents: str = "long"
    store: str | None = None  # instead of generated ids
    task: str = ""
    lengths: tuple[int, ...] = ()  # of that task: number of features of 0, 1, ... tokens
    variant: str = ""  # the measure of the data suite, or the step of the matrix products
    megabytes: float = 4.0
    files: tuple[str, ...] = ()  # instead of generated text
    # On top of stock's defaults, or of our configuration.
    switches: Mapping[str, Any] = field(default_factory=dict)
    precision: str = "fp32"  # of predictions
    use_cpu: bool = False
    # Not counted: at least so many steps, and until so much time has gone by or MAX_WARMUP_STEPS
    # are done.
    warmup_steps: int = 2
    warmup_seconds: float = 0.0
    min_steps: int = 3
    max_steps: int = 200
    budget_seconds: float = 10.0
    # max_steps whatever the time: batches of like length are only together like all.
    whole_pass: bool = False
    minutes: float = 20.0
    seed: int = 12345

    @property
    def is_ours(self) -> bool:
        """Return whether the side is ours, or a step on the way to it."""
        return self.side in STEPS or self.side == BUDGET

    @property
    def on_cpu(self) -> bool:
        """Return whether the sample runs on the CPU."""
        return self.use_cpu or not torch.cuda.is_available()

    @property
    def precisions(self) -> list[str]:
        """Return the precisions to measure.

        Without bfloat16 on a CPU where it is slower: an emulated large product takes minutes.
        """
        if self.on_cpu and not bfloat16_unit("cpu"):
            return ["fp32"]
        return ["fp32", "bf16"]

    @property
    def pairs_per_step(self) -> int:
        """Return the sentence pairs of a pre-training step."""
        return max(1, self.tokens_per_step // self.length)

    @property
    def total_steps(self) -> int:
        """Return the steps of the schedule; the same whether or not the time is over before."""
        num_warmup = self.warmup_steps
        if self.warmup_seconds:
            num_warmup = max(num_warmup, MAX_WARMUP_STEPS)
        return num_warmup + self.max_steps

    def describe(self) -> Result:
        """Return the fields that differ from their defaults, for the results file.

        No folders, and no histogram of lengths.
        """
        values = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in ("work_dir", "config", "lengths") or value == item.default:
                continue
            if item.name == "switches" and not value:
                continue
            values[item.name] = value
        return json.loads(json.dumps(values))


def check_gpu(*, use_cpu: bool) -> None:
    """Refuse GPUs that the benchmarks do not know: several, or one without bfloat16 units."""
    if use_cpu or not torch.cuda.is_available():
        return
    if torch.cuda.device_count() > 1:
        raise InputError(
            "several GPUs are seen, and one is measured: put CUDA_VISIBLE_DEVICES=0 first"
        )
    if not bfloat16_unit("cuda"):
        raise InputError(
            "this GPU has no bfloat16 units, which the sides compute in; --use_cpu true "
            "measures the CPU"
        )
