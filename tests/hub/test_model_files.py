"""What leaves the machine is a list of names; what is no model does not leave it at all."""

import json
import os
import shutil
from pathlib import Path

import pytest
from transformers import BertForPreTraining

from bert_recipes.checkpointing import (
    keep_run_id,
    parse_run_id,
    read_run_id,
    write_manifest,
    write_run_id,
)
from bert_recipes.errors import InputError
from bert_recipes.hub import collect_files
from bert_recipes.run_folder import RUN_ID_FILE


STATES = ("optimizer.pt", "scheduler.pt", "progress.json", "rng_state.pth")


def make_checkpoint(folder: Path, model: Path, step: int = 3) -> Path:
    """A complete checkpoint, as far as it is looked at."""
    checkpoint = folder / f"checkpoint-{step}"
    shutil.copytree(model, checkpoint)
    for name in STATES:
        (checkpoint / name).write_bytes(b"{}")
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (checkpoint / "run.yaml").write_text("seed: 1\n")
    write_manifest(checkpoint)
    return checkpoint


def test_only_the_files_of_the_list_are_uploaded(run_folder: Path, pushed: set[str]):
    names = collect_files(run_folder)
    assert sorted(names) == sorted(pushed)


def test_a_model_folder_of_anybody_and_its_shards(
    tiny_checkpoint: Path, tmp_path: Path, model_names: set[str]
):
    assert set(collect_files(tiny_checkpoint)) == model_names
    folder = tmp_path / "shards"
    BertForPreTraining.from_pretrained(tiny_checkpoint).save_pretrained(
        folder, max_shard_size="30KB"
    )
    shards = {path.name for path in folder.glob("model-*.safetensors")}
    assert len(shards) > 1
    assert set(collect_files(folder)) == {"config.json", "model.safetensors.index.json", *shards}
    (folder / max(shards)).unlink()
    with pytest.raises(InputError, match=f"{max(shards)} cannot be opened as safetensors"):
        collect_files(folder)


def test_a_link_out_of_the_folder_is_refused(run_folder: Path, tmp_path: Path):
    """What it leads to would be published."""
    (tmp_path / "private.md").write_text("secret")
    (run_folder / "report.md").unlink(missing_ok=True)
    (run_folder / "report.md").symlink_to(tmp_path / "private.md")
    with pytest.raises(InputError, match=r"report\.md leads out of .*; nothing is uploaded"):
        collect_files(run_folder)


def test_a_checkpoint_is_uploaded_without_its_states(
    run_folder: Path, tiny_checkpoint: Path, model_names: set[str], caplog: pytest.LogCaptureFixture
):
    checkpoint = make_checkpoint(run_folder, tiny_checkpoint)
    assert set(collect_files(checkpoint)) == model_names | {"run.yaml", "trainer_state.json"}
    both = collect_files(run_folder, with_checkpoints=True)
    assert {name.removeprefix("checkpoint-3/") for name in both if "/" in name} == model_names
    # By it an interrupted push knows its own files.
    write_run_id(checkpoint / RUN_ID_FILE, "of the run")
    assert f"checkpoint-3/{RUN_ID_FILE}" in collect_files(run_folder, with_checkpoints=True)
    assert "checkpoint-2 is left out: it has no manifest.json" in caplog.text
    with open(checkpoint / "model.safetensors", "r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    with pytest.raises(InputError, match=r"model\.safetensors is not what was written"):
        collect_files(checkpoint)


def test_an_unfinished_run_is_refused_and_its_checkpoint_named(
    run_folder: Path, tiny_checkpoint: Path
):
    (run_folder / "all_results.json").unlink()
    with pytest.raises(InputError, match="has no complete checkpoint yet"):
        collect_files(run_folder)
    checkpoint = make_checkpoint(run_folder, tiny_checkpoint)
    with pytest.raises(
        InputError, match=f"not come to its end; to push its newest one give {checkpoint}"
    ):
        collect_files(run_folder)


def test_a_run_that_was_stopped_at_its_report_is_refused(run_folder: Path, pushed: set[str]):
    """The push at its own end is a part of the run."""
    (run_folder / "unfinished").touch()
    with pytest.raises(InputError, match=r"not come to its end; .* give its command again"):
        collect_files(run_folder)
    assert set(collect_files(run_folder, ends_run=True)) == pushed


def keep_generator_alone(folder: Path) -> None:
    (folder / "generator").mkdir()
    (folder / "model.safetensors").rename(folder / "generator" / "model.safetensors")


def keep_fit_alone(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "fit_dense.safetensors")


def test_the_layer_of_tinybert_goes_with_its_student(run_folder: Path):
    shutil.copy(run_folder / "model.safetensors", run_folder / "fit_dense.safetensors")
    assert "fit_dense.safetensors" in map(str, collect_files(run_folder))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: shutil.rmtree(f), "no folder"),
        (lambda f: (f / "config.json").unlink(), "holds no model: it has no config.json"),
        (lambda f: (f / "model.safetensors").unlink(), r"has no config\.json or no model\."),
        (keep_generator_alone, "holds no model"),
        (keep_fit_alone, "holds no model"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\x80\x04 a pickle"), "as safetensors"),
        (lambda f: os.truncate(f / "model.safetensors", 5000), "cannot be opened as safetensors"),
    ],
)
def test_what_is_no_model_is_refused(run_folder: Path, spoil, message: str):
    spoil(run_folder)
    with pytest.raises(InputError, match=message):
        collect_files(run_folder)


# By its id a run knows what it has pushed


def test_a_run_keeps_its_id_wherever_it_goes_on(tmp_path: Path):
    checkpoint, resumed, new = (tmp_path / name for name in ("checkpoint-2", "resumed", "new"))
    for path in (checkpoint, resumed, new):
        path.mkdir()
    run_id = keep_run_id(new, None)
    assert keep_run_id(new, None) == run_id == read_run_id(new)
    assert keep_run_id(tmp_path, None) != run_id
    write_run_id(checkpoint / RUN_ID_FILE, "abc")
    assert keep_run_id(resumed, checkpoint) == "abc" == read_run_id(resumed)


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"format": "bert-recipes run", "run_id": 3}', '{"run_id": "abc"}'],
)
def test_a_file_that_says_nothing_of_a_run_is_none(text: str):
    assert parse_run_id(text) is None
