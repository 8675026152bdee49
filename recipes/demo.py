"""A page in the browser to try a checkpoint: masks, next sentences, its task, attention, pieces.

    python recipes/demo.py --model_name_or_path runs/quickstart

For this machine alone unless --host says otherwise; nothing is sent or loaded from anywhere else (docs/demo.md).
"""

import logging
import tempfile
from pathlib import Path

from bert_recipes.config import parse_arguments
from bert_recipes.demo.arguments import DemoArguments
from bert_recipes.errors import run_cli


logger = logging.getLogger("demo")


def main() -> None:
    """Parse, claim the port, open, serve."""
    (args,) = parse_arguments(DemoArguments)
    # Imported only now, for it takes seconds.
    from bert_recipes.demo.model import open_demo_model
    from bert_recipes.demo.server import claim_port, serve

    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    for library in ("accelerate", "httpx", "matplotlib", "transformers"):
        logging.getLogger(library).setLevel(logging.WARNING)
    with claim_port(args) as listener, tempfile.TemporaryDirectory() as work_dir:
        model = open_demo_model(args.model_name_or_path, Path(work_dir), use_cpu=args.use_cpu)
        logger.info("%s: %s", model.name, ", ".join((*model.abilities, "attention", "pieces")))
        serve(args, model, listener)


if __name__ == "__main__":
    run_cli(main)
