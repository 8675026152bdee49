"""recipes/write_model_card.py and the probe as a user runs them, and what becomes of edited
cards.
"""

import json
import shutil

import pytest
from english_runs import pretrain, run_recipe

from bert_recipes.errors import InputError


@pytest.fixture
def folder(shared, tmp_path):
    """A copy of a finished run."""
    return shutil.copytree(shared.run, tmp_path / "storyteller")


def test_the_recipe_writes_probe_and_card(folder, capsys):
    for name in ("README.md", "bias_probe.json"):
        (folder / name).unlink()
    flags = ("--run_dir", folder, "--license", "apache-2.0", "--language", "en", "de")
    run_recipe("write_model_card", *flags)
    assert capsys.readouterr().out.splitlines()[-1] == str(folder / "README.md")
    text = (folder / "README.md").read_text()
    for words in ("license: apache-2.0", "- de\n", "P(she)"):
        assert words in text
    assert "license: apache-2.0" in (folder / "card.yaml").read_text()


def test_energy_is_a_setting_of_the_run(shared):
    with pytest.raises(InputError, match="give it to the run, whose card then reports energy"):
        run_recipe("write_model_card", "--run_dir", shared.run, "--power_watts", "250")


def test_a_run_is_not_replaced_with_an_edited_card_in_its_folder(shared, folder):
    (folder / "README.md").write_text("mine\n")
    with pytest.raises(InputError, match=r"holds more than a run \(README.md, which was edited\)"):
        pretrain(shared.store, folder, "--overwrite_run", "true")


def test_the_probe_is_printed_and_written(folder, capsys):
    (folder / "bias_probe.json").unlink()
    flags = ("--model_name_or_path", folder, "--probe_bias", "true")
    run_recipe("evaluate_checkpoint", *flags)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["occupation", "P(she)", "P(he)", "+", "P(she)"]
    assert lines[-1] == str(folder / "bias_probe.json")
    rows = json.loads((folder / "bias_probe.json").read_text())["rows"]
    assert len(lines) == len(rows) + 2
    assert lines[1].split()[:2] == ["person", f"{rows[0]['p_she']:.2f}"]


def test_a_fine_tuning_run_has_a_card_without_a_probe(tiny_runs, tmp_path, capsys):
    shutil.copytree(tiny_runs("sequence_classification"), tmp_path / "mine")
    capsys.readouterr()  # what the run said, where this test is the first that needs it
    run_recipe("write_model_card", "--run_dir", tmp_path / "mine", "--license", "mit")
    assert capsys.readouterr().out.strip() == str(tmp_path / "mine" / "README.md")
    assert "fine-tuned from start" in (tmp_path / "mine" / "README.md").read_text()
    assert not (tmp_path / "mine" / "bias_probe.json").exists()


def test_a_run_that_was_stopped_at_its_report_is_refused(tiny_runs, tmp_path):
    folder = shutil.copytree(tiny_runs("sequence_classification"), tmp_path / "mine")
    (folder / "unfinished").touch()
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    for name, flag in (("write_model_card", "--run_dir"), ("write_report", "--runs")):
        with pytest.raises(InputError, match="mine is not finished: its predictions, report or"):
            run_recipe(name, flag, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
