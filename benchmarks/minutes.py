"""Pre-train for the same minutes under the settings of each row of minutes.yaml.

    python benchmarks/minutes.py --store data/books --minutes 4

Each run is recipes/pretrain.py with the base configuration, what its row changes, and
--max_minutes; the machine should do nothing else. Rows of another file: --rows_file.
Finished runs are kept: the same command does the rest. --report_only true makes the table again.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from results import machine_name, this_machine

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError, run_cli
from bert_recipes.files import write_json
from bert_recipes.settings import SEEDS, option
from bert_recipes.training.bert_trainer import EVALUATION_FIELDS


Values = dict[str, Any]
ROOT = Path(__file__).resolve().parents[1]
RESULTS_FILE = "results.json"
BITS = "eval_mlm_bits_per_character"
RECORDED = (
    "train_steps",
    "train_seconds",
    "tokens_per_second",
    "eval_mlm_loss",
    "eval_mlm_accuracy",
    BITS,
    "eval_nsp_loss",
    "eval_nsp_accuracy",
    "eval_unigram_loss",
    "eval_majority_accuracy",
    "eval_masked_tokens",
    "eval_pairs",
    "machine",
    "date",
)


@dataclass
class MinutesArguments:
    """Settings of the study."""

    store: str | None = option(None, "token-id store with a held-out part")
    base: str = option(
        "paper/configs/pretrain/books_30_minutes.yaml", "what the rows have in common"
    )
    minutes: float = option(4.0, "of a run, evaluations included", above=0)
    rows_file: str = option("benchmarks/minutes.yaml", "row -> the settings that it changes")
    rows: list[str] | None = option(None, "rows of that file; default: all")
    whole_word: bool = option(
        False, "measure with whole words masked, to compare vocabularies by bits per character"
    )
    seeds: list[int] | None = option(
        None,
        "default: 12345",
        **SEEDS,
    )
    output_dir: str = option("runs/minutes", "folder of results.json and table.md")
    report_only: bool = option(False, "train nothing; remake the table")


def run(script: str, config: str, flags: Values, results_file: Path) -> Values:
    """Run a recipe with a configuration and flags; return what its file of results says."""
    command = [
        sys.executable,
        f"recipes/{script}",
        "--config",
        config,
    ]
    for name, value in flags.items():
        command += [f"--{name}", str(value)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise InputError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-1500:]}")
    return json.loads(results_file.read_text(encoding="utf-8"))


def train(settings: Values, args: MinutesArguments) -> Values:
    """Train one row with one seed; return what its all_results.json says.

    It is measured as the base configuration is, with whole words masked where that is asked for.
    """
    base = str(Path(args.base).resolve())
    with tempfile.TemporaryDirectory(prefix="bert-recipes-minutes-") as folder:
        flags: Values = {
            "store": args.store,
            "output_dir": folder,
            "save_strategy": "no",
        }
        if "max_steps" not in settings:
            flags["max_minutes"] = args.minutes
        flags.update(settings)
        results = run(
            "pretrain.py",
            base,
            flags,
            Path(folder) / "all_results.json",
        )
        # Masks or lengths that are not those of the base.
        if args.whole_word or set(EVALUATION_FIELDS) & set(settings):
            file = Path(folder) / "measured_as_base.json"
            flags = {
                "model_name_or_path": folder,
                "store": settings.get("store", args.store),
                "output_dir": folder,
                "results_file": file,
            }
            if args.whole_word:
                flags["whole_word"] = True
            results.update(run("evaluate_checkpoint.py", base, flags, file))

    return {name: results[name] for name in RECORDED if name in results}


# What the seeds of a row have in common.
SETTINGS_OF_ROW = ("minutes", "row", "base", "store", "whole_word", "settings", "clock")
HEADS = (
    "row",
    "what it changes",
    "minutes",
    "seeds",
    "steps",
    "held-out masked-LM loss",
    "masked-LM accuracy",
    "bits per character",
    "next-sentence accuracy",
)


def table(records: list[Values]) -> str:
    """Return Markdown; the losses of a row are the mean and the extremes of its seeds."""
    rows: dict[tuple[str, ...], list[Values]] = {}
    for record in records:
        key = tuple(json.dumps(record.get(name), sort_keys=True) for name in SETTINGS_OF_ROW)
        rows.setdefault(key, []).append(record)
    clocks = {machine_name(record["clock"]) for record in records if record.get("clock")}
    has_bits = any(BITS in record for record in records)
    heads = [head for head in HEADS if has_bits or head != "bits per character"]
    lines = [f"| {' | '.join(heads)} |", f"| --- | --- |{' ---: |' * (len(heads) - 2)}"]
    for runs in sorted(rows.values(), key=lambda runs: runs[0]["minutes"]):
        name = runs[0]["row"]
        if len(clocks) > 1 and runs[0].get("clock"):
            name += f" ({machine_name(runs[0]['clock'])})"
        losses = [run["eval_mlm_loss"] for run in runs]
        # Older records have none.
        bits = [run[BITS] for run in runs if BITS in run]
        steps = statistics.mean(run["train_steps"] for run in runs)
        spread = ""
        if len(runs) > 1 and None not in losses:
            spread = f" ({min(losses):.2f} to {max(losses):.2f})"
        changes = ", ".join(f"{key} {value}" for key, value in runs[-1]["settings"].items())
        if runs[0].get("whole_word"):
            changes += " (whole words)"
        cells = [
            name,
            changes or "nothing",
            f"{runs[0]['minutes']:g}",
            str(len(runs)),
            f"{round(steps):,}",
            format_mean(losses, ".2f") + spread,
            format_mean([run["eval_mlm_accuracy"] for run in runs], ".1%"),
            format_mean([run.get("eval_nsp_accuracy") for run in runs], ".1%"),
        ]
        if has_bits:
            cells.insert(-1, format_mean(bits, ".3f") if bits else "")
        lines.append(f"| {' | '.join(cells)} |")

    return "\n".join(lines) + "\n"


def format_mean(values: list[Any], style: str) -> str:
    """Return the mean of figures; nothing where a run has none, as of pairs without pairs."""
    if None in values:
        return ""
    return format(statistics.mean(values), style)


def train_rows(rows: dict[str, Values], records: list[Values], args: MinutesArguments) -> None:
    """Train every row and seed that has no record; write the records after each."""
    folder = Path(args.output_dir)
    # Rows in turn: a machine may be slower in one hour than in the next.
    for seed in args.seeds or [12345]:
        for name, row in rows.items():
            key = {
                "row": name,
                "seed": seed,
                "minutes": args.minutes,
                "base": args.base,
                "settings": row,
                "store": args.store,
                "whole_word": args.whole_word,
            }
            if "max_steps" not in row:
                key["clock"] = this_machine()
            if any(key.items() <= record.items() for record in records):
                continue
            results = train({**row, "seed": seed}, args)
            records.append({**key, **results})
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / RESULTS_FILE, records)
            loss = format_mean([results["eval_mlm_loss"]], ".3f")
            accuracy = format_mean([results.get("eval_nsp_accuracy")], ".1%")
            print(f"{name}, seed {seed}: {loss}, {accuracy}", flush=True)


def main() -> None:
    """Train what is not there yet, and write the table."""
    (args,) = parse_arguments(MinutesArguments)
    rows: dict[str, Values] = yaml.safe_load(Path(args.rows_file).read_text(encoding="utf-8"))
    names = args.rows or list(rows)
    unknown = sorted(set(names) - rows.keys())
    if unknown:
        raise InputError(f"rows: {', '.join(unknown)}; allowed: {', '.join(rows)}")
    if args.store is None and not args.report_only:
        raise InputError("give --store FOLDER (recipes/prepare_corpus.py); docs/books.md makes one")
    file = Path(args.output_dir) / RESULTS_FILE
    records = []
    if file.is_file():
        records = json.loads(file.read_text(encoding="utf-8"))
    if not args.report_only:
        train_rows(
            {name: rows[name] for name in names},
            records,
            args,
        )
    if not records:
        raise InputError(f"{file} is not there; give the --output_dir of a study")
    text = table(records)
    file.with_name("table.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    run_cli(main)
