"""Run combinations of settings with several seeds, or a search; each run is a process."""

import itertools
import logging
import math
import os
import re
import shlex
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from bert_recipes.checkpointing import restore_replaced
from bert_recipes.config import field_types, members, nearest_name, parse_arguments, read_text
from bert_recipes.errors import InputError
from bert_recipes.files import (
    check_empty,
    hash_of,
    lock_run,
    read_json_object,
    replace_nonfinite,
    unlock_run,
    write_json,
)
from bert_recipes.finetuning.arguments import (
    FineTuningArguments,
    TaskArguments,
    TeachingArguments,
    check_access,
    choose_checkpoint,
)
from bert_recipes.run_folder import (
    NO_WEIGHTS_FILE,
    RESULTS_FILE,
    SWEEP_FILE,
    TASK_FILE,
    UNFINISHED_FILE,
)
from bert_recipes.settings import check_value, metadata_of
from bert_recipes.shipped import ROOT, find_config
from bert_recipes.sweeps.processes import run_process
from bert_recipes.tasks.task import Task, figure_names
from bert_recipes.tasks.task_file import read_task_file
from bert_recipes.yaml_files import read_tree


logger = logging.getLogger(__name__)

# Whose files --config takes by name.
CONFIGS = ROOT / "recipes" / "configs" / "finetune"
PLAN_FILE = "sweep_plan.json"
# A run that was told to end may take so long for its step and a checkpoint.
SECONDS_TO_END = 300.0
# What a sweep decides itself, or what would make its runs incomparable -> what to do instead.
RESERVED = {
    "seed": "give --num_seeds or --seeds to the sweep",
    "output_dir": "every run has its own folder under the sweep's --output_dir",
    "task": "one sweep measures one task",
    "task_file": "one sweep measures one task",
    "config": "one configuration serves every run",
    "resume_from_checkpoint": "a sweep resumes by itself when the same command is given again",
    "resume": "a sweep resumes by itself when the same command is given again",
    "estimate": "give it to recipes/finetune.py, which estimates one run",
    "push_to_hub": "push the best run when the sweep is done: make push RUN=... REPO=...",
    "overwrite_run": "a sweep resumes by itself; for a new one give another --output_dir",
}
# Settings with which runs have other rows, or begin with other weights.
_OF_DATA = ("data_dir", "max_eval_examples", "max_train_examples", "model_name_or_path")
# What keeps a check of flags off the GPU and out of DeepSpeed: whether these work, only the runs
# can tell.
_ON_THE_CPU = {
    "use_cpu": "true",
    "precision": "fp32",
    "bf16": "false",
    "fp16": "false",
    "deepspeed": "null",
}
# What takes the space of a run: the model and whatever its checkpoints hold.
WEIGHT_FILES = (
    "model*.safetensors",
    "model.safetensors.index.json",
    "pytorch_model*.bin",
    "checkpoint-*",
)
# The words that make a list of three a range, where the field takes numbers only.
SCALES = ("log", "linear", "int")


# Flags of the runs


def _flag_name(argument: str) -> str | None:
    """Return the name of a flag, --learning-rate=3e-5 is learning_rate; None of a value."""
    match = re.match(r"--([A-Za-z][\w-]*)(=|$)", argument)
    return match[1].replace("-", "_") if match else None


def given_flags(argv: Iterable[str]) -> set[str]:
    """Return the names of the flags on a command line."""
    names = set()
    for argument in argv:
        name = _flag_name(argument)
        if name is not None:
            names.add(name)
    return names


def group_flags(argv: Iterable[str]) -> dict[str, list[str]]:
    """Group the values by flag, to compare command lines whose flags may be in another order.

    Example:
        >>> group_flags(["--seed=3", "--files", "a", "b"])
        {'seed': ['3'], 'files': ['a', 'b']}
    """
    values_of_flags: dict[str, list[str]] = {}
    values: list[str] = []
    for argument in argv:
        name = _flag_name(argument)
        if name is None:
            values.append(argument)
            continue
        values = values_of_flags[name] = []
        if "=" in argument:
            values.append(argument.split("=", 1)[1])
    return values_of_flags


def split_flags(
    argv: Sequence[str], names: Iterable[str], *, quoted: Iterable[str] = ()
) -> tuple[list[str], list[str]]:
    """Part a command line into the flags of the named fields and all others, with their values.

    What follows a field of `quoted` belongs to it, also where it is a flag.

    Example:
        >>> flags = ["--rte", "--seed=3", "--num_seeds", "3", "--fp16"]
        >>> split_flags(flags, ["num_seeds", "rte"], quoted=["rte"])
        (['--rte=--seed=3', '--num_seeds', '3'], ['--fp16'])
    """
    script_names = {*names, "help", "help_all"}
    quoted_flags = [f"--{name}" for name in quoted]
    named_flags: list[str] = []
    run_flags: list[str] = []
    target = run_flags
    for argument in argv:
        if target and target[-1] in quoted_flags:
            target[-1] += f"={argument}"
            continue
        name = "help" if argument == "-h" else _flag_name(argument)
        if name is not None:
            target = named_flags if name in script_names else run_flags
        target.append(argument)
    return named_flags, run_flags


def as_flags(settings: Mapping[str, str]) -> list[str]:
    """Return `--field value` for each setting."""
    flags = []
    for name, value in settings.items():
        flags += [f"--{name}", value]
    return flags


def replace_flags(flags: Sequence[str], others: Sequence[str]) -> list[str]:
    """Put other flags in the place of the same ones.

    Example:
        >>> replace_flags(["--seed", "3", "--fp16", "true"], ["--seed", "4"])
        ['--fp16', 'true', '--seed', '4']
    """
    _, remaining = split_flags(flags, given_flags(others))
    return [*remaining, *others]


def check_flag_names(flags: Sequence[str], script_fields: Iterable[str]) -> None:
    """Refuse a misspelt flag before anything runs."""
    fields = {*_run_fields(), "config"}
    # The negative form that a flag with the default true has.
    fields.update(f"no_{name}" for name in _run_fields())
    for name in sorted(given_flags(flags) - fields):
        nearest = nearest_name(name, [*fields, *script_fields], prefix="--")
        raise InputError(f"unknown option --{name}{nearest}")


def check_flags(argv: Sequence[str], grid: Iterable[str] = ()) -> None:
    """Refuse flags for the runs that the sweep decides itself, or that its grid varies."""
    names = given_flags(argv)
    names.update([name.removeprefix("no_") for name in names])
    for name in sorted(names & (RESERVED.keys() - {"config", "task", "task_file"})):
        raise InputError(f"--{name} cannot be given here: {RESERVED[name]}")
    for name in names.intersection(grid):
        raise InputError(
            f"{name} is in the sweep and on the command line; take it out of one of them"
        )


class CheckedRun(NamedTuple):
    """Flags of every run, which name a checkpoint, the grid, and the settings of the first run."""

    flags: tuple[str, ...]
    grid: dict[str, list[str]]
    task_args: TaskArguments
    args: FineTuningArguments


def check_run(
    flags: Sequence[str], grid: dict[str, list[str]], folder: Path, metric: str | None = None
) -> CheckedRun:
    """Read the settings as the runs will, and see that task, checkpoint and data are there.

    And that the runs can be judged, by `metric` or the task's own.

    Each value of the grid is read beside the first ones of the other fields, of a range both ends.
    All runs start from one checkpoint: where none is named, the one that the sweep in `folder`
    began with, or else the one that is found now.
    """
    flags = _flags_of_plan(flags, folder)
    first = {name: values[0] for name, values in grid.items()}
    task_args, args = _parse_run(flags, first)
    if task_args.model_name_or_path is None:
        task_args.model_name_or_path = choose_checkpoint(None)
        if not (folder / PLAN_FILE).is_file():  # one of an earlier version names none
            flags = [*flags, "--model_name_or_path", task_args.model_name_or_path]
    check_access(task_args, with_tests=args.do_predict)
    _check_metric(task_args.loaded_task, metric)

    fields = _run_fields()
    logging.disable(logging.WARNING)  # the first run's stand for all
    try:
        for name, values in grid.items():
            num_values = 2 if is_range(values, fields[name]) else len(values)
            for value in values[1:num_values]:
                _check_value(flags, {**first, name: value}, name)
    finally:
        logging.disable(logging.NOTSET)
    return CheckedRun(tuple(flags), grid, task_args, args)


def _check_metric(task: Task, metric: str | None) -> None:
    """Refuse a task without validation rows, and a metric that it does not have."""
    if not task.validation_splits:
        raise InputError(
            f"task {task.name} has no validation split, on which the best run is chosen; name one "
            "in its `files`, or give a validation_fraction"
        )
    allowed = figure_names(task.metrics, task.validation_splits, task.labels)
    if metric is not None and metric not in allowed:
        raise InputError(f"metric is '{metric}'; allowed: {', '.join(allowed)}")


def _flags_of_plan(flags: Sequence[str], folder: Path) -> list[str]:
    """Return the flags with which a sweep began here, if they have a checkpoint more than these."""
    file = folder / PLAN_FILE
    if not file.is_file():
        return list(flags)
    planned = read_json_object(file)["flags"]
    _, without_checkpoint = split_flags(planned, ["model_name_or_path"])
    return planned if group_flags(without_checkpoint) == group_flags(flags) else list(flags)


def _check_value(flags: Sequence[str], settings: Mapping[str, str], name: str) -> None:
    """Refuse a value of the grid that a run would refuse."""
    try:
        task_args, args = _parse_run(flags, settings)
        check_access(task_args, with_tests=args.do_predict)
    except InputError as error:
        raise InputError(f"{name}: {settings[name]} in the sweep: {error}") from error


def _parse_run(
    flags: Sequence[str], settings: Mapping[str, str]
) -> tuple[TaskArguments, FineTuningArguments]:
    """Parse the flags of a run, on the CPU."""
    for name in settings.keys() & _ON_THE_CPU.keys():
        value = read_text(_run_fields()[name], settings[name])
        check_value(name, value, metadata_of(FineTuningArguments)[name])
    argv = replace_flags(flags, as_flags({**settings, **_ON_THE_CPU}))
    environment = dict(os.environ)
    try:
        # A library prints a line when it is imported; stdout is the report's.
        with redirect_stdout(sys.stderr):
            task_args, args, _ = parse_arguments(
                TaskArguments, FineTuningArguments, TeachingArguments, argv=argv, configs=CONFIGS
            )
    finally:
        # Precision and compilation are handed on in the environment, which the runs inherit.
        os.environ.clear()
        os.environ.update(environment)
    in_file = {
        "push_to_hub": args.push_to_hub,
        "estimate": args.estimate,
        "resume": args.resume != "auto",
    }
    for name, is_set in in_file.items():
        if is_set:
            raise InputError(f"{name} is in the --config file, for every run: {RESERVED[name]}")
    return task_args, args


def choose_seeds(num_seeds: int, seeds: Sequence[int] | None) -> list[int]:
    """Return the seeds 1..num_seeds, or those of a list."""
    if seeds is None:
        return list(range(1, num_seeds + 1))
    if len(set(seeds)) < len(seeds):
        raise InputError(f"seeds: {list(seeds)} holds one twice; each counts once")
    return list(seeds)


def hashes_of_files(flags: Sequence[str]) -> dict[str, str]:
    """Hash the YAML files that flags name, so that a changed configuration is seen."""
    paths = [Path(argument.split("=", 1)[-1]) for argument in flags]
    config_flags, _ = split_flags(flags, ["config"])
    if config_flags:  # a name, or --config=NAME
        name = config_flags[-1].removeprefix("--config=")
        paths.append(find_config(name, CONFIGS))
    hashes = {}
    for path in paths:
        if path.suffix in (".yaml", ".yml") and path.is_file():
            hashes[str(path)] = hash_of(path)
    return hashes


def _run_fields() -> dict[str, Any]:
    return {
        **field_types(TaskArguments),
        **field_types(FineTuningArguments),
        **field_types(TeachingArguments),
    }


# The grid


def read_sweep(
    name: str,
    configs: Path,
    flags: Sequence[str],
    *,
    is_search: bool = False,
) -> dict[str, list[str]]:
    """Read `field: value` and `field: [value, value]` from a YAML file, or from one of `configs`.

    Values stay texts. In a search `[least, greatest, log]` (or `linear`, or `int`) is a range for a
    field of numbers.
    """
    if is_search and find_spec("optuna") is None:
        raise InputError("--num_trials needs Optuna; pip install 'bert-recipes[search]'")
    path = Path(name) if name.endswith((".yaml", ".yml")) else configs / f"{name}.yaml"
    tree, lines = read_tree(path)
    fields = _run_fields()
    grid = {}
    for key, value in tree.items():
        place = f"{path}, line {lines[key]}: {key}"
        if key in RESERVED:
            raise InputError(f"{place} cannot stand in a sweep: {RESERVED[key]}")
        if key not in fields:
            nearest = nearest_name(key.replace("-", "_"), fields)
            raise InputError(f"{place} is no setting{nearest}")
        try:
            grid[key] = _read_values(value, fields[key], is_search)
        except ValueError as error:
            raise InputError(f"{place}: {error}") from error
    check_flags(flags, grid)
    return grid


def _read_values(value: Any, hint: Any, is_search: bool) -> list[str]:
    """Return the values of a setting in a sweep, which its field can read, or a range of them."""
    items = value if isinstance(value, list) else [value]
    values = ["null" if item is None else item for item in items]
    if not values or not all(isinstance(item, str) for item in values):
        raise ValueError("write `field: value` or `field: [value, value]`")
    if is_range(values, hint):
        if not is_search:
            raise ValueError("this is a range; ranges are searched with --num_trials N")
        read_range(values, hint)
        return values
    for text in values:
        read_text(hint, text)
    return values


def is_range(values: Sequence[str], hint: Any) -> bool:
    """Tell whether a list is a range: of numbers, with a scale as its third entry."""
    kinds = set(members(hint))
    takes_numbers = bool(kinds & {int, float}) and not kinds & {bool, str}
    return takes_numbers and len(values) == 3 and values[2] in SCALES


def read_range(values: Sequence[str], hint: Any) -> Any:
    """Return the distribution of Optuna that `[least, greatest, scale]` stands for."""
    from optuna.distributions import FloatDistribution, IntDistribution

    least, greatest, scale = values
    if scale == "int" or float not in members(hint):
        return IntDistribution(int(least), int(greatest), log=scale == "log")
    return FloatDistribution(float(least), float(greatest), log=scale == "log")


def expand_grid(grid: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Return every combination, the last field varying fastest."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def combination_name(settings: Mapping[str, str], varying: Iterable[str]) -> str:
    """Name settings by those that vary, as a folder can be named.

    Example:
        >>> combination_name({"num_train_epochs": "3", "learning_rate": "5e-5"}, ["learning_rate"])
        'learning_rate-5e-5'
    """
    names = [f"{name}-{quote(settings[name], safe='+')}" for name in varying]
    return "_".join(names) or "settings"


# Runs


class RunLauncher(NamedTuple):
    """Start runs with the command that a user would type, and the flags of every run."""

    command: tuple[str, ...]
    flags: tuple[str, ...]
    keeps_checkpoints: bool = False

    def run(self, folder: Path, flags: Sequence[str]) -> dict[str, Any]:
        """Run in a folder, or take what a finished run left there; return all_results.json.

        An interrupted run resumes from its checkpoint, or starts from scratch without one. A
        finished run's checkpoints are removed. What the run prints goes to `FOLDER.log`.
        """
        if folder.exists():
            # A run of a sweep that was killed may still end its step, and save it.
            lock_run(folder, patience=SECONDS_TO_END)
            unlock_run(folder)
        results = read_results(folder)
        restore_replaced(folder)
        if results is not None:
            logger.info("%s: finished before, kept", folder)
            self._remove_checkpoints(folder)
            return results
        if folder.exists() and not any(folder.glob("checkpoint-*")):
            logger.warning("%s: half finished, removed and run again", folder)
            shutil.rmtree(folder)
        command = [*self.command, *replace_flags(self.flags, [*flags, "--output_dir", str(folder)])]
        log = folder.with_name(folder.name + ".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        logger.info("%s  (log: %s)", shlex.join(command), log)
        code = run_process(command, log, group=folder.absolute().parents[1].name)
        results = read_results(folder)
        if code or results is None:
            raise InputError(
                f"the run {folder} failed (exit code {code}: {_last_words(log)}); its log is "
                f"{log}; mend the cause and give the same command again: finished runs are kept. "
                "Other settings or another sweep file need another --output_dir"
            )
        self._remove_checkpoints(folder)
        return results

    def _remove_checkpoints(self, folder: Path) -> None:
        if not self.keeps_checkpoints:
            for checkpoint in folder.glob("checkpoint-*"):
                shutil.rmtree(checkpoint)


def _last_words(log: Path) -> str:
    """Return the last error line of a run, or the last line that it printed."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    for line in reversed(lines):
        if line.startswith("error: "):
            return line.removeprefix("error: ")
    return lines[-1] if lines else "it printed nothing"


def finetuning_command(script: Path, launch: str | None) -> tuple[str, ...]:
    """Return the command without its flags: one process, or accelerate with a configuration.

    The shipped ones for GPUs start a process for each GPU that is seen, as make does.
    """
    if launch is None:
        return (sys.executable, str(script))
    if Path(launch).stem == "ddp_multi_node":
        raise InputError(
            f"launch: {launch} is started on every machine with its own rank, which no sweep can; "
            "start a run of a sweep by itself with it"
        )
    folder = script.parent.parent / "accelerate_configs"
    file = Path(launch) if launch.endswith(".yaml") else folder / f"{launch}.yaml"
    if not file.is_file():
        names = ", ".join(sorted(path.stem for path in folder.glob("*.yaml")))
        raise InputError(f"launch: no configuration {file}; there are: {names}")
    command = [sys.executable, "-m", "accelerate.commands.launch", "--quiet"]
    command += ["--config_file", str(file)]
    # The shipped YAML names this file relative to the repository, which may not be the folder here.
    deepspeed_file = folder / f"{launch}.json"
    if deepspeed_file.is_file():
        command += ["--deepspeed_config_file", str(deepspeed_file)]
    if file.stem == "single_gpu":
        # One process must see one GPU: the first of those that are seen.
        first_gpu, *_ = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")
        command += ["--gpu_ids", first_gpu]
    if re.fullmatch("ddp|fsdp|deepspeed_zero.*", launch):
        # Takes seconds.
        import torch

        num_gpus = torch.cuda.device_count()
        if num_gpus:
            command += ["--num_processes", str(num_gpus)]
    return (*command, str(script))


def read_results(folder: Path) -> dict[str, Any] | None:
    """Return all_results.json of a finished run; None where the folder holds none."""
    file = folder / RESULTS_FILE
    if not file.is_file() or (folder / UNFINISHED_FILE).exists():
        return None
    return read_json_object(file)


def figure_of(results: Mapping[str, Any], key: str) -> float | None:
    """Return a number of all_results.json: NaN where it is null, None where there is none."""
    if key not in results:
        return None
    value = results[key]
    if value is None:
        return math.nan
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None


def claim_folder(folder: Path, file_name: str, settings: Mapping[str, Any]) -> None:
    """Make a folder of runs with one set of settings (`file_name`), for one process at a time."""
    file = folder / file_name
    check_plan(file, settings)
    lock_run(folder, patience=0)
    if file.is_file():  # written by another process in the meantime
        check_plan(file, settings)
    write_json(file, dict(settings))


def check_plan(file: Path, settings: Mapping[str, Any]) -> None:
    """Refuse a folder whose plan (`file`) has other settings, or that holds files but no plan."""
    folder = file.parent
    if not file.is_file():
        check_empty(folder)
        return
    before = read_json_object(file)
    for name, value in settings.items():
        planned = before.get(name, value)  # a plan of an earlier version may lack it
        is_same = planned == value
        if name == "flags":
            is_same = group_flags(planned) == group_flags(value)
        if not is_same:
            raise InputError(
                f"output_dir {folder} is of runs with other settings ({name}: was {planned!r}, is "
                f"{value!r}); give the same settings to resume, or another --output_dir, or remove "
                "the folder"
            )


# The sweep


class Run(NamedTuple):
    """Hold a finished run; of its value larger is better, NaN where training diverged."""

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
        """The run with the greatest value, of equal ones the first."""
        return self.runs[self.values.index(max(self.values))]


def choose_best(combinations: Iterable[Combination]) -> Combination:
    """Return the combination with the greatest median; of equal ones that of the best run.

    With one seed this is the paper's rule: the setting that is best on the development set (Devlin
    et al. 2019, section 4.1). The median over seeds is ours: it is not moved by a run that failed
    to train, of which the paper says that they happen on small data sets. Where half of the runs
    diverged in every combination, no median is a number, and the best run decides.
    """
    return max(combinations, key=lambda entry: (entry.median, max(entry.values)))


def plan_of(
    flags: Sequence[str], grid: Mapping[str, Any], *, is_search: bool = False
) -> dict[str, Any]:
    """Return the plan of a sweep: what all its runs have in common.

    The metric is left out: it only decides which of the runs is the best.
    """
    return {
        "sweep": grid,
        "flags": list(flags),
        "files": hashes_of_files(flags),
        "is_search": is_search,
    }


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
    """Run what is not finished, link FOLDER/best to the best run and write sweep.json and a report.

    A folder that holds a sweep with the same settings is resumed. Seeds may be added, to a search
    trials instead.
    Each run has `FOLDER/<combination>/seed-<seed>`. Without num_trials, of a search with Optuna,
    every combination is run. `report` makes the report of a folder with a sweep.json and returns
    its files, the text first, or none.

    Returns:
        The text of the report.
    """
    settings = plan_of(launcher.flags, grid, is_search=num_trials is not None)
    if num_trials is not None:
        # What a search tries next depends on the medians over the seeds.
        settings["seeds"] = list(seeds)
    claim_folder(folder, PLAN_FILE, settings)
    varying = [name for name, values in grid.items() if len(values) > 1]
    sweep = Sweep(
        folder,
        launcher,
        varying,
        seeds,
        metric,
    )
    if num_trials is None:
        for combination in expand_grid(grid):
            sweep.measure(combination)
    else:
        search(grid, num_trials, sweep.measure)
    sweep.link_best()
    write_json(folder / SWEEP_FILE, {**sweep.describe(), "settings": settings})
    files = report(folder)
    return files[0].read_text(encoding="utf-8") if files else ""


@dataclass
class Sweep:
    """Combinations of settings over seeds.

    Only weights that can still be the best run's are kept: those of the best run of the best
    combination so far, and of the best run of the combination in progress. Results and predictions
    of all runs stay.
    """

    folder: Path
    launcher: RunLauncher
    varying: Sequence[str]
    seeds: Sequence[int]
    metric: str | None  # None: the task's own, which the first run names
    combinations: dict[str, Combination] = field(default_factory=dict)
    # Settings that decide about rows and weights -> the first run with them, and the hashes of its.
    hashes: dict[tuple[str | None, ...], tuple[Path, dict[str, Any]]] = field(default_factory=dict)

    @property
    def best(self) -> Combination:
        """The best of those that are finished."""
        return choose_best(self.combinations.values())

    def measure(self, settings: Mapping[str, str]) -> float:
        """Run a combination with every seed, finished runs are kept; return its median."""
        name = combination_name(settings, self.varying)
        if name in self.combinations:  # a search may propose the same settings again
            return self.combinations[name].median
        combination = Combination(name, settings, [])
        for seed in self.seeds:
            run = self._run(combination, seed)
            combination.runs.append(run)
            logger.info("%s, seed %d: %s %.4g", name, seed, self.metric, run.value)
            _keep_weights(combination.best_run, combination.runs)
        self.combinations[name] = combination
        best_runs = [finished.best_run for finished in self.combinations.values()]
        _keep_weights(self.best.best_run, best_runs)
        return combination.median

    def link_best(self) -> None:
        """Point FOLDER/best to the best run; one whose weights were removed is run again."""
        run = self._best_run()
        repeated = []
        # Its weights were removed before more seeds made it the best.
        while (run.folder / NO_WEIGHTS_FILE).is_file():
            logger.info("%s is the best run now: it is run again, for its weights", run.folder)
            repeated.append(self._run_again(self.best, run))
            # On a GPU the repeated run may score lower.
            run = self._best_run()
        _keep_weights(run, repeated)
        link = self.folder / "best"
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(run.folder, self.folder), target_is_directory=True)

    def _run_again(self, combination: Combination, run: Run) -> Run:
        """Remove a run, and put another one of its seed in its place."""
        shutil.rmtree(run.folder)
        new_run = self._run(combination, run.seed)
        combination.runs[combination.runs.index(run)] = new_run
        return new_run

    def _best_run(self) -> Run:
        run = self.best.best_run
        if math.isnan(run.value):
            raise InputError(
                f"no run of {self.folder} has a metric {self.metric}: all are NaN; lower the "
                "learning rate"
            )
        return run

    def _run(self, combination: Combination, seed: int) -> Run:
        folder = self.folder / combination.name / f"seed-{seed}"
        flags = as_flags(combination.settings)
        flags += ["--seed", str(seed)]
        results = self.launcher.run(folder, flags)
        if self.metric is None:
            self.metric = read_task_file(folder / TASK_FILE).best_metric
        value = figure_of(results, f"eval_{self.metric}")
        if value is None:
            raise InputError(f"{folder}: its results have no metric '{self.metric}'")
        self._check_data(combination, folder, results)
        return Run(seed, folder, value, results)

    def _check_data(
        self, combination: Combination, folder: Path, results: Mapping[str, Any]
    ) -> None:
        """Refuse a run on other rows, or from other weights, than those before it.

        Runs that an earlier call has finished are of what the files held then.
        """
        hashes = {name: split.get("sha256") for name, split in results.get("splits", {}).items()}
        base = results.get("base_model", {})
        hashes["checkpoint"] = base.get("sha256")
        if hashes["checkpoint"] is None:  # weights in several files, of the Hub
            hashes["revision"] = base.get("revision")
        settings = tuple(combination.settings.get(name) for name in _OF_DATA)
        first_folder, first_hashes = self.hashes.setdefault(settings, (folder, hashes))
        changed = []
        for name, value in hashes.items():
            if first_hashes.get(name) is None:  # earlier versions wrote fewer
                first_hashes[name] = value
            elif value not in (None, first_hashes[name]):
                changed.append(name)
        if changed:
            raise InputError(
                f"{folder}: its {', '.join(changed)} is not that of {first_folder}, so the runs "
                "cannot be compared: the files have changed since; give another --output_dir"
            )

    def describe(self) -> dict[str, Any]:
        """Return the sweep as strict JSON: what is not finite is null."""
        best = self.best
        reason = "has the greatest median over the seeds on the development set"
        if math.isinf(best.median):
            reason = "has the best run; half of the seeds or more diverged in every combination"
        described = {
            "metric": self.metric,
            "best": best.name,
            "best_run": os.path.relpath(best.best_run.folder, self.folder),
            "how_chosen": (
                f"{best.name} {reason}; on other examples expect less. Other runs keep their "
                "results and predictions, not their weights."
            ),
            "combinations": [self._describe(entry) for entry in self.combinations.values()],
            "machine": best.best_run.results.get("machine"),
            "date": time.strftime("%Y-%m-%d"),
        }
        return dict(replace_nonfinite(described))

    def _describe(self, combination: Combination) -> dict[str, Any]:
        runs = []
        for run in combination.runs:
            has_weights = not (run.folder / NO_WEIGHTS_FILE).is_file()
            folder = os.path.relpath(run.folder, self.folder)
            runs.append(
                {
                    **run._asdict(),
                    "folder": folder,
                    "has_weights": has_weights,
                }
            )
        values = combination.values
        has_deviation = len(values) > 1 and -math.inf not in values
        return {
            "name": combination.name,
            "settings": combination.settings,
            "median": combination.median,
            "min": min(values),
            "max": max(values),
            "std": statistics.stdev(values) if has_deviation else None,
            "runs": runs,
        }


def _keep_weights(best_run: Run, runs: Iterable[Run]) -> None:
    """Remove the weights of all runs but the best, and say so in a file beside their results."""
    for run in runs:
        if run is best_run:
            continue
        (run.folder / NO_WEIGHTS_FILE).write_text(
            "The weights of this run were removed: a sweep keeps those of its best run only, "
            "in ../../best.\n",
            encoding="utf-8",
        )
        for pattern in WEIGHT_FILES:
            for path in run.folder.glob(pattern):
                _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def search(
    grid: Mapping[str, Sequence[str]],
    num_trials: int,
    measure: Callable[[Mapping[str, str]], float],
) -> None:
    """Try settings with Optuna's TPE; with the same results it proposes the same, so it resumes."""
    import optuna

    fields = _run_fields()
    space: dict[str, Any] = {}
    for name, values in grid.items():
        if is_range(values, fields[name]):
            space[name] = read_range(values, fields[name])
        else:
            space[name] = optuna.distributions.CategoricalDistribution(values)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    for number in range(num_trials):
        trial = study.ask(space)
        settings = {name: _as_text(value) for name, value in trial.params.items()}
        logger.info("trial %d of %d: %s", number + 1, num_trials, settings)
        median = measure(settings)
        # TPE ranks by finite numbers; metrics of this project are never below -1.
        study.tell(trial, median if math.isfinite(median) else -1.0)


def _as_text(value: Any) -> str:
    """Write a setting; three digits of a number are enough to name it and to run it."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
