"""Put a large made-up corpus through recipes/prepare_corpus.py: rate, memory, a kill in the middle and a second start.

    python benchmarks/measure_preparation.py --documents 1000000 --results_file docs/results/million_documents.json

Leaves text and stores in --work_dir (about twice the text), which a second call uses again.
"""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from speed.large_corpus import CorpusRun, measure_large_corpus, write_documents

from bert_recipes.config import parse_arguments
from bert_recipes.data.corpus import iter_paragraphs
from bert_recipes.errors import InputError, run_cli
from bert_recipes.files import write_json
from bert_recipes.tokenization.training import train_wordpiece
from bert_recipes.training.speed import describe_machine


SCRIPT = Path(__file__).resolve().parents[1] / "recipes" / "prepare_corpus.py"


@dataclass
class MeasureArguments:
    """How large.

    Attributes:
        documents: Of three to eight sentences each.
        files: Equal parts of them.
        work_dir: Folder for text and stores; must not hold stores.
        shard_gigabytes, num_processes: Of recipes/prepare_corpus.py.
        results_file: Where the figures go.
    """

    documents: int = field(default=1_000_000, metadata={"help": "documents of three to eight sentences"})
    files: int = field(default=100, metadata={"help": "files; the documents are a multiple of it"})
    work_dir: str = field(default="runs/large_corpus", metadata={"help": "folder for text and stores"})
    shard_gigabytes: float = field(default=0.05, metadata={"help": "text of a shard"})
    num_processes: int | None = field(default=None, metadata={"help": "default: all cores"})
    results_file: str | None = field(default=None, metadata={"help": "also write the figures to this JSON file"})

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.files < 1 or self.documents < self.files or self.documents % self.files:
            raise InputError(f"documents is {self.documents}: a multiple of files ({self.files}) is allowed")


def main() -> None:
    """Make text and a vocabulary, measure, report."""
    (args,) = parse_arguments(MeasureArguments)
    work_dir = Path(args.work_dir)
    for name in ("tenth", "whole", "killed"):
        if (work_dir / name).exists():
            raise InputError(f"work_dir {work_dir} holds stores of an earlier measurement ({name}); delete them")
    files = write_documents(work_dir / "text", args.documents, args.files)
    tokenizer = work_dir / "tokenizer"
    if not tokenizer.is_dir():
        train_wordpiece(iter_paragraphs(files[:2]), vocab_size=30522).save_pretrained(tokenizer)
    flags = ["--tokenizer", str(tokenizer), "--sentences", "lines", "--shard_gigabytes", str(args.shard_gigabytes)]
    if args.num_processes is not None:
        flags += ["--num_processes", str(args.num_processes)]
    results = measure_large_corpus(CorpusRun(SCRIPT, flags, work_dir / "prepare.log"), files, work_dir)
    results |= {"num_processes": args.num_processes or "all cores", "machine": describe_machine()}
    results["date"] = time.strftime("%Y-%m-%d")
    print(json.dumps(results, indent=2))
    if args.results_file is not None:
        write_json(Path(args.results_file), results)


if __name__ == "__main__":
    run_cli(main)
