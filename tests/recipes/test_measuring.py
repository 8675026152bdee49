"""recipes/evaluate_checkpoint.py on pre-training data."""

import json

import transformers

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
        "--max_seq_length 32 --max_eval_pairs 10 --data_cache_dir",
        tmp_path,
    ]
    data += ["--results_file", tmp_path / "results.json"]
    data += ["--per_device_eval_batch_size 2"]
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
    data = ["--store", small_store, "--max_seq_length 32 --data_cache_dir", tmp_path]
    done = start_recipe("evaluate_checkpoint", "--model_name_or_path", tmp_path / "model", *data)
    assert done.returncode == 1
    assert "eval_mlm_loss" not in done.stdout
    assert "without a masked-LM head" in done.stderr.splitlines()[-1]
