"""The store: what is written is read back, complete or not at all; whatever is not a complete store
is refused in one line.
"""

import json
import logging
import os
import pickle
import tempfile
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from small_stores import add_document

from bert_recipes.data import store as module
from bert_recipes.data.store import StoreWriter, open_store
from bert_recipes.errors import InputError


SPECIAL_IDS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
DAMAGED = "damaged or incomplete: prepare the store again"
DOCUMENTS = [[[5, 6, 7], [8]], [[9]], [[5, 5], [6], [99, 7, 5]]]


def new_writer(path, *, vocab_size=100, tokenizer_fingerprint="abc"):
    return StoreWriter(
        path,
        vocab_size=vocab_size,
        special_ids=SPECIAL_IDS,
        tokenizer_fingerprint=tokenizer_fingerprint,
    )


def write_store(path, documents=DOCUMENTS, **options):
    with new_writer(path, **options) as writer:
        for document in documents:
            add_document(writer, "train", document)
        add_document(writer, "validation", [[1, 2], [3]])
        writer.finish(settings={"keep": "all"})
    return path


def documents_of(split):
    offsets = split.sentence_offsets(0, split.num_documents)
    sentences = [split.tokens(number, number + 1).tolist() for number in range(offsets[-1])]
    return [sentences[begin:end] for begin, end in pairwise(offsets)]


def error_of(path):
    with pytest.raises(InputError) as caught:
        open_store(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(params=[2, 4, 2**20])
def rows_per_batch(request, monkeypatch):
    """Small batches put the edges between them everywhere."""
    monkeypatch.setattr(module, "ROWS_PER_BATCH", request.param)
    return request.param


@pytest.mark.usefixtures("rows_per_batch")
def test_what_is_written_is_read_back(tmp_path):
    store = open_store(write_store(tmp_path / "store"))

    assert documents_of(store.train) == DOCUMENTS
    assert documents_of(store.validation) == [[[1, 2], [3]]]

    train = store.train

    assert (train.num_documents, train.num_sentences, train.num_tokens) == (3, 6, 11)
    assert train.sentence_lengths(0, 6).tolist() == [3, 1, 1, 2, 1, 3]
    assert train.sentence_offsets(1, 3).tolist() == [2, 3, 6]
    assert train.tokens(1, 5).tolist() == [8, 9, 5, 5, 6]
    assert [train.tokens(place, place).tolist() for place in (0, 2, 6)] == [[], [], []]

    expected = np.bincount([5, 6, 7, 8, 9, 5, 5, 6, 99, 7, 5], minlength=100)

    assert np.array_equal(train.unigram_counts, expected)

    for begin, end in ((-1, 2), (0, 7), (4, 2)):
        with pytest.raises(IndexError):
            train.sentence_lengths(begin, end)


def test_the_files_are_arrow_with_the_columns_that_are_promised(tmp_path, rows_per_batch):
    path = write_store(tmp_path / "store") / "train"
    expected = {
        "tokens.arrow": ("token_id", pa.uint16(), 11),
        "sentences.arrow": ("token_offset", pa.int64(), 7),
        "documents.arrow": ("sentence_offset", pa.int64(), 4),
        "unigram.arrow": ("count", pa.int64(), 100),
    }

    assert sorted(file.name for file in path.iterdir()) == sorted(expected)

    for file, (name, kind, rows) in expected.items():
        reader = pa.ipc.open_file(pa.memory_map(str(path / file)))
        sizes = [reader.get_batch(index).num_rows for index in range(reader.num_record_batches)]
        assert (reader.schema.names, reader.schema.types) == ([name], [kind])
        assert sum(sizes) == rows
        assert all(size == rows_per_batch for size in sizes[:-1])


@pytest.mark.parametrize(("vocab_size", "dtype"), [(2**16, np.uint16), (2**16 + 1, np.uint32)])
def test_the_smallest_type_that_fits_is_taken(tmp_path, vocab_size, dtype):
    store = open_store(write_store(tmp_path / "store", [[[vocab_size - 1]]], vocab_size=vocab_size))

    assert store.train.tokens(0, 1).dtype == dtype
    assert store.train.tokens(0, 1).tolist() == [vocab_size - 1]
    assert store.metadata["dtype"] == np.dtype(dtype).name


def test_the_fingerprint_follows_contents_and_tokenizer_only(tmp_path):
    def fingerprint(name, *documents, **options):
        return open_store(write_store(tmp_path / name, *documents, **options)).fingerprint

    # Of a release that is out: cached pairs and the provenance of a run name it.
    released = "ae90a497b16f6854b244c28bafa50e8c2d18d927503024c9232c109221627e91"

    assert fingerprint("a") == fingerprint("b") == released
    assert fingerprint("c", [[*DOCUMENTS[0], *DOCUMENTS[1]], DOCUMENTS[2]]) != released
    assert fingerprint("d", tokenizer_fingerprint="other") != released


def test_a_split_travels_without_its_maps(tmp_path):
    pickled = pickle.dumps(open_store(write_store(tmp_path / "store")).train)
    assert documents_of(pickle.loads(pickled)) == DOCUMENTS
    assert len(pickled) < 1000


def test_splits_that_are_not_there(tmp_path):
    for split in ("train", "validation"):
        with new_writer(tmp_path / split) as writer:
            add_document(writer, split, [[5]])
            writer.finish()

    assert open_store(tmp_path / "train").validation is None
    with pytest.raises(InputError, match="no training documents"):
        _ = open_store(tmp_path / "validation").train


def test_a_shard_may_hold_no_document_of_a_split(tmp_path):
    """All that a file held was dropped."""
    nothing = np.empty(0, dtype=np.int64)
    with new_writer(tmp_path / "store") as writer:
        writer.add_batch("train", nothing, nothing, nothing)
        writer.finish()
    train = open_store(tmp_path / "store").train

    assert train.num_documents == 0
    assert train.tokens(0, 0).tolist() == []
    assert train.sentence_offsets(0, 0).tolist() == [0]


def test_values_that_make_no_store_are_refused(tmp_path):
    with new_writer(tmp_path / "store") as writer:
        for document in ([[100]], [[-1]], [[5], []], []):
            with pytest.raises(ValueError, match=r"outside|drop"):
                add_document(writer, "train", document)
        with pytest.raises(ValueError, match="add up"):
            writer.add_batch("train", np.array([5, 6]), np.array([1]), np.array([1]))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_interrupted_writer_leaves_nothing(tmp_path, monkeypatch, error):
    def fail(*args):
        assert any(entry.name.startswith(".store.partial-") for entry in tmp_path.iterdir())
        raise error

    monkeypatch.setattr(module.ColumnWriter, "_write_batch", fail)

    with pytest.raises(type(error)):
        write_store(tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


def test_missing_and_foreign_folders_are_refused(tmp_path):
    (tmp_path / "foreign").mkdir()

    assert "no such folder" in error_of(tmp_path / "nothing")
    assert "no store.json" in error_of(tmp_path / "foreign")

    for content in ('{"format": "other"}', "[]"):
        (tmp_path / "foreign" / "store.json").write_text(content)
        assert "not a token store of this project" in error_of(tmp_path / "foreign")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 2}, "make the store anew with recipes/prepare_corpus.py"),
        ({"splits": {}}, DAMAGED),
        ({"more": 1}, DAMAGED),
        ("[" * 100_000, DAMAGED),
        ("\0", DAMAGED),
    ],
    ids=["version", "splits", "more", "nested", "NUL"],
)
def test_changed_metadata_is_refused(tmp_path, change, message):
    file = write_store(tmp_path / "store") / "store.json"
    if isinstance(change, dict):
        change = json.dumps({**json.loads(file.read_bytes()), **change})
    file.write_text(change)

    assert message in error_of(tmp_path / "store")


@pytest.mark.parametrize("file", list(module.COLUMN_OF_FILE))
def test_files_that_are_not_what_was_written_are_refused(tmp_path, file):
    path = write_store(tmp_path / "store")
    open_store(path)
    column_file = path / "train" / file
    name = module.COLUMN_OF_FILE[file].encode()
    content = column_file.read_bytes()
    values = module.Column(column_file, pa.ipc.open_file(column_file).schema).slice(0, 4)
    flipped = bytearray(content)
    flipped[content.index(values.tobytes())] ^= 1
    renamed = content.replace(name, b"\xff" + name[1:])
    for damaged in (content[:-10], b"\0" * len(content), bytes(flipped), renamed):
        column_file.write_bytes(damaged)
        assert f"{column_file}: {DAMAGED}" in error_of(path)
    column_file.unlink()

    assert f"{path}: {DAMAGED}" in error_of(path)

    column_file.write_bytes(content)

    assert documents_of(open_store(path).train) == DOCUMENTS


@contextmanager
def without_rights(path):
    """Take the right to read a path away, also from root, who could read it as it is."""
    mode, user = path.stat().st_mode, os.geteuid()
    path.chmod(0)
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        path.chmod(mode)


@pytest.mark.parametrize("name", ["store.json", "train", "train/tokens.arrow"])
def test_a_store_without_the_right_to_read_it_is_not_called_damaged(name):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # tmp_path is closed to all others
        path = write_store(Path(folder) / "store")
        with without_rights(path / name), pytest.raises((InputError, OSError)) as caught:
            open_store(path)
        message = str(caught.value)
        assert "Permission denied" in message
        assert str(path) in message
        assert DAMAGED not in message


def test_values_of_another_type_are_refused(tmp_path):
    """The hash is of the bytes: it is that of int64."""
    path = write_store(tmp_path / "store")
    file = path / "train" / "sentences.arrow"
    values = np.array(module.Column(file, pa.ipc.open_file(file).schema).slice(0, 7)).view(
        np.uint64
    )
    writer = module.ColumnWriter(
        file, pa.schema([pa.field("token_offset", pa.uint64(), nullable=False)])
    )
    writer.append(values)
    writer.close()

    assert f"{file}: {DAMAGED}" in error_of(path)


def test_a_file_that_claims_more_rows_than_it_has_bytes_for_is_refused(tmp_path):
    """Without a check numpy would read beyond the end of the memory map."""
    path = write_store(tmp_path / "store") / "train" / "sentences.arrow"
    content = path.read_bytes()
    num_rows, more_rows = (7).to_bytes(8, "little"), (2**20).to_bytes(8, "little")
    num_refused = 0

    for place in range(0, len(content) - 8, 8):
        if content[place : place + 8] == num_rows:
            path.write_bytes(content[:place] + more_rows + content[place + 8 :])
            try:
                open_store(tmp_path / "store").train.sentence_lengths(0, 6)
            except InputError:
                num_refused += 1

    assert num_refused


def test_another_tokenizer_is_refused(tmp_path):
    store = open_store(write_store(tmp_path / "store"))

    store.check_tokenizer("abc", 100)

    with pytest.raises(InputError, match="101 vocabulary entries given, the store has 100"):
        store.check_tokenizer("other", 101)
    with pytest.raises(InputError, match="another tokenizer: other pieces"):
        store.check_tokenizer("other", 100)


def test_a_store_is_read_to_its_end_once(tmp_path, monkeypatch, caplog):
    """A large store is not read at every start; a file with another time is."""
    path = write_store(tmp_path / "store")
    hashed = []
    sha256 = module.Column.sha256
    monkeypatch.setattr(
        module.Column, "sha256", lambda column: hashed.append(column) or sha256(column)
    )
    open_store(path)
    open_store(path)

    assert len(hashed) == 8  # four files of two splits

    os.utime(path / "train" / "tokens.arrow", ns=(1, 1))
    with caplog.at_level(logging.INFO):
        open_store(path)

    assert len(hashed) == 16
    assert f"{path}: verifying " in caplog.text


def test_a_store_that_cannot_be_written_to_is_compared_every_time(tmp_path, monkeypatch, caplog):
    path = write_store(tmp_path / "store")
    refused = PermissionError(13, "Permission denied")
    monkeypatch.setattr(Path, "write_text", lambda *args, **kwargs: (_ for _ in ()).throw(refused))
    with caplog.at_level(logging.INFO):
        assert documents_of(open_store(path).train) == DOCUMENTS

    assert "cannot be kept (Permission denied)" in caplog.text
    assert not (path / ".checked.json").exists()
