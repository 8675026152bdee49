"""A corpus of several shards."""

from pathlib import Path
from typing import NamedTuple

import pytest
from python_process import run_python
from small_corpora import contents_of


class Corpus(NamedTuple):
    """How it is prepared, and what comes out on one machine."""

    flags: str
    contents: dict[Path, bytes]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    pytest.importorskip("datatrove")
    folder = tmp_path_factory.mktemp("corpus")
    texts, tokenizer, store = (folder / name for name in ("texts", "tokenizer", "store"))
    texts.mkdir()
    for number in range(40):
        lines = "".join(f"Line {line} of text {number} is here. " for line in range(200))
        (texts / f"{number}.txt").write_text(lines)
    run_python(f"tokenizer/train.py --vocab_size 200 --files {texts} --output_dir {tokenizer}")
    flags = (
        f"--files {texts} --tokenizer {tokenizer} --document_boundary file "
        "--validation_fraction 0.2 --shard_gigabytes 0.0001 --num_processes 1"
    )
    run_python(f"recipes/prepare_corpus.py {flags} --output_dir {store}")
    assert len(list((store / "shards").iterdir())) > 1
    return Corpus(flags, contents_of(store))
