"""The rates at which text becomes data, measured on the functions that the recipes call."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from generated import write_text
from sample import Result, Sample

from bert_recipes.data.collator import DataCollatorForPreTraining
from bert_recipes.data.corpus import find_files, iter_paragraphs
from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.order import epoch_order
from bert_recipes.data.original import OriginalSettings, create_training_instances, read_documents
from bert_recipes.data.prepare import CorpusArguments, prepare_store
from bert_recipes.data.store import open_store
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.tokenization.training import train_wordpiece
from bert_recipes.training.arguments import DataArguments
from bert_recipes.training.batch_buffer import DeviceCollator
from bert_recipes.training.objectives import OBJECTIVES
from bert_recipes.training.pretraining import load_data


# Defaults of google-research/bert create_pretraining_data.py, and of ours.
MAX_LENGTH, SHORT, PREDICTIONS, PROBABILITY = 128, 0.1, 20, 0.15
BATCH, MAX_PAIRS = 32, 20_000
GPU_BATCH = 256
# A store is made of so many times the text: processes take a second or two to start, and corpora
# are large.
STORE_TIMES = 8


def source_files(sample: Sample) -> list[Path]:
    """Return the user's text, or generated text."""
    if sample.files:
        return find_files(list(sample.files))
    file = Path(sample.work_dir) / f"text-{sample.megabytes:g}.txt"
    return [write_text(file, sample.megabytes)]


def tokenizer_of(sample: Sample) -> Any:
    """Return a tokenizer with a vocabulary of the text, trained once for all measures."""
    folder = Path(sample.work_dir) / "tokenizer"
    if not (folder / "vocab.txt").is_file():
        paragraphs = iter_paragraphs(source_files(sample))
        train_wordpiece(paragraphs, vocab_size=sample.vocab_size).save_pretrained(folder)
    return load_tokenizer(folder)


def dataset_store(sample: Sample) -> Path:
    """Return the store of the text, prepared once for all measures."""
    tokenizer_of(sample)
    folder = Path(sample.work_dir) / "store"
    if not (folder / "store.json").is_file():
        _prepare(sample, 1, folder)
    return folder


def _megabytes(files: Sequence[Path]) -> float:
    return sum(path.stat().st_size for path in files) / 1e6


def _rate(about: str, amount: float, unit: str, seconds: float) -> Result:
    return {
        "about": about,
        "amount": round(amount, 4),
        "unit": unit,
        "seconds": round(seconds, 6),
        "per_second": round(amount / seconds, 4),
    }


def _prepare(sample: Sample, processes: int, output: Path | None = None) -> float:
    """Write a store, which stays where an output folder is given; return the seconds."""
    with tempfile.TemporaryDirectory(dir=sample.work_dir) as folder:
        arguments = CorpusArguments(
            tokenizer=str(Path(sample.work_dir) / "tokenizer"),
            output_dir=str(output or Path(folder) / "store"),
            files=[str(path) for path in source_files(sample)],
            num_processes=processes,
            overwrite=True,
        )
        start = time.perf_counter()
        prepare_store(arguments, load_tokenizer(str(arguments.tokenizer)))
        return time.perf_counter() - start


def measure_store(sample: Sample) -> Result:
    """Measure text to store: on one or two processes, or as two runs side by side.

    Two runs share nothing: what two cores can give.
    """
    tokenizer_of(sample)
    sample = replace(sample, megabytes=STORE_TIMES * sample.megabytes)
    amount = _megabytes(source_files(sample))
    if sample.variant == "apart":
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            seconds = max(pool.map(_prepare, (sample, sample), (1, 1)))
        return _rate("the same, two runs of 1 process side by side", 2 * amount, "MB", seconds)
    processes = int(sample.variant.rpartition("_")[2])
    about = f"text -> store, {processes} process{'es' if processes > 1 else ''}"
    return _rate(about, amount, "MB", _prepare(sample, processes))


def measure_pairs(sample: Sample) -> Result:
    """Measure the pairs of an epoch in shuffled order, or their masks, in one process.

    The table of pairs is built before.
    """
    store = open_store(dataset_store(sample))
    dataset = PreTrainingDataset.from_store(store)
    start = time.perf_counter()
    order = epoch_order(0, 0, dataset.num_pairs(0))[:MAX_PAIRS].tolist()
    indexed = time.perf_counter()
    pairs = [dataset[(0, index)] for index in order]
    seconds = time.perf_counter() - indexed
    if sample.variant == "pairs":
        rate = _rate("pairs drawn, one process", len(pairs), "pairs", seconds)
        return {**rate, "index_seconds": indexed - start}

    collator = DataCollatorForPreTraining(tokenizer_of(sample), max_predictions_per_seq=PREDICTIONS)
    start = time.perf_counter()
    for first in range(0, len(pairs), BATCH):
        collator(pairs[first : first + BATCH])
    seconds = time.perf_counter() - start
    tokens = sum(len(pair["input_ids"]) for pair in pairs)
    return _rate("tokens padded and masked, one process", tokens, "tokens", seconds)


def measure_worker(sample: Sample) -> Result:
    """Measure a data worker for a GPU: read, mask and pack batches of a member, in one buffer each.

    The table is built before.
    """
    store, objective = dataset_store(sample), sample.variant.removeprefix("worker_")
    data_fields = {item.name for item in fields(DataArguments)}
    settings: dict[str, Any] = {"store": str(store), "max_seq_length": MAX_LENGTH}
    for name, value in OBJECTIVES[objective].settings.items():
        if name in data_fields:
            settings[name] = value
    data = load_data(DataArguments(**settings), sample.seed)
    collate = DeviceCollator(
        data.collator,
        adds_packing=True,
        packs_labels=True,
        joins=True,
    )
    order = epoch_order(0, 0, data.train.num_pairs(0))[:MAX_PAIRS].tolist()
    start, tokens = time.perf_counter(), 0
    for first in range(0, len(order), GPU_BATCH):
        batch = collate([data.train[(0, index)] for index in order[first : first + GPU_BATCH]])
        tokens += int(batch.tensors()["attention_mask"].sum())
    about = f"batches of {GPU_BATCH} for a GPU, {objective}, one data worker"
    return _rate(about, tokens, "tokens", time.perf_counter() - start)


def measure_dropin(sample: Sample) -> Result:
    """Measure the drop-in for create_pretraining_data.py in memory: reading, pairs, masks.

    Nothing is written.
    """
    dupe_factor = int(sample.variant.rpartition("_")[2])
    tokenizer, files = tokenizer_of(sample), source_files(sample)
    start = time.perf_counter()
    settings = OriginalSettings(
        max_seq_length=MAX_LENGTH,
        short_seq_prob=SHORT,
        dupe_factor=dupe_factor,
        masked_lm_prob=PROBABILITY,
        max_predictions_per_seq=PREDICTIONS,
        whole_word=False,
    )
    documents = read_documents(files, tokenizer.encode_ids)
    rng = random.Random(12345)
    instances = create_training_instances(documents, tokenizer, settings, rng)
    seconds = time.perf_counter() - start
    about = f"drop-in instances in memory, dupe_factor {dupe_factor}"
    rate = _rate(about, _megabytes(files), "MB", seconds)
    return {**rate, "instances": len(instances)}


def measure_tokenizer(sample: Sample) -> Result:
    """Measure the training of a vocabulary."""
    files, start = source_files(sample), time.perf_counter()
    train_wordpiece(iter_paragraphs(files), vocab_size=sample.vocab_size)
    about = f"tokenizer training, {sample.vocab_size:,} entries wanted"
    return _rate(
        about,
        _megabytes(files),
        "MB",
        time.perf_counter() - start,
    )


# In the order in which they are run.
MEASURES = {
    "store_1": measure_store,
    "store_2": measure_store,
    "apart": measure_store,
    "pairs": measure_pairs,
    "masks": measure_pairs,
    "worker_bert": measure_worker,
    "worker_roberta": measure_worker,
    "worker_albert": measure_worker,
    "worker_electra": measure_worker,
    "dropin_1": measure_dropin,
    "dropin_10": measure_dropin,
    "tokenizer": measure_tokenizer,
}


def measure(sample: Sample) -> Result:
    """Measure what the sample names."""
    return MEASURES[sample.variant](sample)
