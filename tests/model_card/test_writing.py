"""When a card is written, what it remembers, and what is refused in one line."""

import json
import logging
import shutil
from typing import ClassVar

import pytest
import yaml

from bert_recipes.errors import InputError
from bert_recipes.model_card import CardArguments, write_card, write_card_of_run, writing
from bert_recipes.model_card.licenses import HUB_LICENSES


def test_a_run_writes_its_card_by_itself(pretraining_run):
    text = (pretraining_run / "README.md").read_text()
    assert text.startswith("---\nlibrary_name: transformers\n")
    assert "# storyteller" in text
    assert "license" not in text  # nobody has said one
    assert "P(she)" in text


def test_writing_again_changes_nothing(copy_of):
    folder = copy_of("pretraining")
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert write_card(folder) == folder / "README.md"
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_one_process_probes_alone_under_deepspeeds_third_stage(copy_of):
    """Where the Trainer has said that weights are shared out, all processes would have to open a model together."""
    from transformers.integrations import deepspeed

    class Stage3:
        config: ClassVar[dict] = {}

        def is_zero3(self):
            return True

    folder, settings = copy_of("pretraining"), Stage3()
    (folder / "bias_probe.json").unlink()
    deepspeed.set_hf_deepspeed_config(settings)
    try:
        assert deepspeed.is_deepspeed_zero3_enabled()
        assert write_card_of_run(folder) == [folder / "README.md"]
    finally:
        deepspeed.unset_hf_deepspeed_config()
    assert "P(she)" in (folder / "README.md").read_text()


def test_a_run_of_a_seed_is_called_by_the_folder_around_it_too(copy_of, tmp_path):
    seed = tmp_path / "mrpc" / "seed-2"
    shutil.copytree(copy_of("sequence_classification"), seed)
    (tmp_path / "best").symlink_to(seed, target_is_directory=True)
    assert "# mrpc-seed-2\n" in write_card(tmp_path / "best").read_text()


@pytest.mark.parametrize("what", ["edited", "foreign"])
def test_a_card_that_somebody_wrote_or_edited_is_not_lost(copy_of, what, caplog):
    folder = copy_of("sequence_classification")
    card = folder / "README.md"
    card.write_text(card.read_text() + "\nMy own words.\n")
    if what == "foreign":
        (folder / "card_facts.json").unlink()
    before = card.read_text()
    with pytest.raises(InputError, match=r"README.md was edited.*--overwrite true"):
        write_card(folder, CardArguments(license="mit"))
    with caplog.at_level(logging.WARNING):
        assert write_card_of_run(folder) == []  # the end of a run: it does not fail
    assert "no model card is written" in caplog.text
    assert card.read_text() == before
    write_card(folder, overwrite=True)
    assert "My own words" not in card.read_text()
    write_card(folder)


def test_what_was_said_once_is_said_again(copy_of):
    folder = copy_of("pretraining")
    text = write_card(folder, CardArguments(repo_id="me/storyteller-2")).read_text()
    assert "license: cc-by-sa-4.0" in text
    assert "# storyteller-2" in text
    assert 'model="me/storyteller-2"' in text
    assert "Sentences \\| of a test, made up" in text
    text = write_card(folder, CardArguments(license="other", license_name="mine", license_link="LICENSE")).read_text()
    assert "`other`, mine, LICENSE" in text
    assert "license:" in write_card(folder, CardArguments(license="mit")).read_text()
    assert "mine" not in (folder / "README.md").read_text().split("## Licence")[1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"license": "Apache 2.0"}, "did you mean apache-2.0"),
        ({"license": "my-licence"}, "the Hub does not know"),
        ({"license": "other"}, "--license other needs --license_name"),
        ({"license": "mit", "license_name": "x"}, "belong to --license other"),
        ({"license_link": "LICENSE"}, "belong to --license other"),
        ({"language": ["english"]}, "language is 'english'"),
        ({"language": ["EN"]}, "language is 'EN'"),
        ({"repo_id": "a/b/c"}, "repo_id: "),
        ({"repo_id": "what is this"}, "repo_id: "),
        ({"name": " "}, "name is empty"),
        ({"power_watts": 10.0}, "has estimated its energy itself"),
    ],
)
def test_mistakes_are_one_line_and_leave_the_card(copy_of, given, message):
    folder = copy_of("pretraining")
    before = {name: (folder / name).read_bytes() for name in ("README.md", "card.yaml", "card_facts.json")}
    with pytest.raises(InputError, match=message) as error:
        write_card(folder, CardArguments(**given))
    assert "\n" not in str(error.value)
    assert {name: (folder / name).read_bytes() for name in before} == before


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"power_watts": 0.0}, "power_watts is 0"),
        ({"power_watts": float("nan")}, "power_watts is nan"),
        ({"power_watts": 9.0, "carbon_intensity": -1.0}, "carbon_intensity is -1"),
        ({"carbon_intensity": 300.0}, "give --power_watts too"),
        ({"country_iso_code": "DEU"}, "give --power_watts too"),
        ({"power_watts": 9.0, "carbon_intensity": 1.0, "country_iso_code": "Germany"}, "three letters"),
    ],
)
def test_energy_that_cannot_be_reckoned_is_refused(copy_of, given, message):
    with pytest.raises(InputError, match=message):
        write_card(copy_of("sequence_classification"), CardArguments(**given))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("all_results.json", "the run has not come to its end"),
        ("run.yaml", "it is no run of this project"),
        ("config.json", "it is no run of this project"),
    ],
)
def test_what_is_no_finished_run_is_refused(copy_of, name, message):
    folder = copy_of("pretraining")
    (folder / name).unlink()
    with pytest.raises(InputError, match=message):
        write_card(folder)


@pytest.mark.parametrize("name", ["all_results.json", "bias_probe.json", "config.json", "model.safetensors"])
def test_a_damaged_file_is_named(copy_of, name):
    folder = copy_of("pretraining")
    (folder / name).write_text("{")
    with pytest.raises(InputError, match=f"{name}: damaged"):
        write_card(folder)


def test_weights_in_several_files_are_counted_together(copy_of):
    from safetensors.torch import load_file, save_file

    folder = copy_of("pretraining")
    before = (folder / "README.md").read_text()
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    files = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, own in files.items():
        save_file({name: tensors[name] for name in own}, folder / file)
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: file for file, own in files.items() for name in own}}))
    (shown,) = [line for line in before.splitlines() if line.startswith("| parameters |")]
    after = write_card(folder).read_text()
    assert shown in after
    assert "SHA-256 of `model.safetensors`" not in after  # there is no such file
    index.write_text("{}")
    with pytest.raises(InputError, match=r"index.json: damaged: it has no weight_map"):
        write_card(folder)


def test_a_probe_of_other_weights_is_left_out(copy_of, caplog):
    folder = copy_of("pretraining")
    probe = json.loads((folder / "bias_probe.json").read_text())
    (folder / "bias_probe.json").write_text(json.dumps(probe | {"weights_sha256": "0" * 64}))
    with caplog.at_level(logging.WARNING):
        assert "P(she)" not in write_card(folder).read_text()
    assert "made with other weights" in caplog.text


def test_a_probe_that_does_not_say_of_which_weights_is_left_out(copy_of):
    folder = copy_of("pretraining")
    probe = json.loads((folder / "bias_probe.json").read_text())
    del probe["weights_sha256"]
    (folder / "bias_probe.json").write_text(json.dumps(probe))
    assert "P(she)" not in write_card(folder).read_text()


@pytest.mark.parametrize("error", [RuntimeError("ours"), PermissionError(13, "Permission denied", "x")])
def test_nothing_that_goes_wrong_in_a_card_fails_a_finished_run(copy_of, error, monkeypatch, caplog):
    folder = copy_of("pretraining")
    before = (folder / "README.md").read_bytes()

    def fail(*args: object) -> str:
        raise error

    monkeypatch.setattr(writing, "card_text", fail)
    with caplog.at_level(logging.WARNING):
        assert write_card_of_run(folder) == []
    assert "no model card is written" in caplog.text
    assert (folder / "README.md").read_bytes() == before


def test_a_table_that_says_nothing_is_called_so(copy_of):
    folder = copy_of("pretraining")
    said = "It hardly expects either pronoun"
    probe = json.loads((folder / "bias_probe.json").read_text())
    for mass, is_said in ((0.3, False), (4e-5, True)):
        rows = [row | {"mass": mass} for row in probe["rows"]]
        (folder / "bias_probe.json").write_text(json.dumps(probe | {"rows": rows}))
        text = write_card(folder).read_text()
        assert (said in text) is is_said
        assert f"| {'0.004%' if is_said else '30%'} |" in text


@pytest.mark.parametrize(("shares", "is_said"), [((0.11, 0.12), True), ((0.11, 0.15), True), ((0.11, 0.9), False)])
def test_occupations_that_do_not_differ_are_called_so(copy_of, shares, is_said):
    folder = copy_of("pretraining")
    probe = json.loads((folder / "bias_probe.json").read_text())
    rows = [row | {"p_she": shares[number % 2]} for number, row in enumerate(probe["rows"])]
    (folder / "bias_probe.json").write_text(json.dumps(probe | {"rows": rows}))
    assert ("The occupations hardly differ" in write_card(folder).read_text()) is is_said


def results_with(folder, **values):
    file = folder / "all_results.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
    return write_card(folder).read_text()


WORSE, ALIKE = "it is worse than no model", "nothing shows that it has learned more"


@pytest.mark.parametrize(
    ("loss", "said"),
    [(9.0, WORSE), (6.11, WORSE), (6.09, ALIKE), (5.91, ALIKE), (5.89, None), (2.0, None), (None, "Not defined")],
)
def test_what_the_card_says_of_the_loss_fits_its_side_of_the_yardstick(copy_of, loss, said):
    text = results_with(copy_of("pretraining"), eval_mlm_loss=loss, eval_unigram_loss=6.0)
    for words in (WORSE, ALIKE, "Not defined"):
        assert (words in text) is (words == said)
    assert ("all alike: mlm loss." in text) is (loss is None)


@pytest.mark.parametrize(
    ("accuracy", "pairs", "is_said"),
    [(0.5, 1000, True), (0.6, 1000, True), (0.61, 1000, True), (0.65, 1000, False), (0.65, 20, True), (1.0, 3, True)],
)
def test_next_sentences_are_told_apart_only_above_the_larger_class_by_more_than_chance(
    copy_of, accuracy, pairs, is_said
):
    values = {"eval_nsp_accuracy": accuracy, "eval_pairs": pairs, "eval_majority_accuracy": 0.6}
    text = results_with(copy_of("pretraining"), **values)
    assert ("Nothing shows that it tells next sentences from random ones" in text) is is_said


@pytest.mark.parametrize(
    ("accuracy", "interval", "baseline", "is_said"),
    [
        (0.7, [0.5, 0.9], 0.6, True),
        (0.7, [0.65, 0.75], 0.6, False),
        (0.5, [0.45, 0.55], 0.6, True),
        (0.7, None, None, 0),
    ],
)
def test_a_task_that_a_constant_answer_does_as_well_is_called_so(copy_of, accuracy, interval, baseline, is_said):
    certainty = {"intervals": {}, "baselines": {}}
    if interval:
        certainty = {"intervals": {"accuracy": interval}, "baselines": {"accuracy": baseline}}
    text = results_with(copy_of("sequence_classification"), eval_accuracy=accuracy, **certainty)
    said = "Nothing shows that it does better than one constant answer: see the accuracy above."
    assert (said in text) is bool(is_said)
    cells = f"{interval[0]:.4f} to {interval[1]:.4f} | {baseline:.4f}" if interval else " | "
    assert f"| validation | accuracy | {accuracy:.4f} | {cells} |" in text


GERMAN = "der hund lief durch den garten und die katze sah ihm aus dem fenster zu , was ihr in der sonne gefiel ."
ENGLISH = "the dog ran through the garden and the cat was on the sill of the window with a view to it ."


@pytest.mark.parametrize(
    ("language", "text", "is_english"),
    [
        (None, ENGLISH, True),
        (None, GERMAN, False),
        (["de"], ENGLISH, False),  # the user knows
        (["en"], GERMAN, True),
        (["de", "en"], GERMAN, True),
        (["multilingual"], ENGLISH, False),
        (None, None, False),  # nobody knows
    ],
)
def test_english_is_put_to_an_english_model_alone(copy_of, language, text, is_english, monkeypatch):
    folder = copy_of("pretraining")
    (folder / "card.yaml").unlink()
    (folder / "report.json").unlink()
    if text is not None:
        verdict = {"first": text, "second": text, "is_next": 0.5, "truth": True}
        (folder / "report.json").write_text(json.dumps({"format": 1, "held_out": {"verdicts": [verdict]}}))
    monkeypatch.setattr("bert_recipes.model_card.usage.knows_words", lambda tokenizer, text: True)
    card = write_card(folder, CardArguments(language=language)).read_text()
    assert ("P(she)" in card) is is_english
    assert ("He opened the [MASK]" in card) is is_english
    if not is_english and text is not None:
        words = text.split()[:12]
        assert any(f'"{" ".join([*words[:n], "[MASK]", *words[n + 1 :]])}"' in card for n in range(12))


def test_a_run_on_other_text_than_english_makes_no_probe(copy_of):
    folder = copy_of("pretraining")
    for name in ("card.yaml", "bias_probe.json"):
        (folder / name).unlink()
    facts = json.loads((folder / "report.json").read_text())
    facts["held_out"] = {"verdicts": [{"first": GERMAN, "second": GERMAN}], "masks": []}
    (folder / "report.json").write_text(json.dumps(facts))
    assert write_card_of_run(folder) == [folder / "README.md"]
    assert not (folder / "bias_probe.json").exists()


def test_text_of_the_user_breaks_no_table_and_no_head(copy_of):
    from huggingface_hub import ModelCard

    folder = copy_of("pretraining")
    odd = 'a | b\n---\n# c: "d" {e}'
    card = ModelCard(
        write_card(folder, CardArguments(data_description=odd, name="x: y #1", data_license="é")).read_text()
    )
    assert card.data.license == "cc-by-sa-4.0"
    assert 'a \\| b --- # c: "d" {e} |' in card.text
    assert card.data.model_name == "x: y #1"
    assert "# x: y #1" in card.text


@pytest.mark.parametrize("name", ["a\n---\nlicense: mit", "--- x", "!!python/object:os.system", "a: [b", "no", "'\""])
def test_names_of_the_user_do_not_leave_their_place_in_the_head(copy_of, name):
    from huggingface_hub import ModelCard

    folder = copy_of("sequence_classification")
    text = write_card(folder, CardArguments(license="other", license_name=name, name=name)).read_text()
    data = ModelCard(text).data
    assert (data.license, data.license_name, data.model_name) == ("other", name, " ".join(name.split()))
    assert data.library_name == "transformers"
    assert {result.dataset_type for result in data.eval_results} == {"mine"}


def test_a_backtick_in_a_name_does_not_end_its_code(copy_of):
    folder = copy_of("sequence_classification")
    file = folder / "all_results.json"
    results = json.loads(file.read_text())
    file.write_text(json.dumps(results | {"base_model": {"name": "a`b", "is_local": True}}))
    assert "fine-tuned from `` a`b `` on the task" in write_card(folder).read_text()


def test_the_licences_are_those_of_the_hub():
    assert len(HUB_LICENSES) == 82
    assert {"apache-2.0", "mit", "cc-by-sa-4.0", "other", "unknown", "openrail++", "lppl-1.3c"} <= HUB_LICENSES


def test_names_of_labels_are_no_html(copy_of):
    folder = copy_of("sequence_classification")
    task = yaml.safe_load((folder / "task.yaml").read_text())
    task["labels"] = ["<img src=x onerror=alert(1)>", "R&D", *task["labels"][2:]]
    (folder / "task.yaml").write_text(yaml.safe_dump(task))
    text = write_card(folder, overwrite=True).read_text()
    assert "&lt;img src=x onerror=alert(1)&gt;, R&amp;D" in text
    assert "<img" not in text
