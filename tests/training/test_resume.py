"""Whose folder output_dir is, and which checkpoint a run is resumed from: nothing is deleted or
mixed up by mistake.
"""

import json
import math
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from bert_recipes.checkpointing import (
    keep_run_id,
    last_complete,
    write_manifest,
    write_run_id,
)
from bert_recipes.config import save_config
from bert_recipes.errors import InputError
from bert_recipes.files import atomic_write, lock_run
from bert_recipes.finetuning.arguments import TeachingArguments
from bert_recipes.run_folder import (
    CARD_SETTINGS_FILE,
    CONFIG_FILE,
    NO_WEIGHTS_FILE,
    PROBE_FILE,
    PROGRESS_FILE,
    RESULTS_FILE,
    RUN_ID_FILE,
    STATE_FILE,
    TASK_FILE,
)
from bert_recipes.training.arguments import DistillationArguments, PreTrainingArguments
from bert_recipes.training.resume import (
    check_output_dir,
    find_resume_checkpoint,
    is_run_file,
    lock_output_dir,
    prepare_output_dir,
    read_progress,
    state_of_process,
)
from bert_recipes.training.run import results_text, speed_of


FILES = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", PROGRESS_FILE)


def settings(
    folder: Path, resume: str | Path | None = None, **values: object
) -> PreTrainingArguments:
    if resume is not None:
        values["resume"] = str(resume)
    return PreTrainingArguments(output_dir=str(folder), use_cpu=True, **values)


def claim(
    folder: Path, resume: str | Path | None = None, *, overwrite: bool = False, **values: object
) -> str | None:
    sources = values.pop("sources", {})
    args = settings(folder, resume, overwrite_run=overwrite, **values)
    lock_output_dir(args)
    checkpoint = find_resume_checkpoint(args)
    prepare_output_dir(args, (args,), checkpoint, sources)
    return checkpoint


def make_checkpoint(folder: Path, step: int, **values: object) -> Path:
    """What a run leaves, as far as it is looked at."""
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    (checkpoint / STATE_FILE).write_text(json.dumps({"global_step": step}))
    for name in FILES:
        (checkpoint / name).write_bytes(b"x")
    save_config(checkpoint / CONFIG_FILE, settings(folder, **values))
    write_manifest(checkpoint)
    return checkpoint


def make_run(folder: Path, *steps: int, is_finished: bool = False, **values: object) -> Path:
    folder.mkdir(parents=True)
    save_config(folder / CONFIG_FILE, settings(folder, **values))
    for step in steps:
        make_checkpoint(folder, step, **values)
    if is_finished:
        (folder / RESULTS_FILE).write_text("{}")
    return folder


def content(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def refused(folder: Path, words: str, resume: str | Path | None = None, **settings: object) -> None:
    """The folder is not this run's, and stays as it is."""
    before = content(folder)
    with pytest.raises(InputError, match=words):
        claim(folder, resume, **settings)
    assert content(folder) == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_missing_or_empty_folder_is_free_and_files_that_are_no_run_stay(
    tmp_path: Path, overwrite: bool
):
    for folder in (tmp_path / "missing", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        for resume in ("auto", "no"):
            assert claim(folder, resume, overwrite=overwrite) is None
    (tmp_path / "thesis.txt").write_text("years of work")
    refused(tmp_path, "no run of this project", overwrite=overwrite)


@pytest.mark.parametrize(
    ("steps", "is_finished", "resume", "words"),
    [
        ((2,), True, "auto", "a finished run; continue it with --resume last, .*--overwrite_run"),
        ((2,), False, "no", "holds another run; continue it with --resume last"),
        # Each message names a way that works: neither sends to the other.
        ((), True, "auto", "a finished run without a checkpoint; replace it with --overwrite_run"),
        ((), True, "last", "no complete checkpoint .*; start from scratch with --overwrite_run"),
    ],
)
def test_a_run_is_refused_and_stays_and_the_ways_on_are_named(
    tmp_path: Path, steps, is_finished, resume, words
):
    refused(make_run(tmp_path / "run", *steps, is_finished=is_finished), words, resume=resume)


def test_an_unfinished_run_is_resumed_by_itself_and_what_an_interrupted_save_left_is_removed(
    tmp_path: Path,
):
    folder = make_run(tmp_path / "run", 2, 4)
    (folder / ".aside-saving" / "checkpoint-6").mkdir(parents=True)
    assert claim(folder) == str(folder / "checkpoint-4")
    assert not (folder / ".aside-saving").exists()
    # Of a kill between the two renames of a checkpoint that replaces another one.
    (folder / "checkpoint-4").rename(folder / ".aside-old-checkpoint-4")
    assert claim(folder) == str(folder / "checkpoint-4")
    # Without a checkpoint it starts from scratch, whatever its settings were: nothing of it is
    # worth keeping.
    assert claim(make_run(tmp_path / "other", seed=7)) is None


# tests/reports/test_finish.py has those of every run.
RARE_FILES = (
    "model-00001-of-00002.safetensors",
    "training_args.bin",
    "generator",  # of an ELECTRA
    TASK_FILE,
    NO_WEIGHTS_FILE,
    PROBE_FILE,
    CARD_SETTINGS_FILE,
    "predictions_test.txt",
    "runs",
    "wandb",
    "emissions.csv_0.bak",
    "blimp",  # of make blimp and make babylm, which leave their scores in the run
)


def test_what_a_run_may_leave_is_its_own():
    assert [name for name in RARE_FILES if not is_run_file(Path(name))] == []


@pytest.mark.parametrize("name", ["README.md", "run.yaml"])
def test_overwrite_removes_the_run_and_what_a_killed_process_was_writing(tmp_path: Path, name: str):
    folder = make_run(tmp_path / "run", 2)
    (tmp_path / "beside.txt").write_text("another's")
    with pytest.raises(KeyboardInterrupt), atomic_write(folder / name) as aside:
        raise KeyboardInterrupt
    aside.write_text("half")
    assert claim(folder, overwrite=True) is None
    assert not folder.exists()
    assert (tmp_path / "beside.txt").is_file()


@pytest.mark.parametrize("name", ["notes.txt", ".notes.txt.12.tmp", "emissions.md", "model.bin"])
def test_overwrite_never_removes_what_a_run_did_not_write(tmp_path: Path, name: str):
    folder = make_run(tmp_path / "run", 2)
    (folder / name).write_text("kept beside the run")
    refused(folder, re.escape(name), overwrite=True)


@pytest.mark.parametrize("inside", [".", "checkpoint-2", "task.yaml"])
def test_overwrite_never_removes_what_the_run_reads(tmp_path: Path, inside: str):
    folder = make_run(tmp_path / "run", 2)
    (folder / "task.yaml").write_text("kind: x\n")
    (tmp_path / "link").symlink_to(folder)
    inner = str(tmp_path / "link" / inside)
    words = "data_dir .*link.* lies in output_dir .*run, which --overwrite_run true would"
    refused(folder, words, overwrite=True, sources={"model": "org/name", "data_dir": inner})
    sources = {"model": "org/name", "data_dir": str(tmp_path), "file": None}
    assert claim(folder, overwrite=True, sources=sources) is None


@pytest.mark.parametrize(
    ("name", "was", "now", "words"),
    [
        ("seed", 42, 43, "seed is 43, but in .*run.yaml 42; .*give --seed 42"),
        ("data_seed", None, 7, "data_seed is 7, .* not given; .*leave --data_seed out"),
        # And not the steps that stand for it.
        ("max_minutes", None, 12.0, "max_minutes is 12.0, .* not given; .*leave --max_minutes out"),
    ],
)
def test_a_run_is_resumed_with_its_own_settings_only(
    tmp_path: Path, caplog, name: str, was: object, now: object, words: str
):
    folder = make_run(tmp_path / "run", 2, **{name: was})
    refused(folder, words, **{name: now})
    assert claim(folder, allow_changes=True, **{name: now}) == str(folder / "checkpoint-2")
    assert f"{name} is {now}" in caplog.text


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (
            {"optimizer": "lamb"},
            {},
            r"is bert_adam or adamw, but in .*run\.yaml lamb; the saved state",
        ),
        ({}, {"optimizer": "muon"}, r"is muon, .* --model_name_or_path .*run/checkpoint-2$"),
        (
            {"optimizer": "trainer", "optim": "adafactor"},
            {"optimizer": "trainer"},
            r"is bert_adam or adamw, but in .*run\.yaml adafactor;",
        ),
        (
            {"schedule": "trainer", "lr_scheduler_type": "greedy", "eval_strategy": "steps"},
            {"schedule": "trainer"},
            r"the schedule goes by steps, but in .*run\.yaml it is greedy;",
        ),
    ],
)
def test_no_optimizer_or_schedule_goes_on_from_the_state_of_another_though_changes_are_allowed(
    tmp_path: Path, before: dict, now: dict, words: str
):
    folder = make_run(tmp_path / "run", 2, **before)
    refused(folder, words, allow_changes=True, **now)
    assert claim(folder, **before) == str(folder / "checkpoint-2")


@pytest.mark.parametrize("optimizer", ["adamw", "trainer"])
def test_an_adam_may_go_on_from_the_state_of_another(tmp_path: Path, optimizer: str):
    folder = make_run(tmp_path / "run", 2)
    words = f"optimizer is {optimizer}, but in .* bert_adam; .*--allow_changes true"
    refused(folder, words, optimizer=optimizer)
    checkpoint = claim(folder, optimizer=optimizer, allow_changes=True)
    assert checkpoint == str(folder / "checkpoint-2")


def test_a_run_of_before_a_setting_existed_has_its_default(tmp_path: Path):
    folder = make_run(tmp_path / "run", 2)
    checkpoint = folder / "checkpoint-2"
    config = (checkpoint / CONFIG_FILE).read_text(encoding="utf-8")
    # Of the second stock has another default.
    shorter = re.sub("^(adam_beta2|learning_rate):.*\n", "", config, flags=re.MULTILINE)
    assert len(shorter.splitlines()) == len(config.splitlines()) - 2
    (checkpoint / CONFIG_FILE).write_text(shorter, encoding="utf-8")
    write_manifest(checkpoint)
    words = "adam_beta2 is 0.9, but in .*run.yaml 0.999; .*give --adam_beta2 0.999"
    refused(folder, words, adam_beta2=0.9)
    assert claim(folder) == str(checkpoint)


def test_where_things_lie_and_how_the_work_is_shared_out_may_change(tmp_path: Path):
    batch = {"per_device_train_batch_size": 8, "global_train_batch_size": 16}
    folder = make_run(tmp_path / "run", 2, logging_steps=5, **batch)
    changes = {
        "per_device_train_batch_size": 4,
        "global_train_batch_size": 16,
        "dataloader_num_workers": 3,
        "logging_steps": 7,
        "eval_strategy": "no",
        "fast_layers": "off",
        "report_to": "none",
    }
    checkpoint = folder / "checkpoint-2"
    assert claim(folder, **changes) == str(checkpoint)
    assert claim(tmp_path / "elsewhere", checkpoint, **changes) == str(checkpoint)


@pytest.mark.parametrize(
    ("kind", "values"),
    [(DistillationArguments, {"temperature": 2.0}), (TeachingArguments, {"distil": "prediction"})],
)
def test_a_teacher_may_have_moved(tmp_path: Path, kind, values):
    """Its weights are compared (`take_teacher`)."""
    checkpoint = make_run(tmp_path / "run", 2) / "checkpoint-2"
    args = settings(tmp_path / "run")
    save_config(checkpoint / CONFIG_FILE, args, kind(teacher="before", **values))
    prepare_output_dir(args, (args, kind(teacher="after", **values)), str(checkpoint), {})
    other = kind(teacher="after", **values | {"temperature": 9.0})
    with pytest.raises(InputError, match=r"temperature is 9\.0, but in"):
        prepare_output_dir(args, (args, other), str(checkpoint), {})


def test_results_are_json_with_null_for_what_is_not_defined():
    text = results_text({"a": math.nan, "b": math.inf, "c": 1.5})
    assert json.loads(text, parse_constant=pytest.fail) == {"a": None, "b": None, "c": 1.5}


def test_waits_at_new_epochs_are_in_the_results_though_most_lines_have_none():
    lines = [
        {"step": 100, "tokens_per_second": 9.0, "data_wait_share": 0.0},
        {"step": 200, "tokens_per_second": 8.0, "data_wait_share": 0.0},
        {"step": 200, "eval_loss": 1.0},
        {"step": 250, "tokens_per_second": 4.0, "data_wait_share": 0.5},
    ]
    assert speed_of(lines) == {"tokens_per_second": 8.0, "data_wait_share": 0.1}
    assert speed_of(lines[2:3]) == {}


def test_last_is_the_complete_checkpoint_with_the_highest_step(tmp_path: Path, caplog):
    folder = make_run(tmp_path / "run", 9, 10, 2)  # 10 comes after 9, not before 2
    assert claim(folder, "last") == str(folder / "checkpoint-10")
    assert not caplog.records
    (folder / "checkpoint-10" / "optimizer.pt").unlink()
    (folder / "checkpoint-9" / STATE_FILE).write_text('{"global_step": ')
    assert claim(folder, "last") == str(folder / "checkpoint-2")
    assert "checkpoint-10 is skipped: optimizer.pt is missing" in caplog.text
    assert "checkpoint-9 is skipped: trainer_state.json has" in caplog.text
    # Nothing is lost, but what the run writes now is not older than they are.
    names = {path.name for path in folder.glob("*checkpoint-*")}
    assert names == {"checkpoint-2", "abandoned-checkpoint-9", "abandoned-checkpoint-10"}


@pytest.mark.parametrize("word", ["auto", "last"])
def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_from_scratch_by_itself(
    tmp_path: Path, word: str
):
    """Something of them may still be worth keeping, and a new run would write over them."""
    folder = make_run(tmp_path / "run", 2)
    (folder / "checkpoint-2" / "optimizer.pt").unlink()
    refused(folder, r"holds no complete checkpoint.*--overwrite_run true", word)


def test_an_explicit_folder_must_be_a_checkpoint(tmp_path: Path):
    run = make_run(tmp_path / "run", 2)
    for folder in (tmp_path / "missing", run):
        with pytest.raises(InputError, match=f"{folder.name} is no .*checkpoint"):
            claim(tmp_path / "out", folder)


def test_an_explicit_checkpoint_is_taken_by_its_own_run_or_into_a_free_folder(tmp_path: Path):
    folder = make_run(tmp_path / "run", 2, 4)
    checkpoint = folder / "checkpoint-2"
    assert claim(tmp_path / "new", checkpoint) == str(checkpoint)
    second = make_run(tmp_path / "second", 4)
    refused(second, "second", checkpoint)
    with pytest.raises(InputError, match="second holds another run"):
        check_output_dir(settings(second, checkpoint))
    check_output_dir(settings(folder, checkpoint))
    assert claim(folder, checkpoint) == str(checkpoint)
    # It is another future of the run: the newest checkpoint is the one from which it is resumed.
    abandoned = folder / "abandoned-checkpoint-4"
    assert last_complete(folder)[0] == checkpoint
    refused(folder, "abandoned-checkpoint-4 lies in output_dir, .*rename it first", abandoned)
    abandoned.rename(folder / "checkpoint-4")
    assert claim(folder, folder / "checkpoint-4") == str(folder / "checkpoint-4")


def test_a_run_that_began_with_a_checkpoint_is_resumed_by_the_same_command(tmp_path: Path):
    """As a scheduler gives it again, or its user."""
    checkpoint = make_run(tmp_path / "run", 2) / "checkpoint-2"
    write_run_id(checkpoint / RUN_ID_FILE, "of the run")
    branch = make_run(tmp_path / "branch")
    keep_run_id(branch, checkpoint)
    assert claim(branch, checkpoint) == str(checkpoint)  # it was stopped before it saved
    newest = make_checkpoint(branch, 3)
    check_output_dir(settings(branch, checkpoint))
    assert claim(branch, checkpoint) == str(newest)
    assert (tmp_path / "run" / "checkpoint-2").is_dir()
    # A copy of a run takes up what the run has done since.
    later = make_checkpoint(tmp_path / "run", 9)
    write_run_id(later / RUN_ID_FILE, "of the run")
    assert claim(branch, later) == str(later)
    # Once finished it is another run.
    (branch / RESULTS_FILE).write_text("{}")
    refused(branch, "holds a finished run", checkpoint)


def test_a_resume_under_deepspeed_says_that_it_opens_pickles(tmp_path: Path, caplog):
    for engine in ("FSDP", "DeepSpeed ZeRO 2"):
        assert "opening them runs what code they hold" not in caplog.text
        state = {"engine": engine, "processes": [{}, {}], "identity": {}}
        (tmp_path / PROGRESS_FILE).write_text(json.dumps(state))
        with caplog.at_level("INFO"):
            read_progress(tmp_path, {}, engine, 2, allow_changes=False)
    assert "opening them runs what code they hold" in caplog.text


def test_a_process_has_its_own_sums_again_or_the_mean_where_there_are_more_or_fewer():
    states = [{"loss": 1.0, "meter": [2.0, 4.0]}, {"loss": 3.0, "meter": [6.0, 0.0]}]
    assert [state_of_process(states, index, 2) for index in (0, 1)] == states
    mean = {"loss": 2.0, "meter": [4.0, 2.0]}
    assert state_of_process(states, 0, 1) == mean
    assert state_of_process(states, 2, 3) == mean


LOCK_RUN = """
import sys, time
from pathlib import Path
from bert_recipes.files import lock_run
lock_run(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_a_second_process_in_the_same_folder_is_refused(tmp_path: Path):
    folder = make_run(tmp_path / "run", 2)
    command = [sys.executable, "-c", LOCK_RUN, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        (tmp_path / "link").symlink_to(folder)
        for name in ("run", "link"):
            message = f"{name}: another process runs in it; wait for its end"
            with pytest.raises(InputError, match=message):
                lock_run(tmp_path / name, patience=0.2)
        process.kill()
    # However it ended.
    assert claim(folder) == str(folder / "checkpoint-2")


@pytest.mark.parametrize(("is_finished", "resume"), [(True, "auto"), (True, "no"), (False, "no")])
def test_the_early_look_refuses_what_the_claim_would(tmp_path: Path, is_finished, resume):
    folder = make_run(tmp_path / "run", 2, is_finished=is_finished)
    for accepted in (settings(folder, overwrite_run=True), settings(folder, "last")):
        check_output_dir(accepted)
    with pytest.raises(InputError) as early:
        check_output_dir(settings(folder, resume))
    refused(folder, re.escape(str(early.value)), resume)
    assert claim(folder, "last") == str(folder / "checkpoint-2")
    check_output_dir(settings(folder, "auto"))  # it is unfinished again


@pytest.mark.parametrize("variable", ["SLURM_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"])
def test_what_each_start_would_throw_away_is_refused_where_there_are_several(
    tmp_path: Path, monkeypatch, variable
):
    monkeypatch.setenv(variable, "0")
    check_output_dir(settings(tmp_path, overwrite_run=True))
    monkeypatch.setenv(variable, "3")
    check_output_dir(settings(tmp_path))
    check_output_dir(settings(tmp_path, "elsewhere/checkpoint-1"))
    begins_anew = settings(tmp_path, overwrite_run=True)
    for args in (begins_anew, settings(tmp_path, tmp_path / "checkpoint-1")):
        with pytest.raises(InputError, match=f"{variable} is 3, and each start would throw away"):
            check_output_dir(args)


def test_a_folder_of_somebody_else_is_refused_before_the_data_are_looked_for(
    tmp_path: Path, repository: Path, monkeypatch, capsys
):
    (tmp_path / "thesis.txt").write_text("kept")
    command = f"pretrain.py --store nowhere --use_cpu true --output_dir {tmp_path}"
    monkeypatch.setattr(sys, "argv", command.split())
    with pytest.raises(SystemExit):
        runpy.run_path(str(repository / "recipes" / "pretrain.py"), run_name="__main__")
    assert f"error: output_dir {tmp_path} holds files that are no run" in capsys.readouterr().err
