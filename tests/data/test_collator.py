"""The collator: padded tensors, and masks that follow from keys."""

import numpy as np
import pytest
import torch

from bert_recipes.data.collator import (
    DataCollatorForPreTraining,
    count_characters,
    find_continuations,
)
from bert_recipes.errors import InputError


class Vocabulary:
    """The attributes of a tokenizer that the collator uses."""

    pad_token_id, cls_token_id, sep_token_id, mask_token_id = 0, 2, 3, 4

    def __init__(self, pieces=None):
        if pieces is None:
            pieces = [f"##{number}" if number % 4 == 0 else f"{number}" for number in range(200)]
        self.pieces = pieces

    def __len__(self):
        return len(self.pieces)

    def get_vocab(self):
        return {piece: number for number, piece in enumerate(self.pieces)}


def collate(features, **settings):
    return DataCollatorForPreTraining(Vocabulary(), **settings)(features)


def make_features(rows=6, seed=0):
    rng = np.random.default_rng(seed)
    features = []
    for index in range(rows):
        length = int(rng.integers(10, 40))
        ids = rng.integers(5, 200, length)
        ids[[0, length // 2, -1]] = 2, 3, 3
        feature = {
            "input_ids": ids,
            "token_type_ids": (np.arange(length) > length // 2).astype(np.int64),
            "next_sentence_label": int(rng.integers(0, 2)),
            "key": (1, index),
        }
        features.append(feature)
    return features


SENTENCEPIECES = ["\u2581the", "S", "ing", ".", "-", "'", "'s", "19", "\u00e9t", "\u044f"]
SENTENCEPIECES += ["\u20ac", "<unk>", "u.s", "\u2581,", "..."]


@pytest.mark.parametrize(
    ("pieces", "going_on"),
    [
        (["the", "##s", "a"], ["##s"]),
        # Byte-level, with the hashes of a heading.
        (["\u0120the", "s", "##", "\u0120a", "a"], ["s", "##", "a"]),
        # google-research/albert create_pretraining_data.py, `_is_start_piece_sp`: punctuation,
        # digits and other letters begin a word.
        (SENTENCEPIECES, ["S", "ing", "u.s", "..."]),
        # A mark of most pieces alone decides: none of this is SentencePiece's.
        (["\u0120the", ".", "19", "\u0120a"], [".", "19"]),
        (["the", "##.", ".", "##19"], ["##.", "##19"]),
        (["the", "a"], []),
    ],
)
def test_what_goes_on_with_a_word_follows_the_mark_of_most_pieces(pieces, going_on):
    goes_on = find_continuations(Vocabulary(pieces).get_vocab(), len(pieces))
    assert np.array(pieces)[goes_on].tolist() == going_on


@pytest.mark.parametrize(
    ("pieces", "lengths"),
    [
        (["the", "##s", "a", "[MASK]", "[", "\u4e2d", "##\u00e9s"], [3, 1, 1, 1, 1, 1, 2]),
        (["\u2581the", "s", "\u2581", "\u2581a", "<unk>", "<"], [3, 1, 0, 1, 1, 1]),
        # These begin like special tokens, and are text.
        (["\u0120the", "<b", "[x]", "<s>"], [3, 2, 3, 1]),
        # Of the bytes of an é, a Hindi letter and a part of one, the first alone counts.
        (["\u0120the", "\u0120\u00c3\u00a9s", "\u00e0\u00a4\u00b9", "\u00a4\u00b9"], [3, 2, 1, 0]),
    ],
)
def test_a_piece_stands_for_its_characters_without_its_mark(pieces, lengths):
    vocabulary = Vocabulary(pieces).get_vocab()
    special_ids = [vocabulary[token] for token in ("[MASK]", "<unk>", "<s>") if token in vocabulary]
    assert count_characters(vocabulary, len(pieces), special_ids).tolist() == lengths


@pytest.mark.parametrize("settings", [{"whole_word": True}, {"selection": "ngrams"}])
def test_words_of_sentencepiece_end_at_punctuation_and_at_other_letters(settings):
    """google-research/albert: "unlikely" is one word; the comma, the number and the letter after it
    are three more.
    """
    special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    pieces = ["\u2581un", "like", "ly", ",", "19", "\u03b1", "\u2581so"]
    rates = {"mask_rate": 1.0, "keep_rate": 0.0, "random_rate": 0.0, "mlm_probability": 0.3}
    collator = DataCollatorForPreTraining(Vocabulary(special + pieces), **rates, **settings)
    feature = {"input_ids": np.array([2, *range(5, 12), 3]), "token_type_ids": np.zeros(9, int)}
    labels = collator([{**feature, "key": (0, index)} for index in range(200)])["labels"]
    is_predicted = (labels != -100).numpy()[:, 1:-1]

    assert (is_predicted[:, 0] == is_predicted[:, 1]).all()
    assert (is_predicted[:, 1] == is_predicted[:, 2]).all()

    # Each of the four that stand alone is chosen without its neighbour somewhere.
    for place in range(3, 7):
        assert (is_predicted[:, place] & ~is_predicted[:, place - 1]).any()


@pytest.mark.parametrize("selection", ["count", "bernoulli", "fairseq"])
@pytest.mark.parametrize("mark", ["\u0120", "##"])
def test_a_byte_level_word_ends_at_sep_though_the_next_has_no_mark(mark, selection):
    """Stock's byte-level tokenizers put no space before the first word of a text."""
    special = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    # "la" goes on with a word in both vocabularies.
    pieces = ["la", "\u0120so", "\u0120do"] if mark == "\u0120" else ["##la", "so", "do"]
    rates = {"mask_rate": 1.0, "keep_rate": 0.0, "random_rate": 0.0, "mlm_probability": 0.3}
    collator = DataCollatorForPreTraining(
        Vocabulary(special + pieces), whole_word=True, selection=selection, **rates
    )
    feature = {"input_ids": np.array([2, 6, 5, 7, 3, 5, 6, 3]), "token_type_ids": np.zeros(8, int)}
    labels = collator([{**feature, "key": (0, index)} for index in range(200)])["labels"]
    is_predicted = (labels != -100).numpy()
    joins_segments = (is_predicted[:, 3] == is_predicted[:, 5]).all()

    assert (is_predicted[:, 1] == is_predicted[:, 2]).all()
    assert joins_segments == (mark == "##" and selection != "fairseq")


def test_batch_has_the_promised_tensors():
    features = make_features()
    batch = collate(features, mlm_probability=0.9)
    lengths = [len(feature["input_ids"]) for feature in features]
    names = {"input_ids", "token_type_ids", "attention_mask", "labels", "next_sentence_label"}

    assert set(batch) == names
    assert all(tensor.dtype == torch.int64 for tensor in batch.values())
    assert batch["input_ids"].shape == batch["labels"].shape == (6, max(lengths))
    assert batch["attention_mask"].sum(dim=1).tolist() == lengths
    assert not torch.isin(batch["labels"], torch.tensor([0, 2, 3])).any()

    restored = torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
    for row, feature in enumerate(features):
        assert restored[row, : lengths[row]].tolist() == feature["input_ids"].tolist()
        assert (batch["input_ids"][row, lengths[row] :] == 0).all()
        assert batch["next_sentence_label"][row] == feature["next_sentence_label"]


@pytest.mark.parametrize("mark", ["\u0120", "\u2581", "##"])
def test_random_words_of_a_byte_level_vocabulary_are_no_pads(mark):
    """It is RoBERTa's, which finds its positions by pads."""

    vocabulary = Vocabulary([f"{mark}{number}" for number in range(200)])
    rates = {"mask_rate": 0.0, "keep_rate": 0.0, "random_rate": 1.0, "mlm_probability": 0.9}
    batch = DataCollatorForPreTraining(vocabulary, **rates)(make_features(400))
    words = set(batch["input_ids"][batch["labels"] != -100].tolist())

    assert (0 in words) == (mark != "\u0120")
    assert {1, 2, 3, 4, 199} <= words


def test_masks_change_with_epoch_and_seed_and_with_nothing_else():
    features = make_features()
    batch = collate(features)

    assert all(torch.equal(batch[name], tensor) for name, tensor in collate(features).items())

    alone = collate(features[3:4])["labels"][0]

    assert torch.equal(batch["labels"][3, : len(alone)], alone)

    later = [{**feature, "key": (2, feature["key"][1])} for feature in features]

    assert not torch.equal(batch["labels"], collate(later)["labels"])
    assert not torch.equal(batch["labels"], collate(features, seed=1)["labels"])


def test_without_keys_masks_follow_from_the_content_and_a_warning_says_so(caplog):
    features = make_features()
    for feature in features:
        del feature["key"]
    collator = DataCollatorForPreTraining(Vocabulary())

    assert torch.equal(collator(features)["labels"], collator(features)["labels"])
    assert caplog.text.count("masked by their content") == 1


def test_features_that_are_masked_already_are_taken_as_they_are():
    features = make_features(2)
    for feature in features:
        feature["labels"] = np.full(len(feature["input_ids"]), -100)
        feature["labels"][1] = 7
    batch = collate(features)

    assert (batch["labels"] != -100).sum() == 2
    assert batch["input_ids"][0, 1] == features[0]["input_ids"][1]


@pytest.mark.parametrize("name", ["labels", "next_sentence_label"])
@pytest.mark.parametrize("row", [0, 1])
def test_rows_of_which_some_alone_have_labels_are_refused(name, row):
    """What a batch of both would learn depends on which is the first."""
    features = make_features(2)
    for feature in features:
        feature.pop(name, None)
    features[row][name] = 0 if name == "next_sentence_label" else [-100] * 3
    with pytest.raises(InputError, match=f"only some rows of a batch have {name}; give it to all"):
        collate(features)


@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_that_are_padded_already_give_the_batch_of_those_without_pads(side):
    """As a tokenizer makes them with padding="max_length"; pads would count as tokens."""
    features = make_features()
    padded = []
    for feature in features:
        length = len(feature["input_ids"])
        widths = (50 - length, 0) if side == "left" else (0, 50 - length)
        row = {**feature, "attention_mask": np.pad(np.ones(length, dtype=np.int64), widths)}
        for name in ("input_ids", "token_type_ids"):
            row[name] = np.pad(feature[name], widths).tolist()
        padded.append(row)
    expected = collate(features)
    batch = collate(padded)
    assert batch.keys() == expected.keys()
    for name, values in expected.items():
        assert torch.equal(batch[name], values), name


def test_padding_to_a_length_or_a_multiple():
    features = make_features()

    assert collate(features, pad_to_length=64)["input_ids"].shape == (6, 64)
    assert collate(features, pad_to_length=50, pad_to_multiple_of=16)["labels"].shape == (6, 64)
    with pytest.raises(InputError, match="pad_to_length is 8"):
        collate(features, pad_to_length=8)


def test_a_tokenizer_without_mask_is_refused():
    vocabulary = Vocabulary()
    vocabulary.mask_token_id = None

    with pytest.raises(InputError, match="no \\[MASK\\]"):
        DataCollatorForPreTraining(vocabulary)
