"""Tokens that somebody added beside the vocabulary: found in texts as the stock tokenizer finds them."""

from collections.abc import Iterator, Sequence

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer


class AddedTokens:
    """Finds added tokens with the library's own search: their flags (single_word, normalized, ...) mean what they mean in stock.

    Args:
        tokens: Id and token, in the order of the ids.
        lowercase, strip_accents, split_cjk: See `normalize_text`; a token that is `normalized` is looked for in such a text.
    """

    def __init__(
        self, tokens: Sequence[tuple[int, AddedToken]], *, lowercase: bool, strip_accents: bool, split_cjk: bool
    ) -> None:
        """Set the search up: a tokenizer that knows nothing else."""
        self.contents = {token_id: token.content for token_id, token in tokens}
        # Number 0 is the one piece of the model: all that is no added token.
        self._ids: list[int | None] = [None, *self.contents]
        self._search = Tokenizer(WordPiece({"": 0}, unk_token="", max_input_chars_per_word=1))
        self._search.normalizer = BertNormalizer(
            clean_text=True, handle_chinese_chars=split_cjk, strip_accents=strip_accents, lowercase=lowercase
        )
        self._search.add_tokens([token for _, token in tokens])

    def split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Yield the parts of a text, one behind the other: a token with its id, or what stands between with None.

        Spaces that a token takes with it (lstrip, rstrip) are yielded as text, in which they mean nothing.
        """
        # Half a surrogate pair cannot be passed to the library; it becomes "?", so that places stay.
        encoding = self._search.encode(text.encode(errors="replace").decode(), add_special_tokens=False)
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
