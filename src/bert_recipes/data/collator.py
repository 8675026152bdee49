"""Make pairs or blocks a padded, masked batch for a model of `models.bert` and the Trainer."""

from __future__ import annotations

import logging
import math
import string
import zlib
from collections.abc import Collection, Mapping, Sequence
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

_STREAM_DRAWS = 16  # after those of masks
# Of `_goes_on_in_sentencepiece`; the original counts the apostrophe among the other characters.
_PUNCTUATION = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
_ENGLISH = _PUNCTUATION.union(string.ascii_letters)


# The marks of pieces: WordPiece marks those that go on with a word, SentencePiece and byte-level
# BPE those that begin one.
_WORDPIECE = "##"
_SENTENCEPIECE = "\u2581"
_BYTE_LEVEL = "\u0120"
# What a byte-level vocabulary writes for the bytes 0x80 to 0xBF, which go on with a character.
# Source: openai/gpt-2 encoder.py, `bytes_to_unicode`.
_INNER_BYTES = "".join(map(chr, (*range(0xA1, 0xAD), *range(0xAE, 0xC0), *range(0x122, 0x144))))


def _mark_of(vocabulary: Mapping[str, int]) -> str:
    """Return the mark that most pieces have."""
    counts = {}
    for mark in (_WORDPIECE, _SENTENCEPIECE, _BYTE_LEVEL):
        counts[mark] = sum(piece.startswith(mark) for piece in vocabulary)
    return max(counts, key=counts.__getitem__)


def is_byte_level(vocabulary: Mapping[str, int]) -> bool:
    """Return whether pieces are bytes, with a mark of the space before a word.

    The first word of a text may have no space before it, and so no mark.
    """
    return _mark_of(vocabulary) == _BYTE_LEVEL


def find_continuations(vocabulary: Mapping[str, int], size: int) -> np.ndarray:
    """Return bool (size,), the pieces that go on with a word.

    These are the pieces with "##", or without the mark of a word's beginning that the others have.
    Of SentencePiece only pieces of English letters go on with a word: another character, and
    punctuation alone, begins one.

    Source: google-research/albert create_pretraining_data.py, `_is_start_piece_sp`.
    """
    mark = _mark_of(vocabulary)
    goes_on = np.zeros(size, dtype=bool)
    for piece, number in vocabulary.items():
        if mark == _WORDPIECE:
            goes_on[number] = piece.startswith(mark)
        elif mark == _BYTE_LEVEL:
            goes_on[number] = not piece.startswith(mark)
        else:
            goes_on[number] = _goes_on_in_sentencepiece(piece)

    return goes_on


def count_characters(
    vocabulary: Mapping[str, int], size: int, special_ids: Collection[int]
) -> np.ndarray:
    """Return int64 (size,), the characters of the text that each piece stands for.

    Spaces, and the mark of a word's beginning or of a continuation, are none. A byte-level piece
    stands for the characters that begin in it. A special token counts as one character.
    """
    mark = _mark_of(vocabulary)
    inner_bytes = _INNER_BYTES if mark == _BYTE_LEVEL else ""
    without_inner_bytes = str.maketrans("", "", inner_bytes)
    lengths = np.ones(size, dtype=np.int64)
    for piece, number in vocabulary.items():
        if number not in special_ids:
            lengths[number] = len(piece.removeprefix(mark).translate(without_inner_bytes))
    return lengths


def _goes_on_in_sentencepiece(piece: str) -> bool:
    begins = piece.startswith((_SENTENCEPIECE, "<")) or piece in _PUNCTUATION
    return not begins and _ENGLISH.issuperset(piece)


def _without_pads(feature: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a feature without the positions that its attention mask leaves out."""
    mask = feature.get("attention_mask")
    if mask is None or all(mask):
        return feature
    kept = np.flatnonzero(np.asarray(mask))
    shorter = dict(feature)
    for name in ("input_ids", "token_type_ids", "labels"):
        if name in feature:
            shorter[name] = np.asarray(feature[name])[kept]
    return shorter


# The rates are inherited, so that they are fields of the collator as `mlm_probability` is in
# transformers.
@dataclass
class DataCollatorForPreTraining(MaskingRates):
    """Pad, mask and label pairs; masks are a pure function of (seed, the pair's key).

    The same pair gets the same mask in any batch, worker, process and resumed run, and a new one in
    every epoch.

    A feature, such as a row of a table of `datasets`, has `input_ids` int (L,), with [CLS] and
    [SEP], and optionally:
        token_type_ids: int (L,), the segments; without them there is one.
        next_sentence_label: 0 = next, 1 = random, or 0 = in order, 1 = swapped, -100 = none.
        key: (epoch, index), the pair's number, which `BertTrainer` adds where there is none;
            without it the mask follows from the tokens themselves, so every epoch sees the same
            one, and a warning says so.
        progress: the fraction of the run at which the pair is read, for `mlm_probability_end`.
        labels: int (L,) when the feature is masked already (`InstanceDataset`): taken as they are.
        attention_mask: int (L,), 0 where a row is padded already: these positions are left out.

    A batch has int64 tensors `input_ids`, `token_type_ids`, `attention_mask` and `labels` (B, S),
    with -100 where nothing is predicted, and `next_sentence_label` (B,).

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
    # Whether random words may be [PAD], as in the originals other than RoBERTa. A model that
    # derives positions from pads would shift those after it. Never with a byte-level vocabulary,
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
        self._is_byte_level = is_byte_level(vocabulary)
        if self._is_byte_level:
            self.draws_pad = False
        names = ("pad", "cls", "sep", "unk")
        special_ids = [getattr(self.tokenizer, f"{name}_token_id", None) for name in names]
        self._special_ids = [number for number in special_ids if number is not None]
        self._has_warned = False

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Collate features into one batch of int64 tensors."""
        features = [_without_pads(feature) for feature in features]
        lengths = np.array([len(feature["input_ids"]) for feature in features], dtype=np.int64)
        size = self._padded_length(int(lengths.max()))
        attention_mask = np.arange(size) < lengths[:, None]
        batch = {
            "input_ids": self._pad(features, "input_ids", size, self.tokenizer.pad_token_id),
            "token_type_ids": self._pad(features, "token_type_ids", size, 0),
            "attention_mask": attention_mask.astype(np.int64),
        }
        self._check_same_columns(features)
        if "labels" in features[0]:
            batch["labels"] = self._pad(features, "labels", size, IGNORE_INDEX)
        else:
            keys = self._keys(features)
            progress = np.array([feature.get("progress", 0.0) for feature in features])
            batch["input_ids"], batch["labels"] = self._mask(
                batch["input_ids"], lengths, keys, progress
            )
        if "next_sentence_label" in features[0]:
            labels = [feature["next_sentence_label"] for feature in features]
            batch["next_sentence_label"] = np.array(labels, dtype=np.int64)
        if self.has_draws:
            keys = self._keys(features)
            draws = keyed_uniforms(keys[:, None], _STREAM_DRAWS, np.arange(size))
            batch["draws"] = draws.astype(np.float32)
        return {name: torch.from_numpy(values) for name, values in batch.items()}

    def _check_same_columns(self, features: Sequence[Mapping[str, Any]]) -> None:
        """Refuse a batch in which only some rows have labels: `__call__` looks at the first row."""
        for name in ("labels", "next_sentence_label"):
            presence = {name in feature for feature in features}
            if len(presence) > 1:
                raise InputError(
                    f"only some rows of a batch have {name}; give it to all, with {IGNORE_INDEX} "
                    "where there is none"
                )

    def _padded_length(self, longest: int) -> int:
        """Return the positions of a batch."""
        size = self.pad_to_length or longest
        if longest > size:
            raise InputError(
                f"a row has {longest} tokens, pad_to_length is {size}; raise it or shorten the rows"
            )
        multiple = self.pad_to_multiple_of or 1
        return math.ceil(size / multiple) * multiple

    def _mask(
        self, input_ids: np.ndarray, lengths: np.ndarray, keys: np.ndarray, progress: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        tokenizer = self.tokenizer
        unpredicted = (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id)
        return mask_tokens(
            input_ids,
            candidates=~np.isin(input_ids, unpredicted),
            lengths=lengths,
            keys=keys,
            rates=self,  # inherited fields
            mask_token_id=tokenizer.mask_token_id,
            vocab_size=self._vocab_size,
            is_continuation=self._is_continuation,
            special_ids=self._special_ids,
            excluded_ids=() if self.draws_pad else (tokenizer.pad_token_id,),
            special_ends_word=self._is_byte_level,
            progress=progress,
        )

    @staticmethod
    def _pad(features: Sequence[Mapping[str, Any]], name: str, size: int, value: int) -> np.ndarray:
        """Return int64 (B, size), a number of each feature's positions; `value` in the padding."""
        num_rows = len(features)
        padded = np.full((num_rows, size), value, dtype=np.int64)
        for row, feature in enumerate(features):
            values = feature.get(name, ())
            length = len(values)
            padded[row, :length] = values
        return padded

    def _keys(self, features: Sequence[Mapping[str, Any]]) -> np.ndarray:
        if all("key" in feature for feature in features):
            numbers = np.array([feature["key"] for feature in features], dtype=np.int64)
            return hash_keys(self.seed, numbers[:, 0], numbers[:, 1])
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "features without 'key': (epoch, index) are masked by their content, the same way "
                "in every epoch; for new masks in each take BertTrainer"
            )
        hashes = []
        for feature in features:
            content = np.asarray(feature["input_ids"], dtype=np.int64).tobytes()
            hashes.append(zlib.crc32(content))
        return hash_keys(self.seed, np.array(hashes, dtype=np.int64))
