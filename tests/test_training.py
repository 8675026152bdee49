"""Whose folder output_dir is, and which checkpoint a run goes on from: nothing is deleted or mixed up by mistake."""

import json
import logging
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bert_recipes.arguments import PreTrainingArguments
from bert_recipes.errors import InputError
from bert_recipes.training import CONFIG_FILE, _mean_over_processes, claim_output_dir, results_text


FILES = ("model.safetensors", "optimizer.pt", "scheduler.pt")


def claim(folder: Path, resume: str | Path | None = None, *, overwrite: bool = False, **more: dict) -> str | None:
    wanted = None if resume is None else str(resume)
    args = PreTrainingArguments(output_dir=str(folder), resume_from_checkpoint=wanted, use_cpu=True)
    return claim_output_dir(args, overwrite=overwrite, **more)


def make_checkpoint(folder: Path, step: int) -> Path:
    """What the Trainer leaves, as far as it is looked at."""
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    for name in FILES:
        (checkpoint / name).write_bytes(b"x")
    (checkpoint / "rng_state.pth").write_bytes(b"x")
    return checkpoint


def make_run(folder: Path, *steps: int) -> Path:
    folder.mkdir(parents=True)
    (folder / CONFIG_FILE).write_text("size: tiny\n")
    for step in steps:
        make_checkpoint(folder, step)
    return folder


def content(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("resume", [None, "false", "no"])
def test_a_missing_or_empty_folder_is_free(tmp_path: Path, resume: str | None, overwrite: bool):
    (tmp_path / "empty").mkdir()
    assert claim(tmp_path / "missing", resume, overwrite=overwrite) is None
    assert claim(tmp_path / "empty", resume, overwrite=overwrite) is None


@pytest.mark.parametrize("overwrite", [False, True])
def test_files_that_are_no_run_are_refused_and_stay_even_with_overwrite(tmp_path: Path, overwrite: bool):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="no run of this project"):
        claim(tmp_path, overwrite=overwrite)
    assert content(tmp_path) == ["thesis.txt"]


def test_a_run_is_refused_and_stays_and_the_ways_on_are_named(tmp_path: Path):
    folder = make_run(tmp_path / "run", 2)
    before = content(folder)
    with pytest.raises(InputError, match=r"holds another run.*--resume_from_checkpoint last.*--overwrite_run true"):
        claim(folder)
    assert content(folder) == before


def test_no_checkpoint_is_offered_where_there_is_none(tmp_path: Path):
    """Each message names a way that works: neither sends to the other."""
    folder = make_run(tmp_path / "run")
    with pytest.raises(InputError, match=r"another run without a checkpoint; replace it with --overwrite_run true"):
        claim(folder)
    with pytest.raises(
        InputError, match=r"no complete checkpoint to resume from; start anew with --overwrite_run true"
    ):
        claim(folder, resume="last")


def test_overwrite_removes_the_run_with_its_checkpoints(tmp_path: Path):
    folder = make_run(tmp_path / "run", 2)
    (tmp_path / "beside.txt").write_text("another's")
    assert claim(folder, overwrite=True) is None
    assert not folder.exists()
    assert (tmp_path / "beside.txt").is_file()


def test_overwrite_never_removes_what_a_run_did_not_write(tmp_path: Path):
    folder = make_run(tmp_path / "run", 2)
    (folder / "notes.txt").write_text("kept beside the run")
    before = content(folder)
    with pytest.raises(InputError, match=r"notes\.txt"):
        claim(folder, overwrite=True)
    assert content(folder) == before


@pytest.mark.parametrize("inside", [".", "checkpoint-2", "task.yaml"])
def test_overwrite_never_removes_what_the_run_reads(tmp_path: Path, inside: str):
    folder = make_run(tmp_path / "run", 2)
    (folder / "task.yaml").write_text("kind: x\n")
    (tmp_path / "link").symlink_to(folder)
    before = content(folder)
    with pytest.raises(
        InputError, match=r"data_dir .*link.* lies in output_dir .*run, which --overwrite_run true would"
    ):
        claim(folder, overwrite=True, sources={"model": "org/name", "data_dir": str(tmp_path / "link" / inside)})
    assert content(folder) == before
    assert (
        claim(folder, overwrite=True, sources={"model": "org/name", "data_dir": str(tmp_path), "file": None}) is None
    )


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("task", "rte", "task is rte, but in .*run.yaml mrpc; .*give --task mrpc"),
        ("seed", 43, "seed is 43, but in .*run.yaml 42"),
        ("max_train_examples", 100, "max_train_examples is 100, but in .*not given; .*leave --max_train_examples out"),
        ("global_train_batch_size", None, "global_train_batch_size is None, but in .*run.yaml 32"),
    ],
)
def test_a_run_goes_on_with_its_own_data_only(tmp_path: Path, name: str, value: object, words: str):
    folder = make_run(tmp_path / "run", 2)
    settings = {"task": "mrpc", "seed": 42, "global_train_batch_size": 32, "max_train_examples": None}
    lines = [f"{key}: {each}\n" for key, each in settings.items() if each is not None]
    (folder / CONFIG_FILE).write_text("".join(lines))
    assert claim(folder, "last", lasting=settings) == str(folder / "checkpoint-2")
    with pytest.raises(InputError, match=words):
        claim(folder, "last", lasting=settings | {name: value})


def test_results_are_json_with_null_for_what_is_not_defined():
    text = results_text({"a": math.nan, "b": math.inf, "c": 1.5, "d": {"e": 1}})
    assert json.loads(text, parse_constant=pytest.fail) == {"a": None, "b": None, "c": 1.5, "d": {"e": 1}}


def test_the_training_loss_is_the_mean_over_all_processes():
    """After the last line of the log the Trainer adds up the loss of each process alone."""

    def gather(own: torch.Tensor) -> torch.Tensor:
        return torch.cat([own, own + 1.0])

    trainer = SimpleNamespace(args=SimpleNamespace(device="cpu"), accelerator=SimpleNamespace(gather=gather))
    assert _mean_over_processes(trainer, 2.0) == 2.5


@pytest.mark.parametrize("word", ["last", "true", "True"])
def test_last_is_the_checkpoint_with_the_highest_step(tmp_path: Path, word: str, caplog: pytest.LogCaptureFixture):
    # 10 comes after 9, not before 2.
    folder = make_run(tmp_path / "run", 9, 10, 2)
    with caplog.at_level(logging.WARNING):
        assert claim(folder, word) == str(folder / "checkpoint-10")
    assert not caplog.records


@pytest.mark.parametrize("missing", ["trainer_state.json", *FILES])
def test_last_passes_over_a_checkpoint_that_is_not_whole_and_says_so(
    tmp_path: Path, missing: str, caplog: pytest.LogCaptureFixture
):
    folder = make_run(tmp_path / "run", 2, 4, 6)
    (folder / "checkpoint-6" / missing).unlink()
    (folder / "checkpoint-4" / "trainer_state.json").write_text('{"global_step": ')
    with caplog.at_level(logging.WARNING):
        assert claim(folder, "last") == str(folder / "checkpoint-2")
    warnings = " ".join(record.getMessage() for record in caplog.records)
    assert "checkpoint-6" in warnings
    assert "checkpoint-4" in warnings
    assert (folder / "checkpoint-6").is_dir()


def test_last_without_a_whole_checkpoint_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="holds no"):
        claim(tmp_path / "missing", "last")
    folder = make_run(tmp_path / "run", 2)
    (folder / "checkpoint-2" / "optimizer.pt").unlink()
    before = content(folder)
    with pytest.raises(InputError, match="holds no"):
        claim(folder, "last")
    assert content(folder) == before


@pytest.mark.parametrize("name", ["missing", "empty", "run"])
def test_an_explicit_folder_must_be_a_checkpoint(tmp_path: Path, name: str):
    (tmp_path / "empty").mkdir()
    make_run(tmp_path / "run", 2)
    with pytest.raises(InputError, match=f"{name} is no .*checkpoint"):
        claim(tmp_path / "out", tmp_path / name)


def test_an_explicit_checkpoint_of_the_run_itself_is_taken(tmp_path: Path):
    folder = make_run(tmp_path / "run", 2, 4)
    wanted = folder / "checkpoint-2"
    assert claim(folder, wanted) == str(wanted)
    assert (folder / "checkpoint-4").is_dir()


def test_an_explicit_checkpoint_of_another_run_goes_into_a_free_folder_only(tmp_path: Path):
    wanted = make_run(tmp_path / "first", 2) / "checkpoint-2"
    assert claim(tmp_path / "new", wanted) == str(wanted)
    second = make_run(tmp_path / "second", 4)
    before = content(second)
    with pytest.raises(InputError, match="second"):
        claim(second, wanted)
    assert content(second) == before
