"""The quickstart's data, made where it is missing: text, tokenizer, store."""

import logging
import subprocess
import sys
from pathlib import Path

from bert_recipes.errors import InputError


logger = logging.getLogger(__name__)

# In the current folder, as the configurations have it: what a script leaves when it is done; the script; its configuration.
FOLDER = Path("data/quickstart")
STEPS = (
    ("corpus.json", "recipes/collect_docstrings.py", None),
    ("tokenizer/vocab.txt", "tokenizer/train.py", "tokenizer/configs/quickstart.yaml"),
    ("store/store.json", "recipes/prepare_corpus.py", "recipes/configs/corpus/quickstart.yaml"),
)


def build_quickstart(store: str | None, repository: Path) -> None:
    """Make the quickstart's data, from the first part that is missing on, where a run is to train on its store."""
    missing = [not (FOLDER / made).is_file() for made, *_ in STEPS]
    if store is None or Path(store) != FOLDER / "store" or not missing[-1]:
        return
    for _, script, config in STEPS[missing.index(True) :]:
        logger.info("%s is missing, %s makes it", store, script)
        flags = [] if config is None else ["--config", str(repository / config)]
        code = subprocess.run([sys.executable, str(repository / script), *flags], check=False).returncode
        if code:
            raise InputError(f"{store} is missing and could not be made: {script} ended with exit code {code}")
