"""Make the zip that GLUE's leaderboard takes, from runs with test predictions.

python recipes/make_glue_submission.py --runs runs/glue --output_file runs/glue/submission.zip

RUNS are runs of recipes/finetune.py with --do_predict true, sweeps, or folders of them. AX is
predicted by the MNLI run.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from bert_recipes.config import parse_arguments
from bert_recipes.errors import run_cli
from bert_recipes.settings import option, required


@dataclass
class SubmissionArguments:
    """What goes into the zip."""

    runs: list[str] = required("runs, sweeps or folders of them, all tasks together")
    output_file: str = option("submission.zip", "the zip; replaced when all is checked")
    fill_missing: bool = option(False, "fill the files of missing tasks with a constant")


def main() -> None:
    """Find, check, write, say what is in it."""
    (args,) = parse_arguments(SubmissionArguments)
    # Imported only now, for it takes seconds.
    from bert_recipes.sweeps.glue import find_runs, write_submission

    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    made_of = write_submission(
        Path(args.output_file),
        find_runs([Path(name) for name in args.runs]),
        fill_missing=args.fill_missing,
    )
    for name, origin in made_of.items():
        print(f"{name:12}{origin}")
    print(args.output_file)


if __name__ == "__main__":
    run_cli(main)
