import numpy as np
import pytest
import torch

from bert_recipes.data.collator import DataCollatorForPreTraining, find_continuations
from bert_recipes.errors import InputError


class Vocabulary:
    """The part of a tokenizer that the collator uses."""

    pad_token_id, cls_token_id, sep_token_id, mask_token_id = 0, 2, 3, 4

    def __len__(self):
        return 200

    def get_vocab(self):
        return {("##" if number % 4 == 0 else "") + str(number): number for number in range(200)}


def make_features(rows=6, seed=0):
    rng = np.random.default_rng(seed)
    features = []
    for index in range(rows):
        length = int(rng.integers(10, 40))
        ids = rng.integers(5, 200, length)
        ids[0], ids[length // 2], ids[-1] = 2, 3, 3
        types = (np.arange(length) > length // 2).astype(np.int64)
        label = int(rng.integers(0, 2))
        features.append(
            {
                "input_ids": ids,
                "token_type_ids": types,
                "next_sentence_label": label,
                "key": (1, index),
            }
        )
    return features


@pytest.mark.parametrize(
    ("pieces", "going_on"),
    [
        (["the", "##s", "a"], ["##s"]),
        (
            ["\u0120the", "s", "##", "\u0120a", "a"],
            ["s", "##", "a"],
        ),  # byte-level, with the hashes of a heading
        (["\u2581the", "s", "\u2581"], ["s"]),
        # google-research/albert create_pretraining_data.py, `_is_start_piece_sp`: punctuation,
        # digits and other letters begin a word.
        (
            [
                "\u2581the",
                "S",
                "ing",
                ".",
                "-",
                "'",
                "'s",
                "19",
                "\u00e9t",
                "\u044f",
                "\u20ac",
                "<unk>",
                "u.s",
                "\u2581,",
                "...",
            ],
            ["S", "ing", "u.s", "..."],
        ),
        # A mark of most pieces alone decides: none of this is SentencePiece's.
        (["\u0120the", ".", "19", "\u0120a"], [".", "19"]),
        (["the", "##.", ".", "##19"], ["##.", "##19"]),
        (["the", "a"], []),
    ],
)
def test_what_goes_on_with_a_word_follows_the_mark_of_most_pieces(pieces, going_on):
    found = find_continuations({piece: number for number, piece in enumerate(pieces)}, len(pieces))
    assert [piece for piece, goes_on in zip(pieces, found, strict=True) if goes_on] == going_on


class Sentencepieces:
    """A vocabulary of SentencePiece: punctuation, a number and a foreign letter stand between
    words.
    """

    pad_token_id, cls_token_id, sep_token_id, mask_token_id = 0, 2, 3, 4
    pieces = (
        "<pad>",
        "<unk>",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "\u2581un",
        "like",
        "ly",
        ",",
        "19",
        "\u03b1",
        "\u2581so",
    )

    def __len__(self):
        return len(self.pieces)

    def get_vocab(self):
        return {piece: number for number, piece in enumerate(self.pieces)}


@pytest.mark.parametrize("settings", [{"whole_word": True}, {"selection": "ngrams"}])
def test_words_of_sentencepiece_end_at_punctuation_and_at_other_letters(settings):
    """google-research/albert: "unlikely" is one word; the comma, the number and the letter after it
    are three more.
    """
    text = [5, 6, 7, 8, 9, 10, 11]
    word_of_place = [0, 0, 0, 1, 2, 3, 4]
    collator = DataCollatorForPreTraining(
        Sentencepieces(),
        mask_rate=1.0,
        keep_rate=0.0,
        random_rate=0.0,
        mlm_probability=0.3,
        **settings,
    )
    ids = np.array([2, *text, 3])
    features = [
        {"input_ids": ids, "token_type_ids": np.zeros_like(ids), "key": (0, index)}
        for index in range(200)
    ]
    chosen = (collator(features)["labels"] != -100)[:, 1:-1]
    patterns = {tuple(row) for row in chosen.tolist()}
    by_word = {tuple(row[word_of_place.index(word)] for word in range(5)) for row in patterns}
    for row in patterns:
        assert row[0] == row[1] == row[2]
    # Each of the four that stand alone is chosen without its neighbours somewhere.
    for word in range(1, 5):
        assert any(row[word] and not row[word - 1] for row in by_word)


def test_batch_has_the_promised_tensors():
    features = make_features()
    batch = DataCollatorForPreTraining(Vocabulary())(features)
    longest = max(len(feature["input_ids"]) for feature in features)
    assert set(batch) == {
        "input_ids",
        "token_type_ids",
        "attention_mask",
        "labels",
        "next_sentence_label",
    }
    assert all(tensor.dtype == torch.int64 for tensor in batch.values())
    assert batch["input_ids"].shape == batch["labels"].shape == (6, longest)
    assert batch["attention_mask"].sum(dim=1).tolist() == [
        len(feature["input_ids"]) for feature in features
    ]
    restored = torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
    for row, feature in enumerate(features):
        length = len(feature["input_ids"])
        assert restored[row, :length].tolist() == feature["input_ids"].tolist()
        assert (batch["input_ids"][row, length:] == 0).all()
        assert batch["next_sentence_label"][row] == feature["next_sentence_label"]


@pytest.mark.parametrize("mark", ["\u0120", "\u2581", "##"])
def test_random_words_of_a_byte_level_vocabulary_are_no_pads(mark):
    """It is RoBERTa's, which finds its positions by pads."""

    class Marked(Vocabulary):
        def get_vocab(self):
            return {f"{mark}{number}": number for number in range(200)}

    collator = DataCollatorForPreTraining(
        Marked(), mlm_probability=0.9, mask_rate=0.0, keep_rate=0.0, random_rate=1.0
    )
    batch = collator(make_features(400))
    shown = batch["input_ids"][batch["labels"] != -100]
    assert bool((shown == 0).any()) == (mark != "\u0120")
    assert {1, 2, 3, 4, 199} <= set(shown.tolist())


def test_special_tokens_are_never_masked_and_words_are_masked_whole_on_request():
    """google-research/bert create_pretraining_data.py, create_masked_lm_predictions: [CLS], [SEP];
    do_whole_word_mask.
    """
    features = make_features(200)
    collator = DataCollatorForPreTraining(Vocabulary(), mlm_probability=0.9)
    labels = collator(features)["labels"]
    assert not torch.isin(labels, torch.tensor([0, 2, 3])).any()
    apart = False
    for whole_word in (True, False):
        chosen = (
            DataCollatorForPreTraining(Vocabulary(), whole_word=whole_word)(features)["labels"]
            != -100
        )
        # A piece that goes on with the word of the one before it: both or none.
        for row, feature in enumerate(features):
            ids = feature["input_ids"]
            goes_on = [
                place for place in range(2, len(ids)) if ids[place] % 4 == 0 and ids[place - 1] > 3
            ]
            apart = any(chosen[row, place] != chosen[row, place - 1] for place in goes_on)
            if apart:
                break
        assert apart != whole_word


def test_masks_change_with_epoch_and_seed_and_with_nothing_else():
    features = make_features()
    collator = DataCollatorForPreTraining(Vocabulary())
    first = collator(features)
    assert all(torch.equal(first[name], collator(features)[name]) for name in first)
    alone = collator(features[3:4])
    length = len(features[3]["input_ids"])
    assert torch.equal(first["labels"][3, :length], alone["labels"][0])
    later = collator([{**feature, "key": (2, feature["key"][1])} for feature in features])
    assert not torch.equal(first["labels"], later["labels"])
    other = DataCollatorForPreTraining(Vocabulary(), seed=1)(features)
    assert not torch.equal(first["labels"], other["labels"])


def test_without_keys_masks_follow_from_the_content_and_a_warning_says_so(caplog):
    features = [{k: v for k, v in feature.items() if k != "key"} for feature in make_features()]
    collator = DataCollatorForPreTraining(Vocabulary())
    batch = collator(features)
    assert torch.equal(batch["labels"], collator(features)["labels"])
    assert caplog.text.count("masked by their content") == 1


def test_features_that_are_masked_already_are_taken_as_they_are():
    features = make_features(2)
    for feature in features:
        feature["labels"] = np.full(len(feature["input_ids"]), -100)
        feature["labels"][1] = 7
    batch = DataCollatorForPreTraining(Vocabulary())(features)
    assert (batch["labels"] != -100).sum() == 2
    assert batch["input_ids"][0, 1] == features[0]["input_ids"][1]


def test_padding_to_a_length_or_a_multiple():
    features = make_features()
    assert DataCollatorForPreTraining(Vocabulary(), pad_to_length=64)(features)[
        "input_ids"
    ].shape == (6, 64)
    assert (
        DataCollatorForPreTraining(Vocabulary(), pad_to_multiple_of=16)(features)[
            "input_ids"
        ].shape[1]
        % 16
        == 0
    )
    with pytest.raises(InputError, match="pad_to_length is 8"):
        DataCollatorForPreTraining(Vocabulary(), pad_to_length=8)(features)


def test_a_tokenizer_without_mask_is_refused():
    class NoMask(Vocabulary):
        mask_token_id = None

    with pytest.raises(InputError, match="no \\[MASK\\]"):
        DataCollatorForPreTraining(NoMask())
