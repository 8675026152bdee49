"""BERT with its pre-training heads: stock names and weights, an exact and sparse loss.

`PreTrainingModel` is what all members of the family have in common; the others are in `family` and
`electra`.

Legend: B batch, S positions, H hidden size, E embedding size, V vocabulary, T packed rows, N real
tokens and M masked tokens of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.activations import NewGELUActivation
from transformers.models.bert.modeling_bert import BertOnlyMLMHead, BertPreTrainingHeads
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from bert_recipes.errors import InputError
from bert_recipes.models.bert_model import BertModel, OriginalInitialization, warn_once
from bert_recipes.models.kernels.plain import Kernels
from bert_recipes.models.packed_encoder import Encoded
from bert_recipes.models.packed_support import is_plain
from bert_recipes.models.padding_free import IGNORE_INDEX, Packing, padded_layout, round_up
from bert_recipes.models.sampled_softmax import SampledSoftmax
from bert_recipes.models.sizes import reads_left_to_right
from bert_recipes.models.vocabulary_loss import vocabulary_divergence, vocabulary_loss


INITIALIZERS = ("truncated_normal", "normal", "sinusoidal_positions")
# The number of predicted rows is rounded up to a multiple of this (see padding_free.ROW_STEP).
PREDICTED_STEP = 32


@dataclass
class BertForPreTrainingOutput(ModelOutput):
    """Output of `BertForPreTraining`."""

    loss: torch.Tensor | None = None  # float (), mlm_loss + nsp_loss, whichever has labels
    # float (), nats per predicted token: of this batch, or of the global batch where its count is
    # given
    mlm_loss: torch.Tensor | None = None
    nsp_loss: torch.Tensor | None = None  # float (), next-sentence cross-entropy, nats per pair
    # float (B, S, V) in evaluation and without labels; in training with `labels` (M, V) for the
    # predicted tokens in row order, or None where kernels compute the loss, which never hold them.
    # `return_full_logits` chooses.
    prediction_logits: torch.Tensor | None = None
    seq_relationship_logits: torch.Tensor | None = None  # float (B, 2), class 0 = next, 1 = random
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
    # float (), what `distiller` returned; not in `loss`
    distillation_loss: torch.Tensor | None = None


class PreTrainingModel(OriginalInitialization):
    """A stock class with a masked-LM head, with an exact, sparse loss; checkpoints stay stock's.

    It stands before the stock class among the bases of a member. The stock class may have a head
    for pairs too. Members differ from stock in three ways. In training logits are computed at
    masked positions only, as in the original (`gather_indexes`). Both losses are means over the
    *global* batch: given the counts of all micro-batches of all processes, the losses of the
    micro-batches add up to the loss of the whole. Either label may be missing.

    Source: google-research/bert run_pretraining.py, `get_masked_lm_output`,
    `get_next_sentence_output`.
    """

    # Whether the model learns a label of pairs. False also where a model with a new, untrained head
    # for pairs is only measured.
    has_pair_head = False
    # Where it is set, the loss in training is computed over its pieces.
    sampled_softmax: SampledSoftmax | None = None

    def finish_init(self) -> None:
        """Finish the `__init__` of a member, after its modules are made."""
        config = self.config
        weight_init = getattr(config, "weight_init", "truncated_normal")
        if weight_init not in INITIALIZERS:
            raise InputError(f"weight_init is '{weight_init}'; allowed: {', '.join(INITIALIZERS)}")
        # The Trainer takes outputs that are not named here for predictions. Set on the class, as in
        # transformers, and so also for stock models of this process: an instance would write it to
        # config.json.
        type(config).keys_to_ignore_at_inference = ["past_key_values", "mlm_loss", "nsp_loss"]
        _fuse_tanh_gelu(self)
        self.post_init()
        self.disable_positions()

    def disable_positions(self) -> None:
        """Set position embeddings to zeros that never learn, where `config.positions` is "none"."""
        if getattr(self.config, "positions", None) == "none":
            weight: Any = self.base_model.embeddings.position_embeddings.weight
            weight.requires_grad_(False)
            nn.init.zeros_(weight)

    # Modules and steps that each member defines

    @property
    def _bypassed_modules(self) -> tuple[nn.Module, ...]:
        """Return the modules whose forward the fast way does not call, the whole head first.

        The fast way is taken where all of them are plain.
        """
        raise NotImplementedError

    @property
    def _whole_head(self) -> nn.Module | None:
        """Return the module that computes all logits; None where stock has no such module."""
        modules = self._bypassed_modules
        return modules[0] if modules else None

    def _transform(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the inputs of the output layer, hidden states (N, H) -> (N, E)."""
        raise NotImplementedError

    def token_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits of the masked-LM head, (..., H) -> (..., V)."""
        raise NotImplementedError

    def _pair_logits(self, pooled: torch.Tensor | None) -> torch.Tensor | None:
        """Return the logits of the head for pairs, (B, H) -> (B, 2); None without one."""
        return None

    def _all_logits(
        self, hidden: torch.Tensor, pooled: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the logits of both heads as stock calls them."""
        return self.token_logits(hidden), self._pair_logits(pooled)

    @can_return_tuple
    def forward(  # noqa: PLR0913  # stock's arguments, the counts of a batch and its packing
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
        packing: Packing | None = None,
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
            packing: The packing of this batch (`make_packing`); without it a GPU waits for the
                positions of its tokens.
            distiller: Called with the model and the last hidden states of the real tokens, (N, H);
                returns `distillation_loss`.
            return_full_logits: Whether prediction_logits are (B, S, V) though labels are given;
                None: in evaluation, as in stock.
            kwargs: Further arguments of stock's `forward`.
        """
        next_sentence_label = kwargs.pop("sentence_order_label", next_sentence_label)
        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "inputs_embeds": inputs_embeds,
            **kwargs,
        }
        if labels is None:
            return_full_logits = True
        elif return_full_logits is None:
            return_full_logits = not self.training
        # The last layer is computed for the rows that heads read. All are read where the caller
        # wants all logits, by a model that predicts from left to right, and by a distiller.
        is_causal = reads_left_to_right(self.config)
        reads_all_rows = return_full_logits or is_causal or distiller is not None
        encoded = self._encode(inputs, packing, None if reads_all_rows else labels)
        full_logits, pair_logits = self._logits(encoded, return_full_logits)

        mlm_loss = nsp_loss = targets = None
        prediction_logits = full_logits
        if labels is not None:
            predicted, targets = encoded.predicted_rows(labels, packing)
            mlm_loss, predicted_logits = self._token_loss(
                encoded, full_logits, predicted, targets, num_items_in_batch
            )
            if not return_full_logits:
                prediction_logits = predicted_logits
        if self.has_pair_head and next_sentence_label is not None and pair_logits is not None:
            nsp_loss = _pair_loss(
                pair_logits, next_sentence_label, num_pairs_in_batch, num_items_in_batch, targets
            )

        distillation_loss = None
        if distiller is not None:
            distillation_loss = distiller(self, encoded.token_rows(attention_mask))
        losses = [loss for loss in (mlm_loss, nsp_loss) if loss is not None]
        stock_outputs = encoded.outputs or {}
        return BertForPreTrainingOutput(
            loss=torch.stack(losses).sum() if losses else None,
            mlm_loss=mlm_loss,
            nsp_loss=nsp_loss,
            prediction_logits=prediction_logits,
            seq_relationship_logits=pair_logits,
            hidden_states=stock_outputs.get("hidden_states"),
            attentions=stock_outputs.get("attentions"),
            distillation_loss=distillation_loss,
        )

    def _encode(
        self,
        inputs: Mapping[str, Any],
        packing: Packing | None = None,
        head_labels: torch.Tensor | None = None,
    ) -> Encoded:
        """Return the last hidden states of the real tokens, or of all positions by stock's layers.

        Only plain modules are bypassed: hooks and adapters of encoder or heads see the same tensors
        as in stock.

        Args:
            inputs: The arguments of the encoder by name.
            packing: The packing of the batch.
            head_labels: As in `encode_packed`.
        """
        base: Any = self.base_model
        if is_plain(base) and all(map(is_plain, self._bypassed_modules)):
            encoded = base.encode_rows(inputs, packing, head_labels=head_labels)
            if encoded is not None:
                return encoded
        elif getattr(base, "fast_kernels", None) is not None:
            warn_once(
                "padded hidden states and the stock head",
                "encoder or heads have hooks, another type or a forward",
            )
        outputs = base(**inputs, return_dict=True)
        batch, size, _ = outputs.last_hidden_state.shape
        rows = outputs.last_hidden_state.flatten(0, 1)
        layout = padded_layout((batch, size), rows.device)
        return Encoded(rows, layout, outputs=outputs)

    def _logits(
        self, encoded: Encoded, needs_full_logits: bool
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the logits of both heads, (B, S, V) and (B, 2).

        The logits (B, S, V) are None where neither the caller nor a hook on the head needs them.
        """
        rows = encoded.rows
        layout = encoded.layout
        if encoded.outputs is None:
            pooled = self.base_model.pool_rows(rows, layout)
        else:
            pooled = encoded.outputs.get("pooler_output")
        head = self._whole_head
        head_is_hooked = head is not None and not is_plain(head)
        if needs_full_logits or head_is_hooked:
            return self._all_logits(layout.unpack(rows), pooled)
        return None, self._pair_logits(pooled)

    def _token_loss(
        self,
        encoded: Encoded,
        full_logits: torch.Tensor | None,
        predicted: torch.Tensor,
        targets: torch.Tensor,
        count: torch.Tensor | int | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the masked-LM loss, and the logits (M, V) of the predicted rows where they exist.

        The logits are taken from `full_logits` (B, S, V); None: see `_sparse_mlm_loss`.
        """
        if full_logits is None:
            return self._sparse_mlm_loss(encoded, predicted, targets, count)
        # The caller wants all logits, or a hook on the head does.
        places = encoded.layout.places_of(predicted)
        logits = full_logits.flatten(0, 1)[places]
        return mean_cross_entropy(logits, targets, count), logits

    def _sparse_mlm_loss(
        self,
        encoded: Encoded,
        predicted: torch.Tensor,
        targets: torch.Tensor,
        count: torch.Tensor | int | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the masked-LM loss of the predicted rows alone.

        Args:
            encoded: The encoded batch.
            predicted: int64 (M,), numbers of rows.
            targets: int64 (M,).
            count: The loss is divided by it; None: by M.

        Returns:
            The loss float32 (), and the logits (M, V) where they are held.
        """
        if self._loss_kernels(encoded) is None:
            logits = self.token_logits(encoded.rows[predicted])
            return mean_cross_entropy(logits, targets, count), logits
        if count is None:
            count = max(len(targets), 1)
        softmax = self.sampled_softmax
        if softmax is None:
            return self._loss_of_rows(vocabulary_loss, encoded, predicted, targets, count), None
        is_frequent = softmax.is_frequent[targets]
        frequent_loss = self._loss_of_rows(
            softmax.frequent_loss, encoded, predicted[is_frequent], targets[is_frequent], count
        )
        other_loss = self._loss_of_rows(
            vocabulary_loss, encoded, predicted[~is_frequent], targets[~is_frequent], count
        )
        return frequent_loss + other_loss, None

    def _loss_of_rows(
        self,
        loss_function: Callable[..., torch.Tensor],
        encoded: Encoded,
        predicted: torch.Tensor,
        targets: torch.Tensor,
        count: torch.Tensor | int,
    ) -> torch.Tensor:
        """Return the masked-LM loss of rows, by `vocabulary_loss` or `frequent_loss`."""
        # Rows are filled up to a multiple, so that few numbers of rows occur. A filling row is any
        # row, with a target that is ignored.
        num_filling = round_up(len(predicted), PREDICTED_STEP) - len(predicted)
        predicted = F.pad(predicted, (0, num_filling))
        targets = F.pad(targets, (0, num_filling), value=IGNORE_INDEX)
        rows = encoded.rows.index_select(0, predicted)
        hidden = _to_autocast_type(self._transform(rows))
        decoder: Any = self.get_output_embeddings()
        is_tied = decoder.weight is self.get_input_embeddings().weight
        tied_gradient = encoded.tied_gradient if is_tied else None
        kernels = self._loss_kernels(encoded)
        return loss_function(
            hidden, decoder.weight, decoder.bias, targets, count, kernels, tied_gradient
        )

    def _loss_kernels(self, encoded: Encoded) -> Kernels | None:
        """Return the kernels for a masked-LM loss without its logits; None where they are held.

        Hooks see the logits as in stock: with one on the encoder or a head, they are held.
        """
        base: Any = self.base_model
        kernels = getattr(base, "loss_kernels", None)
        if kernels is None or not self.training or not torch.is_grad_enabled():
            return None
        # Stock's layers computed this batch although there are fast ones: a module has a hook.
        if encoded.outputs is not None and base.fast_kernels is not None:
            return None
        return kernels if self._head_is_plain() else None

    def _head_is_plain(self) -> bool:
        """Return whether a loss may be computed without calling the masked-LM head."""
        modules = (*self._bypassed_modules, self.get_output_embeddings())
        if all(is_plain(module) for module in modules):
            return True
        warn_once("logits held as a whole", "the head has hooks, another type or a forward")
        return False

    # Distillation, and scores of tokens

    def encode_tokens(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        packing: Packing | None = None,
    ) -> torch.Tensor:
        """Return the last hidden states of the real tokens, (N, H), row after row."""
        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
        }
        return self._encode(inputs, packing).token_rows(attention_mask)

    def divergence(
        self,
        rows: torch.Tensor,
        teacher_logits: Callable[[slice], torch.Tensor],
        temperature: float,
    ) -> torch.Tensor:
        """Return `vocabulary_divergence` of the masked-LM head on hidden states (N, H)."""
        if self._head_is_plain():
            hidden = _to_autocast_type(self._transform(rows))
            decoder: Any = self.get_output_embeddings()
            return vocabulary_divergence(
                hidden, decoder.weight, decoder.bias, teacher_logits, temperature
            )
        student = (self.token_logits(rows).float() / temperature).log_softmax(-1)
        teacher = (teacher_logits(slice(None)).float() / temperature).log_softmax(-1)
        return F.kl_div(student, teacher, reduction="sum", log_target=True)


class _BertHeads(PreTrainingModel):
    """The modules of BERT's heads."""

    cls: Any

    @property
    def _bypassed_modules(self) -> tuple[nn.Module, ...]:
        return self.cls, self.cls.predictions

    def _transform(self, rows: torch.Tensor) -> torch.Tensor:
        return self.cls.predictions.transform(rows)

    def token_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.cls.predictions(hidden)


class BertForPreTraining(_BertHeads, transformers.BertForPreTraining):
    """BERT with the masked-LM and the next-sentence head.

    Example:
        >>> model = BertForPreTraining(pretraining_config("tiny", vocab_size=8000))
        >>> output = model(**batch)
        >>> output.loss, output.mlm_loss, output.nsp_loss
    """

    has_pair_head = True

    def __init__(self, config: Any) -> None:
        PreTrainedModel.__init__(self, config)  # stock's __init__ would make its own encoder
        self.bert = BertModel(config)
        self.cls = BertPreTrainingHeads(config)
        self.finish_init()

    def _pair_logits(self, pooled: torch.Tensor | None) -> torch.Tensor | None:
        return self.cls.seq_relationship(pooled)

    def _all_logits(
        self, hidden: torch.Tensor, pooled: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self.cls(hidden, pooled)


class _BertWithOneHead(_BertHeads):
    """BERT with a language-model head alone, without a pooler."""

    def __init__(self, config: Any) -> None:
        PreTrainedModel.__init__(self, config)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.cls = BertOnlyMLMHead(config)
        self.finish_init()

    def _all_logits(
        self, hidden: torch.Tensor, pooled: torch.Tensor | None
    ) -> tuple[torch.Tensor, None]:
        return self.cls(hidden), None


class BertForMaskedLM(_BertWithOneHead, transformers.BertForMaskedLM):
    """BERT with the masked-LM head alone, without a pooler."""


class BertLMHeadModel(_BertWithOneHead, transformers.BertLMHeadModel):
    """BERT that reads from left to right: `labels` are the ids that follow each position.

    On a CPU its layers are stock's, as the kernels have no causal mask; on a GPU they are packed.
    Source: Devlin et al. 2019, section 5.1, LTR & No NSP.
    """


def mean_cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, count: torch.Tensor | int | None
) -> torch.Tensor:
    """Return the cross-entropy of logits (N, C) summed and divided by `count`, float32 ().

    None divides by the number of targets; without any the loss is 0 with a gradient of 0.
    """
    total = F.cross_entropy(logits.float(), targets, reduction="sum")
    if count is None:
        count = (targets != IGNORE_INDEX).sum().clamp(min=1)
    return total / count


def _pair_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    num_pairs: torch.Tensor | int | None,
    num_predicted: torch.Tensor | int | None,
    targets: torch.Tensor | None,
) -> torch.Tensor:
    """Return the cross-entropy of the logits of pairs, (B, 2).

    Stock's Trainer passes the predicted tokens of a step, but not its pairs. Then the mean of this
    micro-batch is weighted by its share of those tokens.
    """
    loss = mean_cross_entropy(logits, labels.view(-1), num_pairs)
    if num_pairs is None and num_predicted is not None and targets is not None:
        return loss * (len(targets) / num_predicted)
    return loss


def _fuse_tanh_gelu(model: nn.Module) -> None:
    """Compute "gelu_new" in one pass instead of the eight in which transformers spells it out."""
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, nn.GELU(approximate="tanh"))


def _to_autocast_type(hidden: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the type in which autocast would multiply it."""
    device = hidden.device.type
    if not torch.is_autocast_enabled(device):
        return hidden
    return hidden.to(torch.get_autocast_dtype(device))
