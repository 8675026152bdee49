"""The recipes of pre-training as a user runs them, on a small store."""

import json
import re

import numpy as np
import pytest
import torch
import transformers
from in_process import run_recipe
from safetensors.torch import load_file


SMALL = (
    "--max_seq_length 32 --max_steps 4 --warmup_steps 1 --per_device_train_batch_size 4 "
    "--global_train_batch_size 4 --max_eval_pairs 10 --eval_steps 2 --logging_steps 1"
)


def read(file):
    return json.loads(file.read_text())


@pytest.fixture(scope="module")
def finished(small_store, tmp_path_factory):
    """The folder of a run, and what it printed."""
    folder = tmp_path_factory.mktemp("run") / "out"
    paths = ("--store", small_store, "--output_dir", folder)
    return folder, run_recipe("pretrain", *paths, "--learning_rate 2e-5", SMALL)


def test_a_run_leaves_checkpoint_tokenizer_results_report_and_plot(finished):
    folder, printed = finished
    names = {path.name for path in folder.iterdir()}
    expected = "config.json model.safetensors vocab.txt tokenizer.json tokenizer_config.json "
    expected += "run.yaml all_results.json trainer_state.json report.md losses.png report.html"
    assert names.issuperset(expected.split())
    assert not [name for name in names if name.endswith((".bin", ".pt", ".pth", ".pkl"))]
    results = read(folder / "all_results.json")
    assert (results["train_steps"], results["eval_pairs"]) == (4, 10)
    report = (folder / "report.md").read_text()
    assert f"{results['eval_mlm_loss']:.3f}" in report
    assert f"{results['eval_unigram_loss']:.3f}" in report
    assert (folder / "losses.png").read_bytes().startswith(b"\x89PNG")
    assert read(folder / "report.json")["held_out"]["masks"]
    assert "<h2>Held-out sentences</h2>" in (folder / "report.html").read_text()
    assert f"| {results['eval_mlm_loss']:.3f} |" in printed
    logged = read(folder / "trainer_state.json")["log_history"]
    first = next(line for line in logged if "loss" in line)
    assert {"mlm_loss", "nsp_loss", "learning_rate", "grad_norm", "epoch"} <= set(first)
    assert first["learning_rate"] == 0.0
    assert "tokens_per_second" in next(line for line in logged if line["step"] == 3)
    # Each step is measured and printed once, the last one too.
    measured = [line["step"] for line in logged if "eval_loss" in line]
    assert measured == [2, 4]
    assert printed.count("held out: ") == 2


def test_an_estimate_trains_a_few_steps_and_leaves_nothing(call_recipe, small_store, tmp_path):
    flags = "--max_steps 720000 --eval_steps 1 --save_steps 1 --phase2_steps 360000 "
    flags += "--phase2_max_seq_length 64 --report_to tensorboard --estimate"
    paths = ("--store", small_store, "--output_dir", tmp_path / "run")
    printed = call_recipe("pretrain", *paths, SMALL, flags)
    last, *rows = printed.splitlines()[-6:]
    assert last.startswith("step      14/")
    parameters, step, time, memory, disk = (row[16:] for row in rows)
    seconds = float(re.search(r"4 examples, (\S+) s, ", step)[1])
    number, unit = re.match(r"(\S+) (h|days), ", time).groups()
    hours = float(number) * (24 if unit == "days" else 1)
    assert hours == pytest.approx(720000 * seconds / 3600, rel=0.1)
    assert "if those of the second phase were as long" in time
    megabytes = 4 * int(parameters.replace(",", "")) / 1e6
    assert f"{megabytes:,.0f} MB the model" in disk
    assert "MB a process" in memory
    assert "held out" not in printed
    assert not (tmp_path / "run").exists()


def test_a_run_that_logs_nothing_has_an_estimate(call_recipe, small_store, tmp_path):
    paths = ("--store", small_store, "--output_dir", tmp_path / "run")
    flags = "--max_steps 40 --logging_strategy no --estimate"
    assert " tokens/s\n" in call_recipe("pretrain", *paths, SMALL, flags)


def test_the_checkpoint_opens_in_stock_transformers(finished):
    folder, _ = finished
    model = transformers.AutoModelForPreTraining.from_pretrained(folder)
    assert type(model) is transformers.BertForPreTraining
    fill = transformers.pipeline("fill-mask", model=str(folder), tokenizer=str(folder))
    assert len(fill("w1 [MASK] w3")) == 5


def test_run_yaml_gives_the_same_run_again(call_recipe, finished, tmp_path):
    folder, _ = finished
    assert "trackio_static_space_id" not in (folder / "run.yaml").read_text()
    call_recipe("pretrain", "--config", folder / "run.yaml", "--output_dir", tmp_path)
    first, second = (load_file(path / "model.safetensors") for path in (folder, tmp_path))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_evaluate_checkpoint_gives_the_figures_of_the_run(
    call_recipe, small_store, finished, tmp_path
):
    folder, _ = finished
    file = tmp_path / "results.json"
    paths = ("--model_name_or_path", folder, "--store", small_store, "--results_file", file)
    flags = "--max_seq_length 32 --max_eval_pairs 10 --seed 7"
    call_recipe("evaluate_checkpoint", *paths, flags, "--output_dir", tmp_path / "x")
    results, expected = read(file), read(folder / "all_results.json")
    assert results["eval_mlm_loss"] == pytest.approx(expected["eval_mlm_loss"], rel=1e-3)
    assert results["eval_nsp_accuracy"] == expected["eval_nsp_accuracy"]


def test_show_data_prints_pieces_segments_and_what_was_masked(call_recipe, small_store):
    printed = call_recipe("show_data", "--store", small_store, "--num_pairs 4")
    assert printed.count("next_sentence_label") == 4
    assert "[CLS]" in printed
    assert "[MASK]" in printed
    assert "0 = next" in printed or "1 = random" in printed
    flags = "--selection causal --pair_label none"
    printed = call_recipe("show_data", "--store", small_store, flags)
    assert "the next token" in printed
    assert "random word" not in printed


def test_show_data_shows_the_masks_of_a_configuration(call_recipe, small_store):
    def fraction(*flags):
        printed = call_recipe("show_data", "--store", small_store, "--num_pairs 20", *flags)
        counts = re.findall(r"(\d+) tokens, (\d+) predicted", printed)
        num_tokens, num_predicted = np.array(counts, dtype=int).sum(axis=0)
        return num_predicted / num_tokens

    assert fraction() == pytest.approx(0.15, abs=0.03)
    assert fraction("--config laptop") == pytest.approx(0.3, abs=0.04)
    # An objective has inputs of its own.
    assert fraction("--objective ltr") > 0.9


def test_count_parameters_prints_the_components(call_recipe):
    printed = call_recipe("count_parameters", "--size base --vocab_size 30000")
    for number in ("23,040,000", "1,536", "393,216", "2,359,296", "4,718,592", "109,081,344"):
        assert number in printed


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--learning_rte 1e-4", "learning_rate"),
        ("--store /nonexistent/store", "/nonexistent/store"),
        ("--model_name_or_path /nonexistent/model", "no folder /nonexistent/model"),
        ("--optimizer adamm", "allowed: bert_adam"),
        ("--learning_rate -1", "learning_rate is -1"),
        ("--eval_strategy epoch", "give steps or no"),
        ("--resume_from_checkpoint last", "give --resume last"),
    ],
)
def test_mistakes_give_one_line(call_recipe, small_store, tmp_path, flags, words):
    paths = ("--store", small_store, "--output_dir", tmp_path / "out")
    output = call_recipe("pretrain", *paths, SMALL, flags, code=1)
    (error,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert words in error


def test_a_folder_that_holds_another_run_is_left_alone(call_recipe, small_store, finished):
    folder, _ = finished
    before = sorted(path.name for path in folder.iterdir())
    paths = ("--store", small_store, "--output_dir", folder)
    error = call_recipe("pretrain", *paths, SMALL, code=1)
    assert "holds a finished run" in error
    assert "--overwrite_run true" in error
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_run_never_replaces_the_checkpoint_that_it_begins_with(
    call_recipe, small_store, finished
):
    folder, _ = finished
    before = sorted(path.name for path in folder.iterdir())
    paths = ("--store", small_store, "--output_dir", folder, "--model_name_or_path", folder)
    error = call_recipe("pretrain", *paths, SMALL, "--overwrite_run true", code=1)
    assert f"model_name_or_path {folder} lies in output_dir" in error
    assert sorted(path.name for path in folder.iterdir()) == before


def test_it_trains_from_the_files_of_create_pretraining_data(call_recipe, small_store, tmp_path):
    tokenizer, text = small_store / "tokenizer", tmp_path / "text.txt"
    lines = [" ".join(f"w{(number * 7 + word) % 95}" for word in range(9)) for number in range(60)]
    lines[9::10] = [""] * 6
    text.write_text("\n".join(lines) + "\n")
    train, held_out = tmp_path / "train.jsonl", tmp_path / "held_out.parquet"
    for seed, file in enumerate((train, held_out)):
        paths = f"--input_file={text} --output_file={file} --vocab_file={tokenizer}/vocab.txt"
        flags = f"--max_seq_length=32 --max_predictions_per_seq=5 --random_seed={seed}"
        call_recipe("create_pretraining_data", paths, flags, "--dupe_factor=3")
    config = "--config recipes/configs/pretrain/instances.yaml --size tiny --eval_strategy steps"
    paths = f"--train_file {train} --validation_file {held_out} --tokenizer {tokenizer}"
    call_recipe("pretrain", SMALL, config, paths, "--output_dir", tmp_path / "out")
    results = read(tmp_path / "out" / "all_results.json")
    assert results["train_steps"] == 4
    assert results["eval_mlm_loss"] > 0
    assert results["eval_unigram_loss"] > 0
