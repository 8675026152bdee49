"""Sentences of words -> windows of their document, so that each word is seen once with as much
context as fits.

Source: BERT, Devlin et al. 2019, section 5.3: "we ... include the maximal document context provided
by the data". The paper says no more and its code was not published; the rule by which words of long
documents choose their window is that of google-research/bert run_squad.py `_check_is_max_context`.

Legend: W words of a document.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Any, ClassVar, TextIO, cast

import numpy as np
import torch

from bert_recipes.data.masking import IGNORE_INDEX
from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.finetuning.kind import Batch, EncodedSplit, Feature, Prediction, TaskKind, softmax
from bert_recipes.finetuning.squad import window_owners
from bert_recipes.metrics.classification import compute
from bert_recipes.metrics.entities import entity_scores, find_entities
from bert_recipes.tasks.examples import Split, TaggedExample
from bert_recipes.tasks.task import DOCUMENT, Task
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer


logger = logging.getLogger(__name__)

NUM_SPECIAL_TOKENS = 2  # [CLS] and [SEP]


def write_columns(
    file: TextIO,
    examples: Sequence[TaggedExample],
    labels: Sequence[str],
    predictions: Sequence[Sequence[str]],
) -> None:
    """Write a word a line, `word gold predicted` or, where the gold labels are hidden, `word
    predicted`.

    A blank line ends a sentence, and a line -DOCSTART- with O in the other columns opens each
    document where documents have more than one sentence. The official scorer conlleval reads the
    file as it is. White space inside a word becomes "_", so that the columns stay.
    """
    has_documents = any(first.document == second.document for first, second in pairwise(examples))
    document: int | None = None
    for example, predicted in zip(examples, predictions, strict=True):
        gold = [] if example.labels is None else [[labels[label] for label in example.labels]]
        if has_documents and example.document != document:
            document = example.document
            file.write(" ".join([DOCUMENT, "O", *("O" for _ in gold)]) + "\n\n")
        for word, *tags in zip(example.tokens, *gold, predicted, strict=True):
            file.write(" ".join(["_".join(word.split()) or "_", *tags]) + "\n")
        file.write("\n")


def list_spans(example: TaggedExample, tags: Sequence[str]) -> list[list[Any]]:
    """Return the entities that tags mark as [start, end, type], in characters of the text that was
    cut into words.

    Raises:
        ValueError: The example was no text: its words have no offsets.
    """
    if example.offsets is None:
        raise ValueError("the example has words and no text")
    spans = []
    for name, first, last in find_entities(tags):
        start, end = example.offsets[first][0], example.offsets[last][1]
        spans.append([start, end, name])
    return spans


@dataclass(frozen=True, slots=True)
class DocumentWindow:
    """A model input and, for each word that is predicted in it, int64 (words,) numbers.

    Attributes:
        input_ids: [CLS], the pieces of consecutive words of one document, [SEP]; nothing stands
            between sentences.
        sentences, words: The word's sentence, and its number there.
        positions, num_pieces: The position of its first piece in input_ids, and how many it has.
    """

    input_ids: list[int]
    sentences: np.ndarray
    words: np.ndarray
    positions: np.ndarray
    num_pieces: np.ndarray


def lay_out_documents(
    examples: Sequence[TaggedExample],
    tokenizer: OriginalBertTokenizer,
    max_seq_length: int,
    *,
    context: str = "document",
) -> list[DocumentWindow]:
    """Cut every document into windows in which each word is predicted exactly once.

    A document that fits is one window. A longer one is read in windows of complete words that start
    half a window apart, the last of them reaching back as far as it can; a word belongs to the
    window that shows most on both sides of it. Sentences keep their order, and one that is longer
    than a window is treated like any other stretch of words. Consecutive sentences with one
    `document` are one text, unless context is "sentence".

    Each word is cut by itself. One without pieces becomes [UNK], so that every word is counted; one
    with more pieces than a window keeps the first ones, which a warning counts.
    """
    max_pieces = max_seq_length - NUM_SPECIAL_TOKENS
    pieces_of = _cut_words(examples, tokenizer, max_pieces)
    windows: list[DocumentWindow] = []
    texts = [
        number if context == "sentence" else example.document
        for number, example in enumerate(examples)
    ]
    for _, document in groupby(enumerate(examples), key=lambda numbered: texts[numbered[0]]):
        places = np.array(
            [(number, word) for number, each in document for word in range(len(each.tokens))],
            np.int64,
        )
        pieces = [pieces_of[examples[number].tokens[word]] for number, word in places]
        lengths = np.array([len(each) for each in pieces], np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        spans = cut_document(lengths, max_pieces)
        owners = window_owners(spans, lengths)
        for number, (start, end) in enumerate(spans):
            own = start + np.flatnonzero(owners[start:end] == number)
            if not own.size:
                continue  # others show more around each of its words
            sentences, words = places[own].T
            windows.append(
                DocumentWindow(
                    [
                        tokenizer.cls_token_id,
                        *chain.from_iterable(pieces[start:end]),
                        tokenizer.sep_token_id,
                    ],
                    sentences=sentences,
                    words=words,
                    positions=1 + offsets[own] - offsets[start],
                    num_pieces=lengths[own],
                )
            )
    return windows


def _cut_words(
    examples: Sequence[TaggedExample], tokenizer: OriginalBertTokenizer, max_pieces: int
) -> dict[str, list[int]]:
    """Word -> ids of its pieces, one at least and max_pieces at most."""
    words = dict.fromkeys(chain.from_iterable(example.tokens for example in examples))
    pieces = {word: tokenizer.encode_word(word) for word in words}
    if num_empty := sum(not ids for ids in pieces.values()):
        logger.info(
            "%d distinct words have no pieces (control characters only): read as [UNK]", num_empty
        )
    if num_cut := sum(len(ids) > max_pieces for ids in pieces.values()):
        logger.warning(
            "%d distinct words have more than %d pieces: only their first ones are read; raise "
            "max_seq_length",
            num_cut,
            max_pieces,
        )
    return {word: (ids or [tokenizer.unk_token_id])[:max_pieces] for word, ids in pieces.items()}


def cut_document(lengths: np.ndarray, max_pieces: int) -> list[tuple[int, int]]:
    """Cover a document of int64 (W,) pieces per word with windows of complete words: (first word,
    word behind the last).
    """
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    num_words, spans, start = len(lengths), [], 0
    while start < num_words:
        end = int(np.searchsorted(offsets, offsets[start] + max_pieces, side="right")) - 1
        if end == num_words:
            # Context is free here: the last window reaches back as far as it can.
            start = int(np.searchsorted(offsets, offsets[end] - max_pieces, side="left"))
            spans.append((start, end))
            break
        spans.append((start, end))
        half = int(np.searchsorted(offsets, offsets[start] + max(1, max_pieces // 2), side="left"))
        # Far enough that the next word fits, however many pieces it has.
        next_fits = int(np.searchsorted(offsets, offsets[end + 1] - max_pieces, side="left"))
        start = min(max(half, next_fits), end)
    return spans


class TokenClassification(TaskKind):
    """Label each word by its first piece.

    Sentences are read in windows of their document (`lay_out_documents`); the words of a window
    that belong to another
    one are context only: no loss, no prediction. Every word is trained on once an epoch and
    predicted once.

    With `label_all_pieces` the other pieces of a word have a label too: I-X where the word's label
    is B-X and the task knows I-X, the word's own label otherwise.

    Source: BERT, Devlin et al. 2019, section 5.3: maximal document context, the first sub-token, no
    CRF.
    """

    auto_class: ClassVar[str] = "AutoModelForTokenClassification"

    def __init__(
        self,
        task: Task,
        tokenizer: OriginalBertTokenizer,
        settings: TaskArguments,
        label2id: Mapping[str, int],
    ) -> None:
        super().__init__(task, tokenizer, settings, label2id)
        self._first_class = np.array([label2id[name] for name in task.labels], np.int64)
        inside = [f"I-{name[2:]}" if name.startswith("B-") else name for name in task.labels]
        later = [
            other if other in task.labels else name
            for name, other in zip(task.labels, inside, strict=True)
        ]
        self._later_class = np.array([label2id[name] for name in later], np.int64)

    def encode(self, split: Split, *, for_training: bool = False) -> EncodedSplit:
        """Sentences -> a feature for each window, with labels where the split has them; details are
        the `DocumentWindow`s.
        """
        examples = cast(Sequence[TaggedExample], split.examples)
        settings, features = self.settings, []
        windows = lay_out_documents(
            examples, self.tokenizer, settings.max_seq_length, context=settings.context
        )
        for window in windows:
            feature = {"input_ids": window.input_ids, "token_type_ids": [0] * len(window.input_ids)}
            if split.is_labelled:
                labels = np.full(len(window.input_ids), IGNORE_INDEX, np.int64)
                words = zip(window.sentences, window.words, strict=True)
                tags = np.array(
                    [
                        cast(Sequence[int], examples[sentence].labels)[word]
                        for sentence, word in words
                    ]
                )
                if settings.label_all_pieces:
                    for tag, start, count in zip(
                        tags, window.positions, window.num_pieces, strict=True
                    ):
                        labels[start : start + count] = self._later_class[tag]
                labels[window.positions] = self._first_class[tags]
                feature["labels"] = labels.tolist()
            features.append(feature)
        lengths = np.array([len(window.input_ids) for window in windows], np.int64)
        return EncodedSplit(split=split, features=features, lengths=lengths, details=windows)

    def collate(self, features: Sequence[Feature]) -> Batch:
        """Pad; `labels` is int64 (B, S), -100 where there is none."""
        labelled = all("labels" in feature for feature in features)
        return self.pad(features, {"labels": IGNORE_INDEX} if labelled else None)

    def count_items(self, batch: Batch) -> torch.Tensor:
        """int64 (): labelled pieces; one for each word unless `label_all_pieces`."""
        return (batch["labels"] != IGNORE_INDEX).sum()

    def loss_sum(self, output: Any, batch: Batch) -> torch.Tensor:
        """Cross-entropy of (B, S, C) logits, summed over the labelled pieces."""
        return torch.nn.functional.cross_entropy(
            output.logits.float().flatten(0, 1),
            batch["labels"].flatten(),
            ignore_index=IGNORE_INDEX,
            reduction="sum",
        )

    def split_outputs(self, output: Any, batch: Batch) -> list[np.ndarray]:
        """float32 (S, C) logits of each window, without padding."""
        lengths = batch["attention_mask"].sum(-1).tolist()
        return [
            row[:length]
            for row, length in zip(super().split_outputs(output, batch), lengths, strict=True)
        ]

    def decode(self, encoded: EncodedSplit, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        """Per sentence a label for each word, from the window that it belongs to, and the
        probabilities of these labels.
        """
        examples = cast(Sequence[TaggedExample], encoded.split.examples)
        labels = [[""] * len(example.tokens) for example in examples]
        probabilities = [[0.0] * len(example.tokens) for example in examples]
        for window, logits in zip(encoded.details, outputs, strict=True):
            scores = softmax(logits[window.positions][:, self._first_class].astype(np.float64))
            words = zip(
                window.sentences,
                window.words,
                scores.argmax(-1),
                scores.max(-1).tolist(),
                strict=True,
            )
            for sentence, word, number, value in words:
                labels[sentence][word] = self.task.labels[number]
                probabilities[sentence][word] = value
        pairs = zip(examples, labels, probabilities, strict=True)
        return [Prediction(example.idx, tags, shares) for example, tags, shares in pairs]

    def score(
        self, examples: Sequence[TaggedExample], predictions: Sequence[Prediction]
    ) -> dict[str, float]:
        """Entity scores by the CoNLL rules for "entities"; every other metric of the task over the
        single words.
        """
        gold = [list(cast(Sequence[int], example.labels)) for example in examples]
        predicted = [cast(list[str], prediction.value) for prediction in predictions]
        scores: dict[str, float] = {}
        if "entities" in self.task.metrics:
            scores |= entity_scores(
                [[self.task.labels[label] for label in labels] for labels in gold], predicted
            )
        others = [name for name in self.task.metrics if name != "entities"]
        if others:
            guesses = [self.task.labels.index(name) for name in chain.from_iterable(predicted)]
            scores |= compute(others, guesses, list(chain.from_iterable(gold)))
        return scores

    def write(
        self,
        folder: Path,
        split_name: str,
        examples: Sequence[TaggedExample],
        predictions: Sequence[Prediction],
    ) -> list[Path]:
        """Write predictions_<split>.jsonl and, in CoNLL columns, predictions_<split>.txt
        (`write_columns`).
        """
        columns = folder / f"predictions_{split_name}.txt"
        with columns.open("w", encoding="utf-8", newline="\n") as file:
            write_columns(
                file,
                examples,
                self.task.labels,
                [cast(list[str], each.value) for each in predictions],
            )
        return [*super().write(folder, split_name, examples, predictions), columns]
