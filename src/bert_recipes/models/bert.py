"""BERT and its family with their pre-training heads: stock names, stock weights, an exact and
sparse loss.

Legend: B batch, S positions, H hidden size, V vocabulary, M masked tokens of the batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
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
from transformers.activations import ACT2FN, NewGELUActivation
from transformers.models.albert.modeling_albert import AlbertMLMHead, AlbertSOPHead
from transformers.models.bert.modeling_bert import BertOnlyMLMHead, BertPreTrainingHeads
from transformers.models.electra.modeling_electra import (
    ElectraDiscriminatorPredictions,
    ElectraGeneratorPredictions,
)
from transformers.models.roberta.modeling_roberta import RobertaLMHead
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from bert_recipes.errors import InputError
from bert_recipes.hub_access import has_safetensors
from bert_recipes.models.bert_model import (
    AlbertModel,
    BertModel,
    DistilBertModel,
    ElectraModel,
    OriginalInitialization,
    RobertaModel,
    own_type,
    say_once,
)
from bert_recipes.models.packed_encoder import Encoded, is_plain
from bert_recipes.models.padding_free import make_layout
from bert_recipes.models.sizes import HEAD_SIZE, check_layers
from bert_recipes.models.vocabulary_loss import vocabulary_divergence, vocabulary_loss


IGNORE_INDEX = -100
PREDICTED_STEP = 32
# google-research/electra configure_pretraining.py.
DISCRIMINATOR_WEIGHT, GENERATOR_SIZE = 50.0, 0.25
GENERATOR_FOLDER, _GENERATOR = "generator", "generator."
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
            predicted, targets = _predicted_rows(encoded, labels, packing)
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
            else distiller(self, _of_tokens(encoded, attention_mask)),
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
        layout = make_layout(None, (hidden.shape[0], hidden.shape[1]), hidden.device)
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
        return _of_tokens(encoded, attention_mask)

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


def _predicted_rows(
    encoded: Encoded, labels: torch.Tensor, packing: Mapping[str, torch.Tensor] | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows whose token is predicted and what it is, int64 (M,) each; a GPU waits where
    the batch is not planned.
    """
    if packing is not None and "predicted" in packing and encoded.is_planned:
        return packing["predicted"], packing["targets"]
    positions = (labels.flatten() != IGNORE_INDEX).nonzero()[:, 0]
    return encoded.layout.rows_of(positions), labels.flatten()[positions].long()


def _token_places(encoded: Encoded, attention_mask: torch.Tensor | None) -> torch.Tensor | slice:
    """Return the flat positions of the real tokens in the padded batch, in order; a GPU waits where
    the batch is not planned.
    """
    if encoded.is_planned:
        assert encoded.layout.places is not None
        return encoded.layout.places
    if attention_mask is None:
        return slice(None)
    return attention_mask.flatten().nonzero()[:, 0]


def _of_tokens(encoded: Encoded, attention_mask: torch.Tensor | None) -> torch.Tensor:
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


class RobertaForMaskedLM(PreTrainingModel, transformers.RobertaForMaskedLM):
    """RoBERTa: no head for pairs, no pooler. Source: fairseq models/roberta/model.py."""

    def __init__(self, config: Any) -> None:
        self._build(
            config, roberta=partial(RobertaModel, add_pooling_layer=False), lm_head=RobertaLMHead
        )

    @property
    def _passed_by(self) -> tuple[nn.Module, ...]:
        return (self.lm_head,)

    def _transform(self, rows: torch.Tensor) -> torch.Tensor:
        return self.lm_head.layer_norm(F.gelu(self.lm_head.dense(rows)))

    def _vocabulary_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.lm_head(hidden)


class AlbertForPreTraining(PreTrainingModel, transformers.AlbertForPreTraining):
    """ALBERT with the masked-LM and the sentence-order head. Source: google-research/albert
    run_pretraining.py.
    """

    def __init__(self, config: Any) -> None:
        self._build(
            config, albert=AlbertModel, predictions=AlbertMLMHead, sop_classifier=AlbertSOPHead
        )
        # `classifier_dropout_prob` is that of fine-tuning: the original has none before this head
        # (run_pretraining.py).
        self.sop_classifier.dropout.p = 0.0

    @property
    def _passed_by(self) -> tuple[nn.Module, ...]:
        return (self.predictions,)

    def _transform(self, rows: torch.Tensor) -> torch.Tensor:
        return self.predictions.LayerNorm(self.predictions.activation(self.predictions.dense(rows)))

    def _vocabulary_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.predictions(hidden)

    def _pair_logits(self, pooled: torch.Tensor | None) -> torch.Tensor | None:
        return self.sop_classifier(pooled)


class DistilBertForMaskedLM(PreTrainingModel, transformers.DistilBertForMaskedLM):
    """DistilBERT: no segments, no pooler, no head for pairs."""

    def __init__(self, config: Any) -> None:
        layers = {
            "vocab_transform": lambda own: nn.Linear(own.dim, own.dim),
            "vocab_layer_norm": lambda own: nn.LayerNorm(own.dim, eps=1e-12),
            "vocab_projector": lambda own: nn.Linear(own.dim, own.vocab_size),
        }
        self._build(
            config,
            activation=lambda own: ACT2FN[own.activation],
            distilbert=DistilBertModel,
            **layers,
        )

    @property
    def _passed_by(self) -> tuple[nn.Module, ...]:
        return ()

    def _transform(self, rows: torch.Tensor) -> torch.Tensor:
        return self.vocab_layer_norm(self.activation(self.vocab_transform(rows)))

    def _vocabulary_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.vocab_projector(self._transform(hidden))


class ElectraForMaskedLM(PreTrainingModel, transformers.ElectraForMaskedLM):
    """ELECTRA's generator."""

    def __init__(self, config: Any) -> None:
        layers: dict[str, Callable[[Any], nn.Module]] = {
            "generator_predictions": ElectraGeneratorPredictions,
            "generator_lm_head": lambda own: nn.Linear(own.embedding_size, own.vocab_size),
        }
        self._build(config, electra=ElectraModel, **layers)

    @property
    def _passed_by(self) -> tuple[nn.Module, ...]:
        return (self.generator_predictions,)

    def _transform(self, rows: torch.Tensor) -> torch.Tensor:
        return self.generator_predictions(rows)

    def _vocabulary_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.generator_lm_head(self._transform(hidden))


@dataclass
class ElectraForPreTrainingOutput(BertForPreTrainingOutput):
    """Output of `ElectraForPreTraining` for labels: `mlm_loss` and `prediction_logits` (M, V) are
    the generator's.
    """

    disc_loss: torch.Tensor | None = (
        None  # float (), binary cross-entropy of the discriminator, nats per real token
    )
    disc_logits: torch.Tensor | None = (
        None  # float32 (N,) for the real tokens, row after row: above 0 = replaced
    )
    replaced: torch.Tensor | None = None  # bool (N,)


def sample_words(
    logits: torch.Tensor, draws: torch.Tensor, random_share: torch.Tensor | None
) -> torch.Tensor:
    """Return int64 (M,), a word for each row of logits (M, V): as Gumbel noise draws, but a pure
    function of `draws`, float32 (M,) in [0, 1).

    Draws below `random_share` give any word of the vocabulary.
    """
    vocab_size = logits.shape[-1]
    heights = logits.softmax(-1).cumsum(-1)
    rest = draws if random_share is None else (draws - random_share) / (1 - random_share)
    words = torch.searchsorted(heights, rest[:, None] * heights[:, -1:], right=True)[:, 0]
    if random_share is not None:
        random_words = (draws / random_share * vocab_size).nan_to_num(0, 0).long()
        words = torch.where(draws < random_share, random_words, words)
    return words.clamp(max=vocab_size - 1)


class ElectraForPreTraining(PreTrainingModel, transformers.ElectraForPreTraining):
    """ELECTRA's discriminator with its generator, which share all embeddings.

    A saved folder is the discriminator's; the generator is in its folder `generator`.
    `config.generator_size` is the generator's width as a fraction of the discriminator's.

    Source: Clark et al. 2020; google-research/electra run_pretraining.py, `PretrainingModel`. There
    positions are drawn with replacement and those drawn twice count twice in the generator's loss;
    here each is predicted once.
    """

    # They are one block in both networks, whatever `config.tie_word_embeddings` says of the
    # generator's output layer.
    _tied_weights_keys = {  # noqa: RUF012  # as transformers declares it
        f"{_GENERATOR}electra.embeddings.{name}": f"electra.embeddings.{name}"
        for name in (
            "word_embeddings.weight",
            "position_embeddings.weight",
            "token_type_embeddings.weight",
            "LayerNorm.weight",
            "LayerNorm.bias",
        )
    }
    # They are in a folder of their own (`load_generator`).
    _keys_to_ignore_on_load_missing = [rf"^{_GENERATOR}"]  # noqa: RUF012

    def __init__(self, config: Any) -> None:
        heads = {
            "discriminator_predictions": ElectraDiscriminatorPredictions,
            "generator": self._make_generator,
        }
        self._build(config, electra=ElectraModel, **heads)

    def _make_generator(self, config: Any) -> ElectraForMaskedLM:
        hidden = max(8, int(config.hidden_size * getattr(config, "generator_size", GENERATOR_SIZE)))
        generator_config = copy.deepcopy(config)
        generator_config.update(
            {
                "hidden_size": hidden,
                "intermediate_size": 4 * hidden,
                "num_attention_heads": max(1, hidden // HEAD_SIZE),
            }
        )
        return ElectraForMaskedLM(generator_config)

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """With the embeddings, which are shared in any case; first, as the generator's output layer
        follows its embeddings.
        """
        return {**self._tied_weights_keys, **super().get_expanded_tied_weights_keys(all_submodels)}

    @property
    def _passed_by(self) -> tuple[nn.Module, ...]:
        return (self.discriminator_predictions,)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        num_tokens_in_batch: torch.Tensor | int | None = None,
        draws: torch.Tensor | None = None,
        random_share: torch.Tensor | None = None,
        packing: Mapping[str, torch.Tensor] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Let the generator fill what is masked, and the discriminator tell which tokens are not
        the text's; without labels as stock.

        Args:
            input_ids: int64 (B, S), the masked text.
            labels: int64 (B, S), the id to predict, -100 where none is predicted.
            num_items_in_batch: Predicted tokens of the global batch; None = of this batch.
            num_tokens_in_batch: Real tokens of the global batch; None = of this batch.
            draws: float32 (B, S) in [0, 1), which decide the generator's samples; None: drawn here.
            random_share: float32 () in [0, 1), the share of the predicted tokens that any word of
                the vocabulary fills instead; None: 0.
            packing: What `plan_rows` says of this batch; without it a GPU waits for the places of
                its tokens.
        """
        if labels is None or input_ids is None:
            inputs = {
                "input_ids": input_ids,
                "attention_mask": attention_mask,
                "token_type_ids": token_type_ids,
            }
            return transformers.ElectraForPreTraining.forward(self, **inputs, **kwargs)
        encoded, _ = self.generator._encode(
            (input_ids, attention_mask, token_type_ids, None), {}, packing
        )
        predicted, targets = _predicted_rows(encoded, labels, packing)
        places = encoded.layout.places_of(predicted)
        logits = self.generator.token_logits(encoded.rows[predicted]).float()
        mlm_loss = mean_cross_entropy(logits, targets, num_items_in_batch)
        with torch.no_grad():
            draws = torch.rand(labels.shape, device=labels.device) if draws is None else draws
            words = sample_words(logits, draws.flatten()[places], random_share)
            text = torch.where(labels == IGNORE_INDEX, input_ids, labels)
            shown = text.flatten().index_copy(0, places, words).view_as(text)
        replaced = (shown != text).flatten()[_token_places(encoded, attention_mask)]
        encoded, _ = self._encode((shown, attention_mask, token_type_ids, None), {}, packing)
        verdicts = self.discriminator_predictions(_of_tokens(encoded, attention_mask)).float()
        total = F.binary_cross_entropy_with_logits(verdicts, replaced.float(), reduction="sum")
        disc_loss = total / (len(replaced) if num_tokens_in_batch is None else num_tokens_in_batch)
        return ElectraForPreTrainingOutput(
            loss=mlm_loss + DISCRIMINATOR_WEIGHT * disc_loss,
            mlm_loss=mlm_loss,
            disc_loss=disc_loss,
            prediction_logits=logits,
            disc_logits=verdicts,
            replaced=replaced,
        )

    def save_pretrained(self, save_directory: Any, state_dict: Any = None, **kwargs: Any) -> Any:
        """The discriminator in the folder, the generator in its folder `generator`; both load in
        stock's classes.
        """
        weights = self.state_dict() if state_dict is None else state_dict
        of_generator = {
            name.removeprefix(_GENERATOR): each
            for name, each in weights.items()
            if name.startswith(_GENERATOR)
        }
        if self.config.tie_word_embeddings:
            of_generator.pop("generator_lm_head.weight", None)
        for name, weight in weights.items():
            if name.startswith(
                "electra.embeddings."
            ):  # shared: engines leave out the second name of a weight
                of_generator.setdefault(name, weight)
        self.generator.config.vocab_size = self.config.vocab_size  # it may have been resized
        self.generator.save_pretrained(
            Path(save_directory) / GENERATOR_FOLDER, state_dict=of_generator, **kwargs
        )
        own = {name: each for name, each in weights.items() if not name.startswith(_GENERATOR)}
        return super().save_pretrained(save_directory, state_dict=own, **kwargs)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: Any,
        *args: Any,
        output_loading_info: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Open a discriminator as stock does, with the generator that is given or lies in its
        folder, or a new one.
        """
        name = pretrained_model_name_or_path
        model, info = super().from_pretrained(name, *args, output_loading_info=True, **kwargs)
        is_given = any(key.startswith(_GENERATOR) for key in kwargs.get("state_dict") or ())
        if not is_given and (name is None or not model.load_generator(Path(name))):
            info["missing_keys"] = {
                *info["missing_keys"],
                f"{_GENERATOR}generator_predictions.dense.weight",
            }
        return (model, info) if output_loading_info else model

    def load_generator(self, folder: Path) -> bool:
        """Take the generator's weights from the folder of a discriminator; whether they are
        there.
        """
        if not (folder / GENERATOR_FOLDER).is_dir():
            return False
        stock = transformers.ElectraForMaskedLM.from_pretrained(
            folder / GENERATOR_FOLDER, dtype=torch.float32
        )
        self.generator.load_state_dict(stock.state_dict())
        return True


# Member -> the class that is pre-trained; its `config_class.model_type` is what config.json says.
MEMBERS: dict[str, type[PreTrainingModel]] = {
    "bert": BertForPreTraining,
    "bert_mlm": BertForMaskedLM,
    "bert_ltr": BertLMHeadModel,
    "roberta": RobertaForMaskedLM,
    "albert": AlbertForPreTraining,
    "distilbert": DistilBertForMaskedLM,
    "electra": ElectraForPreTraining,
}


# Prefixes of the masked-LM heads' weights.
MASKED_LM_HEADS = ("cls.predictions.", "lm_head.", "predictions.", "vocab_", _GENERATOR)


def open_checkpoint(
    name: str, *, cached_only: bool, member: str | None = None
) -> tuple[Any, list[str]]:
    """Open a checkpoint with a complete encoder, ours or stock; also return the weights of the
    heads that it lacks: they are new.

    Args:
        name: Folder or Hub name.
        cached_only: Ask the local Hub cache only.
        member: Of `MEMBERS`; None: what its config.json says.
    """
    try:
        config, _ = BertConfig.get_config_dict(name, local_files_only=cached_only)
        found = config.get("model_type", "bert")  # the oldest checkpoints do not name their kind
    except (AttributeError, TypeError) as error:
        raise InputError(f"{name}: config.json holds no mapping") from error
    kind = MEMBERS.get(member or found)
    if kind is None or kind.config_class.model_type != found:
        wanted = member.partition("_")[0].upper() if member else "BERT"
        raise InputError(f"{name} is no {wanted}: the model_type in its config.json is {found!r}")
    network, info = kind.from_pretrained(
        name,
        use_safetensors=has_safetensors(name, cached_only=cached_only),
        output_loading_info=True,
        # whatever the file holds: weights that learn are kept in full precision
        dtype=torch.float32,
        local_files_only=cached_only,
        ignore_mismatched_sizes=True,  # refused by name below
    )
    if wrong := [key if isinstance(key, str) else key[0] for key in info["mismatched_keys"]]:
        raise InputError(f"{name}: {_first_of(wrong)} not of the size that config.json says")
    network.hide_positions()
    check_layers(name, network.config, info["unexpected_keys"])
    # A masked-LM checkpoint has neither the head for pairs nor the pooler below it.
    prefix = f"{network.base_model_prefix}."
    if lost := [
        key
        for key in info["missing_keys"]
        if key.startswith(prefix) and not key.startswith(f"{prefix}pooler")
    ]:
        raise InputError(
            f"{name}: no weights for {_first_of(lost)}; only the heads and the pooler may be "
            "missing"
        )
    return network, sorted(info["missing_keys"])


def _first_of(names: list[str]) -> str:
    return f"{min(names)}{f' and {len(names) - 1} more' if len(names) > 1 else ''}"


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


@torch.no_grad()
def add_tokens(
    model: BertForPreTraining, pieces: Mapping[int, Sequence[int]], vocab_size: int
) -> None:
    """Give new ids embeddings and output biases, in place: the mean of those of other ids.

    What the model says about texts without new tokens stays what it was, but for the softmax's
    share of the new ones. A mean of old rows predicts a new word about as often as its pieces.

    Args:
        pieces: New id -> old ids, at least one.
        vocab_size: Of the tokenizer. Rows beyond it, which pad a vocabulary, stay.
    """
    old_size = model.config.vocab_size
    size = max(vocab_size, old_size)
    assert all(
        0 <= new < size and all(0 <= old < old_size for old in olds) for new, olds in pieces.items()
    )
    if size > old_size:
        model.resize_token_embeddings(size, mean_resizing=False)
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, nn.Embedding)
    predictions = model.cls.predictions
    # The head keeps its bias under two names.
    biases = {id(bias): bias for bias in (predictions.bias, predictions.decoder.bias)}.values()
    for new, olds in pieces.items():
        rows = torch.tensor(list(olds), device=embedding.weight.device)
        embedding.weight[new] = embedding.weight[rows].mean(dim=0)
        for bias in biases:
            bias[new] = bias[rows].mean()
