"""Train the same run under several launches, and interrupted in several ways, and compare losses and weights.

    make compare-launches STORE=my_store

Runs on CPUs, two processes at most; DeepSpeed's rows need pip install 'bert-recipes[deepspeed]'. Dropout is 0 where the split
of the batch differs, as each process drops elements of its own; the last table has it, beside the spread of seeds.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

from bert_recipes.config import parse_arguments
from bert_recipes.errors import run_cli
from bert_recipes.launch_comparison import LAUNCHES, RESUME_CASES, Comparison, format_tables
from bert_recipes.machine import describe_machine
from bert_recipes.whole_files import write_json


ROOT = Path(__file__).resolve().parents[1]


@dataclass
class ComparisonArguments:
    """What is compared.

    Attributes:
        store: Token-id store of recipes/prepare_corpus.py.
        output_dir: Folder of the runs, and of the results.
        steps: Steps of each run.
        results_file: Where the figures go as JSON; a Markdown table beside it.
        without: Leave out launches and cases whose name holds this word, for example ZeRO.
    """

    store: str = field(metadata={"help": "token-id store"})
    output_dir: str = field(default="runs/launches", metadata={"help": "folder of the runs"})
    steps: int = field(default=50, metadata={"help": "steps of each run"})
    results_file: str = field(default="runs/launches/launches.json", metadata={"help": "JSON; a .md table beside it"})
    without: str = field(default="", metadata={"help": "leave out rows whose name holds this word"})


def main() -> None:
    """Run, compare, write."""
    (args,) = parse_arguments(ComparisonArguments)
    flags = ["--config", str(ROOT / "recipes" / "configs" / "pretrain" / "bert_tiny.yaml"), "--store", args.store]
    flags += ["--phase2_steps", "0", "--max_seq_length", "48", "--global_train_batch_size", "16"]
    flags += ["--per_device_train_batch_size", "8", "--phase2_per_device_train_batch_size", "8", "--warmup_steps", "5"]
    flags += ["--learning_rate", "1e-3", "--precision", "fp32", "--dropout", "0", "--save_strategy", "no"]
    flags += ["--eval_strategy", "no", "--dataloader_num_workers", "0"]
    comparison = Comparison(ROOT / "recipes" / "pretrain.py", Path(args.output_dir).absolute(), args.steps, flags)
    launches = [each for each in LAUNCHES if not args.without or args.without not in each.name]
    cases = [each for each in RESUME_CASES if not args.without or args.without not in each.name]
    results = {
        "steps": args.steps,
        "date": time.strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "launches": comparison.compare_launches(launches),
        "resumes": comparison.compare_resumes(cases),
        "seeds": comparison.compare_with_seeds(),
    }
    file = Path(args.results_file)
    write_json(file, results)
    table = format_tables(results)
    file.with_suffix(".md").write_text(table, encoding="utf-8")
    print(table)


if __name__ == "__main__":
    run_cli(main)
