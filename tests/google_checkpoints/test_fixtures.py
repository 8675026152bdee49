"""Checkpoints that TensorFlow wrote with Google's own code, and what that code computed from them.

tests/google_checkpoints/tensorflow_side.py made them: one was trained for three steps, one has its
variables in three parts each, one lies in two files.
"""

import numpy as np
import pytest
import transformers
from conversions import check_outputs, to_hub
from fixture_parts import CONFIG
from original_model import draw_variables, shapes

from bert_recipes.errors import InputError
from bert_recipes.google_checkpoints import find_files
from bert_recipes.tensorflow_files import BundleReader, read_table


HEADS = {
    "pretraining": ("masked_lm", "next_sentence"),
    "classifier": ("classifier",),
    "squad": ("squad",),
}


@pytest.fixture(params=list(HEADS))
def original(request, repository):
    """Folder of a checkpoint, and the name of its head."""
    return repository / "tests" / "fixtures" / "google" / request.param, request.param


def test_they_have_the_variables_that_the_tests_write_themselves(original):
    folder, head = original
    expected = shapes(CONFIG, HEADS[head])
    if head == "pretraining":
        expected = {name: array.shape for name, array in draw_variables(with_adam=True).items()}
    prefix = find_files(str(folder), None, None).prefix
    variables = BundleReader(prefix).variables
    assert {name: variable.shape for name, variable in variables.items()} == expected


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
    converted = to_hub(folder, tmp_path / "hub", skipped=list(skipped))
    assert converted.architecture == architecture
    model = getattr(transformers, architecture).from_pretrained(tmp_path / "hub")
    with np.load(folder / "outputs.npz") as outputs:
        computed = [key for key in outputs if key not in skipped.values()]
        check_outputs(model, {key: outputs[key] for key in computed})
    num_variables = converted.num_variables + len(converted.skipped)
    num_of_optimizer = 2 * num_variables + 1 if name == "pretraining" else 0
    assert converted.num_of_optimizer == num_of_optimizer


def test_half_of_two_files_is_not_enough(repository, tmp_path):
    folder = repository / "tests" / "fixtures" / "google" / "squad"
    for path in folder.iterdir():
        if "data-00001" not in path.name:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(InputError, match=r"data-00001-of-00002: damaged or incomplete"):
        to_hub(tmp_path, tmp_path / "hub")
