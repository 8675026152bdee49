"""Tokens that were added beside the vocabulary are recognized in texts as stock recognizes them."""

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


PIECES = [*SPECIAL_TOKENS, "[unused1]", *string.ascii_letters]
PIECES += [f"##{letter}" for letter in string.ascii_letters]
PIECES += [*"<>/[],.-_1", "##1", "##_", "\u4e2d", "\u6587", "ent", "foo"]
PLAIN = ["<e1>", "</e1>", "<E2>", "[unused1]", "\u00e9t\u00e9", "\u4e2d\u6587", "new york"]
FLAGGED = [
    AddedToken("foo", single_word=True),
    AddedToken("ent", lstrip=True, rstrip=True, normalized=False),
    AddedToken("raw", normalized=False),
]
# In upper and lower case, with and without accents, beside letters, "_", spaces and control
# characters.
SNIPPETS = [*PLAIN, "<E1>", "<e2>", "e\u0301te\u0301", "\u00c9T\u00c9", "New  york", "\u4e2d"]
SNIPPETS += ["<", ">", "e1", "1", "a", "bc", " ", "  ", "\t", "\n", "_", "-", ",", "\x00"]


def save_stock(folder: Path, tokens: list[str | AddedToken], **settings: bool) -> Path:
    stock = BertTokenizer(vocab={piece: number for number, piece in enumerate(PIECES)}, **settings)
    stock.add_tokens(tokens)
    stock.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def stock_folder(request: pytest.FixtureRequest, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("stock")
    return save_stock(folder, [*PLAIN, *FLAGGED], do_lower_case=request.param)


def texts_of(snippets: list[str]) -> list[str]:
    rng = random.Random(0)
    return ["".join(rng.choices(snippets, k=rng.randint(0, 9))) for _ in range(1_000)]


def pieces_of(tokenizer, text: str) -> list[str]:
    return tokenizer.convert_ids_to_tokens(tokenizer.encode_ids(text))


def test_ids_are_those_of_stock(stock_folder: Path) -> None:
    stock = AutoTokenizer.from_pretrained(stock_folder)
    tokenizer = load_tokenizer(stock_folder)
    assert tokenizer.get_vocab() == stock.get_vocab()
    seen = set()
    for text in texts_of([*SNIPPETS, "foo", "Foo", "ent", "ENT", "raw", "RAW"]):
        ids = stock(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.encode_ids(text) == ids, ascii(text)
        seen.update(ids)
    assert seen >= set(stock.convert_tokens_to_ids([*PLAIN, "foo", "ent", "raw"]))


def test_calls_give_the_same_ids_and_stocks_offsets(stock_folder: Path) -> None:
    stock = AutoTokenizer.from_pretrained(stock_folder)
    tokenizer = load_tokenizer(stock_folder)
    texts = texts_of(SNIPPETS)
    settings = {"add_special_tokens": False, "return_offsets_mapping": True}
    assert dict(tokenizer(texts, **settings)) == dict(stock(texts, **settings))
    words = [[word for word in text.split(" ") if word] for text in texts]
    settings["is_split_into_words"] = True
    offsets = tokenizer(words, **settings)["offset_mapping"]
    assert offsets == stock(words, **settings)["offset_mapping"]


def test_spaces_that_a_token_takes_are_no_part_of_its_span(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save_stock(tmp_path, [AddedToken("<x>", lstrip=True, rstrip=True)]))
    text = "a,  <X>  b<x>c"
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    spans = [text[start:end] for start, end in encoded["offset_mapping"]]
    assert spans == ["a", ",", "<X>", "b", "<x>", "c"]


def test_the_originals_rules_hold_around_them(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save_stock(tmp_path, ["<e1>"]))
    # Stock has a special token, an unknown word and no way to take half a surrogate pair.
    text = f"[SEP]<e1>{'a' * 150}\ud83d<e1>[MASK]"
    pieces = pieces_of(tokenizer, text)
    assert " ".join(pieces) == "[ s ##e ##p ] <e1> [UNK] <e1> [ m ##a ##s ##k ]"
    assert tokenizer.tokenize(text) == pieces
    assert len(tokenizer.encode_ids(f"<e1>{'a' * 150}")) == 151
    assert tokenizer.normalize("A<E1>, b").split() == ["a", "<e1>", ",", "b"]


def test_special_ones_are_text_with_a_warning(tmp_path: Path, caplog) -> None:
    stock = BertTokenizer(vocab={piece: number for number, piece in enumerate(PIECES)})
    stock.add_special_tokens({"additional_special_tokens": ["[DOC]", "[unused1]"]})
    stock.save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert len(tokenizer) == len(stock)
    assert pieces_of(tokenizer, "[DOC]") == ["[", "d", "##o", "##c", "]"]
    assert "special tokens that were added ([unused1], [DOC]) are read as text" in caplog.text
    # What the warning advises.
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    for token in content["added_tokens"]:
        token["special"] = token["content"] in SPECIAL_TOKENS
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    caplog.clear()
    pieces = pieces_of(load_tokenizer(tmp_path), "a[DOC][unused1]")
    assert pieces == ["a", "[DOC]", "[unused1]"]
    assert not caplog.records


@pytest.mark.parametrize("has_settings", [True, False])
def test_folders_without_a_tokenizer_json_keep_them(tmp_path: Path, has_settings: bool) -> None:
    """As versions 2 to 4 of transformers wrote them."""
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    ids = {"</e1>": len(PIECES) + 1, "<e1>": len(PIECES)}
    (tmp_path / "added_tokens.json").write_text(json.dumps(ids))
    settings: dict[str, object] = {"do_lower_case": True, "tokenizer_class": "BertTokenizer"}
    if has_settings:
        flags = dict.fromkeys(("lstrip", "rstrip", "single_word", "special"), False)
        decoder = {}
        for token, number in ids.items():
            decoder[str(number)] = {"content": token, "normalized": True, **flags}
        settings["added_tokens_decoder"] = decoder
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    stock, tokenizer = AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    text = "a <E1>bc</e1> <e1>"
    assert tokenizer.get_vocab() == stock.get_vocab()
    assert tokenizer.encode_ids(text) == stock(text, add_special_tokens=False)["input_ids"]


def test_they_survive_saving_with_their_flags(stock_folder: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(stock_folder)
    tokenizer.save_pretrained(tmp_path)
    before, after = (AutoTokenizer.from_pretrained(path) for path in (stock_folder, tmp_path))
    assert after.added_tokens_decoder == before.added_tokens_decoder
    assert load_tokenizer(tmp_path).fingerprint == tokenizer.fingerprint


def test_what_is_added_later_counts_from_then_on_and_goes_to_other_processes(
    tmp_path: Path,
) -> None:
    tokenizer = load_tokenizer(save_stock(tmp_path, []))
    text = "a <e1>"
    plain_fingerprint = tokenizer.fingerprint
    assert len(tokenizer.encode_ids(text)) == 5
    tokenizer.add_tokens([AddedToken("<e1>")])
    expected = [tokenizer.get_vocab()["a"], len(PIECES)]
    assert tokenizer.encode_ids(text) == expected
    assert pickle.loads(pickle.dumps(tokenizer.text_encoder))(text) == expected
    assert pickle.loads(pickle.dumps(tokenizer)).encode_ids(text) == expected
    flagged = load_tokenizer(tmp_path)
    flagged.add_tokens([AddedToken("<e1>", single_word=True)])
    assert len({plain_fingerprint, tokenizer.fingerprint, flagged.fingerprint}) == 3


@pytest.mark.parametrize(
    "token", [1, {"id": 300, "special": False}, {"id": "x", "content": "y", "special": False}]
)
def test_damage_is_one_line(tmp_path: Path, token: object) -> None:
    file = save_stock(tmp_path, ["<e1>"]) / "tokenizer.json"
    content = json.loads(file.read_text())
    content["added_tokens"] = [token]
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match="its added tokens are damaged"):
        load_tokenizer(tmp_path)
