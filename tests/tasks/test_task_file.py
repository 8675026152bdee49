"""A task of one's own is a YAML file: the page's examples run, every slip is one line."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.tasks.catalogue import get_task, list_tasks
from bert_recipes.tasks.examples import Answer
from bert_recipes.tasks.sources import load_split
from bert_recipes.tasks.task import Task
from bert_recipes.tasks.task_file import (
    KEYS,
    log_found_labels,
    read_task_file,
    write_task_file,
)


PAGE = Path(__file__).resolve().parents[2] / "docs" / "tasks.md"
# {file: text} of the page's task files, whose first line is their name.
EXAMPLES = {
    text.split()[1]: text
    for text in re.findall(r"^```yaml\n(# .*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
}

SQUAD = {
    "data": [
        {
            "title": "Manual",
            "paragraphs": [
                {
                    "context": "Take off both of the two bolts.",
                    "qas": [
                        {
                            "id": "1",
                            "question": "Which?",
                            "answers": [{"text": "two bolts", "answer_start": 21}],
                        },
                        {"id": "2", "question": "Why?", "answers": [], "is_impossible": True},
                    ],
                }
            ],
        }
    ]
}
FLAT = {
    "id": "3",
    "question": "Which?",
    "context": "Fasten these two bolts.",
    "answers": {"text": ["two bolts"], "answer_start": [13]},
}
POSTS = (
    '{"text": "Rain in Bergen", "topics": ["travel", "weather"]}\n{"text": "", "topics": '
    '[]}\n{"text": "Match", "topics": ["sport"]}\n'
)
# What the page says of the files, and what comes out: train texts and labels.
FILES = {
    "tickets.yaml": {
        "tickets_train.csv": 'subject,kind\n"The page is blank, again",1\nHow?,0\nDark '
        "mode,3\nCrash,2\n",
        "tickets_dev.csv": "subject,kind\nHow?,0\n",
    },
    "posts.yaml": {
        "posts_train.jsonl": POSTS,
        "posts_dev.jsonl": POSTS,
        "posts_test.jsonl": '{"text": "Snow"}\n',
    },
    "names.yaml": {
        "names_train.txt": "The O\nSea B-SHIP\nCloud I-SHIP\n\nleft O\nBergen B-PORT\nHarbour "
        "I-PORT\n",
        "names_dev.txt": "Bergen\tB-PORT\n",
    },
    "manual.yaml": {
        "manual_train.json": json.dumps(SQUAD),
        "manual_dev.jsonl": json.dumps(FLAT) + "\n",
    },
    "quiz.yaml": {
        "quiz_train.csv": "question,a,b,c,right\nWhere do trout live?,in trees,in rivers,in "
        "books,b\n",
        "quiz_dev.csv": "question,a,b,c,right\nWhat is red?,grass,the sky,blood,c\n",
    },
}


def write_example(folder: Path, name: str) -> Path:
    for file, text in FILES[name].items():
        (folder / file).write_text(text, encoding="utf-8")
    path = folder / name
    path.write_text(EXAMPLES[name], encoding="utf-8")
    return path


@pytest.mark.parametrize("name", FILES)
def test_an_example_of_the_page_is_read_with_all_its_splits(tmp_path: Path, name: str):
    task = read_task_file(write_example(tmp_path, name))
    assert task.name == Path(name).stem
    for split in (task.train_split, *task.validation_splits):
        loaded = load_split(task, split, data_dir=None, need_labels=True)
        assert loaded.published_rows is None
        assert not loaded.is_partial
    for split in task.test_splits:
        assert not load_split(task, split, data_dir=None).is_labelled


def train(folder: Path, name: str):
    return load_split(read_task_file(write_example(folder, name)), "train", data_dir=None).examples


def test_values_in_files_get_their_class_and_two_may_share_one(tmp_path: Path):
    task = read_task_file(write_example(tmp_path, "tickets.yaml"))
    assert task.labels == ("question", "bug", "wish")
    assert [example.label for example in train(tmp_path, "tickets.yaml")] == [1, 0, 2, 1]


def test_multi_label_rows_are_sorted_numbers(tmp_path: Path):
    assert [example.label for example in train(tmp_path, "posts.yaml")] == [(0, 1), (), (2,)]


def test_the_examples_of_the_other_kinds_hold_what_the_files_say(tmp_path: Path):
    names = train(tmp_path, "names.yaml")
    assert [(example.tokens, example.labels) for example in names] == [
        (("The", "Sea", "Cloud"), (0, 1, 2)),
        (("left", "Bergen", "Harbour"), (0, 3, 4)),
    ]
    manual = train(tmp_path, "manual.yaml")
    assert [example.answers for example in manual] == [
        (Answer(text="two bolts", answer_start=21),),
        (),
    ]
    (quiz,) = train(tmp_path, "quiz.yaml")
    assert (quiz.context, quiz.choices, quiz.label) == (
        "Where do trout live?",
        ("in trees", "in rivers", "in books"),
        1,
    )


def test_a_missing_file_is_named(tmp_path: Path):
    path = write_example(tmp_path, "quiz.yaml")
    (tmp_path / "quiz_train.csv").unlink()
    with pytest.raises(
        InputError, match=r"task quiz, split 'train': .*quiz_train.csv: no such file; fix `files`"
    ):
        load_split(read_task_file(path), "train", data_dir=None)


# What a task file may not say

VALID = {
    "kind": "sequence_classification",
    "files": "{train: a.csv}",
    "text_columns": "t",
    "labels": "[a, b]",
}
CHOICES = {"kind": "multiple_choice", "files": "{train: a.csv}", "text_columns": "q"}
QUESTIONS = {"kind": "question_answering", "files": "{train: a.json}"}
TAGS = {"kind": "token_classification", "files": "{train: a.txt}", "labels": "[N, V]"}
REGRESSION = {"labels": None, "problem_type": "regression"}


def yaml_of(keys: dict[str, str | None]) -> str:
    return "".join(f"{key}: {value}\n" for key, value in keys.items() if value is not None)


@pytest.fixture
def refuse(write):
    def read_refused(text: str, message: str) -> None:
        path = write("own.yaml", text)
        with pytest.raises(InputError, match=message) as error:
            read_task_file(path)
        assert "\n" not in str(error.value)
        assert str(error.value).startswith(str(path))

    return read_refused


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "own.yaml: no settings in this file"),
        ("- a\n", "own.yaml, line 1: expected lines"),
        ("\tx: 1\n", "own.yaml: not valid YAML"),
        ("kind: a\nkind: b\n", "line 2: 'kind' is given a second time"),
        ("kind: !!python/name:os.system x\n", "line 1: kind: .x.; allowed"),
        ("files: {train: a.csv}\n", "own.yaml: kind: missing; allowed"),
    ],
)
def test_a_file_that_is_no_task_is_one_line(refuse, text, message):
    refuse(text, message)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        # types
        ({"label_colum": "y"}, "line 5: label_colum: unknown key; did you mean label_column"),
        ({"files": "a.csv"}, "line 2: files: a mapping is expected, like {train: train.csv}"),
        ({"files": "{train: [a.csv]}"}, "line 2: files: one text is expected, .* found"),
        ({"labels": "[a, [b]]"}, "line 4: labels: one text is expected, .* found"),
        ({"name": "[x]"}, "line 5: name: one text is expected, .* found"),
        ({"published_rows": "{train: x}"}, "line 5: published_rows: a number is expected, got 'x'"),
        ({"tsv": "{folder: X}"}, "line 5: tsv: .*missing.*keys: folder, files"),
        ({"tsv": "{has_header: 1}"}, "line 5: tsv: '1'; allowed: true, false"),
        # splits
        ({"files": None}, "own.yaml: files: give `files` .*or hub_dataset"),
        ({"files": "{trian: a}"}, "line 2: files: there are trian, but the splits are none .train"),
        ({"train_split": "learn"}, "line 2: files: there are train, but the splits are learn"),
        ({"test_splits": "test"}, "line 2: files: there are train, but the splits are train, test"),
        (
            {"files": "{validation_/../b: b}"},
            "line 2: files: 'validation_/../b' is not the name of a split",
        ),
        ({"validation_splits": "train"}, "line 5: validation_splits: train: name each split once"),
        (
            {"files": "{validation_a: b, validation__a: c}"},
            "validation_splits: metrics of validation_a and validation__a would have one name",
        ),
        (
            {"files": "{validation: b, validation_test: c, test: d}"},
            "validation_splits: metrics of validation_test have the names of a test split's",
        ),
        (
            {"files": "{hard: a, test_hard: b}", "test_splits": "[hard, test_hard]"},
            "test_splits: metrics of hard and test_hard would have one name",
        ),
        # columns
        ({"text_columns": None}, "text_columns: sequence_classification takes 1 or 2, 0 given"),
        ({"text_columns": "[a, b, c]"}, "line 3: text_columns: .* takes 1 or 2, 3 given"),
        ({"choice_columns": "[a, b]"}, "line 5: choice_columns: only for kind: multiple_choice"),
        ({"sentence_column": "s"}, "line 5: sentence_column: only for kind: token_classification"),
        ({"label_range": "[0, 5]"}, "line 5: label_range: only for problem_type: regression"),
        ({"label_separator": "','"}, "line 5: label_separator: only for problem_type: multi_label"),
        (
            {**REGRESSION, "label_columns": "[a, b]"},
            "label_columns: only for problem_type: multi_label",
        ),
        ({"problem_type": "x"}, "line 5: problem_type: 'x'; allowed: single_label"),
        ({"label_columns": "[b, a]"}, "line 4: labels: .* the columns in their order: b, a"),
        # labels
        (
            {"labels": None, "files": None, "hub_dataset": "a/b"},
            "own.yaml: labels: 0 given, ..; name the classes",
        ),
        ({"labels": "[a]"}, "line 4: labels: 1 given, .a.; name"),
        ({"labels": "[a, b, a]"}, "line 4: labels: .*a, b, a.* has an empty name, or one twice"),
        ({"labels": "[a, '']"}, "line 4: labels: .* has an empty name"),
        ({"problem_type": "regression"}, "line 4: labels: regression has none"),
        ({**REGRESSION, "label_range": "[5, 0]"}, "line 5: label_range: two numbers are expected"),
        ({**REGRESSION, "label_range": "[0, inf]"}, "label_range: two numbers are expected"),
        ({**REGRESSION, "label_range": "5"}, "line 5: label_range: two numbers are expected"),
        ({**REGRESSION, "label_range": "[0, five]"}, "label_range: a number is .* got 'five'"),
        (
            {"problem_type": "multi_label_classification", "label_separator": "''"},
            "line 6: label_separator: empty; give",
        ),
        # metrics
        ({"metrics": "x"}, "line 5: metrics: .x. does not measure this task; allowed: accuracy, "),
        ({"metrics": "[]"}, "line 5: metrics: .* does not measure"),
        ({"labels": "[a, b, c]", "metrics": "f1"}, "line 5: metrics: 'f1' is for two classes"),
        ({"best_metric": "f1"}, "best_metric: 'f1' is no metric of this task; allowed: accuracy"),
    ],
)
def test_a_slip_in_a_task_file_is_one_line(refuse, keys, message):
    refuse(yaml_of({**VALID, **keys}), message)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (CHOICES, "choice_columns: the columns of the choices are missing"),
        (
            {**CHOICES, "choice_columns": "[a, b]", "labels": "[x, y, z]"},
            "line 5: labels: 3 names for 2 choice_columns",
        ),
        ({**QUESTIONS, "labels": "[a, b]"}, "line 3: labels: question_answering has none"),
        ({**QUESTIONS, "metrics": "[squad, squad_v2]"}, "line 3: metrics: .* exclude each other"),
        ({**TAGS, "metrics": "entities"}, "line 4: metrics: .entities. does not measure this task"),
        ({**TAGS, "problem_type": "regression"}, "problem_type: belongs to sequence_classificati"),
    ],
)
def test_a_slip_in_a_task_of_another_kind_is_one_line(refuse, keys, message):
    refuse(yaml_of(keys), message)


def test_a_task_file_that_is_not_there_is_named(write):
    path = write("mine.yaml", yaml_of(VALID)).with_name("own.yaml")
    with pytest.raises(InputError, match=r"own.yaml: no such file; .* holds mine.yaml"):
        read_task_file(path)


@pytest.mark.parametrize(
    ("splits", "figures"),
    [
        (("validation_old", "validation_new"), ("old_accuracy", "new_accuracy")),
        # As the Trainer names it, so that the best checkpoint can be chosen by it.
        (("validation", "validation_hard"), ("accuracy", "hard_accuracy")),
    ],
)
def test_figures_of_several_validation_splits_bear_their_names(write, refuse, splits, figures):
    keys = {**VALID, "files": f"{{train: a.csv, {splits[0]}: b.csv, {splits[1]}: c.csv}}"}
    task = read_task_file(write("own.yaml", yaml_of(keys)))
    assert task.validation_splits == splits
    assert task.best_metric == figures[0]
    keys["best_metric"] = figures[1]
    assert read_task_file(write("own.yaml", yaml_of(keys))).best_metric == figures[1]
    keys["best_metric"] = "new"
    message = f"best_metric: 'new' is no metric .*allowed: {', '.join(figures)}"
    refuse(yaml_of(keys), message)


# Written beside a model and read back


@pytest.mark.parametrize("name", list_tasks())
def test_a_row_is_the_same_after_writing_and_reading(tmp_path: Path, name: str):
    write_task_file(tmp_path / "task.yaml", get_task(name))
    assert read_task_file(tmp_path / "task.yaml") == get_task(name)


@pytest.mark.parametrize("name", FILES)
def test_a_task_of_ones_own_is_read_again_in_another_folder(tmp_path, name):
    (tmp_path / "data").mkdir()
    task = read_task_file(write_example(tmp_path / "data", name))
    path = tmp_path / "task.yaml"
    write_task_file(path, task)
    assert str(tmp_path) not in path.read_text(encoding="utf-8")
    again = read_task_file(path)
    assert dataclasses.replace(again, files={}) == dataclasses.replace(task, files={})
    assert again.relative_files == task.relative_files
    with pytest.raises(InputError, match=r"no such file; fix `files` .*, or give --data_dir"):
        load_split(again, "train", data_dir=None)
    split = load_split(again, "train", data_dir=str(tmp_path / "data"))
    assert split.examples == load_split(task, "train", data_dir=None).examples


def test_labels_are_those_of_the_data_that_are_read(tmp_path):
    """An older file beside the task file has others, or there is none."""
    keys = "kind: sequence_classification\ntext_columns: text\nfiles: {train: train.csv}\n"
    (tmp_path / "task.yaml").write_text(f"name: mine\n{keys}")
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.csv").write_text("text,label\na,new\nb,old\n")
    assert read_task_file(tmp_path / "task.yaml", str(data)).labels == ("new", "old")
    (tmp_path / "train.csv").write_text("text,label\na,old\nb,older\n")
    assert read_task_file(tmp_path / "task.yaml", str(data)).labels == ("new", "old")
    flags = ["--task_file", str(tmp_path / "task.yaml"), "--data_dir", str(data)]
    (task_args,) = parse_arguments(TaskArguments, argv=flags)
    assert task_args.loaded_task.labels == ("new", "old")


def test_files_of_one_name_in_two_folders_are_told_apart(write, tmp_path):
    write("learn/data.csv", "t,label\na,a\na,b\n")
    write("check/data.csv", "t,label\nb,a\nb,b\n")
    keys = {**VALID, "files": "{train: learn/data.csv, validation: check/data.csv}"}
    task = read_task_file(write("own.yaml", yaml_of(keys)))
    path = write("run/task.yaml", "")
    write_task_file(path, task)
    again = read_task_file(path)
    for split, text in (("train", "a"), ("validation", "b")):
        assert load_split(again, split, data_dir=str(tmp_path)).examples[0].text == text


def test_every_field_of_a_task_is_a_key():
    fields = {field.name for field in dataclasses.fields(Task)} - {
        "column_labels",
        "labels_source",
        "labels_are_found",
    }
    assert fields == set(KEYS)


def test_a_task_file_may_name_a_hub_data_set(write):
    hub = {"hub_dataset": "someone/reviews", "validation_splits": "dev", "test_splits": "[]"}
    task = read_task_file(write("own.yaml", yaml_of({**VALID, "files": None, **hub})))
    assert (task.train_split, task.validation_splits, task.test_splits) == ("train", ("dev",), ())
    message = r"task own: HF_HUB_OFFLINE is set, and someone/reviews.*train.jsonl, dev.jsonl$"
    with pytest.raises(InputError, match=message):
        load_split(task, "train", data_dir=None)


# Labels of the training file

TEXTS = "kind: sequence_classification\ntext_columns: t\n"
SETS = TEXTS + "problem_type: multi_label_classification\nlabel_separator: ';'\n"
WORDS = "kind: token_classification\n"
SPANS = WORDS + "text_columns: text\n"


@pytest.mark.parametrize(
    ("keys", "name", "content", "labels"),
    [
        (TEXTS, "a.csv", "t,label\nx,no\ny,yes\nz,no\n", "no yes"),
        (TEXTS, "a.csv", "t,label\nx,10\ny,9\nz,10.0\n", "9 10"),
        (TEXTS, "a.jsonl", [{"t": "x", "label": True}, {"t": "", "label": False}], "false true"),
        (SETS, "a.csv", "t,label\nx,b; a\ny,\n", "a b"),
        (WORDS, "a.txt", "Oslo B-PORT\nis O\n", "O B-PORT I-PORT"),
        (WORDS, "a.txt", "Oslo S-PORT\nis O\n", "O B-PORT E-PORT I-PORT S-PORT"),
        (WORDS, "a.txt", "Oslo PORT\nis O\n", "O PORT"),
        (SPANS, "a.jsonl", [{"text": "In Oslo", "label": [[3, 7, "PORT"]]}], "O B-PORT I-PORT"),
        (WORDS, "a.jsonl", [{"tokens": ["x", "y"], "labels": ["V", "N"]}], "N V"),
    ],
)
def test_labels_that_are_not_named_are_those_of_the_training_file(
    read, tmp_path, caplog, keys, name, content, labels
):
    caplog.set_level("INFO")
    task, examples = read(keys, content, name)
    log_found_labels(task)
    assert list(task.labels) == labels.split()
    assert (
        f"not given; the {len(task.labels)} of {name} are taken: {task.labels[0]}, " in caplog.text
    )
    assert len(examples) > 0
    write_task_file(tmp_path / "task.yaml", task)
    written = read_task_file(tmp_path / "task.yaml")
    assert written.labels == task.labels
    caplog.clear()
    log_found_labels(written)
    assert not caplog.messages


def test_found_labels_are_logged_from_whatever_folder_the_data_is(tmp_path, write, caplog):
    caplog.set_level("INFO")
    write("other/train.jsonl", [{"t": "x", "label": "no"}, {"t": "y", "label": "No"}])
    file = write("own.yaml", f"{TEXTS}files: {{train: tickets.csv}}\n")
    log_found_labels(read_task_file(file, str(tmp_path / "other")))
    assert "labels: not given; the 2 of train.jsonl are taken" in caplog.text
    assert "are two classes, though they differ in case" in caplog.text


def test_a_cell_that_is_no_label_is_named_with_its_place(read):
    rows = [{"t": "x", "label": "no"}, {"t": "y", "label": '{"no": 1}'}]
    with pytest.raises(InputError, match=r"train\.jsonl, line 2: .* is no label"):
        read(TEXTS, rows)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("t,label\nx,0.5\ny,1.25\n", "a.csv: its labels are numbers with fractions; .*regression"),
        (
            "t,label\n" + "".join(f"x,n{number}\n" for number in range(1001)),
            "a.csv: 1001 different labels",
        ),
        ("t,label\nx,a\n", "own.yaml: labels: 1 given, .a.; name the classes"),
        ("t,y\nx,a\n", "a.csv, line 2: no column 'label'; columns present: t, y"),
    ],
)
def test_training_data_without_classes_is_one_line(read, content, message):
    with pytest.raises(InputError, match=message):
        read(TEXTS, content, "a.csv")


def test_a_wrong_label_of_many_names_the_nearest_and_the_file_that_has_them(write):
    rows = "".join(f"do thing {number},intent_{number:03d}\n" for number in range(151))
    write("a.csv", "t,label\n" + rows)
    write("b.csv", "t,label\nx,intent_15\n")
    task = read_task_file(write("own.yaml", TEXTS + "files: {train: a.csv, validation: b.csv}\n"))
    assert len(task.labels) == 151
    message = r"did you mean 'intent_1\d\d'\? allowed: .* \(151, all of them in a.csv\)"
    with pytest.raises(InputError, match=message):
        load_split(task, "validation", data_dir=None)


@pytest.mark.parametrize(
    ("keys", "name", "content", "value"),
    [
        (TEXTS, "a.csv", "t,label\nx,no\ny,yes\n", 1),
        (TEXTS, "a.csv", "t,label\nx,no\ny,yes\n", True),
        (WORDS, "a.txt", "Oslo B-PORT\nis O\n", [1]),
        (SETS, "a.csv", "t,label\nx,no\ny,yes\n", [1, 0]),
        (SETS, "a.csv", "t,label\nx,no\ny,yes\n", [1]),
    ],
)
def test_numbers_mean_none_of_the_names_that_were_found(write, keys, name, content, value):
    """These are in the alphabet's order, the numbers in one of their own."""
    write(name, content)
    write("b.jsonl", [{"t": "x", "tokens": ["Oslo"], "label": value}])
    task = read_task_file(write("own.yaml", f"{keys}files: {{train: {name}, validation: b.jsonl}}"))
    message = f"b.jsonl, line 1.*the names were found in {name}, .*write labels: {{0: NAME"
    with pytest.raises(InputError, match=message):
        load_split(task, "validation", data_dir=None)
    # Nor do they in the file of the run, which names the labels.
    run = Path(task.files["train"]).parent / "task.yaml"
    write_task_file(run, task)
    task_of_run = read_task_file(run)
    assert task_of_run.labels == task.labels
    message = r"b\.jsonl, line 1.*the names were found in task\.yaml, .*write labels: \{0: NAME"
    with pytest.raises(InputError, match=message):
        load_split(task_of_run, "validation", data_dir=None)


@pytest.mark.parametrize("labels", [("true", "false"), ("1", "0"), ("1.0", "0.0")])
def test_found_names_that_are_numbers_or_truth_values_say_their_order(write, labels):
    write("a.csv", "t,label\n" + "".join(f"x,{label}\n" for label in labels))
    write("b.jsonl", [{"t": "x", "label": 1}, {"t": "y", "label": 0}])
    task = read_task_file(write("own.yaml", TEXTS + "files: {train: a.csv, validation: b.jsonl}"))
    examples = load_split(task, "validation", data_dir=None).examples
    assert [example.label for example in examples] == [1, 0]
