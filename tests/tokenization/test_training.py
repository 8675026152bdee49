"""`train_wordpiece`: layout, determinism, alphabet, warnings, figures."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError
from bert_recipes.tokenization import training
from bert_recipes.tokenization.normalization import normalize_text
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer
from bert_recipes.tokenization.training import TokenizerArguments, train_wordpiece


FIXTURES = Path(__file__).parents[1] / "fixtures" / "text"


def read(name: str) -> list[str]:
    return (FIXTURES / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def pieces(tokenizer: OriginalBertTokenizer) -> list[str]:
    return tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))


def train(texts: list[str], **settings) -> OriginalBertTokenizer:
    return train_wordpiece(texts, show_progress=False, **settings)


@pytest.mark.parametrize(
    ("num_unused", "next_pieces"),
    [(99, ["!"]), (994, ["[unused99]", "[unused100]"]), (2, ["!"]), (0, ["!"])],
)
def test_special_tokens_have_the_ids_of_googles_vocabularies(
    num_unused: int, next_pieces: list[str]
) -> None:
    tokenizer = train(["hello world!"] * 3, vocab_size=num_unused + 25, num_unused=num_unused)
    slots = [f"[unused{number}]" for number in range(min(num_unused, 99))]
    expected = ["[PAD]", *slots, "[UNK]", "[CLS]", "[SEP]", "[MASK]", *next_pieces]
    assert pieces(tokenizer)[: len(expected)] == expected


def test_layout_of_bert_base_uncased(shared_data: Path) -> None:
    file = shared_data / "vocab" / "bert-base-uncased-vocab.txt"
    google = file.read_text(encoding="utf-8").splitlines()
    assert pieces(train(["hello"] * 2, vocab_size=1010, num_unused=994))[:999] == google[:999]


def test_characters_come_in_order_then_pieces_by_frequency(monkeypatch) -> None:
    tokenizer = train(["ab cab", "ab"], vocab_size=11, num_unused=0)
    assert pieces(tokenizer)[5:] == ["a", "b", "c", "##a", "##b", "ab"]
    # The trainer gets a word in several chunks of text, the last of them shorter.
    monkeypatch.setattr(training, "_CHUNK_CHARACTERS", 12)
    tokenizer = train(["ab " * 9 + "cd " * 10], vocab_size=13, num_unused=0)
    assert pieces(tokenizer)[5:] == ["a", "b", "c", "d", "##b", "##d", "cd", "ab"]


def test_vocabulary_has_exactly_the_size_asked_for_when_the_text_suffices(caplog) -> None:
    tokenizer = train(read("turkish") * 2, vocab_size=300)
    assert len(set(pieces(tokenizer))) == tokenizer.training_report.vocab_size == 300
    assert "entries" not in caplog.text
    tokenizer = train(["ab ab"], vocab_size=500, num_unused=0)
    assert pieces(tokenizer)[5:] == ["a", "b", "##b", "ab"]
    assert "The vocabulary has 9 entries, not 500" in caplog.text


def test_order_of_the_texts_does_not_matter() -> None:
    lines = [*read("turkish"), *read("hindi"), *read("chinese")] * 2
    backwards = train([" ".join(reversed(lines))], vocab_size=500)
    assert pieces(train(lines, vocab_size=500)) == pieces(backwards)


def test_same_input_gives_the_same_bytes_in_any_process(tmp_path: Path) -> None:
    # The library's own trainer fails this: it numbers ##x pieces in the order of a hash map.
    script = (
        "import sys; from bert_recipes import train_wordpiece\n"
        "lines = open(sys.argv[1], encoding='utf-8').read().splitlines()\n"
        "train_wordpiece(lines * 3, vocab_size=350, "
        "show_progress=False).save_pretrained(sys.argv[2])\n"
    )
    contents = []
    for seed, threads in (("0", "1"), ("1", "4")):
        folder = tmp_path / seed
        environment = {"PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads}
        subprocess.run(
            [sys.executable, "-c", script, FIXTURES / "turkish.txt", folder],
            check=True,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "true", **environment},
        )
        contents.append({file.name: file.read_bytes() for file in folder.iterdir()})
    assert contents[0] == contents[1]
    assert set(contents[0]) == {"tokenizer.json", "tokenizer_config.json", "vocab.txt"}


def test_alphabet_limit_keeps_the_most_frequent_characters_ties_by_code_point(caplog) -> None:
    tokenizer = train(["aaab bz yc"] * 2, vocab_size=50, num_unused=0, limit_alphabet=3)
    assert [piece for piece in pieces(tokenizer) if len(piece) == 1] == ["a", "b", "c"]
    assert tokenizer.tokenize("ab yc bz") == ["a", "##b", "[UNK]", "[UNK]"]
    report = tokenizer.training_report
    assert (report.alphabet_size, report.dropped_alphabet_size) == (3, 2)
    assert report.unk_rate == pytest.approx(2 / 3)
    assert "66.7% of the tokens are [UNK]" in caplog.text
    assert "script Latin; they hold characters that --limit_alphabet 3 leaves out" in caplog.text


def test_figures_are_exact_counts_over_the_text() -> None:
    tokenizer = train(["Abab cd, ab!", "x"], vocab_size=21, num_unused=0)
    report = tokenizer.training_report
    tokens = normalize_text("Abab cd, ab! x", lowercase=True).split()
    assert (report.num_texts, report.num_characters) == (2, 13)
    assert (report.num_tokens, report.num_words) == (len(tokens), 4)
    by_hand = [len(tokenizer.tokenize(word)) for word in tokens if word not in ",!"]
    assert report.fertility == sum(by_hand) / 4
    assert report.unk_rate == 0.0
    assert f"{report.fertility:.3f} pieces a word" in str(report)


def test_words_over_200_characters_train_nothing_and_are_warned_of(caplog) -> None:
    """A sentence of Thai is one word for WordPiece, and over 200 characters it is [UNK]."""
    tokenizer = train(["q" * 201, "ab ab"], vocab_size=30, num_unused=0)
    assert not [piece for piece in pieces(tokenizer) if piece.startswith("qq")]
    assert tokenizer.training_report.unk_rate == pytest.approx(1 / 3)
    train(["ไม่มีช่องว่างระหว่างคำ" * 20, "คำ คน"])
    assert "script Thai" in caplog.text
    assert "runs of over 200 characters without a space: separate the words" in caplog.text
    assert "--algorithm unigram" in caplog.text


def test_rare_words_are_forgotten_to_bound_memory_and_counted(monkeypatch, caplog) -> None:
    monkeypatch.setattr(training, "_MAX_DISTINCT_TOKENS", 10)
    rare = " ".join(f"w{number}" for number in range(12))
    texts = ["often often often again again", rare, "often again"]
    report = train(texts, vocab_size=60, num_unused=0).training_report
    assert (report.num_forgotten_tokens, report.num_tokens) == (12, 7)
    assert "are forgotten (12 occurrences in all)" in caplog.text


def test_half_a_surrogate_pair_does_not_reach_the_vocabulary() -> None:
    tokenizer = train(["ab ab\ud83d"], vocab_size=20, num_unused=0)
    assert pieces(tokenizer)[5:] == ["a", "b", "##b"]
    assert tokenizer.training_report.dropped_alphabet_size == 1


# Languages


@pytest.mark.parametrize(
    ("name", "word"),
    # U+0939 U+093F U+0902 U+0926 U+0940: the anusvara U+0902 is a mark that is dropped.
    [("hindi", "\u0939\u093f\u0902\u0926\u0940"), ("turkish", "\u0131\u015f\u011f")],
)
def test_letters_stay_whole_only_without_stripping(name: str, word: str) -> None:
    assert train(read(name), vocab_size=400).normalize(word) != word
    tokenizer = train(read(name), vocab_size=400, strip_accents=False)
    assert tokenizer.normalize(word) == word
    assert tokenizer.training_report.unk_rate == 0.0


def test_thai_whose_words_are_separated_by_spaces_keeps_its_words() -> None:
    """I eat rice, I go home."""
    text = ["ฉัน กิน ข้าว", "ฉัน ไป บ้าน"] * 20
    tokenizer = train(text, vocab_size=200, strip_accents=False)
    assert tokenizer.tokenize(" ".join(text[:2])) == " ".join(text[:2]).split()


@pytest.mark.parametrize(
    ("texts", "share"),
    [
        (["\u304c", "\u304e "], "66.7%"),  # kana with voicing marks
        (["\u0439a \u0451"], "50.0%"),  # Russian letters
        (["caf\u00e9", "a" * 996], "0.1%"),
        (["caf\u00e9", "a" * 997], None),
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


@pytest.mark.parametrize("split_cjk", [True, False])
def test_chinese_words_are_single_characters_unless_switched_off(split_cjk: bool) -> None:
    tokenizer = train(read("chinese") * 3, vocab_size=400, split_cjk=split_cjk)
    chinese = [piece for piece in pieces(tokenizer) if "\u4e00" <= piece[-1] <= "\u9fff"]
    longest = max(len(piece.removeprefix("##")) for piece in chinese)
    assert (longest == 1) == split_cjk


@pytest.mark.parametrize(
    ("algorithm", "names"),
    [
        ("likelihood", ()),
        ("byte_bpe", ("lowercase false", "limit_alphabet 5")),
        ("unigram", ("min_frequency 3", "limit_alphabet 5")),
    ],
)
def test_settings_that_another_kind_of_vocabulary_does_not_have_are_said(algorithm, names, caplog):
    flags = "--files x --output_dir y --lowercase false --limit_alphabet 5 --min_frequency 3"
    parse_arguments(TokenizerArguments, argv=[*flags.split(), "--algorithm", algorithm])
    assert all(f"{name}" in caplog.text for name in names)
    assert ("without effect" in caplog.text) == bool(names)


def test_the_length_of_lines_has_no_effect_on_a_data_set_of_the_hub(caplog):
    flags = "--output_dir y --max_line_bytes 9 --dataset_name owner/name"
    parse_arguments(TokenizerArguments, argv=flags.split())
    assert "max_line_bytes 9 (only without --dataset_name)" in caplog.text


# Bad input


def test_a_line_of_more_bytes_than_any_machine_holds_is_refused():
    with pytest.raises(InputError, match=r"max_line_bytes is 1000.*; allowed: 1 to"):
        TokenizerArguments(files=["x"], output_dir="y", max_line_bytes=10**20)


@pytest.mark.parametrize(
    ("texts", "settings", "message"),
    [
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
