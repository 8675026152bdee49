"""The code and the commands of a card really run, and the commands give the card's figures."""

import contextlib
import io
import json
import re
import runpy
import shlex
from pathlib import Path

import pytest

from bert_recipes.files import fingerprint_files
from bert_recipes.reports.card import write_card


RUN_RECIPE = runpy.run_path(str(Path(__file__).parents[1] / "fixtures" / "english_runs.py"))[
    "run_recipe"
]
KINDS = ("sequence_classification", "token_classification", "question_answering", "multiple_choice")


def blocks(folder, language):
    return re.findall(
        rf"```{language}\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )


@pytest.mark.parametrize("kind", ["pretraining", *KINDS])
def test_the_example_runs_as_it_stands_in_the_folder(carded, kind, monkeypatch):
    (code,) = blocks(carded(kind), "python")
    monkeypatch.chdir(carded(kind))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    text = printed.getvalue()
    expected = {
        "pretraining": "token_str",
        "sequence_classification": "perhaps",
        "multiple_choice": "tensor(",
    }
    assert expected.get(kind, "\n") in text
    if kind in ("pretraining", "sequence_classification", "token_classification"):
        assert len([line for line in code.splitlines() if line]) == 3


def test_the_example_has_words_that_the_tokenizer_knows(carded):
    (code,) = blocks(carded("pretraining"), "python")
    sentence = json.loads(re.search(r"fill_mask\((\".*\")\)", code)[1])
    vocabulary = (carded("pretraining") / "vocab.txt").read_text().split()
    assert set(sentence.split()) <= set(vocabulary)
    assert "[MASK]" in sentence


def command(folder, recipe):
    (line,) = [block for block in blocks(folder, "bash") if recipe in block]
    words = shlex.split(line)
    assert words[:2] == ["python", f"recipes/{recipe}.py"]
    return words[2:]


@pytest.mark.parametrize(("kind", "length"), [("pretraining", "32"), ("two_phases", "48")])
def test_the_command_of_pre_training_gives_the_figures_of_the_card(
    carded, english_store, tmp_path, kind, length
):
    folder = carded(kind)
    names = {"MODEL": folder, "STORE": english_store}
    words = [names.get(word, word) for word in command(folder, "evaluate_checkpoint")]
    assert words[words.index("--max_seq_length") + 1] == length
    file = tmp_path / "again.json"
    RUN_RECIPE(
        "evaluate_checkpoint",
        *words,
        "--results_file",
        file,
        "--use_cpu",
        "true",
        "--precision",
        "fp32",
    )
    again = json.loads(file.read_text())
    results = json.loads((folder / "all_results.json").read_text())
    text = (folder / "README.md").read_text()
    for key, shown in (
        ("mlm_loss", "{:.3f}"),
        ("mlm_accuracy", "{:.1%}"),
        ("nsp_loss", "{:.3f}"),
        ("unigram_loss", "{:.3f}"),
    ):
        assert again[f"eval_{key}"] == pytest.approx(results[f"eval_{key}"], rel=1e-4)
        assert shown.format(results[f"eval_{key}"]) in text
    assert again["eval_pairs"] == results["eval_pairs"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_of_a_task_gives_the_figures_of_the_card(carded, tiny_runs, kind, tmp_path):
    folder = carded(kind)
    words = [word.replace("MODEL", str(folder)) for word in command(folder, "evaluate_checkpoint")]
    words = [tiny_runs(kind).parent / "data" if word == "DATA" else word for word in words]
    file = tmp_path / "again.json"
    RUN_RECIPE(
        "evaluate_checkpoint",
        *words,
        "--results_file",
        file,
        "--use_cpu",
        "true",
        "--precision",
        "fp32",
    )
    again = json.loads(file.read_text())
    results = json.loads((folder / "all_results.json").read_text())
    figures = [name for name in results if name.startswith("eval_") and name != "eval_seconds"]
    assert figures
    for name in figures:
        assert again[name] == pytest.approx(results[name], rel=1e-4)
    assert again["splits"]["validation"] == results["splits"]["validation"]


def test_the_command_of_the_probe_gives_its_table(carded, tmp_path):
    folder = carded("pretraining")
    words = [folder if word == "MODEL" else word for word in command(folder, "probe_bias")]
    RUN_RECIPE("probe_bias", *words, "--output_file", tmp_path / "probe.json")
    again, before = (
        json.loads(file.read_text())
        for file in (tmp_path / "probe.json", folder / "bias_probe.json")
    )
    assert again["templates"] == before["templates"]
    assert again["weights_sha256"] == before["weights_sha256"]
    for row, known in zip(again["rows"], before["rows"], strict=True):
        assert row["p_she"] == pytest.approx(known["p_she"], abs=2e-4)


def set_in_run_yaml(folder, **values):
    """Settings of the run as if it had been launched with them; None takes one out."""
    file = folder / "run.yaml"
    lines = [line for line in file.read_text().splitlines() if line.split(":")[0] not in values]
    lines += [f"{name}: {json.dumps(value)}" for name, value in values.items() if value is not None]
    file.write_text("\n".join(lines) + "\n")


def run_again(folder, recipe, places):
    """Run the card's command with places for its words in capitals, for one step on a CPU; the new
    folder.
    """
    assert "MODEL/run.yaml" in command(folder, recipe)
    words = [
        places.get(word, word.replace("MODEL/", f"{folder}/")) for word in command(folder, recipe)
    ]
    assert not [word for word in words if str(word).isupper()]
    RUN_RECIPE(recipe, *words, "--max_steps", 1, "--use_cpu", "true", "--precision", "fp32")
    return places["NEW_FOLDER"]


def test_the_command_of_a_pushed_run_on_instances_starts_elsewhere(
    copy_of, english_store, tiny_checkpoint, tmp_path
):
    folder, instances = copy_of("pretraining"), tmp_path / "instances.jsonl"
    text = english_store.parent / "text" / "stories.txt"
    vocabulary = english_store.parent / "vocab.txt"
    flags = [
        "--input_file",
        text,
        "--output_file",
        instances,
        "--vocab_file",
        vocabulary,
        "--max_seq_length",
        32,
    ]
    RUN_RECIPE(
        "create_pretraining_data", *flags, "--max_predictions_per_seq", 5, "--dupe_factor", 1
    )
    gone = {"model_name_or_path": "/home/me/base", "tokenizer": "/home/me/vocab.txt", "store": None}
    gone |= {"train_file": ["/home/me/a.jsonl"], "validation_file": ["/home/me/b.jsonl"]}
    set_in_run_yaml(folder, push_to_hub=True, hub_model_id="me/teller", **gone)
    write_card(folder)
    assert {"BASE", "TOKENIZER", "TRAIN", "VALIDATION"} <= set(command(folder, "pretrain"))
    places = {"NEW_FOLDER": tmp_path / "again", "BASE": folder}
    places |= {"TOKENIZER": vocabulary, "TRAIN": instances, "VALIDATION": instances}
    again = run_again(folder, "pretrain", places)
    results = json.loads((again / "all_results.json").read_text())
    assert results["train_steps"] == 1
    # By which `make compare` knows the held-out data again.
    assert results["data"]["instance_files"]["validation"]["fingerprint"] == fingerprint_files(
        [instances]
    )
    assert "push_to_hub: false" in (again / "run.yaml").read_text()


def test_what_the_hub_has_stays_in_the_command(copy_of):
    folder = copy_of("pretraining")
    results = json.loads((folder / "all_results.json").read_text())
    results["base_model"] = {"name": "google-bert/bert-base-uncased", "is_local": False}
    (folder / "all_results.json").write_text(json.dumps(results))
    name = "google-bert/bert-base-uncased"
    set_in_run_yaml(folder, model_name_or_path=name, tokenizer=name)
    write_card(folder)
    words = ["--config", "MODEL/run.yaml", "--store", "STORE", "--output_dir", "NEW_FOLDER"]
    assert command(folder, "pretrain") == words


def test_the_command_of_a_pushed_run_on_a_task_starts_elsewhere(copy_of, tiny_runs, tmp_path):
    kind = "sequence_classification"
    folder, made = copy_of(kind), tiny_runs(kind).parent
    set_in_run_yaml(
        folder, push_to_hub=True, hub_model_id="me/sentences", model_name_or_path="/home/me/start"
    )
    write_card(folder)
    places = {"NEW_FOLDER": tmp_path / "again", "BASE": made / "start", "DATA": made / "data"}
    again = run_again(folder, "finetune", places)
    assert json.loads((again / "all_results.json").read_text())["train_steps"] == 1


@pytest.mark.slow
def test_the_command_of_the_training_gives_the_same_weights(carded, english_store, tmp_path):
    import torch
    from safetensors.torch import load_file

    folder = carded("pretraining")
    names = {
        "MODEL/run.yaml": folder / "run.yaml",
        "STORE": english_store,
        "NEW_FOLDER": tmp_path / "again",
    }
    words = [names.get(word, word) for word in command(folder, "pretrain")]
    RUN_RECIPE("pretrain", *words, "--use_cpu", "true")
    first, second = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "again"))
    assert all(torch.equal(first[name], second[name]) for name in first)
