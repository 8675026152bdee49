"""BERT with its pre-training heads: stock names, stock weights, an exact and sparse loss.

Legend: B batch, S positions, H hidden size, V vocabulary, M masked tokens of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional as F
from transformers import (
    AlbertConfig,
    BertConfig,
    DistilBertConfig,
    ElectraConfig,
    PreTrainedModel,
    RobertaConfig,
)
from transformers.activations import NewGELUActivation
from transformers.models.bert.modeling_bert import BertOnlyMLMHead, BertPreTrainingHeads
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from bert_recipes.errors import InputError
from bert_recipes.models.bert_model import BertModel, OriginalInitialization, own_type, say_once
from bert_recipes.models.packed_encoder import Encoded, is_plain
from bert_recipes.models.padding_free import padded_layout
from bert_recipes.models.vocabulary_loss import vocabulary_divergence, vocabulary_loss


IGNORE_INDEX = -100
PREDICTED_STEP = 32
INITIALIZERS = ("truncated_normal", "normal", "sinusoidal_positions")
# The Trainer takes what is not named here for predictions. On the class, as in transformers: an
# instance would write it to config.json.
for _config in (BertConfig, RobertaConfig, AlbertConfig, DistilBertConfig, ElectraConfig):
    _config.keys_to_ignore_at_inference = ["past_key_values", "mlm_loss", "nsp_loss"]


@dataclass
class BertForPreTrainingOutput(ModelOutput):
    """Output of `BertForPreTraining`."""

    loss: torch.Tensor | None = None  # float (), mlm_loss + nsp_loss, whichever has labels
    mlm_loss: torch.Tensor | None = (
        None  # float (), masked-LM cross-entropy, nats per predicted token
    )
    nsp_loss: torch.Tensor | None = None  # float (), next-sentence cross-entropy, nats per pair
    # float (B, S, V) in evaluation and without labels; (M, V) for the predicted tokens in row order
    # in training with `labels` (None with kernels, which never hold them, and with `packing`).
    # `return_full_logits` chooses.
    prediction_logits: torch.Tensor | None = None
    seq_relationship_logits: torch.Tensor | None = None  # float (B, 2), class 0 = next, 1 = random
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
    distillation_loss: torch.Tensor | None = None  # float (), what `distiller` said; not in loss


class PreTrainingModel(OriginalInitialization):
    """What the members of the family add to a stock class with a masked-LM head, and maybe one for
    pairs; loads and saves stock checkpoints.

    They differ from stock in three ways. In training only masked positions meet the vocabulary, as
    in the original (`gather_indexes`). Both losses are means over the *global* batch: given the
    counts of all micro-batches of all processes, the losses of the parts add up to the loss of the
    whole. Either label may be missing.

    Source: google-research/bert run_pretraining.py, `get_masked_lm_output`,
    `get_next_sentence_output`.
    """

    def _build(self, config: Any, **modules: Callable[[Any], nn.Module]) -> None:
        """What stock's `__init__` does, with our encoder."""
        if getattr(config, "weight_init", "truncated_normal") not in INITIALIZERS:
            raise InputError(
                f"weight_init is '{config.weight_init}'; allowed: {', '.join(INITIALIZERS)}"
            )
        PreTrainedModel.__init__(self, config)
        for name, make in modules.items():
            setattr(self, name, make(config))
        _fuse_tanh_gelu(self)
        self.post_init()
        self.hide_positions()

    def hide_positions(self) -> None:
        """For sets (`config.positions` "none"): position embeddings are zeros, which stock reads,
        and never learn.
        """
        if getattr(self.config, "positions", None) == "none":
            places: Any = self.base_model.embeddings.position_embeddings.weight
            places.requires_grad_(False)
            nn.init.zeros_(places)

    # What members have in different places

    @property
    def _passed_by(self) -> tuple[nn.Module, ...]:
        """Modules whose own forward the fast way does not call; it is taken where they are
        plain.
        """
        raise NotImplementedError

    def _transform(self, rows: torch.Tensor) -> torch.Tensor:
        """Hidden states (N, H) -> what meets the vocabulary, (N, E)."""
        raise NotImplementedError

    def _vocabulary_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The whole masked-LM head: (..., H) -> (..., V)."""
        raise NotImplementedError

    def _pair_logits(self, pooled: torch.Tensor | None) -> torch.Tensor | None:
        """The head for pairs: (B, H) -> (B, 2); None without one."""
        return None

    def _all_logits(
        self, hidden: torch.Tensor, pooled: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Both heads as stock calls them."""
        return self._vocabulary_logits(hidden), self._pair_logits(pooled)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        next_sentence_label: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        num_pairs_in_batch: torch.Tensor | int | None = None,
        packing: Mapping[str, torch.Tensor] | None = None,
        return_full_logits: bool | None = None,
        distiller: Callable[[Any, torch.Tensor], torch.Tensor] | None = None,
        **kwargs: Any,
    ) -> BertForPreTrainingOutput:
        """Encode, predict, and compute the losses for which there are labels.

        Args:
            input_ids: int64 (B, S).
            attention_mask: int64 (B, S), 1 = token, 0 = padding.
            token_type_ids: int64 (B, S), 0 = segment A, 1 = segment B.
            position_ids: int64 (B, S), default 0 .. S-1.
            inputs_embeds: float (B, S, H), instead of input_ids.
            labels: int64 (B, S), the id to predict, -100 where none is predicted.
            next_sentence_label: int64 (B,), 0 = next, 1 = random; or `sentence_order_label`, as
                stock's ALBERT calls it.
            num_items_in_batch: Predicted tokens of the global batch; None = of this batch. The
                stock Trainer passes it.
            num_pairs_in_batch: Pairs of the global batch; None = of this batch. With
                num_items_in_batch alone (stock Trainer) this batch's mean is weighted by its share
                of the predicted tokens.
            packing: What `plan_rows` says of this batch; without it a GPU waits for the places of
                its tokens.
            distiller: Called with the model and the last hidden states of the real tokens, (N, H);
                gives `distillation_loss`.
            return_full_logits: Whether prediction_logits are (B, S, V) though labels are given;
                None: in evaluation, as in stock.
        """
        next_sentence_label = kwargs.pop("sentence_order_label", next_sentence_label)
        inputs = (input_ids, attention_mask, token_type_ids, position_ids)
        encoded, outputs = self._encode(inputs, {"inputs_embeds": inputs_embeds, **kwargs}, packing)
        rows, layout = encoded.rows, encoded.layout
        pooled_output = (
            self.base_model.pool_rows(rows, layout)
            if outputs is None
            else outputs.get("pooler_output")
        )
        wants_full = labels is None or (
            not self.training if return_full_logits is None else return_full_logits
        )
        full_logits = None
        if not all(map(is_plain, self._passed_by[:1])):
            full_logits, pair_logits = self._all_logits(layout.unpack(rows), pooled_output)
        else:
            pair_logits = self._pair_logits(pooled_output)
            if wants_full:
                full_logits = self._vocabulary_logits(layout.unpack(rows))

        mlm_loss = nsp_loss = prediction_logits = None
        if labels is not None:
            predicted, targets = predicted_rows(encoded, labels, packing)
            if full_logits is not None:
                prediction_logits = full_logits.flatten(0, 1)[layout.places_of(predicted)]
                mlm_loss = mean_cross_entropy(prediction_logits, targets, num_items_in_batch)
            else:
                mlm_loss, prediction_logits = self._masked_lm(
                    rows, predicted, targets, num_items_in_batch, encoded
                )
        if wants_full:
            prediction_logits = full_logits
        if next_sentence_label is not None and pair_logits is not None:
            nsp_targets = next_sentence_label.view(-1)
            nsp_loss = mean_cross_entropy(pair_logits, nsp_targets, num_pairs_in_batch)
            if num_pairs_in_batch is None and num_items_in_batch is not None and labels is not None:
                nsp_loss = nsp_loss * ((targets >= 0).sum() / num_items_in_batch)

        losses = [loss for loss in (mlm_loss, nsp_loss) if loss is not None]
        return BertForPreTrainingOutput(
            loss=torch.stack(losses).sum() if losses else None,
            mlm_loss=mlm_loss,
            nsp_loss=nsp_loss,
            prediction_logits=prediction_logits,
            seq_relationship_logits=pair_logits,
            distillation_loss=None
            if distiller is None
            else distiller(self, rows_of_tokens(encoded, attention_mask)),
            hidden_states=None if outputs is None else outputs.get("hidden_states"),
            attentions=None if outputs is None else outputs.get("attentions"),
        )

    def _encode(
        self,
        inputs: tuple[torch.Tensor | None, ...],
        kwargs: dict[str, Any],
        packing: Mapping[str, torch.Tensor] | None = None,
    ) -> tuple[Encoded, Any]:
        """The encoder's rows, and its output where it was called as a module, else None.

        What somebody has hung on the encoder or the heads sees what it sees in stock: only plain
        ones are passed by.
        """
        base: Any = self.base_model
        if is_plain(base, own_type(base)) and all(map(is_plain, self._passed_by)):
            encoded = base.encode_rows(*inputs, kwargs, packing)
            if encoded is not None:
                return encoded, None
        elif getattr(base, "fast_kernels", None) is not None:
            say_once(
                "padded hidden states and the stock head",
                "encoder or heads have hooks, another type or a forward",
            )
        names = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
        outputs = base(**dict(zip(names, inputs, strict=True)), return_dict=True, **kwargs)
        hidden = outputs.last_hidden_state
        layout = padded_layout((hidden.shape[0], hidden.shape[1]), hidden.device)
        return Encoded(hidden.flatten(0, 1), layout, None, is_stock=True), outputs

    def encode_tokens(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        packing: Mapping[str, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """The last hidden states of the real tokens, (N, H), row after row."""
        encoded, _ = self._encode((input_ids, attention_mask, token_type_ids, None), {}, packing)
        return rows_of_tokens(encoded, attention_mask)

    def token_logits(self, rows: torch.Tensor) -> torch.Tensor:
        """The masked-LM head on hidden states (N, H) -> (N, V)."""
        return self._vocabulary_logits(rows)

    def divergence(
        self,
        rows: torch.Tensor,
        teacher_logits: Callable[[slice], torch.Tensor],
        temperature: float,
    ) -> torch.Tensor:
        """Return `vocabulary_divergence` of the masked-LM head on hidden states (N, H)."""
        decoder: Any = self.get_output_embeddings()
        if not all(map(is_plain, (*self._passed_by, decoder))):
            say_once(
                "logits held as a whole", "the output layer has hooks, another type or a forward"
            )
            said = (self.token_logits(rows).float() / temperature).log_softmax(-1)
            goal = (teacher_logits(slice(None)).float() / temperature).log_softmax(-1)
            return F.kl_div(said, goal, reduction="sum", log_target=True)
        hidden = self._in_autocast(self._transform(rows))
        return vocabulary_divergence(
            hidden, decoder.weight, decoder.bias, teacher_logits, temperature
        )

    @staticmethod
    def _in_autocast(hidden: torch.Tensor) -> torch.Tensor:
        """Return it in the type in which autocast would multiply it."""
        kind = hidden.device.type
        return (
            hidden.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else hidden
        )

    def _masked_lm(
        self,
        rows: torch.Tensor,
        predicted: torch.Tensor,
        targets: torch.Tensor,
        count: torch.Tensor | int | None,
        encoded: Encoded,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The masked-LM loss of rows (T, H) at `predicted` int64 (M,), and their logits (M, V)
        where they are held.
        """
        decoder: Any = self.get_output_embeddings()
        learns = self.training and torch.is_grad_enabled()
        base: Any = self.base_model
        kernels = getattr(base, "loss_kernels", None)
        # Over stock layers too, unless they are so because somebody has hung something on encoder
        # or heads (`_encode`).
        if encoded.is_stock and (
            getattr(base, "fast_kernels", None) or not all(map(is_plain, self._passed_by))
        ):
            kernels = None
        if kernels is not None and learns and not is_plain(decoder):
            say_once(
                "logits held as a whole", "the output layer has hooks, another type or a forward"
            )
        if kernels is None or not learns or not is_plain(decoder):
            logits = self._vocabulary_logits(rows[predicted])
            return mean_cross_entropy(logits, targets, count), logits
        divisor = max(targets.numel(), 1) if count is None else count
        # A number of rows that comes again and again (see padding_free.ROW_STEP): any row, with a
        # target that counts for nothing.
        filling = -len(predicted) % PREDICTED_STEP
        predicted, targets = (
            F.pad(predicted, (0, filling)),
            F.pad(targets, (0, filling), value=IGNORE_INDEX),
        )
        hidden = self._in_autocast(self._transform(rows.index_select(0, predicted)))
        is_tied = decoder.weight is self.base_model.embeddings.word_embeddings.weight
        shared = encoded.shared if is_tied else None
        return vocabulary_loss(
            hidden, decoder.weight, decoder.bias, targets, divisor, kernels, shared
        ), None


def predicted_rows(
    encoded: Encoded, labels: torch.Tensor, packing: Mapping[str, torch.Tensor] | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows whose token is predicted and what it is, int64 (M,) each; a GPU waits where
    the batch is not planned.
    """
    if packing is not None and "predicted" in packing and encoded.is_planned:
        return packing["predicted"], packing["targets"]
    positions = (labels.flatten() != IGNORE_INDEX).nonzero()[:, 0]
    return encoded.layout.rows_of(positions), labels.flatten()[positions].long()


def token_places(encoded: Encoded, attention_mask: torch.Tensor | None) -> torch.Tensor | slice:
    """Return the flat positions of the real tokens in the padded batch, in order; a GPU waits where
    the batch is not planned.
    """
    if encoded.is_planned:
        assert encoded.layout.places is not None
        return encoded.layout.places
    if attention_mask is None:
        return slice(None)
    return attention_mask.flatten().nonzero()[:, 0]


def rows_of_tokens(encoded: Encoded, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """Return the rows of the real tokens, in the order of the padded batch."""
    rows, layout = encoded.rows, encoded.layout
    if attention_mask is None or encoded.is_planned:
        return rows[: layout.num_tokens]
    places = attention_mask.flatten().nonzero()[:, 0]
    return rows[layout.rows_of(places)]


class _BertHeads(PreTrainingModel):
    """Where BERT keeps its heads."""

    cls: Any

    @property
    def _passed_by(self) -> tuple[nn.Module, ...]:
        return self.cls, self.cls.predictions

    def _transform(self, rows: torch.Tensor) -> torch.Tensor:
        return self.cls.predictions.transform(rows)

    def _vocabulary_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.cls.predictions(hidden)


class BertForPreTraining(_BertHeads, transformers.BertForPreTraining):
    """BERT with the masked-LM and the next-sentence head.

    Example:
        >>> model = BertForPreTraining(pretraining_config("tiny", vocab_size=8000))
        >>> output = model(**batch)
        >>> output.loss, output.mlm_loss, output.nsp_loss
    """

    def __init__(self, config: Any) -> None:
        self._build(config, bert=BertModel, cls=BertPreTrainingHeads)

    def _pair_logits(self, pooled: torch.Tensor | None) -> torch.Tensor | None:
        return self.cls.seq_relationship(pooled)

    def _all_logits(
        self, hidden: torch.Tensor, pooled: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self.cls(hidden, pooled)


class _BertWithOneHead(_BertHeads):
    """BERT with a language-model head alone, without a pooler."""

    def __init__(self, config: Any) -> None:
        self._build(config, bert=partial(BertModel, add_pooling_layer=False), cls=BertOnlyMLMHead)

    def _all_logits(
        self, hidden: torch.Tensor, pooled: torch.Tensor | None
    ) -> tuple[torch.Tensor, None]:
        return self.cls(hidden), None


class BertForMaskedLM(_BertWithOneHead, transformers.BertForMaskedLM):
    """BERT with the masked-LM head alone, without a pooler."""


class BertLMHeadModel(_BertWithOneHead, transformers.BertLMHeadModel):
    """BERT that reads from left to right: `labels` are the ids that follow each position. Its
    layers are stock's.

    Source: Devlin et al. 2019, section 5.1, LTR & No NSP.
    """


def _fuse_tanh_gelu(model: nn.Module) -> None:
    """Compute "gelu_new" in one pass instead of the eight in which transformers spells it out."""
    for module in model.modules():
        for name in ("intermediate_act_fn", "transform_act_fn", "activation"):
            if isinstance(getattr(module, name, None), NewGELUActivation):
                setattr(module, name, nn.GELU(approximate="tanh"))


def mean_cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, count: torch.Tensor | int | None
) -> torch.Tensor:
    """Cross-entropy of logits (N, C) summed and divided by `count` (default: N), float32 (); 0 with
    a gradient of 0 where N = 0.
    """
    total = F.cross_entropy(logits.float(), targets, reduction="sum")
    return total / ((targets >= 0).sum().clamp(min=1) if count is None else count)
