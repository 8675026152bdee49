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
        features.append({"input_ids": ids, "token_type_ids": types, "next_sentence_label": label, "key": (1, index)})
    return features


@pytest.mark.parametrize(
    ("pieces", "going_on"),
    [
        (["the", "##s", "a"], ["##s"]),
        (["\u0120the", "s", "##", "\u0120a", "a"], ["s", "##", "a"]),  # byte-level, with the hashes of a heading
        (["\u2581the", "s", "\u2581"], ["s"]),
        (["the", "a"], []),
    ],
)
def test_what_goes_on_with_a_word_follows_the_mark_of_most_pieces(pieces, going_on):
    found = find_continuations({piece: number for number, piece in enumerate(pieces)}, len(pieces))
    assert [piece for piece, goes_on in zip(pieces, found, strict=True) if goes_on] == going_on


def test_batch_has_the_promised_tensors():
    features = make_features()
    batch = DataCollatorForPreTraining(Vocabulary())(features)
    longest = max(len(feature["input_ids"]) for feature in features)
    assert set(batch) == {"input_ids", "token_type_ids", "attention_mask", "labels", "next_sentence_label"}
    assert all(tensor.dtype == torch.int64 for tensor in batch.values())
    assert batch["input_ids"].shape == batch["labels"].shape == (6, longest)
    assert batch["attention_mask"].sum(dim=1).tolist() == [len(feature["input_ids"]) for feature in features]
    restored = torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
    for row, feature in enumerate(features):
        length = len(feature["input_ids"])
        assert restored[row, :length].tolist() == feature["input_ids"].tolist()
        assert (batch["input_ids"][row, length:] == 0).all()
        assert batch["next_sentence_label"][row] == feature["next_sentence_label"]


def test_special_tokens_are_never_masked_and_words_are_masked_whole_on_request():
    """google-research/bert create_pretraining_data.py, create_masked_lm_predictions: [CLS], [SEP]; do_whole_word_mask."""
    features = make_features(200)
    collator = DataCollatorForPreTraining(Vocabulary(), mlm_probability=0.9)
    labels = collator(features)["labels"]
    assert not torch.isin(labels, torch.tensor([0, 2, 3])).any()
    apart = False
    for whole_word in (True, False):
        chosen = DataCollatorForPreTraining(Vocabulary(), whole_word=whole_word)(features)["labels"] != -100
        # A piece that goes on with the word of the one before it: both or none.
        for row, feature in enumerate(features):
            ids = feature["input_ids"]
            goes_on = [place for place in range(2, len(ids)) if ids[place] % 4 == 0 and ids[place - 1] > 3]
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
    assert DataCollatorForPreTraining(Vocabulary(), pad_to_length=64)(features)["input_ids"].shape == (6, 64)
    assert DataCollatorForPreTraining(Vocabulary(), pad_to_multiple_of=16)(features)["input_ids"].shape[1] % 16 == 0
    with pytest.raises(InputError, match="pad_to_length is 8"):
        DataCollatorForPreTraining(Vocabulary(), pad_to_length=8)(features)


def test_a_tokenizer_without_mask_is_refused():
    class NoMask(Vocabulary):
        mask_token_id = None

    with pytest.raises(InputError, match="no \\[MASK\\]"):
        DataCollatorForPreTraining(NoMask())
