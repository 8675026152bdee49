"""What the kinds of tasks share: cutting pairs, a warning of unknown text."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from bert_recipes.finetuning.kind import (
    EncodedSplit,
    truncate_pair,
    warn_of_shared_rows,
    warn_of_unknown,
)
from bert_recipes.tasks.examples import ChoiceExample, Split, TextExample


def plain_truncation(a, b, limit):
    """google-research/bert run_classifier.py `_truncate_seq_pair`, word for word."""
    while len(a) + len(b) > limit:
        if len(a) > len(b):
            a.pop()
        else:
            b.pop()


def test_pairs_are_cut_as_the_original_cuts_them():
    for size_a, size_b, limit in itertools.product(range(13), range(13), range(26)):
        expected = (list(range(size_a)), list(range(size_b)))
        ours = (list(range(size_a)), list(range(size_b)))
        plain_truncation(*expected, limit)
        truncate_pair(*ours, limit)
        assert ours == expected, (size_a, size_b, limit)


CYRILLIC = TextExample(idx=0, text="Швидка лисиця")
CHOICES = ChoiceExample(idx=0, context="", choices=("Швидка", "ab"))
LATIN = TextExample(idx=0, text="the fox")


@pytest.mark.parametrize(
    ("example", "input_ids", "share"),
    [
        (CYRILLIC, [1, 100, 100, 2], "50.0%"),
        (CHOICES, [[1, 100, 2], [1, 100, 7, 2]], "28.6%"),
        (LATIN, [1, *range(200, 230), 100, 2], None),
    ],
)
def test_a_split_that_the_tokenizer_does_not_know_is_warned_of(caplog, example, input_ids, share):
    """A fine-tuning on it would be a quiet run on nothing."""
    split = Split(name="train", examples=[example] * 3, source="train.csv", num_rows=3)
    encoded = EncodedSplit(split, [{"input_ids": input_ids}] * 3, np.zeros(3, dtype=np.int64))
    assert warn_of_unknown(encoded, SimpleNamespace(unk_token_id=100)) is (share is not None)
    assert (f"train.csv: {share} of the tokens are [UNK]" in caplog.text) == (share is not None)
    assert ("script Cyrillic; give a checkpoint" in caplog.text) == (share is not None)


@pytest.mark.parametrize(("num_shared", "is_warned"), [(1, False), (2, True)])
def test_validation_rows_that_are_trained_on_are_counted(caplog, num_shared, is_warned):
    def encode(texts, source):
        examples = [TextExample(idx=number, text=text) for number, text in enumerate(texts)]
        split = Split(name=source, examples=examples, source=source, num_rows=len(texts))
        return EncodedSplit(split, [], np.zeros(0, dtype=np.int64))

    train = encode(["a", "b", "c"], "train.csv")
    shared = ["a", "b"][:num_shared]
    validation = encode([*shared, *map(str, range(10 - num_shared))], "dev.csv")
    warn_of_shared_rows(train, {"": validation})
    assert ("dev.csv: the texts of 2 of 10 rows are in the training" in caplog.text) is is_warned
