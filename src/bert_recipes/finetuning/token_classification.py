"""Label words in windows of their document, each word once with as much context as fits.

Source: BERT, Devlin et al. 2019, section 5.3: "we ... include the maximal document context provided
by the data". The paper says no more and its code was not published; the rule by which words of long
documents choose their window is that of google-research/bert run_squad.py `_check_is_max_context`.

Legend: W words of a document.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from torch.nn import functional as F

from bert_recipes.data.masking import IGNORE_INDEX
from bert_recipes.finetuning.kind import Batch, EncodedSplit, Feature, Prediction, TaskKind, softmax
from bert_recipes.finetuning.squad import window_owners
from bert_recipes.metrics.classification import compute
from bert_recipes.metrics.entities import entity_scores, find_entities
from bert_recipes.tasks.examples import Split, TaggedExample
from bert_recipes.tasks.task import DOCUMENT
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer


logger = logging.getLogger(__name__)

NUM_SPECIAL_TOKENS = 2  # [CLS] and [SEP]


def write_columns(
    file: TextIO,
    examples: Sequence[TaggedExample],
    labels: Sequence[str],
    predictions: Sequence[Sequence[str]],
) -> None:
    """Write a word a line: `word gold predicted`, or `word predicted` without gold labels.

    A blank line ends a sentence, and a line -DOCSTART- with O in the other columns opens each
    document where documents have more than one sentence. The official scorer conlleval reads the
    file as it is. White space inside a word or tag becomes "_", so that the columns stay.
    """
    has_documents = any(first.document == second.document for first, second in pairwise(examples))
    document: int | None = None
    for example, predicted in zip(examples, predictions, strict=True):
        columns: list[Sequence[str]] = [example.tokens]
        if example.labels is not None:
            columns.append([labels[label] for label in example.labels])
        columns.append(predicted)

        if has_documents and example.document != document:
            document = example.document
            tags = ["O"] * (len(columns) - 1)
            file.write(" ".join([DOCUMENT, *tags]) + "\n\n")
        for cells in zip(*columns, strict=True):
            file.write(" ".join("_".join(cell.split()) or "_" for cell in cells) + "\n")
        file.write("\n")


def list_spans(example: TaggedExample, tags: Sequence[str]) -> list[list[Any]]:
    """Return the entities that tags mark as [start, end, type].

    Start and end are characters of the text that was cut into words.

    Raises:
        ValueError: The example was no text: its words have no offsets.
    """
    if example.offsets is None:
        raise ValueError("the example has words and no text")
    spans = []
    for name, first, last in find_entities(tags):
        start, _ = example.offsets[first]
        _, end = example.offsets[last]
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

    def text_of(sentence: int) -> int:
        return sentence if context == "sentence" else examples[sentence].document

    for _, sentences in groupby(range(len(examples)), key=text_of):
        places = []
        pieces = []
        for sentence in sentences:
            for number, word in enumerate(examples[sentence].tokens):
                places.append((sentence, number))
                pieces.append(pieces_of[word])
        windows += _lay_out_words(places, pieces, tokenizer, max_pieces)
    return windows


def _lay_out_words(
    places: Sequence[tuple[int, int]],
    pieces: Sequence[Sequence[int]],
    tokenizer: OriginalBertTokenizer,
    max_pieces: int,
) -> Iterator[DocumentWindow]:
    """Yield the windows of a document.

    Args:
        places: Sentence of each word, and its number there.
        pieces: Ids of each word.
        tokenizer: Knows the special tokens.
        max_pieces: Of a window.
    """
    lengths = np.array([len(ids) for ids in pieces], np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    windows = cut_document(lengths, max_pieces)
    owners = window_owners(windows, lengths)
    for number, (start, end) in enumerate(windows):
        words = np.flatnonzero(owners == number)
        if not words.size:
            continue  # other windows show more around each of its words
        sentences, words_in_sentence = np.array(places, np.int64)[words].T
        piece_ids = chain.from_iterable(pieces[start:end])
        yield DocumentWindow(
            [tokenizer.cls_token_id, *piece_ids, tokenizer.sep_token_id],
            sentences=sentences,
            words=words_in_sentence,
            positions=1 + offsets[words] - offsets[start],
            num_pieces=lengths[words],
        )


def _cut_words(
    examples: Sequence[TaggedExample], tokenizer: OriginalBertTokenizer, max_pieces: int
) -> dict[str, list[int]]:
    """Return the ids of each distinct word's pieces, one at least and max_pieces at most."""
    pieces: dict[str, list[int]] = {}
    num_empty = 0
    num_long = 0
    for word in chain.from_iterable(example.tokens for example in examples):
        if word in pieces:
            continue
        ids = tokenizer.encode_word(word)
        num_empty += len(ids) == 0
        num_long += len(ids) > max_pieces
        pieces[word] = (ids or [tokenizer.unk_token_id])[:max_pieces]
    if num_empty:
        message = (
            "%d distinct words have no pieces (white space or control characters): read as [UNK]"
        )
        logger.info(message, num_empty)
    if num_long:
        message = (
            "%d distinct words have more than %d pieces: only their first ones are read; raise "
            "max_seq_length"
        )
        logger.warning(message, num_long, max_pieces)
    return pieces


def cut_document(lengths: np.ndarray, max_pieces: int) -> list[tuple[int, int]]:
    """Cover a document with windows of complete words: (first word, word behind the last).

    Args:
        lengths: int64 (W,), pieces of each word.
        max_pieces: Of a window.
    """
    offsets = np.concatenate([[0], np.cumsum(lengths)])

    def last_word_until(num_pieces: int) -> int:
        return int(np.searchsorted(offsets, num_pieces, side="right")) - 1

    def first_word_from(num_pieces: int) -> int:
        return int(np.searchsorted(offsets, num_pieces, side="left"))

    num_words = len(lengths)
    windows = []
    start = 0
    while start < num_words:
        end = last_word_until(offsets[start] + max_pieces)
        if end == num_words:
            # Context is free here: the last window reaches back as far as it can.
            start = first_word_from(offsets[end] - max_pieces)
            windows.append((start, end))
            break
        windows.append((start, end))
        half = first_word_from(offsets[start] + max(1, max_pieces // 2))
        # Far enough that the next word fits, however many pieces it has.
        next_fits = first_word_from(offsets[end + 1] - max_pieces)
        start = min(max(half, next_fits), end)
    return windows


class TokenClassification(TaskKind):
    """Label each word by its first piece.

    Sentences are read in windows of their document (`lay_out_documents`); the words of a window
    that belong to another one are context only: no loss, no prediction. Every word is trained on
    once an epoch and predicted once.

    With `label_all_pieces` the other pieces of a word have a label too: I-X where the word's label
    is B-X and the task knows I-X, the word's own label otherwise.

    Source: BERT, Devlin et al. 2019, section 5.3: maximal document context, the first sub-token, no
    CRF.
    """

    def __post_init__(self) -> None:
        names = self.task.labels
        first_classes = []
        later_classes = []
        for name in names:
            first_classes.append(self.label2id[name])
            inside = name.replace("B-", "I-", 1) if name.startswith("B-") else name
            later_classes.append(self.label2id[inside if inside in names else name])
        # int64, class of a word's first piece, and of its other pieces, by the word's label.
        self._first_class = np.array(first_classes, np.int64)
        self._later_class = np.array(later_classes, np.int64)

    def encode(self, split: Split, *, for_training: bool = False) -> EncodedSplit:
        """Return a feature for each window, with labels where the split has them.

        The details are the `DocumentWindow`s.
        """
        examples: Sequence[Any] = split.examples
        settings = self.settings
        windows = lay_out_documents(
            examples, self.tokenizer, settings.max_seq_length, context=settings.context
        )
        features = []
        for window in windows:
            feature = {"input_ids": window.input_ids, "token_type_ids": [0] * len(window.input_ids)}
            if split.is_labelled:
                feature["labels"] = self._label_pieces(window, examples).tolist()
            features.append(feature)
        lengths = np.array([len(window.input_ids) for window in windows], np.int64)
        return EncodedSplit(split=split, features=features, lengths=lengths, details=windows)

    def _label_pieces(self, window: DocumentWindow, examples: Sequence[Any]) -> np.ndarray:
        """Return int64 (S,), the class of each piece that has one, else -100."""
        classes = np.full(len(window.input_ids), IGNORE_INDEX, np.int64)
        words = zip(
            window.sentences, window.words, window.positions, window.num_pieces, strict=True
        )
        for sentence, word, position, num_pieces in words:
            label = examples[sentence].labels[word]
            if self.settings.label_all_pieces:
                classes[position : position + num_pieces] = self._later_class[label]
            classes[position] = self._first_class[label]
        return classes

    def collate(self, features: Sequence[Feature]) -> Batch:
        """Pad; `labels` is int64 (B, S), -100 where there is none."""
        is_labelled = all("labels" in feature for feature in features)
        return self.pad(features, {"labels": IGNORE_INDEX} if is_labelled else None)

    def count_items(self, batch: Batch) -> torch.Tensor:
        """Return int64 (): labelled pieces; one for each word unless `label_all_pieces`."""
        return (batch["labels"] != IGNORE_INDEX).sum()

    def loss_sum(self, output: Any, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy of (B, S, C) logits, summed over the labelled pieces."""
        logits = output.logits.float().flatten(0, 1)
        labels = batch["labels"].flatten()
        return F.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="sum")

    def split_outputs(self, output: Any, batch: Batch) -> list[np.ndarray]:
        """Return float32 (S, C) logits of each window, without padding."""
        rows = super().split_outputs(output, batch)
        lengths = batch["attention_mask"].sum(-1).tolist()
        return [row[:length] for row, length in zip(rows, lengths, strict=True)]

    def decode(self, encoded: EncodedSplit, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        """Predict a label for each word of a sentence, from the window that it belongs to.

        The probabilities are those of these labels.
        """
        examples: Sequence[Any] = encoded.split.examples
        predictions = []
        for example in examples:
            num_words = len(example.tokens)
            predictions.append(Prediction(example.idx, [""] * num_words, [0.0] * num_words))
        for window, logits in zip(encoded.details, outputs, strict=True):
            logits_of_labels = logits[window.positions][:, self._first_class]
            probabilities = softmax(logits_of_labels.astype(np.float64))
            for row, sentence, word in zip(
                probabilities, window.sentences, window.words, strict=True
            ):
                prediction: Any = predictions[sentence]
                prediction.value[word] = self.task.labels[row.argmax()]
                prediction.probabilities[word] = float(row.max())
        return predictions

    def score(self, examples: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return the entity scores by the CoNLL rules for "entities".

        Every other metric of the task is over the single words.
        """
        names = self.task.labels
        predicted = [prediction.value for prediction in predictions]
        scores: dict[str, float] = {}
        if "entities" in self.task.metrics:
            gold = []
            for example in examples:
                gold.append([names[label] for label in example.labels])
            scores.update(entity_scores(gold, predicted))
        word_metrics = [metric for metric in self.task.metrics if metric != "entities"]
        if word_metrics:
            guesses = [names.index(name) for name in chain.from_iterable(predicted)]
            labels = list(chain.from_iterable(example.labels for example in examples))
            scores.update(compute(word_metrics, guesses, labels))
        return scores

    def write(
        self, folder: Path, split_name: str, examples: Sequence[Any], predictions: Sequence[Any]
    ) -> list[Path]:
        """Write predictions_<split>.jsonl, and predictions_<split>.txt as of `write_columns`."""
        paths = super().write(folder, split_name, examples, predictions)
        columns = folder / f"predictions_{split_name}.txt"
        tags = [prediction.value for prediction in predictions]
        with columns.open("w", encoding="utf-8", newline="\n") as file:
            write_columns(file, examples, self.task.labels, tags)
        return [*paths, columns]
