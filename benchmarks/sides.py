"""A training step, or predictions, on each side: the same generated inputs, ours and stock
transformers.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import yaml
from generated import (
    CLS_ID,
    MIXED_SHORT,
    PAD_ID,
    SEP_ID,
    GeneratedSplit,
    draw_zipf,
    write_vocabulary,
)
from lengths import TASK_LIMITS, draw_lengths
from side_by_side import Sample
from torch.utils.data import Sampler
from transformers import (
    BertConfig,
    BertTokenizer,
    DataCollatorForLanguageModeling,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)
from transformers.trainer_pt_utils import get_length_grouped_indices

from bert_recipes.config import parse_arguments
from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.order import epoch_order
from bert_recipes.data.store import open_store
from bert_recipes.finetuning.arguments import FineTuningArguments, TaskArguments
from bert_recipes.finetuning.kind import EncodedSplit
from bert_recipes.finetuning.run import KIND_CLASSES
from bert_recipes.finetuning.trainer import FineTuningTrainer
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.tasks.catalogue import get_task
from bert_recipes.tasks.examples import Split
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.training.arguments import (
    DataArguments,
    ModelArguments,
    PhaseArguments,
    PreTrainingArguments,
)
from bert_recipes.training.objectives import OBJECTIVES
from bert_recipes.training.pretraining import (
    PreTrainingData,
    load_data,
    load_model,
    make_collator,
    make_trainer,
)
from bert_recipes.training.speed import keep_freed_memory


STOCK_FILE = Path(__file__).resolve().parent / "stock.yaml"
# Settings of stock.yaml that are no field of TrainingArguments.
OWN_SETTINGS = ("attention", "padding", "keep_freed_memory")
# Generated tokens, at least; and the limit of predictions: google-research/bert README, 20 of 128.
MIN_TOKENS, MASKED_SHARE = 50_000, 0.15
# Batches that stock sorts by length at a time.
GROUPED = 50
# Inputs of a pass of predictions: long enough that ours can put like lengths together as it does
# for a real split.
PREDICTED = 512
IGNORE_INDEX = -100
MODEL_CLASSES = {
    "sequence_classification": transformers.BertForSequenceClassification,
    "question_answering": transformers.BertForQuestionAnswering,
    "token_classification": transformers.BertForTokenClassification,
}


def stock_configurations(device: str) -> dict[str, dict[str, Any]]:
    """Side -> its settings, of stock.yaml, for "cpu" or "gpu"."""
    return yaml.safe_load(STOCK_FILE.read_text(encoding="utf-8"))[device]


def on_cpu(sample: Sample) -> bool:
    """Whether the sample runs on the CPU."""
    return sample.use_cpu or not torch.cuda.is_available()


def command_line(config: str, flags: Mapping[str, Any]) -> list[str]:
    """`--config FILE --name value ...` with the flags that are not None."""
    given = {"config": config or None, **flags}
    return [
        str(part)
        for name, value in given.items()
        if value is not None
        for part in (f"--{name}", value)
    ]


def make_side(sample: Sample) -> Any:
    """Make the Trainer of the side that the sample names."""
    if sample.kind == "pretraining":
        return our_pretraining(sample) if sample.is_ours else stock_pretraining(sample)
    # A whole pass is measured after one that is not: both are over the same examples.
    features = make_features(
        sample, sample.batch_size * (sample.max_steps if sample.whole_pass else sample.total_steps)
    )
    return (
        our_finetuning(sample, features) if sample.is_ours else stock_finetuning(sample, features)
    )


# Stock


class StockTrainer(Trainer):
    """`Trainer` as it comes, but for batches of like length: in random order, so that the first
    ones are like all.

    Stock sorts fifty batches at a time and serves the longest first: a sample would hold long rows
    alone. The lengths are given, as only a `datasets.Dataset` can tell stock its own.
    """

    def __init__(self, lengths: Sequence[int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lengths = list(lengths)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        return LikeLengths(self.lengths, self.args.train_batch_size, self.args.seed)


class LikeLengths(Sampler[int]):
    """Stock's batches of like length, up to fifty sorted at a time, in random order."""

    def __init__(self, lengths: list[int], batch_size: int, seed: int) -> None:
        self.lengths, self.batch_size, self.seed = lengths, batch_size, seed

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        size, generator = self.batch_size, torch.Generator().manual_seed(self.seed)
        mult = max(1, min(GROUPED, len(self.lengths) // size))
        numbers = get_length_grouped_indices(
            self.lengths, size, mega_batch_mult=mult, generator=generator
        )
        batches = [numbers[start : start + size] for start in range(0, len(numbers), size)]
        whole = [batch for batch in batches if len(batch) == size]
        random.Random(self.seed).shuffle(whole)
        yield from (number for batch in whole for number in batch)
        yield from (number for batch in batches if len(batch) < size for number in batch)


def stock_arguments(sample: Sample, batch_size: int, **more: Any) -> TrainingArguments:
    """`TrainingArguments` of a configuration of stock; everything else is the default, but nothing
    is saved.

    The data is shuffled already, in the order in which ours is trained: read one after the other,
    both sides have the same batches.
    """
    # Stock takes the precision of the environment where it is given none, and ours leaves its own
    # there.
    os.environ.pop("ACCELERATE_MIXED_PRECISION", None)
    if sample.switches.get("keep_freed_memory") and on_cpu(sample):
        keep_freed_memory()
    given = {name: value for name, value in sample.switches.items() if name not in OWN_SETTINGS}
    values = {
        "max_steps": sample.total_steps,
        "train_sampling_strategy": "sequential",
        **given,
        **more,
    }
    return TrainingArguments(
        output_dir=f"{sample.work_dir}/stock",
        per_device_train_batch_size=batch_size,
        seed=sample.seed % 2**31,
        use_cpu=on_cpu(sample),
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **values,
    )


def stock_config(size: str, vocab_size: int) -> BertConfig:
    """Return a `BertConfig` of one of our sizes, everything else as stock has it."""
    ours = pretraining_config(size, vocab_size=vocab_size)
    kept = (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
    )
    return BertConfig(**{name: getattr(ours, name) for name in kept})


def vocabulary_of(sample: Sample) -> Path:
    """Return the generated vocabulary, written where it is not there yet."""
    file = Path(sample.work_dir) / "vocab.txt"
    return file if file.is_file() else write_vocabulary(file, sample.vocab_size)


# Pre-training


def our_settings(sample: Sample) -> tuple[ModelArguments, DataArguments, PreTrainingArguments]:
    """Read recipes/configs/pretrain with the size, length, batch and steps of the sample."""
    flags: dict[str, Any] = {
        "store": sample.store or "generated",
        "output_dir": f"{sample.work_dir}/ours",
        "size": sample.size,
        "max_seq_length": sample.length,
        "max_predictions_per_seq": math.ceil(sample.length * MASKED_SHARE),
        "global_train_batch_size": sample.pairs_per_step,
        "per_device_train_batch_size": sample.pairs_per_step,
        "max_steps": sample.total_steps,
        "phase2_steps": 0,
        "seed": sample.seed,
        "eval_strategy": "no",
        "save_strategy": "no",
        "disable_tqdm": "true",
        "data_cache_dir": f"{sample.work_dir}/pairs",
    }
    if on_cpu(sample):  # workers would take the cores of the training
        flags |= {"use_cpu": "true", "dataloader_num_workers": 0}
    if sample.is_ours:
        flags |= sample.switches
    classes = (ModelArguments, DataArguments, PreTrainingArguments, PhaseArguments)
    model, data, args, _ = parse_arguments(*classes, argv=command_line(sample.config, flags))
    return model, data, args


def make_data(sample: Sample, settings: DataArguments) -> PreTrainingData:
    """Give a store's pairs, or those of generated ids in memory, enough for every step of the
    sample.
    """
    if sample.store:
        return load_data(settings, sample.seed)
    tokenizer = load_tokenizer(vocabulary_of(sample), do_lower_case=True)
    needed = max(MIN_TOKENS, math.ceil(1.3 * sample.tokens_per_step * sample.total_steps))
    split = GeneratedSplit(needed, sample.vocab_size, documents=sample.documents, seed=sample.seed)
    train = PreTrainingDataset(
        split,  # type: ignore[arg-type]  # the same methods
        cls_id=CLS_ID,
        sep_id=SEP_ID,
        store_fingerprint=f"generated-{sample.documents}-{sample.vocab_size}-{sample.seed}",
        max_seq_length=sample.length,
        short_seq_prob=MIXED_SHORT if sample.documents == "mixed" else settings.short_seq_prob,
        seed=sample.seed,
        cache_dir=Path(sample.work_dir) / "pairs",
    )
    collator = make_collator(settings, tokenizer, sample.seed)
    return PreTrainingData(
        tokenizer, train, None, collator, lambda: np.zeros(sample.vocab_size, dtype=np.int64)
    )


class StaticPairs(torch.utils.data.Dataset):
    """The pairs of epoch 0 in the order in which ours is trained on them, as a stock collator takes
    them.
    """

    def __init__(self, data: PreTrainingDataset, seed: int) -> None:
        order = epoch_order(seed, 0, data.num_pairs(0))
        self.lengths = data.lengths(0)[order].tolist()
        pairs = (data[(0, index)] for index in order.tolist())
        # Small arrays: what the data takes is in the memory that is compared.
        self._pairs = [
            (
                pair["input_ids"].astype(np.int32),
                pair["token_type_ids"].astype(np.int8),
                pair["next_sentence_label"],
            )
            for pair in pairs
        ]

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, number: int) -> dict[str, Any]:
        ids, types, label = self._pairs[number]
        return {
            "input_ids": ids.tolist(),
            "token_type_ids": types.tolist(),
            "next_sentence_label": int(label),
        }


def our_pretraining(sample: Sample) -> Any:
    """Make the Trainer that recipes/pretrain.py makes."""
    model_args, data_args, args = our_settings(sample)
    data = make_data(sample, data_args)
    model = load_model(model_args, data.tokenizer, sample.length, sample.seed)
    trainer_class = OBJECTIVES[model_args.objective].trainer_class()
    return make_trainer(model, args, data, data_args.max_eval_pairs, trainer_class)


def stock_pretraining(sample: Sample) -> Any:
    """Make `BertForPreTraining`, `DataCollatorForLanguageModeling` and `Trainer` with a
    configuration of stock.
    """
    data = make_data(sample, our_settings(sample)[1])
    vocabulary = (
        open_store(sample.store).tokenizer_path / "vocab.txt"
        if sample.store
        else vocabulary_of(sample)
    )
    tokenizer = BertTokenizer(vocab=str(vocabulary))
    assert len(tokenizer) == len(data.tokenizer)
    assert isinstance(data.train, PreTrainingDataset)
    set_seed(sample.seed)
    model = transformers.BertForPreTraining(stock_config(sample.size, len(tokenizer)))
    pairs = StaticPairs(data.train, sample.seed)
    return make_stock_trainer(
        sample,
        StockTrainer,
        model,
        tokenizer,
        pairs,
        sample.length,
        stock_arguments(sample, sample.pairs_per_step),
    )


def make_stock_trainer(
    sample: Sample,
    kind: type,
    model: Any,
    tokenizer: Any,
    pairs: StaticPairs,
    length: int,
    args: TrainingArguments,
) -> Any:
    """Put stock's parts of pre-training together."""
    model.set_attn_implementation(sample.switches.get("attention", "sdpa"))
    multiple = length if sample.switches.get("padding") == "max" else None
    collator = DataCollatorForLanguageModeling(tokenizer, pad_to_multiple_of=multiple)
    return kind(pairs.lengths, model=model, args=args, data_collator=collator, train_dataset=pairs)


# Fine-tuning and predictions: random weights, features of random ids with the lengths of a real
# task


def make_features(sample: Sample, count: int) -> list[dict[str, Any]]:
    """Make features with random ids and labels; a third of the positions are segment A, as in MNLI.

    Returns:
        Each with lists input_ids, token_type_ids, attention_mask, and the labels of the task's
        kind.
    """
    rng = np.random.default_rng(sample.seed)
    limit, kind = TASK_LIMITS[sample.task], get_task(sample.task).kind
    features = []
    for length in np.minimum(
        draw_lengths(sample.lengths, count, sample.seed), limit.max_length
    ).tolist():
        size = max(4, int(length))
        ids = [CLS_ID, *draw_zipf(rng, size - 2, sample.vocab_size).tolist(), SEP_ID]
        types = [0] * (size // 3) + [1] * (size - size // 3)
        feature: dict[str, Any] = {
            "input_ids": ids,
            "token_type_ids": types,
            "attention_mask": [1] * size,
        }
        if kind == "question_answering":
            start = int(rng.integers(1, size - 1))
            feature |= {"start_positions": start, "end_positions": min(start + 3, size - 1)}
        elif kind == "token_classification":
            # About one piece in five goes on with a word and has no label.
            labels = np.where(
                rng.random(size) < 0.2, IGNORE_INDEX, rng.integers(0, limit.num_labels, size)
            )
            labels[[0, -1]] = IGNORE_INDEX
            feature["labels"] = labels.tolist()
        else:
            feature["labels"] = int(rng.integers(0, limit.num_labels))
        features.append(feature)
    return features


def task_model(sample: Sample) -> Any:
    """Make a stock model class with random weights."""
    kind, config = get_task(sample.task).kind, stock_config(sample.size, sample.vocab_size)
    if kind != "question_answering":
        config.num_labels = TASK_LIMITS[sample.task].num_labels
    set_seed(sample.seed)
    return MODEL_CLASSES[kind](config)


def our_task_trainer(
    sample: Sample, flags: Mapping[str, Any], encoded: EncodedSplit | None
) -> FineTuningTrainer:
    """Make the Trainer that `finetuning.run` makes, with the layers and the memory that it
    chooses.
    """
    values = {
        "task": sample.task,
        "output_dir": f"{sample.work_dir}/ours",
        "disable_tqdm": "true",
        "seed": sample.seed,
    }
    values |= {"use_cpu": str(on_cpu(sample)).lower(), "eval_strategy": "no", **flags}
    settings, args = parse_arguments(
        TaskArguments, FineTuningArguments, argv=command_line(sample.config, values)
    )
    task = get_task(sample.task)
    tokenizer = load_tokenizer(vocabulary_of(sample), do_lower_case=True)
    names = {name: number for number, name in enumerate(task.labels)}
    kind = KIND_CLASSES[task.kind](task, tokenizer, settings, names)
    return FineTuningTrainer(
        task_model(sample), args, kind, train_dataset=encoded, processing_class=tokenizer
    )


def encode(features: Sequence[Mapping[str, Any]], *, labels: bool = True) -> EncodedSplit:
    """Make features a split of ours, which makes its attention mask itself."""
    left_out = {"attention_mask"} if labels else {"attention_mask", "labels"}
    kept = [
        {name: value for name, value in feature.items() if name not in left_out}
        for feature in features
    ]
    lengths = np.array([len(feature["input_ids"]) for feature in kept], dtype=np.int64)
    split = Split(
        name="generated", examples=(), source="generated", num_rows=len(kept), is_labelled=labels
    )
    return EncodedSplit(split=split, features=kept, lengths=lengths)


def our_finetuning(sample: Sample, features: list[dict[str, Any]]) -> FineTuningTrainer:
    """Fine-tune with recipes/configs/finetune."""
    flags = {
        "global_train_batch_size": sample.batch_size,
        "max_steps": sample.total_steps,
        "save_strategy": "no",
    }
    flags |= {"max_seq_length": TASK_LIMITS[sample.task].max_length, **sample.switches}
    return our_task_trainer(sample, flags, encode(features))


def stock_finetuning(sample: Sample, features: list[dict[str, Any]]) -> StockTrainer:
    """Fine-tune with the stock model and `Trainer`, padded as the example of transformers pads
    unless the configuration says more.
    """
    limit = TASK_LIMITS[sample.task]
    tokenizer = BertTokenizer(vocab=str(vocabulary_of(sample)))
    lengths = [len(feature["input_ids"]) for feature in features]
    is_tagging = get_task(sample.task).kind == "token_classification"
    collator: Any = (DataCollatorForTokenClassification if is_tagging else DataCollatorWithPadding)(
        tokenizer
    )
    if (
        sample.switches.get("padding", limit.stock_padding) == "max"
    ):  # once, as the examples do it while they tokenise
        pads = {
            "input_ids": PAD_ID,
            "token_type_ids": 0,
            "attention_mask": 0,
            "labels": IGNORE_INDEX,
        }
        features = [
            {
                name: value + [pads[name]] * (limit.max_length - len(value))
                if isinstance(value, list)
                else value
                for name, value in feature.items()
            }
            for feature in features
        ]
        collator = default_data_collator
    model = task_model(sample)
    model.set_attn_implementation(sample.switches.get("attention", "sdpa"))
    args = stock_arguments(sample, sample.batch_size)
    return StockTrainer(
        lengths, model=model, args=args, data_collator=collator, train_dataset=features
    )


def measure_predictions(sample: Sample) -> dict[str, Any]:
    """Time passes over the same examples until the time is over, after one batch that is not
    counted.
    """
    features = make_features(
        sample, PREDICTED if sample.budget_seconds >= 2 else 2 * sample.batch_size
    )
    if sample.is_ours:
        flags = {"precision": sample.precision, "per_device_eval_batch_size": sample.batch_size}
        ours = our_task_trainer(sample, flags, None)
        ours.model.to(ours.args.device)  # outside of training nobody else moves it

        def predict(count: int) -> Any:
            return ours.predict_outputs(encode(features[:count], labels=False))
    else:
        more = {"per_device_eval_batch_size": sample.batch_size, "bf16": sample.precision == "bf16"}
        collator = DataCollatorWithPadding(BertTokenizer(vocab=str(vocabulary_of(sample))))
        args = stock_arguments(sample, sample.batch_size, **more)
        stock = Trainer(model=task_model(sample), args=args, data_collator=collator)
        inputs = [
            {name: value for name, value in feature.items() if name != "labels"}
            for feature in features
        ]

        def predict(count: int) -> Any:
            return stock.predict(inputs[:count])

    predict(sample.batch_size)
    seconds: list[float] = []
    while sum(seconds) < sample.budget_seconds and len(seconds) < sample.max_steps:
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
        "precision": sample.precision,
        "examples_per_second": round(len(features) * len(seconds) / sum(seconds), 3),
        "tokens_per_second": round(tokens * len(seconds) / sum(seconds), 2),
    }
