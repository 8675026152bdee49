"""RoBERTa, ALBERT and DistilBERT with their pre-training heads."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.activations import ACT2FN
from transformers.models.albert.modeling_albert import AlbertMLMHead, AlbertSOPHead
from transformers.models.roberta.modeling_roberta import RobertaLMHead

from bert_recipes.models.bert import PreTrainingModel
from bert_recipes.models.bert_model import AlbertModel, DistilBertModel, RobertaModel


class RobertaForMaskedLM(PreTrainingModel, transformers.RobertaForMaskedLM):
    """RoBERTa: no head for pairs, no pooler. Source: fairseq models/roberta/model.py."""

    def __init__(self, config: Any) -> None:
        PreTrainedModel.__init__(self, config)
        self.roberta = RobertaModel(config, add_pooling_layer=False)
        self.lm_head = RobertaLMHead(config)
        self.finish_init()

    @property
    def _bypassed_modules(self) -> tuple[nn.Module, ...]:
        return (self.lm_head,)

    def _transform(self, rows: torch.Tensor) -> torch.Tensor:
        active = F.gelu(self.lm_head.dense(rows))
        return self.lm_head.layer_norm(active)

    def token_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits of the masked-LM head, (..., H) -> (..., V)."""
        return self.lm_head(hidden)


class AlbertForPreTraining(PreTrainingModel, transformers.AlbertForPreTraining):
    """ALBERT with the masked-LM and the sentence-order head.

    Source: google-research/albert run_pretraining.py.
    """

    has_pair_head = True

    def __init__(self, config: Any) -> None:
        PreTrainedModel.__init__(self, config)
        self.albert = AlbertModel(config)
        self.predictions = AlbertMLMHead(config)
        self.sop_classifier = AlbertSOPHead(config)
        self.finish_init()
        # `classifier_dropout_prob` is that of fine-tuning: the original has none before this head
        # (run_pretraining.py).
        self.sop_classifier.dropout.p = 0.0

    @property
    def _bypassed_modules(self) -> tuple[nn.Module, ...]:
        return (self.predictions,)

    def _transform(self, rows: torch.Tensor) -> torch.Tensor:
        active = self.predictions.activation(self.predictions.dense(rows))
        return self.predictions.LayerNorm(active)

    def token_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits of the masked-LM head, (..., H) -> (..., V)."""
        return self.predictions(hidden)

    def _pair_logits(self, pooled: torch.Tensor | None) -> torch.Tensor | None:
        return self.sop_classifier(pooled)


class DistilBertForMaskedLM(PreTrainingModel, transformers.DistilBertForMaskedLM):
    """DistilBERT: no segments, no pooler, no head for pairs."""

    def __init__(self, config: Any) -> None:
        PreTrainedModel.__init__(self, config)
        self.activation = ACT2FN[config.activation]
        self.distilbert = DistilBertModel(config)
        self.vocab_transform = nn.Linear(config.dim, config.dim)
        self.vocab_layer_norm = nn.LayerNorm(config.dim, eps=1e-12)
        self.vocab_projector = nn.Linear(config.dim, config.vocab_size)
        self.finish_init()

    @property
    def _bypassed_modules(self) -> tuple[nn.Module, ...]:
        return ()

    def _transform(self, rows: torch.Tensor) -> torch.Tensor:
        active = self.activation(self.vocab_transform(rows))
        return self.vocab_layer_norm(active)

    def token_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits of the masked-LM head, (..., H) -> (..., V)."""
        return self.vocab_projector(self._transform(hidden))
