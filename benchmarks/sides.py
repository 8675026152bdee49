"""The Trainers of each side, ours and stock transformers, with the same generated inputs."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from sample import Result, Sample
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
from bert_recipes.data.masking import IGNORE_INDEX
from bert_recipes.data.order import epoch_order
from bert_recipes.data.store import open_store
from bert_recipes.finetuning.arguments import FineTuningArguments, TaskArguments
from bert_recipes.finetuning.kind import EncodedSplit
from bert_recipes.finetuning.run import make_kind
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
SIDE_SETTINGS = ("attention", "padding", "keep_freed_memory")
# Fields of BertConfig that make a size.
SIZE_FIELDS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
)
# Generated tokens, at least; and the limit of predictions: google-research/bert README, 20 of 128.
MIN_TOKENS, MASKED_SHARE = 50_000, 0.15
# Batches that stock sorts by length at a time.
GROUPED_BATCHES = 50
# Inputs of a pass of predictions: long enough that ours can put like lengths together as it does
# for a real split.
PREDICTION_INPUTS = 512
Feature = dict[str, Any]  # lists of input_ids, token_type_ids, attention_mask, and labels
# What a feature of stock is padded with.
PADS = {
    "input_ids": PAD_ID,
    "token_type_ids": 0,
    "attention_mask": 0,
    "labels": IGNORE_INDEX,
}
MODEL_CLASSES = {
    "sequence_classification": transformers.BertForSequenceClassification,
    "question_answering": transformers.BertForQuestionAnswering,
    "token_classification": transformers.BertForTokenClassification,
}


def stock_configurations(section: str) -> dict[str, dict[str, Any]]:
    """Return side -> its settings, of a section of stock.yaml."""
    return yaml.safe_load(STOCK_FILE.read_text(encoding="utf-8"))[section]


def section_of_machine(sample: Sample) -> str:
    """Return the section of stock.yaml for where it runs: cpu, cpu_without_bf16 or gpu."""
    if not sample.on_cpu:
        return "gpu"
    return "cpu" if "bf16" in sample.precisions else "cpu_without_bf16"


def command_line(config: str, flags: Mapping[str, Any]) -> list[str]:
    """Return `--config FILE --name value ...` with the flags that are not None."""
    arguments = ["--config", config] if config else []
    for name, value in flags.items():
        if value is not None:
            arguments += [f"--{name}", str(value)]
    return arguments


def make_side(sample: Sample) -> Any:
    """Make the Trainer of the side that the sample names."""
    if sample.kind == "pretraining":
        return our_pretraining(sample) if sample.is_ours else stock_pretraining(sample)
    # A whole pass is measured after one that is not: both are over the same examples.
    num_steps = sample.max_steps if sample.whole_pass else sample.total_steps
    features = make_features(sample, sample.batch_size * num_steps)
    if sample.is_ours:
        return our_finetuning(sample, features)
    return stock_finetuning(sample, features)


# Stock


class StockTrainer(Trainer):
    """`Trainer` as it comes, but for batches of like length, which come in random order.

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
        self.lengths = lengths
        self.batch_size = batch_size
        self.seed = seed

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        num_batches = len(self.lengths) // self.batch_size
        numbers = get_length_grouped_indices(
            self.lengths,
            self.batch_size,
            mega_batch_mult=max(1, min(GROUPED_BATCHES, num_batches)),
            generator=torch.Generator().manual_seed(self.seed),
        )
        end = num_batches * self.batch_size
        batches = []
        for start in range(0, end, self.batch_size):
            batches.append(numbers[start : start + self.batch_size])
        random.Random(self.seed).shuffle(batches)
        for batch in batches:
            yield from batch
        yield from numbers[end:]


def stock_arguments(sample: Sample, batch_size: int, **settings: Any) -> TrainingArguments:
    """Return the `TrainingArguments` of a configuration of stock.

    Everything else is the default, but nothing is saved. The data is shuffled already, in the order
    in which ours is trained: read one after the other, both sides have the same batches.
    """
    # Stock takes the precision of the environment where it is given none, and ours leaves its own
    # there.
    os.environ.pop("ACCELERATE_MIXED_PRECISION", None)
    if sample.switches.get("keep_freed_memory") and sample.on_cpu:
        keep_freed_memory()
    values: dict[str, Any] = {
        "max_steps": sample.total_steps,
        "train_sampling_strategy": "sequential",
    }
    for name, value in sample.switches.items():
        if name not in SIDE_SETTINGS:
            values[name] = value
    values.update(settings)
    return TrainingArguments(
        output_dir=f"{sample.work_dir}/stock",
        per_device_train_batch_size=batch_size,
        seed=sample.seed % 2**31,
        use_cpu=sample.on_cpu,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **values,
    )


def stock_config(size: str, vocab_size: int) -> BertConfig:
    """Return a `BertConfig` of one of our sizes, everything else as stock has it."""
    config = pretraining_config(size, vocab_size=vocab_size)
    return BertConfig(**{name: getattr(config, name) for name in SIZE_FIELDS})


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
        "logging_steps": sample.total_steps + 1,  # as stock, which logs every 500 steps
        "phase2_steps": 0,
        "seed": sample.seed,
        "eval_strategy": "no",
        "save_strategy": "no",
        "disable_tqdm": "true",
        "data_cache_dir": f"{sample.work_dir}/pairs",
    }

    if sample.on_cpu:  # workers would take the cores of the training
        flags["use_cpu"] = "true"
        flags["dataloader_num_workers"] = 0
    if sample.is_ours:
        flags.update(sample.switches)
    classes = (ModelArguments, DataArguments, PreTrainingArguments, PhaseArguments)
    model, data, args, _ = parse_arguments(*classes, argv=command_line(sample.config, flags))
    return model, data, args


def make_data(sample: Sample, settings: DataArguments) -> PreTrainingData:
    """Return a store's pairs, or those of generated ids in memory, enough for every step."""
    if sample.store:
        return load_data(settings, sample.seed)
    tokenizer = load_tokenizer(vocabulary_of(sample), do_lower_case=True)
    num_tokens = math.ceil(1.3 * sample.tokens_per_step * sample.total_steps)
    split = GeneratedSplit(
        max(MIN_TOKENS, num_tokens),
        sample.vocab_size,
        documents=sample.documents,
        seed=sample.seed,
    )
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
    """The pairs of epoch 0 as a stock collator takes them, in the order of our training."""

    def __init__(self, data: PreTrainingDataset, seed: int) -> None:
        order = epoch_order(seed, 0, data.num_pairs(0))
        self.lengths = data.lengths(0)[order].tolist()
        # Small arrays: what the data takes is in the memory that is compared.
        self._pairs = []
        for index in order.tolist():
            pair = data[(0, index)]
            ids = pair["input_ids"].astype(np.int32)
            types = pair["token_type_ids"].astype(np.int8)
            self._pairs.append((ids, types, pair["next_sentence_label"]))

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
    """Make stock's model, collator and `Trainer` of pre-training, with a configuration of stock."""
    _, data_args, _ = our_settings(sample)
    data = make_data(sample, data_args)
    vocabulary = vocabulary_of(sample)
    if sample.store:
        vocabulary = open_store(sample.store).tokenizer_path / "vocab.txt"
    tokenizer = BertTokenizer(vocab=str(vocabulary))
    assert len(tokenizer) == len(data.tokenizer)
    assert isinstance(data.train, PreTrainingDataset)
    set_seed(sample.seed)
    model = transformers.BertForPreTraining(stock_config(sample.size, len(tokenizer)))
    model.set_attn_implementation(sample.switches.get("attention", "sdpa"))
    pairs = StaticPairs(data.train, sample.seed)
    return StockTrainer(
        pairs.lengths,
        model=model,
        args=stock_arguments(sample, sample.pairs_per_step),
        data_collator=stock_collator(sample, tokenizer, sample.length),
        train_dataset=pairs,
    )


def stock_collator(sample: Sample, tokenizer: BertTokenizer, length: int) -> Any:
    """Return stock's collator of pre-training, which pads to the batch or to the length."""
    multiple = length if sample.switches.get("padding") == "max" else None
    return DataCollatorForLanguageModeling(tokenizer, pad_to_multiple_of=multiple)


# Fine-tuning and predictions: random weights, features of random ids with the lengths of a real
# task


def make_features(sample: Sample, count: int) -> list[Feature]:
    """Make features with random ids and labels; a third of the positions are segment A, as in MNLI.

    Returns:
        Mappings with lists input_ids, token_type_ids, attention_mask, and the labels of the task's
        kind.
    """
    rng = np.random.default_rng(sample.seed)
    lengths = draw_lengths(sample.lengths, count, sample.seed)
    features = []
    for length in np.minimum(lengths, TASK_LIMITS[sample.task].max_length).tolist():
        size = max(4, int(length))
        words = draw_zipf(rng, size - 2, sample.vocab_size).tolist()
        first_segment = size // 3
        features.append(
            {
                "input_ids": [CLS_ID, *words, SEP_ID],
                "token_type_ids": [0] * first_segment + [1] * (size - first_segment),
                "attention_mask": [1] * size,
                **_make_labels(sample.task, size, rng),
            }
        )

    return features


def _make_labels(task: str, size: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return random labels of a feature of `size` tokens."""
    kind, num_labels = get_task(task).kind, TASK_LIMITS[task].num_labels
    if kind == "question_answering":
        start = int(rng.integers(1, size - 1))
        return {"start_positions": start, "end_positions": min(start + 3, size - 1)}
    if kind == "token_classification":
        # About one piece in five goes on with a word and has no label.
        goes_on = rng.random(size) < 0.2
        labels = np.where(
            goes_on,
            IGNORE_INDEX,
            rng.integers(0, num_labels, size),
        )
        labels[[0, -1]] = IGNORE_INDEX
        return {"labels": labels.tolist()}

    return {"labels": int(rng.integers(0, num_labels))}


def task_model(sample: Sample) -> Any:
    """Make a stock model class with random weights."""
    kind = get_task(sample.task).kind
    config = stock_config(sample.size, sample.vocab_size)
    if kind != "question_answering":
        config.num_labels = TASK_LIMITS[sample.task].num_labels
    set_seed(sample.seed)
    return MODEL_CLASSES[kind](config)


def our_task_trainer(
    sample: Sample, flags: Mapping[str, Any], encoded: EncodedSplit | None
) -> FineTuningTrainer:
    """Make the Trainer of `finetuning.run`, with the layers and the memory that it chooses."""
    values: dict[str, Any] = {
        "task": sample.task,
        "output_dir": f"{sample.work_dir}/ours",
        "disable_tqdm": "true",
        "seed": sample.seed,
        "use_cpu": str(sample.on_cpu).lower(),
        "eval_strategy": "no",
        **flags,
    }

    arguments = command_line(sample.config, values)
    settings, args = parse_arguments(TaskArguments, FineTuningArguments, argv=arguments)
    task = get_task(sample.task)
    tokenizer = load_tokenizer(vocabulary_of(sample), do_lower_case=True)
    kind = make_kind(task, tokenizer, settings)
    return FineTuningTrainer(
        task_model(sample), args, kind, train_dataset=encoded, processing_class=tokenizer
    )


def encode(features: Sequence[Feature], *, labels: bool = True) -> EncodedSplit:
    """Make features a split of ours, which makes its attention mask itself."""
    unused = ("attention_mask",) if labels else ("attention_mask", "labels")
    rows = [without(feature, unused) for feature in features]
    lengths = np.array([len(row["input_ids"]) for row in rows], dtype=np.int64)
    split = Split(
        name="generated", examples=(), source="generated", num_rows=len(rows), is_labelled=labels
    )
    return EncodedSplit(split=split, features=rows, lengths=lengths)


def without(feature: Feature, names: Sequence[str]) -> Feature:
    """Return a feature without some of its values."""
    return {name: value for name, value in feature.items() if name not in names}


def our_finetuning(sample: Sample, features: list[Feature]) -> FineTuningTrainer:
    """Fine-tune with recipes/configs/finetune."""
    flags = {
        "global_train_batch_size": sample.batch_size,
        "per_device_train_batch_size": sample.batch_size,
        "max_steps": sample.total_steps,
        "logging_steps": sample.total_steps + 1,
        "save_strategy": "no",
        "max_seq_length": TASK_LIMITS[sample.task].max_length,
        **sample.switches,
    }
    return our_task_trainer(sample, flags, encode(features))


def stock_finetuning(sample: Sample, features: list[Feature]) -> StockTrainer:
    """Fine-tune with the stock model and `Trainer`.

    Padded as the example of transformers pads, unless the configuration says another padding.
    """
    limit = TASK_LIMITS[sample.task]
    lengths = [len(feature["input_ids"]) for feature in features]
    collator: Any
    if sample.switches.get("padding", limit.stock_padding) == "max":
        # Once, as the examples do it while they tokenize.
        features = [pad(feature, limit.max_length) for feature in features]
        collator = default_data_collator
    else:
        tokenizer = BertTokenizer(vocab=str(vocabulary_of(sample)))
        collator = DataCollatorWithPadding(tokenizer)
        if get_task(sample.task).kind == "token_classification":
            collator = DataCollatorForTokenClassification(tokenizer)
    model = task_model(sample)
    model.set_attn_implementation(sample.switches.get("attention", "sdpa"))
    return StockTrainer(
        lengths,
        model=model,
        args=stock_arguments(sample, sample.batch_size),
        data_collator=collator,
        train_dataset=features,
    )


def pad(feature: Feature, length: int) -> Feature:
    """Return a feature whose lists have `length` values."""
    padded = dict(feature)
    for name, values in feature.items():
        if isinstance(values, list):
            padded[name] = values + [PADS[name]] * (length - len(values))
    return padded


def measure_predictions(sample: Sample) -> Result:
    """Time passes over the same examples until the time is over.

    One batch before them is not counted.
    """
    is_short = sample.budget_seconds < 2
    features = make_features(sample, 2 * sample.batch_size if is_short else PREDICTION_INPUTS)
    make_predictions = our_predictions if sample.is_ours else stock_predictions
    predict = make_predictions(sample, features)

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


def our_predictions(sample: Sample, features: list[Feature]) -> Callable[[int], Any]:
    """Return what predicts the first features with ours."""
    flags = {"precision": sample.precision, "per_device_eval_batch_size": sample.batch_size}
    trainer = our_task_trainer(sample, flags, None)
    trainer.model.to(trainer.args.device)  # outside of training nobody else moves it
    return lambda count: trainer.predict_outputs(encode(features[:count], labels=False))


def stock_predictions(sample: Sample, features: list[Feature]) -> Callable[[int], Any]:
    """Return what predicts the first features with stock, padded to the batch, in their order."""
    args = stock_arguments(
        sample,
        sample.batch_size,
        per_device_eval_batch_size=sample.batch_size,
        bf16=sample.precision == "bf16",
    )
    collator = DataCollatorWithPadding(BertTokenizer(vocab=str(vocabulary_of(sample))))
    trainer = Trainer(
        model=task_model(sample),
        args=args,
        data_collator=collator,
    )
    rows = [without(feature, ("labels",)) for feature in features]
    return lambda count: trainer.predict(rows[:count])
