"""Generated English-looking text: made-up words by Zipf's law in sentences, paragraphs and documents."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bert_recipes.files import written_aside
from speed.synthetic import ZIPF_EXPONENT


NUM_WORDS = 50_000
SENTENCES = (3, 9)  # of a paragraph
PARAGRAPHS = (5, 40)  # of a document
_CONSONANTS, _VOWELS = np.array(list("bcdfghklmnprstvw")), np.array(list("aeiou"))


def make_words(rng: np.random.Generator, count: int) -> np.ndarray:
    """Words of one to four syllables, the more frequent the shorter; str (count,)."""
    sizes = np.clip((np.log10(np.arange(1, count + 1)) * 0.8 + rng.normal(0.3, 0.5, count)).round(), 1, 4)
    consonants = rng.choice(_CONSONANTS, (count, 4))
    vowels = rng.choice(_VOWELS, (count, 4))
    endings = rng.choice(np.array(["", "n", "s", "r", "ng", "t"]), count)
    syllables = np.char.add(consonants, vowels)
    return np.array(["".join(syllables[n, : int(sizes[n])]) + endings[n] for n in range(count)])


def write_text(path: Path, megabytes: float, seed: int = 12345) -> Path:
    """Write a text file: a paragraph a line, a blank line between documents.

    Args:
        path: File to write; one that is there already is kept.
        megabytes: Least size in 10^6 bytes.
        seed: The same seed gives the same text.
    """
    if path.is_file():
        return path
    rng = np.random.default_rng(seed)
    words = make_words(rng, NUM_WORDS)
    cumulative = np.cumsum(np.arange(1, NUM_WORDS + 1, dtype=np.float64) ** -ZIPF_EXPONENT)
    with written_aside(path) as aside, aside.open("w", encoding="utf-8") as file:
        while file.tell() < megabytes * 1e6:
            lines = []
            for _ in range(int(rng.integers(*PARAGRAPHS))):
                sizes = np.clip(rng.lognormal(2.75, 0.55, int(rng.integers(*SENTENCES))), 3, 60).astype(int)
                numbers = np.searchsorted(cumulative, rng.random(int(sizes.sum())) * cumulative[-1])
                cut = np.split(words[numbers], np.cumsum(sizes)[:-1])
                lines.append(" ".join(f"{' '.join(part).capitalize()}." for part in cut))
            file.write("\n".join(lines) + "\n\n")
    return path
