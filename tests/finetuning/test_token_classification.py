"""Windows of documents, labels of pieces, the loss, predictions back to words and files."""

import logging
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import BertForTokenClassification, BertTokenizer

from bert_recipes.finetuning.arguments import CONTEXTS, TaskArguments
from bert_recipes.finetuning.kind import Prediction
from bert_recipes.finetuning.token_classification import (
    TokenClassification,
    cut_document,
    lay_out_documents,
    window_owners,
)
from bert_recipes.metrics.entities import entity_scores
from bert_recipes.tasks.catalogue import get_task
from bert_recipes.tasks.examples import Split, TaggedExample
from bert_recipes.tasks.sources import load_split
from bert_recipes.tokenization.loading import load_tokenizer


LETTERS = "abcdefghij"
TASK = get_task("conll2003")
# The model's order is not the task's.
CLASSES = sorted(TASK.labels)
LABEL2ID = {name: number for number, name in enumerate(CLASSES)}


@pytest.fixture(scope="module")
def tokenizer(letters_tokenizer):
    return letters_tokenizer


def example(text, tags=None, *, idx=0, document=0):
    labels = None if tags is None else tuple(TASK.labels.index(tag) for tag in tags.split())
    return TaggedExample(idx=idx, tokens=tuple(text.split()), labels=labels, document=document)


def random_split(rng, num_documents=4, max_sentences=4, max_words=11, max_letters=3):
    examples = []
    for document in range(num_documents):
        for _ in range(rng.integers(1, max_sentences + 1)):
            sizes = rng.integers(1, max_letters + 1, rng.integers(1, max_words + 1))
            text = " ".join("".join(rng.choice(list(LETTERS), size)) for size in sizes)
            tags = " ".join(rng.choice(TASK.labels, len(sizes)))
            examples.append(example(text, tags, idx=len(examples), document=document))
    return as_split(examples)


def as_split(examples):
    return Split(name="validation", examples=examples, source="made here", num_rows=len(examples))


# Windows


@pytest.mark.parametrize("max_seq_length", [5, 6, 9, 40, 400])
def test_windows_are_stretches_of_a_document_that_predict_each_word_once(tokenizer, max_seq_length):
    rng = np.random.default_rng(max_seq_length)
    examples = random_split(rng, num_documents=20, max_words=12).examples
    predicted = []
    for window in lay_out_documents(examples, tokenizer, max_seq_length):
        first, *inner, last = window.input_ids
        assert (first, last) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
        assert len(window.input_ids) <= max_seq_length
        (document,) = {examples[sentence].document for sentence in window.sentences}
        text = [" ".join(row.tokens) for row in examples if row.document == document]
        pieces = tokenizer.encode_ids(" ".join(text))
        assert any(pieces[start : start + len(inner)] == inner for start in range(len(pieces)))
        places = zip(window.sentences.tolist(), window.words.tolist(), strict=True)
        spans = zip(window.positions, window.num_pieces, strict=True)
        for (sentence, word), (position, num_pieces) in zip(places, spans, strict=True):
            ids = window.input_ids[position : position + num_pieces]
            assert ids == tokenizer.encode_ids(examples[sentence].tokens[word])
            predicted.append((sentence, word))
    words = [(s, word) for s, row in enumerate(examples) for word in range(len(row.tokens))]
    assert sorted(predicted) == words


def test_a_word_belongs_to_the_window_with_the_most_context_on_its_smaller_side():
    """google-research/bert run_squad.py `_check_is_max_context`, said once more word by word."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        max_pieces = int(rng.integers(1, 30))
        lengths = rng.integers(1, max_pieces + 1, rng.integers(1, 80))
        spans = cut_document(lengths, max_pieces)
        owners = window_owners(spans, lengths)
        for word in range(len(lengths)):
            scores = {}
            for number, (start, end) in enumerate(spans):
                if start <= word < end:
                    context = min(sum(lengths[start:word]), sum(lengths[word + 1 : end]))
                    scores[number] = context + 0.01 * sum(lengths[start:end])
            assert owners[word] == max(scores, key=scores.get)  # of equal ones the first


@pytest.mark.parametrize(
    ("num_words", "spans"),
    [
        (25, [(0, 10), (5, 15), (10, 20), (15, 25)]),
        # The last window starts at 13 and not at 15, with eight words only.
        (23, [(0, 10), (5, 15), (10, 20), (13, 23)]),
        (10, [(0, 10)]),
        (0, []),
    ],
)
def test_windows_start_half_a_window_apart_and_the_last_one_reaches_back(num_words, spans):
    assert cut_document(np.ones(num_words, np.int64), 10) == spans


def test_words_without_pieces_become_unknown_and_long_ones_keep_their_first(tokenizer, caplog):
    """BERT's cleaning removes control characters; a word made of them must still get its label."""
    caplog.set_level(logging.INFO)
    [window] = lay_out_documents([example("a \u200b\u0001 b")], tokenizer, 8)
    assert tokenizer.convert_ids_to_tokens(window.input_ids[2:4]) == ["[UNK]", "b"]
    windows = lay_out_documents([example("a bcdefghij c")], tokenizer, 6)
    pieces = [tokenizer.convert_ids_to_tokens(window.input_ids) for window in windows]
    assert ["[CLS]", "b", "##c", "##d", "##e", "[SEP]"] in pieces
    assert "1 distinct words have no pieces" in caplog.text
    assert "1 distinct words have more than 4 pieces" in caplog.text


# The kind


def kind_for(tokenizer, task=TASK, label2id=None, **settings):
    arguments = TaskArguments(task="conll2003", **settings)
    return TokenClassification(task, tokenizer, arguments, label2id or LABEL2ID)


def test_the_first_piece_of_a_word_bears_its_label(tokenizer):
    """BERT, Devlin et al. 2019, section 5.3: "the representation of the first sub-token"."""
    sentence = example("abc d efg hi", "B-PER I-PER O B-LOC")
    [feature] = kind_for(tokenizer).encode(as_split([sentence]), for_training=True)
    labels = ["-" if label == -100 else CLASSES[label] for label in feature["labels"]]
    assert " ".join(labels) == "- B-PER - - I-PER O - - B-LOC - -"


def test_with_label_all_pieces_a_word_that_begins_an_entity_goes_on_inside(tokenizer):
    """A label without a form for the inside is repeated."""
    task = replace(TASK, labels=("O", "B-PER", "NOUN", "B-LOC", "I-LOC"))
    label2id = {name: number for number, name in enumerate(task.labels)}
    kind = kind_for(tokenizer, task, label2id, label_all_pieces=True)
    sentence = TaggedExample(idx=0, tokens=("ab", "cd", "efg", "hi"), labels=(1, 2, 3, 4))
    [feature] = kind.encode(as_split([sentence]))
    assert feature["labels"] == [-100, 1, 1, 2, 2, 3, 4, 4, 4, 4, -100]


def test_an_input_is_a_sentence_or_a_document_as_the_context_says(tokenizer):
    split = random_split(np.random.default_rng(6))
    sentences = kind_for(tokenizer, context="sentence").encode(split)
    num_words = [len(window.words) for window in sentences.details]
    assert num_words == [len(row.tokens) for row in split.examples]
    documents = kind_for(tokenizer, context="document", max_seq_length=512).encode(split)
    assert len(documents) == len({row.document for row in split.examples})


def test_features_of_sentences_are_those_of_the_stock_example(shared_data):
    """transformers pytorch/token-classification/run_ner.py, `tokenize_and_align_labels`."""
    split = load_split(TASK, "validation", data_dir=str(shared_data), max_examples=300)
    vocabulary = shared_data / "vocab" / "bert-base-cased-vocab.txt"
    kind = kind_for(load_tokenizer(vocabulary, do_lower_case=False), context="sentence")
    stock = BertTokenizer(vocab=str(vocabulary), do_lower_case=False)
    for row, feature in zip(split.examples, kind.encode(split), strict=True):
        expected = stock([*row.tokens], is_split_into_words=True)
        labels = []
        for before, word in pairwise([None, *expected.word_ids()]):
            is_first = word is not None and word != before
            labels.append(LABEL2ID[TASK.labels[row.labels[word]]] if is_first else -100)
        assert feature["input_ids"] == expected["input_ids"]
        assert feature["labels"] == labels


def test_loss_is_that_of_the_stock_head(tokenizer, tiny_config):
    torch.manual_seed(0)
    config = tiny_config(len(tokenizer), num_labels=len(TASK.labels))
    model = BertForTokenClassification(config).eval()
    kind = kind_for(tokenizer, max_seq_length=16)
    batch = kind.collate(list(kind.encode(random_split(np.random.default_rng(0)))))
    with torch.no_grad():
        output = model(**batch)
    loss = kind.loss_sum(output, batch) / kind.count_items(batch)
    assert loss.item() == pytest.approx(output.loss.item(), rel=1e-6)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("max_seq_length", [8, 64])
def test_each_word_is_decoded_at_its_place_from_the_window_that_it_belongs_to(
    tokenizer, max_seq_length, context
):
    rng = np.random.default_rng(2)
    split = random_split(rng)
    kind = kind_for(tokenizer, max_seq_length=max_seq_length, context=context)
    encoded = kind.encode(split)
    # Logits are largest for the expected tag at first pieces, and random everywhere else.
    tags = [rng.choice(TASK.labels, len(row.tokens)).tolist() for row in split.examples]
    outputs = []
    for feature, window in zip(encoded, encoded.details, strict=True):
        logits = rng.normal(size=(len(feature["input_ids"]), len(CLASSES))).astype(np.float32)
        for sentence, word, position in zip(
            window.sentences, window.words, window.positions, strict=True
        ):
            logits[position] = 0.0
            logits[position, LABEL2ID[tags[sentence][word]]] = 2.0
        outputs.append(logits)
    predictions = kind.decode(encoded, outputs)
    assert [prediction.value for prediction in predictions] == tags
    assert [prediction.idx for prediction in predictions] == [row.idx for row in split.examples]
    share = np.exp(2.0) / (np.exp(2.0) + len(TASK.labels) - 1)
    for prediction in predictions:
        assert prediction.probabilities == pytest.approx([share] * len(prediction.value))


def test_score_is_the_entity_score_and_other_metrics_count_words(tokenizer):
    examples = random_split(np.random.default_rng(5)).examples
    kind = kind_for(tokenizer, replace(TASK, metrics=("entities", "f1_macro")))
    gold = [[TASK.labels[label] for label in row.labels] for row in examples]
    tags = [["O", *tags_of_row[1:]] for tags_of_row in gold]
    predictions = [Prediction(number, value) for number, value in enumerate(tags)]
    figures = kind.score(examples, predictions)
    expected = entity_scores(gold, tags)
    assert 0 < expected["f1"] < 1
    assert {name: figures[name] for name in expected} == expected
    assert 0 < figures["f1_macro"] < 1


def test_columns_hold_every_word_gold_label_and_prediction(tokenizer, tmp_path):
    examples = [
        example("abc d", "B-PER O", idx=0, document=0),
        example("e", "O", idx=1, document=0),
        example("f", "B-LOC", idx=2, document=1),
    ]
    tags = [["B-PER", "O"], ["I-ORG"], ["B-LOC"]]
    predictions = [Prediction(number, value, [0.5]) for number, value in enumerate(tags)]
    lines, columns = kind_for(tokenizer).write(tmp_path, "validation", examples, predictions)
    assert lines.name == "predictions_validation.jsonl"
    assert columns.name == "predictions_validation.txt"
    assert columns.read_text(encoding="utf-8") == (
        "-DOCSTART- O O\n\nabc B-PER B-PER\nd O O\n\ne O I-ORG\n\n"
        "-DOCSTART- O O\n\nf B-LOC B-LOC\n\n"
    )


def test_columns_without_gold_labels_and_documents_have_two_columns(tokenizer, tmp_path):
    first = TaggedExample(idx=0, tokens=("a\u00a0b", "c"), document=0)
    examples = [first, example("d", idx=1, document=1)]
    kind = kind_for(tokenizer)
    encoded = kind.encode(replace(as_split(examples), is_labelled=False))
    assert set(kind.collate(list(encoded))) == {"input_ids", "token_type_ids", "attention_mask"}
    predictions = [Prediction(0, ["O", "B-PER"]), Prediction(1, ["O"])]
    _, columns = kind.write(tmp_path, "test", examples, predictions)
    assert columns.read_text(encoding="utf-8") == "a_b O\nc B-PER\n\nd O\n\n"
    predictions = [Prediction(0, ["O", "B-Job Title"]), Prediction(1, ["O"])]
    _, columns = kind.write(tmp_path, "test", examples, predictions)
    assert columns.read_text(encoding="utf-8") == "a_b O\nc B-Job_Title\n\nd O\n\n"
