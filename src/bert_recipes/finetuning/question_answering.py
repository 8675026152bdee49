"""Questions about a paragraph -> words of the paragraph (SQuAD 1.1), or nothing (SQuAD 2.0)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch.nn import functional as F

from bert_recipes.errors import InputError, saving
from bert_recipes.finetuning.answer_text import AnswerTexts, OffsetTexts
from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.finetuning.collation import pad_batch
from bert_recipes.finetuning.kind import Batch, EncodedSplit, Feature, Prediction
from bert_recipes.finetuning.prediction_files import write_jsonl
from bert_recipes.finetuning.squad_answers import NOT_LOCATED
from bert_recipes.finetuning.squad_decoding import (
    DecodedAnswer,
    DecoderSettings,
    NBestEntry,
    SpanText,
    WindowLogits,
    check_finite,
    decode_offsets,
    decode_original,
)
from bert_recipes.finetuning.squad_features import SquadFeatures, WindowSettings, encode_questions
from bert_recipes.finetuning.squad_windows import split_words, window_owners
from bert_recipes.metrics.squad import squad_scores, squad_v2_scores
from bert_recipes.tasks.examples import QuestionExample, Split
from bert_recipes.tasks.task import Task
from bert_recipes.tokenization import OriginalBertTokenizer


# Label of a window that takes no part in the loss.
_IGNORED = NOT_LOCATED[0]


@dataclass(frozen=True)
class AnswerPrediction(Prediction):
    """An answer; `value` is its text ("" for none), `probabilities` its share among the best (a float).

    Attributes:
        best_text: The best answer other than "", whatever the threshold.
        nbest: The best answers, best first.
        null_odds: Score of "no answer" minus that of best_text; None in SQuAD 1.1.
    """

    best_text: str = ""
    nbest: tuple[NBestEntry, ...] = ()
    null_odds: float | None = None


class QuestionAnswering:
    """Answers as spans of a paragraph, by the rules of google-research/bert run_squad.py.

    Padding is part of the softmax over the positions, as in the original, so that the loss depends on it. The original
    pads every input to max_seq_length, and so does `pad_to_max_length`, where padding also competes for the n-best
    positions when answers are decoded; without it nothing depends on what else is in the batch of a prediction.

    Args:
        task: Its row; the metric "squad" stands for SQuAD 1.1, "squad_v2" for questions that may have no answer.
        tokenizer: The model's.
        settings: Lengths, and how answers are decoded.
        label2id: Not used: there are no classes.

    Raises:
        InputError: Neither metric in the row, or max_query_length leaves no room for the paragraph.
    """

    auto_class: ClassVar[str] = "AutoModelForQuestionAnswering"
    label_keys: ClassVar[tuple[str, ...]] = ("start_positions", "end_positions")
    loss_counts_padding: ClassVar[bool] = True

    def __init__(
        self,
        task: Task,
        tokenizer: OriginalBertTokenizer,
        settings: TaskArguments,
        label2id: Mapping[str, int] | None = None,
    ) -> None:
        if len({"squad", "squad_v2"}.intersection(task.metrics)) != 1:
            raise InputError(
                f"task {task.name}: its metrics are {', '.join(task.metrics) or 'none'}; question answering takes squad, "
                "or squad_v2 where questions may have no answer"
            )
        _check_added_tokens(tokenizer)
        self.task = task
        self.tokenizer = tokenizer
        self.settings = settings
        self.allows_no_answer = "squad_v2" in task.metrics
        self._windows = WindowSettings(
            max_seq_length=settings.max_seq_length,
            max_query_length=settings.max_query_length,
            doc_stride=settings.doc_stride,
        )
        self._decoder = DecoderSettings(
            n_best_size=settings.n_best_size,
            max_answer_length=settings.max_answer_length,
            null_score_diff_threshold=settings.null_score_diff_threshold,
            allows_no_answer=self.allows_no_answer,
        )

    def encode(self, split: Split, *, for_training: bool = False) -> EncodedSplit:
        """One feature or more for each question; see `encode_questions`, whose result is also the `details`."""
        examples = cast(Sequence[QuestionExample], split.examples)
        if not for_training:
            _check_ids(examples, split.source)
        try:
            features = encode_questions(
                examples,
                self.tokenizer,
                self._windows,
                allows_no_answer=self.allows_no_answer,
                for_training=for_training,
            )
        except InputError as error:
            raise InputError(f"{split.source}: {error}") from None
        return EncodedSplit(split=split, features=features, lengths=features.lengths, details=features)

    def collate(self, features: Sequence[Feature]) -> Batch:
        """Pad; start_positions and end_positions are int64 (B,), -100 where an answer was not found."""
        pad_to = self.settings.max_seq_length if self.settings.pad_to_max_length else None
        batch = pad_batch(features, int(self.tokenizer.pad_token_id), pad_to=pad_to)
        for key in self.label_keys:
            if all(key in feature for feature in features):
                batch[key] = torch.tensor([feature[key] for feature in features], dtype=torch.int64)
        return batch

    def count_items(self, batch: Batch) -> torch.Tensor:
        """int64 (): features whose answer is known."""
        return (batch["start_positions"] != _IGNORED).sum()

    def loss_sum(self, output: Any, batch: Batch) -> torch.Tensor:
        """Mean of the cross-entropies of start and end over all positions, padding included; summed over features.

        Source: run_squad.py `compute_loss`.
        """
        start, end = (
            F.cross_entropy(logits.float(), batch[key], reduction="sum", ignore_index=_IGNORED)
            for logits, key in zip((output.start_logits, output.end_logits), self.label_keys, strict=True)
        )
        return (start + end) / 2

    def split_outputs(self, output: Any, batch: Batch) -> list[np.ndarray]:
        """float32 (2, S) start and end logits; without padding, unless every input is padded to max_seq_length."""
        logits = torch.stack([output.start_logits, output.end_logits], dim=1).float().cpu().numpy()
        if self.settings.pad_to_max_length:
            return list(logits)
        lengths = batch["attention_mask"].sum(dim=1).tolist()
        return [row[:, :length].copy() for row, length in zip(logits, lengths, strict=True)]

    def decode(self, encoded: EncodedSplit, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        """The decoder that the settings name, over all windows of each question; gives `AnswerPrediction`s."""
        features: SquadFeatures = encoded.details
        assert len(outputs) == len(features)
        is_original = self.settings.decoder == "original"
        texts = _TextsOfContexts(self.tokenizer, features, is_original=is_original)
        predictions: list[Prediction] = []
        for number, example in enumerate(cast(Sequence[QuestionExample], encoded.split.examples)):
            windows = _windows_of(features, number, outputs)
            check_finite(windows, example.idx)
            decoder = decode_original if is_original else decode_offsets
            answer = decoder(windows, texts.of(number, example.context), self._decoder)
            predictions.append(_prediction(example.idx, answer))
        return predictions

    def score(self, examples: Sequence[Any], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Figures of the official scripts in percent.

        SQuAD 1.1: exact_match, f1. SQuAD 2.0: exact and f1 at null_score_diff_threshold, their HasAns_ and NoAns_ rows,
        and best_exact, best_f1 with the thresholds that give them. These are looked for among the best texts, also
        above null_score_diff_threshold, where predictions.json holds "" and the official script can find no gain.
        """
        gold = {example.idx: [answer.text for answer in example.answers] for example in examples}
        answers = {str(answer.idx): answer for answer in cast(Sequence[AnswerPrediction], predictions)}
        if not self.allows_no_answer:
            return squad_scores(gold, {idx: str(answer.value) for idx, answer in answers.items()})
        return squad_v2_scores(
            gold,
            {idx: answer.best_text for idx, answer in answers.items()},
            {idx: cast(float, answer.null_odds) for idx, answer in answers.items()},
            self.settings.null_score_diff_threshold,
        )

    def write(
        self, folder: Path, split_name: str, examples: Sequence[Any], predictions: Sequence[Prediction]
    ) -> list[Path]:
        """predictions_<split>.jsonl, and the official files.

        These are predictions.json (id -> text), nbest_predictions.json (id -> list of text, probability, start_logit,
        end_logit) and, for SQuAD 2.0, null_odds.json (id -> number); `<split>_` stands before their names for every
        split but the first validation split.
        """
        answers = cast(Sequence[AnswerPrediction], predictions)
        contents: dict[str, dict[int | str, Any]] = {
            "predictions.json": {answer.idx: answer.value for answer in answers},
            "nbest_predictions.json": {answer.idx: [asdict(entry) for entry in answer.nbest] for answer in answers},
        }
        if self.allows_no_answer:
            contents["null_odds.json"] = {answer.idx: answer.null_odds for answer in answers}
        prefix = "" if split_name in self.task.validation_splits[:1] else f"{split_name}_"
        paths = [write_jsonl(folder, split_name, predictions)]
        for name, content in contents.items():
            paths.append(folder / f"{prefix}{name}")
            with saving(paths[-1]):
                paths[-1].write_text(json.dumps(content, indent=4) + "\n", encoding="utf-8")
        return paths


class _TextsOfContexts:
    """Span texts of one paragraph after the other; questions about one paragraph stand beside each other."""

    def __init__(self, tokenizer: OriginalBertTokenizer, features: SquadFeatures, *, is_original: bool) -> None:
        self._tokenizer = tokenizer
        self._features = features
        self._is_original = is_original
        self._pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))) if is_original else []
        self._number = -1
        self._text: SpanText | None = None

    def of(self, example: int, text: str) -> SpanText:
        """The span texts of an example's paragraph."""
        number = int(self._features.context_of_example[example])
        if self._text is None or number != self._number:
            context = self._features.contexts[number]
            self._number = number
            if self._is_original:
                self._text = AnswerTexts(text, context, self._pieces, self._tokenizer.normalize)
            else:
                self._text = OffsetTexts(text, context, self._tokenizer)
        return self._text


def _windows_of(features: SquadFeatures, example: int, outputs: Sequence[np.ndarray]) -> list[WindowLogits]:
    windows = features.windows_of(example)
    owners = window_owners(windows, len(features.context_of(example).piece_ids)) if windows else np.zeros(0, np.int32)
    first_position = features.first_position(example)
    return [
        WindowLogits(
            start=outputs[feature][0],
            end=outputs[feature][1],
            first_position=first_position,
            first_piece=start,
            owned=owners[start : start + length] == number,
        )
        for number, (feature, (start, length)) in enumerate(zip(features.features_of(example), windows, strict=True))
    ]


def _prediction(idx: str, answer: DecodedAnswer) -> AnswerPrediction:
    share = next((entry.probability for entry in answer.nbest if entry.text == answer.text), 0.0)
    return AnswerPrediction(
        idx=idx,
        value=answer.text,
        probabilities=share,
        best_text=answer.best_text,
        nbest=answer.nbest,
        null_odds=answer.null_odds,
    )


def _check_added_tokens(tokenizer: OriginalBertTokenizer) -> None:
    for token in tokenizer.extra_tokens.values():
        if not token.special and split_words(token.content) != [token.content]:
            raise InputError(
                f"the tokenizer's added token {token.content!r} holds a space, and paragraphs are cut word by word here, which would "
                "not find it; question answering takes added tokens without spaces"
            )


def _check_ids(examples: Sequence[QuestionExample], source: str) -> None:
    seen: set[str] = set()
    for example in examples:
        if example.idx in seen:
            raise InputError(
                f"{source}: two questions have the id {example.idx}; predictions are told apart by their ids: "
                "give each question its own"
            )
        seen.add(example.idx)
