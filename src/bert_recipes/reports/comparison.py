"""Several runs of one kind beside each other: what was set differently, their curves, their figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_recipes.data.masking import default_max_predictions
from bert_recipes.errors import InputError
from bert_recipes.evaluation import MEASURED_WITH
from bert_recipes.metrics.certainty import wilson_interval
from bert_recipes.phases import key_in_last_phase
from bert_recipes.reports.blocks import Block, Paragraph, Report, Section, Table
from bert_recipes.reports.curves import plots_of, series, with_curves
from bert_recipes.reports.figures import figure_rows
from bert_recipes.reports.formatting import format_figure, words_of
from bert_recipes.reports.palette import SERIES
from bert_recipes.reports.plots import Line, Panel, draw_panels_png
from bert_recipes.reports.run_files import FACTS_FILE, SWEEP_FILE, RunFiles, damage_as_one_line, read_run
from bert_recipes.run_folder import RESULTS_FILE


PLOT_FILE = "curves.png"
MOST_RUNS = len(SERIES)
# Where a run lies and what it was called say nothing about it.
_NAMES = frozenset({"output_dir", "run_name", "logging_dir", "hub_model_id", "project", "trackio_space_id"})
_COSTS = ("train_steps", "train_seconds", "tokens_per_second", "data_wait_share", "peak_memory_mb")
_LESS_IS_BETTER = ("loss", "perplexity")
_MORE_IS_BETTER: tuple[str, ...] = ("accuracy", "f1", "f1_macro", "f1_micro", "precision", "recall")
_MORE_IS_BETTER += ("exact", "exact_match", "correlation", "pearson", "spearmanr")
# Of the data, and none of the runs' own.
_NEITHER = ("unigram_loss", "unigram_accuracy", "majority_accuracy")
# Pre-training: share -> what it is a share of.
_SHARE_OF = {"nsp_accuracy": "eval_pairs", "mlm_accuracy": "eval_masked_tokens"}
_HOW_MARKED = (
    "Bold: better, and by more than the 95% intervals of the measured rows, where a figure has one (losses have none). How far "
    "other seeds lie apart is not in it."
)


Runs = Mapping[str, RunFiles]


def read_runs(folders: Sequence[Path]) -> dict[str, RunFiles]:
    """Read the runs that are to be compared, by names that tell them apart."""
    if not 2 <= len(folders) <= MOST_RUNS:
        raise InputError(f"runs: {len(folders)} given; give 2 to {MOST_RUNS} folders of finished runs")
    places = [folder.resolve() for folder in folders]
    twice = next((folder for folder, place in zip(folders, places, strict=True) if places.count(place) > 1), None)
    if twice is not None:
        raise InputError(f"runs: {twice} is given twice (or under two names); give different runs")
    for folder in folders:
        if (folder / SWEEP_FILE).is_file() and not (folder / RESULTS_FILE).is_file():
            raise InputError(f"runs: {folder} is a sweep of many runs; give one of them, for example {folder}/best")
    plain = [place.name for place in places]
    names = [name if plain.count(name) == 1 else str(folder) for name, folder in zip(plain, folders, strict=True)]
    runs: dict[str, RunFiles] = {}
    for name, folder in zip(names, folders, strict=True):
        with damage_as_one_line(folder):
            runs[name] = read_run(folder)
    _check_kinds(runs)
    return runs


def _check_kinds(runs: Runs) -> None:
    """Refuse runs that did not learn the same."""
    whats = {name: _what(run) for name, run in runs.items()}
    (first, wanted), *others = whats.items()
    for name, what in others:
        if what != wanted:
            raise InputError(f"runs: {first} is {wanted}, {name} is {what}; their figures cannot be compared")


def _what(run: RunFiles) -> str:
    if run.kind == "pretraining":
        return "a pre-training run"
    task = run.results.get("task") or (run.task.name if run.task else None)
    return f"a fine-tuning run on {task}" if task else "a fine-tuning run"


@damage_as_one_line("runs")
def comparison_report(runs: Runs) -> Report:
    """Join differences, curves and figures of runs that `read_runs` gave."""
    panels, table = _panels(runs), _figures(runs)
    kind = next(iter(runs.values()))
    return Report(
        title="Comparison of runs",
        name=", ".join(runs),
        facts=(_what(kind),),
        head=_attention(runs),
        sections=[
            Section("Figures", [table, Paragraph(_HOW_MARKED)] if table.best else [table]),
            Section("What was set differently", _differences(runs)),
            Section("Curves", [plots_of(panels, PLOT_FILE)] if panels else []),
            Section("F1 by class", _classes(runs)),
        ],
        foot="Written by bert-recipes from the files of the runs; `make compare RUNS=` writes it again.",
        pictures={PLOT_FILE: draw_panels_png(panels[:3])} if panels else {},
    )


def _attention(runs: Runs) -> list[Block]:
    """What makes figures of the runs incomparable though their task is the same."""
    blocks: list[Block] = []
    other = _other_data(runs)
    if other:
        said = (
            f"The runs were not measured on the same data ({', '.join(other)} differ): do not compare their figures."
        )
        blocks.append(Paragraph(said, "attention"))
    unknown = _without_identity(runs)
    if unknown:
        said = f"No {FACTS_FILE} of {', '.join(unknown)}: whether the held-out data was the same is not known."
        blocks.append(Paragraph(said, "attention"))
    machines = {str((run.results.get("machine") or {}).get(name)) for run in runs.values() for name in ("gpu",)}
    processors = {str((run.results.get("machine") or {}).get("processor")) for run in runs.values()}
    if len(machines) > 1 or len(processors) > 1:
        blocks.append(Paragraph("The runs had different machines: times and speeds compare these, too.", "attention"))
    return blocks


def _without_identity(runs: Runs) -> list[str]:
    """Runs of which nobody knows what they were measured on."""
    return [name for name, run in runs.items() if run.kind == "pretraining" and not run.facts.get("identity")]


def _other_data(runs: Runs) -> list[str]:
    """What of the data that the figures were measured on is not the same."""
    if all(run.kind == "finetuning" for run in runs.values()):
        counts, hashes = ([_examples(run, fact) for run in runs.values()] for fact in ("examples", "sha256"))
        # Older runs did not keep the hashes.
        known = [each for each in hashes if None not in each.values()]
        return ["the validation examples"] if _is_different(counts) or _is_different(known) else []
    identities = [run.facts["identity"] for run in runs.values() if run.facts.get("identity")]
    names = [part for part in ("tokenizer", "store") if _is_different([each.get(part) for each in identities])]
    instances = [_fingerprint_of_validation(run) for run in runs.values()]
    files = [run.settings.get("validation_file") for run in runs.values()]
    if _is_different(instances) if all(instances) else _is_different(files):
        names.append("validation_file")
    settings = [_measured_with(run) for run in runs.values()]
    shared = [name for name in settings[0] if all(name in each for each in settings)]
    return names + [name for name in shared if _is_different([each[name] for each in settings])]


def _is_different(values: Sequence[Any]) -> bool:
    return len({repr(value) for value in values}) > 1


def _measured_with(run: RunFiles) -> dict[str, Any]:
    """The settings by which the held-out pairs and their masks were made: of two phases those of the last one."""
    settings = run.settings
    if settings.get("train_file"):  # instances have pairs and masks of their own
        return {"max_eval_pairs": settings.get("max_eval_pairs")}
    found = {name: settings.get(key_in_last_phase(settings, name)) for name in MEASURED_WITH}
    length, share = found["max_seq_length"], found["mlm_probability"]
    if found["max_predictions_per_seq"] is None and length and share:
        found["max_predictions_per_seq"] = str(default_max_predictions(int(length), float(share)))
    return found


def _fingerprint_of_validation(run: RunFiles) -> str | None:
    """Of held-out instance files; None without such files, and where nobody knows."""
    files = (run.results.get("data") or {}).get("instance_files") or {}
    return (files.get("validation") or {}).get("fingerprint")


def _examples(run: RunFiles, fact: str) -> dict[str, Any]:
    """Validation split -> what all_results.json says of its examples."""
    splits = run.results.get("splits") or {}
    named = [name for name in splits if name.startswith("validation")]
    names = named if run.task is None else run.task.validation_splits
    return {name: splits.get(name, {}).get(fact) for name in names}


def _differences(runs: Runs) -> list[Block]:
    """Settings, machines and versions that are not the same in all runs."""
    columns = [_described(run) for run in runs.values()]
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows = tuple(
        (name, *(_setting(column.get(name)) for column in columns))
        for name in names
        if name not in _NAMES and len({repr(column.get(name)) for column in columns}) > 1
    )
    if not rows:
        return [Paragraph("Nothing that their files say: settings, machine and versions are the same there.")]
    return [Table(("setting", *runs), rows)]


def _described(run: RunFiles) -> dict[str, Any]:
    machine = {f"machine: {name}": value for name, value in (run.results.get("machine") or {}).items()}
    sizes = {name: value for name, value in (run.facts.get("run") or {}).items() if name not in run.settings}
    return {**run.settings, **sizes, **machine}


def _setting(value: Any) -> str:
    if value is None:
        return "not set"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _figures(runs: Runs) -> Table:
    """Final figures side by side; the better one of each row is marked where runs can be compared and one is better."""
    names = list(dict.fromkeys(f"eval_{name}" for run in runs.values() for name, *_ in figure_rows(run.results)))
    names += [name for name in _COSTS if any(name in run.results for run in runs.values())]
    rows, best = [], set()
    can_compare = not _other_data(runs) and not _without_identity(runs)
    for name in names:
        values = [run.results.get(name) for run in runs.values()]
        rows.append(
            (
                words_of(name),
                *(
                    "" if name not in run.results else format_figure(name, value)
                    for run, value in zip(runs.values(), values, strict=True)
                ),
            )
        )
        if can_compare:
            best |= {(len(rows) - 1, place + 1) for place in _best(name, list(runs.values()))}
    return Table(("figure", *runs), tuple(rows), numbers=tuple(range(1, len(runs) + 1)), best=frozenset(best))


def _best(name: str, runs: Sequence[RunFiles]) -> list[int]:
    """Places of the best values; none where more is neither better nor worse, or the next one is within the intervals."""
    sign = -1 if name.endswith(_LESS_IS_BETTER) else 1 if name.endswith(_MORE_IS_BETTER) else 0
    values = {place: run.results.get(name) for place, run in enumerate(runs)}
    known = {place: sign * v for place, v in values.items() if isinstance(v, int | float) and math.isfinite(v)}
    if len(set(known.values())) < 2 or name.endswith(_NEITHER):
        return []
    best = [place for place, value in known.items() if value == max(known.values())]
    half = {place: half_interval(name.removeprefix("eval_"), runs[place].results) for place in known}
    leads = {place: known[best[0]] - known[place] for place in known.keys() - set(best)}
    return best if all(lead > math.hypot(half[place], half[best[0]]) for place, lead in leads.items()) else []


def half_interval(name: str, results: Mapping[str, Any]) -> float:
    """How far a figure may lie from its value for the rows that were measured; 0 where nothing is known."""
    interval = (results.get("intervals") or {}).get(name)
    rows = results.get(_SHARE_OF.get(name, ""))
    if interval is None and rows:
        interval = wilson_interval(results[f"eval_{name}"], rows)
    return (interval[1] - interval[0]) / 2 if interval else 0.0


def _panels(runs: Runs) -> list[Panel]:
    """A panel for each logged figure, with a curve of each run."""
    if next(iter(runs.values())).kind == "pretraining":
        wanted = [
            ("eval_mlm_loss", "Masked-LM loss, held out", "nats a token"),
            ("mlm_loss", "Masked-LM loss, training", "nats a token"),
            ("eval_nsp_accuracy", "Next sentence, held out", "share right"),
            ("nsp_loss", "Next-sentence loss, training", "nats a pair"),
        ]
    else:
        figures = dict.fromkeys(name for run in runs.values() for name, *_ in figure_rows(run.results))
        measured = [f"eval_{name}" for name in figures if name.endswith(("loss", *_MORE_IS_BETTER))]
        often = [name for name in measured if any(len(series(run.history, name)[0]) > 1 for run in runs.values())]
        wanted = [("loss", "Loss, training", ""), *((name, f"{words_of(name)}, validation", "") for name in often[:4])]
    wanted += [("learning_rate", "Learning rate", ""), ("tokens_per_second", "Throughput", "tokens a second, no pads")]
    panels = [Panel(title, unit, _lines(runs, name)) for name, title, unit in wanted]
    return with_curves(panels)


def _lines(runs: Runs, name: str) -> tuple[Line, ...]:
    lines = []
    for place, (run_name, run) in enumerate(runs.items()):
        steps, values = series(run.history, name)
        if steps:
            lines.append(Line(run_name, steps, values, SERIES[place], has_points=len(steps) <= 30))
    return tuple(lines)


def _classes(runs: Runs) -> list[Block]:
    """F1 of each class, where all runs know the same classes of one split."""
    splits = [run.facts.get("splits") or [] for run in runs.values()]
    if any(len(each) != 1 or not each[0].get("classes") for each in splits):
        return []
    labels = splits[0][0]["labels"]
    if any(each[0]["labels"] != labels for each in splits):
        return []
    rows = [
        (str(label), *(f"{each[0]['classes'][number]['f1']:.3f}" for each in splits))
        for number, label in enumerate(labels)
    ]
    return [Table(("class", *runs), tuple(rows), numbers=tuple(range(1, len(runs) + 1)))]
