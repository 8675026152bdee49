"""Pictures of a checkpoint's page, one a tab."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from bert_recipes.browser import Browser
from bert_recipes.demo.arguments import DemoArguments
from bert_recipes.demo.model import open_demo_model
from bert_recipes.demo.server import claim_port, serving
from bert_recipes.demo.tabs import tabs_of


def take_pictures(name: str, output_dir: Path, size: tuple[int, int], *, dark: bool = False) -> Iterator[Path]:
    """Serve the page, open each tab in a browser that can reach this machine only, and write what it shows.

    Args:
        name: Checkpoint: folder or Hub name.
        output_dir: Existing folder; gets `<tab>.png`.
        size: Width and height of the window; a tab that is longer is taken whole.
        dark: In dark colours.

    Yields:
        The files, each when it is written.

    Raises:
        InputError: No checkpoint, or no browser.
    """
    args = DemoArguments(model_name_or_path=name, port=0)
    with (
        Browser(size, dark=dark) as browser,
        claim_port(args) as listener,
        tempfile.TemporaryDirectory() as work_dir,
    ):
        model = open_demo_model(name, Path(work_dir))
        with serving(args, model, listener) as url:
            browser.open(url)
            for tab in tabs_of(model):
                browser.wait_for(f"document.querySelector('#tab-{tab.name}-button')")
                # The page loads its fields one after the other, and what is below them moves down.
                shown = [f"#{tab.name}-{number} :is(textarea, input)" for number in range(len(tab.fields))]
                shown.append(f"#{tab.name}-result")
                is_open = " && ".join(f"document.querySelector('{selector}')?.offsetParent" for selector in shown)
                browser.click(f"#tab-{tab.name}-button", is_open)
                path = output_dir / f"{tab.name}.png"
                browser.take_picture(path, whole_page=True)
                yield path
