"""Predictions are those of the training run, whatever the form and the order of the inputs."""

import json
import random
import shutil
from pathlib import Path

import pandas
import pytest
from safetensors.torch import load_file, save_file
from tiny_runs import TASKS, train_run, write_jsonl
from transformers import BertConfig, BertForSequenceClassification

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import (
    InputArguments,
    PredictionArguments,
    read_trained_settings,
)
from bert_recipes.finetuning.prediction import chunk_of_rows, load_predictor, read_chunks
from bert_recipes.metrics.entities import find_entities
from bert_recipes.tasks.task import Task
from bert_recipes.tokenization.loading import load_tokenizer


KINDS = tuple(TASKS)


def load(model, file, **flags):
    argv = f"--model_name_or_path {model} --input_file {file} --precision fp32 --use_cpu true"
    for name, value in flags.items():
        argv += f" --{name} {value}"
    args, inputs = parse_arguments(PredictionArguments, InputArguments, argv=argv.split())
    run_arguments = args.run_arguments(str(Path(file).parent / "trainer"))
    run_arguments.disable_tqdm = True
    return load_predictor(args, inputs, run_arguments)[0]


def predict(model, file, chunk_size=10_000, **flags):
    predictor = load(model, file, **flags)
    lines = []
    for chunk, predictions in predictor.predict_chunks(
        read_chunks(Path(file), predictor.task, chunk_size)
    ):
        lines += predictor.lines(chunk, predictions)
    return lines


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def predicted_in_training(run):
    return read_lines(run / "predictions_validation.jsonl")


def data_of(run):
    return run.parent / "data" / "validation.jsonl"


def assert_same(lines, expected):
    for line, expected_line in zip(lines, expected, strict=True):
        shares = pytest.approx(expected_line["probabilities"], abs=1e-5)
        assert line == expected_line | {"probabilities": shares}


@pytest.mark.parametrize(
    ("text", "context"),
    [("max_seq_length: 64\n", "document"), ("context: sentence\n", "sentence")],
)
def test_a_tagger_reads_what_it_read_in_training(tmp_path, text, context):
    """Runs from before the setting read documents."""
    (tmp_path / "run.yaml").write_text(text)
    assert read_trained_settings(str(tmp_path))["context"] == context


def test_a_pushed_model_is_read_as_its_folder_is(tiny_runs, tmp_path, monkeypatch):
    """task.yaml and run.yaml are in the repository: columns, labels, lengths."""
    run = tiny_runs("sequence_classification")
    repository = tmp_path / "models--me--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    shutil.copytree(run, repository / "snapshots" / "abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert read_trained_settings("me/tiny") == read_trained_settings(str(run))
    assert_same(predict("me/tiny", data_of(run)), predicted_in_training(run))


def test_a_checkpoint_of_a_run_knows_its_task(tiny_checkpoint, tmp_path):
    saving = ("--save_strategy", "steps", "--save_steps", 1)
    train_run("sequence_classification", tiny_checkpoint, tmp_path, *saving)
    predictor = load(tmp_path / "run" / "checkpoint-2", data_of(tmp_path / "run"))
    assert predictor.task.text_columns == ("first", "second")


def test_other_inputs_than_windows_do_not_take_the_pool_of_training(tmp_path):
    (tmp_path / "run.yaml").write_text("long_documents: windows\npool: max\nmax_seq_length: 64\n")
    config = BertConfig(architectures=["BertForSequenceClassification"])
    name = str(tmp_path)
    assert InputArguments().resolved(config, name)["pool"] == "max"
    assert InputArguments(long_documents="head").resolved(config, name)["pool"] is None


def test_choices_without_their_context_are_for_tasks_with_choices(tiny_runs):
    run = tiny_runs("token_classification")
    with pytest.raises(InputError, match="context is none, for choices without theirs"):
        load(run, data_of(run), context="none")


def test_a_file_with_the_name_of_the_columns_of_tags_is_not_replaced(tmp_path):
    (tmp_path / "test.conll").write_text("gold O\n")
    args = PredictionArguments(
        model_name_or_path="m", input_file="test.txt", output_file=str(tmp_path / "test.jsonl")
    )
    with pytest.raises(InputError, match=r"would also be written to .*test\.conll"):
        args.check_columns_file()
    (tmp_path / "test.jsonl").touch()  # an earlier prediction
    args.check_columns_file()


@pytest.mark.parametrize("kind", KINDS)
def test_batches_chunks_and_the_order_of_the_inputs_change_nothing(tiny_runs, tmp_path, kind):
    run = tiny_runs(kind)
    expected = predicted_in_training(run)
    rows = [{"idx": number} | row for number, row in enumerate(read_lines(data_of(run)))]
    order = random.Random(1).sample(range(len(rows)), len(rows))
    file = write_jsonl(tmp_path / "shuffled.jsonl", [rows[number] for number in order])
    for batch_size, chunk_size in ((1, 23), (4, 7), (64, 1)):
        lines = predict(run, file, batch_size=batch_size, chunk_size=chunk_size)
        assert_same(lines, [expected[number] for number in order])


def test_every_form_of_file_gives_the_same(tiny_runs, tmp_path):
    run = tiny_runs("sequence_classification")
    table = pandas.DataFrame(read_lines(data_of(run)))
    table["label"] = "no such class"  # labels are not looked at
    table.to_csv(tmp_path / "in.csv", index=False)
    table.to_csv(tmp_path / "in.tsv", index=False, sep="\t")
    table.to_parquet(tmp_path / "in.parquet")
    table.to_json(tmp_path / "in.json", orient="records")
    texts = "".join(f"{row.first}\t{row.second}\n" for row in table.itertuples())
    (tmp_path / "in.txt").write_text(texts)
    for file in sorted(tmp_path.glob("in.*")):
        assert_same(predict(run, file), predicted_in_training(run))


def test_columns_have_the_names_of_the_user_and_one_side_of_a_pair_may_be_empty(
    tiny_runs, tmp_path
):
    rows = [{"x": "a", "y": "", "number": "n1"}, {"x": "a", "y": "b", "number": "n0"}]
    file = write_jsonl(tmp_path / "in.jsonl", rows)
    run = tiny_runs("sequence_classification")
    lines = predict(run, file, text_columns="x y", id_column="number")
    assert [line["idx"] for line in lines] == ["n1", "n0"]


def test_choices_may_be_fewer_than_columns_and_their_context_empty(tmp_path):
    """As in the files of training: SWAG's endings may have no beginning."""
    task = Task(
        name="t",
        kind="multiple_choice",
        text_columns=("context", "start"),
        choice_columns=("a", "b", "c"),
        label_column="label",
    )
    file = tmp_path / "in.csv"
    file.write_text("context,start,a,b,c\nx,,d,e,\n,,d,e,f\n")
    (chunk,) = read_chunks(file, task)
    contexts = [example.context for example in chunk.split.examples]
    choices = [example.choices for example in chunk.split.examples]
    assert contexts == ["x", ""]
    assert choices == [("d", "e"), ("d", "e", "f")]
    rows = [
        {"context": "x", "start": "", "a": "d", "b": "e", "c": "f"},
        {"start": "s", "a": "d", "b": "e"},
    ]
    json_file = tmp_path / "in.jsonl"
    for in_order in (rows, rows[::-1]):  # a column may begin later
        json_file.write_text("\n".join(map(json.dumps, in_order)))
        (chunk,) = read_chunks(json_file, task)
        choices = {example.choices for example in chunk.split.examples}
        assert choices == {("d", "e", "f"), ("s d", "s e")}
    for row, message in (("x,,d,,", "1 choices; two or more"), ('"",,,,', "no input in it")):
        file.write_text(f"context,start,a,b,c\n{row}\n")
        with pytest.raises(InputError, match=message):
            list(read_chunks(file, task))


def test_words_may_be_a_line_of_text_or_conll_columns(tiny_runs, tmp_path):
    run = tiny_runs("token_classification")
    sentences = [row["tokens"] for row in read_lines(data_of(run))]
    texts = [" ".join(words) for words in sentences]
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in texts))
    lines = predict(run, tmp_path / "in.txt")
    spans = [line.pop("spans") for line in lines]
    assert_same(lines, predicted_in_training(run))
    # The entities of texts are said in characters too.
    for text, words, line, spans_of_line in zip(texts, sentences, lines, spans, strict=True):
        entities = []
        for name, first, last in find_entities(line["prediction"]):
            entities.append([" ".join(words[first : last + 1]), name])
        assert [[text[start:end], name] for start, end, name in spans_of_line] == entities
    assert any(spans)
    (tmp_path / "in.conll").write_text("".join("\n".join(words) + "\n\n" for words in sentences))
    assert_same(predict(run, tmp_path / "in.conll"), predicted_in_training(run))


def test_columns_of_words_never_take_the_place_of_the_input(tmp_path):
    """They are written beside the output, under its name."""
    flags = (
        f"--model_name_or_path m --input_file {tmp_path}/a.conll --output_file {tmp_path}/a.json"
    )
    with pytest.raises(InputError, match=r"a\.conll is the input file; give another name"):
        parse_arguments(PredictionArguments, argv=flags.split())


TEXTS = Task(
    name="t",
    kind="sequence_classification",
    text_columns=("text",),
    label_column="label",
    labels=("a", "b"),
)


def test_a_usual_column_that_holds_no_id_names_no_row(tmp_path):
    """Databases export objects, dates and truth values under that name."""
    rows = [{"id": {"$oid": "5f"}, "text": "a"}, {"id": True, "text": "b"}, {"id": 7, "text": "c"}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (chunk,) = read_chunks(tmp_path / "in.jsonl", TEXTS)
    assert chunk.ids == [0, 1, 7]
    with pytest.raises(InputError, match="line 1: the id in column 'id' is"):
        list(read_chunks(tmp_path / "in.jsonl", TEXTS, id_column="id"))


@pytest.mark.parametrize("settings", [{}, {"id_column": "id"}])
def test_an_id_that_no_file_can_hold_is_refused_before_anything_is_written(tmp_path, settings):
    (tmp_path / "in.jsonl").write_text('{"id": "\\ud83d", "text": "a"}\n')
    with pytest.raises(InputError, match="line 1: column 'id' holds half of a surrogate pair"):
        list(read_chunks(tmp_path / "in.jsonl", TEXTS, **settings))


def test_tables_with_a_word_a_row_are_read_as_in_training(tmp_path):
    task = Task(
        name="t",
        kind="token_classification",
        text_columns=("word",),
        label_column="tag",
        labels=("O", "B-X"),
        sentence_column="sentence",
        id_column="sentence",
    )
    (tmp_path / "in.csv").write_text("sentence,word\ns1,a\ns1,b\ns2,c\n")
    (tmp_path / "in.txt").write_text("a b\nc\n")
    (tmp_path / "in.conll").write_text("a\nb\n\nc\n")
    in_memory = chunk_of_rows(task, [{"word": "a b"}, {"word": "c"}], "demo")
    for name, ids in (("csv", ["s1", "s2"]), ("txt", [0, 1]), ("conll", [0, 1])):
        (chunk,) = read_chunks(tmp_path / f"in.{name}", task)
        assert [example.tokens for example in chunk.split.examples] == [("a", "b"), ("c",)]
        assert chunk.ids == ids
    assert [example.tokens for example in in_memory.split.examples] == [("a", "b"), ("c",)]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["我去北京。", "你好!"], ["我 去 北 京 。", "你 好 !"]),
        (
            ["林夏今天在奥斯陆工作", "今天", "我去北京。"],
            ["林 夏 今 天 在 奥 斯 陆 工 作", "今 天", "我 去 北 京 。"],
        ),
        (["我", "去", "北京", "。"], ["我 去 北京 。"]),
    ],
)
def test_sentences_without_spaces_are_no_words(tmp_path, lines, expected):
    """Chinese, Japanese and Thai: a line, or a cell, is a sentence or a word of one."""
    kind = "token_classification"
    task = Task(name="t", kind=kind, text_columns=("text",), label_column="tags", labels=("O",))
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    rows = "".join(f"1,{line}\n" for line in lines)
    (tmp_path / "in.csv").write_text(f"sentence_id,text\n{rows}")
    for name in ("in.txt", "in.csv"):
        (chunk,) = read_chunks(tmp_path / name, task)
        assert [" ".join(example.tokens) for example in chunk.split.examples] == expected


TAGGING = Task(
    name="t",
    kind="token_classification",
    text_columns=("text",),
    label_column="tags",
    labels=("O",),
)


def test_every_row_of_a_table_of_texts_has_a_line_of_the_output(tmp_path):
    """Without the row that is skipped, row k of the output would not be that of row k."""
    (tmp_path / "in.csv").write_text("text\nAnna in Rome\n\nBob in Oslo\n")
    with pytest.raises(InputError, match="line 3: an empty row; every row is an input"):
        list(read_chunks(tmp_path / "in.csv", TAGGING))
    # A table of words may have them between its sentences.
    (tmp_path / "in.csv").write_text("sentence_id,text\n1,Anna\n1,sings\n,\n2,Bob\n")
    (chunk,) = read_chunks(tmp_path / "in.csv", TAGGING)
    assert [example.tokens for example in chunk.split.examples] == [("Anna", "sings"), ("Bob",)]


@pytest.mark.parametrize("content", ["[1]\nA list\n", "[]\nA list\n", "#Berlin is hot\n"])
def test_a_line_of_a_text_file_is_a_text_whatever_it_looks_like(tmp_path, content):
    (tmp_path / "in.txt").write_text(content)
    (chunk,) = read_chunks(tmp_path / "in.txt", TAGGING)
    assert len(chunk.ids) == content.count("\n")
    assert all(example.offsets is not None for example in chunk.split.examples)


def test_texts_behind_ids_and_tabs_are_no_words(tmp_path):
    (tmp_path / "in.txt").write_text("doc7\tAnna Merkel visited Oslo.\ndoc8\tBob slept long.\n")
    with pytest.raises(InputError, match="its lines have tabs and texts of several words"):
        list(read_chunks(tmp_path / "in.txt", TAGGING))


def test_a_document_is_not_cut_between_two_chunks(tmp_path):
    file = tmp_path / "in.conll"
    file.write_text("-DOCSTART- O\n\na O\n\nb O\n\nc O\n\n-DOCSTART- O\n\nd O\n\ne O\n")
    kind = "token_classification"
    task = Task(name="t", kind=kind, text_columns=("tokens",), label_column="tags", labels=("O",))
    chunks = list(read_chunks(file, task, 1))
    words = ["".join(example.tokens[0] for example in chunk.split.examples) for chunk in chunks]
    assert words == ["abc", "de"]
    assert [chunk.ids for chunk in chunks] == [[0, 1, 2], [3, 4]]


def test_questions_may_have_no_answer_where_that_is_said(tiny_runs):
    run = tiny_runs("question_answering")
    settings = {"version_2_with_negative": "true", "null_score_diff_threshold": -1000}
    assert {line["prediction"] for line in predict(run, data_of(run), **settings)} == {""}


FLAGS = {
    "sequence_classification": {"text_columns": "first second"},
    "token_classification": {},
    "question_answering": {"doc_stride": 8, "max_query_length": 12},
    "multiple_choice": {"text_columns": "start", "choice_columns": "a b c"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_without_task_file_is_read_by_its_architecture(tiny_runs, tmp_path, kind):
    run = tiny_runs(kind)
    bare = tmp_path / "bare"
    ours = shutil.ignore_patterns("task.yaml", "run.yaml", "predictions*")
    shutil.copytree(run, bare, ignore=ours)
    lines = predict(bare, data_of(run), max_seq_length=40, **FLAGS[kind])
    assert_same(lines, predicted_in_training(run))


@pytest.mark.parametrize(
    ("problem_type", "num_labels"), [(None, 1), ("multi_label_classification", 3)]
)
def test_regression_and_several_labels_follow_from_the_configuration(
    tiny_checkpoint, tmp_path, problem_type, num_labels
):
    model = BertForSequenceClassification.from_pretrained(
        tiny_checkpoint, num_labels=num_labels, problem_type=problem_type
    )
    model.save_pretrained(tmp_path / "model")
    load_tokenizer(tiny_checkpoint).save_pretrained(tmp_path / "model")
    (tmp_path / "in.txt").write_text("ab cd\n")
    (line,) = predict(tmp_path / "model", tmp_path / "in.txt")
    if problem_type is None:
        assert isinstance(line["prediction"], float)
        assert "probabilities" not in line
    else:
        shares = line["probabilities"]
        assert list(shares) == ["LABEL_0", "LABEL_1", "LABEL_2"]
        assert line["prediction"] == [name for name in shares if shares[name] >= 0.5]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("in.jsonl", "", "in.jsonl: no input in it"),
        ("in.jsonl", '{"first": "a"}\n', "line 1: no column 'second'; columns present: first; say"),
        ("in.jsonl", '{"first": " ", "second": ""}\n', "line 1: column 'first' is empty"),
        ("in.txt", "a\tb\n\na\tb\n", "line 2: a blank line; every line is an input"),
        ("in.csv", "first,second\na,b\n,\na,b\n", "line 3: an empty row; every row is an input"),
        ("in.tsv", "first\tsecond\na\tb\n\na\tb\n", "line 3: an empty row; every row is an"),
        ("in.txt", "a b\n", "line 1: 'a b'; every line is an input of the form: first TAB second"),
        ("in.docx", "a", "unknown ending '.docx'; allowed: .jsonl"),
    ],
)
def test_an_input_that_does_not_fit_is_named_with_its_row(
    tiny_runs, tmp_path, name, content, words
):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as caught:
        load(tiny_runs("sequence_classification"), tmp_path / name)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"text_columns": "first"}, r"names 1 columns; .* was trained on 2: first, second"),
        ({"choice_columns": "a b"}, "is for multiple choice"),
        ({"output_file": "validation.jsonl"}, "validation.jsonl is the input file"),
        ({"output_file": "out.csv"}, "out.csv: predictions are JSON Lines; name it .jsonl"),
        ({"output_file": "out.conll"}, "out.conll: predictions are JSON Lines; name it .jsonl"),
        ({"output_file": "o.jsonl.gz"}, "o.jsonl.gz: it is written as plain text; name it .jsonl"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"id_column": "nowhere"}, r"line 1: no column 'nowhere'; columns present: first, second"),
    ],
)
def test_flags_that_do_not_fit_the_model_are_refused(tiny_runs, monkeypatch, flags, message):
    run = tiny_runs("sequence_classification")
    monkeypatch.chdir(data_of(run).parent)
    with pytest.raises(InputError, match=message):
        load(run, "validation.jsonl", **flags)


def edit_config(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def set_two_labels(folder):
    edit_config(folder, id2label={0: "yes", 1: "no"}, label2id={"yes": 0, "no": 1})


def remove_head(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["classifier.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def remove_tokenizer(folder):
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()


def remove_task_and_labels(folder):
    (folder / "task.yaml").unlink()
    set_two_labels(folder)  # the weights have three


def remove_task_and_architecture(folder):
    (folder / "task.yaml").unlink()
    edit_config(folder, architectures=["BertModel"])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (set_two_labels, "labels are yes, no; the task's are yes, no, perhaps"),
        (lambda folder: edit_config(folder, vocab_size=100), "has a vocabulary of 100"),
        (remove_tokenizer, "its own tokenizer"),
        (remove_head, "classifier"),
        (lambda folder: (folder / "task.yaml").write_text("kind: other\n"), "kind: 'other'"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"1" * 8), "cannot be opened"),
        (remove_task_and_labels, "classifier"),
        (remove_task_and_architecture, "is BertModel, which predicts none of: SequenceClassif"),
    ],
)
def test_a_checkpoint_whose_files_do_not_belong_together_is_refused(
    tiny_runs, tmp_path, damage, words
):
    run = tiny_runs("sequence_classification")
    copy = shutil.copytree(run, tmp_path / "copy")
    damage(copy)
    with pytest.raises(InputError) as caught:
        load(copy, data_of(run), text_columns="first second")
    assert words in str(caught.value)
