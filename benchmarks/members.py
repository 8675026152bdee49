r"""A pre-trained checkpoint beside stock's class of it: does stock load it whole, say the same, and
how fast is each in training.

    python benchmarks/members.py --checkpoints runs/my_roberta runs/my_albert \
        --output_dir docs/results/members

The settings and the data are those of each checkpoint's run.yaml. A step is forward, backward and
torch's AdamW, with the same batches in the same precision; both sides take turns in one process.
Nothing is trained on: the weights of the folder stay.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers

from bert_recipes.config import parse_arguments
from bert_recipes.data.order import epoch_order
from bert_recipes.errors import InputError, run_cli
from bert_recipes.files import write_json
from bert_recipes.models.bert_model import enable_packed_layers
from bert_recipes.models.checkpoints import open_checkpoint
from bert_recipes.settings import option
from bert_recipes.training.arguments import (
    DataArguments,
    DistillationArguments,
    ModelArguments,
    PhaseArguments,
    PreTrainingArguments,
)
from bert_recipes.training.bert_trainer import EVALUATION_SEED
from bert_recipes.training.pretraining import load_data
from bert_recipes.training.speed import describe_machine


@dataclass
class MembersArguments:
    """What is compared, how long, and where the results go."""

    checkpoints: list[str] | None = option(None, "folders of finished runs of recipes/pretrain.py")
    rounds: int = option(5, "each side takes so many turns", least=1)
    steps: int = option(8, "of a turn", least=1)
    output_dir: str | None = option(
        None, "folder of results.json and table.md; default: print alone"
    )


def batches_of(
    folder: str, output_dir: str
) -> tuple[list[dict[str, torch.Tensor]], PreTrainingArguments]:
    """The held-out batches of a run's settings, 8 of its micro-batches or what there is."""
    classes = (
        ModelArguments,
        DataArguments,
        PreTrainingArguments,
        PhaseArguments,
        DistillationArguments,
    )
    argv = ["--config", f"{folder}/run.yaml", "--output_dir", output_dir]
    _, settings, args, *_ = parse_arguments(*classes, argv=argv)
    data = load_data(settings, args.seed)
    if data.validation is None:
        raise InputError(f"{folder}: the store of its run has no held-out part")
    size = args.per_device_train_batch_size
    order = epoch_order(EVALUATION_SEED, 0, data.validation.num_pairs(0))[: 8 * size].tolist()
    count = len(order) // size * size
    features = [data.validation[(0, number)] for number in order[:count]]
    return [data.collator(features[start : start + size]) for start in range(0, count, size)], args


def for_stock(model: Any, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A batch under the names of stock's class."""
    names = (
        {"next_sentence_label": "sentence_order_label"}
        if model.config.model_type == "albert"
        else {}
    )
    taken = {names.get(name, name): values for name, values in batch.items()}
    if getattr(model.config, "type_vocab_size", 1) < 2:
        del taken["token_type_ids"]
    return taken


def training_step(model: Any, precision: str) -> Callable[[dict[str, torch.Tensor]], None]:
    """A step of training whose learning rate is 0."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)

    def step(batch: dict[str, torch.Tensor]) -> None:
        with torch.autocast(model.device.type, torch.bfloat16, enabled=precision == "bf16"):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def compare(folder: str, args: MembersArguments) -> dict[str, Any]:
    """One checkpoint, ours and stock's."""
    batches, run = batches_of(folder, args.output_dir or folder)
    ours, _ = open_checkpoint(folder, cached_only=True)
    enable_packed_layers(ours, run.fast_layers)
    kind = getattr(transformers, ours.config.architectures[0])
    stock, info = kind.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    if wrong := [f"{what} {sorted(keys)}" for what, keys in info.items() if keys]:
        raise InputError(f"{folder}: {kind.__name__} does not load it whole: {', '.join(wrong)}")
    stock_batches = [for_stock(stock, batch) for batch in batches]
    with torch.no_grad():
        losses = [
            ours.eval()(**batches[0]).loss.item(),
            stock.eval()(**stock_batches[0]).loss.item(),
        ]
    tokens = [int(batch["attention_mask"].sum()) for batch in batches]
    precision = "bf16" if run.bf16 else "fp32"
    sides = {
        "ours": (training_step(ours.train(), precision), batches),
        "stock": (training_step(stock.train(), precision), stock_batches),
    }
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(args.rounds + 1):
        for name, (step, inputs) in sides.items():
            start, done = time.perf_counter(), 0
            for place in range(args.steps):
                step(inputs[place % len(inputs)])
                done += tokens[place % len(inputs)]
            if number:  # the first turn warms up
                rates[name].append(done / (time.perf_counter() - start))
    ratios = [mine / its for mine, its in zip(rates["ours"], rates["stock"], strict=True)]
    return {
        "checkpoint": Path(folder).name,
        "class": kind.__name__,
        "parameters": stock.num_parameters(),
        "missing_or_unexpected_keys": 0,
        "loss": dict(zip(sides, losses, strict=True)),
        "precision": precision,
        "batch": list(batches[0]["input_ids"].shape),
        "tokens_per_second": {name: statistics.median(values) for name, values in rates.items()},
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "machine": describe_machine(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def table(records: list[dict[str, Any]]) -> Iterator[str]:
    """Markdown, a line a checkpoint."""
    yield (
        "| checkpoint | stock's class | parameters | held-out loss, ours and stock's | "
        "tokens/s, ours | stock | ratio |"
    )
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for each in records:
        rate, ratios = each["tokens_per_second"], each["ratios"]
        yield (
            f"| {each['checkpoint']} | `{each['class']}` | {each['parameters']:,} | "
            f"{each['loss']['ours']:.4f}, {each['loss']['stock']:.4f} "
            f"| {rate['ours']:,.0f} | {rate['stock']:,.0f} | {each['ratio']:.1f}x "
            f"({min(ratios):.1f} to {max(ratios):.1f}) |"
        )


def main() -> None:
    """Compare each, and write the table."""
    (args,) = parse_arguments(MembersArguments)
    if not args.checkpoints:
        raise InputError("give --checkpoints FOLDER ..., finished runs of recipes/pretrain.py")
    records = [compare(folder, args) for folder in args.checkpoints]
    text = "\n".join(table(records)) + "\n"
    if args.output_dir is not None:
        folder = Path(args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "results.json", records)
        (folder / "table.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    run_cli(main)
