"""`recipes/prepare_corpus.py` as a user runs it: text in, store out, one line for every mistake."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from repeated_flags import keep_last
from small_corpora import WORDS, contents_of, write_vocabulary

from bert_recipes.config import parse_arguments
from bert_recipes.data import prepare as prepare_module
from bert_recipes.data.prepare import (
    CorpusArguments,
    DocumentEncoder,
    TextBatch,
    batch_documents,
    encode_in_order,
    format_report,
    prepare_store,
)
from bert_recipes.data.store import open_store
from bert_recipes.errors import InputError
from bert_recipes.tokenization.loading import load_tokenizer


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return write_vocabulary(tmp_path_factory.mktemp("tokenizer") / "vocab.txt")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """40 files; file number k holds one document of k % 5 + 1 paragraphs."""
    folder = tmp_path_factory.mktemp("corpus") / "texts"
    folder.mkdir()
    for number in range(40):
        color = WORDS[number % 3]
        paragraphs = [f"Mr. {color} pear {number} grows. The {color} apple falls!"] * (
            number % 5 + 1
        )
        (folder / f"{number:02}.txt").write_text("\n\n".join(paragraphs) + "\n")
    return folder


def run(repository, *flags):
    command = [sys.executable, str(repository / "recipes" / "prepare_corpus.py"), *keep_last(flags)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def prepare(vocabulary, output, **options):
    arguments = CorpusArguments(
        tokenizer=str(vocabulary),
        output_dir=str(output),
        **{"num_processes": 1, "document_boundary": "file", **options},
    )
    return prepare_store(arguments, load_tokenizer(vocabulary))


def texts_of(split, tokenizer):
    offsets = split.sentence_offsets(0, split.num_documents)
    return [
        [
            tokenizer.decode(split.tokens(sentence, sentence + 1).tolist())
            for sentence in range(offsets[document], offsets[document + 1])
        ]
        for document in range(split.num_documents)
    ]


def test_the_command_writes_a_store_and_reports_it(repository, vocabulary, corpus, tmp_path):
    config = repository / "recipes" / "configs" / "corpus" / "books_and_articles.yaml"
    flags = [
        "--config",
        config,
        "--files",
        corpus,
        "--validation_files",
        corpus / "0*.txt",
        "--num_processes",
        "2",
    ]
    result = run(repository, *flags, "--tokenizer", vocabulary, "--output_dir", tmp_path / "store")

    assert result.returncode == 0, result.stderr
    facts = dict(line.split(": ") for line in result.stdout.splitlines())
    assert facts["train documents"] == "30"
    assert facts["validation sentences"] == "60"
    assert facts["rate"].endswith(" MB/s")
    assert facts["store"] == str(tmp_path / "store")
    assert "10 files of --files are held out" in result.stderr
    store = open_store(tmp_path / "store")
    tokenizer = load_tokenizer(store.tokenizer_path)
    store.check_tokenizer(tokenizer.fingerprint, len(tokenizer))
    assert texts_of(store.train, tokenizer)[0] == [
        "mr. green pear [UNK] grows.",
        "the green apple falls!",
    ]
    assert store.metadata["read"]["train"]["documents"] == 30
    assert str(tmp_path) not in (tmp_path / "store" / "store.json").read_text()


def test_text_that_the_tokenizer_does_not_know_is_warned_of(vocabulary, tmp_path, caplog):
    """Hours of training on it would teach nothing."""
    text = tmp_path / "uk.txt"
    text.write_text("Швидка лисиця стрибає.\n\nЩиро дякую, red pear.\n", encoding="utf-8")  # noqa: RUF001
    report = prepare(
        vocabulary, tmp_path / "store", files=[str(text)], document_boundary="blank_line"
    )
    unknown = report.metadata["unknown_tokens"]["train"]
    assert unknown.keys() == {"Cyrillic"}
    tokens = open_store(tmp_path / "store").train.tokens(0, 2)
    assert unknown["Cyrillic"] == int((tokens == load_tokenizer(vocabulary).unk_token_id).sum())
    assert "of the tokens are [UNK]" in caplog.text
    assert "script Cyrillic; --tokenizer" in caplog.text
    assert "train [UNK] tokens: " in format_report(report)


@pytest.mark.parametrize("options", [{}, {"validation_fraction": 0.3}, {"shard_gigabytes": 1e-6}])
def test_any_number_of_processes_gives_the_same_bytes(
    vocabulary, corpus, tmp_path, monkeypatch, options
):
    # Batches of a few documents, so that every process gets many.
    monkeypatch.setattr(batch_documents, "__defaults__", (300,))
    for num_processes in (1, 3):
        prepare(
            vocabulary,
            tmp_path / str(num_processes),
            files=[str(corpus)],
            num_processes=num_processes,
            **options,
        )
    one, three = contents_of(tmp_path / "1"), contents_of(tmp_path / "3")

    assert len(one) > 6
    assert one == three


def test_the_held_out_documents_depend_on_the_seed_and_partition_the_corpus(
    vocabulary, corpus, tmp_path
):
    held_out = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        prepare(
            vocabulary, tmp_path / name, files=[str(corpus)], validation_fraction=0.3, seed=seed
        )
        store = open_store(tmp_path / name)
        assert store.train.num_documents + store.validation.num_documents == 40
        assert 4 <= store.validation.num_documents <= 20
        held_out.append(
            store.validation.sentence_offsets(0, store.validation.num_documents).tolist()
        )

    assert held_out[0] == held_out[1]
    assert held_out[0] != held_out[2]


def test_what_gives_no_token_is_dropped_and_counted(vocabulary, tmp_path):
    # U+0007 is a control character: the tokenizer drops it and nothing is left.
    (tmp_path / "a.txt").write_text("red. \x07! Green.\n\n\x07\n\nblue\n\n")
    (tmp_path / "b.txt").write_text("\n")
    report = prepare(
        vocabulary,
        tmp_path / "store",
        files=[str(tmp_path)],
        document_boundary="blank_line",
        sentences="lines",
    )

    expected = {
        "sentences_without_tokens": 1,
        "documents_without_sentences": 1,
        "files_without_text": 1,
    }
    assert (
        report.metadata["dropped"]["train"]
        == open_store(tmp_path / "store").metadata["dropped"]["train"]
        == expected
    )
    assert report.metadata["splits"]["train"]["num_documents"] == 2


@pytest.mark.parametrize(("sentences", "expected"), [("split", 3), ("lines", 2)])
def test_sentences_are_split_or_taken_line_by_line(vocabulary, tmp_path, sentences, expected):
    (tmp_path / "a.txt").write_text("Red. Green!\n\nblue\n")
    report = prepare(
        vocabulary,
        tmp_path / "s",
        files=[str(tmp_path / "a.txt")],
        document_boundary="blank_line",
        sentences=sentences,
    )

    assert report.metadata["splits"]["train"]["num_sentences"] == expected


def test_passages_only_drops_and_counts_the_rest(vocabulary, tmp_path):
    passage = "The red apple falls and the green pear grows."
    rows = [
        {"text": f"Heading\n\n{passage}\n\n* red\n* green"},
        {"text": passage},
        {"text": "Heading"},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    report = prepare(
        vocabulary,
        tmp_path / "s",
        files=[str(tmp_path / "a.jsonl")],
        document_boundary="auto",
        keep="passages",
    )

    assert report.metadata["dropped"]["train"] == {
        "paragraphs_that_are_no_passages": 4,
        "documents_without_sentences": 1,
    }
    assert report.metadata["splits"]["train"]["num_sentences"] == 2


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (
            {"document_boundary": "file"},
            ["1 usable documents for train", "document_boundary is 'file'"],
        ),
        (
            {"document_boundary": "line", "validation_fraction": 0.0001},
            ["0 usable documents for validation", "raise"],
        ),
    ],
)
def test_fewer_than_two_usable_documents_are_refused_with_advice(
    vocabulary, tmp_path, options, parts
):
    (tmp_path / "a.txt").write_text("red\n\ngreen\n")
    with pytest.raises(InputError) as caught:
        prepare(vocabulary, tmp_path / "store", files=[str(tmp_path / "a.txt")], **options)

    assert all(part in str(caught.value) for part in parts)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_documents_of_one_sentence_are_warned_of(vocabulary, tmp_path, caplog):
    (tmp_path / "a.txt").write_text("red\ngreen\nblue\n")
    prepare(
        vocabulary, tmp_path / "store", files=[str(tmp_path / "a.txt")], document_boundary="line"
    )

    assert "3 of 3 documents hold one sentence only" in caplog.text


@pytest.mark.parametrize(
    ("flags", "size", "fraction"),
    [
        ([], 250_000, 0.1),  # the tenth of a very small corpus
        ([], 5_000_000, 0.05),
        ([], 25_000_000, 0.01),  # the fraction of the file
        ([], 0, 0.1),
        (["--validation_fraction", "0.02"], 5_000_000, 0.02),
        (["--validation_fraction", "0"], 5_000_000, 0.0),
        (["--validation_files", "a.txt"], 5_000_000, 0.0),
    ],
)
def test_of_a_small_corpus_more_is_held_out_than_the_file_says(
    repository, tmp_path, flags, size, fraction, caplog
):
    config = repository / "recipes" / "configs" / "corpus" / "local_text.yaml"
    with (tmp_path / "text.txt").open("wb") as file:
        file.truncate(size)
    argv = [
        "--config",
        str(config),
        "--files",
        str(tmp_path),
        "--tokenizer",
        "t",
        "--output_dir",
        "o",
        *flags,
    ]
    (arguments,) = parse_arguments(CorpusArguments, argv=argv)
    assert arguments.validation_fraction == fraction
    assert ("would hold out little of a small corpus" in caplog.text) is (fraction in (0.1, 0.05))


def test_ten_rows_of_a_table_are_a_corpus(repository, vocabulary, tmp_path, caplog):
    sentence = " ".join(WORDS[:8]) + "."
    (tmp_path / "rows.csv").write_text("text\n" + f'"{sentence} {sentence}"\n' * 10)
    config = repository / "recipes" / "configs" / "corpus" / "local_text.yaml"
    flags = [
        "--files",
        str(tmp_path / "rows.csv"),
        "--tokenizer",
        str(vocabulary),
        "--output_dir",
        str(tmp_path / "out"),
    ]
    (arguments,) = parse_arguments(CorpusArguments, argv=["--config", str(config), *flags])
    prepare_store(arguments, load_tokenizer(vocabulary))
    store = open_store(tmp_path / "out")
    assert (store.train.num_documents, store.validation.num_documents) == (8, 2)
    assert "fewer than 2 of the 10 documents: so many are held out" in caplog.text


def test_documents_of_a_few_tokens_are_warned_of(vocabulary, tmp_path, caplog):
    sentence = " ".join(WORDS[:8]) + "."
    (tmp_path / "book.txt").write_text("\n\n".join([f"{sentence} {sentence}"] * 40))
    files = {"files": [str(tmp_path / "book.txt")]}
    with pytest.raises(InputError, match=r"1 usable documents for train"):
        prepare(vocabulary, tmp_path / "one", document_boundary="file", **files)
    prepare(vocabulary, tmp_path / "two", document_boundary="blank_line", **files)
    assert re.search(
        r"documents have \d\d tokens on average: .*give --document_boundary file", caplog.text
    )
    caplog.clear()
    (tmp_path / "more.txt").write_text("\n\n".join([f"{sentence} {sentence}"] * 40))
    files["files"].append(str(tmp_path / "more.txt"))
    prepare(vocabulary, tmp_path / "three", document_boundary="file", **files)
    assert "tokens on average" not in caplog.text


def test_few_tokens_held_out_are_warned_of(vocabulary, corpus, tmp_path, monkeypatch, caplog):
    files = {"files": [str(corpus)], "validation_files": [str(corpus / "0*.txt")]}
    prepare(vocabulary, tmp_path / "one", **files)
    held_out = open_store(tmp_path / "one").validation.num_tokens
    assert f"only {held_out} tokens in 10 documents are held out" in caplog.text
    assert "raise the number of validation_files" in caplog.text
    caplog.clear()
    monkeypatch.setattr(prepare_module, "FEW_HELD_OUT_TOKENS", held_out)
    prepare(vocabulary, tmp_path / "two", **files)
    prepare(vocabulary, tmp_path / "three", files=[str(corpus)])  # nothing is measured
    assert "are held out, so" not in caplog.text


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({}, "neither is given"),
        ({"files": ["a"], "dataset_name": "b"}, "both are given"),
        ({"files": ["a"], "validation_files": ["b"], "validation_fraction": 0.1}, "choose one"),
        ({"files": ["a"], "validation_fraction": 1.0}, "allowed: 0 or more and below 1"),
        ({"files": ["a"], "num_processes": 0}, "1 or more"),
        ({"files": ["a"], "max_line_bytes": 0}, "allowed: 1 to"),
        ({"files": ["a"], "max_line_bytes": 10**30}, "allowed: 1 to"),
        ({"files": ["a"], "shard_gigabytes": float("nan")}, "shard_gigabytes is nan"),
        ({"files": ["a"], "shard_gigabytes": float("inf")}, "shard_gigabytes is inf"),
        ({"files": ["a"], "wrapped_lines": True, "sentences": "lines"}, "choose one"),
        ({"dataset_name": "a", "document_boundary": "file"}, "auto, row"),
    ],
)
def test_settings_without_meaning_are_refused(options, part):
    with pytest.raises(InputError, match=part):
        CorpusArguments(tokenizer="t", output_dir="o", **options)


def test_holding_out_every_file_is_refused(vocabulary, corpus, tmp_path):
    with pytest.raises(InputError, match="nothing is left to train on"):
        prepare(
            vocabulary,
            tmp_path / "s",
            files=[str(corpus / "*.txt")],
            validation_files=[str(corpus)],
        )


def test_a_boundary_that_does_not_go_with_held_out_files_is_refused_before_any_text_is_read(
    vocabulary, tmp_path
):
    (tmp_path / "a.txt").write_bytes(b"\xff")
    (tmp_path / "b.jsonl").write_text('{"text": "red"}')
    options = {"files": [str(tmp_path / "a.txt")], "validation_files": [str(tmp_path / "b.jsonl")]}
    with pytest.raises(InputError, match=r"b\.jsonl: document_boundary 'file' does not go with"):
        prepare(vocabulary, tmp_path / "s", **options)


def test_a_store_is_replaced_only_on_demand(vocabulary, corpus, tmp_path):
    (tmp_path / "store").mkdir()  # an empty one is used
    prepare(vocabulary, tmp_path / "store", files=[str(corpus)])
    with pytest.raises(InputError, match="holds a store already"):
        prepare(vocabulary, tmp_path / "store", files=[str(corpus)])
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    with pytest.raises(InputError, match="not valid UTF-8"):
        prepare(vocabulary, tmp_path / "store", files=[str(tmp_path / "bad.txt")], overwrite=True)
    assert open_store(tmp_path / "store").train.num_documents == 40
    prepare(vocabulary, tmp_path / "store", files=[str(corpus / "0*.txt")], overwrite=True)
    assert open_store(tmp_path / "store").train.num_documents == 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.txt", "store"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_anything_else_in_the_output_folder_is_never_touched(
    vocabulary, corpus, tmp_path, overwrite
):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("text")
    for name in ("mine", "mine/thesis.txt"):
        with pytest.raises(InputError, match="is no store of this release, so it is left alone"):
            prepare(vocabulary, tmp_path / name, files=[str(corpus)], overwrite=overwrite)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "text"


def test_what_a_killed_preparation_left_without_a_shard_stands_in_no_way(
    vocabulary, corpus, tmp_path
):
    (tmp_path / ".store.shards" / "shards" / ".00000.partial-x").mkdir(parents=True)
    (tmp_path / ".store.shards" / "plan.json").write_text("{}")
    prepare(vocabulary, tmp_path / "store", files=[str(corpus)])
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("shard_gigabytes", [1.0, 1e-9])
@pytest.mark.parametrize("target", ["empty", "later", "old"])
def test_an_output_folder_that_is_a_link_is_followed(
    vocabulary, corpus, tmp_path, target, shard_gigabytes
):
    options = {"files": [str(corpus)], "shard_gigabytes": shard_gigabytes}
    (tmp_path / "disk" / "empty").mkdir(parents=True)
    if target == "old":
        prepare(vocabulary, tmp_path / "disk" / "old", **options)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / target)
    prepare(vocabulary, tmp_path / "link", overwrite=True, **options)

    assert open_store(tmp_path / "disk" / target).train.num_documents == 40
    assert (tmp_path / "link").is_symlink()
    assert {path.name for path in tmp_path.rglob(".*")} <= {".checked.json"}


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"red\n\ngr\xe9en\n", ", line 3: not valid UTF-8"),
        (b"red\n\ngr\0een\n", ", line 3: NUL character"),
        (b"", "0 usable documents"),
    ],
)
def test_bad_text_is_one_line_on_stderr_and_leaves_no_store(
    repository, vocabulary, tmp_path, content, part
):
    (tmp_path / "a.txt").write_bytes(content)
    flags = [
        "--files",
        tmp_path / "a.txt",
        "--tokenizer",
        vocabulary,
        "--output_dir",
        tmp_path / "store",
    ]
    result = run(repository, *flags, "--num_processes", 1)
    errors = [line for line in result.stderr.splitlines() if "error:" in line]

    assert result.returncode == 1
    assert len(errors) == 1
    assert part in errors[0]
    assert "Traceback" not in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_misspelt_setting_names_the_nearest(repository):
    result = run(repository, "--document_boundry", "file")

    assert result.returncode == 1
    assert "document_boundary" in result.stderr


def test_a_polite_end_leaves_nothing(repository, vocabulary, tmp_path):
    (tmp_path / "a.txt").write_text("Red apple. Green pear!\n\n" * 1_000_000)
    command = [sys.executable, repository / "recipes" / "prepare_corpus.py", "--num_processes", 2]
    command += [
        "--files",
        tmp_path / "a.txt",
        "--tokenizer",
        vocabulary,
        "--output_dir",
        tmp_path / "out" / "store",
    ]
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while (
        not list(tmp_path.glob("out/.store.shards/shards/.*.partial-*"))
        and time.monotonic() < deadline
    ):
        time.sleep(0.02)
    process.terminate()

    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert list((tmp_path / "out").iterdir()) == []


def end_the_process(text):
    os._exit(1)


def test_a_process_that_was_killed_is_an_error_and_no_hang():
    batches = [TextBatch("train", [["red"]])] * 3
    with pytest.raises(InputError, match="one of the 2 processes was killed"):
        list(encode_in_order(batches, DocumentEncoder(end_the_process), 2))


@pytest.mark.parametrize("name", ["local_text", "wikipedia", "quickstart", "books_and_articles"])
def test_every_configuration_is_read(repository, vocabulary, name):
    argv = ["--config", str(repository / "recipes" / "configs" / "corpus" / f"{name}.yaml")]
    if name in ("local_text", "books_and_articles"):
        argv += ["--files", str(vocabulary)]
    if name != "quickstart":
        argv += ["--tokenizer", str(vocabulary), "--output_dir", "store"]
    (arguments,) = parse_arguments(CorpusArguments, argv=argv)

    assert Path(arguments.output_dir).name == "store"
