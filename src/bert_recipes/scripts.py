"""Scripts of the world: those without spaces between words, and those that no vocabulary knows."""

import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
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
UNSPACED_CHARACTER = re.compile(f"[{_UNSPACED}]")


@cache
def _marks() -> str:
    """Return the marks of all scripts, which belong to the character before them."""
    return "".join(
        chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] == "M"
    )


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
    num_unspaced = len(UNSPACED_CHARACTER.findall(text))
    return 2 * num_unspaced > len("".join(text.split()))


def split_unspaced(text: str) -> list[tuple[int, int]]:
    """Return the places of the words of a stretch without white space, start and end.

    A word is a character of these scripts, with the marks above and below it, or what stands
    between them.

    Example:
        >>> split_unspaced("iPhone有线")
        [(0, 6), (6, 7), (7, 8)]
    """
    if text.isascii():
        return [(0, len(text))] if text else []
    return [piece.span() for piece in _pieces().finditer(text)]


# Ideographic and half-width full stop, full-width ! and ?: no space follows them.
CJK_TERMINATORS = "\u3002\uff61\uff01\uff1f"
# Full stops that stand for nothing else; a space follows, but is often forgotten. Danda and double
# danda, Armenian, Ethiopic (and its question mark), Tibetan, Burmese, Khmer, Mongolian, Ol Chiki,
# Meetei.
OWN_STOPS = (
    "\u0964\u0965\u0589\u1362\u1367\u1368\u0f0d\u0f0e\u104b\u17d4\u17d5\u1803\u1c7e\u1c7f\uabeb"
)
_ENDS_OF_SENTENCES = f"{CJK_TERMINATORS}{OWN_STOPS}\uff0e!?."
# A stretch of more characters is no single word of these scripts. Ours.
_MOST_CHARACTERS = 8


def are_unspaced_sentences(stretches: Sequence[str]) -> bool:
    """Tell whether most stretches without white space are sentences of these scripts, not words.

    Example:
        >>> are_unspaced_sentences(["我去北京。", "林夏今天在奥斯陆工作"])
        True
        >>> are_unspaced_sentences(["我", "去", "北京", "。"])
        False
    """
    num_sentences = 0
    for stretch in stretches:
        num_pieces = len(split_unspaced(stretch))
        is_ended = num_pieces > 1 and stretch[-1] in _ENDS_OF_SENTENCES
        if is_ended or num_pieces > _MOST_CHARACTERS:
            num_sentences += 1
    return 2 * num_sentences > len(stretches)


# A vocabulary leaves a word in a thousand of its own language unknown, nearly all words of another
# script. Ours.
MOST_UNKNOWN = 0.05
# Letters looked at to name the script of a text.
_MOST_LETTERS = 200


@cache
def _script_of_letter(letter: str) -> str:
    # Unicode's names begin with the script: "THAI CHARACTER KO KAI", "CYRILLIC SMALL LETTER A",
    # "CJK UNIFIED IDEOGRAPH-4E00".
    name = unicodedata.name(letter, "Unnamed").split()[0]
    return "Han" if name == "CJK" else name.capitalize()


def name_script(text: str) -> str:
    """Return the script of most letters at the start of a text, by its name in Unicode.

    It is "no letters" where there are none.

    Example:
        >>> name_script("Добрий день"), name_script("2 + 2")
        ('Cyrillic', 'no letters')
    """
    counts = Counter(
        _script_of_letter(character) for character in text[:_MOST_LETTERS] if character.isalpha()
    )
    return counts.most_common(1)[0][0] if counts else "no letters"


def describe_unknown(unknown: Mapping[str, int], num_tokens: int) -> str | None:
    """Return one sentence about the tokens that are [UNK]; None where they are too few to say so.

    Args:
        unknown: Script of the text (`name_script`) -> tokens that are [UNK].
        num_tokens: All tokens, these among them.
    """
    share = sum(unknown.values()) / max(num_tokens, 1)
    if share <= MOST_UNKNOWN:
        return None
    script = max(unknown, key=lambda name: unknown[name])
    return (
        f"{share:.1%} of the tokens are [UNK], an unknown word, of which a model learns "
        f"nothing; most are in text with script {script}"
    )
