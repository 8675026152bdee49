"""Which layers a model is computed with on a CPU."""

from __future__ import annotations

import logging
from typing import Any

import transformers
from transformers import PreTrainedModel

from bert_recipes.models.bert_model import BertModel


logger = logging.getLogger(__name__)


def choose_layers(model: PreTrainedModel, fast_layers: str, *, for_training: bool = True) -> None:
    """Give a model on a CPU the fastest layers that machine and architecture allow; weights, names and results stay.

    Args:
        model: With any head; a stock `BertModel` inside is put under our class.
        fast_layers: "auto", "plain" or "off" (`bert_recipes.kernels.load_kernels`).
        for_training: Dropout will be on.
    """
    base: Any = model.base_model
    if type(base) is transformers.BertModel and base is not model:
        base = BertModel.from_stock(base)
    if isinstance(base, BertModel):
        # Its softmax is over all positions, as in the original: pads get the hidden states that stock layers give them.
        base.computes_pads = isinstance(model, transformers.BertForQuestionAnswering)
        if base.use_fast_layers(fast_layers):
            logger.info("layers: on packed rows, with fused kernels")
    has_dropout = for_training and getattr(model.config, "attention_probs_dropout_prob", 0) > 0
    if has_dropout and model.config._attn_implementation == "sdpa":
        # For stock layers: scaled_dot_product_attention has no fast path with dropout on CPUs; spelled out it is quicker.
        model.set_attn_implementation("eager")
