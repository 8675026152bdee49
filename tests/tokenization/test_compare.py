"""tokenizer/compare.py: figures that can be worked out by hand."""

import json
import math
import subprocess
import sys

import pytest

from bert_recipes.tokenization.training import train_wordpiece


def test_figures_of_a_small_vocabulary_are_those_worked_out_by_hand(repository, tmp_path):
    train_wordpiece(
        ["ab ab ab b"] * 3, vocab_size=10, num_unused=0, show_progress=False
    ).save_pretrained(tmp_path / "t")
    (tmp_path / "train.txt").write_text("ab b\n", encoding="utf-8")
    (tmp_path / "held.txt").write_text("ab ab a é\n", encoding="utf-8")
    command = [
        sys.executable,
        "tokenizer/compare.py",
        "--tokenizers",
        str(tmp_path / "t"),
        "--output_file",
        str(tmp_path / "o.json"),
    ]
    command += [
        "--files",
        str(tmp_path / "train.txt"),
        "--heldout_files",
        str(tmp_path / "held.txt"),
    ]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "o.json").read_text()).values()
    # [PAD] [UNK] [CLS] [SEP] [MASK] a b ##b ab: ab, ab, a and e without its accent, which is
    # unknown
    size = row["vocabulary"]
    assert row["pieces_per_word"] == 1.0
    assert row["unknown_rate"] == 0.25
    assert row["bytes_per_piece"] == pytest.approx(10 / 4)
    bits = -(2 * math.log2(2 / (2 + size)) + 2 * math.log2(1 / (2 + size)))
    assert row["bits_per_character"] == pytest.approx(bits / 6)
    assert "pieces per word" in done.stdout
