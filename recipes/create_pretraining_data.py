r"""Make masked training instances of text, as google-research/bert's create_pretraining_data.py.

    python recipes/create_pretraining_data.py --input_file=sample_text.txt \
        --output_file=tf_examples.tfrecord \
        --vocab_file=vocab.txt --do_lower_case=True --max_seq_length=128 \
        --max_predictions_per_seq=20 \
        --masked_lm_prob=0.15 --random_seed=12345 --dupe_factor=5

The same flags give the same instances, token for token and in the same order. Input: one sentence a
line, a blank line between documents. The suffix of an output file says its format: .jsonl, .parquet
or .tfrecord (no TensorFlow needed). recipes/pretrain.py trains from such files (--train_file); from
a token store it draws new pairs and masks every epoch. With --random_next_sentence=False
--do_whole_word_mask=True --ngram=3 it is ALBERT's create_pretraining_data.py.
"""

import glob
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from bert_recipes.config import parse_arguments
from bert_recipes.data.corpus import check_pattern
from bert_recipes.data.instances import check_instance_outputs, write_instances
from bert_recipes.data.original import OriginalSettings, create_training_instances, read_documents
from bert_recipes.errors import InputError, run_cli
from bert_recipes.settings import SEEDS, option, required
from bert_recipes.tokenization.loading import load_tokenizer


@dataclass
class CreatePretrainingDataArguments:
    """The original's flags and defaults."""

    input_file: str = required(
        "text files or globs, separated by commas; one sentence a line, UTF-8"
    )
    output_file: str = required(
        "output files, separated by commas; instances go round-robin to them"
    )
    vocab_file: str = required("vocab.txt, or a tokenizer's folder")
    do_lower_case: bool = option(True, "true for uncased vocabularies, false for cased ones")
    do_whole_word_mask: bool = option(False, "mask the pieces of a word together")
    # 8: from there on every input has room for one token of A and one of B, and the drawn shorter
    # lengths differ.
    max_seq_length: int = option(128, "tokens of an instance, special tokens included", least=8)
    max_predictions_per_seq: int = option(20, "most predicted tokens of an instance", least=1)
    random_seed: int = option(12345, "seed of all draws", **SEEDS)
    dupe_factor: int = option(10, "passes over the text, each with other pairs and masks", least=1)
    masked_lm_prob: float = option(
        0.15, "fraction of the tokens that is predicted", least=0, most=1
    )
    short_seq_prob: float = option(
        0.1, "fraction of documents with a shorter target length", least=0, most=1
    )
    # Flags of google-research/albert create_pretraining_data.py; its defaults are False and 3.
    random_next_sentence: bool = option(
        True, "false: is the pair in order or swapped, as in ALBERT"
    )
    ngram: int | None = option(
        None, "ALBERT's masks: runs of at most this many words, shorter ones more often", least=1
    )


def main() -> None:
    """Read, pair, mask, write; say how much of what."""
    (args,) = parse_arguments(
        CreatePretrainingDataArguments, argv=translate_absl_flags(sys.argv[1:])
    )
    outputs = [Path(name) for name in args.output_file.split(",")]
    check_instance_outputs(outputs)
    inputs = find_inputs(args.input_file.split(","))
    tokenizer = load_tokenizer(args.vocab_file, args.do_lower_case)
    documents = read_documents(inputs, tokenizer.encode_ids)
    num_documents = len(documents.lengths)
    num_sentences = sum(map(len, documents.lengths))
    print(
        f"read {num_documents:,} documents, {num_sentences:,} sentences, "
        f"{len(documents.tokens):,} tokens; "
        f"{documents.num_lines_without_tokens:,} lines without tokens left out"
    )
    if num_documents == 1:
        print(
            "warning: there is one document only, so random next sentences come from that "
            "document, as the original has "
            "it; separate documents by blank lines",
            file=sys.stderr,
        )
    settings = OriginalSettings(
        max_seq_length=args.max_seq_length,
        short_seq_prob=args.short_seq_prob,
        dupe_factor=args.dupe_factor,
        masked_lm_prob=args.masked_lm_prob,
        max_predictions_per_seq=args.max_predictions_per_seq,
        whole_word=args.do_whole_word_mask,
        is_ordered=not args.random_next_sentence,
        ngram=args.ngram,
        # ALBERT draws the lengths of its runs from numpy's global generator, without a seed.
        draw_ngram_length=np.random.RandomState(args.random_seed % 2**32).random_sample,
    )
    rng = random.Random(args.random_seed)
    instances = create_training_instances(documents, tokenizer, settings, rng)
    count = write_instances(
        instances,
        outputs,
        max_seq_length=args.max_seq_length,
        max_predictions_per_seq=args.max_predictions_per_seq,
    )
    print(f"wrote {count:,} instances to {', '.join(map(str, outputs))}")


def translate_absl_flags(argv: Sequence[str]) -> list[str]:
    """Write TensorFlow's other forms of a flag, ``-flag`` and ``--noflag``, as ``--flag=value``."""
    names = set()
    negations = {}
    for item in fields(CreatePretrainingDataArguments):
        names.add(item.name)
        if item.type is bool:
            negations[f"no{item.name}"] = item.name

    translated = []
    for argument in argv:
        flag, equals, value = argument.partition("=")
        name = flag.lstrip("-")
        is_flag = flag in (f"-{name}", f"--{name}")
        if is_flag and name in negations and not equals:
            translated.append(f"--{negations[name]}=false")
        elif is_flag and (name in names or name in negations):
            translated.append(f"--{name}{equals}{value}")
        else:
            translated.append(argument)
    return translated


def find_inputs(patterns: Sequence[str]) -> list[Path]:
    """Return the files of all patterns in order, those of one pattern sorted."""
    files: list[Path] = []
    for pattern in patterns:
        check_pattern(pattern)
        names = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern))
        paths = [Path(name) for name in names if Path(name).is_file()]
        if not paths:
            raise InputError(
                f"--input_file: no file matches {pattern!r}; give text files or globs, separated "
                "by commas"
            )
        files += paths
    return files


if __name__ == "__main__":
    run_cli(main)
