"""Recipes beside a stand-in for finetune.py, so that a sweep of many runs takes a second."""

import json
import runpy
import shutil
import signal
import subprocess
import sys

import pytest

from bert_recipes.tasks.catalogue import get_task, list_tasks
from bert_recipes.tasks.task_file import write_task_file


class Bench:
    """A copy of the recipes in a folder of its own.

    Attributes:
        recipes: The folder with the scripts.
        output: Where to write runs.
    """

    def __init__(
        self,
        folder,
        monkeypatch,
        capsys,
    ):
        self.recipes, self.output = folder / "recipes", folder / "runs"
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def plan(self, **values):
        (self.recipes / "plan.json").write_text(json.dumps(values))

    def calls(self):
        """Flags of every run that was started, in order."""
        file = self.recipes / "calls.jsonl"
        return (
            [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
        )

    def run(self, script, *arguments):
        """Run a recipe as a script in this process, which saves the start."""
        path = self.recipes / script
        self._monkeypatch.setattr(sys, "argv", [str(path), *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(path), run_name="__main__")
        printed = self._capsys.readouterr()
        return subprocess.CompletedProcess(sys.argv, ended.value.code, printed.out, printed.err)


@pytest.fixture
def bench(
    tmp_path,
    repository,
    monkeypatch,
    capsys,
):
    recipes = tmp_path / "recipes"
    recipes.mkdir()
    for name in ("sweep_finetuning.py", "glue_all.py"):
        shutil.copy(repository / "recipes" / name, recipes)
    shutil.copy(repository / "tests" / "fixtures" / "stub_finetune.py", recipes / "finetune.py")
    shutil.copytree(repository / "recipes" / "configs" / "sweep", recipes / "configs" / "sweep")
    # What is looked for before anything runs, and no more.
    (recipes / "configs" / "finetune").mkdir()
    (recipes / "configs" / "finetune" / "glue.yaml").write_text(
        "model_name_or_path: bert\ndata_dir: .\n"
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text("{}")
    (tmp_path / "bert" / "model.safetensors").touch()

    for task in map(get_task, list_tasks()):
        write_task_file(recipes / f"{task.name}.yaml", task)
        for split in (task.train_split, *task.validation_splits):
            file = tmp_path / str(task.local_name) / f"{split}.jsonl"
            file.parent.mkdir(exist_ok=True)
            file.touch()

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield Bench(tmp_path, monkeypatch, capsys)

    for number, handler in before.items():
        signal.signal(number, handler)
