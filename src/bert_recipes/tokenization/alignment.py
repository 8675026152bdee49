"""Encodings of normalized text whose character positions are those of the caller's text."""

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any

from tokenizers import Encoding


Span = tuple[int, int]
# From a text, for each character of the normalized text its index in the text; None for a space
# beside an added token.
Align = Callable[[str], Sequence[int | None]]


class AlignedEncoding:
    """Hold a `tokenizers.Encoding` of normalized text, with positions in the caller's text.

    It has the attributes and methods of an `Encoding`. The alignment is computed when a position is
    asked for, not before. As in the library, a token's span runs from its first to its last
    character, without marks that were dropped after it.

    Args:
        encoding: The encoding of the normalized text.
        text: The caller's input: a string, a list of words, or a pair (tuple or list) of either.
        align: Returns the places of a normalized text's characters.
    """

    def __init__(self, encoding: Encoding, text: Any, align: Align) -> None:
        self._encoding = encoding
        self._text = text
        self._align = align

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
        """Return for each token the half-open span of characters in its text.

        Where words were given it is the span in the token's word.
        """
        # With one sequence, a list is a list of words; with two, the pair.
        texts = [self._text] if self._encoding.n_sequences == 1 else self._text
        words = self._encoding.word_ids
        spans = self._encoding.offsets
        align = cache(self._align)
        for token, sequence in enumerate(self._encoding.sequence_ids):
            if sequence is None:
                continue
            text = texts[sequence]
            if not isinstance(text, str):
                text = text[words[token]]
            start, end = spans[token]
            origins = [origin for origin in align(text)[start:end] if origin is not None]
            spans[token] = (min(origins), max(origins) + 1) if origins else (0, 0)
        return spans

    @property
    def overflowing(self) -> list["AlignedEncoding"]:
        """Return the encodings of what truncation cut off."""
        encodings = self._encoding.overflowing
        return [AlignedEncoding(encoding, self._text, self._align) for encoding in encodings]

    def token_to_chars(self, token_index: int) -> Span | None:
        """Return the span of a token, or None for a special token."""
        is_special = self._encoding.sequence_ids[token_index] is None
        return None if is_special else self.offsets[token_index]

    def word_to_chars(self, word_index: int, sequence_index: int = 0) -> Span | None:
        """Return the span of a word, or None if no token belongs to it."""
        tokens = self._encoding.word_to_tokens(word_index, sequence_index)
        if tokens is None:
            return None
        first, end = tokens
        return self.offsets[first][0], self.offsets[end - 1][1]

    def char_to_token(self, char_pos: int, sequence_index: int = 0) -> int | None:
        """Return the index of the token whose span holds a character.

        None: a space, or a character that was dropped.
        """
        for token, sequence in enumerate(self._encoding.sequence_ids):
            start, end = self.offsets[token]
            if sequence == sequence_index and start <= char_pos < end:
                return token
        return None

    def char_to_word(self, char_pos: int, sequence_index: int = 0) -> int | None:
        """Return the index of the word whose span holds a character, or None."""
        token = self.char_to_token(char_pos, sequence_index)
        return None if token is None else self._encoding.word_ids[token]
