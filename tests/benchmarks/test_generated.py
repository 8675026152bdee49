"""Generated data has the frequencies and lengths that it is said to have."""

import numpy as np
import pytest
from generated import FIRST_WORD_ID, GeneratedSplit, draw_zipf, write_text, write_vocabulary
from lengths import draw_lengths

from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.errors import InputError
from bert_recipes.tokenization.loading import load_tokenizer


def test_frequencies_fall_with_the_rank_by_zipfs_law():
    ids = draw_zipf(np.random.default_rng(0), 400_000, 5000)
    counts = np.bincount(ids, minlength=5000)[FIRST_WORD_ID:]
    ranks = 2 ** np.arange(8)
    slope, _ = np.polyfit(np.log(ranks), np.log(counts[ranks - 1]), 1)
    assert slope == pytest.approx(-1.05, abs=0.03)
    assert ids.min() >= FIRST_WORD_ID
    assert ids.max() < 5000


@pytest.mark.parametrize(
    ("documents", "low", "high", "least_mean", "most_mean"),
    [("long", 40, 80, 105, 128), ("paragraphs", 1, 6, 40, 85)],
)
def test_sentences_are_as_long_as_english_ones_and_documents_as_asked(
    tmp_path, documents, low, high, least_mean, most_mean
):
    """Short documents make shorter pairs, too."""
    split = GeneratedSplit(100_000, 1000, documents=documents)
    lengths = split.sentence_lengths(0, split.num_sentences)
    assert lengths.mean() == pytest.approx(22, abs=1)
    assert lengths.min() >= 1
    assert lengths.sum() == split.num_tokens == len(split.tokens(0, split.num_sentences))
    counts = np.diff(split.sentence_offsets(0, split.num_documents))
    assert counts[:-1].min() >= low
    assert counts.max() <= high
    settings = {"cls_id": 101, "sep_id": 102, "store_fingerprint": documents}
    data = PreTrainingDataset(split, **settings, cache_dir=tmp_path)
    assert least_mean < data.lengths(0).mean() < most_mean


def test_our_tokenizer_opens_the_generated_vocabulary(tmp_path):
    tokenizer = load_tokenizer(write_vocabulary(tmp_path / "vocab.txt", 500), do_lower_case=True)
    assert len(tokenizer) == 500
    names = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
    assert tokenizer.convert_tokens_to_ids(names) == [0, 101, 102, 103]
    with pytest.raises(InputError, match="vocab_size is 105; allowed: 106 or more"):
        write_vocabulary(tmp_path / "small.txt", 105)


def test_lengths_are_drawn_as_often_as_they_are_in_the_histogram():
    lengths = draw_lengths([0, 0, 0, 300, 100], 8000, seed=1)
    assert set(lengths) == {3, 4}
    assert (lengths == 3).mean() == pytest.approx(0.75, abs=0.02)


def test_generated_text_has_documents_paragraphs_and_sentences(tmp_path):
    text = write_text(tmp_path / "text.txt", 0.05).read_text(encoding="utf-8")
    assert len(text) >= 50_000
    assert text.count("\n\n") >= 2
    assert text.count(". ") > text.count("\n")
    assert write_text(tmp_path / "again.txt", 0.05).read_text(encoding="utf-8") == text
