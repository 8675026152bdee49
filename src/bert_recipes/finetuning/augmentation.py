"""Make rows for a task from its texts, with words that a masked-LM expects in their places.

Source: Jiao et al. 2020, Algorithm 1; huawei-noah/Pretrained-Language-Model,
TinyBERT/data_augmentation.py.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from bert_recipes.data.masking import IGNORE_INDEX
from bert_recipes.finetuning.kind import Feature, pad_batch
from bert_recipes.models.sizes import num_positions
from bert_recipes.progress import Progress
from bert_recipes.tasks.examples import TextExample
from bert_recipes.tasks.task import Task
from bert_recipes.tokenization.wordpiece import CONTINUATION


# Examples whose words are looked up together: batches of like lengths, and little memory.
EXAMPLES_AT_ONCE = 1000


@dataclass(frozen=True, kw_only=True)
class Augmenter:
    """A BERT with its masked-LM head, its tokenizer, and the rules of Algorithm 1.

    What becomes of a text depends on them and the seed alone.

    Attributes:
        num_copies: N_a of the paper: how often a text is copied. Copies that are equal become one.
        num_candidates: K: from how many of the best pieces a word is drawn.
        replace_probability: p_t: how probably a word is replaced.
        batch_size: Of the model's inputs.
    """

    model: Any
    tokenizer: Any
    num_copies: int = 20
    num_candidates: int = 15
    replace_probability: float = 0.4
    seed: int = 12345
    batch_size: int = 64

    def augment(self, examples: Sequence[Any]) -> Iterator[TextExample]:
        """Yield each example, then its copies.

        A pair gets copies with a new first text, and then copies with a new second one.
        """
        starts = range(0, len(examples), EXAMPLES_AT_ONCE)
        for start in Progress(starts, desc="augment", unit=" thousand"):
            batch = examples[start : start + EXAMPLES_AT_ONCE]
            texts = [example.text for example in batch]
            texts += [example.text_pair for example in batch if example.text_pair]
            copies = dict(zip(texts, self._copy(texts), strict=True))
            for example in batch:
                yield example
                for copy in copies[example.text]:
                    yield replace(example, text=copy)
                # The original goes on from the last copy of the first text.
                if example.text_pair:
                    for copy in copies[example.text_pair]:
                        yield replace(example, text_pair=copy)

    def _copy(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the copies of each text, none twice and none the text itself."""
        words_of_texts = []
        gaps = []  # number of the text, number of the word
        features = []
        for number, text in enumerate(texts):
            words = self.tokenizer.normalize(text).split()
            words_of_texts.append(words)
            pieces = [self.tokenizer.encode_word(word) for word in words]
            for place, word in enumerate(words):
                if is_replaced(word):
                    gaps.append((number, place))
                    features.append(self._mask(pieces, place))

        candidates: list[dict[int, list[str]]] = [{} for _ in texts]
        for (number, place), expected in zip(gaps, self._fill(features), strict=True):
            candidates[number][place] = expected or [words_of_texts[number][place]]
        return list(map(self._draw, texts, words_of_texts, candidates))

    def _draw(self, text: str, words: list[str], candidates: dict[int, list[str]]) -> list[str]:
        """Return copies of a text, with words drawn from the candidates of their places.

        Args:
            text: Decides, with the seed, what is drawn.
            words: Of the text.
            candidates: Number of a word -> what may stand there.
        """
        rng = random.Random(f"{self.seed} {text}")
        copies: dict[str, None] = {}  # a set in order
        for _ in range(self.num_copies):
            copy = list(words)
            for place, expected in candidates.items():
                word = rng.choice(expected)
                if rng.random() < self.replace_probability:
                    copy[place] = word
            copies[" ".join(copy)] = None
        copies.pop(" ".join(words), None)
        return list(copies)

    def _mask(self, pieces: Sequence[Sequence[int]], place: int) -> Feature:
        """Return [CLS] the text with one [MASK] [SEP] the text [SEP], as far as the model reads.

        Words of several pieces become one [MASK] like others; the original takes their neighbours
        among GloVe vectors.

        Args:
            pieces: Ids of each word.
            place: Number of the masked word.

        Returns:
            input_ids, token_type_ids and labels; 0 is the label of the [MASK], -100 elsewhere.
        """
        tokenizer = self.tokenizer
        text = list(chain.from_iterable(pieces))
        before = list(chain.from_iterable(pieces[:place]))
        after = text[len(before) + len(pieces[place]) :]
        masked = [
            tokenizer.cls_token_id,
            *before,
            tokenizer.mask_token_id,
            *after,
            tokenizer.sep_token_id,
        ]
        input_ids = [*masked, *text, tokenizer.sep_token_id]
        token_type_ids = [0] * len(masked) + [1] * (len(text) + 1)
        labels = [IGNORE_INDEX] * len(input_ids)
        labels[1 + len(before)] = 0
        feature = {"input_ids": input_ids, "token_type_ids": token_type_ids, "labels": labels}
        max_length = num_positions(self.model.config)
        return {name: values[:max_length] for name, values in feature.items()}

    @torch.no_grad()
    def _fill(self, features: Sequence[Feature]) -> list[list[str]]:
        """Return the best words for the [MASK] of each feature, best first; none where it is cut.

        Special tokens and pieces that continue a word are left out.
        """
        tokenizer = self.tokenizer
        num_candidates = min(self.num_candidates, len(tokenizer))
        words: list[list[str]] = [[] for _ in features]
        numbers = [number for number, feature in enumerate(features) if 0 in feature["labels"]]
        numbers.sort(key=lambda number: len(features[number]["input_ids"]))
        for start in range(0, len(numbers), self.batch_size):
            numbers_of_batch = numbers[start : start + self.batch_size]
            batch = pad_batch(
                [features[number] for number in numbers_of_batch],
                tokenizer.pad_token_id,
                label_pads={"labels": IGNORE_INDEX},
            )
            inputs = {name: values.to(self.model.device) for name, values in batch.items()}
            logits = self.model(**inputs, return_full_logits=False).prediction_logits
            best_ids = logits[:, : len(tokenizer)].topk(num_candidates).indices.tolist()
            for number, ids in zip(numbers_of_batch, best_ids, strict=True):
                for piece in tokenizer.convert_ids_to_tokens(ids):
                    is_special = piece in tokenizer.all_special_tokens
                    if not is_special and not piece.startswith(CONTINUATION):
                        words[number].append(piece)
        return words


def is_replaced(word: str) -> bool:
    """Tell whether a word has letters alone, and is no stop word.

    scikit-learn's list is longer than the original's.
    """
    return word.isalpha() and word.lower() not in ENGLISH_STOP_WORDS


def as_line(task: Task, example: Any) -> str:
    """Return an example as a line of JSON that the task reads.

    Args:
        task: Names columns and labels, and says how its files write them.
        example: A text or a pair.
    """
    spellings = {name: spelling for spelling, name in task.column_labels.items()}
    names = [spellings.get(name, name) for name in task.labels]
    texts = (example.text, example.text_pair or "")
    row: dict[str, Any] = dict(zip(task.text_columns, texts, strict=False))
    if task.id_column is not None:
        row[task.id_column] = example.idx
    label = example.label
    if task.label_columns and label is not None:
        for number, column in enumerate(task.label_columns):
            row[column] = int(number in label)
    elif isinstance(label, tuple):
        row[task.label_column] = [names[number] for number in label]
    elif label is not None:
        row[task.label_column] = names[label] if names else label
    return json.dumps(row, ensure_ascii=False) + "\n"
