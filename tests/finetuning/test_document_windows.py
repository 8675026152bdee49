"""Every word once, with as much of its document around it as fits."""

import logging
from itertools import groupby, pairwise

import numpy as np
import pytest

from bert_recipes.finetuning.document_windows import cut_document, lay_out_documents, window_owners
from bert_recipes.tasks.examples import TaggedExample
from bert_recipes.tasks.loading import load_split
from bert_recipes.tasks.registry import get_task
from bert_recipes.tokenization import load_tokenizer


LETTERS = "abcdefghij"


@pytest.fixture(scope="module")
def tokenizer(letters_tokenizer):
    return letters_tokenizer


def sentences(*texts, document=0):
    return [TaggedExample(idx=i, tokens=tuple(text.split()), document=document) for i, text in enumerate(texts)]


def random_examples(rng, num_documents, max_sentences, max_words, max_letters):
    examples = []
    for document in range(num_documents):
        for _ in range(rng.integers(1, max_sentences + 1)):
            sizes = rng.integers(1, max_letters + 1, rng.integers(1, max_words + 1))
            tokens = tuple("".join(rng.choice(list(LETTERS), size)) for size in sizes)
            examples.append(TaggedExample(idx=len(examples), tokens=tokens, document=document))
    return examples


def pieces(tokenizer, examples):
    return [[tokenizer.encode_ids(word) for word in example.tokens] for example in examples]


def occurrences(windows):
    """(sentence, word) -> the windows that predict it."""
    found = {}
    for window in windows:
        for sentence, word, position, count in zip(
            window.sentences.tolist(),
            window.words.tolist(),
            window.positions.tolist(),
            window.num_pieces.tolist(),
            strict=True,
        ):
            found.setdefault((sentence, word), []).append((window, position, count))
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
    rng = np.random.default_rng(max_seq_length)
    examples = random_examples(rng, 5, 6, 10, 4)
    windows = lay_out_documents(examples, tokenizer, max_seq_length)
    for window in windows:
        assert window.input_ids[0] == tokenizer.cls_token_id
        assert window.input_ids[-1] == tokenizer.sep_token_id
        assert len(window.input_ids) <= max_seq_length
        document = {examples[sentence].document for sentence in window.sentences}
        assert len(document) == 1
        whole = [
            piece
            for example in examples
            if example.document in document
            for word in pieces(tokenizer, [example])[0]
            for piece in word
        ]
        inner = window.input_ids[1:-1]
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


def test_sentences_of_other_documents_are_never_seen(tokenizer):
    """Files without marks: every sentence is a document, so a feature is a sentence."""
    examples = [TaggedExample(idx=i, tokens=(letter,) * 3, document=i) for i, letter in enumerate("abc")]
    windows = lay_out_documents(examples, tokenizer, 64)
    assert [len(window.input_ids) for window in windows] == [5, 5, 5]


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


def test_windows_cover_documents_with_words_of_very_different_length():
    rng = np.random.default_rng(1)
    for _ in range(500):
        max_pieces = int(rng.integers(1, 20))
        lengths = rng.choice([1, max_pieces], rng.integers(1, 40))
        spans = cut_document(lengths, max_pieces)
        assert spans[0][0] == 0
        assert spans[-1][1] == len(lengths)
        for (start, end), (later_start, later_end) in pairwise(spans):
            assert start < later_start <= end < later_end
        assert all(sum(lengths[start:end]) <= max_pieces for start, end in spans)


def test_a_sentence_longer_than_a_window_loses_no_word(tokenizer):
    examples = sentences(" ".join(LETTERS * 5))
    windows = lay_out_documents(examples, tokenizer, 12)
    assert len(windows) > 4
    assert sorted(word for window in windows for word in window.words.tolist()) == list(range(50))
    # Away from the ends each word sees at least a quarter of a window on both sides.
    for window in windows:
        for word, position in zip(window.words.tolist(), window.positions.tolist(), strict=True):
            if 5 <= word < 45:
                assert min(position - 1, len(window.input_ids) - 2 - position) >= 2


def test_words_without_pieces_become_unknown_and_are_counted(tokenizer, caplog):
    """BERT's cleaning removes control characters; a word made of them must still get its label."""
    examples = [TaggedExample(idx=0, tokens=("a", "\u200b\u0001", "b", "\u200b\u0001"))]
    with caplog.at_level(logging.INFO):
        [window] = lay_out_documents(examples, tokenizer, 16)
    unknown = tokenizer.unk_token_id
    assert [window.input_ids[position] == unknown for position in window.positions] == [False, True, False, True]
    assert "1 distinct words have no pieces" in caplog.text


def test_a_word_with_more_pieces_than_a_window_keeps_its_first_ones(tokenizer, caplog):
    examples = sentences("a bcdefghij c")
    with caplog.at_level(logging.WARNING):
        windows = lay_out_documents(examples, tokenizer, 6)
    [(window, position, count)] = occurrences(windows)[0, 1]
    assert tokenizer.convert_ids_to_tokens(window.input_ids[position : position + count]) == ["b", "##c", "##d", "##e"]
    assert "1 distinct words have more than 4 pieces" in caplog.text


def test_real_documents_are_covered(tokenizer, shared_data):
    split = load_split(get_task("conll2003"), "validation", data_dir=str(shared_data), max_examples=600)
    real = load_tokenizer(shared_data / "vocab" / "bert-base-cased-vocab.txt", do_lower_case=False)
    windows = lay_out_documents(split.examples, real, 128)
    found = occurrences(windows)
    assert len(found) == sum(len(example.tokens) for example in split.examples)
    assert all(len(places) == 1 for places in found.values())
    for (sentence, word), [(window, position, count)] in found.items():
        assert window.input_ids[position : position + count] == real.encode_ids(split.examples[sentence].tokens[word])
    documents = [list(group) for _, group in groupby(split.examples, key=lambda example: example.document)]
    assert len(lay_out_documents(split.examples, real, 10**6)) == len(documents)
    assert len(windows) > len(documents)
