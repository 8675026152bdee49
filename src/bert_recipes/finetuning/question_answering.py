"""Questions about a paragraph -> words of the paragraph (SQuAD 1.1), or nothing (SQuAD 2.0)."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch.nn import functional as F

from bert_recipes.errors import InputError, saving
from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.finetuning.kind import Batch, EncodedSplit, Feature, Prediction, TaskKind
from bert_recipes.finetuning.squad import (
    NOT_LOCATED,
    NUM_SPECIAL_PIECES,
    AnswerTexts,
    NBestEntry,
    OffsetTexts,
    SpanText,
    SquadFeatures,
    WindowLogits,
    decode_offsets,
    decode_original,
    encode_questions,
    split_words,
    window_owners,
)
from bert_recipes.metrics.squad import squad_scores, squad_v2_scores
from bert_recipes.tasks.rows import QuestionExample, Split
from bert_recipes.tasks.task import Task
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer


# Label of a window that takes no part in the loss.
_IGNORED = NOT_LOCATED[0]


@dataclass(frozen=True)
class AnswerPrediction(Prediction):
    """An answer; `value` is its text ("" for none), `probabilities` its probability among the best (a float).

    Attributes:
        best_text: The best answer other than "", whatever the threshold.
        nbest: The best answers, best first.
        null_odds: Score of "no answer" minus that of best_text; None in SQuAD 1.1.
    """

    best_text: str = ""
    nbest: tuple[NBestEntry, ...] = ()
    null_odds: float | None = None


class QuestionAnswering(TaskKind):
    """Answers as spans of a paragraph, by the rules of google-research/bert run_squad.py.

    The metric "squad" stands for SQuAD 1.1, "squad_v2" for questions that may have no answer. Padding is part of the
    softmax over the positions, as in the original, so that the loss depends on it. The original pads every input to
    max_seq_length, and so does `pad_to_max_length`, where padding also competes for the n-best positions when answers are
    decoded; without it nothing depends on what else is in the batch of a prediction.
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
        super().__init__(task, tokenizer, settings, label2id or {})
        if len({"squad", "squad_v2"}.intersection(task.metrics)) != 1:
            raise InputError(
                f"task {task.name}: its metrics are {', '.join(task.metrics) or 'none'}; question answering takes squad, "
                "or squad_v2 where questions may have no answer"
            )
        for token in tokenizer.extra_tokens.values():
            if not token.special and split_words(token.content) != [token.content]:
                raise InputError(
                    f"the tokenizer's added token {token.content!r} holds a space, and paragraphs are cut word by word "
                    "here, which would not find it; question answering takes added tokens without spaces"
                )
        if settings.max_seq_length <= settings.max_query_length + NUM_SPECIAL_PIECES:
            raise InputError(
                f"max_seq_length is {settings.max_seq_length} and max_query_length {settings.max_query_length}; allowed: "
                f"max_seq_length above max_query_length + {NUM_SPECIAL_PIECES}; raise the one or lower the other"
            )
        self.allows_no_answer = "squad_v2" in task.metrics

    def encode(self, split: Split, *, for_training: bool = False) -> EncodedSplit:
        """One feature or more for each question; see `encode_questions`, whose result is also the `details`."""
        examples = cast(Sequence[QuestionExample], split.examples)
        # The official files tell predictions apart by their ids.
        twice = [idx for idx, count in Counter(example.idx for example in examples).items() if count > 1]
        if twice and not for_training:
            raise InputError(
                f"{split.source}: two questions have the id {twice[0]}; predictions are told apart by their ids: "
                "give each question its own"
            )
        try:
            features = encode_questions(
                examples,
                self.tokenizer,
                self.settings,
                allows_no_answer=self.allows_no_answer,
                for_training=for_training,
            )
        except InputError as error:
            raise InputError(f"{split.source}: {error}") from None
        return EncodedSplit(split=split, features=features, lengths=features.lengths, details=features)

    def collate(self, features: Sequence[Feature]) -> Batch:
        """Pad; start_positions and end_positions are int64 (B,), -100 where an answer was not found."""
        batch = self.pad(features)
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
        decoder = decode_original if is_original else decode_offsets
        pieces = self.tokenizer.convert_ids_to_tokens(list(range(len(self.tokenizer)))) if is_original else []

        # Questions about one paragraph stand beside each other.
        @lru_cache(maxsize=1)
        def span_text(number: int, text: str) -> SpanText:
            context = features.contexts[number]
            if is_original:
                return AnswerTexts(text, context, pieces, self.tokenizer.normalize)
            return OffsetTexts(text, context, self.tokenizer)

        predictions: list[Prediction] = []
        for number, example in enumerate(cast(Sequence[QuestionExample], encoded.split.examples)):
            windows = _windows_of(features, number, outputs)
            texts = span_text(int(features.context_of_example[number]), example.context)
            answer = decoder(windows, texts, self.settings, allows_no_answer=self.allows_no_answer)
            found = AnswerPrediction(
                idx=example.idx,
                value=answer.text,
                probabilities=next((entry.probability for entry in answer.nbest if entry.text == answer.text), 0.0),
                best_text=answer.best_text,
                nbest=answer.nbest,
                null_odds=answer.null_odds,
            )
            predictions.append(found)
        return predictions

    def score(self, examples: Sequence[Any], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Metrics of the official scripts in percent.

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
        paths = super().write(folder, split_name, examples, predictions)
        for name, content in contents.items():
            paths.append(folder / f"{prefix}{name}")
            with saving(paths[-1]):
                paths[-1].write_text(json.dumps(content, indent=4) + "\n", encoding="utf-8")
        return paths


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
