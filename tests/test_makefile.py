"""What make refuses in one line before it starts anything, and the commands that it starts."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(repository: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "PYTHON=true", "LAUNCH=cpu", *words]
    return subprocess.run(
        command, cwd=repository, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["glue"], "error: TASK is ''; allowed: cola, sst2"),
        (["glue", "TASK=squad"], "error: TASK is 'squad'; allowed: cola, sst2"),
        (["predict", "MODEL=runs/mrpc"], "error: give INPUT="),
        (["predict", "INPUT=a.txt"], "error: give MODEL="),
        (["push", "REPO=me/x"], "error: give RUN="),
        (["push", "RUN=runs/x"], "error: give REPO="),
        (["export"], "error: give RUN="),
        (
            ["export", "RUN=runs/sst2", "FORMAT=tflite"],
            "error: FORMAT is 'tflite'; allowed: onnx, int8",
        ),
        (["demo"], "error: give MODEL="),
        (["tinybert", "TASK=sst2", "MODEL=runs/a"], "error: give TEACHER="),
        (["finetune", "MODEL=runs/a"], "error: give TASK_FILE=, the YAML file of your task"),
        (["squad", "SWEEP=paper"], "error: SWEEP= is for glue, glue-all and finetune"),
        (["swag", "SWEEP=paper"], "error: SWEEP= is for glue, glue-all and finetune"),
        (["ner", "SWEEP=paper"], "error: SWEEP= is for glue, glue-all and finetune"),
        (["tinybert", "SWEEP=paper"], "error: SWEEP= is for glue, glue-all and finetune"),
        (["glue", "TASK=rte", "CONFIG=bert_tiny"], "error: CONFIG= is for pretrain, tokenizer"),
        (
            ["finetune", "TASK=xnli", "CONFIG=bert_tiny"],
            "error: CONFIG= is for pretrain, tokenizer",
        ),
        (["report"], "error: give RUN="),
        (["glue-submission"], "make glue-submission was removed: use --submission true"),
        (["blimp", "BLIMP=blimp/data"], "error: give MODEL="),
        (["blimp", "MODEL=runs/my_bert"], "error: give BLIMP="),
        (["babylm", "BABYLM=no_data_yet"], "error: give TEXT="),
        (["features"], "make features was removed: use python recipes/extract_features.py"),
        (
            ["pretrain", "LAUNCH=ddp_multi_node"],
            "error: LAUNCH=ddp_multi_node: every machine",
        ),
        (["compare"], "error: give RUNS="),
        (["compare", "RUNS=runs/a"], "error: give RUNS="),
    ],
)
def test_a_mistake_is_one_line(repository, words, message):
    done = make(repository, *words)
    assert done.returncode != 0
    assert done.stderr.startswith(message)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (
            ["glue", "TASK=mrpc"],
            "recipes/finetune.py --config recipes/configs/finetune/glue.yaml --task mrpc",
        ),
        (["speedrun"], "CUDA_VISIBLE_DEVICES=0 true benchmarks/speedrun.py"),
        (["benchmark", "CUDA_VISIBLE_DEVICES=3,4"], "DEVICES=3 true benchmarks/benchmark.py"),
        (["speedrun", "RECIPE=mine.yaml"], "speedrun_judge.py --candidate mine.yaml"),
        (["blimp", "MODEL=tests/hub", "BLIMP=b"], "--blimp_dir b --output_dir tests/hub/blimp"),
        (["blimp", "MODEL=me/bert", "BLIMP=b"], "--blimp_dir b --output_dir runs/blimp/me/bert"),
        (["glue", "TASK=mrpc", "SWEEP=paper"], "--sweep paper --output_dir runs/mrpc_paper "),
        (
            ["glue", "TASK=mrpc", "SWEEP=conf/my.yaml"],
            "--sweep conf/my.yaml --output_dir runs/mrpc_my ",
        ),
        (["pretrain", "STORE=my_store"], "configs/pretrain/quickstart.yaml --store my_store"),
        (["pretrain", "MODEL=a"], "quickstart.yaml  --model_name_or_path a"),
        (["pretrain", "LAUNCH=single_gpu"], "CUDA_VISIBLE_DEVICES=0 true"),
        (["pretrain", "LAUNCH=single_gpu", "CUDA_VISIBLE_DEVICES=2,3"], "VISIBLE_DEVICES=2 true"),
        (["pretrain", "LAUNCH=single_gpu", "CUDA_VISIBLE_DEVICES="], "VISIBLE_DEVICES= true"),
        (["show-data"], "recipes/show_data.py --store data/quickstart/store"),
        (["show-data", "ARGS=--store my_store"], "recipes/show_data.py  --store my_store"),
        (["evaluate", "ARGS=--store my_store"], "runs/quickstart  --store my_store"),
        (["evaluate", "ARGS=--train_file t"], "runs/quickstart  --train_file t"),
        (["evaluate", "ARGS=--probe_bias true"], "runs/quickstart  --probe_bias true"),
        (["evaluate", "ARGS=--config a.yaml"], "evaluate_checkpoint.py   --config a.yaml"),
        (["evaluate", "STORE=a", "MODEL=b", "ARGS=--config c"], "path b --store a --config c"),
        (["show-data", "ARGS=--config a.yaml"], "recipes/show_data.py  --config a.yaml"),
        (["pretrain", "LAUNCH=ddp", "CUDA_VISIBLE_DEVICES=0,2,3"], "ddp.yaml --num_processes 3"),
        (["pretrain", "LAUNCH=fsdp", "CUDA_VISIBLE_DEVICES=-1"], "fsdp.yaml recipes/"),
        (["pretrain", "LAUNCH=ddp", "CUDA_VISIBLE_DEVICES="], "ddp.yaml recipes/"),
        (["pretrain", "LAUNCH=ddp_cpu", "CUDA_VISIBLE_DEVICES=0,2"], "ddp_cpu.yaml recipes/"),
        (["push", "RUN=runs/x", "REPO=me/x"], "recipes/push_to_hub.py --run runs/x --repo me/x"),
        (
            ["push", "RUN=a", "REPO=me/x", "REVISION=b", "ARGS=--tags c"],
            "--run a --repo me/x --revision b --tags c",
        ),
        (["card", "RUN=runs/mrpc"], "recipes/write_model_card.py --run_dir runs/mrpc"),
        (["report", "RUN=runs/a"], "recipes/write_report.py --runs runs/a"),
        (["compare", "RUNS=runs/a runs/b"], "recipes/write_report.py --runs runs/a runs/b"),
        (
            ["finetune", "TASK_FILE=a.yaml", "MODEL=m", "LAUNCH=ddp", "CUDA_VISIBLE_DEVICES=0,1"],
            "--num_processes 2 recipes/finetune.py --task_file a.yaml --model_name_or_path m",
        ),
        (["finetune", "TASK=xnli", "MODEL=m"], "recipes/finetune.py --task xnli --model"),
        (
            ["finetune", "TASK_FILE=my/a.yaml", "SWEEP=paper"],
            "--launch cpu --sweep paper --output_dir runs/a_paper --task_file my/a.yaml",
        ),
        (["evaluate", "MODEL=m", "TASK_FILE=a.yaml"], "--model_name_or_path m --task_file a.yaml"),
        (
            ["tinybert", "TASK_FILE=my/a.yaml", "TEACHER=t", "MODEL=m"],
            "--task_file my/a.yaml --model_name_or_path runs/a_layers --teacher t --output_dir",
        ),
        (
            ["tinybert", "TASK=sst2", "TEACHER=t", "MODEL=m"],
            "--model_name_or_path runs/sst2_layers --teacher t --output_dir",
        ),
        (
            ["export", "RUN=runs/sst2"],
            "recipes/export.py --model_name_or_path runs/sst2 --format onnx",
        ),
        (
            ["export", "RUN=runs/sst2", "FORMAT=int8"],
            "--model_name_or_path runs/sst2 --format int8",
        ),
        (["demo", "MODEL=runs/a"], "recipes/demo.py --model_name_or_path runs/a --port 7860"),
        (
            ["demo", "MODEL=runs/a", "PORT=8000"],
            "recipes/demo.py --model_name_or_path runs/a --port 8000",
        ),
        (["paper"], "paper/run.py  --profile cpu"),
        (
            ["paper", "TABLE=6", "SEEDS=1"],
            "paper/run.py --tables 6 --profile cpu --num_seeds 1",
        ),
        (
            ["glue-all", "SWEEP=paper"],
            "recipes/glue_all.py --launch cpu --output_dir runs/glue --sweep paper",
        ),
    ],
)
def test_settings_reach_the_command(repository, words, command):
    done = make(repository, *words)
    assert done.returncode == 0, done.stderr
    assert command in done.stdout


def test_a_store_of_the_environment_reaches_the_command(repository, monkeypatch):
    monkeypatch.setenv("STORE", "my_store")
    assert "quickstart.yaml --store my_store" in make(repository, "pretrain").stdout
    for given in ("--store other", "--train_file x.tfrecord"):
        assert "my_store" not in make(repository, "pretrain", f"ARGS={given}").stdout
    monkeypatch.setenv("STORE", "")
    assert "--store" not in make(repository, "pretrain").stdout


def test_babylm_refuses_another_text_than_that_of_its_store(repository, tmp_path):
    (tmp_path / "text").write_text("docs\n")
    done = make(repository, "babylm", f"BABYLM={tmp_path}", "TEXT=recipes")
    assert done.returncode != 0
    assert done.stderr.startswith(
        f"error: {tmp_path} is of TEXT=docs VALIDATION=; remove it and runs/babylm_*"
    )
    done = make(repository, "babylm", f"BABYLM={tmp_path}", "TEXT=docs", "VALIDATION=tests")
    assert "is of TEXT=docs VALIDATION=;" in done.stderr
    assert make(repository, "babylm", f"BABYLM={tmp_path}").returncode == 0  # PYTHON=true


def test_babylm_goes_on_from_a_vocabulary_that_was_made_alone(repository, tmp_path):
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "vocab.txt").touch()
    done = make(repository, "babylm", f"BABYLM={tmp_path}", "TEXT=docs")
    assert done.returncode == 0, done.stderr
    assert "recipes/configs/corpus/babylm.yaml --files docs" in done.stdout


def test_babylm_holds_out_the_given_text(repository, tmp_path):
    for folder in ("train_10M", "dev"):
        (tmp_path / folder).mkdir()
    text = f"TEXT={tmp_path}/train_10M"
    validation = f"VALIDATION={tmp_path}/dev"
    folder = f"BABYLM={tmp_path}/babylm"
    done = make(repository, "babylm", folder, text, validation)
    assert f"--files {tmp_path}/train_10M --validation_files {tmp_path}/dev\n" in done.stdout
    assert f"babylm.yaml --files {tmp_path}/train_10M\n" in done.stdout  # the tokenizer
    again = make(repository, "babylm", folder)
    assert f"--validation_files {tmp_path}/dev\n" in again.stdout
    missing = make(repository, "babylm", folder, "BLIMP=no_such_folder")
    assert missing.returncode != 0
    assert "no_such_folder" in missing.stderr


@pytest.mark.parametrize(
    ("files", "flags", "is_trained"),
    [
        (("store/store.json",), "", True),
        (("store/store.json", "run/all_results.json"), "", False),
        (("store/store.json", "run/all_results.json"), "--seed 2", False),
        (("store/store.json", "run/all_results.json"), "--overwrite_run true", True),
        (("store/store.json", "run/all_results.json"), "--estimate true", True),
        # It was stopped in its report, or the text was changed after it.
        (("store/store.json", "run/all_results.json", "run/unfinished"), "", True),
        (("run/all_results.json", "store/store.json"), "", True),
        (("run/all_results.json", "store/store.json"), "--seed 2", True),
    ],
)
def test_babylm_trains_what_is_not_finished_and_scores_the_run(
    repository, tmp_path, files, flags, is_trained
):
    (tmp_path / "text").write_text("my_texts\n")
    run = tmp_path / "run"
    run.mkdir()
    for second, name in enumerate(files, start=1):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.touch()
        os.utime(file, (second, second))
    blimp_folder = tmp_path / "blimp"
    blimp_folder.mkdir()
    words = ["PYTHON=echo", f"BABYLM={tmp_path}", f"BLIMP={blimp_folder}"]
    done = make(repository, "babylm", *words, f"RUN={run}", f"ARGS={flags}")
    assert done.returncode == 0, done.stderr
    starts = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("recipes/")]
    assert ("recipes/pretrain.py" in starts) == is_trained
    is_scored = (
        f"{run} is finished, BLIMP=FOLDER scores it; RUN=FOLDER trains another"
        in done.stdout.splitlines()
    )
    assert is_scored != is_trained
    blimp = f"--model_name_or_path {run} --blimp_dir {blimp_folder} --output_dir {run}/blimp"
    assert (blimp in done.stdout) == ("--estimate" not in flags)
