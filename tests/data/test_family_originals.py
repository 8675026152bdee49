"""RoBERTa's, ALBERT's, SpanBERT's and ELECTRA's inputs and masks, token for token those of their
own code.
"""

import itertools
import json
import random
from functools import partial

import numpy as np
import pytest

from bert_recipes.data import original
from bert_recipes.data.original import OriginalSettings, create_training_instances, read_documents
from bert_recipes.data.other_masks import (
    FairseqDraws,
    Replacement,
    Units,
    choose_ngrams,
    choose_spans,
    mask_fairseq,
    replace_spans,
)
from bert_recipes.data.pairs import build_segments, pack_items
from bert_recipes.tokenization.loading import load_tokenizer


@pytest.fixture
def golden(shared_data):
    return shared_data / "reference" / "family"


def test_blocks_are_fairseqs(golden):
    """fairseq data/token_block_utils_fast.pyx: complete, and complete_doc, where items of the
    separator's size end a document.
    """
    cases = json.loads((golden / "fairseq_blocks.json").read_text())
    cases = [case for case in cases if case["mode"].startswith("complete")]

    assert len(cases) > 30

    for case in cases:
        sizes = np.array(case["sizes"])
        is_separator = (sizes == case["sep"]) & (case["mode"] == "complete_doc")
        blocks = []
        end = -1
        for separator in [*np.flatnonzero(is_separator).tolist(), len(sizes)]:
            begin, end = end + 1, separator
            bounds = begin + np.array(pack_items(sizes[begin:end], case["block"]))
            blocks += itertools.pairwise(bounds.tolist())
        starts = np.concatenate([[0], np.cumsum(sizes)])
        slices = [[int(starts[first]), int(starts[last])] for first, last in blocks]
        if case["mode"] == "complete_doc":
            slices = [block for block in slices if block[1] - block[0] > 1]
        assert slices == case["slices"]


def test_masks_are_fairseqs(golden):
    """With the draws of its generator, in its order."""
    data = json.loads((golden / "fairseq_masks.json").read_text())
    begins = np.array(data["word_begins"], dtype=bool)
    vocabulary = np.arange(data["nspecial"], data["vocab_size"])

    for case in data["cases"]:
        item = np.array(case["item"])
        starts = begins[item] if case["whole_words"] else np.ones(len(item), dtype=bool)
        starts[0] = True
        units = Units.from_starts(starts[None], np.ones((1, len(item)), dtype=bool))
        rng = np.random.default_rng(int(hash((case["seed"], case["epoch"], case["index"])) % 1e6))
        size = int(units.counts[0])
        count = rng.random()
        order = np.ones(len(item))
        order[rng.choice(size, int(0.15 * size + count), replace=False)] = 0
        replacement, kept = (np.pad(rng.random(size), (0, len(item) - size)) for _ in range(2))
        replacement_of = partial(
            Replacement,
            mask_rate=0.8,
            keep_rate=0.1,
            random_rate=0.1,
            mask_token_id=data["mask_idx"],
        )
        others = np.array([count]), order[None], replacement[None], kept[None]
        # It draws words for the tokens that become random alone: a vocabulary of nobody's id shows
        # which.
        words = np.zeros(len(item))
        masked, _ = mask_fairseq(
            item[None],
            units,
            FairseqDraws(*others, words[None]),
            0.15,
            replacement_of(words=np.array([-1])),
        )
        is_random = masked[0] == -1
        words[is_random] = rng.random(int(is_random.sum()))
        masked, chosen = mask_fairseq(
            item[None],
            units,
            FairseqDraws(*others, words[None]),
            0.15,
            replacement_of(words=vocabulary),
        )
        assert masked[0].tolist() == case["source"]
        assert np.where(chosen[0], item, data["pad_idx"]).tolist() == case["target"]


def test_masks_are_spanberts(golden):
    """With the draws of its generator, in its order."""
    for case in json.loads((golden / "spanbert_masks.json").read_text())["cases"]:
        ids, rng = np.array(case["sentence"]), np.random.RandomState(case["seed"])
        starts = ids % 3 != 0
        starts[0] = True

        def draw_length(attempt, rng=rng):
            length = rng.random_sample()
            # the original may prefer words of a kind here, which its recipe does not
            rng.random_sample()
            return np.array([length])

        def draw_anchor(attempt, rng=rng, ids=ids):
            return np.array([(rng.randint(0, len(ids)) + 0.5) / len(ids)])

        chosen = choose_spans(
            Units.from_starts(starts[None], np.ones((1, len(ids)), dtype=bool)),
            probability=0.15,
            words_of_span=(1, 10),
            geometric_p=0.2,
            length_draws=draw_length,
            anchor_draws=draw_anchor,
        )
        replacement, words = np.zeros(len(ids)), np.zeros(len(ids))
        edges = np.flatnonzero(np.diff(np.concatenate([[0], chosen[0], [0]])))
        for begin, end in edges.reshape(-1, 2):
            replacement[begin] = rng.random_sample()
            if 0.8 <= replacement[begin] < 0.9:
                words[begin:end] = [(rng.randint(0, 55) + 0.5) / 55 for _ in range(begin, end)]
        masked = replace_spans(
            ids[None],
            chosen,
            Replacement(
                mask_rate=0.8,
                keep_rate=0.1,
                random_rate=0.1,
                mask_token_id=59,
                words=np.arange(4, 59),
            ),
            replacement_draws=replacement[None],
            word_draws=words[None],
        )
        assert masked[0].tolist() == case["source"]
        assert np.where(chosen[0], ids, 1).tolist() == case["target"]


@pytest.mark.parametrize("most_words", [1, 2, 3, 5])
def test_ngrams_of_a_batch_are_those_of_the_original_row_by_row(most_words):
    """With the same draws as `original.choose_ngrams`, which `test_instances_are_alberts` holds to
    the original.
    """
    rng = np.random.default_rng(most_words)
    num_rows, size = 60, 50
    lengths = rng.integers(1, size + 1, num_rows)
    candidates = (np.arange(size) < lengths[:, None]) & (rng.random((num_rows, size)) > 0.1)
    words = Units.from_starts(
        candidates & (rng.random((num_rows, size)) < 0.6) | _first(candidates), candidates
    )
    limits, draws = rng.integers(1, 15, num_rows), rng.random((num_rows, size))
    order = np.argsort(
        np.where(np.arange(size) < words.counts[:, None], rng.random((num_rows, size)), 2.0), axis=1
    )
    chosen = choose_ngrams(words, limits, most_words, order, draws)

    for row in range(num_rows):
        of_row = [
            np.flatnonzero(candidates[row] & (words.of_token[row] == word)).tolist()
            for word in range(words.counts[row])
        ]
        uniform = iter(draws[row])
        tried = order[row, : len(of_row)].tolist()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                original,
                "shuffle",
                lambda items, _, tried=tried: items.__setitem__(slice(None), tried),
            )
            runs = original.choose_ngrams(
                of_row, int(limits[row]), most_words, None, lambda it=uniform: next(it)
            )
        assert np.flatnonzero(chosen[row]).tolist() == sorted(
            position for run in runs for position in run
        )


def _first(candidates):
    """The first candidate of each row begins a word."""
    return candidates & (np.cumsum(candidates, axis=1) == 1)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sop_ngram3", {}),
        ("sop_ngram1", {"ngram": 1}),
        ("nsp_ngram3", {"is_ordered": False}),
    ],
)
def test_instances_are_alberts(golden, shared_data, name, settings):
    file = golden / f"albert_{name}.jsonl"
    tokenizer = load_tokenizer(shared_data / "vocab" / "bert-base-uncased-vocab.txt")
    documents = read_documents(
        [shared_data / "reference" / "sample_text.txt"], tokenizer.encode_ids
    )
    plain = {
        "max_seq_length": 64,
        "short_seq_prob": 0.1,
        "dupe_factor": 3,
        "masked_lm_prob": 0.15,
        "max_predictions_per_seq": 20,
    }
    plain |= {"whole_word": True, "ngram": 3, "is_ordered": True}
    found = create_training_instances(
        documents,
        tokenizer,
        OriginalSettings(
            **(plain | settings), draw_ngram_length=np.random.RandomState(7).random_sample
        ),
        random.Random(12345),
    )
    expected = [json.loads(line) for line in file.read_text().splitlines()]

    assert len(found) == len(expected)

    for own, other in zip(found, expected, strict=True):
        assert tokenizer.convert_ids_to_tokens(list(own.input_ids)) == other["tokens"]
        assert int(own.is_random) == other["label"]
        assert list(own.masked_positions) == other["positions"]
        assert tokenizer.convert_ids_to_tokens(list(own.masked_ids)) == other["labels"]
        assert [int(place >= own.boundary) for place in range(len(own.input_ids))] == other[
            "segment_ids"
        ]


def test_examples_are_electras(golden):
    data = json.loads((golden / "electra_examples.json").read_text())
    documents = [[]]

    for line in data["lines"]:
        if line.strip():
            documents[-1].append([int(number) for number in line.split()])
        else:
            documents.append([])

    for run in data["runs"]:
        rng, found, target = random.Random(run["seed"]), [], run["max_length"]
        for document in documents:
            for one in build_segments(
                list(map(len, document)), run["max_length"], target, lambda begin, own=rng: own
            ):
                target = one.next_target
                parts = [[], []]
                for sentence, is_first in zip(
                    document[one.begin : one.end], one.is_first, strict=True
                ):
                    parts[not is_first] += sentence
                first = parts[0][: run["max_length"] - 2]
                found.append([first, parts[1][: max(0, run["max_length"] - len(first) - 3)]])
        assert found == run["examples"]
