"""`recipes/prepare_corpus.py` as a user runs it: text in, store out, one line for every mistake."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from in_process import RECIPES
from small_corpora import WORDS, contents_of

from bert_recipes.config import parse_arguments
from bert_recipes.data import prepare as prepare_module
from bert_recipes.data.corpus import iter_documents
from bert_recipes.data.encoding import (
    DocumentEncoder,
    TextBatch,
    batch_documents,
)
from bert_recipes.data.prepare import CorpusArguments, format_report, prepare_store
from bert_recipes.data.processes import run_in_order
from bert_recipes.data.store import open_store
from bert_recipes.errors import InputError
from bert_recipes.tokenization.loading import load_tokenizer


CONFIGS = RECIPES / "configs" / "corpus"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """40 files; file number k holds one document of k % 5 + 1 paragraphs."""
    folder = tmp_path_factory.mktemp("corpus") / "texts"
    folder.mkdir()
    for number in range(40):
        color = WORDS[number % 3]
        paragraph = f"Mr. {color} pear {number} grows. The {color} apple falls!\n\n"
        (folder / f"{number:02}.txt").write_text(paragraph * (number % 5 + 1))
    return folder


@pytest.fixture
def prepare(vocabulary, tmp_path):
    """Prepare files, a document each, in a folder of `tmp_path`; return the report."""

    def prepare_files(name, files, **options):
        defaults = {"num_processes": 1, "document_boundary": "file"}
        arguments = CorpusArguments(
            tokenizer=str(vocabulary),
            output_dir=str(tmp_path / name),
            files=list(map(str, files)),
            **{**defaults, **options},
        )
        return prepare_store(arguments, load_tokenizer(vocabulary))

    return prepare_files


@pytest.fixture
def prepare_text(prepare, tmp_path):
    """Prepare one text file, whose documents end at blank lines."""

    def prepare_one(text, **options):
        (tmp_path / "a.txt").write_text(text)
        boundary = {"document_boundary": "blank_line", **options}
        return prepare("store", [tmp_path / "a.txt"], **boundary)

    return prepare_one


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_command_writes_a_store_and_reports_it(
    call_recipe, vocabulary, corpus, tmp_path, caplog
):
    caplog.set_level("INFO")
    flags = f"--config {CONFIGS}/books_and_articles.yaml --num_processes 1"
    paths = f"--files {corpus} --validation_files {corpus}/0*.txt --tokenizer {vocabulary}"
    output = call_recipe("prepare_corpus", flags, paths, "--output_dir", tmp_path / "store")
    facts = dict(line.split(": ") for line in output.splitlines())

    assert facts["train documents"] == "30"
    assert facts["validation sentences"] == "60"
    assert facts["rate"].endswith(" MB/s")
    assert facts["store"] == str(tmp_path / "store")
    assert "10 files of --files are held out" in caplog.text

    store = open_store(tmp_path / "store")
    tokenizer = load_tokenizer(store.tokenizer_path)
    store.check_tokenizer(tokenizer.fingerprint, len(tokenizer))
    sentences = [store.train.tokens(number, number + 1).tolist() for number in range(2)]

    assert list(map(tokenizer.decode, sentences)) == [
        "mr. green pear [UNK] grows.",
        "the green apple falls!",
    ]
    assert store.metadata["read"]["train"]["documents"] == 30
    assert str(tmp_path) not in (tmp_path / "store" / "store.json").read_text()


def test_text_that_the_tokenizer_does_not_know_is_warned_of(
    prepare_text, vocabulary, tmp_path, caplog
):
    """Hours of training on it would teach nothing."""
    report = prepare_text("Швидка лисиця стрибає.\n\nЩиро дякую, red pear.\n")  # noqa: RUF001
    unknown = report.metadata["unknown_tokens"]["train"]
    tokens = open_store(tmp_path / "store").train.tokens(0, 2)
    num_unknown = (tokens == load_tokenizer(vocabulary).unk_token_id).sum()

    assert unknown == {"Cyrillic": num_unknown}
    assert "script Cyrillic; --tokenizer" in caplog.text
    assert "train [UNK] tokens: " in format_report(report)


def test_any_number_of_processes_gives_the_same_bytes(prepare, corpus, tmp_path, monkeypatch):
    # Batches of a few documents, so that every process gets many.
    monkeypatch.setattr(batch_documents, "__defaults__", (300,))
    options = {"validation_fraction": 0.3, "shard_gigabytes": 4e-6}
    for num_processes in (1, 2):
        prepare(str(num_processes), [corpus], num_processes=num_processes, **options)
    contents = contents_of(tmp_path / "1")

    assert len(contents) > 6
    assert contents == contents_of(tmp_path / "2")


def test_the_held_out_documents_depend_on_the_seed_and_partition_the_corpus(
    prepare, corpus, tmp_path
):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        report = prepare(name, [corpus], validation_fraction=0.3, seed=seed)
        splits = report.metadata["splits"]
        assert sum(entry["num_documents"] for entry in splits.values()) == 40
        assert 4 <= splits["validation"]["num_documents"] <= 20
    first, same, other = (contents_of(tmp_path / name / "shards") for name in "abc")

    assert first == same != other


def test_texts_without_tokens_are_dropped_and_counted(prepare, tmp_path):
    # U+0007 is a control character: the tokenizer drops it and nothing is left.
    (tmp_path / "a.txt").write_text("red. \x07! Green.\n\n\x07\n\nblue\n\n")
    (tmp_path / "b.txt").write_text("\n")
    options = {"document_boundary": "blank_line", "sentences": "lines"}
    metadata = prepare("store", [tmp_path], **options).metadata

    assert metadata["dropped"]["train"] == {
        "sentences_without_tokens": 1,
        "documents_without_sentences": 1,
        "files_without_text": 1,
    }
    assert metadata["splits"]["train"]["num_documents"] == 2

    stored = open_store(tmp_path / "store").metadata

    assert stored["dropped"] == metadata["dropped"]


@pytest.mark.parametrize(("sentences", "number"), [("split", 3), ("lines", 2)])
def test_sentences_are_split_or_taken_line_by_line(prepare_text, sentences, number):
    metadata = prepare_text("Red. Green!\n\nblue\n", sentences=sentences).metadata
    assert metadata["splits"]["train"]["num_sentences"] == number


def test_passages_only_drops_and_counts_the_other_paragraphs(prepare, tmp_path):
    passage = "The red apple falls and the green pear grows."
    texts = [f"Heading\n\n{passage}\n\n* red\n* green", passage, "Heading"]
    lines = [json.dumps({"text": text}) for text in texts]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    options = {"document_boundary": "auto", "keep": "passages"}
    metadata = prepare("store", [tmp_path / "a.jsonl"], **options).metadata

    assert metadata["dropped"]["train"] == {
        "paragraphs_that_are_no_passages": 4,
        "documents_without_sentences": 1,
    }
    assert metadata["splits"]["train"]["num_sentences"] == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"document_boundary": "file"}, "1 usable documents for train.*boundary is 'file'"),
        (
            {"document_boundary": "line", "validation_fraction": 0.0001},
            "0 usable documents for validation.*raise",
        ),
    ],
)
def test_fewer_than_two_usable_documents_are_refused_with_advice(
    prepare_text, tmp_path, options, message
):
    with pytest.raises(InputError, match=message):
        prepare_text("red\n\ngreen\n", **options)
    assert names_in(tmp_path) == ["a.txt"]


@pytest.mark.parametrize(
    ("flags", "size", "fraction"),
    [
        ("", 250_000, 0.1),  # the tenth of a very small corpus
        ("", 5_000_000, 0.05),
        ("", 25_000_000, 0.01),  # the fraction of the file
        ("--validation_fraction 0.02", 5_000_000, 0.02),
        ("--validation_fraction 0", 5_000_000, 0.0),
        ("--validation_files a.txt", 5_000_000, 0.0),
    ],
)
def test_of_a_small_corpus_more_is_held_out_than_the_file_says(
    tmp_path, flags, size, fraction, caplog
):
    (tmp_path / "text.txt").touch()
    os.truncate(tmp_path / "text.txt", size)
    argv = f"--config {CONFIGS}/local_text.yaml --files {tmp_path} --tokenizer t --output_dir o"
    (arguments,) = parse_arguments(CorpusArguments, argv=f"{argv} {flags}".split())

    assert arguments.validation_fraction == fraction
    assert ("would hold out little of a small corpus" in caplog.text) is (fraction in (0.1, 0.05))


SHORT_DOCUMENT = f"{' '.join(WORDS[:8])}. " * 2


def test_ten_documents_are_a_corpus(prepare_text, caplog):
    text = "\n\n".join(f"{word}. {SHORT_DOCUMENT}" for word in WORDS[:10])
    splits = prepare_text(text, validation_fraction=0.1).metadata["splits"]

    assert [entry["num_documents"] for entry in splits.values()] == [8, 2]
    assert "fewer than 2 of the 10 different documents: this many are held out" in caplog.text


def test_of_a_few_books_some_are_held_out(prepare, tmp_path, caplog):
    """Ten books of 120 kB: of each book, a fraction of 0.1 holds out none of the first ones."""
    book = f"{SHORT_DOCUMENT}\n" * (120_000 // len(SHORT_DOCUMENT))
    for number in range(10):
        (tmp_path / f"{number}.txt").write_text(f"{WORDS[number]}. {book}")
    files = [tmp_path / f"{number}.txt" for number in range(10)]
    splits = prepare("books", files, validation_fraction=0.04).metadata["splits"]

    assert [entry["num_documents"] for entry in splits.values()] == [8, 2]
    assert "this many are held out, 20 % of them" in caplog.text


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_lines_that_break_inside_sentences_are_warned_of(prepare, tmp_path, caplog, is_wrapped):
    """As Project Gutenberg's: each line would be read as a sentence of its own."""
    sentence = "Red apples fall in the green garden of the old house, and pears grow there. "
    paragraph = sentence * 6
    lines = textwrap.wrap(paragraph, 40) if is_wrapped else [paragraph]
    for name in "abcd":
        text = "\n\n".join("\n".join(lines) for _ in range(5))
        (tmp_path / f"{name}.txt").write_text(text)
    files = [tmp_path / f"{name}.txt" for name in "abcd"]
    prepare("store", files, document_boundary="file")
    assert ("lines go on with the sentence of the line before" in caplog.text) is is_wrapped

    caplog.clear()
    prepare("joined", files, document_boundary="file", wrapped_lines=True)
    assert "lines go on with the sentence" not in caplog.text


def test_sentences_that_are_longer_than_an_input_are_warned_of(prepare_text, caplog):
    without_stops = " ".join(WORDS[:8] * 40)
    prepare_text(f"{without_stops}\n\n" * 3)

    expected = "100% of the tokens stand in sentences of more than 128 tokens: where sentences end"
    assert expected in caplog.text


def test_a_few_long_paragraphs_without_sentences_are_warned_of_by_their_share(prepare_text, caplog):
    """Their mean would hide them: Thai beside short lines."""
    without_stops = " ".join(WORDS[:8] * 40)
    short = f"{' '.join(WORDS[:8])}.\n"
    prepare_text(f"{without_stops}\n{short * 60}\n" * 3)
    assert "37% of the tokens stand in sentences of more than 128 tokens" in caplog.text


def test_what_is_around_the_text_is_warned_of(prepare, tmp_path, caplog):
    start = "*** START OF THE PROJECT GUTENBERG EBOOK 11 ***\n"
    for name in ("a", "b", "c"):
        (tmp_path / f"book_{name}.txt").write_text(f"{start}One {name}.\nTwo {name}.\n")
        lines = [f"{number}\tOne {name} {number}.\n" for number in range(30)]
        (tmp_path / f"leipzig_{name}.txt").write_text("".join(lines))
    prepare("books", [tmp_path / "book_*.txt"])
    assert "Project Gutenberg's header and licence are read as text" in caplog.text
    caplog.clear()
    prepare("sentences", [tmp_path / "leipzig_*.txt"])
    assert f"{tmp_path}: lines begin with a number and a tab" in caplog.text


def test_books_and_rows_make_one_store(prepare, tmp_path):
    """Wikipedia in rows beside books in files, as for BERT."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(f"One {name}.\n\nTwo {name}.\n")
    rows = [{"text": "Red.\nGreen."}, {"text": "Blue."}]
    (tmp_path / "wiki.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    files = [tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "wiki.jsonl"]
    prepare("store", files, document_boundary="file")
    assert open_store(tmp_path / "store").train.num_documents == 4


def test_documents_that_teach_little_are_warned_of(prepare, prepare_text, tmp_path, caplog):
    prepare_text("red\ngreen\nblue\n", document_boundary="line")

    assert "3 of 3 documents hold one sentence only" in caplog.text
    assert "documents have 1 tokens on average" in caplog.text

    caplog.clear()
    long_document = f"{SHORT_DOCUMENT}\n\n" * 40
    for name in ("1.txt", "2.txt"):
        (tmp_path / name).write_text(long_document)
    prepare("long", [tmp_path / "1.txt", tmp_path / "2.txt"])

    assert "on average" not in caplog.text
    assert "one sentence only" not in caplog.text


def test_few_tokens_held_out_are_warned_of(prepare, corpus, monkeypatch, caplog):
    held_out_files = {"validation_files": [str(corpus / "0*.txt")]}
    splits = prepare("few", [corpus], **held_out_files).metadata["splits"]
    num_tokens = splits["validation"]["num_tokens"]

    assert f"only {num_tokens} tokens in 10 documents are held out" in caplog.text
    assert "raise the number of validation_files" in caplog.text

    caplog.clear()
    monkeypatch.setattr(prepare_module, "FEW_HELD_OUT_TOKENS", num_tokens)
    prepare("enough", [corpus], **held_out_files)
    prepare("none", [corpus])  # nothing is measured

    assert "are held out, so" not in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "--files or as --dataset_name, and not both"),
        ({"files": ["a"], "dataset_name": "b"}, "--files or as --dataset_name, and not both"),
        ({"files": ["a"], "names": "b"}, "give --tokenizer for text, or --names"),
        ({"files": ["a"], "validation_files": ["b"], "validation_fraction": 0.1}, "choose one"),
        ({"files": ["a"], "validation_fraction": 1.0}, "allowed: 0 or more and below 1"),
        ({"files": ["a"], "num_processes": 0}, "1 or more"),
        ({"files": ["a"], "max_line_bytes": 10**30}, "allowed: 1 to"),
        ({"files": ["a"], "shard_gigabytes": float("nan")}, "shard_gigabytes is nan"),
        ({"files": ["a"], "wrapped_lines": True, "sentences": "lines"}, "choose one"),
        ({"dataset_name": "a", "document_boundary": "file"}, "auto, row"),
    ],
)
def test_settings_without_meaning_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        CorpusArguments(tokenizer="t", output_dir="o", **options)


@pytest.mark.parametrize("held_out", ["", "--validation_files c"])
def test_the_length_of_lines_is_for_files_alone(caplog, held_out):
    flags = f"--tokenizer t --output_dir o --dataset_name a/b --max_line_bytes 9 {held_out}"
    parse_arguments(CorpusArguments, argv=flags.split())

    assert ("without effect" in caplog.text) == (held_out == "")


def test_holding_out_every_file_is_refused(prepare, corpus):
    with pytest.raises(InputError, match="nothing is left to train on"):
        prepare("store", [corpus / "*.txt"], validation_files=[str(corpus)])


def test_a_boundary_that_does_not_go_with_held_out_files_is_refused_before_any_text_is_read(
    prepare, tmp_path
):
    (tmp_path / "a.jsonl").write_bytes(b"\xff")
    (tmp_path / "b.jsonl").write_text('{"text": "red"}')

    with pytest.raises(InputError, match=r"a\.jsonl: document_boundary 'file' does not go with"):
        prepare(
            "store",
            [tmp_path / "a.jsonl"],
            validation_files=[str(tmp_path / "b.jsonl")],
            document_boundary="file",
        )


def test_a_store_is_replaced_only_on_demand(prepare, corpus, tmp_path):
    (tmp_path / "store").mkdir()  # an empty one is used
    prepare("store", [corpus])

    with pytest.raises(InputError, match="holds a store already"):
        prepare("store", [corpus])

    (tmp_path / "bad.txt").write_bytes(b"\xff")

    with pytest.raises(InputError, match="not valid UTF-8"):
        prepare("store", [tmp_path / "bad.txt"], overwrite=True)
    assert open_store(tmp_path / "store").train.num_documents == 40

    prepare("store", [corpus / "0*.txt"], overwrite=True)

    assert open_store(tmp_path / "store").train.num_documents == 10
    assert names_in(tmp_path) == ["bad.txt", "store"]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["mine", "mine/thesis.txt"])
def test_an_output_folder_of_other_files_is_never_touched(
    prepare, corpus, tmp_path, name, overwrite
):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("text")

    with pytest.raises(InputError, match="is not a store of this release, so it is left alone"):
        prepare(name, [corpus], overwrite=overwrite)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "text"


def test_a_killed_preparation_without_a_shard_stands_in_no_way(prepare, corpus, tmp_path):
    (tmp_path / ".store.shards" / "shards" / ".00000.partial-x").mkdir(parents=True)
    (tmp_path / ".store.shards" / "plan.json").write_text("{}")
    prepare("store", [corpus])

    assert names_in(tmp_path) == ["store"]


@pytest.mark.parametrize("shard_gigabytes", [1.0, 1e-9])
@pytest.mark.parametrize("target", ["empty", "later", "old"])
def test_an_output_folder_that_is_a_link_is_followed(
    prepare, corpus, tmp_path, target, shard_gigabytes
):
    options = {"shard_gigabytes": shard_gigabytes}
    (tmp_path / "disk" / "empty").mkdir(parents=True)
    if target == "old":
        prepare("disk/old", [corpus / "1*.txt"], **options)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / target)
    prepare("link", [corpus / "0*.txt"], overwrite=True, **options)

    assert open_store(tmp_path / "disk" / target).train.num_documents == 10
    assert (tmp_path / "link").is_symlink()
    assert {path.name for path in tmp_path.rglob(".*")} <= {".checked.json"}


def test_bad_text_is_one_line_on_stderr_and_leaves_no_store(call_recipe, vocabulary, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"red\n\ngr\xe9en\n")
    flags = f"--files {tmp_path}/a.txt --tokenizer {vocabulary} --output_dir {tmp_path}/store"
    output = call_recipe("prepare_corpus", flags, "--num_processes 1", code=1)
    (error,) = [line for line in output.splitlines() if "error:" in line]

    assert ", line 3: not valid UTF-8" in error
    assert names_in(tmp_path) == ["a.txt"]


@pytest.mark.slow
def test_a_polite_end_leaves_nothing(vocabulary, tmp_path):
    (tmp_path / "a.txt").write_text("Red apple. Green pear!\n\n" * 1_000_000)
    flags = f"--files {tmp_path}/a.txt --tokenizer {vocabulary} --output_dir {tmp_path}/out/store"
    command = [sys.executable, RECIPES / "prepare_corpus.py", *flags.split(), "--num_processes=2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("out/.store.shards/shards/.*.partial-*")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.terminate()

    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert list((tmp_path / "out").iterdir()) == []


def end_the_process(text):
    os._exit(1)


def test_a_process_that_was_killed_is_an_error_and_no_hang():
    batches = [TextBatch("train", [["red"]])] * 3
    with pytest.raises(InputError, match="one of the 2 processes was killed"):
        list(run_in_order(DocumentEncoder(end_the_process, end_the_process), batches, 2))


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("local_text", "--files . --tokenizer t --output_dir store"),
        ("books_and_articles", "--files . --tokenizer t --output_dir store"),
        ("wikipedia", "--tokenizer t --output_dir store"),
        ("quickstart", ""),
    ],
)
def test_every_configuration_is_read(name, flags):
    argv = f"--config {CONFIGS}/{name}.yaml {flags}"
    (arguments,) = parse_arguments(CorpusArguments, argv=argv.split())

    assert Path(arguments.output_dir).name == "store"


def test_one_file_to_hold_out_is_refused_before_anything_is_read(prepare, corpus):
    """As a document it would be too few, seen after the last shard."""
    with pytest.raises(InputError, match=r"1 file in validation_files, which is one document"):
        prepare(
            "few", [corpus], document_boundary="file", validation_files=[str(corpus / "00.txt")]
        )


def test_tags_of_wikiextractor_are_no_text(prepare, tmp_path):
    text = '<doc id="1" url="https://x" title="A">\nA\n\nOne sentence.\n\n</doc>\n'
    (tmp_path / "wiki_00.txt").write_text(text * 2)
    with pytest.raises(InputError, match="tags of WikiExtractor; run it with --json"):
        prepare("wiki", [tmp_path / "wiki_00.txt"])


def test_line_ends_of_any_system_end_the_paragraphs_of_a_row(tmp_path):
    for name, end in (("unix", "\n"), ("windows", "\r\n"), ("mac", "\r")):
        file = tmp_path / f"{name}.jsonl"
        file.write_text(json.dumps({"text": f"One.{end}Two.{end}{end}Three."}))
        assert list(iter_documents(file)) == [["One.", "Two.", "Three."]]
