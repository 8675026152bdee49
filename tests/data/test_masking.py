"""The masked-LM rule. Sources: Devlin et al. 2019, section 3.1; google-research/bert
create_pretraining_data.py.
"""

from typing import NamedTuple

import numpy as np
import pytest

from bert_recipes.data import masking
from bert_recipes.data.masking import (
    IGNORE_INDEX,
    MaskingRates,
    default_max_predictions,
    hash_keys,
    keyed_uniforms,
    mask_tokens,
)
from bert_recipes.errors import InputError


PAD, CLS, SEP, MASK, VOCAB = 0, 101, 102, 103, 1000
CONTINUATION = np.arange(VOCAB) % 3 == 0  # a third of the vocabulary starts with "##"
NOT_DRAWN = (PAD, CLS, SEP, 100)
ALL_RANDOM = {"mask_rate": 0.0, "keep_rate": 0.0, "random_rate": 1.0}
UNIT_SETTINGS = [{}, {"whole_word": True}, {"selection": "bernoulli"}]


class Batch(NamedTuple):
    """Random rows: [CLS] ... [SEP] ... [SEP] [PAD] ..."""

    input_ids: np.ndarray
    candidates: np.ndarray
    lengths: np.ndarray
    keys: np.ndarray

    def mask(self, *, excluded_ids=(), **settings):
        """The tokens that the model sees, and those that it predicts."""
        masked, labels = mask_tokens(
            *self,
            rates=MaskingRates(**settings),
            mask_token_id=MASK,
            vocab_size=VOCAB,
            is_continuation=CONTINUATION,
            special_ids=NOT_DRAWN,
            excluded_ids=excluded_ids,
        )
        is_predicted = labels != IGNORE_INDEX
        assert np.array_equal(labels[is_predicted], self.input_ids[is_predicted])
        return masked, is_predicted

    def words(self, row, *, special_tokens_end_words=True):
        """Positions of each word of a row."""
        words = []
        for position in np.flatnonzero(self.candidates[row]):
            is_cut = special_tokens_end_words and not self.candidates[row, position - 1]
            if words and not is_cut and CONTINUATION[self.input_ids[row, position]]:
                words[-1].append(position)
            else:
                words.append([position])
        return words


def make_batch(rows, size, seed=0, shortest=8):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(shortest, size + 1, rows)
    ids = rng.integers(104, VOCAB, (rows, size))
    ids[:, 0] = CLS
    ids[np.arange(rows), lengths // 2] = SEP
    ids[np.arange(rows), lengths - 1] = SEP
    ids[np.arange(size) >= lengths[:, None]] = PAD
    keys = hash_keys(seed, np.zeros(rows, dtype=np.int64), np.arange(rows))
    return Batch(ids, ~np.isin(ids, (PAD, CLS, SEP)), lengths, keys)


@pytest.mark.parametrize("limit", [None, 20, 3])
def test_number_of_predictions_is_round_half_even_of_length_times_rate_capped(limit):
    """create_masked_lm_predictions: min(max_predictions, max(1, int(round(len(tokens) * prob)))),
    Python 3's round.
    """
    batch = make_batch(600, 512)
    _, is_predicted = batch.mask(max_predictions_per_seq=limit)
    expected = [max(1, round(length * 0.15)) for length in batch.lengths.tolist()]
    if limit is not None:
        expected = [min(limit, number) for number in expected]

    assert is_predicted.sum(axis=1).tolist() == expected


def test_a_row_with_fewer_candidates_than_predictions_uses_them_all():
    candidates = np.array([[False, True, False, False]])
    batch = Batch(np.array([[CLS, 500, SEP, SEP]]), candidates, np.array([4]), np.uint64([7]))
    assert np.array_equal(batch.mask(mlm_probability=0.9)[1], candidates)


@pytest.mark.parametrize("settings", UNIT_SETTINGS)
def test_special_tokens_and_padding_are_never_predicted_nor_changed(settings):
    batch = make_batch(500, 128)
    masked, is_predicted = batch.mask(**settings)

    assert not (is_predicted & ~batch.candidates).any()
    assert np.array_equal(masked[~is_predicted], batch.input_ids[~is_predicted])


@pytest.mark.parametrize("settings", UNIT_SETTINGS)
def test_replaces_80_percent_with_mask_keeps_10_and_randomises_10(settings):
    """Devlin et al. 2019, section 3.1, Task #1; drawn for each piece, under whole-word masking
    too.
    """
    batch = make_batch(6000, 128)
    masked, is_predicted = batch.mask(**settings)
    seen = masked[is_predicted]
    margin = 4 * np.sqrt(0.8 * 0.2 / len(seen))

    assert abs((seen == MASK).mean() - (0.8 + 0.1 / VOCAB)) < margin
    assert abs((seen == batch.input_ids[is_predicted]).mean() - (0.1 + 0.1 / VOCAB)) < margin


def test_random_words_come_from_the_whole_vocabulary_special_ones_included():
    """create_masked_lm_predictions draws from vocab_words, all keys of the vocabulary."""
    masked, is_predicted = make_batch(5000, 256).mask(**ALL_RANDOM)
    counts = np.bincount(masked[is_predicted], minlength=VOCAB)
    expected = counts.sum() / VOCAB

    assert len(counts) == VOCAB
    assert ((counts - expected) ** 2 / expected).sum() < VOCAB + 4 * np.sqrt(2 * VOCAB)


def test_a_random_word_does_not_depend_on_the_draw_that_made_it_random():
    """At the paper's rates one of ten predicted tokens is random: its draw lies in the last tenth
    of all draws.
    """
    batch = make_batch(5000, 256)
    masked, is_predicted = batch.mask()
    words = masked[is_predicted & (masked != MASK) & (masked != batch.input_ids)]
    counts = np.bincount(words * 10 // VOCAB, minlength=10)

    assert (np.abs(counts - len(words) / 10) < 5 * np.sqrt(len(words) / 10)).all()


def test_the_limit_of_predictions_is_the_share_of_the_longest_pair():
    """google-research/bert README: max_predictions_per_seq 20 for 128 tokens and 77 for 512."""
    limits = [default_max_predictions(length, 0.15) for length in (100, 101, 128, 512)]
    assert limits == [15, 16, 20, 77]


def test_every_candidate_is_equally_likely():
    batch = make_batch(8000, 64, shortest=64)
    _, is_predicted = batch.mask()
    shares = is_predicted[:, 1:31].mean(axis=0)  # candidates in every row

    assert np.abs(shares - shares.mean()).max() < 5 * np.sqrt(shares.mean() / 8000)


def test_whole_words_are_predicted_whole_or_not_at_all():
    """do_whole_word_mask: a piece that starts with "##" joins the candidate before it."""
    batch = make_batch(400, 128)
    _, is_predicted = batch.mask(whole_word=True)

    for row, length in enumerate(batch.lengths.tolist()):
        limit = max(1, round(length * 0.15))
        num_predicted = is_predicted[row].sum()
        assert num_predicted <= limit
        for word in batch.words(row, special_tokens_end_words=False):
            assert len(set(is_predicted[row, word].tolist())) == 1
            # A word that would exceed the number is skipped, smaller ones after it are not.
            assert is_predicted[row, word[0]] or num_predicted + len(word) > limit


@pytest.mark.parametrize("whole_word", [False, True])
@pytest.mark.parametrize("selection", ["count", "fairseq", "ngrams", "spans"])
def test_a_row_has_its_mask_in_any_batch(selection, whole_word):
    batch = make_batch(40, 64)
    settings = {"selection": selection, "whole_word": whole_word}
    masked, is_predicted = batch.mask(**settings)

    for row, size in enumerate(batch.lengths.tolist()):
        alone = Batch(
            batch.input_ids[row : row + 1, :size],
            batch.candidates[row : row + 1, :size],
            batch.lengths[row : row + 1],
            batch.keys[row : row + 1],
        )
        alone_masked, alone_predicted = alone.mask(**settings)
        assert np.array_equal(masked[row, :size], alone_masked[0])
        assert np.array_equal(is_predicted[row, :size], alone_predicted[0])
        assert not is_predicted[row, size:].any()
        assert (masked[row, size:] == PAD).all()


def test_bernoulli_predicts_each_token_with_the_given_probability():
    batch = make_batch(5000, 128)
    _, is_predicted = batch.mask(selection="bernoulli")
    share = is_predicted.sum() / batch.candidates.sum()

    assert abs(share - 0.15) < 4 * np.sqrt(0.15 * 0.85 / batch.candidates.sum())

    _, is_predicted = batch.mask(selection="bernoulli", max_predictions_per_seq=5)

    assert is_predicted.sum(axis=1).max() == 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mask_rate": 0.8, "keep_rate": 0.3, "random_rate": 0.1}, "must sum to 1"),
        ({"mlm_probability": 1.5}, "mlm_probability is 1.5"),
        ({"max_predictions_per_seq": 0}, "max_predictions_per_seq is 0"),
        ({"selection": "all"}, "allowed: count, bernoulli"),
    ],
)
def test_wrong_rates_are_refused_in_words(settings, message):
    with pytest.raises(InputError, match=message):
        MaskingRates(**settings)


@pytest.mark.parametrize("settings", [{"whole_word": True}, {"selection": "spans"}])
def test_words_need_the_pieces_that_go_on(settings):
    with pytest.raises(ValueError, match="need is_continuation"):
        mask_tokens(
            *make_batch(2, 8),
            rates=MaskingRates(**settings),
            mask_token_id=MASK,
            vocab_size=VOCAB,
        )


def test_units_of_one_token_are_taken_as_larger_ones_are():
    """Without whole words there is a shorter way to the same choice."""
    rng = np.random.default_rng(0)
    scores = rng.random((50, 40))
    is_open = np.arange(40) < rng.integers(1, 41, (50, 1))
    limits = rng.integers(1, 20, 50)
    in_order = masking._take_in_order(scores, is_open, is_open.astype(np.int64), limits)

    assert np.array_equal(in_order, masking._take_lowest(scores, is_open, limits))
    assert np.array_equal(in_order.sum(axis=1), np.minimum(limits, is_open.sum(axis=1)))


def test_numbers_of_a_key_stay_the_same():
    """Runs of a release that is out have these masks."""
    keys = hash_keys(1, np.array([2]), np.array([3]))
    expected = [0.4460305134137651, 0.08244216643885538, 0.8718779120061685]
    assert keyed_uniforms(keys, 0, np.arange(3)).tolist() == expected


def test_numbers_are_uniform_and_uncorrelated_between_neighbours_and_streams():
    keys = hash_keys(5, np.zeros(4000, dtype=np.int64), np.arange(4000))
    first, second = (keyed_uniforms(keys[:, None], stream, np.arange(64)) for stream in (0, 1))
    counts, _ = np.histogram(first, bins=100, range=(0, 1))
    expected = first.size / 100

    # With 99 degrees of freedom p < 0.001 at 149.
    assert ((counts - expected) ** 2 / expected).sum() < 150
    assert 0.0 <= first.min() < first.max() < 1.0

    for numbers in (second, np.roll(first, 1, axis=0), np.roll(first, 1, axis=1)):
        assert abs(np.corrcoef(first.ravel(), numbers.ravel())[0, 1]) < 0.01


def test_seed_epoch_and_index_all_change_the_key():
    assert len({int(hash_keys(seed, np.array([7]))[0]) for seed in range(100)}) == 100
    epochs, indices = np.indices((300, 300)).reshape(2, -1)
    assert len(np.unique(hash_keys(3, epochs, indices))) == 90_000


# RoBERTa's, ALBERT's and SpanBERT's; tests/data/test_family_originals.py holds their rules to the
# originals' own results.


def runs_of(words, is_predicted):
    """The runs of words of a row that are predicted, wholly or in part."""
    has_predicted = [is_predicted[word].any() for word in words]
    edges = np.flatnonzero(np.diff([0, *has_predicted, 0])).reshape(-1, 2)
    return [words[begin:end] for begin, end in edges]


def test_ngrams_are_whole_words_up_to_the_limit():
    batch = make_batch(400, 128)
    _, is_predicted = batch.mask(selection="ngrams", max_predictions_per_seq=12)

    assert not (is_predicted & ~batch.candidates).any()

    limits = np.minimum(12, np.maximum(1, np.rint(batch.lengths * 0.15)))

    assert (is_predicted.sum(axis=1) <= limits).all()
    assert (is_predicted.sum(axis=1) == limits).mean() > 0.95  # single words fill the gaps

    for row in range(50):
        for word in batch.words(row):
            assert len(set(is_predicted[row, word].tolist())) == 1


def test_runs_of_ngrams_are_as_frequent_as_one_over_their_length():
    """Lan et al. 2020, section 3.1: p(n) = (1/n) / sum(1/k); of long rows, where runs hardly
    meet.
    """
    batch = make_batch(100, 2000, shortest=2000)
    _, is_predicted = batch.mask(selection="ngrams", mlm_probability=0.05)
    counts = np.zeros(5)
    for row in range(100):
        lengths = [len(run) for run in runs_of(batch.words(row), is_predicted[row])]
        counts += np.bincount(np.minimum(lengths, 4), minlength=5)
    odds = 1 / np.arange(1, 4)

    assert counts[1:4] / counts.sum() == pytest.approx(odds / odds.sum(), abs=0.03)


@pytest.mark.parametrize(
    ("selection", "excluded"),
    [
        ("count", ()),
        ("bernoulli", ()),
        ("ngrams", ()),
        ("fairseq", NOT_DRAWN),
        ("spans", NOT_DRAWN),
    ],
)
@pytest.mark.parametrize("excluded_ids", [(), (PAD, VOCAB - 1)])
def test_random_words_are_all_ids_but_those_that_the_original_leaves_out(
    selection, excluded, excluded_ids
):
    """google-research/albert draws of its whole vocabulary; fairseq and SpanBERT not of their first
    four ids.
    """
    batch = make_batch(1200, 128)
    masked, is_predicted = batch.mask(selection=selection, excluded_ids=excluded_ids, **ALL_RANDOM)
    assert set(range(VOCAB)) - set(masked[is_predicted]) == {*excluded, *excluded_ids}


def test_fairseq_predicts_the_rate_on_average_and_special_tokens_too():
    batch = make_batch(2000, 64)
    masked, is_predicted = batch.mask(selection="fairseq")

    assert is_predicted.sum() / batch.lengths.sum() == pytest.approx(0.15, abs=0.002)
    # Rounded up or down.
    assert np.abs(is_predicted.sum(axis=1) - 0.15 * batch.lengths).max() < 1
    assert is_predicted[:, 0].mean() == pytest.approx(0.15, abs=0.03)

    seen = masked[is_predicted]

    assert (seen == MASK).mean() == pytest.approx(0.8, abs=0.01)
    assert (seen == batch.input_ids[is_predicted]).mean() == pytest.approx(0.1, abs=0.01)


def test_fairseq_predicts_words_whole_or_not_at_all():
    """fairseq data/mask_tokens_dataset.py with `mask_whole_words`: special tokens are words too."""
    batch = make_batch(200, 64)
    _, is_predicted = batch.mask(selection="fairseq", whole_word=True)

    assert is_predicted[:, 0].any()
    for row in range(200):
        for word in batch.words(row):
            assert len(set(is_predicted[row, word].tolist())) == 1


def test_spans_are_masked_as_a_whole():
    """Joshi et al. 2020, section 3.1: lengths of a geometric distribution with p = 0.2 cut at ten
    words, 3.8 on average.
    """
    batch = make_batch(60, 2000, shortest=2000)
    rates = {"mask_rate": 0.8, "keep_rate": 0.2, "random_rate": 0.0}
    masked, is_predicted = batch.mask(selection="spans", mlm_probability=0.02, **rates)

    assert not (is_predicted & ~batch.candidates).any()

    limits = np.ceil(batch.candidates.sum(axis=1) * 0.02)

    assert (is_predicted.sum(axis=1) == limits).all()

    lengths = []

    for row in range(60):
        for run in runs_of(batch.words(row), is_predicted[row]):
            lengths.append(len(run))
            positions = np.concatenate(run)
            seen = masked[row, positions[is_predicted[row, positions]]]
            assert len(set((seen == MASK).tolist())) == 1

    # The last span of a row is cut, and those that meet are one.
    assert np.mean(lengths) == pytest.approx(3.8, abs=0.5)
