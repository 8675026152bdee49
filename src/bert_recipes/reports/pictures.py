"""Pictures of reports, as a browser shows the pages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from bert_recipes.browser import Browser
from bert_recipes.errors import InputError, saving
from bert_recipes.reports.writing import PAGE_FILE


DESK, PHONE = (1120, 1250), (412, 1100)
# Pixels; a browser draws no window higher than 16,384.
HIGHEST = 16_000
_PARTS = re.compile(r'<section id="([^"]+)">')
# Shows one part alone and gives the height of the page, which is 0 where there is no such part.
_ALONE = """(() => {
    const main = document.querySelector("main"), alone = main.querySelector(%s);
    if (alone === null) return 0;
    for (const part of main.children) part.style.display = part === alone ? "" : "none";
    alone.querySelector("h2").style.marginTop = 0;
    return Math.ceil(main.getBoundingClientRect().height);
})()"""


def take_pictures(folders: Sequence[Path], output_dir: Path, parts: Sequence[str] = ()) -> Iterator[Path]:
    """Open each report in a browser that can reach this machine only, and write what it shows.

    Args:
        folders: With a report.html each.
        output_dir: Is made; gets `<name>.png`, the top of the page, `<name>_phone.png`, the same on a telephone in dark
            colours, and `<name>_<part>.png`.
        parts: Parts of the pages, as the ends of the addresses of the links at the top name them; each is taken alone and whole
            (of more than `HIGHEST` pixels the top), of the pages that have it.

    Yields:
        The files, each when it is written.

    Raises:
        InputError: A folder without a report, two of one name, a part that no page has, or no browser.
    """
    pages = {folder.resolve().name: folder.resolve() / PAGE_FILE for folder in folders}
    _check(folders, pages, parts)
    with Browser(DESK) as browser:
        with saving(output_dir):
            output_dir.mkdir(parents=True, exist_ok=True)
        for name, page in pages.items():
            yield from _take(browser, page, output_dir / name, parts)


def _check(folders: Sequence[Path], pages: dict[str, Path], parts: Sequence[str]) -> None:
    for page in pages.values():
        if not page.is_file():
            raise InputError(f"folders: {page.parent} has no {PAGE_FILE}; `make report RUN={page.parent}` writes it")
    if len(pages) < len(folders):
        raise InputError(
            "folders: two have one name, which their pictures would have too; take them one after the other"
        )
    known = {part for page in pages.values() for part in _PARTS.findall(page.read_text("utf-8", errors="replace"))}
    for part in parts:
        if part not in known:
            raise InputError(f"parts: no page has a part '{part}'; allowed: {', '.join(sorted(known))}")


def _take(browser: Browser, page: Path, start: Path, parts: Sequence[str]) -> Iterator[Path]:
    """The pictures of one page, in files whose names begin with that of `start`."""

    def picture(end: str) -> Path:
        path = start.with_name(f"{start.name}{end}.png")
        browser.take_picture(path)
        return path

    browser.set_window(DESK)
    browser.open(page.as_uri())
    yield picture("")
    browser.set_window(PHONE, dark=True)
    yield picture("_phone")
    for part in parts:
        browser.set_window(DESK)
        height = browser.evaluate(_ALONE % json.dumps(f'section[id="{part}"]'))
        if height:
            browser.set_window((DESK[0], min(height, HIGHEST)))
            yield picture(f"_{part}")
