"""Continued pre-training: what is forgotten is measured, held-out texts of a task stay unread."""

import json
import shlex

import pytest


FLAGS = shlex.split(
    "--max_steps 3 --max_seq_length 32 --global_train_batch_size 4 --per_device_train_batch_size 4 "
    "--max_eval_pairs 10 --use_cpu true --precision fp32 --disable_tqdm true --eval_steps 3"
)


def test_the_loss_on_older_text_stands_beside_that_on_the_new(small_store, tmp_path, call_recipe):
    folder, file = tmp_path / "run", tmp_path / "old.json"
    flags = ["--store", small_store, "--old_store", small_store, "--output_dir", folder]
    phases = ["--phase2_steps 1 --phase2_max_seq_length 48"]  # both are measured at 48
    said = call_recipe("pretrain", *flags, *FLAGS, *phases)
    results = json.loads((folder / "all_results.json").read_text())
    assert results["eval_old_mlm_loss"] == results["eval_mlm_loss"]  # the same text here
    assert "masked-LM loss on the older text" in (folder / "report.md").read_text() + said
    flags = ["--model_name_or_path", folder, "--store", small_store, "--results_file", file]
    sizes = ["--max_seq_length 48 --max_eval_pairs 10"]
    call_recipe("evaluate_checkpoint", *flags, *sizes, "--precision fp32")
    assert json.loads(file.read_text())["eval_mlm_loss"] == pytest.approx(
        results["eval_old_mlm_loss"], rel=1e-4
    )


def test_a_task_gives_the_texts_of_its_training_split_alone(tmp_path, call_recipe):
    for split in ("train", "validation"):
        lines = []
        for number in range(3):
            row = {"question": f"{split} {number}", "sentence": "the same", "label": "entailment"}
            lines.append(json.dumps(row) + "\n")
        (tmp_path / f"{split}.jsonl").write_text("".join(lines))
    file = tmp_path / "texts.jsonl"
    flags = ["--task qnli --data_dir", tmp_path, "--output_file", file]
    assert "4 texts of train of qnli" in call_recipe("task_texts", *flags)
    texts = [json.loads(line)["text"] for line in file.read_text().splitlines()]
    assert texts == ["train 0\nthe same", "train 1", "train 2"]
    flags += ["--splits train validation"]
    output = call_recipe("task_texts", *flags, code=1)
    assert "validation of qnli is what a model is measured on" in output
    assert "7 texts" in call_recipe("task_texts", *flags, "--include_held_out true")
