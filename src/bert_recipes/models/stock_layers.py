"""The layers of the stock encoders: weights, dropout rates and settings of each.

Legend: H hidden size, F feed-forward size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers.activations import ACT2FN

from bert_recipes.models.sizes import reads_left_to_right


# hidden_act -> whether it is the GELU by the error function; the others are the tanh formula of
# the original.
GELU_IS_EXACT = {"gelu": True, "gelu_new": False, "gelu_pytorch_tanh": False}
# Type of activation -> the same.
EXACT_BY_TYPE = {type(ACT2FN[name]): is_exact for name, is_exact in GELU_IS_EXACT.items()}


@dataclass(frozen=True)
class LayerSettings:
    """Hold the numbers of a layer that are not learned."""

    heads: int
    epsilon: float  # of the LayerNorms
    exact_gelu: bool  # by the error function; otherwise by the tanh formula
    attention_dropout: float  # of the attention probabilities; 0 in evaluation, as the next two
    attention_output_dropout: float
    output_dropout: float  # after the feed-forward layers
    dtype: torch.dtype  # of products and of what lies between them; float16 on GPUs alone
    is_causal: bool = False  # a token sees those before it alone; `compiled_layers` only


class LayerWeights(NamedTuple):
    """Hold the weights (output size, input size) and biases of a layer."""

    query: torch.Tensor  # (H, H)
    query_bias: torch.Tensor  # (H,), as those of all but `intermediate`
    key: torch.Tensor
    key_bias: torch.Tensor
    value: torch.Tensor
    value_bias: torch.Tensor
    attention_output: torch.Tensor
    attention_output_bias: torch.Tensor
    attention_norm: torch.Tensor  # (H,), as `output_norm`
    attention_norm_bias: torch.Tensor
    intermediate: torch.Tensor  # (F, H)
    intermediate_bias: torch.Tensor  # (F,)
    output: torch.Tensor  # (H, F)
    output_bias: torch.Tensor
    output_norm: torch.Tensor
    output_norm_bias: torch.Tensor


class LayerNames(NamedTuple):
    """Hold the names of a layer's modules, as in its state dict."""

    weight_modules: tuple[str, ...]  # the eight with weights, in the order of `LayerWeights`
    # Dropouts of the attention probabilities, after attention, after the feed-forward layers.
    dropouts: tuple[str | None, str | None, str | None]
    activation: str


BERT_LAYER = LayerNames(
    weight_modules=(
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
        "attention.output.LayerNorm",
        "intermediate.dense",
        "output.dense",
        "output.LayerNorm",
    ),
    dropouts=("attention.self.dropout", "attention.output.dropout", "output.dropout"),
    activation="intermediate.intermediate_act_fn",
)
ALBERT_LAYER = LayerNames(
    weight_modules=(
        "attention.query",
        "attention.key",
        "attention.value",
        "attention.dense",
        "attention.LayerNorm",
        "ffn",
        "ffn_output",
        "full_layer_layer_norm",
    ),
    # Stock has no dropout after the feed-forward layers.
    dropouts=("attention.attention_dropout", "attention.output_dropout", None),
    activation="activation",
)
DISTILBERT_LAYER = LayerNames(
    weight_modules=(
        "attention.q_lin",
        "attention.k_lin",
        "attention.v_lin",
        "attention.out_lin",
        "sa_layer_norm",
        "ffn.lin1",
        "ffn.lin2",
        "output_layer_norm",
    ),
    # Stock has no dropout after attention.
    dropouts=("attention.dropout", None, "ffn.dropout"),
    activation="ffn.activation",
)
# config.model_type -> names
LAYER_NAMES = {
    "bert": BERT_LAYER,
    "roberta": BERT_LAYER,
    "electra": BERT_LAYER,
    "albert": ALBERT_LAYER,
    "distilbert": DISTILBERT_LAYER,
}


class StockLayer(NamedTuple):
    """Hold a layer of a stock encoder and what computing it needs."""

    module: Any
    # The eight modules with weights, in the order of `LayerWeights`.
    weight_modules: tuple[Any, ...]
    # Dropouts of the attention probabilities, after attention, after the feed-forward layers; 0 in
    # evaluation.
    dropouts: tuple[float, float, float]
    activation: nn.Module

    @property
    def attention_norm(self) -> Any:
        """Return the LayerNorm after attention."""
        return self.weight_modules[4]

    @property
    def output_norm(self) -> Any:
        """Return the LayerNorm after the feed-forward layers."""
        return self.weight_modules[7]

    @property
    def weights(self) -> LayerWeights:
        """Return the weights and biases."""
        tensors = []
        for module in self.weight_modules:
            tensors += [module.weight, module.bias]
        return LayerWeights(*tensors)

    def settings(self, config: Any, dtype: torch.dtype) -> LayerSettings:
        """Return what is not learned; `dtype` is that of the products."""
        attention_dropout, attention_output_dropout, output_dropout = self.dropouts
        return LayerSettings(
            heads=config.num_attention_heads,
            epsilon=self.output_norm.eps,
            exact_gelu=bool(gelu_is_exact(self.activation)),
            attention_dropout=attention_dropout,
            attention_output_dropout=attention_output_dropout,
            output_dropout=output_dropout,
            dtype=dtype,
            is_causal=reads_left_to_right(config),
        )


def layers_of(model: Any) -> Iterator[StockLayer]:
    """Yield the layers of an encoder as they are computed, one that is shared several times."""
    names = LAYER_NAMES[model.config.model_type]
    weight_modules_of = attrgetter(*names.weight_modules)
    activation_of = attrgetter(names.activation)
    attention_dropout, attention_output_dropout, output_dropout = names.dropouts
    for module in _layer_modules(model):
        dropouts = (
            _rate_of(module, attention_dropout),
            _rate_of(module, attention_output_dropout),
            _rate_of(module, output_dropout),
        )
        yield StockLayer(module, weight_modules_of(module), dropouts, activation_of(module))


def _layer_modules(model: Any) -> Iterator[Any]:
    """Yield the layer modules of an encoder in the order in which they are computed."""
    if model.config.model_type == "distilbert":
        yield from model.transformer.layer
    elif model.config.model_type == "albert":
        groups = model.encoder.albert_layer_groups
        num_layers = model.config.num_hidden_layers
        layers_per_group = num_layers / len(groups)
        for number in range(num_layers):
            yield from groups[int(number / layers_per_group)].albert_layers  # as stock rounds
    else:
        yield from model.encoder.layer


def projection_of(model: Any) -> Any:
    """Return the layer from embeddings of another size to hidden states; None without one."""
    if model.config.model_type == "albert":
        return model.encoder.embedding_hidden_mapping_in
    return getattr(model, "embeddings_project", None)  # ELECTRA's


def _rate_of(module: nn.Module, dropout: str | None) -> float:
    return 0.0 if dropout is None else dropout_rate(attrgetter(dropout)(module))


def dropout_rate(dropout: nn.Dropout) -> float:
    """Return the rate of a Dropout module, 0 in evaluation."""
    return dropout.p if dropout.training else 0.0


def gelu_is_exact(activation: nn.Module) -> bool | None:
    """Return whether an activation is the GELU by the error function; None where it is no GELU."""
    if type(activation) is nn.GELU:
        return activation.approximate == "none"
    return EXACT_BY_TYPE.get(type(activation))
