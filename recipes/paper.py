r"""Run tables of a paper: pre-train their rows, fine-tune them, and say which of their claims are
reproduced.

python recipes/paper.py --tables 5 --profile cpu --seeds 1 2 3 --store data/paper --data_dir data
--output_dir runs/paper

Tables are in recipes/configs/paper. The same command resumes after an interruption; tables share
their runs. Claims are judged by the number of seeds that the profile or the table names; more seeds
are added to the figures. Every flag is listed here: what a run sets is in the table and its
profile.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from bert_recipes.config import parse_arguments
from bert_recipes.data.store import open_store
from bert_recipes.errors import InputError, run_cli
from bert_recipes.files import strict, write_json
from bert_recipes.settings import SEEDS, option
from bert_recipes.sweeps.sweep import choose_seeds, end_with_children
from bert_recipes.sweeps.tables import Runs, Table, read_table


TABLES = Path(__file__).parent / "configs" / "paper"
logger = logging.getLogger("paper")


@dataclass
class PaperArguments:
    """Which tables, how, and where their data is."""

    tables: list[str] | None = option(
        None, "names in recipes/configs/paper (6 is table6), or YAML files; default: all"
    )
    profile: str = option("cpu", "settings of all runs: a name in profiles.yaml beside the table")
    num_seeds: int | None = option(
        None, "pre-training seeds 1, 2, ...; default: as many as the claims are judged by", least=1
    )
    seeds: list[int] | None = option(None, "these seeds instead", **SEEDS)
    store: str | None = option(
        None, "token-id store with a held-out part: of recipes/prepare_corpus.py"
    )
    data_dir: str | None = option(None, "local folder of the tasks' data; default: the Hub")
    output_dir: str = option(
        "runs/paper", "folder of all runs, which tables share; the table is in OUTPUT_DIR/TABLE"
    )
    estimate: bool = option(
        False, "take a few steps of each kind of run, say what all of them will take, and end"
    )
    report_only: bool = option(False, "run nothing; write the table again")


def write_table(table: Table, runs: Runs) -> Path:
    """Write table.json, table.md and table.png."""
    from bert_recipes.reports.plots import table_png
    from bert_recipes.sweeps.claims import describe, markdown

    folder = runs.folder / table.name
    folder.mkdir(parents=True, exist_ok=True)
    described = describe(table, runs)
    write_json(folder / "table.json", strict(described))
    (folder / "table.md").write_text(markdown(described), encoding="utf-8")
    (folder / "table.png").write_bytes(table_png(described))
    return folder / "table.md"


def main() -> None:
    """Run what is not finished, then write the table."""
    (args,) = parse_arguments(PaperArguments)
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    there = {file.stem: file for file in sorted(TABLES.glob("*.yaml")) if file.stem != "profiles"}
    files = [
        there.get(name) or there.get(f"table{name}") or Path(name) for name in args.tables or there
    ]
    if wrong := [file for file in files if not file.is_file()]:
        raise InputError(f"tables: no file {wrong[0]}; there are: {', '.join(there)}")
    if args.store is None:
        raise InputError("give --store FOLDER (recipes/prepare_corpus.py); docs/paper.md makes one")
    tables = [read_table(file, args.profile) for file in files]
    if args.num_seeds is not None or args.seeds is not None:
        seeds = choose_seeds(args.num_seeds or 0, args.seeds)
        tables = [replace(table, seeds=seeds) for table in tables]
    data = [] if args.data_dir is None else ["--data_dir", args.data_dir]
    store = ["--store", args.store]
    flags = {
        "pretrain": store,
        "evaluate_checkpoint": store,
        "finetune": data,
        "feature_based_ner": data,
    }
    fingerprint = open_store(args.store).fingerprint
    # Imported only now, for it takes seconds.
    from bert_recipes.reports.paired import join_answers
    from bert_recipes.sweeps.claims import check_claim_seeds

    for table in tables:
        check_claim_seeds(table, Path(args.output_dir) / table.name / "table.json")
    runs = Runs(Path(args.output_dir), Path(__file__).parent, flags, fingerprint, join_answers)
    end_with_children()
    if args.estimate:
        total = 0.0
        for name, count, own_hours, memory in runs.estimate(tables):
            total += own_hours
            print(
                f"{name}: {own_hours:.2f} hours for {count} of them, {memory:,} MB a process",
                flush=True,
            )
        print(f"all: {total:.1f} hours, without evaluations")
        return
    for table in tables:
        while not args.report_only and (cell := next(runs.missing(table), None)) is not None:
            left = runs.hours_left(tables)
            hours = "unknown" if left is None else f"{left:.1f} hours"
            logger.info(
                "%s: %s, %s, seed %d; left: %s",
                table.name,
                cell[0].name,
                cell[1].name,
                cell[2],
                hours,
            )
            runs.measure(*cell)
        written = write_table(table, runs)
        print(written.read_text(encoding="utf-8"))
        print(f"{written.parent}: table.md, table.json, table.png")


if __name__ == "__main__":
    run_cli(main)
