"""`load_tokenizer`: folders, bare vocabularies, Hub names, and files that are none of these."""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from transformers import BertTokenizerFast

from bert_recipes import hub_access
from bert_recipes.errors import InputError
from bert_recipes.tokenization.loading import check_vocabulary, load_tokenizer
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write_vocabulary(path: Path, *pieces: str, special: list[str] = SPECIAL) -> Path:
    path.write_text("\n".join([*special, *pieces]) + "\n", encoding="utf-8")
    return path


def test_bare_vocabulary_is_read_as_the_original_reads_it(tmp_path: Path) -> None:
    # Source: google-research/bert tokenization.py `load_vocab`: stripped lines, a blank line is an
    # entry.
    path = tmp_path / "vocab.txt"
    path.write_bytes(
        "[PAD]\r\n[UNK]\r\n [CLS] \r\n[SEP]\r\n[MASK]\r\n\r\nhello "
        "\r\n\u00e9t\u00e9\r\n\r\n".encode()
    )
    tokenizer = load_tokenizer(path)
    pieces = [*SPECIAL, "", "hello", "\u00e9t\u00e9"]
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


def test_case_of_a_bare_vocabulary_is_taken_from_its_pieces_and_said(
    tmp_path: Path, caplog
) -> None:
    caplog.set_level(logging.INFO, logger="bert_recipes")
    assert load_tokenizer(write_vocabulary(tmp_path / "uncased.txt", "hello")).do_lower_case is True
    assert "do_lower_case=True, for no piece holds a capital letter" in caplog.text
    assert (
        load_tokenizer(write_vocabulary(tmp_path / "cased.txt", "hello", "Hello")).do_lower_case
        is False
    )
    assert "do_lower_case=False, for it holds the piece 'Hello'" in caplog.text
    assert load_tokenizer(tmp_path / "cased.txt", do_lower_case=True).do_lower_case is True


def test_googles_vocabularies_load_with_their_case(shared_data: Path) -> None:
    uncased = load_tokenizer(shared_data / "vocab" / "bert-base-uncased-vocab.txt")
    cased = load_tokenizer(shared_data / "vocab" / "bert-base-cased-vocab.txt")
    assert (len(uncased), uncased.do_lower_case) == (30522, True)
    assert (len(cased), cased.do_lower_case) == (28996, False)
    for tokenizer in (uncased, cased):
        assert [tokenizer.convert_tokens_to_ids(token) for token in SPECIAL] == [
            0,
            100,
            101,
            102,
            103,
        ]


@pytest.mark.parametrize(
    "settings",
    [{}, {"do_lower_case": False}, {"strip_accents": False}, {"tokenize_chinese_chars": False}],
)
@pytest.mark.parametrize(
    "missing", ["nothing", "vocab.txt", "tokenizer.json", "tokenizer_config.json"]
)
def test_folder_keeps_its_settings(tmp_path: Path, settings: dict[str, bool], missing: str) -> None:
    vocabulary = {piece: index for index, piece in enumerate([*SPECIAL, "hello", "Hello"])}
    saved = OriginalBertTokenizer(vocab=vocabulary, model_max_length=128, **settings)
    saved.save_pretrained(tmp_path)
    (tmp_path / missing).unlink(missing_ok=True)
    loaded = load_tokenizer(tmp_path)
    assert loaded.fingerprint == saved.fingerprint
    assert loaded.model_max_length == (512 if missing == "tokenizer_config.json" else 128)


def test_folder_saved_by_stock_transformers_opens(tmp_path: Path) -> None:
    vocabulary = {piece: index for index, piece in enumerate([*SPECIAL, "hello", "Hello"])}
    BertTokenizerFast(vocab=vocabulary, do_lower_case=False).save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.tokenize("Hello hello") == ["Hello", "hello"]
    assert tokenizer.model_max_length == 512


def test_contradicting_the_folder_is_a_warning(tmp_path: Path, caplog) -> None:
    vocabulary = {piece: index for index, piece in enumerate([*SPECIAL, "hello"])}
    OriginalBertTokenizer(vocab=vocabulary).save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path, do_lower_case=False).do_lower_case is False
    assert "do_lower_case=True, but do_lower_case=False was asked for" in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.txt", b"", r"vocab.txt: no \[PAD\], .* among its 0 pieces"),
        (
            "vocab.txt",
            b"[PAD]\n[UNK]\nhello\n",
            r"vocab.txt: no \[CLS\], \[SEP\], \[MASK\] among its 3 pieces",
        ),
        ("vocab.txt", b"[PAD]\n[UNK]\n\xe9\n", r"vocab.txt, line 3: not valid UTF-8 \(byte 0xe9"),
        ("tokenizer.json", b"{", "tokenizer.json: broken JSON .*line 1"),
        ("tokenizer.json", b"[]", "a JSON object is wanted, not a list"),
        (
            "tokenizer.json",
            b'{"model": {"type": "BPE", "vocab": {}}}',
            "stock transformers opens no tokenizer there",
        ),
        (
            "tokenizer.json",
            b'{"model": {"continuing_subword_prefix": "##", "vocab": {}}}',
            "no \\[PAD\\]",
        ),
        ("tokenizer_config.json", b"{1}", "tokenizer_config.json: broken JSON .*line 1"),
        ("other.txt", b"", "neither tokenizer.json nor vocab.txt"),
    ],
)
def test_files_that_are_no_tokenizer_are_one_clear_line(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    for path in (tmp_path, tmp_path / name)[: 2 if name == "vocab.txt" else 1]:
        with pytest.raises(InputError, match=message) as error:
            load_tokenizer(path)
        assert "\n" not in str(error.value)


def test_two_vocabularies_that_disagree_are_refused(tmp_path: Path) -> None:
    OriginalBertTokenizer(
        vocab={piece: index for index, piece in enumerate([*SPECIAL, "a", "b"])}
    ).save_pretrained(tmp_path)
    write_vocabulary(tmp_path / "vocab.txt", "b", "a")
    with pytest.raises(
        InputError, match=r"vocab.txt and tokenizer.json hold different vocabularies"
    ):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("path", ["/nowhere/at/all", "./missing", "missing/vocab.txt"])
def test_missing_path_is_one_clear_line(path: str) -> None:
    with pytest.raises(InputError, match="no such file or folder; give a tokenizer folder"):
        load_tokenizer(path)


@pytest.mark.parametrize("name", ["bert-base-uncased", "google-bert/bert-base-uncased"])
def test_hub_name_fails_at_once_when_offline(name: str) -> None:
    start = time.monotonic()
    with pytest.raises(
        InputError, match="no model of that name in the local Hub cache; HF_HUB_OFFLINE is set"
    ):
        load_tokenizer(name)
    assert time.monotonic() - start < 5


def test_hub_name_fails_at_once_when_the_hub_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(
        huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9"
    )  # the discard port: nobody listens
    monkeypatch.setattr(hub_access.urllib.request, "getproxies", dict)
    start = time.monotonic()
    with pytest.raises(InputError, match="cannot be reached, so give a local folder"):
        load_tokenizer("google-bert/bert-base-uncased")
    assert time.monotonic() - start < 5


def test_hub_name_in_the_local_cache_opens_offline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = write_vocabulary(tmp_path / "vocab.txt", "hello")
    monkeypatch.setattr(
        "bert_recipes.tokenization.loading.try_to_load_from_cache",
        lambda name, name_of_file: str(file) if name_of_file == "vocab.txt" else None,
    )
    assert load_tokenizer("owner/model").tokenize("Hello") == ["hello"]


_HUB_FILES = {
    "vocab.txt": "\n".join([*SPECIAL, "hello", "##s"]),
    "tokenizer_config.json": '{"model_max_length": 64}',
}


class _Hub(BaseHTTPRequestHandler):
    """The two answers of the Hub that a download needs: a file of owner/model, or that there is
    none.
    """

    def do_HEAD(self) -> None:
        name = self.path.rsplit("/", 1)[-1]
        in_model = self.path.startswith("/owner/model/resolve/")
        content = _HUB_FILES.get(name, "").encode() if in_model else b""
        self.send_response(200 if content else 404)
        if content:
            self.send_header("ETag", f'"{name}"')
            self.send_header("X-Repo-Commit", "0" * 40)
        else:
            self.send_header("X-Error-Code", "EntryNotFound" if in_model else "RepoNotFound")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_GET = do_HEAD

    def log_message(self, format: str, *args: object) -> None:
        """Stay quiet."""


@pytest.fixture
def hub_endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_hub_name_is_downloaded_and_then_found_in_the_cache(
    hub_endpoint: str, tmp_path: Path
) -> None:
    script = (
        "import sys; from bert_recipes import load_tokenizer\n"
        "tokenizer = load_tokenizer(sys.argv[1]); print(tokenizer.tokenize('Hellos'), "
        "tokenizer.model_max_length)"
    )

    def run(name: str, **environment: str) -> subprocess.CompletedProcess[str]:
        # The client reads its settings when it is imported: only a new process sees them.
        environment = {
            **os.environ,
            "HF_ENDPOINT": hub_endpoint,
            "HF_HOME": str(tmp_path),
            "no_proxy": "*",
            **environment,
        }
        return subprocess.run(
            [sys.executable, "-c", script, name],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    for offline in ("0", "1"):
        assert run("owner/model", HF_HUB_OFFLINE=offline).stdout == "['hello', '##s'] 64\n"
    missing = run("owner/missing", HF_HUB_OFFLINE="0")
    assert "answers 404: check the name, or give a local folder" in missing.stderr


@pytest.mark.parametrize(
    ("rows", "is_said"), [(5, False), (8, False), (128, False), (6, True), (24, True)]
)
def test_more_rows_than_pieces_are_kept_and_said_unless_they_round_the_number_up(
    tmp_path: Path, caplog, rows: int, is_said: bool
) -> None:
    check_vocabulary("m", rows, load_tokenizer(write_vocabulary(tmp_path / "vocab.txt")))
    assert (
        f"m has a vocabulary of {rows}, the tokenizer 5 pieces: the other rows are kept"
        in caplog.text
    ) is is_said


def test_more_pieces_than_rows_are_another_models(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_vocabulary(tmp_path / "vocab.txt"))
    with pytest.raises(
        InputError,
        match="m has a vocabulary of 4, the tokenizer 5 pieces: they do not belong together",
    ):
        check_vocabulary("m", 4, tokenizer)
