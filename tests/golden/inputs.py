"""Text and rows that are made from fixed seeds, for the record of outputs."""

# ruff: noqa: RUF001

import json
import random
from pathlib import Path
from typing import Any


SYLLABLES = ["ba", "ke", "lo", "mi", "nu", "ra", "sé", "ti", "vo", "zür", "an", "er", "ist", "ung"]
SYLLABLES += ["th"]
STRANGE = "aZé ĂŽ\u0301ß中文\u200b\u00ad'’—…[MASK]-9½ﬁ\t\u3000\U0001f600ﷺ"
# Head of the YAML file of each kind of task.
TASKS = {
    "pairs": (
        "kind: sequence_classification\ntext_columns: [first, second]\nlabels: [yes, no, perhaps]\n"
    ),
    "score": (
        "kind: sequence_classification\nproblem_type: regression\nlabel_range: [0, 5]\n"
        "text_columns: [first, second]\n"
    ),
    "tags": "kind: token_classification\nlabels: [O, B-X, I-X]\n",
    "questions": "kind: question_answering\nmetrics: squad_v2\n",
    "choices": "kind: multiple_choice\ntext_columns: start\nchoice_columns: [a, b, c]\n",
}


def write_text(file: Path) -> None:
    """Write 60 documents of English-like sentences, with accents, capitals and numbers."""
    rng = random.Random(7)
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(700)]
    weights = [1 / (rank + 3) for rank in range(len(words))]
    documents = []
    for _ in range(60):
        lines = []
        for _ in range(rng.randint(4, 30)):
            sentence = rng.choices(words, weights, k=rng.randint(3, 18))
            if rng.random() < 0.2:
                sentence[rng.randrange(len(sentence))] = str(rng.randint(1, 2030))
            lines.append(" ".join(sentence).capitalize() + rng.choice([".", ".", "?", "!"]))
        documents.append("\n".join(lines))
    file.write_text("\n\n".join(documents) + "\n", encoding="utf-8")


def strange_texts(lines: list[str]) -> list[str]:
    """Return 2,000 texts: lines with strange ends, and random characters."""
    rng, texts = random.Random(3), []
    for _ in range(1000):
        line = rng.choice(lines)
        texts.append(line + "".join(rng.choices(STRANGE, k=rng.randint(0, 12))))
    for _ in range(1000):
        size = rng.randint(1, 40)
        texts.append("".join(chr(rng.randrange(32, 0x3000)) for _ in range(size)))
    return texts


class Rows:
    """Makes random rows of each kind of task."""

    def __init__(self, words: list[str]) -> None:
        self.rng = random.Random(11)
        self.words = words

    def sentence(self, least: int = 2, most: int = 14) -> str:
        return " ".join(self.rng.choices(self.words, k=self.rng.randint(least, most)))

    def pairs(self, number: int) -> dict[str, Any]:
        return {"first": self.sentence(), "second": self.sentence(), "label": number % 3}

    def score(self, number: int) -> dict[str, Any]:
        row = {"first": self.sentence(), "second": self.sentence()}
        return row | {"label": round(self.rng.random() * 5, 2)}

    def tags(self, number: int) -> dict[str, Any]:
        tokens = self.sentence(2, 20).split()
        labels, was_entity = [], False
        for word in tokens:
            is_entity = len(word) % 3 > 0
            if not is_entity:
                labels.append("O")
            else:
                labels.append("I-X" if was_entity else "B-X")
            was_entity = is_entity
        return {"tokens": tokens, "labels": labels}

    def questions(self, number: int) -> dict[str, Any]:
        context = self.sentence(30, 90)
        words = context.split()
        start = self.rng.randrange(len(words) - 3)
        answer = " ".join(words[start : start + self.rng.randint(1, 3)])
        answers = {"text": [answer], "answer_start": [context.index(answer)]}
        if number % 3 == 0:
            answers = {"text": [], "answer_start": []}
        question = self.sentence(3, 8)
        return {"id": f"q{number}", "question": question, "context": context, "answers": answers}

    def choices(self, number: int) -> dict[str, Any]:
        row: dict[str, Any] = {"start": self.sentence(), "label": number % 3}
        for name in "abc":
            row[name] = self.sentence()
        return row


def write_rows(folder: Path, words: list[str]) -> None:
    """Write a small data set of each kind of task, with the YAML file of its task."""
    folder.mkdir()
    rows = Rows(words)
    for name, head in TASKS.items():
        make_row, files = getattr(rows, name), []
        for split, count in (("train", 48), ("validation", 29), ("test", 17)):
            lines = [json.dumps(make_row(number)) + "\n" for number in range(count)]
            (folder / f"{name}-{split}.jsonl").write_text("".join(lines), encoding="utf-8")
            files.append(f"{split}: {name}-{split}.jsonl")
        task = f"name: {name}\n{head}files: {{{', '.join(files)}}}\n"
        (folder / f"{name}.yaml").write_text(task, encoding="utf-8")
