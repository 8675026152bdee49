"""The zip that GLUE's leaderboard takes, checked before it is written.

Source: gluebenchmark.com/faq and the sample submission: eleven TSV files with the header `index<TAB>prediction`, names of labels
for MNLI, QNLI, RTE and AX, numbers for the rest.
"""

from __future__ import annotations

import json
import logging
import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_recipes.errors import InputError, saving
from bert_recipes.sweeps.subruns import figure_of, read_results
from bert_recipes.tasks.registry import get_task
from bert_recipes.tasks.task import Task
from bert_recipes.whole_files import written_aside


logger = logging.getLogger(__name__)

TASKS = ("cola", "sst2", "mrpc", "stsb", "mnli", "qnli", "qqp", "rte", "wnli", "ax")
# Their files hold names of labels, all others numbers.
TASKS_WITH_NAMES = ("mnli", "qnli", "rte", "ax")
# Tasks whose predictions come from another task's model -> that task.
PREDICTED_BY = {"ax": "mnli"}
# The oldest date that a zip can hold: the same predictions are the same bytes.
_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class SubmissionFile:
    """One TSV file of the zip, its content still to come.

    Attributes:
        name: As the leaderboard wants it.
        task: Row.
        num_rows: Rows of the published test split.
        source: Predictions; None where the task is missing.
    """

    name: str
    task: Task
    num_rows: int
    source: Path | None


def find_runs(folders: Sequence[Path]) -> dict[str, Path]:
    """Find the run of each task.

    Args:
        folders: Runs, sweeps (their best run is taken), folders with one run a seed (the best on the development set is
            taken), or folders of any of these, as recipes/glue_all.py makes them.

    Returns:
        Task -> folder of its run, GLUE's tasks only.

    Raises:
        InputError: A folder holds no finished run, or two hold one task.
    """
    found: dict[str, Path] = {}
    for folder in folders:
        runs = list(_runs_below(folder))
        if not runs:
            raise InputError(f"{folder}: no finished run of recipes/finetune.py here; give runs or folders of runs")
        for run in runs:
            name = _task_name(run)
            if name not in TASKS:
                raise InputError(f"{run}: task '{name}' is none of GLUE's; leave it out")
            if name in found and found[name].resolve() != run.resolve():
                raise InputError(f"two runs of {name}: {found[name]} and {run}; give one of them")
            found[name] = run
    return found


def plan_files(runs: Mapping[str, Path]) -> list[SubmissionFile]:
    """The eleven files in the order of their names, each with its source where there is one."""
    files = []
    for name in TASKS:
        task = get_task(name)
        run = runs.get(PREDICTED_BY.get(name, name))
        for split, file_name in task.submission_files.items():
            stem = name if name in PREDICTED_BY else split
            source = None if run is None else run / f"predictions_{stem}.jsonl"
            files.append(SubmissionFile(file_name, task, task.published_rows[split], source))
    return sorted(files, key=lambda file: file.name)


def render(file: SubmissionFile) -> tuple[str, int]:
    """Check predictions and write them as the leaderboard's TSV.

    Args:
        file: With its source; without one every row gets the first label, or 0.

    Returns:
        The text, and how many scores lay outside of the task's range and were moved to its end (STS-B: 0 to 5, as the
        formatters of GLUE's authors do).

    Raises:
        InputError: Rows that are missing or too many, out of order, or no valid prediction; the message names the line.
    """
    if file.source is None:
        rows: Iterator[tuple[str, bool]] = ((_default(file.task), False) for _ in range(file.num_rows))
    else:
        rows = (_read_row(file, number, line) for number, line in enumerate(_lines(file)))
    lines, num_clipped = ["index\tprediction\n"], 0
    for number, (text, is_clipped) in enumerate(rows):
        lines.append(f"{number}\t{text}\n")
        num_clipped += is_clipped
    if len(lines) - 1 != file.num_rows:
        raise InputError(
            f"{file.source}: {len(lines) - 1} predictions; {file.name} needs the published test split's {file.num_rows}: "
            "predict all of it (--do_predict true, no --max_predict_examples)"
        )
    return "".join(lines), num_clipped


def write_submission(path: Path, runs: Mapping[str, Path], *, fill_missing: bool = False) -> dict[str, str]:
    """Write the zip, after everything was checked, as a whole or not at all.

    Args:
        path: The zip.
        runs: Task -> folder of its run.
        fill_missing: Fill the files of missing tasks with one constant, so that the others can be scored.

    Returns:
        File -> what it was made of, in words.

    Raises:
        InputError: A task or its test predictions are missing, a prediction is wrong, or the zip cannot be written.
    """
    if path.is_dir():
        raise InputError(f"output_file {path} is a folder; give a file, as {path / 'submission.zip'}")
    files = plan_files(runs)
    missing = [file for file in files if file.source is None or not file.source.is_file()]
    if missing and not fill_missing:
        raise InputError(_describe_missing(missing))
    made_of, texts = {}, {}
    for file in files:
        filled = SubmissionFile(file.name, file.task, file.num_rows, None) if file in missing else file
        texts[file.name], num_clipped = render(filled)
        made_of[file.name] = f"{file.num_rows:,} rows, " + (
            "FILLED with one constant: no predictions" if file in missing else f"from {file.source}"
        )
        if num_clipped:
            made_of[file.name] += f", {num_clipped:,} scores moved into the range of the labels"
    _write_zip(path, texts)
    return made_of


def _write_zip(path: Path, texts: Mapping[str, str]) -> None:
    with saving(path), written_aside(path) as aside, zipfile.ZipFile(aside, "w") as archive:
        for name, text in texts.items():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            entry.create_system = 3
            archive.writestr(entry, text.encode("ascii"), compresslevel=9)


def _runs_below(folder: Path) -> Iterator[Path]:
    """Finished runs of a folder; of a sweep or of several seeds the best one, of other folders those of their folders."""
    if read_results(folder) is not None:
        yield folder
    elif read_results(folder / "best") is not None:
        yield folder / "best"
    else:
        seeds = [path for path in sorted(folder.glob("seed-*")) if read_results(path) is not None]
        if seeds:
            yield max(seeds, key=_dev_figure)
        elif folder.is_dir():
            for path in sorted(folder.iterdir()):
                if path.is_dir() and not path.name.startswith("."):
                    yield from _runs_below(path)


def _dev_figure(run: Path) -> float:
    value = figure_of(read_results(run) or {}, f"eval_{get_task(_task_name(run)).best_metric}")
    return -math.inf if value is None or math.isnan(value) else value


def _task_name(run: Path) -> str:
    return str((read_results(run) or {}).get("task"))


def _describe_missing(missing: Sequence[SubmissionFile]) -> str:
    without_run = [file.name for file in missing if file.source is None]
    without_file = [str(file.source) for file in missing if file.source is not None]
    parts = [f"no run for {', '.join(without_run)}"] if without_run else []
    if without_file:
        parts.append(f"no file {', '.join(without_file)}: run it with --do_predict true")
    return (
        f"{'; '.join(parts)}; the leaderboard takes all eleven files: add what is missing, or give --fill_missing true to "
        "fill it with a constant"
    )


def _lines(file: SubmissionFile) -> Iterator[str]:
    assert file.source is not None
    with file.source.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                byte = f"byte 0x{line[error.start]:02x}"
                raise InputError(f"{file.source}, line {number}: not UTF-8 ({byte}); predict again") from error


def _read_row(file: SubmissionFile, number: int, line: str) -> tuple[str, bool]:
    """One prediction as it stands in the TSV, and whether it was moved into the range."""
    where = f"{file.source}, line {number + 1}"
    try:
        row = json.loads(line)
        idx, prediction = row["idx"], row["prediction"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise InputError(f"{where}: expected an object with idx and prediction ({error!r}); predict again") from error
    if type(idx) is not int or idx != number:
        raise InputError(
            f"{where}: idx is {idx!r}, expected {number}: a row is missing, twice or out of order; predict again"
        )
    return _value(file.task, prediction, where)


def _value(task: Task, prediction: Any, where: str) -> tuple[str, bool]:
    if task.problem_type == "regression":
        if isinstance(prediction, bool) or not isinstance(prediction, int | float) or not math.isfinite(prediction):
            raise InputError(f"{where}: the score is {prediction!r}; allowed: a finite number")
        least, greatest = task.label_range or (-math.inf, math.inf)
        # Three decimals as in those formatters; + 0.0 makes zero of minus zero.
        return f"{min(max(prediction, least), greatest) + 0.0:.3f}", not least <= prediction <= greatest
    if not isinstance(prediction, str) or prediction not in task.labels:
        raise InputError(f"{where}: the prediction is {prediction!r}; allowed: {', '.join(task.labels)}")
    return prediction if task.name in TASKS_WITH_NAMES else str(task.labels.index(prediction)), False


def _default(task: Task) -> str:
    """A valid prediction that says nothing."""
    return _value(task, 0.0 if task.problem_type == "regression" else task.labels[0], task.name)[0]
