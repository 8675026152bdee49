"""Every real file is read whole: row counts, and the official layouts made of real rows give the
same examples.
"""

import csv
import dataclasses
import functools
import json
import operator
import random
import shutil
from pathlib import Path

import pytest

from bert_recipes.tasks.catalogue import get_task
from bert_recipes.tasks.examples import Split
from bert_recipes.tasks.sources import load_split


# Rows of the files at hand that are parts of the published ones; of complete files the tasks say
# how many there are.
PARTIAL = {
    ("qnli", "train"): 8999,
    ("mnli", "train"): 18636,
    ("mnli", "validation_matched"): 4163,
    ("mnli", "validation_mismatched"): 1000,
    ("qqp", "train"): 40000,
    ("qqp", "validation"): 10000,
    ("squad", "train"): 11877,
    ("squad", "validation"): 2014,
    ("squad_v2", "train"): 7189,
    ("squad_v2", "validation"): 3046,
    ("swag", "train"): 4642,
    ("swag", "validation"): 350,
}
COMPLETE = ("cola", "sst2", "mrpc", "stsb", "rte", "wnli", "ax", "conll2003")
ROWS = {
    (name, split): rows
    for name in COMPLETE
    for split, rows in get_task(name).published_rows.items()
}
ROWS |= PARTIAL | {("qnli", split): 5463 for split in ("validation", "test")}


@pytest.fixture(scope="module")
def load(shared_data: Path):
    """Read a split of the reference data, once."""
    return functools.cache(
        lambda name, split: load_split(get_task(name), split, data_dir=str(shared_data))
    )


@pytest.mark.parametrize(("name", "split"), ROWS)
def test_a_real_file_is_read_whole(load, name: str, split: str):
    loaded = load(name, split)
    assert loaded.num_rows == len(loaded.examples) == ROWS[name, split]
    assert loaded.is_labelled == (name == "conll2003" or not split.startswith("test"))
    assert loaded.is_partial == ((name, split) in PARTIAL)


def test_unanswerable_questions_are_those_of_the_file(load):
    examples = load("squad_v2", "validation").examples
    assert sum(example.answers == () for example in examples) == 1540


def test_squad_shifts_is_read_as_squad(shared_data: Path, tmp_path: Path):
    file = shared_data / "squad" / "squadshifts_amazon-v1.1.json"
    shutil.copyfile(file, tmp_path / "dev-v1.1.json")
    assert load_split(get_task("squad"), "validation", data_dir=str(tmp_path)).num_rows == 9885


def test_swag_in_json_lines_is_read(shared_data: Path, tmp_path: Path):
    shutil.copyfile(shared_data / "swag" / "real_swag_sample.jsonl", tmp_path / "validation.jsonl")
    example = load_split(get_task("swag"), "validation", data_dir=str(tmp_path)).examples[0]
    assert example.context.startswith("Members of the procession walk down the street")
    first = "A drum line passes by walking down the street playing their instruments."
    assert (example.choices[0], example.label) == (first, 0)


def test_documents_and_words_of_conll_are_those_of_the_file(load):
    """CoNLL-2003 English: 946 documents and 203621 words in the training file (Tjong Kim Sang and
    De Meulder, Table 1).
    """
    examples = load("conll2003", "train").examples
    assert sum(len(example.tokens) for example in examples) == 203621
    documents = [example.document for example in examples]
    assert len(set(documents)) == 946
    assert documents == sorted(documents)
    assert " ".join(examples[0].tokens) == "EU rejects German call to boycott British lamb ."
    labels = [get_task("conll2003").labels[label] for label in examples[0].labels]
    assert labels[:3] == ["B-ORG", "O", "B-MISC"]


# The official GLUE download, from real rows


LAYOUTS = {
    "cola": ("CoLA", "gj04\t{label}\t\t{0}", None, "{idx}\t{0}", "index\tsentence"),
    "sst2": ("SST-2", "{0}\t{label}", "sentence\tlabel", "{idx}\t{0}", "index\tsentence"),
    "mrpc": (
        "MRPC",
        "{label}\t1{idx}\t2{idx}\t{0}\t{1}",
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        "{idx}\t1{idx}\t2{idx}\t{0}\t{1}",
        "index\t#1 ID\t#2 ID\t#1 String\t#2 String",
    ),
    "stsb": (
        "STS-B",
        "{idx}\tg\tf\t2012\t1\tnone\tnone\t{0}\t{1}\t{label:.3f}",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "{idx}\tg\tf\t2012\t1\tnone\tnone\t{0}\t{1}",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2",
    ),
    "qqp": (
        "QQP",
        "{idx}\t1\t2\t{0}\t{1}\t{label}",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        "{idx}\t{0}\t{1}",
        "id\tquestion1\tquestion2",
    ),
    "mnli": (
        "MNLI",
        "{idx}\t1\t2\tfiction\ta\tb\tc\td\t{0}\t{1}\t{votes}{name}",
        "index\tpromptID\tpairID\tgenre\tb1\tb2\tp1\tp2\tsentence1\tsentence2\t{votes}gold_label",
        "{idx}\t1\t2\tfiction\ta\tb\tc\td\t{0}\t{1}",
        "index\tpromptID\tpairID\tgenre\tb1\tb2\tp1\tp2\tsentence1\tsentence2",
    ),
    "qnli": (
        "QNLI",
        "{idx}\t{0}\t{1}\t{name}",
        "index\tquestion\tsentence\tlabel",
        "{idx}\t{0}\t{1}",
        "index\tquestion\tsentence",
    ),
    "rte": (
        "RTE",
        "{idx}\t{0}\t{1}\t{name}",
        "index\tsentence1\tsentence2\tlabel",
        "{idx}\t{0}\t{1}",
        "index\tsentence1\tsentence2",
    ),
    "wnli": (
        "WNLI",
        "{idx}\t{0}\t{1}\t{label}",
        "index\tsentence1\tsentence2\tlabel",
        "{idx}\t{0}\t{1}",
        "index\tsentence1\tsentence2",
    ),
    "ax": ("diagnostic", "", None, "{idx}\t{0}\t{1}", "index\tsentence1\tsentence2"),
}
NAMES = {
    "train": "train.tsv",
    "validation": "dev.tsv",
    "test": "test.tsv",
    "validation_matched": "dev_matched.tsv",
    "validation_mismatched": "dev_mismatched.tsv",
}


def write_official(folder: Path, name: str, split: Split) -> None:
    """Write examples in the layout of the official download, with CRLF ends in one of the files."""
    directory, line, header, test_line, test_header = LAYOUTS[name]
    if not split.is_labelled:
        line = test_line
        header = test_header
    # Training rows have one vote, development rows five.
    votes = "neutral\t" * (1 if split.name == "train" else 5)
    lines = [] if header is None else [header.replace("{votes}", votes)]
    for example in split.examples:
        label = example.label
        class_name = get_task(name).labels[label] if isinstance(label, int) else ""
        values = {"idx": example.idx, "label": label, "name": class_name, "votes": votes}
        lines.append(line.format(example.text, example.text_pair, **values))
    end = "\r\n" if name == "rte" else "\n"
    path = folder / directory / ("diagnostic.tsv" if name == "ax" else NAMES[split.name])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((end.join(lines) + end).encode("utf-8"))


@pytest.mark.parametrize(
    ("name", "split"),
    [key for key in ROWS if key[0] in LAYOUTS and ROWS[key] < 20000],
    ids=str,
)
def test_official_tsv_gives_the_examples_of_the_json_lines(load, tmp_path, name, split):
    """The layout is the download's, as huggingface/datasets' glue.py reads it: CoLA without header,
    no quoting.
    """
    expected = load(name, split)
    write_official(tmp_path, name, expected)
    official = load_split(get_task(name), split, data_dir=str(tmp_path))
    assert official.source.endswith(".tsv")
    assert official.num_rows == expected.num_rows
    for example, original in zip(official.examples, expected.examples, strict=True):
        if name == "stsb" and original.label is not None:  # three digits are written
            assert example.label == pytest.approx(original.label, abs=1e-3)
            original = dataclasses.replace(original, label=example.label)
        assert example == original


def test_mrpc_is_cut_from_the_msr_file_by_the_list_of_ids(load, tmp_path: Path):
    """GLUE-baselines download_glue_data.py `format_mrpc`: pairs in dev_ids.tsv are the development
    set.
    """
    splits = {"t": load("mrpc", "train"), "d": load("mrpc", "validation")}
    lines = []
    for letter, split in splits.items():
        for e in split.examples:
            lines.append(f"{e.label}\t{letter}{e.idx}\tx{e.idx}\t{e.text}\t{e.text_pair}")
    random.Random(0).shuffle(lines)
    folder = tmp_path / "MRPC"
    folder.mkdir()
    header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    text = "\r\n".join([header, *lines]) + "\r\n"
    (folder / "msr_paraphrase_train.txt").write_bytes(text.encode())
    # A train.tsv beside it is not read: known copies lack a row.
    (folder / "train.tsv").write_text(f"{header}\n", encoding="utf-8")
    ids = "".join(f"d{example.idx}\tx{example.idx}\n" for example in splits["d"].examples)
    (folder / "dev_ids.tsv").write_text(ids, encoding="utf-8")
    key = operator.attrgetter("text", "text_pair", "label")
    for split in splits.values():
        loaded = load_split(get_task("mrpc"), split.name, data_dir=str(tmp_path))
        assert sorted(map(key, loaded.examples)) == sorted(map(key, split.examples))


def test_swag_columns_survive_commas_quotes_and_line_breaks(tmp_path: Path):
    names = ["", "video-id", "fold-ind", "startphrase", "sent1", "sent2", "gold-source"]
    names += [f"ending{number}" for number in range(4)] + ["label"]
    hard = 'He says "yes, no"\nand goes'
    with (tmp_path / "val.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerow([0, "v", 1, "", hard, "She", "gold", "a, b", "c", "d", "e", 3])
        writer.writerow([1, "v", 1, "", "x", "", "gold", "a", "b", "c", "d", 0])
    first, second = load_split(get_task("swag"), "validation", data_dir=str(tmp_path)).examples
    assert (first.context, first.choices[0], first.label) == (hard, "She a, b", 3)
    assert second.choices == ("a", "b", "c", "d")


def write_rows(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_flat_squad_rows_are_the_nested_ones(load, tmp_path: Path):
    nested = load("squad_v2", "validation").examples
    rows = []
    for example in nested:
        texts = [answer.text for answer in example.answers]
        starts = [answer.answer_start for answer in example.answers]
        row = {"id": example.idx, "title": example.title, "question": example.question}
        answers = {"text": texts, "answer_start": starts}
        rows.append({**row, "context": example.context, "answers": answers})
    write_rows(tmp_path / "validation.jsonl", rows)
    flat = load_split(get_task("squad_v2"), "validation", data_dir=str(tmp_path))
    assert list(flat.examples) == list(nested)


@pytest.mark.parametrize("key", ["ner_tags", "labels"])
def test_tags_by_name_and_by_number_are_those_of_the_columns(load, tmp_path: Path, key: str):
    task = get_task("conll2003")
    columns = load("conll2003", "validation").examples
    rows = []
    for example in columns:
        tags = [task.labels[label] if key == "labels" else label for label in example.labels]
        rows.append({"tokens": example.tokens, key: tags})
    write_rows(tmp_path / "validation.jsonl", rows)
    loaded = load_split(task, "validation", data_dir=str(tmp_path)).examples
    assert [(e.tokens, e.labels) for e in loaded] == [(e.tokens, e.labels) for e in columns]
    # Without marks every sentence is a document.
    assert [example.document for example in loaded] == list(range(3250))


@pytest.mark.slow
def test_a_file_as_large_as_mnli_is_read_in_seconds(shared_data: Path, tmp_path: Path):
    import resource
    import time

    text = (shared_data / "glue" / "mnli" / "train.jsonl").read_text(encoding="utf-8")
    (tmp_path / "train.jsonl").write_text(text * 21, encoding="utf-8")
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    loaded = load_split(get_task("mnli"), "train", data_dir=str(tmp_path))
    assert loaded.num_rows == 18636 * 21
    assert time.perf_counter() - start < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # kB: 1 GB
