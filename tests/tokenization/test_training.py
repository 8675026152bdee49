"""`train_wordpiece`: layout, determinism, alphabet, warnings, figures."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bert_recipes.errors import InputError
from bert_recipes.tokenization import training
from bert_recipes.tokenization.normalization import normalize_text
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer
from bert_recipes.tokenization.training import train_wordpiece


FIXTURES = Path(__file__).parents[1] / "fixtures" / "text"


def read(name: str) -> list[str]:
    return (FIXTURES / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def pieces(tokenizer: OriginalBertTokenizer) -> list[str]:
    return tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))


def train(texts: list[str], **settings) -> OriginalBertTokenizer:
    return train_wordpiece(texts, show_progress=False, **settings)


@pytest.mark.parametrize(
    ("num_unused", "after"),
    [(99, ["!"]), (994, ["[unused99]", "[unused100]"]), (2, ["!"]), (0, ["!"])],
)
def test_special_tokens_have_the_ids_of_googles_vocabularies(
    num_unused: int, after: list[str]
) -> None:
    tokenizer = train(["hello world!"] * 3, vocab_size=num_unused + 25, num_unused=num_unused)
    slots = [f"[unused{n}]" for n in range(min(num_unused, 99))]
    expected = ["[PAD]", *slots, "[UNK]", "[CLS]", "[SEP]", "[MASK]", *after]
    assert pieces(tokenizer)[: len(expected)] == expected


def test_layout_of_bert_base_uncased(shared_data: Path) -> None:
    google = (
        (shared_data / "vocab" / "bert-base-uncased-vocab.txt")
        .read_text(encoding="utf-8")
        .splitlines()
    )
    assert pieces(train(["hello"] * 2, vocab_size=1010, num_unused=994))[:999] == google[:999]


def test_characters_come_in_order_then_pieces_by_frequency() -> None:
    tokenizer = train(["ab cab", "ab"], vocab_size=11, num_unused=0)
    assert pieces(tokenizer)[5:] == ["a", "b", "c", "##a", "##b", "ab"]


def test_every_word_counts_as_often_as_it_occurs(monkeypatch) -> None:
    """The trainer gets it in several pieces of text, the last of them shorter."""
    monkeypatch.setattr(training, "_CHUNK_CHARACTERS", 12)
    tokenizer = train(["ab " * 9 + "cd " * 10], vocab_size=13, num_unused=0)
    assert pieces(tokenizer)[5:] == ["a", "b", "c", "d", "##b", "##d", "cd", "ab"]


def test_vocabulary_has_exactly_the_size_asked_for_when_the_text_suffices(caplog) -> None:
    tokenizer = train(read("turkish") * 2, vocab_size=300, num_unused=99)
    assert (
        len(tokenizer) == len(set(pieces(tokenizer))) == tokenizer.training_report.vocab_size == 300
    )
    assert "entries" not in caplog.text


def test_too_little_text_is_a_warning_with_the_size_reached(caplog) -> None:
    tokenizer = train(["ab ab"], vocab_size=500, num_unused=0)
    assert pieces(tokenizer)[5:] == ["a", "b", "##b", "ab"]
    assert "The vocabulary has 9 entries, not 500" in caplog.text


def test_order_of_the_texts_does_not_matter() -> None:
    lines = [line for name in ("turkish", "hindi", "chinese") for line in read(name)] * 2
    assert pieces(train(lines, vocab_size=500)) == pieces(
        train([" ".join(reversed(lines))], vocab_size=500)
    )


def test_same_input_gives_the_same_bytes_in_any_process(tmp_path: Path) -> None:
    # The library's own trainer fails this: it numbers ##x pieces in the order of a hash map.
    script = (
        "import sys; from bert_recipes import train_wordpiece\n"
        "lines = open(sys.argv[1], encoding='utf-8').read().splitlines()\n"
        "train_wordpiece(lines * 3, vocab_size=350, "
        "show_progress=False).save_pretrained(sys.argv[2])\n"
    )
    digests = []
    for seed, threads in (("0", "1"), ("1", "2"), ("2", "4")):
        folder = tmp_path / seed
        environment = {
            "PYTHONHASHSEED": seed,
            "RAYON_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": "true",
        }
        subprocess.run(
            [sys.executable, "-c", script, FIXTURES / "turkish.txt", folder],
            check=True,
            env={**os.environ, **environment},
        )
        digests.append(
            {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}
        )
    assert digests[0] == digests[1] == digests[2]
    assert set(digests[0]) == {"tokenizer.json", "tokenizer_config.json", "vocab.txt"}


def test_alphabet_limit_keeps_the_most_frequent_characters_ties_by_code_point() -> None:
    tokenizer = train(["aaab bz yc"] * 2, vocab_size=50, num_unused=0, limit_alphabet=3)
    assert [piece for piece in pieces(tokenizer) if len(piece) == 1] == ["a", "b", "c"]
    assert tokenizer.tokenize("ab yc bz") == ["a", "##b", "[UNK]", "[UNK]"]
    report = tokenizer.training_report
    assert (report.alphabet_size, report.dropped_alphabet_size) == (3, 2)
    assert report.unk_rate == pytest.approx(2 / 3)


def test_figures_are_exact_counts_over_the_text() -> None:
    tokenizer = train(["Abab cd, ab!", "x"], vocab_size=21, num_unused=0)
    report = tokenizer.training_report
    words = normalize_text("Abab cd, ab! x", lowercase=True).split()
    assert (report.num_texts, report.num_characters, report.num_tokens, report.num_words) == (
        2,
        13,
        len(words),
        4,
    )
    by_hand = [len(tokenizer.tokenize(word)) for word in words if word not in ",!"]
    assert report.fertility == sum(by_hand) / 4
    assert report.unk_rate == 0.0
    assert f"{report.fertility:.3f} pieces a word" in str(report)


def test_words_over_200_characters_train_nothing_and_count_as_unknown() -> None:
    tokenizer = train(["q" * 201, "ab ab"], vocab_size=30, num_unused=0)
    assert not [piece for piece in pieces(tokenizer) if piece.startswith("qq")]
    assert tokenizer.training_report.unk_rate == pytest.approx(1 / 3)


def test_long_runs_without_spaces_are_warned_of_with_another_kind_of_vocabulary(caplog) -> None:
    """A sentence of Thai is one word for WordPiece, and over 200 characters it is [UNK]."""
    train(["ไม่มีช่องว่างระหว่างคำ" * 20, "คำ คน"])
    assert "of the tokens are [UNK]" in caplog.text
    assert "script Thai" in caplog.text
    assert "runs of over 200 characters without a space: part the words" in caplog.text
    assert "--algorithm unigram" in caplog.text


def test_an_alphabet_that_is_cut_too_short_is_warned_of_with_its_flag(caplog) -> None:
    train(["ab ab ab cd"] * 5, limit_alphabet=2)
    assert "25.0% of the tokens are [UNK]" in caplog.text
    assert (
        "script Latin; they hold characters that --limit_alphabet 2 leaves out: raise it"
        in caplog.text
    )


def test_rare_words_are_forgotten_to_bound_memory_and_counted(monkeypatch, caplog) -> None:
    monkeypatch.setattr(training, "_MAX_DISTINCT_TOKENS", 10)
    texts = ["often often often again again", " ".join(f"w{n}" for n in range(12)), "often again"]
    report = train(texts, vocab_size=60, num_unused=0).training_report
    assert report.num_forgotten_tokens == 12
    assert report.num_tokens == 7
    assert "are forgotten (12 occurrences in all)" in caplog.text


def test_half_a_surrogate_pair_does_not_reach_the_vocabulary() -> None:
    tokenizer = train(["ab ab\ud83d"], vocab_size=20, num_unused=0)
    assert tokenizer.tokenize("ab") == ["ab"] or tokenizer.tokenize("ab") == ["a", "##b"]
    assert tokenizer.training_report.dropped_alphabet_size == 1


# Languages


def test_hindi_loses_its_vowel_signs_unless_accents_are_kept() -> None:
    # U+0939 U+093F U+0902 U+0926 U+0940: the anusvara U+0902 is a mark that is dropped.
    word = "\u0939\u093f\u0902\u0926\u0940"
    assert train(read("hindi"), vocab_size=400).normalize(word) == "\u0939\u093f\u0926\u0940"
    tokenizer = train(read("hindi"), vocab_size=400, strip_accents=False)
    assert tokenizer.normalize(word) == word
    assert tokenizer.training_report.unk_rate == 0.0


def test_thai_whose_words_are_parted_by_spaces_keeps_its_words() -> None:
    """I eat rice, I go home."""
    text = ["ฉัน กิน ข้าว", "ฉัน ไป บ้าน"] * 20
    tokenizer = train(text, vocab_size=200, strip_accents=False)
    assert tokenizer.tokenize(" ".join(text[:2])) == " ".join(text[:2]).split()
    assert tokenizer.unk_token_id not in tokenizer("บ้าน ข้าว")["input_ids"]


@pytest.mark.parametrize(
    ("texts", "share"),
    [
        (["ab \u0939\u0902"], "20.0%"),  # a vowel sign, of Hindi
        (["\u304c", "\u304e "], "66.7%"),  # kana with voicing marks
        (["\u0439a \u0451"], "50.0%"),  # Russian letters
        (["\u00e4b", "ascii"], "14.3%"),
        (["caf\u00e9", "a" * 196], "0.5%"),
        (["caf\u00e9", "a" * 197], None),
        (["\u5317\u4eac"], None),
    ],
)
def test_many_marks_that_are_dropped_are_one_warning(
    texts: list[str], share: str | None, caplog
) -> None:
    train([*texts, ""], vocab_size=200)
    messages = [record.message for record in caplog.records if "accents" in record.message]
    assert len(messages) == (share is not None)
    assert share is None or f"vowel signs, {share} of the characters" in messages[0]
    caplog.clear()
    train(texts, vocab_size=200, strip_accents=False)
    assert "accents" not in caplog.text


def test_turkish_keeps_its_letters_without_stripping() -> None:
    tokenizer = train(read("turkish"), vocab_size=400, lowercase=False)
    assert {"\u0131", "\u0130", "\u015f", "\u011f"} <= set(pieces(tokenizer))
    assert tokenizer.training_report.unk_rate == 0.0


@pytest.mark.parametrize("split_cjk", [True, False])
def test_chinese_words_are_single_characters_unless_switched_off(split_cjk: bool) -> None:
    tokenizer = train(read("chinese") * 3, vocab_size=400, split_cjk=split_cjk)
    longest = max(
        len(piece.removeprefix("##"))
        for piece in pieces(tokenizer)
        if "\u4e00" <= piece[-1] <= "\u9fff"
    )
    assert (longest == 1) == split_cjk
    assert tokenizer.tokenize("\u6211\u5011")[0].startswith("\u6211") == split_cjk


# Bad input


@pytest.mark.parametrize(
    ("texts", "settings", "message"),
    [
        ([], {}, "no word in the 0 texts"),
        (["", " \n"], {}, "no word in the 2 texts"),
        (
            ["abc"],
            {"vocab_size": 105},
            "vocab_size 105 is too small: 104 special and .* 5 single characters need 109",
        ),
        (["abc"], {"num_unused": -1}, "num_unused is -1; allowed: 0 to 10,000,000"),
        (["abc"], {"vocab_size": 10**12}, "vocab_size is 1000000000000; allowed: 6 to 10,000,000"),
    ],
)
def test_bad_input_is_one_clear_line(
    texts: list[str], settings: dict[str, int], message: str
) -> None:
    with pytest.raises(InputError, match=message) as error:
        train(texts, **settings)
    assert "\n" not in str(error.value)
