"""A sweep through the real recipes/finetune.py: a tiny model with random weights on 100 rows of MRPC."""

import json
import subprocess
import sys

import pytest
from transformers import AutoModelForSequenceClassification, BertConfig, BertModel

from bert_recipes.tokenization import load_tokenizer


@pytest.fixture
def model(tmp_path, shared_data):
    folder = tmp_path / "model"
    tokenizer = load_tokenizer(shared_data / "vocab" / "bert-base-uncased-vocab.txt", do_lower_case=True)
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(vocab_size=len(tokenizer), **size)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_a_sweep_of_real_runs_reports_what_they_measured(repository, shared_data, model, tmp_path):
    (tmp_path / "sweep.yaml").write_text("learning_rate: [1e-3, 1e-4]\nnum_train_epochs: 1\n")
    output = tmp_path / "runs"
    command = [
        sys.executable, "recipes/sweep_finetuning.py", "--launch", "cpu",
        "--sweep", str(tmp_path / "sweep.yaml"), "--num_seeds", "2", "--output_dir", str(output),
        "--config", "recipes/configs/finetune/glue.yaml", "--task", "mrpc", "--model_name_or_path", str(model),
        "--data_dir", str(shared_data / "glue"), "--max_train_examples", "100", "--max_eval_examples", "60",
        "--max_predict_examples", "20", "--do_predict", "true", "--use_cpu", "true",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=repository, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads((output / "sweep.json").read_text())
    assert report["metric"] == "f1"
    assert [item["settings"]["learning_rate"] for item in report["combinations"]] == ["1e-3", "1e-4"]
    medians = [item["median"] for item in report["combinations"]]
    assert report["combinations"][medians.index(max(medians))]["name"] == report["best"]
    runs = [run for item in report["combinations"] for run in item["runs"]]
    for run in runs:
        results = json.loads((output / run["folder"] / "all_results.json").read_text())
        assert run["value"] == results["eval_f1"]
        assert results["splits"]["train"]["examples"] == 100
        assert len((output / run["folder"] / "predictions_test.jsonl").read_text().splitlines()) == 20
    assert sum(run["has_weights"] for run in runs) == 1
    best = AutoModelForSequenceClassification.from_pretrained(output / "best")
    assert best.config.id2label == {0: "not_equivalent", 1: "equivalent"}
    # Nothing is left to run: the same command gives the same report at once.
    again = subprocess.run(command, capture_output=True, text=True, cwd=repository, check=False)
    assert again.stdout == done.stdout
    assert again.stderr.count("finished before, kept") == 4
