"""The table of names against the original's variables and the classes of stock transformers."""

from pathlib import Path

import pytest
import torch
import transformers
from fixture_parts import CONFIG
from original_model import shapes

from bert_recipes.errors import InputError
from bert_recipes.google_checkpoints import (
    architecture_of,
    is_chosen,
    is_of_optimizer,
    list_weights,
    select_weights,
)


WEIGHTS = list_weights(CONFIG, num_labels=3)


def select(names):
    return select_weights(names, CONFIG, "here", Path("config.json"), by_tensor=False)


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
def test_the_table_is_the_originals_variables_and_stocks_tensors(heads, architecture):
    original = shapes(CONFIG, heads)
    chosen = select(original)
    assert {weight.variable: weight.shape for weight in chosen} == original
    assert architecture_of({weight.part for weight in chosen}, "here")[0] == architecture
    config = transformers.BertConfig(**CONFIG, num_labels=2 if "squad" in heads else 3)
    with torch.device("meta"):
        stock = getattr(transformers, architecture)(config)
    tied = {name for name in stock.all_tied_weights_keys or {} if name != "bert.embeddings.word_embeddings.weight"}
    prefix = "bert." if architecture == "BertModel" else ""
    wanted = {prefix + name: tuple(tensor.shape) for name, tensor in stock.named_parameters(remove_duplicate=False)}
    has_pooler = any(".pooler." in name for name in wanted)
    mine = {weight.tensor: weight.tensor_shape for weight in chosen if has_pooler or weight.part != "pooler"}
    assert mine == {name: shape for name, shape in wanted.items() if name not in tied}


def test_every_variable_and_every_tensor_has_one_counterpart():
    assert len({weight.variable for weight in WEIGHTS}) == len({weight.tensor for weight in WEIGHTS}) == len(WEIGHTS)


@pytest.mark.parametrize(
    ("name", "is_theirs"),
    [
        ("global_step", True),
        ("bert/pooler/dense/kernel/adam_m", True),
        ("bert/pooler/dense/kernel/adam_v", True),
        ("cls/AdamWeightDecayOptimizer_1", True),
        ("bert/pooler/dense/kernel", False),
        ("adam_mean/kernel", False),
        ("bert/global_step", False),
    ],
)
def test_what_the_optimiser_adds(name, is_theirs):
    assert is_of_optimizer(name) == is_theirs


def test_names_are_left_out_whole_or_with_all_below_them():
    assert is_chosen("cls/predictions/output_bias", ["cls/predictions"])
    assert is_chosen("cls.predictions.bias", ["cls.predictions"])
    assert is_chosen("output_bias", ["output_bias"])
    assert not is_chosen("cls/predictions_2/bias", ["cls/predictions"])


def test_missing_unknown_and_too_many_are_named():
    names, unknown = dict(shapes(CONFIG)), {**shapes(CONFIG), "other/kernel": (1,), "z": (1,), "z\n" * 100: (1,)}
    del names["bert/pooler/dense/bias"], names["cls/predictions/transform/dense/kernel"]
    with pytest.raises(InputError, match=r"here: bert/pooler/dense/bias and 1 more are missing"):
        select(names)
    with pytest.raises(
        InputError, match=r"here: other/kernel and 2 more are not of the original's model.*variables other"
    ) as caught:
        select(unknown)
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(InputError, match="heads for masked_lm, next_sentence, squad"):
        select({**shapes(CONFIG), **shapes(CONFIG, ("squad",))})
