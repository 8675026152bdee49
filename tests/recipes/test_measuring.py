"""recipes/evaluate_checkpoint.py on pre-training data."""

import json

import pytest

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


@pytest.mark.parametrize(
    ("is_decoder", "flags", "message"),
    [
        (True, "", "the model reads from left to right and predicts the next token alone"),
        (False, "--selection causal --pair_label none", "the model reads both ways"),
    ],
)
def test_a_checkpoint_is_measured_by_what_it_predicts(
    call_recipe, small_store, tmp_path, is_decoder, flags, message
):
    tokenizer, model = load_tokenizer(small_store / "tokenizer"), tmp_path / "model"
    config = pretraining_config("2/32", vocab_size=len(tokenizer))
    config.is_decoder = is_decoder
    BertForPreTraining(config).save_pretrained(model)
    tokenizer.save_pretrained(model)
    paths = f"--model_name_or_path {model} --store {small_store} --data_cache_dir {tmp_path}"
    output = call_recipe("evaluate_checkpoint", paths, flags, "--max_seq_length 32", code=1)
    assert message in output
    assert "Traceback" not in output
