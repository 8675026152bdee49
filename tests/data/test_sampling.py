"""Languages and sources by a power of their share. Source: google-research/bert multilingual.md."""

from collections import Counter

import pytest

from bert_recipes.data.corpus import CorpusCounts
from bert_recipes.data.prepare import CorpusArguments, Preparation, sampling_weights
from bert_recipes.errors import InputError


@pytest.fixture
def sources(tmp_path):
    """900 documents of one language and 100 of another, all of the same size."""
    for name, number in (("en", 900), ("sw", 100)):
        (tmp_path / name).mkdir()
        text = "\n\n".join(f"{name} {document:03d}" for document in range(number))
        (tmp_path / name / "text.txt").write_text(text + "\n\n", encoding="utf-8")
    return tmp_path


def arguments(folder, **changes):
    files = [str(folder / "en"), str(folder / "sw")]
    return CorpusArguments(output_dir=str(folder / "store"), tokenizer="x", files=files, **changes)


def documents(folder, **changes):
    preparation = Preparation(arguments(folder, **changes), None)
    counts = {"train": CorpusCounts(), "validation": CorpusCounts()}
    return [(split, document[0]) for split, document in preparation._documents(0, counts)]


def test_shares_become_their_power_and_the_corpus_keeps_its_size(sources):
    shares = {"en": 0.9**0.7, "sw": 0.1**0.7}
    drawn = Counter(text[:2] for _, text in documents(sources, sampling_exponent=0.7))
    for name, share in shares.items():
        assert drawn[name] == pytest.approx(1000 * share / sum(shares.values()), abs=25)
    weights = sampling_weights(arguments(sources, sampling_exponent=0.7)).values()
    assert list(weights) == pytest.approx(
        [
            share / sum(shares.values()) / p
            for share, p in zip(shares.values(), (0.9, 0.1), strict=True)
        ]
    )


def test_the_draw_follows_from_the_seed_and_held_out_documents_stay_once(sources):
    one = documents(sources, sampling_exponent=0.7, validation_fraction=0.2)
    assert one == documents(sources, sampling_exponent=0.7, validation_fraction=0.2)
    assert one != documents(sources, sampling_exponent=0.7, validation_fraction=0.2, seed=2)
    held_out = [text for split, text in one if split == "validation"]
    assert len(held_out) == len({*held_out})
    assert not {*held_out} & {text for split, text in one if split == "train"}
    plain = [
        text for split, text in documents(sources, validation_fraction=0.2) if split == "validation"
    ]
    assert held_out == plain
    everything = [text for _, text in documents(sources)]
    assert everything == [text for _, text in documents(sources, sampling_exponent=1.0)]


def test_what_cannot_be_weighed_is_one_line(sources):
    with pytest.raises(InputError, match="give two or more"):
        CorpusArguments(output_dir="x", tokenizer="x", files=["a"], sampling_exponent=0.7)
    same = CorpusArguments(
        output_dir="x",
        tokenizer="x",
        files=[str(sources), str(sources / "sw")],
        sampling_exponent=0.7,
    )
    with pytest.raises(InputError, match="a file is in two entries"):
        sampling_weights(same)
