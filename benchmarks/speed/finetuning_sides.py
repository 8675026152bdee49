"""A fine-tuning step on each side: random weights, features of random ids with the lengths of a real task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import (
    BertConfig,
    BertTokenizer,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    default_data_collator,
    set_seed,
)

from bert_recipes.config import parse_arguments
from bert_recipes.finetuning.arguments import FineTuningArguments, TaskArguments
from bert_recipes.finetuning.kind import EncodedSplit
from bert_recipes.finetuning.run import KIND_CLASSES
from bert_recipes.finetuning.trainer import FineTuningTrainer
from bert_recipes.tasks.rows import Split, get_task
from bert_recipes.tokenization.loading import load_tokenizer
from speed.lengths import TASK_LIMITS, draw_lengths
from speed.pretraining_sides import stock_config
from speed.spec import OURS, SampleSpec
from speed.stock_switches import StaticDataset, StockTrainer, stock_arguments, stock_defaults
from speed.synthetic import CLS_ID, PAD_ID, SEP_ID, draw_zipf, write_vocabulary


MODEL_CLASSES: Mapping[str, str] = {
    "sequence_classification": "BertForSequenceClassification",
    "question_answering": "BertForQuestionAnswering",
    "token_classification": "BertForTokenClassification",
}
IGNORE_INDEX = -100


def make_features(spec: SampleSpec, count: int) -> list[dict[str, Any]]:
    """Features with random ids and labels; lengths as the task's.

    A third of the positions are segment A, as in MNLI; labels are drawn evenly.

    Args:
        spec: Task, its lengths, vocabulary, seed.
        count: How many.

    Returns:
        Each with lists input_ids, token_type_ids, attention_mask, and the labels of the task's kind.
    """
    rng = np.random.default_rng(spec.seed)
    limit, kind = TASK_LIMITS[spec.task or ""], get_task(spec.task or "").kind
    features = []
    for length in np.minimum(draw_lengths(spec.lengths, count, spec.seed), limit.max_length).tolist():
        size = max(4, int(length))
        ids = [CLS_ID, *draw_zipf(rng, size - 2, spec.vocab_size).tolist(), SEP_ID]
        types = [0] * (size // 3) + [1] * (size - size // 3)
        feature: dict[str, Any] = {"input_ids": ids, "token_type_ids": types, "attention_mask": [1] * size}
        if kind == "question_answering":
            start = int(rng.integers(1, size - 1))
            feature |= {"start_positions": start, "end_positions": min(start + 3, size - 1)}
        elif kind == "token_classification":
            # About one piece in five goes on with a word and has no label.
            labels = np.where(rng.random(size) < 0.2, IGNORE_INDEX, rng.integers(0, limit.num_labels, size))
            labels[[0, -1]] = IGNORE_INDEX
            feature["labels"] = labels.tolist()
        else:
            feature["labels"] = int(rng.integers(0, limit.num_labels))
        features.append(feature)
    return features


def task_config(spec: SampleSpec) -> BertConfig:
    """The configuration of the model of a task, stock in everything but its sizes."""
    config = stock_config(spec.size, spec.vocab_size)
    if get_task(spec.task or "").kind != "question_answering":
        config.num_labels = TASK_LIMITS[spec.task or ""].num_labels
    return config


def make_model(spec: SampleSpec) -> Any:
    """A stock model class with random weights."""
    set_seed(spec.seed)
    return getattr(transformers, MODEL_CLASSES[get_task(spec.task or "").kind])(task_config(spec))


def vocabulary_of(spec: SampleSpec) -> Path:
    """The generated vocabulary, written where it is not there yet."""
    file = Path(spec.work_dir) / "vocab.txt"
    return file if file.is_file() else write_vocabulary(file, spec.vocab_size)


def our_trainer(spec: SampleSpec, flags: Mapping[str, Any], encoded: EncodedSplit | None) -> FineTuningTrainer:
    """The Trainer that `finetuning.run` makes, with the layers and the memory that it chooses.

    Args:
        spec: Task, size and configuration.
        flags: Settings on top of the configuration.
        encoded: Training features, or None.
    """
    on_cpu = spec.use_cpu or not torch.cuda.is_available()
    values = {"task": spec.task, "output_dir": f"{spec.work_dir}/ours", "disable_tqdm": "true", "seed": spec.seed}
    values |= {"use_cpu": str(on_cpu).lower()} | dict(flags)
    argv = ["--config", spec.config] if spec.config else []
    argv += [str(part) for name, value in values.items() for part in (f"--{name}", value)]
    settings, args = parse_arguments(TaskArguments, FineTuningArguments, argv=argv)
    task = get_task(spec.task or "")
    model = make_model(spec)
    names = {name: number for number, name in enumerate(task.labels)}
    tokenizer = load_tokenizer(vocabulary_of(spec), do_lower_case=True)
    kind = KIND_CLASSES[task.kind](task, tokenizer, settings, names)
    return FineTuningTrainer(model, args, kind, train_dataset=encoded, processing_class=tokenizer)


def encode(spec: SampleSpec, features: list[dict[str, Any]], *, labels: bool = True) -> EncodedSplit:
    """Features as a split of ours: it makes its attention mask itself."""
    kept = [
        {name: value for name, value in feature.items() if name != "attention_mask" and (labels or name in _INPUTS)}
        for feature in features
    ]
    lengths = np.array([len(feature["input_ids"]) for feature in kept], dtype=np.int64)
    split = Split(name="generated", examples=(), source="generated", num_rows=len(kept), is_labelled=labels)
    return EncodedSplit(split=split, features=kept, lengths=lengths)


_INPUTS = ("input_ids", "token_type_ids")


def make_ours(spec: SampleSpec, features: list[dict[str, Any]]) -> FineTuningTrainer:
    """Ours with the settings of recipes/configs/finetune."""
    flags = {
        "global_train_batch_size": spec.batch_size,
        "max_steps": spec.total_steps,
        "max_seq_length": TASK_LIMITS[spec.task or ""].max_length,
        "save_strategy": "no",
        "eval_strategy": "no",
    }
    return our_trainer(spec, flags, encode(spec, features))


def make_stock(spec: SampleSpec, features: list[dict[str, Any]]) -> StockTrainer:
    """The stock model and `Trainer`, padded as the example of transformers pads, with the switches of the sample."""
    limit = TASK_LIMITS[spec.task or ""]
    switches = stock_defaults(limit.stock_padding) | dict(spec.switches)
    tokenizer = BertTokenizer(vocab=str(vocabulary_of(spec)))
    lengths = [len(feature["input_ids"]) for feature in features]
    collator: Any = DataCollatorWithPadding(tokenizer)
    if get_task(spec.task or "").kind == "token_classification":
        collator = DataCollatorForTokenClassification(tokenizer)
    if switches["padding"] == "max":
        features = [_pad(feature, limit.max_length) for feature in features]
        collator = default_data_collator
    model = make_model(spec)
    model.set_attn_implementation(switches["attn"])
    return StockTrainer(
        lengths,
        model=model,
        args=stock_arguments(spec, switches, spec.batch_size),
        data_collator=collator,
        train_dataset=StaticDataset(features),
    )


def _pad(feature: dict[str, Any], size: int) -> dict[str, Any]:
    """A feature padded to a length once, as the examples do it while they tokenise."""
    pads = {"input_ids": PAD_ID, "token_type_ids": 0, "attention_mask": 0, "labels": IGNORE_INDEX}
    return {
        name: value + [pads[name]] * (size - len(value)) if isinstance(value, list) else value
        for name, value in feature.items()
    }


def make_side(spec: SampleSpec) -> Any:
    """The Trainer of the side that the sample names, on features for every step."""
    # A whole pass is measured after one that is not: both are over the same examples.
    steps = spec.max_steps if spec.whole_pass else spec.total_steps
    features = make_features(spec, spec.batch_size * steps)
    return make_ours(spec, features) if spec.side == OURS else make_stock(spec, features)
