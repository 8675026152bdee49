"""Fine-tune with this project and with stock transformers, from the same weights with the same settings, and compare.

    python benchmarks/compare_with_stock.py --task all --model_name_or_path M --data_dir DATA --output_dir runs/comparison

For each task: figures of both sides over the seeds of the plan (benchmarks/stock/plan.py), the time of
training, and the single losses of 50 steps on the same batches without dropout. Every flag that is not listed here goes to
both sides. The same command goes on after an interruption. OUTPUT/<task>.json holds the figures, OUTPUT/table.md the table.
Exit code 1 where single losses differ by more than rounding.
"""

import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path

from stock.plan import ALL, PLAN, check_flags, choose_tasks
from stock.record import check_losses
from stock.runs import Comparison
from stock.table import read_records, write_table

from bert_recipes.config import field_types, parse_arguments
from bert_recipes.errors import run_cli
from bert_recipes.sweeps.sweep import choose_seeds, end_with_children, split_flags


ROOT = Path(__file__).resolve().parents[1]
logger = logging.getLogger("compare_with_stock")


@dataclass
class CompareArguments:
    """Which tasks, how often, and where to."""

    output_dir: str = field(metadata={"help": "folder of the runs, the figures and the table"})
    task: str = field(default=ALL, metadata={"help": f"{ALL}, or one of {', '.join(PLAN)}"})
    seeds: list[int] | None = field(default=None, metadata={"help": "seeds of both sides; default: the plan's"})
    table_only: bool = field(default=False, metadata={"help": "run nothing; print the table of what lies there"})


def main() -> None:
    """Run what is not finished, task by task, then print the table."""
    own, flags = split_flags(sys.argv[1:], field_types(CompareArguments))
    (args,) = parse_arguments(CompareArguments, argv=own)
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    tasks, folder = choose_tasks(args.task), Path(args.output_dir)
    seeds = None if args.seeds is None else choose_seeds(1, args.seeds)
    check_flags(flags, field_types(CompareArguments))
    if not args.table_only:
        end_with_children()
        for name in tasks:
            record = Comparison(name, PLAN[name], ROOT, folder, flags).run(seeds)
            logger.info("%s: losses differ by %.1e", name, record["losses"]["largest_difference"])
    records = read_records(folder)
    print(write_table(folder, records))
    check_losses(records)


if __name__ == "__main__":
    run_cli(main)
