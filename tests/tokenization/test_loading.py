"""`load_tokenizer`: folders, bare vocabularies, Hub names, and files that are none of these."""

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants, hf_hub_download
from huggingface_hub.utils import close_session
from transformers import AlbertTokenizer, AutoTokenizer, BertTokenizerFast

from bert_recipes import hub_access
from bert_recipes.errors import InputError
from bert_recipes.tokenization.loading import check_vocabulary, load_tokenizer
from bert_recipes.tokenization.tokenizer import SPECIAL_TOKENS, OriginalBertTokenizer


HELLO = {piece: number for number, piece in enumerate([*SPECIAL_TOKENS, "hello", "Hello"])}


def write_vocabulary(path: Path, *pieces: str) -> Path:
    path.write_text("\n".join([*SPECIAL_TOKENS, *pieces]) + "\n", encoding="utf-8")
    return path


# A bare vocabulary


def test_bare_vocabulary_is_read_as_the_original_reads_it(tmp_path: Path) -> None:
    # Source: google-research/bert tokenization.py `load_vocab`: stripped lines, a blank line is an
    # entry.
    path = tmp_path / "vocab.txt"
    lines = "[PAD]\r\n[UNK]\r\n [CLS] \r\n[SEP]\r\n[MASK]\r\n\r\nhello \r\n\u00e9t\u00e9\r\n\r\n"
    path.write_bytes(lines.encode())
    tokenizer = load_tokenizer(path)
    pieces = [*SPECIAL_TOKENS, "", "hello", "\u00e9t\u00e9"]
    assert tokenizer.get_vocab() == {piece: number for number, piece in enumerate(pieces)}
    assert tokenizer.tokenize("Hello hello") == ["hello", "hello"]
    assert tokenizer.model_max_length == 512


def test_of_a_repeated_piece_the_last_line_counts_and_every_line_has_its_id(
    tmp_path: Path, caplog
) -> None:
    # Source: google-research/bert tokenization.py `load_vocab`: `vocab[token] = index`.
    path = write_vocabulary(tmp_path / "vocab.txt", "mill", "", "the", "mill", "", "x")
    tokenizer = load_tokenizer(path)
    assert len(tokenizer) == 11
    assert tokenizer("the mill", add_special_tokens=False)["input_ids"] == [7, 8]
    assert tokenizer.encode_ids("the mill x") == [7, 8, 10]
    assert "'mill' stands on line 6 and on line 9; the last line counts" in caplog.text
    assert "again: 2)" in caplog.text
    # What is saved opens as the same tokenizer, without a warning.
    caplog.clear()
    tokenizer.save_pretrained(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").fingerprint == tokenizer.fingerprint
    assert "stands on line" not in caplog.text


@pytest.mark.parametrize(
    ("pieces", "is_lower", "reason"),
    [
        (["hello"], True, "do_lower_case=True, for no piece holds a capital letter"),
        (["<S>", "<T>", "hello"], True, "do_lower_case=True, for no piece holds"),
        (["hello", "Hello"], False, "do_lower_case=False, for it holds the piece 'Hello'"),
    ],
)
def test_case_of_a_bare_vocabulary_is_taken_from_its_pieces_and_logged(
    tmp_path: Path, caplog, pieces: list[str], is_lower: bool, reason: str
) -> None:
    caplog.set_level(logging.INFO, logger="bert_recipes")
    path = write_vocabulary(tmp_path / "vocab.txt", *pieces)
    assert load_tokenizer(path).do_lower_case is is_lower
    assert reason in caplog.text
    assert load_tokenizer(path, do_lower_case=not is_lower).do_lower_case is not is_lower


@pytest.mark.parametrize(
    ("name", "size", "is_lower"), [("uncased", 30522, True), ("cased", 28996, False)]
)
def test_googles_vocabularies_load_with_their_case(
    shared_data: Path, name: str, size: int, is_lower: bool
) -> None:
    tokenizer = load_tokenizer(shared_data / "vocab" / f"bert-base-{name}-vocab.txt")
    assert (len(tokenizer), tokenizer.do_lower_case) == (size, is_lower)
    assert tokenizer.convert_tokens_to_ids([*SPECIAL_TOKENS]) == [0, 100, 101, 102, 103]


# Folders


@pytest.mark.parametrize(
    "settings",
    [{}, {"do_lower_case": False}, {"strip_accents": False}, {"tokenize_chinese_chars": False}],
)
@pytest.mark.parametrize(
    "missing", ["nothing", "vocab.txt", "tokenizer.json", "tokenizer_config.json"]
)
def test_folder_keeps_its_settings(tmp_path: Path, settings: dict[str, bool], missing: str) -> None:
    saved = OriginalBertTokenizer(vocab=HELLO, model_max_length=128, **settings)
    saved.save_pretrained(tmp_path)
    (tmp_path / missing).unlink(missing_ok=True)
    loaded = load_tokenizer(tmp_path)
    assert loaded.fingerprint == saved.fingerprint
    assert loaded.model_max_length == (512 if missing == "tokenizer_config.json" else 128)


def test_a_vocabulary_has_the_settings_that_stand_beside_it(tmp_path: Path) -> None:
    settings = {"do_lower_case": True, "strip_accents": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    for name in ("vocab.txt", "other.txt"):
        write_vocabulary(tmp_path / name, "é", "e")

    assert load_tokenizer(tmp_path / "vocab.txt").tokenize("É") == ["é"]
    assert load_tokenizer(tmp_path / "other.txt").tokenize("É") == ["e"]


def test_folder_saved_by_stock_transformers_opens(tmp_path: Path, caplog) -> None:
    BertTokenizerFast(vocab=HELLO, do_lower_case=False).save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.tokenize("Hello hello") == ["Hello", "hello"]
    assert tokenizer.model_max_length == 512
    assert load_tokenizer(tmp_path, do_lower_case=True).do_lower_case is True
    assert "do_lower_case=False, but do_lower_case=True was asked for" in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.txt", "[PAD]\n[UNK]\nhello\n", r"no \[CLS\], \[SEP\], \[MASK\] among its 3 pieces"),
        ("vocab.txt", "[PAD]\n[UNK]\n\xe9\n", r"vocab.txt, line 3: not valid UTF-8 \(byte 0xe9"),
        ("tokenizer.json", "{", "tokenizer.json: broken JSON .*line 1"),
        (
            "tokenizer.json",
            '{"model": {"type": "BPE", "vocab": {}}}',
            "stock transformers opens no",
        ),
        ("tokenizer.json", '{"model": {"type": "WordLevel"}}', "prefix ##, but WordLevel"),
        (
            "tokenizer.json",
            '{"model": {"continuing_subword_prefix": "##", "vocab": {}}}',
            r"no \[PAD\]",
        ),
        (
            "tokenizer.json",
            '{"model": {"continuing_subword_prefix": "##", "vocab": "words"}}',
            "no vocabulary of pieces and numbers",
        ),
        ("tokenizer_config.json", "{1}", "tokenizer_config.json: broken JSON .*line 1"),
        ("other.txt", "", "neither tokenizer.json nor vocab.txt"),
    ],
)
def test_files_that_are_no_tokenizer_are_one_clear_line(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    paths = [tmp_path, tmp_path / name] if name == "vocab.txt" else [tmp_path]
    for path in paths:
        with pytest.raises(InputError, match=message) as error:
            load_tokenizer(path)
        assert "\n" not in str(error.value)


def test_files_that_disagree_and_a_case_that_is_none_are_refused(tmp_path: Path) -> None:
    OriginalBertTokenizer(vocab=HELLO).save_pretrained(tmp_path)
    write_vocabulary(tmp_path / "vocab.txt", "Hello", "hello")
    with pytest.raises(InputError, match=r"tokenizer.json hold different vocabularies"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": "no"}')
    with pytest.raises(InputError, match="do_lower_case is 'no'; allowed: true, false"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("settings", "is_allowed"),
    [
        ({"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab"}, False),
        ({"subword_tokenizer_type": "character"}, False),
        ({"tokenizer_class": "RoFormerTokenizerFast"}, False),
        ({"word_tokenizer_type": "basic", "subword_tokenizer_type": "wordpiece"}, True),
        ({"tokenizer_class": "ElectraTokenizerFast"}, True),
        ({"tokenizer_class": "SomebodysTokenizer"}, True),
        ({"tokenizer_class": None}, True),
    ],
)
@pytest.mark.parametrize("name", [".", "vocab.txt"])
def test_a_vocabulary_whose_text_is_cut_by_other_rules_is_refused(
    tmp_path: Path, settings: dict[str, str], is_allowed: bool, name: str
) -> None:
    """Stock's defaults of BertJapaneseTokenizer, basic and wordpiece, are BERT's rules."""
    write_vocabulary(tmp_path / "vocab.txt", "hello")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    if is_allowed:
        assert load_tokenizer(tmp_path / name).tokenize("Hello") == ["hello"]
        return
    with pytest.raises(InputError, match=r"tokenizer_config\.json: .* by other rules than BERT"):
        load_tokenizer(tmp_path / name)


def test_a_tokenizer_of_a_model_with_one_segment_stays_one(tmp_path: Path) -> None:
    write_vocabulary(tmp_path / "vocab.txt", "hello")
    tokenizer = load_tokenizer(tmp_path / "vocab.txt")
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    tokenizer.save_pretrained(tmp_path / "saved")
    loaded = load_tokenizer(tmp_path / "saved")
    loaded.save_pretrained(tmp_path / "again")
    stock = AutoTokenizer.from_pretrained(tmp_path / "again")
    assert list(stock("hello", "hello")) == ["input_ids", "attention_mask"]


def test_special_tokens_of_other_names_are_refused(tmp_path: Path) -> None:
    """MPNet has all pieces of BERT's vocabulary, its [CLS] too, and was trained with <s>."""
    write_vocabulary(tmp_path / "vocab.txt", "hello")
    settings: dict[str, Any] = {"cls_token": {"content": "[CLS]"}, "sep_token": "[SEP]"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert load_tokenizer(tmp_path).tokenize("hello") == ["hello"]
    settings["sep_token"] = {"content": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match=r"sep_token is '</s>'; allowed with WordPiece: '\[SEP\]'"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("files", "packages"),
    [
        (["spm.model"], r" \(needs pip install sentencepiece protobuf\)"),
        (["vocab.json", "merges.txt"], ""),
    ],
)
def test_a_tokenizer_that_stock_can_convert_is_told_how(
    tmp_path: Path, files: list[str], packages: str
) -> None:
    for name in files:
        (tmp_path / name).touch()
    call = r"AutoTokenizer\.from_pretrained\(.*\)\.save_pretrained\(.*\)"
    with pytest.raises(
        InputError, match=f"stock transformers writes tokenizer.json: {call}{packages}$"
    ):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("path", ["/nowhere/at/all", "missing/vocab.txt", "my--bert", "my..bert"])
def test_missing_path_is_one_clear_line(path: str) -> None:
    with pytest.raises(InputError, match="no such file or folder; give a tokenizer folder"):
        load_tokenizer(path)


# Names on the Hub


def test_hub_name_in_the_local_cache_opens_offline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = write_vocabulary(tmp_path / "vocab.txt", "hello")
    monkeypatch.setattr(
        "bert_recipes.tokenization.loading.try_to_load_from_cache",
        lambda name, name_of_file: str(file) if name_of_file == "vocab.txt" else None,
    )
    assert load_tokenizer("owner/model").tokenize("Hello") == ["hello"]


def test_hub_name_fails_at_once_when_the_hub_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = time.monotonic()
    with pytest.raises(InputError, match="in the local Hub cache; HF_HUB_OFFLINE is set"):
        load_tokenizer("bert-base-uncased")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    # The discard port: nobody listens.
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(hub_access.urllib.request, "getproxies", dict)
    with pytest.raises(InputError, match="cannot be reached, so give a local folder"):
        load_tokenizer("google-bert/bert-base-uncased")
    assert time.monotonic() - start < 5


def test_hub_name_is_downloaded_and_then_found_in_the_cache(
    hub_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_server.take_over(monkeypatch)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    vocabulary = "\n".join([*SPECIAL_TOKENS, "hello", "##s"]).encode()
    files = {"vocab.txt": vocabulary, "tokenizer_config.json": b'{"model_max_length": 64}'}
    hub_server.add_repository("me/model", files)
    hub_server.add_repository("me/other", {"config.json": b"{}"})
    deberta = {"spm.model": b"x", "tokenizer_config.json": b"{}"}
    hub_server.add_repository("me/deberta", deberta)
    for name, message in (
        ("me/missing", "answers 404: check the name, or give a local folder"),
        ("me/other", "has neither tokenizer.json nor vocab.txt; download it .hf download me/other"),
        ("me/deberta", r"AutoTokenizer\.from_pretrained\(.FOLDER.\)\.save_pretrained\(.FOLDER.\)"),
    ):
        with pytest.raises(InputError, match=message):
            load_tokenizer(name)
    for is_offline in (False, True):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", is_offline)
        tokenizer = load_tokenizer("me/model")
        assert tokenizer.tokenize("Hellos") == ["hello", "##s"]
        assert tokenizer.model_max_length == 64
    close_session()


def test_what_another_program_left_out_of_the_cache_is_downloaded(
    hub_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_server.take_over(monkeypatch)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    vocabulary = "\n".join([*SPECIAL_TOKENS, "hello"]).encode()
    files = {"vocab.txt": vocabulary, "tokenizer_config.json": b'{"model_max_length": 64}'}
    hub_server.add_repository("me/part", files)
    hf_hub_download("me/part", "vocab.txt")
    assert load_tokenizer("me/part").model_max_length == 64
    close_session()


# A tokenizer and a model


@pytest.mark.parametrize(
    ("rows", "is_warned"), [(5, False), (8, False), (128, False), (6, True), (24, True)]
)
def test_more_rows_than_pieces_are_a_warning_unless_they_round_the_number_up(
    tmp_path: Path, caplog, rows: int, is_warned: bool
) -> None:
    check_vocabulary("m", rows, load_tokenizer(write_vocabulary(tmp_path / "vocab.txt")))
    warning = f"m has a vocabulary of {rows}, the tokenizer 5 pieces: the other rows are kept"
    assert (warning in caplog.text) is is_warned


def test_more_pieces_than_rows_are_another_models(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_vocabulary(tmp_path / "vocab.txt"))
    with pytest.raises(InputError, match="of 4, the tokenizer 5 pieces: they do not belong"):
        check_vocabulary("m", 4, tokenizer)


def test_rules_of_a_tokenizer_json_that_are_not_berts_are_named(tmp_path: Path, caplog) -> None:
    """Text is cut by BERT's."""
    OriginalBertTokenizer(vocab=HELLO).save_pretrained(tmp_path)
    load_tokenizer(tmp_path)
    assert "not BERT's" not in caplog.text
    file = tmp_path / "tokenizer.json"
    serialized = json.loads(file.read_text())
    serialized["normalizer"] = {"type": "Lowercase"}
    serialized["pre_tokenizer"] = None
    file.write_text(json.dumps(serialized))
    load_tokenizer(tmp_path)
    assert (
        "not BERT's (normalizer Lowercase, not BertNormalizer; pre_tokenizer none, not "
        "BertPreTokenizer)" in caplog.text
    )


@pytest.mark.parametrize(("is_lower", "stored"), [(True, "uncased"), (False, "cased")])
def test_a_case_that_a_unigram_tokenizer_does_not_have_is_a_warning(
    tmp_path: Path, caplog, is_lower: bool, stored: str
) -> None:
    pieces = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "\u2581", "a", "A"]
    tokenizer = AlbertTokenizer(vocab=[(piece, -1.0) for piece in pieces], do_lower_case=is_lower)
    tokenizer.save_pretrained(tmp_path)
    load_tokenizer(tmp_path, do_lower_case=is_lower)
    assert "has no effect" not in caplog.text
    load_tokenizer(tmp_path, do_lower_case=not is_lower)
    assert f"do_lower_case={not is_lower} has no effect" in caplog.text
    assert f"its own rules, which are {stored}" in caplog.text
