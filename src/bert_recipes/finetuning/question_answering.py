"""Questions about a paragraph -> words of the paragraph (SQuAD 1.1), or nothing (SQuAD 2.0)."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch.nn import functional as F

from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.finetuning.kind import Batch, EncodedSplit, Prediction, TaskKind
from bert_recipes.finetuning.squad import (
    NOT_LOCATED,
    AnswerPrediction,
    EncodedContext,
    OffsetContext,
    SpanText,
    SquadFeatures,
    decode_answer,
    encode_questions,
    offset_texts,
    original_texts,
    split_words,
)
from bert_recipes.metrics.squad import squad_scores, squad_v2_scores
from bert_recipes.tasks.examples import QuestionExample, Split
from bert_recipes.tasks.task import Task
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer


# Label of a window that takes no part in the loss.
_IGNORED = NOT_LOCATED[0]


class QuestionAnswering(TaskKind):
    """Answers as spans of a paragraph, by the rules of google-research/bert run_squad.py; without
    WordPiece their texts follow from offsets.

    The metric "squad" stands for SQuAD 1.1, "squad_v2" for questions that may have no answer.
    Padding is part of the softmax over the positions, as in the original, so that the loss depends
    on it. The original pads every input to max_seq_length, and so does `pad_to_max_length`, where
    padding also competes for the n-best positions when answers are decoded; without it nothing
    depends on what else is in the batch of a prediction. Label -100: the answer was not found.
    """

    auto_class: ClassVar[str] = "AutoModelForQuestionAnswering"
    label_keys: ClassVar[tuple[str, ...]] = ("start_positions", "end_positions")
    loss_counts_padding: ClassVar[bool] = True

    def __init__(
        self,
        task: Task,
        tokenizer: OriginalBertTokenizer,
        settings: TaskArguments,
        label2id: Mapping[str, int],
    ) -> None:
        super().__init__(task, tokenizer, settings, label2id)
        for token in tokenizer.extra_tokens.values():
            if not token.special and split_words(token.content) != [token.content]:
                raise InputError(
                    f"the tokenizer's added token {token.content!r} holds a space, and paragraphs "
                    "are cut word by word "
                    "here, which would not find it; question answering takes added tokens without "
                    "spaces"
                )
        special = tokenizer.layout.num_special
        if settings.max_seq_length <= settings.max_query_length + special:
            raise InputError(
                f"max_seq_length is {settings.max_seq_length} and max_query_length "
                f"{settings.max_query_length}; allowed: "
                f"max_seq_length above max_query_length + {special}; raise the one or lower the "
                "other"
            )
        self.allows_no_answer = "squad_v2" in task.metrics

    def encode(self, split: Split, *, for_training: bool = False) -> EncodedSplit:
        """Return the features of all questions; `encode_questions`, whose result is also the
        `details`.
        """
        features = encode_questions(split, self.tokenizer, self.settings, for_training=for_training)
        return EncodedSplit(
            split=split, features=features, lengths=features.lengths, details=features
        )

    def count_items(self, batch: Batch) -> torch.Tensor:
        """int64 (): features whose answer is known."""
        return (batch["start_positions"] != _IGNORED).sum()

    def loss_sum(self, output: Any, batch: Batch) -> torch.Tensor:
        """Mean of the cross-entropies of start and end over all positions, padding included; summed
        over features.

        Source: run_squad.py `compute_loss`.
        """
        start, end = (
            F.cross_entropy(logits.float(), batch[key], reduction="sum", ignore_index=_IGNORED)
            for logits, key in zip(
                (output.start_logits, output.end_logits), self.label_keys, strict=True
            )
        )
        return (start + end) / 2

    def split_outputs(self, output: Any, batch: Batch) -> list[np.ndarray]:
        """float32 (2, S) start and end logits; without padding, unless every input is padded to
        max_seq_length.
        """
        logits = torch.stack([output.start_logits, output.end_logits], dim=1).float().cpu().numpy()
        if self.settings.pad_to_max_length:
            return list(logits)
        lengths = batch["attention_mask"].sum(dim=1).tolist()
        return [row[:, :length].copy() for row, length in zip(logits, lengths, strict=True)]

    def decode(self, encoded: EncodedSplit, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        """The decoder that the settings name, over all windows of each question; gives
        `AnswerPrediction`s.
        """
        features: SquadFeatures = encoded.details
        assert len(outputs) == len(features)
        is_original = self.settings.decoder == "original" and isinstance(
            self.tokenizer, OriginalBertTokenizer
        )
        pieces = (
            self.tokenizer.convert_ids_to_tokens(list(range(len(self.tokenizer))))
            if is_original
            else []
        )

        # Questions about one paragraph stand beside each other.
        @lru_cache(maxsize=1)
        def texts_of(context: EncodedContext | OffsetContext) -> SpanText:
            if is_original and isinstance(context, EncodedContext):
                return original_texts(context, pieces, self.tokenizer.normalize)
            return offset_texts(context, self.tokenizer)

        return [
            decode_answer(
                example.idx,
                features.windows_of(number, outputs),
                texts_of(features.contexts[number]),
                self.settings,
                allows_no_answer=self.allows_no_answer,
            )
            for number, example in enumerate(
                cast(Sequence[QuestionExample], encoded.split.examples)
            )
        ]

    def score(self, examples: Sequence[Any], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Metrics of the official scripts in percent.

        SQuAD 1.1: exact_match, f1. SQuAD 2.0: exact and f1 at null_score_diff_threshold, their
        HasAns_ and NoAns_ rows, and best_exact, best_f1 with the thresholds that give them. These
        are looked for among the best texts, also above null_score_diff_threshold, where
        predictions.json holds "" and the official script can find no gain. They are too high, as
        they are chosen on what they measure: split_f1 is f1 at the best threshold of every other
        article, measured on the others, both ways.
        """
        gold = {example.idx: [answer.text for answer in example.answers] for example in examples}
        answers = {
            str(answer.idx): answer for answer in cast(Sequence[AnswerPrediction], predictions)
        }
        if not self.allows_no_answer:
            return squad_scores(gold, {idx: str(answer.value) for idx, answer in answers.items()})

        def scores_of(questions: Sequence[str], threshold: float) -> dict[str, float]:
            own = [answers[idx] for idx in questions if idx in answers]
            odds = {str(answer.idx): cast(float, answer.null_odds) for answer in own}
            texts = {str(answer.idx): answer.best_text for answer in own}
            return squad_v2_scores({idx: gold[idx] for idx in questions}, texts, odds, threshold)

        scores = scores_of(list(gold), self.settings.null_score_diff_threshold)
        articles = list(dict.fromkeys(example.title for example in examples))
        if len(articles) > 1:
            halves = [
                [example.idx for example in examples if example.title in articles[start::2]]
                for start in (0, 1)
            ]
            # The script's 0 stands for no answer anywhere.
            best = [scores_of(half, 0.0)["best_f1_thresh"] or -math.inf for half in halves]
            parts = zip(halves, reversed(best), strict=True)
            scores["split_f1"] = sum(
                len(half) * scores_of(half, odds)["f1"] for half, odds in parts
            ) / len(gold)
        return scores

    def write(
        self,
        folder: Path,
        split_name: str,
        examples: Sequence[Any],
        predictions: Sequence[Prediction],
    ) -> list[Path]:
        """Write predictions_<split>.jsonl and the official predictions.json, nbest_predictions.json
        and null_odds.json (2.0).

        `<split>_` stands before the official names for every split but the first validation split.
        """
        answers = cast(Sequence[AnswerPrediction], predictions)
        contents: dict[str, dict[int | str, Any]] = {
            "predictions.json": {answer.idx: answer.value for answer in answers},
            "nbest_predictions.json": {
                answer.idx: [asdict(entry) for entry in answer.nbest] for answer in answers
            },
        }
        if self.allows_no_answer:
            contents["null_odds.json"] = {answer.idx: answer.null_odds for answer in answers}
        prefix = "" if split_name in self.task.validation_splits[:1] else f"{split_name}_"
        paths = super().write(folder, split_name, examples, predictions)
        for name, content in contents.items():
            paths.append(folder / f"{prefix}{name}")
            paths[-1].write_text(json.dumps(content, indent=4) + "\n", encoding="utf-8")
        return paths
