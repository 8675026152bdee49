"""Several endings, one of them right: encoding, loss, decoding."""

import json
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


def kind_for(tokenizer, **settings):
    return MultipleChoice(get_task("swag"), tokenizer, TaskArguments(task="swag", **settings), {})


def as_split(*examples):
    is_labelled = all(example.label is not None for example in examples)
    return Split(
        name="validation",
        examples=examples,
        source="made",
        num_rows=len(examples),
        is_labelled=is_labelled,
    )


def random_split(seed, number=6, choices=4):
    rng = np.random.default_rng(seed)
    texts = [
        " ".join(rng.choice(list(LETTERS), rng.integers(1, 9)))
        for _ in range(number * (choices + 1))
    ]
    rows = np.array(texts).reshape(number, -1).tolist()
    return as_split(
        *(
            ChoiceExample(
                idx=f"row{n}",
                context=first,
                choices=tuple(others),
                label=int(rng.integers(choices)),
            )
            for n, (first, *others) in enumerate(rows)
        )
    )


def test_each_choice_stands_behind_the_context_as_second_segment(tokenizer):
    """BERT, Devlin et al. 2019, section 4.4."""
    encoded = kind_for(tokenizer).encode(
        as_split(ChoiceExample(idx=0, context="a b", choices=("c", "d e"), label=1)),
        for_training=True,
    )
    tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in encoded[0]["input_ids"]]
    assert tokens == [
        ["[CLS]", "a", "b", "[SEP]", "c", "[SEP]"],
        ["[CLS]", "a", "b", "[SEP]", "d", "e", "[SEP]"],
    ]
    assert encoded[0]["token_type_ids"] == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1, 1]]
    assert encoded[0]["labels"] == 1
    assert encoded.lengths.tolist() == [7]


def test_pairs_lose_tokens_at_the_end_of_the_longer_text_and_of_the_choice_on_a_tie(tokenizer):
    """google-research/bert run_classifier.py `_truncate_seq_pair`."""
    kind = kind_for(tokenizer, max_seq_length=8)
    encoded = kind.encode(
        as_split(ChoiceExample(idx=0, context="a b c d", choices=("e f g h", "e", "f g h i j a")))
    )
    tokens = [" ".join(tokenizer.convert_ids_to_tokens(ids)) for ids in encoded[0]["input_ids"]]
    assert tokens == [
        "[CLS] a b c [SEP] e f [SEP]",
        "[CLS] a b c d [SEP] e [SEP]",
        "[CLS] a b c [SEP] f g [SEP]",
    ]
    assert "labels" not in kind.collate(list(encoded))


@pytest.mark.parametrize("choices", [2, 4, 5])
def test_logits_and_loss_are_those_of_the_stock_head(tokenizer, model, choices):
    kind = kind_for(tokenizer)
    split = random_split(1, choices=choices)
    batch = kind.collate(list(kind.encode(split)))
    with torch.no_grad():
        stock = model(**batch)
        output = model(**{key: value for key, value in batch.items() if key != "labels"})
    ours = kind.loss_sum(output, batch) / kind.count_items(batch)
    assert ours.item() == pytest.approx(stock.loss.item(), rel=1e-6)
    # Each pair alone and without padding, through the encoder and the head's linear layer.
    for example, logits in zip(split.examples, kind.split_outputs(output, batch), strict=True):
        assert logits.shape == (choices,)
        for choice, logit in zip(example.choices, logits, strict=True):
            one = kind.collate(
                list(kind.encode(as_split(replace(example, choices=(choice,), label=None))))
            )
            with torch.no_grad():
                pooled = model.bert(**{key: value[0] for key, value in one.items()}).pooler_output
                assert model.classifier(pooled).item() == pytest.approx(logit, abs=1e-5)


def test_examples_may_have_different_numbers_of_choices(tokenizer, model):
    """The softmax is over an example's own choices, whatever else is in the batch (ARC has three to
    five).
    """
    kind = kind_for(tokenizer)
    few, many = random_split(1, choices=3), random_split(2, choices=5)
    split = as_split(*few.examples, *many.examples)
    batch = kind.collate(list(kind.encode(split)))
    assert batch["input_ids"].shape[:2] == (12, 5)
    with torch.no_grad():
        output = model(
            **{key: batch[key] for key in ("input_ids", "token_type_ids", "attention_mask")}
        )
    loss, outputs = kind.loss_sum(output, batch), kind.split_outputs(output, batch)
    expected = torch.zeros(())
    for part, rows in ((few, outputs[:6]), (many, outputs[6:])):
        alone = kind.collate(list(kind.encode(part)))
        assert "num_choices" not in alone
        with torch.no_grad():
            output_alone = model(
                **{key: alone[key] for key in ("input_ids", "token_type_ids", "attention_mask")}
            )
        expected += kind.loss_sum(output_alone, alone)
        for row, row_alone in zip(rows, kind.split_outputs(output_alone, alone), strict=True):
            np.testing.assert_allclose(row, row_alone, atol=1e-5)
    torch.testing.assert_close(loss, expected)


def test_prediction_is_the_number_of_the_choice_with_a_softmax_over_all(tokenizer, tmp_path):
    kind = kind_for(tokenizer)
    split = random_split(3, number=3)
    outputs = [np.array(row, np.float32) for row in ([0, 1, 0, 0], [5, 5, 1, 1], [-900, 0, 0, 900])]
    predictions = kind.decode(kind.encode(split), outputs)
    assert [prediction.value for prediction in predictions] == [1, 0, 3]
    assert predictions[0].probabilities[1] == pytest.approx(np.e / (np.e + 3))
    assert all(sum(prediction.probabilities) == pytest.approx(1) for prediction in predictions)
    assert predictions[2].probabilities == pytest.approx([0, 0, 0, 1])
    [path] = kind.write(tmp_path, "validation", split.examples, predictions)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [(line["idx"], line["prediction"]) for line in lines] == [
        ("row0", 1),
        ("row1", 0),
        ("row2", 3),
    ]
    gold = [
        replace(example, label=label)
        for example, label in zip(split.examples, (1, 0, 2), strict=True)
    ]
    assert kind.score(gold, predictions) == {"accuracy": pytest.approx(2 / 3)}
