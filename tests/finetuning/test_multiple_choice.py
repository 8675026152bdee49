"""Several endings, one of them right: encoding, loss, decoding."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import BertForMultipleChoice

from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.finetuning.multiple_choice import MultipleChoice
from bert_recipes.tasks.rows import ChoiceExample, Split, get_task
from bert_recipes.tasks.sources import load_split
from bert_recipes.tokenization.loading import load_tokenizer


LETTERS = "abcdefghij"
TASK = get_task("swag")


@pytest.fixture(scope="module")
def tokenizer(make_tokenizer):
    return make_tokenizer(LETTERS)


@pytest.fixture(scope="module")
def model(tokenizer, tiny_config):
    torch.manual_seed(0)
    config = tiny_config(len(tokenizer))
    return BertForMultipleChoice(config).eval()


def kind_for(tokenizer, **settings):
    return MultipleChoice(TASK, tokenizer, TaskArguments(task="swag", **settings), {})


def as_split(examples):
    return Split(name="validation", examples=examples, source="made here", num_rows=len(examples))


def random_split(seed, number=6, choices=4):
    rng = np.random.default_rng(seed)

    def text():
        return " ".join(rng.choice(list(LETTERS), rng.integers(1, 9)))

    return as_split(
        [
            ChoiceExample(
                idx=f"row{i}",
                context=text(),
                choices=tuple(text() for _ in range(choices)),
                label=int(rng.integers(choices)),
            )
            for i in range(number)
        ]
    )


def test_each_choice_stands_behind_the_context_as_second_segment(tokenizer):
    """BERT, Devlin et al. 2019, section 4.4."""
    encoded = kind_for(tokenizer).encode(
        as_split([ChoiceExample(idx=0, context="a b", choices=("c", "d e"), label=1)]), for_training=True
    )
    tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in encoded[0]["input_ids"]]
    assert tokens == [["[CLS]", "a", "b", "[SEP]", "c", "[SEP]"], ["[CLS]", "a", "b", "[SEP]", "d", "e", "[SEP]"]]
    assert encoded[0]["token_type_ids"] == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1, 1]]
    assert encoded[0]["labels"] == 1
    assert encoded.lengths.tolist() == [7]


def test_pairs_lose_tokens_at_the_end_of_the_longer_text_and_of_the_choice_on_a_tie(tokenizer):
    """google-research/bert run_classifier.py `_truncate_seq_pair`."""
    encoded = kind_for(tokenizer, max_seq_length=8).encode(
        as_split([ChoiceExample(idx=0, context="a b c d", choices=("e f g h", "e", "f g h i j a"), label=0)])
    )
    tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in encoded[0]["input_ids"]]
    assert tokens == [
        ["[CLS]", "a", "b", "c", "[SEP]", "e", "f", "[SEP]"],
        ["[CLS]", "a", "b", "c", "d", "[SEP]", "e", "[SEP]"],
        ["[CLS]", "a", "b", "c", "[SEP]", "f", "g", "[SEP]"],
    ]


def test_batch_has_a_row_for_each_choice(tokenizer):
    kind = kind_for(tokenizer)
    batch = kind.collate(list(kind.encode(random_split(0, number=16))))
    longest = batch["attention_mask"].sum(-1).max().item()
    for key in ("input_ids", "token_type_ids", "attention_mask"):
        assert batch[key].shape == (16, 4, longest)
        assert batch[key].dtype == torch.int64
    assert batch["labels"].shape == (16,)
    assert kind_for(tokenizer, pad_to_max_length=True).collate(list(kind.encode(random_split(0))))[
        "input_ids"
    ].shape == (6, 4, 128)


@pytest.mark.parametrize("choices", [2, 4, 5])
def test_logits_and_loss_are_those_of_the_stock_head(tokenizer, model, choices):
    kind = kind_for(tokenizer)
    split = random_split(1, choices=choices)
    encoded = kind.encode(split)
    batch = kind.collate(list(encoded))
    with torch.no_grad():
        stock = model(**batch)
        output = model(**{key: value for key, value in batch.items() if key != "labels"})
    ours = kind.loss_sum(output, batch) / kind.count_items(batch)
    assert ours.item() == pytest.approx(stock.loss.item(), rel=1e-6)
    # Each pair alone and without padding, through the encoder and the head's linear layer.
    for example, logits in zip(split.examples, kind.split_outputs(output, batch), strict=True):
        assert logits.shape == (choices,)
        for choice, logit in zip(example.choices, logits, strict=True):
            one = kind.collate(list(kind.encode(as_split([replace(example, choices=(choice,), label=0)]))))
            with torch.no_grad():
                pooled = model.bert(**{key: value[0] for key, value in one.items() if key != "labels"}).pooler_output
                assert model.classifier(pooled).item() == pytest.approx(logit, abs=1e-5)


def test_loss_and_gradient_do_not_depend_on_how_a_batch_is_split(tokenizer, model, assert_split_changes_nothing):
    kind = kind_for(tokenizer)
    assert_split_changes_nothing(kind, model, list(kind.encode(random_split(2, number=7))), 1, 3)


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
    assert [(line["idx"], line["prediction"]) for line in lines] == [("row0", 1), ("row1", 0), ("row2", 3)]


def test_score_is_the_share_of_right_choices(tokenizer):
    kind = kind_for(tokenizer)
    split = as_split([ChoiceExample(idx=i, context="a", choices=("b", "c"), label=i % 2) for i in range(4)])
    outputs = [np.array(row, np.float32) for row in ([1, 0], [1, 0], [1, 0], [0, 1])]
    assert kind.score(split.examples, kind.decode(kind.encode(split), outputs)) == {"accuracy": 0.75}


def test_hidden_labels_leave_no_labels_in_the_batch(tokenizer):
    kind = kind_for(tokenizer)
    split = replace(as_split([ChoiceExample(idx=0, context="a", choices=("b", "c"))]), is_labelled=False)
    assert "labels" not in kind.collate(list(kind.encode(split)))


def test_real_rows_keep_their_endings_whole(shared_data):
    split = load_split(TASK, "validation", data_dir=str(shared_data), max_examples=50)
    real = load_tokenizer(shared_data / "vocab" / "bert-base-uncased-vocab.txt", do_lower_case=True)
    kind = kind_for(real, max_seq_length=128)
    for example, feature in zip(split.examples, kind.encode(split), strict=True):
        assert len(feature["input_ids"]) == 4
        for choice, ids, types in zip(example.choices, feature["input_ids"], feature["token_type_ids"], strict=True):
            second = [piece for piece, kind_of in zip(ids, types, strict=True) if kind_of == 1]
            assert second == [*real.encode_ids(choice), real.sep_token_id]
