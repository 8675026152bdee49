"""google-research/bert's tokenization.py, plainly in tests/fixtures, and a vocabulary for it."""

from collections.abc import Callable

import original_rules
import pytest


@pytest.fixture(scope="session")
def original_words() -> Callable[[str, bool], list[str]]:
    """`BasicTokenizer.tokenize`: (text, do_lower_case) -> words."""
    return original_rules.basic_tokens


@pytest.fixture(scope="session")
def original_pieces() -> Callable[[str, dict[str, int]], list[str]]:
    """`WordpieceTokenizer.tokenize`: (word, vocabulary) -> pieces."""
    return original_rules.word_pieces


@pytest.fixture(scope="session")
def original_tokenize() -> Callable[[str, dict[str, int], bool], list[str]]:
    """`FullTokenizer.tokenize`: (text, vocabulary, do_lower_case) -> pieces."""
    return original_rules.tokenize


@pytest.fixture(scope="session")
def vocabulary() -> dict[str, int]:
    """A vocabulary that cuts many words of several scripts, so that few of them are [UNK]."""
    ranges = ((33, 127), (0xC0, 0x250), (0x386, 0x3D0), (0x1100, 0x1200), (0x4E00, 0x4E40))
    characters = [chr(code_point) for start, end in ranges for code_point in range(start, end)]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters]
    pieces += [f"##{character}" for character in characters]
    pieces += ["hello", "Hello", "world", "un", "##want", "##ed", "runn", "##ing", "aa", "##aaaa"]
    pieces += ["sep", "SEP", "mask", "MASK"]
    return {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
