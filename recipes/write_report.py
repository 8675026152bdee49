"""Write the report of a finished run or sweep again from its files, or compare several runs.

    python recipes/write_report.py --runs runs/quickstart
    python recipes/write_report.py --runs runs/base runs/base_lower_rate

Every run of recipes/pretrain.py and recipes/finetune.py ends with a report in its folder; this
writes it again, without model and data. Several runs, of pre-training or of fine-tuning on one
task, are compared in --output_dir.
"""

from dataclasses import dataclass
from pathlib import Path

from bert_recipes.config import parse_arguments
from bert_recipes.errors import run_cli
from bert_recipes.settings import option, required


@dataclass
class ReportArguments:
    """Choose the runs, and where the report goes."""

    runs: list[str] = required("output_dir of a finished run or sweep; of several runs: compare")
    output_dir: str = option(
        "runs/compared", "folder of a comparison; an older comparison is replaced"
    )
    data_dir: str | None = option(
        None, "compared fine-tuning: folder of the task's data; default: that of the runs"
    )


def main() -> None:
    """Read, write, say where."""
    (args,) = parse_arguments(ReportArguments)
    # Imported only now, for it takes seconds.
    from bert_recipes.reports.compare import check_report_folder, compare_runs, read_runs
    from bert_recipes.reports.facts import check_finished
    from bert_recipes.reports.page import save_report, write_report
    from bert_recipes.run_folder import MARKDOWN_FILE

    folders = [Path(run) for run in args.runs]
    for folder in folders:
        check_finished(folder)
    if len(folders) == 1:
        files = write_report(folders[0])
    else:
        runs = read_runs(folders)
        check_report_folder(Path(args.output_dir))
        report = compare_runs(runs, args.data_dir)
        files = save_report(report, Path(args.output_dir))
        print(report[MARKDOWN_FILE].decode())
    print(", ".join(map(str, files)))


if __name__ == "__main__":
    run_cli(main)
