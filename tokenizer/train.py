r"""Train a WordPiece, byte-level BPE or Unigram vocabulary on text.

The tokenizer folder that is written opens in stock transformers.

    python tokenizer/train.py --config tokenizer/configs/quickstart.yaml
    python tokenizer/train.py --config tokenizer/configs/uncased_30522.yaml \
        --files 'books/*.txt' --output_dir my_tokenizer
"""

import dataclasses
import itertools
import logging
import platform
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
import transformers

from bert_recipes.config import parse_arguments
from bert_recipes.data.corpus import (
    CorpusCounts,
    find_files,
    iter_hub_documents,
    iter_paragraphs,
    warn_of_held_out_names,
)
from bert_recipes.errors import run_cli
from bert_recipes.shipped import ROOT
from bert_recipes.tokenization.loading import check_tokenizer_folder, write_tokenizer_folder
from bert_recipes.tokenization.others import train_byte_bpe, train_unigram
from bert_recipes.tokenization.training import (
    BYTE_BPE,
    UNIGRAM,
    TokenizerArguments,
    train_vocabulary,
)


def main() -> None:
    """Read, train, write, report."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    (args,) = parse_arguments(TokenizerArguments, configs=ROOT / "tokenizer" / "configs")
    output_dir = Path(args.output_dir)
    check_tokenizer_folder(output_dir, overwrite=args.overwrite)
    files = find_files(args.files) if args.files else []
    warn_of_held_out_names(files)
    counts = CorpusCounts()  # filled while the texts are read
    texts = iter_texts(args, files, counts)
    tokenizer: Any
    if args.algorithm == BYTE_BPE:
        tokenizer, report = train_byte_bpe(
            texts, vocab_size=args.vocab_size, min_frequency=args.min_frequency
        )
        summary = format_figures(report)
    elif args.algorithm == UNIGRAM:
        tokenizer, report = train_unigram(
            texts,
            vocab_size=args.vocab_size,
            lowercase=args.lowercase,
            strip_accents=args.strip_accents,
        )
        summary = format_figures(report)
    else:
        tokenizer = train_vocabulary(texts, args)
        report = dataclasses.asdict(tokenizer.training_report)
        summary = str(tokenizer.training_report)
    report_file = describe(args, counts, tokenizer.fingerprint, report)
    write_tokenizer_folder(output_dir, tokenizer, report_file)
    print(summary)
    if counts.repaired or counts.dropped:
        print(f"repaired: {dict(counts.repaired)}, left out: {dict(counts.dropped)}")
    print(f"wrote {output_dir}: {len(tokenizer):,} pieces")


def iter_texts(args: TokenizerArguments, files: list[Path], counts: CorpusCounts) -> Iterator[str]:
    """Yield the paragraphs of files, or of the data set of the Hub."""
    options: dict[str, Any] = {
        "text_column": args.text_column,
        "encoding_errors": args.encoding_errors,
        "counts": counts,
    }
    if args.dataset_name is None:
        return iter_paragraphs(files, max_line_bytes=args.max_line_bytes, **options)
    dataset = (args.dataset_name, args.dataset_config_name, args.dataset_split)
    return itertools.chain.from_iterable(iter_hub_documents(dataset, **options))


def format_figures(report: dict[str, float]) -> str:
    """Return the figures of a report in one line."""
    figures = [f"{name.replace('_', ' ')} {value:,.10g}" for name, value in report.items()]
    return ", ".join(figures)


def describe(
    args: TokenizerArguments, counts: CorpusCounts, fingerprint: str, report: dict[str, Any]
) -> dict[str, Any]:
    """Return what the report file holds: settings, sources, figures, versions.

    It has no times, so that runs compare equal.
    """
    settings = dataclasses.asdict(args)
    # The output folder says nothing about the vocabulary.
    del settings["output_dir"], settings["overwrite"]
    read = counts.as_dict()
    del read["documents"]  # they are lines here
    return {
        "settings": settings,
        "measured_on": "all training text",
        "report": report,
        "read": read,
        "fingerprint": fingerprint,
        "versions": {
            "python": platform.python_version(),
            "unicode": unicodedata.unidata_version,
            "tokenizers": tokenizers.__version__,
            "transformers": transformers.__version__,
        },
    }


if __name__ == "__main__":
    run_cli(main)
