"""What a checkpoint can do follows from the heads it has; what is no BERT is one line."""

import json
import shutil

import pytest
import transformers
from safetensors.torch import load_file, save_file

from bert_recipes.demo.model import open_demo_model
from bert_recipes.demo.tabs import answer, tabs_of
from bert_recipes.errors import InputError


def copy_as(checkpoint, folder, class_name):
    """The checkpoint as another stock class, with its tokenizer."""
    model = getattr(transformers, class_name).from_pretrained(checkpoint)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(checkpoint / name, folder)
    return folder


def change_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("class_name", "abilities", "lacking"),
    [
        ("BertForPreTraining", ("fill_mask", "next_sentence"), 0),
        ("BertForMaskedLM", ("fill_mask",), 1),
        ("BertForNextSentencePrediction", ("next_sentence",), 1),
        ("BertModel", (), 2),
    ],
)
def test_the_tabs_of_a_stock_folder_follow_from_its_heads(tiny_checkpoint, tmp_path, class_name, abilities, lacking):
    folder = copy_as(tiny_checkpoint, tmp_path / "model", class_name)
    model = open_demo_model(str(folder), tmp_path, use_cpu=True)
    assert model.abilities == abilities
    assert len(model.lacks) == lacking
    assert [tab.name for tab in tabs_of(model)] == [*abilities, "attention", "pieces"]


@pytest.mark.parametrize(
    ("kind", "tab", "num_fields"),
    [
        ("sequence_classification", "classify", 2),
        ("token_classification", "tag", 1),
        ("question_answering", "answer", 2),
        ("multiple_choice", "choose", 2),
    ],
)
def test_a_fine_tuned_run_has_the_tab_of_its_task(fine_tuned, kind, tab, num_fields):
    model = fine_tuned(kind)
    first, *others = tabs_of(model)
    assert (first.name, len(first.fields)) == (tab, num_fields)
    assert [other.name for other in others] == ["attention", "pieces"]
    assert "fine-tuned" in model.lacks[0]


def test_a_classifier_that_says_nothing_of_pairs_takes_one_text_or_two(tiny_runs, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_runs("sequence_classification"), folder)
    (folder / "task.yaml").unlink()
    model = open_demo_model(str(folder), tmp_path, use_cpu=True)
    assert [field.needs_text for field in tabs_of(model)[0].fields] == [True, False]


def of_one_segment(folder):
    weights = load_file(folder / "model.safetensors")
    name = "bert.embeddings.token_type_embeddings.weight"
    weights[name] = weights[name][:1].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    change_config(folder, type_vocab_size=1)
    return folder


def test_a_model_of_one_segment_is_asked_for_no_pairs(tiny_checkpoint, tiny_runs, tmp_path, words_of):
    model = open_demo_model(
        str(of_one_segment(shutil.copytree(tiny_checkpoint, tmp_path / "a"))), tmp_path, use_cpu=True
    )
    assert model.abilities == ("fill_mask",)
    assert "knows no second segment" in model.lacks[0]
    attention = tabs_of(model)[1]
    assert "the model knows no second segment" in words_of(answer(model, attention, "the a", "b", 1, 1))
    assert "bd-lines" in answer(model, attention, "the a", "", 1, 1)
    folder = of_one_segment(shutil.copytree(tiny_runs("sequence_classification"), tmp_path / "b"))
    (folder / "task.yaml").unlink()
    classify, *_ = tabs_of(open_demo_model(str(folder), tmp_path, use_cpu=True))
    assert len(classify.fields) == 1


def break_weights(folder):
    weights = load_file(folder / "model.safetensors")
    weights.pop("bert.encoder.layer.1.output.dense.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


BROKEN = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "has no model.safetensors"),
    "a weight lost": (break_weights, "no weights for bert.encoder.layer.1.output.dense.weight"),
    "another model": (lambda folder: change_config(folder, model_type="roberta"), "is no BERT.*'roberta'"),
    "no tokenizer": (
        lambda folder: [(folder / name).unlink() for name in ("vocab.txt", "tokenizer.json")],
        "neither tokenizer.json nor vocab.txt",
    ),
    "another tokenizer": (lambda folder: change_config(folder, vocab_size=50), "do not belong together"),
    "no JSON": (lambda folder: (folder / "config.json").write_text("{"), "cannot be opened"),
    "a list": (
        lambda folder: (folder / "config.json").write_text("[]"),
        "holds no mapping|cannot be opened|no BERT.*list",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_bert_is_one_line(tiny_checkpoint, tmp_path, name):
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "model")
    change, message = BROKEN[name]
    change(folder)
    with pytest.raises(InputError, match=message):
        open_demo_model(str(folder), tmp_path, use_cpu=True)


def test_a_folder_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(InputError, match="no folder"):
        open_demo_model(str(tmp_path / "nothing"), tmp_path)


def test_the_oldest_folders_do_not_name_their_kind(tiny_checkpoint, tmp_path):
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "model")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({key: value for key, value in values.items() if key not in ("model_type", "architectures")})
    )
    assert open_demo_model(str(folder), tmp_path, use_cpu=True).abilities == ("fill_mask", "next_sentence")
