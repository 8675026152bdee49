r"""Compare vocabularies on the same text: pieces a word, unknown pieces, bits a character.

    python tokenizer/compare.py --tokenizers my_tokenizer my_bpe --files my_texts/ \
        --heldout_files other_texts/

Bits per character are those of the pieces' frequencies in --files, of every character of the
held-out text: models over different vocabularies can be compared by them, and not by losses per
piece.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bert_recipes.config import parse_arguments
from bert_recipes.data.corpus import iter_paragraphs
from bert_recipes.errors import InputError, run_cli
from bert_recipes.files import write_json
from bert_recipes.rows import DEFAULT_MAX_LINE_BYTES, MAX_LINE_BYTES_LIMIT
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
# What pieces of WordPiece, Unigram and byte-level BPE have beside their characters.
PIECE_MARKS = "#\u2581\u0120"


@dataclass
class CompareTokenizersArguments:
    """Vocabularies, and the text that they are compared on."""

    tokenizers: list[str] = required("tokenizer folders, vocab.txt files or Hub names")
    files: list[str] = required("text that frequencies are counted on: files, folders or globs")
    heldout_files: list[str] = required("text that everything is measured on")
    text_column: str = option("text", "column of the text in tables, JSON and Parquet rows")
    encoding_errors: Literal["strict", "replace"] = option(
        "strict", "broken UTF-8: stop, or put U+FFFD"
    )
    max_line_bytes: int = option(
        DEFAULT_MAX_LINE_BYTES,
        "longest line that is taken for text",
        least=1,
        most=MAX_LINE_BYTES_LIMIT,
    )
    output_file: str | None = option(None, "JSON file of the figures")

    def read(self, files: list[str]) -> Iterable[str]:
        """Yield the paragraphs of files."""
        return iter_paragraphs(
            files,
            text_column=self.text_column,
            encoding_errors=self.encoding_errors,
            max_line_bytes=self.max_line_bytes,
        )


def count_pieces(tokenizer: Any, texts: Iterable[str]) -> Counter[int]:
    """Count how often each id occurs."""
    counts: Counter[int] = Counter()
    for text in texts:
        counts.update(tokenizer.encode_ids(text))
    return counts


def measure(tokenizer: Any, training: Counter[int], texts: list[str]) -> dict[str, float]:
    """Return the columns; a word is what spaces part.

    Args:
        training: How often each id occurs in the text that frequencies are from.
        texts: What is measured.
    """
    counts = count_pieces(tokenizer, texts)
    num_pieces = counts.total()
    num_words = num_bytes = num_characters = 0
    for text in texts:
        words = text.split()
        num_words += len(words)
        num_bytes += len(text.encode(errors="replace"))
        # Spaces are no characters: not every tokenizer keeps them.
        num_characters += len("".join(words))
    names = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    total = training.total() + len(tokenizer)  # every piece has been seen once more
    num_single = 0
    bits = 0.0
    for piece_id, count in counts.items():
        if len(names[piece_id].lstrip(PIECE_MARKS)) <= 1:
            num_single += count
        bits -= count * math.log2((training[piece_id] + 1) / total)
    return {
        "vocabulary": len(tokenizer),
        "pieces_per_word": num_pieces / num_words,
        "bytes_per_piece": num_bytes / num_pieces,
        "unknown_rate": counts[tokenizer.unk_token_id] / num_pieces,
        "single_characters": num_single / num_pieces,
        "bits_per_character": bits / num_characters,
    }


def main() -> None:
    """Read, cut, print."""
    (args,) = parse_arguments(CompareTokenizersArguments)
    heldout_texts = list(args.read(args.heldout_files))
    if not any(text.split() for text in heldout_texts):
        raise InputError("heldout_files: there is no word in them")
    results = {}
    for name in args.tokenizers:
        tokenizer = load_tokenizer(name)
        training = count_pieces(tokenizer, args.read(args.files))
        results[name] = measure(tokenizer, training, heldout_texts)

    width = max(map(len, results))
    titles = [name.replace("_", " ") for name in COLUMNS]
    print(" " * width, *(f"{title:>18}" for title in titles))
    for name, row in results.items():
        cells = [form.format(row[column]) for column, form in COLUMNS.items()]
        print(f"{name:{width}}", *(f"{cell:>18}" for cell in cells))
    if args.output_file is not None:
        write_json(Path(args.output_file), results)
        print(f"wrote {args.output_file}")


if __name__ == "__main__":
    run_cli(main)
