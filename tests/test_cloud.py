"""What docs/cloud.md starts on rented machines is read by the tools' own parsers."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml


def test_hugging_face_jobs_takes_the_command(repository, tmp_path):
    hf = shutil.which("hf", path=str(Path(sys.executable).parent))
    if hf is None:
        pytest.skip("there is no `hf` beside this Python")
    page = (repository / "docs" / "cloud.md").read_text(encoding="utf-8")
    command = re.search(r"^hf jobs uv run (.*?)\n```", page, re.MULTILINE | re.DOTALL)[1]
    for folder in ("dist", "my_store"):
        (tmp_path / folder).mkdir()
    (tmp_path / "recipes").symlink_to(repository / "recipes")
    words = shlex.split(command.replace("\\\n", " "))
    done = subprocess.run(
        [hf, "jobs", "uv", "run", "--dry-run", "--namespace", "me", *words],
        cwd=tmp_path,
        env={**os.environ, "HF_TOKEN": "hf_no_token"},
        capture_output=True,
        text=True,
    )
    assert "Job not submitted" in done.stdout, done.stdout + done.stderr
    assert "hf_no_token" not in done.stdout


def test_skypilot_reads_the_task(repository, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    sky = pytest.importorskip("sky", reason="SkyPilot is not installed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_store").mkdir()
    file = repository / "recipes" / "cloud" / "skypilot.yaml"
    config = yaml.safe_load(file.read_text(encoding="utf-8"))
    task = sky.Task.from_yaml_config(
        config,
        env_overrides=[("REPO", "me/my-bert")],
        secrets_overrides=[("HF_TOKEN", "hf_no_token")],
    )
    assert "bert-recipes pretrain" in task.run
    assert list(task.file_mounts) == ["/store"]
    assert list(task.storage_mounts) == ["/runs"]
