r"""Give a BERT whole words of its new domain: a larger vocabulary, and a model that fits it.

    python recipes/add_tokens.py --model_name_or_path my_bert --files domain_texts/ \
        --num_tokens 1000 --output_dir my_domain_bert

The words are those of the texts whose own entry spares the most pieces, or those of --tokens_file
(one a line). Each starts with the mean of the embeddings of the pieces that it was cut into.
Prepare the domain's texts with the new folder as --tokenizer, and go on with recipes/pretrain.py
--model_name_or_path (docs/domain.md).
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bert_recipes.checkpointing import check_checkpoint, opening
from bert_recipes.config import parse_arguments
from bert_recipes.data.corpus import CorpusCounts, iter_paragraphs
from bert_recipes.errors import InputError, run_cli
from bert_recipes.files import check_new_folder, write_model_folder
from bert_recipes.rows import DEFAULT_MAX_LINE_BYTES, MAX_LINE_BYTES_LIMIT
from bert_recipes.settings import option, required
from bert_recipes.tokenization.loading import check_vocabulary, find_tokenizer, load_tokenizer
from bert_recipes.tokenization.new_words import (
    NewWord,
    choose_words,
    count_for,
    describe_gain,
    extend_tokenizer,
    read_words,
)
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer


REPORT_FILE = "new_tokens.json"


@dataclass
class AddTokensArguments:
    """Choose the words and the model."""

    model_name_or_path: str = required("checkpoint with its tokenizer (folder or Hub name)")
    output_dir: str = required("folder to write; must not exist or be empty")
    files: list[str] | None = option(
        None,
        "text to choose words from: .txt (or .train, .raw, .tokens), .jsonl, .json, .csv, .tsv "
        "(each also .gz, .bz2, .xz, .zst), .parquet",
    )
    tokens_file: str | None = option(None, "the words, one a line, instead of --files")
    num_tokens: int = option(1000, "words chosen, at most", least=1)
    min_frequency: int = option(10, "least number of occurrences of a word", least=1)
    text_column: str = option("text", "column of the text in tables, JSON and Parquet rows")
    encoding_errors: Literal["strict", "replace"] = option(
        "strict", "broken UTF-8: stop, or put U+FFFD and count"
    )
    max_line_bytes: int = option(
        DEFAULT_MAX_LINE_BYTES,
        "longest line that is taken for text",
        least=1,
        most=MAX_LINE_BYTES_LIMIT,
    )

    def __post_init__(self) -> None:
        """Check what belongs together."""
        if (self.files is None) == (self.tokens_file is None):
            raise InputError(
                "give either --files, to choose words from, or --tokens_file, a list of them"
            )


def find_words(
    args: AddTokensArguments, tokenizer: OriginalBertTokenizer
) -> tuple[list[NewWord], dict[str, Any]]:
    """The words, and what they change in the text that they are from."""
    if args.tokens_file is not None:
        return read_words(Path(args.tokens_file), tokenizer), {}
    read = CorpusCounts()
    texts = iter_paragraphs(
        args.files,
        text_column=args.text_column,
        encoding_errors=args.encoding_errors,
        max_line_bytes=args.max_line_bytes,
        counts=read,
    )
    counts = count_for(tokenizer, texts)
    words = choose_words(
        tokenizer, counts, num_words=args.num_tokens, min_frequency=args.min_frequency
    )
    if not words:
        raise InputError(
            f"no word of {len(counts.tokens):,} different ones is cut into pieces and occurs "
            f"{args.min_frequency} times; "
            "give more text or a lower --min_frequency"
        )
    return words, describe_gain(tokenizer, extend_tokenizer(tokenizer, words), counts)


def main() -> None:
    """Open, choose, extend, write, report."""
    (args,) = parse_arguments(AddTokensArguments)
    # Imported only now, for it takes seconds.
    from bert_recipes.models.checkpoints import add_tokens, open_checkpoint
    from bert_recipes.models.sizes import reads_left_to_right

    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    output_dir = Path(args.output_dir)
    check_new_folder(output_dir)
    cached_only = check_checkpoint(args.model_name_or_path)
    folder = find_tokenizer(args.model_name_or_path)
    if folder is None:
        raise InputError(
            f"model_name_or_path: {args.model_name_or_path} has no tokenizer; it must be in the "
            "same folder"
        )
    tokenizer = load_tokenizer(folder)
    if not isinstance(tokenizer, OriginalBertTokenizer):
        raise InputError(
            f"model_name_or_path: {args.model_name_or_path} has no WordPiece tokenizer; words are "
            "added to BERT's"
        )
    with opening(args.model_name_or_path):
        model, new_weights = open_checkpoint(
            args.model_name_or_path, cached_only=cached_only, member="bert"
        )
        if new_weights:
            # A new head for pairs would be written as if it had learned: these have none.
            member = "bert_ltr" if reads_left_to_right(model.config) else "bert_mlm"
            model, new_weights = open_checkpoint(
                args.model_name_or_path, cached_only=cached_only, member=member
            )
    if new_weights:
        raise InputError(
            f"model_name_or_path: {args.model_name_or_path} has no masked-LM head; give a BERT as "
            "it was pre-trained"
        )
    check_vocabulary(args.model_name_or_path, model.config.vocab_size, tokenizer)
    words, gain = find_words(args, tokenizer)
    larger = extend_tokenizer(tokenizer, words)
    pieces = {len(tokenizer) + number: new.piece_ids for number, new in enumerate(words)}
    add_tokens(model, pieces, len(larger))
    shown = {
        new.word: {"pieces": tokenizer.convert_ids_to_tokens(new.piece_ids), "count": new.count}
        for new in words
    }
    write_model_folder(output_dir, model, larger, {REPORT_FILE: {**gain, "tokens": shown}})
    for word, facts in list(shown.items())[:10]:
        print(f"{word:24} {' '.join(facts['pieces'])}")
    print(f"{len(words):,} new tokens, {len(larger):,} in all")
    if gain:
        print(
            f"pieces a word: {gain['pieces_a_word_before']:.3f} -> "
            f"{gain['pieces_a_word_after']:.3f}"
        )
    print(f"wrote {output_dir}; every one is in {REPORT_FILE}")


if __name__ == "__main__":
    run_cli(main)
