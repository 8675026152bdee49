r"""Text -> documents -> sentences -> token-id store.

    python recipes/prepare_corpus.py --config recipes/configs/corpus/local_text.yaml \
        --files my_texts/ --tokenizer my_tokenizer/ --output_dir my_store/

With --names NAMES.txt instead of --tokenizer the files hold ids that are not text (docs/family.md).
The configuration may be left out. All fields: --help_all, or src/bert_recipes/data/prepare.py.
"""

import logging

from bert_recipes.errors import exit_on_sigterm, run_cli


def main() -> None:
    """Parse, prepare, report."""
    # Imported here: each spawned worker imports this file again and needs none of these.
    from bert_recipes.config import parse_arguments
    from bert_recipes.data.prepare import CorpusArguments, format_report, prepare_store
    from bert_recipes.shipped import ROOT
    from bert_recipes.tokenization.loading import load_corpus_tokenizer

    (arguments,) = parse_arguments(CorpusArguments, configs=ROOT / "recipes" / "configs" / "corpus")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    exit_on_sigterm()
    tokenizer = load_corpus_tokenizer(arguments.tokenizer, arguments.names)
    report = prepare_store(arguments, tokenizer)
    print(format_report(report))


if __name__ == "__main__":
    run_cli(main)
