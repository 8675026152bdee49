"""What leaves the machine is a list of names; what is no model does not leave it at all."""

import json
import logging
import shutil
from pathlib import Path

import pytest
from transformers import BertForPreTraining

from bert_recipes.checkpointing import (
    IDENTITY_FILE,
    keep_run_id,
    parse_run_id,
    read_run_id,
    write_manifest,
    write_run_id,
)
from bert_recipes.errors import InputError
from bert_recipes.hub import collect_files, list_files, warn_of_what_is_seen


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
    model = collect_files(run_folder)
    assert set(model.files) == pushed
    assert all(path == run_folder / name for name, path in model.files.items())
    assert model.size == sum((run_folder / name).stat().st_size for name in pushed)


def test_a_model_folder_of_anybody_and_its_shards(
    tiny_checkpoint: Path, tmp_path: Path, model_names: set[str]
):
    assert set(collect_files(tiny_checkpoint).files) == model_names
    BertForPreTraining.from_pretrained(tiny_checkpoint).save_pretrained(
        tmp_path / "shards", max_shard_size="30KB"
    )
    model = collect_files(tmp_path / "shards")
    assert len(model.hash_weights()) > 1
    assert set(model.files) == {
        "config.json",
        "model.safetensors.index.json",
        *model.hash_weights(),
    }


def test_a_checkpoint_is_uploaded_without_its_states(
    run_folder: Path, tiny_checkpoint: Path, model_names: set[str], caplog: pytest.LogCaptureFixture
):
    checkpoint = make_checkpoint(run_folder, tiny_checkpoint)
    assert set(collect_files(checkpoint).files) == model_names | {"run.yaml", "trainer_state.json"}
    both = collect_files(run_folder, with_checkpoints=True)
    assert {name.removeprefix("checkpoint-3/") for name in both.files if "/" in name} == model_names
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


def cut_off(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-7])


def index_names(name: object):
    def spoil(folder: Path) -> None:
        (folder.parent / "secret.safetensors").write_bytes(b"secret")
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"w": name}})
        )

    return spoil


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: shutil.rmtree(f), "no folder"),
        (lambda f: (shutil.rmtree(f), f.write_text("x")), "no folder"),
        (lambda f: (f / "config.json").unlink(), "holds no model: it has no config.json"),
        (lambda f: (f / "config.json").write_text("{}"), "with a model_type"),
        (
            lambda f: (f / "model.safetensors").unlink(),
            r"has no model\.safetensors; no weights of another",
        ),
        (
            lambda f: ((f / "model.safetensors").unlink(), (f / "global_step4").mkdir()),
            r"recipes/consolidate_checkpoint\.py makes a model",
        ),
        (
            lambda f: (f / "model.safetensors").write_bytes(b"\x80\x04 a pickle by another name"),
            "cannot be opened as",
        ),
        (cut_off, "cannot be opened as safetensors"),
        (index_names("../secret.safetensors"), r"cannot be opened as safetensors|leads out of"),
        (index_names("/etc/passwd"), "cannot be opened as safetensors"),
        (index_names("missing.safetensors"), "cannot be opened as safetensors"),
        (index_names("optimizer.pt"), "cannot be opened as safetensors"),
        (index_names(3), "cannot be opened as safetensors"),
    ],
)
def test_what_is_no_model_is_refused(run_folder: Path, spoil, message: str):
    spoil(run_folder)
    with pytest.raises(InputError, match=message):
        collect_files(run_folder)


def test_paths_of_this_machine_and_texts_of_the_data_are_warned_of_when_they_are_published(
    run_folder: Path, caplog: pytest.LogCaptureFixture
):
    lines = [
        "train_file: [/home/me/a b.tfrecord, data/c.tfrecord]",
        "validation_file:",
        "- '/home/me/d.tfrecord'",
    ]
    lines += [
        "fsdp_config: {min_num_params: 0, path: /home/me/e}",
        "logging_dir: runs/log",
        "warmup_steps: 1",
    ]
    (run_folder / "run.yaml").write_text("\n".join(lines) + "\n")
    (run_folder / "trainer_state.json").write_text(
        '{\n  "best_model_checkpoint": "/home/me/f"\n}\n'
    )
    model = list_files(run_folder)
    with caplog.at_level(logging.WARNING):
        warn_of_what_is_seen(model, True)
        assert not caplog.text
        warn_of_what_is_seen(model, False)
    assert "run.yaml names 3 paths of this machine (/home/me/a b.tfrecord)" in caplog.text
    assert "trainer_state.json names 1 paths of this machine (/home/me/f)" in caplog.text
    assert f"report.md and report.html in {run_folder} may show texts of the data" in caplog.text


@pytest.mark.parametrize("name", ["secret.png", "LICENSE", "vocab.txt", "checkpoint-3"])
def test_a_link_out_of_the_folder_is_refused(
    run_folder: Path, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, name: str
):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "private").write_text("secret")
    is_checkpoint = name == "checkpoint-3"
    target = make_checkpoint(outside, tiny_checkpoint) if is_checkpoint else outside / "private"
    (run_folder / name).unlink(missing_ok=True)
    (run_folder / name).symlink_to(target)
    with pytest.raises(InputError, match=rf"{name}.* leads out of .*, to .*; nothing is uploaded"):
        collect_files(run_folder, with_checkpoints=is_checkpoint)


def test_a_link_within_the_folder_and_a_folder_that_is_a_link_are_fine(
    run_folder: Path, tmp_path: Path
):
    (run_folder / "LICENSE").unlink(missing_ok=True)
    (run_folder / "LICENSE").symlink_to("vocab.txt")
    (tmp_path / "link").symlink_to(run_folder)
    assert "LICENSE" in collect_files(tmp_path / "link").files


# By its id a run knows what it has pushed


def test_a_run_keeps_its_id_wherever_it_goes_on(tmp_path: Path):
    checkpoint, folder, other = (tmp_path / name for name in ("checkpoint-2", "run", "other"))
    for path in (checkpoint, folder, other):
        path.mkdir()
    first = keep_run_id(other, None)
    assert keep_run_id(other, None) == first == read_run_id(other)
    write_run_id(checkpoint / IDENTITY_FILE, "abc")
    assert keep_run_id(folder, checkpoint) == "abc" == read_run_id(folder)
    assert first != "abc" != keep_run_id(tmp_path, None)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"format": "bert-recipes run", "run_id": 3}', '{"run_id": "abc"}'],
)
def test_a_file_that_says_nothing_of_a_run_is_none(text: str):
    assert parse_run_id(text) is None
