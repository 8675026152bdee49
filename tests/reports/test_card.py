"""The card: its head, what it says, when it is written, what it remembers, and what is refused in
one line.
"""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results

from bert_recipes.checkpointing import may_replace_card
from bert_recipes.errors import InputError
from bert_recipes.reports import card as card_module
from bert_recipes.reports.card import name_repository, write_card, write_card_of_run
from bert_recipes.reports.card_arguments import CardArguments
from bert_recipes.training.arguments import DataArguments
from bert_recipes.training.pretraining import load_data


SNAPSHOTS = Path(__file__).parent / "snapshots"
SEQUENCES, RESULTS = "sequence_classification", "all_results.json"


def results_of(folder: Path) -> dict:
    return json.loads((folder / RESULTS).read_text())


def text_of(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


def change(file: Path, **values: object) -> None:
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, **values}))


def change_yaml(file: Path, **values: object) -> None:
    content = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**content, **values}, sort_keys=False))


def changed_card(folder: Path, arguments: CardArguments | None = None, **values: object):
    """The card with other values in all_results.json."""
    change(folder / RESULTS, **values)
    return ModelCard(write_card(folder, arguments).read_text())


@pytest.mark.parametrize("name", ["pretraining", "classification"])
def test_a_card_is_that_of_the_snapshot(tmp_path, name):
    folder = shutil.copytree(SNAPSHOTS / name, tmp_path / name)
    assert write_card(folder).read_text() == (folder / "expected_card.md").read_text()


# The head


@pytest.mark.parametrize("kind", ["pretraining", SEQUENCES])
def test_the_head_has_the_values_of_the_run_and_no_cell_is_empty_or_names_the_machine(
    carded, english_store, kind
):
    folder = carded(kind)
    card = ModelCard.load(folder / "README.md")
    index = card.data.to_dict()["model-index"]
    name, results = model_index_to_eval_results(index)
    assert name == folder.name
    assert eval_results_to_model_index(name, results) == index
    measured = results_of(folder)

    for result in results:
        assert result.metric_value in measured.values()

    text = re.sub(r"```python\n.*?```", "", card.content, flags=re.DOTALL)

    for word in ("None", "null", "nan", "unknown", "N/A", "n/a", "TODO", "False", "True"):
        assert not re.search(rf"(?<![\w/.-]){re.escape(word)}(?![\w-])", text), word
    assert not re.search(r"## [^\n]+\n+(##|\Z)", text)
    # A table's first column always says something.
    assert not re.search(r"^\|\s*\|.*\w", text, re.MULTILINE)

    for place in (folder.parent, english_store.parent, "/tmp"):
        assert str(place) not in card.content
    # Local text and folders have no name on the Hub.
    assert (card.data.language, card.data.datasets, card.data.base_model) == (["en"], None, None)


def test_values_of_a_part_of_a_split_and_undefined_ones_are_no_results_of_the_data_set(copy_of):
    folder = copy_of(SEQUENCES)
    card = changed_card(folder, eval_accuracy=None)
    assert [result.metric_type for result in card.data.eval_results] == ["loss"]
    assert "all alike: accuracy." in card.text
    splits = results_of(folder)["splits"]
    splits["validation"]["partial"] = True
    card = changed_card(folder, splits=splits)
    assert card.data.eval_results is None
    assert "| loss |" in card.text
    assert "Not all rows were read, or other ones than published: validation." in card.text


def test_what_is_on_the_hub_is_named_by_its_name_there(copy_of):
    folder = copy_of(SEQUENCES)
    splits = results_of(folder)["splits"]
    for split, entry in splits.items():
        entry["source"] = f"Hub data set nyu-mll/glue (mrpc), split {split}"
    change_yaml(folder / "task.yaml", hub_dataset="nyu-mll/glue", hub_subset="mrpc")
    base = {"name": "google-bert/bert-base-uncased", "is_local": False}
    data = changed_card(folder, splits=splits, base_model=base).data
    assert (data.base_model, data.datasets) == ("google-bert/bert-base-uncased", ["nyu-mll/glue"])
    for result in data.eval_results:
        assert (result.dataset_type, result.dataset_config) == ("nyu-mll/glue", "mrpc")
    assert "--data_dir" not in text_of(folder)


@pytest.mark.parametrize(
    ("validation", "dataset"),
    # Held-out files are not said to be the corpus of training.
    [
        (None, "wikimedia/wikipedia"),
        (
            {
                "files": 1,
                "bytes": 9,
                "names": ["own.txt"],
            },
            "text",
        ),
    ],
)
def test_a_corpus_from_the_hub_is_named(copy_of, validation, dataset):
    folder = copy_of("pretraining")
    sources = {"train": {"dataset": "wikimedia/wikipedia", "config": "20231101.en"}}
    if validation is not None:
        sources["validation"] = validation
    data = {**results_of(folder)["data"], "sources": sources}
    head = changed_card(folder, data=data).data
    assert head.datasets == ["wikimedia/wikipedia"]
    assert {result.dataset_type for result in head.eval_results} == {dataset}


def test_two_validation_splits_have_their_metrics_apart(copy_of):
    folder = copy_of(SEQUENCES)
    results = results_of(folder)
    del results["eval_accuracy"], results["eval_loss"]
    results.update(eval_matched_accuracy=0.5, eval_mismatched_accuracy=0.25)
    splits = ["validation_matched", "validation_mismatched"]
    results["splits"] = dict.fromkeys(splits, results["splits"]["validation"])
    (folder / RESULTS).write_text(json.dumps(results))
    change_yaml(
        folder / "task.yaml",
        files=dict.fromkeys(("train", *splits), "rows.jsonl"),
        validation_splits=splits,
        test_splits=[],
        best_metric="matched_accuracy",
    )
    eval_results = ModelCard(write_card(folder).read_text()).data.eval_results
    values = [(result.dataset_split, result.metric_value) for result in eval_results]
    assert values == [(splits[0], 0.5), (splits[1], 0.25)]


def test_a_measured_test_split_is_named_and_its_command_measures_it(copy_of):
    folder = copy_of(SEQUENCES)
    files = dict.fromkeys(("train", "validation", "test"), "rows.jsonl")
    change_yaml(folder / "task.yaml", files=files, test_splits=["test"])
    text = changed_card(folder).text
    assert "It was measured on the split validation of this task" in text
    assert "--do_predict" not in text
    text = changed_card(folder, test_accuracy=0.5).text
    assert "It was measured on the split validation, test of this task" in text
    assert "--do_predict true" in text
    assert "--predictions_dir" not in text
    # A second one without labels was predicted.
    files["test_hidden"] = "rows.jsonl"
    change_yaml(folder / "task.yaml", files=files, test_splits=["test", "test_hidden"])
    text = changed_card(folder).text
    assert "It was measured on the split validation, test of this task" in text
    assert "--do_predict true" in text
    assert "--predictions_dir NEW_FOLDER" in text


@pytest.mark.parametrize(("long_documents", "is_said"), [("windows", True), ("head", False)])
def test_code_that_reads_another_part_of_a_long_text_is_said(copy_of, long_documents, is_said):
    folder = copy_of(SEQUENCES)
    change_yaml(folder / "run.yaml", long_documents=long_documents)
    assert ("other parts than the beginning alone" in changed_card(folder).text) is is_said


@pytest.mark.parametrize(("published", "dataset"), [(None, "mine"), (23, "nyu-mll/glue")])
def test_files_of_the_user_are_not_said_to_be_the_data_set_on_the_hub(copy_of, published, dataset):
    folder = copy_of(SEQUENCES)
    splits = results_of(folder)["splits"]
    splits["validation"]["published"] = published
    change_yaml(folder / "task.yaml", hub_dataset="nyu-mll/glue")
    data = changed_card(folder, splits=splits).data
    assert {result.dataset_type for result in data.eval_results} == {dataset}
    assert data.datasets is None


def test_the_epochs_are_those_of_both_phases(carded, english_store):
    epochs = 0.0
    for length, inputs in ((32, 4 * 8), (48, 2 * 4)):
        args = DataArguments(store=str(english_store), max_seq_length=length)
        epochs += inputs / load_data(args, seed=12345).train.num_pairs(0)
    assert results_of(carded("two_phases"))["epoch"] == pytest.approx(epochs)


def test_a_section_without_a_fact_is_left_out(copy_of):
    folder = copy_of("pretraining")
    (folder / RESULTS).write_text(json.dumps({"train_steps": 4}))
    sources = ("bias_probe.json", "card.yaml", "model.safetensors", "report.json")
    for name in (*sources, "tokenizer_config.json"):
        (folder / name).unlink()
    text = write_card(folder).read_text()
    assert re.findall(r"^## (.*)", text, re.MULTILINE) == ["How to use it", "Training", "Limits"]
    for words in ("P(she)", "license:", "model-index"):
        assert words not in text


# When it is written


def test_a_run_writes_its_card_by_itself_and_writing_again_changes_nothing(
    pretraining_run, copy_of
):
    text = text_of(pretraining_run)
    assert text.startswith("---\nlibrary_name: transformers\n")
    assert "# storyteller" in text
    # Nobody has given one.
    assert "license" not in text
    assert "\nlanguage:" not in text
    assert "P(she)" in text
    folder = copy_of("pretraining")
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert write_card(folder) == folder / "README.md"
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_one_process_probes_alone_under_deepspeeds_third_stage(copy_of):
    """Where the Trainer has said that weights are sharded, all processes would have to open a model
    together.
    """
    from transformers.integrations import deepspeed

    class Stage3(SimpleNamespace):
        """A namespace of which there are weak references."""

    folder = copy_of("pretraining")
    (folder / "bias_probe.json").unlink()
    settings = Stage3(config={}, is_zero3=lambda: True)
    deepspeed.set_hf_deepspeed_config(settings)
    try:
        assert deepspeed.is_deepspeed_zero3_enabled()
        assert write_card_of_run(folder) == [folder / "README.md"]
    finally:
        deepspeed.unset_hf_deepspeed_config()
    assert "P(she)" in text_of(folder)


@pytest.mark.parametrize("is_edited", [True, False])
def test_a_card_that_somebody_wrote_or_edited_is_not_lost(copy_of, is_edited, caplog):
    folder = copy_of(SEQUENCES)
    text = "# Mine\nMy own words.\n"
    if is_edited:
        text = text_of(folder).replace("## Training", "My own words.\n\n## Training", 1)
    (folder / "README.md").write_text(text)

    with pytest.raises(InputError, match=r"README.md was edited.*--overwrite true"):
        write_card(folder, CardArguments(license="mit"))
    assert write_card_of_run(folder) == []  # the end of a run: it does not fail
    assert "no model card is written" in caplog.text
    assert text_of(folder) == text
    write_card(folder, overwrite=True)
    assert "My own words" not in text_of(folder)


def test_nothing_that_goes_wrong_in_a_card_fails_a_finished_run(copy_of, monkeypatch, caplog):
    folder = copy_of("pretraining")
    monkeypatch.setattr(card_module, "card_text", lambda card: 1 / 0)
    assert write_card_of_run(folder) == []
    assert "no model card is written" in caplog.text


def test_what_was_said_once_is_said_again(copy_of):
    folder = copy_of("pretraining")
    text = write_card(folder, CardArguments(repo_id="me/storyteller-2")).read_text()
    assert 'model="me/storyteller-2"' in text
    for line in ("license: cc-by-sa-4.0", "# storyteller-2", "cc-by-sa-4.0"):
        assert line in text.splitlines()
    assert "| description | Sentences \\| of a test, made up |" in text
    other = CardArguments(
        license="other",
        license_name="mine",
        license_link="LICENSE",
    )
    assert "other, mine, LICENSE" in write_card(folder, other).read_text()
    assert "mine" not in write_card(folder, CardArguments(license="mit")).read_text()


@pytest.mark.parametrize("kind", ["pretraining", SEQUENCES])
def test_the_texts_of_the_data_can_be_left_out(copy_of, kind):
    folder = copy_of(kind)
    text = write_card(folder).read_text()
    [examples] = re.findall(r"## Examples.*?## How", text, re.DOTALL)
    assert len(re.findall(r"^\| (?!---)", examples, re.MULTILINE)) == 1 + 3
    assert "## Examples" not in write_card(folder, CardArguments(examples=False)).read_text()
    assert "## Examples" not in write_card(folder).read_text()  # said once


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"license": "other"}, "--license other --license_name"),
        ({"license": "Apache"}, "license is 'Apache'; allowed: a name of the Hub, in small"),
        ({"license_link": "LICENSE"}, "--license other --license_name"),
        ({"repo_id": "a/b/c"}, "repo_id: "),
        ({"language": ["English"]}, "language is 'English'; allowed: two or three small letters"),
    ],
)
def test_mistakes_are_one_line_and_leave_the_card(copy_of, arguments, message):
    folder = copy_of(SEQUENCES)
    before = [(folder / name).read_bytes() for name in ("README.md", "card.yaml")]
    with pytest.raises(InputError, match=message) as error:
        write_card(folder, CardArguments(**arguments))
    assert "\n" not in str(error.value)
    assert [(folder / name).read_bytes() for name in ("README.md", "card.yaml")] == before


@pytest.mark.parametrize("name", ["openrail++", "cc-by-sa-4.0", "c-uda"])
def test_a_licence_has_the_name_that_the_hub_gives_it(name):
    CardArguments(license=name).check()


@pytest.mark.parametrize("name", ["run.yaml", "config.json"])
def test_what_is_no_run_of_this_project_is_refused(copy_of, name):
    folder = copy_of("pretraining")
    (folder / name).unlink()
    with pytest.raises(InputError, match="it is no run of this project"):
        write_card(folder)


def test_a_run_without_pairs_has_its_results_and_the_command(copy_of):
    folder = copy_of("pretraining")
    results = json.loads((folder / RESULTS).read_text())
    pairs = [name for name in results if "nsp" in name or name in PAIRS]
    (folder / RESULTS).write_text(
        json.dumps({name: value for name, value in results.items() if name not in pairs})
    )
    text = changed_card(folder, eval_masked_tokens=1234).text
    assert "## Results" in text
    assert f"{results['eval_mlm_loss']:.3f}" in text.split("## Results")[1]
    assert "python recipes/evaluate_checkpoint.py" in text
    assert "It was measured on 1,234 hidden tokens of held-out documents" in text


@pytest.mark.parametrize(
    ("objective", "start_from_teacher", "is_local", "origin"),
    [
        ("distilbert", None, False, "which began with layers of its teacher, trained by masked LM"),
        ("distilbert", False, True, "trained from new weights by masked LM and the predictions of"),
        ("tinybert", None, False, "trained from new weights by imitating the layers of"),
    ],
)
def test_a_student_names_its_teacher(copy_of, objective, start_from_teacher, is_local, origin):
    folder = copy_of("pretraining")
    change_yaml(folder / "run.yaml", objective=objective, start_from_teacher=start_from_teacher)
    teacher = {"name": "org/teacher", "is_local": is_local}
    card = changed_card(folder, teacher=teacher)
    assert origin in card.text
    assert "It may have the biases of org/teacher, which taught it." in card.text
    # New weights have no base, whoever taught them.
    copies = "began with layers" in origin
    assert card.data.base_model == ("org/teacher" if copies else None)
    assert ("--teacher TEACHER" in card.text) == is_local


@pytest.mark.parametrize("distil", ["intermediate", "prediction"])
def test_a_student_of_a_task_names_its_teacher_and_what_it_cannot_do(tmp_path, distil):
    folder = shutil.copytree(SNAPSHOTS / "classification", tmp_path / "classification")
    change_yaml(folder / "run.yaml", distil=distil, teacher="runs/teacher")
    card = changed_card(folder, teacher={"name": "teacher", "is_local": True})
    assert "--teacher TEACHER" in card.text
    assert "It may have the biases of teacher, which taught it." in card.text
    is_of_layers = distil == "intermediate"
    assert ("by the layers of teacher" in card.text) is is_of_layers
    assert ("with the answers of teacher" in card.text) is not is_of_layers
    assert ("Its head was not trained" in card.text) is is_of_layers
    assert (card.data.pipeline_tag == "feature-extraction") is is_of_layers
    assert ('pipeline("text-classification"' in card.text) is not is_of_layers


@pytest.mark.parametrize("objective", ["electra", "ltr", "mlm"])
def test_figures_of_another_network_are_no_results_of_the_model(copy_of, objective):
    """Of ELECTRA's generator, or of the next token."""
    folder = copy_of("pretraining")
    change_yaml(folder / "run.yaml", objective=objective)
    card = changed_card(folder, eval_disc_accuracy=0.9, eval_disc_loss=0.2)
    names = {result.metric_name for result in card.data.eval_results}
    assert ("mlm loss" in names) is (objective == "mlm")
    assert "disc accuracy" in names
    assert "masked-LM accuracy of the generator (baseline" in card.text


def test_the_card_has_the_rates_and_masks_that_change_and_the_older_text(copy_of):
    folder = copy_of("pretraining")
    changes = {"mlm_probability_end": 0.1, "flat_until": 0.5, "max_minutes": 30.0}
    muon = {"optimizer": "muon", "muon_learning_rate": 0.01}
    change_yaml(folder / "run.yaml", **changes, **muon, old_store="/home/me/old")
    text = write_card(folder).read_text()
    for name, value in {**changes, **muon}.items():
        assert re.search(rf"\| {name} +\| {value:g}" if name != "optimizer" else "muon", text)
    assert text.count("--old_store OLD_STORE") == 2
    assert "/home/me" not in text


def test_tags_stay_when_a_card_is_written_again(copy_of, caplog):
    folder = copy_of(SEQUENCES)
    change_yaml(folder / "run.yaml", hub_tags=["english"])
    for tag in ("news", "sport"):
        name_repository(folder, "me/tagged", [tag])
    for arguments in (None, CardArguments(license="mit")):
        write_card(folder, arguments)
        tags = ModelCard.load(folder / "README.md").data.tags
        assert tags[1:] == ["bert-recipes", "news", "sport", "english"]
    # An edited card of the same repository loads the right model.
    (folder / "README.md").write_text(text_of(folder) + "Mine.\n")
    caplog.clear()
    name_repository(folder, "me/tagged", ["other"])
    assert caplog.text == ""


def test_the_best_run_of_a_sweep_says_that_it_was_chosen(copy_of):
    folder = copy_of(SEQUENCES)
    sentence = "It is the best of several runs by the split that it is measured on"
    assert sentence not in write_card(folder).read_text()
    run = folder.parent / "sweep" / "settings" / "seed-1"
    shutil.copytree(folder, run)
    other = shutil.copytree(folder, run.with_name("seed-2"))
    runs = [{"seed": 1}, {"seed": 2}]
    sweep = {"best_run": "settings/seed-1", "combinations": [{"runs": runs}]}
    (folder.parent / "sweep" / "sweep.json").write_text(json.dumps(sweep))
    assert sentence in write_card(run).read_text()
    assert sentence not in write_card(other).read_text()


# Limits

NOT_BELOW = "masked-LM loss is not below the word-frequency baseline by more than 0.1 nats"
NO_PAIRS = "Nothing shows that its next-sentence predictions are better"
NO_BETTER = "Nothing shows that its accuracy is better than the majority-class baseline."
PAIRS = {"eval_majority_accuracy": 0.6, "eval_pairs": 1000}
TASK = {"eval_accuracy": 0.7, "baselines": {"accuracy": 0.6}}


@pytest.mark.parametrize(
    ("kind", "values", "sentence", "is_there"),
    [
        ("pretraining", {"eval_mlm_loss": 5.95, "eval_unigram_loss": 6.0}, NOT_BELOW, True),
        ("pretraining", {"eval_mlm_loss": 0.0, "eval_unigram_loss": 0.1}, NOT_BELOW, True),
        ("pretraining", {"eval_mlm_loss": 5.89, "eval_unigram_loss": 6.0}, NOT_BELOW, False),
        ("pretraining", {"eval_mlm_loss": None}, "all alike: mlm loss.", True),
        ("pretraining", {"eval_nsp_accuracy": 0.65, **PAIRS}, NO_PAIRS, False),
        (
            "pretraining",
            {
                "eval_nsp_accuracy": 0.65,
                **PAIRS,
                "eval_pairs": 20,
            },
            NO_PAIRS,
            True,
        ),
        (SEQUENCES, {**TASK, "intervals": {"accuracy": [0.5, 0.9]}}, NO_BETTER, True),
        (SEQUENCES, {**TASK, "intervals": {"accuracy": [0.65, 0.75]}}, NO_BETTER, False),
        ("pretraining", {"train_seconds_is_whole": False}, "parts of the run are missing", True),
        ("pretraining", {"train_seconds_is_whole": True}, "parts of the run are missing", False),
    ],
)
def test_limits_are_said_where_the_values_show_them(
    copy_of,
    kind,
    values,
    sentence,
    is_there,
):
    assert (sentence in changed_card(copy_of(kind), **values).text) is is_there


def test_a_card_has_no_code_that_would_drop_a_bilstm(tmp_path):
    folder = shutil.copytree(SNAPSHOTS / "classification", tmp_path / "classification")
    change_yaml(folder / "run.yaml", bilstm=True)
    text = write_card(folder).read_text()
    assert "It has a BiLSTM between encoder and head" in text
    for words in ("## How to use it", "from transformers import", "evaluate_checkpoint.py"):
        assert words not in text


def test_the_probe_is_shown_of_these_weights_and_not_of_another_language(copy_of, caplog):
    folder = copy_of("pretraining")
    caplog.clear()  # of the run, if this test is the first to ask for it
    assert "P(she)" in write_card(folder).read_text()
    assert "P(she)" not in write_card(folder, CardArguments(language=["de"])).read_text()
    assert "P(she)" in write_card(folder, CardArguments(language=["de", "en"])).read_text()
    assert not caplog.text
    change(folder / "bias_probe.json", weights_sha256="0" * 64)
    assert "P(she)" not in write_card(folder).read_text()
    assert "bias_probe.json was made with other weights" in caplog.text


@pytest.mark.parametrize("name", ["a\n---\nlicense: mit", "!!python/object:os.system", "a: [b"])
def test_texts_of_the_user_do_not_leave_their_place(copy_of, name):
    folder = copy_of(SEQUENCES)
    change_yaml(folder / "task.yaml", labels=["<img src=x onerror=alert(1)>", "R&D", "c"])
    arguments = CardArguments(
        license="other",
        license_name=name,
        name=name,
        data_description='a | b\n---\n# c: "d" {e}',
    )
    card = changed_card(folder, arguments, base_model={"name": "a`b", "is_local": True})
    assert (card.data.license, card.data.license_name) == ("other", name)
    assert card.data.library_name == "transformers"
    assert card.data.model_name == name
    assert {result.dataset_type for result in card.data.eval_results} == {"mine"}
    lines = card.text.splitlines()
    assert f"# {' '.join(name.split())}" in lines
    assert '| description | a \\| b --- # c: "d" {e} |' in lines
    assert "| labels | \\<img src=x onerror=alert(1)>, R&D, c |" in lines


# The repository that the run is pushed to


@pytest.mark.parametrize(
    ("settings", "repository"),
    [
        ({"push_to_hub": True, "hub_model_id": "me/teller"}, "me/teller"),
        (
            {
                "push_to_hub": True,
                "hub_model_id": "me/teller",
                "hub_revision": "trial",
            },
            None,
        ),
        ({"push_to_hub": False, "hub_model_id": "me/teller"}, None),
    ],
)
def test_the_card_of_a_run_that_is_pushed_loads_the_model_from_there(copy_of, settings, repository):
    folder = copy_of("pretraining")
    change_yaml(folder / "run.yaml", **settings)
    text = write_card(folder).read_text()
    assert f'model="{repository or "."}"' in text
    assert f"# {folder.name if repository is None else 'teller'}\n" in text
    assert 'model="you/other"' in write_card(folder, CardArguments(repo_id="you/other")).read_text()


def test_a_push_tells_the_card_where_the_model_is(copy_of):
    folder = copy_of(SEQUENCES)
    for name in ("test", "final", "final"):
        name_repository(folder, f"me/{name}")
        text = text_of(folder)
        assert f'model="me/{name}"' in text
        assert f"# {name}\n" in text
        assert "license: cc-by-sa-4.0" in text
        assert may_replace_card(folder)
    name_repository(folder.parent, "me/final")  # no card, no run


@pytest.mark.parametrize(
    ("model", "is_warned"), [("me/final", True), ("me/final-2", False), (None, False)]
)
def test_an_edited_card_stays_when_the_model_is_pushed(
    copy_of,
    caplog,
    model,
    is_warned,
):
    folder = copy_of(SEQUENCES)
    name_repository(folder, "me/final")
    edited = "# Mine\n"
    if model is not None:
        edited = text_of(folder).replace('"me/final"', f'"{model}"') + "Mine.\n"
    (folder / "README.md").write_text(edited)
    name_repository(folder, "me/final-2")
    assert text_of(folder) == edited
    assert ("loads the model from me/final, not from me/final-2" in caplog.text) is is_warned
