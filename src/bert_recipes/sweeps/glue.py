"""All of GLUE: the table beside the paper's, and the zip that the leaderboard takes, checked before
it is written.

Source of the zip: gluebenchmark.com/faq and the sample submission: eleven TSV files with the header
`index<TAB>prediction`, names of labels for MNLI, QNLI, RTE and AX, numbers for the rest.
"""

import json
import math
import shlex
import statistics
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_recipes.checkpointing import SWEEP_FILE
from bert_recipes.errors import InputError, saving
from bert_recipes.files import atomic_write, read_json_object, strict, write_json
from bert_recipes.sweeps.sweep import figure_of, read_results
from bert_recipes.tasks.catalogue import get_task
from bert_recipes.tasks.task import Task


# GLUE's nine tasks in the order in which they are run: the quick ones first.
TASKS = ("wnli", "rte", "mrpc", "stsb", "cola", "sst2", "qnli", "mnli", "qqp")
SUBMITTED_TASKS = ("cola", "sst2", "mrpc", "stsb", "mnli", "qnli", "qqp", "rte", "wnli", "ax")
# Their files hold names of labels, all others numbers.
TASKS_WITH_NAMES = ("mnli", "qnli", "rte", "ax")
# Tasks whose predictions come from another task's model -> that task.
PREDICTED_BY = {"ax": "mnli"}
# The oldest date that a zip can hold: the same predictions are the same bytes.
_DATE = (1980, 1, 1, 0, 0, 0)
# Title, task, metric, split. Source: Devlin et al. 2019, Table 1 and its caption: F1 for QQP and
# MRPC, Spearman for STS-B, accuracy for the rest (Matthews correlation for CoLA, as GLUE defines
# it); no WNLI.
COLUMNS = (
    ("MNLI-m", "mnli", "matched_accuracy", "validation_matched"),
    ("MNLI-mm", "mnli", "mismatched_accuracy", "validation_mismatched"),
    ("QQP", "qqp", "f1", "validation"),
    ("QNLI", "qnli", "accuracy", "validation"),
    ("SST-2", "sst2", "accuracy", "validation"),
    ("CoLA", "cola", "matthews_correlation", "validation"),
    ("STS-B", "stsb", "spearmanr", "validation"),
    ("MRPC", "mrpc", "f1", "validation"),
    ("RTE", "rte", "accuracy", "validation"),
)
# Measured and shown, but not in the mean.
EXTRA = (("WNLI", "wnli", "accuracy", "validation"),)


# The table


def table_mean(values: Sequence[float | None]) -> float | None:
    """Mean of the columns; None where one is missing.

    Source: Devlin et al. 2019, Table 1, "Average": the nine columns weigh the same, so that MNLI
    counts twice, other than on the leaderboard, which also counts WNLI.
    """
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def read_runs(folder: Path, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Results of a task's finished runs with these seeds, in seed-<s> or, of a finished sweep, of
    its best setting.
    """
    if (folder / SWEEP_FILE).is_file():
        sweep = read_json_object(folder / SWEEP_FILE)
        best = next(item for item in sweep["combinations"] if item["name"] == sweep["best"])
        return [run["results"] for run in best["runs"] if run["seed"] in seeds]
    found = [read_results(folder / f"seed-{seed}") for seed in seeds]
    return [results for results in found if results is not None]


def make_table(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Put all_results.json of each task's seeds into the columns, as glue.json has them; percent,
    NaN where a run diverged.
    """
    columns, extra = (
        [_make_cell(*column, runs.get(column[1], ())) for column in each]
        for each in (COLUMNS, EXTRA)
    )
    return {
        "columns": columns,
        "mean_dev": table_mean([cell["dev"] for cell in columns]),
        "mean_test_paper": table_mean([cell["test_paper"] for cell in columns]),
        "not_in_the_mean": extra,
    }


def _make_cell(
    title: str, task_name: str, figure: str, split: str, runs: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    task = get_task(task_name)
    found = [run[f"eval_{figure}"] for run in runs if f"eval_{figure}" in run]
    # Null: a metric that is not defined.
    values = [math.nan if value is None else float(value) * 100 for value in found]
    splits = runs[0].get("splits", {}) if runs else {}
    rows, train = splits.get(split, {}), splits.get(task.train_split, {})
    dev_rows, published = (
        rows.get("examples"),
        rows.get("published", task.published_rows.get(split)),
    )
    diverged = any(map(math.isnan, values))
    return {
        "title": title,
        "figure": figure,
        "dev": (math.nan if diverged else statistics.median(values)) if values else None,
        "std": statistics.stdev(values) if len(values) > 1 and not diverged else None,
        "seeds": len(values),
        "dev_rows": dev_rows,
        "dev_rows_published": published,
        # Measured on other rows than the published split's.
        "is_partial": dev_rows is not None and published is not None and dev_rows != published,
        "train_rows": train.get("examples"),
        "train_rows_published": train.get("published", task.published_rows.get(task.train_split)),
        "test_paper": task.paper_test.get(figure),
    }


def format_table(table: Mapping[str, Any]) -> str:
    """The table as Markdown; what is partial is named under it."""
    columns, extra = table["columns"], table["not_in_the_mean"]
    mean, paper = _percent(table["mean_dev"]), _percent(table["mean_test_paper"])
    mark = "*" * any(cell["is_partial"] for cell in columns)
    known = f"| **mean** | of the nine | **{mean}{mark}** | | | | | **{paper}** |"
    lines = [
        "| task | figure | dev | std | seeds | dev rows | train rows | test (paper) |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *map(_format_cell, columns),
        known if mean else f"| mean | | | | | | | {paper} |",
        *map(_format_cell, extra),
        "",
        "dev: development set, percent, the median where there are several seeds. test (paper): "
        "hidden test set, "
        "BERT-base, Devlin et al. 2019, Table 1. WNLI is not in the mean, as in the paper.",
    ]
    form = "{title} ({dev_rows:,} rows, published {dev_rows_published:,})"
    partial = [form.format(**cell) for cell in (*columns, *extra) if cell["is_partial"]]
    if partial:
        text = "\\* not the published development set, so not to be put beside published figures: "
        lines += ["", f"{text}{', '.join(partial)}."]
    missing = [cell["title"] for cell in columns if cell["dev"] is None]
    if missing:
        lines += [
            "",
            f"No mean: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing.",
        ]
    return "\n".join(lines) + "\n"


def _format_cell(cell: Mapping[str, Any]) -> str:
    names = {"f1": "F1", "matthews_correlation": "Matthews", "spearmanr": "Spearman"}
    start = [cell["title"], names.get(cell["figure"], "accuracy")]
    if cell["dev"] is None:
        return f"| {' | '.join(start)} | | | | | | {_percent(cell['test_paper'])} |"
    dev = _percent(cell["dev"]) + "*" * cell["is_partial"]
    rows = [_rows(cell[name], cell[f"{name}_published"]) for name in ("dev_rows", "train_rows")]
    parts = [
        *start,
        dev,
        _percent(cell["std"]),
        str(cell["seeds"]),
        *rows,
        _percent(cell["test_paper"]),
    ]
    return f"| {' | '.join(parts)} |"


def _percent(value: float | None) -> str:
    return "" if value is None else "diverged" if math.isnan(value) else f"{value:.1f}"


def _rows(rows: int | None, published: int | None) -> str:
    if rows is None:
        return ""
    return f"{rows:,}" if published in (None, rows) else f"{rows:,} of {published:,}"


def write_table(
    folder: Path, runs: Mapping[str, Sequence[Mapping[str, Any]]], settings: Mapping[str, Any]
) -> str:
    """Write glue.md and glue.json, with the settings that all runs share; return the table as
    Markdown.
    """
    table = make_table(runs)
    text = format_table(table)
    machine = next((run.get("machine") for found in runs.values() for run in found), None)
    write_json(folder / "glue.json", strict(table | {"settings": settings, "machine": machine}))
    flags = shlex.join(settings.get("flags", ())) or "none"
    # Several only where a default changed between the runs.
    models = sorted(
        {str(run["model"]) for found in runs.values() for run in found if "model" in run}
    )
    lines = [f"# GLUE\n\n{text}", f"Model: {', '.join(models)}\n", f"Flags of every run: {flags}\n"]
    (folder / "glue.md").write_text("\n".join(lines), encoding="utf-8")
    return text


# The submission


class SubmissionFile(NamedTuple):
    """A TSV file of the zip for the published test split of a task; without a source where its
    predictions are missing.
    """

    name: str
    task: Task
    num_rows: int
    source: Path | None


def find_runs(folders: Sequence[Path]) -> dict[str, Path]:
    """Task -> its run: folders are runs, sweeps, folders with one run per seed, or folders of any
    of these.

    Of a sweep and of several seeds the best on the development set is taken.
    """
    found: dict[str, Path] = {}
    for folder in folders:
        runs = list(_runs_below(folder, set()))
        if not runs:
            raise InputError(
                f"{folder}: no finished run of recipes/finetune.py here; give runs or folders of "
                "runs"
            )
        for run in runs:
            name = (read_results(run) or {})["task"]
            if name not in SUBMITTED_TASKS:
                raise InputError(f"{run}: task '{name}' is none of GLUE's; leave it out")
            if name in found and found[name].resolve() != run.resolve():
                raise InputError(f"two runs of {name}: {found[name]} and {run}; give one of them")
            found[name] = run
    return found


def _runs_below(folder: Path, entered: set[Path]) -> Iterator[Path]:
    """Yield the runs in a folder; one that was entered before, by a link, is not entered again."""
    if folder.resolve() in entered:
        return
    entered.add(folder.resolve())
    for run in (folder, folder / "best"):
        if read_results(run) is not None:
            yield run
            return
    seeds = [path for path in sorted(folder.glob("seed-*")) if read_results(path) is not None]
    if seeds:
        yield max(seeds, key=_dev_value)
    elif folder.is_dir():
        for path in sorted(folder.iterdir()):
            if path.is_dir() and not path.name.startswith("."):
                yield from _runs_below(path, entered)


def _dev_value(run: Path) -> float:
    results = read_results(run) or {}
    value = figure_of(results, f"eval_{get_task(results['task']).best_metric}")
    return -math.inf if value is None or math.isnan(value) else value


def plan_files(runs: Mapping[str, Path]) -> list[SubmissionFile]:
    """The eleven files in the order of their names, each with its source where there is one."""
    files = []
    for name in SUBMITTED_TASKS:
        task, run = get_task(name), runs.get(PREDICTED_BY.get(name, name))
        for split, file_name in task.submission_files.items():
            source = (
                None
                if run is None
                else run / f"predictions_{name if name in PREDICTED_BY else split}.jsonl"
            )
            files.append(SubmissionFile(file_name, task, task.published_rows[split], source))
    return sorted(files, key=lambda file: file.name)


def write_submission(
    path: Path, runs: Mapping[str, Path], *, fill_missing: bool = False
) -> dict[str, str]:
    """Write the zip, complete or not at all, after everything was checked; return file -> what it
    was made of, in words.

    With `fill_missing` the files of missing tasks hold one constant, so that the others can be
    scored.
    """
    if path.is_dir():
        raise InputError(
            f"output_file {path} is a folder; give a file, as {path / 'submission.zip'}"
        )
    files = plan_files(runs)
    missing = [file for file in files if file.source is None or not file.source.is_file()]
    if missing and not fill_missing:
        names = ", ".join(file.name for file in missing if file.source is None)
        sources = ", ".join(str(file.source) for file in missing if file.source is not None)
        parts = [f"no run for {names}"] if names else []
        parts += [f"no file {sources}: run it with --do_predict true"] if sources else []
        raise InputError(
            f"{'; '.join(parts)}; the leaderboard takes all eleven files: add what is missing, or "
            "give --fill_missing true to "
            "fill it with a constant"
        )
    made_of, texts = {}, {}
    for file in files:
        texts[file.name], num_clipped = render(
            file._replace(source=None) if file in missing else file
        )
        origin = (
            "FILLED with one constant: no predictions" if file in missing else f"from {file.source}"
        )
        clipped = (
            f", {num_clipped:,} scores moved into the range of the labels" if num_clipped else ""
        )
        made_of[file.name] = f"{file.num_rows:,} rows, {origin}{clipped}"
    with saving(path), atomic_write(path) as staging, zipfile.ZipFile(staging, "w") as archive:
        for name, text in texts.items():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            entry.create_system = 3
            archive.writestr(entry, text.encode("ascii"), compresslevel=9)
    return made_of


def render(file: SubmissionFile) -> tuple[str, int]:
    """Check predictions and write them as the leaderboard's TSV; without a source every row gets
    the first label, or 0.

    Returns:
        The text, and how many scores lay outside of the task's range and were moved to its end
        (STS-B: 0 to 5, as the formatters of GLUE's authors do).
    """
    if file.source is None:
        values = [
            0.0 if file.task.problem_type == "regression" else file.task.labels[0]
        ] * file.num_rows
    else:
        lines = file.source.read_bytes().splitlines()
        values = [_read_prediction(line, number, file.source) for number, line in enumerate(lines)]
    rows = [_format_value(file, number, value) for number, value in enumerate(values)]
    if len(rows) != file.num_rows:
        raise InputError(
            f"{file.source}: {len(rows)} predictions; {file.name} needs the published test "
            f"split's {file.num_rows}: "
            "predict all of it (--do_predict true, no --max_predict_examples)"
        )
    lines_out = [f"{number}\t{text}\n" for number, (text, _) in enumerate(rows)]
    return "".join(["index\tprediction\n", *lines_out]), sum(is_clipped for _, is_clipped in rows)


def _read_prediction(line: bytes, number: int, source: Path) -> Any:
    row = json.loads(line)
    if row["idx"] != number:
        raise InputError(
            f"{source}, line {number + 1}: idx is {row['idx']!r}, expected {number}: a row is "
            "missing, twice or out of order; "
            "predict again"
        )
    return row["prediction"]


def _format_value(file: SubmissionFile, number: int, value: Any) -> tuple[str, bool]:
    """A prediction as it stands in the TSV, and whether it was moved into the range."""
    task, where = file.task, f"{file.source}, line {number + 1}"
    if task.problem_type == "regression":
        if value is None or not math.isfinite(value):
            raise InputError(f"{where}: the score is {value!r}; allowed: a finite number")
        least, greatest = task.label_range or (-math.inf, math.inf)
        # Three decimals as in those formatters; + 0.0 makes zero of minus zero.
        return f"{min(max(value, least), greatest) + 0.0:.3f}", not least <= value <= greatest
    if value not in task.labels:
        raise InputError(f"{where}: the prediction is {value!r}; allowed: {', '.join(task.labels)}")
    return value if task.name in TASKS_WITH_NAMES else str(task.labels.index(value)), False
