"""What the first page promises, on a fresh clone: one command to a BERT that has learned both
tasks; and every size.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import transformers
import yaml


pytestmark = pytest.mark.slow

CONFIGS = Path(__file__).parents[2] / "recipes" / "configs" / "pretrain"
# The quickstart has its own test, instances.yaml trains from files (test_pretrain.py).
CONFIGURATIONS = sorted(
    {path.stem for path in CONFIGS.glob("*.yaml")} - {"quickstart", "instances"}
)

TWO_STEPS = (
    "--max_steps 2 --global_train_batch_size 2 --per_device_train_batch_size 2 "
    "--max_seq_length 32 --max_predictions_per_seq 10 --max_eval_pairs 2 "
    "--per_device_eval_batch_size 2 --eval_strategy no --logging_steps 1 "
    "--dataloader_num_workers 0 --precision fp32 --phase2_steps 1 --phase2_max_seq_length 48 "
    "--phase2_global_train_batch_size 2 --phase2_per_device_train_batch_size 2 "
    "--save_total_limit 2"
)


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def quickstart(repository, tmp_path_factory):
    """`make pretrain` in a copy of what is under version control, as after `git clone`."""
    clone = tmp_path_factory.mktemp("quickstart") / "clone"
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(
        listing, cwd=repository, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, files.split("\0")):
        if (repository / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(repository / name, clone / name)
    # All cores, which conftest.py keeps from the tests; and nothing of a `make` that runs these
    # tests.
    dropped = ("OMP_NUM_THREADS", "MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "ARGS")
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    command = ["make", "pretrain", f"PYTHON={sys.executable}"]
    done = subprocess.run(
        command,
        cwd=clone,
        env=environment,
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return clone / "runs" / "quickstart"


def test_the_quickstart_learns_both_tasks(quickstart, record_property):
    results = read(quickstart / "all_results.json")
    record_property("train_seconds", results["train_seconds"])
    assert results["train_seconds"] > 0
    # Better than word frequencies by far, and than the more frequent answer.
    assert results["eval_unigram_loss"] - results["eval_mlm_loss"] >= 1.8
    assert results["eval_nsp_accuracy"] - results["eval_majority_accuracy"] >= 0.25


def test_the_quickstart_leaves_a_stock_checkpoint_a_report_and_a_plot(quickstart):
    assert (quickstart / "model.safetensors").stat().st_size > 1_000_000
    results = read(quickstart / "all_results.json")
    assert f"{results['eval_mlm_loss']:.3f}" in (quickstart / "report.md").read_text(
        encoding="utf-8"
    )
    assert (quickstart / "losses.png").read_bytes().startswith(b"\x89PNG")
    fill = transformers.pipeline("fill-mask", model=str(quickstart), tokenizer=str(quickstart))
    assert len(fill("Return the [MASK] of the list.")) == 5


@pytest.mark.parametrize("config", [None, "single_gpu"])
def test_accelerates_launcher_without_a_word_does_the_same(quickstart, tmp_path, config):
    """`accelerate launch recipes/pretrain.py`; of the data only the store is made here, `make
    pretrain` has made all of it.
    """
    clone = quickstart.parents[1]
    shutil.rmtree(clone / "data" / "quickstart" / "store")
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    command += [] if config is None else ["--config_file", f"accelerate_configs/{config}.yaml"]
    command += ["recipes/pretrain.py", "--max_steps", "20", "--output_dir", str(tmp_path / "run")]
    done = subprocess.run(
        command, cwd=clone, capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (clone / "data" / "quickstart" / "store" / "store.json").is_file()
    history = read(tmp_path / "run" / "trainer_state.json")["log_history"]
    assert [line["step"] for line in history if "eval_loss" in line][-1] == 20
    assert [line["step"] for line in history if "loss" in line] == [4, 8, 12, 16, 20]


# Devlin et al. 2019, section 3, and google-research/bert README, "Smaller BERT Models"; Lan et al.
# 2020, table 1; google-research/electra configure_pretraining.py; Liu et al. 2019, table 9.
LAYERS = {
    "bert_tiny": 2,
    "bert_mini": 4,
    "bert_small": 4,
    "bert_medium": 8,
    "bert_base": 12,
    "bert_large": 24,
    "albert_base": 12,
    "electra_small": 12,
    "roberta_base": 12,
}
LAYERS |= {"bert_large_lamb": 24, "books_30_minutes": 2, "laptop": 2, "domain": 2, "tapt": 2}
LAYERS |= {"bert_budget": 12, "babylm_gpu": 12, "babylm_night": 4}
# Objective of a configuration -> stock's class.
STOCK_CLASSES = {
    "bert": "BertForPreTraining",
    "mlm": "BertForMaskedLM",
    "roberta": "RobertaForMaskedLM",
    "albert": "AlbertForPreTraining",
    "electra": "ElectraForPreTraining",
}


@pytest.mark.parametrize("config", CONFIGURATIONS)
def test_every_configuration_trains_a_step_in_each_phase_and_goes_on(
    call_recipe, small_store, tmp_path, config
):
    """Saved after phase 1, and loaded again by the second phase and by a second run of the same
    command.
    """
    folder, file = tmp_path / "run", CONFIGS / f"{config}.yaml"
    paths = f"--config {file} --store {small_store} --output_dir {folder}"
    call_recipe("pretrain", paths, TWO_STEPS)
    objective = yaml.safe_load(file.read_text(encoding="utf-8")).get("objective", "bert")
    (architecture,) = transformers.AutoConfig.from_pretrained(folder).architectures
    assert architecture == STOCK_CLASSES[objective]
    stock_class = getattr(transformers, architecture)
    model, loading = stock_class.from_pretrained(folder, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    assert model.config.num_hidden_layers == LAYERS[config]
    assert len(transformers.AutoTokenizer.from_pretrained(folder)) == model.config.vocab_size
    history = read(folder / "trainer_state.json")["log_history"]
    assert [line["step"] for line in history if "loss" in line] == [1, 2]
    assert (folder / "checkpoint-1" / "manifest.json").is_file()
    (folder / "all_results.json").unlink()  # as if it had been killed
    weights = (folder / "model.safetensors").read_bytes()
    call_recipe("pretrain", paths, TWO_STEPS)
    assert (folder / "model.safetensors").read_bytes() == weights
    assert read(folder / "all_results.json")["train_steps"] == 2
