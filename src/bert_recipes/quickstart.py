"""The quickstart's data, made where it is missing: text, tokenizer, store."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

from bert_recipes.errors import InputError


logger = logging.getLogger(__name__)

# As the configurations of the quickstart have it, in the current folder.
FOLDER = Path("data/quickstart")
STORE = FOLDER / "store"
# A file that is there when a script has come to its end, and the script with its flags, in their order.
STEPS = (
    ("corpus.json", "recipes/collect_docstrings.py", ("--output_dir", str(FOLDER))),
    ("tokenizer/vocab.txt", "tokenizer/train.py", ("--config", "tokenizer/configs/quickstart.yaml")),
    ("store/store.json", "recipes/prepare_corpus.py", ("--config", "recipes/configs/corpus/quickstart.yaml")),
)


def build_quickstart(store: str | None, repository: Path) -> None:
    """Make the quickstart's data, from the first part that is missing on.

    Args:
        store: That a run is to train on; nothing is done for another one than the quickstart's.
        repository: Where the scripts are.

    Raises:
        InputError: A script has failed, and said why.
    """
    if store is None or Path(store) != STORE or (FOLDER / STEPS[-1][0]).is_file():
        return
    first = next(number for number, (made, *_) in enumerate(STEPS) if not (FOLDER / made).is_file())
    for _, script, (flag, value) in STEPS[first:]:
        logger.info("%s is missing: %s %s %s", STORE, script, flag, value)
        path = value if flag == "--output_dir" else str(repository / value)
        code = subprocess.run([sys.executable, str(repository / script), flag, path], check=False).returncode
        if code:
            raise InputError(f"{STORE} is missing and could not be made: {script} ended with exit code {code}")
