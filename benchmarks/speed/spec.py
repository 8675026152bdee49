"""What a sample process is told: one flat record that goes through JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any


# Sides of a comparison, in the order in which a round runs them.
STOCK_DEFAULTS, STOCK_BEST, OURS = "stock_defaults", "stock_best", "ours"
SIDES = (STOCK_DEFAULTS, STOCK_BEST, OURS)
# Ours, one step after the other: side -> what it is, and the settings with which it is ours without the steps to come.
STEPS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "ours_fp32": (
        "vocabulary for masked tokens alone, fused Adam and GELU, kept memory",
        {"precision": "fp32", "fast_layers": "off"},
    ),
    "ours_bf16": ("bfloat16 products", {"precision": "bf16", "fast_layers": "off"}),
    OURS: ("layers on packed rows with fused kernels, logits never held", {}),
}
MAX_WARMUP_STEPS = 12
# What has to be equal for what was found for one sample to hold for another.
_WORK = (
    "kind",
    "size",
    "length",
    "tokens_per_step",
    "batch_size",
    "vocab_size",
    "documents",
    "store",
    "task",
    "files",
    "seed",
)
# Where things lie is no part of what is measured.
_PLACES = ("work_dir", "config")


def same_work(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two descriptions (of `SampleSpec.describe`, through JSON) are of the same work, however long it was measured."""
    return all(first.get(name) == second.get(name) for name in _WORK)


@dataclass(frozen=True)
class SampleSpec:
    """One sample.

    Attributes:
        kind: "pretraining", "finetuning", "inference", "matmul", "data" or "quality".
        side: One of `SIDES`; "" where there is only one.
        work_dir: Folder that the samples of a case share: vocabulary, tables of pairs, prepared text.
        config: YAML file of ours.
        size: One of `bert_recipes.models.sizes.SIZES`.
        length: Longest input in tokens.
        tokens_per_step: Positions of a pre-training step.
        batch_size: Examples of a fine-tuning step or a prediction batch.
        vocab_size: Entries of the vocabulary.
        documents: "long", "paragraphs" or "mixed".
        store: A real store instead of generated ids.
        task: Whose lengths are drawn.
        lengths: int counts of the lengths 0, 1, ... of that task.
        what: Which measure of the data suite.
        megabytes: Size of the generated text.
        files: Real text instead of generated text.
        switches: What stock is given on top of its defaults, ours on top of its configuration.
        precision: Of an inference sample.
        use_cpu: Even where there is a GPU.
        warmup_steps, warmup_seconds: Steps that are not counted: at least so many, and until so much time has gone by or
            `MAX_WARMUP_STEPS` are done.
        min_steps, max_steps: Measured steps, at least and at most.
        budget_seconds: Measured steps end at the first that reaches it.
        whole_pass: Always measure max_steps: where batches hold examples of like length, a part of them is not like all.
        minutes: Of a run to a quality.
        seed: Of data and weights.
    """

    kind: str
    side: str = ""
    work_dir: str = ""
    config: str = ""
    size: str = "tiny"
    length: int = 128
    tokens_per_step: int = 4096
    batch_size: int = 32
    vocab_size: int = 30_522
    documents: str = "long"
    store: str | None = None
    task: str | None = None
    lengths: tuple[int, ...] = ()
    what: str = ""
    megabytes: float = 4.0
    files: tuple[str, ...] = ()
    switches: Mapping[str, Any] = field(default_factory=dict)
    precision: str = "fp32"
    use_cpu: bool = False
    warmup_steps: int = 2
    warmup_seconds: float = 0.0
    min_steps: int = 3
    max_steps: int = 200
    budget_seconds: float = 10.0
    whole_pass: bool = False
    minutes: float = 20.0
    seed: int = 12345

    @property
    def is_ours(self) -> bool:
        """Whether the side is ours, or a step on the way to it."""
        return self.side in STEPS

    @property
    def pairs_per_step(self) -> int:
        """Sentence pairs of a pre-training step, 1 or more."""
        return max(1, self.tokens_per_step // self.length)

    @property
    def total_steps(self) -> int:
        """Steps of the schedule; the same whether or not the time is over before."""
        return max(self.warmup_steps, MAX_WARMUP_STEPS if self.warmup_seconds else 0) + self.max_steps

    def describe(self) -> dict[str, Any]:
        """What the results file keeps of it: fields that differ from their defaults, no folders, no histogram."""
        defaults = {item.name: item.default for item in fields(self)}
        values = {name: value for name, value in asdict(self).items() if value != defaults[name]}
        if not self.switches:
            values.pop("switches", None)
        return {name: value for name, value in values.items() if name not in (*_PLACES, "lengths")}

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> SampleSpec:
        """Read what `write` wrote."""
        values = json.loads(path.read_text(encoding="utf-8"))
        values["lengths"], values["files"] = tuple(values["lengths"]), tuple(values["files"])
        return cls(**values)
