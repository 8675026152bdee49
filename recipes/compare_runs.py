"""Put runs beside each other: what was set differently, their curves in one plot, their figures in
one table.

    python recipes/compare_runs.py --runs runs/base runs/base_lower_rate --output_dir runs/compared

Runs of pre-training, or of fine-tuning on one task; benchmarks/compare_with_stock.py starts runs of
its own beside stock transformers.
"""

from dataclasses import dataclass
from pathlib import Path

from bert_recipes.config import parse_arguments
from bert_recipes.errors import run_cli
from bert_recipes.settings import option, required


@dataclass
class CompareRunsArguments:
    """Which runs, and where to."""

    runs: list[str] = required("output_dirs of two finished runs or more")
    output_dir: str = option(
        "runs/compared", "folder of report.md and report.html; an older comparison is replaced"
    )
    data_dir: str | None = option(
        None, "fine-tuning: folder of the task's data; default: that of the runs"
    )


def main() -> None:
    """Read, check, write, say where."""
    (args,) = parse_arguments(CompareRunsArguments)
    # Imported only now, for it takes seconds.
    from bert_recipes.reports.compare import check_report_folder, compare_runs, read_runs
    from bert_recipes.reports.page import save_report

    runs = read_runs([Path(run) for run in args.runs])
    check_report_folder(Path(args.output_dir))
    files, text = compare_runs(runs, args.data_dir)
    written = save_report(files, Path(args.output_dir))
    print(text)
    print(", ".join(map(str, written)))


if __name__ == "__main__":
    run_cli(main)
