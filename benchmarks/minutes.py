"""What a minute teaches: pre-training under different settings for the same minutes, each row of
minutes.yaml after the other.

    python benchmarks/minutes.py --store data/books --minutes 4 --output_dir docs/results/minutes

Each run is recipes/pretrain.py with the base configuration, what its row changes, and
--max_minutes; the machine should do nothing else.
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

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError, run_cli
from bert_recipes.files import write_json
from bert_recipes.settings import SEEDS, option
from bert_recipes.training.bert_trainer import MEASURED_WITH


ROOT = Path(__file__).resolve().parents[1]
ROWS_FILE = Path(__file__).with_name("minutes.yaml")
KEPT = (
    *(
        "train_steps",
        "train_seconds",
        "tokens_per_second",
        "eval_mlm_loss",
        "eval_mlm_accuracy",
        "eval_nsp_loss",
        "eval_nsp_accuracy",
    ),
    *(
        "eval_unigram_loss",
        "eval_majority_accuracy",
        "eval_masked_tokens",
        "eval_pairs",
        "machine",
        "date",
    ),
)


@dataclass
class MinutesArguments:
    """What is trained, how long, and where the results go."""

    store: str | None = option(None, "token-id store with a held-out part")
    base: str = option(
        "recipes/configs/pretrain/books_30_minutes.yaml", "what the rows have in common"
    )
    minutes: float = option(4.0, "of a run, evaluations included", above=0)
    rows: list[str] | None = option(None, "rows of minutes.yaml; default: all")
    seeds: list[int] | None = option(None, "default: 12345", **SEEDS)
    output_dir: str = option("docs/results/minutes", "folder of results.json and table.md")
    report_only: bool = option(False, "train nothing; remake the table")


def run(script: str, config: str, flags: dict[str, Any], results_file: Path) -> dict[str, Any]:
    """Run a recipe with a configuration and flags; what its file of results says."""
    command = [sys.executable, f"recipes/{script}", "--config", config]
    for name, value in flags.items():
        command += [f"--{name}", str(value)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-1500:]}")
    return json.loads(results_file.read_text(encoding="utf-8"))


def train(settings: dict[str, Any], args: MinutesArguments) -> dict[str, Any]:
    """Train one row with one seed; what its all_results.json says, measured as the base
    configuration is.
    """
    base = str(Path(args.base).resolve())
    with tempfile.TemporaryDirectory(prefix="bert-recipes-minutes-") as folder:
        end = {} if "max_steps" in settings else {"max_minutes": args.minutes}
        flags = {
            "store": args.store,
            "output_dir": folder,
            "save_strategy": "no",
            **end,
            **settings,
        }
        results = run("pretrain.py", base, flags, Path(folder) / "all_results.json")
        if {*MEASURED_WITH} & {*settings}:  # other masks or lengths than those of the other rows
            file = Path(folder) / "as_the_others.json"
            flags = {
                "model_name_or_path": folder,
                "store": args.store,
                "output_dir": folder,
                "results_file": file,
            }
            results |= run("evaluate_checkpoint.py", base, flags, file)
    return {name: results[name] for name in KEPT if name in results}


def table(records: list[dict[str, Any]]) -> str:
    """Markdown; runs of a row are those of its seeds, and the losses are their mean and
    extremes.
    """
    lines = [
        "| row | what it changes | minutes | seeds | steps | held-out masked-LM loss | masked-LM "
        "accuracy | next-sentence accuracy |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for minutes in sorted({record["minutes"] for record in records}):
        rows = {
            record["row"]: record["settings"] for record in records if record["minutes"] == minutes
        }
        for name, row in rows.items():
            runs = [each for each in records if (each["row"], each["minutes"]) == (name, minutes)]
            losses, accuracies, pairs = (
                [run[f"eval_{kind}"] for run in runs]
                for kind in ("mlm_loss", "mlm_accuracy", "nsp_accuracy")
            )
            spread = f" ({min(losses):.2f} to {max(losses):.2f})" if len(runs) > 1 else ""
            steps = round(statistics.mean(run["train_steps"] for run in runs))
            changes = ", ".join(f"{key} {value}" for key, value in row.items()) or "nothing"
            lines.append(
                f"| {name} | {changes} | {minutes:g} | {len(runs)} | {steps:,} | "
                f"{statistics.mean(losses):.2f}{spread} "
                f"| {statistics.mean(accuracies):.1%} | {statistics.mean(pairs):.1%} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train what is not there yet, and write the table."""
    (args,) = parse_arguments(MinutesArguments)
    rows: dict[str, dict[str, Any]] = yaml.safe_load(ROWS_FILE.read_text(encoding="utf-8"))
    folder = Path(args.output_dir)
    file = folder / "results.json"
    records: list[dict[str, Any]] = (
        json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    )
    if unknown := set(args.rows or ()) - rows.keys():
        raise InputError(f"rows: {', '.join(sorted(unknown))}; allowed: {', '.join(rows)}")
    if args.store is None and not args.report_only:
        raise InputError("give --store FOLDER (recipes/prepare_corpus.py); docs/books.md makes one")
    for name in [] if args.report_only else args.rows or rows:
        for seed in args.seeds or [12345]:
            settings = {"base": args.base, "settings": rows[name]}
            key = {"row": name, "seed": seed, "minutes": args.minutes, **settings}
            if any(key.items() <= record.items() for record in records):
                continue
            found = train(rows[name] | {"seed": seed}, args)
            records.append(key | found)
            folder.mkdir(parents=True, exist_ok=True)
            write_json(file, records)
            print(
                f"{name}, seed {seed}: {found['eval_mlm_loss']:.3f}, "
                f"{found['eval_nsp_accuracy']:.1%}",
                flush=True,
            )
    text = table(records)
    (folder / "table.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    run_cli(main)
