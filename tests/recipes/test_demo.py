"""recipes/demo.py: the page as a person starts, uses and ends it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from bert_recipes.browser import Browser
from bert_recipes.chromium import find_browser


pytest.importorskip("gradio", reason="the extra demo is not installed")
needs_browser = pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed")

# Written by the process itself, whatever library does it: connections and look-ups that leave the machine.
WATCHER = """
import os, sys
def watch(event, values):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        address = values[0] if event == "socket.getaddrinfo" else values[1]
        host = address[0] if isinstance(address, tuple) else address
        if host not in ("127.0.0.1", "::1", "localhost", None):
            with open(os.environ["WATCHER_FILE"], "a") as file:
                file.write(f"{event} {address}\\n")
sys.addaudithook(watch)
"""


class Page:
    """recipes/demo.py as a process of its own, on a free port."""

    def __init__(self, repository: Path, folder: Path, model: Path, *flags: str) -> None:
        (folder / "sitecustomize.py").write_text(WATCHER)
        self.outside = folder / "outside.txt"
        environment = dict(os.environ, WATCHER_FILE=str(self.outside))
        # As on a machine of a user who has said nothing about the network.
        environment.pop("HF_HUB_OFFLINE", None)
        environment["PYTHONPATH"] = os.pathsep.join([str(folder), environment["PYTHONPATH"]])
        command = [sys.executable, "recipes/demo.py", "--model_name_or_path", str(model), "--port", "0", *flags]
        self.log = folder / "log.txt"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, cwd=repository, env=environment, stderr=log, stdout=log)
        deadline = time.monotonic() + 120
        while (found := re.search(r"the page is at (http://\S+)", self.log.read_text())) is None:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)
        self.url = found[1]

    def end(self, number: int = signal.SIGINT) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=30)


@pytest.fixture(scope="module")
def page(repository, tiny_checkpoint, tmp_path_factory):
    page = Page(repository, tmp_path_factory.mktemp("page"), tiny_checkpoint)
    yield page
    page.end()


@pytest.mark.slow
def test_ctrl_c_ends_the_page_in_good_order(repository, tiny_checkpoint, tmp_path):
    page = Page(repository, tmp_path, tiny_checkpoint)
    # As an open page does: a stream that has no end of its own.
    with urllib.request.urlopen(f"{page.url}/gradio_api/heartbeat/somebody", timeout=30) as stream:
        assert b"ALIVE" in stream.readline()
        start = time.monotonic()
        assert page.end() == 0
    assert time.monotonic() - start < 20
    log = page.log.read_text()
    assert log.rstrip().endswith("the page is closed")
    assert "Traceback" not in log
    assert "rror" not in log
    assert not page.outside.exists(), page.outside.read_text()


@pytest.mark.slow
def test_another_host_is_served_with_a_warning(repository, tiny_checkpoint, tmp_path):
    page = Page(repository, tmp_path, tiny_checkpoint, "--host", "0.0.0.0")
    assert page.end(signal.SIGTERM) == 0
    log = page.log.read_text()
    assert log.rstrip().endswith("the page is closed")
    assert "whoever reaches this machine can use the page" in log


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["demo.py", "--model_name_or_path", "no/such/folder/there", "--port", "0"],
            "error: model_name_or_path: no folder no/such/folder/there",
        ),
        (
            ["demo.py", "--model_name_or_path", "tests", "--port", "0"],
            "error: model_name_or_path: tests has no config.json",
        ),
        (["demo.py", "--model_name_or_path", "tests", "--port", "99999"], "error: port is 99999"),
        (["demo.py"], "error: missing: give --model_name_or_path"),
        (
            ["take_demo_pictures.py", "--model_name_or_path", "m", "--output_dir", "p", "--width", "0"],
            "error: width is 0; allowed: 320 to 4096",
        ),
    ],
)
def test_a_mistake_is_one_line(repository, flags, message):
    done = subprocess.run(
        [sys.executable, f"recipes/{flags[0]}", *flags[1:]],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=repository,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


@pytest.fixture
def browser():
    with Browser() as browser:
        yield browser


def use(browser: Browser, name: str, *texts: str, until: str) -> None:
    """Open a tab, type into its fields, and press its button until the tab's result is what is waited for.

    Args:
        browser: On the page.
        name: The tab's.
        texts: For its first fields.
        until: JavaScript expression over `result`, an element.
    """
    browser.wait_for(f"document.querySelector('#tab-{name}-button')")
    browser.click(f"#tab-{name}-button", f"document.querySelector('#{name}-button')?.offsetParent")
    deadline = time.monotonic() + 90
    while True:
        for number, text in enumerate(texts):
            browser.type_text(f"#{name}-{number} textarea, #{name}-{number} input", text)
        try:
            return browser.click(
                f"#{name}-button", f"(result => {until})(document.querySelector('#{name}-result'))", timeout=6
            )
        except TimeoutError:  # a tab that has just been opened may replace its fields, and with them what was typed
            if time.monotonic() > deadline:
                raise


@pytest.mark.slow
@needs_browser
def test_the_page_works_in_a_browser_that_reaches_nothing_else(page, browser):
    browser.open(page.url)
    filled = "document.querySelector('#fill_mask-result').innerText"
    use(browser, "fill_mask", "the [MASK] of x", until="result.innerText.includes('of x')")
    assert len(re.findall(r"\d %", browser.evaluate(filled))) == 5
    use(browser, "next_sentence", "the a b", "", until="result.innerText.includes('the second text is empty')")
    use(browser, "next_sentence", "the a b", "of the c", until="result.innerText.includes('follows')")
    use(browser, "attention", "the zebra", until="result.querySelector('svg')?.textContent.includes('##b')")
    assert browser.evaluate("document.querySelectorAll('#attention-result line').length") > 10
    assert browser.evaluate("document.querySelector('#attention-result img').naturalWidth") > 100
    use(browser, "pieces", "zebra", until="result.innerText.includes('pieces: 5 ')")
    elsewhere = [url for url in browser.requests if not url.startswith((page.url, "data:", "blob:", "about:"))]
    assert elsewhere == []
    assert any(url.endswith(".js") for url in browser.requests), "requests are noted"
    assert browser.messages == []
    assert not page.outside.exists(), page.outside.read_text()


@pytest.mark.slow
@needs_browser
def test_what_is_typed_stays_text_in_the_browser(page, browser):
    evil = "<script>window.evil = 1</script><img src=x onerror='window.evil = 2'> ${window.evil = 3} {{window.evil}} [MASK]"
    browser.open(page.url)
    seen = {"fill_mask": "{{window.evil}}", "pieces": "${window.evil = 3}", "attention": "##p"}
    for name, text in seen.items():
        use(browser, name, evil, until=f"result.textContent.includes({json.dumps(text)})")
        assert browser.evaluate(f"document.querySelectorAll('#{name}-result :is(script, img[src=x])').length") == 0
    assert browser.evaluate("typeof window.evil") == "undefined"


@pytest.mark.slow
@needs_browser
def test_a_mistake_is_shown_in_the_page(page, browser):
    browser.open(page.url)
    until = "result.querySelector('.bd-error')?.innerText.includes('the text has no [MASK]')"
    use(browser, "fill_mask", "no mask in here", until=until)
    use(browser, "fill_mask", "the [MASK]", until="result.querySelector('.bd-bar')")


@pytest.mark.slow
@needs_browser
def test_pictures_are_taken_of_every_tab(repository, tiny_checkpoint, tmp_path):
    command = [sys.executable, "recipes/take_demo_pictures.py", "--model_name_or_path", str(tiny_checkpoint)]
    done = subprocess.run(
        [*command, "--output_dir", str(tmp_path / "pictures")],
        capture_output=True,
        text=True,
        timeout=180,
        cwd=repository,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    from matplotlib.image import imread

    names = ["fill_mask", "next_sentence", "attention", "pieces"]
    assert re.findall(r"(\w+)\.png", done.stdout) == names
    for name in names:
        picture = imread(tmp_path / "pictures" / f"{name}.png")
        assert picture.shape[1] == 1180
        assert picture.std() > 0.02, f"{name}: nothing is drawn"
