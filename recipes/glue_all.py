r"""Fine-tune on GLUE's nine tasks one after another and print the mean of the paper's Table 1.

python recipes/glue_all.py --output_dir runs/glue --model_name_or_path google-bert/bert-base-uncased
\
    --rte "--num_train_epochs 5" --qqp "--max_train_examples 40000"

Every flag that is not listed here goes to each run of recipes/finetune.py, after --config
recipes/configs/finetune/glue.yaml where no other is given. Each task's models are in
OUTPUT_DIR/<task>/seed-<seed>; --sweep paper makes each task the paper's sweep. The same command
resumes after an interruption; with other seeds it adds them, and the table is that of the seeds
asked for.
"""

import logging
import shlex
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from bert_recipes.config import field_types, parse_arguments
from bert_recipes.errors import InputError, run_cli
from bert_recipes.settings import SEEDS, check, option, required
from bert_recipes.sweeps.glue import TASKS, read_runs, write_table
from bert_recipes.sweeps.sweep import (
    RunLauncher,
    check_flag_names,
    check_flags,
    check_run,
    choose_seeds,
    claim_folder,
    end_with_children,
    finetuning_command,
    given_flags,
    hashes_of_files,
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
    """Which tasks, how often, and what is special about each."""

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
    cola: str = option("", SPECIAL)
    sst2: str = option("", SPECIAL)
    mrpc: str = option("", SPECIAL)
    stsb: str = option("", SPECIAL)
    qqp: str = option("", SPECIAL)
    mnli: str = option("", SPECIAL)
    qnli: str = option("", SPECIAL)
    rte: str = option("", SPECIAL)
    wnli: str = option("", SPECIAL)

    def __post_init__(self) -> None:
        check(self)


def split_quoted(name: str, text: str) -> list[str]:
    """The flags inside the value of a flag, as a shell reads them."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InputError(
            f"--{name}: {text!r} cannot be read ({error}); close every quote in it"
        ) from error


def run_task(args: GlueArguments, name: str, launcher: RunLauncher, seeds: list[int]) -> None:
    """Run one task with every seed, or as a sweep."""
    # Imported only now, for it takes seconds.
    from bert_recipes.reports.finish import report_sweep

    folder = Path(args.output_dir) / name
    if args.sweep is not None:
        run_sweep(
            folder, launcher, read_sweep(args.sweep, SWEEPS, launcher.flags), seeds, report_sweep
        )
        return
    for seed in seeds:
        launcher.run(folder / f"seed-{seed}", ["--seed", str(seed)])


def make_launchers(
    args: GlueArguments, flags: list[str], task_flags: dict[str, list[str]]
) -> dict[str, RunLauncher]:
    """Check the flags of all runs, and return what launches those of each task."""
    for words in (flags, *task_flags.values()):
        check_flag_names(words, field_types(GlueArguments))
        check_flags(words, ("task", "task_file"))
    command = finetuning_command(HERE / "finetune.py", args.launch)
    launchers = {}
    for name in args.tasks:
        flags_of_runs = replace_flags(flags, ["--task", name, *task_flags[name]])
        launchers[name] = RunLauncher(command, tuple(flags_of_runs))
    for launcher in launchers.values():
        grid = {} if args.sweep is None else read_sweep(args.sweep, SWEEPS, launcher.flags)
        check_run(launcher.flags, grid)
    return launchers


def main() -> None:
    """Run what is not finished, then print the table."""
    flags_of_script, flags = split_flags(sys.argv[1:], field_types(GlueArguments), quoted=TASKS)
    (args,) = parse_arguments(GlueArguments, argv=flags_of_script)
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    seeds = choose_seeds(args.num_seeds, args.seeds)
    if "config" not in given_flags(flags):
        flags = ["--config", str(HERE / "configs" / "finetune" / "glue.yaml"), *flags]
    task_flags = {name: split_quoted(name, getattr(args, name)) for name in TASKS}
    launchers = make_launchers(args, flags, task_flags)
    files = hashes_of_files(sum(task_flags.values(), flags))
    settings = {"flags": flags, "task_flags": task_flags, "files": files, "sweep": args.sweep}
    end_with_children()
    folder = Path(args.output_dir)
    claim_folder(folder, "glue_plan.json", settings)
    for name, launcher in launchers.items():
        run_task(args, name, launcher, seeds)
    runs = {name: read_runs(folder / name, seeds) for name in TASKS}
    settings["date"] = time.strftime("%Y-%m-%d")
    print(write_table(folder, runs, settings))
    print(f"{folder}/glue.md, glue.json")


if __name__ == "__main__":
    run_cli(main)
