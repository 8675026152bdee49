"""A checkpoint is whole or not there; the newest whole one is found, and never deleted."""

import json
import os
from pathlib import Path

import pytest

from bert_recipes.checkpointing import (
    check_checkpoint,
    commit,
    last_complete,
    list_checkpoints,
    read_step,
    remove_leftovers,
    restore_replaced,
    retire_later_checkpoints,
    rotate,
    staging_dir,
    why_incomplete,
    write_manifest,
)
from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import read_model_config
from bert_recipes.run_folder import MANIFEST_FILE, PROGRESS_FILE, STATE_FILE


FILES = (STATE_FILE, PROGRESS_FILE, "scheduler.pt", "model.safetensors", "optimizer.pt")


def write_parts(folder: Path, step: int) -> Path:
    folder.mkdir(parents=True)
    for name in FILES:
        (folder / name).write_bytes(os.urandom(200))
    (folder / STATE_FILE).write_text(json.dumps({"global_step": step}))
    inner = folder / "global_step3"  # an engine's own folder
    inner.mkdir()
    (inner / "shard.pt").write_bytes(os.urandom(50))
    return folder


def save(run: Path, step: int) -> Path:
    target = run / f"checkpoint-{step}"
    written = write_parts(staging_dir(run) / target.name, step)
    write_manifest(written)
    commit(written, target)
    return target


def names(run: Path) -> list[str]:
    return [path.name for path in list_checkpoints(run)]


def test_a_sealed_folder_is_complete_and_says_what_it_holds(tmp_path):
    checkpoint = save(tmp_path, 7)
    assert why_incomplete(checkpoint) is None
    files = json.loads((checkpoint / MANIFEST_FILE).read_text())["files"]
    assert set(files) == {*FILES, "global_step3/shard.pt"}
    assert files["optimizer.pt"]["size"] == 200
    assert read_step(checkpoint) == 7
    assert last_complete(tmp_path) == (checkpoint, [])


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("damage", [Path.unlink, cut_short, flip_a_bit])
@pytest.mark.parametrize("name", [STATE_FILE, "global_step3/shard.pt", MANIFEST_FILE])
def test_whatever_is_damaged_is_seen_and_the_one_before_is_taken(tmp_path, name, damage):
    good, bad = save(tmp_path, 9), save(tmp_path, 10)
    damage(bad / name)
    reason = why_incomplete(bad)
    assert reason is not None
    # A bit of the manifest: then another file is not what it says.
    assert Path(name).name in reason or damage is flip_a_bit
    assert last_complete(tmp_path) == (good, [(bad, reason)])


def test_files_without_a_manifest_and_a_model_alone_are_no_checkpoint(tmp_path):
    """What stock writes straight into the folder, what a kill leaves of it; what no run can be
    resumed from.
    """
    written = write_parts(tmp_path / "checkpoint-3", 3)
    assert "no manifest.json" in str(why_incomplete(written))
    (written / "scheduler.pt").unlink()
    write_manifest(written)
    assert "no scheduler.pt" in str(why_incomplete(written))
    assert last_complete(tmp_path)[0] is None


@pytest.mark.parametrize(
    "content",
    ["[]", "{}", "\x00", '{"files": {}, "format": "x"}', "[" * 100_000],
)
def test_a_manifest_that_is_none_is_a_reason_and_no_traceback(tmp_path, content):
    checkpoint = save(tmp_path, 1)
    # What every version before has written, and this one must read.
    expected = {"format": "bert-recipes checkpoint", "format_version": 1}
    assert expected.items() <= json.loads((checkpoint / MANIFEST_FILE).read_text()).items()
    (checkpoint / MANIFEST_FILE).write_text(content)
    assert why_incomplete(checkpoint) == "manifest.json is damaged or of another format"


@pytest.mark.parametrize("name", ["a" * 300, "\ud800", "a\0b"])
def test_a_manifest_that_names_no_possible_file_does_not_end_the_search_for_an_older_one(
    tmp_path, name
):
    good, bad = save(tmp_path, 9), save(tmp_path, 10)
    manifest = json.loads((bad / MANIFEST_FILE).read_text())
    manifest["files"][name] = {"size": 1, "sha256": ""}
    (bad / MANIFEST_FILE).write_text(json.dumps(manifest))
    newest, [(incomplete, _)] = last_complete(tmp_path)
    assert (newest, incomplete) == (good, bad)


def test_ten_comes_after_nine(tmp_path):
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-2", "checkpoint-x"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-11").write_text("a file")
    assert names(tmp_path) == ["checkpoint-2", "checkpoint-9", "checkpoint-10"]


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path):
    first = (save(tmp_path, 5) / "optimizer.pt").read_bytes()
    assert (save(tmp_path, 5) / "optimizer.pt").read_bytes() != first
    assert why_incomplete(tmp_path / "checkpoint-5") is None
    assert sorted(path.name for path in tmp_path.iterdir()) == [".aside-saving", "checkpoint-5"]


def test_rotation_keeps_the_newest_and_the_best(tmp_path):
    for step in (1, 2, 3, 4):
        save(tmp_path, step)
    rotate(tmp_path, None)
    rotate(tmp_path, 0)
    assert len(names(tmp_path)) == 4
    for limit in (2, 1):
        rotate(tmp_path, limit, keep=[tmp_path / "checkpoint-1"])
        assert names(tmp_path) == ["checkpoint-1", "checkpoint-4"]
    rotate(tmp_path, 1)
    assert names(tmp_path) == ["checkpoint-4"]


def test_rotation_counts_no_checkpoint_that_is_elsewhere(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step)
    rotate(tmp_path, 1, keep=[tmp_path / "checkpoint-8", tmp_path / "checkpoint-9"])
    assert names(tmp_path) == ["checkpoint-3"]


def test_rotation_never_removes_the_last_good_one(tmp_path):
    """A newer folder that is damaged does not count as one that is kept."""
    for step in (1, 2, 3):
        save(tmp_path, step)
    cut_short(tmp_path / "checkpoint-3" / "optimizer.pt")
    rotate(tmp_path, 1)
    assert last_complete(tmp_path)[0] == tmp_path / "checkpoint-2"


def test_later_checkpoints_are_set_aside_and_do_not_count(tmp_path):
    for step in (100, 200, 300):
        save(tmp_path, step)
    save(tmp_path, 300).rename(tmp_path / "abandoned-checkpoint-300")  # of an earlier time
    save(tmp_path, 300)
    moved = retire_later_checkpoints(tmp_path, tmp_path / "checkpoint-100")
    assert [path.name for path in moved] == ["abandoned-checkpoint-200", "abandoned-checkpoint-300"]
    save(tmp_path, 110)
    rotate(tmp_path, 2, keep=[tmp_path / "checkpoint-110"])
    assert names(tmp_path) == ["checkpoint-100", "checkpoint-110"]
    assert last_complete(tmp_path)[0] == tmp_path / "checkpoint-110"


def test_what_a_kill_leaves_is_removed_and_an_old_checkpoint_put_back(tmp_path):
    """Of a kill between the two renames of `commit`, too."""
    save(tmp_path, 1)
    save(tmp_path, 2).rename(tmp_path / ".aside-old-checkpoint-2")
    write_parts(staging_dir(tmp_path) / "checkpoint-2", 2)
    (tmp_path / ".aside-old-checkpoint-1").mkdir()
    (tmp_path / "run.yaml").touch()
    restore_replaced(tmp_path)
    remove_leftovers(tmp_path)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["checkpoint-1", "checkpoint-2", "run.yaml"]
    assert why_incomplete(tmp_path / "checkpoint-2") is None


def test_a_state_without_a_step_is_refused(tmp_path):
    (tmp_path / STATE_FILE).write_text("{}")
    with pytest.raises(InputError, match="no global_step"):
        read_step(tmp_path)


# A checkpoint that cannot be taken is said before anything is loaded, with what can be instead


def test_a_run_that_still_trains_is_said_and_its_newest_complete_checkpoint_named(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.yaml").touch()
    words = r"a run that has not come to its end, .*; it has no complete checkpoint yet$"
    with pytest.raises(InputError, match=words):
        check_checkpoint(str(run))
    save(run, 4)
    write_parts(run / "checkpoint-6", 6)  # killed while it was written
    with pytest.raises(InputError, match=r"its newest complete checkpoint is .*/run/checkpoint-4$"):
        check_checkpoint(str(run))
    (run / "checkpoint-4" / "config.json").write_text('{"model_type": "bert"}')
    check_checkpoint(str(run / "checkpoint-4"))


@pytest.mark.parametrize(
    "files",
    [[], ["run.yaml", "all_results.json"], ["run.yaml", "trainer_state.json"]],
    ids=["any-folder", "a-run-at-its-end", "a-checkpoint"],
)
def test_a_folder_that_is_no_run_under_way_is_asked_for_a_checkpoint(tmp_path, files):
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=r"has no config\.json; give a checkpoint folder$"):
        check_checkpoint(str(tmp_path))


@pytest.mark.parametrize("text", ["[]", "{", "[" * 100_000, "\xff"])
def test_a_configuration_that_is_no_object_is_one_line(tmp_path, text):
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(InputError, match=rf"^{tmp_path}/config\.json: ") as caught:
        check_checkpoint(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [{"model_type": []}, {"id2label": 5}, {"dtype": "floaty"}, {"auto_map": 4}],
)
def test_a_configuration_with_values_of_other_types_is_one_line(tmp_path, values):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"} | values))
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(InputError, match=r"^model_name_or_path: .* cannot be opened: "):
        read_model_config(str(tmp_path))
