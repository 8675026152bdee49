"""Each document once: what is removed is known beforehand, and which of duplicates stays."""

import gzip
import json
import string
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_corpora import SPECIAL

from bert_recipes.data.corpus import iter_documents
from bert_recipes.data.deduplicate import DeduplicationArguments
from bert_recipes.data.prepare import CorpusArguments, prepare_store
from bert_recipes.data.store import open_store
from bert_recipes.errors import InputError
from bert_recipes.tokenization.loading import load_tokenizer


pytest.importorskip("datatrove", reason="datatrove is an extra")
pytest.importorskip("orjson", reason="orjson is an extra")
from bert_recipes.data.deduplicate import WordsOfAnyLanguage, deduplicate


def make_document(seed):
    """Three paragraphs of forty words that no other document shares a run of five with."""
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(list(string.ascii_lowercase), 5)) for _ in range(120)]
    return [" ".join(words[begin : begin + 40]) + "." for begin in (0, 40, 80)]


def reworded(document, place, word="another"):
    """The document with one word of its first paragraph changed: nine of ten shingles stay."""
    words = document[0].split()
    words[place] = word
    return [" ".join(words), *document[1:]]


def shouted(document):
    """The same words in capitals, with other punctuation."""
    return [paragraph.upper().replace(".", "!") for paragraph in document]


def write_text(path, documents):
    path.write_text(
        "\n\n".join("\n".join(document) for document in documents) + "\n", encoding="utf-8"
    )


DOCUMENTS = [make_document(seed) for seed in range(10)]
# What stays, in order.
FIRST_FILE = [DOCUMENTS[0], DOCUMENTS[1], DOCUMENTS[2], DOCUMENTS[3]]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Four files, one of each kind: 10 documents that differ, 4 exact and 5 near duplicates."""
    folder = tmp_path_factory.mktemp("corpus")
    # The chain: the first is like the second, the second like the third.
    chain = [DOCUMENTS[4], reworded(DOCUMENTS[4], 3), reworded(reworded(DOCUMENTS[4], 3), 30)]
    write_text(folder / "a.txt", [*FIRST_FILE, DOCUMENTS[1]])
    rows = [DOCUMENTS[3], chain[0], shouted(DOCUMENTS[2]), DOCUMENTS[5]]
    # Blanks around paragraphs and blank lines between them are no part of a document.
    text = "".join(
        json.dumps({"text": "\n\n".join(f"  {line} " for line in row)}) + "\n" for row in rows
    )
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    # The copy that stays has a higher number in its file than this one.
    table = [DOCUMENTS[3], chain[1], DOCUMENTS[6], reworded(DOCUMENTS[5], 20), chain[2]]
    pq.write_table(pa.table({"text": ["\n".join(row) for row in table]}), folder / "c.parquet")
    (folder / "d.json").write_text(
        "".join(
            json.dumps({"text": "\n".join(row)}) + "\n"
            for row in (*DOCUMENTS[7:], DOCUMENTS[0], reworded(DOCUMENTS[8], 1))
        )
    )
    return folder


def expected(*, near):
    chain = [DOCUMENTS[4], reworded(DOCUMENTS[4], 3), reworded(reworded(DOCUMENTS[4], 3), 30)]
    if near:
        return [*FIRST_FILE, chain[0], DOCUMENTS[5], DOCUMENTS[6], *DOCUMENTS[7:]]
    second = [chain[0], shouted(DOCUMENTS[2]), DOCUMENTS[5]]
    third = [chain[1], DOCUMENTS[6], reworded(DOCUMENTS[5], 20), chain[2]]
    return [*FIRST_FILE, *second, *third, *DOCUMENTS[7:], reworded(DOCUMENTS[8], 1)]


def run(corpus, output, **options):
    return deduplicate(
        DeduplicationArguments(
            files=[str(corpus)], output_dir=str(output), **({"workers": 1} | options)
        )
    )


def documents_of(folder):
    return list(iter_documents(folder))


@pytest.fixture(scope="module")
def once(corpus, tmp_path_factory):
    output = tmp_path_factory.mktemp("once") / "corpus"
    return output, run(corpus, output)


def test_known_duplicates_are_removed_and_nothing_else(corpus, once):
    output, report = once
    counts = {
        name: number
        for name, number in report.items()
        if name.startswith(("documents", "exact", "near"))
    }
    assert counts == {
        "documents_read": 19,
        "exact_duplicates": 4,
        "near_duplicates": 5,
        "documents_kept": 10,
    }
    assert documents_of(output) == expected(near=True)
    written = json.loads(output.with_name("corpus.report.json").read_text())
    assert written == report
    assert (report["threshold"], report["settings"]["n_grams"]) == (0.719, 5)
    assert [source["name"] for source in report["sources"]] == [
        f"{corpus.name}/{name}" for name in ("a.txt", "b.jsonl.gz", "c.parquet", "d.json")
    ]


def test_only_exact_ones_when_asked(corpus, tmp_path):
    report = run(corpus, tmp_path / "out", near=False)
    assert (report["exact_duplicates"], report["near_duplicates"], report["documents_kept"]) == (
        4,
        0,
        15,
    )
    assert documents_of(tmp_path / "out") == expected(near=False)
    assert "threshold" not in report


@pytest.mark.parametrize(("workers", "tasks"), [(2, None), (1, 1), (2, 2), (1, 50)])
def test_neither_workers_nor_tasks_change_what_is_kept(corpus, once, tmp_path, workers, tasks):
    report = run(corpus, tmp_path / "corpus", workers=workers, tasks=tasks)
    assert report == once[1]
    text = {
        name: b"".join(path.read_bytes() for path in sorted(name.iterdir()))
        for name in (tmp_path / "corpus", once[0])
    }
    assert text[tmp_path / "corpus"] == text[once[0]]
    if tasks is None:
        assert [path.name for path in sorted((tmp_path / "corpus").iterdir())] == [
            f"{n:05}.jsonl" for n in range(4)
        ]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "corpus",
        "corpus.logs",
        "corpus.report.json",
    ]


def test_what_is_written_is_prepared_like_the_documents_themselves(once, tmp_path):
    vocabulary = tmp_path / "vocab.txt"
    letters = string.ascii_lowercase
    vocabulary.write_text(
        "\n".join([*SPECIAL, *letters, *(f"##{letter}" for letter in letters), "."]) + "\n"
    )
    (tmp_path / "expected").mkdir()
    write_text(tmp_path / "expected" / "text.txt", expected(near=True))
    for name, files in (("store", once[0]), ("like", tmp_path / "expected")):
        arguments = CorpusArguments(
            tokenizer=str(vocabulary),
            files=[str(files)],
            output_dir=str(tmp_path / name),
            num_processes=1,
            sentences="lines",
        )
        prepare_store(arguments, load_tokenizer(vocabulary))
    one, other = open_store(tmp_path / "store"), open_store(tmp_path / "like")
    assert one.train.num_sentences == 30
    assert one.fingerprint == other.fingerprint


def test_gzip_holds_the_same_rows(corpus, once, tmp_path):
    run(corpus, tmp_path / "out", near=False, compression="gzip")
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == [
        f"{n:05}.jsonl.gz" for n in range(4)
    ]
    assert documents_of(tmp_path / "out") == expected(near=False)


def test_scripts_without_blanks_are_cut_into_characters():
    words = WordsOfAnyLanguage().word_tokenize
    assert words("\u5317\u4eac caf\u00e9 \u043c\u0438\u0440") == [
        "\u5317",
        "\u4eac",
        "caf\u00e9",
        "\u043c\u0438\u0440",
    ]
    assert words("a1 \u0e01\u0e02x") == ["a1", "\u0e01", "\u0e02", "x"]


def test_near_duplicates_are_found_without_blanks_and_never_among_short_documents(tmp_path):
    rng = np.random.default_rng(0)
    chinese = "".join(map(chr, rng.integers(0x4E00, 0x9FFF, 200)))
    write_text(
        tmp_path / "a.txt",
        [[chinese], ["A b c d."], [f"{chinese[:100]}\u5317{chinese[101:]}"], ["a b c d"]],
    )
    report = run(tmp_path / "a.txt", tmp_path / "out")
    assert (report["near_duplicates"], report["documents_kept"]) == (1, 3)
    assert documents_of(tmp_path / "out") == [[chinese], ["A b c d."], ["a b c d"]]


def test_what_the_reader_drops_and_mends_is_reported(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(
        b'{"text": "One \xe9 apple."}\n{"text": " "}\n{"text": null}\n'
    )
    report = run(tmp_path / "a.jsonl", tmp_path / "out", encoding_errors="replace", near=False)
    assert report["documents_kept"] == 1
    assert report["dropped"] == {"rows_without_text": 2}
    assert report["repaired"] == {"characters_replaced": 1}


def test_the_first_stays_also_where_the_others_are_more_alike(tmp_path):
    """datatrove's own choice would be another in these: it keeps one of the pair that was found
    first.
    """
    others = [make_document(seed) for seed in (20, 21, 22, 23)]
    firsts = [reworded(reworded(reworded(document, 10), 20), 30) for document in others]
    write_text(tmp_path / "a.txt", [*firsts, *others, *map(shouted, others)])
    report = run(tmp_path / "a.txt", tmp_path / "out")
    assert report["near_duplicates"] == 8
    assert documents_of(tmp_path / "out") == firsts


def test_text_without_a_shingle_is_kept_and_no_text_at_all_is_refused(tmp_path):
    write_text(tmp_path / "short.txt", [["One."], ["Two."], ["One."]])
    report = run(tmp_path / "short.txt", tmp_path / "out")
    assert (report["exact_duplicates"], report["near_duplicates"], report["documents_kept"]) == (
        1,
        0,
        2,
    )
    (tmp_path / "empty.txt").write_text(" \n\n")
    with pytest.raises(InputError, match=r"empty\.txt: no document with text"):
        run(tmp_path / "empty.txt", tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": 0}, "tasks is 0"),
        ({"tasks": 1000}, "tasks is 1000; allowed: 1 to 512"),
        ({"n_grams": 0}, "n_grams is 0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_a_setting_that_cannot_be_is_one_line(settings, message):
    with pytest.raises(InputError, match=message):
        DeduplicationArguments(files=["a.txt"], output_dir="out", **settings)


def test_a_folder_that_holds_something_is_left_alone(corpus, tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(InputError, match="exists already and is left alone"):
        run(corpus, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_command_says_what_it_removed(repository, corpus, tmp_path):
    command = [sys.executable, repository / "recipes" / "deduplicate_corpus.py", "--files", corpus]
    command += ["--output_dir", tmp_path / "out", "--workers", 2]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    said = {line[:24].strip(): line[24:].strip() for line in done.stdout.splitlines()}
    assert (said["exact duplicates"], said["near duplicates"], said["documents kept"]) == (
        "4",
        "5",
        "10",
    )
    assert documents_of(tmp_path / "out") == expected(near=True)


def test_a_failed_task_is_one_line_and_leaves_its_log_only(repository, corpus, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"An apple.\n\nA caf\xe9.\n")
    command = [
        sys.executable,
        repository / "recipes" / "deduplicate_corpus.py",
        "--files",
        corpus,
        tmp_path / "a.txt",
    ]
    command += ["--output_dir", tmp_path / "out"]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert f"{tmp_path / 'a.txt'}:3" in line or "line 3" in line
    assert "a.txt" in Path(line.split("log: ")[1].rstrip(")")).read_text()
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "out.logs"]
