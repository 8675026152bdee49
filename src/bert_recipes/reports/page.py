"""Write a report, report.md and report.html with pictures, from the files of a run or a sweep.

The page is one HTML file that needs nothing else: it forbids itself to load anything, every text is
escaped, plots are SVG.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from bert_recipes.errors import saving
from bert_recipes.files import atomic_write, replace_nonfinite
from bert_recipes.metrics.certainty import wilson_interval
from bert_recipes.reports import plots
from bert_recipes.reports.facts import NUM_EXAMPLES, RunFiles, read_object, read_run
from bert_recipes.rows import is_missing
from bert_recipes.run_folder import MARKDOWN_FILE, PAGE_FILE, RESULTS_FILE, SWEEP_FILE


PLOT_FILE = "losses.png"
# Curves of a run that the picture beside the Markdown shows.
NUM_PICTURED = 3


def write_report(folder: Path) -> list[Path]:
    """Write the report of a finished run or of a sweep from its files; report.md comes first."""
    if (folder / SWEEP_FILE).is_file() and not (folder / RESULTS_FILE).is_file():
        sweep = read_object(folder / SWEEP_FILE)
        return save_report(_sweep_report(sweep, folder.resolve().name), folder)
    run = read_run(folder)
    if run.stage == "finetuning":
        return save_report(_finetuning_report(run), folder)
    return save_report(_pretraining_report(run), folder)


def save_report(files: Mapping[str, bytes], folder: Path) -> list[Path]:
    """Write a report's files into a folder, each completely or not at all."""
    with saving(folder):
        for name, content in files.items():
            with atomic_write(folder / name) as file:
                file.write_bytes(content)
    return [folder / name for name in files]


def report_files(
    template: str, panels: Sequence[plots.Panel] = (), picture: str = PLOT_FILE, **content: Any
) -> dict[str, bytes]:
    """Return file name -> bytes of a report in both forms, and of the picture of its curves."""
    content["curves"] = [plots.panel_plot(panel) for panel in panels]
    content["picture"] = picture
    files = {}
    for form, name in (("md", MARKDOWN_FILE), ("html", PAGE_FILE)):
        # Half of a surrogate pair, which JSON can hold, is no letter of UTF-8.
        files[name] = render(template, form, **content).encode(errors="replace")
    if panels:
        files[picture] = plots.panels_png(panels[:NUM_PICTURED])
    return files


# The content


def _pretraining_report(run: RunFiles) -> dict[str, bytes]:
    panels = plots.pretraining_panels(run.history)
    return _run_report("pretraining.j2", run, panels, title="Pre-training report")


def _finetuning_report(run: RunFiles) -> dict[str, bytes]:
    task = run.task
    best_metric = None if task is None else task.best_metric
    title = run.results.get("task") or run.facts.get("task") or "task"
    names = [key.removeprefix("eval_") for key in metric_keys(run.results)]
    tiles = [name for name in names if not name.endswith(("loss", *plots.NO_SCORES))]
    tiles.sort(key=lambda name: name != best_metric)
    return _run_report(
        "finetuning.j2",
        run,
        plots.finetuning_panels(run.history, names),
        title=f"Fine-tuning report: {title}",
        rows=[(words_of(name), *cells) for name, *cells in metrics_of_splits(run.results)],
        metric_heads=METRIC_HEADS,
        best_metric=best_metric,
        is_percent=task is not None and task.kind == "question_answering",
        is_no_better=is_no_better(run.results, best_metric),
        tile_names=tiles[:3],
        split_plots={split["name"]: _split_plot(split) for split in run.facts.get("splits") or []},
    )


def _split_plot(split: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the reliability of predictions, or of numbers the predictions over the truth."""
    if "dots" in split:
        return plots.scatter(*split["dots"])
    if "calibration" in split:
        measured = split["calibration"]
        return plots.reliability(measured["bins"], measured["expected_calibration_error"])
    return None


def _run_report(
    template: str, run: RunFiles, panels: Sequence[plots.Panel], **content: Any
) -> dict[str, bytes]:
    """Return the files of a run's report, with what the reports of both kinds have in common.

    Args:
        template: Name of the template.
        run: Whose report it is.
        panels: Curves of the log.
        **content: More values for the template.
    """
    return report_files(
        template,
        panels,
        name=run.name,
        base=run.results.get("model") if run.stage == "finetuning" else None,
        results=replace_nonfinite(run.results),
        facts=run.facts,
        **content,
    )


def _sweep_report(sweep: Mapping[str, Any], name: str) -> dict[str, bytes]:
    names = [combination["name"] for combination in sweep["combinations"]]
    settings = [combination["settings"] for combination in sweep["combinations"]]
    varying = []
    for key in settings[0]:
        if len({row[key] for row in settings}) > 1:
            varying.append(key)

    return report_files(
        "sweep.j2",
        title=f"Sweep: {sweep['metric']} on the development set",
        name=name,
        results=sweep,
        varying=varying,
        best=names.index(sweep["best"]),
    )


METRIC_HEADS = ("metric", "value", "95% interval", "majority-class baseline")


def metric_keys(results: Mapping[str, Any], prefix: str = "eval_") -> list[str]:
    """Return the keys with a prefix that are metrics, not costs of the evaluation."""
    return [key for key in results if key.startswith(prefix) and not is_cost(key)]


def metric_rows(
    results: Mapping[str, Any], prefix: str = "eval_"
) -> list[tuple[str, str, str, str]]:
    """Return a row (`METRIC_HEADS`) for each result with a prefix.

    What is not defined is "n/a", and what is not known is empty. Results of a test split keep the
    `test_` in their names.
    """
    intervals = results.get("intervals") or {}
    baselines = results.get("baselines") or {}
    rows = []
    for key in metric_keys(results, prefix):
        value = results[key]
        name = key.removeprefix("eval_")
        cell = str(value)
        if not isinstance(value, int | str):
            cell = format_as(replace_nonfinite(value), ".4f")
        interval = " to ".join(f"{end:.4f}" for end in intervals.get(name, ()))
        baseline = format_as(baselines.get(name), ".4f", "")
        rows.append((name, cell, interval, baseline))
    return rows


def metrics_of_splits(results: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return `METRIC_HEADS` of the metrics on the validation and the test splits."""
    return [*metric_rows(results), *metric_rows(results, "test_")]


def is_cost(key: str) -> bool:
    """Tell whether a metric is a cost of the evaluation, which the Trainer puts among them."""
    return key.endswith(("seconds", "runtime", "per_second"))


# Our choice: a fine-tuning of fewer steps is told that it may be too short.
FEW_FINETUNING_STEPS = 500


def is_no_better(results: Mapping[str, Any], name: str | None) -> bool:
    """Tell whether a metric, or the low end of its interval, does not exceed the baseline.

    Where one of them is unknown, or there is no such metric, the answer is False.
    """
    baseline = (results.get("baselines") or {}).get(name)
    value = results.get(f"eval_{name}")
    if baseline is None or value is None:
        return False
    interval = (results.get("intervals") or {}).get(name)
    low = interval[0] if interval else value
    if low == baseline == 0:
        return value <= 0  # the interval was cut at 0: whatever is right is more than nothing
    return low <= baseline


def finetuning_table(results: Mapping[str, Any], best_metric: str | None = None) -> str:
    """Return the metrics of a fine-tuning run; warn if the best metric beats no baseline."""
    rows = metrics_of_splits(results)
    table = _terminal("{{ ui.table(heads, rows) }}", heads=METRIC_HEADS, rows=rows)
    if not is_no_better(results, best_metric):
        return table
    warning = f"{best_metric}: nothing shows that the model beats the majority-class baseline"
    steps = results.get("train_steps", FEW_FINETUNING_STEPS)
    if results.get(f"eval_{best_metric}") == 1.0:
        warning += "; the validation rows are too few: give more of them"
    elif steps < FEW_FINETUNING_STEPS:
        warning += (
            f"; {steps} steps are few: try --num_train_epochs 20 in another --output_dir, and "
            "--learning_rate 1e-3 for a tiny model"
        )
    return f"{table}\n{warning}"


def pretraining_table(results: Mapping[str, Any]) -> str:
    """Return held-out metrics beside their baselines, and what training cost, for a terminal."""
    return _terminal(
        "{{ tables.held_out(ui, results) }}{{ tables.training(ui, results) }}",
        results=replace_nonfinite(results),
    )


# Templates


def render(template: str, form: str, **content: Any) -> str:
    """Fill a template of this package, in the form "md" or "html"."""
    template_of_form = environment_of(form).get_template(template)
    text = template_of_form.render(
        form=form,
        colors=plots.COLORS,
        **content,
    )
    return text if form == "html" else _tidy(text) + "\n"


def _terminal(text: str, **content: Any) -> str:
    macros = "{% import 'md_macros.j2' as ui %}{% import 'tables.j2' as tables %}"
    return _tidy(environment_of("md").from_string(macros + text).render(**content))


def _tidy(text: str) -> str:
    """Strip every line, and keep one of several blank lines."""
    lines = "\n".join(line.strip() for line in text.splitlines())
    return re.sub(r"\n{3,}", "\n\n", lines).strip()


@cache
def environment_of(form: str) -> Environment:
    """Return where the templates of this package are, and what they may call."""
    environment = Environment(
        loader=PackageLoader("bert_recipes.reports"),
        autoescape=form == "html",
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    environment.globals["wilson_interval"] = wilson_interval
    environment.globals["NUM_EXAMPLES"] = NUM_EXAMPLES
    environment.filters.update(
        anchor=format_anchor,
        counted=format_count,
        duration=format_duration,
        f=format_as,
        md=escape,
        number=format_number,
        width=format_width,
        words=words_of,
    )
    return environment


# Filters


def escape(text: object) -> str:
    """Return a line of Markdown in which no text is a table's bar, a tag, a link or a picture."""
    # A backslash of the text first: it would take away the one that is put before a bar or a tag.
    one_line = " ".join(str(text).split()).replace("\\", "\\\\")
    return one_line.replace("|", "\\|").replace("<", "\\<").replace("](", "]\\(")


def format_number(value: Any) -> str:
    """Format a value for a table: counts with commas, fractions with four digits, or "n/a"."""
    if is_missing(value):
        return "n/a"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number:
        return str(value)

    size = abs(value)
    if isinstance(value, int) or size >= 1000:
        return f"{value:,.0f}"
    if size == 0 or 0.001 <= size < 10:
        return f"{value:.4f}"
    return f"{value:.4g}"


def format_as(value: Any, style: str, otherwise: str = "n/a") -> str:
    """Format a number; what is none is `otherwise`."""
    return format(value, style) if isinstance(value, int | float) else otherwise


def format_interval(interval: tuple[float, float]) -> str:
    """Format an interval of a difference: "-0.0120 to +0.0040"."""
    low, high = interval
    return f"{low:+.4f} to {high:+.4f}"


def format_duration(seconds: float) -> str:
    """Format seconds as "48 s", "3.7 min", "5.2 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def format_count(number: int, noun: str) -> str:
    """Format a number of things: "1 step", "1,200 steps"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_width(fraction: float) -> str:
    """Format the width of a bar for the style sheet: "25.0%"."""
    return f"{100 * min(max(fraction, 0.0), 1.0):.1f}%"


def format_anchor(title: str) -> str:
    """Format a title as the id of its section."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"


_WORDS = {
    "data_wait_share": "fraction of the time waiting for data",
    "tokens_per_second": "tokens per second, median, no padding",
    "peak_memory_mb": "peak memory, MB",
    "eval_pairs": "held-out inputs measured",
    "eval_masked_tokens": "held-out masked tokens measured",
}


def words_of(name: str) -> str:
    """Return a key of a results file in words."""
    return _WORDS.get(name) or name.removeprefix("eval_").replace("_", " ")
