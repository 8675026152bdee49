r"""Fine-tune with every combination of a few settings and several seeds; the best is kept.

python recipes/sweep_finetuning.py --sweep paper --num_seeds 5 --output_dir runs/mrpc_sweep \
    --config recipes/configs/finetune/glue.yaml --task mrpc \
    --model_name_or_path google-bert/bert-base-uncased

Every flag that is not listed here goes to each run of recipes/finetune.py. The same command resumes
after an interruption; with more seeds it adds them, or trials to a search. At the end: report.html,
sweep.json, and best/, the best run on the development set. Only it keeps its weights; all keep
their results and predictions.
"""

import logging
import sys
from dataclasses import dataclass
from pathlib import Path

from bert_recipes.config import field_types, parse_arguments
from bert_recipes.errors import run_cli
from bert_recipes.settings import SEEDS, option, required
from bert_recipes.sweeps.processes import end_with_children
from bert_recipes.sweeps.sweep import (
    RunLauncher,
    check_flag_names,
    check_run,
    choose_seeds,
    finetuning_command,
    read_sweep,
    run_sweep,
    split_flags,
)


HERE = Path(__file__).parent


@dataclass
class SweepArguments:
    """Choose what is swept, and how often."""

    output_dir: str = required("folder of the sweep; each run gets its own inside")
    sweep: str = option("paper", "name in recipes/configs/sweep, or a YAML file")
    num_seeds: int = option(1, "seeds 1, 2, ... of every combination", least=1)
    seeds: list[int] | None = option(None, "these seeds instead", **SEEDS)
    metric: str | None = option(None, "metric that decides; default: the task's own")
    num_trials: int | None = option(None, "search with Optuna instead of trying all", least=1)
    launch: str | None = option(
        None, "name in accelerate_configs/ or a file; default: one process, no launcher"
    )


def main() -> None:
    """Read the sweep, run what is not finished, report."""
    script_flags, flags = split_flags(sys.argv[1:], field_types(SweepArguments))
    (args,) = parse_arguments(SweepArguments, argv=script_flags)
    # Imported only now, for it takes seconds.
    from bert_recipes.reports.finish import report_sweep

    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    check_flag_names(flags, field_types(SweepArguments))
    seeds = choose_seeds(args.num_seeds, args.seeds)
    configs = HERE / "configs" / "sweep"
    grid = read_sweep(args.sweep, configs, flags, is_search=args.num_trials is not None)
    command = finetuning_command(HERE / "finetune.py", args.launch)
    folder = Path(args.output_dir)
    run = check_run(flags, grid, folder, args.metric)
    end_with_children()
    text = run_sweep(
        folder,
        RunLauncher(command, run.flags),
        run.grid,
        seeds,
        report_sweep,
        metric=args.metric,
        num_trials=args.num_trials,
    )
    print(text)
    print(f"{args.output_dir}/report.html, sweep.json; the best run: {args.output_dir}/best")


if __name__ == "__main__":
    run_cli(main)
