"""A real run with all trackers, without a key and without a network, interrupted and gone on with;
read back from their files.
"""

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tracked_runs import SECRETS, contents, environment, expected, train


wandb = pytest.importorskip("wandb", reason="the extra `tracking` is not installed")
trackio = pytest.importorskip("trackio", reason="the extra `tracking` is not installed")
tensorboard = pytest.importorskip("tensorboard", reason="the extra `tracking` is not installed")

FILES = runpy.run_path(str(Path(__file__).parents[1] / "fixtures" / "tracker_files.py"))


# Of two phases, which are one run of each tracker.
ALL = (
    "--report_to",
    "tensorboard",
    "wandb",
    "trackio",
    "--phase2_steps",
    "2",
    "--phase2_max_seq_length",
    "48",
)


# tests/recipes/test_sharing.py follows a tracker from a run to the end in the fast suite.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(repository, small_store, tmp_path_factory):
    """(folder, home, both launches): a run without a key; then, as if it had been killed after step
    6, gone on from step 4 with a key and a server that is out of reach."""
    home = tmp_path_factory.mktemp("home")
    folder = home / "runs" / "tracked"
    first, _ = train(repository, small_store, folder, environment(home), *ALL)
    shutil.copytree(folder, home / "after_first")
    (folder / "all_results.json").unlink()
    shutil.rmtree(folder / "checkpoint-6")
    unreachable = {
        "WANDB_API_KEY": SECRETS["WANDB_API_KEY"],
        "WANDB_BASE_URL": "http://127.0.0.1:9",
    }
    second, _ = train(repository, small_store, folder, environment(home, **unreachable), *ALL)
    assert "is resumed from checkpoint-4" in second.stderr
    return folder, home, first, second


FIGURES = [
    ("train", name)
    for name in ("loss", "mlm_loss", "nsp_loss", "tokens_per_second", "mfu", "learning_rate")
]
FIGURES += [
    ("eval", name)
    for name in ("mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy", "unigram_loss")
]


@pytest.mark.parametrize(("prefix", "name"), FIGURES)
def test_tensorboard_has_every_figure_once_though_the_run_was_interrupted(runs, prefix, name):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, _, _, _ = runs
    events = EventAccumulator(str(folder / "runs")).Reload()
    found = [(event.step, event.value) for event in events.Scalars(f"{prefix}/{name}")]
    wanted = expected(folder, prefix, name)
    assert len(wanted) >= 2
    assert [step for step, _ in found] == [step for step, _ in wanted]
    assert [value for _, value in found] == pytest.approx([value for _, value in wanted], rel=1e-5)


def test_tensorboard_has_the_whole_configuration_the_report_and_the_plot(runs):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, _, _, _ = runs
    events = EventAccumulator(str(folder / "runs")).Reload()
    texts = {
        tag: events.Tensors(tag)[-1].tensor_proto.string_val[0].decode()
        for tag in events.Tags()["tensors"]
    }
    assert "| max_predictions_per_seq |" in texts["run.yaml/text_summary"]  # of DataArguments
    assert "| learning_rate | 2e-05 |" in texts["run.yaml/text_summary"]
    assert texts["report/report/text_summary"] == (folder / "report.md").read_text()
    assert "eval_mlm_loss" in texts["files/all_results.json/text_summary"]
    image = events.Images("report/losses")[-1]
    assert (image.width, image.height) > (100, 100)


@pytest.mark.parametrize(("prefix", "name"), FIGURES)
def test_the_newest_offline_run_of_wandb_has_every_figure_of_all_steps(runs, prefix, name):
    """What `wandb sync` uploads replaces what was there under the id: the log of the first launch
    is in it, too.
    """
    folder, _, _, _ = runs
    history = FILES["read_wandb"](folder)["history"]
    key = f"{prefix}/{name}"
    found = [(line["train/global_step"], line[key]) for line in history if key in line]
    wanted = expected(folder, prefix, name)
    assert [step for step, _ in found] == [step for step, _ in wanted]
    assert [value for _, value in found] == pytest.approx([value for _, value in wanted], rel=1e-6)


def test_wandb_keeps_one_run_with_configuration_and_files(runs):
    folder, _, _, _ = runs
    found = FILES["read_wandb"](folder)
    offline = sorted(path.name for path in (folder / "wandb").glob("offline-run-*"))
    assert len(offline) == 2
    assert all(name.endswith(f"-{found['id']}") for name in offline)
    assert (found["name"], found["exit_code"]) == ("tracked", 0)
    config = found["config"]
    assert config["learning_rate"] == 2e-5  # PreTrainingArguments
    assert (config["max_seq_length"], config["size"]) == (
        32,
        "tiny",
    )  # DataArguments, ModelArguments
    assert "phase2_steps" in run_settings(folder)  # PhaseArguments
    assert set(run_settings(folder)) <= set(config)
    assert config["hidden_size"] == 128  # of the model
    names = {name for artifact in found["artifacts"] for name in contents(artifact)}
    assert {"README.md", "report.md", "losses.png", "run.yaml", "all_results.json"} <= names
    assert "report/losses" in {key for line in found["history"] for key in line}


def run_settings(folder: Path) -> list[str]:
    lines = (folder / "run.yaml").read_text().splitlines()
    return [line.split(":")[0] for line in lines if line and not line.startswith(("#", " "))]


def test_wandb_can_sync_what_was_recorded(runs):
    folder, home, _, _ = runs
    command = [sys.executable, "-m", "wandb", "sync", "--dry-run", str(folder / "wandb")]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment(home),
        cwd=home,
    )
    assert done.returncode == 0, done.stderr
    assert "Would sync 2 run(s)" in done.stdout + done.stderr


def test_trackio_has_one_run_with_all_figures_and_the_configuration(runs):
    folder, home, _, _ = runs
    lines, configs = FILES["read_trackio"](home / "trackio" / "huggingface.db")
    (name,) = {line["run"] for line in lines}
    assert name.startswith("tracked-")
    assert json.loads((folder / "trackers.json").read_text())["trackio"] == {"name": name}
    for prefix, figure in FIGURES:
        # Of a step that was made again the later figure.
        key = f"{prefix}/{figure}"
        found = {line["train/global_step"]: line[key] for line in lines if key in line}
        wanted = dict(expected(folder, prefix, figure))
        assert {step: found[step] for step in wanted} == pytest.approx(wanted, rel=1e-6)
    assert set(run_settings(folder)) <= set(configs[name])
    keys = {key for line in lines for key in line}
    assert {"report/report", "report/losses"} <= keys
    assert list((home / "trackio" / "media").rglob("*.png"))
    kept = {
        path.read_bytes() for path in (home / "trackio" / "artifacts").rglob("*") if path.is_file()
    }
    assert (folder / "report.md").read_bytes() in kept


def test_a_run_without_a_key_or_a_network_says_so_in_one_line_each(runs):
    _, _, first, second = runs
    for done, reason in (
        (first, "there is no API key"),
        (second, "http://127.0.0.1:9 cannot be reached"),
    ):
        said = [line for line in done.stderr.splitlines() if "the run is recorded offline" in line]
        assert len(said) == 1
        assert reason in said[0]
        assert "wandb login, then wandb sync" in said[0]
        assert "Traceback" not in done.stderr
        assert not [line for line in done.stderr.splitlines() if "continues without it" in line]
        # What trackers print is no output of the recipe.
        assert "rackio" not in done.stdout
        assert "wandb" not in done.stdout


def test_no_secret_is_in_any_file_or_line(runs):
    _, home, first, second = runs
    files = [path for path in home.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files)
    for secret in SECRETS.values():
        assert not [path for path in files if secret.encode() in path.read_bytes()]
        assert not [done for done in (first, second) if secret in done.stdout + done.stderr]


def test_fine_tuning_is_tracked_and_a_run_that_is_replaced_takes_its_trackers_along(
    repository, tiny_checkpoint, tmp_path
):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tiny = runpy.run_path(str(repository / "tests" / "fixtures" / "tiny_runs.py"))
    for seed, split in enumerate(("train", "validation")):
        tiny["write_jsonl"](
            tmp_path / f"{split}.jsonl", tiny["make_rows"]("sequence_classification", seed)
        )
    files = "files: {train: train.jsonl, validation: validation.jsonl}\n"
    text = (
        "name: mine\nkind: "
        f"sequence_classification\n{files}{tiny['TASKS']['sequence_classification']}"
    )
    (tmp_path / "task.yaml").write_text(text, encoding="utf-8")
    folder = tmp_path / "run"
    command = [
        sys.executable,
        "recipes/finetune.py",
        "--task_file",
        tmp_path / "task.yaml",
        "--output_dir",
        folder,
    ]
    command += [
        "--model_name_or_path",
        tiny_checkpoint,
        "--max_steps",
        3,
        "--max_seq_length",
        32,
        "--use_cpu",
        "true",
    ]
    command += [
        "--logging_steps",
        1,
        "--disable_tqdm",
        "true",
        "--report_to",
        "tensorboard",
        "wandb",
    ]
    command += ["--overwrite_run", "true", "--fast_layers", "off"]
    env = environment(tmp_path, WANDB_MODE="offline", WANDB_RUN_GROUP="sweep")
    for _ in range(2):
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
    assert "recorded offline. To put" not in done.stderr, "WANDB_MODE=offline says that it is meant"
    events = EventAccumulator(str(folder / "runs")).Reload()
    results = json.loads((folder / "all_results.json").read_text())
    assert events.Scalars("eval/accuracy")[-1].value == pytest.approx(results["eval_accuracy"])
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2, 3]
    assert [event.step for event in events.Scalars("train/mfu")] == [
        2,
        3,
    ]  # the first step is not timed
    found = FILES["read_wandb"](folder)
    assert len(list((folder / "wandb").glob("offline-run-*"))) == 1
    assert (found["group"], found["config"]["max_seq_length"]) == ("sweep", 32)  # TaskArguments
    assert {"task.yaml", "run.yaml"} <= {
        name for artifact in found["artifacts"] for name in contents(artifact)
    }
