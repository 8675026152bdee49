"""Sentences and minimal pairs are scored as a user does it."""

import json

import pytest

from bert_recipes.features.arguments import LikelihoodArguments
from bert_recipes.features.likelihood import open_scorer


def test_sentences_and_pairs_have_their_files(call_recipe, tiny_checkpoint, tmp_path):
    sentences = ["ab cd", "", "abc"]
    (tmp_path / "texts.txt").write_text("\n".join(sentences) + "\n")
    files = ["--input_file", tmp_path / "texts.txt", "--output_file", tmp_path / "scores.jsonl"]
    call_recipe("score_sentences", "--model_name_or_path", tiny_checkpoint, *files)
    lines = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    scorer = open_scorer(LikelihoodArguments(model_name_or_path=str(tiny_checkpoint), use_cpu=True))
    assert [line["log_likelihood"] for line in lines] == pytest.approx(
        [score.log_likelihood for score in scorer.score(sentences)], abs=1e-4
    )
    assert [line["perplexity"] is None for line in lines] == [False, True, False]
    pair = {"sentence_good": "a b", "sentence_bad": "c d", "linguistics_term": "s-selection"}
    (tmp_path / "a.jsonl").write_text(json.dumps(pair))
    folders = ["--blimp_dir", tmp_path, "--output_dir", tmp_path / "out"]
    (tmp_path / "scores.jsonl").unlink()
    call_recipe("score_sentences", "--model_name_or_path", tiny_checkpoint, *folders)
    results = json.loads((tmp_path / "out" / "all_results.json").read_text())
    assert list(results["phenomena"]) == ["argument_structure"]  # Warstadt et al. 2020, appendix
    assert results["overall"]["pairs"] == 1
    assert "| argument_structure |" in (tmp_path / "out" / "table.md").read_text()
    flags = ("--model_name_or_path", tiny_checkpoint, *files, *folders)
    message = call_recipe("score_sentences", *flags, code=1)
    assert message == "error: give either --input_file FILE or --blimp_dir FOLDER\n"
