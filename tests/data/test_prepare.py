"""A corpus becomes a store: what the recipes' own tests do not reach without the network."""

import os

from small_corpora import write_vocabulary

from bert_recipes.data.prepare import CorpusArguments, Preparation, prepare_store
from bert_recipes.tokenization.loading import load_tokenizer


def test_a_hub_corpus_is_read_once_beside_held_out_files_of_several_shards(tmp_path, monkeypatch):
    documents = [["The red apple falls.", "A tree grows."]] * 3
    reads = []
    monkeypatch.setattr(
        "bert_recipes.data.prepare.iter_hub_documents",
        lambda *args, **options: reads.append(args) or iter(documents),
    )
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("The red apple falls.\nA tree grows.\n")
    vocabulary = write_vocabulary(tmp_path / "vocab.txt")
    arguments = CorpusArguments(
        tokenizer=str(vocabulary),
        output_dir=str(tmp_path / "store"),
        dataset_name="owner/name",
        validation_files=[str(tmp_path / f"{number}.txt") for number in range(3)],
        shard_gigabytes=1e-9,
        num_processes=1,
    )
    splits = prepare_store(arguments, load_tokenizer(vocabulary)).metadata["splits"]

    assert reads == [(("owner/name", None, "train"),)]
    assert {split: entry["num_documents"] for split, entry in splits.items()} == {
        "train": 3,
        "validation": 3,
    }


def test_a_shard_whose_text_has_changed_since_is_made_again(tmp_path, caplog):
    """Also where its size has not, by which a preparation that goes on knows its files."""
    file = tmp_path / "a.txt"
    file.write_text("The red apple falls.\n\nA tree grows.\n")
    vocabulary = write_vocabulary(tmp_path / "vocab.txt")
    arguments = CorpusArguments(
        tokenizer=str(vocabulary),
        output_dir=str(tmp_path / "store"),
        files=[str(file)],
        num_processes=1,
    )
    preparation = Preparation(arguments, load_tokenizer(vocabulary))
    with preparation.claimed():
        sizes = [preparation.write_shard(0), preparation.write_shard(0)]
        os.utime(file, ns=(2**62, 2**62))
        sizes.append(preparation.write_shard(0))

    assert sizes == [file.stat().st_size, None, file.stat().st_size]
    assert "a.txt has changed since; its shard is made again" in caplog.text
