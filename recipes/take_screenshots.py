"""Take the pictures of reports that the documentation shows, as a browser shows the pages.

    python recipes/take_screenshots.py --folders runs/quickstart runs/sst2

For each folder with a report.html: NAME.png and NAME_phone.png of its top, the second in dark colours, and NAME_PART.png of each part that
`parts` names (the end of the page's address, as the links under its title have it). Chromium must be installed; nothing is fetched.
"""

from dataclasses import dataclass, field
from pathlib import Path

from bert_recipes.config import parse_arguments
from bert_recipes.errors import run_cli


@dataclass
class ScreenshotArguments:
    """What is looked at."""

    folders: list[str] = field(metadata={"help": "folders with a report.html"})
    output_dir: str = field(default="runs/pictures", metadata={"help": "folder of the pictures"})
    parts: list[str] = field(
        default_factory=list, metadata={"help": "parts of the pages, for example held-out-sentences"}
    )


def main() -> None:
    """See that all pages are there, look at each, write."""
    (args,) = parse_arguments(ScreenshotArguments)
    # Imported only now, for it takes seconds.
    from bert_recipes.reports.pictures import take_pictures

    for path in take_pictures([Path(folder) for folder in args.folders], Path(args.output_dir), args.parts):
        print(path)


if __name__ == "__main__":
    run_cli(main)
