"""Original checkpoints and Hub folders that cannot be converted: one line for what is wrong, and nothing is left."""

import json
import shutil

import numpy as np
import pytest
import torch
import transformers
from conversions import read_all, to_hub
from fixture_parts import CONFIG, PIECES
from original_model import draw_variables, write_original
from safetensors.torch import load_file, save_file

from bert_recipes.errors import InputError
from bert_recipes.google_checkpoints import convert_to_tensorflow, find_files


def without(variables, *names):
    return {name: array for name, array in variables.items() if name not in names}


PLAIN = draw_variables()


@pytest.mark.parametrize(
    ("variables", "config", "pieces", "message"),
    [
        (
            without(PLAIN, "bert/pooler/dense/bias"),
            CONFIG,
            PIECES,
            "bert/pooler/dense/bias is missing; the checkpoint is not complete",
        ),
        (
            without(PLAIN, "cls/seq_relationship/output_bias"),
            CONFIG,
            PIECES,
            "cls/seq_relationship/output_bias is missing",
        ),
        ({**PLAIN, "module/x": np.zeros(2)}, CONFIG, PIECES, "module/x is not of the original's model"),
        (PLAIN, {**CONFIG, "num_hidden_layers": 3}, PIECES, "has 2 layers, .* says num_hidden_layers 3"),
        (PLAIN, {**CONFIG, "num_hidden_layers": 10**9}, PIECES, "has 2 layers"),
        (
            PLAIN,
            {**CONFIG, "hidden_size": 10},
            PIECES,
            r"bert/embeddings/word_embeddings is \[58, 8\], by .* it is \[58, 10\]",
        ),
        (PLAIN, {**CONFIG, "hidden_size": 9}, PIECES, "no multiple of num_attention_heads"),
        (PLAIN, {**CONFIG, "hidden_size": True}, PIECES, "hidden_size is True"),
        (PLAIN, {**CONFIG, "hidden_act": ["gelu"]}, PIECES, "hidden_act is"),
        (PLAIN, {**CONFIG, "hidden_act": "swish"}, PIECES, "the original has gelu, relu, tanh"),
        (PLAIN, {**CONFIG, "hidden_dropout_prob": 1.5}, PIECES, "below 1"),
        (PLAIN, {**CONFIG, "hidden_dropout_prob": float("nan")}, PIECES, "below 1"),
        (PLAIN, without(CONFIG, "vocab_size"), PIECES, "vocab_size is None"),
        (PLAIN, [1], PIECES, "holds no mapping but a list"),
        (PLAIN, CONFIG, PIECES[:-3], r"vocabulary of 58, the tokenizer 55 pieces"),
        (PLAIN, CONFIG, PIECES[1:], r"no \[PAD\]"),
        ({name: array.astype(np.int32) for name, array in PLAIN.items()}, CONFIG, PIECES, "is int32; converted are"),
        ({"global_step": np.asarray(1)}, CONFIG, PIECES, "none of the original's weights"),
        ({"model/layer/.ATTRIBUTES/VARIABLE_VALUE": np.zeros(2)}, CONFIG, PIECES, "TensorFlow 2's objects"),
    ],
)
def test_files_that_do_not_belong_together_are_refused_and_nothing_is_written(
    tmp_path, variables, config, pieces, message
):
    write_original(tmp_path / "google", variables, config, pieces=pieces)
    with pytest.raises(InputError, match=message):
        to_hub(tmp_path / "google", tmp_path / "hub")
    assert {path.name for path in tmp_path.iterdir()} == {"google"}


def test_damage_that_is_met_on_the_way_leaves_nothing(tmp_path):
    write_original(tmp_path / "google", PLAIN)
    path = tmp_path / "google" / "bert_model.ckpt.data-00000-of-00001"
    path.write_bytes(path.read_bytes()[:-4] + b"1234")
    with pytest.raises(InputError, match="wrong checksum"):
        to_hub(tmp_path / "google", tmp_path / "hub")
    assert {path.name for path in tmp_path.iterdir()} == {"google"}


def test_the_checkpoint_is_found_by_folder_path_or_file(tmp_path):
    folder = tmp_path / "run"
    for step in (10, 9):
        write_original(folder, PLAIN, name=f"model.ckpt-{step}")
    with pytest.raises(InputError, match="several checkpoints: give one"):
        find_files(str(folder), None, None)
    (folder / "checkpoint").write_text(
        'model_checkpoint_path: "/elsewhere/model.ckpt-10"\nall_model_checkpoint_paths: "x"\n'
    )
    assert find_files(str(folder), None, None).prefix == folder / "model.ckpt-10"
    for name in ("model.ckpt-9", "model.ckpt-9.index", "model.ckpt-9.data-00000-of-00001", "model.ckpt-9.meta"):
        assert find_files(str(folder / name), None, None).prefix == folder / "model.ckpt-9"
    write_original(folder, PLAIN)
    assert find_files(str(folder), None, None).prefix == folder / "bert_model.ckpt"
    shutil.move(folder / "vocab.txt", tmp_path / "v.txt")
    with pytest.raises(InputError, match=r"no file .*vocab\.txt; say where it is with --vocab_file"):
        find_files(str(folder), None, None)
    assert find_files(str(folder), None, str(tmp_path / "v.txt")).vocab_file == tmp_path / "v.txt"
    with pytest.raises(InputError, match="bert_config_file: no file nowhere"):
        find_files(str(folder), "nowhere", str(tmp_path / "v.txt"))


def test_where_there_is_no_checkpoint_one_line_says_what_one_is(tmp_path):
    (tmp_path / "bert_model.ckpt").write_bytes(b"of version 1")
    with pytest.raises(InputError, match="format of version 2"):
        find_files(str(tmp_path / "bert_model.ckpt"), None, None)
    with pytest.raises(InputError, match=r"has no TensorFlow checkpoint \(no file"):
        find_files(str(tmp_path), None, None)
    with pytest.raises(InputError, match="format of version 2"):
        find_files(str(tmp_path / "nowhere"), None, None)


def change_config(folder, **changes):
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | changes))


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "not JSON"),
        (lambda folder: change_config(folder, model_type="roberta"), "model_type is 'roberta'"),
        (lambda folder: change_config(folder, hidden_act="silu"), "the original has gelu"),
        (lambda folder: change_config(folder, position_embedding_type="relative_key"), "not the original's"),
        (lambda folder: change_config(folder, is_decoder=True), "sees both sides"),
        (lambda folder: change_config(folder, num_hidden_layers=1), "has 2 layers"),
        (lambda folder: change_config(folder, intermediate_size=17), r"is \[16, 8\], by .* it is \[17, 8\]"),
        (lambda folder: change_config(folder, vocab_size=50), "58 pieces in the vocabulary, but vocab_size is 50"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no model.safetensors; no other weights are opened"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 20), "no safetensors file, or damaged"),
        (
            lambda folder: change_weights(folder, lambda w: w.pop("bert.pooler.dense.bias")),
            "bert.pooler.dense.bias is missing",
        ),
        (
            lambda folder: change_weights(folder, lambda w: w.update(x=torch.zeros(1))),
            "x is not of the original's model",
        ),
        (
            lambda folder: change_weights(
                folder, lambda w: w.update({"cls.predictions.decoder.weight": torch.zeros(58, 8)})
            ),
            "the original has one weight for both",
        ),
        (
            lambda folder: change_weights(
                folder, lambda w: w.update({"bert.pooler.dense.bias": torch.zeros(8).double()})
            ),
            "is torch.float64; weights of these types are converted",
        ),
    ],
)
def test_a_folder_that_the_original_has_no_place_for_is_refused(tmp_path, break_it, message):
    write_original(tmp_path / "google", PLAIN)
    to_hub(tmp_path / "google", tmp_path / "hub")
    break_it(tmp_path / "hub")
    with pytest.raises(InputError, match=message) as caught:
        convert_to_tensorflow(tmp_path / "hub", tmp_path / "back")
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "model.bin", "", 5])
def test_an_index_names_only_safetensors_files_beside_it(tmp_path, name):
    write_original(tmp_path / "google", PLAIN)
    to_hub(tmp_path / "google", tmp_path / "hub")
    (tmp_path / "hub" / "model.safetensors").rename(tmp_path / "model.safetensors")
    (tmp_path / "hub" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(InputError, match="is no safetensors file beside it"):
        convert_to_tensorflow(tmp_path / "hub", tmp_path / "back")


def test_added_tokens_have_no_place(tmp_path):
    write_original(tmp_path / "google", PLAIN)
    to_hub(tmp_path / "google", tmp_path / "hub")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
    tokenizer.add_tokens(["new"])
    tokenizer.save_pretrained(tmp_path / "hub")
    (tmp_path / "hub" / "vocab.txt").unlink(missing_ok=True)
    with pytest.raises(InputError, match="1 added tokens"):
        convert_to_tensorflow(tmp_path / "hub", tmp_path / "back")


@pytest.mark.parametrize(
    ("rows", "changes"),
    [
        (1, {}),
        (1, {"problem_type": "regression"}),
        (3, {"problem_type": "regression"}),
        (1, {"problem_type": "multi_label_classification"}),
        (3, {"problem_type": "multi_label_classification"}),
        (1, {"problem_type": "single_label_classification"}),
    ],
)
def test_numbers_and_several_labels_at_once_are_refused(tmp_path, rows, changes):
    """run_classifier.py would put a softmax over them. Source: google-research/bert run_classifier.py `create_model`."""
    write_original(tmp_path / "google", draw_variables(heads=("classifier",)))
    to_hub(tmp_path / "google", tmp_path / "hub")
    change_config(tmp_path / "hub", **changes)
    change_weights(
        tmp_path / "hub",
        lambda weights: weights.update(
            {name: weights[name][:rows].clone() for name in weights if "classifier" in name}
        ),
    )
    with pytest.raises(InputError, match=r"its classifier is for '.*; give --skip_variables classifier"):
        convert_to_tensorflow(tmp_path / "hub", tmp_path / "back")
    assert not (tmp_path / "back").exists()
    written = convert_to_tensorflow(tmp_path / "hub", tmp_path / "back", skipped=["classifier"])
    assert read_all(written.prefix).keys() == draw_variables(heads=()).keys()
