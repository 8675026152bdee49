"""Inputs to vectors, part by part: like lengths together inside a part, and back in the order of the inputs.

Legend: N inputs of a part, T their tokens, B inputs of a batch, H hidden size, D size of a column's vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from bert_recipes.errors import InputError
from bert_recipes.features.columns import Column
from bert_recipes.features.frozen_encoder import hidden_rows
from bert_recipes.features.inputs import EncodedInput
from bert_recipes.tokenization import OriginalBertTokenizer


# Whatever the vectors take: texts' ids, in Python's own objects, take memory, too.
MOST_INPUTS, MOST_TOKENS = 100_000, 2_000_000


@dataclass(frozen=True)
class Part:
    """The vectors of consecutive inputs.

    Attributes:
        first_row: Number of the first of the N inputs in the file, from 0.
        offsets: int64 (N + 1,), where the tokens of each input begin among the T.
        input_ids: int32 (T,).
        token_type_ids: int8 (T,).
        is_truncated: bool (N,).
        vectors: Column's name -> float (T, D), or (N, D) where inputs have one vector each.
        has_token_vectors: Which of both.
    """

    first_row: int
    offsets: np.ndarray
    input_ids: np.ndarray
    token_type_ids: np.ndarray
    is_truncated: np.ndarray
    vectors: dict[str, np.ndarray]
    has_token_vectors: bool

    def __len__(self) -> int:
        return len(self.is_truncated)

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.input_ids)


@dataclass(frozen=True, kw_only=True)
class FeatureExtractor:
    """A frozen encoder and what is wanted of it.

    Attributes:
        encoder: In evaluation mode, on its device.
        tokenizer: Its own.
        columns: Which vectors.
        pooling: tokens, cls, mean or mean_all.
        batch_size: Inputs that are computed together.
        dtype: float32 or float16, of the vectors.
        precision: fp32 or bf16, of the matrix products.
    """

    encoder: PreTrainedModel
    tokenizer: OriginalBertTokenizer
    columns: Sequence[Column]
    pooling: str = "tokens"
    batch_size: int = 32
    dtype: str = "float32"
    precision: str = "fp32"

    @property
    def bytes_a_vector(self) -> int:
        """Bytes of one vector of every column."""
        size = sum(column.size(self.encoder.config.hidden_size) for column in self.columns)
        return size * np.dtype(self.dtype).itemsize

    def parts(self, inputs: Iterable[EncodedInput], part_bytes: int, first_row: int = 0) -> Iterator[Part]:
        """Yield the vectors of all inputs, in their order.

        Args:
            inputs: Any number.
            part_bytes: What the vectors of a part may take; one input may take more.
            first_row: Number of the first input.
        """
        held: list[EncodedInput] = []
        num_tokens = 0
        for each in inputs:
            own = len(each.input_ids)
            size = self.bytes_a_vector * (num_tokens + own if self.pooling == "tokens" else len(held) + 1)
            if held and (size > part_bytes or len(held) == MOST_INPUTS or num_tokens + own > MOST_TOKENS):
                yield self.extract(held, first_row)
                first_row, held, num_tokens = first_row + len(held), [], 0
            held.append(each)
            num_tokens += own
        if held:
            yield self.extract(held, first_row)

    def extract(self, inputs: Sequence[EncodedInput], first_row: int = 0) -> Part:
        """Compute the vectors of some inputs.

        Args:
            inputs: At least one.
            first_row: Number of the first one.
        """
        lengths = np.array([len(each.input_ids) for each in inputs])
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        per_token = self.pooling == "tokens"
        width = self.encoder.config.hidden_size
        vectors = {
            column.name: np.empty((offsets[-1] if per_token else len(inputs), column.size(width)), self.dtype)
            for column in self.columns
        }
        order = np.argsort(-lengths, kind="stable")
        for start in range(0, len(order), self.batch_size):
            numbers = order[start : start + self.batch_size]
            batch = [inputs[number] for number in numbers]
            places = np.concatenate([np.arange(offsets[n], offsets[n + 1]) for n in numbers]) if per_token else numbers
            for column, values in zip(self.columns, self._compute(batch), strict=True):
                vectors[column.name][places] = values
        return Part(
            first_row=first_row,
            offsets=offsets,
            input_ids=np.concatenate([each.input_ids for each in inputs]).astype(np.int32),
            token_type_ids=np.concatenate([each.token_type_ids for each in inputs]).astype(np.int8),
            is_truncated=np.array([each.is_truncated for each in inputs]),
            vectors=vectors,
            has_token_vectors=per_token,
        )

    @torch.no_grad()
    def _compute(self, batch: Sequence[EncodedInput]) -> list[np.ndarray]:
        """Of each column the vectors of a batch, (T, D) or (B, D)."""
        device = self.encoder.device
        features = [{"input_ids": each.input_ids, "token_type_ids": each.token_type_ids} for each in batch]
        layers = sorted({number for column in self.columns for number in column.layers})
        with torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            hidden = hidden_rows(self.encoder, features, self.tokenizer.pad_token_id, layers)
        found = []
        for column in self.columns:
            values = self._pool(column.take(hidden), batch)
            self._check(column.name, values)
            found.append(values.cpu().numpy().astype(self.dtype))
        return found

    def _pool(self, values: torch.Tensor, batch: Sequence[EncodedInput]) -> torch.Tensor:
        """(T, D) -> (B, D), unless every token keeps its own."""
        if self.pooling == "tokens":
            return values
        lengths = torch.tensor([len(each.input_ids) for each in batch], device=values.device)
        if self.pooling == "cls":
            return values[lengths.cumsum(0) - lengths]
        counted = np.concatenate([_counts_in_mean(each, everything=self.pooling == "mean_all") for each in batch])
        weights = torch.from_numpy(counted).to(values)[:, None]
        owners = torch.repeat_interleave(torch.arange(len(batch), device=values.device), lengths)
        sums = values.new_zeros((len(batch), values.shape[1])).index_add_(0, owners, values * weights)
        return sums / values.new_zeros((len(batch), 1)).index_add_(0, owners, weights)

    def _check(self, name: str, values: torch.Tensor) -> None:
        if not bool(values.isfinite().all()):
            raise InputError(f"{name}: the model's outputs are not finite; it has diverged, or --precision fp32 helps")
        if self.dtype == "float16" and values.numel() and values.abs().max() > np.finfo(np.float16).max:
            raise InputError(f"{name}: a value above 65,504 does not fit into float16; give --dtype float32")


def _counts_in_mean(each: EncodedInput, *, everything: bool) -> np.ndarray:
    """Bool (tokens,): all but [CLS] and both [SEP], unless there is nothing else."""
    length, own = len(each.input_ids), sum(each.token_type_ids)
    counted = np.ones(length, bool)
    # [CLS] text [SEP] second text [SEP]
    specials = {0, length - own - 1, length - 1}
    if not everything and len(specials) < length:
        counted[list(specials)] = False
    return counted
