"""Feature-based NER: a BiLSTM over hidden states of a frozen encoder, six ways of taking layers.

Source: BERT, Devlin et al. 2019, section 5.3 and Table 7: "a randomly initialized two-layer
768-dimensional BiLSTM before the classification layer".

Legend: L layers of the encoder, N layers that are taken, W words, H hidden size, C labels.
"""

import itertools
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, stdev
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import nn
from torch.nn.utils import rnn
from transformers import PreTrainedModel

from bert_recipes.checkpointing import check_checkpoint
from bert_recipes.errors import InputError
from bert_recipes.features.arguments import LAYER_CHOICES, FeatureNerArguments, LayerChoice
from bert_recipes.features.extract import choose_device, hidden_states, open_encoder
from bert_recipes.features.results import markdown_table
from bert_recipes.finetuning.arguments import read_trained_settings
from bert_recipes.finetuning.order import num_training_steps, training_order
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

# Features


class LayerFeatures(NamedTuple):
    """Hold the hidden states of the first pieces of all words of a split."""

    # float16 or float32 (L + 1, W, H); number 0 is the output of the embeddings
    vectors: np.ndarray
    starts: np.ndarray  # int64 (sentences + 1,), where each sentence's words begin among the W


@torch.no_grad()
def word_features(
    encoder: PreTrainedModel,
    tokenizer: OriginalBertTokenizer,
    examples: Sequence[TaggedExample],
    *,
    max_seq_length: int = 512,
    batch_size: int = 16,
    dtype: str = "float16",
) -> LayerFeatures:
    """Run an encoder, without dropout and in float32, over the documents of some sentences.

    Each word is read in the window of its document that shows most around it.

    Args:
        encoder: On its device.
        tokenizer: Of the encoder.
        examples: Sentences in the order of their documents.
        max_seq_length: Positions of a window.
        batch_size: Windows at once.
        dtype: Of the vectors that are kept.
    """
    lengths = [len(example.tokens) for example in examples]
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    num_states = encoder.config.num_hidden_layers + 1
    vectors = np.empty((num_states, starts[-1], encoder.config.hidden_size), dtype)
    logger.info("features of %d words: %.1f MB in memory", starts[-1], vectors.nbytes / 1e6)
    documents = lay_out_documents(examples, tokenizer, max_seq_length)
    encoder.eval()
    order = np.argsort([-len(window.input_ids) for window in documents], kind="stable")

    for first in Progress(range(0, len(order), batch_size), desc="features", leave=False):
        inputs = []
        row_numbers = []
        word_numbers = []
        num_rows = 0
        for number in order[first : first + batch_size]:
            window = documents[number]
            length = len(window.input_ids)
            inputs.append({"input_ids": window.input_ids, "token_type_ids": [0] * length})
            # The windows stand one after the other among the rows of the hidden states.
            row_numbers.append(num_rows + window.positions)
            word_numbers.append(starts[window.sentences] + window.words)
            num_rows += length
        rows = torch.from_numpy(np.concatenate(row_numbers)).to(encoder.device)
        words = np.concatenate(word_numbers)

        hidden = hidden_states(encoder, inputs, tokenizer.pad_token_id, range(num_states))
        for layer, states in hidden.items():
            values = states[rows].float()
            largest = values.abs().max()
            if not largest.isfinite():
                raise InputError("the model's outputs are not finite; it has diverged")
            if largest > np.finfo(vectors.dtype).max:
                raise InputError(
                    f"layer {layer}: a value above 65,504 does not fit into float16; "
                    "recipes/feature_based_ner.py has --feature_dtype float32"
                )
            vectors[layer, words] = values.cpu().numpy()
    return LayerFeatures(vectors, starts)


# The BiLSTM


_MAX_GRAD_NORM = 5.0  # our choice


class FeatureTagger(nn.Module):
    """Turn layers into one vector per word, read them by two BiLSTM layers, and give logits.

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
        num_vectors = len(range(num_layers + 1)[choice.layers])
        self.input_size = num_vectors * hidden_size
        self.layer_weights = None
        self.scale = None
        if choice.is_summed:
            self.input_size = hidden_size
            self.layer_weights = nn.Parameter(torch.zeros(num_vectors))
            self.scale = nn.Parameter(torch.ones(()))
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(
            self.input_size,
            lstm_dim,
            num_layers=2,
            bidirectional=True,
            dropout=dropout,
        )
        self.classifier = nn.Linear(2 * lstm_dim, num_labels)

    def forward(self, vectors: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """Return logits (W, C), float32 or, under autocast, bfloat16.

        Args:
            vectors: float32 (N, W, H), the layers taken, the words of one sentence after the other.
            lengths: Words of each sentence, 1 or more; their sum is W.
        """
        if self.layer_weights is None or self.scale is None:
            inputs = vectors.transpose(0, 1).flatten(1)
        else:
            weights = self.layer_weights.softmax(0)
            inputs = self.scale * torch.einsum("n,nwh->wh", weights, vectors)

        sentences = self.dropout(inputs).split(list(lengths))
        packed = rnn.pack_sequence(list(sentences), enforce_sorted=False)
        packed_states, _ = self.lstm(packed)
        states = torch.cat(rnn.unpack_sequence(packed_states))
        return self.classifier(self.dropout(states))


def train_tagger(
    features: LayerFeatures,
    labels: np.ndarray,
    choice: LayerChoice,
    settings: FeatureNerArguments,
    *,
    num_labels: int,
    seed: int,
    device: torch.device,
) -> FeatureTagger:
    """Train a BiLSTM on features and int64 (W,) labels; the encoder is not touched.

    Args:
        features: Of the training sentences, each of a word or more.
        labels: int64 (W,).
        choice: Layers to read.
        settings: Of the BiLSTM; the precision is fp32 or bf16.
        num_labels: C.
        seed: Of weights and order.
        device: To train on.
    """
    torch.manual_seed(seed)
    num_states, _, hidden_size = features.vectors.shape
    tagger = FeatureTagger(
        choice,
        num_layers=num_states - 1,
        hidden_size=hidden_size,
        num_labels=num_labels,
        lstm_dim=settings.lstm_dim,
        dropout=settings.dropout,
    )
    tagger.to(device)

    lengths = np.diff(features.starts)
    batch_size = min(settings.train_batch_size, len(lengths))
    num_steps = num_training_steps(len(lengths), batch_size, settings.num_train_epochs)
    order = training_order(
        lengths,
        num_steps=num_steps,
        global_batch=batch_size,
        seed=seed,
    )

    optimizer = torch.optim.Adam(tagger.parameters(), lr=settings.learning_rate, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / num_steps)
    for step, numbers in enumerate(order.reshape(num_steps, batch_size)):
        vectors, words = _gather(features, choice, numbers, device)
        targets = torch.from_numpy(labels[words]).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
            logits = tagger(vectors, lengths[numbers].tolist())
        loss = nn.functional.cross_entropy(logits.float(), targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(tagger.parameters(), _MAX_GRAD_NORM)
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
    """Return the number of the most probable label of each word of each sentence, in order.

    Args:
        tagger: In evaluation mode.
        features: Of the sentences.
        choice: Layers to read.
        precision: "fp32" or "bf16".
        batch_size: Sentences at once.
    """
    device = next(tagger.parameters()).device
    lengths = np.diff(features.starts)
    order = np.argsort(-lengths, kind="stable")
    labels: list[list[int]] = [[] for _ in lengths]

    for first in range(0, len(order), batch_size):
        numbers = order[first : first + batch_size]
        num_words = lengths[numbers].tolist()
        vectors, _ = _gather(features, choice, numbers, device)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            best = tagger(vectors, num_words).argmax(-1).cpu()
        for number, sentence_labels in zip(numbers, best.split(num_words), strict=True):
            labels[number] = sentence_labels.tolist()
    return labels


def _gather(
    features: LayerFeatures,
    choice: LayerChoice,
    numbers: np.ndarray,
    device: torch.device,
) -> tuple[torch.Tensor, np.ndarray]:
    """Return float32 (N, W, H) vectors of some sentences, and int64 (W,) numbers of their words.

    Args:
        features: Of all sentences.
        choice: Layers to read.
        numbers: Of the sentences.
        device: Of the vectors.
    """
    ranges = []
    for number in numbers:
        ranges.append(np.arange(features.starts[number], features.starts[number + 1]))
    words = np.concatenate(ranges)
    vectors = np.stack([layer[words] for layer in features.vectors[choice.layers]])
    return torch.from_numpy(vectors).to(device).float(), words


# The table


@dataclass(frozen=True)
class FeatureNerData:
    """Hold sentences, their features, and what the runs of one table have in common."""

    labels: tuple[str, ...]
    train: Split
    validation: Split
    train_features: LayerFeatures
    validation_features: LayerFeatures
    settings: FeatureNerArguments  # the precision is fp32 or bf16
    device: torch.device


def resolve_length(args: FeatureNerArguments) -> int:
    """Set a `max_seq_length` of None to the model's, and return the length."""
    check_checkpoint(args.model_name_or_path)
    if args.max_seq_length is None:
        trained = read_trained_settings(args.model_name_or_path)
        args.max_seq_length = int(trained.get("max_seq_length", 512))
    return args.max_seq_length


def load_feature_data(args: FeatureNerArguments) -> FeatureNerData:
    """Read the sentences and compute their features."""
    max_seq_length = resolve_length(args)
    task = get_task("conll2003")
    device = choose_device(use_cpu=args.use_cpu)
    read = partial(load_split, task, data_dir=args.data_dir, need_labels=True)
    train = read(task.train_split, max_examples=args.max_train_sentences)
    validation = read(task.validation_splits[0], max_examples=args.max_eval_sentences)
    encoder, tokenizer = open_encoder(args.model_name_or_path, max_seq_length)

    for way in args.layers:
        LAYER_CHOICES[way].check(encoder.config.num_hidden_layers)

    encoder = cast(PreTrainedModel, encoder.to(device))
    precision = "fp32"
    # On a GPU autocast computes an LSTM in float16 whatever is asked for, and gradients in float16
    # need a scaled loss.
    if device.type == "cpu":
        precision = choose_precision(args.precision, use_cpu=True).name
    compute_features = partial(
        word_features,
        encoder,
        tokenizer,
        max_seq_length=max_seq_length,
        batch_size=args.feature_batch_size,
        dtype=args.feature_dtype,
    )
    return FeatureNerData(
        labels=task.labels,
        train=train,
        validation=validation,
        train_features=compute_features(_tagged(train)),
        validation_features=compute_features(_tagged(validation)),
        settings=replace(args, precision=precision),
        device=device,
    )


def measure_ways(args: FeatureNerArguments, data: FeatureNerData) -> list[dict[str, Any]]:
    """Train and measure each way with each seed, way by way in the order of the paper.

    Returns:
        For each run its way, seed, the metrics of `entity_scores` (fractions), seconds, size of
        the BiLSTM's input.
    """
    records = []
    ways = [way for way in LAYER_CHOICES if way in args.layers]
    seeds = dict.fromkeys(args.seeds)
    for way, seed in itertools.product(ways, seeds):
        record = _measure(way, seed, data)
        f1_in_percent = 100 * record["f1"]
        logger.info("%s, seed %d: dev F1 %.2f", way, seed, f1_in_percent)
        records.append(record)
    return records


def _measure(way: str, seed: int, data: FeatureNerData) -> dict[str, Any]:
    choice = LAYER_CHOICES[way]
    labels: list[int] = []
    for example in _tagged(data.train):
        labels.extend(example.labels or ())

    start = time.perf_counter()
    tagger = train_tagger(
        data.train_features,
        np.array(labels),
        choice,
        data.settings,
        num_labels=len(data.labels),
        seed=seed,
        device=data.device,
    )
    end_of_training = time.perf_counter()
    predictions = predict_labels(
        tagger, data.validation_features, choice, precision=data.settings.precision
    )
    gold = [_names(example.labels or (), data) for example in _tagged(data.validation)]
    predicted = [_names(numbers, data) for numbers in predictions]

    def score(sentences: Sequence[int]) -> dict[str, float]:
        return entity_scores(
            [gold[number] for number in sentences], [predicted[number] for number in sentences]
        )

    return {
        "way": way,
        "seed": seed,
        **entity_scores(gold, predicted),
        "f1_jackknife": jackknife_replicates(score, len(gold)).get("f1", []),
        "input_size": tagger.input_size,
        "train_seconds": round(end_of_training - start, 1),
        "eval_seconds": round(time.perf_counter() - end_of_training, 1),
    }


def _names(numbers: Sequence[int], data: FeatureNerData) -> list[str]:
    return [data.labels[number] for number in numbers]


def _tagged(split: Split) -> Sequence[TaggedExample]:
    return cast(Sequence[TaggedExample], split.examples)


def mean_replicates(records: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the `jackknife_replicates` of each way's mean F1 over its seeds."""
    replicates = {}
    ways = dict.fromkeys(record["way"] for record in records)
    for way in ways:
        # Seeds are rows, groups of sentences columns.
        f1_of_seeds = [record["f1_jackknife"] for record in records if record["way"] == way]
        mean = np.mean(f1_of_seeds, axis=0)
        replicates[f"f1_{way}"] = mean.round(6).tolist()
    return replicates


def make_table(records: Sequence[Mapping[str, Any]], data: FeatureNerData) -> str:
    """Return Markdown: dev F1 in percent, mean and deviation over seeds, beside the paper's."""
    num_train = len(data.train.examples)
    num_validation = len(data.validation.examples)
    sizes = f"{num_train:,} training and {num_validation:,} dev sentences"
    if data.train.is_partial or data.validation.is_partial:
        sizes += " (a part of CoNLL-2003)"
    num_layers = len(data.train_features.vectors) - 1
    title = (
        f"Dev F1, {sizes}; the model has {num_layers} layers. The paper's are those of "
        "BERT-base (12 layers, cased) on all sentences."
    )
    heads = ["layers", "input size", "F1", "paper", "seeds", "seconds per run"]
    lines = []
    for way, group in itertools.groupby(records, key=lambda record: record["way"]):
        runs = list(group)
        choice = LAYER_CHOICES[way]
        scores = [100 * run["f1"] for run in runs]
        spread = f" ± {stdev(scores):.2f}" if len(scores) > 1 else ""
        seconds = fmean(run["train_seconds"] + run["eval_seconds"] for run in runs)
        cells = [
            choice.title,
            f"{runs[0]['input_size']:,}",
            f"{fmean(scores):.2f}{spread}",
            f"{choice.paper_dev_f1}",
            f"{len(runs)}",
            f"{seconds:.0f}",
        ]
        lines.append(cells)
    return f"{title}\n\n{markdown_table(heads, lines)}"
