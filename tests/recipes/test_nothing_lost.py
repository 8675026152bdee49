"""A run that is ended after its last step, while it is measured, or among the files that follow
loses nothing: the same command does the rest.

Signals and kills are real ones; each comes at a named call, so that it is known what the run was
doing.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import RECIPES, run_recipe
from logged_history import history_of
from tiny_runs import make_rows, write_jsonl

from bert_recipes.checkpointing import list_checkpoints
from bert_recipes.finetuning import question_answering
from bert_recipes.finetuning.question_answering import QuestionAnswering
from bert_recipes.run_folder import UNFINISHED_FILE
from bert_recipes.training.bert_trainer import PreTrainingSums
from bert_recipes.training.trainer import RecipeTrainer


CPU = "--use_cpu true --disable_tqdm true --precision fp32 --logging_steps 1"
# An evaluation of four batches after each half of the training.
PRETRAIN = (
    f"{CPU} --size tiny --max_seq_length 48 --dropout 0.1 --per_device_train_batch_size 4 "
    "--global_train_batch_size 16 --max_steps 4 --warmup_steps 1 --learning_rate 1e-3 "
    "--per_device_eval_batch_size 5 --eval_strategy steps --eval_steps 2 --max_eval_pairs 20"
)
BEST = "--save_strategy steps --save_steps 2 --load_best_model_at_end true"
FINETUNE = (
    f"{CPU} --max_seq_length 40 --doc_stride 8 --max_query_length 12 --learning_rate 1e-3 "
    "--num_train_epochs 2 --per_device_eval_batch_size 8 --dropout 0.1 --do_predict true "
    "--eval_strategy epoch --load_best_model_at_end true"
)


def signal_at(
    patch, owner, name: str, call: int | None = None, number: int = signal.SIGTERM
) -> list[None]:
    """Let the process get a signal at a call of a function, which goes on as it is; one element for
    each call so far.
    """
    real, calls = getattr(owner, name), []

    def called(*args, **kwargs):
        calls.append(None)
        if len(calls) == call:
            os.kill(os.getpid(), number)
        return real(*args, **kwargs)

    patch.setattr(owner, name, called)
    return calls


def assert_alike(folder: Path, straight: Path) -> None:
    """What a run leaves is there, and is that of a run that nothing ended."""
    names = files_of(straight)
    assert files_of(folder) == names
    assert {"all_results.json", "report.html", "README.md"} <= names
    assert UNFINISHED_FILE not in names
    predictions = [name for name in names if name.startswith("predictions_")]
    for name in ("model.safetensors", *predictions):
        assert (folder / name).read_bytes() == (straight / name).read_bytes(), name
    assert history_of(folder / "trainer_state.json") == history_of(straight / "trainer_state.json")
    assert figures_of(folder) == figures_of(straight)


def files_of(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if "checkpoint-" not in path.name}


def model_of_last_step(folder: Path) -> bytes:
    """The weights of its last checkpoint, or without checkpoints those of the run."""
    checkpoints = list_checkpoints(folder)
    return ((checkpoints or [folder])[-1] / "model.safetensors").read_bytes()


def figures_of(folder: Path) -> dict[str, object]:
    """The results of a run but those of its speed."""
    results = json.loads((folder / "all_results.json").read_text())
    figures = {"train_loss": results["train_loss"]}
    for name, value in results.items():
        is_speed = name in ("eval_seconds", "eval_runtime") or name.endswith("_per_second")
        if name.startswith("eval_") and not is_speed:
            figures[name] = value
    return figures


# Pre-training


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("--save_strategy no", id="no checkpoints"),
        pytest.param(BEST, id="the best one", marks=pytest.mark.slow),
    ],
)
def pretraining(request, small_store, tmp_path_factory):
    """Flags, and the run that nothing ends; the model of step 2 is its best one."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    flags = f"--store {small_store} {PRETRAIN} {request.param}"
    run_recipe("pretrain", flags, "--output_dir", folder)
    return flags, folder


def test_without_checkpoints_a_finished_run_has_none(pretraining):
    flags, folder = pretraining
    steps = [path.name for path in list_checkpoints(folder)]
    assert steps == ([] if "--save_strategy no" in flags else ["checkpoint-2", "checkpoint-4"])


# In the first evaluation of the training, in that of its last step, in that of the best model.
@pytest.mark.parametrize(
    ("call", "step"),
    [
        pytest.param(2, 2, marks=pytest.mark.slow),
        (6, 4),
        pytest.param(10, 4, marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_the_evaluation_of_pre_training_within_a_batch(
    call_recipe, pretraining, tmp_path, monkeypatch, call, step
):
    flags, straight = pretraining
    if call == 10 and BEST not in flags:
        pytest.skip("the model of the last step is measured already")
    folder = tmp_path / "run"
    flags = f"{flags} --output_dir {folder}"
    with monkeypatch.context() as patch:
        calls = signal_at(patch, PreTrainingSums, "add", call)
        said = call_recipe("pretrain", flags, code=143)
    assert len(calls) == call
    assert "stopped by SIGTERM" in said.splitlines()[-1]
    assert "Traceback" not in said
    checkpoint = list_checkpoints(folder)[-1]
    assert checkpoint.name == f"checkpoint-{step}"
    model = (checkpoint / "model.safetensors").read_bytes()
    call_recipe("pretrain", flags)
    assert_alike(folder, straight)
    assert step < 4 or model_of_last_step(folder) == model


def test_a_last_step_that_is_the_best_is_saved_once(
    call_recipe, small_store, tmp_path, monkeypatch
):
    """Before it is measured; once more would take the checkpoint from its place for a moment."""
    steps = []
    save = RecipeTrainer._save_checkpoint

    def count(trainer, *args):
        steps.append(trainer.state.global_step)
        save(trainer, *args)

    monkeypatch.setattr(RecipeTrainer, "_save_checkpoint", count)
    best = "--save_strategy best --metric_for_best_model mlm_loss"
    flags = f"--store {small_store} {PRETRAIN} {best} --output_dir {tmp_path}/run"
    call_recipe("pretrain", flags)
    state = json.loads((tmp_path / "run" / "trainer_state.json").read_text())
    assert state["best_global_step"] == 4
    assert state["best_model_checkpoint"].endswith("checkpoint-4")
    assert steps.count(4) == 1


# Fine-tuning


@pytest.fixture(scope="module")
def questions(tmp_path_factory, tiny_checkpoint):
    """Flags without output_dir: 23 questions in each split."""
    folder = tmp_path_factory.mktemp("questions")
    for seed, split in enumerate(("train", "validation", "test")):
        write_jsonl(folder / f"{split}.jsonl", make_rows("question_answering", seed))
    files = "{train: train.jsonl, validation: validation.jsonl, test: test.jsonl}"
    task = f"name: mine\nkind: question_answering\nfiles: {files}\nmetrics: squad\n"
    (folder / "task.yaml").write_text(task)
    return f"--task_file {folder}/task.yaml --model_name_or_path {tiny_checkpoint} {FINETUNE}"


@pytest.fixture(scope="module")
def finetuning(questions, tmp_path_factory):
    """The run that nothing ends, and how many batches one evaluation has."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    with pytest.MonkeyPatch.context() as patch:
        batches = signal_at(patch, QuestionAnswering, "split_outputs")
        answers = signal_at(patch, question_answering, "decode_answer")
        run_recipe("finetune", questions, "--output_dir", folder)
    # Two evaluations in the training, the last one, the test split.
    assert len(answers) == 4 * 23
    return folder, len(batches) // 4


# What is going on, evaluations before it, batches of it, questions of it.
POINTS = {
    "evaluation in the training": (0, 2, 0),
    "evaluation of the last step": (1, 2, 0),
    "last evaluation": (2, 2, 0),
    "prediction": (3, 2, 0),
    "decoding in the training": (0, 0, 5),
    "last decoding": (2, 0, 5),
    "decoding of the prediction": (3, 0, 5),
}


QUICK = ("evaluation in the training", "last decoding")


@pytest.mark.parametrize(
    "point",
    [pytest.param(point, marks=() if point in QUICK else pytest.mark.slow) for point in POINTS],
)
def test_a_signal_ends_what_fine_tuning_measures_within_a_batch(
    call_recipe, questions, finetuning, tmp_path, monkeypatch, point
):
    before, batch, question = POINTS[point]
    straight, batches = finetuning
    folder = tmp_path / "run"
    flags = f"{questions} --output_dir {folder}"
    number, code = (signal.SIGINT, 130) if batch else (signal.SIGTERM, 143)
    with monkeypatch.context() as patch:
        if batch:
            call = before * batches + batch
            calls = signal_at(patch, QuestionAnswering, "split_outputs", call, number)
        else:
            call = before * 23 + question
            calls = signal_at(patch, question_answering, "decode_answer", call, number)
        said = call_recipe("finetune", flags, code=code)
    # A signal is heeded before the next batch, and where a question is decoded at once.
    assert len(calls) == call
    assert f"stopped by {number.name}" in said.splitlines()[-1]
    assert "Traceback" not in said
    written = [(path / "model.safetensors").stat().st_mtime_ns for path in list_checkpoints(folder)]
    call_recipe("finetune", flags)
    assert_alike(folder, straight)
    after = [(path / "model.safetensors").stat().st_mtime_ns for path in list_checkpoints(folder)]
    assert set(written) <= set(after)  # nothing was trained twice


def test_a_signal_ends_predictions_and_leaves_no_half_of_them(
    call_recipe, finetuning, questions, tmp_path, monkeypatch
):
    data = Path(questions.split()[1]).with_name("test.jsonl")
    output = tmp_path / "out" / "lines.jsonl"
    output.parent.mkdir()
    flags = f"--model_name_or_path {finetuning[0]} --input_file {data} --output_file {output} "
    flags += "--batch_size 4 --use_cpu true"
    with monkeypatch.context() as patch:
        calls = signal_at(patch, QuestionAnswering, "split_outputs", 2)
        text = call_recipe("predict", flags, code=143)
    assert len(calls) == 2
    assert "stopped by SIGTERM" in text.splitlines()[-1]
    assert not list(output.parent.iterdir())
    call_recipe("predict", flags)
    assert len(output.read_text().splitlines()) == 23


# Kills

KILLED_AT = """
import importlib, os, runpy, signal, sys
module, name = {place!r}.split(":")
module = importlib.import_module(module)
owner = getattr(module, name.rpartition(".")[0]) if "." in name else module
real, calls = getattr(owner, name.rpartition(".")[2]), []
def called(*args, **kwargs):
    calls.append(None)
    if len(calls) == {call}:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **kwargs)
setattr(owner, name.rpartition(".")[2], called)
sys.argv[0] = {script!r}
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def kill_at(place: str, call: int, name: str, flags: str) -> None:
    """Run a recipe as a process of its own that is killed at a call of a function."""
    program = KILLED_AT.format(place=place, call=call, script=str(RECIPES / f"{name}.py"))
    command = [sys.executable, "-c", program, *flags.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]


FINETUNE_KILLS = {
    # The third evaluation is the last one.
    "last evaluation": ("bert_recipes.finetuning.trainer:FineTuningTrainer.evaluate", 3, False),
    # Each of two checkpoints has the task too.
    "predictions": ("bert_recipes.finetuning.run:write_task_file", 3, True),
    "report": ("bert_recipes.reports.finish:write_report", 1, True),
    "card": ("bert_recipes.reports.card:write_card", 1, True),
}


@pytest.mark.slow
@pytest.mark.parametrize("point", FINETUNE_KILLS)
def test_a_kill_after_the_last_step_of_fine_tuning_loses_nothing(
    call_recipe, questions, finetuning, tmp_path, point
):
    place, call, has_results = FINETUNE_KILLS[point]
    folder = tmp_path / "run"
    flags = f"{questions} --output_dir {folder}"
    kill_at(place, call, "finetune", flags)
    assert (folder / "all_results.json").is_file() == has_results
    last = folder / list_checkpoints(finetuning[0])[-1].name
    written = (last / "model.safetensors").stat().st_mtime_ns
    call_recipe("finetune", flags)
    assert_alike(folder, finetuning[0])
    assert (last / "model.safetensors").stat().st_mtime_ns == written
    # Now it is finished.
    assert "holds a finished run" in call_recipe("finetune", flags, code=1).splitlines()[-1]


@pytest.mark.parametrize(
    ("place", "call"),
    [
        # The second evaluation is the last one.
        ("bert_recipes.training.bert_trainer:BertTrainer.evaluation_loop", 2),
        pytest.param("bert_recipes.reports.finish:write_report", 1, marks=pytest.mark.slow),
    ],
)
def test_a_kill_after_the_last_step_of_pre_training_loses_nothing(
    call_recipe, pretraining, tmp_path, place, call
):
    flags, straight = pretraining
    folder = tmp_path / "run"
    flags = f"{flags} --output_dir {folder}"
    kill_at(place, call, "pretrain", flags)
    last = folder / "checkpoint-4" / "model.safetensors"
    model = last.read_bytes()
    call_recipe("pretrain", flags)
    assert_alike(folder, straight)
    assert model_of_last_step(folder) == model
    assert "holds a finished run" in call_recipe("pretrain", flags, code=1).splitlines()[-1]


def test_results_without_their_report_and_without_a_checkpoint_are_not_trained_over(
    call_recipe, pretraining, tmp_path
):
    flags, straight = pretraining
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("run.yaml", "model.safetensors", "all_results.json"):
        (folder / name).write_bytes((straight / name).read_bytes())
    (folder / UNFINISHED_FILE).touch()
    said = call_recipe("pretrain", flags, "--output_dir", folder, code=1)
    assert "holds no complete checkpoint to resume from" in said.splitlines()[-1]
    assert (folder / "model.safetensors").is_file()
