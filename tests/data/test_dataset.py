"""PreTrainingDataset: right pairs, and the same ones whoever asks, in whatever order."""

import pickle
import random
import runpy
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

from bert_recipes.data import formats
from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.store import StoreWriter, open_store
from bert_recipes.errors import InputError


ORIGINAL = runpy.run_path(str(Path(__file__).parents[1] / "fixtures" / "original_rules.py"))
CLS, SEP = 2, 3
VOCAB_SIZE = 70_000


def write_store(path, documents):
    special_ids = {"pad": 0, "unk": 1, "cls": CLS, "sep": SEP, "mask": 4}
    with StoreWriter(
        path, vocab_size=VOCAB_SIZE, special_ids=special_ids, tokenizer_fingerprint="t"
    ) as writer:
        for document in documents:
            writer.add_document("train", document)
        writer.finish()
    return open_store(path).train


@pytest.fixture(scope="module")
def documents():
    """40 documents; every token occurs once, so that it tells where it comes from."""
    rng, token, documents = random.Random(5), 5, []
    for _ in range(40):
        documents.append([])
        for _ in range(rng.choice([1, 2, 10, 60])):
            length = rng.choice([1, 5, 12, 30, 90])
            documents[-1].append(list(range(token, token + length)))
            token += length
    return documents


@pytest.fixture(scope="module")
def store(documents, tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("store") / "store", documents)


@pytest.fixture
def make(store, tmp_path):
    def make_dataset(**settings):
        ids = {"cls_id": CLS, "sep_id": SEP, "store_fingerprint": "f"}
        return PreTrainingDataset(
            store, **{**ids, "max_seq_length": 64, "cache_dir": tmp_path / "cache", **settings}
        )

    return make_dataset


def parts(item):
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
def test_pairs_obey_the_rules_of_the_original(make, documents, max_seq_length):
    dataset = make(max_seq_length=max_seq_length)
    document_of = {
        t: d for d, sentences in enumerate(documents) for sentence in sentences for t in sentence
    }
    for epoch in range(2):
        lengths = dataset.lengths(epoch)
        assert len(lengths) == dataset.num_pairs(epoch)
        for index in range(dataset.num_pairs(epoch)):
            item = dataset[(epoch, index)]
            a, b = parts(item)
            assert item["key"] == (epoch, index)
            assert len(item["input_ids"]) == lengths[index] <= max_seq_length
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


def test_every_token_is_used_where_nothing_is_truncated(tmp_path):
    token, documents = 5, []
    for _ in range(30):
        documents.append([])
        for _ in range(20):
            documents[-1].append(list(range(token, token + 3)))
            token += 3
    dataset = PreTrainingDataset(
        write_store(tmp_path / "store", documents),
        cls_id=CLS,
        sep_id=SEP,
        store_fingerprint="f",
        max_seq_length=500,
        short_seq_prob=0.0,
    )
    seen = set()
    for item in map(dataset.__getitem__, range(len(dataset))):
        a, b = parts(item)
        # Put back: what follows A is in a pair of its own when B came from elsewhere.
        seen |= set(a) | (set() if item["next_sentence_label"] else set(b))
    assert seen == set(range(5, token))


def test_a_pair_does_not_depend_on_the_order_of_access(make, tmp_path):
    keys = [(epoch, index) for epoch in (0, 1) for index in range(make().num_pairs(epoch))]
    forwards = {key: make()[key] for key in keys[:50]}
    dataset, shuffled = make(cache_dir=tmp_path / "other"), keys[:]
    random.Random(1).shuffle(shuffled)
    items = {key: dataset[key] for key in shuffled}
    assert all(same(items[key], item) for key, item in forwards.items())


def test_an_index_alone_means_epoch_0(make):
    dataset = make()
    assert same(dataset[3], dataset[(0, 3)])
    assert same(dataset[np.int64(3)], dataset[(0, 3)])
    assert len(dataset) == dataset.num_pairs(0)


def test_epochs_seeds_and_settings_give_other_pairs(make):
    dataset = make()
    tables = {
        "epoch 0": dataset.table(0),
        "epoch 1": dataset.table(1),
        "seed": make(seed=1).table(0),
        "probability": make(short_seq_prob=1.0).table(0),
        "length": make(max_seq_length=128).table(0),
    }
    contents = {name: table.tobytes() for name, table in tables.items()}
    assert len(set(contents.values())) == len(contents)


def test_truncation_is_drawn_anew_each_epoch_but_always_the_same(make):
    first, second = make(), make()
    cut = [i for i in range(len(first)) if first.lengths(0)[i] == 64]
    assert len(cut) > 20
    assert all(same(first[i], second[i]) for i in cut)
    # Both ends are cut: some A lose their first token, some their last.
    fronts = [parts(first[i])[0][0] in {s[0] for s in _sentences(first)} for i in cut]
    assert any(fronts)
    assert not all(fronts)


def _sentences(dataset):
    return [dataset.store.tokens(s, s + 1).tolist() for s in range(dataset.store.num_sentences)]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(
    ("num_workers", "context"), [(0, None), (2, "fork"), (4, "fork"), (2, "spawn")]
)
def test_data_loading_workers_see_the_same_pairs(make, num_workers, context):
    dataset = make()
    keys = [(epoch, index) for epoch in (0, 1) for index in range(0, dataset.num_pairs(epoch), 3)]
    loader = DataLoader(
        dataset,
        batch_size=7,
        sampler=keys,
        num_workers=num_workers,
        collate_fn=list,
        multiprocessing_context=context,
    )
    items = [item for batch in loader for item in batch]
    reference = make()
    assert len(items) == len(keys)
    assert all(same(item, reference[key]) for item, key in zip(items, keys, strict=True))


def test_the_table_is_the_same_for_any_number_of_processes_and_blocks(make, monkeypatch):
    pairs = make().format

    def table(num_processes):
        return b"".join(rows.tobytes() for rows in pairs.index(3, num_processes))

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
    assert names == ["2.pairs", "3.pairs"]
    again = make()
    # The number of pairs is remembered: counting through past epochs builds nothing.
    assert [again.num_pairs(epoch) for epoch in range(4)] == counts
    assert len(list((tmp_path / "cache").glob("*.pairs"))) == 2
    assert same(again[(0, 7)], items[0])


def test_a_damaged_table_is_made_again(make, tmp_path):
    item = make()[5]
    (path,) = (tmp_path / "cache").glob("*.pairs")
    whole = path.read_bytes()
    # Of the sixth row another first sentence: a table of the right length.
    other = bytearray(whole)
    other[5 * 24] ^= 1
    for damage in (whole[:-24], b"", b"no table", bytes(other)):
        path.write_bytes(damage)
        assert same(make()[5], item)
        assert path.read_bytes() == whole
    count, num_pairs = path.with_suffix(".count"), len(make())
    # The second is that of a release that kept no hash.
    for damage in (b"", str(num_pairs).encode(), b"\xff 12"):
        count.write_bytes(damage)
        assert make().num_pairs(0) == num_pairs
        assert same(make()[5], item)


def test_splits_of_one_store_do_not_share_tables(store, documents, tmp_path):
    other = write_store(tmp_path / "store", documents[:20])
    datasets = [
        PreTrainingDataset(
            split, cls_id=CLS, sep_id=SEP, store_fingerprint="f", cache_dir=tmp_path / "cache"
        )
        for split in (store, other)
    ]
    assert len(datasets[0]) > len(datasets[1])


def test_the_cache_is_in_the_store_or_in_a_temporary_folder(
    documents, tmp_path, monkeypatch, caplog
):
    ids = {"cls_id": CLS, "sep_id": SEP, "store_fingerprint": "f"}
    store = write_store(tmp_path / "store", documents)
    item = PreTrainingDataset(store, **ids)[5]
    assert list((tmp_path / "store" / ".cache").glob("pairs-*.pairs"))
    # A file in the folder's place, because tests may run as root, who may write anywhere.
    other = write_store(tmp_path / "other", documents)
    (tmp_path / "other" / ".cache").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    assert same(PreTrainingDataset(other, **ids)[5], item)
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
    ],
)
def test_settings_out_of_range_are_named(make, settings, message):
    with pytest.raises(InputError, match=message):
        make(**settings)


def test_one_document_is_refused(tmp_path):
    store = write_store(tmp_path / "store", [[[5, 6], [7]]])
    with pytest.raises(InputError, match=r"1 document\(s\); next-sentence pairs need at least 2"):
        PreTrainingDataset(store, cls_id=CLS, sep_id=SEP, store_fingerprint="f")


def test_pairs_are_distributed_as_in_the_original(shared_data, tmp_path):
    # Words stand for tokens: what is compared is how sentences become pairs.
    text = (shared_data / "corpus" / "wiki" / "squad_train_articles.txt").read_text(
        encoding="utf-8"
    )
    documents, numbers = [], {}
    for article in text[:600_000].split("\n\n"):
        sentences = [part.split() for line in article.split("\n") for part in line.split(". ")]
        sentences = [
            [numbers.setdefault(word, len(numbers) + 5) for word in words]
            for words in sentences
            if words
        ]
        documents += [sentences] if sentences else []
    dataset = PreTrainingDataset(
        write_store(tmp_path / "store", documents), cls_id=CLS, sep_id=SEP, store_fingerprint="f"
    )
    epochs = range(12)
    ours = np.concatenate([dataset.lengths(epoch) for epoch in epochs])
    our_labels = [
        dataset[(e, i)]["next_sentence_label"] for e in epochs for i in range(dataset.num_pairs(e))
    ]
    rng, theirs, their_labels = random.Random(0), [], []
    for _ in epochs:
        for document in range(len(documents)):
            for tokens, _, is_random in ORIGINAL["pairs_of_document"](
                documents, document, 128, 0.1, rng
            ):
                theirs.append(len(tokens))
                their_labels.append(is_random)
    assert len(ours) > 5000
    assert abs(len(ours) / len(theirs) - 1) < 0.05
    assert abs(np.mean(our_labels) - np.mean(their_labels)) < 0.03
    assert abs(ours.mean() - np.mean(theirs)) < 3


def stream_of(documents, room, between):
    """What the blocks of a format hold, one behind the other, without [CLS]; and where a sentence
    that fits begins.
    """
    stream, begins = [], set()
    for number, document in enumerate(documents):
        for sentence in document:
            begins.add(len(stream))
            stream += [*sentence, SEP]
        if between and number + 1 < len(documents):
            begins.add(len(stream))
            stream.append(SEP)
    return stream, begins


@pytest.mark.parametrize("input_format", ["full_sentences", "doc_sentences"])
@pytest.mark.parametrize("block", [2**16, 50])
def test_blocks_hold_all_sentences_in_order_and_break_where_they_must(
    make, documents, monkeypatch, input_format, block
):
    """Liu et al. 2019, section 4.1: full sentences across documents with one more separator, or
    within documents.
    """
    monkeypatch.setattr(formats, "BLOCK_SENTENCES", block)
    dataset = make(input_format=input_format, pair_label="none")
    items = [dataset[index] for index in range(len(dataset))]
    assert dataset.lengths(0).tolist() == [len(item["input_ids"]) for item in items]
    assert all(item["input_ids"][0] == CLS and len(item["input_ids"]) <= 64 for item in items)
    assert all(set(item) == {"input_ids", "token_type_ids", "key"} for item in items)
    stream, begins = stream_of(documents, 63, input_format == "full_sentences")
    assert [token for item in items for token in item["input_ids"][1:].tolist()] == stream
    ends_of_documents = {stream.index(document[-1][-1]) + 2 for document in documents}
    place = 0
    for item, following in zip(items, [*items[1:], None], strict=True):
        place += len(item["input_ids"]) - 1
        if following is None:
            continue
        if place in begins or place in ends_of_documents:
            # No block ends before it must: what comes next did not fit, or is another document.
            after = min(begin for begin in begins | {len(stream)} if begin > place) - place
            is_end = input_format == "doc_sentences" and place in ends_of_documents
            assert is_end or len(item["input_ids"]) + after > 64 or after > 63
        else:
            assert len(item["input_ids"]) == 64  # a cut sentence fills its block
    if input_format == "doc_sentences":
        of = {
            token: number
            for number, document in enumerate(documents)
            for sentence in document
            for token in sentence
        }
        assert all(
            len({of[token] for token in item["input_ids"].tolist() if token > 4}) == 1
            for item in items
        )


def test_blocks_are_the_same_in_every_epoch_and_dupe_factor_repeats_pairs(make):
    blocks = make(input_format="full_sentences", pair_label="none")
    assert blocks[(5, 3)]["input_ids"].tolist() == blocks[(0, 3)]["input_ids"].tolist()
    assert blocks[(5, 3)]["key"] == (5, 3)  # other masks
    pairs = make(dupe_factor=2)
    assert pairs[(3, 4)]["key"] == (1, 4)
    assert pairs[(3, 4)]["input_ids"].tolist() == make()[(1, 4)]["input_ids"].tolist()
    many = make(dupe_factor=5)
    for epoch in range(5):
        many.table(epoch)
    tables = many._file("*", "pairs")
    assert len(list(tables.parent.glob(tables.name))) == 5  # none is built twice


def test_pairs_of_sentences_are_neighbours_or_from_another_document(make, documents):
    """Liu et al. 2019, section 4.2, SENTENCE-PAIR."""
    dataset = make(input_format="sentence_pair", max_seq_length=256)
    where = {
        sentence[0]: (number, place)
        for number, document in enumerate(documents)
        for place, sentence in enumerate(document)
    }
    labels, used = [], []
    for index in range(len(dataset)):
        item = dataset[index]
        first, second = parts(item)
        a, b = where[first[0]], where[second[0]]
        used.append(a)
        if item["next_sentence_label"] == 0:
            used.append(b)
            assert (a[0], a[1] + 1) == b
        else:
            assert a[0] != b[0]
        labels.append(item["next_sentence_label"])
    assert sorted(used) == sorted(where.values())
    assert 0.4 < np.mean(labels) < 0.75


def test_pairs_in_order_or_swapped_are_of_one_document_and_lone_sentences_have_no_label(
    make, documents
):
    """Lan et al. 2020, section 3.1."""
    dataset = make(pair_label="order")
    of = {
        token: number
        for number, document in enumerate(documents)
        for sentence in document
        for token in sentence
    }
    labels = []
    for index in range(len(dataset)):
        item = dataset[index]
        first, second = parts(item)
        label = item["next_sentence_label"]
        labels.append(label)
        if label == -100:
            assert of[first[0]] != of[second[0]]
        else:
            assert of[first[0]] == of[second[0]]
            assert (first[0] > second[0]) == bool(label)
    assert {-100, 0, 1} == set(labels)


def test_electras_examples_hold_all_sentences_and_fit(make, documents):
    dataset = make(input_format="electra", pair_label="none", max_seq_length=256)
    rows = [dataset[index] for index in range(len(dataset))]
    assert dataset.lengths(0).tolist() == [len(row["input_ids"]) for row in rows]
    assert max(len(row["input_ids"]) for row in rows) <= 256
    held = [token for row in rows for token in row["input_ids"].tolist() if token > 4]
    assert len(held) == len(set(held))
    # What does not fit is cut off: a little of it.
    assert len(held) > 0.8 * sum(len(sentence) for document in documents for sentence in document)
    assert {row["token_type_ids"].max() for row in rows} == {0, 1}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"input_format": "lines"}, "allowed: segment_pair"),
        (
            {"input_format": "full_sentences", "pair_label": "order"},
            "full_sentences has no order to learn",
        ),
    ],
)
def test_formats_that_are_not_there_or_do_not_fit_their_label_are_one_line(make, settings, message):
    with pytest.raises(InputError, match=message):
        make(**settings)
