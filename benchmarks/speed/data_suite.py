"""How fast text becomes data: each measure by the functions that the recipes call."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bert_recipes.data.collator import DataCollatorForPreTraining
from bert_recipes.data.corpus import find_files, iter_documents
from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.order import epoch_order
from bert_recipes.data.original import OriginalMasking, OriginalPairs, create_training_instances, read_documents
from bert_recipes.data.prepare import CorpusArguments, prepare_store
from bert_recipes.data.store import open_store
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer
from bert_recipes.tokenization.training import train_wordpiece
from speed.generated_text import write_text
from speed.spec import SampleSpec


# Defaults of google-research/bert create_pretraining_data.py, and of ours.
MAX_LENGTH, SHORT, PREDICTIONS, PROBABILITY = 128, 0.1, 20, 0.15
BATCH, MAX_PAIRS = 32, 20_000
# A store is made of so many times the text: processes take a second or two to start, and corpora are large.
STORE_TIMES = 8


def source_files(spec: SampleSpec) -> list[Path]:
    """The user's text, or generated text."""
    if spec.files:
        return find_files(list(spec.files))
    return [write_text(Path(spec.work_dir) / f"text-{spec.megabytes:g}.txt", spec.megabytes)]


def tokenizer_of(spec: SampleSpec) -> OriginalBertTokenizer:
    """A vocabulary trained on the text; trained once for all measures."""
    folder = Path(spec.work_dir) / "tokenizer"
    if not (folder / "vocab.txt").is_file():
        tokenizer = train_wordpiece(paragraphs(source_files(spec)), vocab_size=spec.vocab_size)
        tokenizer.save_pretrained(folder)
    return load_tokenizer(folder)


def paragraphs(files: list[Path]) -> Iterator[str]:
    """All paragraphs of the files."""
    for path in files:
        for document in iter_documents(path, document_boundary="blank_line"):
            yield from document


def _megabytes(files: list[Path]) -> float:
    return sum(path.stat().st_size for path in files) / 1e6


def _prepare(spec: SampleSpec, processes: int, output: Path) -> float:
    """Write a store; seconds."""
    tokenizer_of(spec)
    arguments = CorpusArguments(
        tokenizer=str(Path(spec.work_dir) / "tokenizer"),
        output_dir=str(output),
        files=[str(path) for path in source_files(spec)],
        num_processes=processes,
        overwrite=True,
    )
    start = time.perf_counter()
    prepare_store(arguments, load_tokenizer(arguments.tokenizer))
    return time.perf_counter() - start


def measure_store(spec: SampleSpec) -> dict[str, Any]:
    """Text -> sentences -> ids -> store on disk, with the reading of the tokenizer and the start of the processes."""
    processes, spec = int(spec.what.rpartition("_")[2]), _for_store(spec)
    seconds = _prepare_aside(spec, processes)
    about = f"text -> store, {processes} process{'es' if processes > 1 else ''}"
    return _rate(about, _megabytes(source_files(spec)), "MB", seconds)


def measure_apart(spec: SampleSpec) -> dict[str, Any]:
    """Two whole preparations of one process each at the same time, which share nothing: what two cores can give."""
    spec = _for_store(spec)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        seconds = max(pool.map(_prepare_aside, (spec, spec), (1, 1)))
    return _rate("the same, two runs of 1 process side by side", 2 * _megabytes(source_files(spec)), "MB", seconds)


def _for_store(spec: SampleSpec) -> SampleSpec:
    """The measure with more text, which lies ready like the tokenizer."""
    tokenizer_of(spec)
    spec = replace(spec, megabytes=STORE_TIMES * spec.megabytes)
    source_files(spec)
    return spec


def _prepare_aside(spec: SampleSpec, processes: int) -> float:
    """Write a store that is not kept; seconds."""
    with tempfile.TemporaryDirectory(dir=spec.work_dir) as folder:
        return _prepare(spec, processes, Path(folder) / "store")


def measure_pairs(spec: SampleSpec) -> dict[str, Any]:
    """Pairs of an epoch in shuffled order, or their masks; one process. The table of pairs is built before."""
    store_path = Path(spec.work_dir) / "store"
    if not (store_path / "store.json").is_file():
        _prepare(spec, 1, store_path)
    store = open_store(store_path)
    ids = store.metadata["special_ids"]
    dataset = PreTrainingDataset(
        store.train, cls_id=ids["cls"], sep_id=ids["sep"], store_fingerprint=store.fingerprint
    )
    start = time.perf_counter()
    order = epoch_order(0, 0, dataset.num_pairs(0))[:MAX_PAIRS].tolist()
    index_seconds = time.perf_counter() - start
    start = time.perf_counter()
    pairs = [dataset[(0, index)] for index in order]
    seconds = time.perf_counter() - start
    if spec.what == "pairs":
        return _rate("pairs drawn, one process", len(pairs), "pairs", seconds) | {"index_seconds": index_seconds}
    collator = DataCollatorForPreTraining(tokenizer_of(spec), max_predictions_per_seq=PREDICTIONS)
    start = time.perf_counter()
    for first in range(0, len(pairs), BATCH):
        collator(pairs[first : first + BATCH])
    seconds = time.perf_counter() - start
    tokens = sum(len(pair["input_ids"]) for pair in pairs)
    return _rate("tokens padded and masked, one process", tokens, "tokens", seconds)


def measure_dropin(spec: SampleSpec) -> dict[str, Any]:
    """The drop-in for create_pretraining_data.py in memory: reading, pairs, masks; nothing is written."""
    dupe_factor = int(spec.what.rpartition("_")[2])
    tokenizer, files = tokenizer_of(spec), source_files(spec)
    pieces = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    start = time.perf_counter()
    masking = OriginalMasking(
        masked_lm_prob=PROBABILITY,
        max_predictions_per_seq=PREDICTIONS,
        whole_word=False,
        mask_id=tokenizer.mask_token_id,
        random_word_ids=[number for _, number in pieces],
        is_continuation=[piece.startswith("##") for piece, _ in pieces],
    )
    pairing = OriginalPairs(max_seq_length=MAX_LENGTH, short_seq_prob=SHORT, dupe_factor=dupe_factor)
    instances = create_training_instances(
        read_documents(files, tokenizer.encode_ids),
        pairing,
        masking,
        cls_id=tokenizer.cls_token_id,
        sep_id=tokenizer.sep_token_id,
        rng=random.Random(12345),
    )
    count = sum(1 for _ in instances)
    seconds = time.perf_counter() - start
    about = f"drop-in instances in memory, dupe_factor {dupe_factor}"
    return _rate(about, _megabytes(files), "MB", seconds) | {"instances": count}


def measure_tokenizer(spec: SampleSpec) -> dict[str, Any]:
    """Training of a vocabulary."""
    files = source_files(spec)
    start = time.perf_counter()
    train_wordpiece(paragraphs(files), vocab_size=spec.vocab_size)
    about = f"tokenizer training, {spec.vocab_size:,} entries wanted"
    return _rate(about, _megabytes(files), "MB", time.perf_counter() - start)


MEASURES: Mapping[str, Callable[[SampleSpec], dict[str, Any]]] = {
    "store": measure_store,
    "apart": measure_apart,
    "pairs": measure_pairs,
    "masks": measure_pairs,
    "dropin": measure_dropin,
    "tokenizer": measure_tokenizer,
}


def measure(spec: SampleSpec) -> dict[str, Any]:
    """The measure that the sample names."""
    return MEASURES[spec.what.split("_")[0]](spec)


def _rate(about: str, amount: float, unit: str, seconds: float) -> dict[str, Any]:
    return {
        "about": about,
        "amount": round(amount, 4),
        "unit": unit,
        "seconds": round(seconds, 6),
        "per_second": round(amount / seconds, 4),
    }
