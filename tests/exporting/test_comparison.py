"""Differences are those of real positions, nothing that is not a number passes, and turns are counted alike."""

import math

import pytest
import torch

from bert_recipes.errors import InputError
from bert_recipes.exporting.comparison import Differences, compare
from bert_recipes.exporting.heads import Head
from bert_recipes.exporting.speed import take_turns


TAGS = Head("token_classification", "AutoModelForTokenClassification", {"logits": ("sequence", "classes")})
CLASSES = Head("sequence_classification", "AutoModelForSequenceClassification", {"logits": ("classes",)})


class Inputs:
    """Two batches of three inputs of 4 and 3 positions, of which the last are pads."""

    source, unit, num_examples, max_seq_length, score, points = "here", "examples", 6, 4, "sum", 0.01

    def batches(self, size):
        for number, length in enumerate((4, 3)):
            ids = torch.arange(3 * length).view(3, length)
            mask = torch.ones_like(ids)
            mask[1:, -1] = 0
            yield number, {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}

    def new_scores(self):
        return Scores()


class Scores:
    def __init__(self):
        self.total, self.signs = 0.0, []

    def add(self, place, batch, output):
        self.total += output["logits"].sum().item()
        self.signs += (output["logits"].flatten() > 0).tolist()

    def figures(self):
        return {"sum": self.total}

    def decisions(self):
        return self.signs


def logits(batch):
    return {"logits": batch["input_ids"][..., None].float() + torch.tensor([0.5, -3.5])}


def test_pads_are_left_out():
    found = Differences(TAGS)
    batch = next(Inputs().batches(3))[1]
    expected, output = logits(batch), logits(batch)
    output["logits"][1:, -1] += 100  # pads
    output["logits"][0, -1, 0] += 0.25
    found.add(expected, output, batch)
    assert found.largest == 0.25
    assert found.mean == pytest.approx(0.25 / (2 * (4 + 3 + 3)))


def test_outputs_of_a_whole_input_count_whole():
    found = Differences(CLASSES)
    # As many classes as positions: nothing of them is a pad.
    batch = {"attention_mask": torch.tensor([[1, 1, 0], [1, 0, 0]])}
    found.add({"logits": torch.zeros(2, 3)}, {"logits": torch.tensor([[0, 0, 0.5], [0, -1.0, 0]])}, batch)
    assert (found.largest, found.mean) == (1.0, 0.25)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_no_number_is_infinitely_far(wrong):
    found = Differences(CLASSES)
    batch = {"attention_mask": torch.ones(2, 3)}
    for value in (wrong, 0.0):  # and stays so
        found.add({"logits": torch.zeros(2, 2)}, {"logits": torch.tensor([[value, 0], [0, 0]])}, batch)
    assert found.largest == math.inf


def test_other_shapes_are_an_error_of_ours():
    with pytest.raises(ValueError, match=r"logits: \(2, 1\) for \(2, 2\)"):
        Differences(CLASSES).add(
            {"logits": torch.zeros(2, 2)}, {"logits": torch.zeros(2, 1)}, {"attention_mask": torch.ones(2, 3)}
        )


def test_all_models_see_all_inputs():
    def shifted(batch):
        return {"logits": logits(batch)["logits"] - 1.0}

    own, others = compare(logits, {"same": logits, "shifted": shifted}, TAGS, Inputs(), 3)
    assert (own.largest, own.mean, own.same) == (0.0, 0.0, 1.0)
    assert others["same"] == own
    shifted_by = 2 * (3 * 4 + 3 * 3)
    assert own.scores["sum"] - others["shifted"].scores["sum"] == shifted_by
    assert (others["shifted"].largest, others["shifted"].mean) == (1.0, 1.0)
    # Of the 42 signs those of the first number, 0 and 4, of each batch change.
    assert others["shifted"].same == pytest.approx(1 - 4 / shifted_by)


def test_a_diverged_checkpoint_is_named():
    def diverged(batch):
        return {"logits": logits(batch)["logits"] * math.nan}

    with pytest.raises(InputError, match="the model's outputs are not finite"):
        compare(diverged, {"other": logits}, TAGS, Inputs(), 3)


def test_sides_take_turns_on_the_same_inputs():
    calls = []

    def runner(name):
        def run(batch):
            calls.append((name, tuple(batch["input_ids"].shape)))
            return logits(batch)

        return run

    speeds = take_turns({"one": runner("one"), "two": runner("two")}, Inputs(), 3, 6, 2)
    of_one = [shape for name, shape in calls if name == "one"]
    assert of_one == [shape for name, shape in calls if name == "two"]
    # A batch that is not counted, both batches, and the same with one input at a time, without its pads.
    singles = [(1, 4), (1, 3), (1, 3), (1, 2), (1, 3), (1, 2)]
    assert of_one == 2 * [(3, 4), (3, 4), (3, 3), (1, 4), *singles]
    order = [name for number, (name, _) in enumerate(calls) if number == 0 or calls[number - 1][0] != name]
    assert order == ["one", "two", "one"]  # the second round begins with the other one
    assert (speeds.examples, speeds.tokens) == (6, 10 + 7)
    assert all(len(speed.examples_per_second) == 2 for speed in speeds.of.values())
    assert min(speeds.of["one"].examples_per_second) > 0
