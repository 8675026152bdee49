"""Words of a sentence as tagging tasks have them: punctuation at their ends stands alone."""

from __future__ import annotations

import re

from bert_recipes.tokenization.normalization import is_punctuation


def split_words(text: str) -> list[tuple[int, int]]:
    """Find the words: cut at spaces, then every punctuation character before or behind a word is a word of its own.

    Inside a word it stays: "U.N." is "U.N" and ".", "don't" is one word. (A model reads a word's label off its first piece.)

    Args:
        text: Any text.

    Returns:
        Half-open spans of characters, in order.
    """
    spans = []
    for match in re.finditer(r"\S+", text):
        start, end = match.span()
        first, last = start, end
        while first < end and is_punctuation(text[first]):
            first += 1
        while last > first and is_punctuation(text[last - 1]):
            last -= 1
        spans += [(place, place + 1) for place in range(start, first)]
        spans += [(first, last)] if first < last else []
        spans += [(place, place + 1) for place in range(last, end)]
    return spans
