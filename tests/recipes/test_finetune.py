"""recipes/finetune.py as a user runs it."""

import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import transformers
from repeated_flags import keep_last

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import FineTuningArguments, TaskArguments, read_task_file
from bert_recipes.finetuning.run import prepare_run, write_predictions
from bert_recipes.tasks.catalogue import get_task
from bert_recipes.training.run import run_training


def finetune(repository: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "recipes/finetune.py",
            *keep_last(["--use_cpu", "true", "--disable_tqdm", "true", *flags]),
        ],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def rows(number: int, seed: int) -> list[dict]:
    """Pairs whose texts are equal or not: a tiny model learns something of it."""
    rng = random.Random(seed)
    made = []
    for index in range(number):
        first = "".join(rng.choices("abcdef", k=rng.randint(3, 20)))
        label = rng.randint(0, 1)
        second = first if label else "".join(rng.choices("uvwxyz", k=rng.randint(3, 20)))
        made.append({"idx": index, "sentence1": first, "sentence2": second, "label": label})
    return made


def write(path: Path, lines: list[dict]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


@pytest.fixture(scope="module")
def mrpc(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mrpc")
    write(folder / "train.jsonl", rows(200, 1))
    write(folder / "validation.jsonl", rows(50, 2))
    write(folder / "test.jsonl", [row | {"label": -1} for row in rows(60, 3)])
    return folder


@pytest.fixture(scope="module")
def finished(repository, tiny_checkpoint, mrpc, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "mrpc"
    common = [
        "--task",
        "mrpc",
        "--model_name_or_path",
        tiny_checkpoint,
        "--data_dir",
        mrpc,
        "--output_dir",
        folder,
    ]
    done = finetune(
        repository,
        *common,
        *(
            "--learning_rate",
            "3e-3",
            "--num_train_epochs",
            "8",
            "--global_train_batch_size",
            "16",
            "--dropout",
            "0",
        ),
        *(
            "--max_seq_length",
            "64",
            "--do_predict",
            "true",
            "--eval_strategy",
            "epoch",
            "--save_strategy",
            "epoch",
        ),
        *("--load_best_model_at_end", "true", "--save_total_limit", "2"),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, done, common


def test_a_run_leaves_model_results_and_predictions(finished):
    folder, done, _ = finished
    results = json.loads((folder / "all_results.json").read_text())
    validation = results["splits"]["validation"]
    assert len(validation.pop("sha256")) == 64
    assert validation == {
        "examples": 50,
        "features": 50,
        "left_out": 0,
        "published": 408,
        "partial": True,
        "source": "validation.jsonl",
    }
    assert results["train_steps"] == 200 * 8 // 16
    assert 0 <= results["eval_accuracy"] <= 1
    assert f"| f1 | {results['eval_f1']:.4f} |" in done.stdout
    assert read_task_file(folder / "task.yaml") == get_task("mrpc")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    assert model.config.id2label == {0: "not_equivalent", 1: "equivalent"}
    assert not list(folder.rglob("training_args.bin")) or all(
        "checkpoint" in str(p) for p in folder.rglob("*.bin")
    )


def test_a_run_leaves_a_report_of_its_predictions(finished):
    folder, done, _ = finished
    (split,) = json.loads((folder / "report.json").read_text())["splits"]
    assert sum(map(sum, split["confusion"])) == 50
    right = sum(split["confusion"][number][number] for number in range(2))
    assert right / 50 == pytest.approx(
        json.loads((folder / "all_results.json").read_text())["eval_accuracy"]
    )
    assert "report.html" in done.stdout
    assert "<h2>Worst errors</h2>" in (folder / "report.html").read_text() or right == 50


def test_a_test_split_without_labels_is_predicted_and_that_is_said(finished):
    folder, done, _ = finished
    assert "test split test has no labels: it is predicted, and cannot be measured" in done.stderr
    assert not [
        name
        for name in json.loads((folder / "all_results.json").read_text())
        if name.startswith("test_")
    ]


def test_a_labelled_test_split_is_measured_in_results_console_and_report(
    call_recipe, tiny_checkpoint, mrpc, tmp_path
):
    data = tmp_path / "data"
    shutil.copytree(mrpc, data)
    shutil.copy(data / "validation.jsonl", data / "test.jsonl")
    flags = [
        "--task",
        "mrpc",
        "--model_name_or_path",
        tiny_checkpoint,
        "--data_dir",
        data,
        "--max_steps",
        3,
    ]
    flags += ["--output_dir", tmp_path / "run", "--use_cpu", "true", "--precision", "fp32"]
    stdout = call_recipe("finetune", *flags, "--do_predict", "true", "--max_seq_length", 64)
    results = json.loads((tmp_path / "run" / "all_results.json").read_text())
    assert results["test_accuracy"] == results["eval_accuracy"]
    assert results["test_f1"] == results["eval_f1"]
    assert results["baselines"]["test_accuracy"] == results["baselines"]["accuracy"]
    assert f"test: accuracy {results['test_accuracy']:.1%}" in stdout
    row = f"| test accuracy | {results['test_accuracy']:.4f} |"
    for text in (
        stdout.replace("test_accuracy", "test accuracy"),
        (tmp_path / "run" / "report.md").read_text(),
    ):
        assert row in " ".join(text.split())
    assert (
        f"| test_accuracy | {results['test_accuracy']:.4f} |"
        in (tmp_path / "run" / "README.md").read_text()
    )
    lines = [
        (tmp_path / "run" / f"predictions_{name}.jsonl").read_text()
        for name in ("validation", "test")
    ]
    assert lines[0] == lines[1]


def test_the_model_learns_and_the_best_checkpoint_is_the_one_kept(finished):
    folder, _, _ = finished
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    scores = [line["eval_f1"] for line in history if "eval_f1" in line]
    assert len(scores) == 9  # eight epochs and the measurement at the end
    assert scores[-1] == max(scores)
    assert scores[-1] > 0.8


def test_line_k_of_the_predictions_is_row_k(finished, mrpc):
    folder, _, _ = finished
    for split in ("validation", "test"):
        lines = [
            json.loads(line)
            for line in (folder / f"predictions_{split}.jsonl").read_text().splitlines()
        ]
        data = [json.loads(line) for line in (mrpc / f"{split}.jsonl").read_text().splitlines()]
        assert [line["idx"] for line in lines] == [row["idx"] for row in data]
        assert all(
            sum(line["probabilities"].values()) == pytest.approx(1, abs=1e-5) for line in lines
        )
    # Stock transformers on the rows one by one.
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    for line, row in list(zip(lines, data, strict=True))[:10]:
        inputs = tokenizer(row["sentence1"], row["sentence2"], return_tensors="pt")
        probability = model(**inputs).logits.softmax(-1)[0, 1].item()
        # bf16 where there are units
        assert line["probabilities"]["equivalent"] == pytest.approx(probability, abs=2e-2)


def test_an_estimate_leaves_a_finished_run_as_it_is(call_recipe, finished):
    folder, _, common = finished
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    said = call_recipe(
        "finetune", *common, "--use_cpu", "true", "--max_steps", 40, "--estimate", "true"
    )
    assert re.search(r"40 steps +1 min, without evaluations$", said, re.MULTILINE)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_second_run_does_not_overwrite_the_first(call_recipe, finished):
    common = finished[2]
    said = call_recipe("finetune", *common, "--use_cpu", "true", "--max_seq_length", "64", code=1)
    assert "holds a finished run" in said.splitlines()[-1]
    assert "Traceback" not in said


SAVING = ("--save_strategy", "steps", "--save_steps", "5", "--save_total_limit", "9")


def test_resumed_equals_uninterrupted(call_recipe, tiny_checkpoint, mrpc, tmp_path):
    common = [
        "--task",
        "mrpc",
        "--model_name_or_path",
        tiny_checkpoint,
        "--data_dir",
        mrpc,
        "--max_seq_length",
        "64",
    ]
    common += [
        "--precision",
        "fp32",
        "--num_train_epochs",
        "2",
        "--learning_rate",
        "1e-3",
        "--logging_steps",
        "1",
    ]
    common += ["--use_cpu", "true"]
    call_recipe("finetune", *common, "--output_dir", tmp_path / "a", *SAVING)
    call_recipe(
        "finetune",
        *common,
        "--output_dir",
        tmp_path / "b",
        "--resume",
        tmp_path / "a" / "checkpoint-5",
    )
    assert (tmp_path / "a/model.safetensors").read_bytes() == (
        tmp_path / "b/model.safetensors"
    ).read_bytes()
    same = [(tmp_path / name / "predictions_validation.jsonl").read_text() for name in "ab"]
    assert same[0] == same[1]
    first, second = (
        json.loads((tmp_path / name / "all_results.json").read_text()) for name in "ab"
    )
    assert "resumed_at_step" not in first
    assert second["resumed_at_step"] == 5
    history = json.loads((tmp_path / "a" / "trainer_state.json").read_text())["log_history"]
    losses = [line["loss"] for line in history if "loss" in line]
    assert first["train_loss"] == pytest.approx(sum(losses) / len(losses))
    assert second["train_loss"] == first["train_loss"]
    # Stock divides the sum over all steps by the steps since the resume.
    history = json.loads((tmp_path / "b" / "trainer_state.json").read_text())["log_history"]
    assert [line["train_loss"] for line in history if "train_loss" in line] == [first["train_loss"]]


def prepare(tiny_checkpoint, output_dir, *flags):
    """What the recipe does, in this process."""
    flags = [
        "--model_name_or_path",
        tiny_checkpoint,
        "--output_dir",
        output_dir,
        "--max_seq_length",
        64,
        *flags,
    ]
    flags += ["--use_cpu", "true", "--disable_tqdm", "true", "--precision", "fp32"]
    settings, args = parse_arguments(
        TaskArguments, FineTuningArguments, argv=[str(flag) for flag in flags]
    )
    return prepare_run(settings, args), settings, args


def test_a_run_that_diverges_ends_without_figures_and_predictions(tiny_checkpoint, mrpc, tmp_path):
    flags = [
        "--task",
        "mrpc",
        "--data_dir",
        mrpc,
        "--learning_rate",
        "1e30",
        "--max_steps",
        3,
        "--do_predict",
        "true",
    ]
    run, settings, args = prepare(tiny_checkpoint, tmp_path, *flags, "--warmup_steps", "0")
    run_training(run.trainer, (settings, args))
    assert write_predictions(run, tmp_path) == []
    results = json.loads((tmp_path / "all_results.json").read_text(), parse_constant=pytest.fail)
    assert [results[f"eval_{name}"] for name in ("accuracy", "f1", "loss")] == [None] * 3
    assert (tmp_path / "model.safetensors").is_file()
    assert (tmp_path / "task.yaml").is_file()


def test_a_task_with_training_rows_alone_is_told_that_nothing_is_measured(
    tiny_checkpoint, mrpc, tmp_path, caplog
):
    task = tmp_path / "mine.yaml"
    columns = "text_columns: [sentence1, sentence2]\nlabels: ['no', 'yes']\n"
    task.write_text(
        f"kind: sequence_classification\n{columns}files: {{train: {mrpc}/train.jsonl}}\n"
    )
    prepare(tiny_checkpoint, tmp_path / "run", "--task_file", task, "--eval_strategy", "no")
    assert "task mine has no validation split: nothing is measured" in caplog.text


BEST = ["--eval_strategy", "epoch", "--save_strategy", "best"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            [*BEST, "--metric_for_best_model", "acuracy"],
            "metric_for_best_model is 'acuracy'; allowed: accuracy, f1, loss",
        ),
        ([*BEST, "--metric_for_best_model", "eval_seconds"], "allowed: accuracy, f1, loss"),
        (
            ["--save_strategy", "best"],
            "no evaluation is made during training: --eval_strategy epoch",
        ),
    ],
)
def test_a_best_checkpoint_that_cannot_be_chosen_is_refused_before_training(
    tiny_checkpoint, mrpc, tmp_path, flags, message
):
    with pytest.raises(InputError, match=message):
        prepare(tiny_checkpoint, tmp_path, "--task", "mrpc", "--data_dir", mrpc, *flags)


def test_the_best_checkpoint_is_chosen_by_the_tasks_figure(tiny_checkpoint, mrpc, tmp_path):
    args = prepare(tiny_checkpoint, tmp_path, "--task", "mrpc", "--data_dir", mrpc, *BEST)[2]
    assert (args.metric_for_best_model, args.greater_is_better) == ("f1", True)
    files = (
        f"files: {{train: {mrpc}/train.jsonl, validation: {mrpc}/validation.jsonl, "
        f"validation_hard: {mrpc}/test.jsonl}}"
    )
    columns = "text_columns: [sentence1, sentence2]\nlabels: {0: no, 1: yes, -1: maybe}"
    (tmp_path / "own.yaml").write_text(f"kind: sequence_classification\n{files}\n{columns}\n")
    run, _, args = prepare(tiny_checkpoint, tmp_path, "--task_file", tmp_path / "own.yaml", *BEST)
    assert list(run.trainer.eval_splits) == ["", "hard"]
    assert args.metric_for_best_model == "accuracy"
    metrics = run.trainer.evaluate()
    assert {"eval_accuracy", "eval_hard_accuracy", "eval_loss", "eval_hard_loss"} < metrics.keys()


MRPC = ("--task", "mrpc", "--data_dir", "DATA")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--task", "mrcp"], "unknown task 'mrcp'; did you mean 'mrpc'?"),
        (["--task", "mrpc"], "give the data as local files: --data_dir FOLDER"),
        (["--task", "ax"], "task ax has no training data"),
        ([], "give either --task NAME or --task_file FILE.yaml"),
        (
            ["--task", "mrpc", "--max_train_examples", "0"],
            "max_train_examples is 0; allowed: 1 or more",
        ),
        (
            [*MRPC, "--train_sampling_strategy", "batch_rebalance"],
            "allowed: group_by_length, random",
        ),
    ],
)
def test_mistakes_are_one_line(call_recipe, tiny_checkpoint, mrpc, tmp_path, flags, message):
    flags = [mrpc if flag == "DATA" else flag for flag in flags]
    flags += ["--model_name_or_path", tiny_checkpoint, "--output_dir", tmp_path / "o"]
    assert message in call_recipe("finetune", *flags, code=1).splitlines()[-1]
    assert not (tmp_path / "o").exists()


def test_an_unreachable_default_names_what_to_give(call_recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (
        "make: MODEL=FOLDER" in call_recipe("finetune", "--task", "mnli", code=1).splitlines()[-1]
    )


@pytest.mark.slow
@pytest.mark.parametrize("task", ["sst2", "mrpc", "stsb"])
def test_official_test_rows_are_predicted(repository, tiny_checkpoint, shared_data, tmp_path, task):
    flags = ["--task", task, "--model_name_or_path", tiny_checkpoint, "--data_dir", shared_data]
    flags += [
        "--output_dir",
        tmp_path,
        "--num_train_epochs",
        "1",
        "--per_device_eval_batch_size",
        "256",
    ]
    flags += ["--max_train_examples", "32", "--max_eval_examples", "32", "--do_predict", "true"]
    done = finetune(repository, *flags)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [
        json.loads(line) for line in (tmp_path / "predictions_test.jsonl").read_text().splitlines()
    ]
    assert len(lines) == get_task(task).published_rows["test"]
    wanted = float if task == "stsb" else str
    assert all(isinstance(line["prediction"], wanted) for line in lines)
