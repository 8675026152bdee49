r"""Take pictures of pages for the documentation with an installed Chromium; nothing is fetched.

    python tools/screenshots.py runs/quickstart runs/sst2 --output_dir docs/pictures \
        --parts held-out-sentences
    python tools/screenshots.py http://127.0.0.1:7860 --output_dir docs/demo

For each folder with a report.html: NAME.png, NAME_phone.png in dark colours, and NAME_PART.png of
each part (the id of its section). For an address of this machine, such
as the page of `make demo`: page.png.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = [
    "--headless=new",
    "--disable-gpu",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
]
# No name is looked up, and only this machine is reached.
FLAGS += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--virtual-time-budget=10000"]
# Chromium refuses its sandbox to root, as containers have it; the pages are our own.
FLAGS += ["--no-sandbox"] if os.geteuid() == 0 else []
DESK, PHONE = "1120,1250", "412,1100"


def take(url: str, file: Path, size: str, *flags: str) -> None:
    """Write what the browser shows of an address."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"error: no browser: install one of {', '.join(BROWSERS)}")
    command = [browser, *FLAGS, *flags, f"--window-size={size}", f"--screenshot={file}", url]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    print(file)


def main() -> None:
    """Take what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="+", help="folders with a report.html, or addresses")
    parser.add_argument(
        "--output_dir", type=Path, default=Path("runs/pictures"), help="folder of the pictures"
    )
    parser.add_argument("--parts", nargs="*", default=[], help="parts of the reports, each alone")
    options = parser.parse_args()
    output_dir = options.output_dir.resolve()
    output_dir.mkdir(parents=True, exist_ok=True)
    for page in options.pages:
        if page.startswith("http"):
            take(page, output_dir / "page.png", DESK)
            continue
        report = Path(page).resolve() / "report.html"
        if not report.is_file():
            sys.exit(f"error: {page} has no report.html; `make report RUN={page}` writes it")
        name, html = report.parent.name, report.read_text(encoding="utf-8")
        take(report.as_uri(), output_dir / f"{name}.png", DESK)
        take(
            report.as_uri(),
            output_dir / f"{name}_phone.png",
            PHONE,
            "--blink-settings=preferredColorScheme=0",
        )
        for part in options.parts:
            if not re.search(rf'<section id="{re.escape(part)}"', html):
                sys.exit(f"error: {report} has no part '{part}'")
            alone = f'<style>main > :not([id="{part}"]) {{ display: none }}</style></head>'
            with tempfile.NamedTemporaryFile("w", suffix=".html", encoding="utf-8") as file:
                file.write(html.replace("</head>", alone, 1))
                file.flush()
                take(Path(file.name).as_uri(), output_dir / f"{name}_{part}.png", DESK)


if __name__ == "__main__":
    main()
