"""The rows of the studies of minutes are settings of recipes/pretrain.py, each under a name of its
own.
"""

import minutes
import pytest
from minutes import MinutesArguments

from bert_recipes.config import field_types
from bert_recipes.training import arguments
from bert_recipes.yaml_files import read_tree


@pytest.mark.parametrize("name", ["minutes.yaml", "sizes.yaml", "vocabularies.yaml", "decay.yaml"])
def test_every_row_changes_settings_that_there_are(repository, name):
    rows, _ = read_tree(repository / "benchmarks" / name)  # refuses a name twice
    names = set()
    for kind in ("ModelArguments", "DataArguments", "PreTrainingArguments", "PhaseArguments"):
        names |= set(field_types(getattr(arguments, kind)))
    for row, settings in rows.items():
        assert set(settings) <= names, row


def test_the_first_row_changes_nothing(repository):
    rows, _ = read_tree(repository / "benchmarks" / "minutes.yaml")
    assert rows["budget"] == {}


def test_vocabularies_are_measured_by_whole_words_on_their_own_store(monkeypatch):
    calls = []

    def run(script, config, flags, results_file):
        calls.append((script, flags))
        return {"eval_mlm_bits_per_character": float(len(calls))}

    monkeypatch.setattr(minutes, "run", run)
    args = MinutesArguments(store="books", whole_word=True)
    results = minutes.train({"store": "books_8192", "max_steps": 5}, args)
    (_, training), (script, measured) = calls
    assert "max_minutes" not in training
    assert "whole_word" not in training
    assert script == "evaluate_checkpoint.py"
    assert (measured["store"], measured["whole_word"]) == ("books_8192", True)
    assert results == {"eval_mlm_bits_per_character": 2.0}


def test_other_measures_and_other_stores_are_rows_of_their_own(monkeypatch, tmp_path):
    figures = {"train_steps": 5, "eval_mlm_accuracy": 0.3, "eval_nsp_accuracy": 0.8}
    losses = iter((4.0, 5.0, 6.0, 7.0))
    monkeypatch.setattr(
        minutes, "train", lambda row, args: {**figures, "eval_mlm_loss": next(losses)}
    )
    records = []
    args = {"output_dir": str(tmp_path), "minutes": 4.0}
    for settings in (
        {"whole_word": True},
        {"whole_word": False},
        {"store": "other"},
        {"whole_word": True},  # is there
    ):
        settings = {"store": "books", **settings}
        minutes.train_rows({"budget": {}}, records, MinutesArguments(**args, **settings))
    assert [record["eval_mlm_loss"] for record in records] == [4.0, 5.0, 6.0]
    assert len({line.count("whole words") for line in minutes.table(records).splitlines()}) == 2
    lines = minutes.table(records).splitlines()[2:]
    assert [line.split(" | ")[5] for line in lines] == ["4.00", "5.00", "6.00"]
    # By the clock another machine has rows of its own.
    for record in records:
        record["clock"]["processor"] = "Another"
    minutes.train_rows({"budget": {}}, records, MinutesArguments(**args, store="books"))
    assert [record["eval_mlm_loss"] for record in records] == [4.0, 5.0, 6.0, 7.0]
    assert minutes.table(records).count("| budget (another") == 3
    # By steps it has not.
    rows = {"steps": {"max_steps": 5}}
    monkeypatch.setattr(minutes, "train", lambda row, args: {**figures, "eval_mlm_loss": 8.0})
    args = MinutesArguments(**args, store="books")
    minutes.train_rows(rows, records, args)
    monkeypatch.setattr(minutes, "this_machine", pytest.fail)
    minutes.train_rows(rows, records, args)
    assert len(records) == 5


def test_a_row_without_pairs_has_an_empty_cell(monkeypatch, tmp_path):
    figures = {"train_steps": 5, "eval_mlm_loss": 4.0, "eval_mlm_accuracy": 0.3}
    monkeypatch.setattr(minutes, "train", lambda row, args: dict(figures))
    records = []
    args = MinutesArguments(store="books", output_dir=str(tmp_path))
    minutes.train_rows({"mlm": {"objective": "mlm"}}, records, args)
    assert minutes.table(records).endswith("| 5 | 4.00 | 30.0% |  |\n")


def test_a_record_without_bits_per_character_has_an_empty_cell_beside_others():
    record = {
        "row": "budget",
        "minutes": 4.0,
        "settings": {},
        "train_steps": 5,
        "eval_mlm_loss": 4.0,
        "eval_mlm_accuracy": 0.3,
        "eval_nsp_accuracy": 0.8,
    }
    assert minutes.table([record]).endswith("| 4.00 | 30.0% | 80.0% |\n")
    measured = record | {"eval_mlm_bits_per_character": 1.75}
    assert minutes.table([measured]).endswith("| 4.00 | 30.0% | 1.750 | 80.0% |\n")
    (first, second) = minutes.table([record, {**measured, "row": "other"}]).splitlines()[2:]
    assert first.endswith("| 4.00 | 30.0% |  | 80.0% |")
    assert second.endswith("| 4.00 | 30.0% | 1.750 | 80.0% |")
