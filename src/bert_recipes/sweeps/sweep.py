"""Every combination of a few settings with several seeds, or a search with Optuna; each run is a
process of its own.
"""

import ctypes
import functools
import hashlib
import itertools
import json
import logging
import math
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from bert_recipes.checkpointing import SWEEP_FILE
from bert_recipes.config import field_types, members, nearest_name, parse_arguments, read_text
from bert_recipes.errors import InputError
from bert_recipes.files import hash_of, lock_run, read_json_object, strict, write_json
from bert_recipes.finetuning.arguments import (
    FineTuningArguments,
    TaskArguments,
    TeachingArguments,
    check_access,
)
from bert_recipes.metrics.certainty import half_interval
from bert_recipes.tasks.task_file import read_task_file
from bert_recipes.yaml_files import read_tree


logger = logging.getLogger(__name__)

# What a sweep decides itself, or what would make its runs incomparable -> what to do instead.
RESERVED = {
    "seed": "give --num_seeds or --seeds to the sweep",
    "output_dir": "every run has its own folder under the sweep's --output_dir",
    "task": "one sweep measures one task",
    "task_file": "one sweep measures one task",
    "config": "one configuration serves every run",
    "resume_from_checkpoint": "a sweep resumes by itself when the same command is given again",
    "push_to_hub": "push the best run when the sweep is done: make push RUN=... REPO=...",
    "overwrite_run": "a sweep resumes by itself; for a new one give another --output_dir",
}
# What keeps a check of flags off the GPU and out of DeepSpeed: whether these work, only the runs
# can tell.
_ON_THE_CPU = (
    "--use_cpu",
    "true",
    "--precision",
    "fp32",
    "--bf16",
    "false",
    "--fp16",
    "false",
    "--deepspeed",
    "null",
)
# A finished run has the first two, and no longer the third.
RESULTS_FILE, TASK_FILE, UNFINISHED_FILE = "all_results.json", "task.yaml", "unfinished"
_SECONDS_TO_END = 20
# What takes the space of a run: the model and whatever its checkpoints hold.
WEIGHT_FILES = (
    "model*.safetensors",
    "model.safetensors.index.json",
    "pytorch_model*.bin",
    "checkpoint-*",
)
NO_WEIGHTS_FILE = "weights_removed.txt"
# Metrics of which more is not better, or that say nothing about a model.
_NOT_TO_MAXIMISE = re.compile(r"(^|_)(loss|seconds?|runtime|thresh|number|total|missing)$")
# The words that make a list of three a range, where the field takes numbers only.
SCALES = ("log", "linear", "int")


# Flags of the runs


def given_flags(argv: Iterable[str]) -> set[str]:
    """Names of the flags on a command line: `--learning-rate=3e-5` is learning_rate, a quoted value
    with spaces is none.
    """
    flags = [argument for argument in argv if re.match(r"--[A-Za-z][\w-]*(=|$)", argument)]
    return {flag.removeprefix("--").split("=")[0].replace("-", "_") for flag in flags}


def split_flags(
    argv: Sequence[str], names: Iterable[str], *, quoted: Iterable[str] = ()
) -> tuple[list[str], list[str]]:
    """Part a command line into the flags of the given fields and all others, each with its values.

    What follows a field of `quoted` belongs to it, also where it is a flag.

    Example:
        >>> flags = ["--rte", "--seed=3", "--num_seeds", "3", "--fp16"]
        >>> split_flags(flags, ["num_seeds", "rte"], quoted=["rte"])
        (['--rte=--seed=3', '--num_seeds', '3'], ['--fp16'])
    """
    own, others = list[str](), list[str]()
    target, names = others, {*names, "help"}
    for argument in argv:
        if target and target[-1] in {f"--{name}" for name in quoted}:
            target[-1] += f"={argument}"
            continue
        if given_flags([argument]) or argument == "-h":
            target = own if argument == "-h" or given_flags([argument]) <= names else others
        target.append(argument)
    return own, others


def as_flags(settings: Mapping[str, str]) -> list[str]:
    """`--field value` for each setting."""
    return [part for name, value in settings.items() for part in (f"--{name}", value)]


def replace_flags(flags: Sequence[str], others: Sequence[str]) -> list[str]:
    """Put other flags in the place of the same ones.

    Example:
        >>> replace_flags(["--seed", "3", "--fp16", "true"], ["--seed", "4"])
        ['--fp16', 'true', '--seed', '4']
    """
    _, kept = split_flags(flags, given_flags(others))
    return [*kept, *others]


def check_flag_names(flags: Sequence[str], own: Iterable[str]) -> None:
    """Refuse a misspelt flag before anything runs; fields of the script itself are near misses
    too.
    """
    fields = {*_run_fields(), "config"}
    for name in sorted(given_flags(flags) - fields):
        raise InputError(
            f"unknown option --{name}{nearest_name(name, [*fields, *own], prefix='--')}"
        )


def check_flags(argv: Sequence[str], grid: Iterable[str] = ()) -> None:
    """Refuse flags for the runs that the sweep decides itself, or that its grid varies."""
    given = given_flags(argv)
    for name in sorted(given & (RESERVED.keys() - {"config", "task", "task_file"})):
        raise InputError(f"--{name} cannot be given here: {RESERVED[name]}")
    for name in given.intersection(grid):
        raise InputError(
            f"{name} is in the sweep and on the command line; take it out of one of them"
        )


def check_run(flags: Sequence[str], grid: Mapping[str, Sequence[str]]) -> None:
    """Read the first run's flags as it would, and see that its task, checkpoint and data are within
    reach.
    """
    first_run = as_flags({name: values[0] for name, values in grid.items()})
    flags = replace_flags([*flags, *first_run], _ON_THE_CPU)
    before = dict(os.environ)
    try:
        # A library prints a line when it is imported; stdout is the report's.
        with redirect_stdout(sys.stderr):
            settings, args, _ = parse_arguments(
                TaskArguments, FineTuningArguments, TeachingArguments, argv=flags
            )
    finally:
        # Precision and compilation are handed on in the environment, which the runs inherit.
        os.environ.clear()
        os.environ.update(before)
    if args.push_to_hub:  # of a --config file
        raise InputError(
            f"push_to_hub is true in it, and every run would be pushed; {RESERVED['push_to_hub']}"
        )
    check_access(settings, with_tests=args.do_predict)


def choose_seeds(num_seeds: int, seeds: Sequence[int] | None) -> list[int]:
    """The seeds 1..num_seeds, or those of a list."""
    chosen = list(range(1, num_seeds + 1)) if seeds is None else list(seeds)
    if not chosen:
        raise InputError(f"num_seeds is {num_seeds}; allowed: 1 or more")
    if len(set(chosen)) < len(chosen):
        raise InputError(f"seeds: {chosen} holds one twice; each counts once")
    return chosen


def hashes_of_files(flags: Sequence[str]) -> dict[str, str]:
    """SHA-256 of the YAML files that flags name, so that a changed configuration is seen."""
    names = [argument.split("=", 1)[-1] for argument in flags]
    return {
        name: hash_of(Path(name))
        for name in names
        if name.endswith((".yaml", ".yml")) and Path(name).is_file()
    }


def _run_fields() -> dict[str, Any]:
    return (
        field_types(TaskArguments)
        | field_types(FineTuningArguments)
        | field_types(TeachingArguments)
    )


# The grid


def read_sweep(
    name: str, configs: Path, flags: Sequence[str], *, is_search: bool = False
) -> dict[str, list[str]]:
    """Read `field: value` and `field: [value, value]` from a YAML file, or one of `configs` by its
    name; values stay texts.

    In a search `[least, greatest, log]` (or `linear`, or `int`) is a range for a field of numbers.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else configs / f"{name}.yaml"
    if not path.is_file():
        there = ", ".join(sorted(file.stem for file in configs.glob("*.yaml")))
        raise InputError(
            f"sweep: no file {path}; there are: {there}, or give a YAML file of your own"
        )
    tree, lines = read_tree(path)
    fields, grid = _run_fields(), {}
    for key, given in tree.items():
        where = f"{path}, line {lines[key]}"
        if key in RESERVED:
            raise InputError(f"{where}: {key} cannot stand in a sweep: {RESERVED[key]}")
        if key not in fields:
            raise InputError(
                f"{where}: unknown key {key!r}{nearest_name(key.replace('-', '_'), fields)}"
            )
        values = [
            "null" if value is None else value
            for value in (given if isinstance(given, list) else [given])
        ]
        if not values or not all(isinstance(value, str) for value in values):
            raise InputError(f"{where}: {key}: write `field: value` or `field: [value, value]`")
        try:
            if not is_range(values, fields[key]):
                for value in values:
                    read_text(fields[key], value)
            elif is_search:
                read_range(values, fields[key])
            else:
                raise ValueError(
                    f"[{', '.join(values)}] is a range; ranges are searched with --num_trials N"
                )
        except ValueError as error:
            raise InputError(f"{where}: {key}: {error}") from error
        grid[key] = values
    check_flags(flags, grid)
    return grid


def is_range(values: Sequence[str], hint: Any) -> bool:
    """Whether a list is a range: of numbers, with a scale as its third entry."""
    kinds = set(members(hint))
    return (
        len(values) == 3
        and values[2] in SCALES
        and bool(kinds & {int, float})
        and not kinds & {bool, str}
    )


def read_range(values: Sequence[str], hint: Any) -> Any:
    """The distribution of Optuna that `[least, greatest, scale]` stands for."""
    if find_spec("optuna") is None:
        raise InputError("--num_trials needs Optuna; pip install 'bert-recipes[search]'")
    from optuna.distributions import FloatDistribution, IntDistribution

    kind: Any = (
        IntDistribution if values[2] == "int" or float not in members(hint) else FloatDistribution
    )
    least, greatest = map(int if kind is IntDistribution else float, values[:2])
    if not -math.inf < least < greatest < math.inf:
        raise ValueError(
            f"{values[0]} to {values[1]} is no range; give two numbers, the lesser one first"
        )
    return kind(least, greatest, log=values[2] == "log")


def expand_grid(grid: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Every combination, the last field varying fastest."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def combination_name(settings: Mapping[str, str], varying: Iterable[str]) -> str:
    """Name settings by those that vary; different ones have different names, which are names of
    folders.

    Example:
        >>> combination_name({"num_train_epochs": "3", "learning_rate": "5e-5"}, ["learning_rate"])
        'learning_rate-5e-5'
    """
    parts = []
    for name in varying:
        value = re.sub(r"[^A-Za-z0-9.+-]", "-", settings[name])
        # A value that cannot stay as it is gets a few digits of its hash, so that it is unique.
        digits = (
            ""
            if value == settings[name]
            else f"-{hashlib.sha256(settings[name].encode()).hexdigest()[:6]}"
        )
        parts.append(f"{name}-{value}{digits}")
    return "_".join(parts) or "settings"


# Runs


class RunLauncher(NamedTuple):
    """How a run is started: exactly the command that a user would type, and the flags of every
    run.
    """

    command: tuple[str, ...]
    flags: tuple[str, ...]
    needs: tuple[str, ...] = (TASK_FILE,)  # what a finished run has beside its results
    keeps_checkpoints: bool = False

    def run(self, folder: Path, flags: Sequence[str]) -> dict[str, Any]:
        """Run in a folder, or take what a finished run left there; return all_results.json.

        An interrupted run resumes from its checkpoint, or starts from scratch without one. A
        finished run's checkpoints are removed. What the run prints goes to `FOLDER.log`.
        """
        results = read_results(folder, self.needs)
        if results is not None:
            logger.info("%s: finished before, kept", folder)
            return results
        if any(folder.glob("checkpoint-*")):
            logger.warning("%s: half finished, resumed", folder)
        elif folder.exists():
            logger.warning("%s: half finished, removed and run again", folder)
            shutil.rmtree(folder)
        command = [*self.command, *replace_flags(self.flags, [*flags, "--output_dir", str(folder)])]
        log = folder.with_name(folder.name + ".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        logger.info("%s  (log: %s)", shlex.join(command), log)
        code = _run_process(command, log, group=folder.absolute().parents[1].name)
        results = read_results(folder, self.needs) if code == 0 else None
        if results is None:
            # Its own error line, or the last line that it printed.
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines() or [
                "it printed nothing"
            ]
            words = ([line for line in lines if line.startswith("error: ")] or lines)[
                -1
            ].removeprefix("error: ")
            raise InputError(
                f"the run {folder} failed (exit code {code}: {words}); its log is {log}; mend the "
                "cause and give the same "
                "command again: finished runs are kept"
            )
        for checkpoint in () if self.keeps_checkpoints else folder.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)
        return results


def finetuning_command(script: Path, launch: str | None) -> tuple[str, ...]:
    """The command without its flags: by accelerate's launcher with a configuration, or as one
    process without it.
    """
    if launch is None:
        return (sys.executable, str(script))
    folder = script.parent.parent / "accelerate_configs"
    file = Path(launch) if launch.endswith(".yaml") else folder / f"{launch}.yaml"
    if not file.is_file():
        there = ", ".join(sorted(path.stem for path in folder.glob("*.yaml")))
        raise InputError(f"launch: no configuration {file}; there are: {there}")
    launcher = (
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--quiet",
        "--config_file",
        str(file),
    )
    return (*launcher, str(script))


def read_results(folder: Path, needs: Sequence[str] = (TASK_FILE,)) -> dict[str, Any] | None:
    """all_results.json of a finished run; None where the folder holds none."""
    is_finished = all((folder / name).is_file() for name in (*needs, RESULTS_FILE))
    if not is_finished or (folder / UNFINISHED_FILE).exists():
        return None
    return read_json_object(folder / RESULTS_FILE)


def figure_of(results: Mapping[str, Any], key: str) -> float | None:
    """A metric of all_results.json; NaN where it is null, as not defined, and None where it is not
    there.
    """
    value = results.get(key, "")
    if value is None:
        return math.nan
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def end_with_children() -> None:
    """Make SIGTERM and SIGHUP end this process as Ctrl-C does, so that the run in progress ends
    too.
    """
    # SIGHUP, which a closed terminal sends, stays without effect where nohup made it so.
    numbers = [signal.SIGTERM] + [signal.SIGHUP] * (
        signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    )

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        # A second one (the shell and the kernel both send SIGHUP) must not stop the ending of the
        # run.
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    for each in numbers:
        signal.signal(each, interrupt)


def _end_with_parent() -> Callable[[], None] | None:
    """Return what a new process calls so that the system sends it SIGTERM when its parent is gone,
    however that ended.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # PR_SET_PDEATHSIG is 1
    return functools.partial(prctl, 1, signal.SIGTERM)


def _run_process(command: Sequence[str], log: Path, group: str) -> int:
    """Run to the end in a process group of its own, which ends with this process, by SIGKILL on
    Linux alone.
    """
    # Under its name wandb, where `report_to` names it, shows the runs together.
    environment = {"WANDB_RUN_GROUP": group, **os.environ}
    with log.open("w", encoding="utf-8") as output:
        streams: Any = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        # One call into the C library, which cannot wait for another thread.
        process = subprocess.Popen(
            command,
            **streams,
            start_new_session=True,
            env=environment,
            preexec_fn=_end_with_parent(),
        )
        try:
            return process.wait()
        finally:
            # The launcher's children too: a run that stays alive would write into a folder that is
            # run again.
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    if process.poll() is None:
                        os.killpg(process.pid, number)
                        process.wait(timeout=_SECONDS_TO_END)


def claim_folder(folder: Path, file_name: str, settings: Mapping[str, Any]) -> None:
    """Make a folder of runs that belongs to one set of settings, written down in `file_name`, and
    to one process at a time.
    """
    file, settings = folder / file_name, dict(settings)
    if folder.is_file():
        raise InputError(f"output_dir {folder} is a file; give a folder")
    if not file.is_file() and folder.is_dir() and any(folder.iterdir()):
        raise InputError(
            f"output_dir {folder} holds files and no {file_name}; give another --output_dir"
        )
    lock_run(folder, patience=0)
    before = read_json_object(file) if file.is_file() else settings
    changed = [name for name, value in settings.items() if before.get(name) != value]
    if changed and any(read_results(path.parent) is not None for path in folder.rglob(TASK_FILE)):
        was, now = (json.dumps(each.get(changed[0])) for each in (before, settings))
        raise InputError(
            f"output_dir {folder} holds runs with other settings ({changed[0]}: was {was}, is "
            f"{now}); "
            "give the same settings to resume, or another --output_dir"
        )
    for half in list(folder.rglob("run.yaml")) if changed else []:
        shutil.rmtree(half.parent, ignore_errors=True)  # a checkpoint has the file too
    write_json(file, settings)


# The sweep


class Run(NamedTuple):
    """One finished run; of its value larger is better, NaN where training diverged."""

    seed: int
    folder: Path
    value: float
    results: Mapping[str, Any]


class Combination(NamedTuple):
    """Settings and their runs, one for each seed."""

    name: str
    settings: Mapping[str, str]
    runs: list[Run]

    @property
    def values(self) -> list[float]:
        """The runs' values; NaN is minus infinity, worse than every number."""
        return [-math.inf if math.isnan(run.value) else run.value for run in self.runs]

    @property
    def median(self) -> float:
        """Median over the seeds; the mean of the middle two for an even number."""
        return statistics.median(self.values)

    @property
    def best_run(self) -> Run:
        """The run with the greatest value; of equal ones the one with the earliest seed in the
        list.
        """
        return self.runs[self.values.index(max(self.values))]


def choose_best(combinations: Sequence[Combination]) -> Combination:
    """The combination with the greatest median; of equal ones the first, so that the grid's order
    decides.

    With one seed this is the paper's rule: the setting that is best on the development set (Devlin
    et al. 2019, section 4.1). The median over seeds is ours: it is not moved by a run that failed
    to train, of which the paper says that they happen on small data sets.
    """
    return max(combinations, key=lambda combination: combination.median)


def run_sweep(
    folder: Path,
    launcher: RunLauncher,
    grid: dict[str, list[str]],
    seeds: Sequence[int],
    report: Callable[[Path], Sequence[Path]],
    *,
    metric: str | None = None,
    num_trials: int | None = None,
) -> str:
    """Run what is not finished, link FOLDER/best to the best run and write sweep.json and the
    report; return its text.

    A folder that holds a sweep with the same settings is resumed; seeds and trials may be added.
    Each run has `FOLDER/<combination>/seed-<seed>`. Without num_trials, of a search with Optuna,
    every combination is run. `report` makes the report of a folder with a sweep.json and returns
    its files, the text first, or none.
    """
    if metric is not None and _NOT_TO_MAXIMISE.search(metric):
        raise InputError(
            f"metric is '{metric}'; allowed: metrics of which more is better, as accuracy or f1"
        )
    if num_trials is not None and num_trials < 1:
        raise InputError(f"num_trials is {num_trials}; allowed: 1 or more")
    check_run(launcher.flags, grid)
    # Not the metric: another one chooses another run of the same.
    settings: dict[str, Any] = {"sweep": grid, "flags": list(launcher.flags)}
    settings |= {"files": hashes_of_files(launcher.flags), "is_search": num_trials is not None}
    claim_folder(folder, "sweep_plan.json", settings)
    sweep = Sweep(
        folder, launcher, [name for name, values in grid.items() if len(values) > 1], seeds, metric
    )
    if num_trials is None:
        for combination in expand_grid(grid):
            sweep.measure(combination)
    else:
        search(grid, num_trials, sweep.measure)
    sweep.link_best()
    write_json(folder / SWEEP_FILE, sweep.describe() | {"settings": settings})
    files = report(folder)
    return files[0].read_text(encoding="utf-8") if files else ""


class Sweep:
    """Combinations of settings over seeds.

    Only weights that can still be the best run's are kept: those of the best run of the best
    combination so far, and of the best run of the combination in progress. Results and predictions
    of all runs stay.
    """

    def __init__(
        self,
        folder: Path,
        launcher: RunLauncher,
        varying: Sequence[str],
        seeds: Sequence[int],
        metric: str | None,
    ) -> None:
        self.folder, self.launcher, self.varying, self.seeds = folder, launcher, varying, seeds
        self.metric = metric
        self.combinations: dict[str, Combination] = {}

    @property
    def best(self) -> Combination:
        """Of those that are finished."""
        return choose_best(list(self.combinations.values()))

    def measure(self, settings: Mapping[str, str]) -> float:
        """Run a combination with every seed, finished runs are kept; return its median."""
        name = combination_name(settings, self.varying)
        if name not in self.combinations:
            combination = Combination(name, settings, [])
            for seed in self.seeds:
                combination.runs.append(self._run(combination, seed))
                value = format_figure(combination.runs[-1].value)
                logger.info("%s, seed %d: %s %s", name, seed, self.metric, value)
                _drop_weights(combination.runs, kept=combination.best_run)
            self.combinations[name] = combination
            _drop_weights(
                [each.best_run for each in self.combinations.values()], kept=self.best.best_run
            )
        return self.combinations[name].median

    def link_best(self) -> None:
        """Point FOLDER/best to the best run; one whose weights were removed, before seeds were
        added, is run again.
        """
        run, link = self.best.best_run, self.folder / "best"
        if math.isnan(run.value):
            raise InputError(
                f"no run of {self.folder} has a metric {self.metric}: all are NaN; lower the "
                "learning rate"
            )
        if (run.folder / NO_WEIGHTS_FILE).is_file():
            logger.info(
                "%s is the best run now and its weights were removed: it is run again", run.folder
            )
            shutil.rmtree(run.folder)
            self._run(self.best, run.seed)
        _remove(link)
        try:
            link.symlink_to(os.path.relpath(run.folder, self.folder), target_is_directory=True)
        except OSError as error:
            logger.info("%s: no links here (%s), copied instead", link, error.strerror)
            shutil.copytree(run.folder, link)

    def _run(self, combination: Combination, seed: int) -> Run:
        folder = self.folder / combination.name / f"seed-{seed}"
        results = self.launcher.run(folder, [*as_flags(combination.settings), "--seed", str(seed)])
        if self.metric is None:
            self.metric = read_task_file(folder / TASK_FILE).best_metric
        value = figure_of(results, f"eval_{self.metric}")
        if value is None:
            names = sorted(
                name.removeprefix("eval_") for name in results if name.startswith("eval_")
            )
            there = ", ".join(name for name in names if not _NOT_TO_MAXIMISE.search(name))
            raise InputError(
                f"{folder}: its results have no metric '{self.metric}'; give --metric one of: "
                f"{there}"
            )
        return Run(seed, folder, value, results)

    def describe(self) -> dict[str, Any]:
        """The sweep as strict JSON: what is not finite is null."""
        best, metric, combinations = self.best, str(self.metric), list(self.combinations.values())
        diverged = sum(math.isnan(run.value) for run in best.runs)
        rule = (
            f"the greatest median of {len(best.runs)} seeds"
            if len(best.runs) > 1
            else f"the greatest {metric}"
        )
        how_chosen = (
            f"{best.name} has {rule} on the development set (of equal ones the first); `best` is "
            "its run with seed "
            f"{best.best_run.seed}, {metric} {format_figure(best.best_run.value)}. It was chosen "
            "on the examples that it is "
            "measured on: on others expect less. Other runs keep their results and predictions, "
            "not their weights." + (f" Runs of it that diverged: {diverged}." if diverged else "")
        )
        described = {
            "metric": metric,
            "best": best.name,
            "best_run": os.path.relpath(best.best_run.folder, self.folder),
            "how_chosen": how_chosen,
            "lead": describe_lead(combinations, metric),
            "combinations": [self._describe(each) for each in combinations],
            "machine": best.best_run.results.get("machine"),
            "date": time.strftime("%Y-%m-%d"),
        }
        return dict(strict(described))

    def _describe(self, combination: Combination) -> dict[str, Any]:
        values, runs = combination.values, []
        for run in combination.runs:
            has_weights = not (run.folder / NO_WEIGHTS_FILE).is_file()
            folder = os.path.relpath(run.folder, self.folder)
            runs.append(run._asdict() | {"folder": folder, "has_weights": has_weights})
        # Of a sample (n - 1).
        std = statistics.stdev(values) if len(values) > 1 and -math.inf not in values else None
        found = {
            "name": combination.name,
            "settings": combination.settings,
            "median": combination.median,
        }
        return found | {"min": min(values), "max": max(values), "std": std, "runs": runs}


def _drop_weights(runs: Sequence[Run], kept: Run) -> None:
    """Remove the weights of all runs but one, and say so in a file beside their results."""
    for run in runs:
        paths = [path for pattern in WEIGHT_FILES for path in run.folder.glob(pattern)]
        if run is kept or not paths:
            continue
        text = (
            "The weights of this run were removed: a sweep keeps those of its best run only, "
            "in ../../best.\n"
        )
        (run.folder / NO_WEIGHTS_FILE).write_text(text, encoding="utf-8")
        for path in paths:
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def search(
    grid: Mapping[str, Sequence[str]],
    num_trials: int,
    measure: Callable[[Mapping[str, str]], float],
) -> None:
    """Try settings with Optuna's TPE; with the same results it proposes the same, which is how a
    search resumes.
    """
    import optuna

    fields = _run_fields()
    space: dict[str, Any] = {
        name: optuna.distributions.CategoricalDistribution(values) for name, values in grid.items()
    }
    ranges = [name for name, values in grid.items() if is_range(values, fields[name])]
    space |= {name: read_range(grid[name], fields[name]) for name in ranges}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    for number in range(num_trials):
        trial = study.ask(space)
        # Three digits of a number are enough to name it and to run it.
        settings = {
            name: f"{v:.3g}" if isinstance(v, float) else str(v) for name, v in trial.params.items()
        }
        logger.info("trial %d of %d: %s", number + 1, num_trials, settings)
        median = measure(settings)
        # TPE ranks by finite numbers; metrics of this project are never below -1.
        study.tell(trial, median if math.isfinite(median) else -1.0)


def format_figure(value: float) -> str:
    """Four digits; NaN in words."""
    return "NaN" if math.isnan(value) else f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}"


def describe_lead(combinations: Sequence[Combination], metric: str) -> str:
    """How far the next combination is, beside the seeds and the rows that were measured; "" without
    a next one.
    """
    best = choose_best(combinations)
    others = [each for each in combinations if each is not best and math.isfinite(each.median)]
    if not others:
        return ""
    second = choose_best(others)
    lead, half = (
        best.median - second.median,
        [half_interval(metric, each.best_run.results) for each in (best, second)],
    )
    splits: Any = best.best_run.results.get("splits") or {}
    rows = [entry["examples"] for name, entry in splits.items() if name.startswith("validation")]
    examples = (
        f" ({lead * rows[0]:.0f} of {rows[0]:,} examples)"
        if metric == "accuracy" and len(rows) == 1
        else ""
    )
    message = f"{best.name} and {second.name} are {format_figure(lead)} apart{examples}"
    if len(best.runs) > 1 and min(best.values) <= max(second.values):
        return f"Not resolved: {message}, and their seeds overlap."
    if lead <= math.hypot(*half):
        return f"Not resolved: {message}, no more than the 95% intervals of the measured rows."
    return message + (", more than the 95% intervals of the measured rows." if all(half) else ".")
