"""RoBERTa's, ALBERT's, SpanBERT's and ELECTRA's inputs and masks, token for token those of their own code."""

import itertools
import json
import random

import numpy as np
import pytest

from bert_recipes.data.original import create_training_instances, read_documents
from bert_recipes.data.other_masks import mask_fairseq, mask_spans
from bert_recipes.data.pairs import build_segments, pack_items
from bert_recipes.tokenization.loading import load_tokenizer


@pytest.fixture
def golden(shared_data):
    return shared_data / "reference" / "family"


def test_blocks_are_fairseqs(golden):
    """fairseq data/token_block_utils_fast.pyx: complete, and complete_doc, where items of the separator's size end a document."""
    cases = [
        case
        for case in json.loads((golden / "fairseq_blocks.json").read_text())
        if case["mode"].startswith("complete")
    ]
    assert len(cases) > 30
    for case in cases:
        sizes, found = np.array(case["sizes"]), []
        ends = np.concatenate([[0], np.cumsum(sizes)])
        cuts = (
            [-1, *np.flatnonzero(sizes == case["sep"]).tolist(), len(sizes)]
            if case["mode"] == "complete_doc"
            else [-1, len(sizes)]
        )
        for before, end in itertools.pairwise(cuts):
            starts = [before + 1 + start for start in pack_items(sizes[before + 1 : end], case["block"])]
            found += [[int(ends[first]), int(ends[last])] for first, last in itertools.pairwise(starts)]
        if case["mode"] == "complete_doc":
            found = [block for block in found if block[1] - block[0] > 1]
        assert found == case["slices"]


def test_masks_are_fairseqs(golden):
    data = json.loads((golden / "fairseq_masks.json").read_text())
    begins = np.array(data["word_begins"], dtype=bool)
    for case in data["cases"]:
        item = np.array(case["item"])
        masked, chosen = mask_fairseq(
            item,
            begins[item] if case["whole_words"] else None,
            probability=0.15,
            shares=(0.1, 0.1),
            mask_id=data["mask_idx"],
            vocabulary=np.arange(data["nspecial"], data["vocab_size"]),
            rng=np.random.default_rng(int(hash((case["seed"], case["epoch"], case["index"])) % 1e6)),
        )
        assert masked.tolist() == case["source"]
        assert np.where(chosen, item, data["pad_idx"]).tolist() == case["target"]


def test_masks_are_spanberts(golden):
    for case in json.loads((golden / "spanbert_masks.json").read_text())["cases"]:
        ids = np.array(case["sentence"])
        masked, chosen = mask_spans(
            ids,
            ids % 3 != 0,
            probability=0.15,
            shares=(0.8, 0.1),
            mask_id=59,
            vocabulary=np.arange(4, 59),
            words=(1, 10),
            geometric_p=0.2,
            rng=np.random.RandomState(case["seed"]),
        )
        assert masked.tolist() == case["source"]
        assert np.where(chosen, ids, 1).tolist() == case["target"]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sop_ngram3", {}),
        ("sop_ngram1", {"ngram": 1}),
        ("nsp_ngram3", {"is_ordered": False}),
        ("sop_token", {"whole_word": False, "ngram": 1}),
        ("sop_ngram3_128", {"max_seq_length": 128, "dupe_factor": 5}),
    ],
)
def test_instances_are_alberts(golden, shared_data, name, settings):
    file = golden / f"albert_{name}.jsonl"
    if not file.is_file():
        pytest.skip(f"{file.name} is not there")
    tokenizer = load_tokenizer(shared_data / "vocab" / "bert-base-uncased-vocab.txt")
    documents = read_documents([shared_data / "reference" / "sample_text.txt"], tokenizer.encode_ids)
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
        **(plain | settings),
        rng=random.Random(12345),
        uniform=np.random.RandomState(7).random_sample,
    )
    expected = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(found) == len(expected)
    for own, other in zip(found, expected, strict=True):
        assert tokenizer.convert_ids_to_tokens(list(own.input_ids)) == other["tokens"]
        assert int(own.is_random) == other["label"]
        assert list(own.masked_positions) == other["positions"]
        assert tokenizer.convert_ids_to_tokens(list(own.masked_ids)) == other["labels"]
        assert [int(place >= own.boundary) for place in range(len(own.input_ids))] == other["segment_ids"]


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
            for one in build_segments(list(map(len, document)), run["max_length"], target, lambda begin, own=rng: own):
                target = one.next_target
                parts = [[], []]
                for sentence, is_first in zip(document[one.begin : one.end], one.is_first, strict=True):
                    parts[not is_first] += sentence
                first = parts[0][: run["max_length"] - 2]
                found.append([first, parts[1][: max(0, run["max_length"] - len(first) - 3)]])
        assert found == run["examples"]
