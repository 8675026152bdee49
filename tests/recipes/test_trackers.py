"""A run with all trackers, without a key and without a network, interrupted and gone on with."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from python_process import run_python
from tracker_files import read_trackio, read_wandb


pytest.importorskip("wandb", reason="the extra `tracking` is not installed")
pytest.importorskip("trackio", reason="the extra `tracking` is not installed")
pytest.importorskip("tensorboard", reason="the extra `tracking` is not installed")

# Of two phases, which are one run of each tracker.
FLAGS = """
--max_seq_length 32 --max_steps 6 --phase2_steps 2 --phase2_max_seq_length 48
--per_device_train_batch_size 4 --global_train_batch_size 4 --warmup_steps 1 --learning_rate 2e-5
--max_eval_pairs 10 --eval_steps 3 --logging_steps 1 --save_strategy steps --save_steps 2
--disable_tqdm true --use_cpu true --report_to tensorboard wandb trackio
"""
# Its home is another one, in which no kernels are compiled yet.
FLAGS += "--fast_layers off"
TOKEN = "hf_" + "a1" * 17
FIGURES = ("train/loss", "train/mfu", "train/learning_rate", "eval/mlm_loss", "eval/nsp_accuracy")

# tests/recipes/test_sharing.py follows a tracker from a run to the end in the fast suite.
pytestmark = pytest.mark.slow


def train(store: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """A run as somebody starts it who has set nothing for trackers."""
    recipe = f"recipes/pretrain.py --store {store} --output_dir {folder}"
    environment = {name: value for name, value in os.environ.items() if "WANDB" not in name}
    environment |= {"HOME": str(folder.parent), "TRACKIO_DIR": str(folder.parent / "trackio")}
    return run_python(recipe, FLAGS, env=environment | {"HF_TOKEN": TOKEN})


@pytest.fixture(scope="module")
def runs(small_store, tmp_path_factory):
    """The run's folder, and both starts: as if it was killed after step 4."""
    folder = tmp_path_factory.mktemp("home") / "tracked"
    first = train(small_store, folder)
    (folder / "all_results.json").unlink()
    shutil.rmtree(folder / "checkpoint-6")
    second = train(small_store, folder)
    assert "is resumed from checkpoint-4" in second.stderr
    return folder, first, second


def expected(folder: Path, figure: str) -> dict[int, float]:
    """Step -> value of a figure, as the Trainer has logged it."""
    prefix, name = figure.split("/")
    key = name if prefix == "train" else f"eval_{name}"
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return {line["step"]: line[key] for line in history if key in line}


def assert_complete(lines: list[dict], folder: Path) -> None:
    """All figures are there; of a step that was made again the later one counts."""
    for figure in FIGURES:
        values = {line["train/global_step"]: line[figure] for line in lines if figure in line}
        assert_values(values, folder, figure)


def assert_values(values: dict[int, float], folder: Path, figure: str) -> None:
    wanted = expected(folder, figure)
    assert len(wanted) >= 2
    assert {step: values[step] for step in wanted} == pytest.approx(wanted, rel=1e-5)


def test_tensorboard_has_one_folder(runs):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, _, _ = runs
    events = EventAccumulator(str(folder / "runs")).Reload()
    for figure in FIGURES:
        values = {event.step: event.value for event in events.Scalars(figure)}
        assert_values(values, folder, figure)


def test_wandb_has_two_offline_folders_of_one_run(runs):
    folder, _, _ = runs
    run_id = json.loads((folder / "run_identity.json").read_text())["run_id"]
    files = sorted((folder / "wandb").glob("offline-run-*/*.wandb"))
    assert [file.name for file in files] == [f"run-tracked-{run_id[:8]}.wandb"] * 2
    assert_complete([*read_wandb(files[0]), *read_wandb(files[1])], folder)


def test_trackio_has_one_run(runs):
    folder, _, _ = runs
    lines = read_trackio(folder.parent / "trackio" / "huggingface.db")
    (name,) = {line["run"] for line in lines}
    assert name.startswith("tracked-")
    assert_complete(lines, folder)


def test_no_token_is_in_any_file_or_line(runs):
    folder, first, second = runs
    assert not [path for path in folder.parent.rglob("*") if TOKEN.encode() in contents(path)]
    assert TOKEN not in first.stdout + first.stderr + second.stdout + second.stderr


def contents(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""
