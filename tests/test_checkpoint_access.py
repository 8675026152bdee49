"""A checkpoint that cannot be taken is said before anything is loaded, with what can be instead."""

import json
import shutil
from pathlib import Path

import pytest

from bert_recipes.checkpointing import check_checkpoint, seal
from bert_recipes.errors import InputError


def test_a_run_that_still_trains_is_said_and_its_newest_complete_checkpoint_named(
    tiny_checkpoint: Path, tmp_path: Path
):
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.yaml").write_text("seed: 1\n")
    with pytest.raises(
        InputError, match=r"a run that has not come to its end, .*; it has no complete checkpoint yet$"
    ):
        check_checkpoint(str(run))
    for step in (2, 4, 6):
        checkpoint = shutil.copytree(tiny_checkpoint, run / f"checkpoint-{step}")
        for name in ("optimizer.pt", "scheduler.pt", "progress.json", "rng_state.pth"):
            (checkpoint / name).write_bytes(b"{}")
        (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        (checkpoint / "run.yaml").write_text("seed: 1\n")
        if step != 6:  # killed while it was written
            seal(checkpoint)
    with pytest.raises(InputError, match=r"its newest complete checkpoint is .*/run/checkpoint-4$"):
        check_checkpoint(str(run))
    check_checkpoint(str(run / "checkpoint-4"))


@pytest.mark.parametrize(
    "files",
    [[], ["run.yaml", "all_results.json"], ["run.yaml", "trainer_state.json"]],
    ids=["any-folder", "a-run-at-its-end", "a-checkpoint"],
)
def test_a_folder_that_is_no_run_under_way_is_asked_for_a_checkpoint(tmp_path: Path, files: list[str]):
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=r"has no config\.json; give a checkpoint folder$"):
        check_checkpoint(str(tmp_path))
