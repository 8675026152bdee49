"""A phrase far behind what an input holds: windows find it, the head of a text does not."""

import json
import random

import pytest


TASK = (
    "name: planted\nkind: sequence_classification\nfiles: {train: train.jsonl, validation: "
    "validation.jsonl}\ntext_columns: [text]\nlabel_column: label\nlabels: ['no', 'yes']\n"
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("planted"), random.Random(0)
    for split, number in (("train", 200), ("validation", 100)):
        lines = []
        for index in range(number):
            words = rng.choices("abcdefgh", k=rng.randint(100, 140))
            if index % 2:
                place = rng.randint(60, len(words) - 9)
                words[place : place + 9] = [
                    "the",
                    "of",
                    "and",
                    "the",
                    "of",
                    "and",
                    "the",
                    "of",
                    "and",
                ]
            lines.append(
                json.dumps({"text": " ".join(words), "label": ["no", "yes"][index % 2]}) + "\n"
            )
        (folder / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "task.yaml").write_text(TASK, encoding="utf-8")
    return folder


def run(call_recipe, data, checkpoint, folder, *flags):
    call_recipe(
        *(
            "finetune",
            "--task_file",
            data / "task.yaml",
            "--data_dir",
            data,
            "--model_name_or_path",
            checkpoint,
        ),
        *(
            "--output_dir",
            folder,
            "--max_seq_length",
            34,
            "--doc_stride",
            32,
            "--learning_rate",
            "5e-3",
            "--use_cpu",
            "true",
        ),
        *("--num_train_epochs", 12, "--dropout", 0, "--seed", 1, "--disable_tqdm", "true", *flags),
    )
    return json.loads((folder / "all_results.json").read_text())["eval_accuracy"]


@pytest.mark.slow
def test_windows_with_max_find_a_phrase_that_the_head_never_sees(
    call_recipe, data, tiny_checkpoint, tmp_path
):
    head = run(call_recipe, data, tiny_checkpoint, tmp_path / "head")
    found = run(
        call_recipe,
        data,
        tiny_checkpoint,
        tmp_path / "windows",
        "--long_documents",
        "windows",
        "--pool",
        "max",
    )
    assert 0.35 < head < 0.65
    assert found > 0.9
    # A prediction cuts and joins as the run did.
    flags = [
        "--model_name_or_path",
        tmp_path / "windows",
        "--input_file",
        data / "validation.jsonl",
    ]
    call_recipe("predict", *flags, "--output_file", tmp_path / "out.jsonl", "--use_cpu", "true")
    answers = [
        json.loads(line)["prediction"] for line in (tmp_path / "out.jsonl").read_text().splitlines()
    ]
    right = sum(answer == ["no", "yes"][index % 2] for index, answer in enumerate(answers))
    assert right / len(answers) == pytest.approx(found)
