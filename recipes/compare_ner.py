"""Named entities of CoNLL-2003 beside a plain stock script, by training sentences and seeds.

    python recipes/compare_ner.py --model_name_or_path M --data_dir DATA --output_dir runs/ner_beside_stock

The sides are listed in SIDES: `sentences` is recipes/finetune.py with configs/finetune/ner.yaml as it is, `stock` the stock
Trainer on single sentences in random order. Figures are entity F1 in percent on all validation and all test sentences. The
same command resumes after an interruption, and other --sizes, --seeds or --sides add rows to what lies there.
"""

import json
import logging
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError, run_cli
from bert_recipes.metrics.entities import entity_scores
from bert_recipes.sweeps.subruns import FineTuning, claimed_folder, end_with_children, finetuning_command
from bert_recipes.whole_files import write_json


HERE = Path(__file__).parent
CONFIG = HERE / "configs" / "finetune" / "ner.yaml"
_PLAIN = "--context sentence --max_seq_length 128 --global_train_batch_size 32 --per_device_train_batch_size 32"
_WINDOWS = "--context document --max_seq_length 384 --global_train_batch_size 4 --per_device_train_batch_size 4"
_SHORT = "--context document --max_seq_length 128 --global_train_batch_size 12 --per_device_train_batch_size 12"
_STEPS_OF_SENTENCES = "--num_train_epochs 4.5"  # at 3,000 sentences, of windows of 384 as of 128
# Side -> script and its flags on top of ner.yaml; those behind the third only separate causes.
SIDES = {
    "sentences": ("finetune.py", ""),
    "stock": ("finetune_stock.py", f"{_PLAIN} --train_sampling_strategy random --fast_layers off"),
    "documents": ("finetune.py", _WINDOWS),
    "documents, more steps": ("finetune.py", f"{_WINDOWS} {_STEPS_OF_SENTENCES}"),
    "documents, windows of 128": ("finetune.py", f"{_SHORT} {_STEPS_OF_SENTENCES}"),
    "sentences, fewer steps": ("finetune.py", "--global_train_batch_size 48"),
    "sentences, like lengths": ("finetune.py", "--train_sampling_strategy group_by_length"),
}
logger = logging.getLogger("compare_ner")


@dataclass
class CompareArguments:
    """Which rows, on what, and where to."""

    model_name_or_path: str = field(metadata={"help": "checkpoint that every run starts from"})
    data_dir: str = field(metadata={"help": "local folder of the data"})
    output_dir: str = field(metadata={"help": "folder of the runs, results.json and table.md"})
    sides: list[str] = field(default_factory=lambda: ["sentences", "stock"], metadata={"help": "of SIDES, above"})
    sizes: list[int] = field(default_factory=lambda: [1000, 3000, 14041], metadata={"help": "training sentences"})
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3], metadata={"help": "seeds of every side"})


def f1_of_columns(file: Path) -> float:
    """Entity F1 of the columns `word gold predicted`, in percent."""
    sentences = [part.splitlines() for part in file.read_text(encoding="utf-8").split("\n\n") if part.strip()]
    rows = [[line.split() for line in lines] for lines in sentences if not lines[0].startswith("-DOCSTART-")]
    gold, predicted = ([[row[column] for row in sentence] for sentence in rows] for column in (1, 2))
    return 100 * entity_scores(gold, predicted)["f1"]


def format_table(runs: Sequence[dict]) -> str:
    """One row for each size and side: medians, and the least and the greatest where there are several seeds."""
    lines = [
        "| sentences | side | seeds | steps | dev F1 | test F1 | training, s |",
        "| --: | --- | --: | --: | --: | --: | --: |",
    ]
    for size, side in sorted(
        {(run["sentences"], run["side"]) for run in runs}, key=lambda k: (k[0], [*SIDES].index(k[1]))
    ):
        found = [run for run in runs if (run["sentences"], run["side"]) == (size, side)]
        cells = [f"{size:,}", side, str(len(found)), str(found[0]["steps"])]
        for name in ("dev_f1", "test_f1"):
            values = [run[name] for run in found]
            spread = f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""
            cells.append(f"{statistics.median(values):.1f}{spread}")
        cells.append(f"{statistics.median(run['train_seconds'] for run in found):.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is not finished; results.json and table.md are written after every run."""
    (args,) = parse_arguments(CompareArguments)
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    unknown = [side for side in args.sides if side not in SIDES]
    if unknown:
        raise InputError(f"sides has '{unknown[0]}'; allowed: {', '.join(SIDES)}")
    end_with_children()
    folder = Path(args.output_dir)
    shared = ["--config", str(CONFIG), "--model_name_or_path", args.model_name_or_path, "--data_dir", args.data_dir]
    results = folder / "results.json"
    with claimed_folder(
        folder, "comparison_plan.json", {"flags": shared, "config": CONFIG.read_text(encoding="utf-8")}
    ):
        runs = json.loads(results.read_text(encoding="utf-8"))["runs"] if results.is_file() else []
        for seed, size, side in [(c, a, b) for c in args.seeds for a in args.sizes for b in args.sides]:
            script, flags = SIDES[side]
            target = folder / "runs" / f"{side.replace(', ', '-').replace(' ', '_')}-{size}-{seed}"
            own = [*flags.split(), "--max_train_examples", str(size), "--seed", str(seed)]
            run = FineTuning(finetuning_command(HERE / script, None), tuple(shared)).run(
                target, [*own, "--do_predict", "true", "--disable_tqdm", "true"]
            )
            for weights in target.glob("*.safetensors"):
                weights.unlink()
            key = {"sentences": size, "side": side, "seed": seed}
            row = key | {"steps": run["train_steps"], "train_seconds": run["train_seconds"], "flags": own}
            row |= {"machine": run["machine"], "date": time.strftime("%Y-%m-%d")}
            row |= {"dev_f1": 100 * run["eval_f1"], "test_f1": f1_of_columns(target / "predictions_test.txt")}
            runs = [other for other in runs if any(other[name] != key[name] for name in key)] + [row]
            model = args.model_name_or_path.rstrip("/").rpartition("/")[2]
            write_json(results, {"model": model, "runs": runs})
            (folder / "table.md").write_text(format_table(runs), encoding="utf-8")
            logger.info("%s, %d sentences, seed %d: test F1 %.2f", side, size, seed, row["test_f1"])
    print(format_table(runs))


if __name__ == "__main__":
    run_cli(main)
