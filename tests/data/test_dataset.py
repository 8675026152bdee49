"""PreTrainingDataset: right pairs, and the same ones whoever asks, in whatever order."""

import multiprocessing
import pickle
import random
import re
import time
from collections import defaultdict
from functools import partial
from itertools import chain, count
from types import SimpleNamespace

import numpy as np
import original_rules
import pytest
from small_stores import add_document
from torch.utils.data import DataLoader

from bert_recipes.data import dataset as dataset_module
from bert_recipes.data import formats
from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.store import StoreWriter, open_store
from bert_recipes.errors import InputError


CLS, SEP = 2, 3
VOCAB_SIZE = 70_000


def write_store(path, documents):
    special_ids = {"pad": 0, "unk": 1, "cls": CLS, "sep": SEP, "mask": 4}
    with StoreWriter(
        path, vocab_size=VOCAB_SIZE, special_ids=special_ids, tokenizer_fingerprint="t"
    ) as writer:
        for document in documents:
            add_document(writer, "train", document)
        writer.finish()
    return open_store(path).train


@pytest.fixture(scope="module")
def documents():
    """40 documents; every token occurs once, so that it tells where it comes from."""
    rng = random.Random(5)
    token = 5
    documents = []
    for _ in range(40):
        sentences = []
        for _ in range(rng.choice([1, 2, 10, 60])):
            length = rng.choice([1, 5, 12, 30, 90])
            sentences.append(list(range(token, token + length)))
            token += length
        documents.append(sentences)
    return documents


@pytest.fixture(scope="module")
def document_of(documents):
    """Token -> number of its document."""
    numbers = {}
    for number, sentences in enumerate(documents):
        numbers |= dict.fromkeys(chain.from_iterable(sentences), number)
    return numbers


@pytest.fixture(scope="module")
def store(documents, tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("store") / "store", documents)


IDS = {"cls_id": CLS, "sep_id": SEP, "store_fingerprint": "f"}


@pytest.fixture
def make(store, tmp_path):
    defaults = {"max_seq_length": 64, "cache_dir": tmp_path / "cache"}
    return lambda **settings: PreTrainingDataset(store, **IDS, **(defaults | settings))


def items_of(dataset, epoch=0):
    return [dataset[(epoch, index)] for index in range(dataset.num_pairs(epoch))]


def segments(item):
    """A and B, after a look at everything around them."""
    ids, types = item["input_ids"].tolist(), item["token_type_ids"].tolist()
    assert item["input_ids"].dtype == item["token_type_ids"].dtype == np.int64
    boundary = types.index(1)
    assert types == [0] * boundary + [1] * (len(ids) - boundary)
    assert (ids[0], ids[boundary - 1], ids[-1]) == (CLS, SEP, SEP)
    return ids[1 : boundary - 1], ids[boundary:-1]


def same(first, second):
    return first["key"] == second["key"] and all(
        np.array_equal(first[name], second[name]) for name in first
    )


@pytest.mark.parametrize("max_seq_length", [8, 64, 512])
def test_pairs_obey_the_rules_of_the_original(make, document_of, max_seq_length):
    dataset = make(max_seq_length=max_seq_length)

    for epoch in range(2):
        items = items_of(dataset, epoch)
        assert dataset.lengths(epoch).tolist() == [len(item["input_ids"]) for item in items]
        for index, item in enumerate(items):
            a, b = segments(item)
            assert item["key"] == (epoch, index)
            assert len(item["input_ids"]) <= max_seq_length
            # Truncation only cuts ends, so both stay contiguous within one document.
            for tokens in (a, b):
                assert tokens == list(range(tokens[0], tokens[0] + len(tokens)))
                assert document_of[tokens[0]] == document_of[tokens[-1]]
            if item["next_sentence_label"] == 1:
                assert document_of[a[0]] != document_of[b[0]]
            elif len(item["input_ids"]) < max_seq_length:
                assert b[0] == a[-1] + 1
            else:
                assert b[0] > a[-1]
                assert document_of[a[0]] == document_of[b[0]]


def test_every_sentence_of_a_store_is_in_a_pair(make, store):
    """Sentences after A whose place a random one takes are put back."""
    sentences = set()
    for a_begin, b_begin, a_count, b_count, _, _ in make().table(0).tolist():
        sentences.update(range(a_begin, a_begin + a_count))
        sentences.update(range(b_begin, b_begin + b_count))

    assert sentences == set(range(store.num_sentences))


def test_a_pair_does_not_depend_on_the_order_of_access(make, tmp_path):
    dataset = make()
    keys = [(epoch, index) for epoch in (0, 1) for index in range(dataset.num_pairs(epoch))]
    shuffled = random.Random(1).sample(keys, len(keys))
    other = make(cache_dir=tmp_path / "other")
    items = {key: other[key] for key in shuffled}

    assert all(same(items[key], dataset[key]) for key in keys[:50])
    assert same(dataset[np.int64(3)], dataset[(0, 3)])
    assert len(dataset) == dataset.num_pairs(0)


def test_epochs_seeds_and_settings_give_other_pairs(make):
    datasets = [make(seed=1), make(short_seq_prob=1.0), make(max_seq_length=128)]
    tables = [make().table(0), make().table(1), *(dataset.table(0) for dataset in datasets)]
    assert len({table.tobytes() for table in tables}) == 5


def test_data_loading_workers_see_the_same_pairs(make):
    dataset = make()
    keys = [(epoch, index) for epoch in (0, 1) for index in range(0, dataset.num_pairs(epoch), 3)]
    loader = DataLoader(dataset, batch_size=7, sampler=keys, num_workers=2, collate_fn=list)
    items = list(chain.from_iterable(loader))

    assert len(items) == len(keys)
    assert all(same(item, dataset[key]) for item, key in zip(items, keys, strict=True))


def test_the_table_is_the_same_for_any_number_of_processes_and_blocks(make, monkeypatch):
    pairs = make().format

    def table(num_processes):
        return b"".join(rows.tobytes() for rows in pairs.build_table(3, num_processes))

    alone = table(1)

    assert len(alone) > 24

    monkeypatch.setattr(formats, "BLOCK_SENTENCES", 50)

    assert table(1) == alone

    monkeypatch.setattr(formats, "MIN_SENTENCES_PER_PROCESS", 1)

    assert table(2) == alone


def test_the_dataset_travels_without_its_maps(make):
    dataset = make()
    item = dataset[5]
    state = pickle.dumps(dataset)

    assert len(state) < 2000
    assert same(pickle.loads(state)[5], item)


def test_tables_of_older_epochs_are_deleted_and_made_again(make, tmp_path):
    dataset = make()
    items = {epoch: dataset[(epoch, 7)] for epoch in range(4)}
    counts = [dataset.num_pairs(epoch) for epoch in range(4)]
    names = sorted(path.name.rpartition("-")[2] for path in (tmp_path / "cache").glob("*.pairs"))

    assert names == ["1.pairs", "2.pairs", "3.pairs"]

    # Epochs that were counted first are trained on later.
    for epoch in range(8):
        dataset.num_pairs(epoch)
    for epoch in range(8):
        dataset.table(epoch)
    assert len(list((tmp_path / "cache").glob("*.pairs"))) == 6
    for path in (tmp_path / "cache").glob("*-[4567].pairs"):
        path.unlink()
    for epoch in (2, 3):
        make().table(epoch)

    make()[(9, 7)]

    # Who looks into one epoch alone takes nothing from a run.
    assert len(list((tmp_path / "cache").glob("*.pairs"))) == 3

    again = make()

    # The number of pairs is remembered: counting through past epochs builds nothing.
    assert [again.num_pairs(epoch) for epoch in range(4)] == counts
    assert len(list((tmp_path / "cache").glob("*.pairs"))) == 3
    assert same(again[(0, 7)], items[0])


def test_a_damaged_table_is_made_again(make, tmp_path):
    item = make()[5]
    (path,) = (tmp_path / "cache").glob("*.pairs")
    table = path.read_bytes()
    # Of the sixth row another first sentence: a table of the right length.
    changed = bytearray(table)
    changed[5 * 24] ^= 1
    for damage in (table[:-24], b"no table", bytes(changed)):
        path.write_bytes(damage)
        assert same(make()[5], item)
        assert path.read_bytes() == table

    count, num_pairs = path.with_suffix(".count"), len(make())
    # The second is that of a release that kept no hash.
    for damage in (b"", str(num_pairs).encode(), b"\xff 12"):
        count.write_bytes(damage)
        assert make().num_pairs(0) == num_pairs
        assert same(make()[5], item)


def test_splits_of_one_store_do_not_share_tables(make, documents, tmp_path):
    other = write_store(tmp_path / "store", documents[:20])
    dataset = PreTrainingDataset(other, **IDS, max_seq_length=64, cache_dir=tmp_path / "cache")
    assert len(dataset) < len(make())


def test_the_cache_is_in_the_store_or_in_a_temporary_folder(
    documents, tmp_path, monkeypatch, caplog
):
    store = write_store(tmp_path / "store", documents)
    item = PreTrainingDataset(store, **IDS)[5]

    assert list((tmp_path / "store" / ".cache").glob("pairs-*.pairs"))

    # A file in the folder's place, because tests may run as root, who may write anywhere.
    other = write_store(tmp_path / "other", documents)
    (tmp_path / "other" / ".cache").touch()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))

    assert same(PreTrainingDataset(other, **IDS)[5], item)
    assert "cannot be written to" in caplog.text
    assert list((tmp_path / "temporary").glob("*/pairs-*.pairs"))


def test_indices_outside_an_epoch_are_errors(make):
    dataset = make()
    for index in (-1, len(dataset)):
        with pytest.raises(IndexError, match=f"pair {index} of epoch 0"):
            dataset[(0, index)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_seq_length": 7}, "max_seq_length: 7 given, allowed are 8 to 65535"),
        ({"max_seq_length": 70_000}, "max_seq_length: 70000 given"),
        ({"short_seq_prob": -0.1}, "short_seq_prob: -0.1 given"),
        ({"num_workers": 0}, "num_workers: 0 given"),
        ({"input_format": "lines"}, "allowed: segment_pair"),
        ({"input_format": "full_sentences", "pair_label": "order"}, "has no order to learn"),
    ],
)
def test_settings_that_cannot_be_are_named(make, settings, message):
    with pytest.raises(InputError, match=message):
        make(**settings)


def test_one_document_is_refused(tmp_path):
    store = write_store(tmp_path / "store", [[[5, 6], [7]]])
    with pytest.raises(InputError, match=r"1 document\(s\) in \w+; pairs need 2"):
        PreTrainingDataset(store, **IDS)


def test_pairs_are_distributed_as_in_the_original(shared_data, tmp_path):
    # Words stand for tokens: what is compared is how sentences become pairs.
    articles = shared_data / "corpus" / "wiki" / "squad_train_articles.txt"
    number_of_word = defaultdict(count(5).__next__)
    documents = []
    for article in articles.read_text(encoding="utf-8")[:600_000].split("\n\n"):
        sentences = [sentence.split() for sentence in re.split(r"\n|\. ", article)]
        sentences = [[number_of_word[word] for word in words] for words in sentences if words]
        documents += [sentences] if sentences else []

    dataset = PreTrainingDataset(write_store(tmp_path / "store", documents), **IDS)
    epochs = range(8)
    lengths = np.concatenate([dataset.lengths(epoch) for epoch in epochs])
    labels = np.concatenate([dataset.table(epoch)["label"] for epoch in epochs])
    rng = random.Random(0)
    original_pairs = []
    for _ in epochs:
        for document in range(len(documents)):
            original_pairs += original_rules.pairs_of_document(documents, document, 128, 0.1, rng)
    original_lengths = [len(tokens) for tokens, _, _ in original_pairs]
    original_labels = [is_random for _, _, is_random in original_pairs]

    assert len(lengths) > 5000
    assert abs(len(lengths) / len(original_pairs) - 1) < 0.05
    assert abs(np.mean(labels) - np.mean(original_labels)) < 0.03
    assert abs(np.mean(lengths) - np.mean(original_lengths)) < 3


def stream_of(documents, has_separators):
    """The tokens of all blocks without [CLS], and where a sentence or separator begins."""
    stream, begins = [], set()
    for number, document in enumerate(documents):
        for sentence in document:
            begins.add(len(stream))
            stream += [*sentence, SEP]
        if has_separators and number + 1 < len(documents):
            begins.add(len(stream))
            stream.append(SEP)
    return stream, begins | {len(stream)}


@pytest.mark.parametrize("input_format", ["full_sentences", "doc_sentences"])
@pytest.mark.parametrize("block", [2**16, 50])
def test_blocks_hold_all_sentences_in_order_and_break_where_they_must(
    make, documents, document_of, monkeypatch, input_format, block
):
    """Liu et al. 2019, section 4.1: full sentences across documents with one more separator, or
    within documents.
    """
    monkeypatch.setattr(formats, "BLOCK_SENTENCES", block)
    dataset = make(input_format=input_format, pair_label="none")
    items = items_of(dataset)

    assert all(set(item) == {"input_ids", "token_type_ids", "key"} for item in items)

    blocks = [item["input_ids"].tolist() for item in items]

    assert dataset.lengths(0).tolist() == list(map(len, blocks))
    assert all(block[0] == CLS and len(block) <= 64 for block in blocks)

    stream, begins = stream_of(documents, input_format == "full_sentences")

    assert [token for block in blocks for token in block[1:]] == stream

    ends_of_documents = {stream.index(document[-1][-1]) + 2 for document in documents}
    place = 0

    for block in blocks[:-1]:
        place += len(block) - 1
        if place not in begins and place not in ends_of_documents:
            assert len(block) == 64  # a cut sentence fills its block
        elif input_format == "full_sentences" or place not in ends_of_documents:
            # No block ends before it must: the next sentence did not fit.
            next_size = min(begin for begin in begins if begin > place) - place
            assert len(block) + next_size > 64

    if input_format == "doc_sentences":
        for block in blocks:
            assert len({document_of[token] for token in block if token > 4}) == 1


def test_documents_that_do_not_fill_an_input_wait_for_the_next_ones(tmp_path, monkeypatch):
    """Of the first documents no row is made: the block ends with the documents that follow."""
    monkeypatch.setattr(formats, "BLOCK_SENTENCES", 2)
    store = write_store(tmp_path / "store", [[[5, 6]], [[7], [8], [9]]])
    dataset = PreTrainingDataset(
        store, **IDS, max_seq_length=64, input_format="full_sentences", pair_label="none"
    )
    (item,) = items_of(dataset)
    assert item["input_ids"].tolist() == [CLS, 5, 6, SEP, SEP, 7, SEP, 8, SEP, 9, SEP]


def test_blocks_are_the_same_in_every_epoch_and_dupe_factor_repeats_pairs(make):
    blocks = make(input_format="full_sentences", pair_label="none")

    assert blocks[(5, 3)]["input_ids"].tolist() == blocks[(0, 3)]["input_ids"].tolist()
    assert blocks[(5, 3)]["key"] == (5, 3)  # other masks

    pairs = make(dupe_factor=2)

    assert same(pairs[(3, 4)], make()[(1, 4)])

    many = make(dupe_factor=5)
    for epoch in range(5):
        many.table(epoch)
    tables = many._file("*", "pairs")

    assert len(list(tables.parent.glob(tables.name))) == 5  # none is built twice


def test_pairs_of_sentences_are_neighbours_or_from_another_document(make, documents, document_of):
    """Liu et al. 2019, section 4.2, SENTENCE-PAIR."""
    items = items_of(make(input_format="sentence_pair", max_seq_length=256))
    first_tokens = [sentence[0] for sentence in chain.from_iterable(documents)]
    used = []

    for item in items:
        a, b = segments(item)
        used.append(a[0])
        if item["next_sentence_label"] == 0:
            used.append(b[0])
            assert b[0] == a[-1] + 1
        assert (document_of[a[0]] != document_of[b[0]]) == item["next_sentence_label"]

    assert sorted(used) == first_tokens
    assert 0.4 < np.mean([item["next_sentence_label"] for item in items]) < 0.75


def test_pairs_in_order_or_swapped_are_of_one_document_and_lone_sentences_have_no_label(
    make, document_of
):
    """Lan et al. 2020, section 3.1."""
    items = items_of(make(pair_label="order"))

    for item in items:
        a, b = segments(item)
        label = item["next_sentence_label"]
        assert (document_of[a[0]] != document_of[b[0]]) == (label == -100)
        if label != -100:
            assert (a[0] > b[0]) == bool(label)

    assert {-100, 0, 1} == {item["next_sentence_label"] for item in items}


def test_electras_examples_hold_all_sentences_and_fit(make, document_of):
    dataset = make(input_format="electra", pair_label="none", max_seq_length=256)
    items = items_of(dataset)
    lengths = [len(item["input_ids"]) for item in items]

    assert dataset.lengths(0).tolist() == lengths
    assert max(lengths) <= 256

    tokens = [token for item in items for token in item["input_ids"].tolist() if token > 4]

    assert len(tokens) == len(set(tokens))
    # A few tokens do not fit and are cut off.
    assert len(tokens) > 0.8 * len(document_of)
    assert {item["token_type_ids"].max() for item in items} == {0, 1}


def start_builder(dataset, epoch):
    others = set(multiprocessing.active_children())
    dataset.build_ahead(epoch)
    (builder,) = set(multiprocessing.active_children()) - others
    return builder


def build_ahead(dataset, epoch):
    builder = start_builder(dataset, epoch)
    builder.join()
    assert builder.exitcode == 0


def test_a_table_that_is_built_ahead_is_the_one_that_its_reader_builds(make, tmp_path, capfd):
    ahead = make(cache_dir=tmp_path / "ahead")
    here = make(cache_dir=tmp_path / "here")

    build_ahead(ahead, 1)

    (table,) = (tmp_path / "ahead").glob("*.pairs")
    assert table.name.endswith("-epoch-1.pairs")
    assert table.read_bytes() == here.table(1).tobytes()
    assert capfd.readouterr() == ("", "")


def test_a_table_that_is_there_is_not_built_ahead(make):
    dataset = make()
    dataset.table(1)
    before = multiprocessing.active_children()

    dataset.build_ahead(1)

    assert multiprocessing.active_children() == before


def test_a_run_that_builds_ahead_deletes_the_tables_that_it_has_done_with(make, tmp_path):
    make().table(0)  # of an earlier run: this one reads its count alone
    dataset = make()

    for epoch in (1, 2, 3):
        assert dataset.num_pairs(epoch - 1)
        build_ahead(dataset, epoch)

    names = sorted(path.stem.rpartition("-")[2] for path in (tmp_path / "cache").glob("*.pairs"))
    assert names == ["1", "2", "3"]


@pytest.mark.parametrize(("end", "code"), [("terminate", 143), ("kill", -9)])
def test_a_table_of_which_a_builder_was_ended_is_built_by_its_reader(
    make, tmp_path, monkeypatch, end, code
):
    """SIGTERM is what a process that ends sends; it would wait for one that does not end."""
    cache = tmp_path / "cache"
    dataset = make()
    with monkeypatch.context() as patch:
        sleep = iter(partial(time.sleep, 60), 0)
        patch.setattr(formats.SegmentPairs, "build_table", lambda *args: sleep)
        builder = start_builder(dataset, 1)
        while not list(cache.glob(".*.tmp")):
            time.sleep(0.01)
        getattr(builder, end)()
        builder.join(timeout=20)
    assert builder.exitcode == code
    assert bool(list(cache.glob(".*.tmp"))) == (end == "kill")

    assert np.array_equal(dataset.table(1), make(cache_dir=tmp_path / "other").table(1))
    assert not list(cache.glob(".*.tmp"))


def test_other_rules_have_tables_of_their_own(make, monkeypatch, tmp_path):
    """An edit of the rules would otherwise show the pairs of before."""
    rules = tmp_path / "rules.py"
    rules.write_text("CHANCE = 0.5\n")
    monkeypatch.setattr(dataset_module, "DRAWING_MODULES", (SimpleNamespace(__file__=rules),))
    before = make().index_name
    assert make().index_name == before
    rules.write_text("CHANCE = 0.3\n")
    assert make().index_name != before
