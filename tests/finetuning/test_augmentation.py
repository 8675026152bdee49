"""Algorithm 1 of TinyBERT, against one call of stock's masked-LM for each word."""

import itertools
import json

import pytest
import torch
import transformers

from bert_recipes.finetuning.augmentation import Augmenter, as_line
from bert_recipes.models.checkpoints import open_checkpoint
from bert_recipes.tasks.catalogue import get_task
from bert_recipes.tasks.examples import TextExample
from bert_recipes.tasks.sources import load_split
from bert_recipes.tasks.task_file import read_task_file
from bert_recipes.tokenization.loading import load_tokenizer


TEXTS = ["b cd of xyz 12 !", "the d, e: f", "Q", "of the 7", "g h " * 30]


@pytest.fixture(scope="module")
def make(tiny_checkpoint):
    model, _ = open_checkpoint(str(tiny_checkpoint), cached_only=True)
    for weight in model.bert.parameters():
        if weight.ndim > 1:
            weight.data *= 8  # with weights as small as new ones all inputs get the same answer
    tokenizer = load_tokenizer(tiny_checkpoint)
    return lambda **rules: Augmenter(model=model.eval(), tokenizer=tokenizer, **rules)


def copies_of(augmenter, texts):
    """Text -> itself and its copies."""
    rows = {}
    examples = [TextExample(idx=text, text=text, label=1) for text in texts]
    for row in augmenter.augment(examples):
        rows.setdefault(row.idx, []).append(row.text)
    return rows


@torch.no_grad()
def expected_words(augmenter, words, place):
    """data_augmentation.py, `_word_augment` and `_masked_language_model`."""
    tokenizer = augmenter.tokenizer
    stock = transformers.BertForMaskedLM(augmenter.model.config).eval()
    stock.load_state_dict(augmenter.model.state_dict(), strict=False)
    stock.tie_weights()
    pieces = [tokenizer.tokenize(word) for word in words]
    second = [*itertools.chain(*pieces), "[SEP]"]
    pieces[place] = ["[MASK]"]
    first = ["[CLS]", *itertools.chain(*pieces), "[SEP]"]
    ids = torch.tensor([tokenizer.convert_tokens_to_ids(first + second)])
    types = torch.tensor([[0] * len(first) + [1] * len(second)])
    logits = stock(input_ids=ids, token_type_ids=types).logits[0, first.index("[MASK]")]
    best = tokenizer.convert_ids_to_tokens(logits.argsort(descending=True)[:15].tolist())
    return {piece for piece in best if not piece.startswith(("##", "["))}


def test_words_come_from_the_best_of_a_masked_lm_that_also_reads_the_text(make):
    """Stop words and what has no letters stay; words of several pieces become one [MASK]."""
    augmenter = make(num_copies=300, replace_probability=1.0)
    words = ["b", "cd", "of", "xyz", "12", "!"]
    copies = [copy.split() for copy in copies_of(augmenter, TEXTS)[TEXTS[0]][1:]]
    for place, word in enumerate(words):
        expected = {word}
        if word in ("b", "cd", "xyz"):
            expected = expected_words(augmenter, words, place)
        assert {copy[place] for copy in copies} == expected


def test_words_are_replaced_with_their_probability_and_nothing_comes_twice(make):
    rows = copies_of(make(num_copies=400), TEXTS)
    original, *copies = rows[TEXTS[4]]
    assert original == TEXTS[4]
    words = TEXTS[4].split()
    num_changed = 0
    for copy in copies:
        pairs = zip(copy.split(), words, strict=True)
        num_changed += sum(new != word for new, word in pairs)
    # A word may also be drawn in its own place.
    assert 0.3 < num_changed / len(copies) / len(words) <= 0.41
    assert len(set(copies)) == len(copies)
    assert rows[TEXTS[3]] == [TEXTS[3]]


def test_the_copies_of_a_row_follow_from_the_row_and_the_seed(make):
    rows = copies_of(make(batch_size=3), TEXTS)
    assert copies_of(make(), TEXTS[1:2])[TEXTS[1]] == rows[TEXTS[1]]
    assert copies_of(make(seed=1), TEXTS)[TEXTS[0]] != rows[TEXTS[0]]


def test_a_copy_of_one_text_of_a_pair_stands_beside_the_other_as_it_was(make):
    """data_augmentation.py's second texts stand beside the last copy of the first."""
    pair = TextExample(idx=0, text=TEXTS[0], text_pair=TEXTS[1], label=1)
    first, *rows = make().augment([pair])
    assert first == pair
    copies = copies_of(make(), TEXTS[:2])
    expected = [(text, TEXTS[1]) for text in copies[TEXTS[0]][1:]]
    expected += [(TEXTS[0], text) for text in copies[TEXTS[1]][1:]]
    assert [(row.text, row.text_pair) for row in rows] == expected


@pytest.mark.parametrize(
    ("task", "label", "expected"),
    [("mrpc", 1, {"label": "equivalent"}), ("stsb", 2.5, {"label": 2.5}), ("mrpc", None, {})],
)
def test_rows_are_written_as_their_task_reads_them(task, label, expected):
    line = as_line(get_task(task), TextExample(idx=7, text="a", text_pair="b", label=label))
    assert json.loads(line) == {"sentence1": "a", "sentence2": "b", "idx": 7} | expected


MULTI = "problem_type: multi_label_classification\n"


@pytest.mark.parametrize(
    ("keys", "rows"),
    [
        ("labels: {1: 0, 2: 1}\n", [{"label": 2}, {"label": 1}]),
        (f"{MULTI}label_columns: [wet, cold]\n", [{"wet": 0, "cold": 1}, {"wet": 0, "cold": 0}]),
        (f"{MULTI}labels: [wet, cold]\n", [{"label": ["cold"]}, {"label": []}]),
    ],
)
def test_written_rows_mean_what_the_task_read(tmp_path, keys, rows):
    keys = f"kind: sequence_classification\ntext_columns: text\nfiles: {{train: a.jsonl}}\n{keys}"
    (tmp_path / "own.yaml").write_text(keys)
    lines = [json.dumps({"text": "a"} | row) for row in rows]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    task = read_task_file(tmp_path / "own.yaml")
    examples = load_split(task, "train", data_dir=None).examples
    (tmp_path / "a.jsonl").write_text("".join(as_line(task, example) for example in examples))
    assert load_split(task, "train", data_dir=None).examples == examples
