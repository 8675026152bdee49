"""A tiny checkpoint opened as the page opens it, and a reader of the HTML that it shows."""

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest


# All that the page's own code writes.
TAGS = {"b", "circle", "details", "div", "g", "h1", "h3", "header", "img", "line", "mark", "p", "rect", "section"}
TAGS |= {"small", "span", "summary", "svg", "table", "tbody", "td", "text", "th", "thead", "title", "tr"}


class _Reader(HTMLParser):
    """The words of a piece of HTML; fails where it holds what the page's own code never writes."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.images: list[str] = []

    def handle_starttag(self, tag, attrs):
        assert tag in TAGS, tag
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name)
            assert name not in ("href", "xlink:href"), (tag, name)
            if name == "src":
                assert value.startswith("data:image/png;base64,")
                self.images.append(value)

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="session")
def words_of() -> Callable[[str], str]:
    """HTML -> its words; tags and attributes that only a user can have written are an error."""

    def read(html: str) -> str:
        reader = _Reader()
        reader.feed(html)
        reader.close()
        return " ".join(" ".join(reader.words).split())

    return read


@pytest.fixture(scope="session")
def demo_model(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory):
    """The tiny checkpoint with both heads of pre-training."""
    from bert_recipes.demo.model import open_demo_model

    return open_demo_model(str(tiny_checkpoint), tmp_path_factory.mktemp("work"), use_cpu=True)


@pytest.fixture(scope="session")
def fine_tuned(tiny_runs, tmp_path_factory: pytest.TempPathFactory):
    """Kind -> its finished run of tests/fixtures/tiny_runs.py as the page opens it."""
    import functools

    from bert_recipes.demo.model import open_demo_model

    @functools.cache
    def of(kind: str):
        return open_demo_model(str(tiny_runs(kind)), tmp_path_factory.mktemp("work"), use_cpu=True)

    return of
