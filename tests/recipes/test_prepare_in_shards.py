"""A corpus in shards is the corpus; what is done stays done, whatever happens in between."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from small_corpora import WORDS, contents_of, write_vocabulary

from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.prepare import CorpusArguments, Preparation, plan_shards, prepare_store
from bert_recipes.data.store import open_store
from bert_recipes.errors import InputError
from bert_recipes.tokenization.loading import load_tokenizer


# Bytes of text; a file has about a hundred.
SMALL = 1e-9 * 250


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return write_vocabulary(tmp_path_factory.mktemp("tokenizer") / "vocab.txt")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """20 files of one document each, and one that holds nothing."""
    folder = tmp_path_factory.mktemp("texts")
    for number in range(20):
        color = WORDS[number % 3]
        line = f"The {color} apple falls! A {color} tree grows.\n"
        (folder / f"{number:02}.txt").write_text(line * (number % 3 + 1))
    (folder / "07a.txt").write_text("\n \n")
    return folder


def settings(vocabulary, texts, output, **options):
    common = {
        "num_processes": 1,
        "document_boundary": "file",
        "files": [str(texts)],
        "shard_gigabytes": SMALL,
    }
    return CorpusArguments(tokenizer=str(vocabulary), output_dir=str(output), **(common | options))


def prepare(vocabulary, texts, output, **options):
    arguments = settings(vocabulary, texts, output, **options)
    return prepare_store(arguments, load_tokenizer(vocabulary))


def arrays_of(split):
    return [
        split.sentence_offsets(0, split.num_documents),
        split.sentence_lengths(0, split.num_sentences),
        split.tokens(0, split.num_sentences),
        split.unigram_counts,
    ]


def test_files_are_cut_in_their_order_and_none_is_lost(tmp_path: Path):
    files = []
    for number, size in enumerate([10, 90, 5, 200, 1, 1]):
        (tmp_path / f"{number}.txt").write_bytes(b"x" * size)
        files.append(("train", tmp_path / f"{number}.txt"))
    shards = plan_shards(files, 100)
    assert [[path.name for _, path in shard] for shard in shards] == [
        ["0.txt", "1.txt"],
        ["2.txt", "3.txt"],
        ["4.txt", "5.txt"],
    ]
    assert [file for shard in shards for file in shard] == files


def test_a_store_of_shards_reads_like_one(vocabulary, texts, tmp_path):
    whole = prepare(vocabulary, texts, tmp_path / "whole", shard_gigabytes=1.0)
    parts = prepare(vocabulary, texts, tmp_path / "parts")
    assert (len(whole.metadata["shards"]), len(parts.metadata["shards"]) > 5) == (1, True)
    assert all(
        parts.metadata[name] == whole.metadata[name] for name in ("splits", "dropped", "read")
    )
    one, many = open_store(tmp_path / "whole").train, open_store(tmp_path / "parts").train
    for expected, found in zip(arrays_of(one), arrays_of(many), strict=True):
        np.testing.assert_array_equal(found, expected)
    rng = np.random.default_rng(0)
    for _ in range(200):
        begin, end = sorted(rng.integers(0, one.num_sentences + 1, 2).tolist())
        np.testing.assert_array_equal(many.tokens(begin, end), one.tokens(begin, end))
        np.testing.assert_array_equal(
            many.sentence_lengths(begin, end), one.sentence_lengths(begin, end)
        )
        begin, end = sorted(rng.integers(0, one.num_documents + 1, 2).tolist())
        np.testing.assert_array_equal(
            many.sentence_offsets(begin, end), one.sentence_offsets(begin, end)
        )
    with pytest.raises(IndexError):
        many.tokens(0, one.num_sentences + 1)


def test_pairs_are_those_of_the_whole_store(vocabulary, texts, tmp_path):
    """Random next sentences come from any shard."""
    pairs = []
    for name, size in (("whole", 1.0), ("parts", SMALL)):
        prepare(vocabulary, texts, tmp_path / name, shard_gigabytes=size)
        store = open_store(tmp_path / name)
        data = PreTrainingDataset(
            store.train,
            cls_id=2,
            sep_id=3,
            store_fingerprint=store.fingerprint,
            max_seq_length=24,
            cache_dir=tmp_path,
        )
        pairs.append([data[(1, index)] for index in range(data.num_pairs(1))])
    for one, other in zip(*pairs, strict=True):
        np.testing.assert_array_equal(one["input_ids"], other["input_ids"])


def test_what_is_done_is_kept_and_the_result_is_the_same(vocabulary, texts, tmp_path):
    prepare(vocabulary, texts, tmp_path / "straight")
    stopped = Preparation(
        settings(vocabulary, texts, tmp_path / "again"), load_tokenizer(vocabulary)
    )
    with stopped.claimed():
        for number in range(3):
            stopped.write_shard(number)
    (
        tmp_path / ".again.shards" / "shards" / ".00003.partial-x"
    ).mkdir()  # a process was killed in the fourth
    kept = tmp_path / ".again.shards" / "shards" / "00001" / "store.json"
    before = kept.stat().st_mtime_ns, kept.stat().st_ino
    report = prepare(vocabulary, texts, tmp_path / "again")
    assert report.kept_shards == 3
    after = (tmp_path / "again" / "shards" / "00001" / "store.json").stat()
    assert (after.st_mtime_ns, after.st_ino) == before
    assert contents_of(tmp_path / "again") == contents_of(tmp_path / "straight")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "straight"]


@pytest.mark.parametrize("how", ["one bit", "cut short", "missing", "metadata"])
def test_a_damaged_shard_is_made_anew(vocabulary, texts, tmp_path, caplog, how):
    prepare(vocabulary, texts, tmp_path / "straight")
    stopped = Preparation(
        settings(vocabulary, texts, tmp_path / "again"), load_tokenizer(vocabulary)
    )
    with stopped.claimed():
        for number in range(3):
            stopped.write_shard(number)
    place = tmp_path / ".again.shards" / "shards" / "00001"
    file = place / "store.json" if how == "metadata" else place / "train" / "tokens.arrow"
    content = bytearray(file.read_bytes())
    values = open_store(place).train.tokens(0, 1).tobytes()
    if how == "one bit":
        content[content.index(values)] ^= 1
        file.write_bytes(bytes(content))
    elif how == "missing":
        file.unlink()
    else:
        file.write_bytes(bytes(content[: len(content) // 2]))
    assert prepare(vocabulary, texts, tmp_path / "again").kept_shards == 2
    assert "the shard is made again" in caplog.text
    assert contents_of(tmp_path / "again") == contents_of(tmp_path / "straight")


@pytest.mark.parametrize("change", ["settings", "shards", "tokenizer"])
def test_shards_of_another_preparation_are_not_mixed_in(vocabulary, texts, tmp_path, change):
    stopped = Preparation(settings(vocabulary, texts, tmp_path / "out"), load_tokenizer(vocabulary))
    with stopped.claimed():
        stopped.write_shard(0)
    other, options = vocabulary, {}
    if change == "settings":
        options = {"sentences": "lines"}
    elif change == "shards":
        options = {"files": [str(texts / "0*.txt")]}
    else:
        other = tmp_path / "vocab.txt"
        other.write_text(vocabulary.read_text() + "more\n")
    with pytest.raises(InputError, match=f"earlier preparation with other {change}"):
        prepare(other, texts, tmp_path / "out", **options)


def test_two_at_once_are_refused(vocabulary, texts, tmp_path):
    first = Preparation(settings(vocabulary, texts, tmp_path / "out"), load_tokenizer(vocabulary))
    with first.claimed(), pytest.raises(InputError, match="another process prepares it"):
        prepare(vocabulary, texts, tmp_path / "out")


@pytest.mark.parametrize(
    "file", ["store.json", "shards/00002/store.json", "shards/00002/train/tokens.arrow"]
)
def test_a_store_that_is_not_whole_is_refused(vocabulary, texts, tmp_path, file):
    prepare(vocabulary, texts, tmp_path / "out")
    (tmp_path / "out" / file).unlink()
    with pytest.raises(InputError, match=r"damaged or incomplete|no store\.json"):
        open_store(tmp_path / "out")


def test_a_shard_of_another_store_is_refused(vocabulary, texts, tmp_path):
    prepare(vocabulary, texts, tmp_path / "out")
    (tmp_path / "out" / "shards" / "00001").rename(tmp_path / "aside")
    (tmp_path / "out" / "shards" / "00000").rename(tmp_path / "out" / "shards" / "00001")
    (tmp_path / "aside").rename(tmp_path / "out" / "shards" / "00000")
    with pytest.raises(InputError, match="damaged or incomplete"):
        open_store(tmp_path / "out")


@pytest.mark.slow
def test_a_kill_in_the_middle_loses_nothing_that_is_done(repository, vocabulary, tmp_path):
    """The command, killed by SIGKILL with two shards done, and given again."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(6):
        (texts / f"{number}.txt").write_text(f"Red apple {number}. Green pear!\n\n" * 60_000)
    command = [
        sys.executable,
        repository / "recipes" / "prepare_corpus.py",
        "--num_processes",
        1,
        "--files",
        texts,
    ]
    command += [
        "--tokenizer",
        vocabulary,
        "--shard_gigabytes",
        "0.001",
        "--output_dir",
        tmp_path / "store",
    ]
    command = list(map(str, command))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    place = tmp_path / ".store.shards" / "shards"
    deadline = time.monotonic() + 120
    while not (place / "00001" / "store.json").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "store").exists()
    done = {
        path.name: path.stat().st_ino
        for path in place.glob("0*")
        if (path / "store.json").is_file()
    }
    assert len(done) >= 2
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert finished.returncode == 0, finished.stderr
    assert f"shards done before: {len(done)}\n" in finished.stdout
    for name, inode in done.items():
        assert (tmp_path / "store" / "shards" / name).stat().st_ino == inode
    metadata = json.loads((tmp_path / "store" / "store.json").read_text())
    assert metadata["splits"]["train"]["num_documents"] == 6 * 60_000
    assert open_store(tmp_path / "store").train.num_documents == 6 * 60_000


def test_a_shard_described_as_a_store_is_refused(vocabulary, texts, tmp_path):
    prepare(vocabulary, texts, tmp_path / "out", shard_gigabytes=1.0)
    (tmp_path / "out" / "shards" / "00000" / "store.json").write_bytes(
        (tmp_path / "out" / "store.json").read_bytes()
    )
    with pytest.raises(InputError, match="damaged or incomplete"):
        open_store(tmp_path / "out")
