"""Words put at the end of a vocabulary: which, where from, and how text is cut with them."""

import pytest

from bert_recipes.errors import InputError
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.tokenization.new_words import (
    NewWord,
    choose_words,
    count_for,
    describe_gain,
    extend_tokenizer,
    read_words,
)
from bert_recipes.tokenization.tokenizer import SPECIAL_TOKENS


PIECES = [*SPECIAL_TOKENS, "the", "heart", "in", "##farct", "my", "##o", "##card", "##ial", "##s"]
PIECES += ["2", "##1", "."]
TEXT = ["The Heart. Infarct infarct infarct", "myocardial myocardial 21 21 21 21 21 21 ünknown"]


@pytest.fixture
def tokenizer(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return load_tokenizer(tmp_path / "vocab.txt", do_lower_case=True)


def choose(tokenizer, texts=TEXT, num_words=10, min_frequency=1):
    counts = count_for(tokenizer, texts, show_progress=False)
    return choose_words(tokenizer, counts, num_words=num_words, min_frequency=min_frequency)


def test_words_that_spare_the_most_pieces_come_first(tokenizer):
    # myocardial: 2 x 3 pieces spared; infarct: 3 x 1; one [UNK]. Numbers and what is an entry
    # already: never.
    assert [new.word for new in choose(tokenizer)] == ["myocardial", "infarct", "unknown"]
    first = choose(tokenizer)[0]
    assert tokenizer.convert_ids_to_tokens(first.piece_ids) == ["my", "##o", "##card", "##ial"]
    assert first.count == 2


def test_limits_and_any_order_of_the_texts(tokenizer):
    assert [new.word for new in choose(tokenizer, num_words=1)] == ["myocardial"]
    assert [new.word for new in choose(tokenizer, min_frequency=3)] == ["infarct"]
    assert choose(tokenizer, min_frequency=4) == []
    assert choose(tokenizer, TEXT[::-1]) == choose(tokenizer)


def test_old_ids_stay_and_new_words_are_whole(tokenizer, tmp_path):
    larger = extend_tokenizer(tokenizer, choose(tokenizer))
    assert [larger.convert_tokens_to_ids(piece) for piece in PIECES] == list(range(len(PIECES)))
    pieces = larger.tokenize("Infarcts, MYOCARDIAL heart")
    assert pieces == ["infarct", "##s", "[UNK]", "myocardial", "heart"]
    assert len(tokenizer) == len(PIECES)
    larger.save_pretrained(tmp_path / "larger")
    again = load_tokenizer(tmp_path / "larger")
    assert again.fingerprint == larger.fingerprint
    assert again.encode_ids("infarct") == [len(PIECES) + 1]


def test_a_tokenizer_with_added_tokens_is_refused(tokenizer):
    tokenizer.add_tokens(["covid"])
    with pytest.raises(InputError, match="1 tokens beside its vocabulary of 17"):
        extend_tokenizer(tokenizer, [NewWord("x", (1,))])


@pytest.mark.parametrize(
    ("text", "word", "fertility", "unk_rate"),
    [
        ("infarct my hearto", "infarct", (5 / 3, 4 / 3), 0),
        ("myo", "myo", (2, 1), 0),
        ("myocardial", "myoc", (4, 1), 1),
    ],
)
def test_gain_and_a_warning_where_there_are_more_unknown_words(
    tokenizer, caplog, text, word, fertility, unk_rate
):
    """A greedy cut takes "myoc" first, and there is no ##ardial."""
    counts = count_for(tokenizer, [text], show_progress=False)
    gain = describe_gain(tokenizer, extend_tokenizer(tokenizer, [NewWord(word, (7, 8))]), counts)
    assert (gain["pieces_a_word_before"], gain["pieces_a_word_after"]) == fertility
    assert (gain["unk_rate_before"], gain["unk_rate_after"]) == (0, unk_rate)
    assert ("[UNK] rate" in caplog.text) == bool(unk_rate)


def test_a_list_of_words(tokenizer, tmp_path, caplog):
    caplog.set_level("INFO")
    path = tmp_path / "words.txt"
    path.write_text("\ufeffInfarct\r\n\nheart\ninfarct\nMyocardial\n", encoding="utf-8")
    assert [new.word for new in read_words(path, tokenizer)] == ["infarct", "myocardial"]
    assert "1 words are in the vocabulary already, 1 are repeated" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"infarct\nheart attack\n",
            r"line 2: 'heart attack' is not a single word for this tokenizer \(heart | attack\)",
        ),
        (b"covid-19\n", r"line 1: 'covid-19' is not a single word"),
        (b"infarct\n\xe9\n", "line 2: not valid UTF-8"),
        (b"heart\n", "no word in it that the vocabulary lacks"),
        (b"x" * 201, "of at most 200 characters"),
    ],
)
def test_lists_that_are_refused(tokenizer, tmp_path, content, message):
    path = tmp_path / "words.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_words(path, tokenizer)
