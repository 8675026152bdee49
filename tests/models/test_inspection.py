"""Filled masks and next-sentence verdicts never end a finished training with an error."""

import pytest
import torch

from bert_recipes.errors import InputError
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.inspection import fill_every_mask, judge_next_sentence, knows_words
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.tokenization.loading import load_tokenizer


@pytest.fixture(scope="module")
def tokenizer(small_store):
    return load_tokenizer(small_store / "tokenizer")


def make_model(positions=16, vocab_size=120):
    torch.manual_seed(0)
    settings = {"vocab_size": vocab_size, "max_position_embeddings": positions, "dropout": 0.0}
    return BertForPreTraining(pretraining_config("tiny", **settings)).eval()


def watch_inputs(model):
    """The ids of every call to come."""
    rows = []

    def watch(module, args, kwargs):
        rows.append(kwargs["input_ids"][0].tolist())

    model.register_forward_pre_hook(watch, with_kwargs=True)
    return rows


def words(start, number):
    return " ".join(f"w{(start + index) % 95}" for index in range(number))


def test_a_short_text_is_seen_whole(tokenizer):
    model = make_model()
    rows = watch_inputs(model)
    (guesses,) = fill_every_mask(model, tokenizer, "w1 [MASK] w3", top_k=3).guesses
    ids = [
        tokenizer.cls_token_id,
        *tokenizer.encode_ids("w1"),
        tokenizer.mask_token_id,
    ]
    ids += [*tokenizer.encode_ids("w3"), tokenizer.sep_token_id]
    assert rows == [ids]
    logits = model(input_ids=torch.tensor([ids])).prediction_logits[0, 2]
    probabilities = logits.softmax(-1).topk(3)
    pieces = tokenizer.convert_ids_to_tokens(probabilities.indices.tolist())
    assert [piece for piece, _ in guesses] == pieces
    assert [share for _, share in guesses] == pytest.approx(probabilities.values.tolist())


@pytest.mark.parametrize(
    ("before", "after"), [(40, 0), (0, 40), (40, 40), (5, 40), (40, 5), (6, 7)]
)
def test_a_long_text_is_cut_to_what_stands_around_the_mask(tokenizer, before, after):
    model = make_model()
    rows = watch_inputs(model)
    fill_every_mask(model, tokenizer, f"{words(0, before)} [MASK] {words(50, after)}")
    (ids,) = rows
    assert len(ids) == 16
    assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    place = ids.index(tokenizer.mask_token_id)
    ids_before = tokenizer.encode_ids(words(0, before))
    ids_after = tokenizer.encode_ids(words(50, after))
    assert ids[1:place] == ids_before[len(ids_before) - (place - 1) :]
    assert ids[place + 1 : -1] == ids_after[: 16 - place - 2]
    assert min(place - 1, 14 - place) >= min(6, before, after)


def test_a_padded_vocabulary_and_few_pieces_give_pieces_only(tokenizer):
    model = make_model(vocab_size=128)
    (guesses,) = fill_every_mask(model, tokenizer, "w1 [MASK]", top_k=500).guesses
    assert len(guesses) == len(tokenizer) == 120
    assert all(isinstance(piece, str) for piece, _ in guesses)


def test_every_mask_of_a_text_has_guesses(tokenizer):
    guesses = fill_every_mask(make_model(), tokenizer, "w1 [MASK] w3 [MASK]", top_k=3).guesses
    assert [len(pieces) for pieces in guesses] == [3, 3]


def test_a_text_without_a_mask_is_refused(tokenizer):
    with pytest.raises(InputError, match=r"no \[MASK\] in 'w1'"):
        fill_every_mask(make_model(), tokenizer, "w1")


@pytest.mark.parametrize("first", [words(0, 30), "w1"])
def test_long_pairs_are_cut_to_the_models_positions(tokenizer, first):
    model = make_model(positions=8)
    rows = watch_inputs(model)
    assert 0 <= judge_next_sentence(model, tokenizer, first, words(30, 30)) <= 1
    (ids,) = rows
    assert len(ids) == 8
    assert ids.count(tokenizer.sep_token_id) == 2


@pytest.mark.parametrize(
    ("text", "is_known"),
    [
        ("w1 w2 [MASK] w3 w4", True),
        ("The function returns a [MASK] of strings.", False),
        (f"{words(0, 9)} unknown", True),
        (f"{words(0, 4)} unknown", False),
        ("[MASK]", False),
    ],
)
def test_a_text_of_unknown_words_is_told_from_a_known_one(tokenizer, text, is_known):
    assert knows_words(tokenizer, text) is is_known


def test_a_language_whose_words_are_cut_into_letters_is_not_the_tokenizers(tmp_path):
    """A German vocabulary has every letter of an English sentence, so that nothing of it is
    unknown.
    """
    letters = list("abcdefghijklmnopqrstuvwxyz.")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces += [
        "die",
        "funktion",
        "gibt",
        "eine",
        "liste",
        "von",
        "namen",
        "in",
    ]
    pieces += letters + [f"##{letter}" for letter in letters]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    german = load_tokenizer(tmp_path / "vocab.txt", do_lower_case=True)
    assert "[UNK]" not in german.tokenize("The function returns a list of strings.")
    assert not knows_words(german, "The function returns a [MASK] of strings.")
    assert knows_words(german, "Die Funktion gibt eine [MASK] von Namen.")
