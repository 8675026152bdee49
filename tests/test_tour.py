"""Run the blocks of docs/tour.md in order: what they print is what the page shows."""

import contextlib
import io
import re


BLOCK = re.compile(r"^```(python|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_tour_prints_what_it_shows(repository, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (repository / "docs" / "tour.md").read_text(encoding="utf-8")
    blocks = BLOCK.findall(page)
    assert len(blocks) == 18
    namespace: dict = {}
    printed = ""
    for language, text in blocks:
        if language == "text":
            assert printed == text
            continue
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(text, "docs/tour.md", "exec"), namespace)
        printed = output.getvalue()
