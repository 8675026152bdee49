"""All of GLUE: the table beside the paper's, and the zip that the leaderboard takes, checked before it is written.

Source of the zip: gluebenchmark.com/faq and the sample submission: eleven TSV files with the header `index<TAB>prediction`, names
of labels for MNLI, QNLI, RTE and AX, numbers for the rest.
"""

import json
import math
import shlex
import statistics
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bert_recipes.checkpointing import SWEEP_FILE
from bert_recipes.errors import InputError, saving
from bert_recipes.files import strict, write_json, written_aside
from bert_recipes.sweeps.sweep import figure_of, read_results
from bert_recipes.tasks.rows import get_task
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
# Title, task, metric, split. Source: Devlin et al. 2019, Table 1 and its caption: F1 for QQP and MRPC, Spearman for STS-B,
# accuracy for the rest (Matthews correlation for CoLA, as GLUE defines it); no WNLI.
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
EXTRA_COLUMNS = (("WNLI", "wnli", "accuracy", "validation"),)


# The table


@dataclass(frozen=True)
class Cell:
    """One column of the table, as glue.json has it.

    Attributes:
        dev: Median over the seeds in percent; None where the task was not run, NaN where its runs diverged.
        std: Sample standard deviation over the seeds in percent; None for one seed.
        is_partial: Whether it was measured on other rows than the published split's.
        test_paper: The paper's test value in percent, BERT-base; None for WNLI.
    """

    title: str
    figure: str
    dev: float | None
    std: float | None
    seeds: int
    dev_rows: int | None
    dev_rows_published: int | None
    is_partial: bool
    train_rows: int | None
    train_rows_published: int | None
    test_paper: float | None


class GlueTable(NamedTuple):
    """The paper's nine columns in its order, and those that are not in the mean."""

    cells: list[Cell]
    extra: list[Cell]

    @property
    def mean(self) -> float | None:
        """Mean of the nine columns, MNLI-m and -mm apart; None while one is missing."""
        return table_mean([cell.dev for cell in self.cells])

    @property
    def paper_mean(self) -> float | None:
        """The same of the paper's values: 79.6."""
        return table_mean([cell.test_paper for cell in self.cells])


def table_mean(values: Sequence[float | None]) -> float | None:
    """Mean of the columns; None where one is missing.

    Source: Devlin et al. 2019, Table 1, "Average": the nine columns weigh the same, so that MNLI counts twice, other than on
    the leaderboard, which also counts WNLI.
    """
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def read_runs(folder: Path, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Results of a task's finished runs with these seeds, in seed-<s> or, of a finished sweep, of its best setting."""
    if (folder / SWEEP_FILE).is_file():
        sweep = json.loads((folder / SWEEP_FILE).read_text(encoding="utf-8"))
        best = next(item for item in sweep["combinations"] if item["name"] == sweep["best"])
        return [run["results"] for run in best["runs"] if run["seed"] in seeds]
    found = [read_results(folder / f"seed-{seed}") for seed in seeds]
    return [results for results in found if results is not None]


def make_table(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> GlueTable:
    """Put all_results.json of each task's seeds into the columns; missing tasks leave their cell and the mean empty."""
    return GlueTable(
        *([_make_cell(*column, runs.get(column[1], ())) for column in each] for each in (COLUMNS, EXTRA_COLUMNS))
    )


def _make_cell(title: str, task_name: str, figure: str, split: str, runs: Sequence[Mapping[str, Any]]) -> Cell:
    task = get_task(task_name)
    found = [run[f"eval_{figure}"] for run in runs if f"eval_{figure}" in run]
    # Null: a metric that is not defined.
    values = [math.nan if value is None else float(value) * 100 for value in found]
    splits = runs[0].get("splits", {}) if runs else {}
    rows, train = splits.get(split, {}), splits.get(task.train_split, {})
    dev_rows, published = rows.get("examples"), rows.get("published", task.published_rows.get(split))
    diverged = any(map(math.isnan, values))
    return Cell(
        title=title,
        figure=figure,
        dev=(math.nan if diverged else statistics.median(values)) if values else None,
        std=statistics.stdev(values) if len(values) > 1 and not diverged else None,
        seeds=len(values),
        dev_rows=dev_rows,
        dev_rows_published=published,
        is_partial=dev_rows is not None and published is not None and dev_rows != published,
        train_rows=train.get("examples"),
        train_rows_published=train.get("published", task.published_rows.get(task.train_split)),
        test_paper=task.paper_test.get(figure),
    )


def format_table(table: GlueTable) -> str:
    """The table as Markdown; what is partial is named under it."""
    partial = [cell for cell in (*table.cells, *table.extra) if cell.is_partial]
    mark = "*" if any(cell.is_partial for cell in table.cells) else ""
    mean = "" if table.mean is None else "diverged" if math.isnan(table.mean) else f"{table.mean:.1f}{mark}"
    paper = _one(table.paper_mean)
    lines = [
        "| task | figure | dev | std | seeds | dev rows | train rows | test (paper) |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *map(_format_cell, table.cells),
        f"| **mean** | of the nine | **{mean}** | | | | | **{paper}** |"
        if mean
        else f"| mean | | | | | | | {paper} |",
        *map(_format_cell, table.extra),
        "",
        "dev: development set, percent, the median where there are several seeds. test (paper): hidden test set, "
        "BERT-base, Devlin et al. 2019, Table 1. WNLI is not in the mean, as in the paper.",
    ]
    if partial:
        names = [f"{cell.title} ({cell.dev_rows:,} rows, published {cell.dev_rows_published:,})" for cell in partial]
        text = "\\* not the published development set, so not to be put beside published figures: "
        lines += ["", f"{text}{', '.join(names)}."]
    missing = [cell.title for cell in table.cells if cell.dev is None]
    if missing:
        lines += ["", f"No mean: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing."]
    return "\n".join(lines) + "\n"


def _format_cell(cell: Cell) -> str:
    words = {"f1": "F1", "matthews_correlation": "Matthews", "spearmanr": "Spearman"}.get(cell.figure, "accuracy")
    if cell.dev is None:
        return f"| {cell.title} | {words} | | | | | | {_one(cell.test_paper)} |"
    dev = "diverged" if math.isnan(cell.dev) else f"{cell.dev:.1f}" + ("*" if cell.is_partial else "")
    rows = _rows(cell.dev_rows, cell.dev_rows_published), _rows(cell.train_rows, cell.train_rows_published)
    return f"| {cell.title} | {words} | {dev} | {_one(cell.std)} | {cell.seeds} | {' | '.join(rows)} | {_one(cell.test_paper)} |"


def _one(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _rows(rows: int | None, published: int | None) -> str:
    if rows is None:
        return ""
    return f"{rows:,}" if published in (None, rows) else f"{rows:,} of {published:,}"


def table_as_json(table: GlueTable) -> dict[str, Any]:
    """The table as strict JSON; what is missing or not finite is null."""
    content: dict[str, Any] = strict(
        {
            "columns": [asdict(cell) for cell in table.cells],
            "mean_dev": table.mean,
            "mean_test_paper": table.paper_mean,
            "not_in_the_mean": [asdict(cell) for cell in table.extra],
        }
    )
    return content


def write_table(folder: Path, runs: Mapping[str, Sequence[Mapping[str, Any]]], settings: Mapping[str, Any]) -> str:
    """Write glue.md and glue.json, with the settings that all runs share; return the table as Markdown."""
    table = make_table(runs)
    text = format_table(table)
    machine = next((run.get("machine") for found in runs.values() for run in found), None)
    write_json(folder / "glue.json", table_as_json(table) | {"settings": dict(settings), "machine": machine})
    flags = shlex.join(settings.get("flags", ())) or "none"
    # Several only where a default changed between the runs.
    models = sorted({str(run["model"]) for found in runs.values() for run in found if "model" in run})
    lines = [f"# GLUE\n\n{text}", f"Model: {', '.join(models)}\n", f"Flags of every run: {flags}\n"]
    (folder / "glue.md").write_text("\n".join(lines), encoding="utf-8")
    return text


# The submission


class SubmissionFile(NamedTuple):
    """A TSV file of the zip for the published test split of a task; without a source where its predictions are missing."""

    name: str
    task: Task
    num_rows: int
    source: Path | None


def find_runs(folders: Sequence[Path]) -> dict[str, Path]:
    """Task -> its run: folders are runs, sweeps, folders with one run per seed, or folders of any of these.

    Of a sweep and of several seeds the best on the development set is taken.
    """
    found: dict[str, Path] = {}
    for folder in folders:
        runs = list(_runs_below(folder))
        if not runs:
            raise InputError(f"{folder}: no finished run of recipes/finetune.py here; give runs or folders of runs")
        for run in runs:
            name = _task_name(run)
            if name not in SUBMITTED_TASKS:
                raise InputError(f"{run}: task '{name}' is none of GLUE's; leave it out")
            if name in found and found[name].resolve() != run.resolve():
                raise InputError(f"two runs of {name}: {found[name]} and {run}; give one of them")
            found[name] = run
    return found


def _runs_below(folder: Path) -> Iterator[Path]:
    if read_results(folder) is not None:
        yield folder
    elif read_results(folder / "best") is not None:
        yield folder / "best"
    else:
        seeds = [path for path in sorted(folder.glob("seed-*")) if read_results(path) is not None]
        if seeds:
            yield max(seeds, key=_dev_value)
        elif folder.is_dir():
            for path in sorted(folder.iterdir()):
                if path.is_dir() and not path.name.startswith("."):
                    yield from _runs_below(path)


def _dev_value(run: Path) -> float:
    value = figure_of(read_results(run) or {}, f"eval_{get_task(_task_name(run)).best_metric}")
    return -math.inf if value is None or math.isnan(value) else value


def _task_name(run: Path) -> str:
    return str((read_results(run) or {}).get("task"))


def plan_files(runs: Mapping[str, Path]) -> list[SubmissionFile]:
    """The eleven files in the order of their names, each with its source where there is one."""
    files = []
    for name in SUBMITTED_TASKS:
        task, run = get_task(name), runs.get(PREDICTED_BY.get(name, name))
        for split, file_name in task.submission_files.items():
            stem = name if name in PREDICTED_BY else split
            source = None if run is None else run / f"predictions_{stem}.jsonl"
            files.append(SubmissionFile(file_name, task, task.published_rows[split], source))
    return sorted(files, key=lambda file: file.name)


def write_submission(path: Path, runs: Mapping[str, Path], *, fill_missing: bool = False) -> dict[str, str]:
    """Write the zip, complete or not at all, after everything was checked; return file -> what it was made of, in words.

    With `fill_missing` the files of missing tasks hold one constant, so that the others can be scored.
    """
    if path.is_dir():
        raise InputError(f"output_file {path} is a folder; give a file, as {path / 'submission.zip'}")
    files = plan_files(runs)
    missing = [file for file in files if file.source is None or not file.source.is_file()]
    if missing and not fill_missing:
        names = ", ".join(file.name for file in missing if file.source is None)
        sources = ", ".join(str(file.source) for file in missing if file.source is not None)
        parts = [f"no run for {names}"] if names else []
        parts += [f"no file {sources}: run it with --do_predict true"] if sources else []
        raise InputError(
            f"{'; '.join(parts)}; the leaderboard takes all eleven files: add what is missing, or give --fill_missing true to "
            "fill it with a constant"
        )
    made_of, texts = {}, {}
    for file in files:
        texts[file.name], num_clipped = render(file._replace(source=None) if file in missing else file)
        origin = "FILLED with one constant: no predictions" if file in missing else f"from {file.source}"
        clipped = f", {num_clipped:,} scores moved into the range of the labels" if num_clipped else ""
        made_of[file.name] = f"{file.num_rows:,} rows, {origin}{clipped}"
    with saving(path), written_aside(path) as staging, zipfile.ZipFile(staging, "w") as archive:
        for name, text in texts.items():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            entry.create_system = 3
            archive.writestr(entry, text.encode("ascii"), compresslevel=9)
    return made_of


def render(file: SubmissionFile) -> tuple[str, int]:
    """Check predictions and write them as the leaderboard's TSV; without a source every row gets the first label, or 0.

    Returns:
        The text, and how many scores lay outside of the task's range and were moved to its end (STS-B: 0 to 5, as the
        formatters of GLUE's authors do).
    """
    task = file.task
    if file.source is None:
        default = 0.0 if task.problem_type == "regression" else task.labels[0]
        rows = [_value(task, default, task.name)] * file.num_rows
    else:
        rows = [_read_row(file, number, line) for number, line in enumerate(file.source.read_bytes().splitlines())]
    if len(rows) != file.num_rows:
        raise InputError(
            f"{file.source}: {len(rows)} predictions; {file.name} needs the published test split's {file.num_rows}: "
            "predict all of it (--do_predict true, no --max_predict_examples)"
        )
    lines = [f"{number}\t{text}\n" for number, (text, _) in enumerate(rows)]
    return "".join(["index\tprediction\n", *lines]), sum(is_clipped for _, is_clipped in rows)


def _read_row(file: SubmissionFile, number: int, line: bytes) -> tuple[str, bool]:
    where = f"{file.source}, line {number + 1}"
    try:
        row = json.loads(line.decode("utf-8"))
        idx, prediction = row["idx"], row["prediction"]
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 (byte 0x{line[error.start]:02x}); predict again") from error
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise InputError(f"{where}: expected an object with idx and prediction ({error!r}); predict again") from error
    if type(idx) is not int or idx != number:
        raise InputError(
            f"{where}: idx is {idx!r}, expected {number}: a row is missing, twice or out of order; predict again"
        )
    return _value(file.task, prediction, where)


def _value(task: Task, prediction: Any, where: str) -> tuple[str, bool]:
    """A prediction as it stands in the TSV, and whether it was moved into the range."""
    if task.problem_type == "regression":
        if isinstance(prediction, bool) or not isinstance(prediction, int | float) or not math.isfinite(prediction):
            raise InputError(f"{where}: the score is {prediction!r}; allowed: a finite number")
        least, greatest = task.label_range or (-math.inf, math.inf)
        # Three decimals as in those formatters; + 0.0 makes zero of minus zero.
        return f"{min(max(prediction, least), greatest) + 0.0:.3f}", not least <= prediction <= greatest
    if not isinstance(prediction, str) or prediction not in task.labels:
        raise InputError(f"{where}: the prediction is {prediction!r}; allowed: {', '.join(task.labels)}")
    return prediction if task.name in TASKS_WITH_NAMES else str(task.labels.index(prediction)), False
