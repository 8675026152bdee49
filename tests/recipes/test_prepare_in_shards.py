"""A corpus in shards is the corpus; what is done stays done, whatever happens in between."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from small_corpora import contents_of, write_texts, write_vocabulary

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
    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def preparation_of(vocabulary, texts):
    """A preparation of the texts in a folder."""

    def make(output, tokenizer=vocabulary, **options):
        common = {
            "num_processes": 1,
            "document_boundary": "file",
            "files": [str(texts)],
            "shard_gigabytes": SMALL,
        }
        arguments = CorpusArguments(
            tokenizer=str(tokenizer), output_dir=str(output), **(common | options)
        )
        return Preparation(arguments, load_tokenizer(tokenizer))

    return make


@pytest.fixture(scope="module")
def prepare(preparation_of):
    def prepare_store_of(output, **options):
        preparation = preparation_of(output, **options)
        return prepare_store(preparation.arguments, preparation.tokenizer)

    return prepare_store_of


@pytest.fixture(scope="module")
def straight(prepare, tmp_path_factory):
    """The store of a preparation that nothing cut off."""
    output = tmp_path_factory.mktemp("straight") / "store"
    prepare(output)
    return output


@pytest.fixture
def store_copy(straight, tmp_path):
    return shutil.copytree(straight, tmp_path / "store")


@pytest.fixture
def cut_off(preparation_of, tmp_path):
    """The folder of three shards that a preparation of `tmp_path / "again"` has left."""
    preparation = preparation_of(tmp_path / "again")
    with preparation.claimed():
        for number in range(3):
            preparation.write_shard(number)
    return tmp_path / ".again.shards" / "shards"


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

    assert plan_shards(files, 100) == [files[:2], files[2:4], files[4:]]


@pytest.fixture(scope="module")
def whole(prepare, tmp_path_factory):
    """The store of one shard."""
    output = tmp_path_factory.mktemp("whole") / "store"
    prepare(output, shard_gigabytes=1.0)
    return output


def test_a_store_of_shards_reads_like_one(whole, straight):
    one, many = open_store(whole), open_store(straight)

    assert len(one.metadata["shards"]) == 1
    assert len(many.metadata["shards"]) > 5

    for name in ("splits", "dropped", "read"):
        assert many.metadata[name] == one.metadata[name]
    one, many = one.train, many.train
    for expected, array in zip(arrays_of(one), arrays_of(many), strict=True):
        np.testing.assert_array_equal(array, expected)
    rng = np.random.default_rng(0)

    for name, size in (
        ("tokens", one.num_sentences),
        ("sentence_lengths", one.num_sentences),
        ("sentence_offsets", one.num_documents),
    ):
        for _ in range(100):
            cut = sorted(rng.integers(0, size + 1, 2).tolist())
            np.testing.assert_array_equal(getattr(many, name)(*cut), getattr(one, name)(*cut))

    with pytest.raises(IndexError):
        many.tokens(0, one.num_sentences + 1)


def test_pairs_are_those_of_the_whole_store(whole, straight, tmp_path):
    """Random next sentences come from any shard."""
    datasets = []
    for path in (whole, straight):
        store = open_store(path)
        settings = {"max_seq_length": 24, "cache_dir": tmp_path}
        datasets.append(PreTrainingDataset.from_store(store, **settings))

    for index in range(datasets[0].num_pairs(1)):
        one, many = (dataset[(1, index)]["input_ids"] for dataset in datasets)
        np.testing.assert_array_equal(many, one)


def test_shards_that_are_done_are_kept_and_the_result_is_the_same(
    prepare, straight, cut_off, tmp_path
):
    (cut_off / ".00003.partial-x").mkdir()  # a process was killed in the fourth
    before = (cut_off / "00001" / "store.json").stat()

    assert prepare(tmp_path / "again").kept_shards == 3

    after = (tmp_path / "again" / "shards" / "00001" / "store.json").stat()

    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    assert contents_of(tmp_path / "again") == contents_of(straight)
    assert [path.name for path in tmp_path.iterdir()] == ["again"]


@pytest.mark.parametrize("damage", ["one bit", "cut short", "missing", "metadata"])
def test_a_damaged_shard_is_made_anew(prepare, straight, cut_off, tmp_path, caplog, damage):
    shard = cut_off / "00001"
    file = shard / "store.json" if damage == "metadata" else shard / "train" / "tokens.arrow"
    content = bytearray(file.read_bytes())
    if damage == "one bit":
        tokens = open_store(shard).train.tokens(0, 1).tobytes()
        content[content.index(tokens)] ^= 1
    else:
        del content[len(content) // 2 :]
    file.write_bytes(content)
    if damage == "missing":
        file.unlink()

    assert prepare(tmp_path / "again").kept_shards == 2
    assert "the shard is made again" in caplog.text
    assert contents_of(tmp_path / "again") == contents_of(straight)


@pytest.mark.usefixtures("cut_off")
@pytest.mark.parametrize("change", ["settings", "shards", "tokenizer"])
def test_shards_of_another_preparation_are_not_mixed_in(
    prepare, vocabulary, texts, tmp_path, change
):
    other_vocabulary = tmp_path / "vocab.txt"
    other_vocabulary.write_text(vocabulary.read_text() + "more\n")
    options = {
        "settings": {"sentences": "lines"},
        "shards": {"files": [str(texts / "0*.txt")]},
        "tokenizer": {"tokenizer": other_vocabulary},
    }

    with pytest.raises(InputError, match=f"earlier preparation with other {change}"):
        prepare(tmp_path / "again", **options[change])


def test_two_at_once_are_refused(preparation_of, prepare, tmp_path):
    with (
        preparation_of(tmp_path / "out").claimed(),
        pytest.raises(InputError, match="another process prepares it"),
    ):
        prepare(tmp_path / "out")


@pytest.mark.parametrize(
    "file", ["store.json", "shards/00002/store.json", "shards/00002/train/tokens.arrow"]
)
def test_a_store_that_is_not_whole_is_refused(store_copy, file):
    (store_copy / file).unlink()
    with pytest.raises(InputError, match=r"damaged or incomplete|no store\.json"):
        open_store(store_copy)


def test_a_shard_of_another_store_is_refused(store_copy):
    shards = store_copy / "shards"
    (shards / "00001").rename(shards / "aside")
    (shards / "00000").rename(shards / "00001")
    (shards / "aside").rename(shards / "00000")

    with pytest.raises(InputError, match="damaged or incomplete"):
        open_store(store_copy)


def test_a_shard_described_as_a_store_is_refused(whole, tmp_path):
    store = shutil.copytree(whole, tmp_path / "store")
    shutil.copy(store / "store.json", store / "shards" / "00000" / "store.json")

    with pytest.raises(InputError, match="damaged or incomplete"):
        open_store(store)


@pytest.mark.slow
def test_a_kill_in_the_middle_loses_nothing_that_is_done(repository, vocabulary, tmp_path):
    """The command, killed by SIGKILL with two shards done, and given again."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(6):
        (texts / f"{number}.txt").write_text(f"Red apple {number}. Green pear!\n\n" * 60_000)
    script = repository / "recipes" / "prepare_corpus.py"
    output = tmp_path / "store"
    command = [sys.executable, script, "--num_processes", "1", "--files", texts]
    command += ["--tokenizer", vocabulary, "--shard_gigabytes", "0.001", "--output_dir", output]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    shards = tmp_path / ".store.shards" / "shards"
    deadline = time.monotonic() + 120
    while not (shards / "00001" / "store.json").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)

    assert process.wait() == -signal.SIGKILL
    assert not output.exists()

    inodes = {file.parent.name: file.stat().st_ino for file in shards.glob("0*/store.json")}

    assert len(inodes) >= 2

    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert result.returncode == 0, result.stderr
    assert f"shards done before: {len(inodes)}\n" in result.stdout

    for name, inode in inodes.items():
        assert (output / "shards" / name / "store.json").stat().st_ino == inode

    assert open_store(output).train.num_documents == 6 * 60_000
