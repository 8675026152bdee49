"""How often each word stands in texts, in memory that does not grow without end."""

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tqdm import tqdm

from bert_recipes.tokenization.normalization import normalize_text
from bert_recipes.tokenization.vocabulary_report import MarkCounter


logger = logging.getLogger(__name__)

# Different words kept in memory, some 1.5 GB. Beyond, the rarest are forgotten and the report says how many.
_MAX_DISTINCT_TOKENS = 10_000_000


@dataclass
class WordCounts:
    """What one pass over texts finds.

    Attributes:
        tokens: Words and punctuation marks, normalised, with how often they stand there.
        marks: Combining marks, where they are dropped.
        num_texts, num_characters: Of the texts.
        num_forgotten: Occurrences of words that were too many and too rare to be kept.
    """

    tokens: Counter[str] = field(default_factory=Counter)
    marks: MarkCounter = field(default_factory=MarkCounter)
    num_texts: int = 0
    num_characters: int = 0
    num_forgotten: int = 0


def count_words(
    texts: Iterable[str], *, lowercase: bool, strip_accents: bool, split_cjk: bool, show_progress: bool = True
) -> WordCounts:
    """Count the words of texts, in one pass.

    Args:
        texts: In pieces of any size; spaces and line ends part words.
        lowercase: See `normalize_text`.
        strip_accents: As well.
        split_cjk: As well.
        show_progress: Whether to draw a progress bar on stderr.
    """
    counts = WordCounts()
    for text in tqdm(texts, desc="Counting words", unit=" texts", unit_scale=True, disable=not show_progress):
        counts.num_texts += 1
        counts.num_characters += len(text)
        normalized = normalize_text(text, lowercase=lowercase, strip_accents=strip_accents, split_cjk=split_cjk)
        counts.tokens.update(normalized.split())
        if strip_accents:
            counts.marks.add(text)
        if len(counts.tokens) > _MAX_DISTINCT_TOKENS:
            _forget_rarest(counts)
    return counts


def _forget_rarest(counts: WordCounts) -> None:
    """Drop the rarest words until half of the room is free."""
    threshold = 0
    while len(counts.tokens) > _MAX_DISTINCT_TOKENS // 2:
        threshold += 1
        rare = [token for token, number in counts.tokens.items() if number <= threshold]
        counts.num_forgotten += sum(counts.tokens.pop(token) for token in rare)
    logger.warning(
        "More than %d different words: those seen up to %d times so far are forgotten (%d occurrences in all).",
        _MAX_DISTINCT_TOKENS,
        threshold,
        counts.num_forgotten,
    )
