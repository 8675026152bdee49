"""Original checkpoints to Hub folders: the same weights, and what the user decides."""

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
from bert_recipes.google_checkpoints import OF_OPTIMIZER, select_skipped
from bert_recipes.tokenization.loading import load_tokenizer


@pytest.fixture
def google(tmp_path):
    """A checkpoint of pre-training."""
    write_original(tmp_path / "google", draw_variables())
    return tmp_path / "google"


@pytest.mark.parametrize(
    "heads",
    ["", "masked_lm next_sentence", "masked_lm", "next_sentence", "classifier", "squad"],
)
def test_stock_takes_it_and_the_weights_are_the_same_bit_for_bit(tmp_path, heads):
    variables = draw_variables(heads=tuple(heads.split()))
    write_original(tmp_path / "google", variables)
    converted = to_hub(tmp_path / "google", tmp_path / "hub")
    stock_class = getattr(transformers, converted.architecture)
    _, info = stock_class.from_pretrained(tmp_path / "hub", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    assert all("pooler" in name for name in info["unexpected_keys"])
    check_weights(tmp_path / "hub", variables)
    vocabulary = (tmp_path / "google" / "vocab.txt").read_bytes()
    assert (tmp_path / "hub" / "vocab.txt").read_bytes() == vocabulary


def test_a_folder_is_what_stock_writes(google, tmp_path):
    to_hub(google, tmp_path / "hub")
    model = transformers.BertForPreTraining.from_pretrained(tmp_path / "hub")
    model.save_pretrained(tmp_path / "stock")
    converted = load_file(tmp_path / "hub" / "model.safetensors")
    stock = load_file(tmp_path / "stock" / "model.safetensors")
    # Second names, in some versions.
    tied = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    assert converted.keys() == stock.keys() - tied
    assert all(torch.equal(tensor, stock[name]) for name, tensor in converted.items())
    assert model.config.hidden_act == "gelu_new"
    assert model.config.layer_norm_eps == 1e-12
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
    assert tokenizer.convert_tokens_to_ids("[MASK]") == 4
    to_hub(google, tmp_path / "exact", exact_gelu=True)
    assert transformers.AutoConfig.from_pretrained(tmp_path / "exact").hidden_act == "gelu"


def test_what_the_optimizer_added_is_left_out_and_counted(tmp_path):
    write_original(tmp_path / "google", draw_variables(with_adam=True), name="model.ckpt-1234")
    converted = to_hub(tmp_path / "google", tmp_path / "hub")
    variables = draw_variables()
    assert converted.num_variables == len(variables)
    assert converted.num_of_optimizer == 2 * len(variables) + 1
    assert converted.num_parameters == sum(array.size for array in variables.values())
    report = json.loads((tmp_path / "hub" / "google_checkpoint.json").read_text())
    assert report["checkpoint"] == "model.ckpt-1234"
    assert report["num_of_optimizer"] == converted.num_of_optimizer


@pytest.mark.parametrize(
    ("name", "is_of_optimizer"),
    [
        ("x/adam_v", True),
        ("cls/AdamWeightDecayOptimizer_1", True),
        ("bert/pooler/dense/kernel", False),
        ("adam_mean/kernel", False),
        ("bert/global_step", False),
    ],
)
def test_what_is_of_the_optimizer(name, is_of_optimizer):
    assert bool(OF_OPTIMIZER.fullmatch(name)) == is_of_optimizer


def test_weights_of_smaller_types_become_float32(tmp_path):
    variables = {name: array.astype(np.float16) for name, array in draw_variables().items()}
    write_original(tmp_path / "google", variables)
    to_hub(tmp_path / "google", tmp_path / "hub")
    kernel = load_file(tmp_path / "hub" / "model.safetensors")["bert.pooler.dense.weight"]
    original = variables["bert/pooler/dense/kernel"].astype(np.float32)
    np.testing.assert_array_equal(kernel.numpy(), original.T)


# What the user decides


def test_heads_can_be_left_out(tmp_path):
    write_original(tmp_path / "google", {**draw_variables(), **draw_variables(heads=("squad",))})
    skipped = ["cls/predictions", "cls/seq_relationship"]
    converted = to_hub(tmp_path / "google", tmp_path / "hub", skipped=skipped)
    assert converted.architecture == "BertForQuestionAnswering"
    assert len(converted.skipped) == 7
    # Whole names, and what lies below them.
    names = ["cls/predictions/output_bias", "output_bias", "cls/predictions_2/bias"]
    assert select_skipped(names, ["cls/predictions", "output_bias"], "here") == set(names[:2])
    with pytest.raises(InputError, match="nothing that is called cls/pred"):
        select_skipped(names, ["cls/pred"], "here")


def test_labels_of_a_classifier(google, tmp_path):
    with pytest.raises(InputError, match=r"for a classifier of 0 classes .0: there is none"):
        to_hub(google, tmp_path / "hub", labels=["no"])
    write_original(google, draw_variables(heads=("classifier",)))
    with pytest.raises(InputError, match="labels: 2 different ones for a classifier of 3"):
        to_hub(google, tmp_path / "hub", labels=["no", "yes", "no"])
    for name, labels in (("a", ["no", "yes", "perhaps"]), ("b", None)):
        to_hub(google, tmp_path / name, labels=labels)
        config = transformers.AutoConfig.from_pretrained(tmp_path / name)
        assert [*config.id2label.values()] == (labels or ["LABEL_0", "LABEL_1", "LABEL_2"])


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


def test_without_such_a_name_the_user_or_the_vocabulary_decides(google, tmp_path):
    assert to_hub(google, tmp_path / "a").do_lower_case
    assert not to_hub(google, tmp_path / "b", do_lower_case=False).do_lower_case


def test_what_the_multilingual_configurations_have_besides_stays(tmp_path, caplog):
    extra = {"directionality": "bidi", "pooler_fc_size": 768}
    config = {**CONFIG, **extra, "auto_map": {"x": "y"}}
    write_original(tmp_path / "google", draw_variables(), config)
    to_hub(tmp_path / "google", tmp_path / "hub")
    assert "left out" in caplog.text
    converted = json.loads((tmp_path / "hub" / "config.json").read_text())
    assert extra.items() <= converted.items()
    assert "auto_map" not in converted
