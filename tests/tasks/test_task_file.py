"""A task of one's own is a YAML file: the page's examples run, every slip is one line with the key
and its line.
"""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from bert_recipes.errors import InputError
from bert_recipes.tasks.catalogue import get_task, list_tasks
from bert_recipes.tasks.examples import Answer
from bert_recipes.tasks.sources import load_split
from bert_recipes.tasks.task import Task
from bert_recipes.tasks.task_file import KEYS, read_task_file, write_task_file


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

VALID = "kind: sequence_classification\nfiles: {train: a.csv}\ntext_columns: t\nlabels: [a, b]\n"
BAD = [
    ("", "own.yaml: no settings in this file"),
    ("- a\n", "own.yaml, line 1: expected lines"),
    (VALID + "\tx: 1\n", "own.yaml: not valid YAML"),
    (
        VALID + "label_colum: y\n",
        "own.yaml, line 5: label_colum: unknown key; did you mean label_column",
    ),
    (VALID + "kind: multiple_choice\n", "line 5: 'kind' is given a second time"),
    (
        VALID.replace("sequence_classification", "classification"),
        "line 1: kind: 'classification'; allowed: sequence_classification, ",
    ),
    (VALID.replace("kind: sequence_classification\n", ""), "own.yaml: kind: missing"),
    (
        VALID.replace("files: {train: a.csv}\n", ""),
        "own.yaml: files: give `files` .*or hub_dataset",
    ),
    (
        VALID.replace("{train: a.csv}", "a.csv"),
        "line 2: files: a mapping is expected, like {train: train.csv}",
    ),
    (
        VALID.replace("{train: a.csv}", "{train: [a.csv]}"),
        "line 2: files: one text is expected, .* found",
    ),
    (
        VALID.replace("train:", "trian:"),
        "line 2: files: there are trian, but the splits are none .train, validation",
    ),
    (VALID + "train_split: learn\n", "line 2: files: there are train, but the splits are learn"),
    (
        VALID.replace("{train: a.csv}", "{train: a.csv, validation_/../../b: b.csv}"),
        "line 2: files: 'validation_/../../b' is no name of a split",
    ),
    (
        VALID + "test_splits: test\n",
        "line 2: files: there are train, but the splits are train, test",
    ),
    (
        VALID.replace("text_columns: t\n", ""),
        "own.yaml: text_columns: sequence_classification takes 1 or 2, 0 given",
    ),
    (
        VALID.replace("t\n", "[a, b, c]\n"),
        "line 3: text_columns: sequence_classification takes 1 or 2, 3 given",
    ),
    (
        VALID.replace("labels: [a, b]\n", "").replace("files: {train: a.csv}", "hub_dataset: a/b"),
        "own.yaml: labels: 0 given, ..; name the classes",
    ),
    (VALID.replace("[a, b]", "[a]"), "line 4: labels: 1 given, .a.; name"),
    (
        VALID + "label_columns: [a, b]\nproblem_type: regression\n",
        "line 5: label_columns: only for problem_type: multi_label",
    ),
    (
        VALID + "label_columns: [b, a]\n",
        "line 4: labels: with label_columns they are the columns in their order: b, a",
    ),
    (
        VALID + "sentence_column: s\n",
        "line 5: sentence_column: only for kind: token_classification",
    ),
    (
        VALID.replace("[a, b]", "[a, b, a]"),
        "line 4: labels: .*a, b, a.* has an empty name, or one twice",
    ),
    (VALID.replace("[a, b]", "[a, '']"), "line 4: labels: .* has an empty name"),
    (VALID.replace("[a, b]", "[a, [b]]"), "line 4: labels: one text is expected, .* found"),
    (
        VALID + "problem_type: regresion\n",
        "line 5: problem_type: 'regresion'; allowed: single_label",
    ),
    (VALID + "problem_type: regression\n", "line 4: labels: regression has none"),
    (VALID + "label_range: [0, 5]\n", "line 5: label_range: only for problem_type: regression"),
    (
        VALID.replace("labels: [a, b]", "problem_type: regression") + "label_range: [5, 0]\n",
        "line 5: label_range: two numbers are expected, the lesser first",
    ),
    (VALID + "label_range: [0, five]\n", "line 5: label_range: a number is expected, got 'five'"),
    (
        VALID.replace("labels: [a, b]", "problem_type: regression") + "label_range: 5\n",
        "line 5: label_range: two numbers are expected",
    ),
    (
        VALID + "label_separator: ','\n",
        "line 5: label_separator: only for problem_type: multi_label",
    ),
    (
        VALID + "problem_type: multi_label_classification\nlabel_separator: ''\n",
        "line 6: label_separator: empty; give",
    ),
    (
        VALID.replace("{train: a.csv}", "{train: a.csv, dev: b.csv}")
        + "validation_splits: [dev, dev]\n",
        "line 5: validation_splits: dev, dev: name each split once",
    ),
    (
        VALID + "validation_splits: train\n",
        "line 5: validation_splits: train: name each split once",
    ),
    (
        VALID.replace(
            "{train: a.csv}", "{train: a.csv, validation_a: b.csv, validation__a: c.csv}"
        ),
        "own.yaml: validation_splits: metrics of validation_a and validation__a would have one "
        "name; rename one",
    ),
    (VALID + "choice_columns: [a, b]\n", "line 5: choice_columns: only for kind: multiple_choice"),
    (
        VALID + "metrics: acuracy\n",
        "line 5: metrics: .acuracy. does not measure this task; allowed: accuracy, ",
    ),
    (VALID + "metrics: [squad]\n", "line 5: metrics: .squad. does not measure this task"),
    (VALID + "metrics: []\n", "line 5: metrics: .* does not measure"),
    (
        VALID.replace("[a, b]", "[a, b, c]") + "metrics: f1\n",
        "line 5: metrics: 'f1' is for two classes",
    ),
    (
        VALID + "best_metric: f1\n",
        "line 5: best_metric: 'f1' is no metric of this task; allowed: accuracy",
    ),
    (VALID + "name: [x]\n", "line 5: name: one text is expected, .* found"),
    (
        VALID + "published_rows: {train: many}\n",
        "line 5: published_rows: a number is expected, got 'many'",
    ),
    (VALID + "tsv: {folder: X}\n", "line 5: tsv: .*missing.*keys: folder, files"),
    (
        "kind: multiple_choice\nfiles: {train: a.csv}\ntext_columns: q\n",
        "choice_columns: the columns of the choices are missing",
    ),
    (
        "kind: multiple_choice\nfiles: {train: a.csv}\ntext_columns: q\nchoice_columns: [a, "
        "b]\nlabels: [x, y, z]\n",
        "line 5: labels: 3 names for 2 choice_columns",
    ),
    (
        "kind: question_answering\nfiles: {train: a.json}\nlabels: [a, b]\n",
        "line 3: labels: question_answering has none",
    ),
    (
        "kind: question_answering\nfiles: {train: a.json}\nmetrics: [squad, squad_v2]\n",
        "line 3: metrics: squad and squad_v2 exclude each other",
    ),
    (
        "kind: token_classification\nfiles: {train: a.txt}\nlabels: [N, V]\nmetrics: entities\n",
        "line 4: metrics: .entities. does not measure this task",
    ),
    (
        "kind: token_classification\nfiles: {train: a.txt}\nlabels: [N, V]\nproblem_type: "
        "regression\n",
        "line 4: problem_type: belongs to sequence_classification",
    ),
    ("kind: !!python/name:os.system x\n", "line 1: kind: .x.; allowed"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_a_slip_in_a_task_file_is_one_line(tmp_path: Path, text: str, message: str):
    path = tmp_path / "own.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message) as error:
        read_task_file(path)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(str(path))


def test_a_task_file_that_is_not_there_is_named(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text(VALID)
    with pytest.raises(InputError, match=r"own.yaml: no such file; .* holds mine.yaml"):
        read_task_file(tmp_path / "own.yaml")


def test_figures_of_several_validation_splits_bear_their_names(tmp_path: Path):
    path = tmp_path / "own.yaml"
    files = "files: {train: a.csv, validation_old: b.csv, validation_new: c.csv}\n"
    path.write_text(VALID.replace("files: {train: a.csv}\n", files))
    task = read_task_file(path)
    assert task.validation_splits == ("validation_old", "validation_new")
    assert task.best_metric == "old_accuracy"
    path.write_text(path.read_text() + "best_metric: accuracy\n")
    with pytest.raises(
        InputError,
        match=r"line 5: best_metric: 'accuracy' is no metric .*allowed: old_accuracy, new_accuracy",
    ):
        read_task_file(path)


def test_a_figure_of_the_split_called_validation_has_no_suffix(tmp_path: Path):
    """As the Trainer names it, so that the best checkpoint can be chosen by it."""
    path = tmp_path / "own.yaml"
    files = "files: {train: a.csv, validation: b.csv, validation_hard: c.csv}\n"
    path.write_text(VALID.replace("files: {train: a.csv}\n", files))
    assert read_task_file(path).best_metric == "accuracy"
    path.write_text(path.read_text() + "best_metric: hard_accuracy\n")
    assert read_task_file(path).best_metric == "hard_accuracy"


# Written beside a model and read back


@pytest.mark.parametrize("name", list_tasks())
def test_a_row_is_the_same_after_writing_and_reading(tmp_path: Path, name: str):
    write_task_file(tmp_path / "task.yaml", get_task(name))
    assert read_task_file(tmp_path / "task.yaml") == get_task(name)


@pytest.mark.parametrize("name", FILES)
def test_a_task_of_ones_own_is_found_again_in_another_folder(tmp_path: Path, name: str):
    (tmp_path / "here").mkdir()
    task = read_task_file(write_example(tmp_path / "here", name))
    (tmp_path / "run").mkdir()
    write_task_file(tmp_path / "run" / "task.yaml", task)
    assert str(tmp_path) not in (tmp_path / "run" / "task.yaml").read_text(encoding="utf-8")
    again = read_task_file(tmp_path / "run" / "task.yaml")
    assert dataclasses.replace(again, files={}) == dataclasses.replace(task, files={})
    assert again.relative_files == task.relative_files
    with pytest.raises(
        InputError, match=r"no such file; fix `files` in the task file, or give --data_dir"
    ):
        load_split(again, "train", data_dir=None)
    moved = load_split(again, "train", data_dir=str(tmp_path / "here"))
    assert moved.examples == load_split(task, "train", data_dir=None).examples


def test_files_of_one_name_in_two_folders_are_told_apart(tmp_path: Path):
    for folder, text in (("learn", "a"), ("check", "b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "data.csv").write_text(f"t,label\n{text},a\n{text},b\n")
    files = "files: {train: learn/data.csv, validation: check/data.csv}\n"
    (tmp_path / "own.yaml").write_text(VALID.replace("files: {train: a.csv}\n", files))
    (tmp_path / "run").mkdir()
    write_task_file(tmp_path / "run" / "task.yaml", read_task_file(tmp_path / "own.yaml"))
    again = read_task_file(tmp_path / "run" / "task.yaml")
    texts = [
        load_split(again, name, data_dir=str(tmp_path)).examples[0].text
        for name in ("train", "validation")
    ]
    assert texts == ["a", "b"]


def test_every_field_of_a_row_can_be_given():
    fields = {field.name for field in dataclasses.fields(Task)} - {"column_labels", "labels_source"}
    assert fields == set(KEYS)


def test_a_task_file_may_name_a_hub_data_set(tmp_path: Path):
    path = tmp_path / "own.yaml"
    hub = "hub_dataset: someone/reviews\nhub_subset: en\nvalidation_splits: dev\ntest_splits: []\n"
    path.write_text(VALID.replace("files: {train: a.csv}\n", hub))
    task = read_task_file(path)
    assert (task.train_split, task.validation_splits, task.test_splits) == ("train", ("dev",), ())
    with pytest.raises(
        InputError,
        match=r"task own: HF_HUB_OFFLINE is set, and someone/reviews.*train.jsonl, dev.jsonl$",
    ):
        load_split(task, "train", data_dir=None)


FOUND = [
    (
        "sequence_classification\ntext_columns: t\n",
        "a.csv",
        "t,label\nx,no\ny,yes\nz,no\n",
        ["no", "yes"],
    ),
    (
        "sequence_classification\ntext_columns: t\n",
        "a.csv",
        "t,label\nx,10\ny,9\nz,10.0\n",
        ["9", "10"],
    ),
    (
        "sequence_classification\ntext_columns: t\n",
        "a.jsonl",
        '{"t": "x", "label": true}\n{"t": "y", "label": false}\n',
        ["false", "true"],
    ),
    (
        "sequence_classification\ntext_columns: t\nproblem_type: "
        "multi_label_classification\nlabel_separator: ';'\n",
        "a.csv",
        "t,label\nx,b; a\ny,\n",
        ["a", "b"],
    ),
    ("token_classification\n", "a.txt", "Oslo B-PORT\nis O\n", ["O", "B-PORT", "I-PORT"]),
    ("token_classification\n", "a.txt", "Oslo I-PORT\nis O\n", ["O", "B-PORT", "I-PORT"]),
    (
        "token_classification\n",
        "a.txt",
        "Oslo S-PORT\nis O\n",
        ["O", "B-PORT", "E-PORT", "I-PORT", "S-PORT"],
    ),
    ("token_classification\n", "a.txt", "Oslo PORT\nis O\n", ["O", "PORT"]),
    (
        "token_classification\ntext_columns: text\n",
        "a.jsonl",
        '{"text": "In Oslo", "label": [[3, 7, "PORT"]]}\n',
        ["O", "B-PORT", "I-PORT"],
    ),
    (
        "token_classification\n",
        "a.jsonl",
        '{"tokens": ["x", "y"], "labels": ["V", "N"]}\n',
        ["N", "V"],
    ),
]


@pytest.mark.parametrize(("head", "file", "content", "labels"), FOUND)
def test_labels_that_are_missing_are_those_of_the_training_data(
    tmp_path, caplog, head, file, content, labels
):
    """As transformers' run_classification.py has them; of tags every type has all letters of its
    scheme.
    """
    caplog.set_level("INFO")
    (tmp_path / file).write_text(content)
    (tmp_path / "own.yaml").write_text(f"kind: {head}files: {{train: {file}}}\n")
    task = read_task_file(tmp_path / "own.yaml")
    assert list(task.labels) == labels
    assert f"labels: not given; the {len(labels)} of {file} are taken: {labels[0]}, " in caplog.text
    assert load_split(task, "train", data_dir=None, need_labels=False).num_rows > 0
    write_task_file(tmp_path / "task.yaml", task)
    assert list(read_task_file(tmp_path / "task.yaml").labels) == labels


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "t,label\nx,0.5\ny,1.25\n",
            "a.csv: its labels are numbers with fractions; problem_type: regression",
        ),
        (
            "t,label\n" + "".join(f"x,n{number}\n" for number in range(1001)),
            "a.csv: 1001 different labels",
        ),
        ("t,label\nx,a\n", "own.yaml: labels: 1 given, .a.; name the classes"),
        ("t,y\nx,a\n", "a.csv, line 2: no column 'label'; columns present: t, y"),
        ("", "a.csv: no such file"),
    ],
)
def test_training_data_without_classes_is_one_line(tmp_path, content, message):
    if content:
        (tmp_path / "a.csv").write_text(content)
    (tmp_path / "own.yaml").write_text(
        "kind: sequence_classification\ntext_columns: t\nfiles: {train: a.csv}\n"
    )
    with pytest.raises(InputError, match=message):
        read_task_file(tmp_path / "own.yaml")


def test_a_wrong_label_of_many_names_the_nearest_and_the_file_that_has_them(tmp_path):
    rows = "".join(f"do thing {number},intent_{number:03d}\n" for number in range(151))
    (tmp_path / "a.csv").write_text("t,label\n" + rows)
    (tmp_path / "b.csv").write_text("t,label\nx,intent_15\n")
    (tmp_path / "own.yaml").write_text(
        "kind: sequence_classification\ntext_columns: t\nfiles: {train: a.csv, validation: b.csv}\n"
    )
    task = read_task_file(tmp_path / "own.yaml")
    assert len(task.labels) == 151
    with pytest.raises(
        InputError, match=r"did you mean 'intent_1\d\d'\? allowed: .* \(151, all of them in a.csv\)"
    ):
        load_split(task, "validation", data_dir=None)
