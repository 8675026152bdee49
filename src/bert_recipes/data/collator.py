"""Pairs or blocks -> a padded, masked batch for a model of `models.bert` and the Trainer."""

from __future__ import annotations

import logging
import string
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bert_recipes.data.masking import (
    IGNORE_INDEX,
    MaskingRates,
    hash_keys,
    keyed_uniforms,
    mask_tokens,
)
from bert_recipes.errors import InputError


logger = logging.getLogger(__name__)

_STREAM_DRAWS = 16  # behind those of masks
# Of `_goes_on_in_sentencepiece`; the original counts the apostrophe among the other characters.
_PUNCTUATION = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
_ENGLISH = _PUNCTUATION.union(string.ascii_letters)


# The marks of pieces: WordPiece's of what goes on with a word; SentencePiece's and byte-level BPE's
# of what begins one.
_GOES_ON, _SENTENCEPIECE, _BYTE_LEVEL = "##", "\u2581", "\u0120"


def _mark_of(vocabulary: Mapping[str, int]) -> str:
    """Return the mark that most pieces have."""
    marks = (_GOES_ON, _SENTENCEPIECE, _BYTE_LEVEL)
    return max(marks, key=lambda mark: sum(piece.startswith(mark) for piece in vocabulary))


def find_continuations(vocabulary: Mapping[str, int], size: int) -> np.ndarray:
    """Return bool (size,), which pieces go on with a word: those with "##", or without the mark of
    a word's beginning that the others have.

    Of SentencePiece only pieces of English letters go on with a word. What holds another character,
    and punctuation alone, begins one.
    Source: google-research/albert create_pretraining_data.py, `_is_start_piece_sp`.
    """
    mark = _mark_of(vocabulary)
    found = np.zeros(size, dtype=bool)
    for piece, number in vocabulary.items():
        if mark == _SENTENCEPIECE:
            found[number] = _goes_on_in_sentencepiece(piece)
        else:
            found[number] = piece.startswith(mark) == (mark == _GOES_ON)
    return found


def _goes_on_in_sentencepiece(piece: str) -> bool:
    begins = piece.startswith((_SENTENCEPIECE, "<")) or piece in _PUNCTUATION
    return not begins and _ENGLISH.issuperset(piece)


@dataclass
class DataCollatorForPreTraining(MaskingRates):
    """Pad, mask and label pairs; masks are a pure function of (seed, the pair's key).

    The same pair gets the same mask in any batch, worker, process and resumed run, and a new one in
    every epoch.

    Input: a list of features, each with
        input_ids: int (L,), with [CLS] and [SEP]; token_type_ids: int (L,);
        next_sentence_label: 0 = next, 1 = random, or 0 = in order, 1 = swapped, -100 = none
            (optional);
        key: (epoch, index), the pair's number (optional: without it the mask follows from the
            tokens themselves, so every epoch sees the same one, and a warning says so);
        labels: int (L,) when the feature is masked already (`InstanceDataset`): taken as they are.

    Output: int64 tensors `input_ids`, `token_type_ids`, `attention_mask`, `labels` (B, S) with -100
    where nothing is
        predicted, and `next_sentence_label` (B,).

    Example:
        >>> collator = DataCollatorForPreTraining(tokenizer)
        >>> batch = collator([dataset[(0, 0)], dataset[(0, 1)]])
    """

    tokenizer: Any  # any BERT tokenizer of transformers; gives the special ids and the vocabulary
    seed: int = 12345
    pad_to_length: int | None = None  # of every batch; None = to its longest row
    pad_to_multiple_of: int | None = None
    # The batch has float32 `draws` (B, S) in [0, 1) too, a function of the same keys: for ELECTRA's
    # generator.
    has_draws: bool = False
    # Whether padding is among the random words, as in the originals but RoBERTa's: a model that
    # finds its positions by pads would shift them behind it. Never with a byte-level vocabulary,
    # which is RoBERTa's.
    draws_pad: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("pad", "cls", "sep", "mask"):
            if getattr(self.tokenizer, f"{name}_token_id") is None:
                raise InputError(
                    f"the tokenizer has no [{name.upper()}] token; masked-LM training needs it"
                )
        self._vocab_size = len(self.tokenizer)
        vocabulary = self.tokenizer.get_vocab()
        self._is_continuation = find_continuations(vocabulary, self._vocab_size)
        if _mark_of(vocabulary) == _BYTE_LEVEL:
            self.draws_pad = False
        names = ("pad", "cls", "sep", "unk")
        special = [getattr(self.tokenizer, f"{name}_token_id", None) for name in names]
        self._not_drawn = [number for number in special if number is not None]
        self._warned = False

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Collate features into one batch of int64 tensors."""
        lengths = np.array([len(feature["input_ids"]) for feature in features], dtype=np.int64)
        longest = int(lengths.max())
        size, multiple = self.pad_to_length or longest, self.pad_to_multiple_of or 1
        if longest > size:
            raise InputError(
                f"a row has {longest} tokens, pad_to_length is {size}; raise it or shorten the rows"
            )
        size = -(-size // multiple) * multiple
        attention_mask = np.arange(size) < lengths[:, None]
        input_ids = self._pad(features, "input_ids", size, self.tokenizer.pad_token_id)
        batch = {
            "input_ids": input_ids,
            "token_type_ids": self._pad(features, "token_type_ids", size, 0),
            "attention_mask": attention_mask.astype(np.int64),
        }
        if "labels" in features[0]:
            batch["labels"] = self._pad(features, "labels", size, IGNORE_INDEX)
        else:
            is_word = attention_mask.copy()
            for special in (
                self.tokenizer.cls_token_id,
                self.tokenizer.sep_token_id,
                self.tokenizer.pad_token_id,
            ):
                is_word &= input_ids != special
            batch["input_ids"], batch["labels"] = mask_tokens(
                input_ids,
                is_word,
                lengths,
                self._keys(features),
                rates=self,
                mask_token_id=self.tokenizer.mask_token_id,
                vocab_size=self._vocab_size,
                is_continuation=self._is_continuation,
                not_drawn=self._not_drawn,
                never_drawn=() if self.draws_pad else (self.tokenizer.pad_token_id,),
            )
        if "next_sentence_label" in features[0]:
            batch["next_sentence_label"] = np.array(
                [f["next_sentence_label"] for f in features], dtype=np.int64
            )
        if self.has_draws:
            draws = keyed_uniforms(
                self._keys(features)[:, None], _STREAM_DRAWS, np.arange(size)[None]
            )
            batch["draws"] = draws.astype(np.float32)
        return {name: torch.from_numpy(values) for name, values in batch.items()}

    @staticmethod
    def _pad(features: Sequence[Mapping[str, Any]], name: str, size: int, value: int) -> np.ndarray:
        rows = np.full((len(features), size), value, dtype=np.int64)
        for row, feature in zip(rows, features, strict=True):
            values = feature[name]
            row[: len(values)] = values
        return rows

    def _keys(self, features: Sequence[Mapping[str, Any]]) -> np.ndarray:
        if all("key" in feature for feature in features):
            numbers = np.array([feature["key"] for feature in features], dtype=np.int64)
            return hash_keys(self.seed, numbers[:, 0], numbers[:, 1])
        if not self._warned:
            self._warned = True
            logger.warning(
                "features without 'key': (epoch, index) are masked by their content, the same way "
                "in every epoch; "
                "keep the key (remove_unused_columns=False) for new masks each epoch"
            )
        content = [
            zlib.crc32(np.asarray(f["input_ids"], dtype=np.int64).tobytes()) for f in features
        ]
        return hash_keys(self.seed, np.array(content, dtype=np.int64))
