"""A corpus becomes a store: what the recipes' own tests do not reach without the network."""

import errno
import json
import math
import os
from dataclasses import replace

import pytest
from small_corpora import write_vocabulary

from bert_recipes.data.prepare import (
    CorpusArguments,
    Preparation,
    find_sources,
    held_out_threshold,
    prepare_store,
)
from bert_recipes.data.store import StoreWriter, open_store
from bert_recipes.errors import InputError
from bert_recipes.tokenization.loading import load_tokenizer


def test_a_hub_corpus_is_read_once_beside_held_out_files_of_several_shards(tmp_path, monkeypatch):
    documents = [["The red apple falls.", "A tree grows."]] * 3
    reads = []
    monkeypatch.setattr(
        "bert_recipes.data.prepare.iter_hub_documents",
        lambda *args, **options: reads.append(args) or iter(documents),
    )
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("The red apple falls.\nA tree grows.\n")
    vocabulary = write_vocabulary(tmp_path / "vocab.txt")
    arguments = CorpusArguments(
        tokenizer=str(vocabulary),
        output_dir=str(tmp_path / "store"),
        dataset_name="owner/name",
        validation_files=[str(tmp_path / f"{number}.txt") for number in range(3)],
        shard_gigabytes=1e-9,
        num_processes=1,
    )
    splits = prepare_store(arguments, load_tokenizer(vocabulary)).metadata["splits"]

    assert reads == [(("owner/name", None, "train"),)]
    assert {split: entry["num_documents"] for split, entry in splits.items()} == {
        "train": 3,
        "validation": 3,
    }


@pytest.fixture
def preparation(tmp_path):
    """A preparation of `tmp_path / "a.txt"`, which is one shard."""
    (tmp_path / "a.txt").write_text("The red apple falls.\n\nA tree grows.\n")
    vocabulary = write_vocabulary(tmp_path / "vocab.txt")
    arguments = CorpusArguments(
        tokenizer=str(vocabulary),
        output_dir=str(tmp_path / "store"),
        files=[str(tmp_path / "a.txt")],
        num_processes=1,
    )
    return Preparation(arguments, load_tokenizer(vocabulary))


@pytest.mark.parametrize("time", [2**62, 0], ids=["in the future", "older"])
def test_a_shard_whose_text_has_changed_since_is_made_again_once(
    preparation, tmp_path, caplog, time
):
    """Also where its size has not, by which a preparation that goes on knows its files."""
    file = tmp_path / "a.txt"
    size = file.stat().st_size
    with preparation.claimed():
        sizes = [preparation.write_shard(0), preparation.write_shard(0)]
        os.utime(file, ns=(time, time))
        sizes += [preparation.write_shard(0), preparation.write_shard(0)]

    assert sizes == [size, None, size, None]
    assert caplog.text.count("a.txt has changed since; its shard is made again") == 1


def test_an_edit_that_changes_the_size_of_a_file_makes_its_shard_again_alone(tmp_path):
    """As a message asks for that names a broken character in the 41st shard of 60."""
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text("The red apple falls.\n\nA tree grows.\n")
    vocabulary = write_vocabulary(tmp_path / "vocab.txt")
    arguments = CorpusArguments(
        tokenizer=str(vocabulary),
        output_dir=str(tmp_path / "store"),
        files=[str(tmp_path / f"{name}.txt") for name in "abc"],
        shard_gigabytes=1e-9,
        num_processes=1,
    )
    (tmp_path / "b.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(InputError, match="not valid UTF-8"):
        prepare_store(arguments, load_tokenizer(vocabulary))
    (tmp_path / "b.txt").write_text("The red apple falls. A tree grows and falls.\n")

    assert prepare_store(arguments, load_tokenizer(vocabulary)).kept_shards == 1


def test_files_to_train_on_that_are_named_for_measuring_are_a_warning(tmp_path, caplog):
    names = ["wiki.train.raw", "wiki.test.raw", "latest.txt", "the_test_of_time.txt"]
    names += ["test-00000-of-00001.parquet", "valid.raw.GZ"]
    for name in names:
        (tmp_path / name).write_text("A tree grows.")
    arguments = CorpusArguments(tokenizer="t", output_dir="store", files=[str(tmp_path)])
    assert len(find_sources(arguments)) == len(names)
    (warning,) = caplog.messages
    assert warning.startswith("3 files to train on are named as if they were for measuring")
    assert "test-00000-of-00001.parquet" in warning
    for name in names[-2:]:
        (tmp_path / name).unlink()

    caplog.clear()
    held_out = replace(arguments, validation_files=[str(tmp_path / "wiki.test.raw")])
    splits = [split for split, _ in find_sources(held_out)]
    assert splits == ["train", "train", "train", "validation"]
    assert not caplog.messages


def test_held_out_files_beside_the_hub_take_the_place_of_a_fraction():
    values = {"dataset_name": "owner/name", "validation_files": ["a.txt"]}
    values["validation_fraction"] = 0.01  # of the configuration file
    reconciled = CorpusArguments.reconcile(values, {"validation_files"}, {})
    assert reconciled["validation_fraction"] == 0.0


def test_of_a_few_documents_of_the_hub_some_are_held_out(tmp_path, monkeypatch):
    documents = []
    for number in range(10):
        documents.append(["The red apple falls.", f"Tree {number} grows."])
    monkeypatch.setattr(
        "bert_recipes.data.prepare.iter_hub_documents", lambda *args, **options: iter(documents)
    )
    vocabulary = write_vocabulary(tmp_path / "vocab.txt")
    arguments = CorpusArguments(
        tokenizer=str(vocabulary),
        output_dir=str(tmp_path / "store"),
        dataset_name="owner/name",
        validation_fraction=0.001,
        num_processes=1,
    )
    splits = prepare_store(arguments, load_tokenizer(vocabulary)).metadata["splits"]

    assert [entry["num_documents"] for entry in splits.values()] == [8, 2]


def test_of_a_large_corpus_the_first_documents_are_read_to_know_how_many_are_held_out():
    draws = iter([0.5, 0.09, 0.3, 0.05, 0.7, 0.8])

    assert held_out_threshold(0.1, draws) == 0.1
    assert next(draws) == 0.7


def test_documents_of_the_same_text_count_once_among_those_held_out():
    draws = [0.7, 0.05, 0.05, 0.5, 0.4, 0.6, 0.8]

    assert held_out_threshold(0.1, draws) == math.nextafter(0.4, 1)


@pytest.fixture
def held_out_numbers(tmp_path):
    """Prepare documents that each hold a number; return the numbers to train on and held out."""
    vocabulary = write_vocabulary(tmp_path / "vocab.txt")
    with vocabulary.open("a") as file:
        file.writelines(f"{number}\n" for number in range(200))
    tokenizer = load_tokenizer(vocabulary)

    def prepare(files, **settings):
        paths = []
        for name, numbers in files.items():
            paths.append(str(tmp_path / name))
            text = "\n\n".join(f"The red apple falls.\n{number}" for number in numbers)
            (tmp_path / name).write_text(text)
        arguments = CorpusArguments(
            tokenizer=str(vocabulary),
            output_dir=str(tmp_path / "store"),
            files=paths,
            validation_fraction=0.2,
            num_processes=1,
            overwrite=True,
            **settings,
        )
        store = open_store(prepare_store(arguments, tokenizer).path)
        numbers_of_split = []
        for split in (store.train, store.validation):
            num_sentences = int(split.sentence_offsets(0, split.num_documents)[-1])
            words = tokenizer.decode(split.tokens(0, num_sentences)).split()
            numbers_of_split.append([int(word) for word in words if word.isdigit()])
        return numbers_of_split

    return prepare


@pytest.mark.parametrize("shard_gigabytes", [1.0, 1e-9], ids=["one shard", "a shard a file"])
def test_a_text_that_stands_twice_is_on_one_side(held_out_numbers, shard_gigabytes):
    files = {"a.txt": range(100), "b.txt": range(50, 150)}
    train, held_out = held_out_numbers(files, shard_gigabytes=shard_gigabytes)

    assert len(train) + len(held_out) == 200
    assert set(train).isdisjoint(held_out)
    assert 15 <= len(set(held_out)) <= 45


def test_what_is_held_out_stays_so_as_a_corpus_grows(held_out_numbers):
    _, held_out = held_out_numbers({"b.txt": range(100)})
    train_of_more, held_out_of_more = held_out_numbers(
        {"a.txt": range(100, 200), "b.txt": range(100)}
    )

    assert set(held_out) < set(held_out_of_more)
    assert set(train_of_more).isdisjoint(held_out)


def test_another_seed_holds_out_other_documents(held_out_numbers):
    _, held_out = held_out_numbers({"a.txt": range(100)})
    _, others = held_out_numbers({"a.txt": range(100)}, seed=2)

    assert set(held_out) != set(others)


def test_of_a_few_documents_in_several_shards_some_are_held_out(tmp_path):
    """A fraction that holds out fewer would be seen after the last shard, and all be deleted."""
    vocabulary = write_vocabulary(tmp_path / "vocab.txt")
    files = []
    for name in "abcdefgh":
        files.append(tmp_path / f"{name}.txt")
        files[-1].write_text(f"The red apple falls.\n\nTree {name} grows.\n")
    arguments = CorpusArguments(
        tokenizer=str(vocabulary),
        output_dir=str(tmp_path / "store"),
        files=list(map(str, files)),
        document_boundary="file",
        validation_fraction=0.001,
        shard_gigabytes=1e-9,
        num_processes=1,
    )
    metadata = prepare_store(arguments, load_tokenizer(vocabulary)).metadata

    assert len(metadata["shards"]) == 8
    splits = metadata["splits"]
    assert (splits["train"]["num_documents"], splits["validation"]["num_documents"]) == (6, 2)


def test_a_text_that_is_edited_before_its_shard_is_written_is_read_again(
    preparation, tmp_path, monkeypatch
):
    file = tmp_path / "a.txt"
    finish = StoreWriter.finish

    def edit_and_finish(writer, **description):
        file.write_text("A tree grows.\n\nThe red apple falls.\n")
        finish(writer, **description)

    with preparation.claimed():
        with monkeypatch.context() as context:
            context.setattr(StoreWriter, "finish", edit_and_finish)
            preparation.write_shard(0)

        assert preparation.write_shard(0) == file.stat().st_size


def test_shards_of_other_rules_are_not_mixed(preparation, monkeypatch):
    with preparation.claimed():
        preparation.write_shard(0)
    monkeypatch.setattr("bert_recipes.data.prepare.RULES_VERSION", 0)

    with pytest.raises(InputError, match="earlier preparation with other versions"):
        preparation.check_plan()


def test_a_join_that_fails_at_its_end_keeps_the_plan(preparation, tmp_path, monkeypatch):
    def fail(*folders):
        raise OSError(errno.EBUSY, "Device or resource busy")

    arguments = preparation.arguments
    with monkeypatch.context() as context:
        context.setattr("bert_recipes.data.prepare.put_in_place", fail)
        with pytest.raises(OSError, match="busy"):
            prepare_store(arguments, preparation.tokenizer)

    with pytest.raises(InputError, match="earlier preparation with other settings"):
        prepare_store(replace(arguments, sentences="lines"), preparation.tokenizer)
    assert prepare_store(arguments, preparation.tokenizer).kept_shards == 1
    assert {path.name for path in (tmp_path / "store").iterdir()} == {
        "shards",
        "store.json",
        "tokenizer",
    }


def test_shards_without_a_plan_are_not_taken_for_those_of_this_one(preparation, tmp_path):
    with preparation.claimed():
        preparation.write_shard(0)
    (tmp_path / ".store.shards" / "plan.json").unlink()

    with (
        pytest.raises(InputError, match=r"plan\.json: missing.*delete .*\.store\.shards"),
        preparation.claimed(),
    ):
        pass


def test_a_shard_is_not_written_beside_the_plan_of_a_later_command(
    preparation, tmp_path, monkeypatch
):
    """A job of Slurm reads its first shard while the text is given again with other settings."""
    later = Preparation(replace(preparation.arguments, sentences="lines"), preparation.tokenizer)
    add_batch = StoreWriter.add_batch

    def add_batch_after_the_later_command(*arguments):
        (tmp_path / ".store.shards" / "plan.json").write_text(json.dumps(later.plan()))
        add_batch(*arguments)

    monkeypatch.setattr(StoreWriter, "add_batch", add_batch_after_the_later_command)
    with (
        pytest.raises(InputError, match="belongs to a later command with other settings"),
        preparation.claimed(),
    ):
        preparation.write_shard(0)
    assert not list(tmp_path.glob(".store.shards/shards/[0-9]*"))


def test_shards_of_other_sampling_weights_are_not_mixed(preparation, tmp_path):
    """The same files are two sources, or three."""
    for name in ("en/0.txt", "en/1.txt", "sw/0.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("The red apple falls.\n\nA tree grows.\n")
    sources = replace(
        preparation.arguments,
        files=[str(tmp_path / "en"), str(tmp_path / "sw")],
        sampling_exponent=0.7,
    )
    two_sources = Preparation(sources, preparation.tokenizer)
    files = [str(path) for _, path in two_sources.files]
    three_sources = Preparation(replace(sources, files=files), preparation.tokenizer)
    with two_sources.claimed():
        two_sources.write_shard(0)

    assert three_sources.files == two_sources.files
    with pytest.raises(InputError, match="earlier preparation with other sampling_weights"):
        three_sources.check_plan()
