"""benchmarks/measure_preparation.py on a small corpus: all documents arrive, killed or not."""

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_a_kill_in_the_middle_changes_nothing(repository, tmp_path):
    flags = ["--documents", "4000", "--files", "20", "--num_processes", "1"]
    flags += ["--shard_gigabytes", "2e-4"]
    paths = ["--work_dir", tmp_path / "work", "--results_file", tmp_path / "results.json"]
    command = [sys.executable, "benchmarks/measure_preparation.py", *flags, *paths]
    options = {"capture_output": True, "text": True, "timeout": 300, "cwd": repository}
    done = subprocess.run(command, check=False, **options)
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["documents"] == 4000
    assert results["shards"] > 4
    assert results["killed_exit_code"] == -9
    assert results["same_store"] is True
    assert results["killed_after_seconds"] < results["seconds"]
