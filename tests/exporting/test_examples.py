"""example.py of each head runs where neither torch nor transformers nor this project is, and says
what predict.py says.
"""

import json
import subprocess
import sys

import pytest
from transformers import BertForSequenceClassification

from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.inspection import fill_every_mask, judge_next_sentence
from bert_recipes.tokenization.loading import load_tokenizer


# Whoever imports one of these gets an error.
FORBIDDEN = ("torch", "transformers", "bert_recipes", "datasets")


def run_example(folder, text, tmp_path):
    blocked = f"import sys; sys.modules.update(dict.fromkeys({FORBIDDEN!r}))\n"
    start = (
        f"{blocked}import runpy; runpy.run_path({str(folder / 'example.py')!r}, "
        "run_name='__main__')"
    )
    command = [sys.executable, "-c", start]
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def rows_and_predictions(run, columns, most_of_first=37):
    """What fits into the run's 40 positions; a piece is a letter. Longer inputs are cut by the
    library's rule, not ours.

    `columns` are read together; of several in a tuple the longest counts.
    """
    rows = [
        json.loads(line)
        for line in (run.parent / "data" / "validation.jsonl").read_text().splitlines()
    ]
    predicted = [
        json.loads(line) for line in (run / "predictions_validation.jsonl").read_text().splitlines()
    ]

    def pieces(row, column):
        if isinstance(column, tuple):
            return max(pieces(row, each) for each in column)
        return sum(letter != " " for letter in "".join(row[column]))

    fits = [
        pieces(row, columns[0]) <= most_of_first
        and sum(pieces(row, column) for column in columns) <= 37
        for row in rows
    ]
    assert sum(fits) >= 5
    return [
        [each for each, fit in zip(part, fits, strict=True) if fit] for part in (rows, predicted)
    ]


def test_classes(exported, runs, tmp_path):
    rows, expected = rows_and_predictions(runs("sequence_classification"), ("first", "second"))
    text = "".join(f"{row['first']}\t{row['second']}\n" for row in rows)
    lines = [
        line.split("\t")
        for line in run_example(exported("sequence_classification")[0], text, tmp_path)
    ]
    assert [line[0] for line in lines] == [line["prediction"] for line in expected]
    shares = [line["probabilities"][line["prediction"]] for line in expected]
    assert [float(line[1]) for line in lines] == pytest.approx(shares, abs=1e-4)


@pytest.mark.slow
def test_tags(exported, runs, tmp_path):
    rows, expected = rows_and_predictions(runs("token_classification"), ("tokens",))
    text = "".join(" ".join(row["tokens"]) + "\n" for row in rows)
    assert run_example(exported("token_classification")[0], text, tmp_path) == [
        " ".join(
            f"{word}/{tag}" for word, tag in zip(row["tokens"], line["prediction"], strict=True)
        )
        for row, line in zip(rows, expected, strict=True)
    ]


def test_answers(exported, runs, tmp_path):
    rows, expected = rows_and_predictions(
        runs("question_answering"), ("question", "context"), most_of_first=12
    )
    text = "".join(f"{row['question']}\t{row['context']}\n" for row in rows)
    lines = run_example(exported("question_answering")[0], text, tmp_path)
    assert [line.split("\t")[0] for line in lines] == [line["prediction"] for line in expected]


@pytest.mark.slow
def test_choices(exported, runs, tmp_path):
    rows, expected = rows_and_predictions(runs("multiple_choice"), ("start", ("a", "b", "c")))
    text = "".join("\t".join(row[name] for name in ("start", "a", "b", "c")) + "\n" for row in rows)
    lines = [
        line.split("\t") for line in run_example(exported("multiple_choice")[0], text, tmp_path)
    ]
    assert [int(line[0]) for line in lines] == [line["prediction"] for line in expected]
    shares = [max(line["probabilities"]) for line in expected]
    assert [float(line[1]) for line in lines] == pytest.approx(shares, abs=1e-4)


def test_masks_and_pairs(exported, pretrained_run, tmp_path):
    model, tokenizer = (
        BertForPreTraining.from_pretrained(pretrained_run),
        load_tokenizer(pretrained_run),
    )
    lines = run_example(exported("pretraining")[0], "w1 w2 [MASK] w4\nw1 w2\tw3 w4 w5\n", tmp_path)
    (found,) = fill_every_mask(model, tokenizer, "w1 w2 [MASK] w4").guesses
    is_next = judge_next_sentence(model, tokenizer, "w1 w2", "w3 w4 w5")
    guesses = ", ".join(f"{piece} {share:.3f}" for piece, share in found)
    assert lines == [
        "w1 w2 [MASK] w4",
        f"  [MASK]: {guesses}",
        "w1 w2\tw3 w4 w5",
        f"  the second follows the first: {is_next:.3f}",
    ]


@pytest.mark.slow
def test_several_labels_numbers_and_names_left_out(tiny_checkpoint, export, tmp_path):
    (tmp_path / "in.txt").write_text("ab cd\nef\n")
    # The last's config.json names no labels: they are the library's default.
    for problem, number in (
        ("regression", 1),
        ("multi_label_classification", 3),
        ("multi_label_classification", 1),
        ("single_label_classification", 2),
    ):
        place = tmp_path / f"{problem}-{number}"
        model = BertForSequenceClassification.from_pretrained(
            tiny_checkpoint, num_labels=number, problem_type=problem
        )
        model.save_pretrained(place)
        load_tokenizer(tiny_checkpoint).save_pretrained(place)
        folder, report = export(place, "--input_file", tmp_path / "in.txt")
        assert (report["rows"][-1]["same_predictions"] is None) == (problem == "regression")
        lines = run_example(folder, "ab cd\nef\n", tmp_path)
        assert len(lines) == 2
        for line in lines:
            first = line.split("\t")[0]
            if problem == "regression":
                float(first)
            else:
                assert set(filter(None, first.split(", "))) <= {"LABEL_0", "LABEL_1", "LABEL_2"}
