"""The measured probe of a bias (`bias_probe`), as its file in the run's folder says."""

from __future__ import annotations

import logging
import statistics
from typing import Any

from bert_recipes.bias_probe import PROBE_FILE, YARDSTICK
from bert_recipes.model_card.facts import RunFiles, code, count, significant
from bert_recipes.model_card.layout import Lines, block_of_code, table
from bert_recipes.run_origin import WEIGHTS_FILE


logger = logging.getLogger(__name__)

# Our choice: a model that gives the two pronouns less than this in most of the sentences does not take the place for theirs.
EXPECTED = 0.01
# Ours too: with less between the least and the greatest P(she) the occupation says nothing.
DIFFERENT = 0.05


def bias_lines(files: RunFiles) -> Lines:
    """Method, summary, table and command; nothing where it was not made, or with other weights, or not of English."""
    if files.value(PROBE_FILE, "") is None or not files.is_english:
        return []
    # Of weights in several files neither is known.
    if files.value(PROBE_FILE, "weights_sha256") != files.value(WEIGHTS_FILE, "sha256"):
        logger.warning("%s: made with other weights, so it is left out of the card", files.folder / PROBE_FILE)
        return []
    rows = [_row(files, f"rows/{number}") for number in files.names(PROBE_FILE, "rows")]
    if not rows:
        return []
    return [*_method(files), "", *table(("occupation", "P(she)", "P(he) + P(she)", "pieces"), rows)]


def _row(files: RunFiles, at: str) -> tuple[Any, ...]:
    word = files.fact("occupation", PROBE_FILE, f"{at}/occupation")
    return (
        word,
        files.fact(f"P(she) for {word}", PROBE_FILE, f"{at}/p_she", lambda value: f"{value:.2f}"),
        files.fact(f"P(he) + P(she) for {word}", PROBE_FILE, f"{at}/mass", _small_share),
        files.fact(f"pieces of {word}", PROBE_FILE, f"{at}/pieces", count),
    )


def _method(files: RunFiles) -> Lines:
    templates = [
        str(files.fact("template", PROBE_FILE, f"templates/{number}", code))
        for number in files.names(PROBE_FILE, "templates")
    ]
    lines = [
        "Which pronoun does it expect of a person of an occupation? At the mask of",
        f"{', '.join(templates)} (`{{}}` stands for the occupation with its article)",
        f'P(she) is the probability of "she" against that of "he", on average; "{YARDSTICK}" is the yardstick. P(he) + P(she) says how',
        "much of the model's expectation these two are. A word of several pieces is one that the vocabulary does not hold.",
        "",
        *_summary(files),
        "English only, two pronouns, a short list: a sample, not an audit. The command:",
        "",
    ]
    return lines + block_of_code("bash", "python recipes/probe_bias.py --model_name_or_path MODEL")


def _summary(files: RunFiles) -> Lines:
    """In words, and whether the table says anything at all."""
    numbers = files.names(PROBE_FILE, "rows")
    words = {number: files.value(PROBE_FILE, f"rows/{number}/occupation") for number in numbers}
    sources = [(PROBE_FILE, f"rows/{number}/p_she") for number in numbers if words[number] != YARDSTICK]
    yardstick = [(PROBE_FILE, f"rows/{number}/p_she") for number in numbers if words[number] == YARDSTICK]
    total = files.derived("occupations probed", sources, lambda *shares: count(len(shares)))
    below = files.derived("occupations of he", sources, lambda *shares: count(sum(share < 0.5 for share in shares)))
    least = files.derived("least P(she)", sources, lambda *shares: f"{min(shares):.2f}")
    most = files.derived("greatest P(she)", sources, lambda *shares: f"{max(shares):.2f}")
    above = files.derived(
        "occupations above the yardstick",
        [*yardstick, *sources],
        lambda usual, *shares: count(sum(share > usual for share in shares)),
    )
    lines = [
        f'Of {total} occupations {below} are rather "he" than "she", and {above} more "she" than the yardstick; P(she) lies',
        f"between {least} and {most}.",
    ]
    shares = [files.value(*source) for source in sources]
    if max(shares) - min(shares) < DIFFERENT:
        lines.append("**The occupations hardly differ: what is seen is what it expects of anybody.**")
    masses = [files.value(PROBE_FILE, f"rows/{number}/mass") for number in numbers]
    if statistics.median(masses) < EXPECTED:
        lines.append("**It hardly expects either pronoun in these sentences: the table says little of it.**")
    return lines


def _small_share(value: float) -> str:
    """A share, also a very small one."""
    return f"{significant(value * 100)}%"
