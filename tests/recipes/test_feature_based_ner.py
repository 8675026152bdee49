"""recipes/feature_based_ner.py as a user runs it."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from bert_recipes.features.arguments import LAYER_CHOICES


MAKE_FOLDER = runpy.run_path(str(Path(__file__).parents[1] / "fixtures" / "ner_folder.py"))[
    "make_folder"
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with data/, model4/ and model2/."""
    folder = tmp_path_factory.mktemp("feature-ner")
    MAKE_FOLDER(folder)
    return folder


def launch(repository, folder, *arguments):
    command = [
        sys.executable,
        str(repository / "recipes" / "feature_based_ner.py"),
        "--use_cpu",
        "true",
    ]
    command += ["--model_name_or_path", str(folder / "model4"), "--data_dir", str(folder / "data")]
    command += [
        "--max_seq_length",
        "64",
        "--lstm_dim",
        "32",
        "--learning_rate",
        "0.03",
        "--train_batch_size",
        "8",
    ]
    command += ["--num_train_epochs", "16", "--precision", "fp32", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_one_command_prints_the_table_and_a_second_one_goes_on(repository, folder):
    out = folder / "out"
    first = launch(
        repository,
        folder,
        "--output_dir",
        out,
        "--layers",
        "last",
        "weighted_sum_all",
        "--seeds",
        "1",
        "2",
    )
    assert first.returncode == 0, first.stderr
    runs = {path.name: path.stat().st_mtime_ns for path in (out / "runs").iterdir()}
    assert sorted(runs) == [
        f"{way}-seed{seed}.json" for way in ("last", "weighted_sum_all") for seed in (1, 2)
    ]
    vectors = {path: path.stat().st_mtime_ns for path in (out / "features").glob("*/vectors.npy")}
    assert len(vectors) == 2
    assert "±" in first.stdout

    second = launch(repository, folder, "--output_dir", out)
    assert second.returncode == 0, second.stderr
    assert {
        path: path.stat().st_mtime_ns for path in (out / "features").glob("*/vectors.npy")
    } == vectors
    assert all((out / "runs" / name).stat().st_mtime_ns == time for name, time in runs.items())
    assert second.stderr.count("kept from") == 2

    results = json.loads((out / "all_results.json").read_text(encoding="utf-8"))
    twice = ("last", "weighted_sum_all")
    assert [(run["way"], run["seed"]) for run in results["runs"]] == [
        (way, seed) for way in LAYER_CHOICES for seed in ((1, 2) if way in twice else (1,))
    ]
    assert (results["train_sentences"], results["eval_sentences"], results["num_layers"]) == (
        120,
        20,
        4,
    )
    table = (out / "table.md").read_text(encoding="utf-8")
    assert table in second.stdout
    # Words decide their labels here, so that even a random encoder's states give them away.
    assert min(run["f1"] for run in results["runs"]) > 0.7
    assert (out / "run.yaml").is_file()
