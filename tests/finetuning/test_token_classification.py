"""Sentences to windows of their document, labels of words to pieces, the loss, predictions back to
words and files.
"""

import json
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
LABEL2ID = {name: number for number, name in enumerate(sorted(TASK.labels))}


@pytest.fixture(scope="module")
def tokenizer(letters_tokenizer):
    return letters_tokenizer


# Windows


def sentences(*texts, document=0):
    return [
        TaggedExample(idx=i, tokens=tuple(text.split()), document=document)
        for i, text in enumerate(texts)
    ]


def random_examples(rng, num_documents, max_sentences, max_words, max_letters):
    examples = []
    for document in range(num_documents):
        for _ in range(rng.integers(1, max_sentences + 1)):
            sizes = rng.integers(1, max_letters + 1, rng.integers(1, max_words + 1))
            tokens = tuple("".join(rng.choice(list(LETTERS), size)) for size in sizes)
            examples.append(TaggedExample(idx=len(examples), tokens=tokens, document=document))
    return examples


def occurrences(windows):
    """(sentence, word) -> the windows that predict it, with the position and the number of its
    pieces.
    """
    found = {}
    for window in windows:
        for sentence, word, *place in zip(
            window.sentences, window.words, window.positions, window.num_pieces, strict=True
        ):
            found.setdefault((int(sentence), int(word)), []).append((window, *place))
    return found


@pytest.mark.parametrize("max_seq_length", [5, 6, 9, 16, 40, 400])
def test_every_word_is_predicted_once_where_its_pieces_stand(tokenizer, max_seq_length):
    rng = np.random.default_rng(max_seq_length)
    for _ in range(20):
        examples = random_examples(rng, 3, 4, 12, 3)
        windows = lay_out_documents(examples, tokenizer, max_seq_length)
        found = occurrences(windows)
        words = {(s, w) for s, example in enumerate(examples) for w in range(len(example.tokens))}
        assert found.keys() == words
        assert all(len(places) == 1 for places in found.values())
        for (sentence, word), [(window, position, count)] in found.items():
            expected = tokenizer.encode_ids(examples[sentence].tokens[word])
            assert window.input_ids[position : position + count] == expected


@pytest.mark.parametrize("max_seq_length", [6, 9, 16, 40])
def test_windows_are_stretches_of_one_document_in_its_order(tokenizer, max_seq_length):
    examples = random_examples(np.random.default_rng(max_seq_length), 5, 6, 10, 4)
    for window in lay_out_documents(examples, tokenizer, max_seq_length):
        first, *inner, last = window.input_ids
        assert (first, last) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
        assert len(window.input_ids) <= max_seq_length
        (document,) = {examples[sentence].document for sentence in window.sentences}
        words = [
            word for example in examples if example.document == document for word in example.tokens
        ]
        whole = [piece for word in words for piece in tokenizer.encode_ids(word)]
        assert any(whole[start : start + len(inner)] == inner for start in range(len(whole)))
        places = list(zip(window.sentences.tolist(), window.words.tolist(), strict=True))
        assert places == sorted(places)


def test_a_document_that_fits_is_one_window(tokenizer):
    examples = sentences("a b", "cd e") + sentences("f g", document=1)
    windows = lay_out_documents(examples, tokenizer, 7)
    texts = [tokenizer.convert_ids_to_tokens(window.input_ids) for window in windows]
    assert texts == [["[CLS]", "a", "b", "c", "##d", "e", "[SEP]"], ["[CLS]", "f", "g", "[SEP]"]]
    assert windows[0].sentences.tolist() == [0, 0, 1, 1]
    assert windows[0].words.tolist() == [0, 1, 0, 1]
    assert windows[0].positions.tolist() == [1, 2, 3, 5]


def test_a_word_belongs_to_the_window_with_the_most_context_on_its_smaller_side():
    """google-research/bert run_squad.py `_check_is_max_context`, said once more word by word."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        max_pieces = int(rng.integers(1, 30))
        lengths = rng.integers(1, max_pieces + 1, rng.integers(1, 80))
        spans = cut_document(lengths, max_pieces)
        owners = window_owners(spans, lengths)
        for word in range(len(lengths)):
            best_score, best_window = None, None
            for number, (start, end) in enumerate(spans):
                if not start <= word < end:
                    continue
                left, right = sum(lengths[start:word]), sum(lengths[word + 1 : end])
                score = min(left, right) + 0.01 * sum(lengths[start:end])
                if best_score is None or score > best_score:
                    best_score, best_window = score, number
            assert owners[word] == best_window


def test_windows_start_half_a_window_apart_and_the_last_one_reaches_back():
    spans = cut_document(np.ones(25, np.int64), 10)
    assert spans == [(0, 10), (5, 15), (10, 20), (15, 25)]
    # 23 words: the last window starts at 13 and not at 15, with eight words only.
    assert cut_document(np.ones(23, np.int64), 10) == [(0, 10), (5, 15), (10, 20), (13, 23)]
    assert cut_document(np.ones(10, np.int64), 10) == [(0, 10)]
    assert cut_document(np.ones(0, np.int64), 10) == []


def test_words_without_pieces_become_unknown_and_are_counted(tokenizer, caplog):
    """BERT's cleaning removes control characters; a word made of them must still get its label."""
    examples = [TaggedExample(idx=0, tokens=("a", "\u200b\u0001", "b", "\u200b\u0001"))]
    with caplog.at_level(logging.INFO):
        [window] = lay_out_documents(examples, tokenizer, 16)
    unknown = tokenizer.unk_token_id
    assert [window.input_ids[position] == unknown for position in window.positions] == [
        False,
        True,
        False,
        True,
    ]
    assert "1 distinct words have no pieces" in caplog.text


def test_a_word_with_more_pieces_than_a_window_keeps_its_first_ones(tokenizer, caplog):
    examples = sentences("a bcdefghij c")
    with caplog.at_level(logging.WARNING):
        windows = lay_out_documents(examples, tokenizer, 6)
    [(window, position, count)] = occurrences(windows)[0, 1]
    assert tokenizer.convert_ids_to_tokens(window.input_ids[position : position + count]) == [
        "b",
        "##c",
        "##d",
        "##e",
    ]
    assert "1 distinct words have more than 4 pieces" in caplog.text


# The kind


@pytest.fixture(scope="module")
def model(tokenizer, tiny_config):
    torch.manual_seed(0)
    config = tiny_config(len(tokenizer), num_labels=len(TASK.labels))
    return BertForTokenClassification(config).eval()


def kind_for(tokenizer, **settings):
    return TokenClassification(
        TASK, tokenizer, TaskArguments(task="conll2003", **settings), LABEL2ID
    )


def example(text, tags, *, idx=0, document=0):
    labels = tuple(TASK.labels.index(tag) for tag in tags.split())
    return TaggedExample(idx=idx, tokens=tuple(text.split()), labels=labels, document=document)


def as_split(examples):
    return Split(name="validation", examples=examples, source="made here", num_rows=len(examples))


def hidden(examples):
    return replace(as_split([replace(each, labels=None) for each in examples]), is_labelled=False)


def random_split(seed):
    rng = np.random.default_rng(seed)
    examples = random_examples(rng, 4, 4, 11, 3)
    return as_split(
        [
            replace(each, labels=tuple(rng.integers(0, len(TASK.labels), len(each.tokens))))
            for each in examples
        ]
    )


def names(labels):
    back = {number: name for name, number in LABEL2ID.items()}
    return [back.get(label, "-") for label in labels]


SENTENCE = example("abc d efg hi", "B-PER I-PER O B-LOC")


def test_the_first_piece_of_a_word_bears_its_label(tokenizer):
    """BERT, Devlin et al. 2019, section 5.3: "the representation of the first sub-token"."""
    encoded = kind_for(tokenizer).encode(as_split([SENTENCE]), for_training=True)
    assert names(encoded[0]["labels"]) == [
        "-",
        "B-PER",
        "-",
        "-",
        "I-PER",
        "O",
        "-",
        "-",
        "B-LOC",
        "-",
        "-",
    ]


def test_with_label_all_pieces_a_word_that_begins_an_entity_goes_on_inside(tokenizer):
    """A label without a form for the inside is repeated."""
    task = replace(TASK, labels=("O", "B-PER", "NOUN", "B-LOC", "I-LOC"))
    label2id = {name: number for number, name in enumerate(task.labels)}
    kind = TokenClassification(
        task, tokenizer, TaskArguments(task="conll2003", label_all_pieces=True), label2id
    )
    sentence = TaggedExample(idx=0, tokens=("ab", "cd", "efg", "hi"), labels=(1, 2, 3, 4))
    assert kind.encode(as_split([sentence]))[0]["labels"] == [-100, 1, 1, 2, 2, 3, 4, 4, 4, 4, -100]


def test_an_input_is_a_sentence_or_a_document_as_the_context_says(
    tokenizer,
):
    split = random_split(6)
    sentences = kind_for(tokenizer, context="sentence").encode(split)
    assert [window.sentences[0] for window in sentences.details] == list(range(len(split.examples)))
    assert [len(window.words) for window in sentences.details] == [
        len(each.tokens) for each in split.examples
    ]
    documents = kind_for(tokenizer, context="document", max_seq_length=512).encode(split)
    assert len(documents) == len({each.document for each in split.examples})


def test_features_of_sentences_are_those_of_the_stock_example(shared_data):
    """transformers examples/pytorch/token-classification/run_ner.py,
    `tokenize_and_align_labels`.
    """
    split = load_split(TASK, "validation", data_dir=str(shared_data), max_examples=300)
    vocabulary = shared_data / "vocab" / "bert-base-cased-vocab.txt"
    kind = kind_for(load_tokenizer(vocabulary, do_lower_case=False), context="sentence")
    stock = BertTokenizer(vocab=str(vocabulary), do_lower_case=False)
    for each, feature in zip(split.examples, kind.encode(split), strict=True):
        expected = stock([*each.tokens], is_split_into_words=True)
        words = expected.word_ids()
        firsts = [word is not None and word != before for before, word in pairwise([None, *words])]
        labels = [
            LABEL2ID[TASK.labels[each.labels[word]]] if first else -100
            for word, first in zip(words, firsts, strict=True)
        ]
        assert feature["input_ids"] == expected["input_ids"]
        assert feature["labels"] == labels


def test_loss_is_that_of_the_stock_head(tokenizer, model):
    kind = kind_for(tokenizer, max_seq_length=16)
    encoded = kind.encode(random_split(0), for_training=True)
    batch = kind.collate(list(encoded))
    with torch.no_grad():
        stock = model(**batch)
        inputs = {key: value for key, value in batch.items() if key not in kind.label_keys}
        output = model(**inputs)
    ours = kind.loss_sum(output, batch) / kind.count_items(batch)
    assert ours.item() == pytest.approx(stock.loss.item(), rel=1e-6)


def perfect_outputs(encoded, wanted, num_classes, rng):
    """Logits that are largest for the wanted label at first pieces, and random everywhere else."""
    outputs = []
    for feature, window in zip(encoded, encoded.details, strict=True):
        logits = rng.normal(size=(len(feature["input_ids"]), num_classes)).astype(np.float32)
        for sentence, word, position in zip(
            window.sentences, window.words, window.positions, strict=True
        ):
            logits[position] = 0.0
            logits[position, LABEL2ID[wanted[sentence][word]]] = 2.0
        outputs.append(logits)
    return outputs


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("max_seq_length", [8, 16, 64])
def test_each_word_is_decoded_at_its_place_from_the_window_that_it_belongs_to(
    tokenizer, max_seq_length, context
):
    rng = np.random.default_rng(2)
    split = random_split(3)
    kind = kind_for(tokenizer, max_seq_length=max_seq_length, context=context)
    encoded = kind.encode(split)
    # Every word is trained on once, too.
    labels = sorted(label for feature in encoded for label in feature["labels"] if label != -100)
    assert labels == sorted(
        LABEL2ID[TASK.labels[label]] for each in split.examples for label in each.labels
    )
    wanted = [[str(rng.choice(TASK.labels)) for _ in each.tokens] for each in split.examples]
    predictions = kind.decode(encoded, perfect_outputs(encoded, wanted, len(TASK.labels), rng))
    assert [prediction.value for prediction in predictions] == wanted
    assert [prediction.idx for prediction in predictions] == [each.idx for each in split.examples]
    share = np.exp(2.0) / (np.exp(2.0) + len(TASK.labels) - 1)
    for prediction in predictions:
        assert prediction.probabilities == pytest.approx([share] * len(prediction.value))


def test_score_is_the_entity_score_and_other_metrics_count_words(tokenizer):
    split = random_split(5)
    kind = TokenClassification(
        replace(TASK, metrics=("entities", "f1_macro")),
        tokenizer,
        TaskArguments(task="conll2003"),
        LABEL2ID,
    )
    gold = [[TASK.labels[label] for label in each.labels] for each in split.examples]
    wanted = [["O", *tags[1:]] for tags in gold]
    predictions = [
        Prediction(each.idx, tags) for each, tags in zip(split.examples, wanted, strict=True)
    ]
    figures = kind.score(split.examples, predictions)
    expected = entity_scores(gold, wanted)
    assert 0 < expected["f1"] < 1
    assert {name: figures[name] for name in expected} == expected
    assert 0 < figures["f1_macro"] < 1


def test_columns_hold_every_word_gold_label_and_prediction(tokenizer, tmp_path):
    examples = [
        example("abc d", "B-PER O", idx=0, document=0),
        example("e", "O", idx=1, document=0),
        example("f", "B-LOC", idx=2, document=1),
    ]
    wanted = [["B-PER", "O"], ["I-ORG"], ["B-LOC"]]
    predictions = [
        Prediction(number, tags, [0.5] * len(tags)) for number, tags in enumerate(wanted)
    ]
    files = kind_for(tokenizer).write(tmp_path, "validation", examples, predictions)
    assert [file.name for file in files] == [
        "predictions_validation.jsonl",
        "predictions_validation.txt",
    ]
    assert files[1].read_text(encoding="utf-8") == (
        "-DOCSTART- O O\n\nabc B-PER B-PER\nd O O\n\ne O I-ORG\n\n-DOCSTART- O O\n\nf B-LOC "
        "B-LOC\n\n"
    )
    lines = [json.loads(line) for line in files[0].read_text(encoding="utf-8").splitlines()]
    assert [line["prediction"] for line in lines] == wanted
    assert [line["idx"] for line in lines] == [0, 1, 2]
    assert [len(line["probabilities"]) for line in lines] == [2, 1, 1]


def test_columns_without_gold_labels_and_documents_have_two_columns(tokenizer, tmp_path):
    examples = [
        TaggedExample(idx=0, tokens=("a\u00a0b", "c"), document=0),
        TaggedExample(idx=1, tokens=("d",), document=1),
    ]
    kind = kind_for(tokenizer)
    encoded = kind.encode(hidden(examples))
    assert set(kind.collate(list(encoded))) == {"input_ids", "token_type_ids", "attention_mask"}
    predictions = [Prediction(0, ["O", "B-PER"]), Prediction(1, ["O"])]
    _, columns = kind.write(tmp_path, "test", examples, predictions)
    assert columns.read_text(encoding="utf-8") == "a_b O\nc B-PER\n\nd O\n\n"
