"""Continued pre-training: what is forgotten is measured, and a task's held-out texts stay
unread.
"""

import json

import pytest


FLAGS = [
    "--max_steps",
    3,
    "--max_seq_length",
    32,
    "--global_train_batch_size",
    4,
    "--per_device_train_batch_size",
    4,
]
FLAGS += [
    "--max_eval_pairs",
    10,
    "--use_cpu",
    "true",
    "--precision",
    "fp32",
    "--disable_tqdm",
    "true",
    "--eval_steps",
    3,
]


def test_the_loss_on_older_text_stands_beside_that_on_the_new(small_store, tmp_path, call_recipe):
    folder, file = tmp_path / "run", tmp_path / "old.json"
    flags = ["--store", small_store, "--old_store", small_store, "--output_dir", folder]
    said = call_recipe("pretrain", *flags, *FLAGS)
    results = json.loads((folder / "all_results.json").read_text())
    assert results["eval_old_mlm_loss"] == results["eval_mlm_loss"]  # the same text here
    assert "masked-LM loss on the older text" in (folder / "report.md").read_text() + said
    measure = [
        "--model_name_or_path",
        folder,
        "--store",
        small_store,
        "--max_seq_length",
        32,
        "--max_eval_pairs",
        10,
    ]
    call_recipe("evaluate_checkpoint", *measure, "--precision", "fp32", "--results_file", file)
    assert json.loads(file.read_text())["eval_mlm_loss"] == pytest.approx(
        results["eval_old_mlm_loss"], rel=1e-4
    )


def test_a_task_gives_the_texts_of_its_training_split_alone(tmp_path, call_recipe):
    for split in ("train", "validation"):
        rows = [
            {"question": f"{split} {n}", "sentence": "the same", "label": "entailment"}
            for n in range(3)
        ]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--task", "qnli", "--data_dir", tmp_path, "--output_file", tmp_path / "texts.jsonl"]
    assert "4 texts of train of qnli" in call_recipe("task_texts", *flags)
    rows = [
        json.loads(line)["text"] for line in (tmp_path / "texts.jsonl").read_text().splitlines()
    ]
    assert rows == ["train 0\nthe same", "train 1", "train 2"]
    said = call_recipe("task_texts", *flags, "--splits", "train", "validation", code=1)
    assert "validation of qnli is what a model is measured on" in said
    assert "7 texts" in call_recipe(
        "task_texts", *flags, "--splits", "train", "validation", "--include_held_out", "true"
    )
