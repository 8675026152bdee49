"""google-research/bert's tokenization.py, re-implemented plainly in tests/fixtures, and a
vocabulary for it.
"""

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest


ORIGINAL = runpy.run_path(str(Path(__file__).parents[1] / "fixtures" / "original_rules.py"))


@pytest.fixture(scope="session")
def original_words() -> Callable[[str, bool], list[str]]:
    """`BasicTokenizer.tokenize`: (text, do_lower_case) -> words."""
    return ORIGINAL["basic_tokens"]


@pytest.fixture(scope="session")
def original_tokenize() -> Callable[[str, dict[str, int], bool], list[str]]:
    """`FullTokenizer.tokenize`: (text, vocabulary, do_lower_case) -> pieces."""
    return ORIGINAL["tokenize"]


@pytest.fixture(scope="session")
def vocabulary() -> dict[str, int]:
    """A vocabulary that cuts many words of several scripts, so that few of them are [UNK]."""
    characters = [chr(cp) for cp in range(33, 127)]
    characters += [chr(cp) for cp in range(0xC0, 0x250)] + [chr(cp) for cp in range(0x386, 0x3D0)]
    characters += [chr(cp) for cp in range(0x1100, 0x1200)] + [
        chr(cp) for cp in range(0x4E00, 0x4E40)
    ]
    words = ("hello Hello world un ##want ##ed runn ##ing sep SEP mask MASK aa ##aaaa").split()  # noqa: SIM905
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *characters,
        *("##" + c for c in characters),
        *words,
    ]
    return {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
