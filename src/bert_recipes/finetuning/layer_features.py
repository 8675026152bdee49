"""What a frozen encoder says of each word, all layers, computed once and kept on disk.

Legend: L layers of the encoder, W words of a split, H hidden size.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from bert_recipes.errors import InputError, saving
from bert_recipes.features.frozen_encoder import encoder_hash, hidden_rows
from bert_recipes.finetuning.document_windows import lay_out_documents
from bert_recipes.tasks.examples import TaggedExample
from bert_recipes.tokenization import OriginalBertTokenizer


logger = logging.getLogger(__name__)

# Part of the key: raised whenever the same settings would give other features.
_VERSION = 1
_VECTORS_FILE, _KEY_FILE = "vectors.npy", "key.json"


@dataclass(frozen=True)
class LayerFeatures:
    """The hidden states of all first pieces of a split.

    Attributes:
        vectors: float16 or float32 (L + 1, W, H), memory-mapped; number 0 is the output of the embeddings.
        starts: int64 (sentences + 1,), where each sentence's words begin among the W.
        folder: Where they lie.
        key: SHA-256 (hex) of everything that they follow from.
    """

    vectors: np.ndarray
    starts: np.ndarray
    folder: Path
    key: str


@dataclass(frozen=True, kw_only=True)
class FeatureRequest:
    """The hidden states that are wanted: whose, of what, and how they are kept.

    Each word is read off its first piece, in the window of its document that shows most around it
    (`lay_out_documents`).

    Attributes:
        encoder: Any BERT-like encoder; used on the device where it is.
        tokenizer: Its own.
        examples: Sentences.
        max_seq_length: Positions of a window.
        batch_size: Windows that are computed together; changes nothing but speed.
        dtype: In which the vectors are kept; float16 or float32.
    """

    encoder: PreTrainedModel
    tokenizer: OriginalBertTokenizer
    examples: Sequence[TaggedExample]
    max_seq_length: int = 512
    batch_size: int = 16
    dtype: str = "float16"

    def __post_init__(self) -> None:
        positions = getattr(self.encoder.config, "max_position_embeddings", self.max_seq_length)
        if self.max_seq_length > positions:
            raise InputError(f"max_seq_length is {self.max_seq_length}, the model has {positions} positions; lower it")

    @cached_property
    def key(self) -> str:
        """SHA-256 (hex) of the weights, the configuration, the tokenizer, the words, the documents and the settings."""
        settings = {"version": _VERSION, "max_seq_length": self.max_seq_length, "dtype": self.dtype}
        return _hash_all(settings, encoder_hash(self.encoder), self.tokenizer.fingerprint, _words_hash(self.examples))

    @cached_property
    def starts(self) -> np.ndarray:
        """int64 (sentences + 1,), where each sentence's words begin among the W."""
        return np.concatenate([[0], np.cumsum([len(example.tokens) for example in self.examples], dtype=np.int64)])

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """(L + 1, W, H)."""
        config = self.encoder.config
        return config.num_hidden_layers + 1, int(self.starts[-1]), config.hidden_size


def compute_layer_features(request: FeatureRequest, folder: Path) -> LayerFeatures:
    """Run the encoder, without dropout and in float32, over the documents, or open what an earlier call has kept.

    The kept vectors are found by the request's key, so those of another model or other data are never taken.

    Args:
        request: What is wanted.
        folder: Under it each (encoder, split, settings) has a folder of its own.

    Returns:
        The features, memory-mapped: 2 or 4 bytes * (L + 1) * W * H on disk, which the log says.

    Source: BERT, Devlin et al. 2019, section 5.3.
    """
    own = folder / request.key[:16]
    layers, words, width = request.shape
    vectors = _open_kept(own, request)
    if vectors is None:
        size = np.dtype(request.dtype).itemsize * layers * words * width
        _check_space(folder, size)
        logger.info("features of %d words in %d layers: computing; %.1f MB in %s", words, layers, size / 1e6, own)
        vectors = _compute_kept(own, request)
    else:
        logger.info("features of %d words in %d layers: kept ones reused from %s", words, layers, own)
    return LayerFeatures(vectors=vectors, starts=request.starts, folder=own, key=request.key)


def _compute_kept(own: Path, request: FeatureRequest) -> np.ndarray:
    """Compute into a folder aside and give it its name when it is complete."""
    aside = own.with_name(f".{own.name}.{os.getpid()}.tmp")
    try:
        with saving(own):
            aside.mkdir(parents=True)
            vectors = np.lib.format.open_memmap(aside / _VECTORS_FILE, "w+", np.dtype(request.dtype), request.shape)
        _fill(vectors, request)
        with saving(own):
            vectors.flush()
            del vectors
            (aside / _KEY_FILE).write_text(json.dumps({"key": request.key}) + "\n", encoding="utf-8")
            if own.exists():
                shutil.rmtree(own)  # `_open_kept` has found it incomplete
            aside.replace(own)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    kept = _open_kept(own, request)
    assert kept is not None
    return kept


@torch.no_grad()
def _fill(vectors: np.ndarray, request: FeatureRequest) -> None:
    encoder = request.encoder
    documents = lay_out_documents(request.examples, request.tokenizer, request.max_seq_length)
    was_training = encoder.training
    encoder.eval()
    order = np.argsort([-len(window.input_ids) for window in documents], kind="stable")
    for first in tqdm(range(0, len(order), request.batch_size), desc="features", leave=False, disable=None):
        windows = [documents[number] for number in order[first : first + request.batch_size]]
        features = [
            {"input_ids": window.input_ids, "token_type_ids": [0] * len(window.input_ids)} for window in windows
        ]
        hidden = hidden_rows(encoder, features, request.tokenizer.pad_token_id, range(request.shape[0]))
        firsts = np.cumsum([0, *(len(window.input_ids) for window in windows[:-1])])
        tokens = np.concatenate([first + each.positions for first, each in zip(firsts, windows, strict=True)])
        rows = torch.from_numpy(tokens).to(encoder.device)
        words = np.concatenate([request.starts[each.sentences] + each.words for each in windows])
        for layer, states in hidden.items():
            chosen = states[rows].float()
            if request.dtype == "float16" and chosen.abs().max() > np.finfo(np.float16).max:
                raise InputError(f"layer {layer}: a value above 65,504 does not fit; give --feature_dtype float32")
            vectors[layer, words] = chosen.cpu().numpy()
    encoder.train(was_training)


def _open_kept(own: Path, request: FeatureRequest) -> np.ndarray | None:
    """The vectors in a folder; None where there are none or not all of them."""
    if not own.is_dir():
        return None
    try:
        found = json.loads((own / _KEY_FILE).read_text(encoding="utf-8"))["key"]
        vectors = np.load(own / _VECTORS_FILE, mmap_mode="r")
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s is not complete and is computed anew: %s", own, " ".join(str(error).split()))
        return None
    if found != request.key or vectors.shape != request.shape or vectors.dtype != np.dtype(request.dtype):
        logger.warning("%s holds other features than its name says and is computed anew", own)
        return None
    return np.asarray(vectors) if vectors.size == 0 else vectors


def _check_space(folder: Path, size: int) -> None:
    existing = next(parent for parent in [folder, *folder.absolute().parents] if parent.is_dir())
    free = shutil.disk_usage(existing).free
    if size > free:
        raise InputError(
            f"{folder}: the features need {size / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; give another --features_dir "
            "or a smaller --max_train_sentences"
        )


def _hash_all(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _words_hash(examples: Sequence[TaggedExample]) -> str:
    digest = hashlib.sha256()
    for example in examples:
        digest.update(json.dumps([example.document, example.tokens]).encode())
    return digest.hexdigest()
