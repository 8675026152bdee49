"""Whatever a user gives for a corpus: it becomes a store in which everything is counted, or one
line says what is wrong.

`make test-slow` takes more inputs.
"""

import os
import shutil
from pathlib import Path

import pytest


pytest.importorskip("hypothesis")

from broken_inputs import ROW_SUFFIXES, SUFFIXES, TEXT_SUFFIXES, File, corpora, mostly
from fuzz_harness import Outcomes, empty_folder, fuzz, numbers, refusal_of
from hypothesis import strategies as st
from odd_settings import command_lines
from small_corpora import contents_of, write_vocabulary
from store_checks import check_prepared

from bert_recipes.config import parse_arguments
from bert_recipes.data.prepare import CorpusArguments, prepare_store
from bert_recipes.tokenization.loading import load_tokenizer


GOOD_TEXT = "The red apple falls. A green tree grows!\nMr. Blue\n\nthe pear falls\n\na tree\n"
GOOD_ROWS = (
    '{"text": "The red apple falls. A green tree grows!"}\n{"text": "the pear falls\\na tree"}\n'
    * 2
)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return write_vocabulary(tmp_path_factory.mktemp("tokenizer") / "vocab.txt")


@pytest.fixture(scope="module")
def old_store(vocabulary, tmp_path_factory):
    folder = tmp_path_factory.mktemp("old")
    (folder / "a.txt").write_text(GOOD_TEXT)
    flags = ["--files", str(folder / "a.txt"), "--output_dir", str(folder / "store")]
    prepare(flags, vocabulary)
    return folder / "store"


# The suffixes of a corpus, and the boundaries that go with them.
KINDS = [
    (TEXT_SUFFIXES, ["auto", "blank_line", "line", "file"]),
    (ROW_SUFFIXES, ["auto", "row"]),
    (SUFFIXES, ["auto"]),
]
HOW_TO_CUT = [
    {"sentences": "split"},
    {"sentences": "lines"},
    {"sentences": "split", "wrapped_lines": "true"},
    {"keep": "passages"},
    {"sentences": "lines", "keep": "passages"},
]


@st.composite
def cases(draw):
    """Files, flags that nearly always go together, and whether a store is there already."""
    suffixes, boundaries = draw(st.sampled_from(KINDS))
    files = draw(corpora(suffixes))
    if draw(mostly(st.just(True), st.just(False))):
        name, text = ("good.txt", GOOD_TEXT) if ".txt" in suffixes else ("good.jsonl", GOOD_ROWS)
        files.append(File(name, text.encode()))
    choices = {
        "document_boundary": (boundaries, ["blank_line", "line", "file", "row"], 16),
        "encoding_errors": (["replace"], ["strict"], 3),
        "max_line_bytes": (["16777216"], ["1", "40", "4000"], 20),
        "shard_gigabytes": (["1"], ["1e-9", "2e-7"], 3),
        "text_column": (["text"], ["body"], 16),
    }
    settings = dict(draw(st.sampled_from(HOW_TO_CUT)))
    for name, (usual, rare, parts) in choices.items():
        settings[name] = draw(mostly(st.sampled_from(usual), st.sampled_from(rare), parts))
    names = [f"texts/{file.name}" for file in files]
    held_out = draw(st.sampled_from(["nothing", "nothing", "a fraction", "a file"]))
    if held_out == "a fraction":
        settings["validation_fraction"] = draw(st.sampled_from(["0.3", "0.6"]))
    if held_out == "a file":
        settings["validation_files"] = names[-1]
    overwrite = draw(st.sampled_from([*[None] * 5, "true", "true", "false"]))
    if overwrite is not None:
        settings["overwrite"] = overwrite
    flags = [word for name, value in settings.items() for word in (f"--{name}", value)]
    flags += ["--files", *draw(mostly(st.just(["texts"]), st.just(names)))]
    return files, flags, overwrite is not None


def prepare(argv, vocabulary):
    """What the script does, in this process."""
    (arguments,) = parse_arguments(CorpusArguments, argv=[*argv, "--tokenizer", str(vocabulary)])
    arguments.num_processes = 1
    return arguments, prepare_store(arguments, load_tokenizer(vocabulary))


@numbers(12, 800)
def test_any_text_becomes_a_store_that_counts_all_of_it_or_one_line(
    num_examples, vocabulary, old_store, tmp_path
):
    outcomes, done = Outcomes(), []

    def check(case):
        files, flags, has_store = case
        with empty_folder(tmp_path / "input") as folder:
            Path("texts").mkdir()
            for file in files:
                Path("texts", file.name).write_bytes(file.data)
            if has_store:
                shutil.copytree(old_store, "store")
            argv = [*flags, "--output_dir", "store"]
            done.clear()
            message = refusal_of(lambda: done.extend(prepare(argv, vocabulary)))
            names = {path.name for path in folder.iterdir()} - {"texts"}
            if message is None:
                assert names == {"store"}
                check_prepared(*done)
            else:
                assert ("store" in names) == has_store
                check_nothing_is_left(names, folder, old_store)
                # Shards that are done are kept; the same command comes to the same end.
                if ".store.shards" in names:
                    assert refusal_of(lambda: prepare(argv, vocabulary)) == message
            outcomes.add(message)

    fuzz(cases(), num_examples, check)
    outcomes.check(num_examples)


def check_nothing_is_left(names, folder, old_store):
    if "store" in names:
        assert contents_of(folder / "store") == contents_of(old_store)
        names = names - {"store"}
    # docs/runs.md: a corpus of several shards keeps those that are done.
    assert names <= {".store.shards", ".store.shards.lock"}


def lay_out(folder, old_store):
    """What the flags of `odd_settings` name."""
    for name in ("texts", "empty", "dangling", "rings", "target"):
        (folder / name).mkdir()
    for name in ("texts/a.txt", "texts/b.txt", "texts/c.txt", "rings/a.txt"):
        (folder / name).write_text(GOOD_TEXT)
    (folder / "rows.jsonl").write_text('{"text": "The red apple falls. A tree grows."}\n' * 3)
    (folder / "rows.csv").write_text("text\nred\n")
    (folder / "vocab.txt").write_text("red\n")
    os.mkfifo(folder / "pipe.txt")
    shutil.copytree(old_store, folder / "old")
    links = {
        "dangling/a.txt": folder / "nothing.txt",
        "rings/one": folder / "rings",
        "rings/two": folder / "rings",
        "loop": "loop",
        "link_to_empty": "target",
        "link_to_nothing": "later",
        "link_to_old": "old",
    }
    for name, target in links.items():
        (folder / name).symlink_to(target)


@numbers(40, 400)
def test_any_settings_are_followed_or_refused_in_one_line(
    num_examples, vocabulary, old_store, tmp_path
):
    outcomes, done = Outcomes(), []

    def check(case):
        flags, config = case
        with empty_folder(tmp_path / "outer") as outer:
            folder = outer / "inner"
            folder.mkdir()
            lay_out(folder, old_store)
            os.chdir(folder)
            if config is not None:
                Path("config.yaml").write_bytes(config)
                flags = ["--config", "config.yaml", *flags]
            before = everything_in(outer)
            done.clear()
            message = refusal_of(
                lambda: done.extend(prepare(flags, vocabulary)), may_name_paths=True
            )
            if message is None:
                check_prepared(*done)
            else:
                for path in everything_in(outer) - before:
                    assert ".shards" in str(path) or not (outer / path).is_file()
                    assert ".partial-" not in str(path)
                    assert ".old-" not in str(path)
                assert contents_of(folder / "old") == contents_of(old_store)
            outcomes.add(message)

    fuzz(command_lines(), num_examples, check)
    outcomes.check(num_examples)


def everything_in(folder):
    return {path.relative_to(folder) for path in folder.rglob("*")}
