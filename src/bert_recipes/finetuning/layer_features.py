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
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from bert_recipes.errors import InputError, saving
from bert_recipes.finetuning.collation import pad_batch
from bert_recipes.finetuning.document_windows import DocumentWindow, lay_out_documents
from bert_recipes.tasks.examples import TaggedExample
from bert_recipes.tokenization import OriginalBertTokenizer


logger = logging.getLogger(__name__)

FEATURE_DTYPES = ("float16", "float32")
# Part of the key: raised whenever the same settings would give other features.
_VERSION = 1
_VECTORS_FILE, _KEY_FILE = "vectors.npy", "key.json"
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


def compute_layer_features(
    encoder: PreTrainedModel,
    tokenizer: OriginalBertTokenizer,
    examples: Sequence[TaggedExample],
    folder: Path,
    *,
    max_seq_length: int = 512,
    batch_size: int = 16,
    dtype: str = "float16",
) -> LayerFeatures:
    """Run the encoder, without dropout and in float32, over the documents, or open what an earlier call has kept.

    Each word is read off its first piece, in the window of its document that shows most around it
    (`lay_out_documents`). The kept vectors are found by a hash of the weights, the configuration, the tokenizer, the
    words, the documents and the settings, so those of another model or other data are never taken.

    Args:
        encoder: Any BERT-like encoder; used on the device where it is.
        tokenizer: Its own.
        examples: Sentences.
        folder: Under it each (encoder, split, settings) has a folder of its own.
        max_seq_length: Positions of a window.
        batch_size: Windows that are computed together; changes nothing but speed.
        dtype: In which the vectors are kept; one of `FEATURE_DTYPES`.

    Returns:
        The features, memory-mapped: 2 or 4 bytes * (L + 1) * W * H on disk, which the log says.

    Raises:
        InputError: The disk is too small, a vector does not fit into float16, or max_seq_length exceeds the positions.

    Source: BERT, Devlin et al. 2019, section 5.3.
    """
    positions = getattr(encoder.config, "max_position_embeddings", max_seq_length)
    if max_seq_length > positions:
        raise InputError(f"max_seq_length is {max_seq_length}, the model has {positions} positions; lower it")
    lengths = [len(example.tokens) for example in examples]
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    settings = {"version": _VERSION, "max_seq_length": max_seq_length, "dtype": dtype}
    key = _hash_all(settings, _encoder_hash(encoder), tokenizer.fingerprint, _words_hash(examples))
    own = folder / key[:16]
    shape = (encoder.config.num_hidden_layers + 1, int(starts[-1]), encoder.config.hidden_size)
    vectors = _open_kept(own, key, shape, dtype)
    if vectors is None:
        size = np.dtype(dtype).itemsize * shape[0] * shape[1] * shape[2]
        _check_space(folder, size)
        logger.info("features of %d words in %d layers: computing; %.1f MB in %s", shape[1], shape[0], size / 1e6, own)
        windows = lay_out_documents(examples, tokenizer, max_seq_length)
        vectors = _compute_kept(
            own, key, _Job(encoder, tokenizer.pad_token_id, windows, starts, batch_size, shape, dtype)
        )
    else:
        logger.info("features of %d words in %d layers: kept ones reused from %s", shape[1], shape[0], own)
    return LayerFeatures(vectors=vectors, starts=starts, folder=own, key=key)


@dataclass(frozen=True)
class _Job:
    encoder: PreTrainedModel
    pad_token_id: int
    windows: Sequence[DocumentWindow]
    starts: np.ndarray
    batch_size: int
    shape: tuple[int, int, int]
    dtype: str


def _compute_kept(own: Path, key: str, job: _Job) -> np.ndarray:
    """Compute into a folder aside and give it its name when it is complete."""
    aside = own.with_name(f".{own.name}.{os.getpid()}.tmp")
    try:
        with saving(own):
            aside.mkdir(parents=True)
            vectors = np.lib.format.open_memmap(aside / _VECTORS_FILE, "w+", np.dtype(job.dtype), job.shape)
        _fill(vectors, job)
        with saving(own):
            vectors.flush()
            del vectors
            (aside / _KEY_FILE).write_text(json.dumps({"key": key}) + "\n", encoding="utf-8")
            if own.exists():
                shutil.rmtree(own)  # `_open_kept` has found it incomplete
            aside.replace(own)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    kept = _open_kept(own, key, job.shape, job.dtype)
    assert kept is not None
    return kept


@torch.no_grad()
def _fill(vectors: np.ndarray, job: _Job) -> None:
    was_training = job.encoder.training
    job.encoder.eval()
    order = np.argsort([-len(window.input_ids) for window in job.windows], kind="stable")
    device = job.encoder.device
    for first in tqdm(range(0, len(order), job.batch_size), desc="features", leave=False, disable=None):
        windows = [job.windows[number] for number in order[first : first + job.batch_size]]
        features = [
            {"input_ids": window.input_ids, "token_type_ids": [0] * len(window.input_ids)} for window in windows
        ]
        batch = {name: value.to(device) for name, value in pad_batch(features, job.pad_token_id).items()}
        hidden = job.encoder(**batch, output_hidden_states=True).hidden_states
        rows = torch.from_numpy(np.repeat(np.arange(len(windows)), [len(each.words) for each in windows])).to(device)
        columns = torch.from_numpy(np.concatenate([each.positions for each in windows])).to(device)
        words = np.concatenate([job.starts[each.sentences] + each.words for each in windows])
        for layer, states in enumerate(hidden):
            chosen = states[rows, columns].float()
            if job.dtype == "float16" and chosen.abs().max() > np.finfo(np.float16).max:
                raise InputError(f"layer {layer}: a value above 65,504 does not fit; give --feature_dtype float32")
            vectors[layer, words] = chosen.cpu().numpy()
    job.encoder.train(was_training)


def _open_kept(own: Path, key: str, shape: tuple[int, int, int], dtype: str) -> np.ndarray | None:
    """The vectors in a folder; None where there are none or not all of them."""
    if not own.is_dir():
        return None
    try:
        found = json.loads((own / _KEY_FILE).read_text(encoding="utf-8"))["key"]
        vectors = np.load(own / _VECTORS_FILE, mmap_mode="r")
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s is not complete and is computed anew: %s", own, " ".join(str(error).split()))
        return None
    if found != key or vectors.shape != shape or vectors.dtype != np.dtype(dtype):
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


def _encoder_hash(encoder: PreTrainedModel) -> str:
    """Of the configuration and of every weight that a hidden state depends on; the pooler comes after them."""
    config = {name: value for name, value in encoder.config.to_dict().items() if name not in _NAMES_IN_CONFIG}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in sorted(encoder.state_dict().items()):
        if not name.startswith("pooler."):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _words_hash(examples: Sequence[TaggedExample]) -> str:
    digest = hashlib.sha256()
    for example in examples:
        digest.update(json.dumps([example.document, example.tokens]).encode())
    return digest.hexdigest()
