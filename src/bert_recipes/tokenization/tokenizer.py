"""A Hugging Face tokenizer that cuts text exactly as google-research/bert does.

Every way into a Hugging Face tokenizer (calling it, `encode`, `tokenize`, batches, pairs, words)
ends in `_encode_plus`. `OriginalBertTokenizer` normalizes the text there by the original's rules
and leaves the library nothing but to split at spaces and to look up pieces, special tokens,
truncation and padding. Offsets are mapped back to the caller's text.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from tokenizers import AddedToken
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import BatchEncoding, BertTokenizer

from bert_recipes.rows import SURROGATES
from bert_recipes.tokenization.added_tokens import AddedTokens
from bert_recipes.tokenization.alignment import AlignedEncoding
from bert_recipes.tokenization.normalization import align_normalized_text, normalize_text
from bert_recipes.tokenization.wordpiece import MAX_WORD_CHARACTERS, PairLayout, TextEncoder


SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# Positions of the paper's models. BERT, Devlin et al. 2019, A.2.
DEFAULT_MODEL_MAX_LENGTH = 512


class OriginalBertTokenizer(BertTokenizer):
    """BERT's tokenizer with google-research/bert's results for every text, by every entry point.

    Differences from the stock `BertTokenizer` (of which `BertTokenizerFast` is another name), all
    of them in favour of the original:

    - words of 101 to 200 characters are cut into pieces, not turned into [UNK];
    - ``[SEP]`` or ``[MASK]`` written in a text is text (``[``, ``sep``, ``]``). To have special
      tokens recognized, as a fill-mask prompt needs it, pass ``split_special_tokens=False``, or use
      the stock tokenizer on the saved folder;
    - character classes are those of Python's Unicode tables, as in the original.

    Tokens that were added with `add_tokens`, by a caller or in the folder, are recognized in texts
    as stock recognizes them; special ones among them are text, as [SEP] is. (`encode_ids` is exact;
    a call also takes a word for a token where stock has only the word as it is written, or not
    beside "_", for the flags ``normalized=False`` and ``single_word``.)
    """

    # Measurements on the text, where `train_wordpiece` has just made the tokenizer.
    training_report: Any = None

    def __init__(
        self,
        vocab: str | dict[str, int],
        do_lower_case: bool = True,
        tokenize_chinese_chars: bool = True,
        strip_accents: bool | None = None,
        **kwargs: Any,
    ) -> None:
        """Build the tokenizer from a vocabulary with every piece of `SPECIAL_TOKENS`.

        Users call `load_tokenizer`.
        """
        # Set before the base class runs, which may already ask for attributes.
        self._text_encoder: TextEncoder | None = None
        self._searches: dict[tuple[bool, ...], AddedTokens | None] = {}
        kwargs.setdefault("model_max_length", DEFAULT_MODEL_MAX_LENGTH)
        kwargs.setdefault("split_special_tokens", True)
        super().__init__(
            vocab=vocab,
            do_lower_case=do_lower_case,
            tokenize_chinese_chars=tokenize_chinese_chars,
            strip_accents=strip_accents,
            **kwargs,
        )
        self.backend_tokenizer.normalizer = None
        self.backend_tokenizer.pre_tokenizer = WhitespaceSplit()
        _allow_long_words(self)

    # Ids for bulk work

    def normalize(self, text: str) -> str:
        """Return the string whose ``.split()`` are the words; added tokens in it stay whole."""
        return self._normalize_around(text, self._added_tokens())

    def encode_ids(self, text: str) -> list[int]:
        """Return the ids of any text, without [CLS] and [SEP], not truncated: for bulk work.

        Added tokens in it are recognized; nothing is taken for a special one.

        Example:
            >>> tokenizer.convert_ids_to_tokens(tokenizer.encode_ids("unwanted"))
            ['un', '##wanted']
        """
        return self.text_encoder(text)

    def encode_word(self, word: str) -> list[int]:
        """Return the ids of a word that stands alone in a list of words."""
        return self.text_encoder(word)

    @property
    def text_encoder(self) -> TextEncoder:
        """Return `encode_ids` as an object that other processes can take."""
        settings = self._normalization
        if self._text_encoder is None or self._text_encoder.settings != settings:
            self._text_encoder = TextEncoder(
                self.backend_tokenizer.get_vocab(with_added_tokens=False),
                str(self.unk_token),
                added=self._added_tokens(),
                **settings,
            )
        return self._text_encoder

    @property
    def following_encoder(self) -> TextEncoder:
        """Return `text_encoder`: WordPiece reads a sentence alike wherever it stands."""
        return self.text_encoder

    @property
    def layout(self) -> PairLayout:
        """Return what stands around two texts: [CLS] A [SEP] B [SEP]."""
        cls = (int(self.cls_token_id),)
        sep = (int(self.sep_token_id),)
        return PairLayout(prefix=cls, middle=sep, suffix=sep, second_segment=1)

    @property
    def extra_tokens(self) -> dict[int, AddedToken]:
        """Return the tokens that were added beside BERT's special ones, by id and in its order."""
        tokens = sorted(self.added_tokens_decoder.items())
        return {number: token for number, token in tokens if token.content not in SPECIAL_TOKENS}

    @property
    def fingerprint(self) -> str:
        """Return the SHA-256 (hex) of all that decides about ids.

        It covers the settings, the pieces in the order of their ids, and the flags of added tokens.
        """
        lines = [repr(sorted(self._normalization.items()))]
        vocabulary = self.get_vocab()
        for piece in sorted(vocabulary, key=vocabulary.__getitem__):
            lines.append(f"{vocabulary[piece]}\t{piece}")
        for token_id, token in self.extra_tokens.items():
            if not token.special:
                lines.append(f"{token_id}\t{token.single_word}\t{token.normalized}")
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @property
    def _normalization(self) -> dict[str, bool]:
        strip_accents = self.do_lower_case if self.strip_accents is None else self.strip_accents
        return {
            "lowercase": self.do_lower_case,
            "strip_accents": strip_accents,
            "split_cjk": self.tokenize_chinese_chars,
        }

    # A call, `encode`, `tokenize`, batches

    def _encode_plus(
        self,
        text: Any,
        text_pair: Any = None,
        *,
        is_split_into_words: bool = False,
        return_tensors: Any = None,
        return_overflowing_tokens: bool = False,
        split_special_tokens: bool | None = None,
        **kwargs: Any,
    ) -> BatchEncoding:
        """Normalize, let the library encode, and map positions back to the caller's texts."""
        batch, is_batched = _as_batch(text, text_pair, is_split_into_words=is_split_into_words)
        if split_special_tokens is None:
            split_special_tokens = self.split_special_tokens
        added = self._added_tokens(with_special=not split_special_tokens)
        normalize = partial(self._normalize_around, added=added)
        # Not a method of this object: encodings are sent to other processes.
        align = partial(_origins, settings=self._normalization, added=added)
        encoded = super()._encode_plus(
            [_map_strings(sample, normalize) for sample in batch],
            is_split_into_words=is_split_into_words,
            return_overflowing_tokens=return_overflowing_tokens,
            split_special_tokens=split_special_tokens,
            **kwargs,
        )
        encodings = []
        samples = encoded.get("overflow_to_sample_mapping", range(len(batch)))
        for encoding, sample in zip(encoded.encodings or [], samples, strict=True):
            encodings.append(AlignedEncoding(encoding, batch[sample], align))
        if "offset_mapping" in encoded:
            encoded["offset_mapping"] = [encoding.offsets for encoding in encodings]
        data = dict(encoded)
        if not is_batched and return_tensors is None and not return_overflowing_tokens:
            data = {key: value[0] for key, value in data.items()}
        # A sequence of encodings is only read by index and handed on, whatever its items' class.
        return BatchEncoding(data, cast(Any, encodings), tensor_type=return_tensors)

    def _add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        # What was remembered about the tokens before is out of date.
        self._text_encoder = None
        self._searches.clear()
        return super()._add_tokens(new_tokens, special_tokens=special_tokens)

    def _added_tokens(self, *, with_special: bool = False) -> AddedTokens | None:
        """Return the search for the added tokens that texts may hold; None if there are none."""
        settings = self._normalization
        key = (with_special, *settings.values())
        if key not in self._searches:
            tokens = self.added_tokens_decoder
            if not with_special:
                tokens = {number: token for number, token in tokens.items() if not token.special}
            self._searches[key] = AddedTokens(tokens, **settings) if tokens else None
        return self._searches[key]

    def _normalize_around(self, text: str, added: AddedTokens | None) -> str:
        if added is None:
            return normalize_text(text, **self._normalization)
        return added.normalize(text)

    # Folders

    def stock_tokenizer(self) -> BertTokenizer:
        """Build the stock tokenizer with this vocabulary and these settings, as it is saved."""
        stock = BertTokenizer(
            vocab=self.backend_tokenizer.get_vocab(with_added_tokens=False),
            do_lower_case=self.do_lower_case,
            tokenize_chinese_chars=self.tokenize_chinese_chars,
            strip_accents=self.strip_accents,
            model_max_length=self.model_max_length,
            padding_side=self.padding_side,
            truncation_side=self.truncation_side,
            model_input_names=self.model_input_names,
            **self.special_tokens_map,
        )
        stock.add_tokens(list(self.extra_tokens.values()))
        # Readers of tokenizer.json honour it; the class BertTokenizer does not.
        _allow_long_words(stock)
        return stock

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], **kwargs: Any
    ) -> tuple[str, ...]:
        """Write a stock folder: tokenizer.json, tokenizer_config.json and vocab.txt.

        The class that the configuration names is BertTokenizer.
        """
        files = self.stock_tokenizer().save_pretrained(save_directory, **kwargs)
        return files + self.save_vocabulary(str(save_directory), kwargs.get("filename_prefix"))

    def save_vocabulary(
        self, save_directory: str, filename_prefix: str | None = None
    ) -> tuple[str, ...]:
        """Write vocab.txt in the original's form: one piece per line in the order of the ids."""
        model = cast(WordPiece, self.backend_tokenizer.model)
        return tuple(model.save(save_directory, filename_prefix))


def _origins(
    text: str, settings: dict[str, bool], added: AddedTokens | None
) -> Sequence[int | None]:
    if added is not None:
        return added.align(text)
    _, origins = align_normalized_text(text, **settings)
    return origins


def _allow_long_words(tokenizer: BertTokenizer) -> None:
    model = cast(WordPiece, tokenizer.backend_tokenizer.model)
    model.max_input_chars_per_word = MAX_WORD_CHARACTERS


def _as_batch(text: Any, text_pair: Any, *, is_split_into_words: bool) -> tuple[list[Any], bool]:
    """Return a list of texts, or of pairs of texts, and whether the caller gave a batch.

    Source: transformers tokenization_utils_tokenizers.py `_encode_plus` (how it knows a batch from
    a single text).
    """
    is_batched = isinstance(text, list | tuple)
    if is_batched and is_split_into_words:
        is_batched = len(text) > 0 and isinstance(text[0], list | tuple)
    if not is_batched:
        sample = (text, text_pair) if text_pair else text
        return [sample], False
    if text_pair is None:
        return list(text), True
    if isinstance(text_pair, str):
        raise TypeError("text_pair must be a list or tuple when text is a batch, but it is a str")
    if len(text) != len(text_pair):
        raise ValueError(
            f"a batch of {len(text)} texts with {len(text_pair)} second texts: give one for each"
        )
    return list(zip(text, text_pair, strict=True)), True


def _map_strings(sample: Any, normalize: Callable[[str], str]) -> Any:
    """Normalize every string of nested lists and tuples."""
    if isinstance(sample, str):
        # Half a surrogate pair cannot be passed to the library. A word with either character is
        # [UNK].
        return SURROGATES.sub("\ufffd", normalize(sample))
    if isinstance(sample, Sequence):
        normalized = [_map_strings(text, normalize) for text in sample]
        return type(sample)(normalized)  # type: ignore[call-arg]
    raise TypeError(f"a text must be a str, but {type(sample).__name__} was given")
