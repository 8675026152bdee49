"""The whole-string rules against google-research/bert tokenization.py."""

import json
import random
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from bert_recipes.tokenization.normalization import (
    align_normalized_text,
    is_punctuation,
    normalize_text,
)
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer


# What random code points seldom meet.
_TRAPS = (
    "hello|Hello "
    "World!|unwanted|[SEP]|[MASK]|[UNK]|##ing|don't|3.14|\u03a3|\u03c3\u03a3|\u039f\u03a3 |"
    "\u03a3\u0301|\u0391\u03a3\u2028|\u0391\u03a3\u200b\u0391|\u1fb3|\u1f08|\u0130|I\u0307|\u0131|\u1e9e|"
    "\u00e9|e\u0301|q\u0323\u0307|\u0307\u0323|\u0344|\u01c5|\ufb01|\uac00|\ud7a3|\u1100\u1161|\u4e00|"
    "\u4e2d\u6587|\uf900|\U0002b81f|\U0002b820|\U0002ceaf|\U0002f800|\u3042|\u304c|\u0915\u0941|\u0e01\u0e31|"
    "\u05d0\u05b0|\u0628\u064b|\u200b|\u200d|\ufeff|\u00ad|\u2028|\u2029|\u0085|\x0b|\x1c|\u00a0|\u3000|"
    "\u1680|\u2000|\u202f|\x00|\ufffd|\x7f|\ue000|\uffff|\U0010ffff|\u0378|\u2019|\u3002|\u00bf"
)
_PIECES = [*"abzABZ019 .,-$'[]\t\n\r", "a" * 95, "B" * 101, "x" * 205, *_TRAPS.split("|")]


def random_string(rng: random.Random) -> str:
    """Return ordinary text, traps and code points of all planes, in random shares.

    Surrogates are left out.
    """
    snippets = []
    for _ in range(rng.randrange(1, 30)):
        kind = rng.random()
        if kind < 0.5:
            snippets.append(rng.choice(_PIECES))
        elif kind < 0.6:
            letter = rng.choice("abcdeABCDE\u0391\u03a3\u0410")
            snippets.append(letter * rng.randrange(1, 206) if rng.random() < 0.1 else " ")
        elif kind < 0.8:
            snippets.append(chr(rng.randrange(0x20, 0x3000)))
        else:
            code_point = rng.randrange(0x110000)
            snippets.append(chr(code_point) if not 0xD800 <= code_point < 0xE000 else " ")
    return "".join(snippets)


@pytest.fixture(scope="module", params=[1_000, pytest.param(5_000, marks=pytest.mark.slow)])
def random_strings(request: pytest.FixtureRequest) -> list[str]:
    rng = random.Random(20181011)
    return [random_string(rng) for _ in range(request.param)]


@pytest.fixture(scope="module")
def vectors(shared_data: Path) -> dict:
    return json.loads(
        (shared_data / "reference" / "google_tokenization_vectors.json").read_text(encoding="utf-8")
    )


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_random_unicode_gives_the_words_and_pieces_of_the_original(
    random_strings: list[str],
    vocabulary: dict[str, int],
    original_words: Callable,
    original_pieces: Callable,
    do_lower_case: bool,
) -> None:
    # Source: google-research/bert tokenization.py, all of it.
    tokenizer = OriginalBertTokenizer(vocab=vocabulary, do_lower_case=do_lower_case)
    encoded = tokenizer(random_strings, add_special_tokens=False, verbose=False)["input_ids"]
    counts: Counter[str] = Counter()
    for text, ids in zip(random_strings, encoded, strict=True):
        words = original_words(text, do_lower_case)
        assert normalize_text(text, lowercase=do_lower_case).split() == words, ascii(text)
        expected = [piece for word in words for piece in original_pieces(word, vocabulary)]
        assert tokenizer.convert_ids_to_tokens(ids) == expected, ascii(text)
        assert tokenizer.encode_ids(text) == ids, ascii(text)
        counts.update(expected)
    # The test would be weak if nearly all were [UNK].
    assert counts["[UNK]"] < counts.total() / 2


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_every_code_point_gives_the_words_of_the_original(
    original_words: Callable, do_lower_case: bool
) -> None:
    # Planes 4 to 13 hold no character at all: a sample of them will do.
    sample = [*range(0x34000, 0xE0000, 997), *range(0xE1000, 0x110000, 997)]
    code_points = [*range(0xD800), *range(0xE000, 0x34000), *range(0xE0000, 0xE1000), *sample]
    # Many in one text, as each call of the original costs more than a word.
    for start in range(0, len(code_points), 100):
        characters = [chr(code_point) for code_point in code_points[start : start + 100]]
        text = " ".join(f"A{character}b" for character in characters)
        words = normalize_text(text, lowercase=do_lower_case).split()
        assert words == original_words(text, do_lower_case), ascii(text)


def test_the_original_tests_vectors(vectors: dict) -> None:
    # Source: google-research/bert tokenization_test.py.
    for case in [vectors["basic_chinese"], *vectors["basic_lower"]]:
        assert normalize_text(case["text"], lowercase=True).split() == case["tokens"]
    for case in vectors["basic_no_lower"]:
        assert normalize_text(case["text"], lowercase=False).split() == case["tokens"]


@pytest.mark.parametrize("name", ["full_tokenizer", "wordpiece"])
def test_the_original_tests_pieces_and_ids(vectors: dict, name: str) -> None:
    # The original's test vocabularies lack two special tokens that a Hugging Face tokenizer needs:
    # they follow at the end.
    pieces = [*vectors[name]["vocab"], "[PAD]", "[MASK]"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    # The WordPiece vectors are not lower-cased: a capital X is outside the vocabulary.
    tokenizer = OriginalBertTokenizer(vocab=vocabulary, do_lower_case=name == "full_tokenizer")
    for case in vectors[name].get("cases", [vectors[name]]):
        assert tokenizer.tokenize(case["text"]) == case["tokens"]
        ids = case.get("ids", tokenizer.convert_tokens_to_ids(case["tokens"]))
        assert tokenizer.encode_ids(case["text"]) == ids


def test_the_original_tests_character_classes(vectors: dict) -> None:
    classes = vectors["char_classes"]
    # JSON holds the emoji as a surrogate pair, which json.loads has already joined.
    for character in classes["whitespace_true"]:
        assert normalize_text(f"a{character}b", lowercase=False).split() == ["a", "b"]
    for character in [*classes["whitespace_false"], *classes["control_false"]]:
        assert character.isspace() or character in normalize_text(f"a{character}b", lowercase=False)
    for character in classes["control_true"]:
        assert normalize_text(f"a{character}b", lowercase=False) == "ab"
    assert all(is_punctuation(character) for character in classes["punctuation_true"])
    assert not any(is_punctuation(character) for character in classes["punctuation_false"])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"lowercase": True}, ["ecole", "\u4e2d", "\u6587", "x"]),
        ({"lowercase": True, "strip_accents": False}, ["\u00e9cole", "\u4e2d", "\u6587", "x"]),
        ({"lowercase": False}, ["\u00c9cole", "\u4e2d", "\u6587", "X"]),
        ({"lowercase": False, "strip_accents": True}, ["Ecole", "\u4e2d", "\u6587", "X"]),
        ({"lowercase": True, "split_cjk": False}, ["ecole", "\u4e2d\u6587x"]),
    ],
)
def test_lower_case_accents_and_cjk_are_free_of_each_other(
    settings: dict[str, bool], expected: list[str]
) -> None:
    assert normalize_text("\u00c9cole \u4e2d\u6587X", **settings).split() == expected


@pytest.mark.parametrize(
    "settings",
    [
        {"lowercase": True},
        {"lowercase": False},
        {"lowercase": False, "strip_accents": True},
        {"lowercase": True, "strip_accents": False},
        {"lowercase": True, "split_cjk": False},
    ],
)
def test_alignment_gives_the_same_text_and_where_it_comes_from(
    random_strings: list[str], settings: dict
) -> None:
    for text in random_strings:
        normalized, origins = align_normalized_text(text, **settings)
        assert normalized == normalize_text(text, **settings), ascii(text)
        for character, origin in zip(normalized, origins, strict=True):
            source = text[origin].lower() if settings["lowercase"] else text[origin]
            final_sigma = "\u03c2" if source == "\u03c3" else ""
            possible = f" {unicodedata.normalize('NFD', source)}{source}{final_sigma}"
            assert character in possible, ascii(text)
