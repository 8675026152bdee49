"""Fine-tuning runs as processes of their own, one after another, finished ones kept."""

from __future__ import annotations

import json
import logging
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from filelock import FileLock, Timeout

from bert_recipes.errors import InputError
from bert_recipes.file_hash import hash_of
from bert_recipes.whole_files import write_json


logger = logging.getLogger(__name__)

RESULTS_FILE = "all_results.json"
# Written after the predictions: where it is missing, the run was interrupted.
TASK_FILE = "task.yaml"
# Is there until the report, the card and the push are done.
UNFINISHED_FILE = "unfinished"
_SECONDS_TO_END = 20


@dataclass(frozen=True)
class FineTuning:
    """How a fine-tuning run is started: exactly the command that a user would type.

    Attributes:
        command: The interpreter, the launcher where there is one, and the script.
        flags: What every run is given.
    """

    command: tuple[str, ...]
    flags: tuple[str, ...]

    def run(self, folder: Path, flags: Sequence[str]) -> dict[str, Any]:
        """Run in a folder, or take what a finished run left there.

        A folder without all_results.json and task.yaml is what an interruption left: the run goes on from its checkpoint, or
        begins anew without one. A finished run's checkpoints are removed. What the run prints goes to `FOLDER.log`.

        Args:
            folder: output_dir of the run.
            flags: Its own flags.

        Returns:
            all_results.json.
        """
        results = read_results(folder)
        if results is not None:
            logger.info("%s: finished before, kept", folder)
            return results
        if any(folder.glob("checkpoint-*")):
            logger.warning("%s: half finished, goes on", folder)
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
    """The command without its flags.

    Args:
        script: finetune.py.
        launch: A configuration of accelerate, by its name in accelerate_configs/ or as a file; None: one process without
            the launcher.
    """
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
    """A figure of all_results.json; NaN where it is null, as not defined, and None where it is not there."""
    if key not in results or results[key] is None:
        return math.nan if key in results else None
    value = results[key]
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def hashes_of_files(flags: Sequence[str]) -> dict[str, str]:
    """SHA-256 of the YAML files that flags name, so that a changed configuration is seen."""
    names = [
        value for argument in flags for value in [argument.split("=", 1)[-1]] if value.endswith((".yaml", ".yml"))
    ]
    return {name: hash_of(Path(name)) for name in names if Path(name).is_file()}


class claimed_folder:
    """A folder of runs that belongs to one set of settings and to one process at a time.

    Args:
        folder: The folder; made where it is missing.
        file_name: Where the settings are written down.
        settings: What every run in the folder has in common, as JSON.

    Raises:
        InputError: The folder holds finished runs with other settings, foreign files, or another process works in it.

    Example:
        >>> with claimed_folder(Path("runs/sweep"), "plan.json", {"flags": []}):  # doctest: +SKIP
        ...     run_everything()
    """

    def __init__(self, folder: Path, file_name: str, settings: Mapping[str, Any]) -> None:
        self.folder, self.file, self.settings = folder, folder / file_name, dict(settings)

    def __enter__(self) -> None:
        if self.folder.is_file():
            raise InputError(f"output_dir {self.folder} is a file; give a folder")
        if not self.file.is_file() and self.folder.is_dir() and any(self.folder.iterdir()):
            raise InputError(
                f"output_dir {self.folder} holds files and no {self.file.name}; give another --output_dir"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(self.folder / ".lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise InputError(f"output_dir {self.folder}: another process works in it; wait for its end") from None
        try:
            self._compare()
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        (self.folder / ".lock").unlink(missing_ok=True)

    def _compare(self) -> None:
        if not self.file.is_file():
            write_json(self.file, self.settings)
            return
        try:
            before = json.loads(self.file.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise InputError(f"{self.file}: not valid JSON ({error}); give another --output_dir") from error
        name = next((name for name, value in self.settings.items() if before.get(name) != value), None)
        if name is None:
            return
        if any(read_results(file.parent) is not None for file in self.folder.rglob(TASK_FILE)):
            was, now = _first_difference(before.get(name), self.settings[name])
            raise InputError(
                f"output_dir {self.folder} holds runs with other settings ({name}: was {was}, is {now}); "
                "give the same settings to go on, or another --output_dir"
            )
        logger.info("%s: no run was finished with the settings of before; those of now replace them", self.folder)
        for half in list(self.folder.rglob("run.yaml")):
            shutil.rmtree(half.parent, ignore_errors=True)  # a checkpoint has the file too
        write_json(self.file, self.settings)


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
    """Run to the end in a process group of its own, which ends with this process unless that is killed by SIGKILL.

    Args:
        command: What is run.
        log: Gets what it prints.
        group: Under which wandb, where `report_to` names it, shows the runs together.
    """
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
            # The launcher's children too: a run that goes on alone would write into a folder that is run anew.
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


def _first_difference(before: Any, now: Any) -> tuple[str, str]:
    """What differs, in short: of two lists or mappings the first parts that do."""
    if isinstance(before, dict) and isinstance(now, dict):
        name = next(key for key in [*before, *now] if before.get(key) != now.get(key))
        return f"{name} {json.dumps(before.get(name))}", f"{name} {json.dumps(now.get(name))}"
    if isinstance(before, list) and isinstance(now, list):
        return " ".join(map(str, before)) or "nothing", " ".join(map(str, now)) or "nothing"
    return json.dumps(before), json.dumps(now)
