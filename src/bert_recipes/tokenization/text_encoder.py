"""Text to ids for bulk work. Without the libraries behind the tokenizer, so that other processes start in no time."""

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from bert_recipes.tokenization.normalization import normalize_text
from bert_recipes.tokenization.wordpiece import WordCache


if TYPE_CHECKING:
    from bert_recipes.tokenization.added_tokens import AddedTokens


@dataclass(frozen=True)
class TextEncoder:
    """What decides about the ids of a text, and nothing else; can be sent to another process.

    Attributes:
        vocabulary: Piece to id.
        unk_token: The piece that stands for a word that cannot be cut.
        lowercase, strip_accents, split_cjk: See `normalize_text`.
        added: Finds the tokens that were added beside the vocabulary; None, and no work, in the usual case that there are none.
        words: Word to piece ids, filled on first use. A word is what splitting a normalised text gives.
    """

    vocabulary: dict[str, int]
    unk_token: str
    lowercase: bool
    strip_accents: bool
    split_cjk: bool
    added: "AddedTokens | None" = None
    words: WordCache = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", WordCache(self.vocabulary, unk_token=self.unk_token))

    def __reduce__(self) -> tuple:
        settings = (self.vocabulary, self.unk_token, self.lowercase, self.strip_accents, self.split_cjk, self.added)
        return type(self), settings

    @property
    def settings(self) -> dict[str, bool]:
        """Those of `normalize_text`."""
        return {"lowercase": self.lowercase, "strip_accents": self.strip_accents, "split_cjk": self.split_cjk}

    def normalize(self, text: str) -> str:
        """The string whose ``.split()`` are the words."""
        return normalize_text(
            text, lowercase=self.lowercase, strip_accents=self.strip_accents, split_cjk=self.split_cjk
        )

    def __call__(self, text: str) -> list[int]:
        """Ids of any string, without [CLS] and [SEP], not truncated; nothing in it is taken for a special token."""
        if self.added is not None:
            return self._cut_around(self.added, text)
        return list(chain.from_iterable(map(self.words.__getitem__, self.normalize(text).split())))

    def _cut_around(self, added: "AddedTokens", text: str) -> list[int]:
        ids: list[int] = []
        for part, token_id in added.split(text):
            if token_id is not None:
                ids.append(token_id)
                continue
            for word in self.normalize(part).split():
                ids += self.words[word]
        return ids
