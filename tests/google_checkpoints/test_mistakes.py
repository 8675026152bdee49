"""Original checkpoints that cannot be converted: one line for what is wrong, nothing is left."""

import re
import shutil

import numpy as np
import pytest
from conversions import to_hub
from fixture_parts import CONFIG, PIECES
from original_model import draw_variables, write_original

from bert_recipes.errors import InputError
from bert_recipes.google_checkpoints import find_files


PLAIN = draw_variables()


def without(values, *names):
    return {name: value for name, value in values.items() if name not in names}


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            without(PLAIN, "bert/pooler/dense/bias", "cls/predictions/transform/dense/kernel"),
            "google/bert_model.ckpt: bert/pooler/dense/bias and 1 more are missing; the "
            "checkpoint is not complete",
        ),
        (
            without(PLAIN, "cls/seq_relationship/output_bias"),
            "seq_relationship/output_bias is missing",
        ),
        (
            PLAIN | dict.fromkeys(("other/kernel", "z", "z\n" * 100), np.zeros(1)),
            "other/kernel and 2 more are not of the original's model; leave such out with "
            "--skip_variables other/kernel",
        ),
        (PLAIN | draw_variables(heads=("squad",)), "heads for masked_lm, next_sentence, squad"),
        (
            {name: array.astype(np.int32) for name, array in PLAIN.items()},
            "is int32; converted are",
        ),
        ({"global_step": np.asarray(1)}, "none of the original's weights"),
        ({"model/layer/.ATTRIBUTES/VARIABLE_VALUE": np.zeros(2)}, "TensorFlow 2's objects"),
    ],
)
def test_variables_that_are_no_model_are_refused(tmp_path, variables, message):
    refused(tmp_path, message, variables)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 10**9}, "has 2 layers, .* says num_hidden_layers 1000000000"),
        ({"hidden_size": 10}, r"embeddings/word_embeddings is \[58, 8\], by .* it is \[58, 10\]"),
        ({"hidden_size": 9}, "no multiple of num_attention_heads"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"vocab_size": None}, "vocab_size is None"),
        ({"hidden_act": ["gelu"]}, "hidden_act is .* the original has gelu, relu, tanh"),
        ({"hidden_dropout_prob": 1.5}, "below 1"),
        ({"hidden_dropout_prob": float("nan")}, "below 1"),
    ],
)
def test_configurations_of_another_model_are_refused(tmp_path, changes, message):
    refused(tmp_path, message, config=CONFIG | changes)


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([*PIECES, "one", "more"], r"vocabulary of 58, the tokenizer 60 pieces"),
        (PIECES[1:], r"no \[PAD\]"),
    ],
)
def test_vocabularies_of_another_model_are_refused(tmp_path, pieces, message):
    refused(tmp_path, message, pieces=pieces)


def refused(tmp_path, message, variables=PLAIN, config=CONFIG, pieces=PIECES):
    write_original(tmp_path / "google", variables, config, pieces=pieces)
    with pytest.raises(InputError) as caught:
        to_hub(tmp_path / "google", tmp_path / "hub")
    (line,) = str(caught.value).splitlines()
    assert re.search(message, line)
    assert {path.name for path in tmp_path.iterdir()} == {"google"}


def test_damage_that_is_met_on_the_way_leaves_nothing(tmp_path):
    write_original(tmp_path / "google", PLAIN)
    path = tmp_path / "google" / "bert_model.ckpt.data-00000-of-00001"
    path.write_bytes(path.read_bytes()[:-4] + b"1234")
    with pytest.raises(InputError, match="damaged or incomplete"):
        to_hub(tmp_path / "google", tmp_path / "hub")
    assert {path.name for path in tmp_path.iterdir()} == {"google"}


def prefix_of(path):
    return find_files(str(path), None, None).prefix


def test_the_checkpoint_is_found_by_folder_path_or_file(tmp_path):
    folder = tmp_path / "run"
    for step in (10, 9):
        write_original(folder, PLAIN, name=f"model.ckpt-{step}")
    with pytest.raises(InputError, match="several checkpoints: give one"):
        prefix_of(folder)
    (folder / "checkpoint").write_text(
        'model_checkpoint_path: "/elsewhere/model.ckpt-10"\nall_model_checkpoint_paths: "x"\n'
    )
    assert prefix_of(folder) == folder / "model.ckpt-10"
    for suffix in ("", ".index", ".data-00000-of-00001", ".meta"):
        assert prefix_of(folder / f"model.ckpt-9{suffix}") == folder / "model.ckpt-9"
    write_original(folder, PLAIN)
    assert prefix_of(folder) == folder / "bert_model.ckpt"
    vocabulary = shutil.move(folder / "vocab.txt", tmp_path / "v.txt")
    with pytest.raises(InputError, match=r"vocab\.txt; say where it is with --vocab_file"):
        prefix_of(folder)
    assert find_files(str(folder), None, str(vocabulary)).vocab_file == vocabulary


def test_what_is_no_checkpoint_is_refused(tmp_path):
    (tmp_path / "bert_model.ckpt").write_bytes(b"of version 1")
    with pytest.raises(InputError, match="format of version 2"):
        prefix_of(tmp_path / "bert_model.ckpt")
    with pytest.raises(InputError, match=r"has no TensorFlow checkpoint \(no file"):
        prefix_of(tmp_path)
