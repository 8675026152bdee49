"""What is known of the predictions for a validation split, as sections of a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bert_recipes.metrics.calibration import NUM_BINS
from bert_recipes.reports.blocks import (
    Beside,
    Block,
    Cards,
    Case,
    HeatTable,
    Key,
    Paragraph,
    Plot,
    Plots,
    RichText,
    Section,
    Table,
    plain,
)
from bert_recipes.reports.formatting import format_number, format_share
from bert_recipes.reports.plots import draw_histogram, draw_reliability, draw_scatter


# What the probability of a prediction is, by the form of the task.
_PROBABILITY_OF = {
    "multi_label_classification": "each label's probability, every label of every text counting once",
    "token_classification": "the probability of the label said of a word",
    "question_answering": "an answer's share among the best ones; right is an exact match",
    "multiple_choice": "the probability of the choice",
}
_MOST_CLASS_ROWS = 60


def split_sections(form: str, split: Mapping[str, Any], *, is_only: bool) -> list[Section]:
    """The sections of one split.

    Args:
        form: Of the task (`finetuning_facts.form_of`).
        split: Of report.json.
        is_only: Whether there is no other: then the titles do not name it.
    """
    if not split["looked_at"]:
        return []
    of = "" if is_only else f", {split['name']}"
    sample: list[Block] = []
    if split["looked_at"] < split["examples"]:
        said = f"Counted over {split['looked_at']:,} of the {split['examples']:,} examples, at equal distances."
        sample = [Paragraph(said)]
    found = [
        Section(f"By class{of}", [*_entities(split), *_classes(split)]),
        Section(f"What was taken for what{of}", _confusion(form, split)),
        Section(f"How far off{of}", _numbers(split)),
        Section(f"F1 of the answers{of}", _answers(split)),
        Section(f"Can the probabilities be trusted?{of}", _calibration(form, split)),
        Section(f"Worst errors{of}", _worst(form, split)),
    ]
    return [Section(section.title, [*sample, *section.blocks]) for section in found if section.blocks]


def _score_cells(score: Mapping[str, Any]) -> tuple[str, ...]:
    shares = (f"{score[name]:.3f}" for name in ("precision", "recall", "f1"))
    return (*shares, f"{score['support']:,}", f"{score['predicted']:,}")


_SCORE_HEADS = ("precision", "recall", "F1", "support", "predicted")


def _classes(split: Mapping[str, Any]) -> list[Block]:
    """Scores of each class; of very many those with the most examples."""
    classes = list(zip(split.get("labels", []), split.get("classes", []), strict=True))
    if not classes:
        return []
    shown = sorted(classes, key=lambda item: -item[1]["support"])[:_MOST_CLASS_ROWS]
    rows = tuple(
        (str(name), *_score_cells(score)) for name, score in (classes if len(shown) == len(classes) else shown)
    )
    blocks: list[Block] = [Table(("class", *_SCORE_HEADS), rows, numbers=(1, 2, 3, 4, 5))]
    if len(shown) < len(classes):
        blocks.insert(0, Paragraph(f"The {len(shown)} classes of {len(classes)} with the most examples."))
    return blocks


def _entities(split: Mapping[str, Any]) -> list[Block]:
    entities = split.get("entities") or []
    if not entities:
        return []
    rows = tuple((str(entry["type"]), *_score_cells(entry)) for entry in entities)
    return [
        Paragraph("Whole entities: right if their words and their type are right. Below, single words."),
        Table(("entity", *_SCORE_HEADS), rows, numbers=(1, 2, 3, 4, 5)),
    ]


def _confusion(form: str, split: Mapping[str, Any]) -> list[Block]:
    if split.get("confusion"):
        counts = tuple(map(tuple, split["confusion"]))
        rows_are = "place of the right choice" if form == "multiple_choice" else "right"
        return [HeatTable(tuple(map(str, split["labels"])), counts, rows_are=rows_are)]
    if split.get("mistakes"):
        rows = tuple((str(truth), str(said), f"{count:,}") for truth, said, count in split["mistakes"])
        return [
            Paragraph(
                f"{len(split['labels'])} classes are too many for a table of all pairs: the most frequent mistakes."
            ),
            Table(("right", "predicted", "times"), rows, numbers=(2,)),
        ]
    return []


def _numbers(split: Mapping[str, Any]) -> list[Block]:
    if "dots" not in split:
        return []
    truths, said = split["dots"]
    names = {
        "mean absolute error": "mean_absolute_error",
        "root of the mean squared error": "root_mean_squared_error",
        "mean absolute error of always saying the mean (yardstick)": "error_of_the_mean",
    }
    rows = tuple((name, format_number(split[key])) for name, key in names.items())
    note = f"{len(truths):,} examples; on the dashed line right and predicted are equal"
    plot = Plot("Predicted over right", draw_scatter(truths, said), (Key("example", "blue", "dots"),), note)
    return [Beside(Plots((plot,)), Table(("", ""), rows, numbers=(1,)))]


def _answers(split: Mapping[str, Any]) -> list[Block]:
    counts = split.get("f1_counts")
    if not counts:
        return []
    edges = [place / len(counts) for place in range(len(counts) + 1)]
    drawing = draw_histogram(edges, counts, x_label="F1 of an answer", y_label="questions")
    rows = tuple(
        (f"{low:.1f} to {high:.1f}", f"{count:,}", format_share(count / max(sum(counts), 1)))
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
    )
    plot = Plot("Words in common with the right answer", drawing, (Key("questions", "blue"),))
    return [Beside(Plots((plot,)), Table(("F1", "questions", "share"), rows, numbers=(1, 2)))]


def _calibration(form: str, split: Mapping[str, Any]) -> list[Block]:
    calibration = split.get("calibration")
    if not calibration:
        return []
    bins, error = calibration["bins"], calibration["expected_calibration_error"]
    columns = ([each[name] for each in bins] for name in ("confidence", "accuracy", "count"))
    plot = Plot(
        f"Reliability: expected calibration error {error:.3f}",
        draw_reliability(*columns),
        (Key("right as often as that", "blue", "dots"), Key("what would be right", "grey", "dash")),
        note=f"dot: mean probability of the bin, share right; {sum(each['count'] for each in bins):,} predictions",
    )
    rows = tuple(
        (
            f"{each['low']:.2f} to {each['high']:.2f}",
            f"{each['count']:,}",
            f"{each['confidence']:.3f}",
            f"{each['accuracy']:.3f}",
        )
        for each in bins
        if each["count"]
    )
    said = (
        f"Expected calibration error {error:.4f}: predictions are sorted by their probability into {NUM_BINS} bins of equal "
        "width; it is the mean distance between the share that is right in a bin and the mean probability there, each bin "
        "counting as often as it has predictions (Naeini et al. 2015; Guo et al. 2017, On Calibration of Modern Neural "
        f"Networks). Probability: {_PROBABILITY_OF.get(form, 'that of the class predicted')}."
    )
    table = Table(("probability", "predictions", "mean probability", "share right"), rows, numbers=(1, 2, 3))
    return [Paragraph(said), Beside(Plots((plot,)), table)]


def _worst(form: str, split: Mapping[str, Any]) -> list[Block]:
    cases = tuple(_case(form, error) for error in split.get("worst", []))
    if not cases:
        return []
    how = "Largest differences first." if form == "regression" else "Wrong, the most confident first."
    return [Paragraph(how), Cards(cases)]


def _case(form: str, error: Mapping[str, Any]) -> Case:
    share = error.get("probability")
    about = f", {error['about']}" if "about" in error else ""
    said = str(error["said"]) if share is None else f"{error['said']} ({share:.3f}{about})"
    texts: tuple[tuple[str, RichText], ...]
    if "word" in error:
        texts = (("", (("", f"{error['before']} "), ("mark", error["word"]), ("", f" {error['after']}"))),)
    elif "question" in error:
        around = (
            ("", error["before"]),
            *((("right", error["answer"]),) if error["answer"] else ()),
            ("", error["after"]),
        )
        texts = (("question", plain(error["question"])), ("paragraph", around))
    else:
        texts = tuple((str(name), plain(str(text))) for name, text in error["texts"])
    return Case(texts, said, str(error["truth"]), is_right=False if form != "regression" else None, share=share)
