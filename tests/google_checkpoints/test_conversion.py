"""Original checkpoints to Hub folders: the same weights, and one line for what is wrong."""

import json

import numpy as np
import pytest
import torch
import transformers
from conversions import check_weights, to_hub
from fixture_parts import CONFIG, PIECES
from original_model import draw_variables, write_original
from safetensors.torch import load_file

from bert_recipes.errors import InputError
from bert_recipes.tokenization.loading import load_tokenizer


HEADS = [
    (),
    ("masked_lm", "next_sentence"),
    ("masked_lm",),
    ("next_sentence",),
    ("classifier",),
    ("squad",),
]


@pytest.mark.parametrize("heads", HEADS, ids="-".join)
def test_stock_takes_it_and_the_weights_are_the_same_bit_for_bit(tmp_path, heads):
    variables = draw_variables(heads=heads)
    write_original(tmp_path / "google", variables)
    done = to_hub(tmp_path / "google", tmp_path / "hub")
    _, info = getattr(transformers, done.architecture).from_pretrained(
        tmp_path / "hub", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    assert all("pooler" in name for name in info["unexpected_keys"])
    check_weights(tmp_path / "hub", variables)
    vocabulary = (tmp_path / "google" / "vocab.txt").read_bytes()
    assert (tmp_path / "hub" / "vocab.txt").read_bytes() == vocabulary


def test_a_folder_is_what_stock_writes(tmp_path):
    write_original(tmp_path / "google", draw_variables())
    to_hub(tmp_path / "google", tmp_path / "hub")
    model = transformers.BertForPreTraining.from_pretrained(tmp_path / "hub")
    model.save_pretrained(tmp_path / "stock")
    mine, stock = (load_file(tmp_path / name / "model.safetensors") for name in ("hub", "stock"))
    shared = {
        "cls.predictions.decoder.weight",
        "cls.predictions.decoder.bias",
    }  # second names, in some versions
    assert mine.keys() == stock.keys() - shared
    assert all(torch.equal(mine[name], stock[name]) for name in mine)
    assert model.config.hidden_act == "gelu_new"
    assert model.config.layer_norm_eps == 1e-12
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
    assert tokenizer.convert_tokens_to_ids("[MASK]") == 4


def test_what_the_optimiser_added_is_left_out_and_counted(tmp_path):
    write_original(tmp_path / "google", draw_variables(with_adam=True), name="model.ckpt-1234")
    done = to_hub(tmp_path / "google", tmp_path / "hub")
    num_variables = len(draw_variables())
    assert (done.num_variables, done.num_of_optimizer) == (num_variables, 2 * num_variables + 1)
    report = json.loads((tmp_path / "hub" / "google_checkpoint.json").read_text())
    assert report["checkpoint"] == "model.ckpt-1234"
    assert report["num_of_optimizer"] == done.num_of_optimizer
    assert done.num_parameters == sum(array.size for array in draw_variables().values())


def test_weights_of_smaller_types_become_float32(tmp_path):
    name, tensor = "bert/pooler/dense/kernel", "bert.pooler.dense.weight"
    variables = {name: array.astype(np.float16) for name, array in draw_variables().items()}
    write_original(tmp_path / "google", variables)
    to_hub(tmp_path / "google", tmp_path / "hub")
    weights = load_file(tmp_path / "hub" / "model.safetensors")
    np.testing.assert_array_equal(weights[tensor].numpy(), variables[name].astype(np.float32).T)


# What is left out, named and settled


def test_heads_can_be_left_out(tmp_path):
    write_original(tmp_path / "google", {**draw_variables(), **draw_variables(heads=("squad",))})
    done = to_hub(
        tmp_path / "google", tmp_path / "hub", skipped=["cls/predictions", "cls/seq_relationship"]
    )
    assert done.architecture == "BertForQuestionAnswering"
    assert len(done.skipped) == 7
    with pytest.raises(InputError, match="nothing that is called cls/pred"):
        to_hub(tmp_path / "google", tmp_path / "again", skipped=["cls/pred"])


def test_labels_of_a_classifier(tmp_path):
    write_original(tmp_path / "google", draw_variables(heads=("classifier",)))
    to_hub(tmp_path / "google", tmp_path / "hub", labels=["no", "yes", "perhaps"])
    config = transformers.AutoConfig.from_pretrained(tmp_path / "hub")
    assert config.id2label == {0: "no", 1: "yes", 2: "perhaps"}
    with pytest.raises(InputError, match="labels: 2 different ones for a classifier of 3"):
        to_hub(tmp_path / "google", tmp_path / "other", labels=["no", "yes"])
    assert (
        to_hub(tmp_path / "google", tmp_path / "other").architecture
        == "BertForSequenceClassification"
    )
    write_original(tmp_path / "google", draw_variables())
    with pytest.raises(InputError, match=r"for a classifier of 0 classes .0: there is none"):
        to_hub(tmp_path / "google", tmp_path / "third", labels=["no"])


@pytest.mark.parametrize(
    ("name", "is_lower"),
    [
        ("uncased_L-12_H-768_A-12", True),
        ("wwm_uncased_L-24_H-1024_A-16", True),
        ("cased_L-12_H-768_A-12", False),
        ("multi_cased_L-12_H-768_A-12", False),
        ("multilingual_L-12_H-768_A-12", True),
        ("chinese_L-12_H-768_A-12", True),
    ],
)
def test_case_is_as_the_folder_says(tmp_path, name, is_lower):
    folder = tmp_path / name
    write_original(folder, draw_variables(), pieces=[*PIECES[:-1], "A"])
    assert to_hub(folder, tmp_path / "hub").do_lower_case == is_lower
    assert load_tokenizer(tmp_path / "hub").do_lower_case == is_lower
    assert to_hub(folder, tmp_path / "same", do_lower_case=is_lower).do_lower_case == is_lower
    with pytest.raises(InputError, match=f"give --do_lower_case {str(is_lower).lower()}"):
        to_hub(folder, tmp_path / "other", do_lower_case=not is_lower)


def test_without_such_a_name_the_user_or_the_vocabulary_decides(tmp_path):
    write_original(tmp_path / "mine", draw_variables())
    assert to_hub(tmp_path / "mine", tmp_path / "a").do_lower_case
    assert not to_hub(tmp_path / "mine", tmp_path / "b", do_lower_case=False).do_lower_case


def test_gelu_is_the_originals_unless_the_exact_form_is_asked_for(tmp_path):
    write_original(tmp_path / "google", draw_variables())
    to_hub(tmp_path / "google", tmp_path / "hub", exact_gelu=True)
    assert transformers.AutoConfig.from_pretrained(tmp_path / "hub").hidden_act == "gelu"


def test_what_the_multilingual_configurations_have_besides_stays(tmp_path, caplog):
    extra = {
        "directionality": "bidi",
        "pooler_fc_size": 768,
        "pooler_type": "first_token_transform",
    }
    write_original(
        tmp_path / "google", draw_variables(), {**CONFIG, **extra, "auto_map": {"x": "y"}}
    )
    to_hub(tmp_path / "google", tmp_path / "hub")
    assert "left out" in caplog.text
    config = json.loads((tmp_path / "hub" / "config.json").read_text())
    assert extra.items() <= config.items()
    assert "auto_map" not in config
