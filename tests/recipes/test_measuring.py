"""recipes/evaluate_checkpoint.py on pre-training data."""

import json

from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.tokenization.loading import load_tokenizer


def test_measuring_a_checkpoint_leaves_nothing_in_the_working_folder(
    call_recipe, small_store, tmp_path, monkeypatch, caplog
):
    caplog.set_level("INFO")
    tokenizer, model = load_tokenizer(small_store / "tokenizer"), tmp_path / "model"
    BertForPreTraining(pretraining_config("tiny", vocab_size=len(tokenizer))).save_pretrained(model)
    tokenizer.save_pretrained(model)
    folder, file = tmp_path / "here", tmp_path / "results.json"
    folder.mkdir()
    monkeypatch.chdir(folder)
    paths = f"--model_name_or_path {model} --store {small_store} --data_cache_dir {tmp_path}"
    flags = "--max_seq_length 32 --max_eval_pairs 10 --per_device_eval_batch_size 2"
    printed = call_recipe("evaluate_checkpoint", paths, flags, "--results_file", file)
    results = json.loads(file.read_text())
    assert results["eval_pairs"] == 10
    assert len(results.pop("jackknife")["mlm_loss"]) == 5
    assert json.loads(printed[printed.index("{") :]) == results
    assert "inputs of up to 32 tokens" in caplog.text
    assert not list(folder.iterdir())
