"""The stock encoders with the original's initialization and, on request, layers on packed rows.

Legend: B batch, S positions, T packed rows, H hidden size.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Collection, Mapping
from typing import Any

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
from bert_recipes.models.packed_encoder import Encoded, encode_packed
from bert_recipes.models.packed_support import why_not_call, why_not_model
from bert_recipes.models.padding_free import PackedLayout, Packing
from bert_recipes.models.sizes import reads_left_to_right


logger = logging.getLogger(__name__)

# Positions of the longest wave of `sinusoids`, and their deviation over that of other new weights:
# few positions apart is what attention learns first. docs/speed.md, "What a minute teaches".
LONGEST_WAVE = 40.0
SINUSOID_SCALE = 2.0
# For mypy: classes here stand before a stock class, whose methods they call.
StockModel: Any = object


@functools.cache
def warn_once(what: str, reason: str) -> None:
    """Warn, once for each reason, that a call is computed by stock modules instead of fast ones."""
    logger.warning("%s for calls like this one, which is slower: %s", what, reason)


class OriginalInitialization(StockModel):
    """Draw new weights as google-research/bert modeling.py `create_initializer`.

    New weights are from a normal distribution cut off at two deviations. `config.weight_init` is
    "truncated_normal", "normal" (stock transformers; RoBERTa's and DistilBERT's default) or
    "sinusoidal_positions": as the first, but position embeddings begin as `sinusoids`, and learn
    from there.
    """

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        weight_init = getattr(self.config, "weight_init", "truncated_normal")
        if weight_init == "normal":
            return
        std = self.config.initializer_range
        if isinstance(module, nn.Linear | nn.Embedding):
            init.trunc_normal_(module.weight, mean=0.0, std=std, a=-2 * std, b=2 * std)
        # Embeddings as a whole come after their parts.
        if weight_init == "sinusoidal_positions" and hasattr(module, "position_embeddings"):
            weight: Any = module.position_embeddings.weight  # type: ignore[union-attr]
            waves = sinusoids(*weight.shape).to(weight.device)
            init.copy_(weight, waves * SINUSOID_SCALE * std)


def sinusoids(length: int, size: int) -> torch.Tensor:
    """Return sines, then cosines, of positions, float32 (length, size) with a mean square of 1.

    Their wavelengths are from 2 pi to `LONGEST_WAVE` positions. The form is that of Vaswani et al.
    2017, section 3.5, with other wavelengths.
    """
    num_waves = math.ceil(size / 2)
    slowest = 2 * math.pi / LONGEST_WAVE
    rates = torch.logspace(0, math.log10(slowest), num_waves)
    positions = torch.arange(length)
    angles = positions[:, None] * rates
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)
    # An odd size has one cosine less.
    return waves[:, :size] * math.sqrt(2)


class PackedModel(OriginalInitialization):
    """Add to a stock encoder the original's initialization, and fast layers on packed rows.

    The layers are stock's until `use_fast_layers` is called.
    """

    _fast_layers = "off"
    _fast_loss = "off"
    # Whether the fast layers compute pads too, for a head that counts them in its loss; otherwise
    # their hidden states are 0.
    computes_pads = False

    @classmethod
    def from_stock(cls, model: Any) -> Any:
        """Put a stock encoder under this class: the same object, with all that it has.

        Its head may count pads in its loss.
        """
        _register_outputs(cls)  # type: ignore[arg-type]  # mypy takes no class for hashable
        model.__class__ = cls
        model.computes_pads = True
        return model

    def use_fast_layers(
        self, name: str, *, loss: str | None = None, device: torch.device | None = None
    ) -> bool:
        """Compute layers on packed rows, where model and device allow it; return whether they do.

        Args:
            name: One of `FAST_LAYERS` (`load_kernels`).
            loss: The same for the loss over the vocabulary; None: as the layers.
            device: Where the model is going to be; None: where it is.
        """
        kernels = load_kernels(name, device or self.device)
        reason = why_not_model(self, serves_decoders=isinstance(kernels, CompiledLayers))
        self._fast_layers = name if reason is None else "off"
        self._fast_loss = loss or name
        if reason is not None and name != "off":
            logger.info("encoder: stock layers: %s", reason)
        return reason is None and kernels is not None

    @property
    def fast_kernels(self) -> Kernels | CompiledLayers | None:
        """Return what the layers are computed with; None: by stock's modules."""
        return self._load_kernels(self._fast_layers)

    @property
    def loss_kernels(self) -> Kernels | CompiledLayers | None:
        """Return what a loss over the vocabulary is computed with, also over stock layers.

        None: its logits are held as a whole.
        """
        return self._load_kernels(self._fast_loss)

    def _load_kernels(self, name: str) -> Kernels | CompiledLayers | None:
        # torch.compile gets stock's modules.
        return None if torch.compiler.is_compiling() else load_kernels(name, self.device)

    def reads_packing_on(self, device: torch.device) -> bool:
        """Return whether batches on a device should come with `padding_free.make_packing`."""
        return isinstance(load_kernels(self._fast_layers, device), CompiledLayers)

    def encode_rows(
        self,
        inputs: Mapping[str, Any],
        packing: Packing | None = None,
        keep: Collection[int] = (),
        head_labels: torch.Tensor | None = None,
    ) -> Encoded | None:
        """Return the last hidden states of the real tokens; None where stock has to compute them.

        Args:
            inputs: The arguments of `forward` by name.
            packing: The packing of the batch.
            keep: The hidden states that are wanted beside the last, 0 for the embeddings.
            head_labels: As in `encode_packed`.
        """
        kernels = self.fast_kernels
        if kernels is None:
            return None
        reason = why_not_call(self, inputs, has_packing=packing is not None)
        if reason is not None:
            warn_once("stock layers", reason)
            return None
        arguments = self._without_unused_token_types(inputs)
        return encode_packed(self, kernels, arguments, packing, keep, head_labels)

    def _without_unused_token_types(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments without token types where the model has one type, as RoBERTa."""
        arguments = dict(inputs)
        if getattr(self.config, "type_vocab_size", 1) < 2:
            arguments.pop("token_type_ids", None)
        return arguments

    def pool_rows(self, rows: torch.Tensor, layout: PackedLayout) -> torch.Tensor | None:
        """Return the pooler's output for the first token of each sequence, float (B, H).

        A decoder's first token has seen nothing but itself: its last one stands for the text. None
        without a pooler.
        """
        pooler = getattr(self, "pooler", None)
        if pooler is None:
            return None
        pooled_rows = layout.first_rows
        if reads_left_to_right(self.config) and layout.offsets is not None:
            pooled_rows = layout.offsets.query_offsets[1:].long() - 1
        return pooler(rows[pooled_rows][:, None])

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        packing: Packing | None = None,
        **kwargs: Any,
    ) -> Any:
        """Encode as stock does; on packed rows hidden states of pads are 0 unless `computes_pads`.

        Args:
            input_ids: int64 (B, S).
            attention_mask: (B, S), 0 = pad.
            token_type_ids: int64 (B, S).
            position_ids: int64 (B, S).
            inputs_embeds: float (B, S, H), instead of input_ids.
            packing: The packing of the batch (`padding_free.make_packing`).
            kwargs: What else stock's `forward` takes.
        """
        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "inputs_embeds": inputs_embeds,
            **kwargs,
        }
        encoded = self.encode_rows(inputs, packing)
        if encoded is None:
            return self._stock_outputs(inputs)
        return BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=encoded.layout.unpack(encoded.rows),
            pooler_output=self.pool_rows(encoded.rows, encoded.layout),
        )

    def _stock_outputs(self, inputs: Mapping[str, Any]) -> Any:
        """Return the outputs of stock's `forward`, pooled as `pool_rows` does."""
        arguments = self._without_unused_token_types(inputs)
        outputs = super().forward(**arguments, return_dict=True)
        is_causal = reads_left_to_right(self.config)
        if not is_causal or outputs.get("pooler_output") is None:
            return outputs
        hidden = outputs.last_hidden_state
        attention_mask = inputs["attention_mask"]
        if attention_mask is None:
            last_states = hidden[:, -1]
        else:
            sequences = torch.arange(len(hidden), device=hidden.device)
            # Wherever the pads are.
            positions = torch.arange(hidden.shape[1], device=hidden.device)
            last_positions = (attention_mask.long() * positions).amax(dim=1)
            last_states = hidden[sequences, last_positions]
        outputs.pooler_output = self.pooler(last_states[:, None])
        return outputs


class BertModel(PackedModel, transformers.BertModel):
    """Stock `BertModel` on packed rows."""


class RobertaModel(PackedModel, transformers.RobertaModel):
    """Stock `RobertaModel` on packed rows."""


class AlbertModel(PackedModel, transformers.AlbertModel):
    """Stock `AlbertModel` on packed rows."""

    def pool_rows(self, rows: torch.Tensor, layout: PackedLayout) -> torch.Tensor | None:
        """Return what `PackedModel` does; ALBERT's pooler is a linear layer."""
        if self.pooler is None:
            return None
        return self.pooler_activation(self.pooler(rows[layout.first_rows]))


class DistilBertModel(PackedModel, transformers.DistilBertModel):
    """Stock `DistilBertModel` on packed rows."""


class ElectraModel(PackedModel, transformers.ElectraModel):
    """Stock `ElectraModel` on packed rows."""


# Stock's class -> ours.
ENCODERS: dict[type, type[PackedModel]] = {
    transformers.BertModel: BertModel,
    transformers.RobertaModel: RobertaModel,
    transformers.AlbertModel: AlbertModel,
    transformers.DistilBertModel: DistilBertModel,
    transformers.ElectraModel: ElectraModel,
}


@functools.cache
def _register_outputs(encoder_class: Any) -> None:
    """Let transformers note which outputs a class can record (attentions, hidden states).

    It does so when a model is built.
    """
    config = encoder_class.config_class(
        vocab_size=8,
        hidden_size=8,
        embedding_size=8,
        intermediate_size=8,
        max_position_embeddings=8,
        num_attention_heads=1,
        num_hidden_layers=1,
    )
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        encoder_class(config)


def enable_packed_layers(model: PreTrainedModel, fast_layers: str, args: Any = None) -> None:
    """Give a model the fastest layers that machine and architecture allow.

    Weights, names and results stay. Stock layers keep the attention that the model has: nothing
    says whether the user asked for it or transformers chose it.

    Args:
        model: With any head; a stock encoder of `ENCODERS` inside is put under our class.
        fast_layers: One of `FAST_LAYERS` (`load_kernels`).
        args: `TrainingArguments`, which know device and precision of a run; None: the model is on a
            CPU.
    """
    generator = getattr(model, "generator", None)  # ELECTRA's
    if generator is not None:
        enable_packed_layers(generator, fast_layers, args)
    base: Any = model.base_model
    if type(base) in ENCODERS and base is not model:
        base = ENCODERS[type(base)].from_stock(base)
    if not isinstance(base, PackedModel):
        return
    # Question answering: the softmax of a span runs over all positions, as in the original. So pads
    # get the hidden states that stock layers give them.
    base.computes_pads = "ForQuestionAnswering" in type(model).__name__
    device = torch.device("cpu") if args is None else args.device
    reason = None if device.type == "cpu" else _why_not_packed_on_gpu(base, fast_layers, args)
    if reason is not None:
        base.use_fast_layers("off", loss=fast_layers)
        attention = base.config._attn_implementation
        logger.info("encoder: stock layers on padded rows, %s attention: %s", attention, reason)
    elif base.use_fast_layers(fast_layers, device=device):
        description = _choose_attention(base, fast_layers, device)
        logger.info("encoder: packed rows (no padding), %s", description)


def _choose_attention(base: Any, fast_layers: str, device: torch.device) -> str:
    """Choose the flash kernel of a GPU; return for the log what computes the layers."""
    kernels = load_kernels(fast_layers, device)
    if not isinstance(kernels, CompiledLayers):
        return "fused CPU kernels" if fast_layers == "auto" else "the same operations in torch"
    compiler = "fused by torch.compile" if kernels.is_compiled else "not compiled"
    if device.type == "cpu":
        return compiler
    if base.config.model_type == "distilbert":
        dropout = base.config.attention_dropout
    else:
        dropout = base.config.attention_probs_dropout_prob
    capability = torch.cuda.get_device_capability(device)
    return f"{compiler}, {choose_flash_kernel(has_dropout=dropout > 0, capability=capability)}"


def _why_not_packed_on_gpu(base: Any, fast_layers: str, args: Any) -> str | None:
    """Return why a GPU computes padded rows with stock layers; None where it packs them."""
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
