"""Ours and stock transformers side by side: speed, memory, time to a quality.

    python benchmarks/benchmark.py --suite pretraining --sizes tiny mini --lengths 128

Suites: pretraining, finetuning, data, inference, time_to_quality, or all, which goes on where it stopped. Every sample is a
process of its own, and the sides take turns. Each is added to the machine's results file in --output_dir, from which
benchmarks.md and the plots are made. docs/benchmarks.md says how everything is measured.
"""

import logging
import tempfile
from pathlib import Path

from speed.arguments import BenchmarkArguments
from speed.report import TABLE_FILE, write_report
from speed.results import ResultsFile, machine_name

from bert_recipes.config import parse_arguments
from bert_recipes.errors import run_cli
from bert_recipes.training.speed import describe_machine


CONFIGS = Path(__file__).resolve().parents[1] / "recipes" / "configs"


def measure(args: BenchmarkArguments) -> None:
    """Run the samples of a suite."""
    from speed.cases import list_cases
    from speed.suites import run_suite

    machine = describe_machine()
    if args.use_cpu:
        machine["gpu"] = None
    if args.threads is not None:
        machine["threads"] = args.threads
    results = ResultsFile(Path(args.output_dir).resolve() / f"{machine_name(machine)}.json")
    results.records()  # a damaged file is better known before anything is measured
    with tempfile.TemporaryDirectory(prefix="bert-recipes-benchmark-", ignore_cleanup_errors=True) as work_dir:
        run_suite(list_cases(args, CONFIGS, Path(work_dir)), args, results, machine)


def main() -> None:
    """Measure, then write the table and the plots."""
    (args,) = parse_arguments(BenchmarkArguments)
    # Imported only now, for it takes seconds.
    from speed.lengths import LENGTHS_FILE, write_tables

    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    if args.measure_lengths:
        tables = write_tables(LENGTHS_FILE, args.data_dir, args.tokenizer)
        print(tables.source)
        return
    if not args.report_only:
        measure(args)
    print(write_report(Path(args.output_dir)))
    print(f"table: {Path(args.output_dir) / TABLE_FILE}")


if __name__ == "__main__":
    run_cli(main)
