"""recipes/evaluate_checkpoint.py on pre-training data, and benchmarks/measure_data.py."""

import json

import pytest
import transformers

from bert_recipes.data.store import open_store
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.tokenization.loading import load_tokenizer


def test_measuring_a_checkpoint_leaves_nothing_in_the_working_folder(
    call_recipe, small_store, tmp_path, monkeypatch, caplog
):
    caplog.set_level("INFO")
    tokenizer = load_tokenizer(small_store / "tokenizer")
    model = tmp_path / "model"
    BertForPreTraining(pretraining_config("tiny", vocab_size=len(tokenizer))).save_pretrained(model)
    tokenizer.save_pretrained(model)
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    data = [
        "--store",
        small_store,
        "--max_seq_length",
        "32",
        "--max_eval_pairs",
        "10",
        "--data_cache_dir",
        tmp_path,
    ]
    data += ["--results_file", tmp_path / "results.json"]
    data += ["--per_device_eval_batch_size", "2"]
    said = call_recipe("evaluate_checkpoint", "--model_name_or_path", model, *data)
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["eval_pairs"] == 10
    assert len(results.pop("jackknife")["mlm_loss"]) == 5
    assert json.loads(said[said.index("{") :]) == results
    assert "inputs of up to 32 tokens" in caplog.text
    assert not list(folder.iterdir())


def test_the_recipe_refuses_to_measure_a_head_that_is_not_there(
    start_recipe, small_store, tmp_path
):
    tokenizer = load_tokenizer(small_store / "tokenizer")
    config = pretraining_config("tiny", vocab_size=len(tokenizer))
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "model")
    data = ["--store", small_store, "--max_seq_length", "32", "--data_cache_dir", tmp_path]
    done = start_recipe("evaluate_checkpoint", "--model_name_or_path", tmp_path / "model", *data)
    assert done.returncode == 1
    assert "eval_mlm_loss" not in done.stdout
    assert "without a masked-LM head" in done.stderr.splitlines()[-1]


def test_measure_data_says_how_many_processes_built_the_index(call_recipe, small_store, tmp_path):
    text, store, file = tmp_path / "text.txt", tmp_path / "store", tmp_path / "results.json"
    text.write_text("\n\n".join("w1 w2 w3.\nw4 w5.\nw6 w7 w8." for _ in range(30)) + "\n")
    sources = [
        "--files",
        text,
        "--validation_fraction",
        "0.3",
        "--tokenizer",
        small_store / "tokenizer",
    ]
    call_recipe("prepare_corpus", *sources, "--output_dir", store)
    call_recipe(
        "../benchmarks/measure_data", "--store", store, "--num_pairs", "20", "--results_file", file
    )
    results = json.loads(file.read_text())
    opened = open_store(store)
    share = opened.train.num_tokens / (opened.train.num_tokens + opened.validation.num_tokens)
    assert results["for_16_gb"]["pairs"] == pytest.approx(
        results["pairs_in_epoch_0"] * 16e9 / (text.stat().st_size * share), rel=1e-6
    )
    assert results["data_num_processes"] == 1
    assert results["index_seconds"] >= 0


def test_measure_data_needs_a_store(call_recipe):
    said = call_recipe("../benchmarks/measure_data", "--train_file", "x.jsonl", code=1)
    assert said.count("error: ") == 1
    assert "give --store FOLDER instead of --train_file" in said
