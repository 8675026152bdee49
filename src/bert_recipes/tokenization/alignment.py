"""Positions in the caller's text for tokens that were cut from its normalised form."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from tokenizers import Encoding

from bert_recipes.tokenization.added_tokens import AddedTokens
from bert_recipes.tokenization.normalization import align_normalized_text


Span = tuple[int, int]


class AlignedEncoding:
    """A `tokenizers.Encoding` of normalised text whose character positions are those of the original text.

    It has the attributes and methods of an `Encoding`. The alignment is computed when a position is asked for, not before.
    As in the library, a token's span runs from its first to its last character, without marks that were dropped after it.
    """

    def __init__(
        self, encoding: Encoding, text: Any, normalization: dict[str, bool], kept: AddedTokens | None
    ) -> None:
        """Wrap an encoding.

        Args:
            encoding: the library's encoding of the normalised input.
            text: the caller's input: a string, a list of words, or a pair (tuple or list) of either.
            normalization: keyword arguments of `normalize_text`.
            kept: finds the tokens that were kept whole; None if there are none.
        """
        self._encoding = encoding
        self._text = text
        self._normalization = normalization
        self._kept = kept

    def __getattr__(self, name: str) -> Any:
        """Whatever is not about characters: ids, type ids, masks, tokens, word ids."""
        # Private names are never the library's, and must not be looked for while an unpickled object is still empty.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._encoding, name)

    def __len__(self) -> int:
        return len(self._encoding)

    @cached_property
    def offsets(self) -> list[Span]:
        """For each token the half-open span of characters in its text (or in its word, where words were given)."""
        return [
            span if sequence is None else self._to_original(span, sequence, word)
            for span, sequence, word in zip(
                self._encoding.offsets, self._encoding.sequence_ids, self._encoding.word_ids, strict=True
            )
        ]

    @property
    def overflowing(self) -> list["AlignedEncoding"]:
        """The encodings of the parts that truncation cut off."""
        return [
            AlignedEncoding(encoding, self._text, self._normalization, self._kept)
            for encoding in self._encoding.overflowing
        ]

    def token_to_chars(self, token_index: int) -> Span | None:
        """Span of a token, or None for a special token."""
        return None if self._encoding.sequence_ids[token_index] is None else self.offsets[token_index]

    def word_to_chars(self, word_index: int, sequence_index: int = 0) -> Span | None:
        """Span of a word, or None if no token belongs to it."""
        tokens = self._encoding.word_to_tokens(word_index, sequence_index)
        return None if tokens is None else (self.offsets[tokens[0]][0], self.offsets[tokens[1] - 1][1])

    def char_to_token(self, char_pos: int, sequence_index: int = 0) -> int | None:
        """Index of the token whose span holds a character, or None: a space, or a character that was dropped."""
        for index, (span, sequence) in enumerate(zip(self.offsets, self._encoding.sequence_ids, strict=True)):
            if sequence == sequence_index and span[0] <= char_pos < span[1]:
                return index
        return None

    def char_to_word(self, char_pos: int, sequence_index: int = 0) -> int | None:
        """Index of the word whose span holds a character, or None."""
        token = self.char_to_token(char_pos, sequence_index)
        return None if token is None else self._encoding.word_ids[token]

    def _to_original(self, span: Span, sequence: int, word: int | None) -> Span:
        origins = [origin for origin in self._origins(sequence, word)[span[0] : span[1]] if origin is not None]
        return (min(origins), max(origins) + 1) if origins else (0, 0)

    def _origins(self, sequence: int, word: int | None) -> Sequence[int | None]:
        """Index in the caller's text for each character of the normalised text (of the word, where words were given).

        None: a space beside a token that was kept, which may take it with it and is not made of it.
        """
        text = self._texts[sequence]
        key = (sequence, None if isinstance(text, str) else word)
        if key not in self._alignments:
            string = text if isinstance(text, str) else text[word]
            self._alignments[key] = self._align(string)
        return self._alignments[key]

    @cached_property
    def _texts(self) -> list[Any]:
        # With one sequence, a list is a list of words; with two, the pair.
        return [self._text] if self._encoding.n_sequences == 1 else list(self._text)

    @cached_property
    def _alignments(self) -> dict[tuple[int, int | None], Sequence[int | None]]:
        return {}

    def _align(self, text: str) -> Sequence[int | None]:
        """Mirror of how the tokenizer normalises around kept tokens."""
        if self._kept is None:
            return align_normalized_text(text, **self._normalization)[1]
        origins: list[int | None] = []
        position = 0
        for index, (part, token_id) in enumerate(self._kept.split(text)):
            if index:
                origins.append(None)  # the space that joins the parts
            if token_id is None:
                normalized, local = align_normalized_text(part, **self._normalization)
                aligned = zip(normalized, local, strict=True)
                origins.extend(None if character == " " else position + origin for character, origin in aligned)
            else:
                # Its first character, and the last one for all others: a token's span runs from the one to the other.
                last = position + len(part) - 1
                origins.extend([position, *[last] * (len(self._kept.contents[token_id]) - 1)])
            position += len(part)
        return origins
