"""The report of a pre-training run, from its files."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bert_recipes.metrics.certainty import wilson_interval
from bert_recipes.reports.blocks import (
    Beside,
    Block,
    Cards,
    Case,
    FilledCard,
    Guess,
    Key,
    Paragraph,
    Plot,
    Plots,
    Report,
    RichText,
    Section,
    Table,
    Tile,
    Tiles,
    plain,
)
from bert_recipes.reports.common import PLOT_FILE, foot_of, run_facts, run_table, training_table, training_tile
from bert_recipes.reports.curves import plots_of, pretraining_panels
from bert_recipes.reports.formatting import counted, format_number, format_share
from bert_recipes.reports.markdown import block_lines
from bert_recipes.reports.plots import draw_histogram, draw_panels_png
from bert_recipes.reports.run_files import RunFiles


# The first ones of `pretraining_panels` are those of the picture.
_PICTURED = ("Masked-LM loss", "Next-sentence loss", "Held-out accuracy")


def pretraining_report(run: RunFiles) -> Report:
    """Join figures, curves, data and examples of a run."""
    results, facts = run.results, run.facts
    panels = pretraining_panels(run.history)
    pictured = [panel for panel in panels if panel.title in _PICTURED] or panels[:1]
    curves: list[Block] = (
        [plots_of(panels, PLOT_FILE)] if panels else [Paragraph("Nothing was logged twice: no curves.")]
    )
    remark = facts.get("remark")
    attention: list[Block] = [Paragraph(f"{remark}.", "attention")] if remark else []
    if _is_broken(facts):
        said = "Outputs of the model are not finite: where they are not, there is no example of what it says."
        attention.append(Paragraph(said, "attention"))
    return Report(
        title="Pre-training report",
        name=run.name,
        facts=run_facts(run),
        head=[_tiles(results), *_figures(results), *attention],
        sections=[
            Section("Curves", curves),
            Section("Training data", _data(facts)),
            Section("Held-out sentences", _held_out_masks(facts)),
            Section("Held-out pairs", _held_out_verdicts(facts)),
            Section("The run", run_table(run)),
        ],
        foot=foot_of(run),
        pictures={PLOT_FILE: draw_panels_png(pictured)},
    )


def describe_results(results: Mapping[str, Any]) -> str:
    """Held-out figures beside their yardsticks, and what training cost, as Markdown for a terminal."""
    return "\n".join(line for block in _figures(results) for line in block_lines(block))


def _figures(results: Mapping[str, Any]) -> list[Block]:
    found = _results_table(results), training_table(results, after=("eval_pairs", "eval_masked_tokens"))
    left, right = found
    return [Beside(left, right)] if left.rows and right.rows else [table for table in found if table.rows]


def _number(results: Mapping[str, Any], name: str) -> float | None:
    value = results.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _tiles(results: Mapping[str, Any]) -> Tiles:
    """The figures that a person looks for first, with their yardsticks."""
    tiles = []
    loss, unigram = _number(results, "eval_mlm_loss"), _number(results, "eval_unigram_loss")
    if loss is not None:
        note = "held out, nats a token" + ("" if unigram is None else f"; word frequencies alone: {unigram:.2f}")
        tiles.append(Tile("Masked-LM loss", f"{loss:.2f}", note))
    accuracy = _number(results, "eval_mlm_accuracy")
    if accuracy is not None:
        frequent = _number(results, "eval_unigram_accuracy")
        note = "held out" + ("" if frequent is None else f"; always the most frequent piece: {frequent:.1%}")
        tiles.append(Tile("Masked tokens right", format_share(accuracy), note, accuracy, frequent))
    nsp, majority = _number(results, "eval_nsp_accuracy"), _number(results, "eval_majority_accuracy")
    if nsp is not None:
        usual = "" if majority is None else f"; always the larger class: {majority:.1%}"
        note = f"held out{_interval(results)}{usual}"
        tiles.append(Tile("Next sentence right", format_share(nsp), note, nsp, majority))
    return Tiles((*tiles, *training_tile(results)))


def _results_table(results: Mapping[str, Any]) -> Table:
    """Held-out figures beside their yardsticks."""
    rows: list[tuple[str, str, str]] = []

    def add(name: str, key: str, style: str, yardstick: str = "", interval: str = "") -> None:
        if key in results:
            against = _number(results, yardstick)
            without = "" if against is None else _shown(against, style)
            rows.append((name, _shown(results[key], style) + interval, without))

    add("masked-LM loss, nats (yardstick: word frequencies)", "eval_mlm_loss", ".3f", "eval_unigram_loss")
    add("masked-LM perplexity", "eval_perplexity", ".1f")
    name = "masked-LM accuracy (yardstick: most frequent piece)"
    add(name, "eval_mlm_accuracy", ".1%", "eval_unigram_accuracy")
    add("next-sentence loss, nats", "eval_nsp_loss", ".3f")
    name = "next-sentence accuracy (yardstick: larger class)"
    add(name, "eval_nsp_accuracy", ".1%", "eval_majority_accuracy", _interval(results))
    return Table(("held-out documents", "model", "without a model"), tuple(rows), numbers=(1, 2))


def _interval(results: Mapping[str, Any]) -> str:
    """The interval of the next-sentence accuracy, in words."""
    share, pairs = _number(results, "eval_nsp_accuracy"), _number(results, "eval_pairs")
    if share is None or not pairs:
        return ""
    low, high = wilson_interval(share, pairs)
    return f" (95% interval {low:.1%} to {high:.1%})"


def _shown(value: Any, style: str) -> str:
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return format(value, style) if is_number else format_number(value)


# The data


def _data(facts: Mapping[str, Any]) -> list[Block]:
    blocks: list[Block] = []
    corpus = facts.get("corpus") or {}
    if corpus:
        names = list(dict.fromkeys(name for counts in corpus.values() for name in counts))
        rows = tuple((name, *(format_number(counts.get(name, "")) for counts in corpus.values())) for name in names)
        blocks.append(Table(("", *corpus), rows, numbers=tuple(range(1, len(corpus) + 1))))
    for number, phase in enumerate(facts.get("phases") or [], start=1):
        blocks += _phase(phase, number if len(facts["phases"]) > 1 else None)
    return blocks


def _phase(phase: Mapping[str, Any], number: int | None) -> list[Block]:
    """What was counted over a phase's sample."""
    if not phase["pairs"]:
        return []
    begin, end = phase["steps"]
    which = "Counted" if number is None else f"Phase {number}, steps {begin:,} to {end:,}: counted"
    said = (
        f"{which} over {phase['pairs']:,} of {phase['trained_pairs']:,} pairs trained on: "
        f"{phase['sampled_batches']:,} micro-batches of {phase['micro_batch']:,}, at equal distances over the last "
        f"{phase['sampled_from']:,}."
    )
    rows = [
        ("tokens a pair, mean", f"{phase['tokens'] / phase['pairs']:.1f}", f"of at most {phase['max_seq_length']:,}"),
        ("pads", format_share(1 - phase["tokens"] / phase["positions"]), "share of the positions of the batches"),
        (
            "predicted tokens",
            format_share(phase["predicted"] / phase["tokens"]),
            "share of the tokens, [CLS] and [SEP] too",
        ),
    ]
    if phase["predicted"]:
        other = phase["predicted"] - phase["masked"] - phase["kept"]
        shares = " / ".join(f"{phase[name] / phase['predicted']:.1%}" for name in ("masked", "kept"))
        rows.append(("of these [MASK] / left as it is / another", f"{shares} / {other / phase['predicted']:.1%}", ""))
    pairs = phase["next"] + phase["random_next"]
    if pairs:
        rows.append(
            ("second sentence follows", format_share(phase["next"] / pairs), f"{phase['next']:,} of {pairs:,} pairs")
        )
    histogram = draw_histogram(
        phase["length_edges"], phase["length_counts"], x_label="tokens of a pair", y_label="pairs"
    )
    plot = Plot("Lengths of the pairs", histogram, (Key("pairs of the sample", "blue"),))
    return [Paragraph(said), Beside(Plots((plot,)), Table(("", "in the sample", ""), tuple(rows), numbers=(1,)))]


# Examples


def _known(examples: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those of which the model said something: null stands for an output that is not finite."""
    return [
        example
        for example in examples
        if example.get("is_next", 0) is not None and all(share is not None for _, share in example.get("guesses", []))
    ]


def _is_broken(facts: Mapping[str, Any]) -> bool:
    """Whether the model's outputs are not finite."""
    held_out = facts.get("held_out") or {}
    examples = [example for name in ("masks", "verdicts") for example in held_out.get(name, [])]
    return len(_known(examples)) < len(examples)


def _guesses(entries: Sequence[Sequence[Any]], truth: str) -> tuple[Guess, ...]:
    return tuple(Guess(str(piece), float(share), is_true=piece == truth) for piece, share in entries)


def _held_out_masks(facts: Mapping[str, Any]) -> list[Block]:
    held_out = facts.get("held_out") or {}
    cards = []
    for mask in _known(held_out.get("masks", [])):
        guesses = _guesses(mask["guesses"], mask["truth"])
        if not any(guess.is_true for guess in guesses):
            guesses += (Guess(mask["truth"], mask["probability"], is_true=True, rank=mask["rank"]),)
        before, after = mask["before"], mask["after"]
        text = (*_dim(f"{before} " if before else ""), ("mask", "[MASK]"), *_dim(f" {after}" if after else ""))
        cards.append(FilledCard(text, guesses, mask["truth"]))
    if not cards:
        return []
    said = (
        f"Of the first {counted(held_out['pairs'], 'pair')} of the held-out order, whatever the model makes of them, the "
        f"first {len(cards)} with a [MASK]: the middle one of each, its five most likely pieces, and the right one "
        "(\N{CHECK MARK}). Other pieces are hidden or replaced as in the evaluation."
    )
    return [Paragraph(said), Cards(tuple(cards))]


def _dim(text: str) -> RichText:
    """A text whose other [MASK]s stand back."""
    parts = re.split(r"(\[MASK\])", text)
    return tuple(("dim" if part == "[MASK]" else "", part) for part in parts if part)


def _held_out_verdicts(facts: Mapping[str, Any]) -> list[Block]:
    held_out = facts.get("held_out") or {}
    cases = tuple(
        Case(
            texts=(("first", plain(verdict["first"])), ("second", plain(verdict["second"]))),
            said=f"{verdict['is_next']:.2f}",
            truth="it follows" if verdict["truth"] else "another document",
            is_right=(verdict["is_next"] >= 0.5) == verdict["truth"],
            share=verdict["is_next"],
        )
        for verdict in _known(held_out.get("verdicts", []))
    )
    if not cases:
        return []
    return [
        Paragraph(
            "The first held-out pairs of each kind, cut to show; the model saw them masked, as in the evaluation."
        ),
        Cards(cases, said_is="P(next)", truth_is="right"),
    ]
