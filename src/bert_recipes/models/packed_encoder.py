"""The encoder of a stock BERT or a member of its family on packed rows.

Legend: B sequences, S positions, T rows (real tokens, and a few more: `PackedLayout.places`), H
hidden size, E embedding size, M predicted tokens, K rows that heads read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from bert_recipes.models.compiled_layers import RESIDUAL_DTYPE, CompiledLayers
from bert_recipes.models.embeddings import EmbeddingIds, default_positions, embed
from bert_recipes.models.encoder_layer import encode_layer
from bert_recipes.models.kernels.plain import Kernels
from bert_recipes.models.packed_support import products_type
from bert_recipes.models.padding_free import (
    IGNORE_INDEX,
    ROW_STEP,
    PackedLayout,
    Packing,
    grouped_layout,
    make_packing,
    offset_layout,
    round_up,
)
from bert_recipes.models.stock_layers import StockLayer, dropout_rate, layers_of, projection_of
from bert_recipes.models.vocabulary_loss import TiedGradient


# Where heads read more than this share of the rows, the last layer is computed for all.
MAX_READ_FRACTION = 0.6


@dataclass(frozen=True)
class Encoded:
    """Hold the last hidden states of the real tokens of a batch, and where they are."""

    # (T, H), in the type of the products with a CPU's kernels, float32 with compiled layers. With
    # `predicted_head_rows` (K, H): each sequence's first token, then the predicted ones, and maybe
    # a few more.
    rows: torch.Tensor
    layout: PackedLayout
    # Where an output layer tied to the word embeddings may store its gradient; None if
    # they learn nothing.
    tied_gradient: TiedGradient | None = None
    # Hidden states (T, H) of other layers that the caller asked for, by the number of the layer.
    hidden_states: dict[int, torch.Tensor] = field(default_factory=dict)
    # The output of the encoder called as a module: every position is then a row.
    outputs: Any = None
    # What `predicted_rows` returns, where the last layer was computed for the rows that heads read.
    predicted_head_rows: tuple[torch.Tensor, torch.Tensor] | None = None

    def with_head_rows(self, head_rows: HeadRows) -> Encoded:
        """Return the same with the layout of the rows that heads read, which alone are there."""
        num_sequences = len(self.layout.first_rows)
        layout = replace(
            self.layout,
            places=self.layout.places_of(head_rows.rows),
            first_rows=torch.arange(num_sequences, device=self.rows.device),
        )
        return replace(self, layout=layout, predicted_head_rows=head_rows.predicted)

    def token_places(self, attention_mask: torch.Tensor | None) -> torch.Tensor | slice:
        """Return the flat positions in (B * S) of the real tokens, in order.

        A GPU waits where the batch has no packing.
        """
        if self.layout.keeps_batch_order:
            assert self.layout.places is not None
            return self.layout.places
        if attention_mask is None:
            return slice(None)
        return attention_mask.flatten().nonzero()[:, 0]

    def token_rows(self, attention_mask: torch.Tensor | None) -> torch.Tensor:
        """Return the rows of the real tokens, in the order of the padded batch."""
        assert self.predicted_head_rows is None
        if attention_mask is None or self.layout.keeps_batch_order:
            return self.rows[: self.layout.num_tokens]
        places = attention_mask.flatten().nonzero()[:, 0]
        row_numbers = self.layout.rows_of(places)
        return self.rows[row_numbers]

    def predicted_rows(
        self, labels: torch.Tensor, packing: Packing | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the numbers of the rows whose token is predicted and what it is, int64 (M,) each.

        A GPU waits where the batch has no packing.

        Args:
            labels: int64 (B, S), -100 where nothing is predicted.
            packing: The packing of the batch.
        """
        if self.predicted_head_rows is not None:
            return self.predicted_head_rows
        return find_predicted_rows(self.layout, labels, packing)


def find_predicted_rows(
    layout: PackedLayout, labels: torch.Tensor, packing: Packing | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the numbers of the rows whose token is predicted and what it is, int64 (M,) each."""
    if packing is not None and "predicted" in packing and layout.keeps_batch_order:
        return packing["predicted"], packing["targets"]
    flat_labels = labels.flatten()
    places = (flat_labels != IGNORE_INDEX).nonzero()[:, 0]
    targets = flat_labels[places].long()
    return layout.rows_of(places), targets


class HeadRows(NamedTuple):
    """Hold the rows that the heads of pre-training read after the last layer."""

    # int64 (K,): each sequence's first, then the predicted ones, filled up by row 0.
    rows: torch.Tensor
    predicted: tuple[torch.Tensor, torch.Tensor]  # `find_predicted_rows`, counted among `rows`


def find_head_rows(
    layout: PackedLayout, labels: torch.Tensor, packing: Packing | None = None, row_step: int = 1
) -> HeadRows | None:
    """Return the rows that heads read, K a multiple of `row_step`; None where these are many."""
    predicted, targets = find_predicted_rows(layout, labels, packing)
    num_sequences = len(layout.first_rows)
    num_read = num_sequences + len(predicted)
    if num_read > MAX_READ_FRACTION * layout.num_tokens:
        return None
    rows = torch.cat([layout.first_rows, predicted])
    rows = F.pad(rows, (0, round_up(num_read, row_step) - num_read))
    numbers = torch.arange(num_sequences, num_read, device=rows.device)
    return HeadRows(rows, (numbers, targets))


def encode_packed(
    model: Any,
    kernels: Kernels | CompiledLayers,
    inputs: Mapping[str, Any],
    packing: Packing | None = None,
    keep: Collection[int] = (),
    head_labels: torch.Tensor | None = None,
) -> Encoded:
    """Run embeddings and layers on the real tokens of a batch.

    Args:
        model: A `bert_recipes.models.bert_model.PackedModel`; its weights are used, its modules'
            own forwards are not.
        kernels: The result of `load_kernels`.
        inputs: input_ids int64 (B, S); attention_mask (B, S) of any type, 0 = pad, or None;
            token_type_ids and position_ids int64 (B, S), (1, S) or None.
        packing: The result of `make_packing`, for `CompiledLayers`; None: made here, and a GPU
            waits.
        keep: The hidden states that are wanted beside the last, 0 for the embeddings.
        head_labels: int64 (B, S), -100 where nothing is predicted. Where they are given, only the
            first token of each sequence and the predicted tokens leave the last layer.
    """
    input_ids = inputs["input_ids"]
    attention_mask = inputs.get("attention_mask")
    token_type_ids = inputs.get("token_type_ids")
    position_ids = inputs.get("position_ids")
    if attention_mask is None:
        attention_mask = torch.ones_like(input_ids)
    if token_type_ids is not None:
        token_type_ids = token_type_ids.expand(input_ids.shape)
    if position_ids is None:
        position_ids = default_positions(model.embeddings, input_ids)
    ids = EmbeddingIds(
        input_ids=input_ids,
        token_type_ids=token_type_ids,
        position_ids=position_ids.expand(input_ids.shape),
    )

    if not isinstance(kernels, CompiledLayers):
        return _encode_by_kernels(model, kernels, ids, attention_mask, keep, head_labels)
    if packing is None:
        packing = make_packing(attention_mask)
    return _encode_by_compiled_layers(model, kernels, ids, packing, keep, head_labels)


def _encode_by_compiled_layers(
    model: Any,
    compiled_layers: CompiledLayers,
    ids: EmbeddingIds,
    packing: Packing,
    keep: Collection[int],
    head_labels: torch.Tensor | None,
) -> Encoded:
    """Run embeddings and layers in torch operations, on rows in the order of the padded batch.

    Args:
        model: As in `encode_packed`.
        compiled_layers: The operations, compiled or not.
        ids: The ids of the padded batch.
        packing: The result of `make_packing`.
        keep: As in `encode_packed`.
        head_labels: As in `encode_packed`.
    """
    batch, size = ids.input_ids.shape
    layout = offset_layout(packing, (batch, size), computes_pads=model.computes_pads)
    offsets = layout.offsets
    assert offsets is not None
    dtype = products_type(model)
    dropout = dropout_rate(model.embeddings.dropout)
    projection = projection_of(model)
    layers = list(layers_of(model))
    head_rows = None
    if head_labels is not None:
        head_rows = find_head_rows(layout, head_labels, packing)

    # Each operation has a type of its own.
    with torch.autocast(ids.input_ids.device.type, enabled=False):
        rows = compiled_layers.embed(model.embeddings, layout, ids, dropout)
        if projection is not None:
            weight = projection.weight.to(dtype)
            bias = projection.bias.to(dtype)
            rows = F.linear(rows.to(dtype), weight, bias).to(RESIDUAL_DTYPE)

        def encode(
            rows: torch.Tensor, number: int, layer: StockLayer, output_rows: torch.Tensor | None
        ) -> torch.Tensor:
            settings = layer.settings(model.config, dtype)
            return compiled_layers.encode_layer(rows, offsets, settings, layer.weights, output_rows)

        rows, hidden_states = _run_layers(layers, rows, encode, keep, head_rows)
    encoded = Encoded(rows=rows, layout=layout, hidden_states=hidden_states)
    return encoded if head_rows is None else encoded.with_head_rows(head_rows)


def _encode_by_kernels(
    model: Any,
    kernels: Kernels,
    ids: EmbeddingIds,
    attention_mask: torch.Tensor,
    keep: Collection[int],
    head_labels: torch.Tensor | None,
) -> Encoded:
    """Run embeddings and layers with a CPU's kernels, on rows ordered by the sequences' length.

    Args:
        model: As in `encode_packed`.
        kernels: A module with the functions of `kernels.plain`.
        ids: The ids of the padded batch.
        attention_mask: (B, S) of any type, 0 = pad.
        keep: As in `encode_packed`.
        head_labels: As in `encode_packed`.
    """
    config = model.config
    dtype = products_type(model)
    projection = projection_of(model)
    layers = list(layers_of(model))
    layout = grouped_layout(
        attention_mask,
        heads=config.num_attention_heads,
        computes_pads=model.computes_pads,
    )
    *layer_seeds, embeddings_seed = _draw_seeds(model, layers)
    head_rows = None
    if head_labels is not None:
        head_rows = find_head_rows(layout, head_labels, row_step=ROW_STEP)

    tied_gradient = TiedGradient()
    rows = embed(model.embeddings, layout, ids, dtype, embeddings_seed, kernels, tied_gradient)
    if projection is not None:
        rows = projection(rows).to(dtype)

    def encode(
        rows: torch.Tensor, number: int, layer: StockLayer, output_rows: torch.Tensor | None
    ) -> torch.Tensor:
        settings = layer.settings(config, dtype)
        seed = layer_seeds[number - 1]
        return encode_layer(rows, layout, settings, seed, kernels, layer.weights, output_rows)

    rows, hidden_states = _run_layers(layers, rows, encode, keep, head_rows)
    words_learn = model.embeddings.word_embeddings.weight.requires_grad
    encoded = Encoded(
        rows=rows,
        layout=layout,
        tied_gradient=tied_gradient if words_learn and torch.is_grad_enabled() else None,
        hidden_states=hidden_states,
    )
    return encoded if head_rows is None else encoded.with_head_rows(head_rows)


def _draw_seeds(model: Any, layers: Sequence[StockLayer]) -> list[int]:
    """Return a seed of dropout for each layer, and one for the embeddings; 0 without dropout.

    One draw from torch's generator decides all masks of a pass: its state is all that a resume
    needs.
    """
    num_seeds = len(layers) + 1
    has_dropout = dropout_rate(model.embeddings.dropout) > 0
    for layer in layers:
        has_dropout = has_dropout or any(layer.dropouts)
    if not has_dropout:
        return [0] * num_seeds
    return torch.randint(-(2**63), 2**63 - 1, (num_seeds,)).tolist()


def _run_layers(
    layers: Sequence[StockLayer],
    rows: torch.Tensor,
    encode: Callable[[torch.Tensor, int, StockLayer, torch.Tensor | None], torch.Tensor],
    keep: Collection[int],
    head_rows: HeadRows | None,
) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    """Run the layers one after the other, with gradient checkpointing where it is switched on.

    Args:
        layers: In order.
        rows: (T, H), the embeddings.
        encode: Computes a layer of rows, given its number, for all rows or for those that are read.
        keep: Numbers of hidden states.
        head_rows: The rows that are read after the last layer; None: all.

    Returns:
        The last hidden states, (T, H) or (K, H), and those whose numbers are in `keep`.
    """
    hidden_states = {}
    if 0 in keep:
        hidden_states[0] = rows

    for number, layer in enumerate(layers, start=1):
        module = layer.module
        output_rows = None
        if head_rows is not None and number == len(layers):
            output_rows = head_rows.rows
        if module.training and getattr(module, "gradient_checkpointing", False):
            if _needs_gradient_of_input(module, rows):
                rows.requires_grad_()
            rows = module._gradient_checkpointing_func(encode, rows, number, layer, output_rows)
        else:
            rows = encode(rows, number, layer, output_rows)
        if number in keep:
            hidden_states[number] = rows
    return rows, hidden_states


def _needs_gradient_of_input(module: Any, rows: torch.Tensor) -> bool:
    """Return whether a layer that learns gets a gradient only if its input has one.

    So it is with reentrant checkpointing.
    """
    settings = getattr(module._gradient_checkpointing_func, "keywords", {})
    if rows.requires_grad or not settings.get("use_reentrant", True):
        return False
    learns = any(parameter.requires_grad for parameter in module.parameters())
    return learns and torch.is_grad_enabled()
