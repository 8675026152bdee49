"""Predictions are those of the training run, whatever the form and the order of the inputs; what
does not fit is named.
"""

import json
import random
import runpy
import shutil
from pathlib import Path

import pandas
import pytest
from safetensors.torch import load_file, save_file
from transformers import BertForSequenceClassification

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import (
    InputArguments,
    PredictionArguments,
    read_trained_settings,
)
from bert_recipes.finetuning.prediction import load_predictor, read_chunks
from bert_recipes.metrics.entities import find_entities
from bert_recipes.tasks.task import Task
from bert_recipes.tokenization.loading import load_tokenizer


TINY = runpy.run_path(str(Path(__file__).parents[1] / "fixtures" / "tiny_runs.py"))
KINDS = tuple(TINY["TASKS"])


@pytest.fixture
def copy(tiny_runs, tmp_path):
    """A copy of the text classifier that may be damaged."""
    return shutil.copytree(tiny_runs("sequence_classification"), tmp_path / "copy")


def load(model, file, **flags):
    argv = [
        "--model_name_or_path",
        str(model),
        "--input_file",
        str(file),
        "--precision",
        "fp32",
        "--use_cpu",
        "true",
    ]
    for name, value in flags.items():
        argv += [f"--{name}", *(map(str, value) if isinstance(value, list) else [str(value)])]
    args, inputs = parse_arguments(PredictionArguments, InputArguments, argv=argv)
    run_arguments = args.run_arguments(str(Path(file).parent / "trainer"))
    run_arguments.disable_tqdm = True
    return load_predictor(args, inputs, run_arguments)[0]


def predict(model, file, chunk_size=10_000, **flags):
    predictor = load(model, file, **flags)
    chunks = predictor.predict_chunks(read_chunks(Path(file), predictor.task, chunk_size))
    return [line for chunk, predictions in chunks for line in predictor.lines(chunk, predictions)]


def predicted_in_training(run):
    return [
        json.loads(line) for line in (run / "predictions_validation.jsonl").read_text().splitlines()
    ]


def data_of(run):
    return run.parent / "data" / "validation.jsonl"


def rows_of(run):
    return [json.loads(line) for line in data_of(run).read_text().splitlines()]


def assert_same(found, expected, *, but_for_ids=False):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert but_for_ids or one["idx"] == other["idx"]
        assert one["prediction"] == other["prediction"]
        shares, wanted = one["probabilities"], other["probabilities"]
        if isinstance(wanted, dict):
            assert list(shares) == list(wanted)
            shares, wanted = list(shares.values()), list(wanted.values())
        assert shares == pytest.approx(wanted, abs=1e-5)


def test_a_tagger_from_before_the_setting_reads_documents_and_a_later_one_what_it_read_in_training(
    tmp_path,
):
    (tmp_path / "run.yaml").write_text("max_seq_length: 64\n")
    assert read_trained_settings(tmp_path) == {"max_seq_length": 64, "context": "document"}
    (tmp_path / "run.yaml").write_text("context: sentence\n")
    assert read_trained_settings(tmp_path) == {"context": "sentence"}


@pytest.mark.parametrize("kind", KINDS)
def test_batches_chunks_and_the_order_of_the_inputs_change_nothing(tiny_runs, tmp_path, kind):
    run = tiny_runs(kind)
    rows = [{"idx": number} | row for number, row in enumerate(rows_of(run))]
    order = random.Random(1).sample(range(len(rows)), len(rows))
    file = TINY["write_jsonl"](tmp_path / "shuffled.jsonl", [rows[number] for number in order])
    expected = predicted_in_training(run)
    for batch_size, chunk_size in ((1, 23), (4, 7), (64, 1)):
        found = predict(run, file, batch_size=batch_size, chunk_size=chunk_size)
        assert_same(found, [expected[number] for number in order])


def test_every_form_of_file_gives_the_same(tiny_runs, tmp_path):
    run = tiny_runs("sequence_classification")
    rows, expected = rows_of(run), predicted_in_training(run)
    for row in rows:
        row["label"] = "no such class"  # labels are not looked at
    table = pandas.DataFrame(rows)
    table.to_csv(tmp_path / "in.csv", index=False)
    table.to_csv(tmp_path / "in.tsv", index=False, sep="\t")
    table.to_parquet(tmp_path / "in.parquet")
    (tmp_path / "in.txt").write_text("".join(f"{row['first']}\t{row['second']}\n" for row in rows))
    (tmp_path / "in.json").write_text(json.dumps(rows))
    for file in sorted(tmp_path.glob("in.*")):
        assert_same(predict(run, file), expected)
    renamed = [
        {"x": row["first"], "y": row["second"], "number": f"n{n}"} for n, row in enumerate(rows)
    ]
    found = predict(
        run,
        TINY["write_jsonl"](tmp_path / "re.jsonl", renamed),
        text_columns=["x", "y"],
        id_column="number",
    )
    assert_same(found, expected, but_for_ids=True)
    assert [line["idx"] for line in found] == [row["number"] for row in renamed]


def test_one_side_of_a_pair_may_be_empty(tiny_runs, tmp_path):
    file = TINY["write_jsonl"](tmp_path / "in.jsonl", [{"first": "a", "second": ""}])
    assert len(predict(tiny_runs("sequence_classification"), file)) == 1


def test_words_may_be_a_line_of_text_or_conll_columns(tiny_runs, tmp_path):
    run = tiny_runs("token_classification")
    sentences, expected = [row["tokens"] for row in rows_of(run)], predicted_in_training(run)
    texts = [" ".join(words) for words in sentences]
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in texts))
    found = predict(run, tmp_path / "in.txt")
    assert_same([{name: line[name] for name in expected[0]} for line in found], expected)
    # The entities of texts are said in characters too.
    for text, words, line in zip(texts, sentences, found, strict=True):
        entities = find_entities(line["prediction"])
        assert [name for _, _, name in line["spans"]] == [name for name, _, _ in entities]
        for (start, end, _), (_, first, last) in zip(line["spans"], entities, strict=True):
            assert text[start:end] == " ".join(words[first : last + 1])
    assert any(line["spans"] for line in found)
    (tmp_path / "in.conll").write_text("".join("\n".join(words) + "\n\n" for words in sentences))
    assert_same(predict(run, tmp_path / "in.conll"), expected)


def test_a_document_is_not_cut_between_two_chunks(tmp_path):
    (tmp_path / "in.conll").write_text(
        "-DOCSTART- O\n\na O\n\nb O\n\nc O\n\n-DOCSTART- O\n\nd O\n\ne O\n"
    )
    task = Task(
        name="t",
        kind="token_classification",
        text_columns=("tokens",),
        label_column="labels",
        labels=("O",),
    )
    chunks = list(read_chunks(tmp_path / "in.conll", task, 1))
    words = ["".join(example.tokens[0] for example in chunk.split.examples) for chunk in chunks]
    assert words == ["abc", "de"]
    assert [chunk.ids for chunk in chunks] == [[0, 1, 2], [3, 4]]


def test_questions_may_have_no_answer_where_that_is_said(tiny_runs, tmp_path):
    run = tiny_runs("question_answering")
    found = predict(
        run, data_of(run), version_2_with_negative="true", null_score_diff_threshold="-1000"
    )
    assert {line["prediction"] for line in found} == {""}
    assert "" not in {line["prediction"] for line in predict(run, data_of(run))}


def test_a_checkpoint_without_task_file_is_read_by_its_architecture(tiny_runs, tmp_path):
    for kind in KINDS:
        run, bare = tiny_runs(kind), tmp_path / kind
        shutil.copytree(
            run, bare, ignore=shutil.ignore_patterns("task.yaml", "run.yaml", "predictions*")
        )
        flags = {"max_seq_length": 40}  # run.yaml said so
        if kind == "sequence_classification":
            flags["text_columns"] = ["first", "second"]
        elif kind == "question_answering":
            flags |= {"doc_stride": 8, "max_query_length": 12}
        elif kind == "multiple_choice":
            flags |= {"text_columns": ["start"], "choice_columns": ["a", "b", "c"]}
        assert_same(predict(bare, data_of(run), **flags), predicted_in_training(run))


def test_regression_and_several_labels_follow_from_the_configuration(tiny_checkpoint, tmp_path):
    (tmp_path / "in.txt").write_text("ab cd\nef\n")
    for problem, number in ((None, 1), ("multi_label_classification", 3)):
        folder = tmp_path / str(problem)
        model = BertForSequenceClassification.from_pretrained(
            tiny_checkpoint, num_labels=number, problem_type=problem
        )
        model.save_pretrained(folder)
        load_tokenizer(tiny_checkpoint).save_pretrained(folder)
        for line in predict(folder, tmp_path / "in.txt"):
            shares = line.get("probabilities", {})
            assert list(shares) == ["LABEL_0", "LABEL_1", "LABEL_2"] * (problem is not None)
            chosen = [name for name, share in shares.items() if share >= 0.5]
            assert (
                line["prediction"] == chosen if problem else isinstance(line["prediction"], float)
            )


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("in.jsonl", "", "in.jsonl: no input in it"),
        (
            "in.jsonl",
            '{"first": "a", "second": "b"}\n{"first": "a"}\n',
            "line 2: no column 'second'; columns present: first; say with --text_columns",
        ),
        ("in.jsonl", '{"first": " ", "second": ""}\n', "line 1: column 'first' is empty"),
        ("in.txt", "a\tb\n\na\tb\n", "line 2: a blank line; every line is an input"),
        (
            "in.txt",
            "a\tb\na b\n",
            "line 2: 'a b'; every line is an input of the form: first TAB second",
        ),
        ("in.docx", "a", "unknown ending '.docx'; allowed: .jsonl"),
    ],
)
def test_an_input_that_does_not_fit_is_named_with_its_row(
    tiny_runs, tmp_path, name, content, words
):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as caught:
        predict(tiny_runs("sequence_classification"), tmp_path / name)
    assert words in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"text_columns": "first"}, r"names 1 columns; .* was trained on 2: first, second"),
        ({"choice_columns": ["a", "b"]}, "is for multiple choice"),
        ({"output_file": "validation.jsonl"}, "is the input file"),
        ({"batch_size": 0}, "batch_size is 0"),
        (
            {"id_column": "nowhere"},
            r"line 1: no column 'nowhere'; columns present: first, second, label",
        ),
    ],
)
def test_flags_that_do_not_fit_the_model_are_refused(tiny_runs, monkeypatch, flags, message):
    run = tiny_runs("sequence_classification")
    monkeypatch.chdir(data_of(run).parent)
    with pytest.raises(InputError, match=message):
        load(run, flags.pop("file", "validation.jsonl"), **flags)


def edit_config(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def set_labels(folder, names):
    edit_config(
        folder,
        id2label=dict(enumerate(names)),
        label2id={name: number for number, name in enumerate(names)},
    )


def without_head(folder):
    weights = load_file(folder / "model.safetensors")
    weights = {
        name: weight for name, weight in weights.items() if not name.startswith("classifier")
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def without_tokenizer(folder):
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            lambda folder: set_labels(folder, ["yes", "no"]),
            "labels are yes, no; the task's are yes, no, perhaps",
        ),
        (
            lambda folder: edit_config(folder, vocab_size=100),
            "has a vocabulary of 100, the tokenizer",
        ),
        (without_tokenizer, "its own tokenizer"),
        (without_head, "classifier"),
        (
            lambda folder: (folder / "task.yaml").write_text("kind: other\n"),
            "kind: 'other'; allowed",
        ),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"12345678"),
            "cannot be opened",
        ),
    ],
)
def test_a_checkpoint_whose_parts_do_not_belong_together_is_refused(tiny_runs, copy, damage, words):
    damage(copy)
    with pytest.raises(InputError) as caught:
        load(copy, data_of(tiny_runs("sequence_classification")))
    assert words in str(caught.value)


def test_a_checkpoint_without_task_file_and_without_its_head_is_refused(tiny_runs, copy):
    (copy / "task.yaml").unlink()
    file = data_of(tiny_runs("sequence_classification"))
    set_labels(copy, ["yes", "no"])  # the weights have three
    with pytest.raises(InputError, match="classifier"):
        load(copy, file, text_columns=["first", "second"])
    edit_config(copy, architectures=["BertModel"])
    with pytest.raises(
        InputError, match="is BertModel, which predicts none of: SequenceClassification, TokenCl"
    ):
        load(copy, file, text_columns=["first", "second"])
