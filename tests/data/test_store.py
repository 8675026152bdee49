"""The store: what is written is read back, whole or not at all; whatever is no whole store is refused in one line."""

import contextlib
import json
import logging
import os
import pickle
import shutil
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from bert_recipes.data import store as columns
from bert_recipes.data.store import COLUMN_OF_FILE, StoreWriter, open_store
from bert_recipes.errors import InputError


SPECIAL_IDS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
DAMAGED = "damaged or incomplete: prepare the store again"
DOCUMENTS = [[[5, 6, 7], [8]], [[9]], [[5, 5], [6], [99, 7, 5]]]


def new_writer(path, **options):
    settings = {"vocab_size": 100, "special_ids": SPECIAL_IDS, "tokenizer_fingerprint": "abc", **options}
    return StoreWriter(path, **settings)


def write_store(path, documents=DOCUMENTS, **options):
    with new_writer(path, **options) as writer:
        for document in documents:
            writer.add_document("train", document)
        writer.add_document("validation", [[1, 2], [3]])
        writer.finish(settings={"keep": "all"})
    return path


def write_and_interrupt(path, **options):
    with new_writer(path, **options) as writer:
        writer.add_document("train", [[5]])
        assert any(entry.name.startswith(".store.partial-") for entry in path.parent.iterdir())
        raise KeyboardInterrupt


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


@pytest.fixture(params=[2, 4, 2**20])
def rows_per_batch(request, monkeypatch):
    """Small batches put the edges between them everywhere."""
    monkeypatch.setattr(columns, "ROWS_PER_BATCH", request.param)
    return request.param


@pytest.mark.usefixtures("rows_per_batch")
def test_what_is_written_is_read_back(tmp_path):
    store = open_store(write_store(tmp_path / "store"))

    assert documents_of(store.train) == DOCUMENTS
    assert documents_of(store.validation) == [[[1, 2], [3]]]
    assert (store.train.num_documents, store.train.num_sentences, store.train.num_tokens) == (3, 6, 11)
    assert store.train.sentence_lengths(0, 6).tolist() == [3, 1, 1, 2, 1, 3]
    assert store.train.sentence_offsets(1, 3).tolist() == [2, 3, 6]
    assert store.train.tokens(1, 5).tolist() == [8, 9, 5, 5, 6]
    assert store.train.tokens(2, 2).tolist() == []
    assert (
        store.train.unigram_counts.tolist() == np.bincount([5, 6, 7, 8, 9, 5, 5, 6, 99, 7, 5], minlength=100).tolist()
    )


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
    highest = [[[vocab_size - 1]]]
    store = open_store(write_store(tmp_path / "store", highest, vocab_size=vocab_size))

    assert store.train.tokens(0, 1).dtype == dtype
    assert store.train.tokens(0, 1).tolist() == [vocab_size - 1]
    assert store.metadata["dtype"] == np.dtype(dtype).name


def test_metadata_tells_what_the_store_is(tmp_path):
    metadata = open_store(write_store(tmp_path / "store")).metadata

    assert metadata["format_version"] == 1
    assert metadata["tokenizer_fingerprint"] == "abc"
    assert metadata["vocab_size"] == 100
    assert metadata["special_ids"] == SPECIAL_IDS
    assert metadata["settings"] == {"keep": "all"}
    assert metadata["splits"]["train"]["num_tokens"] == 11


def test_the_fingerprint_follows_contents_and_tokenizer_only(tmp_path):
    first = open_store(write_store(tmp_path / "a")).fingerprint

    assert open_store(write_store(tmp_path / "b")).fingerprint == first
    assert open_store(write_store(tmp_path / "c", DOCUMENTS[:2])).fingerprint != first
    assert open_store(write_store(tmp_path / "d", [[*DOCUMENTS[0], *DOCUMENTS[1]], DOCUMENTS[2]])).fingerprint != first
    assert open_store(write_store(tmp_path / "e", tokenizer_fingerprint="other")).fingerprint != first


def test_a_split_travels_to_other_processes(tmp_path):
    train = open_store(write_store(tmp_path / "store")).train

    assert documents_of(pickle.loads(pickle.dumps(train))) == DOCUMENTS
    assert len(pickle.dumps(train)) < 1000
    for method in ("spawn", "fork"):
        with ProcessPoolExecutor(1, mp_context=get_context(method)) as pool:
            assert pool.submit(train.tokens, 0, 6).result().tolist() == train.tokens(0, 6).tolist()


def test_a_store_without_held_out_documents_says_so(tmp_path):
    with new_writer(tmp_path / "store") as writer:
        writer.add_document("train", [[5]])
        writer.finish()

    assert open_store(tmp_path / "store").validation is None


def test_rows_outside_are_an_error_and_no_wrong_tokens(tmp_path):
    train = open_store(write_store(tmp_path / "store")).train
    for begin, end in ((-1, 2), (0, 7), (4, 2)):
        with pytest.raises(IndexError):
            train.sentence_lengths(begin, end)
    with pytest.raises(IndexError):
        train.tokens(0, 7)


def test_values_that_make_no_store_are_refused(tmp_path):
    with new_writer(tmp_path / "store") as writer:
        for document in ([[100]], [[-1]], [[5], []], []):
            with pytest.raises(ValueError, match=r"outside|drop"):
                writer.add_document("train", document)
        with pytest.raises(ValueError, match="add up"):
            writer.add_batch("train", np.array([5, 6]), np.array([1]), np.array([1]))


def test_an_interrupted_writer_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write_and_interrupt(tmp_path / "store")

    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(columns.ColumnWriter, "_write_batch", fail)
    with pytest.raises(OSError, match="No space left"):
        write_store(tmp_path / "store")

    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_writer_leaves_is_named_and_no_store(tmp_path, caplog):
    killed = new_writer(tmp_path / "store")
    killed.add_document("train", [[5]])
    (leftover,) = tmp_path.iterdir()
    write_store(tmp_path / "store")

    assert str(leftover) in caplog.text
    assert "no store.json" in error_of(leftover)


def test_a_store_is_replaced_only_on_demand(tmp_path):
    path = write_store(tmp_path / "store")
    with pytest.raises(InputError, match="holds a store already"):
        new_writer(path)
    write_store(path, DOCUMENTS[:1], overwrite=True)

    assert documents_of(open_store(path).train) == DOCUMENTS[:1]
    assert [entry.name for entry in tmp_path.iterdir()] == ["store"]


def test_a_failed_replacement_keeps_the_old_store(tmp_path):
    path = write_store(tmp_path / "store")
    with pytest.raises(KeyboardInterrupt):
        write_and_interrupt(path, overwrite=True)

    assert documents_of(open_store(path).train) == DOCUMENTS


@pytest.mark.parametrize("overwrite", [False, True])
def test_anything_else_in_the_output_folder_is_never_touched(tmp_path, overwrite):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("text")
    (tmp_path / "file").write_text("text")
    for name in ("mine", "file"):
        with pytest.raises(InputError, match="is not a token store, so it is left alone"):
            new_writer(tmp_path / name, overwrite=overwrite)

    assert (tmp_path / "mine" / "thesis.txt").read_text() == "text"


def test_an_empty_output_folder_is_used(tmp_path):
    (tmp_path / "store").mkdir()

    assert documents_of(open_store(write_store(tmp_path / "store")).train) == DOCUMENTS


def test_missing_and_foreign_folders_are_refused(tmp_path):
    (tmp_path / "foreign").mkdir()
    assert "no such folder" in error_of(tmp_path / "nothing")
    assert "no store.json" in error_of(tmp_path / "foreign")
    for content in ('{"format": "other"}', "[]"):
        (tmp_path / "foreign" / "store.json").write_text(content)
        assert "not a token store of this project" in error_of(tmp_path / "foreign")


@pytest.mark.parametrize(
    "change",
    [
        {"format_version": 2},
        {"vocab_size": 101},
        {"vocab_size": None},
        {"splits": {}},
        {"splits": {"training": {}}},
        {"splits": {"train": {"files": {}}}},
        {"splits": {"train": None}},
        {"special_ids": {**SPECIAL_IDS, "cls": None}},
        {"special_ids": {**SPECIAL_IDS, "cls": 100}},
        {"special_ids": {}},
        {"fingerprint": None},
        {"tokenizer_fingerprint": "other"},
    ],
)
def test_changed_metadata_is_refused(tmp_path, change):
    path = write_store(tmp_path / "store")
    metadata = json.loads((path / "store.json").read_text())
    (path / "store.json").write_text(json.dumps({**metadata, **change}))
    assert DAMAGED in error_of(path)

    for name in change:
        del metadata[name]
    (path / "store.json").write_text(json.dumps(metadata))
    assert ("format version None" if "format_version" in change else DAMAGED) in error_of(path)


def test_a_store_of_a_later_release_is_refused(tmp_path):
    path = write_store(tmp_path / "store")
    metadata = json.loads((path / "store.json").read_text())
    (path / "store.json").write_text(json.dumps({**metadata, "format_version": 3}))

    assert "update bert-recipes" in error_of(path)


@pytest.mark.parametrize("file", ["tokens.arrow", "sentences.arrow", "documents.arrow", "unigram.arrow"])
def test_files_that_are_cut_short_missing_or_overwritten_are_refused(tmp_path, file):
    path = write_store(tmp_path / "store")
    part = path / "train" / file
    whole = part.read_bytes()

    part.write_bytes(whole[:-10])
    assert f"{part}: {DAMAGED}" in error_of(path)
    part.write_bytes(b"\0" * len(whole))
    assert f"{part}: {DAMAGED}" in error_of(path)
    part.unlink()
    assert f"{path}: {DAMAGED}" in error_of(path)


def test_values_of_another_type_are_refused(tmp_path):
    """The hash is of the bytes: it is that of int64."""
    path = write_store(tmp_path / "store")
    file = path / "train" / "sentences.arrow"
    values = np.array(columns.Column(file, "token_offset").slice(0, 7)).view(np.uint64)
    writer = columns.ColumnWriter(file, "token_offset", np.uint64)
    writer.append(values)
    writer.close()

    assert f"{file}: {DAMAGED}" in error_of(path)


def test_metadata_nested_without_end_is_refused(tmp_path):
    path = write_store(tmp_path / "store")
    (path / "store.json").write_text("[" * 100_000)

    assert DAMAGED in error_of(path)


def test_counts_that_the_files_do_not_hold_are_refused(tmp_path):
    path = write_store(tmp_path / "store")
    metadata = json.loads((path / "store.json").read_text())
    metadata["splits"]["validation"]["num_documents"] = 2
    (path / "store.json").write_text(json.dumps(metadata))

    assert DAMAGED in error_of(path)


@pytest.mark.parametrize("name", [b"token_offset", b"token_id"])
def test_a_column_name_that_is_no_text_is_damage(tmp_path, name):
    path = write_store(tmp_path / "store")
    file = path / "train" / {b"token_offset": "sentences.arrow", b"token_id": "tokens.arrow"}[name]
    file.write_bytes(file.read_bytes().replace(name, b"\xff" + name[1:]))

    assert f"{file}: {DAMAGED}" in error_of(path)


def test_a_file_that_claims_more_rows_than_it_has_bytes_for_is_refused(tmp_path):
    """Without a check numpy would read beyond the end of the memory map."""
    path = write_store(tmp_path / "store") / "train" / "sentences.arrow"
    data, rows = path.read_bytes(), (7).to_bytes(8, "little")
    found = [place for place in range(0, len(data) - 8, 8) if data[place : place + 8] == rows]
    assert found
    refused = 0
    for place in found:
        path.write_bytes(data[:place] + (2**20).to_bytes(8, "little") + data[place + 8 :])
        with contextlib.suppress(InputError):
            open_store(tmp_path / "store").train.sentence_lengths(0, 6)
            continue
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


def test_other_values_in_a_file_of_the_same_size_are_refused(tmp_path):
    path = write_store(tmp_path / "store")
    open_store(path)
    for file in sorted((path / "train").iterdir()):
        before = file.read_bytes()
        values = columns.Column(file, COLUMN_OF_FILE[file.name]).slice(0, 4).tobytes()
        place = before.index(values)
        file.write_bytes(before[:place] + bytes([before[place] ^ 1]) + before[place + 1 :])
        assert DAMAGED in error_of(path), file.name
        file.write_bytes(before)
    assert documents_of(open_store(path).train) == DOCUMENTS


def test_a_store_is_read_to_its_end_once(tmp_path, monkeypatch):
    """A large store is not read at every start; a file with another time is."""
    path = write_store(tmp_path / "store")
    read = []
    whole = columns.Column.sha256
    monkeypatch.setattr(columns.Column, "sha256", lambda column: read.append(column) or whole(column))
    open_store(path)
    assert len(read) == 8  # four files of two splits
    open_store(path)
    assert len(read) == 8
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
