"""Scripts that part no words by spaces: Han, kana, Thai, Lao, Tibetan, Burmese and Khmer; and the characters of a text."""

import re
import sys
import unicodedata
from functools import cache


_RANGES = (
    (0x0E00, 0x0FFF),  # Thai, Lao, Tibetan
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x3005, 0x3007),  # marks of repetition, zero
    (0x3040, 0x30FF),  # kana
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9D),  # halfwidth kana
    (0x20000, 0x3FFFF),
)
_UNSPACED = "".join(f"{chr(first)}-{chr(last)}" for first, last in _RANGES)
_UNSPACED_CHARACTER = re.compile(f"[{_UNSPACED}]")


@cache
def _marks() -> str:
    """Return the marks of all scripts, which belong to the character before them."""
    return "".join(chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] == "M")


@cache
def _pieces() -> re.Pattern[str]:
    marks = re.escape(_marks())
    return re.compile(f"[{_UNSPACED}][{marks}]*|[^{_UNSPACED}]+")


def is_unspaced(text: str) -> bool:
    """Tell whether most of a text is in scripts without spaces between words.

    Example:
        >>> is_unspaced("北岛在哪里?"), is_unspaced("Beijing (北京)")
        (True, False)
    """
    if text.isascii():
        return False
    num_unspaced = len(_UNSPACED_CHARACTER.findall(text))
    return 2 * num_unspaced > len("".join(text.split()))


def split_unspaced(text: str) -> list[tuple[int, int]]:
    """Return where the parts of a stretch without white space start and end: each character of these scripts, and what is between.

    A character goes with the marks above and below it.

    Example:
        >>> [("iPhone有线").__getitem__(slice(*part)) for part in split_unspaced("iPhone有线")]
        ['iPhone', '有', '线']
    """
    if text.isascii():
        return [(0, len(text))] if text else []
    return [piece.span() for piece in _pieces().finditer(text)]
