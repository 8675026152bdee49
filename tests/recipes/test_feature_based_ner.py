"""recipes/feature_based_ner.py as a user runs it."""

import json

import pytest
from ner_folder import make_folder

from bert_recipes.features.arguments import LAYER_CHOICES, FeatureNerArguments
from bert_recipes.features.ner import resolve_length
from bert_recipes.features.results import check_results_folder, save_results


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with data/, model4/ and model2/."""
    folder = tmp_path_factory.mktemp("feature-ner")
    make_folder(folder)
    return folder


@pytest.mark.slow
def test_one_command_prints_and_writes_the_table(call_recipe, folder):
    flags = ["--use_cpu true --precision fp32 --max_seq_length 64 --lstm_dim 32"]
    flags += ["--model_name_or_path", folder / "model4", "--data_dir", folder / "data"]
    flags += ["--learning_rate 0.03 --train_batch_size 8 --num_train_epochs 16"]
    out = folder / "out"
    said = call_recipe("feature_based_ner", *flags, "--output_dir", out, "--seeds 1 2")
    results = json.loads((out / "all_results.json").read_text(encoding="utf-8"))
    assert [(run["way"], run["seed"]) for run in results["runs"]] == [
        (way, seed) for way in LAYER_CHOICES for seed in (1, 2)
    ]
    sizes = [results[name] for name in ("train_sentences", "eval_sentences", "num_layers")]
    assert sizes == [120, 20, 4]
    assert (out / "table.md").read_text(encoding="utf-8") in said
    assert "±" in said
    # Words decide their labels here, so that even a random encoder's states give them away.
    assert min(results[f"eval_f1_{way}"] for way in LAYER_CHOICES) > 0.7
    assert sorted(path.name for path in out.iterdir()) == [
        "all_results.json",
        "run.yaml",
        "table.md",
    ]


def test_the_same_command_may_be_given_again(folder, tmp_path):
    """Its max_seq_length is the model's."""
    for _ in range(2):
        args = FeatureNerArguments(model_name_or_path=str(folder / "model2"), use_cpu=True)
        resolve_length(args)
        check_results_folder(tmp_path, args)
        save_results(tmp_path, {}, "", args)


def test_results_of_other_settings_are_kept(call_recipe, folder, tmp_path):
    model = str(folder / "model2")
    args = FeatureNerArguments(model_name_or_path=model, seeds=[1, 2], use_cpu=True)
    resolve_length(args)
    save_results(tmp_path, {}, "", args)
    flags = ["--model_name_or_path", model, "--use_cpu true --output_dir", tmp_path, "--seeds 3"]
    message = call_recipe("feature_based_ner", *flags, code=1)
    assert message.endswith(
        f"output_dir {tmp_path} holds results of other settings (seeds); give another "
        "--output_dir, or move them away\n"
    )
