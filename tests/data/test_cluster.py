"""Settings of the tasks that prepare a corpus."""

import importlib
import sys

import pytest

from bert_recipes.errors import InputError


pytest.importorskip("datatrove", reason="datatrove is an extra")
from bert_recipes.data.cluster import ExecutorArguments


SLURM = {"executor": "slurm", "partition": "cpu", "time": "01:00:00"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": 0}, "tasks is 0; allowed: 1 or more"),
        ({"partition": "cpu"}, "partition has no effect with executor 'local': it is for slurm"),
        ({"mem_per_cpu_gb": 4}, "mem_per_cpu_gb has no effect .* it is for slurm or ray"),
        ({"executor": "slurm", "partition": "cpu"}, "needs --partition and --time"),
        ({**SLURM, "sbatch_args": ["exclusive"]}, "sbatch_args has 'exclusive': name=value"),
    ],
)
def test_a_setting_that_cannot_be_is_one_line(settings, message):
    with pytest.raises(InputError, match=message):
        ExecutorArguments(**settings)


def test_options_for_sbatch_are_taken_with_or_without_dashes():
    arguments = ExecutorArguments(**SLURM, sbatch_args=["account=nlp", "--constraint=a=b"])
    assert arguments.sbatch_options == {"account": "nlp", "constraint": "a=b"}


def test_a_task_encodes_with_the_cores_that_it_has(monkeypatch):
    monkeypatch.setattr("bert_recipes.data.cluster.count_cores", lambda: 8)
    cores = [ExecutorArguments().cores_of_a_task(workers) for workers in (1, 3, 20)]

    assert cores == [8, 2, 1]
    assert ExecutorArguments(**SLURM).cores_of_a_task(1) == 1
    assert ExecutorArguments(**SLURM, cpus_per_task=4).cores_of_a_task(1) == 4


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "datatrove", None)
    monkeypatch.setitem(sys.modules, "datatrove.executor", None)
    monkeypatch.delitem(sys.modules, "bert_recipes.data.cluster")

    with pytest.raises(
        InputError, match=r"is not installed; pip install 'bert-recipes\[cluster\]'"
    ):
        importlib.import_module("bert_recipes.data.cluster")
