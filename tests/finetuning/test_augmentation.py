"""Algorithm 1 of TinyBERT, against one call of stock's masked-LM for each word."""

import json

import pytest
import torch
import transformers

from bert_recipes.finetuning.augmentation import Augmenter, as_line
from bert_recipes.models.checkpoints import open_checkpoint
from bert_recipes.tasks.catalogue import get_task
from bert_recipes.tasks.examples import TextExample
from bert_recipes.tokenization.loading import load_tokenizer


TEXTS = ["b cd of xyz 12 !", "the d, e: f", "Q", "of the 7", "g h " * 30]


@pytest.fixture(scope="module")
def make(tiny_checkpoint):
    model, _ = open_checkpoint(str(tiny_checkpoint), cached_only=True)
    with torch.no_grad():
        for weight in (
            model.bert.parameters()
        ):  # as small as new weights are, all inputs get much the same answer
            if weight.ndim > 1:
                weight.mul_(8)
    tokenizer = load_tokenizer(tiny_checkpoint)
    return lambda **rules: Augmenter(model=model.eval(), tokenizer=tokenizer, **rules)


def copies_of(augmenter, texts):
    rows = list(
        augmenter.augment([TextExample(idx=n, text=text, label=1) for n, text in enumerate(texts)])
    )
    return {text: [row.text for row in rows if row.idx == n] for n, text in enumerate(texts)}


def expected_words(augmenter, words, place):
    """data_augmentation.py, `_word_augment` and `_masked_language_model`: masked [SEP] original
    [SEP], types 0 and 1.
    """
    tokenizer, stock = (
        augmenter.tokenizer,
        transformers.BertForMaskedLM(augmenter.model.config).eval(),
    )
    stock.load_state_dict(augmenter.model.state_dict(), strict=False)
    stock.tie_weights()
    masked = [
        piece
        for n, word in enumerate(words)
        for piece in (["[MASK]"] if n == place else tokenizer.tokenize(word))
    ]
    first = ["[CLS]", *masked, "[SEP]"]
    second = [*tokenizer.tokenize(" ".join(words)), "[SEP]"]
    ids = torch.tensor([tokenizer.convert_tokens_to_ids([*first, *second])])[:, :128]
    types = torch.tensor([[0] * len(first) + [1] * len(second)])[:, :128]
    logits = stock(input_ids=ids, token_type_ids=types).logits[0, first.index("[MASK]")]
    best = tokenizer.convert_ids_to_tokens(logits.argsort(descending=True)[:15].tolist())
    return [piece for piece in best if not piece.startswith(("##", "["))]


def test_words_come_from_the_best_of_a_masked_lm_that_also_reads_the_text(make):
    augmenter = make(num_copies=300, replace_probability=1.0)
    words = ["b", "cd", "of", "xyz", "12", "!"]
    copies = [copy.split() for copy in copies_of(augmenter, TEXTS)[TEXTS[0]][1:]]
    for place, word in enumerate(words):
        seen = {copy[place] for copy in copies}
        # Stop words and what has no letters stay; words of several pieces are asked for with one
        # [MASK].
        assert seen == (
            set(expected_words(augmenter, words, place)) if word in ("b", "cd", "xyz") else {word}
        )


def test_words_are_replaced_with_their_probability_and_nothing_comes_twice(make):
    # num_candidates keeps words apart from their candidates only by chance: the share is of draws
    # of another word.
    augmenter = make(num_copies=400)
    original, *copies = copies_of(augmenter, TEXTS)[TEXTS[4]]
    assert original == TEXTS[4]  # as it was read
    words = TEXTS[4].split()
    changed = sum(
        own != word for copy in copies for own, word in zip(copy.split(), words, strict=True)
    )
    share = changed / len(copies) / len(words)
    assert 0.3 < share <= 0.41
    assert len(set(copies)) == len(copies)
    assert copies_of(augmenter, TEXTS)[TEXTS[3]] == [TEXTS[3]]


def test_the_copies_of_a_row_follow_from_the_row_and_the_seed(make):
    whole, alone = copies_of(make(batch_size=3), TEXTS), copies_of(make(), TEXTS[1:2])
    assert whole[TEXTS[1]] == alone[TEXTS[1]]
    assert copies_of(make(seed=1), TEXTS)[TEXTS[0]] != whole[TEXTS[0]]


def test_a_copy_of_one_text_of_a_pair_stands_beside_the_other_as_it_was(make):
    """data_augmentation.py changes rows in place: its second texts stand beside the last copy of
    the first.
    """
    pair = TextExample(idx=0, text=TEXTS[0], text_pair=TEXTS[1], label=1)
    first, *rows = list(make().augment([pair]))
    assert first == pair
    assert all((row.text == pair.text) != (row.text_pair == pair.text_pair) for row in rows)
    assert {row.text for row in rows if row.text != pair.text} == set(
        copies_of(make(), TEXTS)[TEXTS[0]][1:]
    )
    assert any(row.text_pair != pair.text_pair for row in rows)


def test_rows_are_written_as_their_task_reads_them():
    pair = TextExample(idx=7, text="a", text_pair="b", label=1)
    assert json.loads(as_line(get_task("mrpc"), pair)) == {
        "sentence1": "a",
        "sentence2": "b",
        "idx": 7,
        "label": "equivalent",
    }
    assert (
        json.loads(
            as_line(get_task("stsb"), TextExample(idx=7, text="a", text_pair="b", label=2.5))
        )["label"]
        == 2.5
    )
    assert "label" not in json.loads(as_line(get_task("sst2"), TextExample(idx=7, text="a")))
