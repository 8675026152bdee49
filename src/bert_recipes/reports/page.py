"""A report's files, report.md and report.html with their pictures, from the files of a run or a
sweep, by templates.

The page is one HTML file that needs nothing else: it forbids itself to load anything, every text is
escaped, plots are SVG.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from bert_recipes.checkpointing import SWEEP_FILE
from bert_recipes.errors import saving
from bert_recipes.files import atomic_write, strict
from bert_recipes.metrics.certainty import wilson_interval
from bert_recipes.reports import plots
from bert_recipes.reports.facts import Facts, RunFiles, clip, read_object, read_run
from bert_recipes.training.resume import RESULTS_FILE


MARKDOWN_FILE, PAGE_FILE, PLOT_FILE = "report.md", "report.html", "losses.png"
SWEEP_PLOT = "sweep.png"
# Letters beside a sweep's plot, which they would push away.
LONGEST_NAME = 40
# The plots of a pre-training run that the picture shows.
_PICTURED = ("Masked-LM loss", "Next-sentence loss", "Sentence-order loss", "Held-out accuracy")


def write_report(folder: Path) -> list[Path]:
    """Write the report of a finished run or of a sweep from its files alone; report.md comes
    first.
    """
    if (folder / SWEEP_FILE).is_file() and not (folder / RESULTS_FILE).is_file():
        return save_report(
            _sweep_report(read_object(folder / SWEEP_FILE), folder.resolve().name), folder
        )
    run = read_run(folder)
    return save_report(
        _finetuning_report(run) if run.kind == "finetuning" else _pretraining_report(run), folder
    )


def save_report(files: Mapping[str, bytes], folder: Path) -> list[Path]:
    """Write a report's files into a folder, each completely or not at all."""
    with saving(folder):
        for name, content in files.items():
            with atomic_write(folder / name) as aside:
                aside.write_bytes(content)
    return [folder / name for name in files]


def report_files(template: str, pictures: Mapping[str, bytes], **content: Any) -> dict[str, bytes]:
    """Return file name -> bytes of a report in both forms."""
    texts = {
        MARKDOWN_FILE: render(template, "md", **content),
        PAGE_FILE: render(template, "html", **content),
    }
    # Half of a surrogate pair, which JSON can hold, is no letter of UTF-8.
    return {name: text.encode(errors="replace") for name, text in texts.items()} | dict(pictures)


# The content


def _pretraining_report(run: RunFiles) -> dict[str, bytes]:
    held_out = run.facts.get("held_out") or {}
    panels = plots.pretraining_panels(run.history)
    masks, verdicts = held_out.get("masks", []), held_out.get("verdicts", [])
    # null stands for an output that is not finite.
    known_masks = [
        each for each in masks if all(fraction is not None for _, fraction in each["guesses"])
    ]
    known_verdicts = [each for each in verdicts if each["is_next"] is not None]
    axes = {"x_label": "tokens of an input", "y_label": "inputs of the sample"}
    lengths: list[Any] = []
    for phase in run.facts.get("phases") or []:
        edges, counts = phase["length_edges"], phase["length_counts"]
        lengths.append(
            plots.histogram("Lengths of the inputs", edges, counts, **axes)
            if phase["pairs"]
            else None
        )
    return report_files(
        "pretraining.j2",
        {
            PLOT_FILE: plots.panels_png(
                [each for each in panels if each.title in _PICTURED] or panels[:1]
            )
        },
        **_run_content(run, "Pre-training report", panels),
        length_plots=lengths,
        is_broken=len(known_masks) < len(masks) or len(known_verdicts) < len(verdicts),
        masks=[each | {"guesses": _guesses(each)} for each in known_masks],
        verdicts=known_verdicts,
    )


def _guesses(mask: Mapping[str, Any]) -> list[tuple[str, float, bool, int | None]]:
    """Return (piece, probability, is it right, rank): the right one comes last, with its rank,
    where it is not among the first.
    """
    truth = mask["truth"]
    guesses: list[Any] = [
        (piece, fraction, piece == truth, None) for piece, fraction in mask["guesses"]
    ]
    is_among = any(is_right for _, _, is_right, _ in guesses)
    return guesses if is_among else [*guesses, (truth, mask["probability"], True, mask["rank"])]


def _finetuning_report(run: RunFiles) -> dict[str, bytes]:
    task = run.task
    names, best = (
        [name for name, *_ in metric_rows(run.results)],
        None if task is None else task.best_metric,
    )
    panels = plots.finetuning_panels(run.history, [f"eval_{name}" for name in names])
    tiles = [
        name
        for name in names
        if not name.endswith(("loss", "_thresh", "total", "_number", "missing"))
    ]
    title = run.results.get("task") or run.facts.get("task") or (task.name if task else "task")
    return report_files(
        "finetuning.j2",
        {PLOT_FILE: plots.panels_png(panels[:2])} if panels else {},
        **_run_content(run, f"Fine-tuning report: {title}", panels),
        rows=[(words_of(name), *cells) for name, *cells in metrics_of_splits(run.results)],
        metric_heads=METRIC_HEADS,
        best_metric=best,
        is_percent=task is not None and task.kind == "question_answering",
        is_no_better=best is not None and is_no_better(run.results, best),
        tile_names=sorted(tiles, key=lambda name: name != best)[:3],
        split_plots=[
            _split_plots(split) for split in run.facts.get("splits") or [] if split["looked_at"]
        ],
    )


def _split_plots(split: Mapping[str, Any]) -> Facts:
    found: Facts = {}
    if "dots" in split:
        found["dots"] = plots.scatter(*split["dots"])
    if counts := split.get("f1_counts"):
        edges, title = (
            [n / len(counts) for n in range(len(counts) + 1)],
            "Words in common with the right answer",
        )
        found["f1"] = plots.histogram(
            title, edges, counts, x_label="F1 of an answer", y_label="questions"
        )
    if measured := split.get("calibration"):
        found["reliability"] = plots.reliability(
            measured["bins"], measured["expected_calibration_error"]
        )
    return found


def _run_content(run: RunFiles, title: str, panels: Sequence[plots.Panel]) -> Facts:
    """Return what the reports of both kinds of runs have in common."""
    return {
        "title": title,
        "name": run.name,
        "base": run.results.get("model") if run.kind == "finetuning" else None,
        "results": strict(run.results),
        "facts": run.facts,
        "curves": [plots.panel_plot(panel) for panel in panels],
        "picture": PLOT_FILE,
    }


def _sweep_report(sweep: Mapping[str, Any], name: str) -> dict[str, bytes]:
    combinations, metric = sweep["combinations"], sweep["metric"]
    settings = [each["settings"] for each in combinations]
    varying = [key for key in settings[0] if len({each[key] for each in settings}) > 1]
    names = [", ".join(str(each[key]) for key in varying) for each in settings]
    best = [each["name"] for each in combinations].index(sweep["best"])
    varied = ", ".join(varying).replace("_", " ") or "settings"
    rows = [
        clip(text or str(each["name"]), LONGEST_NAME)
        for text, each in zip(names, combinations, strict=True)
    ]
    curve, png = plots.sweep_plots(rows, combinations, best, metric, varied)
    return report_files(
        "sweep.j2",
        {SWEEP_PLOT: png},
        title=f"Sweep: {metric} on the development set",
        name=name,
        results=sweep,
        varying=varying,
        varied=varied,
        names=names,
        best=best,
        curves=[curve],
        picture=SWEEP_PLOT,
    )


METRIC_HEADS = ("metric", "value", "95% interval", "constant answer")


def metric_rows(
    results: Mapping[str, Any], prefix: str = "eval_"
) -> list[tuple[str, str, str, str]]:
    """Return `METRIC_HEADS` of the values with a prefix; what is not defined is "n/a", and what is
    not known is empty.

    Those of a test split keep the `test_` in their names.
    """
    rows = []
    intervals, baselines = results.get("intervals") or {}, results.get("baselines") or {}
    for key, value in results.items():
        if key.startswith(prefix) and not is_cost(key):
            name = key.removeprefix("eval_")
            formatted = (
                str(value) if isinstance(value, int | str) else format_as(strict(value), ".4f")
            )
            interval = " to ".join(f"{end:.4f}" for end in intervals.get(name, ()))
            rows.append(
                (name, formatted, interval, f"{baselines[name]:.4f}" if name in baselines else "")
            )
    return rows


def metrics_of_splits(results: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return `METRIC_HEADS` of the metrics on the validation and the test splits."""
    return [*metric_rows(results), *metric_rows(results, "test_")]


def is_cost(key: str) -> bool:
    """Tell whether a metric is what an evaluation cost, which the Trainer puts among the
    metrics.
    """
    return key.endswith(("seconds", "runtime", "per_second"))


# Our choice: a fine-tuning of fewer steps is told that it may be too short.
FEW_FINETUNING_STEPS = 500


def is_no_better(results: Mapping[str, Any], name: str) -> bool:
    """Tell whether a metric, or the low end of its interval, is not above the constant answer; not
    where that is unknown.
    """
    constant, value = (results.get("baselines") or {}).get(name), results.get(f"eval_{name}")
    if constant is None or value is None:
        return False
    low = ((results.get("intervals") or {}).get(name) or [value])[0]
    # An interval that ends at 0 was cut there: whatever is right is more than nothing.
    return not (low > constant or value > low == constant == 0)


def finetuning_table(results: Mapping[str, Any], best_metric: str | None = None) -> str:
    """Return the metrics of a fine-tuning run as Markdown for a terminal, with a warning where the
    best metric shows nothing.
    """
    table = _terminal(
        "{{ ui.table(heads, rows) }}", heads=METRIC_HEADS, rows=metrics_of_splits(results)
    )
    if best_metric is None or not is_no_better(results, best_metric):
        return table
    warning = f"{best_metric}: nothing shows that the model does better than one constant answer"
    steps = results.get("train_steps", FEW_FINETUNING_STEPS)
    if steps < FEW_FINETUNING_STEPS:
        warning += (
            f"; {steps} steps are few: try --num_train_epochs 20, and --learning_rate 1e-3 "
            "for a tiny model"
        )
    return f"{table}\n{warning}"


def pretraining_table(results: Mapping[str, Any]) -> str:
    """Return held-out metrics beside their baselines, and what training cost, as Markdown for a
    terminal.
    """
    return _terminal(
        "{{ tables.held_out(ui, results) }}{{ tables.training(ui, results) }}",
        results=strict(results),
    )


# Templates


def render(template: str, form: str, **content: Any) -> str:
    """Fill a template of this package, in the form "md" or "html"."""
    text = (
        environment_of(form)
        .get_template(template)
        .render(form=form, colors=plots.COLORS, **content)
    )
    if form == "md":
        return _tidy(text) + "\n"
    # No two plots have ids in common.
    numbers = itertools.count(1)
    return re.sub(
        r"<svg.*?</svg>", lambda m: _ID.sub(rf"\g<0>p{next(numbers)}-", m[0]), text, flags=re.DOTALL
    )


_ID = re.compile(r'\bid="|\bhref="#|url\(#')


def _terminal(text: str, **content: Any) -> str:
    macros = "{% import 'md_macros.j2' as ui %}{% import 'tables.j2' as tables %}"
    return _tidy(environment_of("md").from_string(macros + text).render(**content))


def _tidy(text: str) -> str:
    """Strip every line, and keep one of several blank lines."""
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line.strip() for line in text.splitlines())).strip()


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
    environment.filters |= {
        "anchor": lambda title: re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section",
        "counted": lambda number, noun: f"{number:,} {noun}{'' if number == 1 else 's'}",
        "duration": format_duration,
        "f": format_as,
        "links": lambda body: [
            (found[1], Markup(found[2]))
            for found in re.finditer(r'<section id="(.*?)"><h2>(.*?)</h2>', body)
        ],
        "md": escape,
        "metric": lambda value, name: format_metric(name, value),
        "number": format_number,
        "rich": _rich,
        "width": lambda fraction: f"{100 * min(max(fraction, 0.0), 1.0):.1f}%",
        "words": words_of,
        "zip": lambda first, second: list(zip(first, second, strict=True)),
    }
    return environment


def escape(text: object) -> str:
    """Return a text on one line of Markdown in which nothing is a table's bar, a tag, a link or a
    picture.
    """
    # A backslash of the text first: it would take away the one that is put before a bar or a tag.
    one_line = " ".join(str(text).split()).replace("\\", "\\\\")
    return one_line.replace("|", "\\|").replace("<", "\\<").replace("](", "]\\(")


def _rich(parts: Sequence[tuple[str, str]]) -> str:
    """Return Markdown of (kind, text): bold what is marked, and keep the spaces at the ends of
    other parts.
    """

    def part(kind: str, text: str) -> str:
        return (
            f"**{escape(text)}**"
            if kind
            else " " * text[:1].isspace() + escape(text) + " " * text[-1:].isspace()
        )

    return " ".join("".join(part(*each) for each in parts).split())


def format_number(value: Any) -> str:
    """Format a value for a table: counts with commas, fractions with four digits, None and NaN as
    "n/a", a list with commas.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "n/a"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (value.is_integer() and abs(value) >= 10) or abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.4f}" if abs(value) >= 0.001 or value == 0 else f"{value:.2e}"


def format_as(value: Any, style: str, otherwise: str = "n/a") -> str:
    """Format a number; what is none is `otherwise`."""
    return format(value, style) if isinstance(value, int | float) else otherwise


def format_metric(name: str, value: Any) -> str:
    """Format a result by its name: seconds with one digit, others as `format_number` has them."""
    return (
        f"{value:,.1f}"
        if name.endswith("seconds") and isinstance(value, int | float)
        else format_number(value)
    )


def format_duration(seconds: float) -> str:
    """Format seconds as "48 s", "3.7 min", "5.2 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


_WORDS = {
    "data_wait_share": "fraction of the time waiting for data",
    "peak_memory_mb": "peak memory, MB",
}
_WORDS |= {
    "eval_pairs": "held-out inputs measured",
    "eval_masked_tokens": "held-out masked tokens measured",
}


def words_of(name: str) -> str:
    """Return a key of a results file in words."""
    return _WORDS.get(name) or name.removeprefix("eval_").replace("_", " ")
