"""`OriginalBertTokenizer`: entry points, offsets, pickles, saved folders, where stock differs."""

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer, BertTokenizerFast

from bert_recipes.tokenization import wordpiece as wordpiece_module
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer


LONG_WORD = "a" * 150
TEXT = "Hello [SEP] h\u00e9llo, unwanted running!"


@pytest.fixture(scope="module")
def tokenizer(vocabulary: dict[str, int]) -> OriginalBertTokenizer:
    return OriginalBertTokenizer(vocab=vocabulary)


@pytest.fixture(scope="module")
def saved(tokenizer: OriginalBertTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    tokenizer.save_pretrained(folder)
    return folder


def test_every_entry_point_gives_the_pieces_of_the_original(
    tokenizer, original_tokenize, vocabulary
) -> None:
    pieces = original_tokenize(TEXT, vocabulary, True)
    ids = [vocabulary[piece] for piece in pieces]
    cls, sep, pad, a, b = (vocabulary[piece] for piece in ("[CLS]", "[SEP]", "[PAD]", "a", "b"))
    alone = [cls, *ids, sep]
    assert sep not in ids
    assert tokenizer.tokenize(TEXT) == pieces
    assert tokenizer.encode_ids(TEXT) == ids
    assert tokenizer.encode(TEXT, add_special_tokens=False) == ids
    assert tokenizer.encode(TEXT) == alone
    assert tokenizer(text_target=TEXT)["input_ids"] == alone
    in_words = {"is_split_into_words": True}
    for texts, settings, expected in [
        ([TEXT], {}, alone),
        ([[TEXT, "a"]], {}, [alone, [cls, a, sep]]),
        ([TEXT, TEXT], {}, [*alone, *ids, sep]),
        ([["b", "a"], ["b", TEXT]], {}, [[cls, b, sep, b, sep], [cls, a, sep, *ids, sep]]),
        ([[("b", TEXT)]], {}, [[cls, b, sep, *ids, sep]]),
        ([TEXT.split()], in_words, alone),
        ([[TEXT.split()], [["b"]]], in_words, [[*alone, b, sep]]),
    ]:
        assert tokenizer(*texts, **settings)["input_ids"] == expected
    padded = tokenizer([TEXT, "a"], padding=True, return_tensors="pt")["input_ids"]
    assert padded.tolist() == [alone, [cls, a, sep] + [pad] * (len(ids) - 1)]


def test_empty_texts_have_special_tokens_only(tokenizer, vocabulary) -> None:
    empty = [vocabulary["[CLS]"], vocabulary["[SEP]"]]
    assert tokenizer("")["input_ids"] == tokenizer(" \u200b\n")["input_ids"] == empty
    assert tokenizer([], is_split_into_words=True)["input_ids"] == empty
    assert tokenizer.encode_ids("") == []


@pytest.mark.parametrize("length", [101, 200, 201])
def test_words_of_up_to_200_characters_are_cut(tokenizer, length: int) -> None:
    # Source: google-research/bert tokenization.py `WordpieceTokenizer`,
    # max_input_chars_per_word=200.
    pieces = tokenizer.tokenize("a" * length)
    assert (pieces == ["[UNK]"]) == (length > 200)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode_ids("a" * length)) == pieces


def test_half_a_surrogate_pair_makes_its_word_unknown(tokenizer) -> None:
    pieces = ["a", "[UNK]", "a"]
    assert tokenizer.tokenize("a b\ud83d a") == pieces
    assert tokenizer.encode_ids("a b\ud83d a") == tokenizer.convert_tokens_to_ids(pieces)


def test_special_tokens_in_text_are_recognised_on_request(vocabulary) -> None:
    tokenizer = OriginalBertTokenizer(vocab=vocabulary)
    tokenizer.add_tokens(["[DOC]"], special_tokens=True)
    assert tokenizer.tokenize("A [MASK]b[DOC]")[:3] == ["a", "[", "mask"]
    on_request = tokenizer.tokenize("A [MASK]b[DOC]", split_special_tokens=False)
    assert on_request == ["a", "[MASK]", "b", "[DOC]"]


# Offsets


def test_offsets_point_into_the_text_that_was_passed(tokenizer) -> None:
    text = "  H\u00c9llo \u4e00\u4e01 \u200be\u0301a\x07b [MASK]!"
    encoded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    spans = [text[start:end] for start, end in encoded["offset_mapping"]]
    assert encoded.tokens()[:7] == ["hello", "\u4e00", "\u4e01", "e", "##a", "##b", "["]
    assert spans[:7] == ["H\u00c9llo", "\u4e00", "\u4e01", "e", "a", "b", "["]
    assert spans[-1] == "!"


def test_offsets_equal_those_of_the_stock_tokenizer_on_ordinary_text(tokenizer) -> None:
    texts = ["Hello  world, don't!", "Caf\u00e9 \u00c0 la carte", "un\u200bwanted"]
    texts += ["\u4e00\u4e01 x", "x\u0301y"]
    ours = tokenizer(texts, return_offsets_mapping=True)
    stock = tokenizer.stock_tokenizer()(texts, return_offsets_mapping=True)
    assert ours["offset_mapping"] == stock["offset_mapping"]
    for row, text in enumerate(texts):
        word_ids = ours.word_ids(row)
        assert word_ids == stock.word_ids(row)
        assert ours.sequence_ids(row) == stock.sequence_ids(row)
        places = {
            "char_to_token": range(len(text)),
            "char_to_word": range(len(text)),
            "token_to_chars": range(len(word_ids)),
            "word_to_chars": {word for word in word_ids if word is not None},
        }
        for method, numbers in places.items():
            for number in numbers:
                assert getattr(ours, method)(row, number) == getattr(stock, method)(row, number)


def test_offsets_of_pairs_words_and_overflow(tokenizer) -> None:
    pair = ("\u00c9a  b", "\x00 Hello")
    encoded = tokenizer(*pair, return_offsets_mapping=True, return_tensors="pt")
    spans = [[0, 0], [0, 1], [1, 2], [4, 5], [0, 0], [2, 7], [0, 0]]
    assert encoded["offset_mapping"].tolist() == [spans]
    assert encoded.char_to_token(2, sequence_index=1) == 5

    words = ["\x00Hello", "A\u0301,b"]
    encoded = tokenizer(words, is_split_into_words=True, return_offsets_mapping=True)
    assert encoded["offset_mapping"] == [(0, 0), (1, 6), (0, 1), (2, 3), (3, 4), (0, 0)]
    assert encoded.word_ids() == [None, 0, 1, 1, 1, None]

    text = "\x00a \x00b \x00a \x00b \x00a \x00b"
    encoded = tokenizer(
        text,
        truncation=True,
        max_length=4,
        stride=1,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    assert encoded["overflow_to_sample_mapping"] == [0] * 5
    for ids, offsets in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
        pieces = tokenizer.convert_ids_to_tokens(ids)
        assert [text[start:end] for start, end in offsets[1:-1]] == pieces[1:-1]
    assert encoded.encodings[0].overflowing[0].offsets == encoded["offset_mapping"][1]


def test_bad_input_raises_as_in_stock(tokenizer) -> None:
    for value in (3, [1, 2], None):
        with pytest.raises((TypeError, ValueError)):
            tokenizer(value)
    with pytest.raises(ValueError, match="2 texts with 1 second"):
        tokenizer(["a", "b"], ["c"])


# Other processes


def test_pickles_and_copies_tokenise_alike(tokenizer) -> None:
    text = TEXT + LONG_WORD
    encoded = tokenizer(text)
    for twin in (pickle.loads(pickle.dumps(tokenizer)), copy.deepcopy(tokenizer)):
        assert twin.encode_ids(text) == tokenizer.encode_ids(text)
        assert twin(text)["input_ids"] == encoded["input_ids"]
        assert twin.fingerprint == tokenizer.fingerprint
    assert pickle.loads(pickle.dumps(encoded))["input_ids"] == encoded["input_ids"]


def test_word_cache_does_not_grow_without_bound(tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wordpiece_module, "_CACHE_CAPACITY", 10)
    twin = pickle.loads(pickle.dumps(tokenizer))
    text = " ".join(f"a{number}" for number in range(100))
    assert twin.encode_ids(text) == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(twin.text_encoder.words) <= 10


def test_fingerprint_depends_on_vocabulary_and_settings_only(
    tokenizer, vocabulary, saved: Path
) -> None:
    swapped = {**vocabulary, "a": vocabulary["b"], "b": vocabulary["a"]}
    different = [
        OriginalBertTokenizer(vocab=swapped),
        OriginalBertTokenizer(vocab=vocabulary, do_lower_case=False),
        OriginalBertTokenizer(vocab=vocabulary, strip_accents=False),
        OriginalBertTokenizer(vocab=vocabulary, tokenize_chinese_chars=False),
    ]
    assert len({tokenizer.fingerprint, *(twin.fingerprint for twin in different)}) == 5
    same = OriginalBertTokenizer(vocab=vocabulary, strip_accents=True, model_max_length=7)
    assert same.fingerprint == load_tokenizer(saved).fingerprint == tokenizer.fingerprint


def test_a_process_that_only_encodes_starts_without_the_libraries(
    tokenizer, tmp_path: Path
) -> None:
    file = tmp_path / "encoder.pickle"
    file.write_bytes(pickle.dumps(tokenizer.text_encoder))
    program = (
        "import pickle, sys, bert_recipes.data.prepare; from pathlib import Path\n"
        f"print(pickle.loads(Path({str(file)!r}).read_bytes())({TEXT!r}))\n"
        "print([name for name in ('torch', 'transformers', 'tokenizers') if name in sys.modules])"
    )
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert process.stdout.splitlines() == [str(tokenizer.encode_ids(TEXT)), "[]"]


# The saved folder


def test_saved_folder_is_stock(saved: Path, vocabulary) -> None:
    names = {"tokenizer.json", "tokenizer_config.json", "vocab.txt"}
    assert {path.name for path in saved.iterdir()} == names
    config = json.loads((saved / "tokenizer_config.json").read_text())
    expected = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": True,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "model_max_length": 512,
    }
    assert expected.items() <= config.items()
    assert "split_special_tokens" not in config
    serialized = json.loads((saved / "tokenizer.json").read_text(encoding="utf-8"))
    assert serialized["normalizer"]["type"] == "BertNormalizer"
    assert serialized["pre_tokenizer"]["type"] == "BertPreTokenizer"
    assert (saved / "vocab.txt").read_text(encoding="utf-8").splitlines() == list(vocabulary)
    # The file is right for readers that honour it; transformers' class rebuilds the model with the
    # library's 100.
    assert Tokenizer.from_file(str(saved / "tokenizer.json")).encode(LONG_WORD).tokens[1] == "aa"


def test_stock_opens_the_folder_and_gives_the_same_ids(saved: Path, tokenizer) -> None:
    stock = AutoTokenizer.from_pretrained(saved)
    assert type(stock) is BertTokenizerFast
    assert len(stock) == len(tokenizer)
    for text in ("Hello World, unwanted running!", "Caf\u00e9 \u4e00\u4e01", "x", ""):
        assert dict(stock(text, text)) == dict(tokenizer(text, text))
    assert stock.decode(tokenizer("Hello unwanted")["input_ids"][1:-1]) == "hello unwanted"


# Where stock loading differs from the original; tokenizer/README.md has the same list.


@pytest.mark.parametrize(
    ("text", "stock_pieces", "original_pieces"),
    [
        (LONG_WORD, ["[UNK]"], ["aa"] + ["##aaaa"] * 37),
        ("a [SEP] b", ["a", "[SEP]", "b"], ["a", "[", "sep", "]", "b"]),
        ("\u0391\u03a3 b", ["\u03b1", "##\u03c3", "b"], ["\u03b1", "##\u03c2", "b"]),
        ("a\ue000b", ["a", "##b"], ["[UNK]"]),
        ("a\U0002b820b", ["[UNK]"], ["a", "[UNK]", "b"]),
    ],
    ids=["150 characters", "literal special token", "final sigma", "private use", "U+2B820"],
)
def test_stock_loading_differs_from_the_original_here(
    saved: Path, vocabulary, original_tokenize, text, stock_pieces, original_pieces
) -> None:
    assert AutoTokenizer.from_pretrained(saved).tokenize(text) == stock_pieces
    assert original_tokenize(text, vocabulary, True) == original_pieces
    assert load_tokenizer(saved).tokenize(text) == original_pieces
