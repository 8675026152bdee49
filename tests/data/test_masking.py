"""The masked-LM rule. Sources: Devlin et al. 2019, section 3.1; google-research/bert
create_pretraining_data.py.
"""

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


def make_batch(rows: int, size: int, seed: int = 0, shortest: int = 8):
    """Random rows: [CLS] ... [SEP] ... [SEP] [PAD] ..."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(shortest, size + 1, rows)
    ids = rng.integers(104, VOCAB, (rows, size))
    ids[:, 0] = CLS
    ids[np.arange(rows), lengths // 2] = SEP
    ids[np.arange(rows), lengths - 1] = SEP
    ids[np.arange(size) >= lengths[:, None]] = PAD
    candidates = ~np.isin(ids, (PAD, CLS, SEP))
    return (
        ids,
        candidates,
        lengths,
        hash_keys(seed, np.zeros(rows, dtype=np.int64), np.arange(rows)),
    )


def mask(ids, candidates, lengths, keys, **settings):
    rates = MaskingRates(**settings)
    continuation = np.arange(VOCAB) % 3 == 0  # a third of the vocabulary starts with "##"
    return mask_tokens(
        ids,
        candidates,
        lengths,
        keys,
        rates=rates,
        mask_token_id=MASK,
        vocab_size=VOCAB,
        is_continuation=continuation,
    )


@pytest.mark.parametrize("limit", [None, 20, 3])
def test_number_of_predictions_is_round_half_even_of_length_times_rate_capped(limit):
    """create_masked_lm_predictions: min(max_predictions, max(1, int(round(len(tokens) * prob)))),
    Python 3's round.
    """
    ids, candidates, lengths, keys = make_batch(600, 512)
    _, labels = mask(ids, candidates, lengths, keys, max_predictions_per_seq=limit)
    expected = [max(1, round(int(length) * 0.15)) for length in lengths]
    if limit is not None:
        expected = [min(limit, number) for number in expected]
    assert (labels != IGNORE_INDEX).sum(axis=1).tolist() == expected


def test_a_row_with_fewer_candidates_than_predictions_uses_them_all():
    ids = np.array([[CLS, 500, SEP, SEP]])
    candidates = np.array([[False, True, False, False]])
    keys = hash_keys(0, np.array([0]))
    _, labels = mask(ids, candidates, np.array([4]), keys, mlm_probability=0.9)
    assert labels.tolist() == [[IGNORE_INDEX, 500, IGNORE_INDEX, IGNORE_INDEX]]


@pytest.mark.parametrize("settings", [{}, {"whole_word": True}, {"selection": "bernoulli"}])
def test_special_tokens_and_padding_are_never_predicted_nor_changed(settings):
    ids, candidates, lengths, keys = make_batch(500, 128)
    masked, labels = mask(ids, candidates, lengths, keys, **settings)
    assert (labels[~candidates] == IGNORE_INDEX).all()
    assert np.array_equal(masked[~candidates], ids[~candidates])
    assert np.array_equal(masked[labels == IGNORE_INDEX], ids[labels == IGNORE_INDEX])
    chosen = labels != IGNORE_INDEX
    assert np.array_equal(labels[chosen], ids[chosen])


@pytest.mark.parametrize("settings", [{}, {"whole_word": True}, {"selection": "bernoulli"}])
def test_replaces_80_percent_with_mask_keeps_10_and_randomises_10(settings):
    """Devlin et al. 2019, section 3.1, Task #1; drawn for each piece, under whole-word masking
    too.
    """
    ids, candidates, lengths, keys = make_batch(6000, 128)
    masked, labels = mask(ids, candidates, lengths, keys, **settings)
    chosen = labels != IGNORE_INDEX
    total = chosen.sum()
    became_mask = (masked[chosen] == MASK).mean()
    stayed = (masked[chosen] == ids[chosen]).mean()
    margin = 4 * np.sqrt(0.8 * 0.2 / total)
    assert abs(became_mask - (0.8 + 0.1 / VOCAB)) < margin
    assert abs(stayed - (0.1 + 0.1 / VOCAB)) < margin


def test_random_words_come_from_the_whole_vocabulary_special_ones_included():
    """create_masked_lm_predictions draws from vocab_words, all keys of the vocabulary."""
    ids, candidates, lengths, keys = make_batch(5000, 256)
    masked, labels = mask(
        ids, candidates, lengths, keys, mask_rate=0.0, keep_rate=0.0, random_rate=1.0
    )
    words = masked[labels != IGNORE_INDEX]
    counts = np.bincount(words, minlength=VOCAB)
    assert len(counts) == VOCAB
    assert (counts > 0).all()
    expected = len(words) / VOCAB
    assert ((counts - expected) ** 2 / expected).sum() < VOCAB + 4 * np.sqrt(2 * VOCAB)


def test_which_random_word_does_not_depend_on_the_draw_that_made_it_random():
    """At the paper's rates one of ten predicted tokens is random: its draw lies in the last tenth
    of all draws.
    """
    ids, candidates, lengths, keys = make_batch(5000, 256)
    masked, labels = mask(ids, candidates, lengths, keys)
    words = masked[(labels != IGNORE_INDEX) & (masked != MASK) & (masked != ids)]
    counts = np.bincount(words * 10 // VOCAB, minlength=10)
    assert (np.abs(counts - len(words) / 10) < 5 * np.sqrt(len(words) / 10)).all()


def test_the_limit_of_predictions_is_the_share_of_the_longest_pair():
    """google-research/bert README: max_predictions_per_seq 20 for 128 tokens and 77 for 512: 19.2
    and 76.8.
    """
    assert [default_max_predictions(length, 0.15) for length in (128, 512)] == [20, 77]
    assert [default_max_predictions(length, 0.15) for length in (100, 101)] == [15, 16]


def test_every_candidate_is_equally_likely():
    ids, candidates, lengths, keys = make_batch(8000, 64, shortest=64)
    _, labels = mask(ids, candidates, lengths, keys)
    share = (labels != IGNORE_INDEX)[:, 1:31].mean(
        axis=0
    )  # positions that are candidates in every row
    assert np.abs(share - share.mean()).max() < 5 * np.sqrt(share.mean() / len(ids))


def test_whole_words_are_predicted_whole_or_not_at_all():
    """do_whole_word_mask: a piece that starts with "##" joins the candidate before it."""
    ids, candidates, lengths, keys = make_batch(800, 128)
    _, labels = mask(ids, candidates, lengths, keys, whole_word=True)
    chosen = labels != IGNORE_INDEX
    for row in range(len(ids)):
        units: list[list[int]] = []
        for position in np.flatnonzero(candidates[row]):
            if units and ids[row, position] % 3 == 0:
                units[-1].append(position)
            else:
                units.append([position])
        for unit in units:
            assert len(set(chosen[row, unit].tolist())) == 1
        wanted = max(1, round(int(lengths[row]) * 0.15))
        left_out = [len(unit) for unit in units if not chosen[row, unit[0]]]
        total = chosen[row].sum()
        # A unit that would exceed the number is skipped, smaller ones after it are still taken.
        assert total <= wanted
        assert total == wanted or min(left_out) > wanted - total


def test_a_mask_is_the_same_in_any_batch():
    ids, candidates, lengths, keys = make_batch(64, 128)
    together = mask(ids, candidates, lengths, keys, whole_word=True)
    order = np.random.default_rng(1).permutation(64)
    shuffled = mask(ids[order], candidates[order], lengths[order], keys[order], whole_word=True)
    for left, right in zip(together, shuffled, strict=True):
        assert np.array_equal(left[order], right)
    padded_ids = np.pad(ids, ((0, 0), (0, 32)))
    padded = mask(padded_ids, np.pad(candidates, ((0, 0), (0, 32))), lengths, keys, whole_word=True)
    assert np.array_equal(padded[0][:, :128], together[0])


def test_bernoulli_predicts_each_token_with_the_given_probability():
    ids, candidates, lengths, keys = make_batch(5000, 128)
    _, labels = mask(ids, candidates, lengths, keys, selection="bernoulli")
    share = (labels != IGNORE_INDEX).sum() / candidates.sum()
    assert abs(share - 0.15) < 4 * np.sqrt(0.15 * 0.85 / candidates.sum())
    capped = mask(ids, candidates, lengths, keys, selection="bernoulli", max_predictions_per_seq=5)[
        1
    ]
    assert (capped != IGNORE_INDEX).sum(axis=1).max() == 5


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mask_rate": 0.8, "keep_rate": 0.3, "random_rate": 0.1}, "must sum to 1"),
        ({"mlm_probability": 1.5}, "mlm_probability is 1.5"),
        ({"mask_rate": -0.1, "keep_rate": 1.0, "random_rate": 0.1}, "mask_rate is -0.1"),
        ({"max_predictions_per_seq": 0}, "max_predictions_per_seq is 0"),
        ({"selection": "all"}, "allowed: count, bernoulli"),
    ],
)
def test_wrong_rates_are_refused_in_words(settings, words):
    with pytest.raises(InputError, match=words):
        MaskingRates(**settings)


def test_units_of_one_token_are_taken_as_larger_ones_are():
    """Without whole words there is a shorter way to the same choice."""
    rng = np.random.default_rng(0)
    scores, real = rng.random((50, 40)), np.arange(40) < rng.integers(1, 41, (50, 1))
    wanted = rng.integers(1, 20, 50)
    taken = masking._take_in_order(scores, real, real.astype(np.int64), wanted)
    assert np.array_equal(taken, masking._take_lowest(scores, real, wanted))
    assert np.array_equal(taken.sum(axis=1), np.minimum(wanted, real.sum(axis=1)))


def test_numbers_depend_on_key_and_position_alone():
    keys, positions = hash_keys(1, np.arange(50), np.arange(50) * 7), np.arange(128)
    together = keyed_uniforms(keys[:, None], 0, positions)
    assert np.array_equal(
        together[31:32, :40], keyed_uniforms(keys[31:32, None], 0, positions[:40])
    )
    rows, columns = np.array([4, 0, 2]), np.array([0, 7, 99])
    assert np.array_equal(keyed_uniforms(keys[rows], 0, columns), together[rows, columns])


def test_numbers_are_uniform_and_uncorrelated_between_neighbours_and_streams():
    keys = hash_keys(5, np.zeros(4000, dtype=np.int64), np.arange(4000))
    first, second = (keyed_uniforms(keys[:, None], stream, np.arange(64)) for stream in (0, 1))
    counts, _ = np.histogram(first, bins=100, range=(0, 1))
    expected = first.size / 100
    assert (
        (counts - expected) ** 2 / expected
    ).sum() < 150  # chi-square with 99 degrees of freedom: p < 0.001 at 149
    assert first.min() >= 0.0
    assert first.max() < 1.0
    for other in (second, np.roll(first, 1, axis=0), np.roll(first, 1, axis=1)):
        assert abs(np.corrcoef(first.ravel(), other.ravel())[0, 1]) < 0.01


def test_seed_epoch_and_index_all_change_the_key():
    base = hash_keys(1, np.array([0]), np.array([0]))
    others = [
        hash_keys(2, np.array([0]), np.array([0])),
        hash_keys(1, np.array([1]), np.array([0])),
        hash_keys(1, np.array([0]), np.array([1])),
    ]
    assert all(base[0] != other[0] for other in others)
    assert hash_keys(1, np.array([1]), np.array([0])) != hash_keys(1, np.array([0]), np.array([1]))
    grid = np.indices((300, 300)).reshape(2, -1)
    assert len(np.unique(hash_keys(3, grid[0], grid[1]))) == 90_000


# RoBERTa's, ALBERT's and SpanBERT's; tests/data/test_family_originals.py holds their rules to the
# originals' own results.

CONTINUATION = np.arange(VOCAB) % 3 == 0
NOT_DRAWN = (PAD, CLS, SEP, 100)


def mask_by(selection, ids, candidates, lengths, keys, **settings):
    return mask_tokens(
        ids,
        candidates,
        lengths,
        keys,
        rates=MaskingRates(selection=selection, **settings),
        mask_token_id=MASK,
        vocab_size=VOCAB,
        is_continuation=CONTINUATION,
        not_drawn=NOT_DRAWN,
    )


def words_of(row_ids, row_candidates):
    """Lists of positions; a special token ends a word."""
    words = []
    for position, (token, is_candidate) in enumerate(zip(row_ids, row_candidates, strict=True)):
        if not is_candidate:
            continue
        follows = position > 0 and row_candidates[position - 1]
        if follows and CONTINUATION[token]:
            words[-1].append(position)
        else:
            words.append([position])
    return words


@pytest.mark.parametrize("whole_word", [False, True])
@pytest.mark.parametrize("selection", ["fairseq", "ngrams", "spans"])
def test_a_row_has_its_mask_in_any_batch(selection, whole_word):
    ids, candidates, lengths, keys = make_batch(40, 64)
    masked, labels = mask_by(selection, ids, candidates, lengths, keys, whole_word=whole_word)
    for row in range(40):
        size = lengths[row]
        alone, its_labels = mask_by(
            selection,
            ids[row : row + 1, :size],
            candidates[row : row + 1, :size],
            lengths[row : row + 1],
            keys[row : row + 1],
            whole_word=whole_word,
        )
        assert np.array_equal(masked[row, :size], alone[0])
        assert np.array_equal(labels[row, :size], its_labels[0])
        assert (labels[row, size:] == IGNORE_INDEX).all()
        assert (masked[row, size:] == PAD).all()


def test_ngrams_are_whole_words_up_to_the_limit():
    ids, candidates, lengths, keys = make_batch(400, 128)
    _, labels = mask_by("ngrams", ids, candidates, lengths, keys, max_predictions_per_seq=12)
    predicted = labels != IGNORE_INDEX
    assert not (predicted & ~candidates).any()
    limits = np.minimum(12, np.maximum(1, np.rint(lengths * 0.15)))
    assert (predicted.sum(axis=1) <= limits).all()
    assert (predicted.sum(axis=1) == limits).mean() > 0.95  # single words fill what is left
    for row in range(50):
        for word in words_of(ids[row], candidates[row]):
            assert predicted[row, word].all() or not predicted[row, word].any()


def test_runs_of_ngrams_are_as_frequent_as_one_over_their_length():
    """Lan et al. 2020, section 3.1: p(n) = (1/n) / sum(1/k); of long rows, where runs hardly
    meet.
    """
    size = 2000
    ids, candidates, lengths, keys = make_batch(200, size, shortest=size)
    _, labels = mask_by("ngrams", ids, candidates, lengths, keys, mlm_probability=0.05)
    counts = np.zeros(4)
    for row in range(200):
        is_predicted = [
            labels[row, word[0]] != IGNORE_INDEX for word in words_of(ids[row], candidates[row])
        ]
        edges = np.flatnonzero(np.diff([0, *is_predicted, 0]))
        runs = edges[1::2] - edges[::2]
        counts += np.bincount(np.minimum(runs, 4), minlength=5)[1:]
    expected = (1 / np.arange(1, 4)) / (1 / np.arange(1, 4)).sum()
    assert counts[:3] / counts.sum() == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize(
    ("selection", "drawn"), [("ngrams", range(VOCAB)), ("fairseq", None), ("spans", None)]
)
def test_random_words_are_all_ids_but_those_that_the_original_leaves_out(selection, drawn):
    """google-research/albert draws of its whole vocabulary; fairseq and SpanBERT not of their first
    four ids.
    """
    expected = set(drawn) if drawn is not None else set(range(VOCAB)) - set(NOT_DRAWN)
    found = set()
    for seed in range(6):
        batch = make_batch(200, 128, seed)
        masked, labels = mask_by(selection, *batch, mask_rate=0.0, keep_rate=0.0, random_rate=1.0)
        found |= set(masked[labels != IGNORE_INDEX].tolist())
    assert found == expected


@pytest.mark.parametrize("selection", ["count", "bernoulli", "fairseq", "ngrams", "spans"])
def test_ids_that_are_never_drawn_are_no_random_words(selection):
    found = set()
    for seed in range(6):
        ids, candidates, lengths, keys = make_batch(200, 128, seed)
        settings = {"selection": selection, "mask_rate": 0.0, "keep_rate": 0.0, "random_rate": 1.0}
        masked, labels = mask_tokens(
            ids,
            candidates,
            lengths,
            keys,
            rates=MaskingRates(**settings),
            mask_token_id=MASK,
            vocab_size=VOCAB,
            is_continuation=CONTINUATION,
            never_drawn=(PAD, VOCAB - 1),
        )
        found |= set(masked[labels != IGNORE_INDEX].tolist())
    assert found == set(range(VOCAB)) - {PAD, VOCAB - 1}


def test_fairseq_predicts_the_rate_on_average_and_special_tokens_too():
    ids, candidates, lengths, keys = make_batch(2000, 64)
    masked, labels = mask_by("fairseq", ids, candidates, lengths, keys)
    predicted = labels != IGNORE_INDEX
    assert predicted.sum() / lengths.sum() == pytest.approx(0.15, abs=0.002)
    assert np.abs(predicted.sum(axis=1) - 0.15 * lengths).max() < 1  # rounded up or down
    assert predicted[:, 0].mean() == pytest.approx(0.15, abs=0.03)
    shown = masked[predicted]
    assert (shown == MASK).mean() == pytest.approx(0.8, abs=0.01)
    assert (shown == labels[predicted]).mean() == pytest.approx(0.1, abs=0.01)


def test_spans_are_masked_as_a_whole():
    """Joshi et al. 2020, section 3.1: lengths of a geometric distribution with p = 0.2 cut at ten
    words, 3.8 on average.
    """
    size = 2000
    ids, candidates, lengths, keys = make_batch(100, size, shortest=size)
    settings = {"mlm_probability": 0.02, "mask_rate": 0.8, "keep_rate": 0.2, "random_rate": 0.0}
    masked, labels = mask_by("spans", ids, candidates, lengths, keys, **settings)
    predicted = labels != IGNORE_INDEX
    assert not (predicted & ~candidates).any()
    assert (predicted.sum(axis=1) == np.ceil(candidates.sum(axis=1) * 0.02)).all()
    runs = []
    for row in range(100):
        words = words_of(ids[row], candidates[row])
        of_row = [predicted[row, word].any() for word in words]
        edges = np.flatnonzero(np.diff([0, *of_row, 0])).reshape(-1, 2)
        runs += (edges[:, 1] - edges[:, 0]).tolist()
        for begin, end in edges:
            places = [place for word in words[begin:end] for place in word if predicted[row, place]]
            is_mask = masked[row, places] == MASK
            assert is_mask.all() or not is_mask.any()
    # The last span of a row is cut, and those that meet are one.
    assert np.mean(runs) == pytest.approx(3.8, abs=0.5)
