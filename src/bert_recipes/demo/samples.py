"""The texts that the page's fields hold when it is opened: those of the run, or made-up ones."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_recipes.demo.model import FILL_MASK, NEXT_SENTENCE, DemoModel
from bert_recipes.models.inspection import knows_words
from bert_recipes.run_folder import FACTS_FILE


ATTENTION = "attention"
PIECES = "pieces"
# A tab has at most as many text fields.
NUM_TEXTS = 3
# Tab -> its texts. English and made up: for checkpoints that are not from a run of ours.
MADE_UP: dict[str, list[str]] = {
    FILL_MASK: ["The function returns a [MASK] of all [MASK] in the file."],
    NEXT_SENTENCE: [
        "The function opens a file and reads it.",
        "It returns the first line of the file.",
    ],
    "sequence_classification": [
        "The film is a quiet triumph and its actors are good.",
        "The actors of the film are very good.",
    ],
    "token_classification": ["Angela Merkel visited the offices of Siemens in Munich on Monday."],
    "question_answering": [
        "Who wrote the book?",
        "The book was written by Jane Austen and first published in London in 1813. It was read "
        "by many people.",
    ],
    "multiple_choice": [
        "She opens the door of the car and looks inside.",
        "She",
        "takes her bag from the seat.\nreads the whole book in the sea.\nis eaten by the car.",
    ],
    ATTENTION: ["The value of the key is returned if it is in the list."],
    PIECES: [
        "Unbelievable: the tokenizer's vocabulary holds pieces of words, na\u00efve ones too!"
    ],
}


def list_examples(model: DemoModel) -> dict[str, list[str]]:
    """Return `NUM_TEXTS` texts of every tab; the last ones may be empty.

    None is made up where the vocabulary is of another language.
    """
    run_examples = read_run_examples(Path(model.name))
    examples = {}
    for tab, made_up in MADE_UP.items():
        texts = run_examples.get(tab)
        if texts is None:
            texts = [text if knows_words(model.tokenizer, text) else "" for text in made_up]
        num_missing = NUM_TEXTS - len(texts)
        examples[tab] = texts + [""] * num_missing
    return examples


def read_run_examples(folder: Path) -> dict[str, list[str]]:
    """Return the texts of tabs out of a run's report.json; empty where it has none."""
    path = folder / FACTS_FILE
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        if facts["kind"] == "finetuning":
            return _texts_of_task(facts)
        return _texts_of_pairs(facts["held_out"])
    except (OSError, ValueError, LookupError, TypeError):
        # No run of ours, a run without held-out text, or a file that somebody has changed: the page
        # works without.
        return {}


def _texts_of_task(facts: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the first validation example."""
    kind = facts["example"]["kind"]
    texts = facts["example"]["texts"]
    first = texts[0]
    if kind == "multiple_choice":
        # The example's choices hold the text of a second column already, which the page has a field
        # for.
        texts = [first, "", "\n".join(texts[1:])]
    return {
        kind: texts,
        ATTENTION: [first],
        PIECES: [first],
    }


def _texts_of_pairs(held_out: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return a text with a [MASK], and two that follow each other."""
    texts: dict[str, list[str]] = {}
    # A word is a better example than the middle of one.
    masks = sorted(held_out["masks"], key=lambda mask: mask["truth"].startswith("##"))
    if masks:
        mask = masks[0]
        # Reports of earlier versions have dots where a text is cut.
        before = mask["before"].removeprefix("... ")
        after = mask["after"].removesuffix(" ...")
        filled = f"{before} {mask['truth'].removeprefix('##')} {after}".strip()
        texts[FILL_MASK] = [f"{before} [MASK] {after}".strip()]
        texts[ATTENTION] = [filled]
        texts[PIECES] = [filled]
    for verdict in held_out["verdicts"]:
        if verdict["truth"]:
            texts[NEXT_SENTENCE] = [verdict["first"], verdict["second"]]
            break
    return texts
