"""Several runs of one kind side by side: what was set differently, their curves, their metrics."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_recipes.checkpointing import SWEEP_FILE
from bert_recipes.data.masking import default_max_predictions
from bert_recipes.errors import InputError
from bert_recipes.metrics.certainty import half_interval
from bert_recipes.reports import plots
from bert_recipes.reports.facts import RunFiles, read_run
from bert_recipes.reports.page import (
    MARKDOWN_FILE,
    PAGE_FILE,
    format_metric,
    metric_rows,
    render,
    report_files,
    words_of,
)
from bert_recipes.reports.paired import HEADS, RESAMPLES, paired_bootstrap
from bert_recipes.training.arguments import key_in_last_phase
from bert_recipes.training.bert_trainer import MEASURED_WITH
from bert_recipes.training.resume import RESULTS_FILE


PLOT_FILE = "curves.png"
MOST_RUNS = len(plots.SERIES)
# Where a run lies and what it was called say nothing about it.
_NAMES = frozenset(
    {"output_dir", "run_name", "logging_dir", "hub_model_id", "project", "trackio_space_id"}
)
_COSTS = ("train_steps", "train_seconds", "tokens_per_second", "data_wait_share", "peak_memory_mb")
_LESS_IS_BETTER = ("loss", "perplexity")
_MORE_IS_BETTER: tuple[str, ...] = ("accuracy", "f1", "f1_macro", "f1_micro", "precision", "recall")
_MORE_IS_BETTER += ("exact", "exact_match", "correlation", "pearson", "spearmanr")
# What is known without a model: no run is better by it.
_NEITHER = (
    "unigram_loss",
    "unigram_accuracy",
    "majority_accuracy",
    "base_rate_loss",
    "original_accuracy",
)
_PRETRAINING_CURVES = [
    ("eval_mlm_loss", "Masked-LM loss, held out", "nats per token"),
    ("mlm_loss", "Masked-LM loss, training", "nats per token"),
    ("eval_nsp_accuracy", "Next sentence, held out", "fraction right"),
    ("nsp_loss", "Next-sentence loss, training", "nats per pair"),
    ("eval_sop_accuracy", "Sentence order, held out", "fraction right"),
    ("sop_loss", "Sentence-order loss, training", "nats per pair"),
]
Runs = Mapping[str, RunFiles]


def read_runs(folders: Sequence[Path]) -> dict[str, RunFiles]:
    """Read the runs that are to be compared, by names that tell them apart."""
    if not 2 <= len(folders) <= MOST_RUNS:
        raise InputError(
            f"runs: {len(folders)} given; give 2 to {MOST_RUNS} folders of finished runs"
        )
    paths = [folder.resolve() for folder in folders]
    names = [path.name for path in paths]
    runs: dict[str, RunFiles] = {}
    for folder, path in zip(folders, paths, strict=True):
        if paths.count(path) > 1:
            raise InputError(
                f"runs: {folder} is given twice (or under two names); give different runs"
            )
        if (folder / SWEEP_FILE).is_file() and not (folder / RESULTS_FILE).is_file():
            raise InputError(
                f"runs: {folder} is a sweep of many runs; give one of them, for example "
                f"{folder}/best"
            )
        runs[path.name if names.count(path.name) == 1 else str(folder)] = read_run(folder)
    (first, wanted), *others = ((name, _learned(run)) for name, run in runs.items())
    for name, learned in others:
        if learned != wanted:
            raise InputError(
                f"runs: {first} is {wanted}, {name} is {learned}; their metrics cannot be compared"
            )
    return runs


def check_report_folder(folder: Path) -> None:
    """Refuse a folder in which the report would lie among other things, or replace a run's; it may
    hold an older one.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"output_dir: {folder} is a file; give a folder")
    own = {MARKDOWN_FILE, PAGE_FILE, PLOT_FILE}
    others = (
        sorted(path.name for path in folder.iterdir() if path.name not in own)
        if folder.is_dir()
        else []
    )
    if others:
        raise InputError(
            f"output_dir: {folder} holds other files ({', '.join(others[:3])}); give a new folder"
        )


def compare_runs(runs: Runs, data_dir: str | None = None) -> tuple[dict[str, bytes], str]:
    """The files of the report, and its text for a terminal: as report.md, without plots and where
    it comes from.

    Runs of fine-tuning are compared on each row of their validation data, by default where they had
    it.
    """
    other, panels = _other_data(runs), _panels(runs)
    # Runs of which nobody knows what they were measured on.
    unknown = [
        name
        for name, run in runs.items()
        if run.kind == "pretraining"
        and not (run.facts.get("measured_on") or run.facts.get("identity"))
    ]
    metrics, best = _metrics(runs, can_compare=not other and not unknown)
    machines = [run.results.get("machine") or {} for run in runs.values()]
    content = {
        "title": "Comparison of runs",
        "name": ", ".join(runs),
        "about": _learned(next(iter(runs.values()))),
        "other_data": other,
        "unknown": unknown,
        "machines_differ": any(
            _differ(each.get(part) for each in machines) for part in ("gpu", "processor")
        ),
        "runs": list(runs),
        "metrics": metrics,
        "best": best,
        **({} if other else _paired(runs, data_dir)),
        "differences": _differences(runs),
        "classes": _classes(runs),
        "picture": PLOT_FILE,
    }
    pictures = {PLOT_FILE: plots.panels_png(panels[:3])} if panels else {}
    files = report_files(
        "comparison.j2", pictures, curves=[plots.panel_plot(panel) for panel in panels], **content
    )
    return files, render("comparison.j2", "md", curves=[], is_terminal=True, **content)


def _paired(runs: Runs, data_dir: str | None) -> dict[str, Any]:
    """The paired bootstrap, or why there is none."""
    splits = [
        name for run in runs.values() for name in (run.task.validation_splits if run.task else ())
    ]
    known = [
        run.results.get("splits", {}).get(name, {}).get("sha256")
        for run in runs.values()
        for name in splits
    ]
    if not splits or None in known:
        return {}
    try:
        return {
            "paired": paired_bootstrap(runs, data_dir),
            "paired_heads": HEADS,
            "resamples": RESAMPLES,
        }
    except InputError as error:
        return {"unpaired": str(error)}


def _learned(run: RunFiles) -> str:
    if run.kind == "pretraining":
        return "a pre-training run"
    task = run.results.get("task") or (run.task.name if run.task else None)
    return f"a fine-tuning run on {task}" if task else "a fine-tuning run"


# Can they be compared?


def _other_data(runs: Runs) -> list[str]:
    """What of the data that the metrics were measured on is not the same."""
    if all(run.kind == "finetuning" for run in runs.values()):
        counts, hashes = (
            [_examples(run, fact) for run in runs.values()] for fact in ("examples", "sha256")
        )
        # Older runs did not keep the hashes.
        known = [each for each in hashes if None not in each.values()]
        return ["the validation examples"] if _differ(counts) or _differ(known) else []
    measured_on = [run.facts.get("measured_on") for run in runs.values()]
    all_known = None not in measured_on  # older runs did not keep the hash
    if all_known and not _differ(measured_on):
        return []
    names = _sources_of_held_out(runs)
    return names or (["the held-out inputs"] if all_known else [])


def _sources_of_held_out(runs: Runs) -> list[str]:
    """Name the files and settings of the held-out inputs that are not the same."""
    identities = [run.facts["identity"] for run in runs.values() if run.facts.get("identity")]
    names = [
        part for part in ("tokenizer", "store") if _differ(each.get(part) for each in identities)
    ]
    files = [(run.results.get("data") or {}).get("instance_files") or {} for run in runs.values()]
    fingerprints = [(each.get("validation") or {}).get("fingerprint") for each in files]
    paths = [run.settings.get("validation_file") for run in runs.values()]
    if _differ(fingerprints if all(fingerprints) else paths):
        names.append("validation_file")
    settings = [_measured_with(run.settings) for run in runs.values()]
    shared = [name for name in settings[0] if all(name in each for each in settings)]
    return names + [name for name in shared if _differ(each[name] for each in settings)]


def _differ(values: Iterable[Any]) -> bool:
    return len({repr(value) for value in values}) > 1


def _measured_with(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by which the held-out pairs and their masks were made: of two phases those of
    the last one.
    """
    if settings.get("train_file"):  # instances have pairs and masks of their own
        return {"max_eval_pairs": settings.get("max_eval_pairs")}
    found = {name: settings.get(key_in_last_phase(settings, name)) for name in MEASURED_WITH}
    length, fraction = found["max_seq_length"], found["mlm_probability"]
    if found["max_predictions_per_seq"] is None and length and fraction:
        found["max_predictions_per_seq"] = str(
            default_max_predictions(int(length), float(fraction))
        )
    return found


def _examples(run: RunFiles, fact: str) -> dict[str, Any]:
    """Validation split -> what all_results.json says of its examples."""
    splits = run.results.get("splits") or {}
    names = (
        run.task.validation_splits
        if run.task
        else [name for name in splits if name.startswith("validation")]
    )
    return {name: splits.get(name, {}).get(fact) for name in names}


# Tables and curves


def _differences(runs: Runs) -> list[list[str]]:
    """Settings, machines and versions that are not the same in all runs."""
    columns = []
    for run in runs.values():
        machine = {
            f"machine: {name}": value for name, value in (run.results.get("machine") or {}).items()
        }
        columns.append({**(run.facts.get("run") or {}), **run.settings, **machine})

    def cell(value: Any) -> str:
        return (
            "not set"
            if value is None
            else " ".join(map(str, value))
            if isinstance(value, list)
            else str(value)
        )

    return [
        [name, *(cell(column.get(name)) for column in columns)]
        for name in dict.fromkeys(name for column in columns for name in column)
        if name not in _NAMES and _differ(column.get(name) for column in columns)
    ]


def _metrics(runs: Runs, *, can_compare: bool) -> tuple[list[list[str]], list[tuple[int, int]]]:
    """Final metrics side by side, and the cells (row, column) that are better where the runs can be
    compared.
    """
    results = [run.results for run in runs.values()]
    names = list(
        dict.fromkeys(f"eval_{name}" for each in results for name, *_ in metric_rows(each))
    )
    names += [name for name in _COSTS if any(name in each for each in results)]
    rows = [
        [
            words_of(name),
            *("" if name not in each else format_metric(name, each[name]) for each in results),
        ]
        for name in names
    ]
    best = [
        (row, column + 1)
        for row, name in enumerate(names)
        if can_compare
        for column in _best(name, results)
    ]
    return rows, best


def _best(name: str, results: Sequence[Mapping[str, Any]]) -> list[int]:
    """Columns of the best values; none where more is neither better nor worse, or the next one is
    within the intervals.
    """
    sign = -1 if name.endswith(_LESS_IS_BETTER) else 1 if name.endswith(_MORE_IS_BETTER) else 0
    values = {column: each.get(name) for column, each in enumerate(results)}
    known = {
        column: sign * v
        for column, v in values.items()
        if isinstance(v, int | float) and math.isfinite(v)
    }
    if len(set(known.values())) < 2 or name.endswith(_NEITHER):
        return []
    best = [column for column, value in known.items() if value == max(known.values())]
    half = {column: half_interval(name.removeprefix("eval_"), results[column]) for column in known}
    leads = {column: known[best[0]] - known[column] for column in known.keys() - set(best)}
    return (
        best
        if all(lead > math.hypot(half[column], half[best[0]]) for column, lead in leads.items())
        else []
    )


def _panels(runs: Runs) -> list[plots.Panel]:
    """A plot of each logged metric, with a curve of each run."""
    wanted = list(_PRETRAINING_CURVES)
    if next(iter(runs.values())).kind != "pretraining":
        names = dict.fromkeys(
            f"eval_{name}" for run in runs.values() for name, *_ in metric_rows(run.results)
        )
        measured = [name for name in names if name.endswith(("loss", *_MORE_IS_BETTER))]
        lengths = {
            name: [len(plots.series(run.history, name)[0]) for run in runs.values()]
            for name in measured
        }
        often = [name for name in measured if max(lengths[name]) > 1]
        wanted = [
            ("loss", "Loss, training", ""),
            *((name, f"{words_of(name)}, validation", "") for name in often[:4]),
        ]
    wanted.append(("learning_rate", "Learning rate", ""))
    wanted.append(("tokens_per_second", "Throughput", "tokens per second, no pads"))
    panels = []
    for metric, title, unit in wanted:
        lines = []
        for color, (name, run) in zip(plots.SERIES, runs.items(), strict=False):
            steps, values = plots.series(run.history, metric)
            lines += (
                [plots.Line(name, steps, values, color, has_points=len(steps) <= 30)]
                if steps
                else []
            )
        panels.append(plots.Panel(title, unit, lines))
    return plots.with_curves(panels)


def _classes(runs: Runs) -> list[list[str]]:
    """F1 of each class, where all runs know the same classes of one split."""
    splits = [run.facts.get("splits") or [] for run in runs.values()]
    if any(len(each) != 1 or not each[0].get("classes") for each in splits) or _differ(
        s[0]["labels"] for s in splits
    ):
        return []
    columns = [[f"{score['f1']:.3f}" for score in each[0]["classes"]] for each in splits]
    return [list(row) for row in zip(map(str, splits[0][0]["labels"]), *columns, strict=True)]
