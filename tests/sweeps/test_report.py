"""What a sweep says of its best combination, on both sides of every condition."""

from pathlib import Path

import pytest

from bert_recipes.sweeps.grid import Combination, Run, Summary, choose_best
from bert_recipes.sweeps.report import describe_lead


NAN = float("nan")


def summary(name, *values, half=None, rows=408):
    """Runs whose intervals of the accuracy reach so far."""
    runs = []
    for seed, value in enumerate(values, 1):
        results = {"eval_accuracy": value, "splits": {"train": {"examples": 9}, "validation": {"examples": rows}}}
        if half is not None:
            results["intervals"] = {"accuracy": [value - half, value + half]}
        runs.append(Run(seed, Path(name) / f"seed-{seed}", value, results))
    return Summary(Combination(name, {}), tuple(runs))


@pytest.mark.parametrize(
    ("summaries", "said"),
    [
        # One example better, as MRPC's 408 rows make it.
        (
            [summary("a", 0.7, half=0.04), summary("b", 0.7 + 1 / 408, half=0.04)],
            "Not resolved: b and a are 0.0025 apart (1 of 408 examples), no more than the 95% intervals of the measured rows.",
        ),
        (
            [summary("a", 0.7, half=0.04), summary("b", 0.8, half=0.04)],
            "b and a are 0.1000 apart (41 of 408 examples), more than the 95% intervals of the measured rows.",
        ),
        (
            [summary("a", 0.7, 0.75, half=0.001), summary("b", 0.74, 0.8, half=0.001)],
            "Not resolved: b and a are 0.0450 apart (18 of 408 examples), and their seeds overlap.",
        ),
        (
            [
                summary("a", 0.7, 0.72, half=0.01),
                summary("b", 0.78, 0.8, half=0.01),
                summary("c", 0.5, 0.5, half=0.01),
            ],
            "b and a are 0.0800 apart (33 of 408 examples), more than the 95% intervals of the measured rows.",
        ),
        # Alike: the first is chosen by order alone.
        (
            [summary("a", 0.7), summary("b", 0.7)],
            "Not resolved: a and b are 0.0000 apart (0 of 408 examples), no more than the 95% intervals of the measured rows.",
        ),
        ([summary("a", 0.7), summary("b", 0.8)], "b and a are 0.1000 apart (41 of 408 examples)."),  # an older run
        ([summary("a", NAN), summary("b", 0.8)], ""),
        ([summary("b", 0.8)], ""),
    ],
)
def test_the_lead_is_held_against_rows_and_seeds(summaries, said):
    assert describe_lead(summaries, choose_best(summaries), "accuracy") == said


def test_examples_are_counted_of_an_accuracy_alone():
    runs = [summary("a", 0.7), summary("b", 0.8)]
    assert describe_lead(runs, runs[1], "f1") == "b and a are 0.1000 apart."
