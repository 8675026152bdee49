"""Whether the settings of a push can be followed: what is known without the network."""

from __future__ import annotations

import logging
import os
from typing import Any

from transformers.trainer_utils import HubStrategy

from bert_recipes.errors import InputError
from bert_recipes.hub.client import TOKEN_ADVICE
from bert_recipes.hub.target import check_names


logger = logging.getLogger(__name__)


def check_push_settings(args: Any) -> None:
    """See without the network that the settings of a push can be followed."""
    if args.hub_token is not None:
        raise InputError(f"hub_token: {TOKEN_ADVICE}")
    if not args.push_to_hub:
        for name in ("hub_model_id", "hub_revision", "hub_overwrite", "hub_tags"):
            if getattr(args, name) and os.environ.get("RANK", "0") == "0":
                logger.warning("%s has no effect without --push_to_hub true", name)
        return
    if HubStrategy(args.hub_strategy) == HubStrategy.CHECKPOINT:
        raise InputError(
            "hub_strategy 'checkpoint' would upload the optimiser's state, which is a pickle; allowed: end, every_save (each save is a "
            "commit), all_checkpoints (the models of all of them, in folders)"
        )
    if args.hub_model_id is not None:
        check_names(args.hub_model_id, args.hub_revision)
