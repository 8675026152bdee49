"""What make refuses in one line before it starts anything, and the commands that it starts."""

import shutil
import subprocess
from pathlib import Path

import pytest


pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(repository: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "PYTHON=true", "LAUNCH=cpu", *words]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["glue"], "error: TASK is ''; allowed: cola, sst2"),
        (["glue", "TASK=squad"], "error: TASK is 'squad'; allowed: cola, sst2"),
        (["predict", "MODEL=runs/mrpc"], "error: give INPUT="),
        (["predict", "INPUT=a.txt"], "error: give MODEL="),
        (["squad", "SWEEP=paper"], "error: SWEEP= is for glue and glue-all"),
        (["swag", "SWEEP=paper"], "error: SWEEP= is for glue and glue-all"),
        (["ner", "SWEEP=paper"], "error: SWEEP= is for glue and glue-all"),
    ],
)
def test_a_mistake_is_one_line(repository: Path, words: list[str], message: str):
    done = make(repository, *words)
    assert done.returncode != 0
    assert done.stderr.startswith(message)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["glue", "TASK=mrpc"], "recipes/finetune.py --config recipes/configs/finetune/glue.yaml --task mrpc"),
        (["glue", "TASK=mrpc", "SWEEP=paper"], "--sweep paper --output_dir runs/mrpc_paper "),
        (["glue", "TASK=mrpc", "SWEEP=conf/my.yaml"], "--sweep conf/my.yaml --output_dir runs/mrpc_my "),
        (["glue-all", "SWEEP=paper"], "recipes/glue_all.py --launch cpu --output_dir runs/glue --sweep paper"),
    ],
)
def test_settings_reach_the_command(repository: Path, words: list[str], command: str):
    done = make(repository, *words)
    assert done.returncode == 0, done.stderr
    assert command in done.stdout
