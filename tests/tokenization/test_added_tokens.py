"""Tokens that were added beside the vocabulary: recognised in texts as stock recognises them, on
every road.
"""

import json
import pickle
import random
import string
from pathlib import Path

import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer, BertTokenizer

from bert_recipes.errors import InputError
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.tokenization.tokenizer import SPECIAL_TOKENS


PIECES = [
    *SPECIAL_TOKENS,
    "[unused1]",
    *string.ascii_letters,
    *(f"##{letter}" for letter in string.ascii_letters),
]
PIECES += [*"<>/[],.-_1", "##1", "##_", "\u4e2d", "\u6587", "ent", "foo"]
PLAIN = ["<e1>", "</e1>", "<E2>", "[unused1]", "\u00e9t\u00e9", "\u4e2d\u6587", "new york"]
# In upper and lower case, with and without accents, beside letters, "_", spaces and control
# characters.
BITS = [
    *PLAIN,
    "<E1>",
    "<e2>",
    "e\u0301te\u0301",
    "\u00c9T\u00c9",
    "New  york",
    "\u4e2d",
    "<",
    ">",
    "e1",
    "1",
    "a",
    "bc",
]
BITS += [" ", "  ", "\t", "\n", "_", "-", ",", "\x00"]
FLAGGED = [
    AddedToken("foo", single_word=True),
    AddedToken("ent", lstrip=True, rstrip=True, normalized=False),
    AddedToken("raw", normalized=False),
]


@pytest.fixture(params=[True, False], ids=["uncased", "cased"])
def stock_folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return save_stock(tmp_path / "stock", [*PLAIN, *FLAGGED], do_lower_case=request.param)


def save_stock(folder: Path, tokens: list[str | AddedToken], **settings: bool) -> Path:
    stock = BertTokenizer(vocab={piece: number for number, piece in enumerate(PIECES)}, **settings)
    stock.add_tokens(tokens)
    stock.save_pretrained(folder)
    return folder


def texts_of(bits: list[str], number: int = 3_000) -> list[str]:
    rng = random.Random(0)
    return ["".join(rng.choices(bits, k=rng.randint(0, 9))) for _ in range(number)]


def test_ids_are_those_of_stock(stock_folder: Path) -> None:
    stock, tokenizer = AutoTokenizer.from_pretrained(stock_folder), load_tokenizer(stock_folder)
    assert tokenizer.get_vocab() == stock.get_vocab()
    seen = set()
    for text in texts_of([*BITS, "foo", "Foo", "ent", "ENT", "raw", "RAW"]):
        ids = stock(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.encode_ids(text) == ids, ascii(text)
        seen |= set(ids)
    assert seen >= set(stock.convert_tokens_to_ids([*PLAIN, "foo", "ent", "raw"]))


def test_calls_give_the_same_ids_and_stocks_offsets(stock_folder: Path) -> None:
    stock, tokenizer = AutoTokenizer.from_pretrained(stock_folder), load_tokenizer(stock_folder)
    texts = texts_of(BITS)
    settings = {"add_special_tokens": False, "return_offsets_mapping": True}
    wanted, given = stock(texts, **settings), tokenizer(texts, **settings)
    assert given["input_ids"] == wanted["input_ids"]
    assert given["offset_mapping"] == wanted["offset_mapping"]
    words = [[word for word in text.split(" ") if word] for text in texts]
    settings["is_split_into_words"] = True
    assert (
        tokenizer(words, **settings)["offset_mapping"] == stock(words, **settings)["offset_mapping"]
    )


def test_spaces_that_a_token_takes_are_no_part_of_its_span(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save_stock(tmp_path, [AddedToken("<x>", lstrip=True, rstrip=True)]))
    text = "a,  <X>  b<x>c"
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    assert [text[start:end] for start, end in encoded["offset_mapping"]] == [
        "a",
        ",",
        "<X>",
        "b",
        "<x>",
        "c",
    ]


def test_the_originals_rules_hold_around_them(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save_stock(tmp_path, ["<e1>"]))
    # Stock has a special token, an unknown word and no way to take half a surrogate pair.
    text = f"[SEP]<e1>{'a' * 150}\ud83d<e1>[MASK]"
    pieces = tokenizer.convert_ids_to_tokens(tokenizer.encode_ids(text))
    expected = [
        "[",
        "s",
        "##e",
        "##p",
        "]",
        "<e1>",
        "[UNK]",
        "<e1>",
        "[",
        "m",
        "##a",
        "##s",
        "##k",
        "]",
    ]
    assert pieces == expected
    assert tokenizer.tokenize(text) == pieces
    assert len(tokenizer.encode_ids(f"<e1>{'a' * 150}")) == 151
    assert tokenizer.normalize("A<E1>, b").split() == ["a", "<e1>", ",", "b"]


def test_special_ones_are_text_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stock = BertTokenizer(vocab={piece: number for number, piece in enumerate(PIECES)})
    stock.add_special_tokens({"additional_special_tokens": ["[DOC]", "[unused1]"]})
    stock.save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert len(tokenizer) == len(stock)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode_ids("[DOC]")) == [
        "[",
        "d",
        "##o",
        "##c",
        "]",
    ]
    assert "its added special tokens ([unused1], [DOC]) are text" in caplog.text
    # What the warning advises.
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    for token in content["added_tokens"]:
        token["special"] = token["content"] in SPECIAL_TOKENS
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    caplog.clear()
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode_ids("a[DOC][unused1]")) == [
        "a",
        "[DOC]",
        "[unused1]",
    ]
    assert not caplog.records


@pytest.mark.parametrize("has_settings", [True, False])
def test_folders_without_a_tokenizer_json_keep_them(tmp_path: Path, has_settings: bool) -> None:
    """As versions 2 to 4 of transformers wrote them."""
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    size = len(PIECES)
    settings: dict[str, object] = {"do_lower_case": True, "tokenizer_class": "BertTokenizer"}
    (tmp_path / "added_tokens.json").write_text(json.dumps({"</e1>": size + 1, "<e1>": size}))
    if has_settings:
        flags = {
            "lstrip": False,
            "rstrip": False,
            "single_word": False,
            "normalized": True,
            "special": False,
        }
        decoder = {
            str(size + number): {"content": token, **flags}
            for number, token in enumerate(["<e1>", "</e1>"])
        }
        settings["added_tokens_decoder"] = decoder
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    stock, tokenizer = AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    text = "a <E1>bc</e1> <e1>"
    assert tokenizer.get_vocab() == stock.get_vocab()
    assert tokenizer.encode_ids(text) == stock(text, add_special_tokens=False)["input_ids"]


def test_they_survive_saving_with_their_flags(stock_folder: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(stock_folder)
    tokenizer.save_pretrained(tmp_path / "ours")
    again = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert (
        again.added_tokens_decoder
        == AutoTokenizer.from_pretrained(stock_folder).added_tokens_decoder
    )
    assert load_tokenizer(tmp_path / "ours").fingerprint == tokenizer.fingerprint


def test_what_is_added_later_counts_from_then_on_and_goes_to_other_processes(
    tmp_path: Path,
) -> None:
    tokenizer = load_tokenizer(save_stock(tmp_path, []))
    assert tokenizer.text_encoder.added is None
    text, before = "a <e1>", tokenizer.fingerprint
    assert len(tokenizer.encode_ids(text)) == 5
    tokenizer.add_tokens([AddedToken("<e1>")])
    expected = [tokenizer.get_vocab()["a"], len(PIECES)]
    assert tokenizer.encode_ids(text) == expected
    assert pickle.loads(pickle.dumps(tokenizer.text_encoder))(text) == expected
    assert pickle.loads(pickle.dumps(tokenizer)).encode_ids(text) == expected
    other = load_tokenizer(tmp_path)
    other.add_tokens([AddedToken("<e1>", single_word=True)])
    assert len({before, tokenizer.fingerprint, other.fingerprint}) == 3


@pytest.mark.parametrize(
    "damaged",
    [[1], [{"id": 300, "special": False}], [{"id": "x", "content": "y", "special": False}], ["a"]],
)
def test_damage_is_one_line(tmp_path: Path, damaged: object) -> None:
    content = json.loads((save_stock(tmp_path, ["<e1>"]) / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | {"added_tokens": damaged}))
    with pytest.raises(InputError, match="its added tokens are damaged"):
        load_tokenizer(tmp_path)
