"""Make the corpus, vocabulary and store of the speedrun on WikiText-103.

    python benchmarks/wikitext.py                      # from the Hub
    python benchmarks/wikitext.py --text_dir FOLDER    # wiki.train.raw and wiki.valid.raw

An article is a document, a line of it a paragraph.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError, run_cli
from bert_recipes.settings import option


ROOT = Path(__file__).resolve().parents[1]
DATASET = ("Salesforce/wikitext", "wikitext-103-raw-v1")
# Split -> its file in a local copy.
FILES = {"train": "wiki.train.raw", "validation": "wiki.valid.raw"}


@dataclass
class WikiTextArguments:
    """Choose where the text comes from, and where the store goes."""

    text_dir: str | None = option(None, f"local copy: {' and '.join(FILES.values())}")
    output_dir: str = option("data/wikitext103", "gets train/, validation/, tokenizer/ and store/")
    vocab_size: int = option(30522, "pieces of the vocabulary", above=104)


def read_lines(split: str, text_dir: str | None) -> Iterable[str]:
    """Return the lines of a split, of the local copy or of the Hub."""
    if text_dir is None:
        from datasets import load_dataset

        return load_dataset(*DATASET, split=split)["text"]
    file = Path(text_dir) / FILES[split]
    if not file.is_file():
        raise InputError(f"{file}: no such file; a local copy has {', '.join(FILES.values())}")
    return file.read_text(encoding="utf-8").split("\n")


def main() -> None:
    """Write the text, then call the recipes that make vocabulary and store."""
    (args,) = parse_arguments(WikiTextArguments)
    folder = Path(args.output_dir)
    for split in FILES:
        (folder / split).mkdir(parents=True, exist_ok=True)
        text = "\n".join(read_lines(split, args.text_dir))
        (folder / split / "documents.txt").write_text(text, encoding="utf-8")

    tokenizer = ["tokenizer/train.py", "--config", "tokenizer/configs/quickstart.yaml"]
    tokenizer += ["--files", str(folder / "train"), "--output_dir", str(folder / "tokenizer")]
    tokenizer += ["--vocab_size", str(args.vocab_size)]
    store = ["recipes/prepare_corpus.py", "--config", "recipes/configs/corpus/quickstart.yaml"]
    store += ["--files", str(folder / "train"), "--validation_files", str(folder / "validation")]
    store += ["--document_boundary", "heading"]
    store += ["--tokenizer", str(folder / "tokenizer"), "--output_dir", str(folder / "store")]
    for command in (tokenizer, store):
        script, *flags = command
        subprocess.run([sys.executable, str(ROOT / script), *flags], check=True)


if __name__ == "__main__":
    run_cli(main)
