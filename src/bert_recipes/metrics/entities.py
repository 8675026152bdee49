"""Precision, recall and F1 of entities by CoNLL's rules: its words and its type must be right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from operator import eq

from bert_recipes.errors import InputError
from bert_recipes.tags import OUTSIDE, odd_pairs, split_tag


@dataclass(frozen=True)
class EntityCounts:
    """The numbers of entities that are right (same words and type), predicted, and gold.

    A ratio without denominator is 0.
    """

    correct: int
    predicted: int
    gold: int

    @property
    def precision(self) -> float:
        """Return the fraction of the predicted entities that are right."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Return the fraction of the gold entities that are predicted."""
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """Return the harmonic mean of both."""
        total = self.predicted + self.gold
        return 2 * self.correct / total if total else 0.0


def entity_scores(
    references: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Return the scores over all entities, and by type.

    Returns:
        precision, recall, f1 over all entities; accuracy, the fraction of the words with the right
        tag; then for each type that is there or predicted `<TYPE>_precision`, `<TYPE>_recall`,
        `<TYPE>_f1`, each 0 to 1, and `<TYPE>_number`, how many are there.

    Source: conlleval of CoNLL-2003 (Tjong Kim Sang and De Meulder 2003), in fractions; as
    `seqeval.metrics`.

    Example:
        >>> entity_scores([["B-PER", "I-PER", "O", "B-LOC"]], [["B-PER", "I-PER", "O", "O"]])["f1"]
        0.6666666666666666
    """
    counts_of_type = count_entities(references, predictions)
    total = total_counts(counts_of_type)
    gold_tags = list(chain.from_iterable(references))
    predicted_tags = chain.from_iterable(predictions)
    if not gold_tags:
        raise InputError("no word to score: every sentence is empty")
    num_right = sum(map(eq, gold_tags, predicted_tags))
    scores = {
        "precision": total.precision,
        "recall": total.recall,
        "f1": total.f1,
        "accuracy": num_right / len(gold_tags),
    }
    for name, counts in counts_of_type.items():
        scores[f"{name}_precision"] = counts.precision
        scores[f"{name}_recall"] = counts.recall
        scores[f"{name}_f1"] = counts.f1
        scores[f"{name}_number"] = counts.gold
    return scores


def count_entities(
    references: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
) -> dict[str, EntityCounts]:
    """Count the entities of each type that is gold or predicted, types in alphabetical order."""
    if list(map(len, references)) != list(map(len, predictions)):
        raise InputError(
            "predictions and references differ in the number of sentences, or of a sentence's words"
        )
    tags = set(map(str, chain.from_iterable(references)))
    odd = odd_pairs(sorted(tags))
    if odd:
        raise InputError(f"tags like {odd[0]!r} mark no entities; write B-TYPE and I-TYPE")
    correct: Counter[str] = Counter()
    predicted: Counter[str] = Counter()
    gold: Counter[str] = Counter()
    for reference, prediction in zip(references, predictions, strict=True):
        gold_entities = find_entities(reference)
        predicted_entities = find_entities(prediction)
        gold.update(name for name, _, _ in gold_entities)
        predicted.update(name for name, _, _ in predicted_entities)
        common = set(gold_entities).intersection(predicted_entities)
        correct.update(name for name, _, _ in common)
    names = sorted(gold | predicted)
    return {name: EntityCounts(correct[name], predicted[name], gold[name]) for name in names}


def total_counts(counts_of_type: dict[str, EntityCounts]) -> EntityCounts:
    """Add the counts of all types up."""
    counts = counts_of_type.values()
    return EntityCounts(
        correct=sum(count.correct for count in counts),
        predicted=sum(count.predicted for count in counts),
        gold=sum(count.gold for count in counts),
    )


def find_entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return type, first word and last word of the entities of a sentence, words from 0.

    No sequence is invalid: an entity starts at a B or S, and at any other tag that continues
    nothing (after O, E or S, or after a word of another type); it ends where the next one starts,
    and before an O. So IOB1 and IOB2 are both read right, and a stray "I-PER" is an entity of its
    own.

    Args:
        tags: "O", or a type behind the letters of IOB, IOBES, BILOU or BMEWO ("B-PER"). Tags
            without a letter ("PER") are entities as long as they are the same.

    Source: conlleval, startOfChunk and endOfChunk; as
    `seqeval.metrics.sequence_labeling.get_entities`, which does not know the letters U, L, M and W
    of BILOU and BMEWO.

    Example:
        >>> find_entities(["I-PER", "I-PER", "O", "B-LOC", "B-LOC", "I-ORG"])
        [('PER', 0, 1), ('LOC', 3, 3), ('LOC', 4, 4), ('ORG', 5, 5)]
    """
    entities: list[tuple[str, int, int]] = []
    last_prefix = OUTSIDE
    last_name = ""
    start = 0
    for word, tag in enumerate((*tags, OUTSIDE)):
        prefix, name = split_tag(tag)
        breaks = prefix in "BSO" or last_prefix in "ESO" or name != last_name
        if breaks and last_prefix != OUTSIDE:
            entities.append((last_name, start, word - 1))
        if breaks:
            start = word
        last_prefix = prefix
        last_name = name
    return entities
