"""Feature-based named entity recognition: the runs of the paper's Table 7, kept one by one, and the table."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, cast

import numpy as np
import torch
from transformers import PreTrainedModel

from bert_recipes.checkpoint_access import check_checkpoint
from bert_recipes.errors import InputError, saving
from bert_recipes.features.frozen_encoder import choose_device, open_encoder
from bert_recipes.finetuning.feature_ner_arguments import FeatureNerArguments
from bert_recipes.finetuning.feature_tagger import LAYER_CHOICES, TaggerSettings, predict_labels, train_tagger
from bert_recipes.finetuning.layer_features import FeatureRequest, LayerFeatures, compute_layer_features
from bert_recipes.metrics.entities import entity_scores
from bert_recipes.precision import choose_precision
from bert_recipes.tasks.examples import Split, TaggedExample
from bert_recipes.tasks.loading import load_split
from bert_recipes.tasks.registry import get_task
from bert_recipes.whole_files import write_json


logger = logging.getLogger(__name__)

TASK = "conll2003"
RESULTS_FILE, TABLE_FILE = "all_results.json", "table.md"


@dataclass(frozen=True)
class FeatureNerData:
    """Kept features and labels.

    Attributes:
        labels: Names by number.
        train, validation: The sentences.
        train_features, validation_features: Their features.
    """

    labels: tuple[str, ...]
    train: Split
    validation: Split
    train_features: LayerFeatures
    validation_features: LayerFeatures


def load_feature_data(args: FeatureNerArguments) -> FeatureNerData:
    """Read the sentences and compute or reopen their features."""
    check_checkpoint(args.model_name_or_path)
    task = get_task(TASK)
    limits = {task.train_split: args.max_train_sentences, task.validation_splits[0]: args.max_eval_sentences}
    train, validation = (
        load_split(task, name, data_dir=args.data_dir, max_examples=limit, need_labels=True)
        for name, limit in limits.items()
    )
    encoder, tokenizer = open_encoder(args.model_name_or_path)
    for way in args.layers:
        LAYER_CHOICES[way].check(encoder.config.num_hidden_layers)
    encoder = cast(PreTrainedModel, encoder.to(choose_device(use_cpu=args.use_cpu)))
    train_request, validation_request = (
        FeatureRequest(
            encoder=encoder,
            tokenizer=tokenizer,
            examples=_tagged(split),
            max_seq_length=args.max_seq_length,
            batch_size=args.feature_batch_size,
            dtype=args.feature_dtype,
        )
        for split in (train, validation)
    )
    # Before the work: that a run is of other settings shall not come out after an hour.
    _read_wanted(args, run_identity(args, train_request.key, validation_request.key))
    folder = Path(args.output_dir) / "features" if args.features_dir is None else Path(args.features_dir)
    train_features = compute_layer_features(train_request, folder)
    validation_features = compute_layer_features(validation_request, folder)
    return FeatureNerData(task.labels, train, validation, train_features, validation_features)


def tagger_settings(args: FeatureNerArguments) -> TaggerSettings:
    """How the BiLSTM is trained, on this machine."""
    chosen = choose_precision(args.precision, use_cpu=choose_device(use_cpu=args.use_cpu).type == "cpu").name
    return TaggerSettings(
        lstm_dim=args.lstm_dim,
        dropout=args.dropout,
        learning_rate=args.learning_rate,
        batch_size=args.train_batch_size,
        num_epochs=args.num_train_epochs,
        # float16 would need its loss scaled; a GPU without bfloat16 has float32.
        precision="fp32" if chosen == "fp16" else chosen,
    )


def run_identity(args: FeatureNerArguments, train_key: str, validation_key: str) -> dict[str, Any]:
    """What runs of one table have in common: the tagger's settings and the keys of the features."""
    return asdict(tagger_settings(args)) | {"train_features": train_key, "validation_features": validation_key}


def measure_ways(args: FeatureNerArguments, data: FeatureNerData) -> list[dict[str, Any]]:
    """Train and measure each (way, seed) that output_dir does not hold yet.

    Returns:
        One record a run, those of earlier calls with the same settings too, way by way in the order of the paper: way,
        seed, the figures of `entity_scores` (fractions), seconds, size of the BiLSTM's input.
    """
    identity = run_identity(args, data.train_features.key, data.validation_features.key)
    for (way, seed), (path, record) in _read_wanted(args, identity).items():
        if record is None:
            record = _measure(way, seed, data, tagger_settings(args), choose_device(use_cpu=args.use_cpu))
            with saving(path):
                write_json(path, record | {"settings": identity})
        else:
            logger.info("%s, seed %d: kept from %s", way, seed, path)
        logger.info("%s, seed %d: dev F1 %.2f", way, seed, 100 * record["f1"])
    return _read_alike(Path(args.output_dir) / "runs", identity)


def _measure(
    way: str, seed: int, data: FeatureNerData, settings: TaggerSettings, device: torch.device
) -> dict[str, Any]:
    start = time.perf_counter()
    choice = LAYER_CHOICES[way]
    labels = np.array([label for example in _tagged(data.train) for label in example.labels or ()], np.int64)
    tagger = train_tagger(
        data.train_features, labels, choice, settings, num_labels=len(data.labels), seed=seed, device=device
    )
    trained = time.perf_counter()
    found = predict_labels(tagger, data.validation_features, choice, precision=settings.precision)
    gold = [[data.labels[label] for label in example.labels or ()] for example in _tagged(data.validation)]
    figures = entity_scores(gold, [[data.labels[label] for label in sentence] for sentence in found])
    return {
        "way": way,
        "seed": seed,
        **figures,
        "input_size": tagger.input_size,
        "train_seconds": round(trained - start, 1),
        "eval_seconds": round(time.perf_counter() - trained, 1),
    }


def _tagged(split: Split) -> Sequence[TaggedExample]:
    return cast(Sequence[TaggedExample], split.examples)


def _read_wanted(
    args: FeatureNerArguments, identity: Mapping[str, Any]
) -> dict[tuple[str, int], tuple[Path, dict[str, Any] | None]]:
    """(way, seed) -> its file and its record, None where it is still to be measured."""
    wanted: dict[tuple[str, int], tuple[Path, dict[str, Any] | None]] = {}
    for way, seed in [(way, seed) for way in LAYER_CHOICES if way in args.layers for seed in args.seeds]:
        path = Path(args.output_dir) / "runs" / f"{way}-seed{seed}.json"
        record, kept = _read_record(path) if path.is_file() else (None, {})
        other = [name for name, value in identity.items() if kept.get(name) != value]
        if record is not None and other:
            shown = {"num_epochs": "num_train_epochs", "batch_size": "train_batch_size"}.get(other[0], other[0])
            given = f"{shown} {kept.get(other[0])}, not {identity[other[0]]}"
            what = "another model or other data" if other[0].endswith("_features") else given
            raise InputError(f"{path} was measured with {what}; give another --output_dir, or delete that file")
        wanted[way, seed] = path, record
    return wanted


def _read_alike(folder: Path, identity: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The records of a folder that are of these settings, in the order of the paper, then of the seeds."""
    found = [_read_record(path) for path in folder.glob("*-seed*.json")]
    alike = [record for record, kept in found if record is not None and kept == identity]
    return sorted(alike, key=lambda record: (list(LAYER_CHOICES).index(record["way"]), record["seed"]))


def _read_record(path: Path) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """A finished run and its settings; None for one that is cut short."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return record, dict(record.pop("settings"))
    except (ValueError, KeyError, AttributeError, TypeError):
        logger.warning("%s is no complete run and is measured anew", path)
        return None, {}


def make_table(records: Sequence[Mapping[str, Any]], data: FeatureNerData) -> str:
    """Markdown: dev F1 in percent, mean and standard deviation over the seeds, beside the paper's."""
    sizes = f"{len(data.train.examples):,} training and {len(data.validation.examples):,} dev sentences"
    partial = " (a part of CoNLL-2003)" if data.train.is_partial or data.validation.is_partial else ""
    num_layers = data.train_features.vectors.shape[0] - 1
    lines = [
        f"Dev F1, {sizes}{partial}; the model has {num_layers} layers. The paper's are those of BERT-base (12 layers,"
        " cased) on all sentences.",
        "",
        "| layers | input size | F1 | paper | seeds | seconds a run |",
        "| --- | --: | --: | --: | --: | --: |",
    ]
    for way, choice in LAYER_CHOICES.items():
        own = [record for record in records if record["way"] == way]
        if own:
            scores = [100 * record["f1"] for record in own]
            spread = f" ± {stdev(scores):.2f}" if len(scores) > 1 else ""
            seconds = fmean(record["train_seconds"] + record["eval_seconds"] for record in own)
            lines.append(
                f"| {choice.title} | {own[0]['input_size']:,} | {fmean(scores):.2f}{spread} | {choice.paper_dev_f1} | "
                f"{len(own)} | {seconds:.0f} |"
            )
    return "\n".join(lines) + "\n"
