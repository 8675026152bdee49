"""Shards made by tasks are those of one process, whatever happens to a task."""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from subprocess import DEVNULL

import psutil
import pytest
from in_process import RECIPES, keep_last
from python_process import run_python
from small_corpora import contents_of

from bert_recipes.data.prepare import CorpusArguments, Preparation, prepare_store
from bert_recipes.errors import InputError
from bert_recipes.tokenization.loading import load_tokenizer


pytest.importorskip("datatrove", reason="datatrove is an extra")
from bert_recipes.data.cluster import (
    ExecutorArguments,
    JoinShards,
    LocalExecutor,
    WriteShards,
    prepare_on_cluster,
)


# Bytes of text; a file has about a hundred.
SMALL = 1e-9 * 250

SBATCH = """#!{python}
import os, pathlib, re, subprocess, sys
jobs, script = pathlib.Path(os.environ["FAKE_SLURM"]), pathlib.Path(sys.argv[-1])
number = len(list(jobs.glob("job_*"))) + 1
said = " ".join(sys.argv[1:-1]) + "\\n" + script.read_text()
(jobs / f"job_{{number}}").write_text(said)
print("Submitted batch job", number)
needed = re.search(r"dependency=afterok:(\\d+)", said)
is_run = "RUN_JOBS" in os.environ and "launch_pickled_pipeline" in said
if is_run and not (needed and (jobs / f"failed_{{needed[1]}}").exists()):
    last = int(re.search(r"array=0-(\\d+)", said)[1])
    for task in range(last + 1):
        env = os.environ | {{"SLURM_ARRAY_TASK_ID": str(task), "RUN_OFFSET": "0"}}
        env["SLURM_NODELIST"] = "node"
        with open(jobs / f"output_{{number}}_{{task}}", "w") as output:
            command = ["bash", script]
            ended = subprocess.run(command, env=env, stdout=output, stderr=output, cwd="/")
            if ended.returncode:
                (jobs / f"failed_{{number}}").touch()
"""


@pytest.fixture(scope="module")
def straight(vocabulary, texts, tmp_path_factory):
    """The contents of the store that one process makes."""
    output = tmp_path_factory.mktemp("straight") / "store"
    prepare_store(settings(vocabulary, texts, output), load_tokenizer(vocabulary))
    return contents_of(output)


def settings(vocabulary, texts, output, **options):
    common = {
        "num_processes": 1,
        "document_boundary": "file",
        "files": [str(texts)],
        "shard_gigabytes": SMALL,
        "validation_fraction": 0.3,
    }
    return CorpusArguments(tokenizer=str(vocabulary), output_dir=str(output), **(common | options))


def prepare(vocabulary, texts, output, **executors):
    corpus = settings(vocabulary, texts, output)
    return prepare_on_cluster(corpus, ExecutorArguments(**executors), load_tokenizer(vocabulary))


def write_some_shards(vocabulary, texts, output, number):
    """What a preparation that was cut off leaves."""
    stopped = Preparation(settings(vocabulary, texts, output), load_tokenizer(vocabulary))
    with stopped.claimed():
        for shard in range(number):
            stopped.write_shard(shard)
    return stopped


@pytest.mark.parametrize(("workers", "tasks"), [(1, 3), (2, 30)])
def test_any_number_of_tasks_and_workers_gives_the_same_bytes(
    vocabulary, texts, straight, tmp_path, workers, tasks
):
    report = prepare(vocabulary, texts, tmp_path / "store", workers=workers, tasks=tasks)

    assert "shards done before: 0\n" in report
    assert contents_of(tmp_path / "store") == straight
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store", "store.logs"]


def test_shards_that_are_done_are_kept_and_damaged_ones_are_made_anew(
    vocabulary, texts, straight, tmp_path
):
    write_some_shards(vocabulary, texts, tmp_path / "store", 4)
    (tmp_path / ".store.shards" / "shards" / "00001" / "train" / "tokens.arrow").unlink()
    report = prepare(vocabulary, texts, tmp_path / "store", workers=2, tasks=2)

    assert "shards done before: 3\n" in report
    assert contents_of(tmp_path / "store") == straight

    log = tmp_path / "store.logs" / "logs" / "task_00001.log"

    assert "the shard is made again" in log.read_text()


def test_that_a_task_has_ended_before_does_not_stand_for_its_shards(
    vocabulary, texts, straight, tmp_path
):
    preparation = write_some_shards(vocabulary, texts, tmp_path / "store", 0)
    logs = tmp_path / "store.logs"
    step = WriteShards(preparation)
    LocalExecutor([step], tasks=3, workers=1, logging_dir=logs, name="write shards").run()

    assert len(list((logs / "completions").iterdir())) == 3

    (tmp_path / ".store.shards" / "shards" / "00002" / "store.json").unlink()
    prepare(vocabulary, texts, tmp_path / "store", workers=1, tasks=3)

    assert contents_of(tmp_path / "store") == straight


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("no plan", "missing, so the preparation has ended"),
        ("files", "other shards"),
        ("settings", "other settings"),
    ],
)
def test_a_task_works_on_the_plan_that_was_made_only(vocabulary, texts, tmp_path, change, message):
    files = shutil.copytree(texts, tmp_path / "texts")
    arguments = settings(vocabulary, files, tmp_path / "store")
    preparation = Preparation(arguments, load_tokenizer(vocabulary))
    step = WriteShards(preparation)
    if change != "no plan":
        with preparation.claimed():
            pass
    if change == "files":
        (files / "03.txt").write_text("Another machine has another text.\n")
    if change == "settings":
        arguments.sentences = "lines"

    with pytest.raises(InputError, match=message):
        step.run(None, 0, 1)
    assert not (tmp_path / ".store.shards" / "shards").exists()


def test_a_text_that_was_edited_after_its_shard_is_not_joined(vocabulary, texts, tmp_path):
    """The store would say that it is of the new text."""
    files = shutil.copytree(texts, tmp_path / "texts")
    arguments = settings(vocabulary, files, tmp_path / "store")
    preparation = Preparation(arguments, load_tokenizer(vocabulary))
    with preparation.claimed():
        for number in range(len(preparation.shards)):
            preparation.write_shard(number)
    (files / "03.txt").write_text("Another text.\n")

    with pytest.raises(InputError, match="other shards"):
        JoinShards(preparation).run()
    assert not (tmp_path / "store").exists()


def test_one_shard_is_refused(vocabulary, texts, tmp_path):
    corpus = settings(vocabulary, texts, tmp_path / "store", shard_gigabytes=1.0)
    with pytest.raises(InputError, match=r"one shard.*set shard_gigabytes \(1\.0\) lower"):
        prepare_on_cluster(corpus, ExecutorArguments(), load_tokenizer(vocabulary))

    options = {"files": None, "dataset_name": "owner/name", "document_boundary": "row"}
    corpus = settings(vocabulary, texts, tmp_path / "store", **options)
    with pytest.raises(InputError, match="owner/name: a data set of the Hub is one shard"):
        prepare_on_cluster(corpus, ExecutorArguments(), load_tokenizer(vocabulary))


# The command


def command_of(vocabulary, texts, output, *flags, name="prepare_on_cluster"):
    paths = ["--files", texts, "--tokenizer", vocabulary, "--output_dir", output]
    words = keep_last([*paths, "--num_processes 1", *flags])
    return [RECIPES / f"{name}.py", *words]


@pytest.fixture
def large_texts(tmp_path):
    """Six files, each of which takes a second or so."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.txt").write_text(f"Red apple {number}. Green pear!\n\n" * 60_000)
    return folder


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def workers_of(process):
    """Processes of tasks; their parent is the one that they are copies of."""
    return [worker for child in process.children() for worker in child.children()]


TWO_WORKERS = "--shard_gigabytes 0.001 --workers 2"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "flags", "number", "exit_code"),
    [
        ("prepare_corpus", "--shard_gigabytes 0.001", signal.SIGKILL, -signal.SIGKILL),
        ("prepare_on_cluster", TWO_WORKERS, signal.SIGKILL, -signal.SIGKILL),
        ("prepare_on_cluster", TWO_WORKERS, signal.SIGTERM, 128 + signal.SIGTERM),
    ],
)
def test_an_end_in_the_middle_loses_nothing_that_is_done(
    vocabulary, large_texts, tmp_path, name, flags, number, exit_code
):
    output = tmp_path / "store"
    command = command_of(vocabulary, large_texts, output, flags, name=name)
    process = subprocess.Popen([sys.executable, *command], stdout=DEVNULL, stderr=DEVNULL)
    shards = tmp_path / ".store.shards" / "shards"
    wait_for(lambda: len(list(shards.glob("0*/store.json"))) >= 2)
    workers = workers_of(psutil.Process(process.pid))

    assert len(workers) == (2 if flags == TWO_WORKERS else 0)

    process.send_signal(number)

    assert process.wait(timeout=30) == exit_code

    _, alive = psutil.wait_procs(workers, timeout=10)

    assert not alive
    assert not output.exists()

    inodes = {file.parent.name: file.stat().st_ino for file in shards.glob("0*/store.json")}

    assert 2 <= len(inodes) < 6

    result = run_python(*command)

    assert f"shards done before: {len(inodes)}\n" in result.stdout

    for name, inode in inodes.items():
        assert (output / "shards" / name / "store.json").stat().st_ino == inode
    metadata = json.loads((output / "store.json").read_text())

    assert metadata["splits"]["train"]["num_documents"] == 6 * 60_000


@pytest.mark.slow
def test_a_killed_worker_is_one_line(vocabulary, large_texts, tmp_path):
    command = command_of(vocabulary, large_texts, tmp_path / "store", TWO_WORKERS)
    process = subprocess.Popen(
        [sys.executable, *command], stdout=DEVNULL, stderr=subprocess.PIPE, text=True
    )
    shards = tmp_path / ".store.shards" / "shards"
    wait_for(lambda: any(shards.glob(".0*.partial-*")))
    workers_of(psutil.Process(process.pid))[0].kill()
    _, errors = process.communicate(timeout=60)

    assert process.returncode == 1
    assert "error: write shards: one of the 2 processes was killed, probably for lack" in errors
    assert "Traceback" not in errors


def test_a_failed_task_is_one_line_that_names_its_log(call_recipe, vocabulary, texts, tmp_path):
    files = shutil.copytree(texts, tmp_path / "texts")
    (files / "05.txt").write_bytes(b"An apple.\nA caf\xe9.\n")
    paths = ["--files", files, "--tokenizer", vocabulary, "--output_dir", tmp_path / "store"]
    flags = f"--num_processes 1 --shard_gigabytes {SMALL!r} --workers 2 --tasks 4"
    output = call_recipe("prepare_on_cluster", *paths, flags, code=1)

    (line,) = [line for line in output.splitlines() if line.startswith("error: ")]

    assert "05.txt" in line
    assert "05.txt" in Path(line.split("log: ")[1].rstrip(")")).read_text()
    assert "Traceback" not in output
    assert not (tmp_path / "store").exists()


# Slurm, as far as it can be had without it: `sbatch` that runs a job at once, in another folder


@pytest.fixture
def slurm(tmp_path):
    jobs, programs = tmp_path / "jobs", tmp_path / "programs"
    jobs.mkdir()
    programs.mkdir()
    scripts = {
        "sbatch": SBATCH.format(python=sys.executable),
        "srun": '#!/bin/bash\nshift 3\nexec "$@"\n',
        "scontrol": "#!/bin/bash\necho node\n",
    }
    for name, text in scripts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    path = os.pathsep.join([str(programs), sysconfig.get_path("scripts"), os.environ["PATH"]])
    return jobs, os.environ | {"PATH": path, "FAKE_SLURM": str(jobs)}


SLURM_FLAGS = (
    f"--executor slurm --partition cpu --time 01:00:00 --shard_gigabytes {SMALL!r} --tasks 2 "
    "--sbatch_args account=nlp --document_boundary file --validation_fraction 0.3"
)


def test_slurm_gets_the_tasks_and_a_join_that_waits_for_them(
    call_recipe, vocabulary, texts, tmp_path, slurm, monkeypatch
):
    jobs, environment = slurm
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    paths = ["--files", texts, "--tokenizer", vocabulary, "--output_dir", tmp_path / "store"]
    output = call_recipe("prepare_on_cluster", *paths, SLURM_FLAGS)

    assert "submitted: job 1 with 2 tasks" in output

    join = output.split("and job ")[1].split(",")[0]
    write_script, join_script = (jobs / "job_1").read_text(), (jobs / f"job_{join}").read_text()

    assert "#SBATCH --array=0-1" in write_script
    assert "#SBATCH --account=nlp" in write_script
    assert "--dependency=afterok:1" in join_script
    assert "#SBATCH --kill-on-invalid-dep=yes" in join_script


@pytest.mark.slow
def test_jobs_of_slurm_write_the_store_and_no_join_follows_a_task_that_failed(
    vocabulary, texts, straight, tmp_path, slurm
):
    jobs, environment = slurm
    environment = environment | {"RUN_JOBS": "1"}
    files = shutil.copytree(texts, tmp_path / texts.name)
    # Paths as a user gives them, which only mean something in the folder that the command is given
    # in.
    command = command_of(vocabulary, texts.name, "store", SLURM_FLAGS)

    text = (files / "05.txt").read_bytes()
    (files / "05.txt").write_bytes(b"\xe9" * len(text))
    run_python(*command, cwd=tmp_path, env=environment)

    assert (jobs / "failed_1").exists()
    assert not (tmp_path / "store").exists()

    logs = (tmp_path / "store.logs" / "write" / "logs").glob("task_*.log")

    assert "05.txt" in "".join(path.read_text() for path in logs)

    (files / "05.txt").write_bytes(text)
    for file in jobs.iterdir():
        file.unlink()
    run_python(*command, cwd=tmp_path, env=environment)
    outputs = "\n".join(path.read_text() for path in jobs.glob("output_*"))

    assert not list(jobs.glob("failed_*")), outputs
    assert contents_of(tmp_path / "store") == straight


def test_without_slurm_it_is_one_line(vocabulary, texts, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    executor = {"executor": "slurm", "partition": "cpu", "time": "01:00:00"}

    with pytest.raises(InputError, match="executor 'slurm' needs sbatch on the PATH"):
        prepare(vocabulary, texts, tmp_path / "store", **executor)
