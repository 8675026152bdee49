"""What the first page promises, on a fresh clone: one command to a BERT that has learned both tasks; and every size."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import transformers


pytestmark = pytest.mark.slow

CONFIGS = Path(__file__).parents[2] / "recipes" / "configs" / "pretrain"
# The quickstart has its own test, instances.yaml trains from files (test_pretrain.py).
PHASE_1 = sorted(path.stem for path in CONFIGS.glob("bert_*.yaml") if not path.stem.endswith("_512"))
PHASE_2 = sorted(path.stem for path in CONFIGS.glob("bert_*_512.yaml"))

TWO_STEPS = ["--max_steps", "2", "--global_train_batch_size", "2", "--per_device_train_batch_size", "2"]
TWO_STEPS += ["--max_seq_length", "32", "--max_predictions_per_seq", "5", "--max_eval_pairs", "2"]
TWO_STEPS += ["--per_device_eval_batch_size", "2", "--eval_strategy", "no", "--logging_steps", "1"]
TWO_STEPS += ["--dataloader_num_workers", "0", "--precision", "fp32"]


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def quickstart(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`make pretrain` in a copy of what is under version control, as after `git clone`."""
    clone = tmp_path_factory.mktemp("quickstart") / "clone"
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listing, cwd=repository, capture_output=True, text=True, check=True).stdout
    for name in filter(None, files.split("\0")):
        if (repository / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(repository / name, clone / name)
    # All cores, which conftest.py keeps from the tests; and nothing of a `make` that runs these tests.
    dropped = ("OMP_NUM_THREADS", "MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL")
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    command = ["make", "pretrain", f"PYTHON={sys.executable}"]
    done = subprocess.run(
        command, cwd=clone, env=environment, capture_output=True, text=True, timeout=3600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return clone / "runs" / "quickstart"


def test_the_quickstart_learns_both_tasks(quickstart: Path, record_property: Callable[[str, object], None]):
    results = read(quickstart / "all_results.json")
    record_property("train_seconds", results["train_seconds"])
    assert results["train_seconds"] > 0
    # Better than word frequencies by far, and than the more frequent answer.
    assert results["eval_unigram_loss"] - results["eval_mlm_loss"] >= 1.8
    assert results["eval_nsp_accuracy"] - results["eval_majority_accuracy"] >= 0.25


def test_the_quickstart_leaves_a_stock_checkpoint_a_report_and_a_plot(quickstart: Path):
    assert (quickstart / "model.safetensors").stat().st_size > 1_000_000
    results = read(quickstart / "all_results.json")
    assert f"{results['eval_mlm_loss']:.3f}" in (quickstart / "report.md").read_text(encoding="utf-8")
    assert (quickstart / "losses.png").read_bytes().startswith(b"\x89PNG")
    fill = transformers.pipeline("fill-mask", model=str(quickstart), tokenizer=str(quickstart))
    assert len(fill("Return the [MASK] of the list.")) == 5


def pretrain(repository: Path, config: str, *flags: str | Path) -> None:
    command = [sys.executable, "recipes/pretrain.py", "--config", str(CONFIGS / f"{config}.yaml")]
    done = subprocess.run(
        [*command, *TWO_STEPS, *map(str, flags)],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def check_stock(folder: Path, *, layers: int) -> None:
    model = transformers.AutoModelForPreTraining.from_pretrained(folder)
    assert type(model) is transformers.BertForPreTraining
    assert model.config.num_hidden_layers == layers
    assert len(transformers.AutoTokenizer.from_pretrained(folder)) == model.config.vocab_size
    assert read(folder / "all_results.json")["train_steps"] == 2


def test_every_configuration_is_of_a_kind_that_is_tested():
    others = {"quickstart", "instances"} | {path.stem for path in CONFIGS.glob("books_*.yaml")}
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == {*PHASE_1, *PHASE_2, *others}
    assert {f"bert_{size}" for size in ("tiny", "mini", "small", "medium", "base", "large")} == set(PHASE_1)
    assert {name.removesuffix("_512") for name in PHASE_2} <= set(PHASE_1)


# Devlin et al. 2019, section 3, and google-research/bert README, "Smaller BERT Models".
LAYERS = {"tiny": 2, "mini": 4, "small": 4, "medium": 8, "base": 12, "large": 24}


@pytest.mark.parametrize("config", PHASE_1)
def test_every_configuration_trains_and_goes_on_in_its_second_phase(
    repository: Path, small_store: Path, tmp_path: Path, config: str
):
    layers = LAYERS[config.removeprefix("bert_")]
    first, second = tmp_path / "first", tmp_path / "second"
    pretrain(repository, config, "--store", small_store, "--output_dir", first)
    check_stock(first, layers=layers)
    if f"{config}_512" in PHASE_2:
        flags = ["--store", small_store, "--output_dir", second, "--model_name_or_path", first]
        pretrain(repository, f"{config}_512", *flags)
        check_stock(second, layers=layers)
        results = read(second / "trainer_state.json")["log_history"]
        # The schedule goes on near its end, far below its peak.
        assert 0 < max(line["learning_rate"] for line in results if "learning_rate" in line) < 2e-5
