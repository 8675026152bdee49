"""Continued pre-training: what is forgotten is measured, held-out texts of a task stay unread."""

import json

import pytest
from tiny_runs import write_jsonl


FLAGS = (
    "--max_steps 3 --global_train_batch_size 4 --per_device_train_batch_size 4 --use_cpu true "
    "--precision fp32 --disable_tqdm true --eval_steps 3 --max_seq_length 32 --max_eval_pairs 10 "
    "--phase2_steps 1 --phase2_max_seq_length 48"  # both are measured at 48
)


def test_the_loss_on_older_text_stands_beside_that_on_the_new(small_store, tmp_path, call_recipe):
    folder, file = tmp_path / "run", tmp_path / "old.json"
    stores = f"--store {small_store} --old_store {small_store}"
    printed = call_recipe("pretrain", stores, FLAGS, "--output_dir", folder)
    results = json.loads((folder / "all_results.json").read_text())
    loss = results["eval_old_mlm_loss"]
    assert loss == results["eval_mlm_loss"]  # the same text here
    assert "masked-LM loss on the older text" in (folder / "report.md").read_text() + printed
    paths = f"--model_name_or_path {folder} --store {small_store} --results_file {file}"
    flags = "--max_seq_length 48 --max_eval_pairs 10 --precision fp32"
    call_recipe("evaluate_checkpoint", paths, flags)
    assert json.loads(file.read_text())["eval_mlm_loss"] == pytest.approx(loss, rel=1e-4)


def test_the_best_step_of_two_phases_is_one_of_the_second(small_store, tmp_path, call_recipe):
    """Losses of other lengths say nothing of it; here the first step of the run has the lowest."""
    best = "--load_best_model_at_end true --save_steps 1 --max_steps 6 --phase2_steps 3"
    flags = f"{FLAGS} {best} --learning_rate 1 --eval_strategy steps --save_strategy steps"
    flags = flags.replace("--eval_steps 3", "--eval_steps 1").replace("--max_steps 3 ", "", 1)
    flags = flags.replace("--phase2_steps 1 ", "", 1)
    call_recipe("pretrain", f"--store {small_store} --output_dir {tmp_path / 'run'} {flags}")
    state = json.loads((tmp_path / "run" / "trainer_state.json").read_text())
    losses = {}
    for line in state["log_history"]:
        if "eval_loss" in line:
            losses.setdefault(line["step"], line["eval_loss"])
    assert min(losses, key=losses.get) == 1
    assert state["best_global_step"] == min((4, 5, 6), key=losses.get)


def test_the_end_of_a_phase_is_saved_where_only_the_best_steps_are(
    small_store, tmp_path, call_recipe
):
    """At this rate the first evaluation is the best, and the first phase ends with the third."""
    flags = f"{FLAGS} --save_strategy best --max_steps 6 --phase2_steps 3 --learning_rate 1"
    flags = flags.replace("--eval_steps 3", "--eval_steps 1").replace("--max_steps 3 ", "", 1)
    flags = flags.replace("--phase2_steps 1 ", "", 1)
    call_recipe("pretrain", f"--store {small_store} --output_dir {tmp_path / 'run'} {flags}")
    results = json.loads((tmp_path / "run" / "all_results.json").read_text())
    assert results["train_steps"] == 6


@pytest.mark.parametrize(
    ("objective", "metric", "message"),
    [
        (
            "bert",
            "accuracy",
            "metric_for_best_model is 'accuracy'; allowed: mlm_loss,",
        ),
        ("bert", "nsp_accuracy", None),
        ("mlm", "nsp_accuracy", "metric_for_best_model is 'nsp_accuracy'; allowed: mlm_loss"),
        ("electra", "disc_loss", None),
    ],
)
def test_the_metric_of_the_best_step_is_one_of_the_evaluation(
    small_store, tmp_path, call_recipe, objective, metric, message
):
    best = "--save_strategy steps --save_steps 3 --load_best_model_at_end true"
    flags = f"{FLAGS} {best} --metric_for_best_model {metric}"
    flags += f" --objective {objective} --store {small_store} --output_dir {tmp_path / 'run'}"
    output = call_recipe("pretrain", flags, code=0 if message is None else 1)
    assert message is None or message in output


def test_a_task_gives_the_texts_of_its_training_split_alone(tmp_path, call_recipe):
    for split in ("train", "validation"):
        rows = []
        for number in range(3):
            texts = {"question": f"{split} {number}", "sentence": "the same"}
            rows.append(texts | {"label": "entailment"})
        write_jsonl(tmp_path / f"{split}.jsonl", rows)
    file = tmp_path / "texts.jsonl"
    flags = f"--task qnli --data_dir {tmp_path} --output_file {file}"
    assert "4 texts of train of qnli" in call_recipe("task_texts", flags)
    texts = [json.loads(line)["text"] for line in file.read_text().splitlines()]
    assert texts == ["train 0\nthe same", "train 1", "train 2"]
    for name, words in (
        ("texts.txt", "name it .jsonl"),
        ("validation.jsonl", "it is a file of the task"),
    ):
        wrong = f"--task qnli --data_dir {tmp_path} --output_file {tmp_path / name}"
        assert words in call_recipe("task_texts", wrong, code=1)
    flags += " --splits train validation"
    error = call_recipe("task_texts", flags, code=1)
    assert "validation of qnli is what a model is measured on" in error
    assert "7 texts" in call_recipe("task_texts", flags, "--include_held_out true")
