"""Every combination of a few settings with several seeds, or a search with Optuna; each run is a process of its own."""

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from filelock import FileLock, Timeout

from bert_recipes.checkpointing import SWEEP_FILE
from bert_recipes.config import field_types, members, nearest_name, parse_arguments, read_text, read_tree
from bert_recipes.errors import InputError
from bert_recipes.files import hash_of, strict, write_json
from bert_recipes.finetuning.arguments import FineTuningArguments, TaskArguments, check_access, read_task_file
from bert_recipes.metrics.certainty import half_interval


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
# What keeps a check of flags off the GPU and out of DeepSpeed: whether these work, only the runs can tell.
_ON_THE_CPU = ("--use_cpu", "true", "--precision", "fp32", "--bf16", "false", "--fp16", "false", "--deepspeed", "null")
RESULTS_FILE, PLAN_FILE, BEST_FOLDER, STORAGE_FILE = "all_results.json", "sweep_plan.json", "best", "optuna.journal"
# Written after the predictions: where it is missing, the run was interrupted.
TASK_FILE = "task.yaml"
# Is there until the report, the card and the push are done.
UNFINISHED_FILE = "unfinished"
_SECONDS_TO_END = 20
# What takes the space of a run: the model and whatever its checkpoints hold.
WEIGHT_FILES = ("model*.safetensors", "model.safetensors.index.json", "pytorch_model*.bin", "checkpoint-*")
NO_WEIGHTS_FILE = "weights_removed.txt"
# Metrics of which more is not better, or that say nothing about a model.
_NOT_TO_MAXIMISE = re.compile(r"(^|_)(loss|seconds?|runtime|thresh|number|total|missing)$")
# The words that make a list of three a range, where the field takes numbers only.
SCALES = ("log", "linear", "int")


# Flags


def run_fields() -> dict[str, Any]:
    """Field -> annotation, all those of recipes/finetune.py."""
    return field_types(TaskArguments) | field_types(FineTuningArguments)


def split_flags(
    argv: Sequence[str], names: Iterable[str], *, quoted: Iterable[str] = ()
) -> tuple[list[str], list[str]]:
    """Part a command line into the flags of the given fields and all others, each with its values.

    What follows a field of `quoted` belongs to it, also where it is a flag.

    Example:
        >>> split_flags(["--rte", "--seed=3", "--num_seeds", "3", "--fp16"], ["num_seeds", "rte"], quoted=["rte"])
        (['--rte=--seed=3', '--num_seeds', '3'], ['--fp16'])
    """
    own: list[str] = []
    others: list[str] = []
    target, names = others, {*names, "help"}
    for argument in argv:
        if target and target[-1] in {f"--{name}" for name in quoted}:
            target[-1] += f"={argument}"
            continue
        if given_flags([argument]) or argument == "-h":
            target = own if argument == "-h" or given_flags([argument]) <= names else others
        target.append(argument)
    return own, others


def given_flags(argv: Iterable[str]) -> set[str]:
    """Names of the flags on a command line: `--learning-rate=3e-5` is learning_rate, a quoted value with spaces is none."""
    flags = [argument for argument in argv if re.match(r"--[A-Za-z][\w-]*(=|$)", argument)]
    return {flag.removeprefix("--").split("=")[0].replace("-", "_") for flag in flags}


def flag_value(argv: Sequence[str], name: str) -> str | None:
    """The value of a flag on a command line, the last one where it is given twice; None where it is not given."""
    given = split_flags(argv, [name])[0]
    return given[-1].split("=", 1)[-1] if given else None


def check_flags(argv: Sequence[str], grid: Iterable[str] = ()) -> None:
    """Refuse flags for the runs that the sweep decides itself, or that its grid varies."""
    given = given_flags(argv)
    for name in sorted(given & (RESERVED.keys() - {"config", "task", "task_file"})):
        raise InputError(f"--{name} cannot be given here: {RESERVED[name]}")
    for name in given.intersection(grid):
        raise InputError(f"{name} is in the sweep and on the command line; take it out of one of them")


def check_flag_names(flags: Sequence[str], own: Iterable[str]) -> None:
    """Refuse a misspelt flag before anything runs; fields of the script itself are near misses too."""
    fields = {*run_fields(), "config"}
    for name in sorted(given_flags(flags) - fields):
        raise InputError(f"unknown option --{name}{nearest_name(name, [*fields, *own], prefix='--')}")


def check_run(flags: Sequence[str]) -> None:
    """Read flags as a run would, and see that its task, checkpoint and data are within reach."""
    before = dict(os.environ)
    try:
        # A library prints a line when it is imported; stdout is the report's.
        with redirect_stdout(sys.stderr):
            settings, args = parse_arguments(TaskArguments, FineTuningArguments, argv=[*flags, *_ON_THE_CPU])
    finally:
        # Precision and compilation are handed on in the environment, which the runs inherit.
        os.environ.clear()
        os.environ.update(before)
    if args.push_to_hub:  # of a --config file
        raise InputError(f"push_to_hub is true in it, and every run would be pushed; {RESERVED['push_to_hub']}")
    check_access(settings, with_tests=args.do_predict)


def choose_seeds(num_seeds: int, seeds: Sequence[int] | None) -> list[int]:
    """The seeds 1..num_seeds, or those of a list."""
    chosen = list(range(1, num_seeds + 1)) if seeds is None else list(seeds)
    if not chosen:
        raise InputError(f"num_seeds is {num_seeds}; allowed: 1 or more")
    if len(set(chosen)) < len(chosen):
        raise InputError(f"seeds: {' '.join(map(str, chosen))} holds one twice; each counts once")
    return chosen


def hashes_of_files(flags: Sequence[str]) -> dict[str, str]:
    """SHA-256 of the YAML files that flags name, so that a changed configuration is seen."""
    names = [argument.split("=", 1)[-1] for argument in flags]
    return {name: hash_of(Path(name)) for name in names if name.endswith((".yaml", ".yml")) and Path(name).is_file()}


# The grid


@dataclass(frozen=True)
class Combination:
    """One choice of settings, as text; its folder's name is made of those that vary."""

    name: str
    settings: Mapping[str, str]

    def flags(self) -> list[str]:
        """`--field value` for each setting."""
        return [part for name, value in self.settings.items() for part in (f"--{name}", value)]


def read_sweep(name: str, configs: Path, flags: Sequence[str], *, with_ranges: bool = False) -> dict[str, list[str]]:
    """Read the sweep that a name in `configs` or a YAML file stands for, to be run with these flags."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else configs / f"{name}.yaml"
    if not path.is_file():
        there = ", ".join(sorted(file.stem for file in configs.glob("*.yaml")))
        raise InputError(f"sweep: no file {path}; there are: {there}, or give a YAML file of your own")
    grid = read_grid(path, run_fields(), with_ranges=with_ranges)
    check_flags(flags, grid)
    return grid


def read_grid(path: Path, fields: Mapping[str, Any], *, with_ranges: bool = False) -> dict[str, list[str]]:
    """Read a flat YAML file of `field: value` or `field: [value, value]`; values stay as they are written.

    With `with_ranges`, `[least, greatest, log]` (or `linear`, or `int`) is a range for a field of numbers.
    """
    tree, lines = read_tree(path)
    grid: dict[str, list[str]] = {}
    for name, given in tree.items():
        where = f"{path}, line {lines[name]}"
        if name in RESERVED:
            raise InputError(f"{where}: {name} cannot stand in a sweep: {RESERVED[name]}")
        if name not in fields:
            raise InputError(f"{where}: unknown key {name!r}{nearest_name(name.replace('-', '_'), fields)}")
        if given is None or given == []:
            raise InputError(f"{where}: {name}: no value; give one or a list")
        values = given if isinstance(given, list) else [given]
        if any(isinstance(value, list | dict) for value in values):
            raise InputError(f"{where}: {name}: write `field: value` or `field: [value, value]`")
        grid[name] = ["null" if value is None else value for value in values]
        try:
            if not _is_range(grid[name], fields[name]):
                _check_choices(grid[name], fields[name])
            elif not with_ranges:
                raise ValueError(f"[{', '.join(values)}] is a range; ranges are searched with --num_trials N")
            else:
                read_range(grid[name], fields[name])
        except ValueError as error:
            raise InputError(f"{where}: {name}: {error}") from error
    return grid


def _check_choices(values: Sequence[str], hint: Any) -> None:
    read = [read_text(hint, text) for text in values]
    for text, value in zip(values, read, strict=True):
        if value != value:
            raise ValueError(f"{text} is no number; take it out")
    twice = [text for text, value in zip(values, read, strict=True) if read.count(value) > 1]
    if twice:
        raise ValueError(f"{' and '.join(twice)} are the same value; give each once")


def _is_range(values: Sequence[str], hint: Any) -> bool:
    kinds = set(members(hint))
    return len(values) == 3 and values[2] in SCALES and bool(kinds & {int, float}) and not kinds & {bool, str}


def read_range(values: Sequence[str], hint: Any) -> Any:
    """The distribution of Optuna that `[least, greatest, scale]` stands for."""
    least, greatest = (read_text(hint, text) for text in values[:2])
    written = f"{values[0]} to {values[1]} is no range"
    if None in (least, greatest) or not (math.isfinite(least) and math.isfinite(greatest) and least < greatest):
        raise ValueError(f"{written}; give two numbers, the lesser one first")
    if values[2] == "log" and least <= 0:
        raise ValueError(f"{written} for log; give numbers over 0, or linear")
    if values[2] == "int" and not (float(least).is_integer() and float(greatest).is_integer()):
        raise ValueError(f"{written} for int; give whole numbers, or linear")
    _check_optuna()
    from optuna.distributions import FloatDistribution, IntDistribution

    if values[2] == "int" or float not in members(hint):
        return IntDistribution(int(least), int(greatest), log=values[2] == "log")
    return FloatDistribution(least, greatest, log=values[2] == "log")


def expand_grid(grid: Mapping[str, Sequence[str]]) -> list[Combination]:
    """Every combination, the last field varying fastest.

    Example:
        >>> [c.name for c in expand_grid({"num_train_epochs": ["3"], "learning_rate": ["5e-5", "3e-5"]})]
        ['learning_rate-5e-5', 'learning_rate-3e-5']
    """
    varying = [name for name, values in grid.items() if len(values) > 1]
    return [
        make_combination(dict(zip(grid, values, strict=True)), varying) for values in itertools.product(*grid.values())
    ]


def make_combination(settings: Mapping[str, str], varying: Iterable[str]) -> Combination:
    """Name a choice of settings by those that vary; different choices have different names."""
    parts = []
    for name in varying:
        value = re.sub(r"[^A-Za-z0-9.+-]", "-", settings[name])
        # A value that cannot stay as it is gets a few digits of its hash, so that it is unique.
        digits = "" if value == settings[name] else f"-{hashlib.sha256(settings[name].encode()).hexdigest()[:6]}"
        parts.append(f"{name}-{value}{digits}")
    return Combination("_".join(parts) or "settings", dict(settings))


def first_flags(grid: Mapping[str, Sequence[str]]) -> list[str]:
    """`--field value` for the first value of each field."""
    return [part for name, values in grid.items() for part in (f"--{name}", values[0])]


# Runs


@dataclass(frozen=True)
class FineTuning:
    """How a fine-tuning run is started: exactly the command that a user would type, and the flags of every run."""

    command: tuple[str, ...]
    flags: tuple[str, ...]

    def run(self, folder: Path, flags: Sequence[str]) -> dict[str, Any]:
        """Run in a folder, or take what a finished run left there; return all_results.json.

        An interrupted run resumes from its checkpoint, or starts from scratch without one. A finished run's checkpoints are
        removed. What the run prints goes to `FOLDER.log`.
        """
        results = read_results(folder)
        if results is not None:
            logger.info("%s: finished before, kept", folder)
            return results
        if any(folder.glob("checkpoint-*")):
            logger.warning("%s: half finished, resumed", folder)
        elif folder.exists():
            logger.warning("%s: half finished, removed and run again", folder)
            shutil.rmtree(folder)
        command = [*self.command, *self.flags, *flags, "--output_dir", str(folder)]
        log = folder.with_name(folder.name + ".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        logger.info("%s  (log: %s)", shlex.join(command), log)
        start = time.perf_counter()
        code = _run_process(command, log, group=folder.absolute().parents[1].name)
        results = read_results(folder) if code == 0 else None
        if results is None:
            reason = f"exit code {code}: {_last_words(log)}" if code else f"it left no {RESULTS_FILE} and {TASK_FILE}"
            raise InputError(
                f"the run {folder} failed ({reason}); its log is {log}; mend the cause and give the same command again: "
                "finished runs are kept"
            )
        for checkpoint in folder.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)
        logger.info("%s: finished in %.0f s", folder, time.perf_counter() - start)
        return results


def finetuning_command(script: Path, launch: str | None) -> tuple[str, ...]:
    """The command without its flags: by accelerate's launcher with a configuration, or as one process without it."""
    if launch is None:
        return (sys.executable, str(script))
    folder = script.parent.parent / "accelerate_configs"
    file = Path(launch) if launch.endswith(".yaml") else folder / f"{launch}.yaml"
    if not file.is_file():
        there = ", ".join(sorted(path.stem for path in folder.glob("*.yaml")))
        raise InputError(f"launch: no configuration {file}; there are: {there}")
    launcher = (sys.executable, "-m", "accelerate.commands.launch", "--quiet", "--config_file", str(file))
    return (*launcher, str(script))


def read_results(folder: Path) -> dict[str, Any] | None:
    """all_results.json of a finished run; None where the folder holds none."""
    if not (folder / TASK_FILE).is_file() or (folder / UNFINISHED_FILE).exists():
        return None
    try:
        results = json.loads((folder / RESULTS_FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return results if isinstance(results, dict) else None


def figure_of(results: Mapping[str, Any], key: str) -> float | None:
    """A metric of all_results.json; NaN where it is null, as not defined, and None where it is not there."""
    value = results.get(key)
    if value is None:
        return math.nan if key in results else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def end_with_children() -> None:
    """Make SIGTERM and SIGHUP end this process as Ctrl-C does, so that the run in progress ends too.

    SIGHUP, which a closed terminal sends, stays without effect where nohup made it so.
    """
    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        # A second one (the shell and the kernel both send SIGHUP) must not stop the ending of the run.
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    for each in numbers:
        signal.signal(each, interrupt)


def _run_process(command: Sequence[str], log: Path, group: str) -> int:
    """Run to the end in a process group of its own, which ends with this process unless that is killed by SIGKILL."""
    # Under its name wandb, where `report_to` names it, shows the runs together.
    environment = {"WANDB_RUN_GROUP": group, **os.environ}
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
        )
        try:
            return process.wait()
        except BaseException:
            # The launcher's children too: a run that stays alive would write into a folder that is run again.
            for number in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, number)
                    process.wait(timeout=_SECONDS_TO_END)
                    break
                except subprocess.TimeoutExpired:
                    logger.warning("process %d does not end by itself", process.pid)
                except ProcessLookupError:
                    break
            raise


def _last_words(log: Path) -> str:
    """The run's own error line, or the last line that it printed."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or ["it printed nothing"])[-1]


@contextmanager
def claimed_folder(folder: Path, file_name: str, settings: Mapping[str, Any]) -> Iterator[None]:
    """A folder of runs that belongs to one set of settings, written down in `file_name`, and to one process at a time."""
    file, settings = folder / file_name, dict(settings)
    if folder.is_file():
        raise InputError(f"output_dir {folder} is a file; give a folder")
    if not file.is_file() and folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"output_dir {folder} holds files and no {file_name}; give another --output_dir")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            _check_same_settings(folder, file, settings)
            yield
    except Timeout:
        raise InputError(f"output_dir {folder}: another process works in it; wait for its end") from None
    (folder / ".lock").unlink(missing_ok=True)


def _check_same_settings(folder: Path, file: Path, settings: Mapping[str, Any]) -> None:
    before: Any = None
    if file.is_file():
        try:
            before = json.loads(file.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise InputError(f"{file}: not valid JSON ({error}); give another --output_dir") from error
    changed = [name for name, value in settings.items() if before is not None and before.get(name) != value]
    if changed:
        if any(read_results(path.parent) is not None for path in folder.rglob(TASK_FILE)):
            was, now = _first_difference(before.get(changed[0]), settings[changed[0]])
            raise InputError(
                f"output_dir {folder} holds runs with other settings ({changed[0]}: was {was}, is {now}); "
                "give the same settings to resume, or another --output_dir"
            )
        logger.info("%s: no run was finished with the settings of before; those of now replace them", folder)
        for half in list(folder.rglob("run.yaml")):
            shutil.rmtree(half.parent, ignore_errors=True)  # a checkpoint has the file too
    if before is None or changed:
        write_json(file, settings)


def _first_difference(before: Any, now: Any) -> tuple[str, str]:
    """What differs, in short: of two lists or mappings the first parts that do."""
    if isinstance(before, dict) and isinstance(now, dict):
        name = next(key for key in [*before, *now] if before.get(key) != now.get(key))
        return f"{name} {json.dumps(before.get(name))}", f"{name} {json.dumps(now.get(name))}"
    if isinstance(before, list) and isinstance(now, list):
        return " ".join(map(str, before)) or "nothing", " ".join(map(str, now)) or "nothing"
    return json.dumps(before), json.dumps(now)


# The sweep


@dataclass(frozen=True)
class Run:
    """One finished run; of its value larger is better, NaN where training diverged."""

    seed: int
    folder: Path
    value: float
    results: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Summary:
    """A combination over its seeds; a run that is NaN counts as worse than every number."""

    combination: Combination
    runs: tuple[Run, ...]

    @property
    def values(self) -> list[float]:
        """The runs' values, NaN as minus infinity."""
        return [-math.inf if math.isnan(run.value) else run.value for run in self.runs]

    @property
    def median(self) -> float:
        """Median over the seeds; the mean of the middle two for an even number."""
        return statistics.median(self.values)

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation over the seeds (n - 1); None for one seed or where a run is NaN."""
        values = self.values
        return statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None

    @property
    def best_run(self) -> Run:
        """The run with the greatest value; of equal ones the one with the earliest seed in the list."""
        return max(zip(self.values, self.runs, strict=True), key=lambda pair: pair[0])[1]


def choose_best(summaries: Sequence[Summary]) -> Summary:
    """The combination with the greatest median; of equal ones the first, so that the grid's order decides.

    With one seed this is the paper's rule: the setting that is best on the development set (Devlin et al. 2019,
    section 4.1). The median over seeds is ours: it is not moved by a run that failed to train, of which the paper says
    that they happen on small data sets.
    """
    return max(summaries, key=lambda summary: summary.median)


class Sweep:
    """Combinations of settings over seeds, each run in `FOLDER/<combination>/seed-<seed>`.

    Only weights that can still be the best run's are kept: those of the best run of the best combination so far, and of the
    best run of the combination in progress. Results and predictions of all runs stay.
    """

    def __init__(self, folder: Path, finetuning: FineTuning, seeds: Sequence[int], metric: str | None = None) -> None:
        if metric is not None and _NOT_TO_MAXIMISE.search(metric):
            raise InputError(f"metric is '{metric}'; allowed: metrics of which more is better, as accuracy or f1")
        self.folder, self.finetuning, self.seeds, self.metric = folder, finetuning, list(seeds), metric
        self.summaries: list[Summary] = []

    def measure(self, combination: Combination) -> Summary:
        """Run a combination with every seed; finished runs are kept."""
        known = next((summary for summary in self.summaries if summary.combination.name == combination.name), None)
        if known is not None:
            return known
        runs: list[Run] = []
        for seed in self.seeds:
            runs.append(self._run(combination, seed))
            value = format_figure(runs[-1].value)
            logger.info("%s, seed %d: %s %s", combination.name, seed, self.metric, value)
            self._drop_weights(Summary(combination, tuple(runs)).best_run, [run.folder for run in runs])
        summary = Summary(combination, tuple(runs))
        self.summaries.append(summary)
        self._drop_weights(choose_best(self.summaries).best_run, [s.best_run.folder for s in self.summaries])
        return summary

    def finish(self) -> Summary:
        """Point FOLDER/best to the best run of the best combination, which is returned.

        A best run whose weights were removed, which can be so after seeds were added to a finished sweep, is run again.
        """
        best = choose_best(self.summaries)
        run, link = best.best_run, self.folder / BEST_FOLDER
        if math.isnan(run.value):
            raise InputError(
                f"no run of {self.folder} has a metric {self.metric}: all are NaN; lower the learning rate"
            )
        if (run.folder / NO_WEIGHTS_FILE).is_file():
            logger.info("%s is the best run now and its weights were removed: it is run again", run.folder)
            shutil.rmtree(run.folder)
            self._run(best.combination, run.seed)
        if link.is_symlink():
            link.unlink()
        elif link.exists():
            shutil.rmtree(link)
        try:
            link.symlink_to(os.path.relpath(run.folder, link.parent), target_is_directory=True)
        except OSError as error:
            logger.info("%s: no links here (%s), copied instead", link, error.strerror)
            shutil.copytree(run.folder, link)
        return best

    def _run(self, combination: Combination, seed: int) -> Run:
        folder = self.folder / combination.name / f"seed-{seed}"
        results = self.finetuning.run(folder, [*combination.flags(), "--seed", str(seed)])
        if self.metric is None:
            self.metric = read_task_file(folder / TASK_FILE).best_metric
        value = figure_of(results, f"eval_{self.metric}")
        if value is None:
            names = sorted(name.removeprefix("eval_") for name in results if name.startswith("eval_"))
            there = ", ".join(name for name in names if not _NOT_TO_MAXIMISE.search(name))
            raise InputError(f"{folder}: its results have no metric '{self.metric}'; give --metric one of: {there}")
        return Run(seed, folder, value, results)

    def _drop_weights(self, kept: Run, folders: Sequence[Path]) -> None:
        """Remove the weights of finished runs and say so in a file beside their results."""
        for folder in folders:
            paths = [path for pattern in WEIGHT_FILES for path in folder.glob(pattern)]
            if folder == kept.folder or not paths or read_results(folder) is None:
                continue
            text = "The weights of this run were removed: a sweep keeps those of its best run only, in ../../best.\n"
            (folder / NO_WEIGHTS_FILE).write_text(text, encoding="utf-8")
            for path in paths:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()


def run_sweep(
    folder: Path,
    finetuning: FineTuning,
    grid: dict[str, list[str]],
    seeds: Sequence[int],
    report: Callable[[Path], Sequence[Path]],
    *,
    metric: str | None = None,
    num_trials: int | None = None,
) -> str:
    """Run what is not finished, point FOLDER/best to the best run and write sweep.json and the report; return its text.

    A folder that holds a sweep with the same settings is resumed; seeds and trials may be added.

    Args:
        folder: The sweep's folder.
        finetuning: How a run is started, with the flags of all runs.
        grid: Of `read_sweep`.
        seeds: Of every combination.
        report: Makes the report of a folder with a sweep.json; gives its files, the text first, or none.
        metric: Decides; None: the one that the task's row names.
        num_trials: Search with Optuna until so many are measured; None: every combination.
    """
    sweep = Sweep(folder, finetuning, seeds, metric)
    check_run([*finetuning.flags, *first_flags(grid)])
    # Not the metric: another one chooses another run of the same.
    settings = {
        "sweep": grid,
        "flags": list(finetuning.flags),
        "files": hashes_of_files(finetuning.flags),
        "is_search": num_trials is not None,
    }
    with claimed_folder(folder, PLAN_FILE, settings):
        if num_trials is not None:
            search(folder, grid, num_trials, sweep.measure, name=f"search for {metric}")
        else:
            for combination in expand_grid(grid):
                sweep.measure(combination)
        best = sweep.finish()
        content = describe_sweep(folder, sweep.summaries, best, str(sweep.metric)) | {"settings": settings}
        write_json(folder / SWEEP_FILE, content)
        files = report(folder)
        return files[0].read_text(encoding="utf-8") if files else ""


def search(
    folder: Path,
    grid: Mapping[str, Sequence[str]],
    num_trials: int,
    measure: Callable[[Combination], Summary],
    *,
    name: str,
    seed: int = 0,
) -> None:
    """Try settings with Optuna's TPE until num_trials are measured, those of earlier calls with the same name counted.

    An interrupted trial is tried again, with the same settings. Diverged trials count as the worst.
    """
    if num_trials < 1:
        raise InputError(f"num_trials is {num_trials}; allowed: 1 or more")
    _check_optuna()
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalStorage
    from optuna.trial import TrialState as states

    hints = run_fields()
    space = {
        field_name: read_range(values, hints[field_name])
        if _is_range(values, hints[field_name])
        else optuna.distributions.CategoricalDistribution(list(values))
        for field_name, values in grid.items()
    }
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        study_name=f"{name} {dict(grid)}",
        direction="maximize",
        storage=JournalStorage(JournalFileBackend(str(folder / STORAGE_FILE))),
        load_if_exists=True,
    )
    # A sampler that starts from scratch with the same seed would propose what was tried before.
    study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials))
    for before in study.get_trials(deepcopy=False, states=(states.RUNNING,)):
        if len(before.params) == len(space):
            study.enqueue_trial(before.params)
        study.tell(before.number, state=states.FAIL)
    # What was measured before is read again, so that the report holds every trial.
    for before in study.get_trials(deepcopy=False, states=(states.COMPLETE,)):
        measure(drawn_combination(grid, before.params))
    while (done := len(study.get_trials(deepcopy=False, states=(states.COMPLETE,)))) < num_trials:
        trial = study.ask(space)
        combination = drawn_combination(grid, trial.params)
        logger.info("trial %d of %d: %s", done + 1, num_trials, combination.name)
        median = measure(combination).median
        # TPE ranks by finite numbers; metrics of this project are never below -1.
        study.tell(trial, median if math.isfinite(median) else -1.0)


def _check_optuna() -> None:
    if find_spec("optuna") is None:
        raise InputError("--num_trials needs Optuna; pip install 'bert-recipes[search]'")


def drawn_combination(grid: Mapping[str, Sequence[str]], params: Mapping[str, Any]) -> Combination:
    """A trial's settings: three digits of a number are enough to name it and to run it; whole ones are written out."""
    settings = {}
    for name in grid:
        value = params[name]
        if isinstance(value, float):
            value = float(f"{value:.3g}")
            value = int(value) if value.is_integer() else f"{value:.3g}"
        settings[name] = str(value)
    return make_combination(settings, [name for name, values in grid.items() if len(values) > 1])


# What sweep.json says


def format_figure(value: float) -> str:
    """Four digits; NaN in words."""
    return "NaN" if math.isnan(value) else f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}"


def describe_sweep(folder: Path, summaries: Sequence[Summary], best: Summary, metric: str) -> dict[str, Any]:
    """The sweep as strict JSON: what is not finite is null."""
    diverged = sum(math.isnan(run.value) for run in best.runs)
    rule = f"the greatest median of {len(best.runs)} seeds" if len(best.runs) > 1 else f"the greatest {metric}"
    how_chosen = (
        f"{best.combination.name} has {rule} on the development set (of equal ones the first); `best` is its run with seed "
        f"{best.best_run.seed}, {metric} {format_figure(best.best_run.value)}. It was chosen on the examples that it is measured "
        "on: on others expect less. Other runs keep their results and predictions, not their weights."
        + (f" Runs of it that diverged: {diverged}." if diverged else "")
    )
    combinations = [
        {
            "name": summary.combination.name,
            "settings": dict(summary.combination.settings),
            "median": summary.median,
            "min": min(summary.values),
            "max": max(summary.values),
            "std": summary.deviation,
            "runs": [
                {
                    "seed": run.seed,
                    "folder": os.path.relpath(run.folder, folder),
                    "value": run.value,
                    "has_weights": not (run.folder / NO_WEIGHTS_FILE).is_file(),
                    "results": run.results,
                }
                for run in summary.runs
            ],
        }
        for summary in summaries
    ]
    described: dict[str, Any] = strict(
        {
            "metric": metric,
            "best": best.combination.name,
            "best_run": os.path.relpath(best.best_run.folder, folder),
            "how_chosen": how_chosen,
            "lead": describe_lead(summaries, best, metric),
            "combinations": combinations,
            "machine": best.best_run.results.get("machine"),
            "date": time.strftime("%Y-%m-%d"),
        }
    )
    return described


def describe_lead(summaries: Sequence[Summary], best: Summary, metric: str) -> str:
    """How far the next combination is, beside the seeds and the rows that were measured; "" without a next one."""
    others = [each for each in summaries if each is not best and math.isfinite(each.median)]
    if not others:
        return ""
    second = max(others, key=lambda each: each.median)
    lead, half = best.median - second.median, [half_interval(metric, each.best_run.results) for each in (best, second)]
    splits: Any = best.best_run.results.get("splits") or {}
    rows = [entry["examples"] for name, entry in splits.items() if name.startswith("validation")]
    examples = f" ({lead * rows[0]:.0f} of {rows[0]:,} examples)" if metric == "accuracy" and len(rows) == 1 else ""
    message = f"{best.combination.name} and {second.combination.name} are {format_figure(lead)} apart{examples}"
    if len(best.runs) > 1 and min(best.values) <= max(second.values):
        return f"Not resolved: {message}, and their seeds overlap."
    if lead <= math.hypot(*half):
        return f"Not resolved: {message}, no more than the 95% intervals of the measured rows."
    return message + (", more than the 95% intervals of the measured rows." if all(half) else ".")
