"""Languages and sources by a power of their share. Source: google-research/bert multilingual.md."""

import gzip
import itertools
from collections import Counter

import numpy as np
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
    shares = np.array([0.9, 0.1])
    smoothed = shares**0.7 / (shares**0.7).sum()
    texts = [text for _, text in documents(sources, sampling_exponent=0.7)]
    counts = [sum(text.startswith(name) for text in texts) for name in ("en", "sw")]

    assert counts == pytest.approx(1000 * smoothed, abs=25)

    weights = sampling_weights(arguments(sources, sampling_exponent=0.7))

    assert list(weights.values()) == pytest.approx(smoothed / shares, abs=5e-4)


def test_a_character_that_is_mended_leaves_the_other_shards_as_they_are(sources):
    """A preparation that goes on after an edit has the weights of before."""
    settings = arguments(sources, sampling_exponent=0.7)
    before = sampling_weights(settings)
    with (sources / "en" / "text.txt").open("a", encoding="utf-8") as file:
        file.write("\u00e9")
    assert sampling_weights(settings) == before


def test_the_draw_follows_from_the_seed_and_held_out_documents_stay_once(sources):
    settings = {"sampling_exponent": 0.7, "validation_fraction": 0.2}
    drawn = documents(sources, **settings)

    assert drawn == documents(sources, **settings)
    assert drawn != documents(sources, **settings, seed=2)

    train = {text for split, text in drawn if split == "train"}
    held_out = [text for split, text in drawn if split == "validation"]
    unweighted = documents(sources, validation_fraction=0.2)

    assert held_out == [text for split, text in unweighted if split == "validation"]
    assert len(held_out) == len(set(held_out))
    assert train.isdisjoint(held_out)
    assert documents(sources) == documents(sources, sampling_exponent=1.0)


def test_copies_of_a_document_do_not_stand_beside_each_other(sources):
    """Packed into one input, each would have the masked words of the other."""
    texts = [text for _, text in documents(sources, sampling_exponent=0.3)]

    assert max(Counter(texts).values()) > 2
    assert all(first != second for first, second in itertools.pairwise(texts))


def test_shares_of_packed_files_are_warned_of(sources, caplog):
    sampling_weights(arguments(sources, sampling_exponent=0.7))
    assert "files end with" not in caplog.text

    text = (sources / "sw" / "text.txt").read_bytes()
    (sources / "sw" / "text.txt").unlink()
    (sources / "sw" / "text.txt.gz").write_bytes(gzip.compress(text))
    sampling_weights(arguments(sources, sampling_exponent=0.7))
    assert "files end with .gz, .txt, so the shares of their bytes are not those" in caplog.text


def test_held_out_files_and_arrays_of_ids_are_weighed_right(sources):
    expected = sampling_weights(arguments(sources, sampling_exponent=0.7))
    held_out = sources / "sw" / "held_out.txt"
    held_out.write_text("sw\n" * 1000, encoding="utf-8")
    settings = {"sampling_exponent": 0.7, "validation_files": [str(held_out)]}

    assert sampling_weights(arguments(sources, **settings)) == expected

    for name, number in (("en", 900), ("sw", 100)):
        np.save(sources / name / "ids.npy", np.zeros((100 * number, 2), dtype=np.int64))
        (sources / name / "text.txt").unlink()
    held_out.unlink()
    files = [str(sources / name / "*.npy") for name in ("en", "sw")]
    of_ids = CorpusArguments(output_dir="x", names="y", files=files, sampling_exponent=0.7)

    assert list(sampling_weights(of_ids).values()) == pytest.approx(list(expected.values()), 0.02)


def test_sources_that_cannot_be_weighed_are_one_line(sources):
    with pytest.raises(InputError, match="give two or more"):
        CorpusArguments(output_dir="x", tokenizer="x", files=["a"], sampling_exponent=0.7)

    overlapping = arguments(sources, sampling_exponent=0.7)
    overlapping.files.append(str(sources))

    with pytest.raises(InputError, match="a file is in two entries"):
        sampling_weights(overlapping)

    held_out = {"validation_files": [str(sources / "sw")]}

    with pytest.raises(InputError, match=r"nothing to train on is left of .*sw, whose files are"):
        sampling_weights(arguments(sources, sampling_exponent=0.7, **held_out))
