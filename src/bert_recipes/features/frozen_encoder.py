"""A checkpoint's encoder that only reads: opened once, and asked for hidden states of any of its layers.

Legend: L layers, B inputs of a batch, T their tokens (no pads), H hidden size.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoModel, PreTrainedModel

from bert_recipes.checkpoint_access import check_checkpoint, opening
from bert_recipes.errors import InputError
from bert_recipes.finetuning.checkpoints import open_tokenizer
from bert_recipes.finetuning.collation import pad_batch
from bert_recipes.models.bert_model import BertModel
from bert_recipes.models.sizes import check_layers
from bert_recipes.tokenization import OriginalBertTokenizer


# Fields of a model's configuration that change nothing in its hidden states.
_NAMES_IN_CONFIG = frozenset(
    [
        "_name_or_path",
        "transformers_version",
        "dtype",
        "torch_dtype",
        "architectures",
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
        "output_hidden_states",
        "use_cache",
    ]
)


def choose_device(*, use_cpu: bool) -> torch.device:
    """The GPU where there is one and `use_cpu` does not forbid it."""
    return torch.device("cuda" if torch.cuda.is_available() and not use_cpu else "cpu")


def open_encoder(name: str) -> tuple[PreTrainedModel, OriginalBertTokenizer]:
    """A checkpoint's encoder in float32, and its tokenizer."""
    cached_only = check_checkpoint(name)
    tokenizer = open_tokenizer(name)
    with opening(name):
        encoder, info = AutoModel.from_pretrained(
            name, use_safetensors=True, local_files_only=cached_only, dtype=torch.float32, output_loading_info=True
        )
    check_layers(name, encoder.config, info["unexpected_keys"])
    # The pooler comes after the hidden states; checkpoints of masked-LM models have none.
    lost = [key for key in info["missing_keys"] if not key.startswith("pooler.")]
    if lost:
        raise InputError(f"model_name_or_path: {name} has no weights for {min(lost)} ({len(lost)} missing)")
    if len(tokenizer) > encoder.config.vocab_size:
        raise InputError(
            f"{name} has a vocabulary of {encoder.config.vocab_size:,}, its tokenizer {len(tokenizer):,} pieces: they do "
            "not belong together"
        )
    return encoder, tokenizer


def make_fast(encoder: PreTrainedModel, deepest: int, fast_layers: str) -> None:
    """Leave out the layers above the ones that are wanted, and compute the others without pads where the CPU can.

    Args:
        encoder: Changed in place; other architectures than BERT's stay as they are.
        deepest: Number of the highest hidden state that is wanted; 0 is the output of the embeddings.
        fast_layers: "auto", "plain" or "off" (`bert_recipes.kernels.load_kernels`).
    """
    if not isinstance(encoder, transformers.BertModel):
        return
    layers: Any = encoder.encoder.layer
    encoder.encoder.layer = nn.ModuleList(layers[: max(deepest, 1)])
    if type(encoder) is transformers.BertModel:
        BertModel.from_stock(encoder)
    if isinstance(encoder, BertModel):
        encoder.computes_pads = False
        encoder.use_fast_layers(fast_layers)


@torch.no_grad()
def hidden_rows(
    encoder: PreTrainedModel, features: Sequence[Mapping[str, list[int]]], pad_token_id: int, layers: Sequence[int]
) -> dict[int, torch.Tensor]:
    """Hidden states of the tokens of some inputs.

    Args:
        encoder: In evaluation mode, on its device.
        features: Each with lists of one length under input_ids and token_type_ids.
        pad_token_id: Id of [PAD].
        layers: Which of the L + 1 hidden states, 0 to L; number 0 is the output of the embeddings.

    Returns:
        Number -> (T, H), the tokens of one input after the other, on the encoder's device.
    """
    batch = {name: value.to(encoder.device) for name, value in pad_batch(features, pad_token_id).items()}
    is_token = batch["attention_mask"].bool()
    if isinstance(encoder, BertModel):
        kept: dict[int, torch.Tensor | None] = dict.fromkeys(layers)
        encoded = encoder.encode_rows(**batch, position_ids=None, kwargs={}, keep=kept)
        if encoded is not None:
            return {number: encoded.layout.unpack(rows)[is_token] for number, rows in kept.items() if rows is not None}
    # DistilBERT, for one, takes no token_type_ids.
    accepted = inspect.signature(type(encoder).forward).parameters
    inputs = {name: value for name, value in batch.items() if name in accepted}
    hidden = encoder(**inputs, output_hidden_states=True).hidden_states
    return {number: hidden[number][is_token] for number in layers}


def encoder_hash(encoder: PreTrainedModel) -> str:
    """SHA-256 (hex) of the configuration and of every weight that a hidden state depends on; the pooler comes after them."""
    config = {name: value for name, value in encoder.config.to_dict().items() if name not in _NAMES_IN_CONFIG}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in sorted(encoder.state_dict().items()):
        if not name.startswith("pooler."):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
