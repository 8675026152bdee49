"""Sentences and minimal pairs are scored as a user does it."""

import json
import re

import english_runs
import pytest

from bert_recipes.data.prepare import CorpusArguments, prepare_store
from bert_recipes.data.store import open_store
from bert_recipes.errors import InputError
from bert_recipes.features.arguments import LikelihoodArguments, SentenceArguments
from bert_recipes.features.blimp_curve import count_words
from bert_recipes.features.likelihood import open_scorer
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.tokenization.others import train_byte_bpe


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
    paths = ("--model_name_or_path", tiny_checkpoint, *folders)
    message = call_recipe("score_sentences", *paths, "--max_pairs 1", code=1)
    assert "out holds results of other settings (max_pairs); give another --output_dir" in message
    call_recipe("score_sentences", *paths)
    flags = ("--model_name_or_path", tiny_checkpoint, *files, *folders)
    message = call_recipe("score_sentences", *flags, code=1)
    assert message == "error: give either --input_file FILE or --blimp_dir FOLDER\n"


def test_a_model_that_is_not_there_leaves_no_folder_that_would_hide_it(
    call_recipe, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    pair = {"sentence_good": "a b", "sentence_bad": "c d", "linguistics_term": "island"}
    (tmp_path / "a.jsonl").write_text(json.dumps(pair))
    flags = ["--model_name_or_path", "me/bert", "--blimp_dir", tmp_path]
    message = call_recipe("score_sentences", *flags, "--output_dir", "me/bert/blimp", code=1)
    assert message.startswith("error: output_dir me/bert/blimp lies in me/bert, which is no folder")
    assert not (tmp_path / "me").exists()


def test_scores_do_not_replace_the_sentences(tmp_path):
    texts = str(tmp_path / "texts.txt")
    with pytest.raises(InputError, match="is the input file; give another one"):
        SentenceArguments(
            model_name_or_path="me/bert",
            input_file=texts,
            output_file=f"{tmp_path}/../{tmp_path.name}/texts.txt",
        )


def test_every_checkpoint_of_a_run_is_a_point_of_a_curve(call_recipe, tmp_path):
    store = english_runs.make_store(tmp_path)
    saving = "--save_strategy no --save_at_epochs 0.2 0.5 1 --max_steps 16"
    english_runs.pretrain(store, tmp_path / "run", *saving.split())
    pair = {"sentence_good": "he sat.", "sentence_bad": "sat he.", "linguistics_term": "island"}
    (tmp_path / "blimp").mkdir()
    (tmp_path / "blimp" / "a.jsonl").write_text(json.dumps(pair))
    flags = ["--model_name_or_path", tmp_path / "run", "--blimp_dir", tmp_path / "blimp"]
    flags += ["--every_checkpoint", "true", "--output_dir", tmp_path / "out"]
    call_recipe("score_sentences", *flags)

    points = json.loads((tmp_path / "out" / "curve.json").read_text())["points"]
    folders = {path.name for path in (tmp_path / "run").glob("checkpoint-*")}
    assert folders == {f"checkpoint-{point['step']}" for point in points}
    assert len(points) == 3
    num_words = count_words(open_store(store))
    for point, epochs in zip(points, (0.2, 0.5, 1), strict=True):
        one_step = point["epochs"] / point["step"]
        assert epochs <= point["epochs"] < epochs + one_step
        assert point["words"] == pytest.approx(point["epochs"] * num_words)
        assert point["phenomena"] == {"island": point["accuracy"]}
    assert (tmp_path / "out" / "curve.md").read_text().count("\n") == 2 + 3
    assert (tmp_path / "out" / "curve.png").read_bytes().startswith(b"\x89PNG")

    message = call_recipe("score_sentences", *flags, "--max_pairs 1", code=1)
    assert "out holds results of other settings (max_pairs)" in message
    next((tmp_path / "run").glob("checkpoint-*/model.safetensors")).unlink()
    message = call_recipe("score_sentences", *flags, code=1)
    assert message.endswith("remove it, and the others are a curve\n")
    other = ["--output_dir", tmp_path / "other", "--model_name_or_path", tmp_path / "out"]
    message = call_recipe("score_sentences", *flags, *other, code=1)
    assert re.match("error: .*out: no checkpoint-N in it; train with --save_at_epochs", message)
    message = call_recipe("score_sentences", *flags[2:], *flags[:1], "me/model", code=1)
    assert message.startswith("error: every_checkpoint: model_name_or_path me/model is no folder")


def test_words_are_pieces_that_begin_one_with_a_letter_or_a_digit(small_store):
    """Of its vocabulary 95 pieces begin a word, 20 go on with one, 5 are special."""
    store = open_store(small_store)
    assert count_words(store) == store.train.unigram_counts[5:100].sum()


def test_words_of_bytes_are_told_from_punctuation(tmp_path):
    """The mark of a word's beginning is a letter itself."""
    text = 'the cat ( - " dog\n'
    (tmp_path / "text.txt").write_text(text * 4 + "\n" + text * 4)
    tokenizer, _ = train_byte_bpe([text] * 9, vocab_size=280, show_progress=False)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    arguments = CorpusArguments(
        files=[str(tmp_path / "text.txt")],
        tokenizer=str(tmp_path / "tokenizer"),
        output_dir=str(tmp_path / "store"),
        num_processes=1,
    )
    store = open_store(prepare_store(arguments, load_tokenizer(tmp_path / "tokenizer")).path)
    assert count_words(store) == 8 * 3
