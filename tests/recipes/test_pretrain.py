"""The recipes as a user runs them, on a small store."""

import json
import re
import subprocess
import sys

import pytest
import torch
import transformers
from repeated_flags import keep_last


def run(repository, *arguments, ok=True):
    command = [sys.executable, str(repository / "recipes" / "pretrain.py"), *keep_last(arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=repository
    )
    assert (done.returncode == 0) == ok, done.stderr[-3000:]
    return done


SMALL = [
    "--max_seq_length",
    "32",
    "--max_steps",
    "4",
    "--warmup_steps",
    "1",
    "--per_device_train_batch_size",
    "4",
]
SMALL += [
    "--global_train_batch_size",
    "4",
    "--max_eval_pairs",
    "10",
    "--eval_steps",
    "2",
    "--logging_steps",
    "1",
]


@pytest.fixture(scope="module")
def finished(repository, small_store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "out"
    done = run(
        repository,
        "--store",
        small_store,
        "--output_dir",
        folder,
        "--learning_rate",
        "2e-5",
        *SMALL,
    )
    return folder, done


def test_a_run_leaves_checkpoint_tokenizer_results_report_and_plot(finished):
    folder, done = finished
    names = {path.name for path in folder.iterdir()}
    assert {
        "config.json",
        "model.safetensors",
        "vocab.txt",
        "tokenizer.json",
        "tokenizer_config.json",
    } <= names
    assert {
        "run.yaml",
        "all_results.json",
        "trainer_state.json",
        "report.md",
        "losses.png",
    } <= names
    assert {"report.html", "report.json"} <= names
    assert not [name for name in names if name.endswith((".bin", ".pt", ".pth", ".pkl"))]
    results = json.loads((folder / "all_results.json").read_text())
    assert results["train_steps"] == 4
    assert results["eval_pairs"] == 10
    report = (folder / "report.md").read_text()
    assert f"{results['eval_mlm_loss']:.3f}" in report
    assert f"{results['eval_unigram_loss']:.3f}" in report
    assert (folder / "losses.png").read_bytes().startswith(b"\x89PNG")
    facts = json.loads((folder / "report.json").read_text())
    assert facts["held_out"]["masks"]
    assert "<h2>Held-out sentences</h2>" in (folder / "report.html").read_text()
    assert f"| {results['eval_mlm_loss']:.3f} |" in done.stdout
    logged = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    first = next(line for line in logged if "loss" in line)
    assert {"mlm_loss", "nsp_loss", "learning_rate", "grad_norm", "epoch"} <= set(first)
    assert first["learning_rate"] == 0.0
    assert "tokens_per_second" in next(line for line in logged if line["step"] == 3)


def test_each_step_is_measured_and_printed_once_the_last_one_too(finished):
    folder, done = finished
    logged = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    measured = [line["step"] for line in logged if "eval_loss" in line]
    assert measured[-1] == 4
    assert len(measured) == len(set(measured))
    assert done.stdout.count("held out: ") == len(measured)


def test_an_estimate_trains_a_few_steps_and_leaves_nothing(repository, small_store, tmp_path):
    flags = [
        *SMALL,
        "--max_steps",
        720000,
        "--eval_steps",
        1,
        "--save_steps",
        1,
        "--phase2_steps",
        360000,
    ]
    flags += ["--phase2_max_seq_length", 64, "--report_to", "tensorboard", "--estimate"]
    done = run(repository, "--store", small_store, "--output_dir", tmp_path / "run", *flags)
    last, rows = done.stdout.splitlines()[-6], done.stdout.splitlines()[-5:]
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
    assert "held out" not in done.stdout
    assert not (tmp_path / "run").exists()


def test_the_checkpoint_opens_in_stock_transformers(finished):
    folder, _ = finished
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForPreTraining.from_pretrained(folder)
    assert type(model) is transformers.BertForPreTraining
    fill = transformers.pipeline("fill-mask", model=str(folder), tokenizer=str(folder))
    assert len(fill(f"w1 {tokenizer.mask_token} w3")) == 5


def test_run_yaml_gives_the_same_run_again(call_recipe, finished, tmp_path):
    folder, _ = finished
    call_recipe("pretrain", "--config", folder / "run.yaml", "--output_dir", tmp_path / "again")
    from safetensors.torch import load_file

    first, second = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "again"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_evaluate_checkpoint_gives_the_figures_of_the_run(
    call_recipe, small_store, finished, tmp_path
):
    folder, _ = finished
    file = tmp_path / "results.json"
    arguments = ["--model_name_or_path", folder, "--store", small_store, "--max_seq_length", "32"]
    arguments += [
        "--max_eval_pairs",
        "10",
        "--output_dir",
        tmp_path / "x",
        "--results_file",
        file,
        "--seed",
        "7",
    ]
    call_recipe("evaluate_checkpoint", *arguments)
    results = json.loads(file.read_text())
    expected = json.loads((folder / "all_results.json").read_text())
    assert results["eval_mlm_loss"] == pytest.approx(expected["eval_mlm_loss"], rel=1e-3)
    assert results["eval_nsp_accuracy"] == expected["eval_nsp_accuracy"]


def test_show_data_prints_pieces_segments_and_what_was_masked(call_recipe, small_store):
    out = call_recipe("show_data", "--store", small_store, "--num_pairs", "4")
    assert out.count("next_sentence_label") == 4
    assert "[CLS]" in out
    assert "[MASK]" in out
    assert "0 = next" in out or "1 = random" in out
    flags = ["--store", small_store, "--selection", "causal", "--pair_label", "none"]
    out = call_recipe("show_data", *flags)
    assert "the next token" in out
    assert "random word" not in out


def test_count_parameters_prints_the_components(call_recipe):
    out = call_recipe("count_parameters", "--size", "base", "--vocab_size", "30000")
    for number in ("23,040,000", "1,536", "393,216", "2,359,296", "4,718,592", "109,081,344"):
        assert number in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max_seq_length", "7"], "max_seq_length is 7"),
        (["--max_seq_length", "600"], "the model has 512 positions"),
        (["--mask_rate", "0.9"], "must sum to 1"),
        (["--size", "huge"], "allowed: tiny, mini"),
        (["--optimizer", "adamm"], "allowed: bert_adam"),
        (["--learning_rte", "1e-4"], "learning_rate"),
        (["--store", "/nonexistent/store"], "/nonexistent/store"),
        (["--model_name_or_path", "/nonexistent/model"], "no folder /nonexistent/model"),
        (["--global_train_batch_size", "0"], "cannot be shared"),
        (["--learning_rate", "-1"], "learning_rate is -1"),
        (["--eval_strategy", "epoch"], "give steps or no"),
        (["--precision", "fp32", "--bf16", "true"], "give one of them"),
        (["--resume", "last"], "holds no complete checkpoint"),
        (["--resume_from_checkpoint", "last"], "give --resume last"),
    ],
)
def test_mistakes_give_one_line(call_recipe, small_store, tmp_path, arguments, words):
    said = call_recipe(
        "pretrain",
        "--store",
        small_store,
        "--output_dir",
        tmp_path / "out",
        *SMALL,
        *arguments,
        code=1,
    )
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, said
    assert words in errors[0]


def test_a_mistake_shows_no_traceback(repository, small_store, tmp_path):
    done = run(
        repository,
        "--store",
        small_store,
        "--output_dir",
        tmp_path / "out",
        "--size",
        "huge",
        ok=False,
    )
    assert done.stderr.splitlines()[-1].startswith("error: size is ")
    assert "Traceback" not in done.stderr


def test_a_folder_that_holds_another_run_is_left_alone(call_recipe, small_store, finished):
    folder, _ = finished
    before = sorted(path.name for path in folder.iterdir())
    said = call_recipe("pretrain", "--store", small_store, "--output_dir", folder, *SMALL, code=1)
    assert "holds a finished run" in said
    assert "--overwrite_run true" in said
    assert sorted(path.name for path in folder.iterdir()) == before


def test_it_trains_from_the_files_of_create_pretraining_data(
    repository, call_recipe, small_store, tmp_path
):
    vocabulary = small_store / "tokenizer" / "vocab.txt"
    text = tmp_path / "text.txt"
    lines = [" ".join(f"w{(number * 7 + word) % 95}" for word in range(9)) for number in range(60)]
    text.write_text(
        "\n".join("" if number % 10 == 9 else line for number, line in enumerate(lines)) + "\n"
    )
    for name, seed in (("train.jsonl", 1), ("held_out.parquet", 2)):
        arguments = [
            f"--input_file={text}",
            f"--output_file={tmp_path / name}",
            f"--vocab_file={vocabulary}",
        ]
        arguments += [
            "--max_seq_length=32",
            "--max_predictions_per_seq=5",
            f"--random_seed={seed}",
            "--dupe_factor=3",
        ]
        call_recipe("create_pretraining_data", *arguments)
    out = tmp_path / "out"
    files = [
        "--train_file",
        tmp_path / "train.jsonl",
        "--validation_file",
        tmp_path / "held_out.parquet",
    ]
    settings = [
        *SMALL,
        "--eval_strategy",
        "steps",
        "--config",
        repository / "recipes/configs/pretrain/instances.yaml",
    ]
    settings += ["--size", "tiny"]
    call_recipe(
        "pretrain", *files, "--tokenizer", small_store / "tokenizer", "--output_dir", out, *settings
    )
    results = json.loads((out / "all_results.json").read_text())
    assert results["train_steps"] == 4
    assert results["eval_mlm_loss"] > 0
    assert results["eval_unigram_loss"] > 0
