"""The switches of a stock Trainer, and how they are given to it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler
from transformers import Trainer, TrainingArguments
from transformers.trainer_pt_utils import get_length_grouped_indices

from bert_recipes.training.speed import keep_freed_memory
from speed.spec import SampleSpec


# Batches that stock sorts by length at a time.
GROUPED = 50
# Switch -> its values; `defaults` says from which of them a search starts.
CHOICES: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "precision": ("fp32", "bf16"),
        "attn": ("sdpa", "eager"),
        "optim": ("adamw_torch_fused", "adamw_torch"),
        "padding": ("batch", "max"),
        "order": ("random", "group_by_length"),
        # mallopt as our own recipes have it (memory.py): not a setting of transformers, but anybody's to use
        "glibc": (False, True),
        # processes that load data, beside a GPU only: on a CPU they take the cores of the training
        "workers": (0, 2),
        "compile": (False, True),
    }
)


def stock_defaults(padding: str = "batch") -> dict[str, Any]:
    """Switch -> the value that stock has by default in the installed version.

    Args:
        padding: What the stock script of this work does: "batch" or "max".
    """
    optim = next(item.default for item in fields(TrainingArguments) if item.name == "optim")
    chosen = {name: values[0] for name, values in CHOICES.items()}
    return chosen | {"optim": str(getattr(optim, "value", optim)), "padding": padding}


class StaticDataset(Dataset):
    """A plain map-style data set of dicts.

    Args:
        items: One dict an example.
    """

    def __init__(self, items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.items[index]


class StockTrainer(Trainer):
    """`Trainer` as it comes; only the lengths for group_by_length are given, not looked up example by example.

    Args:
        lengths: Positions of each training example.
        kwargs: Everything that `Trainer` takes.
    """

    def __init__(self, lengths: list[int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lengths = lengths

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        return GroupedBatches(self.lengths, self.args.train_batch_size, self.args.seed)


class GroupedBatches(Sampler[int]):
    """Stock's batches of like length, in an order in which a few of them are like all.

    Stock sorts fifty batches at a time, the longest first (fewer in a small data set, which a sample is; here always up to
    fifty): the first steps would hold long rows alone. The batches are stock's; each fifty come in the order of van der Corput's
    sequence, of which any part is spread over the whole.

    Args:
        lengths: Positions of each training example.
        batch_size: Examples of a batch.
        seed: Of the permutation.
    """

    def __init__(self, lengths: list[int], batch_size: int, seed: int) -> None:
        self.lengths, self.batch_size, self.seed = lengths, batch_size, seed

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        mult = max(1, min(GROUPED, len(self.lengths) // self.batch_size))
        generator = torch.Generator().manual_seed(self.seed)
        numbers = get_length_grouped_indices(self.lengths, self.batch_size, mega_batch_mult=mult, generator=generator)
        size = mult * self.batch_size
        for start in range(0, len(numbers), size):
            part = numbers[start : start + size]
            batches = [part[place : place + self.batch_size] for place in range(0, len(part), self.batch_size)]
            whole = [batch for batch in batches if len(batch) == self.batch_size]
            for place in sorted(range(len(whole)), key=_van_der_corput):
                yield from whole[place]
            yield from (number for batch in batches[len(whole) :] for number in batch)


def _van_der_corput(number: int) -> int:
    """The bits of a number below 64 in reverse."""
    return int(f"{number:06b}"[::-1], 2)


def forget_precision() -> None:
    """Stock arguments take the precision of the environment where they are given none; ours leave theirs there."""
    os.environ.pop("ACCELERATE_MIXED_PRECISION", None)


def stock_arguments(spec: SampleSpec, switches: Mapping[str, Any], batch_size: int) -> TrainingArguments:
    """`TrainingArguments` with the switches; everything else is the default, but nothing is saved.

    The data is shuffled already, in the order in which ours is trained: read one after the other, both sides have the
    same batches. Only "group_by_length" has its own.

    Args:
        spec: Steps, device and folder.
        switches: Switch -> value for all of `CHOICES`.
        batch_size: Examples of a step.
    """
    forget_precision()
    if switches["glibc"] and (spec.use_cpu or not torch.cuda.is_available()):
        keep_freed_memory()
    return TrainingArguments(
        output_dir=f"{spec.work_dir}/stock",
        per_device_train_batch_size=batch_size,
        max_steps=spec.total_steps,
        seed=spec.seed % 2**31,
        use_cpu=spec.use_cpu or not torch.cuda.is_available(),
        bf16=switches["precision"] == "bf16",
        optim=switches["optim"],
        torch_compile=switches["compile"],
        train_sampling_strategy="group_by_length" if switches["order"] == "group_by_length" else "sequential",
        dataloader_num_workers=switches["workers"],
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
