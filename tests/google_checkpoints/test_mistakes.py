"""Original checkpoints and Hub folders that cannot be converted: one line for what is wrong, and
nothing is left.
"""

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


PLAIN = draw_variables()


def without(variables, *names):
    return {name: array for name, array in variables.items() if name not in names}


def original(tmp_path, variables=PLAIN, config=CONFIG, pieces=PIECES):
    write_original(tmp_path / "google", variables, config, pieces=pieces)
    return tmp_path / "google"


def config_with(**changes):
    return {"config": CONFIG | changes}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {
                "variables": without(
                    PLAIN, "bert/pooler/dense/bias", "cls/predictions/transform/dense/kernel"
                )
            },
            "google/bert_model.ckpt: bert/pooler/dense/bias and 1 more are missing; the "
            "checkpoint is not complete",
        ),
        (
            {"variables": without(PLAIN, "cls/seq_relationship/output_bias")},
            "seq_relationship/output_bias is missing",
        ),
        (
            {"variables": PLAIN | dict.fromkeys(("other/kernel", "z", "z\n" * 100), np.zeros(1))},
            "other/kernel and 2 more are not of the original's model; leave such out with "
            "--skip_variables other/kernel",
        ),
        (
            {"variables": PLAIN | draw_variables(heads=("squad",))},
            "heads for masked_lm, next_sentence, squad",
        ),
        (config_with(num_hidden_layers=3), "has 2 layers, .* says num_hidden_layers 3"),
        (config_with(num_hidden_layers=10**9), "has 2 layers"),
        (
            config_with(hidden_size=10),
            r"bert/embeddings/word_embeddings is \[58, 8\], by .* it is \[58, 10\]",
        ),
        (config_with(hidden_size=9), "no multiple of num_attention_heads"),
        (config_with(hidden_size=True), "hidden_size is True"),
        (config_with(hidden_act=["gelu"]), "hidden_act is"),
        (config_with(hidden_act="swish"), "the original has gelu, relu, tanh"),
        (config_with(hidden_dropout_prob=1.5), "below 1"),
        (config_with(hidden_dropout_prob=float("nan")), "below 1"),
        ({"config": without(CONFIG, "vocab_size")}, "vocab_size is None"),
        ({"config": [1]}, "a JSON object is wanted, not a list"),
        ({"pieces": [*PIECES, "one", "more"]}, r"vocabulary of 58, the tokenizer 60 pieces"),
        ({"pieces": PIECES[1:]}, r"no \[PAD\]"),
        (
            {"variables": {name: array.astype(np.int32) for name, array in PLAIN.items()}},
            "is int32; converted are",
        ),
        ({"variables": {"global_step": np.asarray(1)}}, "none of the original's weights"),
        (
            {"variables": {"model/layer/.ATTRIBUTES/VARIABLE_VALUE": np.zeros(2)}},
            "TensorFlow 2's objects",
        ),
    ],
)
def test_files_that_do_not_belong_together_are_refused_and_nothing_is_written(
    tmp_path, parts, message
):
    folder = original(tmp_path, **parts)
    with pytest.raises(InputError, match=message) as caught:
        to_hub(folder, tmp_path / "hub")
    assert len(str(caught.value).splitlines()) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"google"}


def test_damage_that_is_met_on_the_way_leaves_nothing(tmp_path):
    path = original(tmp_path) / "bert_model.ckpt.data-00000-of-00001"
    path.write_bytes(path.read_bytes()[:-4] + b"1234")
    with pytest.raises(InputError, match="wrong checksum"):
        to_hub(tmp_path / "google", tmp_path / "hub")
    assert {path.name for path in tmp_path.iterdir()} == {"google"}


def test_the_checkpoint_is_found_by_folder_path_or_file(tmp_path):
    folder = tmp_path / "run"

    def prefix(path=folder):
        return find_files(str(path), None, None).prefix

    for step in (10, 9):
        write_original(folder, PLAIN, name=f"model.ckpt-{step}")
    with pytest.raises(InputError, match="several checkpoints: give one"):
        prefix()
    (folder / "checkpoint").write_text(
        'model_checkpoint_path: "/elsewhere/model.ckpt-10"\nall_model_checkpoint_paths: "x"\n'
    )
    assert prefix() == folder / "model.ckpt-10"
    for name in (
        "model.ckpt-9",
        "model.ckpt-9.index",
        "model.ckpt-9.data-00000-of-00001",
        "model.ckpt-9.meta",
    ):
        assert prefix(folder / name) == folder / "model.ckpt-9"
    write_original(folder, PLAIN)
    assert prefix() == folder / "bert_model.ckpt"
    shutil.move(folder / "vocab.txt", tmp_path / "v.txt")
    with pytest.raises(
        InputError, match=r"no file .*vocab\.txt; say where it is with --vocab_file"
    ):
        prefix()
    assert find_files(str(folder), None, str(tmp_path / "v.txt")).vocab_file == tmp_path / "v.txt"
    (tmp_path / "bert_model.ckpt").write_bytes(b"of version 1")
    for path, words in (
        (tmp_path / "bert_model.ckpt", "format of version 2"),
        (tmp_path, r"has no TensorFlow checkpoint \(no file"),
    ):
        with pytest.raises(InputError, match=words):
            prefix(path)


def change_config(folder, **changes):
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | changes))


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def add_token(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["new"])
    tokenizer.save_pretrained(folder)
    (folder / "vocab.txt").unlink(missing_ok=True)


def index_names(name):
    def change(folder):
        (folder / "model.safetensors").rename(folder.parent / "model.safetensors")
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"a": name}})
        )

    return change


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "broken JSON"),
        (lambda folder: change_config(folder, model_type="roberta"), "model_type is 'roberta'"),
        (lambda folder: change_config(folder, hidden_act="silu"), "the original has gelu"),
        (
            lambda folder: change_config(folder, position_embedding_type="relative_key"),
            "not the original's",
        ),
        (lambda folder: change_config(folder, is_decoder=True), "sees both sides"),
        (lambda folder: change_config(folder, num_hidden_layers=1), "has 2 layers"),
        (
            lambda folder: change_config(folder, intermediate_size=17),
            r"is \[16, 8\], by .* it is \[17, 8\]",
        ),
        (
            lambda folder: change_config(folder, vocab_size=50),
            "58 pieces in the vocabulary, but vocab_size is 50",
        ),
        (
            lambda folder: (folder / "model.safetensors").unlink(),
            "no model.safetensors; no other weights are opened",
        ),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 20),
            "no safetensors file, or damaged",
        ),
        (
            lambda folder: change_weights(folder, lambda w: w.pop("bert.pooler.dense.bias")),
            "dense.bias is missing",
        ),
        (
            lambda folder: change_weights(folder, lambda w: w.update(x=torch.zeros(1))),
            "x is not of the original's",
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
        (add_token, "1 added tokens"),
        *(
            (index_names(name), "is no safetensors file beside it")
            for name in ("../model.safetensors", "/etc/passwd", "model.bin", "", 5)
        ),
    ],
)
def test_a_folder_that_the_original_has_no_place_for_is_refused(tmp_path, break_it, message):
    to_hub(original(tmp_path), tmp_path / "hub")
    break_it(tmp_path / "hub")
    with pytest.raises(InputError, match=message) as caught:
        convert_to_tensorflow(tmp_path / "hub", tmp_path / "back")
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize(
    ("rows", "changes"),
    [
        (1, {}),
        (3, {"problem_type": "regression"}),
        (3, {"problem_type": "multi_label_classification"}),
        (1, {"problem_type": "single_label_classification"}),
        (3, {"architectures": ["BertForTokenClassification"]}),
    ],
)
def test_heads_that_the_original_does_not_have_are_refused(tmp_path, rows, changes):
    """run_classifier.py would put a softmax over them. Source: google-research/bert
    run_classifier.py `create_model`.
    """
    to_hub(original(tmp_path, draw_variables(heads=("classifier",))), tmp_path / "hub")
    change_config(tmp_path / "hub", **changes)
    change_weights(
        tmp_path / "hub",
        lambda weights: weights.update(
            {name: weights[name][:rows].clone() for name in weights if "classifier" in name}
        ),
    )
    words = (
        r"a 'BertForTokenC.*, and the original's code has none"
        if "architectures" in changes
        else "is for '"
    )
    with pytest.raises(InputError, match=rf"{words}.*; give --skip_variables classifier"):
        convert_to_tensorflow(tmp_path / "hub", tmp_path / "back")
    assert not (tmp_path / "back").exists()
    written = convert_to_tensorflow(tmp_path / "hub", tmp_path / "back", skipped=["classifier"])
    assert read_all(written.prefix).keys() == draw_variables(heads=()).keys()
