"""Stock `BertModel` with the original's initialisation and, on request, layers on packed rows.

Legend: B batch, S positions, T real tokens of the batch, H hidden size.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, cast

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions
from transformers.models.bert.modeling_bert import BertPreTrainedModel
from transformers.utils.generic import can_return_tuple

from bert_recipes.models.kernels.loading import Kernels, load_kernels
from bert_recipes.models.packed_encoder import Encoded, encode_packed, why_not_batch, why_not_packed
from bert_recipes.models.padding_free import PackedLayout


logger = logging.getLogger(__name__)


@functools.cache
def say_once(what: str, reason: str) -> None:
    """Warn, once for each reason, that calls are computed by stock modules although fast ones were announced."""
    logger.warning("%s for calls like this one, which is slower: %s", what, reason)


class OriginalInitialization(BertPreTrainedModel):
    """New weights as in google-research/bert modeling.py `create_initializer`: a normal cut off at two deviations.

    `config.weight_init` = "truncated_normal" (the default) or "normal" (stock transformers).
    """

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if getattr(self.config, "weight_init", "truncated_normal") != "truncated_normal":
            return
        if isinstance(module, nn.Linear | nn.Embedding):
            std = self.config.initializer_range
            init.trunc_normal_(module.weight, mean=0.0, std=std, a=-2 * std, b=2 * std)


class BertModel(OriginalInitialization, transformers.BertModel):
    """Stock `BertModel`, initialised as the original, and with a faster encoder on request (`use_fast_layers`)."""

    _fast_layers = "off"
    # Whether the fast layers compute pads too, for a head that counts them in its loss; otherwise their hidden states are 0.
    computes_pads = False

    @classmethod
    def from_stock(cls, model: transformers.BertModel) -> BertModel:
        """Put a stock model under this class: the same object, with all that it has. Its head may count pads in its loss."""
        _make_known(cls)  # type: ignore[arg-type]  # a class is hashable; its stock base has no types that say so
        model.__class__ = cls
        model.computes_pads = True
        return cast(BertModel, model)

    def use_fast_layers(self, name: str) -> bool:
        """Compute layers on packed rows with fused kernels (`load_kernels`), where model and machine allow it; return whether they do."""
        reason = why_not_packed(self)
        self._fast_layers = name if reason is None else "off"
        if reason is not None and name != "off":
            logger.info("stock layers: %s", reason)
        return self.fast_kernels is not None

    @property
    def fast_kernels(self) -> Kernels | None:
        """What the layers are computed with; None = stock layers, which torch.compile gets, too."""
        return None if torch.compiler.is_compiling() else load_kernels(self._fast_layers, self.device)

    def encode_rows(
        self,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        kwargs: dict[str, Any],
        keep: dict[int, torch.Tensor | None] | None = None,
    ) -> Encoded | None:
        """Last hidden states of the real tokens and where they are; None where the stock encoder has to do it.

        Other hidden states are kept as `encode_packed` says.
        """
        kernels = self.fast_kernels
        if kernels is None:
            return None
        reason = "input_ids are not given" if input_ids is None else why_not_batch(self, attention_mask, kwargs)
        if reason is not None or input_ids is None:
            say_once("stock layers", str(reason))
            return None
        return encode_packed(self, kernels, input_ids, attention_mask, token_type_ids, position_ids, keep)

    def pool_rows(self, rows: torch.Tensor, layout: PackedLayout) -> torch.Tensor | None:
        """Float (B, H): the pooler on each sequence's first token."""
        return None if self.pooler is None else self.pooler(rows[layout.first_rows][:, None])

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPoolingAndCrossAttentions:
        """As stock; with kernels the hidden states of pads are 0, unless `computes_pads`."""
        encoded = self.encode_rows(
            input_ids, attention_mask, token_type_ids, position_ids, {"inputs_embeds": inputs_embeds, **kwargs}
        )
        if encoded is None:
            return super().forward(
                input_ids=input_ids,
                attention_mask=attention_mask,
                token_type_ids=token_type_ids,
                position_ids=position_ids,
                inputs_embeds=inputs_embeds,
                return_dict=True,
                **kwargs,
            )
        rows, layout = encoded.rows, encoded.layout
        return BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=layout.unpack(rows), pooler_output=self.pool_rows(rows, layout)
        )


@functools.cache
def _make_known(kind: type[BertModel]) -> None:
    """Let transformers note which outputs a class can record (attentions, hidden states): it does so when one is built."""
    sizes = {"vocab_size": 1, "hidden_size": 1, "intermediate_size": 1, "max_position_embeddings": 1}
    config = transformers.BertConfig(num_attention_heads=1, num_hidden_layers=1, **sizes)
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        kind(config)


def enable_packed_layers(model: PreTrainedModel, fast_layers: str) -> None:
    """Give a model on a CPU the fastest layers that machine and architecture allow; weights, names and results stay.

    Stock layers keep the attention that the model has: nothing says whether the user asked for it or transformers chose it.

    Args:
        model: With any head; a stock `BertModel` inside is put under our class.
        fast_layers: "auto", "plain" or "off" (`load_kernels`).
    """
    base: Any = model.base_model
    if type(base) is transformers.BertModel and base is not model:
        base = BertModel.from_stock(base)
    if isinstance(base, BertModel):
        # Its softmax is over all positions, as in the original: pads get the hidden states that stock layers give them.
        base.computes_pads = isinstance(model, transformers.BertForQuestionAnswering)
        if base.use_fast_layers(fast_layers):
            logger.info("layers: on packed rows, with fused kernels")
