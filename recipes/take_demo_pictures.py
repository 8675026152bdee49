"""Pictures of the page of recipes/demo.py, taken in a headless Chromium: those of docs/demo.md.

python recipes/take_demo_pictures.py --model_name_or_path runs/quickstart --output_dir docs/demo
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError, run_cli, saving


@dataclass
class PictureArguments:
    """Of which page, and where the pictures go.

    Attributes:
        model_name_or_path: As for recipes/demo.py.
        output_dir: Gets one PNG a tab, named after it.
        dark: Take them in dark colours.
        width, height: Of the window, in pixels.
    """

    model_name_or_path: str = field(metadata={"help": "run folder or any BERT checkpoint with its tokenizer"})
    output_dir: str = field(metadata={"help": "folder of the pictures, one a tab"})
    dark: bool = field(default=False, metadata={"help": "dark colours"})
    width: int = field(default=1180, metadata={"help": "of the window, in pixels"})
    height: int = field(default=520, metadata={"help": "of the window, in pixels; longer tabs are taken whole"})

    def __post_init__(self) -> None:
        """Check the size.

        Raises:
            InputError: A window that shows nothing, or that no browser draws.
        """
        for name, value in (("width", self.width), ("height", self.height)):
            if not 320 <= value <= 4096:
                raise InputError(f"{name} is {value}; allowed: 320 to 4096 pixels")


def main() -> None:
    """Serve the page on a free port, go through its tabs, write."""
    (args,) = parse_arguments(PictureArguments)
    # Imported only now, for it takes seconds.
    from bert_recipes.demo.pictures import take_pictures

    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    output_dir = Path(args.output_dir)
    with saving(output_dir):
        output_dir.mkdir(parents=True, exist_ok=True)
    for path in take_pictures(args.model_name_or_path, output_dir, (args.width, args.height), dark=args.dark):
        print(path)


if __name__ == "__main__":
    run_cli(main)
