r"""Score how likely sentences are to a masked LM, or measure it on BLiMP's pairs.

    python recipes/score_sentences.py --model_name_or_path runs/my_bert \
        --input_file sentences.txt --output_file scores.jsonl
    python recipes/score_sentences.py --model_name_or_path runs/my_bert \
        --blimp_dir blimp/data --output_dir runs/blimp/my_bert [--every_checkpoint true]

Line k of the output is of sentence k: `log_likelihood` (nats, the sum over its pieces, each
predicted from all others), `pieces`, and `perplexity` per piece. BLiMP has all_results.json and
table.md: accuracy over all pairs, by phenomenon and by paradigm. Of every checkpoint of a run there
are curve.json, curve.md and curve.png, over the words seen, and curve.yaml, the settings.
docs/blimp.md has the method.
"""

import json
import logging
import math
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

from bert_recipes.config import parse_arguments, save_config
from bert_recipes.errors import InputError, run_cli, saving
from bert_recipes.features.arguments import SentenceArguments
from bert_recipes.files import write_json
from bert_recipes.rows import format_suffix


def main() -> None:
    """Score sentences or pairs."""
    (args,) = parse_arguments(SentenceArguments)
    logging.basicConfig(
        format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S", level=logging.INFO
    )
    if args.blimp_dir is not None:
        folder = Path(args.output_dir)
        model = Path(args.model_name_or_path)
        if model in folder.parents and not model.is_dir():
            raise InputError(
                f"output_dir {folder} lies in {model}, which is no folder; for a model of the Hub "
                "give another one, which does not hide it"
            )
        with saving(folder):
            folder.mkdir(parents=True, exist_ok=True)
        if args.every_checkpoint:
            draw_curve(args, folder)
        else:
            score_blimp(args, folder)
        return
    # Imported only now, for it takes seconds.
    from bert_recipes.finetuning.prediction import replacing

    with ExitStack() as stack:
        file = sys.stdout
        if args.output_file is not None:
            file = stack.enter_context(replacing(Path(args.output_file)))
        score_file(args, file)


def score_file(args: SentenceArguments, file: TextIO) -> None:
    """Write a line for each sentence."""
    from bert_recipes.features.extract import read_inputs
    from bert_recipes.features.likelihood import open_scorer

    path = Path(str(args.input_file))
    columns = None if format_suffix(path) == ".txt" else [args.text_column]
    sentences = [
        first if second is None else f"{first} ||| {second}"
        for first, second in read_inputs(path, columns)
    ]
    if not sentences:
        raise InputError(f"--input_file {path}: no sentence in it")
    for number, score in enumerate(open_scorer(args).score(sentences)):
        mean = score.log_likelihood / score.num_pieces if score.num_pieces else None
        line = {
            "row": number,
            "log_likelihood": round(score.log_likelihood, 6),
            "pieces": score.num_pieces,
            "perplexity": None if mean is None else round(math.exp(-mean), 4),
        }
        file.write(json.dumps(line) + "\n")


def score_blimp(args: SentenceArguments, folder: Path) -> None:
    """Write and print how often the good sentence of a pair is the likelier one."""
    from bert_recipes.features.likelihood import blimp_table, measure_blimp
    from bert_recipes.features.results import check_results_folder, save_results

    check_results_folder(folder, args)
    start = time.perf_counter()
    results = measure_blimp(args)
    results["seconds"] = round(time.perf_counter() - start, 1)
    results["whole_words"] = args.whole_words
    table = blimp_table(results)
    save_results(folder, results, table, args)
    print(table)
    print(f"results, table and settings: {folder}")


def draw_curve(args: SentenceArguments, folder: Path) -> None:
    """Write and print BLiMP at each checkpoint of a run: curve.json, .md, .png, .yaml."""
    from bert_recipes.features.blimp_curve import curve_table, measure_checkpoints
    from bert_recipes.features.extract import choose_device
    from bert_recipes.features.results import check_results_folder
    from bert_recipes.reports.plots import Line, Panel, panels_png
    from bert_recipes.training.speed import describe_machine

    check_results_folder(folder, args, "curve.json", "curve.yaml")
    points = measure_checkpoints(args)
    table = curve_table(points)
    x_label = "passes over the text"
    places = [point["epochs"] for point in points]
    if points[0]["words"] is not None:
        x_label = "million words seen"
        places = [point["words"] / 1e6 for point in points]
    accuracies = [point["accuracy"] for point in points]
    chance = Line("chance", places, [0.5] * len(places))
    line = Line("BLiMP", places, accuracies)
    panel = Panel("BLiMP", "fraction of the pairs that is right", [line], [chance], x_label=x_label)
    machine = describe_machine(choose_device(use_cpu=args.use_cpu))
    curve = {"points": points, "machine": machine, "date": time.strftime("%Y-%m-%d")}
    with saving(folder):
        write_json(folder / "curve.json", curve)
        (folder / "curve.md").write_text(table, encoding="utf-8")
        (folder / "curve.png").write_bytes(panels_png([panel]))
        save_config(folder / "curve.yaml", args)
    print(table)
    print(f"curve: {folder / 'curve.png'}")


if __name__ == "__main__":
    run_cli(main)
