"""recipes/feature_based_ner.py as a user runs it."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from bert_recipes.finetuning.feature_tagger import LAYER_CHOICES
from bert_recipes.tokenization import SPECIAL_TOKENS, load_tokenizer


NAMES = [f"n{number}" for number in range(8)]
PLACES = [f"p{number}" for number in range(8)]
WORDS = [f"w{number}" for number in range(12)]


def write_sentences(path, number, seed):
    rng = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8") as file:
        for sentence in range(number):
            if sentence % 4 == 0:
                file.write("-DOCSTART- -X- -X- O\n\n")
            for _ in range(rng.integers(2, 7)):
                kind = rng.integers(4)
                if kind == 0:
                    file.write(f"{rng.choice(NAMES)} X X B-PER\n{rng.choice(NAMES)} X X I-PER\n")
                elif kind == 1:
                    file.write(f"{rng.choice(PLACES)} X X B-LOC\n")
                else:
                    file.write(f"{rng.choice(WORDS)} X X O\n")
            file.write("\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with data/ and two models of random weights, of 4 and of 2 layers."""
    folder = tmp_path_factory.mktemp("feature-ner")
    data = folder / "data" / "ner" / "conll2003"
    data.mkdir(parents=True)
    write_sentences(data / "train.txt", 120, seed=0)
    write_sentences(data / "validation.txt", 20, seed=1)
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join([*SPECIAL_TOKENS, *NAMES, *PLACES, *WORDS]) + "\n", encoding="utf-8")
    tokenizer = load_tokenizer(vocabulary, do_lower_case=True)
    for layers in (4, 2):
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            num_hidden_layers=layers,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
        )
        BertModel(config).save_pretrained(folder / f"model{layers}")
        tokenizer.save_pretrained(folder / f"model{layers}")
    return folder


def launch(repository, folder, *arguments):
    command = [sys.executable, str(repository / "recipes" / "feature_based_ner.py"), "--use_cpu", "true"]
    command += ["--model_name_or_path", str(folder / "model4"), "--data_dir", str(folder / "data")]
    command += ["--max_seq_length", "64", "--lstm_dim", "32", "--learning_rate", "0.03", "--train_batch_size", "8"]
    command += ["--num_train_epochs", "6", "--precision", "fp32", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_one_command_prints_the_table_and_a_second_one_goes_on(repository, folder):
    out = folder / "out"
    first = launch(
        repository, folder, "--output_dir", out, "--layers", "last", "weighted_sum_all", "--seeds", "1", "2"
    )
    assert first.returncode == 0, first.stderr
    runs = {path.name: path.stat().st_mtime_ns for path in (out / "runs").iterdir()}
    assert sorted(runs) == [f"{way}-seed{seed}.json" for way in ("last", "weighted_sum_all") for seed in (1, 2)]
    vectors = {path: path.stat().st_mtime_ns for path in (out / "features").glob("*/vectors.npy")}
    assert len(vectors) == 2
    assert "±" in first.stdout

    second = launch(repository, folder, "--output_dir", out)
    assert second.returncode == 0, second.stderr
    assert {path: path.stat().st_mtime_ns for path in (out / "features").glob("*/vectors.npy")} == vectors
    assert all((out / "runs" / name).stat().st_mtime_ns == time for name, time in runs.items())
    assert second.stderr.count("kept from") == 2

    results = json.loads((out / "all_results.json").read_text(encoding="utf-8"))
    assert [run["way"] for run in results["runs"]] == list(LAYER_CHOICES)
    assert (results["train_sentences"], results["eval_sentences"], results["num_layers"]) == (120, 20, 4)
    table = (out / "table.md").read_text(encoding="utf-8")
    assert table in second.stdout
    # Words decide their labels here, so that even a random encoder's states give them away.
    assert min(run["f1"] for run in results["runs"]) > 0.4
    assert (out / "run.yaml").is_file()
