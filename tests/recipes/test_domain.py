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
    flags += " --splits train validation"
    error = call_recipe("task_texts", flags, code=1)
    assert "validation of qnli is what a model is measured on" in error
    assert "7 texts" in call_recipe("task_texts", flags, "--include_held_out true")
