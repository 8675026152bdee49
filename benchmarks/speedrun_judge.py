"""Hold a candidate of the speedrun beside the record, and accept or refuse it.

    python benchmarks/speedrun_judge.py --candidate my_recipe.yaml
    python benchmarks/speedrun_judge.py --candidate RECIPE --candidate_checkout ../my_checkout

Record and candidate run in turn on this machine, once with each seed, and take turns in being the
first; nothing else should run on it. What a candidate has learned is measured by this checkout, not
by the candidate's own. The same command goes on after an interruption. The rules are in
docs/speedrun.md.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results import this_machine
from scipy import stats
from speedrun import CORPUS_NEEDS, RECORD, TRACKS, hashes_of
from transformers import AutoConfig, BertForPreTraining

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError, run_cli
from bert_recipes.files import write_json
from bert_recipes.settings import SEEDS, option
from bert_recipes.yaml_files import read_tree


Values = dict[str, Any]
ROOT = Path(__file__).resolve().parents[1]
SCRIPT = "benchmarks/speedrun.py"
EVALUATION = "benchmarks/speedrun_evaluation.yaml"
TRACK = TRACKS["quickstart"]
GOAL = TRACK.goal
# A difference of seconds counts where chance would make it in fewer than 1 of 100 comparisons.
MAX_P = 0.01
MIN_SEEDS = 3
# Corpus, vocabulary, model and measure are those of the rules: no recipe sets these.
FIXED = {"store", "tokenizer", "size", "model_name_or_path", "objective", "max_eval_pairs"}
# A run that is measured more often ends sooner, and has learned no more.
LEAST_EVAL_STEPS = 100
# Of the files that make a run what it is; the kernels are in C++.
CODE_SUFFIXES = {".py", ".cpp", ".h", ".yaml"}
# BERT tiny: what a candidate's config.json must say.
TINY = {
    "model_type": "bert",
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "num_attention_heads": 2,
    "intermediate_size": 512,
}


@dataclass
class JudgeArguments:
    """Choose who runs."""

    candidate: str | None = option(None, "recipe of the candidate, a YAML file")
    candidate_checkout: str = option(".", "checkout with the candidate's code")
    record: str = option(str(RECORD), "recipe of the record")
    seeds: list[int] | None = option(None, "default: 1 2 3", **SEEDS)
    output_dir: str = option("runs/speedrun", "folder of runs and verdict.json")


def environment_of(checkout: Path) -> dict[str, str]:
    """Return the environment of scripts that run with the code of a checkout."""
    folders = [str(checkout / "src")]
    if "PYTHONPATH" in os.environ:  # packages that are installed nowhere
        folders.append(os.environ["PYTHONPATH"])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}


def check_recipe(recipe: str) -> None:
    """Refuse a recipe that is not there, or sets what is fixed."""
    if not Path(recipe).is_file():
        raise InputError(f"there is no recipe {recipe}; give a YAML file with settings")
    settings, _ = read_tree(Path(recipe))
    fixed = sorted(FIXED & settings.keys())
    if fixed:
        raise InputError(f"{recipe} sets {', '.join(fixed)}, which the rules fix; take it out")


def check_corpus(checkout: Path) -> None:
    """Refuse another corpus than that of the table; make it where it is missing."""
    corpus = checkout / TRACK.corpus
    if not (corpus / "corpus.json").is_file():
        command = [sys.executable, "recipes/collect_docstrings.py"]
        subprocess.run(command, cwd=checkout, env=environment_of(checkout), check=True)
    if hashes_of(corpus) != TRACK.sha256:
        raise InputError(
            f"{corpus} is not the corpus of the table: that takes {CORPUS_NEEDS}; remove the "
            "folder and start again there"
        )


def hash_of_code(checkout: Path) -> str:
    """Return a hash of the package, the recipes and the benchmarks of a checkout."""
    digest = hashlib.sha256()
    for folder in ("src", "recipes", "benchmarks"):
        for path in sorted((checkout / folder).rglob("*")):
            if path.suffix in CODE_SUFFIXES:
                digest.update(f"{path.relative_to(checkout)}\n".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def run(recipe: str, checkout: Path, seed: int, folder: Path) -> Values:
    """Return the result of a run, with its recipe and what this checkout measures of it.

    A run that is judged in its folder is taken: an interrupted call has finished it.
    """
    recipe_text = Path(recipe).read_text(encoding="utf-8")
    known_by = {"recipe": recipe_text, "code": hash_of_code(checkout), "here": this_machine()}
    judged_file = folder / "judged.json"
    if judged_file.is_file():
        judged: Values = json.loads(judged_file.read_text(encoding="utf-8"))
        # Earlier versions kept the recipe alone.
        if any(judged.get(name) != value for name, value in known_by.items()):
            raise InputError(
                f"{folder} is of another recipe, other code or another machine; give another "
                "--output_dir"
            )
        return judged
    judged = {
        **train(recipe, checkout, seed, folder),
        "measured": measure(folder),
        "broken_rules": broken_rules(folder),
        **known_by,
    }
    write_json(judged_file, judged)
    return judged


def train(recipe: str, checkout: Path, seed: int, folder: Path) -> Values:
    """Train once, and return the result.json."""
    result_file = folder / "result.json"
    result_file.unlink(missing_ok=True)
    command = [sys.executable, SCRIPT, "--config", str(Path(recipe).resolve())]
    command += ["--output_dir", str(folder.resolve()), "--seed", str(seed)]
    # An exit code of 1 is a goal that was missed: the result says so.
    subprocess.run(command, cwd=checkout, env=environment_of(checkout), check=False)
    if not result_file.is_file():
        raise InputError(f"{recipe}, seed {seed}: the run ended without {result_file}")
    result: Values = json.loads(result_file.read_text(encoding="utf-8"))
    return result


def measure(folder: Path) -> Values:
    """Return the held-out losses and accuracies of a checkpoint."""
    file = folder / "measured.json"
    command = [sys.executable, "recipes/evaluate_checkpoint.py", "--config", EVALUATION]
    command += ["--model_name_or_path", str(folder.resolve())]
    command += ["--results_file", str(file.resolve())]
    subprocess.run(
        command, cwd=ROOT, env=environment_of(ROOT), check=True, stdout=subprocess.DEVNULL
    )
    measured: Values = json.loads(file.read_text(encoding="utf-8"))
    # A folder of this machine, which is nobody's business in a pull request.
    del measured["model"]
    return measured


def broken_rules(folder: Path) -> list[str]:
    """Return the rules that a checkpoint breaks: its size, and that stock BERT loads it."""
    broken = []
    config = AutoConfig.from_pretrained(folder)
    for name, value in TINY.items():
        if getattr(config, name) != value:
            broken.append(f"{name} is {getattr(config, name)}; allowed: {value}")
    _, info = BertForPreTraining.from_pretrained(folder, output_loading_info=True)
    for problem, keys in info.items():
        if keys:
            broken.append(f"stock BertForPreTraining has {problem}: {', '.join(sorted(keys))}")
    return broken


def faults_of(results: list[Values]) -> list[str]:
    """Return what is wrong with runs: a goal that is missed, another corpus, broken rules."""
    faults = []
    for result in results:
        seed = f"seed {result['seed']}"
        loss = result["measured"]["eval_mlm_loss"]
        accuracy = result["measured"]["eval_nsp_accuracy"]
        if loss > GOAL.max_mlm_loss:
            faults.append(f"{seed}: masked-LM loss {loss:.4f}; allowed: {GOAL.max_mlm_loss:.2f}")
        if accuracy < GOAL.min_nsp_accuracy:
            allowed = f"{GOAL.min_nsp_accuracy:.0%}"
            faults.append(f"{seed}: next sentence {accuracy:.2%}; allowed: {allowed}")
        steps = [0, *(point["step"] for point in result["curve"])]
        between = [later - earlier for earlier, later in itertools.pairwise(steps)]
        least_steps = min(between, default=LEAST_EVAL_STEPS)
        if not result["is_reached"]:
            faults.append(f"{seed}: no evaluation in training met the goal")
        if least_steps < LEAST_EVAL_STEPS:
            faults.append(
                f"{seed}: {least_steps} steps between evaluations; allowed: {LEAST_EVAL_STEPS}"
            )
        if not result["is_corpus_of_the_table"]:
            faults.append(f"{seed}: another corpus than that of the table (docs/speedrun.md)")
        faults += [f"{seed}: {rule}" for rule in result["broken_rules"]]
    return faults


def verdict(record: list[Values], candidate: list[Values]) -> Values:
    """Return whether the runs of a candidate beat those of the record, and why not.

    The test is Welch's t-test of the seconds, one-sided.
    """
    reasons = [f"record, {fault}" for fault in faults_of(record)]
    reasons += faults_of(candidate)
    num_seeds = len({result["seed"] for result in candidate})
    if num_seeds < MIN_SEEDS:
        reasons.append(f"{num_seeds} seeds; allowed: {MIN_SEEDS} or more")
    seconds = {
        "record": [result["seconds"] for result in record],
        "candidate": [result["seconds"] for result in candidate],
    }
    test = stats.ttest_ind(
        seconds["candidate"], seconds["record"], equal_var=False, alternative="less"
    )
    p = float(test.pvalue)
    if not p < MAX_P:  # also where p is NaN
        reasons.append(f"Welch's t-test of the seconds: p = {p:.3f}; allowed: below {MAX_P}")
    return {"is_accepted": not reasons, "reasons": reasons, "p": p, "seconds": seconds}


def main() -> None:
    """Run record and candidate in turn, and print the verdict."""
    (args,) = parse_arguments(JudgeArguments)
    if args.candidate is None:
        raise InputError("give --candidate RECIPE, a YAML file as in benchmarks/speedrun_records")
    folder = Path(args.output_dir)
    verdict_file = folder / "verdict.json"
    if verdict_file.exists():
        raise InputError(f"{verdict_file} is an earlier verdict; give another --output_dir")
    sides = {
        "record": (args.record, ROOT),
        "candidate": (args.candidate, Path(args.candidate_checkout).resolve()),
    }
    for recipe, _ in sides.values():
        check_recipe(recipe)
    for _, checkout in sides.values():
        check_corpus(checkout)  # which may make it
    results: dict[str, list[Values]] = {"record": [], "candidate": []}
    order = list(sides)
    for seed in args.seeds or [1, 2, 3]:
        for name in order:
            recipe, checkout = sides[name]
            results[name].append(run(recipe, checkout, seed, folder / f"{name}_{seed}"))
        order.reverse()
    answer = verdict(results["record"], results["candidate"])
    runs = {f"{name}_runs": results_of_side for name, results_of_side in results.items()}
    write_json(verdict_file, {**answer, **runs})
    for name, seconds in answer["seconds"].items():
        print(f"{name:9} {statistics.mean(seconds):7.1f} seconds: {seconds}")
    print("accepted" if answer["is_accepted"] else "refused")
    for reason in answer["reasons"]:
        print(f"  {reason}")


if __name__ == "__main__":
    run_cli(main)
