"""Predictions for the lengths of a task on each side: stock `Trainer.predict`, ours `FineTuningTrainer.predict_outputs`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import BertTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments

from speed.finetuning_sides import encode, make_features, make_model, our_trainer, vocabulary_of
from speed.spec import OURS, SampleSpec
from speed.stock_switches import StaticDataset, forget_precision


# Examples of one pass: long enough that ours can put like lengths together as it does for a real split.
EXAMPLES = 512


def measure(spec: SampleSpec) -> dict[str, Any]:
    """Passes over the same examples until the time is over, after one batch that is not counted."""
    features = make_features(spec, EXAMPLES if spec.budget_seconds >= 2 else 2 * spec.batch_size)
    predict = _ours(spec, features) if spec.side == OURS else _stock(spec, features)
    predict(spec.batch_size)
    seconds: list[float] = []
    while sum(seconds) < spec.budget_seconds and len(seconds) < spec.max_steps:
        start = time.perf_counter()
        predict(len(features))
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    tokens = sum(len(feature["input_ids"]) for feature in features)
    return {
        "pass_seconds": [round(value, 6) for value in seconds],
        "examples": len(features),
        "tokens": tokens,
        "precision": spec.precision,
        "examples_per_second": round(len(features) * len(seconds) / sum(seconds), 3),
        "tokens_per_second": round(tokens * len(seconds) / sum(seconds), 2),
    }


def _ours(spec: SampleSpec, features: list[dict[str, Any]]) -> Callable[[int], Any]:
    flags = {"precision": spec.precision, "per_device_eval_batch_size": spec.batch_size, "eval_strategy": "no"}
    trainer = our_trainer(spec, flags, None)
    # Outside of training nobody else moves the model.
    trainer.model.to(trainer.args.device)
    return lambda count: trainer.predict_outputs(encode(spec, features[:count], labels=False))


def _stock(spec: SampleSpec, features: list[dict[str, Any]]) -> Callable[[int], Any]:
    forget_precision()
    args = TrainingArguments(
        output_dir=f"{spec.work_dir}/stock",
        per_device_eval_batch_size=spec.batch_size,
        use_cpu=spec.use_cpu or not torch.cuda.is_available(),
        bf16=spec.precision == "bf16",
        report_to="none",
        disable_tqdm=True,
    )
    collator = DataCollatorWithPadding(BertTokenizer(vocab=str(vocabulary_of(spec))))
    inputs = [{name: value for name, value in feature.items() if name != "labels"} for feature in features]
    trainer = Trainer(model=make_model(spec), args=args, data_collator=collator)
    return lambda count: trainer.predict(StaticDataset(inputs[:count]))
