"""A finished run and a Hub on loopback that this process believes in."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


MODEL = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"}


@pytest.fixture
def hub(hub_server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The server, asked by huggingface_hub in this process; the token is one that may write."""
    from huggingface_hub.utils import close_session

    hub_server.take_over(monkeypatch)
    yield hub_server
    close_session()


@pytest.fixture
def model_names() -> set[str]:
    """Names of the files of a model folder of anybody."""
    return MODEL


@pytest.fixture
def pushed() -> set[str]:
    """Names of what of `run_folder` is pushed."""
    named = {
        "README.md",
        "run.yaml",
        "run_identity.json",
        "all_results.json",
        "trainer_state.json",
        "losses.png",
    }
    return MODEL | named | {"report.md", "report.html"}


@pytest.fixture
def run_folder(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """What a finished run leaves, and what must never leave the machine with it."""
    folder = tmp_path / "my-bert"
    shutil.copytree(tiny_checkpoint, folder)
    texts = {
        "run.yaml": "output_dir: runs/my-bert\nstore: /home/somebody/store\nlearning_rate: 0.001\n",
        "all_results.json": '{"train_steps": 4}\n',
        "trainer_state.json": json.dumps({"global_step": 4, "log_history": []}),
        "run_identity.json": json.dumps({"format": "bert-recipes run", "run_id": "0123abcd"}),
        "report.md": "# Report\n",
        "report.html": "<p>report</p>\n",
        "README.md": "---\nlicense: mit\ntags:\n- own\n---\n# My BERT\n",
        "predictions_validation.jsonl": "{}\n",
        "notes.txt": "private\n",
        ".env": "HF_TOKEN=hf_writerwriterwriter\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    for name in ("losses.png", ".secret.png"):
        (folder / name).write_bytes(b"\x89PNG")
    for name in ("optimizer.pt", "training_args.bin", "scheduler.pt", "rng_state.pth"):
        (folder / name).write_bytes(b"\x80\x04 a pickle")
    for name in (".aside-saving", "checkpoint-2", "runs"):
        (folder / name).mkdir()
        (folder / name / "model.safetensors").write_bytes(b"half")
    return folder
