"""The runs of the paper's Table 7: what is kept, what is refused, how the table looks."""

import logging
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertModel

from bert_recipes.errors import InputError
from bert_recipes.features.frozen_encoder import open_encoder
from bert_recipes.finetuning.feature_ner import load_feature_data, make_table, measure_ways
from bert_recipes.finetuning.feature_ner_arguments import FeatureNerArguments
from bert_recipes.finetuning.feature_tagger import LAYER_CHOICES
from bert_recipes.tokenization import load_tokenizer


MAKE_FOLDER = runpy.run_path(str(Path(__file__).parents[1] / "fixtures" / "ner_folder.py"))["make_folder"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with data/, model4/ and model2/."""
    folder = tmp_path_factory.mktemp("feature-ner")
    MAKE_FOLDER(folder)
    return folder


def arguments(folder, out, **changes):
    settings = {
        "model_name_or_path": str(folder / "model4"),
        "data_dir": str(folder / "data"),
        "output_dir": str(out),
        "features_dir": str(folder / "features"),
        "layers": ["last"],
        "max_seq_length": 64,
        "num_train_epochs": 1,
        "lstm_dim": 8,
        "use_cpu": True,
        "precision": "fp32",
    }
    return FeatureNerArguments(**(settings | changes))


def measure(args):
    data = load_feature_data(args)
    return measure_ways(args, data), data


def test_runs_of_other_settings_are_neither_mixed_nor_replaced(folder, tmp_path):
    measure(arguments(folder, tmp_path))
    kept = (tmp_path / "runs" / "last-seed1.json").read_text(encoding="utf-8")
    # The clash is found before "embeddings", which comes first, is trained.
    with pytest.raises(InputError, match=r"last-seed1.json was measured with dropout 0.2, not 0.25; give another"):
        measure(arguments(folder, tmp_path, layers=["embeddings", "last"], dropout=0.25))
    with pytest.raises(InputError, match="was measured with another model or other data; give another --output_dir"):
        measure(arguments(folder, tmp_path, max_train_sentences=20))
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["last-seed1.json"]
    assert (tmp_path / "runs" / "last-seed1.json").read_text(encoding="utf-8") == kept


def test_a_kept_run_is_the_record_of_the_first_time(folder, tmp_path):
    first, _ = measure(arguments(folder, tmp_path))
    again, _ = measure(arguments(folder, tmp_path, seeds=[1, 2]))
    assert again[0] == first[0]
    assert [record["seed"] for record in again] == [1, 2]


def test_other_ways_and_seeds_are_added_to_what_is_there(folder, tmp_path):
    measure(arguments(folder, tmp_path, layers=["last"]))
    measure(arguments(folder, tmp_path, layers=["weighted_sum_all"], dropout=0.3))
    records, _ = measure(arguments(folder, tmp_path, layers=["embeddings"], seeds=[2, 1]))
    assert [(run["way"], run["seed"]) for run in records] == [("embeddings", 1), ("embeddings", 2), ("last", 1)]


def test_a_run_of_another_model_is_refused_before_features_are_computed(folder, tmp_path):
    measure(arguments(folder, tmp_path))
    other = arguments(folder, tmp_path, model_name_or_path=str(folder / "model2"), features_dir=str(tmp_path / "new"))
    with pytest.raises(InputError, match="was measured with another model or other data"):
        load_feature_data(other)
    assert not (tmp_path / "new").exists()


def test_a_missing_checkpoint_is_named_before_the_data_are_read(folder, tmp_path):
    with pytest.raises(InputError, match="no folder nowhere/at/all"):
        load_feature_data(arguments(folder, tmp_path, model_name_or_path="nowhere/at/all", data_dir=str(tmp_path)))


@pytest.mark.parametrize("text", ['{"way": "la', "[]", '{"settings": 3}', '{"way": "last"}'])
def test_an_incomplete_run_is_measured_anew(folder, tmp_path, caplog, text):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "last-seed1.json").write_text(text, encoding="utf-8")
    records, _ = measure(arguments(folder, tmp_path))
    assert "is no complete run and is measured anew" in caplog.text
    assert records[0]["input_size"] == 32


def test_the_table_has_the_paper_beside_it_and_says_what_it_was_measured_on(folder, tmp_path):
    args = arguments(folder, tmp_path, layers=["concat_last_four"], max_train_sentences=20, max_eval_sentences=10)
    data = load_feature_data(args)
    records = [
        {"way": "concat_last_four", "seed": seed, "f1": f1, "input_size": 3072, "train_seconds": 9, "eval_seconds": 2}
        for seed, f1 in ((1, 0.95), (2, 0.96))
    ]
    records.append(
        {"way": "embeddings", "seed": 1, "f1": 0.9, "input_size": 768, "train_seconds": 4, "eval_seconds": 1}
    )
    assert make_table(records, data) == (
        "Dev F1, 20 training and 10 dev sentences (a part of CoNLL-2003); the model has 4 layers. The paper's are those of "
        "BERT-base (12 layers, cased) on all sentences.\n\n"
        "| layers | input size | F1 | paper | seeds | seconds a run |\n"
        "| --- | --: | --: | --: | --: | --: |\n"
        "| Embeddings | 768 | 90.00 | 91.0 | 1 | 5 |\n"
        "| Concat Last Four Hidden | 3,072 | 95.50 ± 0.71 | 96.1 | 2 | 11 |\n"
    )
    whole = replace(
        data, train=replace(data.train, published_rows=20), validation=replace(data.validation, published_rows=10)
    )
    assert "20 training and 10 dev sentences; the model" in make_table(records, whole)


def test_a_model_with_too_few_layers_is_refused_before_the_work(folder, tmp_path):
    args = arguments(folder, tmp_path, model_name_or_path=str(folder / "model2"), layers=list(LAYER_CHOICES))
    args.features_dir = str(tmp_path / "features")
    with pytest.raises(
        InputError,
        match="needs 4 layers, the model has 2; give others: --layers embeddings second_to_last last weighted_sum_all",
    ):
        load_feature_data(args)
    assert not any(tmp_path.iterdir())


def test_a_masked_lm_checkpoint_is_opened_without_its_head_and_always_alike(folder, tmp_path, caplog):
    config = BertConfig.from_pretrained(folder / "model4")
    BertForMaskedLM(config).bfloat16().save_pretrained(tmp_path)
    load_tokenizer(folder / "model4").save_pretrained(tmp_path)
    encoder, tokenizer = open_encoder(str(tmp_path))
    assert type(encoder) is BertModel
    assert encoder.dtype == torch.float32
    assert len(tokenizer) == encoder.config.vocab_size
    keys = set()
    for name in "ab":
        args = arguments(folder, tmp_path / name, model_name_or_path=str(tmp_path), features_dir=str(tmp_path / "f"))
        with caplog.at_level(logging.INFO):
            keys.add(load_feature_data(args).train_features.key)
    assert len(keys) == 1
    assert caplog.text.count("kept ones reused") == 2


def test_a_checkpoint_of_another_vocabulary_than_its_tokenizer_is_refused(folder, tmp_path):
    config = BertConfig.from_pretrained(folder / "model2")
    config.vocab_size -= 3
    BertModel(config).save_pretrained(tmp_path)
    load_tokenizer(folder / "model2").save_pretrained(tmp_path)
    with pytest.raises(InputError, match="they do not belong together"):
        open_encoder(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("layers", ["lst"], "layers is 'lst'; allowed: embeddings, second_to_last"),
        ("layers", [], "layers is empty; allowed: embeddings"),
        ("seeds", [-1], r"seeds is \[-1\]; allowed: one or more numbers, 0 or more"),
        ("feature_dtype", "int8", "feature_dtype is 'int8'; allowed: float16, float32"),
        ("dropout", 1.0, "dropout is 1.0; allowed: 0 or more and below 1"),
        ("learning_rate", 0.0, "learning_rate is 0.0; allowed: above 0"),
        ("num_train_epochs", float("nan"), "num_train_epochs is nan; allowed: above 0"),
        ("max_train_sentences", 0, "max_train_sentences is 0; allowed: 1 or more"),
        ("lstm_dim", 0, "lstm_dim is 0; allowed: 1 or more"),
        ("precision", "fp16", "precision is 'fp16'; allowed: auto, fp32, bf16"),
    ],
)
def test_values_out_of_range_are_named(folder, tmp_path, name, value, message):
    with pytest.raises(InputError, match=message):
        arguments(folder, tmp_path, **{name: value})


def test_windows_longer_than_the_model_and_a_missing_folder_are_named(folder, tmp_path):
    with pytest.raises(InputError, match="max_seq_length is 512, the model has 64 positions"):
        load_feature_data(arguments(folder, tmp_path, max_seq_length=512))
    with pytest.raises(InputError, match="no folder nowhere/at/all"):
        load_feature_data(arguments(folder, tmp_path, model_name_or_path="nowhere/at/all"))
