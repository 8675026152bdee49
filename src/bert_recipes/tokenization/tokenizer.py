"""A Hugging Face tokenizer that cuts text exactly as google-research/bert does.

Every way into a Hugging Face tokenizer (calling it, `encode`, `tokenize`, batches, pairs, words)
ends in `_encode_plus`. `OriginalBertTokenizer` normalises the text there by the original's rules
and leaves the library nothing but to split at spaces and to look up pieces, special tokens,
truncation and padding. Offsets are mapped back to the caller's text.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, cast

from tokenizers import AddedToken, Encoding, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import BatchEncoding, BertTokenizer

from bert_recipes.tokenization.normalization import align_normalized_text, normalize_text
from bert_recipes.tokenization.wordpiece import MAX_WORD_CHARACTERS, PairLayout, TextEncoder


class AddedTokens:
    """Finds added tokens with the library's own search: their flags (single_word, normalized, ...)
    mean what they mean in stock.

    The settings are those of `normalize_text`; a token that is `normalized` is looked for in such a
    text.
    """

    def __init__(
        self,
        tokens: Mapping[int, AddedToken],
        *,
        lowercase: bool,
        strip_accents: bool,
        split_cjk: bool,
    ) -> None:
        self.contents = {token_id: token.content for token_id, token in sorted(tokens.items())}
        # Number 0 is the one piece of the model: all that is no added token.
        self._ids: list[int | None] = [None, *self.contents]
        self._search = Tokenizer(WordPiece({"": 0}, unk_token="", max_input_chars_per_word=1))
        self._search.normalizer = BertNormalizer(
            clean_text=True,
            handle_chinese_chars=split_cjk,
            strip_accents=strip_accents,
            lowercase=lowercase,
        )
        self._search.add_tokens([tokens[token_id] for token_id in self.contents])

    def split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Yield the parts of a text, one behind the other: a token with its id, or what stands
        between with None.

        Spaces that a token takes with it (lstrip, rstrip) are yielded as text, in which they mean
        nothing.
        """
        # Half a surrogate pair cannot be passed to the library; it becomes "?", so that places
        # stay.
        encoding = self._search.encode(
            text.encode(errors="replace").decode(), add_special_tokens=False
        )
        done = 0
        for number, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            token_id = self._ids[number]
            if token_id is None:
                continue
            part = text[start:end]
            start += len(part) - len(part.lstrip())
            part = part.strip() or part
            yield text[done:start], None
            yield part, token_id
            done = start + len(part)
        yield text[done:], None


Span = tuple[int, int]


class AlignedEncoding:
    """A `tokenizers.Encoding` of normalised text whose character positions are those of the
    original text.

    It has the attributes and methods of an `Encoding`. The alignment is computed when a position is
    asked for, not before. As in the library, a token's span runs from its first to its last
    character, without marks that were dropped after it.
    """

    def __init__(
        self, encoding: Encoding, text: Any, align: Callable[[str], Sequence[int | None]]
    ) -> None:
        self._encoding = encoding
        # the caller's input: a string, a list of words, or a pair (tuple or list) of either
        self._text = text
        self._align = align  # see `_align`

    def __getattr__(self, name: str) -> Any:
        # Whatever is not about characters: ids, type ids, masks, tokens, word ids. Private names
        # are never the library's, and must not be looked for while an unpickled object is still
        # empty.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._encoding, name)

    def __len__(self) -> int:
        return len(self._encoding)

    @cached_property
    def offsets(self) -> list[Span]:
        """For each token the half-open span of characters in its text (or in its word, where words
        were given).
        """
        # With one sequence, a list is a list of words; with two, the pair.
        texts = [self._text] if self._encoding.n_sequences == 1 else self._text
        align = cache(self._align)
        spans: list[Span] = []
        for span, sequence, word in zip(
            self._encoding.offsets,
            self._encoding.sequence_ids,
            self._encoding.word_ids,
            strict=True,
        ):
            if sequence is not None:
                text = (
                    texts[sequence] if isinstance(texts[sequence], str) else texts[sequence][word]
                )
                origins = [origin for origin in align(text)[slice(*span)] if origin is not None]
                span = (min(origins), max(origins) + 1) if origins else (0, 0)
            spans.append(span)
        return spans

    @property
    def overflowing(self) -> list["AlignedEncoding"]:
        """The encodings of the parts that truncation cut off."""
        return [
            AlignedEncoding(encoding, self._text, self._align)
            for encoding in self._encoding.overflowing
        ]

    def token_to_chars(self, token_index: int) -> Span | None:
        """Span of a token, or None for a special token."""
        return (
            None if self._encoding.sequence_ids[token_index] is None else self.offsets[token_index]
        )

    def word_to_chars(self, word_index: int, sequence_index: int = 0) -> Span | None:
        """Span of a word, or None if no token belongs to it."""
        tokens = self._encoding.word_to_tokens(word_index, sequence_index)
        return (
            None if tokens is None else (self.offsets[tokens[0]][0], self.offsets[tokens[1] - 1][1])
        )

    def char_to_token(self, char_pos: int, sequence_index: int = 0) -> int | None:
        """Index of the token whose span holds a character, or None: a space, or a character that
        was dropped.
        """
        for index, (span, sequence) in enumerate(
            zip(self.offsets, self._encoding.sequence_ids, strict=True)
        ):
            if sequence == sequence_index and span[0] <= char_pos < span[1]:
                return index
        return None

    def char_to_word(self, char_pos: int, sequence_index: int = 0) -> int | None:
        """Index of the word whose span holds a character, or None."""
        token = self.char_to_token(char_pos, sequence_index)
        return None if token is None else self._encoding.word_ids[token]


def _align(
    text: str, normalization: dict[str, bool], kept: AddedTokens | None
) -> Sequence[int | None]:
    """Index in the caller's text for each character of the normalised text: a mirror of how kept
    tokens are normalised around.

    None: a space beside a token that was kept, which may take it with it and is not made of it.
    """
    if kept is None:
        return align_normalized_text(text, **normalization)[1]
    origins: list[int | None] = []
    position = 0
    for index, (part, token_id) in enumerate(kept.split(text)):
        if index:
            origins.append(None)  # the space that joins the parts
        if token_id is None:
            aligned = zip(*align_normalized_text(part, **normalization), strict=True)
            origins.extend(
                None if character == " " else position + origin for character, origin in aligned
            )
        else:
            # Its first character, and the last one for all others: a token's span runs from the one
            # to the other.
            last = position + len(part) - 1
            origins.extend([position, *[last] * (len(kept.contents[token_id]) - 1)])
        position += len(part)
    return origins


SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# Positions of the paper's models. BERT, Devlin et al. 2019, A.2.
DEFAULT_MODEL_MAX_LENGTH = 512

_SURROGATES = re.compile("[\ud800-\udfff]")


class OriginalBertTokenizer(BertTokenizer):
    """BERT's tokenizer with google-research/bert's results for every text, through every entry
    point.

    Differences from the stock `BertTokenizer` (of which `BertTokenizerFast` is another name), all
    of them in favour of the original:

    - words of 101 to 200 characters are cut into pieces, not turned into [UNK];
    - ``[SEP]`` or ``[MASK]`` written in a text is text (``[``, ``sep``, ``]``). To have special
      tokens recognised, as a fill-mask prompt needs it, pass ``split_special_tokens=False``, or use
      the stock tokenizer on the saved folder;
    - character classes are those of Python's Unicode tables, as in the original.

    Tokens that were added with `add_tokens`, by a caller or in the folder, are recognised in texts
    as stock recognises them; special ones among them are text, as [SEP] is. (`encode_ids` is exact;
    a call also takes a word for a token where stock has only the word as it is written, or not
    beside "_", for the flags ``normalized=False`` and ``single_word``.)
    """

    training_report: Any = (
        None  # measurements on the text, where `train_wordpiece` has just made it
    )

    def __init__(
        self,
        vocab: str | dict[str, int],
        do_lower_case: bool = True,
        tokenize_chinese_chars: bool = True,
        strip_accents: bool | None = None,
        **kwargs: Any,
    ) -> None:
        """Build the tokenizer from a vocabulary with every piece of `SPECIAL_TOKENS`; users call
        `load_tokenizer`.
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
        backend = self.backend_tokenizer
        backend.normalizer = None
        backend.pre_tokenizer = WhitespaceSplit()
        cast(WordPiece, backend.model).max_input_chars_per_word = MAX_WORD_CHARACTERS

    def normalize(self, text: str) -> str:
        """The string whose ``.split()`` are the words; added tokens in the text stay whole."""
        return self._normalize_around(text, self._added_tokens())

    def encode_ids(self, text: str) -> list[int]:
        """Return the ids of any text, without [CLS] and [SEP], not truncated: the fast way, for
        bulk work.

        Added tokens in it are recognised; nothing is taken for a special one.

        Example:
            >>> tokenizer.convert_ids_to_tokens(tokenizer.encode_ids("unwanted"))
            ['un', '##wanted']
        """
        return self.text_encoder(text)

    @property
    def text_encoder(self) -> TextEncoder:
        """Return `encode_ids` as an object of its own that other processes can take."""
        settings = self._normalization
        if self._text_encoder is None or self._text_encoder.settings != settings:
            vocabulary, added = (
                self.backend_tokenizer.get_vocab(with_added_tokens=False),
                self._added_tokens(),
            )
            self._text_encoder = TextEncoder(
                vocabulary, str(self.unk_token), **settings, added=added
            )
        return self._text_encoder

    @property
    def layout(self) -> PairLayout:
        """[CLS] A [SEP] B [SEP]."""
        cls, sep = (int(self.cls_token_id),), (int(self.sep_token_id),)
        return PairLayout(cls, sep, sep, 1)

    def encode_word(self, word: str) -> list[int]:
        """The ids of a word that stands alone in a list of words."""
        return self.text_encoder(word)

    @property
    def extra_tokens(self) -> dict[int, AddedToken]:
        """Id to token: those that were added beside BERT's own special ones, special or not, in the
        order of their ids.
        """
        added = sorted(self.added_tokens_decoder.items())
        return {token_id: token for token_id, token in added if token.content not in SPECIAL_TOKENS}

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of all that decides about ids: the pieces in the order of their ids, and
        the settings.
        """
        digest = hashlib.sha256(repr(sorted(self._normalization.items())).encode())
        for piece, piece_id in sorted(self.get_vocab().items(), key=lambda item: item[1]):
            digest.update(f"\n{piece_id}\t{piece}".encode())
        for token_id, token in self.extra_tokens.items():
            if not token.special:
                digest.update(f"\n{token_id}\t{token.single_word}\t{token.normalized}".encode())
        return digest.hexdigest()

    @property
    def _normalization(self) -> dict[str, bool]:
        lowercase, strip_accents = self.do_lower_case, self.strip_accents
        strip_accents = lowercase if strip_accents is None else strip_accents
        return {
            "lowercase": lowercase,
            "strip_accents": strip_accents,
            "split_cjk": self.tokenize_chinese_chars,
        }

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
        """Normalise, let the library encode, and map what it says about characters back to the
        caller's texts.
        """
        batch, is_batched = _as_batch(text, text_pair, is_split_into_words=is_split_into_words)
        split_special_tokens = (
            self.split_special_tokens if split_special_tokens is None else split_special_tokens
        )
        kept = self._added_tokens(with_special=not split_special_tokens)
        encoded = super()._encode_plus(
            [_map_strings(item, partial(self._normalize_around, kept=kept)) for item in batch],
            is_split_into_words=is_split_into_words,
            return_overflowing_tokens=return_overflowing_tokens,
            split_special_tokens=split_special_tokens,
            **kwargs,
        )
        samples = encoded.get("overflow_to_sample_mapping", range(len(batch)))
        align = partial(_align, normalization=self._normalization, kept=kept)
        pairs = zip(encoded.encodings or [], samples, strict=True)
        encodings = [AlignedEncoding(encoding, batch[sample], align) for encoding, sample in pairs]
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
        """Finds the added tokens that texts may hold; None in the usual case that there are
        none.
        """
        settings = self._normalization
        key = (with_special, *settings.values())
        if key not in self._searches:
            added = {
                i: token
                for i, token in self.added_tokens_decoder.items()
                if with_special or not token.special
            }
            self._searches[key] = AddedTokens(added, **settings) if added else None
        return self._searches[key]

    def _normalize_around(self, text: str, kept: AddedTokens | None) -> str:
        settings = self._normalization
        if kept is None:
            return normalize_text(text, **settings)
        return " ".join(
            normalize_text(part, **settings) if token_id is None else kept.contents[token_id]
            for part, token_id in kept.split(text)
        )

    def stock_tokenizer(self) -> BertTokenizer:
        """Build the stock tokenizer with the same vocabulary and settings: what `save_pretrained`
        saves.
        """
        stock = BertTokenizer(
            vocab=self.backend_tokenizer.get_vocab(with_added_tokens=False),
            do_lower_case=self.do_lower_case,
            tokenize_chinese_chars=self.tokenize_chinese_chars,
            strip_accents=self.strip_accents,
            model_max_length=self.model_max_length,
            padding_side=self.padding_side,
            truncation_side=self.truncation_side,
            **self.special_tokens_map,
        )
        stock.add_tokens(list(self.extra_tokens.values()))
        # Readers of tokenizer.json that honour it cut words of up to 200 characters; the class
        # BertTokenizer does not.
        cast(
            WordPiece, stock.backend_tokenizer.model
        ).max_input_chars_per_word = MAX_WORD_CHARACTERS
        return stock

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], **kwargs: Any
    ) -> tuple[str, ...]:
        """Write a stock folder: tokenizer.json, tokenizer_config.json (class BertTokenizer) and
        vocab.txt.
        """
        files = self.stock_tokenizer().save_pretrained(save_directory, **kwargs)
        return files + self.save_vocabulary(str(save_directory), kwargs.get("filename_prefix"))

    def save_vocabulary(
        self, save_directory: str, filename_prefix: str | None = None
    ) -> tuple[str]:
        """Write vocab.txt in the original's form: one piece per line in the order of the ids."""
        path = Path(save_directory) / f"{filename_prefix + '-' if filename_prefix else ''}vocab.txt"
        vocabulary = self.backend_tokenizer.get_vocab(with_added_tokens=False)
        pieces = sorted(vocabulary, key=vocabulary.__getitem__)
        path.write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8", newline="\n")
        return (str(path),)


def _as_batch(text: Any, text_pair: Any, *, is_split_into_words: bool) -> tuple[list[Any], bool]:
    """Bring every accepted form of input into one: a list of texts, or of pairs of texts.

    Source: transformers tokenization_utils_tokenizers.py `_encode_plus` (how it tells a batch from
    a single text).
    """
    is_batched = isinstance(text, (list, tuple)) and (
        not is_split_into_words or (len(text) > 0 and isinstance(text[0], (list, tuple)))
    )
    if not is_batched:
        return [(text, text_pair)] if text_pair else [text], False
    if text_pair is None:
        return list(text), True
    if isinstance(text_pair, str):
        raise TypeError("text_pair must be a list or tuple when text is a batch, but it is a str")
    if len(text) != len(text_pair):
        raise ValueError(
            f"a batch of {len(text)} texts with {len(text_pair)} second texts: give one for each"
        )
    return list(zip(text, text_pair, strict=True)), True


def _map_strings(item: Any, normalize: Callable[[str], str]) -> Any:
    """Normalise every string of nested lists and tuples."""
    if isinstance(item, str):
        # Half a surrogate pair cannot be passed to the library. A word with either character is
        # [UNK].
        return _SURROGATES.sub("\ufffd", normalize(item))
    if isinstance(item, Sequence):
        return type(item)(_map_strings(part, normalize) for part in item)  # type: ignore[call-arg]
    raise TypeError(f"a text must be a str, but {type(item).__name__} was given")
