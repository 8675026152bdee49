r"""Run tables of a paper: pre-train and fine-tune their rows, and judge their claims.

    python paper/run.py --tables 5 --profile cpu --seeds 1 2 3 --store data/paper --data_dir data \
        --output_dir runs/paper

Tables are in paper/tables. The same command resumes after an interruption; tables share their runs.
Claims are judged by the number of seeds that the profile or the table names; more seeds are added
to the figures. Every flag is listed here: what a run sets is in the table and its profile.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from table import Table, read_table
from table_runs import Runs

from bert_recipes.config import parse_arguments
from bert_recipes.data.store import open_store
from bert_recipes.errors import InputError, run_cli
from bert_recipes.files import replace_nonfinite, write_json
from bert_recipes.settings import SEEDS, option, required
from bert_recipes.sweeps.processes import end_with_children
from bert_recipes.sweeps.sweep import choose_seeds


TABLES = Path(__file__).parent / "tables"
logger = logging.getLogger("paper")


@dataclass
class PaperArguments:
    """Settings of the tables that are run, and where their data is."""

    store: str = required("token-id store with a held-out part: docs/paper.md makes one")
    tables: list[str] | None = option(
        None, "names in paper/tables (6 is table6), or YAML files; default: all"
    )
    profile: str = option("cpu", "settings of all runs: a name in profiles.yaml beside the table")
    num_seeds: int | None = option(
        None, "pre-training seeds 1, 2, ...; default: as many as the claims are judged by", least=1
    )
    seeds: list[int] | None = option(None, "these seeds instead", **SEEDS)
    data_dir: str | None = option(None, "local folder of the tasks' data; default: the Hub")
    output_dir: str = option(
        "runs/paper",
        "folder of all runs, which tables share; a table is in OUTPUT_DIR/TABLE_PROFILE",
    )
    estimate: bool = option(
        False, "take a few steps of each kind of run, say what all of them will take, and end"
    )
    report_only: bool = option(False, "run nothing; write the table again")


def read_tables(args: PaperArguments) -> list[Table]:
    """Read the tables by their names or files."""
    files = {file.stem: file for file in sorted(TABLES.glob("*.yaml")) if file.stem != "profiles"}
    tables = []
    for name in args.tables or files:
        file = files.get(name) or files.get(f"table{name}") or Path(name)
        if not file.is_file():
            raise InputError(f"tables: no file {file}; there are: {', '.join(files)}")
        table = read_table(file, args.profile)
        if args.num_seeds is not None or args.seeds is not None:
            table = replace(table, seeds=choose_seeds(args.num_seeds or 0, args.seeds))
        tables.append(table)
    return tables


def print_estimate(runs: Runs, tables: Sequence[Table]) -> None:
    """Print what each kind of run that is missing will take, and all of them."""
    total = 0.0
    for name, count, estimate in runs.estimate(tables):
        hours = count * estimate["hours"]
        total += hours
        memory = f"{estimate['memory_mb']:,.0f} MB a process"
        print(f"{name}: {hours:.2f} hours for {count} of them, {memory}", flush=True)
    print(f"all: {total:.1f} hours, without evaluations and feature-based taggers")


def folder_of(runs: Runs, table: Table) -> Path:
    """Return the folder of a table under its profile: another profile leaves its verdicts alone."""
    return runs.folder / f"{table.name}_{table.profile}"


def check_seeds(runs: Runs, tables: Sequence[Table]) -> None:
    """Refuse tables whose claims were judged by another number of seeds, before anything is run."""
    # Imported only now, for it takes seconds.
    from claims import check_claim_seeds

    for table in tables:
        # Earlier versions had one folder for all profiles.
        for folder in (folder_of(runs, table), runs.folder / table.name):
            check_claim_seeds(table, folder / "table.json")


def run_table(runs: Runs, table: Table) -> None:
    """Run what is not finished of a table."""
    while (cell := next(runs.missing(table), None)) is not None:
        row, column, seed = cell
        logger.info("%s: %s, %s, seed %d", table.name, row.name, column.name, seed)
        runs.measure(row, column, seed)


def write_table(runs: Runs, table: Table) -> None:
    """Write table.json, table.md and table.png, and print the table."""
    # Imported only now, for it takes seconds.
    from claims import describe, markdown
    from picture import table_png

    folder = folder_of(runs, table)
    folder.mkdir(parents=True, exist_ok=True)
    described = describe(table, runs)
    text = markdown(described)
    write_json(folder / "table.json", replace_nonfinite(described))
    (folder / "table.md").write_text(text, encoding="utf-8")
    (folder / "table.png").write_bytes(table_png(described))
    print(text)
    print(f"{folder}: table.md, table.json, table.png")


def main() -> None:
    """Run what is not finished, then write the table."""
    (args,) = parse_arguments(PaperArguments)
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    tables = read_tables(args)
    fingerprint = open_store(args.store).fingerprint
    runs = Runs(Path(args.output_dir), args.store, fingerprint, args.data_dir)
    check_seeds(runs, tables)
    end_with_children()
    if args.estimate:
        print_estimate(runs, tables)
        return
    for table in tables:
        if not args.report_only:
            run_table(runs, table)
        write_table(runs, table)


if __name__ == "__main__":
    run_cli(main)
