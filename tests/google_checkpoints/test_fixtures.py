"""Checkpoints that TensorFlow wrote with Google's own code, and what that code computed from them.

tests/google_checkpoints/tensorflow_side.py made them: one was trained for three steps, one has its
variables in three parts each, one lies in two files.
"""

import numpy as np
import pytest
import transformers
from conversions import check_outputs, read_all, to_hub
from fixture_parts import CONFIG
from original_model import draw_variables, shapes

from bert_recipes.errors import InputError
from bert_recipes.google_checkpoints import convert_to_tensorflow, find_files
from bert_recipes.tensorflow_files import BundleReader, BundleWriter, read_table


HEADS = {
    "pretraining": ("masked_lm", "next_sentence"),
    "classifier": ("classifier",),
    "squad": ("squad",),
}


@pytest.fixture(params=list(HEADS))
def original(request, repository):
    """Folder of a checkpoint, and the name of its head."""
    return repository / "tests" / "fixtures" / "google" / request.param, request.param


def prefix_in(folder):
    return find_files(str(folder), None, None).prefix


def test_they_have_the_variables_that_the_tests_write_themselves(original):
    folder, head = original
    wanted = shapes(CONFIG, HEADS[head])
    if head == "pretraining":
        wanted = {name: array.shape for name, array in draw_variables(with_adam=True).items()}
    found = BundleReader(prefix_in(folder)).variables
    assert {name: variable.shape for name, variable in found.items()} == wanted


def test_they_are_partitioned_and_in_several_files(repository):
    folder = repository / "tests" / "fixtures" / "google"
    assert len(list((folder / "squad").glob("*.data-0000?-of-00002"))) == 2
    keys = read_table(folder / "classifier" / "bert_model.ckpt.index")
    assert sum(key.startswith(b"\0") for key in keys) > 50


@pytest.mark.parametrize(
    ("name", "skipped", "architecture"),
    [
        ("pretraining", {}, "BertForPreTraining"),
        ("pretraining", {"cls/seq_relationship": "next_sentence"}, "BertForMaskedLM"),
        ("pretraining", {"cls/predictions": "masked_lm"}, "BertForNextSentencePrediction"),
        (
            "pretraining",
            {"cls/predictions": "masked_lm", "cls/seq_relationship": "next_sentence"},
            "BertModel",
        ),
        ("classifier", {}, "BertForSequenceClassification"),
        ("squad", {}, "BertForQuestionAnswering"),
    ],
)
def test_stock_computes_what_googles_code_computed(
    repository, tmp_path, name, skipped, architecture
):
    folder = repository / "tests" / "fixtures" / "google" / name
    done = to_hub(folder, tmp_path / "hub", skipped=list(skipped))
    assert done.architecture == architecture
    model = getattr(transformers, architecture).from_pretrained(tmp_path / "hub")
    with np.load(folder / "outputs.npz") as wanted:
        check_outputs(model, {key: wanted[key] for key in wanted if key not in skipped.values()})
    num_variables = done.num_variables + len(done.skipped)
    assert done.num_of_optimizer == (2 * num_variables + 1 if name == "pretraining" else 0)


def test_our_file_of_the_same_variables_is_tensorflows_byte_for_byte(repository, tmp_path):
    prefix = prefix_in(repository / "tests" / "fixtures" / "google" / "pretraining")
    with BundleWriter(tmp_path / prefix.name) as writer:
        for name, values in read_all(prefix).items():
            writer.add(name, values)
    for suffix in (".index", ".data-00000-of-00001"):
        name = f"{prefix.name}{suffix}"
        assert (tmp_path / name).read_bytes() == prefix.with_name(name).read_bytes()


def test_there_and_back_again(original, tmp_path):
    folder, _ = original
    to_hub(folder, tmp_path / "hub")
    written = convert_to_tensorflow(tmp_path / "hub", tmp_path / "back")
    wanted = {
        name: array
        for name, array in read_all(prefix_in(folder)).items()
        if "adam" not in name and name != "global_step"
    }
    got = read_all(written.prefix)
    assert got.keys() == wanted.keys()
    assert all(np.array_equal(got[name], wanted[name]) for name in wanted)
    assert (tmp_path / "back" / "bert_config.json").read_bytes() == (
        folder / "bert_config.json"
    ).read_bytes()


def test_half_of_two_files_is_not_enough(repository, tmp_path):
    folder = repository / "tests" / "fixtures" / "google" / "squad"
    for path in folder.iterdir():
        if "data-00001" not in path.name:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(InputError, match=r"data-00001-of-00002: missing"):
        to_hub(tmp_path, tmp_path / "hub")
