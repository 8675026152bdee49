"""tokenizer/train.py, run as a user runs it."""

import functools
import gzip
import json

import pytest
from transformers import AutoTokenizer

from bert_recipes.config import parse_arguments
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.tokenization.training import TokenizerArguments


TEXT = "The quick brown fox jumps over the lazy dog.\nThe dog sleeps.\n\nThe fox runs.\n"
SMALL = "--vocab_size 90 --num_unused 5"


@pytest.fixture
def run(start_recipe):
    """Run the script in this process, and return what `subprocess.run` would."""
    return functools.partial(start_recipe, "../tokenizer/train")


def only_error(result) -> str:
    assert result.returncode == 1
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    return line


@pytest.fixture
def corpus(tmp_path):
    """One text in two kinds of files."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_text(TEXT)
    (folder / "b.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    return folder


def test_writes_a_stock_folder_and_reports(run, corpus, tmp_path):
    output = tmp_path / "new" / "tokenizer"
    result = run("--files", corpus, "--output_dir", output, SMALL)
    assert result.returncode == 0, result.stderr
    assert "pieces a word, [UNK] rate 0.0000%" in result.stdout
    names = {"tokenizer.json", "tokenizer_config.json", "vocab.txt", "tokenizer_report.json"}
    assert {path.name for path in output.iterdir()} == names
    assert [path.name for path in output.parent.iterdir()] == ["tokenizer"]  # nothing left aside
    report = json.loads((output / "tokenizer_report.json").read_text())
    assert report["report"]["num_texts"] == 6
    assert report["report"]["vocab_size"] == len(AutoTokenizer.from_pretrained(output))
    assert report["fingerprint"] == load_tokenizer(output).fingerprint
    assert report["read"]["files"] == 2


def test_what_was_repaired_and_left_out_is_reported(run, tmp_path):
    (tmp_path / "a.txt").write_bytes(TEXT.encode() + b"\xe9\n")
    (tmp_path / "b.txt").write_bytes(b"")
    paths = ["--files", tmp_path, "--output_dir", tmp_path / "out"]
    assert run(*paths, SMALL, "--encoding_errors replace").returncode == 0
    read = json.loads((tmp_path / "out" / "tokenizer_report.json").read_text())["read"]
    assert read["repaired"] == {"characters_replaced": 1}
    assert read["dropped"] == {"files_without_text": 1}


def test_flags_win_over_the_configuration(run, repository, corpus, tmp_path):
    output = tmp_path / "out"
    config = repository / "tokenizer" / "configs" / "cased_28996.yaml"
    result = run("--config", config, "--files", corpus, "--output_dir", output, SMALL)
    assert result.returncode == 0, result.stderr
    assert load_tokenizer(output).do_lower_case is False
    assert "The" in load_tokenizer(output).get_vocab()


def test_mistakes_are_one_line_before_any_work(run, corpus, tmp_path):
    output = tmp_path / "out"
    broken = corpus / "broken.txt"
    broken.write_bytes(b"fine\n\xe9\n")
    cases = {
        "give either --files or --dataset_name; neither was": [],
        "did you mean --vocab_size": ["--vocabsize 9"],
        "nothing.txt": ["--files", tmp_path / "nothing.txt"],
        f"{broken}, line 2: not valid UTF-8": ["--files", corpus, SMALL],
    }
    for message, flags in cases.items():
        assert message in only_error(run("--output_dir", output, *flags))
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


def test_folder_with_other_things_is_never_replaced(run, corpus, tmp_path):
    flags = ["--files", corpus, SMALL, "--output_dir"]
    output = tmp_path / "out"
    assert run(*flags, output).returncode == 0
    assert "holds a tokenizer" in only_error(run(*flags, output))
    before = (output / "vocab.txt").read_bytes()
    assert run(*flags, output, "--overwrite true --lowercase false").returncode == 0
    assert (output / "vocab.txt").read_bytes() != before
    (output / "model.safetensors").write_text("weights")
    error = only_error(run(*flags, output, "--overwrite true"))
    assert "is not empty; give a new folder" in error
    assert (output / "model.safetensors").exists()


def test_every_configuration_is_valid(repository):
    sizes = {"quickstart": 8000, "uncased_30522": 30522, "cased_28996": 28996, "babylm": 8192}
    configs = sorted((repository / "tokenizer" / "configs").glob("*.yaml"))
    assert {path.stem for path in configs} == set(sizes)
    for path in configs:
        argv = f"--config {path} --files x --output_dir y"
        (args,) = parse_arguments(TokenizerArguments, argv=argv.split())
        assert args.vocab_size == sizes[path.stem]
