"""Where data is looked for, how a sample is drawn, and what happens without a network."""

import json
import time
from pathlib import Path

import pytest

from bert_recipes.errors import InputError
from bert_recipes.tasks.catalogue import get_task, list_tasks
from bert_recipes.tasks.sources import load_split, read_table


@pytest.mark.parametrize("folder", [".", "mrpc", "glue/mrpc", "MRPC", "glue/MRPC"])
def test_a_folder_is_found_by_its_usual_names(write_jsonl, tmp_path: Path, folder: str):
    write_jsonl(
        f"{folder}/train.jsonl", [{"sentence1": "a", "sentence2": "b", "label": n} for n in (0, 1)]
    )
    assert load_split(get_task("mrpc"), "train", data_dir=str(tmp_path)).num_rows == 2


@pytest.mark.parametrize(
    ("task", "file"),
    [
        ("conll2003", "ner/conll2003/valid.txt"),
        ("conll2003", "conll2003/dev.txt"),
        ("conll2003", "validation.txt"),
        ("swag", "swag/val.csv"),
        ("swag", "validation.csv"),
        ("squad", "squad/dev-v1.1.json"),
        ("squad_v2", "squad/dev-v2.0.json"),
        ("squad_v2", "dev-v2.0.json"),
    ],
)
def test_files_are_found_by_their_usual_names(write_text, tmp_path: Path, task: str, file: str):
    question = {"id": "1", "question": "q", "answers": [{"text": "x", "answer_start": 0}]}
    squad = {"data": [{"title": "t", "paragraphs": [{"context": "x", "qas": [question]}]}]}
    swag = "sent1,sent2,ending0,ending1,ending2,ending3,label\na,b,c,d,e,f,0\n"
    texts = {".txt": "EU B-ORG\n", ".csv": swag, ".json": json.dumps(squad)}
    path = write_text(file, texts[Path(file).suffix])
    split = load_split(get_task(task), "validation", data_dir=str(tmp_path))
    assert (split.num_rows, split.source) == (1, str(path))


def test_the_folder_itself_comes_first(write_jsonl, tmp_path: Path):
    write_jsonl("train.jsonl", [{"sentence": "first", "label": n} for n in (0, 1)])
    write_jsonl("sst2/train.jsonl", [{"sentence": "second", "label": n} for n in (0, 1)])
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
def test_a_byte_order_mark_belongs_to_no_column(tmp_path: Path, name: str, text: str):
    """Excel writes one."""
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    ((_, row),) = read_table(tmp_path / name).rows
    assert row == {"text": "One, two", "label": "1"}


@pytest.mark.parametrize(
    "name", ["train.parquet", "sst2/train-00000-of-00001.parquet"]
)  # the Hub's own name
def test_parquet_is_read(tmp_path: Path, name: str):
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / name).parent.mkdir(exist_ok=True)
    pq.write_table(
        pa.table({"sentence": ["a", "b"], "label": [0, 1], "idx": [7, 8]}), tmp_path / name
    )
    examples = load_split(get_task("sst2"), "train", data_dir=str(tmp_path)).examples
    assert [(example.idx, example.text, example.label) for example in examples] == [
        (7, "a", 0),
        (8, "b", 1),
    ]


# A sample


def test_a_sample_is_fixed_in_file_order_and_marked_as_partial(write_jsonl, tmp_path: Path):
    write_jsonl("train.jsonl", [{"sentence": str(n), "label": n % 2, "idx": n} for n in range(100)])
    task = get_task("sst2")
    one, two = (
        load_split(task, "train", data_dir=str(tmp_path), max_examples=10) for _ in range(2)
    )
    chosen = [example.idx for example in one.examples]
    assert chosen == [example.idx for example in two.examples] == sorted(set(chosen))
    assert len(chosen) == 10
    assert chosen != list(range(10))
    assert (one.num_rows, one.is_partial) == (100, True)
    assert len(load_split(task, "train", data_dir=str(tmp_path), max_examples=1000).examples) == 100


def test_a_sample_of_tagged_sentences_keeps_documents_together(write_text, tmp_path: Path):
    document = "-DOCSTART- O\n\n" + "a O\n\n" * 5
    write_text("train.txt", document * 20)
    examples = load_split(
        get_task("conll2003"), "train", data_dir=str(tmp_path), max_examples=12
    ).examples
    counts = {}
    for example in examples:
        counts.setdefault(example.document, []).append(example.idx)
    assert sorted(map(len, counts.values())) == [2, 5, 5]
    for document_number, rows in counts.items():
        assert rows == list(range(5 * document_number, 5 * document_number + len(rows)))


# The Hub


@pytest.fixture
def unreachable(monkeypatch):
    """A machine without a network, and nothing in its cache."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    for name in (
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", list_tasks())
def test_an_unreachable_hub_is_one_line_at_once(unreachable, name: str):
    task = get_task(name)
    start = time.perf_counter()
    with pytest.raises(InputError) as error:
        load_split(task, next(iter(task.published_rows)), data_dir=None)
    assert time.perf_counter() - start < 5
    message = str(error.value)
    assert message.startswith(f"task {name}: the Hub (http://127.0.0.1:9) cannot be reached, and ")
    assert '--data_dir FOLDER (make: ARGS="--data_dir FOLDER")' in message
    assert {"squad": "train-v1.1.json", "conll2003": "train.txt", "ax": "test.jsonl"}.get(
        name, "train"
    ) in message
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


def test_the_cache_is_read_in_offline_mode(cached_mrpc: Path):
    assert load_split(get_task("mrpc"), "train", data_dir=None).num_rows == 2


@pytest.mark.parametrize(("task", "split"), [("rte", "train"), ("mrpc", "validation")])
def test_what_the_cache_lacks_is_one_line(cached_mrpc: Path, task: str, split: str):
    with pytest.raises(
        InputError,
        match=rf"task {task}: Hub data set nyu-mll/glue .*HF_HUB_OFFLINE is set.*--data_dir",
    ):
        load_split(get_task(task), split, data_dir=None)


def test_importing_the_tasks_imports_nothing_heavy():
    import subprocess
    import sys

    code = (
        "import sys, bert_recipes.tasks.sources, bert_recipes.tasks.task, bert_recipes.tasks.task; "
        "print([m for m in ('torch', 'transformers', 'datasets', 'yaml', 'pyarrow', 'numpy') if m "
        "in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
