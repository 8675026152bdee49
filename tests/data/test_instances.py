"""Instance files: what is written is read back, from all three formats, and damage is named."""

import json
import pickle
import resource
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

from bert_recipes.data.instances import FEATURE_NAMES, Instance, InstanceDataset, write_instances
from bert_recipes.errors import InputError
from bert_recipes.tensorflow_files import decode_example, encode_example, encode_int64_feature, write_record


SUFFIXES = [".jsonl", ".parquet", ".tfrecord"]
INSTANCES = [
    Instance([2, 9, 4, 3, 300 + n, 4, 70_000, 3], 4, [2, 6], [8, 70_001], n % 2 == 1)
    if n % 3
    else Instance([2, 7, 3, 4 + n, 3], 3, [3], [5], False)
    for n in range(2500)
]


def write(path, instances=INSTANCES):
    write_instances(instances, [path], max_seq_length=10, max_predictions_per_seq=3)
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_instances_come_back_without_padding(tmp_path, suffix):
    dataset = InstanceDataset([write(tmp_path / f"a{suffix}")])
    assert (len(dataset), dataset.num_pairs(0), dataset.num_pairs(7)) == (2500, 2500, 2500)
    assert dataset.max_seq_length == 10
    item = dataset[(4, 2)]
    assert item["input_ids"].tolist() == [2, 9, 4, 3, 302, 4, 70_000, 3]
    assert item["token_type_ids"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert item["labels"].tolist() == [-100, -100, 8, -100, -100, -100, 70_001, -100]
    assert item["next_sentence_label"] == 0
    assert item["key"] == (4, 2)
    assert {item[name].dtype for name in ("input_ids", "token_type_ids", "labels")} == {np.dtype(np.int64)}
    assert dataset[2499]["input_ids"].tolist() == INSTANCES[2499].input_ids
    assert dataset[1]["next_sentence_label"] == 1
    assert dataset[1500]["input_ids"].tolist() == [2, 7, 3, 1504, 3]


def test_json_lines_have_the_original_feature_names_and_padding(tmp_path):
    record = json.loads(write(tmp_path / "a.jsonl").read_text().splitlines()[2])
    assert record == {
        "input_ids": [2, 9, 4, 3, 302, 4, 70_000, 3, 0, 0],
        "input_mask": [1, 1, 1, 1, 1, 1, 1, 1, 0, 0],
        "segment_ids": [0, 0, 0, 0, 1, 1, 1, 1, 0, 0],
        "masked_lm_positions": [2, 6, 0],
        "masked_lm_ids": [8, 70_001, 0],
        "masked_lm_weights": [1.0, 1.0, 0.0],
        "next_sentence_labels": [0],
    }


def test_the_three_formats_hold_the_same(tmp_path):
    datasets = [InstanceDataset([write(tmp_path / f"a{suffix}")]) for suffix in SUFFIXES]
    for index in range(0, 2500, 37):
        records = [dataset.record(index) for dataset in datasets]
        for name in FEATURE_NAMES:
            assert records[0][name].tolist() == records[1][name].tolist() == records[2][name].tolist()


def test_several_outputs_are_filled_round_robin_and_read_in_order(tmp_path):
    paths = [tmp_path / "0.jsonl", tmp_path / "1.tfrecord", tmp_path / "2.parquet"]
    write_instances(INSTANCES[:8], paths, max_seq_length=10, max_predictions_per_seq=3)
    dataset = InstanceDataset(paths)
    expected = [INSTANCES[n].input_ids for n in (0, 3, 6, 1, 4, 7, 2, 5)]
    assert [dataset[n]["input_ids"].tolist() for n in range(len(dataset))] == expected


def test_shards_of_tfrecord_files_are_recognised_by_their_names(tmp_path):
    path = tmp_path / "a.tf_record-00000-of-00001"
    assert len(InstanceDataset([write(path, INSTANCES[:5])])) == 5


def test_our_tfrecords_hold_the_bytes_tensorflow_would_write_for_sorted_features(shared_data, tmp_path):
    golden = (shared_data / "reference" / "tf_examples.tfrecord").read_bytes()
    length = struct.unpack_from("<Q", golden)[0]
    theirs = golden[12 : 12 + length]
    features = {name: values.tolist() for name, values in decode_example(theirs).items()}
    count = int(sum(features["masked_lm_weights"]))
    instance = Instance(
        features["input_ids"][: sum(features["input_mask"])],
        features["segment_ids"].index(1),
        features["masked_lm_positions"][:count],
        features["masked_lm_ids"][:count],
        bool(features["next_sentence_labels"][0]),
    )
    path = tmp_path / "a.tfrecord"
    write_instances([instance], [path], max_seq_length=128, max_predictions_per_seq=20)
    ours = path.read_bytes()
    # Same header with its checksum, same bytes but for the order of the features.
    assert ours[:12] == golden[:12]
    assert sorted(ours[12 : 12 + length]) == sorted(theirs)
    assert {name: values.tolist() for name, values in decode_example(ours[12 : 12 + length]).items()} == features


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_workers_read_the_same(tmp_path, suffix):
    dataset = InstanceDataset([write(tmp_path / f"a{suffix}")])
    loader = DataLoader(dataset, batch_size=50, sampler=range(0, 2500, 9), num_workers=2, collate_fn=list)
    items = [item for batch in loader for item in batch]
    assert [item["input_ids"].tolist() for item in items] == [INSTANCES[n].input_ids for n in range(0, 2500, 9)]
    again = pickle.loads(pickle.dumps(dataset))
    assert again[77]["input_ids"].tolist() == INSTANCES[77].input_ids


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_missing_empty_and_foreign_files_are_named(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    with pytest.raises(InputError, match="there is no such file"):
        InstanceDataset([path])
    path.write_bytes(b"")
    with pytest.raises(InputError, match="the file is empty"):
        InstanceDataset([path])
    path.write_bytes(b"This is a letter, not data.\n" * 20)
    with pytest.raises(InputError, match=rf"a\{suffix}"):
        InstanceDataset([path])
    with pytest.raises(InputError, match="the suffix must say the format"):
        InstanceDataset([tmp_path / "a.txt"])


def test_a_flipped_bit_in_a_tfrecord_file_is_found(tmp_path):
    path = write(tmp_path / "a.tfrecord", INSTANCES[:4])
    data = bytearray(path.read_bytes())
    record = struct.unpack_from("<Q", data)[0] + 16
    data[record + 40] ^= 4
    path.write_bytes(data)
    dataset = InstanceDataset([path])
    assert dataset[0]["key"] == (0, 0)
    with pytest.raises(InputError, match=r"a\.tfrecord, record 2: wrong checksum"):
        dataset[1]


def test_a_tfrecord_file_that_is_cut_short_is_refused(tmp_path):
    path = write(tmp_path / "a.tfrecord", INSTANCES[:4])
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(InputError, match=r"a\.tfrecord, record 4: cut short"):
        InstanceDataset([path])


def test_a_record_of_other_features_is_named(tmp_path):
    path = tmp_path / "a.tfrecord"
    with open(path, "wb") as file:
        write_record(file, encode_example([encode_int64_feature("input_ids", [1, 2, 300])]))
    with pytest.raises(InputError, match=r"a\.tfrecord, record 1: input_mask is missing"):
        InstanceDataset([path])
    table = pa.table({"input_ids": [[1, 2]]})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet: column input_mask is missing"):
        InstanceDataset([tmp_path / "a.parquet"])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("input_ids", [1, 2, 3], "differ in length"),
        ("input_ids", [1.5] * 10, "input_ids must be a list of whole numbers"),
        ("input_ids", "abc", "input_ids must be a list of whole numbers"),
        ("input_ids", [-1] * 10, "a token id is negative"),
        ("input_mask", [0, 1] * 5, "ones, then zeros"),
        ("input_mask", [0] * 10, "ones, then zeros"),
        ("segment_ids", [2] * 10, "segment_ids must be 0 or 1"),
        ("masked_lm_positions", [2, 8, 0], "outside the input's 8 tokens"),
        ("masked_lm_ids", [1], "masked_lm lists differ in length"),
        ("masked_lm_weights", [0.5, 1, 1], "masked_lm_weights must be 0 or 1"),
        ("next_sentence_labels", [2], "next_sentence_labels must be one number"),
        ("next_sentence_labels", [], "next_sentence_labels must be one number"),
    ],
)
def test_features_that_do_not_fit_are_named(tmp_path, name, value, message):
    path = write(tmp_path / "a.jsonl", INSTANCES[1:6])
    lines = path.read_text().splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), name: value})
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=rf"a\.jsonl, record 2: .*{message}"):
        InstanceDataset([path])[1]


@pytest.mark.parametrize("line", ['{"input_ids": [1, 2', "", "[1, 2]", "\xff"])
def test_a_broken_line_is_named(tmp_path, line):
    path = write(tmp_path / "a.jsonl", INSTANCES[:3])
    lines = path.read_bytes().splitlines()
    lines[1] = line.encode("latin-1")
    path.write_bytes(b"\n".join(lines))
    dataset = InstanceDataset([path])
    assert len(dataset) == 3
    with pytest.raises(InputError, match=r"a\.jsonl, record 2: "):
        dataset[1]


def test_a_file_of_another_vocabulary_is_named(tmp_path):
    path = write(tmp_path / "a.jsonl", INSTANCES[:2])
    assert len(InstanceDataset([path], vocab_size=70_002)) == 2
    with pytest.raises(InputError, match=r"a\.jsonl, record 2: token id 70001, but the vocabulary has 70001 entries"):
        InstanceDataset([path], vocab_size=70_001)


def test_an_instance_that_is_not_there_is_an_error(tmp_path):
    dataset = InstanceDataset([write(tmp_path / "a.jsonl", INSTANCES[:3])])
    for index in (-1, 3):
        with pytest.raises(IndexError, match=f"instance {index}: there are 3"):
            dataset[index]


def test_outputs_that_cannot_be_written_are_named_before_any_work(tmp_path):
    settings = {"max_seq_length": 10, "max_predictions_per_seq": 3}
    for paths, message in [
        ([tmp_path / "a.txt"], "the suffix must say the format"),
        ([tmp_path / "none" / "a.jsonl"], "there is no folder"),
        ([tmp_path / "a.jsonl", tmp_path / "a.jsonl"], "given twice"),
    ]:
        with pytest.raises(InputError, match=message):
            write_instances(INSTANCES, paths, **settings)
    (tmp_path / "b.jsonl").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        write_instances(INSTANCES, [tmp_path / "b.jsonl"], **settings)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_nothing_half_written_is_left_and_the_old_file_stays(tmp_path, suffix):
    path = write(tmp_path / f"a{suffix}", INSTANCES[:5])
    before = path.read_bytes()

    def fail_late():
        yield from INSTANCES[:1500]
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write(path, fail_late())
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_full_disk_leaves_nothing_behind(tmp_path, suffix):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write(tmp_path / f"a{suffix}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
