"""The head of the card: what the Hub reads is valid by its own library, and holds the run's figures."""

import json
from pathlib import Path

import pytest
from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results

from bert_recipes.model_card import CardArguments, write_card


OTHERS = ("token_classification", "question_answering", "multiple_choice")
ALL = ("pretraining", "sequence_classification", *(pytest.param(kind, marks=pytest.mark.slow) for kind in OTHERS))


def results_of(folder: Path) -> dict:
    return json.loads((folder / "all_results.json").read_text())


@pytest.mark.parametrize("kind", ALL)
def test_the_head_opens_and_comes_back_the_same(carded, kind):
    card = ModelCard.load(carded(kind) / "README.md")
    assert isinstance(card.data, ModelCardData)
    assert card.content == (carded(kind) / "README.md").read_text(encoding="utf-8")
    index = card.data.to_dict()["model-index"]
    name, results = model_index_to_eval_results(index)
    assert name == carded(kind).name
    assert eval_results_to_model_index(name, results) == index
    assert [result.metric_value for result in results] == [result.metric_value for result in card.data.eval_results]


def test_the_figures_of_pre_training(carded):
    folder = carded("pretraining")
    data = ModelCard.load(folder / "README.md").data
    found = {(result.task_type, result.metric_type): result.metric_value for result in data.eval_results}
    results = results_of(folder)
    assert found == {
        ("fill-mask", "loss"): results["eval_mlm_loss"],
        ("fill-mask", "perplexity"): results["eval_perplexity"],
        ("fill-mask", "accuracy"): results["eval_mlm_accuracy"],
        ("text-classification", "loss"): results["eval_nsp_loss"],
        ("text-classification", "accuracy"): results["eval_nsp_accuracy"],
    }
    assert results["data"]["fingerprint"][:16] in data.eval_results[0].dataset_name
    assert (data.pipeline_tag, data.library_name, data.license, data.language) == (
        "fill-mask",
        "transformers",
        "cc-by-sa-4.0",
        ["en"],
    )
    assert data.datasets is None  # local text has no name on the Hub
    assert data.base_model is None


@pytest.mark.parametrize(
    ("kind", "pipeline"),
    [
        ("sequence_classification", "text-classification"),
        pytest.param("token_classification", "token-classification", marks=pytest.mark.slow),
        pytest.param("question_answering", "question-answering", marks=pytest.mark.slow),
        pytest.param("multiple_choice", "multiple-choice", marks=pytest.mark.slow),
    ],
)
def test_the_figures_of_a_task(carded, kind, pipeline):
    folder = carded(kind)
    data = ModelCard.load(folder / "README.md").data
    results = {name: value for name, value in results_of(folder).items() if name.startswith("eval_")}
    results.pop("eval_seconds")
    assert {f"eval_{result.metric_type}": result.metric_value for result in data.eval_results} == results
    first = data.eval_results[0]
    assert (first.task_type, first.dataset_type, first.dataset_split) == (pipeline, "mine", "validation")
    assert data.pipeline_tag == pipeline
    assert data.base_model is None  # a folder is no name on the Hub
    assert "`start`" in (folder / "README.md").read_text()  # but the card names it


def change(file: Path, **values: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_figures_of_a_part_of_a_split_are_no_figures_of_the_data_set(copy_of):
    folder = copy_of("sequence_classification")
    splits = results_of(folder)["splits"]
    splits["validation"]["partial"] = True
    change(folder / "all_results.json", splits=splits)
    card = ModelCard(write_card(folder).read_text())
    assert card.data.eval_results is None
    assert "| validation | accuracy |" in card.text
    assert "Not all rows were read, or other ones than published: validation." in card.text


def test_a_figure_that_is_not_defined_is_left_out(copy_of):
    folder = copy_of("sequence_classification")
    change(folder / "all_results.json", eval_accuracy=None)
    card = ModelCard(write_card(folder).read_text())
    assert [result.metric_type for result in card.data.eval_results] == ["loss"]
    assert "accuracy |" not in card.text


def test_what_is_on_the_hub_is_named_by_its_name_there(copy_of):
    folder = copy_of("sequence_classification")
    results = results_of(folder)
    for split, entry in results["splits"].items():
        entry["source"] = f"Hub data set nyu-mll/glue (mrpc), split {split}"
    base = {"name": "google-bert/bert-base-uncased", "is_local": False, "revision": "86b5e093"}
    change(folder / "all_results.json", splits=results["splits"], base_model=base)
    with open(folder / "task.yaml", "a") as file:
        file.write("hub_dataset: nyu-mll/glue\nhub_subset: mrpc\n")
    data = ModelCard(write_card(folder).read_text()).data
    assert data.base_model == "google-bert/bert-base-uncased"
    assert data.datasets == ["nyu-mll/glue"]
    assert {(each.dataset_type, each.dataset_config) for each in data.eval_results} == {("nyu-mll/glue", "mrpc")}
    assert "revision `86b5e093`" in (folder / "README.md").read_text()
    assert "--data_dir" not in (folder / "README.md").read_text()


def test_a_corpus_from_the_hub_is_named(copy_of):
    folder = copy_of("pretraining")
    data = results_of(folder)["data"]
    data["sources"] = {"train": {"dataset": "wikimedia/wikipedia", "config": "20231101.en", "split": "train"}}
    change(folder / "all_results.json", data=data)
    head = ModelCard(write_card(folder).read_text()).data
    assert head.datasets == ["wikimedia/wikipedia"]
    assert {each.dataset_type for each in head.eval_results} == {"wikimedia/wikipedia"}


def test_two_validation_splits_have_their_figures_apart(copy_of):
    folder = copy_of("sequence_classification")
    results = results_of(folder)
    figures = {"eval_matched_accuracy": 0.5, "eval_mismatched_accuracy": 0.25}
    splits = {f"validation_{name}": results["splits"]["validation"] for name in ("matched", "mismatched")}
    kept = {name: value for name, value in results.items() if not name.startswith("eval_")}
    (folder / "all_results.json").write_text(json.dumps(kept | figures | {"splits": splits}))
    task = (folder / "task.yaml").read_text()
    (folder / "task.yaml").write_text(
        task.replace("- validation\n", "- validation_matched\n- validation_mismatched\n")
    )
    found = ModelCard(write_card(folder).read_text()).data.eval_results
    assert {(each.dataset_split, each.metric_type, each.metric_value) for each in found} == {
        ("validation_matched", "accuracy", 0.5),
        ("validation_mismatched", "accuracy", 0.25),
    }


def test_a_split_called_validation_has_not_the_figures_of_another_one(copy_of):
    folder = copy_of("sequence_classification")
    results = results_of(folder)
    figures = {"eval_accuracy": 0.5, "eval_hard_accuracy": 0.25}
    splits = dict.fromkeys(("validation", "validation_hard"), results["splits"]["validation"])
    kept = {name: value for name, value in results.items() if not name.startswith("eval_")}
    (folder / "all_results.json").write_text(json.dumps(kept | figures | {"splits": splits}))
    task = (folder / "task.yaml").read_text()
    (folder / "task.yaml").write_text(task.replace("- validation\n", "- validation\n- validation_hard\n"))
    found = ModelCard(write_card(folder).read_text()).data.eval_results
    assert {(each.dataset_split, each.metric_type, each.metric_value) for each in found} == {
        ("validation", "accuracy", 0.5),
        ("validation_hard", "accuracy", 0.25),
    }


@pytest.mark.parametrize(("published", "dataset"), [(None, "mine"), (23, "nyu-mll/glue")])
def test_files_of_the_user_are_not_said_to_be_the_data_set_on_the_hub(copy_of, published, dataset):
    folder = copy_of("sequence_classification")
    splits = results_of(folder)["splits"]
    splits["validation"]["published"] = published
    change(folder / "all_results.json", splits=splits)
    with open(folder / "task.yaml", "a") as file:
        file.write("hub_dataset: nyu-mll/glue\n")
    data = ModelCard(write_card(folder).read_text()).data
    assert {each.dataset_type for each in data.eval_results} == {dataset}
    assert data.datasets is None


def test_held_out_files_are_not_said_to_be_the_corpus_of_training(copy_of):
    folder = copy_of("pretraining")
    data = results_of(folder)["data"]
    data["sources"] = {
        "validation": {"files": 1, "bytes": 9, "names": ["own.txt"]},
        "train": {"dataset": "wikimedia/wikipedia", "config": "20231101.en", "split": "train"},
    }
    change(folder / "all_results.json", data=data)
    head = ModelCard(write_card(folder).read_text()).data
    assert {each.dataset_type for each in head.eval_results} == {"text"}


# Energy


def test_energy_of_the_run_is_called_an_estimate_and_says_how(carded):
    folder = carded("pretraining")
    results, card = results_of(folder), ModelCard.load(folder / "README.md")
    kwh = 250 / 1000 * results["train_seconds"] / 3600
    assert results["energy"]["kwh"] == pytest.approx(kwh, rel=0.1)  # seconds are rounded
    head = card.data.to_dict()["co2_eq_emissions"]
    assert head["emissions"] == pytest.approx(results["energy"]["co2_kg"] * 1000, rel=1e-3)  # grams
    assert head["emissions"] == pytest.approx(kwh * 400, rel=0.1)
    assert head["source"] == "an estimate: a given power draw of 250 W times the hours"
    assert head["training_type"] == "pre-training"
    assert head["hardware_used"] == (results["machine"]["gpu"] or results["machine"]["processor"])
    assert "| energy, kWh (an estimate) |" in card.text
    assert "| CO2 equivalent, g (an estimate) |" in card.text


@pytest.mark.parametrize(
    ("said", "is_whole"),
    [
        ({"train_seconds_is_whole": True, "resumed_at_step": 2}, True),
        ({"train_seconds_is_whole": False, "resumed_at_step": 2}, False),
        ({"train_seconds_is_whole": None, "resumed_at_step": 2}, False),  # of an older version
        ({"train_seconds_is_whole": None}, True),
    ],
)
def test_hours_of_a_part_are_not_called_those_of_the_run(copy_of, said, is_whole):
    folder = copy_of("sequence_classification")
    change(folder / "all_results.json", train_seconds=7200.0, **said)
    text = write_card(folder, CardArguments(power_watts=500)).read_text()
    assert ("whose hours are not known" not in text) is is_whole
    assert ("| hours that the estimate covers | 2 (7,200.0 s) |" not in text) is is_whole


def test_energy_may_be_given_for_the_card(copy_of):
    folder = copy_of("sequence_classification")
    assert "kWh" not in (folder / "README.md").read_text()
    change(folder / "all_results.json", train_seconds=7200.0)
    text = write_card(folder, CardArguments(power_watts=500)).read_text()
    assert "| energy, kWh (an estimate) | 1 |" in text
    assert "co2_eq_emissions" not in text
    given = CardArguments(carbon_intensity=350, country_iso_code="DEU")
    card = ModelCard(write_card(folder, given).read_text())
    assert card.data.to_dict()["co2_eq_emissions"] | {"hardware_used": ""} == {
        "emissions": 350.0,
        "source": "an estimate: a given power draw of 500 W times the hours",
        "training_type": "fine-tuning",
        "geographical_location": "DEU",
        "hardware_used": "",
    }
    assert "| CO2 equivalent, g (an estimate) | 350 |" in card.text
