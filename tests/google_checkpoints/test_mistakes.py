"""Original checkpoints that cannot be converted: one line for what is wrong, nothing is left."""

import shutil

import numpy as np
import pytest
from conversions import to_hub
from fixture_parts import CONFIG, PIECES
from original_model import draw_variables, write_original

from bert_recipes.errors import InputError
from bert_recipes.google_checkpoints import find_files


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
    with pytest.raises(InputError, match="damaged or incomplete"):
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
