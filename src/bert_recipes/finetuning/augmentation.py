"""More rows for a task: texts whose words are replaced by those that a masked-LM expects in their
places.

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
from bert_recipes.finetuning.kind import pad_batch
from bert_recipes.models.sizes import num_positions
from bert_recipes.progress import Progress
from bert_recipes.tasks.examples import TextExample
from bert_recipes.tasks.task import Task
from bert_recipes.tokenization.wordpiece import CONTINUATION


# Examples whose words are looked up together: batches of like lengths, and little memory.
EXAMPLES_AT_ONCE = 1000


@dataclass(frozen=True, kw_only=True)
class Augmenter:
    """A BERT with its masked-LM head, its tokenizer, and the rules of Algorithm 1; what becomes of
    a text depends on it and the seed alone.
    """

    model: Any
    tokenizer: Any
    num_copies: int = 20  # N_a
    num_candidates: int = 15  # K
    replace_probability: float = 0.4  # p_t
    seed: int = 12345
    batch_size: int = 64

    def augment(self, examples: Sequence[Any]) -> Iterator[TextExample]:
        """Each example, then its copies: those of the first text beside the second as it is, and
        the other way round.
        """
        for start in Progress(
            range(0, len(examples), EXAMPLES_AT_ONCE), desc="augment", unit=" thousand"
        ):
            part = examples[start : start + EXAMPLES_AT_ONCE]
            texts = [each.text for each in part] + [
                each.text_pair for each in part if each.text_pair
            ]
            copies = dict(zip(texts, self._copy(texts), strict=True))
            for example in part:
                yield example
                yield from (replace(example, text=copy) for copy in copies[example.text])
                # The original goes on from the last copy of the first text.
                for copy in copies[example.text_pair] if example.text_pair else ():
                    yield replace(example, text_pair=copy)

    def _copy(self, texts: Sequence[str]) -> list[list[str]]:
        """Copies of each text, none twice and none the text itself."""
        words = [self.tokenizer.normalize(text).split() for text in texts]
        queries = [
            (row, place)
            for row, own in enumerate(words)
            for place, word in enumerate(own)
            if is_replaced(word)
        ]
        candidates: list[dict[int, list[str]]] = [{} for _ in texts]
        for (row, place), found in zip(queries, self._ask(words, queries), strict=True):
            candidates[row][place] = found or [words[row][place]]
        return [self._draw(*each) for each in zip(texts, words, candidates, strict=True)]

    def _draw(self, text: str, words: list[str], candidates: dict[int, list[str]]) -> list[str]:
        rng, copies = random.Random(f"{self.seed} {text}"), dict[str, None]()
        for _ in range(self.num_copies):
            copy = list(words)
            for place, found in candidates.items():
                word = rng.choice(found)
                if rng.random() < self.replace_probability:
                    copy[place] = word
            copies[" ".join(copy)] = None
        copies.pop(" ".join(words), None)
        return list(copies)

    @torch.no_grad()
    def _ask(
        self, words: Sequence[list[str]], queries: Sequence[tuple[int, int]]
    ) -> list[list[str]]:
        """For each (row, word) the best words for its place, best first; none where the place lies
        beyond the model's positions.

        The model reads [CLS] the text with one [MASK] [SEP] the text [SEP]. Words of several pieces
        are asked for like others; the original takes their neighbours among GloVe vectors.
        """
        names, longest = self.tokenizer, num_positions(self.model.config)
        pieces = [[names.encode_word(word) for word in own] for own in words]
        features: list[dict[str, list[int]]] = []
        for row, place in queries:
            masked = [
                [names.mask_token_id] if number == place else own
                for number, own in enumerate(pieces[row])
            ]
            first = [names.cls_token_id, *chain.from_iterable(masked), names.sep_token_id]
            second = [*chain.from_iterable(pieces[row]), names.sep_token_id]
            at = 1 + sum(map(len, masked[:place]))
            labels = (
                [IGNORE_INDEX] * at + [0] + [IGNORE_INDEX] * (len(first) + len(second) - at - 1)
            )
            types = [0] * len(first) + [1] * len(second)
            feature = {"input_ids": first + second, "token_type_ids": types, "labels": labels}
            features.append({name: values[:longest] for name, values in feature.items()})
        found: list[list[str]] = [[] for _ in queries]
        asked = [number for number, feature in enumerate(features) if 0 in feature["labels"]]
        asked.sort(key=lambda number: len(features[number]["input_ids"]))
        for start in range(0, len(asked), self.batch_size):
            numbers = asked[start : start + self.batch_size]
            batch = pad_batch(
                [features[number] for number in numbers],
                names.pad_token_id,
                label_pads={"labels": IGNORE_INDEX},
            )
            inputs = {name: values.to(self.model.device) for name, values in batch.items()}
            logits = self.model(**inputs, return_full_logits=False).prediction_logits[
                :, : len(names)
            ]
            for number, best in zip(
                numbers,
                logits.topk(min(self.num_candidates, len(names))).indices.tolist(),
                strict=True,
            ):
                best = [
                    piece
                    for piece in names.convert_ids_to_tokens(best)
                    if piece not in names.all_special_tokens
                ]
                found[number] = [piece for piece in best if not piece.startswith(CONTINUATION)]
        return found


def is_replaced(word: str) -> bool:
    """Tell whether a word has letters alone, and is no stop word; scikit-learn's list is longer
    than the original's.
    """
    return word.isalpha() and word.lower() not in ENGLISH_STOP_WORDS


def as_line(task: Task, example: Any) -> str:
    """An example as a line of JSON that the task reads."""
    texts = (example.text, example.text_pair or "")
    row: dict[str, Any] = dict(zip(task.text_columns, texts, strict=False))
    if task.id_column is not None:
        row[task.id_column] = example.idx
    label: Any = example.label
    if task.labels and label is not None:
        label = (
            [task.labels[number] for number in label]
            if isinstance(label, tuple)
            else task.labels[label]
        )
    if label is not None:
        row[task.label_column] = label
    return json.dumps(row, ensure_ascii=False) + "\n"
