"""The quickstart's corpus: documents of whole modules, no copies, the same every time."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from python_process import run_python

from bert_recipes.data.quickstart_corpus import (
    Document,
    Documentation,
    Source,
    choose_held_out,
    dependencies,
    find_sources,
    make_documents,
    package_documentation,
    python_documentation,
    read_documentation,
    write_corpus,
)
from bert_recipes.errors import InputError


# A project that depends on little: the run takes seconds. The standard library is read as a whole.
PYPROJECT = (
    '[project]\nname = "own"\ndependencies = ["tqdm", '
    '"no-such-package"]\noptional-dependencies = {dev = ["pluggy"]}\n'
)


COLLECT = "recipes/collect_docstrings.py"


@pytest.fixture(scope="module")
def small_project(repository, tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    (folder / "recipes").mkdir()
    shutil.copy(repository / "recipes" / "collect_docstrings.py", folder / "recipes")
    (folder / "pyproject.toml").write_text(PYPROJECT)
    return folder


@pytest.fixture(scope="module")
def corpus(small_project):
    result = run_python(COLLECT, "--output_dir out --num_workers 2", cwd=small_project)
    assert "not installed, so left out: no-such-package" in result.stdout
    return small_project / "out"


def paragraphs(folder: Path, split: str) -> list[list[str]]:
    text = (folder / split / "documents.txt").read_text(encoding="utf-8")
    return [document.splitlines() for document in text.removesuffix("\n").split("\n\n")]


@pytest.mark.slow
def test_documents_are_paragraph_lines_between_blank_lines_and_are_counted(corpus):
    counts = json.loads((corpus / "corpus.json").read_text())
    num_documents = num_bytes = 0

    for split in ("train", "validation"):
        documents = paragraphs(corpus, split)
        assert all(line.strip() for document in documents for line in document)
        assert counts[split]["documents"] == len(documents)
        assert counts[split]["paragraphs"] == sum(map(len, documents))
        assert counts[split]["bytes"] == (corpus / split / "documents.txt").stat().st_size
        num_documents += len(documents)
        num_bytes += counts[split]["bytes"]

    assert counts["files"] > 1000

    dropped = [number for name, number in counts.items() if name.startswith("dropped files")]

    assert counts["files"] == sum(dropped) + num_documents
    # Three to six per cent are held out, in modules.
    assert 0.03 < counts["validation"]["bytes"] / num_bytes < 0.06
    assert len(counts["held_out"]) >= 5


@pytest.mark.slow
def test_the_same_installation_gives_the_same_bytes_with_any_number_of_workers(
    small_project, corpus
):
    run_python(COLLECT, "--output_dir again --num_workers 1", cwd=small_project)
    for name in ("train/documents.txt", "validation/documents.txt", "corpus.json"):
        assert (small_project / "again" / name).read_bytes() == (corpus / name).read_bytes()


def test_every_kind_of_source_gives_paragraphs():
    elsewhere = "other-package; sys_platform == 'nowhere'"
    packages, missing = dependencies(["numpy", "no-such-package", elsewhere])

    assert missing == ["no-such-package"]

    for sources in (python_documentation(), package_documentation(packages[0])):
        texts = filter(None, map(read_documentation, list(sources)[::100]))
        assert any(documentation.paragraphs for documentation in texts)


def test_the_project_itself_is_left_out(tmp_path):
    extra = 'optional-dependencies = {dev = ["pluggy", "packaging"]}'
    (tmp_path / "pyproject.toml").write_text(
        f'[project]\nname = "pluggy"\ndependencies = []\n{extra}\n'
    )
    counts: Counter[str] = Counter()
    sources, missing = find_sources(tmp_path / "pyproject.toml", counts)
    names = {source.name.split("/")[0] for source in sources}

    assert (missing, counts["packages"]) == ([], 1)
    assert "packaging" in names
    assert "pluggy" not in names


def test_a_file_that_does_not_parse_is_told_from_an_empty_one(tmp_path):
    bad, empty = tmp_path / "bad.py", tmp_path / "empty.py"
    bad.write_text("print 'Python 2'")
    empty.write_text("")

    assert read_documentation(Source("bad", bad)) is None
    assert read_documentation(Source("empty", empty)).paragraphs == []


def test_a_source_is_a_document_and_what_goes_is_counted():
    first, second = "Return the number of items.", "Raise an error when the file is missing."
    sources = [
        (Source("a/1", ""), Documentation([first, second], 2)),
        (Source("b/1", ""), Documentation([second], 1)),
        (Source("b/2", ""), Documentation(["Short."], 1)),
        (Source("c/1", ""), None),
    ]
    counts: Counter[str] = Counter()
    documents = make_documents(sources, 3, counts)

    assert documents == [Document("a/1", f"{first}\n{second}\n"), Document("b/1", f"{second}\n")]
    assert counts == {
        "files": 4,
        "docstrings": 4,
        "dropped files: not this Python's syntax": 1,
        "dropped files: fewer than 3 words": 1,
        "dropped paragraphs: of such files": 1,
    }


def test_held_out_paragraphs_that_are_trained_on_too_are_counted(tmp_path):
    documents = [
        Document("a", "Twice.\nOnce.\n"),
        Document("a", "More.\n"),
        Document("b", "Twice.\nNew.\n"),
    ]
    report = write_corpus(tmp_path, [*documents, Document("b", "Newer.\n")], {"b"}, Counter())

    assert report["held-out paragraphs that occur in train too"] == 1


def test_what_is_held_out_depends_on_the_names_and_sizes_only_and_is_never_one_large_module():
    documents = [Document(f"module{number}", "x" * 100) for number in range(100)]
    documents += [Document("large", "x" * 1000)]
    held_out = choose_held_out(documents, 0.1)

    assert "large" not in held_out
    assert len(held_out) == 11
    assert choose_held_out(reversed(documents), 0.1) == held_out


def test_a_corpus_without_a_held_out_part_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(InputError, match="only 3 documents"):
        write_corpus(tmp_path / "out", [Document("a", "Text.\n")] * 3, set(), Counter())
    assert not (tmp_path / "out").exists()
