"""How to use a model, in a few lines that run as they stand."""

from __future__ import annotations

import json

from bert_recipes.inspection import knows_words
from bert_recipes.model_card.facts import REPORT, TASK, VOCABULARY, RunFiles
from bert_recipes.model_card.layout import Lines, block_of_code, section
from bert_recipes.tokenization import load_tokenizer


# Sentences for the example of an English model, where the tokenizer knows their words.
_SENTENCES = {
    "masked": ("He opened the [MASK] and went into the room.", "Return the [MASK] of the list."),
    "first": ("The weather is fine today.", "Return the number of items in the list."),
    "second": ("It has not rained for a week.", "If the list is empty, zero is returned."),
}
_WORDS, _HELD_OUT_WORDS = 4, 12


def pipeline_of(files: RunFiles) -> str:
    """The Hub's word for what the model does."""
    kind = files.value(TASK, "kind")
    names = {"sequence_classification": "text-classification"}
    return "fill-mask" if kind is None else names.get(kind, kind.replace("_", "-"))


def usage_section(files: RunFiles) -> Lines:
    """The example, which loads the model from the Hub where its name there is known, and else from the folder at hand."""
    repo = files.repository and files.fact("repository", *files.repository)
    place = json.dumps(str(repo) if repo else ".")
    lines = _EXAMPLES.get(pipeline_of(files), _classification)(files, place)
    where = [] if repo else ['`"."` is this folder.']
    return section("How to use it", block_of_code("python", *lines), where)


def _example(files: RunFiles, kind: str) -> str:
    """A text as a Python string: English where that is the model's, else held out, else words of the tokenizer."""
    tokenizer = load_tokenizer(files.folder)
    for text in _SENTENCES[kind] if files.is_english else ():
        if knows_words(tokenizer, text):
            return json.dumps(text)

    def masked(text: str) -> str:
        words = text.split()[:_HELD_OUT_WORDS]
        words[max(range(len(words)), key=lambda place: len(words[place]))] = str(tokenizer.mask_token)
        return json.dumps(" ".join(words), ensure_ascii=False)

    places = [(REPORT, f"held_out/verdicts/0/{name}") for name in ("second", "first")] if kind == "masked" else []
    for place in places:
        if len(str(files.value(*place) or "").split()) > 1:
            return masked(str(files.value(*place)))
    words = [piece for piece in tokenizer.get_vocab() if piece.isalpha() and piece not in tokenizer.all_special_tokens]
    words = sorted(words, key=lambda word: (len(word) < 2, tokenizer.get_vocab()[word]))[:_WORDS]
    if kind == "masked":
        words = [*words[:1], str(tokenizer.mask_token), *words[1:]]
    made = files.derived(
        "words of the example", [(VOCABULARY, "sha256")], lambda _: json.dumps(" ".join(words), ensure_ascii=False)
    )
    return str(made) if made else json.dumps(" ".join(words), ensure_ascii=False)


def _fill_mask(files: RunFiles, place: str) -> Lines:
    return [
        "from transformers import pipeline",
        "",
        f'fill_mask = pipeline("fill-mask", model={place})',
        f"print(fill_mask({_example(files, 'masked')}))",
    ]


def _classification(files: RunFiles, place: str) -> Lines:
    columns = files.value(TASK, "text_columns") or []
    text = _example(files, "first")
    if isinstance(columns, list) and len(columns) > 1:
        text = f'{{"text": {text}, "text_pair": {_example(files, "second")}}}'
    return [
        "from transformers import pipeline",
        "",
        f'classify = pipeline("text-classification", model={place}, top_k=None)',
        f"print(classify({text}))",
    ]


def _tags(files: RunFiles, place: str) -> Lines:
    return [
        "from transformers import pipeline",
        "",
        f'tag = pipeline("token-classification", model={place}, aggregation_strategy="simple")',
        f"print(tag({_example(files, 'first')}))",
    ]


def _answers(files: RunFiles, place: str) -> Lines:
    # Newer versions of transformers have no pipeline for it.
    return [
        "from transformers import AutoModelForQuestionAnswering, AutoTokenizer",
        "",
        f"tokenizer, model = (kind.from_pretrained({place}) for kind in (AutoTokenizer, AutoModelForQuestionAnswering))",
        f'inputs = tokenizer({_example(files, "second")}, {_example(files, "first")}, return_tensors="pt")  # question, text',
        "output = model(**inputs)",
        'print(tokenizer.decode(inputs["input_ids"][0, output.start_logits.argmax() : output.end_logits.argmax() + 1]))',
    ]


def _choices(files: RunFiles, place: str) -> Lines:
    first, second = _example(files, "first"), _example(files, "second")
    return [
        "from transformers import AutoModelForMultipleChoice, AutoTokenizer",
        "",
        f"tokenizer, model = (kind.from_pretrained({place}) for kind in (AutoTokenizer, AutoModelForMultipleChoice))",
        f"choices = [{second}, {first}]",
        f'inputs = tokenizer([{first}] * len(choices), choices, padding=True, return_tensors="pt")',
        "print(model(**{name: value[None] for name, value in inputs.items()}).logits.softmax(-1))",
    ]


_EXAMPLES = {
    "fill-mask": _fill_mask,
    "token-classification": _tags,
    "question-answering": _answers,
    "multiple-choice": _choices,
}
