"""The sequential driver equals create_pretraining_data.py, token for token and in order."""

import random
from array import array
from types import SimpleNamespace

import original_rules
import pytest
from transformers import AlbertTokenizer

from bert_recipes.data.original import (
    OriginalSettings,
    create_training_instances,
    read_documents,
    shuffle,
)
from bert_recipes.errors import InputError


STEMS = ["the", "a", "run", "play", "Un", "un", "house", "E", "x", "over"]
ENDINGS = ["##s", "##ing", "##ed", "##ly", "##er", "##un"]
SPECIAL = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [*SPECIAL, *STEMS, *ENDINGS, ".", ",", "[", "]", "!"]
VOCABULARY = {piece: number for number, piece in enumerate(PIECES)}
TOKENIZER = SimpleNamespace(
    get_vocab=lambda: VOCABULARY,
    cls_token_id=VOCABULARY["[CLS]"],
    sep_token_id=VOCABULARY["[SEP]"],
    mask_token_id=VOCABULARY["[MASK]"],
)


def encode(text):
    return [VOCABULARY[piece] for piece in original_rules.tokenize(text, VOCABULARY, False)]


def random_word(rng):
    endings = rng.choices(ENDINGS, k=rng.choice([0, 0, 1, 2, 4]))
    return rng.choice(STEMS) + "".join(endings).replace("##", "")


def random_text(rng, num_documents, max_sentences, max_words):
    """A text of words of several pieces, with blank lines, odd spaces and unknown words."""
    lines = []
    for _ in range(num_documents):
        for _ in range(rng.randint(1, max_sentences)):
            words = [random_word(rng) for _ in range(rng.randint(1, max_words))]
            if rng.random() < 0.1:
                words.append(rng.choice(["zzz", "[SEP]", "\x00", "\u3000"]))
            indent = rng.choice(["", "  "])
            lines.append(indent + " ".join(words) + rng.choice([".", "!", "", "\r"]))
        lines += [rng.choice(["", "  ", "\t"])] * rng.randint(1, 2)
    return "\n".join(lines) + rng.choice(["", "\n"])


def our_features(files, seed, settings):
    documents = read_documents(files, encode)
    instances = create_training_instances(documents, TOKENIZER, settings, random.Random(seed))
    return [features_of(instance, settings) for instance in instances]


def original_features(files, seed, settings):
    texts = [file.read_bytes().decode("utf-8") for file in files]
    instances = original_rules.create_instances(
        original_rules.read_documents(texts, VOCABULARY, False),
        VOCABULARY,
        seed,
        settings.max_seq_length,
        settings.dupe_factor,
        settings.short_seq_prob,
        settings.masked_lm_prob,
        settings.max_predictions_per_seq,
        settings.whole_word,
    )
    sizes = settings.max_seq_length, settings.max_predictions_per_seq
    return [original_rules.features(instance, VOCABULARY, *sizes) for instance in instances]


def list_of(value):
    return value.tolist() if isinstance(value, array) else value


def features_of(instance, settings):
    input_ids, boundary, positions, labels, is_random = map(list_of, instance)
    padding = settings.max_seq_length - len(input_ids)
    unused = settings.max_predictions_per_seq - len(labels)
    return {
        "input_ids": input_ids + [0] * padding,
        "input_mask": [1] * len(input_ids) + [0] * padding,
        "segment_ids": [0] * boundary + [1] * (len(input_ids) - boundary) + [0] * padding,
        "masked_lm_positions": positions + [0] * unused,
        "masked_lm_ids": labels + [0] * unused,
        "masked_lm_weights": [1.0] * len(labels) + [0.0] * unused,
        "next_sentence_labels": [int(is_random)],
    }


@pytest.mark.parametrize("whole_word", [False, True])
@pytest.mark.parametrize("max_seq_length", [8, 9, 24, 128, 512])
def test_instances_equal_the_original_on_random_corpora(tmp_path, max_seq_length, whole_word):
    rng = random.Random(1000 * max_seq_length + whole_word)

    for _ in range(12):
        files = [tmp_path / f"{number}.txt" for number in range(rng.choice([1, 1, 2]))]
        for file in files:
            sizes = rng.choice([2, 3, 8]), rng.choice([1, 4, 25]), rng.choice([2, 12, 60])
            file.write_bytes(random_text(rng, *sizes).encode("utf-8"))
        seed = rng.randrange(10**6)
        settings = OriginalSettings(
            max_seq_length=max_seq_length,
            dupe_factor=rng.choice([1, 2, 5]),
            short_seq_prob=rng.choice([0.0, 0.1, 1.0]),
            masked_lm_prob=rng.choice([0.05, 0.15, 0.5, 1.0]),
            max_predictions_per_seq=rng.choice([1, 2, 20, 77]),
            whole_word=whole_word,
        )
        assert our_features(files, seed, settings) == original_features(files, seed, settings)


def test_one_document_is_paired_with_itself_as_in_the_original(tmp_path):
    file = tmp_path / "one.txt"
    file.write_text("the house.\nrun over a house\nplaying\n")
    settings = OriginalSettings(
        max_seq_length=16,
        dupe_factor=4,
        short_seq_prob=0.1,
        masked_lm_prob=0.15,
        max_predictions_per_seq=5,
        whole_word=False,
    )

    assert our_features([file], 1, settings) == original_features([file], 1, settings)


def sentences_of_documents(*files):
    return [len(lengths) for lengths in read_documents(files, encode).lengths]


def test_lines_without_tokens_are_counted(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes(b"the\n\x00\n\nplay\n")

    assert sentences_of_documents(file) == [1, 1]
    assert read_documents([file], encode).num_lines_without_tokens == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"the house\n\xe9t\xe9\n", r"a\.txt, line 2: not UTF-8 .*byte 0xe9"),
        (b"\n \n\x00\n", "there is no sentence"),
        (b"the\n" + b"x" * 30, r"a\.txt, line 2: this line is longer than 20 bytes"),
    ],
)
def test_bad_text_is_named(tmp_path, monkeypatch, content, message):
    monkeypatch.setattr("bert_recipes.data.original.DEFAULT_MAX_LINE_BYTES", 20)
    file = tmp_path / "a.txt"
    file.write_bytes(content)

    with pytest.raises(InputError, match=message):
        read_documents([file], encode)


def test_shuffle_draws_as_the_standard_library_does():
    standard, rng = random.Random(3), random.Random(3)

    for size in [*range(40), 127, 128, 129, 1000]:
        expected, items = list(range(size)), list(range(size))
        standard.shuffle(expected)
        shuffle(items, rng)
        assert items == expected

    assert rng.getstate() == standard.getstate()


def test_words_of_a_sentencepiece_vocabulary_stay_whole(tmp_path):
    """google-research/albert create_pretraining_data.py, `_is_start_piece_sp`."""
    pieces = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "\u2581m", "en", "\u2581so"]
    tokenizer = AlbertTokenizer(vocab=[(piece, -1.0) for piece in pieces])
    start, end = pieces.index("\u2581m"), pieces.index("en")
    file = tmp_path / "a.txt"
    file.write_text("men so men men\nso men so so men\n\nmen so\nso so men men so\n")
    documents = read_documents(
        [file], lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]
    )
    settings = OriginalSettings(
        max_seq_length=24,
        short_seq_prob=0.1,
        dupe_factor=20,
        masked_lm_prob=0.4,
        max_predictions_per_seq=6,
        whole_word=True,
    )
    instances = create_training_instances(documents, tokenizer, settings, random.Random(1))
    num_words = 0
    for instance in instances:
        predicted = dict(zip(instance.masked_positions, instance.masked_ids, strict=True))
        for position, number in predicted.items():
            if number == start:
                num_words += 1
                assert predicted[position + 1] == end
            if number == end:
                assert predicted[position - 1] == start
    assert num_words > 50


def test_the_first_word_of_b_is_a_word_in_a_byte_level_vocabulary(tmp_path):
    """Stock's byte-level tokenizers put no space before the first word of a text."""
    pieces = ["<s>", "</s>", "<mask>", "so", "\u0120so", "\u0120do"]
    tokenizer = SimpleNamespace(
        get_vocab=lambda: {piece: number for number, piece in enumerate(pieces)},
        cls_token_id=0,
        sep_token_id=1,
        mask_token_id=2,
    )
    file = tmp_path / "a.txt"
    file.write_text("so do so\nso do\nso so do do\n\nso do do\nso so\n")
    documents = read_documents(
        [file], lambda text: [pieces.index(word) for word in text.replace(" ", " \u0120").split()]
    )
    settings = OriginalSettings(
        max_seq_length=64,
        short_seq_prob=0.0,
        dupe_factor=20,
        masked_lm_prob=0.4,
        max_predictions_per_seq=6,
        whole_word=True,
    )
    num_apart = 0
    for instance in create_training_instances(documents, tokenizer, settings, random.Random(1)):
        predicted = set(instance.masked_positions)
        num_apart += (instance.boundary in predicted) != (instance.boundary - 2 in predicted)
    assert num_apart > 0
