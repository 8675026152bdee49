"""Several endings, one of them right: encoding, loss, decoding."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import BertForMultipleChoice

from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.finetuning.multiple_choice import MultipleChoice
from bert_recipes.tasks.catalogue import get_task
from bert_recipes.tasks.examples import ChoiceExample, Split


LETTERS = "abcdefghij"


@pytest.fixture(scope="module")
def tokenizer(make_tokenizer):
    return make_tokenizer(LETTERS)


@pytest.fixture(scope="module")
def model(tokenizer, tiny_config):
    torch.manual_seed(0)
    return BertForMultipleChoice(tiny_config(len(tokenizer))).eval()


@pytest.fixture(scope="module")
def kind(tokenizer):
    return make_kind(tokenizer)


def make_kind(tokenizer, **settings):
    return MultipleChoice(get_task("swag"), tokenizer, TaskArguments(task="swag", **settings), {})


def as_split(*examples):
    is_labelled = all(example.label is not None for example in examples)
    split = Split(name="validation", examples=examples, source="made", num_rows=len(examples))
    return replace(split, is_labelled=is_labelled)


def random_examples(seed, number=6, choices=4):
    rng = np.random.default_rng(seed)
    examples = []
    for row in range(number):
        lengths = rng.integers(1, 9, choices + 1)
        context, *endings = [" ".join(rng.choice(list(LETTERS), length)) for length in lengths]
        label = int(rng.integers(choices))
        example = ChoiceExample(
            idx=f"row{row}", context=context, choices=tuple(endings), label=label
        )
        examples.append(example)
    return examples


def test_each_choice_stands_behind_the_context_as_second_segment(kind, tokenizer):
    """BERT, Devlin et al. 2019, section 4.4."""
    example = ChoiceExample(idx=0, context="a b", choices=("c", "d e"), label=1)
    encoded = kind.encode(as_split(example), for_training=True)
    texts = [" ".join(tokenizer.convert_ids_to_tokens(ids)) for ids in encoded[0]["input_ids"]]
    assert texts == ["[CLS] a b [SEP] c [SEP]", "[CLS] a b [SEP] d e [SEP]"]
    assert encoded[0]["token_type_ids"] == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1, 1]]
    assert encoded[0]["labels"] == 1
    hidden = kind.encode(as_split(replace(example, label=None)))
    assert "labels" not in kind.collate(list(hidden))
    assert encoded.lengths.tolist() == [7]


@torch.no_grad()
def run(model, kind, examples):
    """The batch of all examples and what the model makes of it."""
    batch = kind.collate(list(kind.encode(as_split(*examples))))
    names = ("input_ids", "token_type_ids", "attention_mask")
    return batch, model(**{name: batch[name] for name in names})


@pytest.mark.parametrize("choices", [2, 5])
def test_logits_and_loss_are_those_of_the_stock_head(kind, model, choices):
    examples = random_examples(1, choices=choices)
    batch, output = run(model, kind, examples)
    with torch.no_grad():
        stock = model(**batch)
    assert kind.loss_sum(output, batch).item() == pytest.approx(6 * stock.loss.item(), rel=1e-6)
    # Each pair alone and without padding.
    for example, logits in zip(examples, kind.split_outputs(output, batch), strict=True):
        assert logits.shape == (choices,)
        for choice, logit in zip(example.choices, logits, strict=True):
            _, single = run(model, kind, [replace(example, choices=(choice,), label=None)])
            assert single.logits.item() == pytest.approx(logit, abs=1e-5)


def test_examples_may_have_different_numbers_of_choices(kind, model):
    """The softmax is over an example's own choices (ARC has three to five)."""
    few = random_examples(1, choices=3)
    many = random_examples(2, choices=5)
    batch, output = run(model, kind, few + many)
    assert batch["input_ids"].shape[:2] == (12, 5)
    loss = 0
    logits = []
    for examples in (few, many):
        batch_alone, output_alone = run(model, kind, examples)
        assert "num_choices" not in batch_alone
        loss += kind.loss_sum(output_alone, batch_alone)
        logits += kind.split_outputs(output_alone, batch_alone)
    torch.testing.assert_close(kind.loss_sum(output, batch), loss)
    for row, row_alone in zip(kind.split_outputs(output, batch), logits, strict=True):
        np.testing.assert_allclose(row, row_alone, atol=1e-5)


def test_prediction_is_the_number_of_the_choice_with_a_softmax_over_all(kind):
    examples = random_examples(3, number=3)
    outputs = np.array([[0, 1, 0, 0], [5, 5, 1, 1], [-900, 0, 0, 900]], np.float32)
    predictions = kind.decode(kind.encode(as_split(*examples)), outputs)
    assert [prediction.value for prediction in predictions] == [1, 0, 3]
    assert [prediction.idx for prediction in predictions] == ["row0", "row1", "row2"]
    assert predictions[0].probabilities[1] == pytest.approx(np.e / (np.e + 3))
    assert predictions[2].probabilities == pytest.approx([0, 0, 0, 1])
    gold = [replace(examples[row], label=label) for row, label in enumerate((1, 0, 2))]
    assert kind.score(gold, predictions) == {"accuracy": pytest.approx(2 / 3)}
