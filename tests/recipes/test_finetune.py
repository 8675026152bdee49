"""recipes/finetune.py as a user runs it."""

import json
import random
import re
import shutil
from unittest.mock import Mock

import pytest
import transformers
from in_process import keep_last, run_recipe

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError, PushError
from bert_recipes.finetuning.arguments import FineTuningArguments, TaskArguments, read_task_file
from bert_recipes.finetuning.run import prepare_run, write_predictions
from bert_recipes.run_folder import UNFINISHED_FILE
from bert_recipes.tasks.catalogue import get_task
from bert_recipes.training.run import run_training


def write_pairs(path, number, seed, label=None):
    """Pairs whose texts are equal or not: a tiny model learns something of it."""
    rng = random.Random(seed)
    lines = []
    for index in range(number):
        first = "".join(rng.choices("abcdef", k=rng.randint(3, 20)))
        is_equal = rng.randint(0, 1)
        second = first if is_equal else "".join(rng.choices("uvwxyz", k=rng.randint(3, 20)))
        row = {"idx": index, "sentence1": first, "sentence2": second}
        row["label"] = is_equal if label is None else label
        lines.append(json.dumps(row) + "\n")
    path.write_text("".join(lines), encoding="utf-8")


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_results(folder):
    return json.loads((folder / "all_results.json").read_text(), parse_constant=pytest.fail)


@pytest.fixture(scope="module")
def mrpc(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mrpc")
    write_pairs(folder / "train.jsonl", 200, 1)
    write_pairs(folder / "validation.jsonl", 50, 2)
    write_pairs(folder / "test.jsonl", 60, 3, label=-1)
    return folder


@pytest.fixture(scope="module")
def flags(tiny_checkpoint, mrpc):
    paths = f"--model_name_or_path {tiny_checkpoint} --data_dir {mrpc}"
    return f"--task mrpc {paths} --use_cpu true --disable_tqdm true --max_seq_length 64"


@pytest.fixture(scope="module")
def finished(flags, tmp_path_factory):
    """The folder of a run, and what it printed."""
    folder = tmp_path_factory.mktemp("run") / "mrpc"
    settings = (
        "--learning_rate 3e-3 --num_train_epochs 8 --dropout 0 --eval_strategy epoch "
        "--global_train_batch_size 16 --do_predict true "
        "--save_strategy epoch --load_best_model_at_end true --save_total_limit 2"
    )
    return folder, run_recipe("finetune", flags, settings, "--output_dir", folder)


def test_a_run_leaves_model_results_and_report(finished):
    folder, printed = finished
    results = read_results(folder)
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
    assert f"| f1 | {results['eval_f1']:.4f} |" in printed
    assert read_task_file(folder / "task.yaml") == get_task("mrpc")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    assert model.config.id2label == {0: "not_equivalent", 1: "equivalent"}
    (split,) = json.loads((folder / "report.json").read_text())["splits"]
    (right, _), (_, also_right) = split["confusion"]
    assert (right + also_right) / 50 == pytest.approx(results["eval_accuracy"])
    assert "report.html" in printed
    # The test split has no labels.
    assert not [name for name in results if name.startswith("test_")]


def test_the_model_learns_and_the_best_checkpoint_is_the_one_kept(finished):
    folder, _ = finished
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    scores = [line["eval_f1"] for line in history if "eval_f1" in line]
    assert len(scores) == 9  # eight epochs and the measurement at the end
    assert scores[-1] == max(scores)
    assert scores[-1] > 0.8


def test_line_k_of_the_predictions_is_row_k(finished, mrpc):
    """Against stock transformers on the rows one by one."""
    folder, _ = finished
    lines = read_lines(folder / "predictions_test.jsonl")
    rows = read_lines(mrpc / "test.jsonl")
    assert [line["idx"] for line in lines] == [row["idx"] for row in rows]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    for number in range(10):
        row = rows[number]
        inputs = tokenizer(row["sentence1"], row["sentence2"], return_tensors="pt")
        shares = model(**inputs).logits.softmax(-1)[0].tolist()
        # bf16 where there are units
        assert [*lines[number]["probabilities"].values()] == pytest.approx(shares, abs=2e-2)


def test_a_second_run_and_an_estimate_leave_a_finished_run_as_it_is(call_recipe, finished, flags):
    folder, _ = finished
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    again = f"{flags} --output_dir {folder} --max_steps 40"
    stdout = call_recipe("finetune", again, "--estimate true")
    assert re.search(r"40 steps +\d+ s, without evaluations$", stdout, re.MULTILINE)
    assert "holds a finished run" in call_recipe("finetune", again, code=1).splitlines()[-1]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_labelled_test_split_is_measured_in_results_console_and_report(
    call_recipe, flags, mrpc, tmp_path
):
    data = shutil.copytree(mrpc, tmp_path / "data")
    shutil.copy(data / "validation.jsonl", data / "test.jsonl")
    run = tmp_path / "run"
    settings = f"--data_dir {data} --output_dir {run} --max_steps 3 --do_predict true"
    stdout = call_recipe("finetune", flags, settings)
    results = read_results(run)
    accuracy = results["test_accuracy"]
    assert accuracy == results["eval_accuracy"]
    assert f"test: accuracy {accuracy:.1%}" in stdout
    report = " ".join((run / "report.md").read_text().split())
    assert f"| test accuracy | {accuracy:.4f} |" in report
    assert f"| test_accuracy | {accuracy:.4f} |" in (run / "README.md").read_text()
    predictions = (run / "predictions_test.jsonl").read_text()
    assert predictions == (run / "predictions_validation.jsonl").read_text()


def test_resumed_equals_uninterrupted(call_recipe, flags, tmp_path):
    settings = "--precision fp32 --num_train_epochs 2 --learning_rate 1e-3 --logging_steps 1"
    saving = f"--output_dir {tmp_path}/a --save_strategy steps --save_steps 5 --save_total_limit 9"
    resuming = f"--output_dir {tmp_path}/b --resume {tmp_path}/a/checkpoint-5"
    call_recipe("finetune", flags, settings, saving)
    call_recipe("finetune", flags, settings, resuming)
    for name in ("model.safetensors", "predictions_validation.jsonl"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    first = read_results(tmp_path / "a")
    second = read_results(tmp_path / "b")
    assert "resumed_at_step" not in first
    assert second["resumed_at_step"] == 5
    # Stock divides the sum over all steps by the steps since the resume.
    history = json.loads((tmp_path / "b" / "trainer_state.json").read_text())["log_history"]
    losses = [line["loss"] for line in history if "loss" in line]
    assert first["train_loss"] == pytest.approx(sum(losses) / len(losses))
    assert second["train_loss"] == first["train_loss"]
    assert [line["train_loss"] for line in history if "train_loss" in line] == [first["train_loss"]]


def test_the_runs_own_checkpoint_is_no_start_where_slurm_starts_the_command_again(
    call_recipe, flags, tmp_path, monkeypatch
):
    """The folder of the run is that of its task."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    stderr = call_recipe("finetune", flags, "--resume runs/mrpc/checkpoint-50", code=1)
    assert "error: resume runs/mrpc/checkpoint-50: SLURM_RESTART_COUNT is 1" in stderr


@pytest.fixture
def prepare(flags, tmp_path):
    """Flags -> what the recipe prepares, in this process."""

    def run_of(more):
        argv = keep_last([flags, "--precision fp32 --output_dir", tmp_path, more])
        settings = parse_arguments(TaskArguments, FineTuningArguments, argv=argv)
        return prepare_run(*settings), settings

    return run_of


def test_a_run_that_diverges_ends_without_figures_and_predictions(prepare, tmp_path, caplog):
    caplog.set_level("INFO")
    run, settings = prepare("--learning_rate 1e30 --max_steps 3 --do_predict true --warmup_steps 0")
    message = "test split test has no labels: it is predicted, and cannot be measured"
    assert message in caplog.text
    run_training(run.trainer, settings)
    assert write_predictions(run, tmp_path) == []
    results = read_results(tmp_path)
    assert [results[f"eval_{name}"] for name in ("accuracy", "f1", "loss")] == [None] * 3
    assert (tmp_path / "model.safetensors").is_file()
    assert (tmp_path / "task.yaml").is_file()


@pytest.mark.parametrize(("error", "is_finished"), [(PushError, True), (ZeroDivisionError, False)])
def test_only_a_failed_push_leaves_a_finished_run(prepare, tmp_path, error, is_finished):
    """Another error at the end leaves the mark, and the checkpoint for a resume."""
    run, settings = prepare("--max_steps 1 --save_strategy no --eval_strategy no")
    mark = tmp_path / UNFINISHED_FILE
    mark.touch()
    with pytest.raises(error):
        run_training(run.trainer, settings, finish=Mock(side_effect=error("x")))
    assert mark.exists() != is_finished
    assert (tmp_path / "checkpoint-1").is_dir() != is_finished


def test_a_run_without_validation_that_diverges_is_finished_all_the_same(
    prepare_task, mrpc, tmp_path, caplog
):
    write_pairs(mrpc / "hidden.jsonl", 9, 4, label="")
    splits = {"train": "train", "test": "hidden"}
    flags = "--eval_strategy no --learning_rate 1e30 --max_steps 3 --do_predict true"
    run, settings = prepare_task(splits, f"{flags} --warmup_steps 0")
    run_training(run.trainer, settings)
    assert write_predictions(run, tmp_path) == []
    assert "nothing is predicted: " in caplog.text
    assert (tmp_path / "task.yaml").is_file()


BEST = "--eval_strategy epoch --save_strategy best"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            f"{BEST} --metric_for_best_model acuracy",
            "metric_for_best_model is 'acuracy'; allowed: accuracy, f1, loss",
        ),
        ("--save_strategy best", "no evaluation is made during training: --eval_strategy epoch"),
        ("--context none", "context is none, for choices without theirs; task mrpc has no choices"),
    ],
)
def test_settings_that_the_task_cannot_use_are_refused_before_training(prepare, more, message):
    with pytest.raises(InputError, match=message):
        prepare(more)


COLUMNS = (
    "kind: sequence_classification\ntext_columns: [sentence1, sentence2]\n"
    "labels: {0: no, 1: yes, -1: maybe}\n"
)


@pytest.fixture
def prepare_task(tiny_checkpoint, mrpc, tmp_path):
    """The splits of a user's task and flags -> what the recipe prepares."""

    def run_of(splits, more):
        files = ", ".join(f"{name}: {mrpc}/{file}.jsonl" for name, file in splits.items())
        (tmp_path / "mine.yaml").write_text(f"{COLUMNS}files: {{{files}}}\n")
        argv = (
            f"--task_file {tmp_path}/mine.yaml --model_name_or_path {tiny_checkpoint} "
            f"--output_dir {tmp_path}/run --use_cpu true --disable_tqdm true {more}"
        )
        settings = parse_arguments(TaskArguments, FineTuningArguments, argv=argv.split())
        return prepare_run(*settings), settings

    return run_of


def test_the_best_checkpoint_is_chosen_by_the_tasks_figure(prepare, prepare_task):
    _, (_, args) = prepare(BEST)
    assert (args.metric_for_best_model, args.greater_is_better) == ("f1", True)
    splits = {"train": "train", "validation": "validation", "validation_hard": "test"}
    run, (_, args) = prepare_task(splits, BEST)
    assert args.metric_for_best_model == "accuracy"
    metrics = run.trainer.evaluate()
    assert {"eval_accuracy", "eval_hard_accuracy", "eval_loss", "eval_hard_loss"} < metrics.keys()


def test_a_task_with_training_rows_alone_is_told_that_nothing_is_measured(prepare_task, caplog):
    prepare_task({"train": "train"}, "--eval_strategy no")
    assert "task mine has no validation split: nothing is measured" in caplog.text
    with pytest.raises(InputError, match="eval_strategy is 'epoch' but task mine has no"):
        prepare_task({"train": "train"}, "--eval_strategy epoch")


def test_missing_test_rows_are_refused_before_anything_is_read(prepare_task, monkeypatch):
    monkeypatch.setattr("bert_recipes.finetuning.run.load_split", pytest.fail)
    splits = {"train": "train", "validation": "validation", "test": "missing"}
    with pytest.raises(InputError, match=r"split 'test': .*missing\.jsonl: no such file"):
        prepare_task(splits, "--do_predict true")


def test_windows_of_pairs_are_refused_before_anything_is_read(prepare_task, monkeypatch):
    monkeypatch.setattr("bert_recipes.finetuning.run.load_split", pytest.fail)
    splits = {"train": "train", "validation": "validation"}
    with pytest.raises(InputError, match="long_documents is windows; task mine has pairs"):
        prepare_task(splits, "--long_documents windows")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("--task mrcp", "unknown task 'mrcp'; did you mean 'mrpc'?"),
        ("--task mrpc", "give the data as local files: --data_dir FOLDER"),
        ("--task ax", "task ax has no training data"),
        ("", "give either --task NAME or --task_file FILE.yaml"),
    ],
)
def test_mistakes_are_one_line(call_recipe, tiny_checkpoint, tmp_path, settings, message):
    argv = f"{settings} --model_name_or_path {tiny_checkpoint} --output_dir {tmp_path}/run"
    assert message in call_recipe("finetune", argv, code=1).splitlines()[-1]
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("task", ["sst2", "stsb"])
def test_official_test_rows_are_predicted(
    call_recipe, tiny_checkpoint, shared_data, tmp_path, task
):
    paths = f"--model_name_or_path {tiny_checkpoint} --data_dir {shared_data}"
    flags = "--num_train_epochs 1 --per_device_eval_batch_size 256 --use_cpu true"
    flags += " --max_train_examples 32 --max_eval_examples 32 --do_predict true"
    call_recipe("finetune", f"--task {task}", paths, flags, "--output_dir", tmp_path)
    lines = read_lines(tmp_path / "predictions_test.jsonl")
    assert len(lines) == get_task(task).published_rows["test"]
    value_type = float if task == "stsb" else str
    assert {type(line["prediction"]) for line in lines} == {value_type}
