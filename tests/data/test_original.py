"""The sequential driver equals create_pretraining_data.py, token for token and in order."""

import random
import runpy
from array import array
from pathlib import Path
from types import SimpleNamespace

import pytest

from bert_recipes.data.original import (
    OriginalMasking,
    create_training_instances,
    mask_in_original_order,
    read_documents,
    shuffle,
)
from bert_recipes.errors import InputError


ORIGINAL = runpy.run_path(str(Path(__file__).parents[1] / "fixtures" / "original_rules.py"))
STEMS = ["the", "a", "run", "play", "Un", "un", "house", "E", "x", "over"]
ENDINGS = ["##s", "##ing", "##ed", "##ly", "##er", "##un"]
VOCABULARY = {
    piece: number
    for number, piece in enumerate(
        [
            "[PAD]",
            "[unused0]",
            "[UNK]",
            "[CLS]",
            "[SEP]",
            "[MASK]",
            *STEMS,
            *ENDINGS,
            ".",
            ",",
            "[",
            "]",
            "!",
        ]
    )
}


def encode(text):
    return [VOCABULARY[piece] for piece in ORIGINAL["tokenize"](text, VOCABULARY, False)]


def random_text(rng, num_documents, max_sentences, max_words):
    """A text of words that are cut into pieces, with blank lines, odd spaces and words that are
    unknown.
    """
    lines = []
    for _ in range(num_documents):
        for _ in range(rng.randint(1, max_sentences)):
            words = [
                rng.choice(STEMS)
                + "".join(
                    rng.choices([ending[2:] for ending in ENDINGS], k=rng.choice([0, 0, 1, 2, 4]))
                )
                for _ in range(rng.randint(1, max_words))
            ]
            if rng.random() < 0.1:
                words.append(rng.choice(["zzz", "[SEP]", "\x00", "\u3000"]))
            lines.append(
                "  " * rng.randint(0, 1) + " ".join(words) + rng.choice([".", "!", "", "\r"])
            )
        lines += [rng.choice(["", "  ", "\t"])] * rng.randint(1, 2)
    return "\n".join(lines) + rng.choice(["", "\n"])


TOKENIZER = SimpleNamespace(
    get_vocab=lambda: VOCABULARY,
    **{f"{name.lower()}_token_id": VOCABULARY[f"[{name}]"] for name in ("CLS", "SEP", "MASK")},
)


def create_ours(
    files, *, seed, max_seq, dupe, short_prob, masked_prob, max_predictions, whole_word
):
    return create_training_instances(
        read_documents(files, encode),
        TOKENIZER,
        max_seq_length=max_seq,
        short_seq_prob=short_prob,
        dupe_factor=dupe,
        masked_lm_prob=masked_prob,
        max_predictions_per_seq=max_predictions,
        whole_word=whole_word,
        rng=random.Random(seed),
    )


def create_theirs(
    files, *, seed, max_seq, dupe, short_prob, masked_prob, max_predictions, whole_word
):
    texts = [file.read_bytes().decode("utf-8") for file in files]
    documents = ORIGINAL["read_documents"](texts, VOCABULARY, False)
    instances = ORIGINAL["create_instances"](
        documents,
        VOCABULARY,
        seed,
        max_seq,
        dupe,
        short_prob,
        masked_prob,
        max_predictions,
        whole_word,
    )
    return [
        ORIGINAL["features"](instance, VOCABULARY, max_seq, max_predictions)
        for instance in instances
    ]


def list_of(value):
    return value.tolist() if isinstance(value, array) else value


def features_of(instance, max_seq, max_predictions):
    input_ids, boundary, positions, labels, is_random = map(list_of, instance)
    padding, missing = max_seq - len(input_ids), max_predictions - len(labels)
    return {
        "input_ids": input_ids + [0] * padding,
        "input_mask": [1] * len(input_ids) + [0] * padding,
        "segment_ids": [0] * boundary + [1] * (len(input_ids) - boundary) + [0] * padding,
        "masked_lm_positions": positions + [0] * missing,
        "masked_lm_ids": labels + [0] * missing,
        "masked_lm_weights": [1.0] * len(labels) + [0.0] * missing,
        "next_sentence_labels": [int(is_random)],
    }


@pytest.mark.parametrize("whole_word", [False, True])
@pytest.mark.parametrize("max_seq", [8, 9, 24, 128, 512])
def test_instances_equal_the_original_on_random_corpora(tmp_path, max_seq, whole_word):
    source = random.Random(1000 * max_seq + whole_word)
    for round_number in range(25):
        files = [
            tmp_path / f"{round_number}-{part}.txt" for part in range(source.choice([1, 1, 2]))
        ]
        for file in files:
            sizes = source.choice([2, 3, 8]), source.choice([1, 4, 25]), source.choice([2, 12, 60])
            file.write_bytes(random_text(source, *sizes).encode("utf-8"))
        settings = {
            "seed": source.randrange(10**6),
            "max_seq": max_seq,
            "dupe": source.choice([1, 2, 5]),
            "short_prob": source.choice([0.0, 0.1, 1.0]),
            "masked_prob": source.choice([0.05, 0.15, 0.5, 1.0]),
            "max_predictions": source.choice([1, 2, 20, 77]),
            "whole_word": whole_word,
        }
        theirs = create_theirs(files, **settings)
        ours = create_ours(files, **settings)
        assert len(ours) == len(theirs)
        for instance, expected in zip(ours, theirs, strict=True):
            assert features_of(instance, max_seq, settings["max_predictions"]) == expected


def test_one_document_is_paired_with_itself_as_in_the_original(tmp_path):
    file = tmp_path / "one.txt"
    file.write_text("the house.\nrun over a house\nplaying\n")
    settings = {
        "seed": 1,
        "max_seq": 16,
        "dupe": 4,
        "short_prob": 0.1,
        "masked_prob": 0.15,
        "max_predictions": 5,
    }
    ours = create_ours([file], **settings, whole_word=False)
    assert [features_of(one, 16, 5) for one in ours] == create_theirs(
        [file], **settings, whole_word=False
    )


def test_the_end_of_a_file_ends_no_document(tmp_path):
    first, second = tmp_path / "1.txt", tmp_path / "2.txt"
    first.write_text("the house\n\na run")
    second.write_text("over\n\nplay\n")
    assert [len(lengths) for lengths in read_documents([first, second], encode).lengths] == [
        1,
        2,
        1,
    ]


def test_lines_without_tokens_are_counted(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes(b"the\n\x00\n\nplay\n")
    documents = read_documents([file], encode)
    assert documents.num_lines_without_tokens == 1
    assert [list(lengths) for lengths in documents.lengths] == [[1], [1]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"the house\n\xe9t\xe9\n", r"a\.txt, line 2: not UTF-8 .*byte 0xe9"),
        (b"", "no sentence in 0 lines"),
        (b"\n \n\x00\n", "no sentence in 3 lines"),
    ],
)
def test_bad_text_is_named(tmp_path, content, message):
    file = tmp_path / "a.txt"
    file.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_documents([file], encode)


def test_a_line_that_is_no_sentence_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("bert_recipes.data.original.MAX_LINE_BYTES", 20)
    file = tmp_path / "a.txt"
    file.write_bytes(b"the house runs over\n" + b"the\n" + b"x" * 30)
    with pytest.raises(InputError, match=r"a\.txt, line 3: this line is longer than 20 bytes"):
        read_documents([file], encode)
    file.write_bytes(b"the house runs over\n" + b"the")
    assert [len(lengths) for lengths in read_documents([file], encode).lengths] == [2]


def test_shuffle_draws_as_the_standard_library_does():
    theirs, ours = random.Random(3), random.Random(3)
    for size in [*range(40), 127, 128, 129, 1000]:
        expected, given = list(range(size)), list(range(size))
        theirs.shuffle(expected)
        shuffle(given, ours)
        assert given == expected
    assert ours.getstate() == theirs.getstate()


def test_whole_words_that_would_exceed_the_limit_are_passed_over():
    masking = OriginalMasking(
        masked_lm_prob=0.5,
        max_predictions_per_seq=2,
        whole_word=True,
        mask_id=9,
        random_word_ids=[0],
        is_continuation=[number == 5 for number in range(10)],
    )
    for seed in range(30):
        # Words of 3, 1 and 1 pieces; only two predictions fit, so the long word is never masked.
        positions, _ = mask_in_original_order(
            [1, 4, 5, 5, 2, 6, 7, 2], 5, masking, random.Random(seed)
        )
        assert positions == [5, 6]
