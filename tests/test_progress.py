"""What takes long says how far it is: on a terminal by a bar, in a log by lines."""

import io
import sys
from collections import Counter

import pytest

from bert_recipes import progress
from bert_recipes.data.quickstart_corpus import Source, read_documents
from bert_recipes.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)


def test_a_log_gets_lines_and_no_bar(at_once, capsys):
    assert list(Progress(range(3), desc="read", unit=" files")) == [0, 1, 2]
    lines = capsys.readouterr().err
    assert "\r" not in lines
    assert [line.split(" [")[0] for line in lines.splitlines()][-2:] == [
        "read: 2 of 3 files",
        "read: 3 of 3 files",
    ]


def test_without_a_total_the_number_alone_is_said(at_once, capsys):
    assert list(Progress(iter("ab"), desc="read", unit="texts")) == ["a", "b"]
    assert capsys.readouterr().err.splitlines()[-1].startswith("read: 2 texts [")


def test_what_is_done_within_seconds_says_nothing(capsys):
    assert list(Progress(range(3), desc="read")) == [0, 1, 2]
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_the_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    list(Progress(range(3), desc="read", file=sys.stderr))
    assert "100%|" in sys.stderr.getvalue()


def test_the_quickstarts_text_is_read_with_progress(at_once, capfd):
    """It takes minutes, in which `make pretrain` would say nothing."""
    sources = [
        Source(f"module_{number}", "Return the sum of the values of a list.") for number in range(4)
    ]
    assert len(read_documents(sources, min_words=2, num_workers=1, counts=Counter())) == 4
    assert "Reading documentation: 4 of 4 files" in capfd.readouterr().err
