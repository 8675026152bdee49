r"""Text -> token-id store, the shards made by tasks on one machine, by Slurm or by Ray.

    python recipes/prepare_on_cluster.py --config recipes/configs/corpus/local_text.yaml \
        --files my_texts/ \
        --tokenizer my_tokenizer/ --output_dir my_store/ --executor slurm --partition cpu \
        --time 04:00:00

Takes all fields of recipes/prepare_corpus.py, and the store is the same, byte for byte. Needs pip
install 'bert-recipes[cluster]'.
All fields: --help_all, or src/bert_recipes/data/cluster.py.
"""

import logging

from bert_recipes.errors import exit_on_sigterm, run_cli


def main() -> None:
    """Parse, run or submit, report."""
    # Here and not above: every process of a task imports this file anew, and needs none of it.
    from bert_recipes.config import parse_arguments
    from bert_recipes.data.cluster import ExecutorArguments, prepare_on_cluster
    from bert_recipes.data.prepare import CorpusArguments
    from bert_recipes.shipped import ROOT

    configs = ROOT / "recipes" / "configs" / "corpus"
    corpus, executors = parse_arguments(CorpusArguments, ExecutorArguments, configs=configs)
    from bert_recipes.tokenization.loading import load_corpus_tokenizer

    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    exit_on_sigterm()
    tokenizer = load_corpus_tokenizer(corpus.tokenizer, corpus.names)
    print(prepare_on_cluster(corpus, executors, tokenizer))


if __name__ == "__main__":
    run_cli(main)
