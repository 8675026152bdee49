"""The code and the commands of a card really run, and the commands give the card's figures."""

import json
import re
import shlex

import pytest
from english_runs import run_recipe

from bert_recipes.files import fingerprint_files
from bert_recipes.metrics.entities import find_entities
from bert_recipes.reports.card import write_card
from bert_recipes.reports.page import is_cost


KINDS = ("sequence_classification", "token_classification", "question_answering", "multiple_choice")
ON_CPU = ("--use_cpu", "true", "--precision", "fp32")


def blocks(folder, language):
    text = (folder / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def command(folder, recipe, places):
    """The card's command for a recipe, with places for its words in capitals."""
    lines = [block for block in blocks(folder, "bash") if f"recipes/{recipe}.py" in block]
    (line,) = [line for line in lines if "--probe_bias" not in line]
    words = [word.replace("MODEL", str(folder)) for word in shlex.split(line)[2:]]
    words = [str(places.get(word, word)) for word in words]
    assert not [word for word in words if word.isupper()]
    return words


def run_example(folder, monkeypatch):
    """What the code of the card leaves behind."""
    (code,) = blocks(folder, "python")
    monkeypatch.chdir(folder)
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    return names


def results_of(folder):
    return json.loads((folder / "all_results.json").read_text())


@pytest.mark.parametrize("kind", ["pretraining", *KINDS])
def test_the_example_runs_as_it_stands_in_the_folder(
    carded,
    kind,
    monkeypatch,
    capsys,
):
    run_example(carded(kind), monkeypatch)
    words = {
        "pretraining": "token_str",
        KINDS[0]: "perhaps",
        KINDS[3]: "tensor(",
    }
    assert words.get(kind, "\n") in capsys.readouterr().out


def test_the_example_finds_the_entities_of_the_predictions(carded, tiny_runs, monkeypatch):
    """The label of a word is that of its first piece."""
    folder = carded("token_classification")
    tag = run_example(folder, monkeypatch)["tag"]
    rows = (tiny_runs("token_classification").parent / "data" / "validation.jsonl").read_text()
    predictions = (folder / "predictions_validation.jsonl").read_text()
    num_entities = 0
    for row, line in zip(rows.splitlines(), predictions.splitlines(), strict=True):
        words = json.loads(row)["tokens"]
        text = " ".join(words)
        if len(tag.tokenizer(text)["input_ids"]) > 40:  # two windows in the run
            continue
        starts = [len(" ".join([*words[:number], ""])) for number in range(len(words))]
        expected = []
        for name, first, last in find_entities(json.loads(line)["prediction"]):
            expected.append((name, starts[first], starts[last] + len(words[last])))
        found = [(part["entity_group"], part["start"], part["end"]) for part in tag(text)]
        assert found == expected
        num_entities += len(found)
    assert num_entities > 5


def test_where_all_pieces_were_trained_the_example_asks_all(copy_of):
    folder = copy_of("token_classification")
    assert 'aggregation_strategy="first"' in write_card(folder).read_text()
    set_in_run_yaml(folder, label_all_pieces=True)
    assert 'aggregation_strategy="simple"' in write_card(folder).read_text()


def test_the_example_reads_as_much_of_a_long_text_as_the_run(carded, monkeypatch):
    classify = run_example(carded("sequence_classification"), monkeypatch)["classify"]
    long = classify({"text": "a " * 200, "text_pair": "b"})
    assert long == classify({"text": "a " * 36, "text_pair": "b"})  # 40 with what stands between


@pytest.mark.parametrize("kind", ["pretraining", "two_phases", KINDS[0]])
def test_the_command_of_the_results_gives_the_figures_of_the_card(
    carded,
    english_store,
    tiny_runs,
    tmp_path,
    kind,
):
    folder, file = carded(kind), tmp_path / "again.json"
    places = {"STORE": english_store}
    if kind in KINDS:
        places = {"DATA": tiny_runs(kind).parent / "data"}
    words = command(folder, "evaluate_checkpoint", places)
    run_recipe(
        "evaluate_checkpoint",
        *words,
        "--results_file",
        file,
        *ON_CPU,
    )
    again, results = json.loads(file.read_text()), results_of(folder)
    figures = [name for name in results if name.startswith("eval_") and not is_cost(name)]
    assert figures

    for name in figures:
        assert again[name] == pytest.approx(results[name], rel=1e-4), name
    if kind in KINDS:
        assert again["splits"]["validation"] == results["splits"]["validation"]


def set_in_run_yaml(folder, **values):
    """Settings of the run as if it had been launched with them; None takes one out."""
    file = folder / "run.yaml"
    lines = [line for line in file.read_text().splitlines() if line.split(":")[0] not in values]
    for name, value in values.items():
        if value is not None:
            lines.append(f"{name}: {json.dumps(value)}")
    file.write_text("\n".join(lines) + "\n")


def test_the_command_of_a_pushed_run_on_instances_starts_elsewhere(
    copy_of, english_store, tmp_path
):
    folder, instances = copy_of("pretraining"), tmp_path / "instances.jsonl"
    vocabulary = english_store.parent / "vocab.txt"
    run_recipe(
        "create_pretraining_data",
        *("--input_file", english_store.parent / "text" / "stories.txt"),
        *("--output_file", instances, "--vocab_file", vocabulary, "--max_seq_length", 32),
        *("--max_predictions_per_seq", 5, "--dupe_factor", 1),
    )
    change_base(folder, name="base", is_local=True)
    set_in_run_yaml(
        folder,
        model_name_or_path="/home/me/base",
        tokenizer="/home/me/vocab.txt",
        store=None,
        train_file=["/home/me/a.jsonl"],
        validation_file=["/home/me/b.jsonl"],
        push_to_hub=True,
        hub_model_id="me/teller",
    )
    write_card(folder)
    again = tmp_path / "again"
    places = {
        "NEW_FOLDER": again,
        "BASE": folder,
        "TOKENIZER": vocabulary,
    }
    places |= {"TRAIN": instances, "VALIDATION": instances}
    words = command(folder, "pretrain", places)
    assert str(folder) in words
    run_recipe(
        "pretrain",
        *words,
        "--max_steps",
        1,
        *ON_CPU,
    )
    results = results_of(again)
    assert results["train_steps"] == 1
    # By which `make compare` recognizes the held-out data.
    held_out = results["data"]["instance_files"]["validation"]
    assert held_out["fingerprint"] == fingerprint_files([instances])
    assert "push_to_hub: false" in (again / "run.yaml").read_text()


def change_base(folder, **base):
    results = results_of(folder)
    results["base_model"] = base
    (folder / "all_results.json").write_text(json.dumps(results))


def test_what_the_hub_has_stays_in_the_command(copy_of):
    folder, name = copy_of("pretraining"), "google-bert/bert-base-uncased"
    change_base(folder, name=name, is_local=False)
    set_in_run_yaml(folder, model_name_or_path=name, tokenizer=name)
    write_card(folder)
    words = command(folder, "pretrain", {"STORE": "store", "NEW_FOLDER": "new"})
    assert words == [*("--config", f"{folder}/run.yaml", "--store", "store", "--output_dir", "new")]


def test_the_command_of_a_pushed_run_on_a_task_starts_elsewhere(copy_of, tiny_runs, tmp_path):
    kind = "sequence_classification"
    folder, data = copy_of(kind), tiny_runs(kind).parent
    set_in_run_yaml(
        folder,
        push_to_hub=True,
        hub_model_id="me/sentences",
        model_name_or_path="/home/me/start",
    )
    write_card(folder)
    again = tmp_path / "again"
    places = {
        "NEW_FOLDER": again,
        "BASE": data / "start",
        "DATA": data / "data",
    }
    words = command(folder, "finetune", places)
    run_recipe(
        "finetune",
        *words,
        "--max_steps",
        1,
        *ON_CPU,
    )
    assert results_of(again)["train_steps"] == 1


@pytest.mark.slow
def test_the_command_of_the_training_gives_the_same_weights(carded, english_store, tmp_path):
    import torch
    from safetensors.torch import load_file

    folder, again = carded("pretraining"), tmp_path / "again"
    words = command(folder, "pretrain", {"STORE": english_store, "NEW_FOLDER": again})
    run_recipe("pretrain", *words, "--use_cpu", "true")
    first, second = (load_file(path / "model.safetensors") for path in (folder, again))
    for name, weight in first.items():
        assert torch.equal(weight, second[name]), name
