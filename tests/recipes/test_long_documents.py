"""A phrase far behind what an input holds: windows find it, the head of a text does not."""

import json
import random

import pytest
from tiny_runs import write_jsonl


TASK = (
    "name: planted\nkind: sequence_classification\nfiles: {train: train.jsonl, validation: "
    "validation.jsonl}\ntext_columns: [text]\nlabel_column: label\nlabels: ['no', 'yes']\n"
)


LABELS = ["no", "yes"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    rng = random.Random(0)
    for split, number in (("train", 200), ("validation", 100)):
        rows = []
        for index in range(number):
            words = rng.choices("abcdefgh", k=rng.randint(100, 140))
            if index % 2:
                place = rng.randint(60, len(words) - 9)
                words[place : place + 9] = ["the", "of", "and"] * 3
            rows.append({"text": " ".join(words), "label": LABELS[index % 2]})
        write_jsonl(folder / f"{split}.jsonl", rows)
    (folder / "task.yaml").write_text(TASK, encoding="utf-8")
    return folder


@pytest.mark.slow
def test_windows_with_max_find_a_phrase_that_the_head_never_sees(
    call_recipe, data, tiny_checkpoint, tmp_path, start_recipe
):
    def accuracy(folder, flags=""):
        paths = f"--task_file {data}/task.yaml --data_dir {data} --output_dir {folder}"
        settings = "--max_seq_length 34 --doc_stride 32 --learning_rate 5e-3 --use_cpu true"
        settings += " --num_train_epochs 12 --dropout 0 --seed 1 --disable_tqdm true"
        settings += f" --model_name_or_path {tiny_checkpoint}"
        call_recipe("finetune", paths, settings, flags)
        return json.loads((folder / "all_results.json").read_text())["eval_accuracy"]

    assert 0.35 < accuracy(tmp_path / "head") < 0.65
    windows = tmp_path / "windows"
    score = accuracy(windows, "--long_documents windows --pool max")
    assert score > 0.9
    # A prediction cuts and joins as the run did.
    paths = f"--model_name_or_path {windows} --input_file {data}/validation.jsonl"
    done = start_recipe("predict", paths, "--use_cpu true")
    predictions = [json.loads(line)["prediction"] for line in done.stdout.splitlines()]
    num_right = sum(label == LABELS[n % 2] for n, label in enumerate(predictions))
    assert num_right / len(predictions) == pytest.approx(score)
    assert "cut off" not in done.stderr
