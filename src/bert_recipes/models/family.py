"""RoBERTa, ALBERT and DistilBERT with their pre-training heads."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional as F
from transformers.activations import ACT2FN
from transformers.models.albert.modeling_albert import AlbertMLMHead, AlbertSOPHead
from transformers.models.roberta.modeling_roberta import RobertaLMHead

from bert_recipes.models.bert import PreTrainingModel
from bert_recipes.models.bert_model import AlbertModel, DistilBertModel, RobertaModel


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
