"""Generated data has the frequencies and lengths that it is said to have."""

import numpy as np
import pytest
from generated import (
    FIRST_WORD_ID,
    GeneratedSplit,
    draw_zipf,
    write_documents,
    write_text,
    write_vocabulary,
)
from lengths import draw_lengths

from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.errors import InputError
from bert_recipes.tokenization.loading import load_tokenizer


def test_frequencies_fall_with_the_rank_by_zipfs_law():
    ids = draw_zipf(np.random.default_rng(0), 400_000, 5000)
    counts = np.bincount(ids, minlength=5000)[FIRST_WORD_ID:]
    ranks = np.array([1, 2, 4, 8, 16, 32, 64, 128])
    slope, _ = np.polyfit(np.log(ranks), np.log(counts[ranks - 1]), 1)
    assert slope == pytest.approx(-1.05, abs=0.03)
    assert ids.min() >= FIRST_WORD_ID
    assert ids.max() < 5000


@pytest.mark.parametrize(("documents", "low", "high"), [("long", 40, 80), ("paragraphs", 1, 6)])
def test_sentences_are_as_long_as_english_ones_and_documents_as_asked(
    documents: str, low: int, high: int
):
    split = GeneratedSplit(200_000, 1000, documents=documents)
    lengths = split.sentence_lengths(0, split.num_sentences)
    assert lengths.mean() == pytest.approx(22, abs=1)
    assert lengths.min() >= 1
    assert lengths.sum() == split.num_tokens == len(split.tokens(0, split.num_sentences))
    counts = np.diff(split.sentence_offsets(0, split.num_documents))
    assert counts[:-1].min() >= low
    assert counts.max() <= high


def test_paragraphs_make_shorter_pairs_than_long_documents(tmp_path):
    def mean(documents: str) -> float:
        split = GeneratedSplit(60_000, 1000, documents=documents)
        data = PreTrainingDataset(
            split,
            cls_id=101,
            sep_id=102,
            store_fingerprint=documents,
            cache_dir=tmp_path / documents,
        )
        return float(data.lengths(0).mean())

    assert mean("long") > 105
    assert mean("paragraphs") < 0.8 * mean("long")


def test_our_tokenizer_opens_the_generated_vocabulary(tmp_path):
    tokenizer = load_tokenizer(write_vocabulary(tmp_path / "vocab.txt", 500), do_lower_case=True)
    assert len(tokenizer) == 500
    special = (
        tokenizer.pad_token_id,
        tokenizer.cls_token_id,
        tokenizer.sep_token_id,
        tokenizer.mask_token_id,
    )
    assert special == (0, 101, 102, 103)


@pytest.mark.parametrize("size", [50, 105])
def test_a_vocabulary_without_room_for_words_is_refused(tmp_path, size: int):
    with pytest.raises(InputError, match="vocab_size"):
        write_vocabulary(tmp_path / "vocab.txt", size)


def test_lengths_are_drawn_as_often_as_they_are_in_the_histogram():
    drawn = draw_lengths([0, 0, 0, 300, 100], 8000, seed=1)
    assert set(drawn) == {3, 4}
    assert (drawn == 3).mean() == pytest.approx(0.75, abs=0.02)


def test_generated_text_has_documents_paragraphs_and_sentences(tmp_path):
    text = write_text(tmp_path / "text.txt", 0.05).read_text(encoding="utf-8")
    assert len(text) >= 50_000
    assert text.count("\n\n") >= 2
    assert text.count(". ") > text.count("\n")
    assert write_text(tmp_path / "again.txt", 0.05).read_text(encoding="utf-8") == text
    files = write_documents(tmp_path, 40, 4)
    documents = [
        part.splitlines()
        for path in files
        for part in path.read_text(encoding="utf-8").split("\n\n")
    ]
    sentences = [len(lines) for lines in documents if lines]
    assert len(sentences) == 40
    assert min(sentences) >= 3
    assert max(sentences) <= 8
