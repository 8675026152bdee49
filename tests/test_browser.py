"""The headless browser: where there is none, where it does not start, and what it cannot reach, what it notes."""

import re
import tempfile

import pytest
from matplotlib.image import imread

from bert_recipes.browser import Browser
from bert_recipes.chromium import find_browser
from bert_recipes.errors import InputError


needs_browser = pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed")


def test_no_browser_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_browser() is None
    with pytest.raises(InputError, match="no browser is installed; one of chromium, "):
        Browser()


def test_a_browser_that_does_not_start_is_one_line_and_leaves_nothing_behind(monkeypatch, tmp_path):
    program = tmp_path / "chromium"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(InputError, match=f"{re.escape(str(program))} does not start without a window: .*has ended"):
        Browser()
    assert list(folder.iterdir()) == []


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("url", ["http://host.example/", "http://203.0.113.7/"])
def test_nothing_but_this_machine_is_reached(url):
    with Browser() as browser, pytest.raises(RuntimeError, match="ERR_NAME_NOT_RESOLVED"):
        browser.open(url)


@pytest.mark.slow
@needs_browser
def test_what_a_file_asks_of_others_is_noted_and_not_had(tmp_path):
    """Else a page that asks for nothing would prove nothing."""
    (tmp_path / "own.css").write_text("p { color: red }")
    page = tmp_path / "page.html"
    page.write_text('<link rel="stylesheet" href="own.css"><p>hello</p><img src="http://elsewhere.example/x.png">')
    with Browser() as browser:
        browser.open(page.as_uri())
        assert {(tmp_path / "own.css").as_uri(), "http://elsewhere.example/x.png"} <= set(browser.requests)
        assert any("ERR_NAME_NOT_RESOLVED" in message for message in browser.messages)
        assert browser.evaluate("document.querySelector('img').naturalWidth") == 0
        assert browser.evaluate("getComputedStyle(document.querySelector('p')).color") == "rgb(255, 0, 0)"


@pytest.mark.slow
@needs_browser
def test_a_whole_page_is_taken_once_it_has_stopped_to_grow(tmp_path):
    page = tmp_path / "page.html"
    grow = "if (Number(box.dataset.times = Number(box.dataset.times) + 1) <= 10) box.style.height = `${200 * box.dataset.times}px`"
    page.write_text(
        f"<body style='margin: 0'><div id=box data-times=0></div><script>setInterval(() => {{ {grow} }}, 80)</script>"
    )
    with Browser((700, 500)) as browser:
        browser.open(page.as_uri())
        browser.take_picture(tmp_path / "page.png", whole_page=True)
    assert imread(tmp_path / "page.png").shape[:2] == (2000, 700)


@pytest.mark.slow
@needs_browser
def test_the_window_has_the_size_and_the_taste_that_it_is_given(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<p>hello</p>")
    shown = "[innerWidth, innerHeight, matchMedia('(prefers-color-scheme: dark)').matches]"
    with Browser((700, 500), dark=True) as browser:
        browser.open(page.as_uri())
        assert browser.evaluate(shown) == [700, 500, True]
        browser.set_window((320, 2000))
        assert browser.evaluate(shown) == [320, 2000, False]
        browser.take_picture(tmp_path / "page.png")
        assert imread(tmp_path / "page.png").shape[:2] == (2000, 320)
        with pytest.raises(InputError, match=r"page\.png: cannot be written: "):
            browser.take_picture(tmp_path / "nowhere" / "page.png")
