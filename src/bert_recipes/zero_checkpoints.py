"""A checkpoint whose weights DeepSpeed has shared out over processes, as one model in Hub form."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PreTrainedModel

from bert_recipes.checkpointing import why_incomplete
from bert_recipes.errors import InputError


# DeepSpeed's own file: the name of the folder with the parts of all processes.
LATEST_FILE = "latest"


def check_zero_checkpoint(checkpoint: Path) -> None:
    """See that a folder is a complete checkpoint of DeepSpeed.

    The parts are pickles, as DeepSpeed writes them: opening one from elsewhere may run code. The manifest says that they are
    what was written, not who wrote them.

    Args:
        checkpoint: `checkpoint-N` of a run.

    Raises:
        InputError: It is damaged, or not DeepSpeed's.
    """
    reason = why_incomplete(checkpoint)
    if reason is not None:
        raise InputError(f"checkpoint: {checkpoint} is no complete checkpoint: {reason}")
    if not (checkpoint / LATEST_FILE).is_file():
        raise InputError(
            f"checkpoint: {checkpoint} is not DeepSpeed's: it is in Hub form already, and opens with from_pretrained"
        )


def read_weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    """All weights in float32, joined from the parts.

    Args:
        checkpoint: Passed `check_zero_checkpoint`; written by one's own run.

    Raises:
        InputError: DeepSpeed is missing, or does not open it.
    """
    try:
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    except ImportError as error:
        raise InputError("DeepSpeed is missing; install it: pip install 'bert-recipes[deepspeed]'") from error
    try:
        # It tells what it does on stdout, which is ours.
        with contextlib.redirect_stdout(sys.stderr):
            weights: dict[str, torch.Tensor] = get_fp32_state_dict_from_zero_checkpoint(str(checkpoint))
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise InputError(f"checkpoint: DeepSpeed does not open {checkpoint}: {error}") from error
    # Shared weights come as one tensor under two names, which safetensors does not write.
    return {name: weight.clone() for name, weight in weights.items()}


def model_of(checkpoint: Path) -> PreTrainedModel:
    """The model of a DeepSpeed checkpoint, with stock's class and names.

    Args:
        checkpoint: Passed `check_zero_checkpoint`.

    Raises:
        InputError: Its config.json names no class of transformers, or weights are missing or too many.
    """
    config: Any = AutoConfig.from_pretrained(checkpoint, local_files_only=True)
    (name,) = config.architectures or ("none",)
    kind = getattr(transformers, name, None)
    if kind is None:
        raise InputError(f"{checkpoint / 'config.json'}: no class of transformers is called {name!r}")
    model: PreTrainedModel = kind(config)
    found = model.load_state_dict(read_weights(checkpoint), strict=False)
    model.tie_weights()
    # A shared weight may be there under one of its names only.
    missing = [key for key in found.missing_keys if key not in (model.all_tied_weights_keys or {})]
    if missing or found.unexpected_keys:
        wrong = ", ".join([*missing, *found.unexpected_keys][:3])
        raise InputError(f"checkpoint: {checkpoint} and its config.json do not belong together ({wrong})")
    return model
