"""Files of every kind, and tasks of one's own that read them."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_recipes.tasks.sources import load_split
from bert_recipes.tasks.task_file import read_task_file


@pytest.fixture
def write(tmp_path: Path):
    """Write a file of a name: text, bytes, or rows as JSON lines or Parquet."""

    def write_file(name: str, content) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list) and path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(content), path)
            return path
        if isinstance(content, list):
            content = "".join(json.dumps(row) + "\n" for row in content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


@pytest.fixture
def read(write):
    """Read the training file of a task: keys, content, name of the file -> task and examples."""

    def read_train(keys: str, content, name: str = "train.jsonl"):
        write(name, content)
        task = read_task_file(write("own.yaml", f"{keys}files: {{train: {name}}}\n"))
        return task, load_split(task, "train", data_dir=None).examples

    return read_train


@pytest.fixture
def read_tags(read):
    """Read a task of words: (word, tag) of each word of each sentence."""

    def read_sentences(keys: str, content, name: str = "train.txt"):
        task, examples = read(f"kind: token_classification\n{keys}", content, name)
        sentences = []
        for example in examples:
            tags = [task.labels[label] for label in example.labels]
            sentences.append(list(zip(example.tokens, tags, strict=True)))
        return sentences

    return read_sentences
