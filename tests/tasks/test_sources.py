"""Where data is looked for, how a sample is drawn, and what happens without a network."""

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from bert_recipes.errors import InputError
from bert_recipes.tasks.catalogue import get_task, list_tasks
from bert_recipes.tasks.sources import load_split, read_table
from bert_recipes.tasks.task_file import read_task_file


PAIRS = [{"sentence1": "a", "sentence2": "b", "label": label} for label in (0, 1)]
QUESTION = {"id": "1", "question": "q", "answers": [{"text": "x", "answer_start": 0}]}
CONTENT = {
    ".txt": "EU B-ORG\n",
    ".csv": "sent1,sent2,ending0,ending1,ending2,ending3,label\na,b,c,d,e,f,0\n",
    ".json": json.dumps({"data": [{"paragraphs": [{"context": "x", "qas": [QUESTION]}]}]}),
}


@pytest.mark.parametrize("folder", [".", "mrpc", "glue/mrpc", "MRPC", "glue/MRPC"])
def test_a_folder_is_found_by_its_usual_names(write, tmp_path, folder):
    write(f"{folder}/train.jsonl", PAIRS)
    assert load_split(get_task("mrpc"), "train", data_dir=str(tmp_path)).num_rows == 2


@pytest.mark.parametrize(
    ("task", "file"),
    [
        ("conll2003", "ner/conll2003/valid.txt"),
        ("conll2003", "conll2003/dev.txt"),
        ("conll2003", "validation.txt"),
        ("swag", "swag/val.csv"),
        ("squad", "squad/dev-v1.1.json"),
        ("squad_v2", "dev-v2.0.json"),
    ],
)
def test_files_are_found_by_their_usual_names(write, tmp_path, task, file):
    path = write(file, CONTENT[Path(file).suffix])
    split = load_split(get_task(task), "validation", data_dir=str(tmp_path))
    assert (split.num_rows, split.source) == (1, str(path))


def test_the_folder_itself_comes_first(write, tmp_path):
    for file, text in (("train.jsonl", "first"), ("sst2/train.jsonl", "second")):
        write(file, [{"sentence": text, "label": label} for label in (0, 1)])
    assert load_split(get_task("sst2"), "train", data_dir=str(tmp_path)).examples[0].text == "first"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", 'text,label\n"One, two",1\n'),
        ("a.tsv", "text\tlabel\nOne, two\t1\n"),
        ("a.jsonl", '{"text": "One, two", "label": "1"}\n'),
        ("a.json", '[{"text": "One, two", "label": "1"}]'),
    ],
)
def test_a_byte_order_mark_belongs_to_no_column(write, name, text):
    """Excel writes one."""
    ((_, row),) = read_table(write(name, text.encode("utf-8-sig"))).rows
    assert row == {"text": "One, two", "label": "1"}


# The second is the Hub's own name.
@pytest.mark.parametrize("name", ["train.parquet", "sst2/train-00000-of-00001.parquet"])
def test_parquet_is_read(write, tmp_path, name):
    write(name, [{"sentence": "a", "label": 0, "idx": 7}, {"sentence": "b", "label": 1, "idx": 8}])
    examples = load_split(get_task("sst2"), "train", data_dir=str(tmp_path)).examples
    assert [(example.idx, example.text, example.label) for example in examples] == [
        (7, "a", 0),
        (8, "b", 1),
    ]


@pytest.fixture
def write_classes(tmp_path: Path):
    """Write texts with numbers of named classes, as `Dataset.to_parquet` does."""
    import datasets

    def write_file(names: list[str], numbers: list[int]) -> Path:
        label = datasets.ClassLabel(names=names)
        features = datasets.Features({"text": datasets.Value("string"), "label": label})
        columns = {"text": list(map(str, numbers)), "label": numbers}
        path = tmp_path / "train.parquet"
        datasets.Dataset.from_dict(columns, features).to_parquet(path)
        return path

    return write_file


def load_parquet(write, labels: str):
    keys = f"kind: sequence_classification\ntext_columns: text\nlabels: {labels}\n"
    task = read_task_file(write("own.yaml", f"{keys}files: {{train: train.parquet}}\n"))
    return load_split(task, "train", data_dir=None)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ("[World, Sports, Science]", [1, 0, 2, 1]),
        ("{World: news, Sports: play, Science: news}", [1, 0, 0, 1]),
        # The task knows none of the names, or says itself what the numbers mean.
        ("[a, b, c]", [0, 1, 2, 0]),
        ("{0: World, 1: a, 2: b}", [0, 1, 2, 0]),
    ],
)
def test_class_numbers_of_parquet_have_the_names_that_datasets_wrote(
    write, write_classes, labels, classes
):
    write_classes(["Sports", "World", "Science"], [0, 1, 2, 0])
    examples = load_parquet(write, labels).examples
    assert [example.label for example in examples] == classes


def test_classes_of_which_the_task_knows_some_names_are_refused(write, write_classes):
    write_classes(["Business", "Sports", "World", "Science"], [0, 1, 2, 3])
    message = r"train\.parquet: its classes are Business, .*, but task own has no Science: write"
    with pytest.raises(InputError, match=message):
        load_parquet(write, "[World, Sports, Business, Sci/Tech]")


@pytest.mark.parametrize("names", [["Sports", "World", "Arts"], ["3", "2", "1"]])
def test_a_task_without_labels_has_those_that_datasets_wrote(write, write_classes, names):
    """Also one that no training row has."""
    write_classes(names, [0, 1, 1])
    keys = "kind: sequence_classification\ntext_columns: text\n"
    task = read_task_file(write("own.yaml", f"{keys}files: {{train: train.parquet}}\n"))
    assert task.labels == tuple(names)
    write_classes(names[::-1], [2, 1, 0])
    examples = load_split(task, "train", data_dir=None).examples
    assert [example.label for example in examples] == [0, 1, 2]


def test_a_class_number_of_minus_one_is_a_row_without_label(write, write_classes, caplog):
    """SNLI of the Hub has it where annotators did not agree."""
    write_classes(["no", "yes"], [0, -1, 1])
    for labels in ("[yes, no]", "[a, b]"):
        split = load_parquet(write, labels)
        assert [example.text for example in split.examples] == ["0", "1"]
        assert split.num_left_out == 1
    assert "1 of 3 rows have no label and are left out (the first: row 2)" in caplog.text


def test_a_list_of_ids_may_have_lines_without_a_second_id(write, tmp_path):
    """Such a line names no pair; all pairs are then of the training set."""
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    write("msr_paraphrase_train.txt", f"{header}1\t7\t8\ta\tb\n0\t5\t6\tc\td\n")
    write("dev_ids.tsv", "7\n")
    assert load_split(get_task("mrpc"), "train", data_dir=str(tmp_path)).num_rows == 2


# A sample


def test_a_sample_is_fixed_in_file_order_and_marked_as_partial(write, tmp_path):
    write("train.jsonl", [{"sentence": str(n), "label": n % 2, "idx": n} for n in range(100)])

    def sample(size):
        return load_split(get_task("sst2"), "train", data_dir=str(tmp_path), max_examples=size)

    indices = [example.idx for example in sample(10).examples]
    assert indices == [example.idx for example in sample(10).examples] == sorted(set(indices))
    assert len(indices) == 10
    assert indices != list(range(10))
    assert sample(10).num_rows == 100
    assert len(sample(1000).examples) == 100


def test_a_sample_of_ones_own_rows_is_marked_partial(read):
    keys = "kind: sequence_classification\ntext_columns: t\n"
    task, _ = read(keys, "t,label\nx,a\ny,b\nz,a\n", "train.csv")
    for limit, is_partial in ((None, False), (3, False), (2, True)):
        split = load_split(task, "train", data_dir=None, max_examples=limit)
        assert split.is_partial == is_partial


def test_a_sample_of_tagged_sentences_keeps_documents_together(write, tmp_path):
    document = "-DOCSTART- O\n\n" + "a O\n\n" * 5
    write("train.txt", document * 20)
    task = get_task("conll2003")
    examples = load_split(task, "train", data_dir=str(tmp_path), max_examples=12).examples
    sizes = Counter(example.document for example in examples)
    assert sorted(sizes.values()) == [2, 5, 5]
    for example in examples:
        assert example.idx - 5 * example.document in range(sizes[example.document])


# The Hub


@pytest.fixture
def unreachable(monkeypatch):
    """A machine without a network, and nothing in its cache."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize("name", list_tasks())
def test_an_unreachable_hub_is_one_line_at_once(unreachable, name):
    task = get_task(name)
    start = time.perf_counter()
    with pytest.raises(InputError) as error:
        load_split(task, task.splits[0], data_dir=None)
    assert time.perf_counter() - start < 5
    message = str(error.value)
    assert message.startswith(f"task {name}: the Hub (http://127.0.0.1:9) cannot be reached, and ")
    assert '--data_dir FOLDER (make: ARGS="--data_dir FOLDER")' in message
    files = {"squad": "train-v1.1.json", "conll2003": "train.txt", "ax": "test.jsonl"}
    assert files.get(name, "train") in message
    assert "\n" not in message


@pytest.fixture
def cached_mrpc(tmp_path: Path, monkeypatch) -> Path:
    """Two rows of MRPC in the cache of `datasets`, as a download leaves them."""
    import datasets
    from datasets.arrow_writer import ArrowWriter

    names = get_task("mrpc").labels
    # The Hub's order is not taken for granted: the names decide.
    features = datasets.Features(
        {
            "sentence1": datasets.Value("string"),
            "sentence2": datasets.Value("string"),
            "label": datasets.ClassLabel(names=list(reversed(names))),
            "idx": datasets.Value("int32"),
        }
    )
    folder = tmp_path / "cache" / "nyu-mll___glue" / "mrpc" / "0.0.0" / "abc"
    folder.mkdir(parents=True)
    with ArrowWriter(features=features, path=str(folder / "glue-train.arrow")) as writer:
        writer.write({"sentence1": "a", "sentence2": "b", "label": 0, "idx": 3})
        writer.write({"sentence1": "c", "sentence2": "d", "label": 1, "idx": 4})
        writer.finalize()
    split = {"name": "train", "num_bytes": 1, "num_examples": 2, "dataset_name": "glue"}
    info = datasets.DatasetInfo(
        features=features,
        builder_name="parquet",
        dataset_name="glue",
        config_name="mrpc",
        version="0.0.0",
        splits={"train": split},
    )
    info.write_to_directory(str(folder))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return folder


def test_the_cache_is_read_without_a_network(unreachable, cached_mrpc: Path):
    split = load_split(get_task("mrpc"), "train", data_dir=None)
    assert split.source == "Hub data set nyu-mll/glue (mrpc), split train"
    # 0 was "equivalent" in this copy.
    assert [(example.idx, example.text, example.label) for example in split.examples] == [
        (3, "a", 1),
        (4, "c", 0),
    ]


def test_a_hub_data_set_with_other_classes_is_refused(cached_mrpc: Path, write):
    keys = "kind: sequence_classification\ntext_columns: sentence1\nlabels: [equivalent, other]\n"
    hub = "hub_dataset: nyu-mll/glue\nhub_subset: mrpc\nvalidation_splits: []\ntest_splits: []\n"
    task = read_task_file(write("own.yaml", keys + hub))
    message = r"Hub data set nyu-mll/glue \(mrpc\), split train: .* has no not_equivalent"
    with pytest.raises(InputError, match=message):
        load_split(task, "train", data_dir=None)


def test_the_cache_is_read_in_offline_mode(cached_mrpc: Path):
    assert load_split(get_task("mrpc"), "train", data_dir=None).num_rows == 2


@pytest.mark.parametrize(("task", "split"), [("rte", "train"), ("mrpc", "validation")])
def test_what_the_cache_lacks_is_one_line(cached_mrpc, task, split):
    message = rf"task {task}: Hub data set nyu-mll/glue .*HF_HUB_OFFLINE is set.*--data_dir"
    with pytest.raises(InputError, match=message):
        load_split(get_task(task), split, data_dir=None)


def test_importing_the_tasks_imports_nothing_heavy():
    heavy = ("torch", "transformers", "datasets", "yaml", "pyarrow", "numpy")
    code = f"import sys, bert_recipes.tasks.sources; print(set({heavy}) & set(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"
