r"""Named entities of CoNLL-2003 beside a plain stock script, by training sentences and seeds.

    python benchmarks/compare_ner.py --model_name_or_path M --data_dir DATA \
        --output_dir runs/ner_beside_stock

The sides are listed in SIDES: `sentences` is recipes/finetune.py with configs/finetune/ner.yaml as
it is, `stock` the stock Trainer on the same sentences in random order. Figures are entity F1 in
percent on all validation and all test sentences. The same command resumes after an interruption;
other --sizes, --seeds or --sides add rows. Rows of --results_file that were
measured with the same flags are kept: delete the file after ner.yaml has changed.
"""

import json
import logging
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError, run_cli
from bert_recipes.files import write_json
from bert_recipes.metrics.entities import entity_scores
from bert_recipes.settings import SEEDS, option, required
from bert_recipes.sweeps.sweep import (
    RunLauncher,
    claim_folder,
    end_with_children,
    finetuning_command,
)


HERE = Path(__file__).resolve().parent
RECIPES = HERE.parent / "recipes"
CONFIG = RECIPES / "configs" / "finetune" / "ner.yaml"
BATCH = "--global_train_batch_size {0} --per_device_train_batch_size {0}"
# Side -> script and its flags on top of ner.yaml. Those behind the third tell causes apart.
SIDES = {
    "sentences": (RECIPES / "finetune.py", ""),
    "stock": (
        HERE / "finetune_stock.py",
        f"--context sentence --max_seq_length 128 {BATCH.format(32)} --train_sampling_strategy "
        "random --fast_layers off",
    ),
    "documents": (
        RECIPES / "finetune.py",
        f"--context document --max_seq_length 384 {BATCH.format(4)}",
    ),
    "documents, 3 windows": (
        RECIPES / "finetune.py",
        f"--context document --max_seq_length 384 {BATCH.format(3)}",
    ),
    "documents, 8 windows of 128": (
        RECIPES / "finetune.py",
        f"--context document --max_seq_length 128 {BATCH.format(8)}",
    ),
    "sentences, batches of 48": (RECIPES / "finetune.py", BATCH.format(48)),
    "sentences, like lengths": (
        RECIPES / "finetune.py",
        "--train_sampling_strategy group_by_length",
    ),
}
logger = logging.getLogger("compare_ner")


@dataclass
class CompareArguments:
    """Which rows, on what, and where to."""

    model_name_or_path: str = required("checkpoint that every run starts from")
    data_dir: str = required("local folder of the data")
    output_dir: str = required("folder of the runs")
    results_file: str | None = option(None, "figures; default: OUTPUT_DIR/results.json")
    sides: list[str] = field(
        default_factory=lambda: ["sentences", "stock"], metadata={"help": "keys of SIDES"}
    )
    sizes: list[int] = field(
        default_factory=lambda: [1000, 3000, 14041], metadata={"help": "training sentences"}
    )
    seeds: list[int] = field(
        default_factory=lambda: [1, 2, 3], metadata={"help": "seeds of every side", **SEEDS}
    )


def f1_of_columns(file: Path) -> float:
    """Entity F1 of the columns `word gold predicted`, in percent."""
    sentences = [
        part.splitlines() for part in file.read_text(encoding="utf-8").split("\n\n") if part.strip()
    ]
    rows = [
        [line.split() for line in lines]
        for lines in sentences
        if not lines[0].startswith("-DOCSTART-")
    ]
    gold, predicted = (
        [[row[column] for row in sentence] for sentence in rows] for column in (1, 2)
    )
    return 100 * entity_scores(gold, predicted)["f1"]


def format_table(runs: Sequence[dict[str, Any]]) -> str:
    """Return one row for each size and side: medians, and the least and the greatest where there
    are several seeds.
    """
    lines = [
        "| sentences | side | seeds | steps | dev F1 | test F1 |",
        "| --: | --- | --: | --: | --: | --: |",
    ]
    order = {side: place for place, side in enumerate(SIDES)}
    for size, side in sorted(
        {(run["sentences"], run["side"]) for run in runs}, key=lambda k: (k[0], order[k[1]])
    ):
        found = [run for run in runs if (run["sentences"], run["side"]) == (size, side)]
        cells = [f"{size:,}", side, str(len(found)), str(found[0]["steps"])]
        for name in ("dev_f1", "test_f1"):
            values = [run[name] for run in found]
            spread = f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""
            cells.append(f"{statistics.median(values):.1f}{spread}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def measure(
    side: str, key: dict[str, Any], shared: Sequence[str], own: Sequence[str], runs: Path
) -> dict[str, Any]:
    """Train and measure one run, or read what a finished one left; its weights are not kept."""
    folder = runs / "-".join(str(value) for value in key.values()).replace(", ", "-").replace(
        " ", "_"
    )
    script = finetuning_command(SIDES[side][0], None)
    run = RunLauncher(script, (*shared, "--do_predict", "true", "--disable_tqdm", "true")).run(
        folder, own
    )
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    figures = {
        "dev_f1": 100 * run["eval_f1"],
        "test_f1": f1_of_columns(folder / "predictions_test.txt"),
    }
    kept = {name: run[name] for name in ("train_seconds", "machine", "date")}
    return {**key, "flags": [*own], "steps": run["train_steps"], **figures, **kept}


def main() -> None:
    """Run what is not finished; the figures and table.md beside them are written after every
    run.
    """
    (args,) = parse_arguments(CompareArguments)
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    unknown = [side for side in args.sides if side not in SIDES]
    if unknown:
        raise InputError(f"sides has '{unknown[0]}'; allowed: {', '.join(SIDES)}")
    end_with_children()
    folder = Path(args.output_dir)
    results = folder / "results.json" if args.results_file is None else Path(args.results_file)
    shared = ["--config", os.path.relpath(CONFIG), "--model_name_or_path", args.model_name_or_path]
    shared += ["--data_dir", args.data_dir]
    settings = {"flags": shared, "config": CONFIG.read_text(encoding="utf-8")}
    claim_folder(folder, "comparison_plan.json", settings)
    rows = json.loads(results.read_text(encoding="utf-8"))["runs"] if results.is_file() else []
    for seed, size, side in [(c, a, b) for c in args.seeds for a in args.sizes for b in args.sides]:
        key = {"side": side, "sentences": size, "seed": seed}
        own = [*SIDES[side][1].split(), "--max_train_examples", str(size), "--seed", str(seed)]
        if any(row["side"] == side and row["flags"] == own for row in rows):
            continue
        row = measure(side, key, shared, own, folder / "runs")
        rows = [other for other in rows if any(other[name] != key[name] for name in key)] + [row]
        model = args.model_name_or_path.rstrip("/").rpartition("/")[2]
        write_json(results, {"model": model, "runs": rows})
        results.with_name("table.md").write_text(format_table(rows), encoding="utf-8")
        logger.info("%s, %d sentences, seed %d: test F1 %.2f", side, size, seed, row["test_f1"])
    print(format_table(rows))


if __name__ == "__main__":
    run_cli(main)
