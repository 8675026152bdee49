"""A run keeps its number wherever it goes on."""

from pathlib import Path

import pytest

from bert_recipes.checkpointing import IDENTITY_FILE, keep_run_id, parse_run_id, read_run_id, write_run_id


def test_a_new_run_has_a_new_number_and_keeps_it(tmp_path: Path):
    first = keep_run_id(tmp_path, None)
    assert keep_run_id(tmp_path, None) == first == read_run_id(tmp_path)
    (tmp_path / "other").mkdir()
    assert keep_run_id(tmp_path / "other", None) != first


def test_a_run_that_goes_on_elsewhere_has_the_number_of_its_checkpoint(tmp_path: Path):
    checkpoint, folder = tmp_path / "checkpoint-2", tmp_path / "run"
    for path in (checkpoint, folder):
        path.mkdir()
    write_run_id(checkpoint / IDENTITY_FILE, "abc")
    assert keep_run_id(folder, checkpoint) == "abc" == read_run_id(folder)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": "bert-recipes run", "run_id": 3}', '{"run_id": "abc"}']
)
def test_a_file_that_says_nothing_of_a_run_is_none(text: str):
    assert parse_run_id(text) is None
