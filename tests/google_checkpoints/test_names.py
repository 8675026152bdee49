"""The names of weights against the original's variables and the classes of stock transformers."""

from pathlib import Path

import pytest
import torch
import transformers
from fixture_parts import CONFIG
from original_model import shapes

from bert_recipes.google_checkpoints import (
    OF_OPTIMIZER,
    list_weights,
    select_skipped,
    select_weights,
)


@pytest.mark.parametrize(
    ("heads", "architecture"),
    [
        ((), "BertModel"),
        (("masked_lm", "next_sentence"), "BertForPreTraining"),
        (("masked_lm",), "BertForMaskedLM"),
        (("next_sentence",), "BertForNextSentencePrediction"),
        (("classifier",), "BertForSequenceClassification"),
        (("squad",), "BertForQuestionAnswering"),
    ],
)
def test_the_names_are_the_originals_variables_and_stocks_tensors(heads, architecture):
    original = shapes(CONFIG, heads)
    chosen, found = select_weights(original, CONFIG, "here", Path("config.json"))
    assert {weight.variable: weight.shape for weight in chosen} == original
    assert found == architecture
    config = transformers.BertConfig(**CONFIG, num_labels=2 if "squad" in heads else 3)
    with torch.device("meta"):
        stock = getattr(transformers, architecture)(config)
    tied = {
        name
        for name in stock.all_tied_weights_keys or {}
        if name != "bert.embeddings.word_embeddings.weight"
    }
    prefix = "bert." if architecture == "BertModel" else ""
    wanted = {
        prefix + name: tuple(tensor.shape)
        for name, tensor in stock.named_parameters(remove_duplicate=False)
    }
    has_pooler = any(".pooler." in name for name in wanted)
    mine = {
        weight.tensor: weight.shape[:: -1 if weight.is_kernel else 1]
        for weight in chosen
        if has_pooler or weight.component != "pooler"
    }
    assert mine == {name: shape for name, shape in wanted.items() if name not in tied}


def test_every_variable_and_every_tensor_has_one_counterpart():
    weights = list_weights(CONFIG, num_labels=3)
    assert (
        len({weight.variable for weight in weights})
        == len({weight.tensor for weight in weights})
        == len(weights)
    )


def test_what_the_optimiser_adds():
    names = [
        "global_step",
        "bert/pooler/dense/kernel/adam_m",
        "x/adam_v",
        "cls/AdamWeightDecayOptimizer_1",
    ]
    assert all(map(OF_OPTIMIZER.fullmatch, names))
    assert not any(
        map(
            OF_OPTIMIZER.fullmatch,
            ["bert/pooler/dense/kernel", "adam_mean/kernel", "bert/global_step"],
        )
    )


def test_names_are_left_out_whole_or_with_all_below_them():
    names = [
        "cls/predictions/output_bias",
        "output_bias",
        "cls/predictions_2/bias",
    ]
    for number, start in enumerate(("cls/predictions", "output_bias")):
        assert select_skipped(names, [start], "here") == {names[number]}
    assert select_skipped(names, ["cls/predictions", "output_bias"], "here") == {names[0], names[1]}
