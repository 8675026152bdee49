r"""Fine-tune on GLUE's nine tasks, a sweep each, and print the mean of the paper's Table 1.

python recipes/glue_all.py --output_dir runs/glue \
    --model_name_or_path google-bert/bert-base-uncased \
    --rte "--num_train_epochs 5" --qqp "--max_train_examples 40000"

Every flag that is not listed here goes to each run of recipes/finetune.py, after --config
recipes/configs/finetune/glue.yaml where no other is given. Each task's best run is
OUTPUT_DIR/<task>/best; without --sweep every task has one setting. The same command resumes after
an interruption; with other seeds it adds them, and the table is that of the seeds asked for.
--submission true also predicts the test splits, and writes the zip that the leaderboard takes.
"""

import logging
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

from bert_recipes.config import field_types, parse_arguments
from bert_recipes.errors import InputError, run_cli
from bert_recipes.settings import SEEDS, option, required
from bert_recipes.sweeps.glue import (
    TASKS,
    check_submission,
    read_best_runs,
    write_submission,
    write_table,
)
from bert_recipes.sweeps.processes import end_with_children
from bert_recipes.sweeps.sweep import (
    PLAN_FILE,
    CheckedRun,
    RunLauncher,
    check_flag_names,
    check_flags,
    check_plan,
    check_run,
    choose_seeds,
    finetuning_command,
    given_flags,
    plan_of,
    read_sweep,
    replace_flags,
    run_sweep,
    split_flags,
)


HERE = Path(__file__).parent
SWEEPS = HERE / "configs" / "sweep"
SPECIAL = "further flags of this task's runs, in quotes"


@dataclass
class GlueArguments:
    """Choose the tasks, the seeds, and further flags of a task."""

    output_dir: str = required("folder of all runs")
    tasks: list[str] = field(
        default_factory=lambda: list(TASKS),
        metadata={"help": "these tasks only, in this order", "allowed": TASKS},
    )
    sweep: str | None = option(None, "name in recipes/configs/sweep, or a YAML file")
    num_seeds: int = option(1, "seeds 1, 2, ... of every task", least=1)
    seeds: list[int] | None = option(None, "these seeds instead", **SEEDS)
    launch: str | None = option(
        None, "name in accelerate_configs/ or a file; default: one process, no launcher"
    )
    submission: bool = option(
        False,
        "predict the test splits too, and write OUTPUT_DIR/submission.zip for the leaderboard",
    )
    cola: str = option("", SPECIAL)
    sst2: str = option("", SPECIAL)
    mrpc: str = option("", SPECIAL)
    stsb: str = option("", SPECIAL)
    qqp: str = option("", SPECIAL)
    mnli: str = option("", SPECIAL)
    qnli: str = option("", SPECIAL)
    rte: str = option("", SPECIAL)
    wnli: str = option("", SPECIAL)


def split_quoted(name: str, text: str) -> list[str]:
    """Split the flags inside the value of a flag, as a shell does."""
    try:
        flags = shlex.split(text)
    except ValueError as error:
        raise InputError(
            f"--{name}: {text!r} cannot be read ({error}); close every quote in it"
        ) from error
    check_run_flags(flags)
    return flags


def check_run_flags(flags: list[str]) -> None:
    """Refuse flags of the runs that there are not, or that are decided here."""
    check_flag_names(flags, field_types(GlueArguments))
    check_flags(flags, ("task", "task_file"))


def check_tasks(
    args: GlueArguments, flags: list[str], task_flags: dict[str, list[str]]
) -> dict[str, CheckedRun]:
    """Return the runs of each task, after a check of all."""
    folder = Path(args.output_dir)
    runs = {}
    # All tasks start from the checkpoint that the first one finds.
    checkpoint: list[str] = []
    for name in args.tasks:
        run_flags = replace_flags(flags, ["--task", name, *task_flags[name]])
        if "model_name_or_path" not in given_flags(run_flags):
            run_flags += checkpoint
        grid = {} if args.sweep is None else read_sweep(args.sweep, SWEEPS, run_flags)
        runs[name] = check_run(run_flags, grid, folder / name)
        if "model_name_or_path" in given_flags(runs[name].flags) - given_flags(run_flags):
            checkpoint = ["--model_name_or_path", str(runs[name].task_args.model_name_or_path)]
    if args.submission:
        check_submission(folder, runs)
    for name, run in runs.items():
        check_plan(folder / name / PLAN_FILE, plan_of(run.flags, run.grid))
    return runs


def main() -> None:
    """Run what is not finished, then print the table."""
    script_flags, flags = split_flags(sys.argv[1:], field_types(GlueArguments), quoted=TASKS)
    (args,) = parse_arguments(GlueArguments, argv=script_flags)
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    seeds = choose_seeds(args.num_seeds, args.seeds)
    check_run_flags(flags)
    if "config" not in given_flags(flags):
        flags = ["--config", str(HERE / "configs" / "finetune" / "glue.yaml"), *flags]
    if args.submission and "do_predict" not in given_flags(flags):
        flags += ["--do_predict", "true"]
    task_flags = {name: split_quoted(name, getattr(args, name)) for name in TASKS}
    command = finetuning_command(HERE / "finetune.py", args.launch)
    runs = check_tasks(args, flags, task_flags)
    # Imported only now, for it takes seconds.
    from bert_recipes.reports.finish import report_sweep

    end_with_children()
    folder = Path(args.output_dir)
    for name, run in runs.items():
        launcher = RunLauncher(command, run.flags)
        run_sweep(folder / name, launcher, run.grid, seeds, report_sweep)
    results = {name: read_best_runs(folder / name, seeds) for name in TASKS}
    print(write_table(folder, results))
    print(f"{folder}/glue.md, glue.json")
    if args.submission:
        write_submission(folder / "submission.zip", folder)
        print(f"{folder}/submission.zip")


if __name__ == "__main__":
    run_cli(main)
