"""wandb online, offline, switched off, out of reach and killed: no run is lost, and what was
recorded is whole.
"""

import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from repeated_flags import keep_last
from tracked_runs import SECRETS, SMALL, contents, environment, expected, train


wandb = pytest.importorskip("wandb", reason="the extra `tracking` is not installed")

FILES = runpy.run_path(str(Path(__file__).parents[1] / "fixtures" / "tracker_files.py"))
SERVER = runpy.run_path(str(Path(__file__).parents[1] / "fixtures" / "wandb_server.py"))


def history_of(server) -> dict[int, float]:
    return {
        line["train/global_step"]: line["train/mlm_loss"]
        for line in server.history()
        if "train/mlm_loss" in line
    }


@pytest.mark.slow
def test_an_offline_run_is_put_online_by_wandb_sync(repository, small_store, tmp_path):
    """A server on loopback gets every figure, the configuration and the files, byte for byte."""
    folder = tmp_path / "run"
    train(
        repository,
        small_store,
        folder,
        environment(tmp_path, WANDB_MODE="offline"),
        "--report_to",
        "wandb",
    )
    with SERVER["serving"]() as server:
        env = environment(
            tmp_path, WANDB_API_KEY=SECRETS["WANDB_API_KEY"], WANDB_BASE_URL=server.url
        )
        command = [sys.executable, "-m", "wandb", "sync", str(folder / "wandb" / "latest-run")]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, check=False, env=env, cwd=tmp_path
        )
    assert done.returncode == 0, done.stderr
    assert history_of(server) == pytest.approx(
        dict(expected(folder, "train", "mlm_loss")), rel=1e-6
    )
    config = json.loads(server.buckets[-1]["config"])
    assert {
        name: config[name]["value"] for name in ("max_seq_length", "learning_rate", "size")
    } == {
        "max_seq_length": 32,
        "learning_rate": 2e-5,
        "size": "tiny",
    }
    for name in ("report.md", "losses.png", "run.yaml", "all_results.json"):
        assert server.files[f"artifact/{name}"] == (folder / name).read_bytes()


@pytest.mark.slow
def test_a_run_with_a_key_and_a_server_is_online(repository, small_store, tmp_path):
    with SERVER["serving"]() as server:
        env = environment(
            tmp_path, WANDB_API_KEY=SECRETS["WANDB_API_KEY"], WANDB_BASE_URL=server.url
        )
        done, _ = train(repository, small_store, tmp_path / "run", env, "--report_to", "wandb")
    assert "recorded offline" not in done.stderr
    assert not [line for line in done.stderr.splitlines() if "continues without it" in line]
    assert history_of(server) == pytest.approx(
        dict(expected(tmp_path / "run", "train", "mlm_loss")), rel=1e-6
    )
    assert server.files["artifact/report.md"] == (tmp_path / "run" / "report.md").read_bytes()


@pytest.mark.slow
def test_a_run_that_was_started_offline_and_goes_on_online_is_there_as_a_whole(
    repository, small_store, tmp_path
):
    folder = tmp_path / "run"
    train(
        repository,
        small_store,
        folder,
        environment(tmp_path, WANDB_MODE="offline"),
        "--report_to",
        "wandb",
    )
    offline = FILES["read_wandb"](folder)
    (folder / "all_results.json").unlink()
    shutil.rmtree(folder / "checkpoint-6")
    with SERVER["serving"]() as server:
        env = environment(
            tmp_path, WANDB_API_KEY=SECRETS["WANDB_API_KEY"], WANDB_BASE_URL=server.url
        )
        done, _ = train(repository, small_store, folder, env, "--report_to", "wandb")
    assert "is resumed from checkpoint-4" in done.stderr
    assert server.buckets[-1]["name"] == offline["id"]
    assert history_of(server) == pytest.approx(
        dict(expected(folder, "train", "mlm_loss")), rel=1e-6
    )


@pytest.mark.slow
def test_wandb_keeps_the_finished_model_once_and_in_the_runs_folder(
    repository, small_store, tmp_path
):
    env = environment(tmp_path, WANDB_MODE="offline", WANDB_LOG_MODEL="end")
    env.pop("XDG_DATA_HOME", None)
    done, _ = train(repository, small_store, tmp_path / "run", env, "--report_to", "wandb")
    assert not [line for line in done.stderr.splitlines() if "continues without it" in line]
    found = FILES["read_wandb"](tmp_path / "run")
    models = {
        artifact.client_id: contents(artifact)
        for artifact in found["artifacts"]
        if artifact.type == "model"
    }
    (names,) = [names for names in models.values() if "model.safetensors" in names]
    assert {"config.json", "vocab.txt"} <= set(names)
    # What `wandb sync` takes, from this machine or from another one to which the run's folder is
    # moved.
    kept = [path for path in (tmp_path / "run" / "wandb").rglob("*") if path.is_file()]
    model = (tmp_path / "run" / "model.safetensors").read_bytes()
    assert any(path.read_bytes() == model for path in kept)
    assert not list((tmp_path / ".local").rglob("artifacts/staging/*"))


@pytest.mark.slow
def test_wandb_may_be_switched_off(repository, small_store, tmp_path):
    env = environment(tmp_path, WANDB_MODE="disabled")
    done, _ = train(repository, small_store, tmp_path / "run", env, "--report_to", "wandb")
    assert not [line for line in done.stderr.splitlines() if "continues without it" in line]
    assert not list(tmp_path.rglob("*.wandb"))


@pytest.mark.slow
def test_a_server_that_never_answers_holds_no_run_up(repository, small_store, tmp_path):
    silent = socket.create_server(("127.0.0.1", 0))
    held = []

    def accept():
        while True:
            try:
                held.append(silent.accept()[0])
            except OSError:
                return

    threading.Thread(target=accept, daemon=True).start()
    changes = {
        "WANDB_BASE_URL": f"http://127.0.0.1:{silent.getsockname()[1]}",
        "WANDB_INIT_TIMEOUT": "10",
    }
    env = environment(tmp_path, WANDB_API_KEY=SECRETS["WANDB_API_KEY"], **changes)
    done, seconds = train(repository, small_store, tmp_path / "run", env, "--report_to", "wandb")
    silent.close()
    assert held, "it was asked"
    assert seconds < 120
    assert "the run is recorded offline" in done.stderr
    assert len(FILES["read_wandb"](tmp_path / "run")["history"]) >= 6


@pytest.mark.slow
def test_the_service_of_wandb_may_be_killed(repository, small_store, tmp_path):
    """The same weights come out, with one warning."""
    train(repository, small_store, tmp_path / "plain", environment(tmp_path), "--max_steps", "60")
    flags = [
        "--store",
        small_store,
        "--output_dir",
        tmp_path / "run",
        *SMALL,
        "--max_steps",
        60,
        "--report_to",
        "wandb",
    ]
    command = [sys.executable, "recipes/pretrain.py", *keep_last(flags)]
    process = subprocess.Popen(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=repository,
        env=environment(tmp_path, WANDB_MODE="offline"),
    )
    killed = None
    while killed is None and process.poll() is None:
        time.sleep(0.02)
        for line in subprocess.run(
            ["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True
        ).stdout.splitlines():
            pid, parent, *words = line.split()
            if (
                parent == str(process.pid)
                and "wandb" in " ".join(words)
                and list((tmp_path / "run").glob("wandb/off*"))
            ):
                os.kill(int(pid), signal.SIGKILL)
                killed = pid
    _, errors = process.communicate(timeout=300)
    assert killed is not None
    assert process.returncode == 0, errors[-3000:]
    assert errors.count("the run continues without it") == 1, errors[-3000:]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "run")]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_of_several_processes_one_is_tracked(repository, small_store, tmp_path):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    command += [
        "recipes/pretrain.py",
        "--store",
        small_store,
        "--output_dir",
        tmp_path / "run",
        *SMALL,
    ]
    command += ["--per_device_train_batch_size", "2", "--report_to", "tensorboard", "wandb"]
    env = environment(tmp_path, WANDB_MODE="offline")
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=repository,
        env=env,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(list((tmp_path / "run" / "runs").iterdir())) == 1
    assert len(list((tmp_path / "run" / "wandb").glob("offline-run-*"))) == 1
