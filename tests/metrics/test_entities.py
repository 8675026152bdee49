import warnings

import numpy as np
import pytest

from bert_recipes.errors import InputError
from bert_recipes.metrics.entities import entity_scores, find_entities


TYPES = ("PER", "ORG", "LOC", "MISC")
IOB = ["O", "O", "O", *(f"{prefix}-{name}" for prefix in "BI" for name in TYPES)]
ALL_TAGS = [
    *IOB,
    *(f"{prefix}-{name}" for prefix in "ES" for name in TYPES),
    "B",
    "I",
    "B-A-B",
    "I-A-B",
]


def random_sentences(rng, tags):
    return [rng.choice(tags, rng.integers(0, 9)).tolist() for _ in range(rng.integers(1, 6))] + [
        ["O"]
    ]


def changed(rng, sentences, tags):
    """The same sentences, some of their tags drawn anew."""
    return [
        [str(rng.choice(tags)) if rng.random() < 0.3 else tag for tag in sentence]
        for sentence in sentences
    ]


def seqeval_report(references, predictions):
    metrics = pytest.importorskip("seqeval.metrics")
    with warnings.catch_warnings():
        # It warns where nothing is predicted or there; the value is what counts here.
        warnings.simplefilter("ignore")
        overall = {
            "precision": metrics.precision_score(references, predictions),
            "recall": metrics.recall_score(references, predictions),
            "f1": metrics.f1_score(references, predictions),
            "accuracy": metrics.accuracy_score(references, predictions),
        }
        if not any(tag != "O" for sentence in references + predictions for tag in sentence):
            return overall
        report = metrics.classification_report(references, predictions, output_dict=True)
    for name, figures in report.items():
        if not name.endswith(" avg"):
            overall |= {
                f"{name}_precision": figures["precision"],
                f"{name}_recall": figures["recall"],
            }
            overall |= {f"{name}_f1": figures["f1-score"], f"{name}_number": figures["support"]}
    return overall


@pytest.mark.parametrize("tags", [IOB, ALL_TAGS], ids=["iob", "all"])
def test_random_tags_are_scored_as_seqeval_does(tags):
    """Drawn without any order, so that most sequences are invalid."""
    rng = np.random.default_rng(0)
    for _ in range(150):
        references = random_sentences(rng, tags)
        predictions = changed(rng, references, tags)
        expected = seqeval_report(references, predictions)
        assert entity_scores(references, predictions) == pytest.approx(expected, abs=1e-12), (
            references,
            predictions,
        )


def test_the_entities_found_are_those_of_seqeval():
    labeling = pytest.importorskip("seqeval.metrics.sequence_labeling")
    rng = np.random.default_rng(1)
    for _ in range(1000):
        tags = rng.choice(ALL_TAGS, rng.integers(1, 15)).tolist()
        assert find_entities(tags) == labeling.get_entities(tags), tags


def test_real_sentences_are_scored_as_seqeval_does(shared_data):
    """CoNLL-2003's test file, with tags of neighbouring sentences mixed in as wrong predictions."""
    text = (shared_data / "ner" / "conll2003" / "test.txt").read_text(encoding="utf-8")
    blocks = text.strip().split("\n\n")
    references = [[line.split()[-1] for line in block.splitlines()] for block in blocks]
    predictions = changed(np.random.default_rng(2), references, sorted(IOB[2:]) + ["O"] * 20)
    scores = entity_scores(references, predictions)
    assert scores == pytest.approx(seqeval_report(references, predictions), abs=1e-12)
    assert 0.3 < scores["f1"] < 0.9
    assert [scores[f"{name}_number"] for name in TYPES] == [1617, 1661, 1668, 702]


@pytest.mark.parametrize(
    ("references", "predictions", "message"),
    [
        ([], [], "no word to score"),
        ([[], []], [[], []], "no word to score"),
        ([["O"]], [["O"], ["O"]], "differ in the number"),
        ([["O"], ["O", "O"]], [["O"], ["O"]], "differ in the number"),
        ([["I_PER", "B_PER"]], [["O", "O"]], "tags like 'B_PER' mark no entities; write B-TYPE"),
        ([["O"], ["O"]], [["O"], [3]], "tag 3;"),
        ([["O"]], [["O-PER"]], "tag 'O-PER'"),
        ([["O"]], [[""]], "tag ''"),
    ],
)
def test_what_cannot_be_scored_is_refused_with_its_place(references, predictions, message):
    with pytest.raises(InputError, match=message) as error:
        entity_scores(references, predictions)
    assert "\n" not in str(error.value)
