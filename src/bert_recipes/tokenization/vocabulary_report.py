"""What a vocabulary does to text: fertility, [UNK] rate, and what normalising takes away."""

import logging
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bert_recipes.tokenization.bert_tokenizer import OriginalBertTokenizer
from bert_recipes.tokenization.normalization import is_punctuation


logger = logging.getLogger(__name__)

# Marks used with many scripts, mostly as accents, or with none: dropping them is what BERT's uncased models do. All other
# marks (Mn) belong to one script, and most of those write a vowel.
_SHARED_MARK_BLOCKS = (
    (0x0300, 0x036F),
    (0x0483, 0x0487),
    (0x1AB0, 0x1AFF),
    (0x1DC0, 0x1DFF),
    (0x20D0, 0x20FF),
    (0x2DE0, 0x2DFF),
    (0xFE00, 0xFE0F),
    (0xFE20, 0xFE2F),
    (0xE0100, 0xE01EF),
)

# A stray foreign word in an English corpus is worth no warning. Ours.
_WORTH_A_WARNING, _LETTERS_WORTH_A_WARNING = 0.001, 0.005

_NO_LETTERS = bytes(code for code in range(128) if not chr(code).isalpha())


@dataclass(frozen=True, kw_only=True)
class TokenizerReport:
    """Figures about a vocabulary, measured on the words of a text.

    A *word* is what normalising and splitting at spaces gives, punctuation marks left out; a *token* is a word or a
    punctuation mark.
    """

    num_texts: int
    """Texts read: documents, paragraphs or lines, as they were passed."""
    num_characters: int
    """Characters read."""
    num_tokens: int
    """Words and punctuation marks."""
    num_words: int
    """Words, punctuation marks left out."""
    num_distinct_tokens: int
    """Different words and punctuation marks."""
    num_forgotten_tokens: int
    """Occurrences of rare words that were dropped from the count to bound memory; no other figure includes them."""
    vocab_size: int
    """Entries of the vocabulary, special tokens and [unused] slots included."""
    requested_vocab_size: int
    """Entries that were asked for."""
    alphabet_size: int
    """Characters that the vocabulary holds as pieces."""
    dropped_alphabet_size: int
    """Characters that the alphabet limit left out; words with one of them become [UNK]."""
    fertility: float
    """Pieces a word. [UNK] counts as one piece."""
    unk_rate: float
    """Share of the tokens that become [UNK]."""
    deleted_marks: float
    """Share of the characters, spaces left out and counted after decomposition, that normalising drops as marks."""
    deleted_script_marks: dict[str, float] = field(default_factory=dict)
    """Script to the share, as above, of marks that belong to that script alone: vowel signs."""

    def __str__(self) -> str:
        return (
            f"vocabulary: {self.vocab_size:,} entries, alphabet of {self.alphabet_size:,} characters "
            f"({self.dropped_alphabet_size:,} left out by the limit)\n"
            f"read: {self.num_texts:,} texts, {self.num_characters:,} characters, {self.num_words:,} words "
            f"({self.num_distinct_tokens:,} different ones with punctuation)\n"
            f"on this text: {self.fertility:.3f} pieces a word, [UNK] rate {self.unk_rate:.4%}, "
            f"characters dropped as marks {self.deleted_marks:.3%}"
        )


def measure_vocabulary(tokenizer: OriginalBertTokenizer, token_counts: Mapping[str, int]) -> tuple[float, float]:
    """Measure fertility and [UNK] rate, exactly, over counted words.

    Args:
        tokenizer: whose pieces are counted.
        token_counts: words and punctuation marks, as normalised by this tokenizer, with how often they occur.

    Returns:
        Fertility (pieces a word) and [UNK] rate, as `TokenizerReport` defines them. 0.0 where there is no word.
    """
    unknown = (tokenizer.unk_token_id,)
    num_words = num_pieces = num_tokens = num_unknown = 0
    for token, count in token_counts.items():
        ids = tokenizer.text_encoder.words[token]
        num_tokens += count
        num_unknown += count * (ids == unknown)
        if not is_punctuation(token[0]):
            num_words += count
            num_pieces += count * len(ids)
    return num_pieces / max(num_words, 1), num_unknown / max(num_tokens, 1)


class MarkCounter:
    """Counts the characters of a text and the combining marks among them that stripping accents would drop."""

    def __init__(self) -> None:
        self._num_ascii = self._num_ascii_letters = 0
        self._characters: Counter[str] = Counter()

    def add(self, text: str) -> None:
        """Count one text, as it is before normalisation."""
        if text.isascii():
            self._num_ascii += sum(map(len, text.split()))
            self._num_ascii_letters += len(text.encode().translate(None, _NO_LETTERS))
        else:
            self._characters.update(unicodedata.normalize("NFC", "".join(text.split())))

    def shares(self) -> tuple[float, dict[str, float]]:
        """Share of all marks, and by script of those that belong to one script, among all characters but spaces."""
        decomposed: Counter[str] = Counter()
        for character, number in self._characters.items():
            for part in unicodedata.normalize("NFD", character):
                decomposed[part] += number
        total = max(1, self._num_ascii + decomposed.total())
        marks = {mark: n for mark, n in decomposed.items() if unicodedata.category(mark) == "Mn"}
        scripts: Counter[str] = Counter()
        for mark, number in sorted(marks.items()):
            if not _is_shared(mark):
                scripts[_script(mark)] += number
        return sum(marks.values()) / total, {script: number / total for script, number in scripts.items()}

    def changed_letters(self) -> dict[str, float]:
        """Small letter -> share of all letters, of those that lose an accent, the most frequent first."""
        changed: Counter[str] = Counter()
        letters = self._num_ascii_letters
        for character, number in self._characters.items():
            letters += number * character.isalpha()
            if character.isalpha() and any(map(_is_shared, unicodedata.normalize("NFD", character)[1:])):
                changed[character.lower()] += number
        return {letter: number / max(1, letters) for letter, number in changed.most_common()}


def warn_about_deleted_marks(scripts: Mapping[str, float]) -> None:
    """Warn if normalising drops vowel signs.

    Args:
        scripts: script to the share of all characters that are marks of this script.
    """
    worth = {script: share for script, share in scripts.items() if share >= _WORTH_A_WARNING}
    if worth:
        logger.warning(
            "Stripping accents deletes vowel signs and other marks that make words: %s of all characters. Train with strip_accents=False (--strip_accents false) to keep them.",
            _listed(worth.items()),
        )


def warn_about_changed_letters(letters: Mapping[str, float]) -> None:
    """Warn if stripping accents changes letters of the text's own alphabet (`MarkCounter.changed_letters`)."""
    if sum(letters.values()) >= _LETTERS_WORTH_A_WARNING:
        first = ", ".join(f"{letter} to {unicodedata.normalize('NFD', letter)[0]}" for letter in list(letters)[:4])
        logger.warning(
            "Stripping accents changes %.1f%% of the letters (%s). Where these are letters of their own, train with strip_accents=False (--strip_accents false) to keep them.",
            *(100 * sum(letters.values()), first),
        )


def _is_shared(mark: str) -> bool:
    return any(first <= ord(mark) <= last for first, last in _SHARED_MARK_BLOCKS)


def _listed(shares: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{script} {share:.1%}" for script, share in shares)


def _script(mark: str) -> str:
    """Name of a mark's script: the first word of its name; the kana's voicing marks are named differently."""
    if mark in "\u3099\u309a":
        return "Kana"
    return unicodedata.name(mark, "Unnamed").split()[0].capitalize()
