"""The training data as the model meets it: pair ``index`` of epoch ``epoch``, by random access."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch.utils.data import Dataset

from bert_recipes.data.epoch_index import PairSettings, SentenceLengths, keyed_rng
from bert_recipes.data.epoch_index_cache import EpochIndexCache
from bert_recipes.data.pairs import NUM_SPECIAL_TOKENS, truncate_pair
from bert_recipes.errors import InputError


# A position and a row's length are kept in two bytes (epoch_index.py); BERT has 512 positions.
MAX_SEQ_LENGTH_RANGE = (8, 65_535)


class SentenceTokens(SentenceLengths, Protocol):
    """What the data set asks of a split of a store (``store.TokenStore``)."""

    num_tokens: int

    def tokens(self, begin_sentence: int, end_sentence: int) -> np.ndarray:
        """Token ids of consecutive sentences, one array."""


class PreTrainingDataset(Dataset[dict[str, Any]]):
    """Sentence pairs for masked-LM and next-sentence training; new pairs every epoch.

    Pair k of epoch e is a pure function of (store, settings, seed, e, k): data-loading workers, processes, the order of
    access and interruptions do not matter. Masks are the collator's. An epoch's table of pairs is built when the epoch
    is first asked for and then kept in ``cache_dir``; it can always be made again.

    Args:
        store: A split of a store, e.g. ``open_store(path).train``.
        cls_id: Id of [CLS].
        sep_id: Id of [SEP].
        store_fingerprint: The store's ``fingerprint``; with the split's counts it names the cached files.
        max_seq_length: Most tokens of an input, special tokens included; 8 to 65,535.
        short_seq_prob: Share of documents whose pairs aim at a length drawn between 2 and the maximum; 0 to 1.
        seed: Seed of all draws.
        cache_dir: Where the tables of pairs are kept (24 bytes a pair); None = ``.cache`` in the store's folder, or a
            temporary folder if that cannot be written to.
        num_workers: Processes that build a table; the table does not depend on it.

    Example:
        >>> dataset = PreTrainingDataset(store.train, cls_id=2, sep_id=3, store_fingerprint=store.fingerprint)
        >>> dataset[(3, 17)]["next_sentence_label"]  # pair 17 of epoch 3  # doctest: +SKIP

    Raises:
        InputError: Fewer than two documents, or a setting out of range.

    Source: BERT (Devlin et al. 2019), A.2; google-research/bert create_pretraining_data.py. The original writes
    ``dupe_factor`` copies with other draws; here every epoch is such a copy and none is written.
    """

    def __init__(
        self,
        store: SentenceTokens,
        *,
        cls_id: int,
        sep_id: int,
        store_fingerprint: str,
        max_seq_length: int = 128,
        short_seq_prob: float = 0.1,
        seed: int = 12345,
        cache_dir: str | Path | None = None,
        num_workers: int = 1,
    ) -> None:
        """Check the settings; an epoch's pairs are built when they are first asked for."""
        low, high = MAX_SEQ_LENGTH_RANGE
        if not low <= max_seq_length <= high:
            raise InputError(f"max_seq_length: {max_seq_length} given, allowed are {low} to {high}")
        if not 0.0 <= short_seq_prob <= 1.0:
            raise InputError(f"short_seq_prob: {short_seq_prob} given, allowed is a probability, 0 to 1")
        if num_workers < 1:
            raise InputError(f"num_workers: {num_workers} given, at least 1 process is needed to build the pairs")
        path = getattr(store, "path", None)
        if store.num_documents < 2:
            raise InputError(
                f"{path or 'store'}: {store.num_documents} document(s); next-sentence pairs need at least 2, to draw "
                "random sentences from another one: separate documents by blank lines, or give more text"
            )
        self.store = store
        self.cls_id = cls_id
        self.sep_id = sep_id
        self.max_seq_length = max_seq_length
        self.seed = seed
        settings = PairSettings(max_seq_length=max_seq_length, short_seq_prob=short_seq_prob, seed=seed)
        identity = {
            "store": store_fingerprint,
            "split": None if path is None else Path(path).name,
            "counts": [int(store.num_documents), int(store.num_sentences), int(store.num_tokens)],
        }
        folder = None if cache_dir is None else Path(cache_dir)
        self._indexes = EpochIndexCache(store, settings, identity, folder, num_workers)

    def __len__(self) -> int:
        """Number of pairs of epoch 0; other epochs have a few more or fewer, see :meth:`num_pairs`."""
        return self.num_pairs(0)

    def num_pairs(self, epoch: int) -> int:
        """Return the number of pairs of an epoch."""
        return self._indexes.num_pairs(epoch)

    @property
    def index_name(self) -> str:
        """Tells the pairs of this store, split, seed and length from all others."""
        return self._indexes.name

    def remember_num_pairs(self, counts: Sequence[int]) -> None:
        """Take the numbers of pairs of the epochs 0, 1, ... from where they were counted before."""
        self._indexes.remember_num_pairs(counts)

    def lengths(self, epoch: int) -> np.ndarray:
        """Return int32 (num_pairs(epoch),): tokens of each input, special tokens included."""
        return self._indexes.table(epoch)["length"].astype(np.int32)

    def __getitem__(self, key: int | tuple[int, int]) -> dict[str, Any]:
        """Return one pair: [CLS] A [SEP] B [SEP].

        Args:
            key: (epoch, index), or an index in epoch 0.

        Returns:
            ``input_ids`` int64 (L,); ``token_type_ids`` int64 (L,), 0 up to and with the first [SEP], then 1;
            ``next_sentence_label`` int, 0 = B follows A, 1 = B was drawn at random; ``key`` (epoch, index).

        Raises:
            IndexError: The epoch has no such pair.
        """
        epoch, index = key if isinstance(key, tuple) else (0, key)
        epoch, index = int(epoch), int(index)
        table = self._indexes.table(epoch)
        if not 0 <= index < len(table):
            raise IndexError(f"pair {index} of epoch {epoch}: it has {len(table)}")
        a_begin, b_begin, a_count, b_count, _, is_random = table[index].item()
        tokens_a = self.store.tokens(a_begin, a_begin + a_count)
        tokens_b = self.store.tokens(b_begin, b_begin + b_count)
        max_num_tokens = self.max_seq_length - NUM_SPECIAL_TOKENS
        if len(tokens_a) + len(tokens_b) > max_num_tokens:
            rng = keyed_rng("truncation", self.seed, epoch, index)
            keep_a, keep_b = truncate_pair(len(tokens_a), len(tokens_b), max_num_tokens, rng)
            tokens_a, tokens_b = tokens_a[keep_a], tokens_b[keep_b]
        return {**self._join(tokens_a, tokens_b), "next_sentence_label": is_random, "key": (epoch, index)}

    def _join(self, tokens_a: np.ndarray, tokens_b: np.ndarray) -> dict[str, np.ndarray]:
        """Add the special tokens and the types."""
        boundary = len(tokens_a) + 2
        input_ids = np.empty(boundary + len(tokens_b) + 1, dtype=np.int64)
        input_ids[0] = self.cls_id
        input_ids[1 : boundary - 1] = tokens_a
        input_ids[boundary - 1] = self.sep_id
        input_ids[boundary:-1] = tokens_b
        input_ids[-1] = self.sep_id
        token_type_ids = np.zeros(len(input_ids), dtype=np.int64)
        token_type_ids[boundary:] = 1
        return {"input_ids": input_ids, "token_type_ids": token_type_ids}
