"""A report's files, report.md and report.html with their pictures, from the files of a run or a sweep, by templates.

The page is one HTML file that needs nothing else: it forbids itself to load anything, every text is escaped, plots are SVG.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, Undefined, UndefinedError
from markupsafe import Markup

from bert_recipes.checkpointing import SWEEP_FILE
from bert_recipes.errors import saving
from bert_recipes.files import strict, written_aside
from bert_recipes.metrics.certainty import wilson_interval
from bert_recipes.reports import plots
from bert_recipes.reports.facts import Facts, RunFiles, clip, damage_as_one_line, read_object, read_run
from bert_recipes.training.resume import RESULTS_FILE


MARKDOWN_FILE, PAGE_FILE, PLOT_FILE = "report.md", "report.html", "losses.png"
SWEEP_PLOT = "sweep.png"
# Letters beside a sweep's plot, which they would push away.
LONGEST_NAME = 40
# The plots of a pre-training run that the picture shows.
_PICTURED = ("Masked-LM loss", "Next-sentence loss", "Held-out accuracy")


def write_report(folder: Path) -> list[Path]:
    """Write the report of a finished run or of a sweep from its files alone; report.md comes first."""
    is_sweep = (folder / SWEEP_FILE).is_file() and not (folder / RESULTS_FILE).is_file()
    with damage_as_one_line(folder):
        if is_sweep:
            files = _sweep_report(read_object(folder / SWEEP_FILE), folder.resolve().name)
        else:
            run = read_run(folder)
            files = _finetuning_report(run) if run.kind == "finetuning" else _pretraining_report(run)
    return save_report(files, folder)


def save_report(files: Mapping[str, bytes], folder: Path) -> list[Path]:
    """Write a report's files into a folder, each completely or not at all."""
    with saving(folder):
        for name, content in files.items():
            with written_aside(folder / name) as aside:
                aside.write_bytes(content)
    return [folder / name for name in files]


def report_files(template: str, pictures: Mapping[str, bytes], **content: Any) -> dict[str, bytes]:
    """File name -> bytes of a report in both forms."""
    texts = {MARKDOWN_FILE: render(template, "md", **content), PAGE_FILE: render(template, "html", **content)}
    # Half of a surrogate pair, which JSON can hold, is no letter of UTF-8.
    return {name: text.encode(errors="replace") for name, text in texts.items()} | dict(pictures)


# The content


def _pretraining_report(run: RunFiles) -> dict[str, bytes]:
    facts, held_out = run.facts, run.facts.get("held_out") or {}
    panels = plots.pretraining_panels(run.history)
    masks, verdicts = held_out.get("masks", []), held_out.get("verdicts", [])
    # null stands for an output that is not finite.
    known_masks = [each for each in masks if all(share is not None for _, share in each["guesses"])]
    known_verdicts = [each for each in verdicts if each["is_next"] is not None]
    return report_files(
        "pretraining.j2",
        {PLOT_FILE: plots.panels_png([each for each in panels if each.title in _PICTURED] or panels[:1])},
        **_run_content(run, "Pre-training report", panels),
        length_plots=[_length_plot(phase) if phase["pairs"] else None for phase in facts.get("phases") or []],
        is_broken=len(known_masks) < len(masks) or len(known_verdicts) < len(verdicts),
        masks=[_mask(each) for each in known_masks],
        verdicts=[
            {
                "texts": [("first", [("", each["first"])]), ("second", [("", each["second"])])],
                "said": f"{each['is_next']:.2f}",
                "truth": "it follows" if each["truth"] else "another document",
                "is_right": (each["is_next"] >= 0.5) == each["truth"],
                "share": each["is_next"],
            }
            for each in known_verdicts
        ],
    )


def _length_plot(phase: Mapping[str, Any]) -> Facts:
    edges, counts = phase["length_edges"], phase["length_counts"]
    svg = plots.histogram(edges, counts, x_label="tokens of a pair", y_label="pairs")
    return plots.plot("Lengths of the pairs", svg, ("pairs of the sample", "blue", "line"))


def _mask(mask: Mapping[str, Any]) -> Facts:
    """A sentence with its hidden piece; the right guess is marked, and comes last where it is not among the first."""
    truth = mask["truth"]
    guesses = [(piece, share, piece == truth, None) for piece, share in mask["guesses"]]
    if not any(is_true for _, _, is_true, _ in guesses):
        guesses.append((truth, mask["probability"], True, mask["rank"]))
    before, after = mask["before"] and f"{mask['before']} ", mask["after"] and f" {mask['after']}"
    # Other [MASK]s stand back.
    parts = [[("dim" if p == "[MASK]" else "", p) for p in re.split(r"(\[MASK\])", t) if p] for t in (before, after)]
    return {"text": [*parts[0], ("mask", "[MASK]"), *parts[1]], "truth": truth, "guesses": guesses}


def _finetuning_report(run: RunFiles) -> dict[str, bytes]:
    results, facts, task = run.results, run.facts, run.task
    rows, best = metric_rows(results), None if task is None else task.best_metric
    names = [name for name, *_ in rows]
    panels = plots.finetuning_panels(run.history, [f"eval_{name}" for name in names])
    shown = [name for name in names if not name.endswith(("loss", "_thresh", "total", "_number", "missing"))]
    title = str(results.get("task") or facts.get("task") or (task.name if task else "task"))
    return report_files(
        "finetuning.j2",
        {PLOT_FILE: plots.panels_png(panels[:2])} if panels else {},
        **_run_content(run, f"Fine-tuning report: {title}", panels),
        rows=rows,
        metric_heads=METRIC_HEADS,
        best_metric=best,
        is_percent=task is not None and task.kind == "question_answering",
        is_short=0 < len(rows) <= 4,
        is_no_better=best is not None and is_no_better(results, best),
        tile_names=sorted(shown, key=lambda name: name != best)[:3],
        split_plots=[_split_plots(split) for split in facts.get("splits") or [] if split["looked_at"]],
    )


def _split_plots(split: Mapping[str, Any]) -> Facts:
    found: Facts = {}
    if "dots" in split:
        note = f"{len(split['dots'][0]):,} examples; on the dashed line right and predicted are equal"
        found["dots"] = plots.plot(
            "Predicted over right", plots.scatter(*split["dots"]), ("example", "blue", "dots"), note=note
        )
    if split.get("f1_counts"):
        counts = split["f1_counts"]
        edges = [number / len(counts) for number in range(len(counts) + 1)]
        svg = plots.histogram(edges, counts, x_label="F1 of an answer", y_label="questions")
        found["f1"] = plots.plot("Words in common with the right answer", svg, ("questions", "blue", "line"))
    if split.get("calibration"):
        bins, error = split["calibration"]["bins"], split["calibration"]["expected_calibration_error"]
        total = sum(each["count"] for each in bins)
        found["reliability"] = plots.plot(
            f"Reliability: expected calibration error {error:.3f}",
            plots.reliability(bins),
            ("right as often as that", "blue", "dots"),
            ("what would be right", "grey", "dash"),
            note=f"dot: mean probability of the bin, fraction right; {total:,} predictions",
        )
    return found


def _run_content(run: RunFiles, title: str, panels: Sequence[plots.Panel]) -> Facts:
    """What the reports of both kinds of runs have in common."""
    results, machine = run.results, run.results.get("machine") or {}
    own = ", trainer_state.json and report.json" if run.facts else " and trainer_state.json"
    lack = "" if run.facts else " The run left no report.json: what needs its model and data is not in here."
    cores = None if machine.get("gpu") or not machine.get("cores") else f"{machine['cores']} cores"
    return {
        "title": title,
        "name": run.name,
        "about": [
            f"from {results['model']}" if run.kind == "finetuning" and results.get("model") else None,
            results.get("date"),
            machine.get("gpu") or machine.get("processor"),
            cores,
            *(f"{name} {machine[name]}" for name in ("torch", "transformers") if machine.get(name)),
        ],
        "results": strict(results),
        "facts": run.facts,
        "curves": [plots.panel_plot(panel) for panel in panels],
        "picture": PLOT_FILE,
        "foot": f"Written by bert-recipes from all_results.json{own}; `make report RUN=` writes it again.{lack}",
    }


def _sweep_report(sweep: Mapping[str, Any], name: str) -> dict[str, bytes]:
    combinations, metric = sweep["combinations"], sweep["metric"]
    chosen = [each["settings"] for each in combinations]
    varying = [key for key in chosen[0] if len({settings[key] for settings in chosen}) > 1]
    names = [", ".join(str(settings[key]) for key in varying) for settings in chosen]
    best = next(number for number, each in enumerate(combinations) if each["name"] == sweep["best"])

    def number(value: float | None) -> float:
        return math.nan if value is None else float(value)  # null is a run that diverged

    rows = [
        plots.Dots(
            clip(name or str(each["name"]), LONGEST_NAME),
            tuple(number(run["value"]) for run in each["runs"]),
            number(each["median"]),
            is_best=each["name"] == sweep["best"],
        )
        for name, each in zip(names, combinations, strict=True)
    ]
    label, varied = f"{metric}, development set", ", ".join(varying).replace("_", " ") or "settings"
    keys = [("run", "blue", "dots"), ("greatest median", "orange", "dots"), ("median: upright bar", "grey", "line")]
    machine = sweep.get("machine") or {}
    png = plots.dots_png(rows, f"{label} (points: runs, bars: medians, orange: the greatest)", varied)
    return report_files(
        "sweep.j2",
        {SWEEP_PLOT: png},
        title=f"Sweep: {metric} on the development set",
        name=name,
        about=[sweep.get("date"), machine.get("gpu") or machine.get("processor")],
        sweep=sweep,
        combinations=combinations,
        varying=varying,
        varied=varied,
        names=names,
        best=best,
        curves=[plots.plot(f"{metric} by {varied}", plots.dots_svg(rows, label), *keys)],
        picture=SWEEP_PLOT,
        foot="Written by bert-recipes from sweep.json; `make report RUN=` writes it again.",
    )


METRIC_HEADS = ("metric", "value", "95% interval", "constant answer")


def metric_rows(results: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """`METRIC_HEADS` of the `eval_` values; what is not defined is "n/a", and what is not known is empty."""
    rows = []
    intervals, baselines = results.get("intervals") or {}, results.get("baselines") or {}
    for key, value in results.items():
        if key.startswith("eval_") and not key.endswith("_seconds"):
            name = key.removeprefix("eval_")
            formatted = str(value) if isinstance(value, int | str) else format_as(strict(value), ".4f")
            interval = " to ".join(f"{end:.4f}" for end in intervals.get(name, ()))
            rows.append((name, formatted, interval, f"{baselines[name]:.4f}" if name in baselines else ""))
    return rows


def is_no_better(results: Mapping[str, Any], name: str) -> bool:
    """Whether a metric, or the low end of its interval, is not above the constant answer; not where that is unknown."""
    constant, value = (results.get("baselines") or {}).get(name), results.get(f"eval_{name}")
    if constant is None or value is None:
        return False
    low = ((results.get("intervals") or {}).get(name) or [value])[0]
    # An interval that ends at 0 was cut there: whatever is right is more than nothing.
    return not (low > constant or value > low == constant == 0)


def finetuning_table(results: Mapping[str, Any]) -> str:
    """The metrics of a fine-tuning run as Markdown for a terminal."""
    text = "{% import 'md_macros.j2' as ui %}{{ ui.table(heads, rows) }}"
    return _tidy(_environment("md").from_string(text).render(heads=METRIC_HEADS, rows=metric_rows(results)))


def pretraining_table(results: Mapping[str, Any]) -> str:
    """Held-out metrics beside their baselines, and what training cost, as Markdown for a terminal."""
    text = (
        "{% import 'md_macros.j2' as ui %}{% import 'tables.j2' as tables %}"
        "{{ tables.held_out(ui, results) }}{{ tables.training(ui, results, after=('eval_pairs', 'eval_masked_tokens')) }}"
    )
    return _tidy(_environment("md").from_string(text).render(results=strict(results)))


# Templates


def render(template: str, form: str, **content: Any) -> str:
    """Fill a template of this package.

    Args:
        template: Its name.
        form: "md" or "html".
        content: What it shows.
    """
    try:
        text = _environment(form).get_template(template).render(form=form, colors=plots.COLORS, **content)
    except UndefinedError as error:
        raise KeyError(str(error)) from error
    if form == "md":
        return _tidy(text) + "\n"
    # No two plots have ids in common.
    numbers = itertools.count(1)
    return re.sub(r"<svg.*?</svg>", lambda m: _ID.sub(rf"\g<0>p{next(numbers)}-", m[0]), text, flags=re.DOTALL)


_ID = re.compile(r'\bid="|\bhref="#|url\(#')


def _tidy(text: str) -> str:
    """No spaces at the ends of lines, no two blank lines, none within a table."""
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line.strip() for line in text.splitlines())).strip()


@cache
def _environment(form: str) -> Environment:
    environment = Environment(
        loader=PackageLoader("bert_recipes.reports"),
        autoescape=form == "html",
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    environment.globals["nsp_interval"] = _nsp_interval
    environment.filters |= {
        "anchor": lambda title: re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section",
        "counted": counted,
        "duration": format_duration,
        "f": format_as,
        "links": lambda body: [
            (found[1], Markup(found[2])) for found in re.finditer(r'<section id="(.*?)"><h2>(.*?)</h2>', body)
        ],
        "md": escape,
        "metric": lambda value, name: format_metric(name, value),
        "number": format_number,
        "rich": _rich,
        "width": lambda share: f"{100 * min(max(share, 0.0), 1.0):.1f}%",
        "words": words_of,
        "zip": lambda first, second: list(zip(first, second, strict=True)),
    }
    return environment


def _nsp_interval(results: Mapping[str, Any]) -> str:
    """The interval of the next-sentence accuracy, in words."""
    accuracy, pairs = results.get("eval_nsp_accuracy"), results.get("eval_pairs")
    if accuracy is None or not pairs:
        return ""
    low, high = wilson_interval(accuracy, pairs)
    return f" (95% interval {low:.1%} to {high:.1%})"


def escape(text: object) -> str:
    """A text on one line of Markdown in which nothing is a table's bar, a tag, a link or a picture."""
    # A backslash of the text first: it would take away the one that is put before a bar or a tag.
    one_line = " ".join(str(text).split()).replace("\\", "\\\\")
    return one_line.replace("|", "\\|").replace("<", "\\<").replace("](", "]\\(")


def _rich(parts: Sequence[tuple[str, str]]) -> str:
    """Markdown of (kind, text): bold what is marked, and keep the spaces at the ends of other parts."""

    def part(kind: str, text: str) -> str:
        if kind in ("mark", "right", "wrong"):
            return f"**{escape(text)}**"
        return " " * text[:1].isspace() + escape(text) + " " * text[-1:].isspace()

    return " ".join("".join(part(*each) for each in parts).split())


def format_number(value: Any) -> str:
    """Format a value for a table: counts with commas, fractions with four digits, None and NaN as "n/a"."""
    if isinstance(value, Undefined):
        raise UndefinedError(value._undefined_message)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "n/a"
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
    if name.endswith("seconds") and isinstance(value, int | float) and math.isfinite(value):
        return f"{value:,.1f}"
    return format_number(value)


def format_duration(seconds: float) -> str:
    """Seconds as "48 s", "3.7 min", "5.2 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def counted(number: int, noun: str) -> str:
    """A number of things: "1 step", "4,000 steps"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def words_of(name: str) -> str:
    """A key of a results file in words."""
    return name.removeprefix("eval_").replace("_", " ")
