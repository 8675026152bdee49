"""tokenizer/compare.py: figures that can be worked out by hand."""

import json
import math
import runpy
import sys

import pytest

from bert_recipes.tokenization.training import train_wordpiece


def test_figures_of_a_small_vocabulary_are_those_worked_out_by_hand(
    repository, tmp_path, monkeypatch, capsys
):
    tokenizer = train_wordpiece(
        ["ab ab ab b"] * 3, vocab_size=10, num_unused=0, show_progress=False
    )
    tokenizer.save_pretrained(tmp_path / "t")
    (tmp_path / "train.txt").write_text("ab b\n", encoding="utf-8")
    (tmp_path / "held.txt").write_text("ab ab a é\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    flags = "--tokenizers t --files train.txt --heldout_files held.txt --output_file o.json"
    monkeypatch.setattr(sys, "argv", ["compare.py", *flags.split()])
    runpy.run_path(str(repository / "tokenizer" / "compare.py"))["main"]()
    row = json.loads((tmp_path / "o.json").read_text())["t"]
    # [PAD] [UNK] [CLS] [SEP] [MASK] a b ##b ab: ab, ab, a and e without its accent, which is
    # unknown
    size = row["vocabulary"]
    bits = -(2 * math.log2(2 / (2 + size)) + 2 * math.log2(1 / (2 + size)))
    expected = {
        "pieces_per_word": 1.0,
        "unknown_rate": 0.25,
        "bytes_per_piece": 10 / 4,
        "single_characters": 0.25,
        "bits_per_character": bits / 6,
    }
    for name, value in expected.items():
        assert row[name] == pytest.approx(value), name
    assert "pieces per word" in capsys.readouterr().out
