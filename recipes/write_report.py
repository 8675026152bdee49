"""Write the report of a finished run, or of a sweep, again from its files: report.md, report.html
and their pictures.

    python recipes/write_report.py --run runs/quickstart

Every run of recipes/pretrain.py and recipes/finetune.py ends with one; this is for a run whose
report failed, was deleted, or was written by another version. No model is loaded and no data is
read.
"""

from dataclasses import dataclass
from pathlib import Path

from bert_recipes.config import parse_arguments
from bert_recipes.errors import run_cli
from bert_recipes.settings import required


@dataclass
class ReportArguments:
    """Which run."""

    run: str = required("output_dir of a finished run, or of a sweep")


def main() -> None:
    """Read, write, say where."""
    (args,) = parse_arguments(ReportArguments)
    # Imported only now, for it takes seconds.
    from bert_recipes.reports.page import write_report

    print(", ".join(map(str, write_report(Path(args.run)))))


if __name__ == "__main__":
    run_cli(main)
