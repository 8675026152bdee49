"""Compare vocabularies on the same text: how finely they cut it, what they do not know, how many
bits a character takes.

python tokenizer/compare.py --tokenizers my_tokenizer my_bpe --files my_texts/ --heldout_files
other_texts/

Bits per character are those of the pieces' frequencies in --files, of every character of the
held-out text: models over different vocabularies can be compared by them, and not by losses per
piece.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_recipes.config import parse_arguments
from bert_recipes.data.corpus import iter_paragraphs
from bert_recipes.errors import InputError, run_cli
from bert_recipes.files import write_json
from bert_recipes.settings import option, required
from bert_recipes.tokenization.loading import load_tokenizer


COLUMNS = {
    "vocabulary": "{:,}",
    "pieces_per_word": "{:.3f}",
    "bytes_per_piece": "{:.2f}",
    "unknown_rate": "{:.4%}",
    "single_characters": "{:.1%}",
    "bits_per_character": "{:.3f}",
}


@dataclass
class CompareTokenizersArguments:
    """Which vocabularies, and on what."""

    tokenizers: list[str] = required("tokenizer folders, vocab.txt files or Hub names")
    files: list[str] = required("text that frequencies are counted on: files, folders or globs")
    heldout_files: list[str] = required("text that everything is measured on")
    output_file: str | None = option(None, "JSON file of the figures")


def count_pieces(tokenizer: Any, texts: Iterable[str]) -> Counter[int]:
    """How often each id occurs."""
    counts: Counter[int] = Counter()
    for text in texts:
        counts.update(tokenizer.encode_ids(text))
    return counts


def measure(tokenizer: Any, known: Counter[int], texts: list[str]) -> dict[str, float]:
    """The columns; a word is what spaces part, and a piece is a single character without its
    mark.
    """
    found = count_pieces(tokenizer, texts)
    pieces, words = found.total(), sum(len(text.split()) for text in texts)
    # Spaces are no characters: not every tokenizer keeps them.
    characters = sum(len("".join(text.split())) for text in texts)
    names = dict(enumerate(tokenizer.convert_ids_to_tokens(range(len(tokenizer)))))
    single = sum(
        count for number, count in found.items() if len(names[number].lstrip("#\u2581\u0120")) <= 1
    )
    total = known.total() + len(tokenizer)  # every piece has been seen once more
    bits = -sum(count * math.log2((known[number] + 1) / total) for number, count in found.items())
    return {
        "vocabulary": len(tokenizer),
        "pieces_per_word": pieces / words,
        "bytes_per_piece": sum(len(text.encode(errors="replace")) for text in texts) / pieces,
        "unknown_rate": found[tokenizer.unk_token_id] / pieces,
        "single_characters": single / pieces,
        "bits_per_character": bits / characters,
    }


def main() -> None:
    """Read, cut, print."""
    (args,) = parse_arguments(CompareTokenizersArguments)
    heldout = list(iter_paragraphs(args.heldout_files))
    if not any(text.split() for text in heldout):
        raise InputError("heldout_files: there is no word in them")
    results = {}
    for name in args.tokenizers:
        tokenizer = load_tokenizer(name)
        results[name] = measure(
            tokenizer, count_pieces(tokenizer, iter_paragraphs(args.files)), heldout
        )
    width = max(map(len, results))
    print(" " * width, *(f"{name.replace('_', ' '):>18}" for name in COLUMNS))
    for name, row in results.items():
        print(f"{name:{width}}", *(f"{form.format(row[key]):>18}" for key, form in COLUMNS.items()))
    if args.output_file is not None:
        write_json(Path(args.output_file), results)
        print(f"wrote {args.output_file}")


if __name__ == "__main__":
    run_cli(main)
