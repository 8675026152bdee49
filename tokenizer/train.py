"""Train a WordPiece vocabulary on text and write a tokenizer folder that stock transformers opens.

python tokenizer/train.py --config tokenizer/configs/quickstart.yaml
python tokenizer/train.py --config tokenizer/configs/uncased_30522.yaml --files 'books/*.txt' --output_dir my_tokenizer
"""

import dataclasses
import json
import logging
import platform
import shutil
import tempfile
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tokenizers
import transformers

from bert_recipes.config import parse_arguments
from bert_recipes.data.corpus import CorpusCounts, iter_documents, iter_hub_documents
from bert_recipes.data.files import TEXT_SUFFIXES, find_files
from bert_recipes.errors import InputError, run_cli
from bert_recipes.tokenization import OriginalBertTokenizer, train_wordpiece


REPORT_FILE = "tokenizer_report.json"
# Everything this script writes: only a folder that holds nothing else is replaced.
OUR_FILES = frozenset({"tokenizer.json", "tokenizer_config.json", "vocab.txt", REPORT_FILE})


@dataclass
class TokenizerArguments:
    """What to read, what to train, where to write."""

    output_dir: str = field(metadata={"help": "folder to write; must not exist or be empty"})
    files: list[str] | None = field(
        default=None, metadata={"help": "files, folders or globs: .txt, .jsonl, .json (each also .gz), .parquet"}
    )
    dataset_name: str | None = field(default=None, metadata={"help": "data set on the Hub, instead of files"})
    dataset_config_name: str | None = field(default=None, metadata={"help": "configuration of the data set"})
    dataset_split: str = field(default="train", metadata={"help": "split of the data set"})
    text_column: str = field(default="text", metadata={"help": "column of the text in JSON, Parquet and data sets"})
    encoding_errors: Literal["strict", "replace"] = field(
        default="strict", metadata={"help": "broken UTF-8: stop, or put U+FFFD and count"}
    )
    vocab_size: int = field(default=30522, metadata={"help": "entries wanted, special tokens and slots included"})
    lowercase: bool = field(default=True, metadata={"help": "uncased vocabulary"})
    strip_accents: bool | None = field(
        default=None, metadata={"help": "drop accents and other combining marks; default: as lowercase"}
    )
    split_cjk: bool = field(default=True, metadata={"help": "every Han character is a word"})
    min_frequency: int = field(default=2, metadata={"help": "a pair must occur this often to become a piece"})
    limit_alphabet: int = field(default=1000, metadata={"help": "characters kept, the most frequent ones"})
    num_unused: int = field(default=99, metadata={"help": "[unusedN] slots"})
    overwrite: bool = field(default=False, metadata={"help": "replace a tokenizer that is there already"})

    def __post_init__(self) -> None:
        """Check what belongs together."""
        if (self.files is None) == (self.dataset_name is None):
            given = "both" if self.files is not None else "neither"
            raise InputError(f"give either --files or --dataset_name; {given} was given")


def main() -> None:
    """Read, train, report, write."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    (args,) = parse_arguments(TokenizerArguments)
    output_dir = Path(args.output_dir)
    check_output_dir(output_dir, overwrite=args.overwrite)
    counts = CorpusCounts()
    tokenizer = train_wordpiece(
        iter_texts(args, counts),
        vocab_size=args.vocab_size,
        lowercase=args.lowercase,
        strip_accents=args.strip_accents,
        split_cjk=args.split_cjk,
        min_frequency=args.min_frequency,
        limit_alphabet=args.limit_alphabet,
        num_unused=args.num_unused,
    )
    write_folder(output_dir, tokenizer, describe(args, counts, tokenizer))
    print(tokenizer.training_report)
    if counts.repaired or counts.dropped:
        print(f"repaired: {dict(counts.repaired)}, left out: {dict(counts.dropped)}")
    print(f"wrote {output_dir}")


def iter_texts(args: TokenizerArguments, counts: CorpusCounts) -> Iterator[str]:
    """Yield the paragraphs of the sources; where documents end does not matter to a vocabulary."""
    if args.dataset_name is not None:
        documents = iter_hub_documents(
            args.dataset_name,
            args.dataset_config_name,
            args.dataset_split,
            text_column=args.text_column,
            encoding_errors=args.encoding_errors,
            counts=counts,
        )
        for document in documents:
            yield from document
        return
    for path in find_files(args.files or []):
        # Line by line where that is possible: a text file without blank lines would be one document in memory.
        boundary: Literal["line", "row"] = "line" if path.name.lower().endswith(TEXT_SUFFIXES) else "row"
        documents = iter_documents(
            path,
            document_boundary=boundary,
            text_column=args.text_column,
            encoding_errors=args.encoding_errors,
            counts=counts,
        )
        for document in documents:
            yield from document


def describe(args: TokenizerArguments, counts: CorpusCounts, tokenizer: OriginalBertTokenizer) -> dict[str, Any]:
    """Gather what the report file holds: settings, sources, figures, versions; no times, so that runs compare equal."""
    report = tokenizer.training_report
    assert report is not None  # train_wordpiece sets it
    settings = dataclasses.asdict(args)
    read = dataclasses.asdict(counts)
    # Where it lies is no property of the vocabulary, and "documents" are lines here.
    del settings["output_dir"], settings["overwrite"], read["documents"]
    return {
        "settings": settings,
        "measured_on": "all training text",
        "report": dataclasses.asdict(report),
        "read": read,
        "fingerprint": tokenizer.fingerprint,
        "versions": {
            "python": platform.python_version(),
            "unicode": unicodedata.unidata_version,
            "tokenizers": tokenizers.__version__,
            "transformers": transformers.__version__,
        },
    }


def check_output_dir(output_dir: Path, *, overwrite: bool) -> None:
    """Refuse, before any work, a folder whose contents would be lost."""
    if output_dir.exists() and not output_dir.is_dir():
        raise InputError(f"--output_dir: {output_dir} is a file; give a folder")
    present = {entry.name for entry in output_dir.iterdir()} if output_dir.is_dir() else set()
    if others := sorted(present - OUR_FILES):
        raise InputError(f"--output_dir: {output_dir} holds other things ({others[0]}); give a new or empty folder")
    if present and not overwrite:
        raise InputError(
            f"--output_dir: {output_dir} holds a tokenizer; give another folder, or --overwrite to replace it"
        )


def write_folder(output_dir: Path, tokenizer: OriginalBertTokenizer, report: dict[str, Any]) -> None:
    """Write the folder beside its place and rename it when it is whole."""
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{output_dir.name}.", dir=output_dir.parent) as aside:
        whole = Path(aside) / "tokenizer"
        tokenizer.save_pretrained(whole)
        text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
        (whole / REPORT_FILE).write_text(text, encoding="utf-8", newline="\n")
        if output_dir.is_dir():
            shutil.move(output_dir, Path(aside) / "replaced")
        whole.rename(output_dir)


if __name__ == "__main__":
    run_cli(main)
