"""The store: what is written is read back, complete or not at all; whatever is no complete store is
refused in one line.
"""

import json
import logging
import os
import pickle
import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from bert_recipes.data import store as module
from bert_recipes.data.store import StoreWriter, open_store
from bert_recipes.errors import InputError


SPECIAL_IDS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
DAMAGED = "damaged or incomplete: prepare the store again"
DOCUMENTS = [[[5, 6, 7], [8]], [[9]], [[5, 5], [6], [99, 7, 5]]]


def new_writer(path, **options):
    settings = {
        "vocab_size": 100,
        "special_ids": SPECIAL_IDS,
        "tokenizer_fingerprint": "abc",
        **options,
    }
    return StoreWriter(path, **settings)


def write_store(path, documents=DOCUMENTS, **options):
    with new_writer(path, **options) as writer:
        for document in documents:
            writer.add_document("train", document)
        writer.add_document("validation", [[1, 2], [3]])
        writer.finish(settings={"keep": "all"})
    return path


def documents_of(split):
    offsets = split.sentence_offsets(0, split.num_documents)
    return [
        [split.tokens(sentence, sentence + 1).tolist() for sentence in range(begin, end)]
        for begin, end in pairwise(offsets)
    ]


def error_of(path):
    with pytest.raises(InputError) as caught:
        open_store(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def metadata_of(path):
    return json.loads((path / "store.json").read_text())


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
    assert (store.train.num_documents, store.train.num_sentences, store.train.num_tokens) == (
        3,
        6,
        11,
    )
    assert store.train.sentence_lengths(0, 6).tolist() == [3, 1, 1, 2, 1, 3]
    assert store.train.sentence_offsets(1, 3).tolist() == [2, 3, 6]
    assert store.train.tokens(1, 5).tolist() == [8, 9, 5, 5, 6]
    assert [store.train.tokens(place, place).tolist() for place in (0, 2, 6)] == [[], [], []]
    expected = np.bincount([5, 6, 7, 8, 9, 5, 5, 6, 99, 7, 5], minlength=100)
    assert store.train.unigram_counts.tolist() == expected.tolist()
    for begin, end in ((-1, 2), (0, 7), (4, 2)):
        with pytest.raises(IndexError):
            store.train.sentence_lengths(begin, end)
    with pytest.raises(IndexError):
        store.train.tokens(0, 7)


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
    first = open_store(write_store(tmp_path / "a")).fingerprint

    # Of a release that is out: cached pairs and the provenance of a run name it.
    assert first == "ae90a497b16f6854b244c28bafa50e8c2d18d927503024c9232c109221627e91"
    assert open_store(write_store(tmp_path / "b")).fingerprint == first
    assert open_store(write_store(tmp_path / "c", DOCUMENTS[:2])).fingerprint != first
    assert (
        open_store(
            write_store(tmp_path / "d", [[*DOCUMENTS[0], *DOCUMENTS[1]], DOCUMENTS[2]])
        ).fingerprint
        != first
    )
    assert (
        open_store(write_store(tmp_path / "e", tokenizer_fingerprint="other")).fingerprint != first
    )


def test_a_split_travels_to_other_processes(tmp_path):
    train = open_store(write_store(tmp_path / "store")).train

    assert documents_of(pickle.loads(pickle.dumps(train))) == DOCUMENTS
    assert len(pickle.dumps(train)) < 1000
    for method in ("spawn", "fork"):
        with ProcessPoolExecutor(1, mp_context=get_context(method)) as pool:
            assert pool.submit(train.tokens, 0, 6).result().tolist() == train.tokens(0, 6).tolist()


def test_splits_that_are_not_there(tmp_path):
    for split in ("train", "validation"):
        with new_writer(tmp_path / split) as writer:
            writer.add_document(split, [[5]])
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

    assert (
        train.num_documents,
        train.tokens(0, 0).tolist(),
        train.sentence_offsets(0, 0).tolist(),
    ) == (0, [], [0])


def test_values_that_make_no_store_are_refused(tmp_path):
    with new_writer(tmp_path / "store") as writer:
        for document in ([[100]], [[-1]], [[5], []], []):
            with pytest.raises(ValueError, match=r"outside|drop"):
                writer.add_document("train", document)
        with pytest.raises(ValueError, match="add up"):
            writer.add_batch("train", np.array([5, 6]), np.array([1]), np.array([1]))


def test_an_interrupted_writer_leaves_nothing(tmp_path):
    def interrupt():
        with new_writer(tmp_path / "store") as writer:
            writer.add_document("train", [[5]])
            assert any(entry.name.startswith(".store.partial-") for entry in tmp_path.iterdir())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.ColumnWriter, "_write_batch", fail)
    with pytest.raises(OSError, match="No space left"):
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
        ({"vocab_size": 101}, DAMAGED),
        ({"splits": {}}, DAMAGED),
        ({"special_ids": {**SPECIAL_IDS, "cls": 9}}, DAMAGED),
        ({"fingerprint": None}, DAMAGED),
        ({"tokenizer_fingerprint": "other"}, DAMAGED),
        ({"more": 1}, DAMAGED),
        *((text, DAMAGED) for text in ("[" * 100_000, "{", "\0")),
    ],
    ids=lambda value: str(value)[:30].replace("\0", "NUL"),
)
def test_changed_metadata_is_refused(tmp_path, change, message):
    path = write_store(tmp_path / "store")
    text = change if isinstance(change, str) else json.dumps({**metadata_of(path), **change})
    (path / "store.json").write_text(text)
    assert message in error_of(path)


@pytest.mark.parametrize("file", list(module.COLUMN_OF_FILE))
def test_files_that_are_not_what_was_written_are_refused(tmp_path, file):
    path = write_store(tmp_path / "store")
    open_store(path)
    part, name = path / "train" / file, module.COLUMN_OF_FILE[file].encode()
    whole = part.read_bytes()
    schema = pa.ipc.open_file(part).schema
    place = whole.index(module.Column(part, schema).slice(0, 4).tobytes())
    flipped = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
    for damaged in (
        whole[:-10],
        b"\0" * len(whole),
        flipped,
        whole.replace(name, b"\xff" + name[1:]),
    ):
        part.write_bytes(damaged)
        assert f"{part}: {DAMAGED}" in error_of(path)
    part.unlink()
    assert f"{path}: {DAMAGED}" in error_of(path)
    part.write_bytes(whole)
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
        write_store(Path(folder) / "store")
        with (
            without_rights(Path(folder) / "store" / name),
            pytest.raises((InputError, PermissionError)) as caught,
        ):
            open_store(Path(folder) / "store")
        said = str(caught.value)
        assert "Permission denied" in said
        assert f"{folder}/store" in said
        assert DAMAGED not in said
        open_store(Path(folder) / "store")


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
    data, rows = path.read_bytes(), (7).to_bytes(8, "little")
    found = [place for place in range(0, len(data) - 8, 8) if data[place : place + 8] == rows]
    refused = 0
    for place in found:
        path.write_bytes(data[:place] + (2**20).to_bytes(8, "little") + data[place + 8 :])
        try:
            open_store(tmp_path / "store").train.sentence_lengths(0, 6)
        except InputError:
            refused += 1
    assert refused


def test_files_of_different_stores_do_not_mix(tmp_path):
    path = write_store(tmp_path / "a")
    other = write_store(tmp_path / "b", [[[5, 6, 7], [8]], [[9]], [[5, 5], [6], [99, 7]]])
    shutil.copy(other / "train" / "sentences.arrow", path / "train" / "sentences.arrow")

    assert DAMAGED in error_of(path)


def test_another_tokenizer_is_refused(tmp_path):
    store = open_store(write_store(tmp_path / "store"))

    store.check_tokenizer("abc", 100)
    with pytest.raises(InputError, match="101 vocabulary entries given, the store has 100"):
        store.check_tokenizer("abc", 101)
    with pytest.raises(InputError, match="same vocabulary size, but other pieces"):
        store.check_tokenizer("other", 100)


def test_a_store_is_read_to_its_end_once(tmp_path, monkeypatch):
    """A large store is not read at every start; a file with another time is."""
    path = write_store(tmp_path / "store")
    read = []
    whole = module.Column.sha256
    monkeypatch.setattr(
        module.Column, "sha256", lambda column: read.append(column) or whole(column)
    )
    open_store(path)
    open_store(path)
    assert len(read) == 8  # four files of two splits
    os.utime(path / "train" / "tokens.arrow", ns=(1, 1))
    open_store(path)
    assert len(read) == 16


def test_a_store_that_cannot_be_written_to_is_compared_every_time(tmp_path, monkeypatch, caplog):
    path = write_store(tmp_path / "store")
    refused = PermissionError(13, "Permission denied")
    monkeypatch.setattr(Path, "write_text", lambda *args, **kwargs: (_ for _ in ()).throw(refused))
    with caplog.at_level(logging.INFO):
        assert documents_of(open_store(path).train) == DOCUMENTS
    assert "cannot be kept (Permission denied)" in caplog.text
    assert not (path / ".checked.json").exists()
