"""Whatever happens to the files of a store: reading it either works, or one line says what is
damaged.
"""

import shutil

import pytest


pytest.importorskip("hypothesis")

from broken_inputs import flipped
from fuzz_harness import Outcomes, empty_folder, fuzz, numbers, refusal_of
from hypothesis import strategies as st
from small_corpora import write_vocabulary

from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.prepare import CorpusArguments, prepare_store
from bert_recipes.data.store import open_store
from bert_recipes.tokenization.loading import load_tokenizer


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """The same text as one folder of files, and in shards."""
    folder = tmp_path_factory.mktemp("stores")
    tokenizer = load_tokenizer(write_vocabulary(folder / "vocab.txt"))
    (folder / "texts").mkdir()
    for number in range(6):
        paragraphs = [
            f"The red apple falls. A tree grows!\nMr. pear {'green ' * n}" for n in range(4)
        ]
        (folder / "texts" / f"{number}.txt").write_text("\n\n".join(paragraphs))
    for name, size in (("whole", 1.0), ("shards", 3e-7)):
        arguments = CorpusArguments(
            tokenizer=str(folder / "vocab.txt"),
            output_dir=str(folder / name),
            files=[str(folder / "texts")],
            validation_fraction=0.3,
            shard_gigabytes=size,
            num_processes=1,
        )
        prepare_store(arguments, tokenizer)
    return {name: folder / name for name in ("whole", "shards")}


@st.composite
def injuries(draw):
    """Which store, which of its files (by a number), and what becomes of it."""
    kind = draw(
        st.sampled_from(["flip", "flip", "flip", "cut", "add", "swap", "fill", "remove", "folder"])
    )
    numbers = draw(st.lists(st.integers(0, 2**16), min_size=3, max_size=3))
    is_head = draw(st.booleans())  # where the file says what it is
    return draw(st.sampled_from(["whole", "shards"])), kind, numbers, is_head


def injure(folder, kind, numbers, is_head):
    paths = [path for path in sorted(folder.rglob("*")) if "tokenizer" not in path.parts]
    paths = [path for path in paths if path.is_file()]
    path = paths[numbers[0] % len(paths)]
    data = path.read_bytes()
    place = numbers[1] % min(len(data), 700)
    if not is_head:
        place = len(data) - 1 - place
    if kind == "flip":
        path.write_bytes(flipped(data, place, 1 + numbers[2] % 255))
    elif kind == "cut":
        path.write_bytes(data[:place])
    elif kind == "add":
        path.write_bytes(data + bytes(1 + numbers[2] % 64))
    elif kind == "fill":
        path.write_bytes(data[:place] + bytes([numbers[2] % 256]) * (len(data) - place))
    elif kind == "swap":
        path.write_bytes(paths[numbers[2] % len(paths)].read_bytes())
    else:
        path.unlink()
        if kind == "folder":
            path.mkdir()


def read_all(folder, cache):
    """As training does, and then every sentence."""
    store = open_store(folder)
    for name in ("train", "validation"):
        if store.splits.get(name) is None:
            continue
        dataset = PreTrainingDataset.from_store(store, name, max_seq_length=32, cache_dir=cache)
        split = dataset.split
        for index in range(len(dataset)):
            assert dataset[index]["input_ids"].min() >= 0
        offsets = split.sentence_offsets(0, split.num_documents)
        lengths = split.sentence_lengths(0, split.num_sentences)
        assert offsets[-1] == len(lengths)
        for sentence, length in enumerate(lengths):
            assert len(split.tokens(sentence, sentence + 1)) == length
        assert len(split.unigram_counts) == store.vocab_size


@numbers(60, 800)
def test_a_damaged_store_is_read_or_refused_in_one_line(num_examples, stores, tmp_path):
    outcomes = Outcomes()

    def check(case):
        name, *injury = case
        with empty_folder(tmp_path / "input") as folder:
            shutil.copytree(stores[name], folder / "store")
            injure(folder / "store", *injury)
            outcomes.add(refusal_of(lambda: read_all(folder / "store", folder / "cache")))

    fuzz(injuries(), num_examples, check)
    outcomes.check(num_examples, kinds=2)
