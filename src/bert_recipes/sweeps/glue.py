"""Write the table of all of GLUE beside the paper's, and the zip that the leaderboard takes.

Source of the zip: gluebenchmark.com/faq and the sample submission: eleven TSV files with the header
`index<TAB>prediction`, names of labels for MNLI, QNLI, RTE and AX, numbers for the rest.
"""

import json
import math
import shlex
import statistics
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_recipes.errors import InputError, saving
from bert_recipes.files import atomic_write, read_json_object, replace_nonfinite, write_json
from bert_recipes.run_folder import SWEEP_FILE
from bert_recipes.sweeps.sweep import CheckedRun
from bert_recipes.tasks.catalogue import get_task
from bert_recipes.tasks.sources import check_source
from bert_recipes.tasks.task import Task


# GLUE's nine tasks in the order in which they are run: the quick ones first.
TASKS = ("wnli", "rte", "mrpc", "stsb", "cola", "sst2", "qnli", "mnli", "qqp")
# Their files in the zip hold names of labels, all others numbers.
TASKS_WITH_NAMES = ("mnli", "qnli", "rte", "ax")


class Column(NamedTuple):
    """A column of the paper's Table 1: a figure of a task."""

    title: str
    task: str
    figure: str = "accuracy"
    split: str = "validation"


# Source: Devlin et al. 2019, Table 1 and its caption: F1 for QQP and MRPC, Spearman for STS-B,
# accuracy for the rest (Matthews correlation for CoLA, as GLUE defines it); no WNLI.
COLUMNS = (
    Column("MNLI-m", "mnli", "matched_accuracy", "validation_matched"),
    Column("MNLI-mm", "mnli", "mismatched_accuracy", "validation_mismatched"),
    Column("QQP", "qqp", "f1"),
    Column("QNLI", "qnli"),
    Column("SST-2", "sst2"),
    Column("CoLA", "cola", "matthews_correlation"),
    Column("STS-B", "stsb", "spearmanr"),
    Column("MRPC", "mrpc", "f1"),
    Column("RTE", "rte"),
)
# Measured and shown, but not in the mean.
WNLI = Column("WNLI", "wnli")
_FIGURE_NAMES = {
    "f1": "F1",
    "matthews_correlation": "Matthews",
    "spearmanr": "Spearman",
}

# Task -> all_results.json of its runs, one for each seed.
Results = Mapping[str, Sequence[Mapping[str, Any]]]


# The table


def table_mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the columns; None where one is missing.

    Source: Devlin et al. 2019, Table 1, "Average": the nine columns weigh the same, so that MNLI
    counts twice, other than on the leaderboard, which also counts WNLI.
    """
    numbers = [value for value in values if value is not None]
    return statistics.fmean(numbers) if len(numbers) == len(values) else None


def read_best_runs(folder: Path, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Return the results of a task's best setting with these seeds; none before it is finished."""
    if not (folder / SWEEP_FILE).is_file():
        return []
    sweep = read_json_object(folder / SWEEP_FILE)
    results = []
    for combination in sweep["combinations"]:
        if combination["name"] != sweep["best"]:
            continue
        for run in combination["runs"]:
            if run["seed"] in seeds:
                results.append(run["results"])
    return results


def make_table(runs: Results) -> dict[str, Any]:
    """Return the columns as glue.json has them: percent, NaN where a run diverged."""
    columns = [_make_cell(column, runs.get(column.task, ())) for column in COLUMNS]
    return {
        "columns": columns,
        "mean_dev": table_mean([cell["dev"] for cell in columns]),
        "mean_test_paper": table_mean([cell["test_paper"] for cell in columns]),
        "not_in_the_mean": [_make_cell(WNLI, runs.get(WNLI.task, ()))],
    }


def _make_cell(column: Column, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    task = get_task(column.task)
    values = []
    for run in runs:
        value = run[f"eval_{column.figure}"]
        values.append(math.nan if value is None else 100 * value)  # None: not defined
    splits = runs[0].get("splits", {}) if runs else {}
    dev_rows = splits.get(column.split, {}).get("examples")
    published_rows = task.published_rows.get(column.split)
    dev = None
    std = None
    if any(map(math.isnan, values)):
        dev = math.nan
    elif values:
        dev = statistics.median(values)
        std = statistics.stdev(values) if len(values) > 1 else None
    return {
        "title": column.title,
        "figure": column.figure,
        "dev": dev,
        "std": std,
        "seeds": len(values),
        "dev_rows": dev_rows,
        "dev_rows_published": published_rows,
        # Measured on other rows than the published split's.
        "is_partial": dev_rows not in (None, published_rows),
        "train_rows": splits.get(task.train_split, {}).get("examples"),
        "train_rows_published": task.published_rows.get(task.train_split),
        "test_paper": task.paper_test.get(column.figure),
    }


def format_table(table: Mapping[str, Any]) -> str:
    """Return the table as Markdown; what is partial or missing is named under it."""
    columns = table["columns"]
    cells = [*columns, *table["not_in_the_mean"]]
    paper = _percent(table["mean_test_paper"])
    partial = [cell["title"] for cell in cells if cell["is_partial"]]
    missing = [cell["title"] for cell in columns if cell["dev"] is None]
    mean = ""
    if not missing:
        mark = "*" if any(cell["is_partial"] for cell in columns) else ""
        mean = f"**{_percent(table['mean_dev'])}{mark}**"
    lines = [
        "| task | figure | dev | std | seeds | dev rows | train rows | test (paper) |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *map(_format_cell, columns),
        f"| **mean** | of the nine | {mean} | | | | | **{paper}** |",
        *map(_format_cell, table["not_in_the_mean"]),
        "\ndev: development set, percent, the median where there are several seeds. test (paper): "
        "hidden test set, BERT-base, Devlin et al. 2019, Table 1. WNLI is not in the mean, as in "
        "the paper.",
    ]
    if partial:
        lines.append(
            "\n\\* not the published development set, so not to be put beside published figures: "
            f"{', '.join(partial)}."
        )
    if missing:
        lines.append(f"\nNo mean without {', '.join(missing)}.")
    return "\n".join(lines) + "\n"


def _format_cell(cell: Mapping[str, Any]) -> str:
    mark = "*" if cell["is_partial"] else ""
    texts = [
        cell["title"],
        _FIGURE_NAMES.get(cell["figure"], "accuracy"),
        _percent(cell["dev"]) + mark,
        _percent(cell["std"]),
        str(cell["seeds"] or ""),
        _format_rows(cell["dev_rows"], cell["dev_rows_published"]),
        _format_rows(cell["train_rows"], cell["train_rows_published"]),
        _percent(cell["test_paper"]),
    ]
    return f"| {' | '.join(texts)} |"


def _percent(value: float | None) -> str:
    if value is None:
        return ""
    return "diverged" if math.isnan(value) else f"{value:.1f}"


def _format_rows(rows: int | None, published_rows: int | None) -> str:
    if rows is None:
        return ""
    return f"{rows:,}" if published_rows in (None, rows) else f"{rows:,} of {published_rows:,}"


def write_table(folder: Path, runs: Results) -> str:
    """Write glue.md and glue.json, with the settings of each task; return the table as Markdown."""
    table = make_table(runs)
    text = format_table(table)
    models = set()
    machine = None
    settings = {}
    lines = []
    for name, results in runs.items():
        if not results:
            continue
        settings[name] = read_json_object(folder / name / SWEEP_FILE)["settings"]
        lines.append(f"- {name}: {shlex.join(settings[name]['flags'])}")
        for run in results:
            models.add(str(run["model"]))
            machine = run.get("machine")
    if len(models) > 1:
        text += f"\nThe tasks are of several models: {', '.join(sorted(models))}.\n"
    write_json(
        folder / "glue.json",
        replace_nonfinite(
            {
                **table,
                "settings": settings,
                "machine": machine,
                "date": time.strftime("%Y-%m-%d"),
            }
        ),
    )
    flags = "\n".join(lines)
    (folder / "glue.md").write_text(
        f"# GLUE\n\n{text}\nModel: {', '.join(sorted(models))}\n\nFlags of the runs:\n\n{flags}\n",
        encoding="utf-8",
    )
    return text


# The submission


def check_submission(folder: Path, runs: Mapping[str, CheckedRun]) -> None:
    """Refuse, before any run, a submission that could not be complete.

    A task that is not run now needs the predictions of an earlier call.
    """
    earlier_tasks = [name for name in TASKS if name not in runs]
    missing = [name for name in earlier_tasks if not (folder / name / SWEEP_FILE).is_file()]
    if missing:
        raise InputError(
            f"submission: the zip needs all nine tasks; {folder} has no runs of "
            f"{', '.join(missing)}: name them in --tasks too, or leave out --submission"
        )
    for name in earlier_tasks:
        _format_files(folder, name)
    for name, run in runs.items():
        if not run.args.do_predict or run.task_args.max_predict_examples is not None:
            raise InputError(
                f"submission: the zip needs all test rows of {name}; leave out do_predict and "
                "max_predict_examples, or --submission"
            )
    if "mnli" in runs:
        diagnostic = get_task("ax")
        check_source(diagnostic, runs["mnli"].task_args.data_dir, diagnostic.test_splits)


def write_submission(path: Path, folder: Path) -> None:
    """Write the zip from the test predictions of each task's best run, complete or not at all."""
    texts = {}
    for name in TASKS:
        texts.update(_format_files(folder, name))
    with (
        saving(path),
        atomic_write(path) as aside,
        zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for file_name, text in sorted(texts.items()):
            archive.writestr(file_name, text)


def _format_files(folder: Path, name: str) -> dict[str, str]:
    """Return the files of a task in the zip; the diagnostic set is predicted by MNLI's model."""
    task = get_task(name)
    predictions = [(task, split, f"predictions_{split}") for split in task.submission_files]
    if name == "mnli":
        predictions.append((get_task("ax"), "test", "predictions_ax"))
    texts = {}
    for predicted_task, split, file_name in predictions:
        file = folder / name / "best" / f"{file_name}.jsonl"
        num_rows = predicted_task.published_rows[split]
        text = format_predictions(predicted_task, file, num_rows)
        texts[predicted_task.submission_files[split]] = text
    return texts


def format_predictions(task: Task, file: Path, num_rows: int) -> str:
    """Return the predictions of a run as the leaderboard's TSV."""
    if not file.is_file():
        raise InputError(
            f"submission: no predictions {file}; the zip needs all nine tasks, none of which "
            "diverged, with --do_predict true"
        )
    with file.open(encoding="utf-8") as stream:
        lines = list(stream)
    if len(lines) != num_rows:
        raise InputError(
            f"submission: {file} has {len(lines)} predictions; the published test split has "
            f"{num_rows}: predict all of it, without --max_predict_examples"
        )
    rows = ["index\tprediction\n"]
    for number, line in enumerate(lines):
        text = _format_prediction(task, json.loads(line)["prediction"])
        rows.append(f"{number}\t{text}\n")
    return "".join(rows)


def _format_prediction(task: Task, prediction: Any) -> str:
    """Return a name or number of a label; scores as the formatters of GLUE's authors write them."""
    if task.label_range is not None:
        least, greatest = task.label_range
        return f"{min(max(least, prediction), greatest):.3f}"
    if task.name in TASKS_WITH_NAMES:
        return str(prediction)
    return str(task.labels.index(prediction))
