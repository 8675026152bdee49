"""recipes/convert_checkpoint.py, and training that goes on from what it writes."""

import json
import runpy
import subprocess
import sys

import numpy as np
import pytest
from fixture_parts import CONFIG, PIECES
from original_model import draw_variables, write_original

from bert_recipes.tensor_bundle import BundleReader


FLAGS = [
    "--max_seq_length",
    "32",
    "--per_device_train_batch_size",
    "4",
    "--global_train_batch_size",
    "4",
    "--use_cpu",
    "true",
]
FLAGS += ["--max_steps", "2", "--eval_strategy", "no", "--precision", "fp32"]


def run(repository, *command, ok=True):
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, timeout=300, check=False, cwd=repository
    )
    assert (done.returncode == 0) == ok, done.stderr[-2000:]
    return done


def test_a_checkpoint_of_google_goes_on_here_and_back(repository, tmp_path):
    folder = tmp_path / "uncased_L-2_H-8_A-2"
    variables = draw_variables(with_adam=True)
    prefix = write_original(folder, variables)
    converter = "recipes/convert_checkpoint.py"
    done = run(repository, converter, "--tf_checkpoint", prefix, "--output_dir", tmp_path / "hub")
    num = len(draw_variables())
    assert done.stdout.splitlines() == [
        f"read {prefix}: {num} variables, {sum(array.size for array in draw_variables().values()):,} parameters",
        f"left out: {2 * num + 1} variables of the optimiser, which a new run starts anew",
        f"wrote {tmp_path / 'hub'}: BertForPreTraining, do_lower_case true",
    ]

    # Pre-training goes on.
    (tmp_path / "text.txt").write_text("a b c. d e f. g h i j k. l m n o.\n\np q r s. t u v w. x y z.\n\n" * 40)
    prepare = ["recipes/prepare_corpus.py", "--files", tmp_path / "text.txt", "--tokenizer", tmp_path / "hub"]
    run(repository, *prepare, "--num_processes", "1", "--output_dir", tmp_path / "store")
    pretrain = ["recipes/pretrain.py", "--model_name_or_path", tmp_path / "hub", "--store", tmp_path / "store", *FLAGS]
    run(repository, *pretrain, "--warmup_steps", "1", "--save_strategy", "no", "--output_dir", tmp_path / "run")

    # So does fine-tuning, and no part of the encoder starts anew.
    rows = [{"text": "a b c", "label": 0}, {"text": "x y z", "label": 1}] * 4
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = "files: {train: train.jsonl, validation: validation.jsonl}"
    (tmp_path / "task.yaml").write_text(
        f"name: mine\nkind: sequence_classification\nlabels: [a, b]\ntext_columns: text\n{files}\n"
    )
    tune = [
        "recipes/finetune.py",
        "--task_file",
        tmp_path / "task.yaml",
        "--model_name_or_path",
        tmp_path / "hub",
        *FLAGS,
    ]
    done = run(repository, *tune, "--output_dir", tmp_path / "tuned")
    assert "starts anew" not in done.stderr

    # And back: the trained models as the original reads them.
    back = run(
        repository,
        converter,
        "--model_name_or_path",
        tmp_path / "run",
        "--to_tensorflow",
        "--output_dir",
        tmp_path / "tf",
    )
    assert f"--init_checkpoint={tmp_path / 'tf' / 'bert_model.ckpt'} " in back.stdout
    assert "--do_lower_case=True" in back.stdout
    reader = BundleReader(tmp_path / "tf" / "bert_model.ckpt")
    assert reader.variables.keys() == draw_variables().keys()
    name = "bert/pooler/dense/kernel"
    difference = np.abs(reader.read(name) - variables[name]).max()
    assert 0 < difference < 0.01  # two steps further
    done = run(
        repository,
        converter,
        "--model_name_or_path",
        tmp_path / "tuned",
        "--to_tensorflow",
        "--output_dir",
        tmp_path / "tf2",
    )
    assert "labels, in the order of the classifier's rows: a, b" in done.stdout
    assert BundleReader(tmp_path / "tf2" / "bert_model.ckpt").variables["output_weights"].shape == (
        2,
        CONFIG["hidden_size"],
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give either --tf_checkpoint, or --model_name_or_path with --to_tensorflow"),
        (["--tf_checkpoint", "a", "--model_name_or_path", "b"], "give either --tf_checkpoint"),
        (["--model_name_or_path", "b"], "are given together"),
        (["--tf_checkpoint", "a", "--to_tensorflow"], "are given together"),
        (
            ["--model_name_or_path", "b", "--to_tensorflow", "--vocab_file", "v"],
            "--vocab_file goes with --tf_checkpoint",
        ),
        (["--model_name_or_path", "b", "--to_tensorflow", "--do_lower_case", "false"], "--do_lower_case goes with"),
        (["--model_name_or_path", "nowhere", "--to_tensorflow"], "nowhere has no config.json"),
        (["--tf_checkpoint", "nowhere"], "no nowhere.index; give the folder or the path"),
        (["--tf_checkpoint", "{google}", "--bert_config_file", "x"], "bert_config_file: no file x"),
        (["--tf_checkpoint", "{google}", "--do_lower_case", "false"], "an uncased model by its name"),
        (["--tf_checkpoint", "{google}", "--output_dir", "{google}"], "is not empty; give a new folder"),
        (["--tf_checkpoint", "{google}", "--skip_variables", "cls/x"], "nothing that is called cls/x"),
    ],
)
def test_mistakes_are_one_line(repository, tmp_path, monkeypatch, capsys, flags, message):
    google = tmp_path / "uncased_L-2_H-8_A-2"
    write_original(google, draw_variables(), pieces=PIECES)
    script = repository / "recipes" / "convert_checkpoint.py"
    words = [flag.replace("{google}", str(google)) for flag in flags]
    output = [] if "--output_dir" in words else ["--output_dir", str(tmp_path / "new")]
    monkeypatch.setattr(sys, "argv", [str(script), *words, *output])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(script), run_name="__main__")
    assert caught.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert not (tmp_path / "new").exists()
