"""`OriginalBertTokenizer`: every entry point, offsets, pickling, the stock folder, and where stock
differs.
"""

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, BertTokenizerFast, pipeline

from bert_recipes.tokenization import wordpiece as wordpiece_module
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer


LONG_WORD = "a" * 150
TEXT = "Hello [SEP] h\u00e9llo, unwanted running!"


@pytest.fixture(scope="module")
def tokenizer(vocabulary: dict[str, int]) -> OriginalBertTokenizer:
    return OriginalBertTokenizer(vocab=vocabulary)


@pytest.fixture
def saved(tokenizer: OriginalBertTokenizer, tmp_path: Path) -> Path:
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def test_every_entry_point_gives_the_pieces_of_the_original(
    tokenizer, original_tokenize, vocabulary
) -> None:
    pieces = original_tokenize(TEXT, vocabulary, True)
    ids = [vocabulary[piece] for piece in pieces]
    cls, sep = vocabulary["[CLS]"], vocabulary["[SEP]"]
    assert ids.count(sep) == 0
    assert tokenizer.tokenize(TEXT) == pieces
    assert tokenizer.encode(TEXT) == [cls, *ids, sep]
    assert tokenizer.encode(TEXT, add_special_tokens=False) == ids
    assert tokenizer(TEXT)["input_ids"] == [cls, *ids, sep]
    assert tokenizer([TEXT, "a"])["input_ids"][0] == [cls, *ids, sep]
    assert tokenizer(TEXT, TEXT)["input_ids"] == [cls, *ids, sep, *ids, sep]
    assert tokenizer([TEXT, "a"], ["b", TEXT])["input_ids"][1] == [
        cls,
        vocabulary["a"],
        sep,
        *ids,
        sep,
    ]
    assert tokenizer([("b", TEXT)])["input_ids"] == [[cls, vocabulary["b"], sep, *ids, sep]]
    assert tokenizer(TEXT.split(), is_split_into_words=True)["input_ids"] == [cls, *ids, sep]
    assert tokenizer([TEXT.split()], [["b"]], is_split_into_words=True)["input_ids"] == [
        [cls, *ids, sep, vocabulary["b"], sep]
    ]
    assert tokenizer(text_target=TEXT)["input_ids"] == [cls, *ids, sep]
    assert tokenizer.encode_ids(TEXT) == ids
    padded = tokenizer([TEXT, "a"], padding=True, return_tensors="pt")["input_ids"]
    assert padded[0].tolist() == [cls, *ids, sep]
    assert padded[1].tolist() == [cls, vocabulary["a"], sep] + [vocabulary["[PAD]"]] * (
        len(ids) - 1
    )


def test_empty_texts_have_special_tokens_only(tokenizer, vocabulary) -> None:
    empty = [vocabulary["[CLS]"], vocabulary["[SEP]"]]
    assert tokenizer("")["input_ids"] == tokenizer(" \u200b\n")["input_ids"] == empty
    assert tokenizer([], is_split_into_words=True)["input_ids"] == empty
    assert tokenizer.encode_ids("") == []


@pytest.mark.parametrize("length", [100, 101, 200, 201])
def test_words_of_up_to_200_characters_are_cut(tokenizer, length: int) -> None:
    # Source: google-research/bert tokenization.py `WordpieceTokenizer`,
    # max_input_chars_per_word=200.
    word = "a" * length
    assert (tokenizer.tokenize(word) == ["[UNK]"]) == (length > 200)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode_ids(word)) == tokenizer.tokenize(word)


def test_half_a_surrogate_pair_makes_its_word_unknown(tokenizer) -> None:
    assert tokenizer.tokenize("a b\ud83d a") == ["a", "[UNK]", "a"]
    assert tokenizer.encode_ids("a b\ud83d a") == tokenizer.convert_tokens_to_ids(
        ["a", "[UNK]", "a"]
    )


def test_special_tokens_in_text_are_recognised_on_request(tokenizer) -> None:
    assert tokenizer.tokenize("A [MASK]b", split_special_tokens=False) == ["a", "[MASK]", "b"]
    assert tokenizer.tokenize("A [MASK]b")[:3] == ["a", "[", "mask"]


def test_added_tokens_are_recognised(vocabulary) -> None:
    tokenizer = OriginalBertTokenizer(vocab=vocabulary)
    tokenizer.add_tokens(["<ENT>", "[NEW]"])
    tokenizer.add_tokens(["[DOC]"], special_tokens=True)
    encoded = tokenizer(
        "A<ENT>b [DOC] [NEW]", add_special_tokens=False, return_offsets_mapping=True
    )
    assert encoded.tokens()[:4] == ["a", "<ENT>", "b", "["]  # a special one only on request
    assert encoded.tokens()[-1] == "[NEW]"
    text = "A<ENT>b [DOC] [NEW]"
    assert [text[start:end] for start, end in encoded["offset_mapping"]][:4] == [
        "A",
        "<ENT>",
        "b",
        "[",
    ]
    assert text[slice(*encoded["offset_mapping"][-1])] == "[NEW]"
    assert tokenizer.tokenize("[DOC]", split_special_tokens=False) == ["[DOC]"]


def test_offsets_point_into_the_text_that_was_passed(tokenizer) -> None:
    text = "  H\u00c9llo \u4e00\u4e01 \u200be\u0301a\x07b [MASK]!"
    encoded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    spans = [text[start:end] for start, end in encoded["offset_mapping"]]
    assert encoded.tokens()[:7] == ["hello", "\u4e00", "\u4e01", "e", "##a", "##b", "["]
    assert spans[:7] == ["H\u00c9llo", "\u4e00", "\u4e01", "e", "a", "b", "["]
    assert text[encoded["offset_mapping"][-1][0] :] == "!"


def test_offsets_equal_those_of_the_stock_tokenizer_on_ordinary_text(tokenizer) -> None:
    texts = [
        "Hello  world, don't!",
        "Caf\u00e9 \u00c0 la carte",
        "un\u200bwanted",
        "\u4e00\u4e01 x",
        "x\u0301y",
    ]
    ours = tokenizer(texts, return_offsets_mapping=True)
    stock = tokenizer.stock_tokenizer()(texts, return_offsets_mapping=True)
    assert ours["offset_mapping"] == stock["offset_mapping"]
    for index, text in enumerate(texts):
        for position in range(len(text)):
            assert ours.char_to_token(index, position) == stock.char_to_token(index, position)
            assert ours.char_to_word(index, position) == stock.char_to_word(index, position)
        for token in range(len(ours["input_ids"][index])):
            assert ours.token_to_chars(index, token) == stock.token_to_chars(index, token)
        for word in range(max(filter(None, ours.word_ids(index)), default=0) + 1):
            assert ours.word_to_chars(index, word) == stock.word_to_chars(index, word)
        assert ours.word_ids(index) == stock.word_ids(index)
        assert ours.sequence_ids(index) == stock.sequence_ids(index)


def test_offsets_of_pairs_words_and_overflow(tokenizer) -> None:
    pair = ("\u00c9a  b", "\x00 Hello")
    encoded = tokenizer(*pair, return_offsets_mapping=True, return_tensors="pt")
    assert encoded["offset_mapping"].tolist() == [
        [[0, 0], [0, 1], [1, 2], [4, 5], [0, 0], [2, 7], [0, 0]]
    ]
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
        assert [text[start:end] for start, end in offsets[1:-1]] == tokenizer.convert_ids_to_tokens(
            ids
        )[1:-1]
    assert encoded.encodings[0].overflowing[0].offsets == encoded["offset_mapping"][1]


def test_bad_input_raises_as_in_stock(tokenizer) -> None:
    for wrong in (3, [1, 2], None):
        with pytest.raises((TypeError, ValueError)):
            tokenizer(wrong)
    with pytest.raises(ValueError, match="2 texts with 1 second"):
        tokenizer(["a", "b"], ["c"])


def _encode_in_worker(tokenizer: OriginalBertTokenizer) -> tuple[list[int], list[int], str]:
    return (
        tokenizer.encode_ids(TEXT + LONG_WORD),
        tokenizer(TEXT + LONG_WORD)["input_ids"],
        tokenizer.fingerprint,
    )


def test_pickles_and_copies_tokenise_alike(tokenizer) -> None:
    expected = _encode_in_worker(tokenizer)
    assert _encode_in_worker(pickle.loads(pickle.dumps(tokenizer))) == expected
    assert _encode_in_worker(copy.deepcopy(tokenizer)) == expected
    encoded = tokenizer(TEXT)
    assert pickle.loads(pickle.dumps(encoded))["input_ids"] == encoded["input_ids"]


def test_word_cache_does_not_grow_without_bound(tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wordpiece_module, "_CACHE_CAPACITY", 10)
    cache = pickle.loads(pickle.dumps(tokenizer))
    text = " ".join(f"a{number}" for number in range(100))
    assert cache.encode_ids(text) == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(cache.text_encoder.words) <= 10


def test_fingerprint_depends_on_vocabulary_and_settings_only(
    tokenizer, vocabulary, saved: Path
) -> None:
    swapped = dict(vocabulary)
    swapped["a"], swapped["b"] = swapped["b"], swapped["a"]
    others = [
        OriginalBertTokenizer(vocab=swapped),
        OriginalBertTokenizer(vocab=vocabulary, do_lower_case=False),
        OriginalBertTokenizer(vocab=vocabulary, strip_accents=False),
        OriginalBertTokenizer(vocab=vocabulary, tokenize_chinese_chars=False),
    ]
    assert len({tokenizer.fingerprint, *(other.fingerprint for other in others)}) == 5
    assert load_tokenizer(saved).fingerprint == tokenizer.fingerprint
    assert (
        OriginalBertTokenizer(vocab=vocabulary, strip_accents=True, model_max_length=7).fingerprint
        == tokenizer.fingerprint
    )


# The saved folder


def test_saved_folder_is_stock(saved: Path, tokenizer, vocabulary) -> None:
    assert {path.name for path in saved.iterdir()} == {
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    }
    config = json.loads((saved / "tokenizer_config.json").read_text())
    expected = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "strip_accents": None}
    assert expected.items() <= config.items()
    assert config["tokenize_chinese_chars"] is True
    assert config["model_max_length"] == 512
    assert "split_special_tokens" not in config
    serialized = json.loads((saved / "tokenizer.json").read_text(encoding="utf-8"))
    assert serialized["normalizer"]["type"] == "BertNormalizer"
    assert serialized["pre_tokenizer"]["type"] == "BertPreTokenizer"
    assert (saved / "vocab.txt").read_text(encoding="utf-8").splitlines() == list(vocabulary)


def test_stock_opens_the_folder_and_gives_the_same_ids(saved: Path, tokenizer) -> None:
    stock = AutoTokenizer.from_pretrained(saved)
    assert type(stock) is BertTokenizerFast
    assert len(stock) == len(tokenizer)
    for text in ("Hello World, unwanted running!", "Caf\u00e9 \u4e00\u4e01", "x", ""):
        assert stock(text)["input_ids"] == tokenizer(text)["input_ids"]
        assert stock(text, text)["token_type_ids"] == tokenizer(text, text)["token_type_ids"]
    assert (
        stock.decode(stock("Hello unwanted")["input_ids"], skip_special_tokens=True)
        == "hello unwanted"
    )


def test_fill_mask_pipeline_works_on_the_folder(saved: Path, tokenizer) -> None:
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    torch.manual_seed(0)
    BertForMaskedLM(config).save_pretrained(saved)
    answers = pipeline("fill-mask", model=str(saved), device="cpu")(
        "Hello [MASK], un\u0301wanted.", top_k=3
    )
    assert len(answers) == 3
    assert all(
        answer["sequence"].startswith("hello") and "unwanted" in answer["sequence"]
        for answer in answers
    )


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
    ids=[
        "word of 150 characters",
        "literal special token",
        "final sigma",
        "private use",
        "U+2B820",
    ],
)
def test_stock_loading_differs_from_the_original_here(
    saved: Path,
    vocabulary,
    original_tokenize,
    text: str,
    stock_pieces: list[str],
    original_pieces: list[str],
) -> None:
    stock = AutoTokenizer.from_pretrained(saved)
    assert stock.tokenize(text) == stock_pieces
    assert original_tokenize(text, vocabulary, True) == original_pieces
    assert load_tokenizer(saved).tokenize(text) == original_pieces


def test_tokenizer_json_itself_allows_200_characters(saved: Path) -> None:
    # The file is right for readers that honour it; transformers' class rebuilds the model with the
    # library's 100.
    assert Tokenizer.from_file(str(saved / "tokenizer.json")).encode(LONG_WORD).tokens[1] == "aa"


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
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [str(tokenizer.encode_ids(TEXT)), "[]"]
