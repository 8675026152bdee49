"""Questions about a paragraph -> words of the paragraph (SQuAD 1.1), or nothing (SQuAD 2.0)."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn import functional as F

from bert_recipes.errors import InputError
from bert_recipes.finetuning.kind import Batch, EncodedSplit, Prediction, TaskKind
from bert_recipes.finetuning.squad import (
    NOT_LOCATED,
    Context,
    EncodedContext,
    SpanText,
    SquadFeatures,
    decode_answer,
    encode_questions,
    make_offset_text,
    make_original_text,
    split_words,
)
from bert_recipes.metrics.squad import squad_scores, squad_v2_scores
from bert_recipes.tasks.examples import Split
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer


# Label of a window that takes no part in the loss.
_IGNORED = NOT_LOCATED[0]


class QuestionAnswering(TaskKind):
    """Answer with spans of a paragraph, by the rules of google-research/bert run_squad.py.

    Without WordPiece the answers' texts follow from offsets.

    The metric "squad" stands for SQuAD 1.1, "squad_v2" for questions that may have no answer.
    Padding is part of the softmax over the positions, as in the original, so that the loss depends
    on it. The original pads every input to max_seq_length, and so does `pad_to_max_length`, where
    padding also competes for the n-best positions when answers are decoded; without it nothing
    depends on what else is in the batch of a prediction. Label -100: the answer was not found.
    """

    label_keys: ClassVar[tuple[str, ...]] = ("start_positions", "end_positions")
    loss_counts_padding: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for token in self.tokenizer.extra_tokens.values():
            if not token.special and split_words(token.content) != [token.content]:
                raise InputError(
                    f"the tokenizer's added token {token.content!r} holds a space, and paragraphs "
                    "are cut word by word here, which would not find it; question answering takes "
                    "added tokens without spaces"
                )
        settings = self.settings
        num_special = self.tokenizer.layout.num_special
        if settings.max_seq_length <= settings.max_query_length + num_special:
            raise InputError(
                f"max_seq_length is {settings.max_seq_length} and max_query_length "
                f"{settings.max_query_length}; allowed: max_seq_length above max_query_length + "
                f"{num_special}; raise the one or lower the other"
            )
        self.allows_no_answer = "squad_v2" in self.task.metrics

    def encode(self, split: Split, *, for_training: bool = False) -> EncodedSplit:
        """Return the features of all questions, which are also the `details`."""
        features = encode_questions(split, self.tokenizer, self.settings, for_training=for_training)
        return EncodedSplit(split, features, features.lengths, details=features)

    def count_items(self, batch: Batch) -> torch.Tensor:
        """Return int64 (): features whose answer is known."""
        return (batch["start_positions"] != _IGNORED).sum()

    def loss_sum(self, output: Any, batch: Batch) -> torch.Tensor:
        """Return the mean of the cross-entropies of start and end, summed over features.

        They are over all positions, padding included. Source: run_squad.py `compute_loss`.
        """

        def loss_of(logits: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(
                logits.float(), positions, reduction="sum", ignore_index=_IGNORED
            )

        start_loss = loss_of(output.start_logits, batch["start_positions"])
        end_loss = loss_of(output.end_logits, batch["end_positions"])
        return (start_loss + end_loss) / 2

    def split_outputs(self, output: Any, batch: Batch) -> list[np.ndarray]:
        """Return float32 (2, S) start and end logits.

        They are without padding, unless every input is padded to max_seq_length.
        """
        stacked = torch.stack([output.start_logits, output.end_logits], dim=1)
        logits = stacked.float().cpu().numpy()
        if self.settings.pad_to_max_length:
            return list(logits)
        lengths = batch["attention_mask"].sum(dim=1).tolist()
        arrays = []
        for row, length in zip(logits, lengths, strict=True):
            arrays.append(row[:, :length].copy())
        return arrays

    def decode(self, encoded: EncodedSplit, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        """Return the `AnswerPrediction` of each question, over all its windows."""
        features: SquadFeatures = encoded.details
        assert len(outputs) == len(features)
        tokenizer = self.tokenizer
        is_wordpiece = isinstance(tokenizer, OriginalBertTokenizer)
        is_original = self.settings.decoder == "original" and is_wordpiece
        pieces: Any = tokenizer.convert_ids_to_tokens(range(len(tokenizer))) if is_original else ()

        # Questions about one paragraph stand beside each other.
        @lru_cache(maxsize=1)
        def texts_of(context: Context) -> SpanText:
            if is_original and isinstance(context, EncodedContext):
                return make_original_text(context, pieces, tokenizer.normalize)
            return make_offset_text(context, tokenizer)

        predictions: list[Prediction] = []
        for number, example in enumerate(encoded.split.examples):
            prediction = decode_answer(
                str(example.idx),
                features.windows_of(number, outputs),
                texts_of(features.contexts[number]),
                self.settings,
                allows_no_answer=self.allows_no_answer,
            )
            predictions.append(prediction)
        return predictions

    def score(self, examples: Sequence[Any], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Return the metrics of the official scripts in percent.

        SQuAD 1.1: exact_match, f1. SQuAD 2.0: exact and f1 at null_score_diff_threshold, their
        HasAns_ and NoAns_ rows, and best_exact, best_f1 with the thresholds that give them. These
        are looked for among the best texts, also above null_score_diff_threshold, where
        predictions.json holds "" and the official script can find no gain. They are too high, as
        they are chosen on what they measure: split_f1 is f1 at the best threshold of every other
        article, measured on the others, both ways.
        """
        gold = {example.idx: [answer.text for answer in example.answers] for example in examples}
        answers: dict[str, Any] = {str(prediction.idx): prediction for prediction in predictions}
        if not self.allows_no_answer:
            return squad_scores(gold, {idx: answer.value for idx, answer in answers.items()})

        def score_questions(questions: Sequence[str], threshold: float) -> dict[str, float]:
            gold_texts = {idx: gold[idx] for idx in questions}
            texts = {idx: answers[idx].best_text for idx in questions if idx in answers}
            odds = {idx: answers[idx].null_odds for idx in texts}
            return squad_v2_scores(gold_texts, texts, odds, threshold)

        scores = score_questions(list(gold), self.settings.null_score_diff_threshold)
        first_half, second_half = _halve_by_article(examples)
        if not second_half:
            return scores
        sum_of_f1 = 0.0
        for measured, chosen_on in ((first_half, second_half), (second_half, first_half)):
            # The script's 0 stands for no answer anywhere.
            threshold = score_questions(chosen_on, 0.0)["best_f1_thresh"] or -math.inf
            sum_of_f1 += len(measured) * score_questions(measured, threshold)["f1"]
        scores["split_f1"] = sum_of_f1 / len(gold)
        return scores

    def write(
        self, folder: Path, split_name: str, examples: Sequence[Any], predictions: Sequence[Any]
    ) -> list[Path]:
        """Write predictions_<split>.jsonl and the official files of predictions.

        These are predictions.json, nbest_predictions.json and null_odds.json (2.0); `<split>_`
        stands before their names for every split but the first validation split.
        """
        values = {}
        nbests = {}
        null_odds = {}
        for answer in predictions:
            values[answer.idx] = answer.value
            nbests[answer.idx] = [asdict(entry) for entry in answer.nbest]
            null_odds[answer.idx] = answer.null_odds
        contents: dict[str, Any] = {"predictions.json": values, "nbest_predictions.json": nbests}
        if self.allows_no_answer:
            contents["null_odds.json"] = null_odds

        prefix = "" if split_name in self.task.validation_splits[:1] else f"{split_name}_"
        paths = super().write(folder, split_name, examples, predictions)
        for name, content in contents.items():
            path = folder / f"{prefix}{name}"
            path.write_text(json.dumps(content, indent=4) + "\n", encoding="utf-8")
            paths.append(path)
        return paths


def _halve_by_article(examples: Sequence[Any]) -> tuple[list[str], list[str]]:
    """Return the ids of the questions about every other article, and those about the others."""
    number_of_article: dict[str, int] = {}
    first_half: list[str] = []
    second_half: list[str] = []
    for example in examples:
        number = number_of_article.setdefault(example.title, len(number_of_article))
        half = first_half if number % 2 == 0 else second_half
        half.append(example.idx)
    return first_half, second_half
