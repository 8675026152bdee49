"""Feature-based NER: a BiLSTM over the kept hidden states of a frozen encoder, by six ways of
taking layers.

Source: BERT, Devlin et al. 2019, section 5.3 and Table 7: "a randomly initialized two-layer
768-dimensional BiLSTM before the classification layer".

Legend: L layers of the encoder, N layers that are taken, W words, H hidden size, C labels.
"""

import hashlib
import itertools
import json
import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from bert_recipes.checkpointing import check_checkpoint
from bert_recipes.data.order import num_training_steps, training_order
from bert_recipes.errors import InputError, saving
from bert_recipes.features.arguments import LAYER_CHOICES, FeatureNerArguments, LayerChoice
from bert_recipes.features.extract import choose_device, encoder_hash, hidden_states, open_encoder
from bert_recipes.files import atomic_dir, read_json_object, write_json
from bert_recipes.finetuning.arguments import read_trained_settings
from bert_recipes.finetuning.token_classification import lay_out_documents
from bert_recipes.metrics.certainty import jackknife_replicates
from bert_recipes.metrics.entities import entity_scores
from bert_recipes.progress import Progress
from bert_recipes.tasks.catalogue import get_task
from bert_recipes.tasks.examples import Split, TaggedExample
from bert_recipes.tasks.sources import load_split
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer
from bert_recipes.training.arguments import choose_precision


logger = logging.getLogger(__name__)

# Kept features

# Part of the key: raised whenever the same settings would give other features.
_VERSION = 1


class LayerFeatures(NamedTuple):
    """The hidden states of the first pieces of all words of a split."""

    vectors: (
        np.ndarray
    )  # float16 or float32 (L + 1, W, H), memory-mapped; number 0 is the output of the embeddings
    starts: np.ndarray  # int64 (sentences + 1,), where each sentence's words begin among the W


@dataclass(frozen=True)
class FeatureRequest:
    """The hidden states that are wanted, of each word in the window of its document that shows most
    around it.
    """

    encoder: PreTrainedModel
    tokenizer: OriginalBertTokenizer
    examples: Sequence[TaggedExample]
    max_seq_length: int = 512
    batch_size: int = 16
    dtype: str = "float16"

    def key(self) -> str:
        """SHA-256 (hex) of the weights, the configuration, the tokenizer, the words, the documents
        and the settings.
        """
        words = hashlib.sha256()
        for example in self.examples:
            words.update(json.dumps([example.document, example.tokens]).encode())
        settings = {"version": _VERSION, "max_seq_length": self.max_seq_length, "dtype": self.dtype}
        parts = (
            settings,
            encoder_hash(self.encoder),
            self.tokenizer.fingerprint,
            words.hexdigest(),
        )
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def compute(self, folder: Path, key: str) -> LayerFeatures:
        """Run the encoder, without dropout and in float32, over the documents, or open what an
        earlier call has kept.

        Under the folder each key has a folder of its own: features of another model or other data
        are never taken.
        """
        starts = np.concatenate(
            [[0], np.cumsum([len(example.tokens) for example in self.examples], dtype=np.int64)]
        )
        config, dtype = self.encoder.config, np.dtype(self.dtype)
        shape = (config.num_hidden_layers + 1, int(starts[-1]), config.hidden_size)
        size = dtype.itemsize * int(np.prod(shape))
        file = folder / key[:16] / "vectors.npy"
        mode: Any = "r" if size else None
        try:
            vectors = np.load(file, mmap_mode=mode)
            logger.info(
                "features of %d words in %d layers: kept ones reused from %s",
                shape[1],
                shape[0],
                file.parent,
            )
            return LayerFeatures(vectors, starts)
        except (OSError, ValueError) as error:
            if file.parent.exists():
                logger.warning("%s is damaged (%s) and is computed again", file, error)
        existing = next(
            parent for parent in folder.absolute().joinpath("x").parents if parent.is_dir()
        )
        free = shutil.disk_usage(
            existing
        ).free  # a full disk would end the process where the map is written
        if size > free:
            raise InputError(
                f"{folder}: the features need {size / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; "
                "give another "
                "--features_dir or a smaller --max_train_sentences"
            )
        logger.info(
            "features of %d words in %d layers: computing; %.1f MB in %s",
            *shape[1::-1],
            size / 1e6,
            folder,
        )
        shutil.rmtree(file.parent, ignore_errors=True)
        with atomic_dir(file.parent) as staging:
            filled = np.lib.format.open_memmap(staging / file.name, "w+", dtype, shape)
            self._fill(filled, starts)
            filled.flush()
            del filled
        return LayerFeatures(np.load(file, mmap_mode=mode), starts)

    @torch.no_grad()
    def _fill(self, vectors: np.ndarray, starts: np.ndarray) -> None:
        documents = lay_out_documents(self.examples, self.tokenizer, self.max_seq_length)
        was_training = self.encoder.training
        self.encoder.eval()
        order = np.argsort([-len(window.input_ids) for window in documents], kind="stable")
        for first in Progress(range(0, len(order), self.batch_size), desc="features", leave=False):
            windows = [documents[number] for number in order[first : first + self.batch_size]]
            ids = [window.input_ids for window in windows]
            features = [{"input_ids": each, "token_type_ids": [0] * len(each)} for each in ids]
            hidden = hidden_states(
                self.encoder, features, self.tokenizer.pad_token_id, range(len(vectors))
            )
            firsts = np.cumsum([0, *map(len, ids[:-1])])
            tokens = np.concatenate(
                [first + each.positions for first, each in zip(firsts, windows, strict=True)]
            )
            rows = torch.from_numpy(tokens).to(self.encoder.device)
            words = np.concatenate([starts[each.sentences] + each.words for each in windows])
            for layer, states in hidden.items():
                chosen = states[rows].float()
                if self.dtype == "float16" and chosen.abs().max() > np.finfo(np.float16).max:
                    raise InputError(
                        f"layer {layer}: a value above 65,504 does not fit; give --feature_dtype "
                        "float32"
                    )
                vectors[layer, words] = chosen.cpu().numpy()
        self.encoder.train(was_training)


# The BiLSTM


@dataclass(frozen=True, kw_only=True)
class TaggerSettings:
    """How the BiLSTM is built and trained; what the paper does not say is our choice (see
    `FeatureNerArguments`).
    """

    lstm_dim: int = 768
    dropout: float = 0.2
    learning_rate: float = 1e-3
    batch_size: int = 32
    num_epochs: float = 3.0
    max_grad_norm: float = 5.0
    precision: str = "fp32"


class FeatureTagger(nn.Module):
    """Layers -> one vector per word -> two BiLSTM layers -> one logit per label.

    A weighted sum is that of ELMo (Peters et al. 2018, equation 1): softmax weights, equal at the
    start, and a scale.
    """

    def __init__(
        self,
        choice: LayerChoice,
        *,
        num_layers: int,
        hidden_size: int,
        num_labels: int,
        lstm_dim: int,
        dropout: float,
    ) -> None:
        super().__init__()
        taken = len(range(num_layers + 1)[choice.taken])
        self.input_size = hidden_size if choice.is_summed else taken * hidden_size
        self.layer_weights = nn.Parameter(torch.zeros(taken)) if choice.is_summed else None
        self.scale = nn.Parameter(torch.ones(())) if choice.is_summed else None
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(
            self.input_size, lstm_dim, num_layers=2, bidirectional=True, dropout=dropout
        )
        self.classifier = nn.Linear(2 * lstm_dim, num_labels)

    def forward(self, vectors: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """Logits (W, C), float32 or, under autocast, bfloat16.

        Args:
            vectors: float32 (N, W, H), the layers taken, the words of one sentence after the other.
            lengths: Words of each sentence, 1 or more; their sum is W.
        """
        if self.layer_weights is None or self.scale is None:
            inputs = vectors.transpose(0, 1).flatten(1)
        else:
            inputs = self.scale * torch.einsum("n,nwh->wh", self.layer_weights.softmax(0), vectors)
        sentences = self.dropout(inputs).split(list(lengths))
        packed = nn.utils.rnn.pack_sequence(list(sentences), enforce_sorted=False)
        outputs = nn.utils.rnn.unpack_sequence(self.lstm(packed)[0])
        return self.classifier(self.dropout(torch.cat(outputs)))


def train_tagger(
    features: LayerFeatures,
    labels: np.ndarray,
    choice: LayerChoice,
    settings: TaggerSettings,
    *,
    num_labels: int,
    seed: int,
    device: torch.device,
) -> FeatureTagger:
    """Train a BiLSTM on kept features and int64 (W,) labels; the encoder is not touched."""
    torch.manual_seed(seed)
    num_states, _, hidden_size = features.vectors.shape
    sizes = {"num_layers": num_states - 1, "hidden_size": hidden_size, "num_labels": num_labels}
    tagger = FeatureTagger(
        choice, **sizes, lstm_dim=settings.lstm_dim, dropout=settings.dropout
    ).to(device)
    lengths = np.diff(features.starts)
    filled = np.flatnonzero(lengths)  # sentences without words are passed over
    batch_size = min(settings.batch_size, len(filled))
    num_steps = num_training_steps(len(filled), batch_size, settings.num_epochs)
    order = training_order(lengths[filled], num_steps=num_steps, global_batch=batch_size, seed=seed)
    optimizer = torch.optim.Adam(tagger.parameters(), lr=settings.learning_rate, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / num_steps)
    for step, numbers in enumerate(filled[order].reshape(num_steps, batch_size)):
        vectors, words = _gather(features, choice, numbers, device)
        targets = torch.from_numpy(labels[words]).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
            logits = tagger(vectors, lengths[numbers].tolist())
        loss = nn.functional.cross_entropy(logits.float(), targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(tagger.parameters(), settings.max_grad_norm)
        optimizer.step()
        schedule.step()
        if (step + 1) % max(1, num_steps // 5) == 0:
            logger.info("step %d of %d: loss %.4f", step + 1, num_steps, loss.item())
    return tagger.eval()


@torch.no_grad()
def predict_labels(
    tagger: FeatureTagger,
    features: LayerFeatures,
    choice: LayerChoice,
    *,
    precision: str,
    batch_size: int = 128,
) -> list[list[int]]:
    """The number of the most probable label of each word of each sentence, in order."""
    device = next(tagger.parameters()).device
    lengths = np.diff(features.starts)
    order = np.argsort(-lengths, kind="stable")[: int((lengths > 0).sum())]
    found: list[list[int]] = [[] for _ in lengths]
    for first in range(0, len(order), batch_size):
        numbers = order[first : first + batch_size]
        vectors, _ = _gather(features, choice, numbers, device)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            best = tagger(vectors, lengths[numbers].tolist()).argmax(-1).cpu()
        for number, own in zip(numbers, best.split(lengths[numbers].tolist()), strict=True):
            found[number] = own.tolist()
    return found


def _gather(
    features: LayerFeatures, choice: LayerChoice, numbers: np.ndarray, device: torch.device
) -> tuple[torch.Tensor, np.ndarray]:
    """float32 (N, W, H) vectors of some sentences and int64 (W,) numbers of their words."""
    words = np.concatenate([np.arange(features.starts[n], features.starts[n + 1]) for n in numbers])
    vectors = np.stack([layer[words] for layer in features.vectors[choice.taken]])
    return torch.from_numpy(vectors).to(device).float(), words


# The table

RESULTS_FILE, TABLE_FILE = "all_results.json", "table.md"


@dataclass(frozen=True)
class FeatureNerData:
    """Sentences, their features, and what the runs of one table have in common."""

    labels: tuple[str, ...]
    train: Split
    validation: Split
    train_features: LayerFeatures
    validation_features: LayerFeatures
    tagger: TaggerSettings
    settings: dict[str, Any]  # of the tagger, and the keys of the features
    device: torch.device


def load_feature_data(args: FeatureNerArguments) -> FeatureNerData:
    """Read the sentences and compute or reopen their features; a `max_seq_length` of None becomes
    the model's own.
    """
    check_checkpoint(args.model_name_or_path)
    task, device = get_task("conll2003"), choose_device(use_cpu=args.use_cpu)
    limits = {
        task.train_split: args.max_train_sentences,
        task.validation_splits[0]: args.max_eval_sentences,
    }
    train, validation = (
        load_split(task, name, data_dir=args.data_dir, max_examples=limit, need_labels=True)
        for name, limit in limits.items()
    )
    if args.max_seq_length is None:
        args.max_seq_length = int(
            read_trained_settings(Path(args.model_name_or_path)).get("max_seq_length", 512)
        )
    encoder, tokenizer = open_encoder(args.model_name_or_path, args.max_seq_length)
    for way in args.layers:
        LAYER_CHOICES[way].check(encoder.config.num_hidden_layers)
    encoder = cast(PreTrainedModel, encoder.to(device))
    lengths = (args.max_seq_length, args.feature_batch_size, args.feature_dtype)
    requests = [
        FeatureRequest(encoder, tokenizer, _tagged(split), *lengths)
        for split in (train, validation)
    ]
    keys = [request.key() for request in requests]
    precision = choose_precision(args.precision, use_cpu=device.type == "cpu").name
    tagger = TaggerSettings(
        lstm_dim=args.lstm_dim,
        dropout=args.dropout,
        learning_rate=args.learning_rate,
        batch_size=args.train_batch_size,
        num_epochs=args.num_train_epochs,
        # float16 would need its loss scaled; a GPU without bfloat16 has float32.
        precision="fp32" if precision == "fp16" else precision,
    )
    settings = asdict(tagger) | {"train_features": keys[0], "validation_features": keys[1]}
    # Before the work: that a run is of other settings shall not come out after an hour.
    _read_wanted(args, settings)
    folder = (
        Path(args.output_dir) / "features" if args.features_dir is None else Path(args.features_dir)
    )
    first, second = (
        request.compute(folder, key) for request, key in zip(requests, keys, strict=True)
    )
    return FeatureNerData(task.labels, train, validation, first, second, tagger, settings, device)


def measure_ways(args: FeatureNerArguments, data: FeatureNerData) -> list[dict[str, Any]]:
    """Train and measure each (way, seed) that output_dir does not hold yet.

    Returns:
        One record per run, those of earlier calls with the same settings too, way by way in the
            order of the paper: way,
        seed, the metrics of `entity_scores` (fractions), seconds, size of the BiLSTM's input.
    """
    for path, way, seed, record in _read_wanted(args, data.settings):
        if record is None:
            record = _measure(way, seed, data) | {"settings": data.settings}
            with saving(path):
                write_json(path, record)
        else:
            logger.info("%s, seed %d: kept from %s", way, seed, path)
        logger.info("%s, seed %d: dev F1 %.2f", way, seed, 100 * record["f1"])
    found = [
        read_json_object(path) for path in (Path(args.output_dir) / "runs").glob("*-seed*.json")
    ]
    alike = [record for record in found if record.pop("settings", None) == data.settings]
    return sorted(
        alike, key=lambda record: (list(LAYER_CHOICES).index(record["way"]), record["seed"])
    )


def _measure(way: str, seed: int, data: FeatureNerData) -> dict[str, Any]:
    start, choice = time.perf_counter(), LAYER_CHOICES[way]
    train, gold = (
        [list(example.labels or ()) for example in _tagged(each)]
        for each in (data.train, data.validation)
    )
    labels, sizes = (
        np.array(list(itertools.chain(*train)), np.int64),
        {"num_labels": len(data.labels), "seed": seed},
    )
    tagger = train_tagger(
        data.train_features, labels, choice, data.tagger, **sizes, device=data.device
    )
    trained = time.perf_counter()
    found = predict_labels(
        tagger, data.validation_features, choice, precision=data.tagger.precision
    )
    names = [
        [[data.labels[label] for label in sentence] for sentence in numbers]
        for numbers in (gold, found)
    ]

    def score(sentences: Sequence[int]) -> dict[str, float]:
        return entity_scores(*([sentences_of[row] for row in sentences] for sentences_of in names))

    return {
        "way": way,
        "seed": seed,
        **entity_scores(*names),
        "f1_jackknife": jackknife_replicates(score, len(gold)).get("f1", []),
        "input_size": tagger.input_size,
        "train_seconds": round(trained - start, 1),
        "eval_seconds": round(time.perf_counter() - trained, 1),
    }


def _tagged(split: Split) -> Sequence[TaggedExample]:
    return cast(Sequence[TaggedExample], split.examples)


def _read_wanted(
    args: FeatureNerArguments, settings: Mapping[str, Any]
) -> list[tuple[Path, str, int, dict[str, Any] | None]]:
    """The file, way and seed of each run that is asked for, and its record, None where it is still
    to be measured.
    """
    wanted = []
    for way, seed in itertools.product(
        [way for way in LAYER_CHOICES if way in args.layers], dict.fromkeys(args.seeds)
    ):
        path = Path(args.output_dir) / "runs" / f"{way}-seed{seed}.json"
        record = read_json_object(path) if path.is_file() else None
        kept = settings if record is None else record.get("settings") or {}
        other = next((name for name, value in settings.items() if kept.get(name) != value), None)
        if other is not None:
            flag = {"num_epochs": "num_train_epochs", "batch_size": "train_batch_size"}.get(
                other, other
            )
            given = f"{flag} {kept.get(other)}, not {settings[other]}"
            what = "another model or other data" if other.endswith("_features") else given
            raise InputError(
                f"{path} was measured with {what}; give another --output_dir, or delete that file"
            )
        wanted.append((path, way, seed, record))
    return wanted


def mean_replicates(
    records: Sequence[Mapping[str, Any]], ways: Sequence[str]
) -> dict[str, list[float]]:
    """Return the `jackknife_replicates` of each way's mean F1 over its seeds."""
    replicates = {}
    for way in ways:
        of_seeds: list[Any] = [
            record.get("f1_jackknife") for record in records if record["way"] == way
        ]
        if of_seeds and all(of_seeds):  # records of an older version have none
            replicates[f"f1_{way}"] = np.mean(of_seeds, axis=0).round(6).tolist()
    return replicates


def make_table(records: Sequence[Mapping[str, Any]], data: FeatureNerData) -> str:
    """Markdown: dev F1 in percent, mean and standard deviation over the seeds, beside the
    paper's.
    """
    sizes = (
        f"{len(data.train.examples):,} training and {len(data.validation.examples):,} dev sentences"
    )
    partial = (
        " (a part of CoNLL-2003)" if data.train.is_partial or data.validation.is_partial else ""
    )
    num_layers = len(data.train_features.vectors) - 1
    lines = [
        f"Dev F1, {sizes}{partial}; the model has {num_layers} layers. The paper's are those of "
        "BERT-base (12 layers,"
        " cased) on all sentences.",
        "",
        "| layers | input size | F1 | paper | seeds | seconds per run |",
        "| --- | --: | --: | --: | --: | --: |",
    ]
    for way, choice in LAYER_CHOICES.items():
        own = [record for record in records if record["way"] == way]
        if own:
            scores = [100 * record["f1"] for record in own]
            spread = f" ± {stdev(scores):.2f}" if len(scores) > 1 else ""
            seconds = fmean(record["train_seconds"] + record["eval_seconds"] for record in own)
            lines.append(
                f"| {choice.title} | {own[0]['input_size']:,} | {fmean(scores):.2f}{spread} | "
                f"{choice.paper_dev_f1} | "
                f"{len(own)} | {seconds:.0f} |"
            )
    return "\n".join(lines) + "\n"
