"""google-research/bert's tokenization.py, re-implemented plainly: word by word, character by character."""

import unicodedata
from collections.abc import Callable

import pytest


def _is_whitespace(char: str) -> bool:
    return char in " \t\n\r" or unicodedata.category(char) == "Zs"


def _is_control(char: str) -> bool:
    return char not in "\t\n\r" and unicodedata.category(char) in ("Cc", "Cf")


def _is_punctuation(char: str) -> bool:
    cp = ord(char)
    ascii_symbol = 33 <= cp <= 47 or 58 <= cp <= 64 or 91 <= cp <= 96 or 123 <= cp <= 126
    return ascii_symbol or unicodedata.category(char).startswith("P")


def _is_chinese(char: str) -> bool:
    cp = ord(char)
    return (
        0x4E00 <= cp <= 0x9FFF
        or 0x3400 <= cp <= 0x4DBF
        or 0x20000 <= cp <= 0x2A6DF
        or 0x2A700 <= cp <= 0x2B73F
        or 0x2B740 <= cp <= 0x2B81F
        or 0x2B820 <= cp <= 0x2CEAF
        or 0xF900 <= cp <= 0xFAFF
        or 0x2F800 <= cp <= 0x2FA1F
    )


def _clean(text: str) -> str:
    output = []
    for char in text:
        if ord(char) in (0, 0xFFFD) or _is_control(char):
            continue
        output.append(" " if _is_whitespace(char) else char)
    return "".join(output)


def _split_on_punctuation(word: str) -> list[str]:
    output: list[list[str]] = []
    start_new_word = True
    for char in word:
        if _is_punctuation(char):
            output.append([char])
            start_new_word = True
        else:
            if start_new_word:
                output.append([])
            start_new_word = False
            output[-1].append(char)
    return ["".join(part) for part in output]


def basic_tokenize(text: str, do_lower_case: bool) -> list[str]:
    text = "".join(f" {char} " if _is_chinese(char) else char for char in _clean(text))
    words: list[str] = []
    for word in text.strip().split():
        if do_lower_case:
            decomposed = unicodedata.normalize("NFD", word.lower())
            word = "".join(char for char in decomposed if unicodedata.category(char) != "Mn")
        words.extend(_split_on_punctuation(word))
    return " ".join(words).strip().split()


def wordpiece_tokenize(word: str, vocabulary: dict[str, int]) -> list[str]:
    if len(word) > 200:
        return ["[UNK]"]
    pieces = []
    start = 0
    while start < len(word):
        end = len(word)
        while start < end:
            piece = ("##" if start > 0 else "") + word[start:end]
            if piece in vocabulary:
                break
            end -= 1
        else:
            return ["[UNK]"]
        pieces.append(piece)
        start = end
    return pieces


@pytest.fixture(scope="session")
def original_words() -> Callable[[str, bool], list[str]]:
    """`BasicTokenizer.tokenize`: (text, do_lower_case) -> words."""
    return basic_tokenize


@pytest.fixture(scope="session")
def original_tokenize() -> Callable[[str, dict[str, int], bool], list[str]]:
    """`FullTokenizer.tokenize`: (text, vocabulary, do_lower_case) -> pieces."""

    def tokenize(text: str, vocabulary: dict[str, int], do_lower_case: bool) -> list[str]:
        words = basic_tokenize(text, do_lower_case)
        return [piece for word in words for piece in wordpiece_tokenize(word, vocabulary)]

    return tokenize


@pytest.fixture(scope="session")
def vocabulary() -> dict[str, int]:
    """A vocabulary that cuts many words of several scripts, so that few of them are [UNK]."""
    characters = [chr(cp) for cp in range(33, 127)]
    characters += [chr(cp) for cp in range(0xC0, 0x250)] + [chr(cp) for cp in range(0x386, 0x3D0)]
    characters += [chr(cp) for cp in range(0x1100, 0x1200)] + [chr(cp) for cp in range(0x4E00, 0x4E40)]
    words = [
        "hello",
        "Hello",
        "world",
        "un",
        "##want",
        "##ed",
        "runn",
        "##ing",
        "sep",
        "SEP",
        "mask",
        "MASK",
        "aa",
        "##aaaa",
    ]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters, *("##" + c for c in characters), *words]
    return {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
