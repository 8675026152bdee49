"""What leaves the machine is a list of names; what is no model does not leave it at all."""

import json
import logging
import shutil
from pathlib import Path

import pytest
from transformers import BertForPreTraining

from bert_recipes.checkpointing import write_manifest
from bert_recipes.errors import InputError
from bert_recipes.hub import collect_files, list_files, warn_of_what_is_seen


STATES = ("optimizer.pt", "scheduler.pt", "progress.json", "rng_state.pth")


def make_checkpoint(folder: Path, model: Path, step: int) -> Path:
    """A complete checkpoint, as far as it is looked at."""
    checkpoint = folder / f"checkpoint-{step}"
    shutil.rmtree(checkpoint, ignore_errors=True)
    shutil.copytree(model, checkpoint)
    for name in STATES:
        (checkpoint / name).write_bytes(b"{}")
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (checkpoint / "run.yaml").write_text("seed: 1\n")
    write_manifest(checkpoint)
    return checkpoint


def test_only_the_files_of_the_list_are_uploaded(run_folder: Path, pushed: set[str]):
    model = collect_files(run_folder)
    assert set(model.files) == pushed
    assert all(path == run_folder / name for name, path in model.files.items())
    assert model.size == sum((run_folder / name).stat().st_size for name in pushed)
    assert (model.run_id, model.step) == ("0123abcd", 4)


def test_a_hidden_picture_stays_where_it_is(run_folder: Path, pushed: set[str]):
    (run_folder / ".secret.png").write_bytes(b"\x89PNG")
    assert set(collect_files(run_folder).files) == pushed


def test_a_model_folder_of_anybody_has_no_run_and_no_step(tiny_checkpoint: Path):
    model = collect_files(tiny_checkpoint)
    assert set(model.files) == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    }
    assert (model.run_id, model.step) == (None, None)


def test_shards_are_uploaded_with_their_index(tiny_checkpoint: Path, tmp_path: Path):
    BertForPreTraining.from_pretrained(tiny_checkpoint).save_pretrained(tmp_path / "shards", max_shard_size="30KB")
    model = collect_files(tmp_path / "shards")
    assert len(model.hash_weights()) > 1
    assert set(model.files) == {"config.json", "model.safetensors.index.json", *model.hash_weights()}


def test_a_checkpoint_is_uploaded_without_its_states(run_folder: Path, tiny_checkpoint: Path):
    model = collect_files(make_checkpoint(run_folder, tiny_checkpoint, 3))
    assert model.step == 3
    assert not set(model.files) & {*STATES, "manifest.json"}
    assert {"model.safetensors", "config.json", "vocab.txt", "run.yaml", "trainer_state.json"} <= set(model.files)


def test_checkpoints_come_along_where_they_are_asked_for(
    run_folder: Path, tiny_checkpoint: Path, caplog: pytest.LogCaptureFixture
):
    make_checkpoint(run_folder, tiny_checkpoint, 3)
    model = collect_files(run_folder, with_checkpoints=True)
    inside = {name.removeprefix("checkpoint-3/") for name in model.files if "/" in name}
    assert inside == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"}
    assert "checkpoint-2 is left out: it has no manifest.json" in caplog.text


def test_an_unfinished_run_is_refused_and_its_checkpoint_named(run_folder: Path, tiny_checkpoint: Path):
    (run_folder / "all_results.json").unlink()
    with pytest.raises(InputError, match="has no complete checkpoint yet"):
        collect_files(run_folder)
    checkpoint = make_checkpoint(run_folder, tiny_checkpoint, 3)
    with pytest.raises(InputError, match=f"not come to its end; to push its newest checkpoint give {checkpoint}"):
        collect_files(run_folder)


def test_a_damaged_checkpoint_is_refused(run_folder: Path, tiny_checkpoint: Path):
    checkpoint = make_checkpoint(run_folder, tiny_checkpoint, 3)
    with open(checkpoint / "model.safetensors", "r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    with pytest.raises(InputError, match=r"model\.safetensors is not what was written"):
        collect_files(checkpoint)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: shutil.rmtree(f), "no folder"),
        (lambda f: (shutil.rmtree(f), f.write_text("x")), "no folder"),
        (lambda f: (f / "config.json").unlink(), "holds no model: it has no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "has no model_type"),
        (lambda f: (f / "config.json").write_text("{}"), "has no model_type"),
        (lambda f: (f / "model.safetensors").unlink(), r"it has no model\.safetensors; no weights of another"),
        (
            lambda f: ((f / "model.safetensors").unlink(), (f / "global_step4").mkdir()),
            r"recipes/consolidate_checkpoint\.py makes a model",
        ),
        (
            lambda f: (f / "model.safetensors").write_bytes(b"\x80\x04 a pickle by another name"),
            "cannot be opened as safetensors",
        ),
        (
            lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-7]),
            "cannot be opened as",
        ),
    ],
    ids=[
        "missing",
        "file",
        "no-config",
        "broken-config",
        "other-config",
        "no-weights",
        "deepspeed",
        "pickle",
        "cut-off",
    ],
)
def test_what_is_no_model_is_refused(run_folder: Path, spoil, message: str):
    spoil(run_folder)
    with pytest.raises(InputError, match=message):
        collect_files(run_folder)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "missing.safetensors", "optimizer.pt", 3])
def test_an_index_that_names_other_files_is_refused(run_folder: Path, name: object):
    (run_folder.parent / "secret.safetensors").write_bytes(b"secret")
    (run_folder / "model.safetensors").unlink()
    (run_folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(InputError, match=r"cannot be opened as safetensors|leads out of"):
        collect_files(run_folder)


def test_paths_of_this_machine_and_texts_of_the_data_are_warned_of_when_they_are_published(
    run_folder: Path, caplog: pytest.LogCaptureFixture
):
    (run_folder / "trainer_state.json").write_text('{\n  "best_model_checkpoint": "/home/somebody/runs/x"\n}\n')
    model = list_files(run_folder)
    with caplog.at_level(logging.WARNING):
        warn_of_what_is_seen(model, True)
        assert not caplog.text
        warn_of_what_is_seen(model, False)
    assert "run.yaml names 1 paths of this machine (/home/somebody/store)" in caplog.text
    assert "trainer_state.json names 1 paths of this machine (/home/somebody/runs/x)" in caplog.text
    assert f"report.md and report.html in {run_folder} may show texts of the data" in caplog.text


def test_paths_in_lists_are_warned_of_too(run_folder: Path, caplog: pytest.LogCaptureFixture):
    lines = ["train_file: [/home/me/a b.tfrecord, data/c.tfrecord]", "validation_file:", "- '/home/me/d.tfrecord'"]
    lines += ["fsdp_config: {min_num_params: 0, path: /home/me/e}", "logging_dir: runs/log", "warmup_steps: 1"]
    (run_folder / "run.yaml").write_text("\n".join(lines) + "\n")
    (run_folder / "trainer_state.json").write_text('{"global_step": 4, "files": ["/home/me/f"]}')
    warn_of_what_is_seen(list_files(run_folder), False)
    assert "run.yaml names 3 paths of this machine (/home/me/a b.tfrecord)" in caplog.text
    assert "trainer_state.json names 1 paths of this machine (/home/me/f)" in caplog.text


@pytest.mark.parametrize("name", ["secret.png", "LICENSE", "vocab.txt"])
def test_a_link_out_of_the_folder_is_refused(run_folder: Path, tmp_path_factory: pytest.TempPathFactory, name: str):
    outside = tmp_path_factory.mktemp("outside") / "private"
    outside.write_text("secret")
    (run_folder / name).unlink(missing_ok=True)
    (run_folder / name).symlink_to(outside)
    with pytest.raises(InputError, match=rf"{name} leads out of .*, to .*private; nothing is uploaded"):
        collect_files(run_folder)


def test_a_checkpoint_that_is_a_link_out_of_the_folder_is_refused(
    run_folder: Path, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
):
    outside = make_checkpoint(tmp_path_factory.mktemp("outside"), tiny_checkpoint, 3)
    (run_folder / "checkpoint-3").symlink_to(outside)
    with pytest.raises(InputError, match="leads out of"):
        collect_files(run_folder, with_checkpoints=True)


def test_a_link_within_the_folder_and_a_folder_that_is_a_link_are_fine(run_folder: Path, tmp_path: Path):
    (run_folder / "LICENSE").unlink(missing_ok=True)
    (run_folder / "LICENSE").symlink_to("vocab.txt")
    (tmp_path / "link").symlink_to(run_folder)
    assert "LICENSE" in collect_files(tmp_path / "link").files
