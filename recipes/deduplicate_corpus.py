"""Text -> the same text with each document once: exact and near duplicates are removed.

    python recipes/deduplicate_corpus.py --files my_texts/ --output_dir my_texts_once/

recipes/prepare_corpus.py reads the folder that is written. Needs pip install
'bert-recipes[cluster]'.
All fields: --help, or src/bert_recipes/data/deduplicate.py.
"""

import logging

from bert_recipes.errors import exit_on_sigterm, run_cli


def main() -> None:
    """Parse, deduplicate, report."""
    # Here and not above: every process of a task imports this file anew, and needs none of it.
    from bert_recipes.config import parse_arguments
    from bert_recipes.data import cluster  # noqa: F401 - says which package is missing
    from bert_recipes.data.deduplicate import DeduplicationArguments, deduplicate, report_file

    (arguments,) = parse_arguments(DeduplicationArguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    exit_on_sigterm()
    report = deduplicate(arguments)
    for name in ("documents_read", "exact_duplicates", "near_duplicates", "documents_kept"):
        print(f"{name.replace('_', ' '):24}{report[name]:>16,}")
    for kind in ("dropped", "repaired"):
        for reason, number in report.get(kind, {}).items():
            print(f"{kind}: {reason.replace('_', ' ')}: {number:,}")
    print(f"documents: {arguments.output_dir}\nreport: {report_file(arguments.output_dir)}")


if __name__ == "__main__":
    run_cli(main)
