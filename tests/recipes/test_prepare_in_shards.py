"""A corpus in shards is the corpus; what is done stays done, whatever happens in between."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from small_corpora import contents_of

from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.prepare import CorpusArguments, Preparation, plan_shards, prepare_store
from bert_recipes.data.store import open_store
from bert_recipes.errors import InputError
from bert_recipes.tokenization.loading import load_tokenizer


# Bytes of text; a file has about a hundred.
SMALL = 1e-9 * 250


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


def test_files_are_cut_in_their_order_and_none_is_lost(tmp_path):
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
    assert len(many.metadata["shards"]) > 4

    for name in ("splits", "dropped", "read"):
        assert many.metadata[name] == one.metadata[name]
    one, many = one.train, many.train
    for expected, array in zip(arrays_of(one), arrays_of(many), strict=True):
        np.testing.assert_array_equal(array, expected)
    rng = np.random.default_rng(0)
    for _ in range(100):
        start, end = sorted(rng.integers(0, one.num_sentences + 1, 2).tolist())
        np.testing.assert_array_equal(many.tokens(start, end), one.tokens(start, end))

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
    inode = (cut_off / "00001" / "store.json").stat().st_ino

    assert prepare(tmp_path / "again").kept_shards == 3
    assert (tmp_path / "again" / "shards" / "00001" / "store.json").stat().st_ino == inode
    assert contents_of(tmp_path / "again") == contents_of(straight)
    assert [path.name for path in tmp_path.iterdir()] == ["again"]


def cut_short(file):
    file.write_bytes(file.read_bytes()[:-10])


def flip_a_bit(file):
    tokens = open_store(file.parents[1]).train.tokens(0, 1).tobytes()
    content = bytearray(file.read_bytes())
    content[content.index(tokens)] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("train/tokens.arrow", flip_a_bit),
        ("train/tokens.arrow", cut_short),
        ("train/tokens.arrow", Path.unlink),
        ("store.json", cut_short),
    ],
)
def test_a_damaged_shard_is_made_anew(prepare, straight, cut_off, tmp_path, caplog, name, damage):
    damage(cut_off / "00001" / name)

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


def swap_shards(store):
    (store / "shards" / "00001").rename(store / "aside")
    (store / "shards" / "00000").rename(store / "shards" / "00001")
    (store / "aside").rename(store / "shards" / "00000")


def describe_shard_as_store(store):
    shutil.copy(store / "store.json", store / "shards" / "00000" / "store.json")


@pytest.mark.parametrize(
    "damage",
    [
        lambda store: (store / "store.json").unlink(),
        lambda store: (store / "shards" / "00002" / "train" / "tokens.arrow").unlink(),
        swap_shards,
        describe_shard_as_store,
    ],
)
def test_a_store_that_is_not_whole_is_refused(straight, tmp_path, damage):
    store = shutil.copytree(straight, tmp_path / "store")
    damage(store)

    with pytest.raises(InputError, match=r"damaged or incomplete|no store\.json"):
        open_store(store)
