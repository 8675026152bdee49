"""Stock BERT, RoBERTa, ALBERT, DistilBERT and ELECTRA with the original's initialisation and, on
request, layers on packed rows.

Legend: B batch, S positions, T real tokens of the batch, H hidden size.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions
from transformers.utils.generic import can_return_tuple

from bert_recipes.models.compiled_layers import CompiledLayers
from bert_recipes.models.kernels.loading import load_kernels
from bert_recipes.models.kernels.plain import Kernels
from bert_recipes.models.packed_attention import (
    HEAD_SIZE_STEP,
    MAX_HEAD_SIZE,
    MIN_CAPABILITY,
    choose_flash_kernel,
)
from bert_recipes.models.packed_encoder import Encoded, encode_packed, why_not_batch, why_not_packed
from bert_recipes.models.padding_free import PackedLayout


if TYPE_CHECKING:  # mixed in before a stock class
    from transformers import PreTrainedModel as _Mixin
else:
    _Mixin = object


logger = logging.getLogger(__name__)

# Positions of the longest wave of `sinusoids`, and their deviation over that of other new weights:
# few positions apart is what attention learns first. docs/speed.md, "What a minute teaches".
LONGEST_WAVE, SINUSOID_SCALE = 40.0, 2.0


@functools.cache
def say_once(what: str, reason: str) -> None:
    """Warn, once for each reason, that calls are computed by stock modules although fast ones were
    announced.
    """
    logger.warning("%s for calls like this one, which is slower: %s", what, reason)


class OriginalInitialization(_Mixin):
    """New weights as in google-research/bert modeling.py `create_initializer`: a normal cut off at
    two deviations.

    `config.weight_init`: "truncated_normal", "normal" (stock transformers; RoBERTa's and
    DistilBERT's default) or "sinusoidal_positions": the first, but position embeddings begin as
    `sinusoids`, and learn from there.
    """

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        weight_init, std = (
            getattr(self.config, "weight_init", "truncated_normal"),
            self.config.initializer_range,
        )
        if weight_init == "normal":
            return
        if isinstance(module, nn.Linear | nn.Embedding):
            init.trunc_normal_(module.weight, mean=0.0, std=std, a=-2 * std, b=2 * std)
        # Embeddings as a whole come after their parts.
        if weight_init == "sinusoidal_positions" and hasattr(module, "position_embeddings"):
            weight: Any = module.position_embeddings.weight  # type: ignore[union-attr]
            init.copy_(weight, sinusoids(*weight.shape).to(weight.device) * SINUSOID_SCALE * std)


def sinusoids(length: int, size: int) -> torch.Tensor:
    """float32 (length, size) with a mean square of 1: sines, then cosines, of wavelengths from 2 pi
    to `LONGEST_WAVE` positions.

    The form is that of Vaswani et al. 2017, section 3.5, with other wavelengths.
    """
    half = math.ceil(size / 2)
    rates = torch.logspace(0, math.log10(2 * math.pi / LONGEST_WAVE), half)
    angles = torch.arange(length)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :size] * math.sqrt(2)


class PackedModel(OriginalInitialization):
    """What the members of the family add to a stock encoder: the original's initialisation, and
    faster layers on request (`use_fast_layers`).
    """

    _fast_layers = _fast_loss = "off"
    # Whether the fast layers compute pads too, for a head that counts them in its loss; otherwise
    # their hidden states are 0.
    computes_pads = False
    # From embeddings of another size to the layers'; ALBERT's and ELECTRA's.
    projection: Any = None

    @classmethod
    def from_stock(cls, model: Any) -> Any:
        """Put a stock encoder under this class: the same object, with all that it has. Its head may
        count pads in its loss.
        """
        _make_known(cls)  # type: ignore[arg-type]  # a class is hashable; its stock base has no types that say so
        model.__class__ = cls
        model.computes_pads = True
        return model

    def use_fast_layers(
        self, name: str, *, loss: str | None = None, device: torch.device | None = None
    ) -> bool:
        """Compute layers on packed rows (`load_kernels`), where model and device allow it; return
        whether they do.

        Args:
            name: One of `FAST_LAYERS`.
            loss: The same for the loss over the vocabulary; None: as the layers.
            device: Where the model is going to be; None: where it is.
        """
        kernels = load_kernels(name, device or self.device)
        reason = why_not_packed(self, serves_decoders=isinstance(kernels, CompiledLayers))
        self._fast_layers, self._fast_loss = name if reason is None else "off", loss or name
        if reason is not None and name != "off":
            logger.info("encoder: stock layers: %s", reason)
        return reason is None and kernels is not None

    @property
    def fast_kernels(self) -> Kernels | CompiledLayers | None:
        """What the layers are computed with; None = stock layers, which torch.compile gets, too."""
        return (
            None if torch.compiler.is_compiling() else load_kernels(self._fast_layers, self.device)
        )

    @property
    def loss_kernels(self) -> Kernels | CompiledLayers | None:
        """What a loss over the vocabulary is computed with in training, also over stock layers;
        None = with its logits as a whole.
        """
        return None if torch.compiler.is_compiling() else load_kernels(self._fast_loss, self.device)

    def reads_plans_on(self, device: torch.device) -> bool:
        """Return whether a batch should come with the plan of its rows (`padding_free.plan_rows`)
        when the model is on a device.
        """
        return isinstance(load_kernels(self._fast_layers, device), CompiledLayers)

    def _segments(self, token_type_ids: torch.Tensor | None) -> torch.Tensor | None:
        """A model of one segment, as RoBERTa, reads both texts of a pair as that one."""
        return None if getattr(self.config, "type_vocab_size", 1) < 2 else token_type_ids

    def encode_rows(
        self,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        kwargs: dict[str, Any],
        packing: Mapping[str, torch.Tensor] | None = None,
        keep: dict[int, torch.Tensor | None] | None = None,
    ) -> Encoded | None:
        """Last hidden states of the real tokens and where they are; None where the stock encoder
        has to do it.

        `packing` is the plan of the batch; other hidden states are kept as `encode_packed` says.
        """
        kernels = self.fast_kernels
        if kernels is None:
            return None
        if input_ids is None:
            reason: str | None = "input_ids are not given"
        else:
            reason = why_not_batch(self, attention_mask, kwargs, is_planned=packing is not None)
        if reason is not None or input_ids is None:
            say_once("stock layers", str(reason))
            return None
        inputs = (input_ids, attention_mask, self._segments(token_type_ids), position_ids)
        return encode_packed(self, kernels, *inputs, packing, keep)

    def pool_rows(self, rows: torch.Tensor, layout: PackedLayout) -> torch.Tensor | None:
        """Float (B, H): the pooler on each sequence's first token, a decoder's on its last one;
        None without a pooler.
        """
        pooler = getattr(self, "pooler", None)
        if pooler is None:
            return None
        pooled_rows = layout.first_rows
        if getattr(self.config, "is_decoder", False) and layout.offsets is not None:
            # Its first token has seen nothing but itself: the last one stands for a text.
            pooled_rows = layout.offsets.keys[1:].long() - 1
        return pooler(rows[pooled_rows][:, None])

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        packing: Mapping[str, torch.Tensor] | None = None,
        **kwargs: Any,
    ) -> Any:
        """As stock; on packed rows the hidden states of pads have no meaning, unless
        `computes_pads`.
        """
        others = {"inputs_embeds": inputs_embeds, **kwargs}
        encoded = self.encode_rows(
            input_ids, attention_mask, token_type_ids, position_ids, others, packing
        )
        if encoded is None:
            if (types := self._segments(token_type_ids)) is not None:
                kwargs["token_type_ids"] = types
            outputs = super().forward(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                inputs_embeds=inputs_embeds,
                return_dict=True,
                **kwargs,
            )
            if (
                getattr(self.config, "is_decoder", False)
                and outputs.get("pooler_output") is not None
            ):
                # Its first token has seen nothing but itself: the last one stands for a text.
                hidden = outputs.last_hidden_state
                last = -1 if attention_mask is None else attention_mask.sum(dim=1) - 1
                rows = torch.arange(len(hidden), device=hidden.device)
                outputs.pooler_output = self.pooler(hidden[rows, last][:, None])
            return outputs
        rows, layout = encoded.rows, encoded.layout
        pooled = self.pool_rows(rows, layout)
        return BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=layout.unpack(rows), pooler_output=pooled
        )


class BertModel(PackedModel, transformers.BertModel):
    """Stock `BertModel` on packed rows."""


class RobertaModel(PackedModel, transformers.RobertaModel):
    """Stock `RobertaModel` on packed rows."""


class AlbertModel(PackedModel, transformers.AlbertModel):
    """Stock `AlbertModel` on packed rows."""

    @property
    def projection(self) -> nn.Module:
        """Stock has it in any case."""
        return self.encoder.embedding_hidden_mapping_in

    def pool_rows(self, rows: torch.Tensor, layout: PackedLayout) -> torch.Tensor | None:
        """As `PackedModel`'s; ALBERT's pooler is a linear layer."""
        return (
            None
            if self.pooler is None
            else self.pooler_activation(self.pooler(rows[layout.first_rows]))
        )


class DistilBertModel(PackedModel, transformers.DistilBertModel):
    """Stock `DistilBertModel` on packed rows."""


class ElectraModel(PackedModel, transformers.ElectraModel):
    """Stock `ElectraModel` on packed rows."""

    @property
    def projection(self) -> nn.Module | None:
        """Where embeddings have another size."""
        return getattr(self, "embeddings_project", None)


# Stock's class -> ours.
ENCODERS: dict[type, type[PackedModel]] = {
    transformers.BertModel: BertModel,
    transformers.RobertaModel: RobertaModel,
    transformers.AlbertModel: AlbertModel,
    transformers.DistilBertModel: DistilBertModel,
    transformers.ElectraModel: ElectraModel,
}


def own_type(encoder: nn.Module) -> type[nn.Module] | None:
    """Its class where it is one of ours, and not somebody's own."""
    return type(encoder) if type(encoder) in ENCODERS.values() else None


@functools.cache
def _make_known(kind: Any) -> None:
    """Let transformers note which outputs a class can record (attentions, hidden states): it does
    so when one is built.
    """
    names = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "embedding_size",
    )
    sizes = dict.fromkeys(names, 8)
    config = kind.config_class(num_attention_heads=1, num_hidden_layers=1, **sizes)
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        kind(config)


def enable_packed_layers(model: PreTrainedModel, fast_layers: str, args: Any = None) -> None:
    """Give a model the fastest layers that machine and architecture allow; weights, names and
    results stay.

    Stock layers keep the attention that the model has: nothing says whether the user asked for it
    or transformers chose it.

    Args:
        model: With any head; a stock encoder of `ENCODERS` inside is put under our class.
        fast_layers: One of `FAST_LAYERS` (`load_kernels`).
        args: `TrainingArguments`, which know device and precision of a run; None: the model is on a
            CPU.
    """
    if (generator := getattr(model, "generator", None)) is not None:  # ELECTRA's
        enable_packed_layers(generator, fast_layers, args)
    base: Any = model.base_model
    if type(base) in ENCODERS and base is not model:
        base = ENCODERS[type(base)].from_stock(base)
    if not isinstance(base, PackedModel):
        return
    # Its softmax is over all positions, as in the original: pads get the hidden states that stock
    # layers give them.
    base.computes_pads = "ForQuestionAnswering" in type(model).__name__
    device = torch.device("cpu") if args is None else args.device
    reason = None if device.type == "cpu" else _why_no_flash_attention(base, fast_layers, args)
    if reason is not None:
        base.use_fast_layers("off", loss=fast_layers)
        logger.info(
            "encoder: stock layers on padded rows, %s attention: %s",
            base.config._attn_implementation,
            reason,
        )
    elif base.use_fast_layers(fast_layers, device=device):
        logger.info(
            "encoder: packed rows (no padding), %s", _describe_kernels(base, fast_layers, device)
        )


def _describe_kernels(base: Any, fast_layers: str, device: torch.device) -> str:
    kernels = load_kernels(fast_layers, device)
    if not isinstance(kernels, CompiledLayers):
        return "fused CPU kernels" if fast_layers == "auto" else "the same operations in torch"
    compiler = "fused by torch.compile" if kernels.is_compiled else "not compiled"
    if device.type == "cpu":
        return compiler
    capability = torch.cuda.get_device_capability(device)
    # DistilBERT's name for it is the other one.
    name = (
        "attention_probs_dropout_prob"
        if hasattr(base.config, "attention_probs_dropout_prob")
        else "attention_dropout"
    )
    has_dropout = getattr(base.config, name) > 0
    return f"{compiler}, {choose_flash_kernel(has_dropout=has_dropout, capability=capability)}"


def _why_no_flash_attention(base: Any, fast_layers: str, args: Any) -> str | None:
    """Say why a GPU computes padded rows with stock layers; None where torch's flash kernel serves
    packed ones.
    """
    if fast_layers == "off":
        return "fast_layers is off"
    if args.device.type != "cuda" or torch.cuda.get_device_capability(args.device) < MIN_CAPABILITY:
        return "flash attention needs a GPU of compute capability 8.0 or higher"
    if not (args.bf16 or args.fp16):
        return "flash attention needs --precision bf16 or fp16"
    head_size = base.config.hidden_size // base.config.num_attention_heads
    if head_size % HEAD_SIZE_STEP or head_size > MAX_HEAD_SIZE:
        return (
            f"flash attention needs heads of a multiple of {HEAD_SIZE_STEP} up to "
            f"{MAX_HEAD_SIZE}, they have {head_size}"
        )
    if base.config._attn_implementation != "sdpa":
        return "the model asks for it"
    return None
