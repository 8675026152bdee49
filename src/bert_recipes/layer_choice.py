"""Which layers a model is computed with on a CPU."""

from __future__ import annotations

import logging
from typing import Any

import transformers
from transformers import PreTrainedModel

from bert_recipes.models.bert_model import BertModel


logger = logging.getLogger(__name__)


def choose_layers(model: PreTrainedModel, fast_layers: str) -> None:
    """Give a model on a CPU the fastest layers that machine and architecture allow; weights, names and results stay.

    Stock layers keep the attention that the model has: nothing says whether the user asked for it or transformers chose it.

    Args:
        model: With any head; a stock `BertModel` inside is put under our class.
        fast_layers: "auto", "plain" or "off" (`bert_recipes.kernels.load_kernels`).
    """
    base: Any = model.base_model
    if type(base) is transformers.BertModel and base is not model:
        base = BertModel.from_stock(base)
    if isinstance(base, BertModel):
        # Its softmax is over all positions, as in the original: pads get the hidden states that stock layers give them.
        base.computes_pads = isinstance(model, transformers.BertForQuestionAnswering)
        if base.use_fast_layers(fast_layers):
            logger.info("layers: on packed rows, with fused kernels")
