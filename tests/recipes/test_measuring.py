"""recipes/evaluate_checkpoint.py on pre-training data."""

import json

import pytest
import yaml

from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.checkpoints import MEMBERS
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.training.arguments import DataArguments


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


@pytest.mark.parametrize(
    ("flags", "differences"),
    [
        ("--max_seq_length 32 --pair_label order --mlm_probability 0.2", []),
        (
            "--max_seq_length 32 --max_eval_pairs 9",
            [
                "pair_label is next here and order in",
                "mlm_probability is 0.15 here and 0.2 in",
            ],
        ),
    ],
)
def test_other_inputs_than_those_of_the_run_are_named(
    call_recipe, small_store, tmp_path, caplog, flags, differences
):
    """Its masks are those of its end, and the number of pairs is no matter."""
    model = tmp_path / "model"
    tokenizer = load_tokenizer(small_store / "tokenizer")
    BertForPreTraining(pretraining_config("2/32", vocab_size=len(tokenizer))).save_pretrained(model)
    tokenizer.save_pretrained(model)
    of_run = {"max_seq_length": 32, "pair_label": "order", "max_eval_pairs": 10}
    of_run |= {"phase2_steps": 0, "phase2_max_seq_length": 512}  # one phase
    masks = {"mlm_probability": 0.3, "mlm_probability_end": 0.2}
    same = ("short_seq_prob", "mask_rate", "keep_rate", "random_rate", "whole_word")
    for name in (*same, "selection", "input_format", "max_predictions_per_seq"):
        of_run[name] = getattr(DataArguments, name)
    (model / "run.yaml").write_text(yaml.safe_dump(of_run | masks))
    paths = f"--model_name_or_path {model} --store {small_store} --data_cache_dir {tmp_path}"
    call_recipe("evaluate_checkpoint", paths, flags, "--per_device_eval_batch_size 8")
    warnings = [text for text in caplog.messages if "not those of the run" in text]
    assert len(warnings) == len(differences)
    for difference in differences:
        assert any(text.startswith(difference) for text in warnings), warnings


def test_alberts_head_is_not_asked_for_random_sentences_unseen(
    call_recipe, small_store, tmp_path, caplog
):
    model = tmp_path / "model"
    tokenizer = load_tokenizer(small_store / "tokenizer")
    config = pretraining_config("2/32", vocab_size=len(tokenizer), model_type="albert")
    MEMBERS["albert"](config).save_pretrained(model)
    tokenizer.save_pretrained(model)
    paths = f"--model_name_or_path {model} --store {small_store} --data_cache_dir {tmp_path}"
    flags = "--max_seq_length 32 --max_eval_pairs 4 --per_device_eval_batch_size 2"
    call_recipe("evaluate_checkpoint", paths, flags)
    assert "give --pair_label order" in caplog.text
    caplog.clear()
    call_recipe("evaluate_checkpoint", paths, flags, "--pair_label order")
    assert "give --pair_label order" not in caplog.text
