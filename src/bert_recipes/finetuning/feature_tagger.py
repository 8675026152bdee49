"""A BiLSTM over the kept hidden states of a frozen encoder, and the six ways of taking layers.

Source: BERT, Devlin et al. 2019, section 5.3 and Table 7: "a randomly initialized two-layer 768-dimensional BiLSTM before
the classification layer".

Legend: L layers of the encoder, N layers that are taken, W words of a batch, H hidden size, C labels.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from bert_recipes.errors import InputError
from bert_recipes.finetuning.sampler import num_training_steps, training_order


if TYPE_CHECKING:
    from bert_recipes.finetuning.layer_features import LayerFeatures


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LayerChoice:
    """One row of Table 7.

    Attributes:
        title: As in the paper.
        taken: Which of the L + 1 hidden states; number 0 is the output of the embeddings.
        is_summed: Whether their weighted sum is taken and not their concatenation.
        least_layers: Layers that the encoder must have.
        paper_dev_f1: Percent, CoNLL-2003 dev, BERT-base cased.
    """

    title: str
    taken: slice
    is_summed: bool
    least_layers: int
    paper_dev_f1: float

    def check(self, num_layers: int) -> None:
        """Refuse an encoder with too few layers."""
        if num_layers < self.least_layers:
            fitting = " ".join(name for name, each in LAYER_CHOICES.items() if each.least_layers <= num_layers)
            raise InputError(
                f"'{self.title}' needs {self.least_layers} layers, the model has {num_layers}; give others: --layers {fitting}"
            )


LAYER_CHOICES: Mapping[str, LayerChoice] = MappingProxyType(
    {
        "embeddings": LayerChoice("Embeddings", slice(0, 1), False, 0, 91.0),
        "second_to_last": LayerChoice("Second-to-Last Hidden", slice(-2, -1), False, 2, 95.6),
        "last": LayerChoice("Last Hidden", slice(-1, None), False, 1, 94.9),
        "weighted_sum_last_four": LayerChoice("Weighted Sum Last Four Hidden", slice(-4, None), True, 4, 95.9),
        "concat_last_four": LayerChoice("Concat Last Four Hidden", slice(-4, None), False, 4, 96.1),
        "weighted_sum_all": LayerChoice("Weighted Sum All Layers", slice(1, None), True, 1, 95.5),
    }
)


@dataclass(frozen=True, kw_only=True)
class TaggerSettings:
    """How the BiLSTM is built and trained; what the paper does not say is our choice.

    Attributes:
        lstm_dim: Units of each direction (paper: 768).
        dropout: On the input, between the two layers and on the output, 0 to 1.
        learning_rate: Adam's; falls linearly to 0.
        batch_size: Sentences of a step.
        num_epochs: Passes over the sentences.
        max_grad_norm: Gradients are scaled down to this norm.
        precision: "fp32" or "bf16": of the matrix products.
    """

    lstm_dim: int = 768
    dropout: float = 0.2
    learning_rate: float = 1e-3
    batch_size: int = 32
    num_epochs: float = 3.0
    max_grad_norm: float = 5.0
    precision: str = "fp32"


class FeatureTagger(nn.Module):
    """Layers -> one vector a word -> two BiLSTM layers -> one logit a label.

    A weighted sum is that of ELMo (Peters et al. 2018, equation 1): softmax weights, equal at the start, and a scale.

    Args:
        choice: Which layers, and how they are joined.
        num_layers: L.
        hidden_size: H.
        num_labels: C.
        lstm_dim: Units of each direction.
        dropout: See `TaggerSettings`.

    Raises:
        InputError: The encoder has too few layers for the choice.
    """

    def __init__(
        self, choice: LayerChoice, *, num_layers: int, hidden_size: int, num_labels: int, lstm_dim: int, dropout: float
    ) -> None:
        super().__init__()
        choice.check(num_layers)
        taken = len(range(num_layers + 1)[choice.taken])
        self.input_size = hidden_size if choice.is_summed else taken * hidden_size
        self.layer_weights = nn.Parameter(torch.zeros(taken)) if choice.is_summed else None
        self.scale = nn.Parameter(torch.ones(())) if choice.is_summed else None
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(self.input_size, lstm_dim, num_layers=2, bidirectional=True, dropout=dropout)
        self.classifier = nn.Linear(2 * lstm_dim, num_labels)

    def forward(self, vectors: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """Label the words of some sentences.

        Args:
            vectors: float32 (N, W, H), the layers taken, the words of one sentence after the other.
            lengths: Words of each sentence, 1 or more; their sum is W.

        Returns:
            Logits (W, C), float32 or, under autocast, bfloat16.
        """
        if self.layer_weights is None or self.scale is None:
            inputs = vectors.transpose(0, 1).flatten(1)
        else:
            weights = self.layer_weights.softmax(0)
            inputs = self.scale * torch.einsum("n,nwh->wh", weights, vectors)
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
    """Train a BiLSTM on kept features; the encoder is not touched.

    Args:
        features: Of the training sentences.
        labels: int64 (W,), the label of each word.
        choice: Which layers.
        settings: How.
        num_labels: C.
        seed: Of the weights, the order of the sentences and the dropout.
        device: Where it is trained.

    Returns:
        The tagger after the last step, in evaluation mode.
    """
    torch.manual_seed(seed)
    tagger = _new_tagger(features, choice, settings, num_labels).to(device)
    lengths = np.diff(features.starts)
    batches = _draw_batches(lengths, settings, seed)
    num_steps = len(batches)
    optimizer = torch.optim.Adam(tagger.parameters(), lr=settings.learning_rate, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / num_steps)
    for step, numbers in enumerate(batches):
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
    tagger: FeatureTagger, features: LayerFeatures, choice: LayerChoice, *, precision: str, batch_size: int = 128
) -> list[list[int]]:
    """Label every word.

    Args:
        tagger: In evaluation mode.
        features: Of the sentences.
        choice: As in training.
        precision: As in training.
        batch_size: Sentences that are computed together.

    Returns:
        For each sentence, in order, the number of the most probable label of each word.
    """
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


def _new_tagger(
    features: LayerFeatures, choice: LayerChoice, settings: TaggerSettings, num_labels: int
) -> FeatureTagger:
    num_states, _, hidden_size = features.vectors.shape
    return FeatureTagger(
        choice,
        num_layers=num_states - 1,
        hidden_size=hidden_size,
        num_labels=num_labels,
        lstm_dim=settings.lstm_dim,
        dropout=settings.dropout,
    )


def _draw_batches(lengths: np.ndarray, settings: TaggerSettings, seed: int) -> np.ndarray:
    """int64 (steps, batch) numbers of the sentences of each step; sentences without words are passed over."""
    filled = np.flatnonzero(lengths)
    batch_size = min(settings.batch_size, len(filled))
    num_steps = num_training_steps(len(filled), batch_size, settings.num_epochs)
    order = training_order(lengths[filled], num_steps=num_steps, global_batch=batch_size, seed=seed)
    return filled[order].reshape(num_steps, batch_size)


def _gather(
    features: LayerFeatures, choice: LayerChoice, numbers: np.ndarray, device: torch.device
) -> tuple[torch.Tensor, np.ndarray]:
    """float32 (N, W, H) vectors of some sentences and int64 (W,) numbers of their words."""
    words = np.concatenate([np.arange(features.starts[n], features.starts[n + 1]) for n in numbers])
    taken = features.vectors[choice.taken]
    vectors = np.stack([layer[words] for layer in taken])
    return torch.from_numpy(vectors).to(device).float(), words
