"""google-research/bert's BasicTokenizer, applied to a whole string at once.

The original works word by word in plain Python. Here every rule is a C-speed pass over the whole
string, which gives the same words (the tests compare the two on random Unicode strings) at some
hundred times the speed:

1. clean: drop U+0000, U+FFFD and control characters, turn whitespace into spaces, put spaces around
   CJK characters;
2. lower-case;
3. decompose (NFD), and drop the combining marks;
4. put spaces around every punctuation character.

The rules run in Python and not in the `tokenizers` library because that library differs from the
original: its tables are those of another Unicode version, it also drops unassigned and private-use
characters, and it lower-cases a Greek capital sigma at the end of a word in another way.
"""

import logging
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial


logger = logging.getLogger(__name__)

# A stray foreign word in an English corpus is worth no warning. Ours.
_MANY_MARKS = 0.001

# The eight blocks of google-research/bert tokenization.py `_is_chinese_char`: Han only. Kana and
# Hangul are written with spaces or left alone. CJK punctuation falls under the punctuation rule.
_CJK_RANGES = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)

# The original counts every ASCII character but letters, digits, spaces and control characters as
# punctuation, though Unicode calls some of them symbols: $ + < = > ^ ` | ~
_ASCII_PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"


def is_punctuation(character: str) -> bool:
    """Return whether the original splits words at this character.

    Source: google-research/bert tokenization.py `_is_punctuation`.
    """
    return character in _ASCII_PUNCTUATION or unicodedata.category(character).startswith("P")


def replace_surrogates(text: str) -> str:
    """Write "?" for half a surrogate pair, which cannot be passed to the library; places stay."""
    return text.encode(errors="replace").decode()


def decompose(characters: Mapping[str, int]) -> Counter[str]:
    """Return the counts of characters after NFD: those of letters, and those of their marks."""
    parts: Counter[str] = Counter()
    for character, number in characters.items():
        for part in unicodedata.normalize("NFD", character):
            parts[part] += number
    return parts


def warn_of_marks(characters: Mapping[str, int], category: str, num_characters: int) -> None:
    """Warn where stripping accents drops many marks: accents of letters, vowel signs.

    Args:
        characters: Counts, decomposed.
        category: Of the characters that are dropped: "Mn", or "M" for all marks.
        num_characters: The characters of the text.
    """
    num_marks = 0
    for character, number in characters.items():
        if unicodedata.category(character).startswith(category):
            num_marks += number
    share = num_marks / max(1, num_characters)
    if share >= _MANY_MARKS:
        logger.warning(
            "Stripping accents drops accents or vowel signs, %.1f%% of the characters. Where they "
            "make letters or words, keep them by strip_accents=False (--strip_accents false).",
            100 * share,
        )


class _Table(dict[int, str | None]):
    """A table for `str.translate` that computes the entry of a code point on its first use."""

    def __init__(self, entry: Callable[[str], str | None]) -> None:
        super().__init__()
        self._entry = entry

    def __missing__(self, code_point: int) -> str | None:
        self[code_point] = self._entry(chr(code_point))
        return self[code_point]


def _clean(character: str, *, split_cjk: bool) -> str | None:
    """Return what the original's cleaning makes of a character; None: nothing.

    Source: google-research/bert tokenization.py `_clean_text`, `_is_whitespace`, `_is_control`,
    `_tokenize_chinese_chars`.
    """
    category = unicodedata.category(character)
    # `isspace` adds U+2028 and U+2029 to the original's space, \t, \n, \r and Zs: it keeps these
    # two while cleaning, but its next step, `str.split`, splits at them.
    if character in "\t\n\r" or (character.isspace() and category.startswith("Z")):
        return " "
    if character in "\x00\ufffd" or category in ("Cc", "Cf"):
        return None
    if split_cjk and _is_cjk(ord(character)):
        return f" {character} "
    return character


def _is_cjk(code_point: int) -> bool:
    return any(first <= code_point <= last for first, last in _CJK_RANGES)


def _split(character: str, *, drop_marks: bool) -> str | None:
    """Return a character with spaces around a punctuation mark; None: it is dropped.

    Source: google-research/bert tokenization.py `_run_split_on_punc`, `_run_strip_accents`.
    """
    if is_punctuation(character):
        return f" {character} "
    if drop_marks and unicodedata.category(character) == "Mn":
        return None
    return character


_CLEANING = {flag: _Table(partial(_clean, split_cjk=flag)) for flag in (False, True)}
_SPLITTING = {flag: _Table(partial(_split, drop_marks=flag)) for flag in (False, True)}


def normalize_text(
    text: str, *, lowercase: bool, strip_accents: bool | None = None, split_cjk: bool = True
) -> str:
    r"""Normalize a text so that ``.split()`` gives the words of the original's BasicTokenizer.

    Args:
        lowercase: whether to lower-case; the original's ``do_lower_case``.
        strip_accents: whether to decompose characters and drop the combining marks. None: where
            ``lowercase`` does, as in the original. In scripts that write vowels as marks (Hindi,
            Thai, ...) dropping them changes the words.
        split_cjk: whether every Han character is a word of its own. The original always does it.

    Returns:
        The words with one or more spaces around them; the only whitespace is U+0020.

    Example:
        >>> normalize_text("H\u00e9llo, World!", lowercase=True).split()
        ['hello', ',', 'world', '!']

    Source: google-research/bert tokenization.py `BasicTokenizer.tokenize`; BERT, Devlin et al.
    2019, section 3.
    """
    text = text.translate(_CLEANING[split_cjk])
    if lowercase:
        text = text.lower()
    if text.isascii():
        # No marks, nothing to decompose. `replace` runs at memory speed where `translate` with
        # strings does not.
        for mark in _ASCII_PUNCTUATION:
            if mark in text:
                text = text.replace(mark, f" {mark} ")
        return text
    drop_marks = lowercase if strip_accents is None else strip_accents
    if drop_marks:
        text = unicodedata.normalize("NFD", text)
    return text.translate(_SPLITTING[drop_marks])


def align_normalized_text(
    text: str, *, lowercase: bool, strip_accents: bool | None = None, split_cjk: bool = True
) -> tuple[str, list[int]]:
    """Normalize a text, and find where each character of the result comes from.

    Character by character, so some twenty times slower than `normalize_text`: for offsets only.

    Returns:
        The string that `normalize_text` returns, and for each of its characters the index of the
        character of ``text`` that it was made from. Spaces that were put in have the index of the
        character they stand beside. Indices need not rise: NFD puts combining marks into a
        canonical order.
    """
    characters, origins = _translate_aligned(text, range(len(text)), _CLEANING[split_cjk])
    if lowercase:
        # The length of a character's result does not depend on its neighbours, as that of a final
        # sigma itself does.
        origins = _repeat(origins, [character.lower() for character in characters])
        characters = characters.lower()
    drop_marks = lowercase if strip_accents is None else strip_accents
    if drop_marks:
        characters, origins = _decompose_aligned(characters, origins)
    return _translate_aligned(characters, origins, _SPLITTING[drop_marks])


def _translate_aligned(text: str, origins: Iterable[int], table: _Table) -> tuple[str, list[int]]:
    """Return ``text.translate(table)`` and its origins."""
    pieces = [table[ord(character)] or "" for character in text]
    return "".join(pieces), _repeat(origins, pieces)


def _repeat(origins: Iterable[int], pieces: Sequence[str]) -> list[int]:
    """Return an origin for each character of the pieces that were made of one character each."""
    repeated: list[int] = []
    for origin, piece in zip(origins, pieces, strict=True):
        repeated += [origin] * len(piece)
    return repeated


def _decompose_aligned(text: str, origins: Iterable[int]) -> tuple[str, list[int]]:
    """Return NFD of a text and its origins: characters are decomposed, runs of marks are sorted.

    Source: The Unicode Standard, section 3.11, definitions D68 (canonical decomposition) and D109
    (canonical order).
    """
    decomposed: list[tuple[str, int]] = []
    marks: list[tuple[str, int]] = []

    def order_of(mark: tuple[str, int]) -> int:
        return unicodedata.combining(mark[0])

    for character, origin in zip(text, origins, strict=True):
        for piece in unicodedata.normalize("NFD", character):
            if unicodedata.combining(piece):
                marks.append((piece, origin))
            else:
                decomposed += sorted(marks, key=order_of)
                decomposed.append((piece, origin))
                marks.clear()
    decomposed += sorted(marks, key=order_of)
    return "".join(piece for piece, _ in decomposed), [origin for _, origin in decomposed]
