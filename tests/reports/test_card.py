"""The card: its head, what it says, when it is written, what it remembers, and what is refused in
one line.
"""

import hashlib
import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from huggingface_hub import ModelCard, ModelCardData, parse_eval_result_entries
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results

from bert_recipes.checkpointing import EVAL_FILE, is_generated_card
from bert_recipes.errors import InputError
from bert_recipes.reports import card as card_module
from bert_recipes.reports.card import name_repository, write_card, write_card_of_run
from bert_recipes.reports.card_arguments import CardArguments
from bert_recipes.yaml_files import read_tree


SEQUENCES, RESULTS = "sequence_classification", "all_results.json"
OTHERS = [
    pytest.param(kind, marks=pytest.mark.slow)
    for kind in ("token_classification", "question_answering", "multiple_choice")
]


def results_of(folder: Path) -> dict:
    return json.loads((folder / RESULTS).read_text())


def card_of(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


def change(file: Path, **values: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def change_yaml(file: Path, **values: object) -> None:
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | values, sort_keys=False))


def changed_card(folder: Path, given: CardArguments | None = None, **values: object) -> ModelCard:
    """The card with other values in all_results.json."""
    change(folder / RESULTS, **values)
    return ModelCard(write_card(folder, given).read_text())


# The head


@pytest.mark.parametrize("kind", ["pretraining", SEQUENCES, *OTHERS])
def test_the_head_comes_back_the_same_and_no_cell_is_empty_or_tells_of_the_machine(
    carded, english_store, kind
):
    card = ModelCard.load(carded(kind) / "README.md")
    assert isinstance(card.data, ModelCardData)
    index = card.data.to_dict()["model-index"]
    name, results = model_index_to_eval_results(index)
    assert name == carded(kind).name
    assert eval_results_to_model_index(name, results) == index
    text = re.sub(r"```python\n.*?```", "", card.content, flags=re.DOTALL)
    for word in (
        "None",
        "null",
        "nan",
        "More information",
        "[More",
        "unknown",
        "N/A",
        "TODO",
        "False",
        "True",
    ):
        assert not re.search(rf"(?<![\w/.-]){re.escape(word)}(?![\w-])", text), word
    assert not re.search(r"## [^\n]+\n+(##|\Z)", text)
    # A table's first column always says something.
    assert not re.search(r"^\|\s*\|.*\w", text, re.MULTILINE)
    assert not [
        place
        for place in (carded(kind).parent, english_store.parent, "/tmp")
        if str(place) in card.content
    ]


def test_the_values_of_pre_training(carded):
    folder = carded("pretraining")
    data, results = ModelCard.load(folder / "README.md").data, results_of(folder)
    assert {
        (each.task_type, each.metric_type): each.metric_value for each in data.eval_results
    } == {
        ("fill-mask", "loss"): results["eval_mlm_loss"],
        ("fill-mask", "perplexity"): results["eval_perplexity"],
        ("fill-mask", "accuracy"): results["eval_mlm_accuracy"],
        ("text-classification", "loss"): results["eval_nsp_loss"],
        ("text-classification", "accuracy"): results["eval_nsp_accuracy"],
    }
    assert results["data"]["fingerprint"][:16] in data.eval_results[0].dataset_name
    assert (data.pipeline_tag, data.library_name, data.license) == (
        "fill-mask",
        "transformers",
        "cc-by-sa-4.0",
    )
    assert (data.language, data.datasets, data.base_model) == (
        ["en"],
        None,
        None,
    )  # local text has no name on the Hub


@pytest.mark.parametrize("kind", [SEQUENCES, *OTHERS])
def test_the_values_of_a_task(carded, kind):
    folder = carded(kind)
    data = ModelCard.load(folder / "README.md").data
    results = {
        name: value for name, value in results_of(folder).items() if name.startswith("eval_")
    }
    del results["eval_seconds"]
    assert {f"eval_{each.metric_type}": each.metric_value for each in data.eval_results} == results
    first = data.eval_results[0]
    pipeline = "text-classification" if kind == SEQUENCES else kind.replace("_", "-")
    assert (first.task_type, first.dataset_type, first.dataset_split) == (
        pipeline,
        "mine",
        "validation",
    )
    assert (data.pipeline_tag, data.base_model) == (
        pipeline,
        None,
    )  # a folder is no name on the Hub
    assert "`start`" in card_of(folder)  # but the card names it


def test_values_of_a_part_of_a_split_and_undefined_ones_are_no_results_of_the_data_set(copy_of):
    folder = copy_of(SEQUENCES)
    card = changed_card(folder, eval_accuracy=None)
    assert [result.metric_type for result in card.data.eval_results] == ["loss"]
    assert "accuracy |" not in card.text
    splits = results_of(folder)["splits"]
    splits["validation"]["partial"] = True
    card = changed_card(folder, splits=splits)
    assert card.data.eval_results is None
    assert "| validation | loss |" in card.text
    assert "Not all rows were read, or other ones than published: validation." in card.text


def test_what_is_on_the_hub_is_named_by_its_name_there(copy_of):
    folder = copy_of(SEQUENCES)
    splits = results_of(folder)["splits"]
    for split, entry in splits.items():
        entry["source"] = f"Hub data set nyu-mll/glue (mrpc), split {split}"
    change_yaml(folder / "task.yaml", hub_dataset="nyu-mll/glue", hub_subset="mrpc")
    base = {"name": "google-bert/bert-base-uncased", "is_local": False, "revision": "86b5e093"}
    data = changed_card(folder, splits=splits, base_model=base).data
    assert (data.base_model, data.datasets) == ("google-bert/bert-base-uncased", ["nyu-mll/glue"])
    assert {(each.dataset_type, each.dataset_config) for each in data.eval_results} == {
        ("nyu-mll/glue", "mrpc")
    }
    assert "revision `86b5e093`" in card_of(folder)
    assert "--data_dir" not in card_of(folder)
    (entry,) = parse_eval_result_entries(yaml.safe_load((folder / EVAL_FILE).read_text()))
    accuracy = results_of(folder)["eval_accuracy"]
    assert (entry.dataset_id, entry.task_id, entry.value) == ("nyu-mll/glue", "mrpc", accuracy)
    splits["validation"]["partial"] = True
    changed_card(folder, splits=splits)
    assert not (folder / EVAL_FILE).exists()  # half a split is no result


@pytest.mark.parametrize(
    ("own", "kind"),
    # Held-out files are not said to be the corpus of training.
    [
        ({}, "wikimedia/wikipedia"),
        ({"validation": {"files": 1, "bytes": 9, "names": ["own.txt"]}}, "text"),
    ],
)
def test_a_corpus_from_the_hub_is_named(copy_of, own, kind):
    folder = copy_of("pretraining")
    source = {"dataset": "wikimedia/wikipedia", "config": "20231101.en", "split": "train"}
    head = changed_card(
        folder, data=results_of(folder)["data"] | {"sources": {**own, "train": source}}
    ).data
    assert (head.datasets, {each.dataset_type for each in head.eval_results}) == (
        ["wikimedia/wikipedia"],
        {kind},
    )


@pytest.mark.parametrize(
    ("splits", "keys"),
    [
        (
            ("validation_matched", "validation_mismatched"),
            ("matched_accuracy", "mismatched_accuracy"),
        ),
        (
            ("validation", "validation_hard"),
            ("accuracy", "hard_accuracy"),
        ),  # the first has not the second one's
    ],
)
def test_two_validation_splits_have_their_metrics_apart(copy_of, splits, keys):
    folder = copy_of(SEQUENCES)
    results = {
        name: value for name, value in results_of(folder).items() if not name.startswith("eval_")
    }
    results |= {f"eval_{key}": value for key, value in zip(keys, (0.5, 0.25), strict=True)}
    results["splits"] = dict.fromkeys(splits, results["splits"]["validation"])
    (folder / RESULTS).write_text(json.dumps(results))
    files = dict.fromkeys(("train", *splits), "rows.jsonl")
    own = {
        "files": files,
        "validation_splits": list(splits),
        "test_splits": [],
        "best_metric": keys[0],
    }
    change_yaml(folder / "task.yaml", **own)
    found = ModelCard(write_card(folder).read_text()).data.eval_results
    expected = {(splits[0], "accuracy", 0.5), (splits[1], "accuracy", 0.25)}
    assert {(each.dataset_split, each.metric_type, each.metric_value) for each in found} == expected


@pytest.mark.parametrize(("published", "dataset"), [(None, "mine"), (23, "nyu-mll/glue")])
def test_files_of_the_user_are_not_said_to_be_the_data_set_on_the_hub(copy_of, published, dataset):
    folder = copy_of(SEQUENCES)
    splits = results_of(folder)["splits"]
    splits["validation"]["published"] = published
    change_yaml(folder / "task.yaml", hub_dataset="nyu-mll/glue")
    data = changed_card(folder, splits=splits).data
    assert ({each.dataset_type for each in data.eval_results}, data.datasets) == ({dataset}, None)
    assert (folder / EVAL_FILE).exists() is (published is not None)


# Energy


def test_energy_of_the_run_is_called_an_estimate_and_says_how(carded):
    folder = carded("pretraining")
    results, card = results_of(folder), ModelCard.load(folder / "README.md")
    grams = 250 / 1000 * results["train_seconds"] / 3600 * 400
    head = card.data.to_dict()["co2_eq_emissions"]
    assert head.pop("emissions") == pytest.approx(grams, rel=0.1)  # seconds are rounded
    assert head == {
        "source": "an estimate: a given power draw of 250 W times the hours",
        "training_type": "pre-training",
        "hardware_used": results["machine"]["gpu"] or results["machine"]["processor"],
    }
    assert "| energy, kWh (an estimate) |" in card.text


@pytest.mark.parametrize(
    ("values", "is_complete"),
    [
        ({"train_seconds_is_whole": True, "resumed_at_step": 2}, True),
        ({"train_seconds_is_whole": False, "resumed_at_step": 2}, False),
        ({"train_seconds_is_whole": None, "resumed_at_step": 2}, False),  # of an older version
        ({"train_seconds_is_whole": None}, True),
    ],
)
def test_hours_of_a_part_are_not_called_those_of_the_run(copy_of, values, is_complete):
    text = changed_card(
        copy_of(SEQUENCES), CardArguments(power_watts=500), train_seconds=7200.0, **values
    ).text
    assert ("whose hours are not known" not in text) is is_complete
    assert ("| hours that the estimate covers | 2 (7,200.0 s) |" not in text) is is_complete


def test_energy_may_be_given_for_the_card(copy_of):
    folder = copy_of(SEQUENCES)
    assert "kWh" not in card_of(folder)
    card = changed_card(folder, CardArguments(power_watts=500), train_seconds=7200.0)
    assert "| energy, kWh (an estimate) | 1 |" in card.text
    assert "co2_eq_emissions" not in card.content
    card = ModelCard(
        write_card(folder, CardArguments(carbon_intensity=350, country_iso_code="DEU")).read_text()
    )
    head = card.data.to_dict()["co2_eq_emissions"]
    assert (head["emissions"], head["training_type"], head["geographical_location"]) == (
        350.0,
        "fine-tuning",
        "DEU",
    )
    assert "| CO2 equivalent, g (an estimate) | 350 |" in card.text


# What the card says is what the files say

PRETRAINING_KEYS = """
eval_mlm_loss eval_unigram_loss eval_perplexity eval_mlm_accuracy eval_pairs
eval_unigram_accuracy eval_nsp_loss eval_nsp_accuracy
eval_majority_accuracy eval_masked_tokens train_steps epoch precision
train_seconds processes date tokens_per_second peak_memory_mb
machine/processor machine/torch energy/kwh energy/co2_kg energy/estimated_by
energy/carbon_intensity data/fingerprint
data/splits/train/tokens data/sources/train/names data/sources/train/bytes
"""


@pytest.mark.parametrize(
    ("kind", "file", "keys"),
    [
        ("pretraining", RESULTS, PRETRAINING_KEYS),
        (
            "pretraining",
            "run.yaml",
            "optimizer learning_rate warmup_steps adam_beta2 weight_decay max_grad_norm seed",
        ),
        (
            "pretraining",
            "run.yaml",
            "global_train_batch_size max_seq_length mlm_probability mask_rate short_seq_prob",
        ),
        (
            "two_phases",
            "run.yaml",
            "phase2_steps phase2_max_seq_length phase2_global_train_batch_size",
        ),
        (
            "pretraining",
            "config.json",
            "num_hidden_layers hidden_size num_attention_heads vocab_size",
        ),
        (
            "pretraining",
            "bias_probe.json",
            "rows/0/p_she rows/1/p_she rows/1/mass rows/1/pieces templates/0",
        ),
        (
            "question_answering",
            RESULTS,
            "eval_f1 eval_exact_match splits/train/examples splits/train/sha256",
        ),
        (
            "question_answering",
            RESULTS,
            "base_model/name base_model/sha256 splits/validation/source",
        ),
        (
            "question_answering",
            "run.yaml",
            "doc_stride max_query_length max_seq_length freeze_encoder",
        ),
        ("question_answering", "task.yaml", "name"),
    ],
)
def test_another_value_in_a_file_makes_another_card(copy_of, kind, file, keys):
    folder = copy_of(kind)
    before, original = card_of(folder), (folder / file).read_bytes()
    for key in keys.split():
        write_value(folder / file, key)
        write_card(folder)
        assert card_of(folder) != before, key
        (folder / file).write_bytes(original)
    write_card(folder)
    assert card_of(folder) == before


def write_value(path: Path, key: str) -> None:
    """Write another value of the same kind."""
    content = json.loads(path.read_bytes()) if path.suffix == ".json" else read_tree(path)[0]
    *parts, last = [int(part) if part.isdecimal() else part for part in key.split("/")]
    place = content
    for part in parts:
        place = place[part]
    place[last] = another(place[last])
    text = (
        json.dumps(content) if path.suffix == ".json" else yaml.safe_dump(content, sort_keys=False)
    )
    path.write_text(text, encoding="utf-8")


def another(value: Any) -> Any:
    if isinstance(value, int | float):
        return value * 2 + 1 if abs(value) >= 1 or value == 0 else value / 3
    if isinstance(value, list):
        return [*value, "another"]
    try:
        number = float(value)
    except ValueError:
        return f"other {value}"
    return str(int(number) * 2 + 1) if number.is_integer() else repr(number / 3)


def test_the_passes_over_the_data_are_those_of_both_phases(carded, english_store):
    from bert_recipes.training.arguments import DataArguments
    from bert_recipes.training.pretraining import load_data

    folder = carded("two_phases")
    settings = [
        DataArguments(store=str(english_store), max_seq_length=length) for length in (32, 48)
    ]
    short, long = (load_data(each, seed=12345).train.num_pairs(0) for each in settings)
    passes = 4 * 8 / short + 2 * 4 / long
    assert results_of(folder)["epoch"] == pytest.approx(passes)
    assert f"| passes over the data | {passes:.2f} |" in card_of(folder)
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    epochs = [line["epoch"] for line in history if "loss" in line]
    assert epochs == sorted(epochs)
    assert len(epochs) == 6


@pytest.mark.parametrize("file", ["vocab.txt", "model.safetensors"])
def test_other_bytes_make_another_hash(copy_of, file):
    folder = copy_of("pretraining")
    before, data = card_of(folder), bytearray((folder / file).read_bytes())
    data[-2] ^= 1
    (folder / file).write_bytes(data)
    if file == "vocab.txt":
        (folder / "tokenizer.json").unlink()  # the two must say the same
    assert hashlib.sha256(data).hexdigest() in write_card(folder).read_text()
    assert hashlib.sha256(data).hexdigest() not in before


def test_a_section_without_a_fact_is_left_out(copy_of):
    folder = copy_of("pretraining")
    (folder / RESULTS).write_text(json.dumps({"train_steps": 4}))
    for name in ("bias_probe.json", "card.yaml", "model.safetensors", "tokenizer_config.json"):
        (folder / name).unlink()
    text = write_card(folder).read_text()
    for gone in (
        "## Results",
        "## Training data",
        "## Hardware and hours",
        "## Licence",
        "P(she)",
        "license:",
        "model-index",
    ):
        assert gone not in text
    assert "## Training" in text


# When it is written


def test_a_run_writes_its_card_by_itself_and_writing_again_changes_nothing(
    pretraining_run, copy_of
):
    text = card_of(pretraining_run)
    assert text.startswith("---\nlibrary_name: transformers\n")
    assert "# storyteller" in text
    assert "license" not in text  # nobody has said one
    assert "P(she)" in text
    folder = copy_of("pretraining")
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert write_card(folder) == folder / "README.md"
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_one_process_probes_alone_under_deepspeeds_third_stage(copy_of):
    """Where the Trainer has said that weights are shared out, all processes would have to open a
    model together.
    """
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
    assert "P(she)" in card_of(folder)


def test_a_run_of_a_seed_is_called_by_the_folder_around_it_too(copy_of, tmp_path):
    seed = tmp_path / "mrpc" / "seed-2"
    shutil.copytree(copy_of(SEQUENCES), seed)
    (tmp_path / "best").symlink_to(seed, target_is_directory=True)
    assert "# mrpc-seed-2\n" in write_card(tmp_path / "best").read_text()


@pytest.mark.parametrize("is_edited", [True, False])
def test_a_card_that_somebody_wrote_or_edited_is_not_lost(copy_of, is_edited, caplog):
    folder = copy_of(SEQUENCES)
    own = (
        card_of(folder).replace("## Model", "My own words.\n\n## Model")
        if is_edited
        else "# Mine\nMy own words.\n"
    )
    (folder / "README.md").write_text(own)
    with pytest.raises(InputError, match=r"README.md was edited.*--overwrite true"):
        write_card(folder, CardArguments(license="mit"))
    assert write_card_of_run(folder) == []  # the end of a run: it does not fail
    assert "no model card is written" in caplog.text
    assert card_of(folder) == own
    write_card(folder, overwrite=True)
    assert "My own words" not in card_of(folder)


def test_nothing_that_goes_wrong_in_a_card_fails_a_finished_run(copy_of, monkeypatch, caplog):
    folder = copy_of("pretraining")
    monkeypatch.setattr(card_module, "card_text", lambda card: 1 / 0)
    assert write_card_of_run(folder) == []
    assert "no model card is written" in caplog.text


def test_what_was_said_once_is_said_again(copy_of):
    folder = copy_of("pretraining")
    text = write_card(folder, CardArguments(repo_id="me/storyteller-2")).read_text()
    for part in (
        "license: cc-by-sa-4.0",
        "# storyteller-2",
        'model="me/storyteller-2"',
        "Sentences \\| of a test, made up",
    ):
        assert part in text
    text = write_card(
        folder, CardArguments(license="other", license_name="mine", license_link="LICENSE")
    ).read_text()
    assert "`other`, mine, LICENSE" in text
    assert "license:" in write_card(folder, CardArguments(license="mit")).read_text()
    assert "mine" not in card_of(folder).split("## Licence")[1]


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("pretraining", {"license": "Apache 2.0"}, "did you mean apache-2.0"),
        ("pretraining", {"license": "my-licence"}, "the Hub does not know"),
        ("pretraining", {"license": "other"}, "--license other needs --license_name"),
        ("pretraining", {"license": "mit", "license_name": "x"}, "belong to --license other"),
        ("pretraining", {"license_link": "LICENSE"}, "belong to --license other"),
        ("pretraining", {"language": ["english"]}, "language is 'english'"),
        ("pretraining", {"language": ["EN"]}, "language is 'EN'"),
        ("pretraining", {"repo_id": "a/b/c"}, "repo_id: "),
        ("pretraining", {"power_watts": 10.0}, "has estimated its energy itself"),
        (SEQUENCES, {"power_watts": 0.0}, "power_watts is 0"),
        (SEQUENCES, {"power_watts": float("nan")}, "power_watts is nan"),
        (SEQUENCES, {"power_watts": 9.0, "carbon_intensity": -1.0}, "carbon_intensity is -1"),
        (SEQUENCES, {"carbon_intensity": 300.0}, "give --power_watts too"),
        (SEQUENCES, {"country_iso_code": "DEU"}, "give --power_watts too"),
        (SEQUENCES, {"power_watts": 9.0, "country_iso_code": "Germany"}, "three letters"),
    ],
)
def test_mistakes_are_one_line_and_leave_the_card(copy_of, kind, given, message):
    folder = copy_of(kind)
    before = {name: (folder / name).read_bytes() for name in ("README.md", "card.yaml")}
    with pytest.raises(InputError, match=message) as error:
        write_card(folder, CardArguments(**given))
    assert "\n" not in str(error.value)
    assert {name: (folder / name).read_bytes() for name in before} == before


@pytest.mark.parametrize("name", ["run.yaml", "config.json"])
def test_what_is_no_run_of_this_project_is_refused(copy_of, name):
    folder = copy_of("pretraining")
    (folder / name).unlink()
    with pytest.raises(InputError, match="it is no run of this project"):
        write_card(folder)


# Limits and bias


@pytest.mark.parametrize("weights", ["0" * 64, None])
def test_a_probe_of_other_or_unknown_weights_is_left_out(copy_of, caplog, weights):
    folder = copy_of("pretraining")
    change(folder / "bias_probe.json", weights_sha256=weights)
    with caplog.at_level(logging.WARNING):
        assert "P(she)" not in write_card(folder).read_text()
    assert "made with other weights" in caplog.text


TWO_OCCUPATIONS = (
    'Of 2 occupations 1 are rather "he" than "she", and 1 more "she" than the baseline'
)


@pytest.mark.parametrize(
    ("shares", "masses", "said", "shown"),
    [
        ((0.11, 0.15), [0.3], ["The occupations hardly differ"], None),
        ((0.11, 0.9), [0.004], ["It hardly expects either pronoun"], None),
        ((0.2, 0.6), [9e-4], ["It hardly expects either pronoun"], 0),
        # The baseline, one that is rather "he", one that is rather "she".
        ((0.2, 0.6), [0.5] * 3 + [9e-4], ["It hardly expects either pronoun", TWO_OCCUPATIONS], 3),
    ],
)
def test_rows_of_the_probe_that_say_nothing_are_called_so_or_left_out(
    copy_of, shares, masses, said, shown
):
    folder = copy_of("pretraining")
    rows = json.loads((folder / "bias_probe.json").read_text())["rows"]
    for number, row in enumerate(rows):
        row |= {"p_she": shares[number % 2], "mass": masses[min(number, len(masses) - 1)]}
    change(folder / "bias_probe.json", rows=rows)
    text = write_card(folder).read_text().split("that the vocabulary does not hold.")[1]
    for words in ("The occupations hardly differ", "It hardly expects either pronoun"):
        assert (words in text) is (words in said)
    assert all(words in text for words in said)
    left_out = (
        f"{len(rows) - (shown or 0)} of {len(rows)} rows are left out: P(he) + P(she) is "
        "below 0.1% there."
    )
    assert (left_out in text) is (shown is not None)
    if shown is not None:
        assert len(re.findall(r"^\| \w+ \| 0\.\d\d \|", text, re.MULTILINE)) == shown


WORSE, ALIKE = "it is worse than no model", "nothing shows that it has learned more"


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (9.0, WORSE),
        (6.11, WORSE),
        (6.09, ALIKE),
        (5.91, ALIKE),
        (5.89, None),
        (2.0, None),
        (None, "Not defined"),
    ],
)
def test_what_the_card_says_of_the_loss_fits_its_side_of_the_baseline(copy_of, loss, said):
    text = changed_card(copy_of("pretraining"), eval_mlm_loss=loss, eval_unigram_loss=6.0).text
    for words in (WORSE, ALIKE, "Not defined"):
        assert (words in text) is (words == said)
    assert ("all alike: mlm loss." in text) is (loss is None)


@pytest.mark.parametrize(
    ("accuracy", "pairs", "is_said"),
    [
        (0.5, 1000, True),
        (0.6, 1000, True),
        (0.61, 1000, True),
        (0.65, 1000, False),
        (0.65, 20, True),
        (1.0, 3, True),
    ],
)
def test_next_sentences_are_told_apart_only_above_the_larger_class_by_more_than_chance(
    copy_of, accuracy, pairs, is_said
):
    values = {"eval_nsp_accuracy": accuracy, "eval_pairs": pairs, "eval_majority_accuracy": 0.6}
    text = changed_card(copy_of("pretraining"), **values).text
    assert ("Nothing shows that it tells next sentences from random ones" in text) is is_said


def test_a_task_that_a_constant_answer_does_as_well_is_called_so(copy_of):
    certainty = {"intervals": {"accuracy": [0.5, 0.9]}, "baselines": {"accuracy": 0.6}}
    text = changed_card(copy_of(SEQUENCES), eval_accuracy=0.7, **certainty).text
    assert (
        "Nothing shows that it does better than one constant answer: see the accuracy above."
        in text
    )
    assert "| validation | accuracy | 0.7000 | 0.5000 to 0.9000 | 0.6000 |" in text


GERMAN = (
    "der hund lief durch den garten und die katze sah ihm aus dem fenster zu , was ihr in "
    "der sonne gefiel ."
)
ENGLISH = (
    "the dog ran through the garden and the cat was on the sill of the window with a view to it ."
)


@pytest.mark.parametrize(
    ("language", "text", "is_english"),
    [
        (None, ENGLISH, True),
        (None, GERMAN, False),
        (["de"], ENGLISH, False),  # the user knows
        (["de", "en"], GERMAN, True),
        (["multilingual"], ENGLISH, False),
        (None, None, False),  # nobody knows
    ],
)
def test_english_is_put_to_an_english_model_alone(copy_of, language, text, is_english, monkeypatch):
    folder = copy_of("pretraining")
    (folder / "card.yaml").unlink()
    verdicts = [{"first": text, "second": text, "is_next": 0.5, "truth": True}] if text else []
    change(folder / "report.json", held_out={"verdicts": verdicts})
    monkeypatch.setattr(card_module, "knows_words", lambda tokenizer, text: True)
    card = write_card(folder, CardArguments(language=language)).read_text()
    assert ("P(she)" in card) is is_english
    assert ("He opened the [MASK]" in card) is is_english
    if not is_english and text is not None:
        words = text.split()[:12]
        assert any(
            f'"{" ".join([*words[:n], "[MASK]", *words[n + 1 :]])}"' in card for n in range(12)
        )
    (folder / "bias_probe.json").unlink()
    assert write_card_of_run(folder) == [folder / "README.md"]
    assert (folder / "bias_probe.json").exists() is is_english


@pytest.mark.parametrize(
    "name", ["a\n---\nlicense: mit", "!!python/object:os.system", "a: [b", "no", "'\""]
)
def test_texts_of_the_user_do_not_leave_their_place(copy_of, name):
    folder = copy_of(SEQUENCES)
    change_yaml(folder / "task.yaml", labels=["<img src=x onerror=alert(1)>", "R&D", "c"])
    given = CardArguments(
        license="other", license_name=name, name=name, data_description='a | b\n---\n# c: "d" {e}'
    )
    card = changed_card(folder, given, base_model={"name": "a`b", "is_local": True})
    assert (card.data.license, card.data.license_name, card.data.library_name) == (
        "other",
        name,
        "transformers",
    )
    assert card.data.model_name == " ".join(name.split())
    assert {result.dataset_type for result in card.data.eval_results} == {"mine"}
    assert f"# {' '.join(name.split())}" in card.text
    assert 'a \\| b --- # c: "d" {e} |' in card.text
    assert "fine-tuned from `` a`b `` on the task" in card.text
    assert "&lt;img src=x onerror=alert(1)&gt;, R&amp;D" in card.text
    assert "<img" not in card.text


# The repository that the run is pushed to


@pytest.mark.parametrize(
    ("settings", "repository"),
    [
        ({"push_to_hub": True, "hub_model_id": "me/teller"}, "me/teller"),
        ({"push_to_hub": True, "hub_model_id": "me/teller", "hub_revision": "trial"}, None),
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


def test_a_push_tells_the_card_where_the_model_is_unless_it_was_edited(copy_of, caplog):
    folder = copy_of(SEQUENCES)
    for name in ("me/test", "me/final", "me/final"):  # the last time it has been said
        name_repository(folder, name)
        text = card_of(folder)
        assert f'model="{name}"' in text
        assert f"# {name[3:]}\n" in text
        assert "license: cc-by-sa-4.0" in text
        assert is_generated_card(folder)
    assert "me/test" not in text
    name_repository(folder.parent, "me/final")  # no card, no run
    for own in (
        text.replace('"me/final"', '"me/final-2"') + "Mine.\n",
        "# Mine\n",
    ):  # seen to, or it names none
        (folder / "README.md").write_text(own)
        name_repository(folder, "me/final-2")
        assert card_of(folder) == own
    assert not caplog.records
    (folder / "README.md").write_text(text + "Mine.\n")
    name_repository(folder, "me/final-2")
    assert card_of(folder) == text + "Mine.\n"
    (record,) = caplog.records
    assert (
        f'`make card RUN={folder} ARGS="--repo_id me/final-2 --overwrite true"`'
        in record.getMessage()
    )
    assert "the model is me/final, not me/final-2" in record.getMessage()
