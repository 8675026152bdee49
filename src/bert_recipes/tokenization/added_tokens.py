"""Tokens that were added beside a vocabulary, and their places in texts."""

from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer

from bert_recipes.tokenization.normalization import (
    align_normalized_text,
    normalize_text,
    replace_surrogates,
)


class AddedTokens:
    """Find added tokens with the library's own search, so that their flags mean what stock means.

    The settings are those of `normalize_text`; a token that is `normalized` is looked for in such a
    text.
    """

    def __init__(self, tokens: Mapping[int, AddedToken], **settings: Any) -> None:
        self._settings = settings
        ids = sorted(tokens)
        self._contents = {token_id: tokens[token_id].content for token_id in ids}

        # The search numbers the tokens in the order of their ids. Number 0 is the one piece of its
        # model: all that is not an added token.
        self._ids: list[int | None] = [None, *ids]
        self._search = Tokenizer(WordPiece({"": 0}, unk_token="", max_input_chars_per_word=1))
        self._search.normalizer = BertNormalizer(
            clean_text=True,
            handle_chinese_chars=settings["split_cjk"],
            strip_accents=settings["strip_accents"],
            lowercase=settings["lowercase"],
        )
        self._search.add_tokens([tokens[token_id] for token_id in ids])

    def split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Yield the segments of a text in order: a token with its id, or what is between with None.

        Spaces that a token takes with it (lstrip, rstrip) are yielded as text, in which they mean
        nothing.
        """
        encoding = self._search.encode(replace_surrogates(text), add_special_tokens=False)
        position = 0
        for number, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            token_id = self._ids[number]
            if token_id is None:
                continue

            # Spaces around the token are text.
            match = text[start:end]
            start += len(match) - len(match.lstrip())
            token = match.strip() or match

            yield text[position:start], None
            yield token, token_id
            position = start + len(token)

        yield text[position:], None

    def normalize(self, text: str) -> str:
        """Normalize a text around its tokens, which stay as they were added."""
        segments = []
        for segment, token_id in self.split(text):
            if token_id is None:
                segments.append(normalize_text(segment, **self._settings))
            else:
                segments.append(self._contents[token_id])
        return " ".join(segments)

    def align(self, text: str) -> list[int | None]:
        """Return for each character of the normalized text its index in the caller's.

        None: a space, which a token beside it may take with it and is not made of.
        """
        origins: list[int | None] = []
        position = 0
        for number, (segment, token_id) in enumerate(self.split(text)):
            # The space that joins the segments.
            if number > 0:
                origins.append(None)

            if token_id is None:
                characters, places = align_normalized_text(segment, **self._settings)
                for character, place in zip(characters, places, strict=True):
                    origins.append(None if character == " " else position + place)
            else:
                # Its first character, and the last one for all others: a token's span runs from
                # the one to the other.
                last = position + len(segment) - 1
                origins.append(position)
                origins += [last] * (len(self._contents[token_id]) - 1)

            position += len(segment)
        return origins
