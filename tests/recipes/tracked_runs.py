"""The runs that the tests of trackers look at."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from repeated_flags import keep_last


SMALL = [
    "--max_seq_length",
    "32",
    "--max_steps",
    "6",
    "--warmup_steps",
    "1",
    "--per_device_train_batch_size",
    "4",
]
SMALL += [
    "--global_train_batch_size",
    "4",
    "--max_eval_pairs",
    "10",
    "--eval_steps",
    "3",
    "--logging_steps",
    "1",
]
SMALL += [
    "--save_strategy",
    "steps",
    "--save_steps",
    "2",
    "--learning_rate",
    "2e-5",
    "--disable_tqdm",
    "true",
]
# Its home is another one, in which no kernels are compiled yet.
SMALL += ["--use_cpu", "true", "--fast_layers", "off"]
SECRETS = {"HF_TOKEN": "hf_" + "a1" * 17, "WANDB_API_KEY": "0123456789abcdef" * 2 + "01234567"}


def environment(home: Path, **changes: str) -> dict[str, str]:
    """Without a mode, a key or anything else of whoever runs the tests."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("WANDB_", "TRACKIO_"))
    }
    return kept | {
        "HOME": str(home),
        "TRACKIO_DIR": str(home / "trackio"),
        "HF_TOKEN": SECRETS["HF_TOKEN"],
        **changes,
    }


def train(repository, store, folder, env, *flags):
    given = keep_last(["--store", store, "--output_dir", folder, *SMALL, *flags])
    command = [sys.executable, "recipes/pretrain.py", *given]
    start = time.monotonic()
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
    return done, time.monotonic() - start


def logged(folder: Path) -> list[dict]:
    return json.loads((folder / "trainer_state.json").read_text())["log_history"]


def expected(folder: Path, prefix: str, name: str) -> list[tuple[int, float]]:
    """(step, value) of a figure, as the Trainer has logged it."""
    key = name if prefix == "train" else f"{prefix}_{name}"
    return [(line["step"], line[key]) for line in logged(folder) if key in line]


def contents(artifact) -> list[str]:
    return [entry.path for entry in artifact.manifest.contents]
