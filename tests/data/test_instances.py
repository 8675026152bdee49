"""Instance files: what is written is read back, from all three formats, and damage is named."""

import gc
import json
import pickle
import resource
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_recipes.data.instances import (
    Instance,
    InstanceDataset,
    check_instance_outputs,
    write_instances,
)
from bert_recipes.errors import InputError
from bert_recipes.tensorflow_files import (
    decode_example,
    encode_example,
    encode_int64_feature,
    write_record,
)


SUFFIXES = [".jsonl", ".parquet", ".tfrecord"]
LONG = Instance([2, 9, 4, 3, 300, 4, 70_000, 3], 4, [2, 6], [8, 70_001], False)
SHORT = Instance([2, 7, 3, 4, 3], 3, [3], [5], True)
# More than a row group of Parquet.
INSTANCES = [SHORT if number % 3 == 0 else LONG for number in range(1100)]


def write(path, instances=INSTANCES):
    write_instances(instances, [path], max_seq_length=10, max_predictions_per_seq=3)
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_instances_come_back_without_padding(tmp_path, suffix):
    dataset = InstanceDataset([write(tmp_path / f"a{suffix}")])

    assert (len(dataset), dataset.num_pairs(7), dataset.max_seq_length) == (1100, 1100, 10)

    item = dataset[(4, 2)]

    assert item.pop("next_sentence_label") == 0
    assert item.pop("key") == (4, 2)
    assert {values.dtype for values in item.values()} == {np.dtype(np.int64)}
    assert {name: values.tolist() for name, values in item.items()} == {
        "input_ids": LONG.input_ids,
        "token_type_ids": [0, 0, 0, 0, 1, 1, 1, 1],
        "labels": [-100, -100, 8, -100, -100, -100, 70_001, -100],
    }
    assert dataset[1098]["input_ids"].tolist() == SHORT.input_ids
    assert dataset[1098]["next_sentence_label"] == 1

    for index in (-1, 1100):
        with pytest.raises(IndexError, match=f"instance {index}: there are 1100"):
            dataset[index]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_records_have_the_original_feature_names_and_padding(tmp_path, suffix):
    record = InstanceDataset([write(tmp_path / f"a{suffix}", [LONG])]).record(0)

    assert {name: values.tolist() for name, values in record.items()} == {
        "input_ids": [*LONG.input_ids, 0, 0],
        "input_mask": [1] * 8 + [0] * 2,
        "segment_ids": [0, 0, 0, 0, 1, 1, 1, 1, 0, 0],
        "masked_lm_positions": [2, 6, 0],
        "masked_lm_ids": [8, 70_001, 0],
        "masked_lm_weights": [1.0, 1.0, 0.0],
        "next_sentence_labels": [0],
    }


def test_several_outputs_are_filled_round_robin_and_read_in_order(tmp_path):
    paths = [tmp_path / "0.jsonl", tmp_path / "1.tf_record-00000-of-00001", tmp_path / "2.parquet"]
    instances = [SHORT._replace(masked_ids=[number]) for number in range(8)]
    write_instances(instances, paths, max_seq_length=10, max_predictions_per_seq=3)
    dataset = InstanceDataset(paths)
    numbers = [dataset[index]["labels"].max() for index in range(8)]

    assert numbers == [0, 3, 6, 1, 4, 7, 2, 5]


def test_our_tfrecords_hold_the_bytes_tensorflow_would_write_for_sorted_features(
    shared_data, tmp_path
):
    golden = (shared_data / "reference" / "tf_examples.tfrecord").read_bytes()
    end = 12 + struct.unpack_from("<Q", golden)[0]
    features = features_of(golden[12:end])
    length = sum(features["input_mask"])
    count = int(sum(features["masked_lm_weights"]))
    instance = Instance(
        features["input_ids"][:length],
        features["segment_ids"].index(1),
        features["masked_lm_positions"][:count],
        features["masked_lm_ids"][:count],
        bool(features["next_sentence_labels"][0]),
    )
    path = tmp_path / "a.tfrecord"
    write_instances([instance], [path], max_seq_length=128, max_predictions_per_seq=20)
    content = path.read_bytes()

    # Same header with its checksum, same bytes but for the order of the features.
    assert content[:12] == golden[:12]
    assert sorted(content[12:end]) == sorted(golden[12:end])
    assert features_of(content[12:end]) == features


def features_of(example):
    return {name: values.tolist() for name, values in decode_example(example).items()}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_dataset_travels_without_its_maps(tmp_path, suffix):
    dataset = InstanceDataset([write(tmp_path / f"a{suffix}", INSTANCES[:100])])
    unpickled = pickle.loads(pickle.dumps(dataset))
    assert unpickled[77]["input_ids"].tolist() == INSTANCES[77].input_ids


def cut_short(path):
    path.write_bytes(write(path, INSTANCES[:4]).read_bytes()[:-5])


def with_other_features(path):
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"input_ids": [[1, 2]]}), path)
        return
    with open(path, "wb") as file:
        write_record(file, encode_example([encode_int64_feature("input_ids", [1, 2, 300])]))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "there is no such file"),
        (lambda path: path.touch(), "the file is empty"),
        (lambda path: path.write_bytes(b"This is a letter.\n" * 20), "make (it|the file) again"),
        (cut_short, "make (it|the file) again"),
        (with_other_features, "make (it|the file) again"),
    ],
)
def test_files_that_are_not_of_instances_are_refused(tmp_path, suffix, make, message):
    path = tmp_path / f"a{suffix}"
    make(path)

    with pytest.raises(InputError, match=rf"a\{suffix}.*{message}"):
        InstanceDataset([path])
    assert {file.name for file in tmp_path.rglob("*") if file.suffix == ".npy"} == set()


def test_a_parquet_file_with_rows_of_several_lengths_is_refused(tmp_path):
    table = pq.read_table(write(tmp_path / "a.parquet", INSTANCES[:2])).to_pydict()
    table["masked_lm_ids"][1] = [1]
    pq.write_table(pa.table(table), tmp_path / "a.parquet")

    with pytest.raises(InputError, match=r"a\.parquet.*make it again"):
        InstanceDataset([tmp_path / "a.parquet"])


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


@pytest.mark.parametrize(
    "change",
    [
        {"input_ids": [1, 2, 3]},
        {"input_ids": [1.5] * 10},
        {"input_ids": [-1] * 10},
        {"input_ids": [[1]] * 10},
        {"input_mask": [0, 1] * 5},
        {"input_mask": [0] * 10},
        {"segment_ids": [2] * 10},
        {"masked_lm_positions": [2, 8, 0]},
        {"masked_lm_ids": [1]},
        {"masked_lm_ids": None},
        {"masked_lm_weights": [0.5, 1, 1]},
        {"next_sentence_labels": [2]},
        '{"input_ids": [1, 2',
        "[1, 2]",
    ],
)
def test_a_record_that_is_no_instance_is_named(tmp_path, change):
    path = write(tmp_path / "a.jsonl", INSTANCES[1:6])
    lines = path.read_bytes().splitlines()
    line = change if isinstance(change, str) else json.dumps({**json.loads(lines[1]), **change})
    path.write_bytes(b"\n".join([lines[0], line.encode("latin-1"), *lines[2:]]))
    dataset = InstanceDataset([path])

    assert len(dataset) == 5
    with pytest.raises(InputError, match=r"a\.jsonl, record 2: .*; make the file again"):
        dataset[1]


def test_a_file_of_another_vocabulary_is_named(tmp_path):
    path = write(tmp_path / "a.jsonl", INSTANCES[:2])

    assert len(InstanceDataset([path], vocab_size=70_002)) == 2

    message = r"a\.jsonl, record 2: token id 70001, but the vocabulary has 70001 entries"

    with pytest.raises(InputError, match=message):
        InstanceDataset([path], vocab_size=70_001)


def test_outputs_that_cannot_be_written_are_named_before_any_work(tmp_path):
    (tmp_path / "b.jsonl").mkdir()

    for names, message in [
        (["a.txt"], "the suffix must say the format"),
        (["none/a.jsonl"], "there is no folder"),
        (["a.jsonl", "a.jsonl"], "given twice"),
        (["b.jsonl"], "is a folder"),
    ]:
        with pytest.raises(InputError, match=message):
            check_instance_outputs([tmp_path / name for name in names])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_nothing_half_written_is_left_and_the_old_file_stays(tmp_path, suffix):
    path = write(tmp_path / f"a{suffix}", INSTANCES[:5])
    before = path.read_bytes()

    def fail_late():
        yield from INSTANCES
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write(path, fail_late())

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    gc.collect()

    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before
